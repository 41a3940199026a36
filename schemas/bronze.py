"""bronze: what was captured, raw bytes and where they came from.

Times are UTC, taken from the packets' records; counts are of records or bytes of the decompressed capture.
"""

from __future__ import annotations

import pyarrow as pa

from schemas.table import (
    BIGINT,
    BINARY,
    BOOLEAN,
    CLOCKS,
    DATE,
    DOUBLE,
    ENDPOINT_COLUMNS,
    EVENT_DATE,
    INT,
    INTS,
    NOT_ESTABLISHED,
    RUN_ID,
    STRING,
    STRINGS,
    TIMESTAMP,
    TUNNEL_IDENTIFIER,
    Column,
    Table,
    list_of,
    run_columns,
)

_SERVER = pa.struct([("server_address", STRING), ("connections", BIGINT)])

_TUNNEL = pa.struct(
    [
        ("kind", STRING),
        ("source", STRING),
        ("destination", STRING),
        ("identifier", BIGINT),
    ]
)
_ANNOUNCED = pa.struct(
    [
        ("version", BIGINT),
        ("operation", STRING),
        ("evidence", STRING),
        ("provenance", STRING),
    ]
)
_NOT_READ = pa.struct([("what", STRING), ("packets", BIGINT)])
_HOST_NAME = pa.struct([("address", STRING), ("name", STRING)])
_TIME_STEP = pa.struct(
    [
        ("packet", BIGINT),
        ("at", TIMESTAMP),
        ("back_us", BIGINT),
        ("cause", STRING),
    ]
)
_TAP_STEP = pa.struct(
    [
        ("other_capture_id", STRING),
        ("last_packet", BIGINT),
        ("last_at", TIMESTAMP),
        ("first_packet", BIGINT),
        ("first_at", TIMESTAMP),
        ("by_us", BIGINT),
    ]
)

