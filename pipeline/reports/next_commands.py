"""The command that shows more of an entry of alerts: what an operator types next."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from pipeline.alerts.conditions import CLOCK_CONDITIONS, CONDITIONS
from pipeline.alerts.entries import Entry, evidence_keys
from pipeline.lake.lake import Lake
from pipeline.reports.export_keys import export_packets_command, find_export_options, keys_by_option


def next_commands(lake: Lake, entries: Iterable[Entry], options: str) -> dict[str, str]:
    """Return the next command for each entry, by the ``alert_key`` of its leading alert.

    It is the verdict for the queue; without a queue the export of the packets of the evidence; without packets the
    question that the condition answers. ``options``: those that name the lake (``lake_options``).
    """
    leading = [(entry.leading, entry.queues) for entry in entries]
    without_queue = ((row["condition"], evidence_keys(row)) for row, queues in leading if not queues)
    key_options = find_export_options(lake, without_queue)
    found = {}
    for row, queues in leading:
        if queues:
            command = f"msmq queue {options} {shlex.quote(row['queue'] or queues[0])}"
        elif keys := keys_by_option(evidence_keys(row), key_options):
            command = export_packets_command(keys, options)
        else:
            command = f"msmq ask {options} {(CONDITIONS | CLOCK_CONDITIONS)[row['condition']].question}"
        found[row["alert_key"]] = command
    return found
