"""Write the page of the settings: types and bounds from pipeline/settings.py, the rest from conf/local.yml."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args, get_origin

from jobs.command_line.setting_values import BYTES_PER_UNIT
from jobs.config import SECTIONS, Setting, list_settings
from pipeline.settings import ByteSize, CollectorMachine, MachineQuota, QueueQuota, TunnelPort

SETTINGS_FILE: Final = Path(__file__).resolve().parents[1] / "conf" / "local.yml"
HEAD: Final = """\
# Configuration

Made by `make configuration-doc` from `pipeline/settings.py` and `conf/local.yml`; change it there.

`conf/local.yml` contains every setting with its default, and works as it is. Copy it, or write a file with the settings
that differ, and name it with `--conf`. `--set KEY=VALUE` overrides one setting for one run:

```
msmq run_all --conf my.yml --set store.stubs=false --set 'privacy.redact=[labels, queues]' ...
```

`conf/databricks.yml` (used by the [bundle](../guides/databricks.md)) and `conf/cluster.yml` (for
`spark-submit`) are such files to begin with.

Settings are checked at the start. An unknown setting or a wrong value stops the job with one line and exit code 2.

* A **duration** is a number with a unit: `500ms`, `60s`, `15m`, `12h`, `7d`.
* A **size** is a number of bytes, or a number with a unit: `64KiB`, `16MiB`, `2GiB`, `1TiB`.

These are not settings, because they are secret or belong to one machine:

| Option or variable | Meaning |
| --- | --- |
| `--keys FILE`, `MSMQ_KEYS_FILE` | keys of sealed traffic: [encrypted traffic](../guides/encrypted-traffic.md) |
| `--redact-key FILE`, `MSMQ_REDACT_KEY_FILE`, `MSMQ_REDACT_KEY` | [redaction key](../guides/privacy.md#the-key) |
| `MSMQ_COLLECTOR_PASSWORD` | password of the collector: [collecting](../guides/collecting.md#authentication) |
| `MSMQ_JARS` | folder with Delta's jars, if the project is installed from its wheel |
| `SPARK_REMOTE` | Spark Connect server: [operations](../guides/operations.md#spark-connect) |
| `AWS_...` | credentials for captures and lakes on S3: [operations](../guides/operations.md#object-stores) |
"""

_TYPES: Final[dict[Any, str]] = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    Path: "path",
    timedelta: "duration",
    ByteSize: "size",
    CollectorMachine: "queue manager",
    QueueQuota: "quota",
    MachineQuota: "quota",
    TunnelPort: "port",
}
_TABLE_HEAD: Final = "| Setting | Type | Default | Meaning |\n| --- | --- | --- | --- |\n"
_TYPE_IN_COMMENT: Final = re.compile(r"(?:text|true or false|duration|size|number|whole number|list)\b[^:]*: ")


class Comment(NamedTuple):
    """What conf/local.yml says about one setting: its meaning, an example in YAML, and its default as written."""

    meaning: str
    example: str
    default: str


def page() -> str:
    """Return the whole page."""
    comments = dict(_comments(SETTINGS_FILE.read_text(encoding="utf-8").splitlines()))
    parts = [HEAD]
    for section, tree in SECTIONS.items():
        about = " ".join((tree.__doc__ or "").split())
        parts.append(f"\n## {section}\n\n{about}\n\n{_TABLE_HEAD}")
        parts += [_row(each, comments[key]) for key, each in list_settings().items() if key.startswith(f"{section}.")]
    return "".join(parts)


def _comments(lines: list[str]) -> Iterator[tuple[str, Comment]]:
    """Yield (dotted key, comment) of the settings file: comment lines stand above the line of their setting."""
    section, meaning, example = "", list[str](), list[str]()
    for line in lines:
        if found := re.fullmatch(r"([a-z]+):", line):
            section = found[1]
        elif found := re.fullmatch(r"  # (.*)", line):
            text = found[1]
            is_example = text.startswith("  ") or re.fullmatch(r"[a-z]+:", text)
            (example if is_example else meaning).append(text.strip())
        elif found := re.fullmatch(r"  ([a-z_]+): (.*)", line):
            text = _TYPE_IN_COMMENT.sub("", " ".join(meaning), count=1).rstrip(":")
            shown = " ".join(each for each in example if each != f"{found[1]}:")
            yield f"{section}.{found[1]}", Comment(text, shown, found[2])
            meaning, example = [], []


def _row(setting: Setting, comment: Comment) -> str:
    meaning = comment.meaning.replace("<", "&lt;") + (f". Example: `{comment.example}`" if comment.example else "")
    cells = (f"`{setting.key}`", _type(setting.value_type) + _bounds(setting), f"`{comment.default}`", meaning)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def _type(kind: Any) -> str:  # noqa: ANN401 - a type of any form
    parts = get_args(kind)
    if get_origin(kind) is Literal:
        return ", ".join(f"`{each}`" for each in parts)
    if get_origin(kind) is tuple:
        return f"list of: {_type(parts[0])}"
    if type(None) in parts:
        return f"{_type(next(each for each in parts if each is not type(None)))}, or null"
    return _TYPES[kind]


def _bounds(setting: Setting) -> str:
    least, most = (_bound(setting.value_type, each) for each in (setting.minimum, setting.maximum))
    if least and most:
        return f", {least} to {most}"
    return f", at least {least}" if least else f", at most {most}" if most else ""


def _bound(kind: Any, value: float | None) -> str:  # noqa: ANN401 - a type of any form
    if value is None:
        return ""
    if kind is timedelta or timedelta in get_args(kind):
        return f"{value:g} s"
    if kind is ByteSize or ByteSize in get_args(kind):
        unit = max((name for name, size in BYTES_PER_UNIT.items() if value % size == 0), key=BYTES_PER_UNIT.__getitem__)
        return f"{value // BYTES_PER_UNIT[unit]:.0f} {unit or 'byte'}"
    return f"{value:g}" if value < 1e6 else f"{value:.0f}"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
