"""source_text: chosen source files of this repository as one C++ array."""

_Sources = provider(doc = "Source files of a cc target and of all that it needs.", fields = ["files"])

def _collect_impl(target, ctx):
    files = []
    for name in ["srcs", "hdrs"]:
        files += getattr(ctx.rule.files, name, [])
    deps = getattr(ctx.rule.attr, "deps", []) + getattr(ctx.rule.attr, "hdrs_of", [])
    below = [dep[_Sources].files for dep in deps if _Sources in dep]
    return [_Sources(files = depset([f for f in files if f.is_source and not f.owner.workspace_name], transitive = below))]

_collect = aspect(implementation = _collect_impl, attr_aspects = ["deps", "hdrs_of"])

def _source_text_impl(ctx):
    found = {f.short_path: f for f in ctx.files.srcs}
    for dep in ctx.attr.deps:
        for f in dep[_Sources].files.to_list():
            found[f.short_path] = f
    missing = [path for path in ctx.attr.paths if path not in found]
    if missing:
        fail("no target in deps has " + ", ".join(missing))
    files = [found[path] for path in ctx.attr.paths]
    out = ctx.actions.declare_file(ctx.label.name + ".cc")
    ctx.actions.run_shell(
        inputs = files,
        outputs = [out],
        arguments = [out.path] + [f.path for f in files],
        command = """
set -e
out=$1; shift
{
  echo 'namespace ddpopt::examples {'
  echo 'extern const unsigned char kDefaultText[];'
  echo 'extern const unsigned long kDefaultTextSize;'
  echo 'const unsigned char kDefaultText[] = {'
  cat "$@" | od -An -v -tu1 | sed 's/[0-9][0-9]*/&,/g'
  echo '};'
  echo 'const unsigned long kDefaultTextSize = sizeof(kDefaultText);'
  echo '}'
} > "$out"
""",
        mnemonic = "SourceText",
    )
    return [DefaultInfo(files = depset([out]))]

source_text = rule(
    implementation = _source_text_impl,
    attrs = {
        "paths": attr.string_list(mandatory = True, doc = "From the repository's root, in the order wanted."),
        "deps": attr.label_list(aspects = [_collect], doc = "Targets whose sources, and those of what they need, may be listed."),
        "srcs": attr.label_list(allow_files = True, doc = "Further files that may be listed."),
    },
)