CAPTURE_FILES = Table(
    "bronze",
    "capture_files",
    "The ledger: one row per capture, readable or not, with what became of its packets.",
    key=("capture_id",),
    event_date_columns=("first_packet_at",),
    columns=(
        Column(
            "capture_id", STRING, "key of the decompressed bytes up to the end of the first packet, else of the path"
        ),
        Column("path", STRING, "absolute path, or URI with its scheme, that the capture was read from"),
        Column("other_paths", STRINGS, "paths of copies and of beginnings of the same capture; null when none"),
        Column("size_bytes", BIGINT, "size of the file as stored, bytes"),
        Column("modified_at", TIMESTAMP, "when the file was last modified, UTC, as the file system says"),
        Column("format", STRING, "pcap or pcapng; null when it is neither"),
        Column("compression", STRING, "gzip, zstd, bzip2, xz or lz4; null when stored plain"),
        Column("link_types", INTS, "distinct link types (LINKTYPE_ numbers) of its interfaces, ascending"),
        Column("packets", BIGINT, "packet records: used + binary protocol + damaged + other"),
        Column("packets_tcp", BIGINT, "packets that carry TCP"),
        Column("packets_truncated", BIGINT, "packets captured shorter than they were on the wire"),
        Column("packets_used", BIGINT, "packets of MSMQ RPC or endpoint-mapper connections"),
        Column("packets_other", BIGINT, "packets that are not ours, or not read"),
        Column("packets_damaged", BIGINT, "packets whose headers cannot be decoded"),
        Column("packets_binary_protocol", BIGINT, "packets of connections on TCP 1801"),
        Column("packets_dropped", BIGINT, "packets the capturing machine says it lost; null when it does not say"),
        Column("bytes_read", BIGINT, "bytes of the file as stored that were read"),
        Column("first_packet_at", TIMESTAMP, "earliest packet time, UTC"),
        Column("last_packet_at", TIMESTAMP, "latest packet time, UTC"),
        Column(
            "status",
            STRING,
            "complete; partial: ends or is damaged inside a record; unreadable: no record could be read, or reading, "
            "decoding or merging it failed; empty: 0 bytes so far",
        ),
        Column("error", STRING, "why the status is not complete; null when it is"),
        Column(
            "damage",
            STRING,
            "kind of error: cut_short (last record not whole), zero_tail (zero bytes up to the end), damaged, empty, "
            "expansion_limit, not_a_capture, unreadable (cannot be opened), resource_limit (took more memory, disk or "
            "time than it may, read alone), or failed (an error of this program)",
        ),
        Column("first_key", STRING, "key of the bytes up to the end of the first packet; null when there is no packet"),
        Column(
            "content_bytes",
            BIGINT,
            "decompressed bytes, without zeros at the end; null when not all were read (damaged inside)",
        ),
        Column(
            "tail_key",
            STRING,
            "key of the last 65536 of them, or of all when fewer; null likewise, and with such zeros",
        ),
        Column(
            "other_files",
            STRING,
            "files of other_paths as compared, JSON: path, size, modified_us, content_bytes, tail_key, compression",
        ),
        Column("resume", STRING, "where reading a longer copy goes on, JSON; null when it has to be read anew"),
        Column("decoder_version", STRING, "version of the capture and RPC readers that made the capture's rows"),
        Column(
            "servers", STRINGS, "addresses of the servers of its MSMQ connections, sorted; null when there are none"
        ),
        Column("server_connections", list_of(_SERVER), "its MSMQ connections by their server's address"),
        Column(
            "learned_endpoints",
            STRINGS,
            "address|port|interface that port-asking and endpoint-mapper calls in it name; null when none",
        ),
        Column("reread_endpoints", STRINGS, "address|port|interface that it was read again for; null when never"),
        Column(
            "tunnels",
            list_of(_TUNNEL),
            "tunnels and mirrors that packets came through: kind, addresses of the ends, and VNI, key, label or "
            "session; distinct, sorted, at most 1,000; null when none",
        ),
        Column(
            "packets_not_read",
            list_of(_NOT_READ),
            "packets that are counted and not read, by what they are: link types, EtherTypes (and whether TCP is "
            "behind them), deeper nesting, connections over a limit; at most 1,000 kinds; null when none",
        ),
        Column(
            "packets_ahead",
            BIGINT,
            "packets whose times are later than ingested_at by more than ingest.max_time_ahead: read without a time",
        ),
        Column(
            "times_go_back",
            list_of(_TIME_STEP),
            "places where packet times go back by more than 5 ms, or leave time out: number and time of the packet "
            "behind it, how far, us, and why: clock_set (the clock was set back, below 0 forward, 0 where it may have "
            "been; packets are in order), out_of_order (the records are not in order; times are right); at most 1,000, "
            "those of clock_set all; null without one",
        ),
        Column(
            "host_names",
            list_of(_HOST_NAME),
            "names of IP addresses in the name resolution blocks of the file; distinct, sorted, at most 1,000; null "
            "when none",
        ),
        Column(
            "tap_steps",
            list_of(_TAP_STEP),
            "places where the clock of this capture or of another one was set, it is not known of which, as packets "
            "show that both have: the other capture; numbers and times, here, of the last packet before the place and "
            "of the first one behind it that a connection has in both; by how much the difference of the clocks "
            "changed, us; at most 1,000 for each other capture; null without one",
        ),
        *run_columns("bronze", "first_packet_at", "the run that first read these bytes"),
    ),
)

