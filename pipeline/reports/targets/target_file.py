"""Targets of a move, read from the YAML files in ``conf/targets`` or a user's own, and validated.

A file is about one product. ``sources`` are pages of its documentation by a short name, each with its ``address``,
``as_of`` (the date that the page bears) and ``checked`` (when what is said here was compared with it). ``facts`` hold
for all of its ``targets``, which are named kinds of queue with facts of their own. A fact has a ``value``, its
``source``, what that ``says``, and the product's ``default`` where that is another value, with the same entries.
``change`` says what can be done instead, or what must be configured. Without a source a value is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

import yaml

from pipeline.local_paths import bundled_folder
from pipeline.reports.targets.facts import FACTS, UNKNOWN, Fact
from pipeline.yaml_file import YamlFile, shown

_MAX_BYTES: Final = 64 * 1024
_MAX_ENTRIES: Final = {"sources": 50, "targets": 10}
_MAX_TARGETS: Final = 40  # of all files
_MAX_NAME_CHARS: Final = 60
_MAX_TEXT_CHARS: Final = 500
_ADDRESS: Final = re.compile(r"https://[A-Za-z0-9./:#?=&%~_+-]+")
_PAGE: Final = ("address", "checked")
_STATEMENT: Final = ("value",), ("source", "says", "change")


class TargetError(Exception):
    """An invalid file; the message has the file, the line, and the reason."""


@dataclass(frozen=True, slots=True)
class DocumentationPage:
    """A page of a product's documentation. ``as_of``: the date that it bears, None without one."""

    address: str
    as_of: date | None
    checked: date


@dataclass(frozen=True, slots=True)
class DocumentedValue:
    """What a page says of a fact. ``value``: bytes, seconds, a number, 1 for yes and 0 for no; None if not known.

    ``text`` is the value as it is written in the file, with its unit.
    """

    value: float | None
    text: str
    source: DocumentationPage | None
    says: str | None
    change: str | None = None


@dataclass(frozen=True, slots=True)
class TargetFact:
    """A fact on a target: what it offers or limits, and its default where that is another."""

    limit: DocumentedValue
    default: DocumentedValue | None = None


@dataclass(frozen=True, slots=True)
class MoveTarget:
    """What a queue can move to: a product with a kind of queue, and its facts by name. What is not there is unknown."""

    name: str
    facts: Mapping[str, TargetFact]


def bundled_targets() -> tuple[MoveTarget, ...]:
    """Return the project's targets: those of ``conf/targets``, or of its copy in an installed package or archive."""
    files = [file for file in bundled_folder("targets").iterdir() if file.name.endswith(".yml")]
    return read_targets(sorted(files, key=lambda file: file.name))


def read_targets(paths: Sequence[Path | Traversable]) -> tuple[MoveTarget, ...]:
    """Return the targets of files in their order; TargetError says what is wrong, with file and line."""
    targets: dict[str, MoveTarget] = {}
    for path in paths:
        for target in _TargetFile(path, TargetError).targets():
            if target.name in targets:
                raise TargetError(f"{path}: there is another target {target.name}")
            targets[target.name] = target
    if len(targets) > _MAX_TARGETS:
        raise TargetError(f"{len(targets)} targets: at most {_MAX_TARGETS}")
    return tuple(targets.values())


class _TargetFile(YamlFile):
    """Reads the nodes of a file of targets."""

    def targets(self) -> Iterator[MoveTarget]:
        """Yield the targets of the file."""
        root = self.root(_MAX_BYTES, aliases=False)
        if root is None:
            raise TargetError(f"{self.path}: no targets: expected a mapping of product, sources, facts, targets")
        given = self.fields(root, "the file", ("product", "targets"), ("sources", "facts"))
        product = self.text(given["product"], "product", _MAX_NAME_CHARS)
        sources = {name: self._source(node, f"sources: {shown(name)}") for name, node in self._named(given, "sources")}
        common = self._facts(given["facts"], "facts", sources) if "facts" in given else {}
        for name, node in self._named(given, "targets"):
            own = self._facts(node, f"targets: {shown(name)}", sources)
            yield MoveTarget(f"{product}, {name}", common | own)

    def _named(self, given: Mapping[str, yaml.Node], section: str) -> Iterator[tuple[str, yaml.Node]]:
        """Yield names and nodes of a section; none if the file does not have it."""
        if section not in given:
            return
        entries = self.named(given[section], section, "a mapping of names")
        if len(entries) > _MAX_ENTRIES[section]:
            raise self.error(given[section], f"{section}: {len(entries)}, at most {_MAX_ENTRIES[section]}")
        for _, key, node in entries:
            yield self.text(key, f"{section}: a name", _MAX_NAME_CHARS), node

    def _source(self, node: yaml.Node, what: str) -> DocumentationPage:
        given = self.fields(node, what, _PAGE, ("as_of",))
        address = self.text(given["address"], f"{what}: address", _MAX_TEXT_CHARS)
        if not _ADDRESS.fullmatch(address):
            raise self.error(given["address"], f"{what}: address: expected https://..., not {shown(address)}")
        as_of = self._date(given["as_of"], f"{what}: as_of") if "as_of" in given else None
        return DocumentationPage(address, as_of, self._date(given["checked"], f"{what}: checked"))

    def _date(self, node: yaml.Node, what: str) -> date:
        text = self.text(node, what, _MAX_NAME_CHARS)
        try:
            return date.fromisoformat(text)
        except ValueError:
            raise self.error(node, f"{what}: expected a date like 2026-01-31, not {shown(text)}") from None

    def _facts(self, node: yaml.Node, what: str, sources: Mapping[str, DocumentationPage]) -> dict[str, TargetFact]:
        found = {}
        for name, value in self.fields(node, what, optional=tuple(FACTS)).items():
            where, (required, optional) = f"{what}: {name}", _STATEMENT
            given = self.fields(value, where, required, (*optional, "default"))
            default = None
            if "default" in given:
                entries = self.fields(given["default"], f"{where}: default", required, optional)
                default = self._statement(entries, f"{where}: default", FACTS[name], sources)
            found[name] = TargetFact(self._statement(given, where, FACTS[name], sources), default)
        return found

    def _statement(
        self, given: Mapping[str, yaml.Node], what: str, fact: Fact, sources: Mapping[str, DocumentationPage]
    ) -> DocumentedValue:
        text = self.text(given["value"], f"{what}: value", _MAX_NAME_CHARS)
        try:
            value = fact.kind.parse(text)
        except ValueError:
            message = f"{what}: value: expected {fact.kind.expected}, not {shown(text)}"
            raise self.error(given["value"], message) from None
        source = None
        if "source" in given:
            name = self.text(given["source"], f"{what}: source", _MAX_NAME_CHARS)
            if (source := sources.get(name)) is None:
                known = ", ".join(map(shown, sources)) or "none"
                raise self.error(given["source"], f"{what}: no source {shown(name)} (there are {known})")
        says, change = (
            self.text(given[name], f"{what}: {name}", _MAX_TEXT_CHARS) if name in given else None
            for name in ("says", "change")
        )
        if value is None or source is None:
            return DocumentedValue(None, UNKNOWN, source, says, change)
        return DocumentedValue(value, text, source, says, change)
