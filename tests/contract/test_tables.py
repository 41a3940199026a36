"""The declared tables against the contract with their users, written out here by hand from its text.

These lists change only together with the contract: they are not made from schemas/.
"""

import pytest

from pipeline.lake.schema_enforcement import columns_with_statistics
from pipeline.lake.storage.data_files import bloom_filter_values
from pipeline.lake.storage.store import table_properties
from schemas import catalog
from schemas.table import STRING, Column, Table

FOUR_TUPLE = "client_address string, client_port int, server_address string, server_port int"
ERRORS = "errors array<struct<code:string,field:string,offset:bigint>>"
SEQUENCE = "struct<sequence_id:decimal(20,0),sequence_number:bigint,previous_number:bigint>"
SOURCES = (
    "array<struct<sender_format_name:string,sender_queue_manager:string,sequence_id:decimal(20,0),"
    "last_number:bigint,last_access_at:timestamp,reject_count:bigint>>"
)
HISTORY = (
    "array<struct<status:bigint,status_name:string,changed_at:timestamp,"
    "error:bigint,error_name:string,addresses:array<string>>>"
)
SIDES = ", ".join(
    f"{side}_{name} bigint"
    for side in ("client", "server")
    for name in (
        "messages", "bytes", "recoverable", "transactional", "order_acks", "final_acks", "session_acks", "piggybacked",
        "numbered", "acknowledged", "unacknowledged", "stored", "window_full_ms",
    )
)  # fmt: skip
REPORT = "struct<source_prefix:string,message_ordinal:bigint,hop_count:int,next_hop:string>"

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
    "bronze.snapshots_raw": """
        snapshot_id string, queue_manager string, server_address string, object_type string, format_name string,
        asked_at timestamp, collected_at timestamp, hresult bigint, error string,
        properties array<struct<property_id:int,vt:int,value_json:string>>, collector_version string,
        source_path string, source_line bigint, event_date date, run_id string, ingested_at timestamp""",
    "silver.hosts": f"""
        queue_manager_id string, host_name string, address string, source string, first_seen_at timestamp,
        last_seen_at timestamp, sightings bigint, {ERRORS}, decoder_version string, event_date date, run_id string""",
    "silver.sessions": f"""
        connection_id string, {FOUR_TUPLE}, first_packet_at timestamp, last_packet_at timestamp, closed_at timestamp,
        closed_by string, initiator_queue_manager string, acceptor_queue_manager string, asked_queue_manager string,
        by_direct_name boolean, establish_requested_at timestamp, parameters_requested_at timestamp,
        establish_answered_at timestamp, parameters_answered_at timestamp, round_trip_ms double,
        initiator_uptime_ms bigint, pinged boolean, server_class boolean, recoverable_ack_timeout_ms bigint,
        ack_timeout_ms bigint, client_window int, server_window int, outcome string, ended string,
        {SIDES}, {ERRORS}, decoder_version string, event_date date, run_id string""",
    "silver.order_acks": f"""
        packet_key string, connection_id string, {FOUR_TUPLE}, sent_by string, sent_at timestamp, kind string,
        class int, class_name string, queue_manager string, acknowledged_queue_manager string,
        destination_queue string, transaction_sequence_id decimal(20,0), transaction_number bigint,
        previous_transaction_number bigint, acknowledged_ordinal bigint, acknowledged_message_id string,
        session_number bigint, recoverable_number bigint, {ERRORS}, decoder_version string, event_date date,
        run_id string""",
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
    "silver.management_calls": f"""
        call_key string, method string, opnum int, connection_id string, {FOUR_TUPLE}, queue_manager string,
        object_type string, queue_format_name string, queue string, property_ids array<int>, action string,
        hresult bigint, hresult_name string, requested_at timestamp, responded_at timestamp, {ERRORS},
        decoder_version string, event_date date, run_id string""",
    "silver.client_calls": f"""
        call_key string, interface_name string, method string, opnum int, connection_id string, {FOUR_TUPLE},
        requested_at timestamp, responded_at timestamp, queue_format_name string, queue string, access bigint,
        share_mode bigint, queue_handle bigint, queue_descriptor bigint, open_context bigint, context_handle string,
        cursor_handle bigint, client_id string, returned_port bigint, hresult bigint, hresult_name string, {ERRORS},
        decoder_version string, event_date date, run_id string""",
    "silver.properties": f"""
        snapshot_id string, call_key string, source string, queue_manager string, object_type string, queue string,
        queue_format_name string, observed_at timestamp, hresult bigint, property_id int, property_name string, vt int,
        vt_name string, state string, value_decimal decimal(20,0), value_text string, value_binary binary,
        value_texts array<string>, value_json string, {ERRORS}, decoder_version string, event_date date,
        run_id string""",
    "silver.queue_snapshots": f"""
        snapshot_id string, call_key string, source string, queue_manager string, queue string,
        queue_format_name string, observed_at timestamp, hresult bigint, hresult_name string,
        property_states map<string,string>, pathname string, formatname string, type string, location string,
        xact string, foreign string, state string, message_count bigint, bytes_in_queue bigint,
        journal_message_count bigint, bytes_in_journal bigint, eod_last_ack_count bigint, eod_no_read_count bigint,
        eod_no_ack_count bigint, eod_resend_count bigint, eod_resend_interval bigint, subqueue_count bigint,
        nexthops array<string>, subqueue_names array<string>, eod_last_ack {SEQUENCE}, eod_first_non_ack {SEQUENCE},
        eod_last_non_ack {SEQUENCE}, eod_next_seq {SEQUENCE}, eod_last_ack_time timestamp, eod_resend_time timestamp,
        eod_source_info {SOURCES},
        connection_history {HISTORY},
        {ERRORS}, decoder_version string, event_date date, run_id string""",
    "silver.machine_snapshots": f"""
        snapshot_id string, call_key string, source string, queue_manager string, observed_at timestamp, hresult bigint,
        hresult_name string, property_states map<string,string>, activequeues array<string>, privateq array<string>,
        dsserver string, connected string, type string, bytes_in_all_queues decimal(20,0), {ERRORS},
        decoder_version string, event_date date, run_id string""",
    "bronze.runs": """
        run_id string, command string, program_version string, began_at timestamp, ended_at timestamp, seconds double,
        exit_code int, stage_seconds map<string,double>, engine string, master string, executions bigint, jobs bigint,
        tasks bigint, captures_read bigint, snapshots_read bigint, bytes_read bigint, packets bigint, failures bigint,
        rows_written map<string,bigint>, restarts bigint, event_date date""",
    "silver.queue_aliases": """
        queue string, canonical_queue string, evidence string, call_key string, snapshot_id string,
        observed_at timestamp, event_date date""",
    "gold.ack_sequences": f"""
        queue string, lookup_id decimal(20,0), message_key string, attempts int, peeks int, outcomes array<string>,
        readers array<string>, first_attempt_at timestamp, settled_at timestamp, fate string, redelivered boolean,
        loss_risk string, event_date date, evidence array<string>, confidence string, missing array<string>,
        {ERRORS}""",
    "gold.receive_attempts": f"""
        attempt_key string, protocol string, queue string, inferred_queue string, connection_id string, {FOUR_TUPLE},
        context_handle string, remote_read_handle string, request_id bigint, action_name string, is_receive boolean,
        transactional boolean, transaction_id string, started_at timestamp, returned_at timestamp, ended_at timestamp,
        wait_ms double, hold_ms double, started_ahead_us bigint, returned_ahead_us bigint, ended_ahead_us bigint,
        lookup_id decimal(20,0), message_key string, message_bytes bigint,
        abort_count int, start_hresult bigint, end_hresult bigint, outcome string, evidence array<string>,
        confidence string, missing array<string>, {ERRORS}, event_date date, run_id string""",
    "gold.queue_history": f"""
        queue_manager string, queue string, queue_format_name string, valid_from timestamp, valid_to timestamp,
        state string, message_count bigint, bytes bigint, journal_count bigint, journal_bytes bigint, received bigint,
        peeked bigint, nacked bigint, arrived bigint, departed bigint, arrivals_seen boolean, moved_in bigint,
        moved_out bigint, purged bigint, paused boolean,
        expected_message_count bigint, unexplained_change bigint, source string, evidence array<string>,
        confidence string, missing array<string>, {ERRORS}, event_date date, run_id string""",
    "gold.machine_history": f"""
        interval_key string, queue_manager string, valid_from timestamp, valid_to timestamp, state string,
        directory_server string, bytes_in_all_queues decimal(20,0), active_queues bigint, private_queues bigint,
        source string, reported_at timestamp, evidence array<string>, confidence string, missing array<string>,
        {ERRORS}, event_date date, run_id string""",
    "gold.management_actions": f"""
        call_key string, action string, object_type string, queue_manager string, queue string,
        queue_format_name string, connection_id string, {FOUR_TUPLE}, auth_level int, auth_level_name string,
        requested_at timestamp, responded_at timestamp, hresult bigint, hresult_name string, fault_name string,
        outcome string, state_before string, state_before_at timestamp, state_after string, state_after_at timestamp,
        evidence array<string>, confidence string, missing array<string>, {ERRORS}, event_date date, run_id string""",
    "gold.eod_transfers": f"""
        queue string, queue_format_name string, queue_manager string, observed_at timestamp,
        sequence_id decimal(20,0), last_acked_number bigint, first_unacked_number bigint, last_unacked_number bigint,
        next_number bigint, unacked_count bigint, unread_count bigint, last_ack_at timestamp, resend_count bigint,
        resend_interval_s bigint, next_resend_at timestamp, ladder_step int, acked_per_s double, sent_per_s double,
        in_flight_s double, stalled_since timestamp, sequence_reset boolean, condition string, evidence array<string>,
        confidence string, missing array<string>, {ERRORS}, event_date date, run_id string""",
    "gold.message_transfers": f"""
        transfer_key string, message_key string, message_id string, message_kind string, class int, class_name string,
        source_queue_manager string, destination_queue string, delivery string, transactional boolean,
        body_bytes bigint, acknowledgement_requested int, journaling int, hop_count int, sender_address string,
        receiver_address string, sender_queue_manager string, receiver_queue_manager string, sequence_key string,
        transaction_number bigint, sent_at timestamp, expires_at timestamp, packet_bytes bigint, resent_bytes bigint,
        transmit_ms double, sendings int, sessions int, first_sent_at timestamp, last_sent_at timestamp,
        session_acked_at timestamp, stored_at timestamp, acknowledged_sendings int, order_acked_at timestamp,
        final_acked_at timestamp, final_class int, final_class_name string, arrival_acked_at timestamp,
        arrival_class int, arrival_class_name string, receive_acked_at timestamp, receive_class int,
        receive_class_name string, session_ack_ms double, store_ms double, order_ack_ms double, final_ack_ms double,
        arrival_ack_ms double, receive_ack_ms double, dead_letter_class int,
        reports array<struct<at:timestamp,queue_manager:string,hop_count:int,next_hop:string>>, outcome string,
        application_message_id string, conversation_id string, sent_types array<string>,
        evidence array<string>, confidence string, missing array<string>, {ERRORS}, event_date date, run_id string""",
    "gold.transfer_sequences": f"""
        sequence_key string, source_queue_manager string, destination_queue string,
        transaction_sequence_id decimal(20,0), sender_address string, receiver_address string,
        sender_queue_manager string, receiver_queue_manager string, sequence_ordinal bigint,
        sequence_epoch_at timestamp, messages bigint, sendings bigint, sent_bytes bigint, resends bigint,
        resent_bytes bigint, first_number bigint, last_number bigint, first_sent_at timestamp, last_sent_at timestamp,
        gaps array<struct<first:bigint,last:bigint,bridged:boolean>>, missing_numbers bigint, out_of_order bigint,
        refusals bigint, order_acks bigint, acknowledged_number bigint, acknowledged_at timestamp, waiting bigint,
        first_waiting_number bigint,
        stalls array<struct<began_at:timestamp,ended_at:timestamp,first_number:bigint,waiting:bigint,sendings:bigint>>,
        longest_stall_s double, stalled_since timestamp, previous_sequence_id decimal(20,0), began string,
        condition string, evidence array<string>, confidence string, missing array<string>, {ERRORS}, event_date date,
        run_id string""",
    "gold.quality_results": """
        run_id string, table string, expectation string, severity string, success boolean, evaluated bigint,
        unexpected bigint, observed string, run_at timestamp, event_date date""",
    "gold.eod_sources": f"""
        queue string, queue_manager string, observed_at timestamp, sender_queue_manager string,
        sender_format_name string, sequence_id decimal(20,0), last_number bigint, last_access_at timestamp,
        reject_count bigint, disagrees_with_sender string, evidence array<string>, confidence string,
        missing array<string>, {ERRORS}, event_date date, run_id string""",
    "gold.findings": f"""
        finding_key string, rule_id string, source string, severity string, subject string, call_key string,
        packet_key string, observed_at timestamp, message string, expected string, actual string,
        evidence array<string>, confidence string, missing array<string>, {ERRORS}, event_date date, run_id string""",
    "gold.alerts": f"""
        alert_key string, condition string, severity string, subject string, subject_text string,
        queue string, queue_manager string, since timestamp, until timestamp, last_seen_at timestamp, message string,
        suggestion string,
        evidence array<string>, confidence string, missing array<string>, {ERRORS}, event_date date, run_id string""",
    "gold.coverage": """
        hour timestamp, server_address string, layer string, measure string, value bigint, event_date date""",
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
    """Further columns may stand among them."""
    promised = written(CONTRACT[name])
    names = {column for column, _ in promised}
    given = [(column.name, column.sql_type) for column in catalog.table(name).columns]
    assert sorted(each for each in given if each[0] in names) == sorted(promised)


