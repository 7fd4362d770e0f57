"""cc rules with the project's compiler options."""

# -Wrestrict is wrong about std::string in GCC 12 (its bug 105651).
_COPTS = ["-std=c++20", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-Wno-restrict", "-g0"]

SANITIZER_COPTS = _COPTS

# What the programs of --config=asan, ubsan and tsan are linked with.
_SANITIZER_DEPS = select({
    "//bazel:sanitizer": ["//bazel:sanitizer_defaults"],
    "//conditions:default": [],
})

def ddpopt_cc_library(name, copts = [], **kwargs):
    native.cc_library(name = name, copts = _COPTS + copts, linkstatic = True, **kwargs)

def ddpopt_cc_binary(name, copts = [], deps = [], **kwargs):
    native.cc_binary(name = name, copts = _COPTS + copts, deps = deps + _SANITIZER_DEPS, **kwargs)

def ddpopt_cc_test(name, copts = [], deps = [], size = "small", main = True, **kwargs):
    """A googletest binary; `main = False` for tests that bring their own main."""
    native.cc_test(
        name = name,
        copts = _COPTS + copts,
        size = size,
        linkstatic = True,
        deps = deps + ["//third_party/googletest" + (":googletest_main" if main else "")] + _SANITIZER_DEPS,
        **kwargs
    )
