"""Benchmark of long sessions: what a file costs that is added to a session of a million packets, or of many files.

A client sends express messages, ten at a time are acknowledged. The packets of the file are added to bronze, and silver
and the findings follow: once in a lake with all packets before, once in a lake of their own. Then a file is merged with
those before it, of a session and of an RPC connection.

Run from the project's folder: ``python -m bench.long_sessions [packets]``.
"""

from __future__ import annotations

import datetime as dt
import sys
import tempfile
import time

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.measure import Measure, format_report, log_progress

PACKETS = 1_000_000
FILE_PACKETS = 50_000
FILES = 2000  # a week of files of five minutes
_SPACING_US = 1000
_MESSAGES_PER_ACK = 10


def _many(row, schema, count, first_us, spacing_us, first_offset, **columns):
    """Return a packet ``count`` times, one after the other in its side's stream."""
    table = pa.Table.from_pylist([row], schema).take(pa.array(np.zeros(count, np.int64)))
    columns |= {
        "packet_key": [f"{row['sent_by'][0]}{number:031x}" for number in range(count)],
        "stream_offset": first_offset + np.arange(count) * row["length_bytes"],
        "sent_at": pa.array(first_us + np.arange(count) * spacing_us).cast(pa.timestamp("us", tz="UTC")),
    }
    for name, values in columns.items():
        place = schema.get_field_index(name)
        column = values if isinstance(values, pa.Array) else pa.array(values)
        table = table.set_column(place, schema.field(place), column.cast(schema.field(place).type))
    dates = table["sent_at"].cast(pa.timestamp("us")).cast(pa.date32())
    return table.set_column(schema.get_field_index("event_date"), schema.field("event_date"), dates)


