"""Tests of what a library shows to those outside."""

load("//bazel:ddpopt.bzl", "ddpopt_cc_library")

def public_headers_test(name, library, headers):
    """Fails unless `library` has exactly these public headers of its package, each compiles alone, and none leaks a macro or a private header.

    Args:
      name: of the test.
      library: a ddpopt_public_library of this package.
      headers: the paths by which they are included. What the library shows of other packages is tested there.
    """
    alone = []
    for header in headers:
        source = "%s_%s.cc" % (name, header.replace("/", "_").replace(".", "_"))
        native.genrule(
            name = source + "_source",
            testonly = True,
            outs = [source],
            # Twice: the guard must hold.
            cmd = "printf '#include \"%s\"\\n#include \"%s\"\\n' >$@" % (header, header),
        )
        ddpopt_cc_library(
            name = source[:-3],
            testonly = True,
            srcs = [source],
            # They are compiled to see that they can be: nothing in them runs.
            copts = ["-O0"],
            deps = [library],
        )
        alone.append(":" + source[:-3])
    native.filegroup(name = name + "_alone", testonly = True, srcs = alone)
    native.sh_test(
        name = name,
        size = "small",
        srcs = ["//bazel:public_headers_test.sh"],
        args = [native.package_name(), "$(locations %s)" % library, "--"] + headers,
        data = [
            library,
            ":" + name + "_alone",
        ],
        tags = ["no_sanitizer"],
    )
