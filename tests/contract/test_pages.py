"""The documentation: generated pages are current, links and paths lead somewhere, examples import names that exist."""

import ast
import importlib
import re
import shlex
from importlib import resources

import pytest

from jobs.analysis.wireshark import FILE_NAME
from jobs.command_line.parsers import PARSERS, build_parser
from tools import (
    write_configuration_doc,
    write_dissector,
    write_notices_doc,
    write_questions_doc,
    write_rules_doc,
    write_site_glossary,
    write_tables_doc,
    write_targets_doc,
)

GENERATED = {
    "tables": write_tables_doc.page,
    "rules": write_rules_doc.page,
    "questions": write_questions_doc.questions_page,
    "alerts": write_questions_doc.alerts_page,
    "configuration": write_configuration_doc.page,
    "targets": write_targets_doc.page,
}
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")
# A backticked path of the repository: begins with one of its folders, or names a file of its top folder.
FOLDERS = ("bench", "conf", "data", "docs", "jobs", "notebooks", "pipeline", "schemas", "tests", "tools", "udfs", ".ci")
FILES = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "THIRD_PARTY_NOTICES.md",
    "LICENSE",
    "Makefile",
    "pyproject.toml",
    "databricks.yml",
)
PATH = re.compile(rf"(?:{'|'.join(map(re.escape, FOLDERS))})(?:/[A-Za-z0-9_.*-]+)*/?|{'|'.join(map(re.escape, FILES))}")
# Made by set-up and by make targets, not kept in the repository.
MADE = {"conf/spark.conf", "pipeline/suites", "pipeline/targets"}
PROJECT = {"bench", "jobs", "pipeline", "schemas", "udfs"}


def pages(project):
    return [
        project / "README.md",
        project / "CONTRIBUTING.md",
        project / "SECURITY.md",
        *sorted((project / "docs").rglob("*.md")),
    ]


def anchors(path):
    """The anchors of a page's headings, as GitHub makes them."""
    found = []
    for heading in re.findall(r"^#+ +(.+?) *$", FENCE.sub("", path.read_text(encoding="utf-8")), re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", LINK.sub(lambda link: link[0][1:].partition("]")[0], heading).lower())
        found.append(plain.replace(" ", "-"))
    return set(found)


@pytest.mark.parametrize("name", GENERATED)
def test_a_generated_page_is_current(project, name):
    """`make docs` writes them again."""
    assert (project / "docs" / "reference" / f"{name}.md").read_text(encoding="utf-8") == GENERATED[name]()


def test_the_glossary_of_the_site_is_that_of_the_pages(project):
    """`make glossary` writes it again."""
    written = project / "pipeline" / "dashboards" / "static" / "glossary.json"
    assert written.read_text(encoding="utf-8") == write_site_glossary.page()


def test_the_dissector_is_made_of_the_declarations_of_today(project):
    """`make dissector` writes it again."""
    assert (
        resources.files("jobs.analysis").joinpath(FILE_NAME).read_text(encoding="ascii") == write_dissector.dissector()
    )


def test_every_relative_link_leads_to_a_page_and_a_heading(project):
    broken = []
    for page in pages(project):
        for target in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
            if re.match(r"[a-z]+:", target):
                continue
            name, _, anchor = target.partition("#")
            path = (page.parent / name).resolve() if name else page
            if not path.exists() or (anchor and anchor not in anchors(path)):
                broken.append(f"{page.relative_to(project)}: {target}")
    assert broken == []


def test_every_path_in_the_pages_exists(project):
    missing = []
    for page in pages(project):
        named = CODE.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
        paths = [code for code in named if PATH.fullmatch(code) and code not in MADE]
        missing += [f"{page.relative_to(project)}: {code}" for code in paths if not any(project.glob(code.rstrip("/")))]
    assert missing == []


def test_every_function_that_is_named_with_its_module_is_there(project):
    """`name` (`path.py`): a function, class or method (`Class.method`) of that module."""
    missing, count = [], 0
    for page in pages(project):
        for name, path in re.findall(r"`([\w.]+)`\s+\(`([\w/]+\.py)`\)", page.read_text(encoding="utf-8")):
            count += 1
            body = ast.parse((project / path).read_text(encoding="utf-8")).body
            for part in name.split("."):
                body = next((node.body for node in body if getattr(node, "name", None) == part), None) or []
            missing += [] if body else [f"{page.relative_to(project)}: {name} of {path}"]
    assert count > 30
    assert missing == []


def test_every_page_is_reached_from_the_index(project):
    index = project / "docs" / "README.md"
    reached, waiting = {index}, [index]
    while waiting:
        page = waiting.pop()
        targets = (name.partition("#")[0] for name in LINK.findall(page.read_text(encoding="utf-8")))
        paths = {(page.parent / name).resolve() for name in targets if name.endswith(".md") and ":" not in name}
        waiting += paths - reached
        reached |= paths
    assert {*(project / "docs").rglob("*.md")} - reached == set()


def test_examples_import_names_that_exist(project):
    wrong = []
    for page in pages(project):
        text = page.read_text(encoding="utf-8")
        for module, names in re.findall(r"^from ([\w.]+) import ([\w, ]+)$", text, re.MULTILINE):
            if module.partition(".")[0] in PROJECT:
                there = dir(importlib.import_module(module))
                wrong += [f"{page.name}: {module}.{name}" for name in names.split(", ") if name not in there]
    assert wrong == []


def commands(text):
    """The arguments of each command of msmq in the code blocks of a page, without those that leave something out."""
    blocks = "".join(block[0].replace("\\\n", " ") for block in FENCE.finditer(text))
    lines = re.findall(r"^ *(?:\S*/)?msmq ([a-z].*)$", blocks, re.MULTILINE)
    return [words for words in (shlex.split(line, comments=True) for line in lines) if "..." not in words]


def test_msmq_takes_every_command_of_the_pages(project, capsys):
    refused, count = [], 0
    for page in pages(project):
        for job, *arguments in commands(page.read_text(encoding="utf-8")):
            count += 1
            try:
                build_parser(job).parse_args(arguments) if job in PARSERS else refused.append(f"{page.name}: {job}")
            except SystemExit:
                refused.append(f"{page.name}: {job}: {capsys.readouterr().err}")
    assert refused == []
    assert count > 80


def test_the_notices_are_those_of_the_installed_packages(project):
    """`make notices-doc` writes them again."""
    assert (project / "THIRD_PARTY_NOTICES.md").read_text(encoding="utf-8") == write_notices_doc.page()