def build_session(packets):
    """Return the handshake and the other packets of a session, in the order of time, and its row of connections."""
    from transfers.conversations import (  # noqa: PLC0415 (of the tests)
        CONNECTIONS,
        SESSION_PACKETS,
        START,
        Conversation,
        message,
        session_ack,
        table_of,
    )

    talk = Conversation().handshake()
    offsets = dict(talk.offsets)
    rows = [talk.say("client", "user_message", message(5, body=b"x" * 200), 1)]
    rows.append(talk.say("server", "session_ack", session_ack(), 1))
    del talk.rows[-2:]
    handshake = table_of(SESSION_PACKETS, talk.rows)
    start = round(START.timestamp() * 1e6) + 1_000_000
    messages = packets * _MESSAGES_PER_ACK // (_MESSAGES_PER_ACK + 1)
    acks = np.arange(1, messages // _MESSAGES_PER_ACK + 1) * _MESSAGES_PER_ACK
    headers = [{**rows[1]["session_header"], "ack_sequence_number": int(number % 65536)} for number in acks]
    schema = handshake.schema
    every = _SPACING_US * _MESSAGES_PER_ACK
    sides = [
        _many(rows[0], schema, messages, start, _SPACING_US, offsets["client"]),
        _many(rows[1], schema, len(acks), start + every + 500, every, offsets["server"],
              session_header=pa.array(headers, schema.field("session_header").type)),
    ]  # fmt: skip
    connection = table_of(CONNECTIONS, [talk.connection()])
    return handshake, pa.concat_tables(sides).sort_by("sent_at"), connection


def _connection_of(packets, connection):
    """Return the connection's row as captures with these packets make it."""
    values = {"last_packet_at": packets["sent_at"][-1].as_py(), "syn_seen": packets["stream_offset"][0].as_py() == 0}
    for side in ("client", "server"):
        ours = packets.filter(pc.equal(packets["sent_by"], side))
        values[f"{side}_bytes"] = pc.sum(ours["seen_bytes"]).as_py()
    row = connection.to_pylist()[0] | values
    return pa.Table.from_pylist([row], connection.schema)


def _add(lake, packets, connection, there=()):
    """Add packets to bronze, and let silver and the findings follow; return how long these took, seconds."""
    from pipeline.findings import update_sessions  # noqa: PLC0415 (imports Spark)
    from pipeline.transfers import update  # noqa: PLC0415
    from transfers.conversations import (  # noqa: PLC0415
        CAPTURE_FILES,
        CONNECTIONS,
        SESSION_PACKETS,
        START,
        capture_file,
        table_of,
    )

    lake.append(SESSION_PACKETS, packets)
    lake.replace(CONNECTIONS, _connection_of(pa.concat_tables([*there, packets]), connection))
    ends = (packets["sent_at"][-1].as_py() - START) / dt.timedelta(seconds=1)
    lake.replace(CAPTURE_FILES, table_of(CAPTURE_FILES, [capture_file(ends)]))
    begin = time.perf_counter()
    update.update(lake, "run")
    silver = time.perf_counter() - begin
    update_sessions.update(lake, "run")
    total = time.perf_counter() - begin
    log_progress(f"sessions: {packets.num_rows} packets, {silver:.2f} s in silver, {total - silver:.2f} s of findings")
    return total


def _lake(folder):
    from pipeline.lake.engine.sessions import LazySession  # noqa: PLC0415
    from pipeline.lake.lake import Lake  # noqa: PLC0415 (imports Spark)

    def no_session():
        raise RuntimeError("Spark is not needed")

    return Lake(LazySession(no_session, engine="local"), folder)


def measure(packets: int = PACKETS, file_packets: int = FILE_PACKETS, repeat: int = 3) -> list[Measure]:
    """Measure how much more a file costs behind ``packets`` than alone, without the reader; the best of ``repeat``."""
    handshake, rows, connection = build_session(packets + file_packets * repeat)
    alone, added = [], []
    with tempfile.TemporaryDirectory() as folder:
        lake = _lake(f"{folder}/long")
        before = [handshake, rows.slice(0, packets)]
        whole = _add(lake, pa.concat_tables(before), connection)
        for number in range(repeat):
            file = rows.slice(packets + number * file_packets, file_packets)
            added.append(_add(lake, file, connection, before))
            before.append(file)
            alone.append(_add(_lake(f"{folder}/{number}"), file, connection))
    return [
        Measure(f"sessions: {packets:.0e} packets at once", whole, "s"),
        Measure(f"sessions: a file of {file_packets} packets alone", min(alone), "s"),
        Measure("sessions: the file added to a long session", min(added), "s"),
        Measure("sessions: times as much as alone", min(added) / min(alone), "x", 2.0, 1.2, higher_is_better=False),
    ]


def _cut_connections(files):
    """Return the files of a session and of an RPC connection, by what it is called; each has a few packets."""
    from capture.merge.cutting import cut, evenly  # noqa: PLC0415 (of the tests)
    from pcapgen import containers  # noqa: PLC0415
    from pcapgen.scenarios import long_association, long_session  # noqa: PLC0415

    captures = {
        name: containers.pcap(records(files * 3)).data
        for name, records in (("session", long_session), ("RPC connection", long_association))
    }
    return {name: cut(capture, evenly(capture, files)) for name, capture in captures.items()}


def measure_merge(files: int = FILES) -> list[Measure]:
    """Measure how long the driver merges a file with ``files`` others of the same connection."""
    from pipeline.bronze.across_captures.merge_pending import merge_pending  # noqa: PLC0415 (imports Spark)
    from pipeline.lake.lake_path import LakePath  # noqa: PLC0415
    from udfs.capture.capture_reader import read_capture  # noqa: PLC0415

    found = []
    with tempfile.TemporaryDirectory() as name_of_folder:
        folder, lake = LakePath(name_of_folder), _lake(f"{name_of_folder}/lake")
        for name, pieces in _cut_connections(files + 1).items():
            parts = [read_capture(piece)["pending"] for piece in pieces]
            none = parts[0].slice(0, 0)
            earlier = merge_pending(lake, folder / f"{name} before", pa.concat_tables(parts[:-1]), none, none)
            stored = earlier.new_rows("pending")
            begin = time.perf_counter()
            merge_pending(lake, folder / name, parts[-1], stored, none)
            taken = time.perf_counter() - begin
            found.append(Measure(f"sessions: merging a file with {files} of one {name}", taken, "s"))
    return found


if __name__ == "__main__":
    print(format_report(measure(int(sys.argv[1]) if len(sys.argv) > 1 else PACKETS) + measure_merge()))
