"""Runs a notebook in Databricks' source format without Databricks: its Python cells in order, in one namespace."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

HEAD = "# Databricks notebook source\n"
CELL = re.compile(r"^# COMMAND -+$", re.MULTILINE)
MAGIC = "# MAGIC "


def cells(text):
    """(is it text, content) of each cell; only Python and Markdown are known here."""
    assert text.startswith(HEAD)
    for part in CELL.split(text.removeprefix(HEAD)):
        lines = part.strip("\n").split("\n")
        magic = [line for line in lines if line.startswith("# MAGIC")]
        if magic:
            assert len(magic) == len([line for line in lines if line.strip()]), f"text and code in one cell: {lines[0]}"
            assert magic[0].startswith(f"{MAGIC}%md"), magic[0]
            shown = (line.removeprefix("# MAGIC").removeprefix(" ") for line in magic)
            yield True, "\n".join(shown).removeprefix("%md").strip()
        elif part.strip():
            yield False, part


class Widgets:
    """dbutils.widgets: the given values, else the defaults."""

    def __init__(self, values):
        self._values, self._defaults = values, {}

    def text(self, name, default, label=""):
        assert label
        self._defaults[name] = default

    def get(self, name):
        return self._values.get(name, self._defaults[name])


@dataclass
class Utilities:
    """dbutils, as far as the notebooks use it."""

    widgets: Widgets


@dataclass
class Shown:
    """What a run displayed: rows of frames, figures."""

    tables: list = field(default_factory=list)
    figures: list = field(default_factory=list)

    def display(self, what):
        """What Databricks' display takes: a frame or a figure of Plotly; both are made to the end."""
        if hasattr(what, "to_plotly_json"):
            assert what.to_json()
            self.figures.append(what)
        else:
            self.tables.append([row.asDict(recursive=True) for row in what.collect()])


def run(path: Path, spark, **values):
    """Run a notebook; ``values`` are its widgets'. Returns what it showed."""
    shown = Shown()
    names = {"spark": spark, "dbutils": Utilities(Widgets(values)), "display": shown.display, "__name__": "__main__"}
    for number, (is_text, content) in enumerate(cells(path.read_text(encoding="utf-8"))):
        if not is_text:
            exec(compile(content, f"{path.name}, cell {number}", "exec"), names)
    return shown
