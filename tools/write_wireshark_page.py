"""Write what tshark prints with msmq.lua into docs/guides/wireshark.md, and draw its picture: needs tshark, Chromium.

A marker stands between a code block with one command of tshark and the block that gets its output. The picture is no
screen of Wireshark: it is drawn from the output of tshark for the same packets.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "guides" / "wireshark.md"
PICTURE = ROOT / "docs" / "images" / "wireshark.png"
DISSECTOR = ROOT / "jobs" / "analysis" / "msmq.lua"
RECORDING = "data/transfers/03-transactions.pcapng"
SELECTED = 10  # the packet whose tree the picture shows
OPEN = {"TransactionHeader"}  # headers whose fields it shows
LISTED = 14  # packets of its list
_BLOCK = re.compile(
    r"(?P<head>^```\n(?P<command>tshark .*)\n```\n\n<!-- output: `make wireshark-doc` writes it -->\n```text\n)"
    r"(?P<output>(?:(?!```).*\n)*)(?=```$)",
    re.MULTILINE,
)
_STYLE = """
body { margin: 0; font: 13px/1.45 "DejaVu Sans", sans-serif; color: #1d2733; background: #fff; width: 1100px }
table { border-collapse: collapse; width: 100%; table-layout: fixed }
th { text-align: left; background: #e8ebef; font-weight: 600 }
td, th { padding: 2px 8px; white-space: nowrap; overflow: hidden; text-overflow: ellipsis }
td.number { text-align: right }
tr { background: #eef3fb } tr.selected { background: #2f6fb5; color: #fff }
pre { margin: 0; padding: 8px 10px; border-top: 2px solid #b9c2cd; font: 12.5px/1.5 "DejaVu Sans Mono", monospace;
  white-space: pre-wrap }
.filter { background: #d8f2d0; padding: 4px 8px; font-family: "DejaVu Sans Mono", monospace }
"""


def tshark(*arguments: str) -> str:
    """Run tshark with the dissector, in the project's folder, with times in UTC; return what it prints."""
    command = ["tshark", "-X", f"lua_script:{DISSECTOR}", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, env={**os.environ, "TZ": "UTC"})
    return done.stdout.decode("utf-8")


def page_with_outputs(page: str) -> str:
    """Return the page with what its commands print now."""

    def block(found: re.Match[str]) -> str:
        lines = [line.rstrip() for line in tshark(*shlex.split(found["command"])[1:]).splitlines()]
        return found["head"] + "\n".join(lines).strip("\n") + "\n"

    return _BLOCK.sub(block, page)


def tree_lines(proto: ET.Element, depth: int = 0) -> list[str]:
    """Return the lines of a tree in PDML; of headers that are not ``OPEN`` only their names."""
    name = proto.get("showname") or ""
    closed = proto.tag == "proto" and depth and name not in OPEN
    mark = "\u25b8 " if closed else "\u25be " if len(proto) else "  "
    lines = ["   " * depth + mark + name]
    for child in [] if closed else proto:
        if child.get("hide") != "yes":
            lines += tree_lines(child, depth + 1)
    return lines


def picture() -> str:
    """Return the picture as HTML: the packets of the protocol, and the tree of one."""
    names = ("frame.number", "_ws.col.Time", "_ws.col.Source", "_ws.col.Destination", "_ws.col.Info")
    columns = [part for name in names for part in ("-e", name)]
    listed = tshark("-n", "-2", "-r", RECORDING, "-Y", "msmq", "-T", "fields", *columns).splitlines()[:LISTED]
    rows = []
    for line in listed:
        number, *cells = line.split("\t")
        kind = ' class="selected"' if int(number) == SELECTED else ""
        rest = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        rows.append(f'<tr{kind}><td class="number">{number}</td>{rest}</tr>')
    shown = tshark("-n", "-2", "-r", RECORDING, "-Y", f"msmq && frame.number == {SELECTED}", "-T", "pdml", "-J", "msmq")
    tree = ET.fromstring(shown)  # noqa: S314 - tshark wrote it
    lines = [line for proto in tree.iterfind("packet/proto[@name='msmq']") for line in tree_lines(proto)]
    heads = "".join(
        f'<th style="width:{width}">{name}</th>'
        for name, width in (
            ("No.", "40px"),
            ("Time", "80px"),
            ("Source", "95px"),
            ("Destination", "95px"),
            ("Info", "auto"),
        )
    )
    return (
        f'<!doctype html><meta charset="utf-8"><style>{_STYLE}</style><div class="filter">msmq</div>'
        f"<table><tr>{heads}</tr>{''.join(rows)}</table><pre>{escape(chr(10).join(lines))}</pre>"
    )


def draw(target: Path) -> None:
    """Draw the picture."""
    with TemporaryDirectory() as folder:
        source, drawn = Path(folder) / "picture.html", Path(folder) / "picture.png"
        source.write_text(picture(), encoding="utf-8")
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1100,1035"]
        command = ["chromium", *options, f"--screenshot={drawn}", source.as_uri()]
        subprocess.run(command, check=True, capture_output=True)
        shutil.move(drawn, target)


if __name__ == "__main__":
    PAGE.write_text(page_with_outputs(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    draw(PICTURE)
