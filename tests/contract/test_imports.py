"""Imports point one way, and no module's name hides another's."""

import ast
import sys

import pytest

MAY_IMPORT = {
    "udfs": {"udfs"},
    "schemas": {"schemas"},
    "pipeline": {"pipeline", "udfs", "schemas"},
    "jobs": {"jobs", "pipeline", "schemas"},
}
# What decoders may know: bytes, numpy and Arrow.
DECODERS_MAY_IMPORT = {"udfs", "numpy", "pyarrow"} | set(sys.stdlib_module_names)
CIPHERS = {"Cryptodome", "cryptography", "impacket"}  # for what opens sealed traffic alone
NOT_FOR_JOBS = set(MAY_IMPORT) | set(sys.stdlib_module_names)


def imported(path):
    """The top-level names that a module imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("folder", sorted(MAY_IMPORT))
def test_imports_point_one_way(project, folder):
    modules = sorted((project / folder).rglob("*.py"))
    assert modules
    wrong = {str(path): imported(path) & MAY_IMPORT.keys() - MAY_IMPORT[folder] for path in modules}
    assert {path: names for path, names in wrong.items() if names} == {}


def test_decoders_know_no_spark(project):
    wrong = {
        str(path): imported(path) - DECODERS_MAY_IMPORT - (CIPHERS if path.parent.name == "sealed" else set())
        for path in (project / "udfs").rglob("*.py")
    }
    assert {path: names for path, names in wrong.items() if names} == {}


def test_every_package_and_subpackage_is_a_regular_one(project):
    folders = {path.parent for package in MAY_IMPORT for path in (project / package).rglob("*.py")}
    assert [str(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []
    assert [name for name in MAY_IMPORT if not (project / name / "py.typed").exists()] == []


def test_no_job_hides_a_package_or_the_standard_library(project):
    assert {path.stem for path in (project / "jobs").glob("*.py")} & NOT_FOR_JOBS == set()


def test_no_test_folder_is_a_package_or_named_like_one(project):
    tests = project / "tests"
    assert [str(path) for path in tests.rglob("__init__.py")] == []
    assert {path.name for path in tests.rglob("*") if path.is_dir()} & MAY_IMPORT.keys() == set()


def test_spark_is_used_through_frames_and_sql_only(project):
    """No RDD, SparkContext, JVM, DeltaTable or cache(): they do not work over Spark Connect or on serverless."""
    forbidden = {"rdd", "sparkContext", "_jvm", "_jsc", "_jdf", "DeltaTable", "cache", "persist"}
    wrong = []
    for folder in ("pipeline", "jobs"):
        for path in (project / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None
                if name in forbidden:
                    wrong.append(f"{path}:{node.lineno} {name}")
    assert wrong == []