def test_the_catalog_holds_the_contracts_tables():
    assert CONTRACT.keys() - {str(table) for table in catalog.ALL_TABLES} == set()


@pytest.mark.parametrize("table", catalog.ALL_TABLES, ids=str)
def test_every_table_and_column_says_what_it_is(table):
    assert len(table.comment) > 20
    assert [column.name for column in table.columns if len(column.comment) < 10] == []
    assert [field.metadata for field in table.struct()] == [{"comment": column.comment} for column in table.columns]


@pytest.mark.parametrize("table", catalog.ALL_TABLES, ids=str)
def test_comments_name_the_unit_of_sizes_and_times(table):
    """Sizes in bytes, durations by the name's ending, times UTC."""
    unsaid = [
        column.name
        for column in table.columns
        if (column.sql_type == "timestamp" and "UTC" not in column.comment)
        or (column.name.endswith("_ms") and "milliseconds" not in column.comment)
        or (column.name.endswith("_bytes") and "bytes" not in column.comment)
    ]
    assert unsaid == []


def test_a_declaration_that_contradicts_itself_is_refused():
    column = Column("a", STRING, "a text")
    contradictions = [(("b",), (column,), ()), (("a",), (column, column), ()), (("a",), (column,), ("a",))]
    for key, columns, dated_by in contradictions:
        with pytest.raises(ValueError, match=r"^bronze\.t: "):
            Table("bronze", "t", "a table", key, columns, dated_by)


