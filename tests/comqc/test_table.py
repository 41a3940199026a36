"""``silver.comqc_calls`` against its contract and against the decoder's output."""

from schemas.comqc import COMQC_CALLS
from udfs.comqc.body_decoder import CALL_STRUCT

# From the contract with the users of the tables; further columns are welcome.
CONTRACT = """
    sighting_key string, message_key string, call_key string, call_index int, header_offset bigint, header string,
    target_clsid string, target_text string, partition_id string, interface_id string, is_dispatch boolean, opnum int,
    data_representation bigint, flags bigint, marshaled_bytes bigint, marshaled binary, security_offset bigint,
    security_index int, dispatch_id bigint, arguments array<struct<vt:int;vt_name:string;value:string>>,
    errors array<struct<code:string;field:string;offset:bigint>>, decoder_version string, event_date date,
    run_id string"""


def test_the_table_has_the_columns_of_the_contract():
    expected = [tuple(column.replace(";", ",").split()) for column in CONTRACT.split(",")]
    types = {column.name: column.sql_type for column in COMQC_CALLS.columns}
    assert [(name, types.get(name)) for name, _ in expected] == expected


def test_the_decoder_gives_the_columns_of_the_table():
    schema = COMQC_CALLS.schema()
    assert [(field.name, field.type) for field in CALL_STRUCT] == [
        (field.name, schema.field(field.name).type) for field in CALL_STRUCT
    ]
    ours = {field.name for field in CALL_STRUCT}
    assert [name for name in COMQC_CALLS.names if name not in ours] == [
        "sighting_key", "message_key", "call_key", "packet_key", "seen_at", "decoder_version", "event_date", "run_id",
    ]  # fmt: skip
