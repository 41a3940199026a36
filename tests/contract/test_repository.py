"""What holds for every file of the repository, and for the versions that must fit together."""

import ast
import re
import subprocess
import tomllib
from importlib.metadata import version

import pytest

PACKAGES = ("jobs", "pipeline", "schemas", "udfs")
TEXT = {".py", ".md", ".toml", ".yml", ".yaml", ".sh", ".txt", ".json", ".properties", ".cfg", ".sql", ""}


@pytest.fixture
def tracked(project):
    """Every file under version control that holds text, with its text."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=project, capture_output=True, text=True, check=True).stdout
    files = [project / name for name in listed.split("\0") if name]
    files = [path for path in files if path.suffix in TEXT and path.is_file() and path.stat().st_size < 1_000_000]
    assert len(files) > 20
    return {str(path.relative_to(project)): path.read_text(encoding="utf-8", errors="replace") for path in files}


@pytest.mark.tool("git")
def test_no_file_names_a_registry_or_a_path_of_one_machine(tracked):
    # With a class of one letter in each, so that this file is not its own finding.
    registries = r"pyp[i]\.org|pythonhoste[d]\.org|repo1?\.mave[n]|mave[n]\.org|npmj[s]\.(com|org)"
    machine = r"(?<![\w.])/(wor[k]|roo[t]|home/[a-z][\w-]*)/"
    found = [
        f"{name}:{number}: {line.strip()[:100]}"
        for name, text in tracked.items()
        for number, line in enumerate(text.split("\n"), 1)
        if re.search(f"{registries}|{machine}", line)
    ]
    assert found == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_function_and_class_says_what_it_does(project, package):
    silent = []
    for path in sorted((project / package).rglob("*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"))
        if not ast.get_docstring(module):
            silent.append(f"{path}: the module")
        silent += [f"{path}:{node.lineno} {node.name}" for node in public(module) if not ast.get_docstring(node)]
    assert silent == []


def public(node):
    """Public functions, classes and methods of a module, not those inside functions, and no mere types of one."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.ClassDef | ast.FunctionDef) or child.name.startswith("_"):
            continue
        if "overload" not in map(ast.unparse, child.decorator_list):
            yield child
            if isinstance(child, ast.ClassDef):
                yield from public(child)


def test_deltas_jar_and_package_are_one_version(project):
    jars = [line.split()[1] for line in (project / "conf" / "jars.sha256").read_text().splitlines()]
    spark = ".".join(version("pyspark").split(".")[:2])
    assert f"delta-spark_{spark}_2.13-{version('delta-spark')}.jar" in jars
    assert {jar.removesuffix(".jar").rpartition("-")[2] for jar in jars} == {version("delta-spark")}


def test_the_environment_is_what_is_pinned_and_declared(project):
    """The lock's versions, each with its hashes, are the installed ones; every declared requirement is in the lock."""
    text = (project / "conf" / "requirements.txt").read_text()
    lock = dict(re.findall(r"^([\w.-]+)==(\S+) \\$", text, re.MULTILINE))
    entries = re.split(r"^(?=\w)", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE), flags=re.MULTILINE)[1:]
    hashed = r"[\w.-]+==\S+( \\\n    --hash=sha256:[0-9a-f]{64})+\n"
    assert [entry for entry in entries if not re.fullmatch(hashed, entry)] == []
    assert len(entries) == len(lock)
    assert {name: version(name) for name in lock} == lock
    declared = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    extras = declared["optional-dependencies"]
    wanted = [*declared["dependencies"], *extras["spark"], *extras["connect"], *extras["dev"]]
    locked = {canonical(name) for name in lock}
    assert [each for each in wanted if canonical(re.match(r"[\w.-]+", each)[0]) not in locked] == []
    exact = dict(each.split("==") for each in wanted if "==" in each)
    assert {name: version(name) for name in exact} == exact


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.tool("make")
def test_make_alone_lists_every_target(project):
    listed = subprocess.run(["make"], cwd=project, capture_output=True, text=True, check=True).stdout
    phony = re.search(r"^\.PHONY: (.*)$", (project / "Makefile").read_text(), re.MULTILINE)[1].split()
    assert re.findall(r"^  make (\S+)", listed, re.MULTILINE) == phony
