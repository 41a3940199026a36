"""The declared table matches the contract, and the decoder's output fits the table."""

import pyarrow as pa
import pytest

from messages.building import Packet
from schemas.messages import MESSAGES
from schemas.table import STRINGS
from udfs.application.columns import KeptColumns
from udfs.messages.message_decoder import decode_messages
from udfs.messages.report_messages import REPORT_TYPE

# Copied by hand from the contract with the table's users.
CONTRACT = """
    message_key string, sighting_key string, seen_in string, call_key string, connection_id string, packet_key
    string, seen_at timestamp, session_number bigint, recoverable_number bigint, queue string, inferred_queue
    string, lookup_id decimal(20,0), source_queue_manager string, message_ordinal bigint, message_id string,
    queue_manager_address string, destination_queue_manager string, priority int, delivery string, class int,
    class_name string, message_kind string, label string, body_type bigint, body_bytes bigint, body_bytes_seen
    bigint, body_sha256 string, body binary, body_complete boolean, correlation_id string, app_specific bigint,
    sent_at timestamp, arrived_at timestamp, time_to_reach_queue_s bigint, time_to_be_received_s bigint,
    destination_queue string, admin_queue string, destination_list array<string>, admin_list array<string>,
    response_list array<string>, report_queue string, admin_queue_type int, response_queue string,
    acknowledgement_requested int, journaling int, hop_count int, traced boolean, transactional boolean,
    transaction_sequence_id decimal(20,0), transaction_number bigint, previous_transaction_number bigint,
    transaction_index bigint, connector_queue_manager string, final_acknowledgement_requested boolean,
    first_in_transaction boolean, last_in_transaction boolean, authenticated boolean, signed boolean,
    encrypted boolean, sender_id string, sender_certificate_bytes
    bigint, privacy_level bigint, hash_algorithm bigint, encryption_algorithm bigint, connector_type string,
    extension binary, is_comqc boolean, comqc_rejected string, comqc_deviations
    array<struct<rule:string,offset:bigint,places:int>>, is_srmp boolean, soap_header string, soap_body_bytes
    bigint, subqueue string, target_subqueue string, abort_count int, move_count int, subqueue_acknowledgement_class
    int, last_moved_raw bigint, dead_letter_queue string, dead_letter_queue_invalid boolean, report
    struct<source_prefix:string,message_ordinal:bigint,hop_count:int,next_hop:string>, sender_address string,
    header_sizes map<string,int>, framework string, framework_evidence string, body_format string, body_root string,
    application_message_id string, conversation_id string, related_to string, sent_types array<string>,
    originating_endpoint string, processing_endpoint string, reply_to string, intent string, failed_queue string,
    exception_type string, exception_message string, immediate_retries int, delayed_retries int,
    application_sent_at timestamp, application_messages int, application_headers map<string,string>,
    application_errors array<struct<code:string,field:string,offset:bigint>>,
    errors array<struct<code:string,field:string,offset:bigint>>, decoder_version
    string, event_date date, run_id string
"""
# What is not in the packet: of its call, of its body's decoder, of the run.
ELSEWHERE = {
    "sighting_key", "seen_in", "call_key", "connection_id", "packet_key", "session_number", "recoverable_number",
    "seen_at", "queue", "inferred_queue", "lookup_id", "arrived_at",
    "comqc_rejected", "comqc_deviations", "event_date", "run_id",
}  # fmt: skip
SPARK = {
    pa.string(): "string",
    pa.binary(): "binary",
    pa.bool_(): "boolean",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.decimal128(20, 0): "decimal(20,0)",
    pa.timestamp("us", tz="UTC"): "timestamp",
    pa.map_(pa.string(), pa.int32()): "map<string,int>",
    pa.map_(pa.string(), pa.string()): "map<string,string>",
    pa.list_(pa.string()): "array<string>",
    STRINGS: "array<string>",
    REPORT_TYPE: "struct<source_prefix:string,message_ordinal:bigint,hop_count:int,next_hop:string>",
}


def spark(kind):
    return SPARK.get(kind, "array<struct<code:string,field:string,offset:bigint>>")


def test_the_table_is_the_contracts():
    declared = [f"{column.name} {column.sql_type}" for column in MESSAGES.columns]
    flat = " ".join(CONTRACT.split())
    assert ", ".join(declared) == flat


@pytest.mark.parametrize("packets", [[], [None], [b""], [Packet().bytes(), None]])
def test_the_decoders_columns_are_the_tables(packets):
    """The decoder always returns the same columns with the same types, whatever the packets."""
    found = decode_messages(pa.array(packets, pa.binary()), "RemoteRead", bodies=True, application=KeptColumns())
    types = {column.name: column.sql_type for column in MESSAGES.columns}
    assert {name: spark(array.type) for name, array in found.items()} == {
        name: kind for name, kind in types.items() if name not in ELSEWHERE
    }
    assert {len(array) for array in found.values()} == {len(packets)}


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_slices_and_wide_arrays_are_read_in_place(kind):
    whole = [Packet(number=number, label="x" * number).bytes() for number in range(9)]
    whole[4] = None
    sliced = pa.array([b"before", *whole, b"after"], kind).slice(1, 9)
    found = pa.table(decode_messages(sliced, "qm2qm", bodies=True))
    assert found.to_pylist() == pa.table(decode_messages(pa.array(whole), "qm2qm", bodies=True)).to_pylist()


def test_what_is_not_asked_for_is_not_made():
    found = decode_messages(pa.array([Packet().bytes()]), "qm2qm", hashes=False, keys=False)
    assert not {"body", "body_sha256", "message_key", "framework", "application_headers"} & found.keys()


def test_a_protocol_that_is_none_is_refused():
    for protocol in ("qmcomm", pa.array(["qm2qm", None])):
        with pytest.raises(ValueError, match="no such protocol"):
            decode_messages(pa.array([b"", b""]), protocol)
