"""What stands for nothing in arrays of numbers is named once, in ``udfs/columns/absent.py``."""

import ast

import numpy as np

VALUES = {
    -1,
    *(sign * value for value in (1 << 61, (1 << 62) - 1, 1 << 62, 1 << 63, (1 << 63) - 1) for sign in (1, -1)),
}
# Numbers of other things, which have these values too.
OTHERS = {
    ("pipeline/lake/storage/log.py", "UNKNOWN_VERSION"),
    ("udfs/comqc/dispatch_arguments.py", "_IS_BSTR"),
    ("udfs/files/capture_file.py", "UNKNOWN_LINK_TYPE"),
    ("udfs/tcp/tunnels.py", "NO_IDENTIFIER"),
}


def constants(path):
    """The names of a module's constants, and their values where these can be computed from numbers alone."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.AnnAssign | ast.Assign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            try:
                value = eval(ast.unparse(node.value), {"np": np, "__builtins__": {}})
            except (NameError, TypeError, AttributeError, KeyError, ImportError):
                continue
            yield from ((target.id, value) for target in targets if isinstance(target, ast.Name))


def test_what_stands_for_nothing_has_one_name(project):
    found = {
        (str(path.relative_to(project)), name)
        for package in ("udfs", "pipeline")
        for path in (project / package).rglob("*.py")
        for name, value in constants(path)
        if isinstance(value, int | np.integer) and int(value) in VALUES
    }
    known = {each for each in found if each[0] == "udfs/columns/absent.py"}
    assert {name for _, name in known} >= {"NONE", "NO_TIME", "AFTER_ALL", "NEVER_NS"}
    assert found - known == OTHERS
