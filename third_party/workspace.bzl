"""The external repositories. All are local: Debian packages, and LibTorch from a folder or from wheels fetched once."""

load("//third_party/cuda:cuda.bzl", "cuda_repository")
load("//third_party/libtorch:libtorch.bzl", "libtorch_repository")

def ddpopt_repositories():
    # Bazel itself asks for these; the shims and Debian's packages keep it from going to the network.
    native.local_repository(name = "rules_cc", path = "third_party/bazel_rules/rules_cc")
    native.local_repository(name = "remote_coverage_tools", path = "third_party/bazel_rules/remote_coverage_tools")
    native.local_repository(name = "rules_java", path = "/usr/share/bazel/rules/java")
    native.local_repository(name = "rules_proto", path = "/usr/share/bazel/rules/proto")
    libtorch_repository(name = "libtorch")
    cuda_repository(name = "cuda")  # empty, unless --config=cuda
