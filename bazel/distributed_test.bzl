"""googletest binaries that run on several ranks."""

load("//bazel:ddpopt.bzl", "ddpopt_cc_library", "ddpopt_cc_test")

def ddpopt_distributed_test(name, srcs, deps = [], world_sizes = [2, 4], size = "medium", args = [], copts = [], tags = [], **kwargs):
    """Tests named <name>_<n>ranks, one for each world size, over sources compiled once.

    Every rank runs every test case; a case fails if any rank failed it or died before finishing it. Sources include
    testing/distributed_test.h for the process group.

    Args:
      name: prefix of the tests' names.
      srcs: sources, without a main.
      deps: their dependencies; googletest and //testing:distributed_test are added.
      world_sizes: numbers of ranks.
      size: of each test, as in cc_test.
      args: more arguments, such as --test_timeout=SECONDS for each test case.
      copts: more compiler options.
      tags: of each test.
      **kwargs: handed to cc_test (data, env, ...).
    """
    ddpopt_cc_library(
        name = name + "_cases",
        testonly = True,
        srcs = srcs,
        copts = copts,
        alwayslink = True,
        deps = deps + [
            "//testing:distributed_test",
            "//third_party/googletest",
        ],
    )
    for ranks in world_sizes:
        ddpopt_cc_test(
            name = "%s_%dranks" % (name, ranks),
            size = size,
            args = ["--world_size=%d" % ranks] + args,
            main = False,
            tags = tags,
            deps = [
                ":" + name + "_cases",
                "//testing:distributed_test_main",
            ],
            **kwargs
        )
    native.test_suite(
        name = name,
        tests = ["%s_%dranks" % (name, ranks) for ranks in world_sizes],
    )
