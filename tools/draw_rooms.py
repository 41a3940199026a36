"""Draw the rooms of pipeline/ and the imports between them into docs/internals/architecture.md, as a mermaid picture.

``python tools/draw_rooms.py`` rewrites what lies between the two marker comments of the page. An arrow points from a
room to one that it imports from. Arrows that follow from others (A to B and B to C, so A to C) are left out.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "internals" / "architecture.md"
BEGIN: Final = "<!-- rooms picture: made by `make rooms-doc` -->"
END: Final = "<!-- end of the rooms picture -->"

Imports = dict[str, set[str]]


@cache
def import_statements(source: str) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """Return the statements of a module that import, wherever in it; the same text is parsed once."""
    return tuple(node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom))


def module_imports(package: Path) -> dict[Path, set[str]]:
    """Return the dotted names of the modules of one's own that each module below a package imports."""
    found: dict[Path, set[str]] = {}
    for path in sorted(package.rglob("*.py")):
        names: set[str] = set()
        for node in import_statements(path.read_text(encoding="utf-8")):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif node.module:
                below = (f"{node.module}.{alias.name}" for alias in node.names)
                names |= {name if is_module(package.parent, name) else node.module for name in below}
        found[path] = {name for name in names if name.split(".")[0] == package.name}
    return found


@cache
def is_module(root: Path, name: str) -> bool:
    """Whether a dotted name is a module or a package below a folder."""
    path = root.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def room_imports(package: Path) -> Imports:
    """Return the rooms (sub-packages) that each room of a package imports from; top-level modules are in none."""
    rooms = sorted(path.name for path in package.iterdir() if (path / "__init__.py").exists())
    found: Imports = {room: set() for room in rooms}
    for path, names in module_imports(package).items():
        room = path.relative_to(package).parts[0]
        if room in found:
            found[room] |= {name.split(".")[1] for name in names if name.count(".")} & found.keys() - {room}
    return found


def folder_imports(package: Path) -> Imports:
    """Return the folders that each folder below a package imports from, its own sub-folders among them, as paths.

    Top-level modules are in none.
    """
    found: Imports = {}
    for path, names in module_imports(package).items():
        if path.parent != package:
            places = {package.parent.joinpath(*name.split(".")) for name in names}
            folders = {place if place.is_dir() else place.parent for place in places} - {package, path.parent}
            others = {str(folder.relative_to(package)) for folder in folders}
            found.setdefault(str(path.parent.relative_to(package)), set()).update(others)
    return found


def levels(imports: Imports) -> dict[str, int]:
    """Return the floor of each room, from 1: one above the highest room that it imports from."""
    floor: dict[str, int] = {}

    def of(room: str) -> int:
        if room not in floor:
            floor[room] = 1 + max((of(other) for other in imports[room]), default=0)
        return floor[room]

    return {room: of(room) for room in imports}


def reduced(imports: Imports) -> Imports:
    """Return the imports without those that follow from others."""

    def reach(room: str) -> set[str]:
        return imports[room].union(*(reach(other) for other in imports[room]))

    return {
        room: {each for each in others if not any(each in reach(other) for other in others - {each})}
        for room, others in imports.items()
    }


def picture(imports: Mapping[str, set[str]]) -> str:
    """Return the mermaid source of the picture, the highest rooms above."""
    whole = dict(imports)
    floors: defaultdict[int, list[str]] = defaultdict(list)
    for room, floor in levels(whole).items():
        floors[floor].append(room)
    lines = ["```mermaid", "flowchart TB"]
    for floor in sorted(floors, reverse=True):
        lines.append(f'  subgraph floor{floor} ["floor {floor}"]')
        lines += [f"    {room}" for room in sorted(floors[floor])]
        lines.append("  end")
    lines += [f"  {room} --> {other}" for room, others in sorted(reduced(whole).items()) for other in sorted(others)]
    return "\n".join([*lines, "```"])


def drawn(page: str) -> str:
    """Return a page with the picture between its markers."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{PAGE}: the markers of the picture are missing: {BEGIN} ... {END}")
    return f"{head}{BEGIN}\n{picture(room_imports(ROOT / 'pipeline'))}\n{END}{tail}"


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