CONNECTIONS = Table(
    "bronze",
    "connections",
    "One row per TCP connection that carried MSMQ RPC, the endpoint mapper, or TCP 1801, or was meant to and was not "
    "established.",
    key=("connection_id",),
    event_date_columns=("first_packet_at",),
    looked_up_by=("connection_id",),
    columns=(
        Column("connection_id", STRING, "key of the four-tuple and the time of its first packet in the file"),
        *ENDPOINT_COLUMNS,
        Column("kind", STRING, "rpc, or binary_protocol (TCP 1801)"),
        Column("syn_seen", BOOLEAN, "the client's SYN was captured"),
        Column("first_packet_at", TIMESTAMP, "time of its first packet, UTC"),
        Column("last_packet_at", TIMESTAMP, "time of its last packet, UTC"),
        Column(
            "closed_at",
            TIMESTAMP,
            "time of the first RST after which not both sides went on, or of the later of both directions' earliest "
            "FINs, UTC",
        ),
        Column("closed_by", STRING, "fin or rst; null while open or half open"),
        Column("client_bytes", BIGINT, "distinct payload bytes captured from the client"),
        Column("server_bytes", BIGINT, "distinct payload bytes captured from the server"),
        Column("retransmitted_bytes", BIGINT, "payload bytes seen again, both directions"),
        Column("conflicting_bytes", BIGINT, "bytes seen again with other content; the first seen was kept"),
        Column(
            "missing_bytes",
            BIGINT,
            "payload bytes never captured: between captured ones, or before a FIN, RST or ACK; of a direction of which"
            " nothing was captured, those that the other side acknowledges from its first ACK on; and those of calls in"
            " a capture that was gone when others showed that they are MSMQ; both directions",
        ),
        Column("round_trip_ms", DOUBLE, "SYN to the handshake's last ACK, milliseconds; null when not seen"),
        Column("association_group_id", BIGINT, "RPC association group, from the bind's answer, else as asked"),
        Column("calls", BIGINT, "rows of bronze.rpc_calls of this connection"),
        Column(
            "lost_by_capture_bytes",
            BIGINT,
            "of missing_bytes, those that the receiver acknowledged: they were on the network, the capture lost them",
        ),
        Column("packets", BIGINT, "packets of the connection, those without payload too"),
        TUNNEL_IDENTIFIER,
        NOT_ESTABLISHED,
        Column(
            "uncaptured_side",
            STRING,
            "client or server: the side of which no packet was captured, not even one without payload, though the other"
            " side acknowledges it; null where both were, and where nothing was answered",
        ),
        Column("client_missing_bytes", BIGINT, "of missing_bytes, those that the client sent"),
        Column("server_missing_bytes", BIGINT, "of missing_bytes, those that the server sent"),
        Column(
            "association_joined",
            BOOLEAN,
            "whether the bind asked to join an association group that another connection began (an id other than 0);"
            " null where no bind was captured",
        ),
        *run_columns("bronze", "first_packet_at"),
    ),
)

_TOKEN = pa.struct(
    [
        ("from_client", BOOLEAN),
        ("sequence", BIGINT),
        ("size", BIGINT),
        ("flags", INT),
        ("auth_type", INT),
        ("auth_level", INT),
        ("auth_context_id", BIGINT),
        ("token", BINARY),
    ]
)

RPC_BINDS = Table(
    "bronze",
    "rpc_binds",
    "One row per presentation context asked for, of MSMQ and endpoint-mapper connections.",
    key=("bind_key",),
    event_date_columns=("bound_at",),
    looked_up_by=("connection_id",),
    columns=(
        Column("bind_key", STRING, "key of the connection's four-tuple, the bind PDU's place in it, and the context"),
        Column("connection_id", STRING, "bronze.connections"),
        *ENDPOINT_COLUMNS,
        Column("context_id", INT, "presentation context id (p_cont_id)"),
        Column("interface_uuid", STRING, "abstract syntax, lower-case GUID"),
        Column("interface_name", STRING, "qm2qm, RemoteRead, qmmgmt, qmcomm, qmcomm2, epm; null for others"),
        Column("interface_version", STRING, "major.minor of the abstract syntax"),
        Column(
            "transfer_syntaxes_offered", STRINGS, "NDR, NDR64, feature_negotiation, or the UUID; as asked, in order"
        ),
        Column("transfer_syntax", STRING, "the accepted one, else the first asked"),
        Column("result", STRING, "accepted, rejected, negotiated, or unknown: no answer seen"),
        Column("reason", INT, "reason code of the answer as on the wire; of a bind_nak the reject reason"),
        Column("auth_type", INT, "authentication type of the security trailer; null without security"),
        Column("auth_level", INT, "authentication level of the security trailer; null without security"),
        Column("max_xmit_frag", INT, "largest fragment sent, bytes, from the answer, else from the request"),
        Column("max_recv_frag", INT, "largest fragment received, bytes, from the answer, else from the request"),
        Column("association_group_id", BIGINT, "from the answer, else from the request; 0 as asked stays 0"),
        Column("secondary_address", STRING, "the server's port or endpoint as text, without NUL; null when empty"),
        Column("bound_at", TIMESTAMP, "time of the bind or alter_context, UTC"),
        Column("capture_id", STRING, "bronze.capture_files, where the bind was read"),
        Column("packet_number", BIGINT, "packet of the bind's first byte, from 1"),
        Column(
            "handshake",
            list_of(_TOKEN),
            "security tokens of the bind, its answer and auth3 PDUs behind it, on the row of its first context: TCP "
            "sequence number and size (bytes) of the PDU, its flags, its security trailer; null without security",
        ),
        Column(
            "auth_principal",
            STRING,
            r"DOMAIN\user that the NTLM handshake of its security context claims; ANONYMOUS LOGON without one; null "
            "where it was not seen, and for Kerberos, which encrypts the client's name",
        ),
        Column("auth_workstation", STRING, "name of its machine that the client claims in it; null likewise"),
        Column("auth_service", STRING, "service that a Kerberos ticket is for, name@REALM; null for other handshakes"),
        *run_columns("bronze", "bound_at"),
    ),
)

