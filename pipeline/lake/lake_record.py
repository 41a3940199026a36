"""What is known of a lake beside its tables: what stores them, and by which columns they are laid out.

The first is written when the lake is made, and holds from then on; the second where a table is maintained.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, get_args

from pipeline.lake.errors import StoreError
from pipeline.lake.lake_path import LakePath
from pipeline.lake.storage.store import StoreName
from schemas.table import Layer

_RECORD: Final = "_lake.json"
_LAYOUTS: Final = "_layouts.json"
_FORM: Final = 1  # of the lake's folders and tables; another one has another number


def choose_store(root: LakePath, *, wanted: StoreName | None, default: StoreName, in_catalog: bool) -> StoreName:
    """Return what stores the tables of the lake in a folder: what its record says, else what is wanted, or the default.

    StoreError if the lake is stored by another one than is wanted, or has a form that this version does not know.
    """
    if wanted == "delta-rs" and in_catalog:
        raise StoreError("delta-rs stores no tables of a catalog: set lake.store to spark")
    recorded = _read(root, _RECORD)
    if recorded is None:
        if not in_catalog and _has_tables(root):
            raise StoreError(f"{root}: made by an earlier version of this program: have run_all make a new lake")
        return wanted or default
    names: tuple[StoreName, ...] = get_args(StoreName)
    store = next((name for name in names if recorded == {"form": _FORM, "store": name}), None)
    if store is None:
        raise StoreError(f"{root}: made by another version of this program: run that one, or make a new lake")
    if wanted is not None and wanted != store:
        raise StoreError(f"{root}: its tables are stored by {store}, not by {wanted}: set lake.store to {store}")
    return store


def record_store(root: LakePath, store: StoreName) -> None:
    """Write the record of a lake that is made now; one that is there stays."""
    record = root / _RECORD
    if not record.exists():
        record.write_text(json.dumps({"form": _FORM, "store": store}) + "\n")


def read_layouts(root: LakePath) -> dict[str, Any]:
    """Return the columns by which tables are laid out, by their names; {} where that is not known."""
    return _read(root, _LAYOUTS) or {}


def record_layouts(root: LakePath, layouts: Mapping[str, list[str]]) -> None:
    """Write by which columns tables are laid out, so that these are not looked at again."""
    (root / _LAYOUTS).write_text(json.dumps(layouts, indent=1) + "\n")


def _has_tables(root: LakePath) -> bool:
    layers: tuple[str, ...] = get_args(Layer)
    return any((table / "_delta_log").is_folder() for layer in layers for table in (root / layer).entries())


def _read(root: LakePath, name: str) -> dict[str, Any] | None:
    """Return what a record says, {} if it cannot be read; None where there is none."""
    try:
        found = json.loads((root / name).read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        if root.is_remote and isinstance(error, OSError):
            raise StoreError(f"{root}: {' '.join(str(error).split())}") from error
        return {}
    return found if isinstance(found, dict) else {}
