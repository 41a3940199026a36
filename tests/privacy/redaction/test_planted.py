"""Every free text of captures and snapshot files is a token: none of them outlives redaction, in no column and no form.

The columns come from the declarations of the tables. A new column whose texts are kept fails here until the input
fills it: ``planted.py`` must have a token wherever its texts come from.
"""

import io
from uuid import uuid4

import pyarrow as pa
import pytest

from capture.in_memory import read_captures
from engines import without_spark
from pipeline.lake.lake import Lake
from pipeline.privacy.redacted_columns import (
    REDACTED_BRONZE_TABLES,
    REDACTED_SILVER_TABLES,
    redact_rows,
)
from pipeline.silver.decode import decode_calls, decode_collected_snapshots
from pipeline.transfers import update as sessions_update
from privacy.redaction import planted
from schemas.bronze import CAPTURE_FILES, CONNECTIONS, RPC_CALLS
from schemas.collected_snapshots import SNAPSHOTS_RAW
from schemas.comqc import COMQC_CALLS
from schemas.messages import MESSAGES
from schemas.queue_snapshots import PROPERTIES
from schemas.sessions import ORDER_ACKS, SENDINGS, SESSION_PACKETS, SESSIONS
from udfs.properties.property_names import MACHINE_PROPERTY_NAMES, QUEUE_PROPERTY_NAMES, property_name
from udfs.properties.snapshot_lines import read_snapshot_rows
from udfs.pseudonyms import PSEUDONYM_KINDS, Pseudonymizer

PROPERTIES_BY_TYPE = [("machine", number) for number in MACHINE_PROPERTY_NAMES]
PROPERTIES_BY_TYPE += [("queue", number) for number in QUEUE_PROPERTY_NAMES]
# Texts that are kept and are of no bytes of the input: names of files and compressions, codes that no row here has,
# names from the user's file of comqc.interfaces, errors of sessions and sendings, which never have any, and
# names of captures, where no two overlap and no message is stored.
NOT_OF_THE_INPUT = [
    *(
        f"bronze.capture_files.{name}"
        for name in ("compression", "other_files", "other_paths", "packets_not_read.what", "tap_steps.other_capture_id")
    ),
    *(f"bronze.connections.{name}" for name in ("not_established", "uncaptured_side")),
    "bronze.pending.over_limit",
    *(f"bronze.snapshot_files.{name}" for name in ("error", "run_id", "status")),
    *(f"silver.properties.errors.{name}" for name in ("code", "field")),
    *(f"silver.comqc_calls.{name}" for name in ("argument_names", "interface_name", "method")),
    "silver.messages.comqc_deviations.rule",
    *(f"silver.sendings.{name}" for name in ("errors.code", "errors.field", "stored_in")),
    *(f"silver.sessions.errors.{name}" for name in ("code", "field")),
    *(f"silver.sessions.{name}" for name in ("missing", "not_established")),
    *(f"silver.sessions.overlapping_captures.{name}" for name in ("one", "other")),
    "silver.sessions.uncaptured_side",
]
BY = Pseudonymizer(PSEUDONYM_KINDS, b"a key of the tests")


def leaves(value, path=""):
    """Yield (path, text or bytes) of everything in a value; members of lists and maps have one path."""
    if isinstance(value, str | bytes):
        yield path, value
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from leaves(each, f"{path}.{name}")
    elif isinstance(value, list | tuple):
        for each in value:
            yield from leaves(each, path)


def plain_tables(tokens, lake):
    """Return the rows of bronze and silver that a run without redaction writes, by table. ``lake`` is an empty one."""
    bronze = read_captures([[each] for each in planted.captures(tokens)])
    out = {f"bronze.{name}": table.to_pylist() for name, table in bronze.items()}
    lines = "\n".join(planted.snapshot_lines(tokens)).encode()
    snapshots = list(read_snapshot_rows(io.BytesIO(lines), "/landed/file.jsonl"))
    out["bronze.snapshots_raw"] = [row for row in snapshots if "snapshot_id" in row]
    out["bronze.quarantine"] += [row for row in snapshots if "quarantine_key" in row]
    for row in (row for rows in out.values() for row in rows):
        row["run_id"] = uuid4().hex
    for table, decode in ((RPC_CALLS, decode_calls), (SNAPSHOTS_RAW, decode_collected_snapshots)):
        for name, batch in decode(as_batch(table, out[str(table)])).items():
            out[name] = [*out.get(name, ()), *batch.to_pylist()]
    for table in (SESSION_PACKETS, CONNECTIONS, CAPTURE_FILES):
        lake.append(table, pa.Table.from_batches([as_batch(table, out[str(table)])]))
    sessions_update.update(lake, uuid4().hex)
    for table in (SESSIONS, ORDER_ACKS, SENDINGS, MESSAGES, COMQC_CALLS):
        out[str(table)] = [*out.get(str(table), ()), *lake.select(table, "TRUE").to_pylist()]
    return out


def as_batch(table, rows):
    schema = table.schema()
    return pa.RecordBatch.from_pylist([{name: row.get(name) for name in schema.names} for row in rows], schema)


def filled(kind, tokens):
    """Return a value of an Arrow type with a token as each text and in all bytes."""
    if pa.types.is_map(kind):
        return [(tokens.text(), filled(kind.item_type, tokens))]
    if pa.types.is_list(kind):
        return [filled(kind.value_type, tokens)]
    if pa.types.is_struct(kind):
        return {each.name: filled(each.type, tokens) for each in kind}
    return tokens.text() if pa.types.is_string(kind) else tokens.octets() if pa.types.is_binary(kind) else None


def kept_paths(table, form):
    """Return the paths of the texts that redaction keeps whatever they are."""
    tokens = planted.Tokens(form)
    schema = table.schema()
    rows = [{field.name: filled(field.type, tokens) for field in schema}]
    if table == PROPERTIES:
        names = [property_name(*each) for each in PROPERTIES_BY_TYPE]
        rows = [rows[0] | {"property_name": name} for name in names]
    redacted = redact_rows(table, as_batch(table, rows), BY).to_pylist()
    return {path for path, value in leaves(redacted) if tokens.among(planted.readings(value))}


@pytest.mark.parametrize("form", [planted.LETTERS, planted.NUMERALS], ids=["letters", "numerals"])
def test_no_text_of_the_input_is_kept(form, tmp_path):
    """Redaction replaces all texts but those of some columns, and these never hold a text of the input."""
    tokens = planted.Tokens(form)
    plain = plain_tables(tokens, Lake(without_spark(), str(tmp_path / "lake")))
    assert len(tokens.all) > 1000
    found, unseen = [], []
    for table in (*REDACTED_BRONZE_TABLES, *REDACTED_SILVER_TABLES):
        rows = plain.get(str(table), [])
        seen = {path for path, _ in leaves(rows)}
        unseen += [f"{table}{path}" for path in sorted(kept_paths(table, form) - seen)]
        redacted = redact_rows(table, as_batch(table, rows), BY).to_pylist()
        found += [
            (f"{table}{path}", value) for path, value in leaves(redacted) if tokens.among(planted.readings(value))
        ]
    assert found == []
    assert unseen == NOT_OF_THE_INPUT
