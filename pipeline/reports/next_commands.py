"""The command that shows more of an entry of alerts: what an operator types next."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Final

from pipeline.alerts.conditions import CLOCK_CONDITIONS, CONDITIONS
from pipeline.alerts.entries import Entry, evidence_keys
from pipeline.lake.lake import Lake
from schemas.bronze import CONNECTIONS, RPC_CALLS
from schemas.sessions import SESSION_PACKETS

_TABLES: Final = {"call": RPC_CALLS, "packet": SESSION_PACKETS, "session": CONNECTIONS}
# Of some keys those whose packets can be exported, with the option of export_packets that takes them.
_OPTIONS_SQL: Final = " UNION ".join(
    f"SELECT '{option}' AS option, {table.key[0]} AS key FROM {{{option}}} AS {option} WHERE {table.key[0]} IN {{keys}}"
    for option, table in _TABLES.items()
)


def next_commands(lake: Lake, entries: Iterable[Entry], place: str) -> dict[str, str]:
    """Return the next command for each entry, by the ``alert_key`` of its leading alert.

    It is the verdict for the queue; without a queue the export of the packets of the evidence; without packets the
    question that the condition answers. ``place`` is that of the lake, as ``--lake`` takes it.
    """
    leading = [(entry.leading, entry.queues) for entry in entries]
    options = _export_options(lake, {key for row, queues in leading if not queues for key in evidence_keys(row)})
    found = {}
    for row, queues in leading:
        exported = {key: options[key] for key in evidence_keys(row) if key in options}
        if queues:
            command = ["queue", "--lake", place, row["queue"] or queues[0]]
        elif exported:
            command = ["export_packets", "--lake", place, *_arguments(exported), "--out", "trouble.pcapng"]
        else:
            question = (CONDITIONS | CLOCK_CONDITIONS)[row["condition"]].question
            command = ["ask", "--lake", place, str(question)]
        found[row["alert_key"]] = shlex.join(["msmq", *command])
    return found


def _export_options(lake: Lake, keys: set[str]) -> dict[str, str]:
    """Return the option of ``export_packets`` that takes each of some keys, of those whose packets it can export."""
    if not keys:
        return {}
    rows = lake.query(_OPTIONS_SQL, keys=keys, **_TABLES).to_pylist()
    return {row["key"]: row["option"] for row in rows}


def _arguments(options: dict[str, str]) -> list[str]:
    """Return the arguments for keys, given with their options."""
    arguments = list[str]()
    for option in _TABLES:
        keys = [key for key, of_key in options.items() if of_key == option]
        arguments += [f"--{option}", *keys] if keys else []
    return arguments
