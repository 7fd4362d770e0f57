"""A shared library out of a library of this repository and all that it depends on here."""

def _whole_archives_impl(ctx):
    toolchain = ctx.attr._cc_toolchain[cc_common.CcToolchainInfo]
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    inputs = []
    for given in ctx.attr.library[CcInfo].linking_context.linker_inputs.to_list():
        libraries = []
        for library in given.libraries:
            if library.pic_static_library == None:
                libraries.append(library)
            else:
                libraries.append(cc_common.create_library_to_link(
                    actions = ctx.actions,
                    feature_configuration = features,
                    cc_toolchain = toolchain,
                    pic_static_library = library.pic_static_library,
                    alwayslink = True,
                ))
        inputs.append(cc_common.create_linker_input(
            owner = given.owner,
            libraries = depset(libraries),
            # Where LibTorch lies is for the program to say: the library goes to other machines.
            user_link_flags = depset([flag for flag in given.user_link_flags if not flag.startswith("-Wl,-rpath,")]),
        ))
    return [CcInfo(linking_context = cc_common.create_linking_context(linker_inputs = depset(inputs)))]

_whole_archives = rule(
    implementation = _whole_archives_impl,
    attrs = {
        "library": attr.label(providers = [CcInfo], mandatory = True),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)

def ddpopt_shared_library(name, library, exports):
    """lib<name>.so: every object of `library`, of which the symbols in the version script `exports` can be seen.

    Args:
      name: without lib and .so.
      library: a label.
      exports: a version script for the linker.
    """
    _whole_archives(name = name + "_objects", library = library)
    native.cc_binary(
        name = "lib%s.so" % name,
        linkshared = True,
        linkopts = [
            "-Wl,-soname,lib%s.so" % name,
            "-Wl,--version-script=$(location %s)" % exports,
        ],
        deps = [
            ":" + name + "_objects",
            exports,
        ],
        visibility = ["//:__subpackages__"],
    )