_SIGHTING = pa.struct(
    [
        ("capture_id", STRING),
        ("request_packet", BIGINT),
        ("response_capture_id", STRING),
        ("response_packet", BIGINT),
        ("byte_offset", BIGINT),
        ("request_at", BIGINT),
        ("request_done_at", BIGINT),
        ("response_at", BIGINT),
        ("response_done_at", BIGINT),
        ("cancelled_at", BIGINT),
        ("orphaned_at", BIGINT),
        ("request", INT),
        ("response", INT),
        ("finished", BOOLEAN),
    ]
)

RPC_CALLS = Table(
    "bronze",
    "rpc_calls",
    "One row per RPC call of an MSMQ interface or the endpoint mapper, finished or not, with its raw stubs.",
    key=("call_key",),
    event_date_columns=(
        "request_at",
        "request_done_at",
        "response_at",
        "response_done_at",
        "cancelled_at",
        "orphaned_at",
    ),
    looked_up_by=("connection_id",),
    columns=(
        Column("call_key", STRING, "key of the four-tuple, call id, TCP sequence number of the first byte, request_at"),
        Column("connection_id", STRING, "bronze.connections"),
        *ENDPOINT_COLUMNS,
        Column("call_id", BIGINT, "call id of the PDUs"),
        Column("context_id", INT, "presentation context id of the request, else of the response"),
        Column(
            "interface_uuid",
            STRING,
            "lower-case GUID; null where the server refused the context, or it is unknown on an MSMQ connection",
        ),
        Column("interface_name", STRING, "qm2qm, RemoteRead, qmmgmt, qmcomm, qmcomm2, epm"),
        Column("transfer_syntax", STRING, "NDR, NDR64, or the UUID, of the bind; null when not known"),
        Column("opnum", INT, "operation number of the request; null when no request was seen"),
        Column("object_uuid", STRING, "object UUID of the request, lower-case GUID; null when it has none"),
        Column("byte_order", STRING, "little or big, of the integers in the stubs"),
        Column("auth_type", INT, "authentication type; null without security"),
        Column("auth_level", INT, "authentication level; null without security; at CONNECT the bind's"),
        Column("bind_seen", BOOLEAN, "the bind of its context was captured"),
        Column("sealed", BOOLEAN, "the stubs were encrypted on the wire (authentication level 6)"),
        Column("request_at", TIMESTAMP, "time of the packet with the request's first byte, UTC"),
        Column(
            "request_done_at",
            TIMESTAMP,
            "when the request was complete: latest time of the packets with its bytes, UTC",
        ),
        Column("response_at", TIMESTAMP, "time of the packet with the response's first byte, UTC"),
        Column(
            "response_done_at",
            TIMESTAMP,
            "when the response was complete: latest time of the packets with its bytes, UTC",
        ),
        Column("cancelled_at", TIMESTAMP, "time of a co_cancel PDU for this call, UTC"),
        Column("orphaned_at", TIMESTAMP, "time of an orphaned PDU for this call, UTC"),
        Column("request_fragments", INT, "request PDUs of which a byte was seen; 0 if none"),
        Column("response_fragments", INT, "response PDUs of which a byte was seen, a fault counts; 0 if none"),
        Column(
            "request_stub", BINARY, "request parameters, verification trailer and padding taken off; null if not seen"
        ),
        Column("response_stub", BINARY, "response parameters likewise; null for a fault or if not seen"),
        Column("fault_status", BIGINT, "status of the fault PDU, unsigned; null without a fault"),
        Column("outcome", STRING, "no_request, damaged, no_response, fault, encrypted, unbound, ok: first that holds"),
        Column("capture_id", STRING, "bronze.capture_files, of the request; of the response when no request was seen"),
        Column("request_packet", BIGINT, "packet of the request's first byte, from 1"),
        Column("response_capture_id", STRING, "bronze.capture_files, of the response"),
        Column("response_packet", BIGINT, "packet of the response's first byte, from 1"),
        Column("byte_offset", BIGINT, "of the first PDU's first byte in the decompressed capture_id, bytes"),
        Column("observations", INT, "captures with any byte of its request or of its response, the larger number"),
        Column("opened_by", STRING, "principal of the handshake whose key opened the stubs; null unless one did"),
        Column(
            "closed_reason",
            STRING,
            "why they stayed closed: no_handshake, no_key, sequence_lost, bad_signature; bad_signature also where a "
            "call is signed alone, its handshake's key is known, and what was captured is not what was signed",
        ),
        Column(
            "verified_by",
            STRING,
            "principal of the handshake whose key verified the signatures of a call that is signed and not sealed; "
            "null unless one did",
        ),
        Column(
            "response_byte_order",
            STRING,
            "little or big: integers of the response, which is in its sender's own order; null when not seen",
        ),
        Column("request_sequence", BIGINT, "TCP sequence number of the request's first byte; null when not seen"),
        Column("response_sequence", BIGINT, "TCP sequence number of the response's first byte; null when not seen"),
        Column(
            "sightings",
            list_of(_SIGHTING),
            "what the row was made of where several captures saw the call, times in us since the epoch; request, "
            "response: how much of each (0 none, 1 some, 2 all); finished: the capture alone has all; else null",
        ),
        CLOCKS,
        TUNNEL_IDENTIFIER,
        Column(
            "request_signed_bytes",
            BINARY,
            "bytes that a later key needs beside a sealed or signed request_stub: of each PDU place, header, padding "
            "and signature; null when not protected, when opened or verified, or when not whole",
        ),
        Column("response_signed_bytes", BINARY, "the same bytes of response_stub"),
        Column(
            "request_span",
            BIGINT,
            "bytes of the TCP stream from the request's first to its last, what comes between its fragments included; "
            "null when not seen",
        ),
        Column("response_span", BIGINT, "the same of the response"),
        *run_columns("bronze", "the first of the row's times that is known, request_at first"),
    ),
)

