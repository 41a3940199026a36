"""Runs a notebook in Databricks source format without Databricks: its Python cells in order, in one namespace."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

HEAD = "# Databricks notebook source\n"
CELL = re.compile(r"^# COMMAND -+$", re.MULTILINE)
MAGIC = "# MAGIC "


def cells(text):
    """Yield (is_text, content) of each cell. Only Python and Markdown cells are supported."""
    assert text.startswith(HEAD)
    for part in CELL.split(text.removeprefix(HEAD)):
        lines = part.strip("\n").split("\n")
        magic = [line for line in lines if line.startswith("# MAGIC")]
        if magic:
            assert len(magic) == len([line for line in lines if line.strip()]), f"text and code in one cell: {lines[0]}"
            assert magic[0].startswith(f"{MAGIC}%md"), magic[0]
            text_lines = (line.removeprefix("# MAGIC").removeprefix(" ") for line in magic)
            yield True, "\n".join(text_lines).removeprefix("%md").strip()
        elif part.strip():
            yield False, part


class Widgets:
    """Stands for dbutils.widgets: the given values, else the defaults."""

    def __init__(self, values):
        self._values, self._defaults = values, {}

    def text(self, name, default, label=""):
        assert label
        self._defaults[name] = default

    def get(self, name):
        return self._values.get(name, self._defaults[name])


@dataclass
class Utilities:
    """Stands for dbutils, as far as the notebooks use it."""

    widgets: Widgets


@dataclass
class DisplayedOutput:
    """What a run displayed: rows of frames, and figures."""

    tables: list = field(default_factory=list)
    figures: list = field(default_factory=list)

    def display(self, what):
        """Record a frame or a Plotly figure, computed completely."""
        if hasattr(what, "to_plotly_json"):
            assert what.to_json()
            self.figures.append(what)
        else:
            self.tables.append([row.asDict(recursive=True) for row in what.collect()])


def run(path: Path, spark, **values):
    """Run a notebook with widget values, and return what it displayed."""
    output = DisplayedOutput()
    names = {"spark": spark, "dbutils": Utilities(Widgets(values)), "display": output.display, "__name__": "__main__"}
    for number, (is_text, content) in enumerate(cells(path.read_text(encoding="utf-8"))):
        if not is_text:
            exec(compile(content, f"{path.name}, cell {number}", "exec"), names)
    return output
