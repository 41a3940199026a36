"""silver.comqc_calls: the method calls that COM+ queued components recorded in message bodies, [MC-COMQC]."""

from __future__ import annotations

import pyarrow as pa

from schemas.table import (
    BIGINT,
    BIGINTS,
    BINARY,
    BOOLEAN,
    DECODER_COLUMNS,
    INT,
    STRING,
    STRINGS,
    TIMESTAMP,
    Column,
    Table,
    list_of,
    run_columns,
)

ARGUMENTS = list_of(
    pa.struct(
        [
            ("vt", INT),
            ("vt_name", STRING),
            ("value", STRING),
        ]
    )
)

CALLERS = list_of(
    pa.struct(
        [
            ("sid", STRING),
            ("name", STRING),
            ("authentication_service", BIGINT),
            ("authentication_level", BIGINT),
            ("impersonation_level", BIGINT),
            ("application_sid", STRING),
            ("application_name", STRING),
        ]
    )
)

COMQC_CALLS = Table(
    "silver",
    "comqc_calls",
    "One row per recorded method call and sighting of its message; messages that must be rejected give none.",
    key=("sighting_key", "call_index"),
    event_date_columns=("seen_at",),
    columns=(
        Column("sighting_key", STRING, "silver.messages: the sighting whose body holds the call"),
        Column("message_key", STRING, "silver.messages: the message, however often it was seen"),
        Column("call_key", STRING, "bronze.rpc_calls: the call that carried the message; null without RPC"),
        Column("packet_key", STRING, "bronze.session_packets: the packet that is the message; null for RPC"),
        Column("seen_at", TIMESTAMP, "when the message was seen: seen_at of its sighting, UTC"),
        Column("call_index", INT, "order of the call in its message, from 0"),
        Column("header_offset", BIGINT, "where its method header begins, bytes from the start of the body"),
        Column("header", STRING, "METH with an interface of its own, SMTH with that of the last METH"),
        Column("target_clsid", STRING, "class of the object that is called, GUID"),
        Column("target_text", STRING, "Target ID String as sent, without its NUL; servers do not use it"),
        Column("partition_id", STRING, "COM+ partition of the object, GUID; null when the message names none"),
        Column("interface_id", STRING, "interface of the method, GUID; of an SMTH that of the METH before it"),
        Column("interface_name", STRING, "name of the interface, or of a dispatch call's class, by comqc.interfaces"),
        Column("is_dispatch", BOOLEAN, "the interface is IDispatch: the call carries dispatch id and arguments"),
        Column("opnum", INT, "Method Number: the operation of the interface; 6, Invoke, of a dispatch call"),
        Column("method", STRING, "name of the method; null where the file of comqc.interfaces does not declare it"),
        Column("data_representation", BIGINT, "as sent, always 16: NDR, little-endian, ASCII, IEEE"),
        Column("flags", BIGINT, "as sent, always 4096"),
        Column("marshaled_bytes", BIGINT, "size of the Marshaled Data with what stands behind the parameters, bytes"),
        Column("marshaled", BINARY, "Marshaled Data; only with store.bodies"),
        Column("security_offset", BIGINT, "where the security header that applies begins, bytes; references followed"),
        Column("security_index", INT, "order of that header among the message's security headers, from 0"),
        Column("security_bytes", BIGINT, "size of its Security Data, bytes"),
        Column("security_data", BINARY, "Security Data; only with store.bodies"),
        Column("caller_sid", STRING, "SID of the direct caller, by authentication: as whom the call is played"),
        Column("caller_name", STRING, "account name of the direct caller, by authentication"),
        Column(
            "callers",
            CALLERS,
            "all callers of the chain, the direct one first ([MS-COM] 2.2.3.2): numbers as sent, 1 to 6 for the "
            "authentication level; application_sid and application_name are what applications supplied",
        ),
        Column("minimum_authentication_level", BIGINT, "lowest authentication level in the chain of callers, as sent"),
        Column("dispatch_id", BIGINT, "dispIdMember of a dispatch call, signed: what is called"),
        Column("dispatch_flags", BIGINT, "dwFlags: 1 method, 2 property get, 4 put, 8 put by reference; as sent"),
        Column("named_dispatch_ids", BIGINTS, "rgdispidNamedArgs: -3 is the value of a property put"),
        Column(
            "argument_names",
            STRINGS,
            "names of arguments, in their order; null without a declaration of the method",
        ),
        Column(
            "arguments",
            ARGUMENTS,
            "of a dispatch call, and of others whose method comqc.interfaces declares, in the order of the method's"
            " parameters; value as text, arrays and what they hold as JSON; all null where one could not be read",
        ),
        *DECODER_COLUMNS,
        *run_columns("silver", "seen_at of the sighting"),
    ),
)

TABLES = (COMQC_CALLS,)