QUARANTINE = Table(
    "bronze",
    "quarantine",
    "One row per contiguous run of input bytes that belongs nowhere, with its position and the reason.",
    key=("quarantine_key",),
    event_date_columns=("seen_at",),
    looked_up_by=("connection_id",),
    columns=(
        Column(
            "quarantine_key",
            STRING,
            "key of the four-tuple, the TCP sequence number of the run's first byte, seen_at and reason",
        ),
        Column("capture_id", STRING, "bronze.capture_files; null for lines of snapshot files"),
        Column("connection_id", STRING, "bronze.connections; null when the connection is not one of ours"),
        Column("packet_number", BIGINT, "packet of the run's first byte, from 1"),
        Column("byte_offset", BIGINT, "of the run's first byte in the decompressed capture, bytes"),
        Column("size_bytes", BIGINT, "length of the run, bytes"),
        Column("source_path", STRING, "snapshot file; null for captures"),
        Column("source_line", BIGINT, "line of the snapshot file, from 1; null for captures"),
        Column("reason", STRING, "why these bytes belong nowhere, a short code"),
        Column("sample", BINARY, "the run's first bytes, at most 256"),
        Column("seen_at", TIMESTAMP, "time of the packet of the run's first byte, UTC"),
        *run_columns("bronze", "seen_at"),
    ),
)

