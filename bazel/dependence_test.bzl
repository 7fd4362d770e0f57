"""A test that holds the project's arrows: which packages a target may depend on, directly or not."""

def dependence_test(name, target, may_depend_on):
    """Fails when `target` reaches a package of this repository, third_party aside, that is neither its own nor in `may_depend_on`.

    Args:
      name: of the test.
      target: a label.
      may_depend_on: packages, such as "fx_graph", or single targets, such as "interpreter:mode_stack".
    """
    native.genquery(
        name = name + "_deps",
        testonly = True,
        expression = "kind('cc_library', deps(%s))" % target,
        scope = [target],
    )
    native.sh_test(
        name = name,
        size = "small",
        srcs = ["dependence_test.sh"],
        args = ["$(location :%s_deps)" % name, target] + may_depend_on,
        data = [":%s_deps" % name],
        tags = ["no_sanitizer"],
    )
