"""Docstrings of classes name fields and other things that exist."""

import ast
import builtins
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from jobs.config import SECTIONS, list_settings
from pipeline.lake.lake import ALL_TABLES

PRODUCT = ("jobs", "pipeline", "schemas", "udfs")
NAME = re.compile(r"``([A-Za-z_]\w+)``")
INTRODUCED = re.compile(r"``([A-Za-z_]\w+)``:")  # what the class itself has
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)


class Source(NamedTuple):
    """A module of the product: its syntax tree, the names of Python in it, and the words of its texts."""

    tree: ast.Module
    names: frozenset[str]
    words: frozenset[str]


@cache
def sources(project):
    """The product's modules, by path."""
    paths = [path for folder in PRODUCT for path in sorted((project / folder).rglob("*.py"))]
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    return {path: Source(tree, frozenset(names_in(tree)), frozenset(words_of(tree))) for path, tree in trees.items()}


@cache
def classes(project):
    """The product's classes at the level of modules, by name."""
    found = {}
    for source in sources(project).values():
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(node)
    return found


def names_in(tree):
    """The names of Python in a tree: variables, attributes, parameters, definitions, imports."""
    for node in ast.walk(tree):
        for field in ("id", "attr", "arg", "name"):
            if isinstance(name := getattr(node, field, None), str):
                yield name.rpartition(".")[2]


def words_of(tree):
    """The words of texts that are no docstrings: columns in SQL, keys, options."""
    docstrings = {ast.get_docstring(node, clean=False) for node in ast.walk(tree) if isinstance(node, DOCUMENTED)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in docstrings:
            yield from re.findall(r"\w+", node.value)


def module_level_names(tree):
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.Import | ast.ImportFrom):
            yield from names_in(node)


@cache
def known_everywhere(project):
    """What every docstring may name: modules and what they define, columns, settings, what Python has."""
    tables = {table.name for table in ALL_TABLES} | {column.name for table in ALL_TABLES for column in table.columns}
    settings = {key.partition(".")[2] for key in list_settings()} | SECTIONS.keys()
    found = {name for source in sources(project).values() for name in module_level_names(source.tree)}
    return found | {path.stem for path in sources(project)} | tables | settings | {*dir(builtins)}


def members(project, cls, seen=frozenset()):
    """The names in a class and in its bases of this project."""
    found = {*names_in(cls)}
    bases = {base.id for base in cls.bases if isinstance(base, ast.Name)} - seen
    for base in bases:
        for node in classes(project).get(base, ()):
            found |= members(project, node, seen | bases)
    return found


def unknown_names(project, path, cls):
    """The names in double backticks of a class's docstring that are unknown.

    One with a colon behind it is of the class, defined in the module, or a word of the module's texts, as columns in
    its SQL are. Others may be names of the module, known everywhere, or words of the texts of the folder or of a
    module that uses the class.
    """
    doc = ast.get_docstring(cls) or ""
    own = members(project, cls)
    named, introduced = {*NAME.findall(doc)} - own, {*INTRODUCED.findall(doc)} - own
    unknown = set(introduced)
    if path in sources(project):
        unknown -= sources(project)[path].words | {*module_level_names(sources(project)[path].tree)}
    if others := named - introduced - known_everywhere(project):
        for where, source in sources(project).items():
            if where.parent == path.parent or cls.name in source.names:
                others -= source.words | (source.names if where == path else frozenset())
        unknown |= others
    return unknown


@pytest.mark.parametrize("folder", PRODUCT)
def test_a_docstring_names_what_there_is(project, folder):
    wrong = {
        f"{path.relative_to(project)}: {cls.name}": sorted(unknown)
        for path, source in sources(project).items()
        if path.is_relative_to(project / folder)
        for cls in ast.walk(source.tree)
        if isinstance(cls, ast.ClassDef) and (unknown := unknown_names(project, path, cls))
    }
    assert wrong == {}


def test_a_field_that_is_gone_is_found(project):
    cls = ast.parse('class Row:\n    """``taken``: when. ``rows``: which. ``gone_now``."""\n\n    taken: int\n').body[0]
    assert unknown_names(project, Path("a.py"), cls) == {"rows", "gone_now"}