_SEGMENT = pa.struct(
    [
        ("side", INT),
        ("time_ns", BIGINT),
        ("number", BIGINT),
        ("file_offset", BIGINT),
        ("sequence", BIGINT),
        ("acknowledgement", BIGINT),
        ("flags", INT),
        ("size", BIGINT),
        ("data", BINARY),
    ]
)
_SIDE = pa.struct(
    [
        (name, BIGINT)
        for name in (
            "distinct_bytes",
            "missing_bytes",
            "lost_by_capture_bytes",
            "retransmitted_bytes",
            "conflicting_bytes",
            "passed_over_bytes",
        )
    ]
)
_OPENING = pa.struct(
    [
        *((f"{name}_ns", BIGINT) for name in ("syn", "last_syn", "client_reset", "server_reset")),
        *((name, BOOLEAN) for name in ("client_spoke", "server_spoke", "client_heard")),
    ]
)
_RESET_SIDE = pa.struct(
    [
        ("sent_until", BIGINT),
        ("acknowledged_until", BIGINT),
        ("went_on", BOOLEAN),
    ]
)
_RESET = pa.struct([("time_ns", BIGINT), ("sides", list_of(_RESET_SIDE))])
_FINISHED_CALLS = pa.struct([("context_id", INT), ("calls", BIGINT)])
_EVIDENCE = pa.struct(
    [
        ("context_id", INT),
        ("opnum", INT),
        ("request", BIGINT),
        ("response", BIGINT),
        ("syntax", STRING),
    ]
)
_STREAM_PLACE = pa.struct([("sequence", BIGINT), ("stream_offset", BIGINT)])
_DROPPED = pa.struct([("context_id", INT), ("side", INT), ("bytes", BIGINT)])
_RUN = pa.struct(
    [
        ("side", INT),
        ("sequence", BIGINT),
        ("size", BIGINT),
        ("sample", BINARY),
        ("time_ns", BIGINT),
        ("number", BIGINT),
        ("file_offset", BIGINT),
    ]
)

PENDING = Table(
    "bronze",
    "pending",
    "One row per connection that a capture could not finish alone, or that another one may have seen too: what merging "
    "it across captures needs.",
    key=("pending_key",),
    event_date_columns=("last_packet_at",),
    looked_up_by=("connection_id",),
    columns=(
        Column("pending_key", STRING, "key of the capture and of the connection as it alone saw it"),
        Column("capture_id", STRING, "bronze.capture_files"),
        Column("connection_id", STRING, "bronze.connections, as far as all captures tell"),
        *ENDPOINT_COLUMNS,
        TUNNEL_IDENTIFIER,
        Column("kind", STRING, "rpc, binary_protocol, undecided (no byte seen yet), cold (its beginning was not seen)"),
        Column(
            "waits_for",
            STRINGS,
            "beginning, end: of the connection; call: other halves; bind: what contexts mean; capture: more than is "
            "kept here, to be read again",
        ),
        Column("bytes", BIGINT, "bytes of the stream that are kept here"),
        Column("first_packet_at", TIMESTAMP, "time of its first packet in the capture, UTC"),
        Column("last_packet_at", TIMESTAMP, "time of its last packet in the capture, UTC"),
        Column("first_time_ns", BIGINT, "first_packet_at in ns since the epoch"),
        Column("named_at_ns", BIGINT, "time of the packet that is its first in the file, ns since the epoch: names it"),
        Column("last_time_ns", BIGINT, "last_packet_at in ns since the epoch"),
        Column("client_known", BOOLEAN, "which side is the client was seen, not guessed"),
        Column("recognised", BOOLEAN, "an RPC PDU was seen in it"),
        Column("packets", BIGINT, "its packets in the capture"),
        Column("counted", STRING, "the column of bronze.capture_files that counts these packets"),
        Column(
            "counted_server",
            STRING,
            "server address that bronze.capture_files counts the connection at; null where another row of the capture "
            "counts it",
        ),
        Column(
            "finished_calls",
            list_of(_FINISHED_CALLS),
            "finished calls by context id; -1: of contexts bound in the capture",
        ),
        Column("learned_interfaces", STRINGS, "interfaces that the capture shows to be at the server's port"),
        Column("sides", list_of(_SIDE), "bytes of the lower and the higher endpoint that the segments do not show"),
        Column("segments", list_of(_SEGMENT), "TCP segments that matter still, of sides 0 and 1, each in order"),
        Column("evidence", list_of(_EVIDENCE), "shapes of calls whose bind was not seen; lengths in bytes"),
        Column("call_keys", STRINGS, "bronze.rpc_calls made from this and similar rows: merging replaces them"),
        Column("calls_made", STRING, "digest of these calls as the last merge made them; null when it made none"),
        Column("quarantine_keys", STRINGS, "bronze.quarantine likewise"),
        Column("packet_keys", STRINGS, "bronze.session_packets likewise"),
        Column(
            "stream_ends",
            list_of(_STREAM_PLACE),
            "TCP sequence number up to which each side was read, and its offset in bronze.session_packets, bytes",
        ),
        Column("runs", list_of(_RUN), "runs of bytes that go to quarantine if the connection stays unrecognised"),
        Column("dropped_bytes", list_of(_DROPPED), "bytes of calls without a bind that were too many to be kept"),
        Column("merge_digest", STRING, "digest of what the last merge changed in its finished calls; null if nothing"),
        Column(
            "over_limit",
            STRING,
            "too_many_at_once: more than 32 rows of its endpoints are at one time or have the same bytes, and it was "
            "not compared with all of them; null if it was",
        ),
        Column(
            "opening",
            _OPENING,
            "how it opened: times in ns since the epoch of the client's first and last SYN and of each side's first "
            "RST; whether a side sent anything else; whether the capture has any packet to the client within an hour "
            "of its SYNs (noted where nothing else was sent)",
        ),
        Column(
            "resets",
            list_of(_RESET),
            "RSTs after which not both sides went on: time in ns since the epoch; of each side the TCP sequence "
            "numbers that it had sent and acknowledged before, and whether it went on",
        ),
        *run_columns("bronze", "last_packet_at"),
    ),
)

