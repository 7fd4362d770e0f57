"""What the NCCL object is compiled and linked with, as a repository. Nothing is fetched unless --config=cuda asks for it.

    @cuda//:headers      CUDA's runtime headers, and NCCL's of the version that LibTorch was built with
    @cuda//:torch_cuda   libtorch_cuda.so and libc10_cuda.so, to link with
"""

_OFF = """
# Not a --config=cuda build: there is nothing here, and nothing was fetched.
package(default_visibility = ["//visibility:public"])

cc_library(name = "headers")

cc_library(name = "torch_cuda")
"""

_HEADERS = """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "headers",
    hdrs = glob([
        "cuda/**",
        "nccl/**",
    ]),
    includes = [
        "cuda",
        "nccl",
    ],
)
"""

_TORCH_CUDA = """
cc_library(
    name = "torch_cuda",
    # No path to load them from: that is LibTorch's own. What they need in turn is the loader's business.
    linkopts = [
        "-L{folder}",
        "-Wl,--allow-shlib-undefined",
        "-Wl,--push-state,--no-as-needed",
        "-ltorch_cuda",
        "-lc10_cuda",
        "-Wl,--pop-state",
    ],
)
"""

def _make_import_libraries(ctx, imports):
    """Libraries with the names and symbols that the object may use, and nothing else, for linking alone."""
    symbols = {}
    for line in imports.split("\n"):
        if line and not line.startswith("#"):
            library, symbol = line.split(" ")
            symbols.setdefault(library, []).append(symbol)
    for library in symbols:
        source = "import/" + library + ".c"
        ctx.file(source, "".join(["void %s(void) {}\n" % symbol for symbol in symbols[library]]))
        result = ctx.execute(["g++", "-x", "c", "-shared", "-fPIC", "-nostdlib", "-Wl,-soname," + library, "-o", "import/" + library, source])
        if result.return_code != 0:
            fail("could not make an import library of %s:\n%s" % (library, result.stderr))
    return str(ctx.path("import"))

def _cuda_impl(ctx):
    if ctx.os.environ.get("DDPOPT_CUDA") != "1":
        ctx.file("BUILD", _OFF)
        return
    here = "//third_party/cuda:"
    script = ctx.path(Label(here + "locate.sh"))
    for watched in [here + "wheels/2.15.0.txt", here + "wheels/2.11.0.txt", "//third_party/libtorch:fetch_wheels.sh"]:
        ctx.path(Label(watched))
    imports = ctx.read(Label(here + "imports.txt"))
    header = str(ctx.path(Label("@libtorch//:include/ATen/core/Tensor.h")).realpath)
    home = header[:-len("/include/ATen/core/Tensor.h")]
    result = ctx.execute([script, home], timeout = 1800, quiet = False)
    if result.return_code != 0:
        fail("CUDA's and NCCL's headers are not available:\n" + result.stderr)
    found = dict([line.split("=", 1) for line in result.stdout.strip().split("\n")])
    ctx.symlink(found["cuda_include"], "cuda")
    ctx.symlink(found["nccl_include"], "nccl")

    folder = found["torch_cuda"] or _make_import_libraries(ctx, imports)
    ctx.file("BUILD", _HEADERS + _TORCH_CUDA.format(folder = folder))

cuda_repository = repository_rule(
    implementation = _cuda_impl,
    environ = ["DDPOPT_CUDA", "CUDA_HOME", "NCCL_HOME", "LIBTORCH_HOME", "LIBTORCH_VERSION", "XDG_CACHE_HOME", "HOME"],
    local = True,
)
