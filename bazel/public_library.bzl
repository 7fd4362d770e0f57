"""Libraries for those outside of the repository: they can include the public headers, and no other of ours."""

def _public_library_impl(ctx):
    inner = [dep[CcInfo] for dep in ctx.attr.hdrs_of]
    headers = []
    for info in inner:
        headers.extend(info.compilation_context.direct_public_headers)

    # The public headers lie in a folder of their own, and that folder alone is on the compiler's path. Whoever depends on this target finds
    # nothing else of ours; within the repository its targets still see the headers where they are.
    links = []
    folder = None
    for header in headers:
        path = header.short_path
        if path.startswith("../"):
            path = path.split("/", 2)[2]
        link = ctx.actions.declare_file("_public_headers/%s/%s" % (ctx.label.name, path))
        ctx.actions.symlink(output = link, target_file = header)
        links.append(link)
        folder = link.path[:-len(path) - 1]
    context = cc_common.create_compilation_context(
        headers = depset(links + headers),
        includes = depset([folder]),
    )
    merged = cc_common.merge_cc_infos(
        direct_cc_infos = [CcInfo(compilation_context = context)],
        cc_infos = [dep[CcInfo] for dep in ctx.attr.third_party] +
                   [CcInfo(linking_context = info.linking_context) for info in inner],
    )
    # What is loaded at run time (the NCCL object of --config=cuda) goes with the program.
    runfiles = ctx.runfiles(files = links)
    for dep in ctx.attr.hdrs_of:
        runfiles = runfiles.merge(dep[DefaultInfo].default_runfiles)
    return [merged, DefaultInfo(files = depset(links), runfiles = runfiles)]

ddpopt_public_library = rule(
    implementation = _public_library_impl,
    attrs = {
        "hdrs_of": attr.label_list(
            providers = [CcInfo],
            mandatory = True,
            doc = "The targets whose own headers are public. All that they depend on is linked, and none of its headers can be included.",
        ),
        "third_party": attr.label_list(
            providers = [CcInfo],
            doc = "What the public headers include from elsewhere.",
        ),
    },
    provides = [CcInfo],
)