# What runs note of the tables; not a function of what was read.
WATERMARKS = Table(
    "bronze",
    "watermarks",
    "One row per table: its version when a run last ended, and what it was made of then. Runs read it.",
    key=("table",),
    event_date_columns=(),
    columns=(
        Column("table", STRING, "layer.table"),
        Column("version", BIGINT, "Delta version of the table"),
        Column(
            "provenance",
            STRING,
            "JSON: versions of the tables that it was computed from, settings, version of the code; {} for none",
        ),
        Column("rows", BIGINT, "rows of the table at that version"),
        Column(
            "announced",
            list_of(_ANNOUNCED),
            "commits that cannot say their provenance, as sessions refuse the setting: version, operation, text in "
            "its parameters in the table's history (of MERGE the run's), and provenance; null without one",
        ),
    ),
)
RUNS = Table(
    "bronze",
    "runs",
    "One row per run that wrote to the lake: the command, how long it took, how it ended, what it read and wrote.",
    key=("run_id",),
    event_date_columns=("began_at",),
    columns=(
        Column(RUN_ID, STRING, "the run: run_id of the rows that it wrote"),
        Column("command", STRING, "job of msmq, without its arguments: run_all, check_quality, forget, ..."),
        Column("program_version", STRING, "version of this program"),
        Column("began_at", TIMESTAMP, "clock time at which it began, UTC"),
        Column("ended_at", TIMESTAMP, "clock time at which it ended, UTC; null where it was killed"),
        Column("seconds", DOUBLE, "duration of the run, its wait for the lease included; null where it was killed"),
        Column(
            "exit_code",
            INT,
            "its exit code (docs/guides/operations.md); null where it was killed. The row of a run that was killed, or "
            "that ended with 2, 4 or 130, is added by the next one",
        ),
        Column("stage_seconds", pa.map_(STRING, DOUBLE), "seconds by stage, of a command that has stages"),
        Column("engine", STRING, "what computed: spark or local (run.engine)"),
        Column(
            "master",
            STRING,
            "Spark's master without its address: local[*], spark, yarn, k8s; null where Spark did not start, or does "
            "not say",
        ),
        Column("executions", BIGINT, "SQL executions of Spark before this row; null where nobody counts them"),
        Column("jobs", BIGINT, "jobs of Spark, likewise"),
        Column("tasks", BIGINT, "tasks of Spark, likewise"),
        Column("captures_read", BIGINT, "captures that were read, as a whole or what was added to them"),
        Column("snapshots_read", BIGINT, "snapshot files that were read"),
        Column("bytes_read", BIGINT, "size of these captures and files, bytes; of one that has grown all of it"),
        Column("packets", BIGINT, "packets of these captures; of one that has grown all of them"),
        Column("failures", BIGINT, "inputs that could not be read: each makes the exit code 3"),
        Column(
            "rows_written",
            pa.map_(STRING, BIGINT),
            "rows that steps wrote by table (layer.table); tables without one are left out",
        ),
        Column("restarts", BIGINT, "how often it began again, because somebody else changed a table meanwhile"),
        Column(EVENT_DATE, DATE, "UTC date of began_at; files of other dates are not read"),
    ),
)

TABLES = (CAPTURE_FILES, CONNECTIONS, RPC_BINDS, RPC_CALLS, QUARANTINE, PENDING)
