"""A folder of some repository as a repository of its own."""

def _folder_repository_impl(ctx):
    folder = ctx.path(ctx.attr.root).dirname
    for entry in folder.readdir():
        ctx.symlink(entry, entry.basename)

# native.local_repository takes a path, and a path is relative to the workspace at hand: of no use in another one.
folder_repository = repository_rule(
    implementation = _folder_repository_impl,
    attrs = {"root": attr.label(mandatory = True, doc = "The WORKSPACE file in the folder.")},
    local = True,
)
