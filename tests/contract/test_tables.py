"""The declared tables against the contract with their users, written out here by hand from its text.

These lists change only together with the contract: they are not made from schemas/.
"""

import pytest

from schemas import catalog
from schemas.table import STRING, Column, Table

FOUR_TUPLE = "client_address string, client_port int, server_address string, server_port int"
ERRORS = "errors array<struct<code:string,field:string,offset:bigint>>"

CONTRACT = {
    "bronze.capture_files": """
        capture_id string, path string, other_paths array<string>, size_bytes bigint, modified_at timestamp,
        format string, compression string, link_types array<int>, packets bigint, packets_tcp bigint,
        packets_truncated bigint,
        packets_used bigint, packets_other bigint, packets_damaged bigint, packets_binary_protocol bigint,
        packets_dropped bigint, bytes_read bigint, first_packet_at timestamp, last_packet_at timestamp, status string,
        error string, event_date date, run_id string, ingested_at timestamp""",
    "bronze.connections": f"""
        connection_id string, {FOUR_TUPLE}, kind string, syn_seen boolean, first_packet_at timestamp,
        last_packet_at timestamp, closed_at timestamp, closed_by string, client_bytes bigint, server_bytes bigint,
        retransmitted_bytes bigint, conflicting_bytes bigint, missing_bytes bigint, round_trip_ms double,
        association_group_id bigint, calls bigint, event_date date, run_id string, ingested_at timestamp""",
    "bronze.rpc_binds": f"""
        bind_key string, connection_id string, {FOUR_TUPLE}, context_id int, interface_uuid string,
        interface_name string, interface_version string, transfer_syntaxes_offered array<string>,
        transfer_syntax string, result string, reason int, auth_type int, auth_level int, max_xmit_frag int,
        max_recv_frag int,
        association_group_id bigint, secondary_address string, bound_at timestamp, capture_id string,
        packet_number bigint, event_date date, run_id string, ingested_at timestamp""",
    "bronze.rpc_calls": f"""
        call_key string, connection_id string, {FOUR_TUPLE}, call_id bigint, context_id int, interface_uuid string,
        interface_name string, transfer_syntax string, opnum int, object_uuid string, byte_order string, auth_type int,
        auth_level int, bind_seen boolean, sealed boolean, request_at timestamp, request_done_at timestamp,
        response_at timestamp, response_done_at timestamp, cancelled_at timestamp, orphaned_at timestamp,
        request_fragments int, response_fragments int, request_stub binary, response_stub binary, fault_status bigint,
        outcome string, capture_id string, request_packet bigint, response_capture_id string, response_packet bigint,
        byte_offset bigint, observations int, opened_by string, closed_reason string, event_date date, run_id string,
        ingested_at timestamp""",
    "bronze.quarantine": """
        quarantine_key string, capture_id string, connection_id string, packet_number bigint, byte_offset bigint,
        size_bytes bigint, source_path string, source_line bigint, reason string, sample binary, seen_at timestamp,
        event_date date, run_id string, ingested_at timestamp""",
    "silver.remote_read_calls": f"""
        call_key string, protocol string, method string, opnum int, connection_id string, call_id bigint, {FOUR_TUPLE},
        requested_at timestamp, responded_at timestamp, queue_format_type int, queue_format_name string, queue string,
        access bigint, share_mode bigint, client_id string, non_routing_server boolean, workgroup boolean,
        version_major int, version_minor int, build_number int, returned_port bigint, port_type bigint,
        context_handle string, remote_read_handle string, queue_handle bigint, queue_descriptor bigint,
        open_context bigint, mqs bigint, cursor_handle bigint, action bigint, action_name string, timeout_ms bigint,
        request_id bigint, lookup_id decimal(20,0), sequence_id decimal(20,0), max_body_bytes bigint,
        max_compound_message_bytes bigint, transaction_id string, propagation_token_bytes bigint,
        acknowledgement_class bigint, ack bigint, ack_name string, move_context decimal(20,0), hresult bigint,
        hresult_name string, arrived_at timestamp, section_types array<int>, section_bytes array<bigint>,
        section_allocated_bytes array<bigint>, packet_bytes bigint, packet binary, {ERRORS}, decoder_version string,
        event_date date, run_id string""",
    "gold.receive_attempts": f"""
        attempt_key string, protocol string, queue string, inferred_queue string, connection_id string, {FOUR_TUPLE},
        context_handle string, remote_read_handle string, request_id bigint, action_name string, is_receive boolean,
        transactional boolean, transaction_id string, started_at timestamp, returned_at timestamp, ended_at timestamp,
        wait_ms double, hold_ms double, lookup_id decimal(20,0), message_key string, message_bytes bigint,
        start_hresult bigint, end_hresult bigint, outcome string, evidence array<string>, confidence string,
        missing array<string>, {ERRORS}, event_date date, run_id string""",
}


def written(text):
    """'name type, name type' as a list of pairs; commas inside brackets belong to the type."""
    pairs, depth, start = [], 0, 0
    flat = " ".join(text.split())
    for at, char in enumerate(flat + ","):
        depth += (char in "<(") - (char in ">)")
        if char == "," and depth == 0:
            name, _, kind = flat[start:at].strip().partition(" ")
            pairs.append((name, kind))
            start = at + 1
    return pairs


@pytest.mark.parametrize("name", sorted(CONTRACT))
def test_a_table_has_the_contracts_columns_and_types(name):
    """In the contract's order; further columns may stand among them."""
    promised = written(CONTRACT[name])
    names = {column for column, _ in promised}
    given = [(column.name, column.type.simpleString()) for column in catalog.table(name).columns]
    assert [each for each in given if each[0] in names] == promised


def test_the_catalog_holds_the_contracts_tables():
    assert CONTRACT.keys() - {str(table) for table in catalog.ALL} == set()


@pytest.mark.parametrize("table", catalog.ALL, ids=str)
def test_every_table_and_column_says_what_it_is(table):
    assert len(table.comment) > 20
    assert [column.name for column in table.columns if len(column.comment) < 10] == []
    assert [field.metadata for field in table.struct()] == [{"comment": column.comment} for column in table.columns]


@pytest.mark.parametrize("table", catalog.ALL, ids=str)
def test_comments_name_the_unit_of_sizes_and_times(table):
    """Sizes in bytes, durations by the name's ending, times UTC."""
    unsaid = [
        column.name
        for column in table.columns
        if (column.type.simpleString() == "timestamp" and "UTC" not in column.comment)
        or (column.name.endswith("_ms") and "milliseconds" not in column.comment)
        or (column.name.endswith("_bytes") and "bytes" not in column.comment)
    ]
    assert unsaid == []


def test_the_documentation_page_is_the_declarations(project):
    """`make tables-doc` writes it anew."""
    page = (project / "docs" / "tables.md").read_text(encoding="utf-8")
    assert [str(table) for table in catalog.ALL if table.markdown() not in page] == []


def test_a_declaration_that_contradicts_itself_is_refused():
    column = Column("a", STRING, "a text")
    contradictions = [(("b",), (column,), ()), (("a",), (column, column), ()), (("a",), (column,), ("a",))]
    for key, columns, dated_by in contradictions:
        with pytest.raises(ValueError, match=r"^bronze\.t: "):
            Table("bronze", "t", "a table", key, columns, dated_by)
