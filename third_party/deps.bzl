"""For workspaces that depend on ddpopt.

    local_repository(name = "ddpopt", path = "...")
    load("@ddpopt//third_party:deps.bzl", "ddpopt_dependencies")
    ddpopt_dependencies()

All of it is local: Debian packages (`bazelw` in ddpopt's root installs them), and LibTorch from LIBTORCH_HOME or from wheels that are fetched
once. A repository of one of these names that the workspace has already is left as it is.
"""

load("//third_party/bazel_rules:folder_repository.bzl", "folder_repository")
load("//third_party/cuda:cuda.bzl", "cuda_repository")
load("//third_party/libtorch:libtorch.bzl", "libtorch_repository")

def ddpopt_dependencies():
    # Bazel itself asks for these; the shims and Debian's packages keep it from going to the network.
    _once(folder_repository, "rules_cc", root = "@ddpopt//third_party/bazel_rules/rules_cc:WORKSPACE")
    _once(folder_repository, "remote_coverage_tools", root = "@ddpopt//third_party/bazel_rules/remote_coverage_tools:WORKSPACE")
    _once(native.local_repository, "rules_java", path = "/usr/share/bazel/rules/java")
    _once(native.local_repository, "rules_proto", path = "/usr/share/bazel/rules/proto")
    _once(libtorch_repository, "libtorch")
    _once(cuda_repository, "cuda")  # empty, unless --config=cuda

def _once(rule, name, **kwargs):
    if name not in native.existing_rules():
        rule(name = name, **kwargs)
