"""LibTorch as a repository: LIBTORCH_HOME if set, else the wheels of LIBTORCH_VERSION, fetched once into the user's cache folder."""

def _version(ctx, home):
    numbers = {}
    for line in ctx.read(home + "/include/torch/headeronly/version.h").split("\n"):
        words = line.split(" ")
        if len(words) == 3 and words[0] == "#define" and words[1].startswith("TORCH_VERSION_"):
            numbers[words[1]] = words[2]
    return ".".join([numbers["TORCH_VERSION_" + part] for part in ["MAJOR", "MINOR", "PATCH"]])

def _libtorch_impl(ctx):
    script = ctx.path(Label("//third_party/libtorch:locate.sh"))
    for watched in ["fetch_wheels.sh", "wheels/2.15.0.txt", "wheels/2.11.0.txt"]:
        ctx.path(Label("//third_party/libtorch:" + watched))
    result = ctx.execute([script], timeout = 1800, quiet = False)
    if result.return_code != 0:
        fail("LibTorch is not available:\n" + result.stderr)
    home = result.stdout.strip().split("\n")[-1]
    ctx.symlink(home + "/include", "include")
    ctx.file("version.txt", _version(ctx, home))
    ctx.file("BUILD", """
exports_files(["version.txt"])

cc_library(
    name = "libtorch",
    hdrs = glob(["include/**/*.h", "include/**/*.hpp"]),
    includes = ["include", "include/torch/csrc/api/include"],
    # The libraries find each other by their own relative paths, which Bazel's folder of links would break: hence the absolute path.
    linkopts = [
        "-L{home}/lib",
        "-Wl,-rpath,{home}/lib",
        "-Wl,-rpath-link,{home}/lib",
        "-Wl,-rpath-link,{home}/../nvidia/cu13/lib",
        "-ltorch_cpu",
        "-lc10",
    ],
    visibility = ["//visibility:public"],
)
""".format(home = home))

libtorch_repository = repository_rule(
    implementation = _libtorch_impl,
    environ = ["LIBTORCH_HOME", "LIBTORCH_VERSION", "DDPOPT_ANY_LIBTORCH", "XDG_CACHE_HOME", "HOME"],
    local = True,
)
