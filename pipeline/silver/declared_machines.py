"""File of names of machines (the setting ``names.machines``): CSV with address, queue_manager_id and name.

Its first line names the columns, in any order. Each other line gives a name to an address, to the GUID of a queue
manager, or to both. An address has one name. The GUID of machines that were cloned may have several.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from uuid import UUID

from pipeline.silver.declaration_file import DeclarationError
from pipeline.silver.machine_names import DeclaredNames, NameSighting, NameSource

_COLUMNS: Final = ("address", "queue_manager_id", "name")


def load_declared_machines(path: Path | None) -> DeclaredNames:
    """Read the names of a file, none without one; DeclarationError says what is wrong and in which line.

    Errors have no value of the file: names may have to be redacted.
    """
    if path is None:
        return ()
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file, restkey="more", skipinitialspace=True)
            try:
                return tuple(_read_machines(rows))
            except (ValueError, csv.Error) as error:
                is_text = not isinstance(error, UnicodeDecodeError)
                what = str(error) if is_text else "not UTF-8 text: save the file as CSV in UTF-8"
                raise DeclarationError(f"{path}:{max(rows.line_num, 1)}: {what}") from error
    except OSError as error:
        raise DeclarationError(f"{path}: {error.strerror}") from error


def _read_machines(rows: csv.DictReader[str]) -> Iterator[NameSighting]:
    """Yield the names of all lines; ValueError says what is wrong with the last line that was read."""
    if sorted(rows.fieldnames or ()) != sorted(_COLUMNS):
        raise ValueError(f"the first line must name the columns: {','.join(_COLUMNS)}")
    lines: dict[str, int] = {}
    for row in rows:
        machine = _machine(row)
        if machine.address is not None and lines.setdefault(machine.address, rows.line_num) != rows.line_num:
            raise ValueError(f"the address of line {lines[machine.address]} again: give each address one name")
        yield machine


def _machine(row: Mapping[str, str | None]) -> NameSighting:
    if "more" in row or None in row.values():
        raise ValueError(f"expected {len(_COLUMNS)} values: put a value with a comma in quotation marks")
    address, queue_manager_id, name = ((row[column] or "").strip() for column in _COLUMNS)
    if not name:
        raise ValueError("name is missing")
    if not address and not queue_manager_id:
        raise ValueError("give the address, the queue_manager_id, or both")
    return NameSighting(
        NameSource.DECLARED,
        str(_parsed(ip_address, address, "address: expected an IP address")) if address else None,
        str(_parsed(UUID, queue_manager_id, "queue_manager_id: expected a GUID")) if queue_manager_id else None,
        name,
    )


def _parsed(parse: Callable[[str], object], text: str, otherwise: str) -> object:
    try:
        return parse(text)
    except ValueError:
        raise ValueError(otherwise) from None
