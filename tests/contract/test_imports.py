"""Imports point one way, and no module's name hides another's."""

import ast
import shutil
import subprocess
import sys

import pytest

from tools import draw_rooms

MAY_IMPORT = {
    "udfs": {"udfs", "schemas"},
    "schemas": {"schemas"},
    "pipeline": {"pipeline", "udfs", "schemas"},
    "jobs": {"jobs", "pipeline", "schemas"},
}
# The rooms of pipeline/, and from which others each may import; modules beside them are for all.
_SILVER = {"lake", "runs", "bronze", "silver"}
_ATTEMPTS = {*_SILVER, "quality", "privacy", "attempts"}
_ANSWERS = {*_ATTEMPTS, "transfers", "sequences", "queues"}
ROOMS = {
    "lake": set(),
    "runs": {"lake"},
    "bronze": {"lake", "runs"},
    "silver": {"lake", "runs", "bronze"},
    "quality": {"lake", "runs", "bronze"},
    "attempts": _SILVER,
    "privacy": _SILVER,
    "transfers": _SILVER,
    "data_source": {*_SILVER, "transfers"},
    "sequences": _ATTEMPTS,
    "queues": _ATTEMPTS,
    "findings": _ANSWERS,
    "alerts": _ANSWERS,
    "notices": {*_ANSWERS, "alerts"},
    "reports": {*_ANSWERS, "findings", "alerts"},
    "dashboards": {*_ANSWERS, "findings", "alerts", "reports"},
    "collector": set(),
}
MOST_MODULES = 20  # in one folder
# What decoders may know: bytes, numpy, Arrow, and the tables whose rows they make.
DECODERS_MAY_IMPORT = {"udfs", "schemas", "numpy", "pyarrow"} | set(sys.stdlib_module_names)
SPARK_FUNCTIONS = "spark_functions.py"  # alone of the decoders it knows Spark
CIPHERS = {"Cryptodome", "cryptography", "impacket"}  # for what opens sealed traffic alone
NOT_FOR_JOBS = set(MAY_IMPORT) | set(sys.stdlib_module_names)


def imported(path):
    """The top-level names that a module imports, wherever in it."""
    found = set()
    for node in draw_rooms.import_statements(path.read_text(encoding="utf-8")):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        else:
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
        if path.name != SPARK_FUNCTIONS
    }
    assert (project / "udfs" / SPARK_FUNCTIONS).exists()
    assert {path: names for path, names in wrong.items() if names} == {}


def test_tables_and_decoders_are_imported_without_spark():
    modules = (
        "schemas.catalog",
        "udfs.capture.capture_reader",
        "udfs.capture.connection_merge",
        "udfs.stubs.call_decoder",
    )
    code = f"import sys, {', '.join(modules)}; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


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
    """No RDD, SparkContext, JVM or cache(): they do not work over Spark Connect or on serverless.

    But for the counts in a run's summary, which are null there: PySpark has no other way to them.
    """
    counts = project / "jobs" / "command_line" / "engine_summary.py"
    forbidden = {"rdd", "sparkContext", "_jvm", "_jsc", "_jdf", "cache", "persist"}
    wrong = []
    for folder in ("pipeline", "jobs"):
        for path in {*(project / folder).rglob("*.py")} - {counts}:
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None
                if name in forbidden:
                    wrong.append(f"{path}:{node.lineno} {name}")
    assert wrong == []


def test_answers_of_spark_come_in_one_way(project):
    """``toArrow`` alone gives tables that end the process (``pipeline/lake/engine/collect.py``)."""
    found = {
        str(path.relative_to(project))
        for folder in ("pipeline", "jobs")
        for path in (project / folder).rglob("*.py")
        if "toArrow" in (text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and node.attr == "toArrow"
    }
    assert found == {"pipeline/lake/engine/collect.py"}


def against_the_rooms(package):
    """The imports between rooms that the table does not allow."""
    found = draw_rooms.room_imports(package)
    assert found.keys() == ROOMS.keys()
    return {room: others - ROOMS[room] for room, others in found.items() if others - ROOMS[room]}


def test_rooms_import_as_the_table_says(project):
    assert against_the_rooms(project / "pipeline") == {}


def test_an_import_against_the_table_is_found(project, tmp_path):
    shutil.copytree(project / "pipeline", tmp_path / "pipeline")
    module = tmp_path / "pipeline" / "bronze" / "event_time.py"
    module.write_text(module.read_text(encoding="utf-8") + "\nfrom pipeline.silver import update\n", encoding="utf-8")
    assert against_the_rooms(tmp_path / "pipeline") == {"bronze": {"silver"}}


@pytest.mark.parametrize("package", ["pipeline", "udfs"])
def test_no_circle_between_rooms_or_modules(project, package):
    draw_rooms.levels(draw_rooms.room_imports(project / package))  # RecursionError in a circle
    modules = {
        ".".join(path.relative_to(project).with_suffix("").parts).removesuffix(".__init__"): names
        for path, names in draw_rooms.module_imports(project / package).items()
    }
    draw_rooms.levels({name: {each for each in names if each in modules} for name, names in modules.items()})


def folder_imports(package):
    """The folders that each folder imports from. Those of ``lake`` import each other, and no other room."""
    found = draw_rooms.folder_imports(package)
    return {folder: set() if folder.split("/")[0] == "lake" else others for folder, others in found.items()}


@pytest.mark.parametrize("package", ["pipeline", "udfs"])
def test_no_circle_between_folders(project, package):
    """Nor between a folder and its own sub-folders: one of the two is below the other."""
    draw_rooms.levels(folder_imports(project / package))


def test_an_import_back_to_a_folder_is_found(project, tmp_path):
    shutil.copytree(project / "pipeline", tmp_path / "pipeline")
    module = tmp_path / "pipeline" / "attempts" / "columns" / "call_columns.py"
    module.write_text(
        module.read_text(encoding="utf-8") + "\nfrom pipeline.attempts import evidence\n", encoding="utf-8"
    )
    with pytest.raises(RecursionError):
        draw_rooms.levels(folder_imports(tmp_path / "pipeline"))


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_no_folder_holds_more_modules_than_a_reader_can_scan(project, package):
    folders = {path.parent for path in (project / package).rglob("*.py")}
    counts = {str(folder): sum(path.name != "__init__.py" for path in folder.glob("*.py")) for folder in folders}
    assert {folder: count for folder, count in counts.items() if count > MOST_MODULES} == {}


def test_the_picture_of_the_rooms_is_current(project):
    page = draw_rooms.PAGE.read_text(encoding="utf-8")
    assert draw_rooms.drawn(page) == page
