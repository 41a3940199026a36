"""What rows of gold and silver conclude, by what loss does not change, and where a lossy capture's differ wrongly."""

import socket

from schemas.findings import FINDINGS
from schemas.sessions import SESSIONS
from schemas.transfers import MESSAGE_TRANSFERS, TRANSFER_SEQUENCES

HOP = ("sender_address", "receiver_address")


def transfers(lake):
    """Messages, queue and hop: outcome."""
    return {
        (row["message_key"], row["destination_queue"], *(row[name] for name in HOP)): (
            row["outcome"], row["confidence"] == "complete", frozenset(row[name] for name in HOP)
        )
        for row in lake.rows(MESSAGE_TRANSFERS).to_pylist()
    }  # fmt: skip


def sequences(lake):
    """Sequence and hop: condition, gaps and refusals."""
    return {
        row["sequence_key"]: (
            (row["condition"], repr(row["gaps"]), row["refusals"]), row["confidence"] == "complete",
            frozenset(row[name] for name in HOP),
        )
        for row in lake.rows(TRANSFER_SEQUENCES).to_pylist()
    }  # fmt: skip


def sessions(lake):
    """Four-tuple (no port is used twice in a recording): outcome and end."""
    return {
        (row["client_address"], row["client_port"], row["server_address"], row["server_port"]): (
            (row["outcome"], row["ended"]), not row["missing"],
            frozenset((row["client_address"], row["server_address"])),
        )
        for row in lake.rows(SESSIONS).to_pylist()
    }  # fmt: skip


def findings(lake):
    """Rule and subject."""
    ends = {row["connection_id"]: frozenset((row["client_address"], row["server_address"]))
            for row in lake.rows(SESSIONS).to_pylist()}  # fmt: skip
    return {
        (row["rule_id"], row["subject"]): ((), row["confidence"] == "complete", ends.get(row["connection_id"]))
        for row in lake.rows(FINDINGS).to_pylist()
    }


TABLES = {"transfers": transfers, "sequences": sequences, "sessions": sessions, "findings": findings}


def concluded(rows):
    """What rows conclude, and whether they are complete, by what loss does not change."""
    return {key: (said, complete) for key, (said, complete, _) in rows.items()}


def wrong(lossy, lake, whole):
    """Complete rows of a lossy capture that conclude otherwise than the whole one: (table, key, this, that).

    Left out is what leaves no trace: rows between machines of which a connection lost bytes so, and how a connection
    ended whose RST or FIN was lost, which has none (rule T18 asks for it too).
    """
    unseen = {frozenset(socket.inet_ntoa(end[0]) for end in name) for name in lossy.untraced}
    unended = {frozenset((socket.inet_ntoa(end[0]), end[1]) for end in name) for name in lossy.unended}
    unended_machines = {frozenset(address for address, _ in ends) for ends in unended}
    for table, conclude in TABLES.items():
        happened = conclude(whole)
        for key, (said, complete, machines) in conclude(lake).items():
            if not complete or machines in unseen:
                continue
            if table == "sessions" and frozenset((key[:2], key[2:])) in unended:
                continue
            if table == "findings" and key[0] == "T18" and machines in unended_machines:
                continue
            there = happened.get(key, (None,))[0]
            if there != said:
                yield table, key, said, there
