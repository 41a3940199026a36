"""Each decoder has one version, which its rows carry; silver's version combines all four."""

import pyarrow as pa
import pytest

from comqc.helpers import chdr, invoke, message, method, secd, value
from messages.building import Packet
from pipeline.silver import decode
from pipeline.silver import update as silver_update
from udfs.capture.capture_reader import read_capture
from udfs.comqc import body_decoder as comqc
from udfs.comqc.container_layout import COMQC_EXTENSION
from udfs.messages import message_decoder
from udfs.properties import observations, snapshot_rows
from udfs.stubs import call_decoder as stubs

OF = {
    "silver.remote_read_calls": "stubs", "silver.management_calls": "stubs", "silver.client_calls": "stubs",
    "silver.messages": "messages", "silver.comqc_calls": "comqc", "silver.properties": "properties",
    "silver.queue_snapshots": "properties", "silver.machine_snapshots": "properties",
}  # fmt: skip
MODULES = {
    "stubs": [stubs],
    "messages": [message_decoder],
    "comqc": [comqc],
    "properties": [observations, snapshot_rows],
}


@pytest.fixture
def calls(project):
    """Calls of recorded captures, one of whose messages is of a component."""
    names = ("01-remoteread-ndr.pcap", "03-qm2qm-dependent-client.pcap", "04-qmmgmt.pcapng")
    table = pa.concat_tables(
        read_capture(str(project / "data" / "sample" / name))["rpc_calls"] for name in names
    )  # fmt: skip
    return table.append_column("run_id", pa.nulls(table.num_rows, pa.string())).select(decode.CALL_INPUT_COLUMNS)


def test_every_row_has_the_version_of_its_decoder(calls, monkeypatch):
    for name, modules in MODULES.items():
        for module in modules:
            monkeypatch.setattr(module, "DECODER_VERSION", f"{name} next")
    body = message(chdr(), secd(), method(invoke([value(3, "i", 1)])))
    packet = Packet(body=body, extension=COMQC_EXTENSION).bytes()
    whole = decode.messages.decode_messages
    monkeypatch.setattr(
        decode.messages, "decode_messages",
        lambda given, _, **asked: whole(pa.array([packet] * len(given), pa.binary()), "qm2qm", **{
            name: each for name, each in asked.items() if not name.startswith("section_")}),
    )  # fmt: skip
    (batch,) = calls.combine_chunks().to_batches()
    tables = decode.decode_calls(batch)
    assert {name for name, rows in tables.items() if rows.num_rows} == {*OF}
    for name, rows in tables.items():
        assert set(rows.column("decoder_version").to_pylist()) == {f"{OF[name]} next"}, name


def test_silvers_version_is_made_of_all():
    """If one of them changes, silver is recomputed: tests/attempts/test_update.py, ``other decoders``."""
    assert silver_update.DECODED.code_version == decode.DECODER_VERSIONS
    assert (
        ", ".join(f"{name} {modules[0].DECODER_VERSION}" for name, modules in MODULES.items())
        == decode.DECODER_VERSIONS
    )
