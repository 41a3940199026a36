"""No two classes of the product have one name: a name that is read anywhere means one thing."""

import ast
from collections import defaultdict

PRODUCT = ("jobs", "pipeline", "schemas", "udfs")


def modules_by_class(*folders):
    """The modules that define each class at their top level, by the name of the class."""
    found = defaultdict(list)
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef):
                    found[node.name].append(str(path))
    return found


def test_no_class_is_defined_twice(project):
    found = modules_by_class(*(project / folder for folder in PRODUCT))
    assert {name: modules for name, modules in found.items() if len(modules) > 1} == {}


def test_a_class_that_is_defined_twice_is_found(tmp_path):
    for module in ("one", "two"):
        (tmp_path / f"{module}.py").write_text("class Change:\n    pass\n", encoding="utf-8")
    assert len(modules_by_class(tmp_path)["Change"]) == 2