CONNECTION, QUEUE, PAIR = (
    ["event_date", "connection_id"],
    ["event_date", "queue"],
    ["event_date", "sender_queue_manager", "receiver_queue_manager"],
)
LAYOUTS = {
    "bronze": dict.fromkeys(
        ("connections", "rpc_binds", "rpc_calls", "quarantine", "pending", "session_packets"), CONNECTION
    ),
    "silver": dict.fromkeys(
        ("remote_read_calls", "management_calls", "client_calls", "messages", "sessions", "order_acks", "sendings",
         "session_checkpoints"), CONNECTION
    ),
    "gold": {
        **dict.fromkeys(
            ("receive_attempts", "queue_operations", "queue_opens", "ack_sequences", "eod_transfers", "eod_sources",
             "alerts"), QUEUE
        ),
        "queue_history": ["event_date", "queue_manager", "queue"],
        "management_actions": ["event_date", "queue_manager", "queue"],
        "machine_history": ["event_date", "queue_manager"],
        **dict.fromkeys(("message_transfers", "transfer_sequences"), PAIR),
        "findings": ["event_date", "connection_id", "queue"],
        "finding_checkpoints": CONNECTION,
    },
}  # fmt: skip


@pytest.mark.parametrize("table", catalog.ALL_TABLES, ids=str)
def test_a_table_is_laid_out_by_what_it_is_looked_up_by_and_has_statistics_of_it(table):
    of_date = ["event_date"] if table.event_date_columns else []
    assert [*table.layout] == LAYOUTS[table.layer].get(table.name, of_date)
    assert {*table.layout, *table.key, *table.event_date_columns} == {*columns_with_statistics(table)}
    assert {*table.layout} <= {*table_properties(table)["delta.dataSkippingStatsColumns"].split(",")}
    assert {*table.looked_up_by} <= bloom_filter_values(table).keys()
