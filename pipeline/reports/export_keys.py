"""Keys of evidence by which packets can be exported, and the command that exports them."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from pipeline.lake.lake import Lake
from schemas.bronze import CONNECTIONS, RPC_CALLS
from schemas.sessions import SESSION_PACKETS

MAX_KEYS: Final = 20  # in one command
_KEYS: Final = {
    "packet": (SESSION_PACKETS, "packet_key", "TRUE"),
    "call": (RPC_CALLS, "call_key", "TRUE"),
    "session": (CONNECTIONS, "connection_id", "kind = 'binary_protocol'"),
}
"""What packets can be exported by: the option of ``msmq export_packets``, and where its keys are."""
_OPTIONS: Final = {
    **dict.fromkeys(("sessions_refused", "window_full"), ("session",)),
    **dict.fromkeys(("order_acks_stalled", "sequence_refused", "resend_storm", "transfers_slow"), ("packet",)),
    **dict.fromkeys(("negative_acknowledgements", "containers_rejected", "application_failing"), ("packet", "call")),
}
"""What the evidence of a condition may be; of others a call, or a snapshot, which is one where it was captured."""


def find_export_options(lake: Lake, evidence: Iterable[tuple[str, Collection[str]]]) -> dict[str, str]:
    """Return the option of ``msmq export_packets`` that takes each key, of those whose packets it can export.

    ``evidence``: conditions of alerts, with keys that they rest on. It asks at most one query for each option.
    """
    wanted, found = defaultdict[str, set[str]](set), dict[str, str]()
    for condition, keys in evidence:
        for option in _OPTIONS.get(condition, ("call",)):
            wanted[option].update(keys)
    for option, keys in wanted.items():
        table, column, where = _KEYS[option]
        sql = f"SELECT DISTINCT {column} AS key FROM {{rows}} WHERE {column} IN {{keys}} AND {where}"
        found |= dict.fromkeys(lake.query(sql, rows=table, keys=keys)["key"].to_pylist() if keys else (), option)
    return found


def keys_by_option(keys: Iterable[str], options: Mapping[str, str]) -> dict[str, list[str]]:
    """Return those of some keys that have an option, the first ``MAX_KEYS`` of them, by option."""
    found: dict[str, list[str]] = {}
    for key in [each for each in dict.fromkeys(keys) if each in options][:MAX_KEYS]:
        found.setdefault(options[key], []).append(key)
    return found


def export_packets_command(keys: Mapping[str, Sequence[str]], lake: str) -> str:
    """Return the command that exports packets by keys of each option; ``lake``: the options that name it."""
    arguments = [part for option, of_option in keys.items() for part in (f"--{option}", *of_option)]
    return f"msmq export_packets {lake} {shlex.join([*arguments, '--out', 'trouble.pcapng'])}"
