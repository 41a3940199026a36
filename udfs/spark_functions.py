"""The decoders as functions of Spark columns, for any frame that has such bytes, and for SQL.

They take columns and return a struct, with what did not decode in ``errors``: they raise nothing on bad input. They
work in classic and Spark Connect sessions whose workers have this project's packages. After ``register_functions`` SQL
has them by the same names. Of the modules of ``udfs`` only this one uses Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, SparkSession
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import DataType, StringType, StructType

from schemas.calls import CLIENT_CALLS, MANAGEMENT_CALLS, REMOTE_READ_CALLS
from schemas.messages import MESSAGES
from schemas.table import ERRORS, Table
from udfs.application.columns import KeptColumns
from udfs.comqc.body_decoder import BODY_SCHEMA, decode_bodies
from udfs.errors import UNSUPPORTED
from udfs.messages.header_layouts import PROTOCOL_QM2QM, PROTOCOLS
from udfs.messages.message_decoder import decode_messages
from udfs.properties.management_answers import ANSWERS_SCHEMA, decode_management_answers
from udfs.queues.normal_form import normalize_queue_names
from udfs.stubs.call_decoder import PARAMETERS_SCHEMA, decode_mixed_stubs
from udfs.stubs.to_arrow import SECTION_TYPES

if TYPE_CHECKING:
    from pyspark.sql._typing import UserDefinedFunctionLike

ColumnOrName = Column | str


def decode_message(packet: ColumnOrName, seen_in: ColumnOrName, *sections: ColumnOrName) -> Column:
    """Decode message packets: a struct with the columns of ``silver.messages`` that a packet gives, and its ``body``.

    All that the application's headers and body say is in it, whatever ``store.application_headers`` is.

    ``packet``: binary, as ``decode_stub`` and ``silver.remote_read_calls`` have it. ``seen_in``: the protocol that
    carried it, ``RemoteRead`` ([MS-MQRR] 2.2.5), ``qm2qm`` ([MS-MQQP]) or ``binary_protocol`` ([MS-MQQB]).
    ``sections``: ``section_types``, ``section_bytes`` and ``section_allocated_bytes`` from where the packet is from.
    Without them a body that its reader asked for in part is ``truncated`` in ``errors``, as one that was damaged.

    Example, with ``calls`` of ``bronze.rpc_calls``::

        answer = decode_stub(
            "response_stub", "interface_name", "opnum", lit("response"), "transfer_syntax", "response_byte_order"
        )
        sections = [answer["section_types"], answer["section_bytes"], answer["section_allocated_bytes"]]
        calls.where("interface_name = 'RemoteRead' AND outcome = 'ok'").select(
            decode_message(answer["packet"], "interface_name", *sections).alias("message")
        )
    """
    return _call("decode_message", packet, seen_in, *sections)


def decode_comqc_body(body: ColumnOrName, *body_bytes: ColumnOrName) -> Column:
    """Decode message bodies of COM+ queued components: a struct with ``calls``, an array of the recorded method calls.

    ``body``: binary, as ``silver.messages.body``. ``body_bytes``: also its declared size, where only a part may have
    been seen. An element of ``calls`` has the columns of ``silver.comqc_calls`` that a body gives. A body that servers
    must reject ([MC-COMQC] 3.1.5), such as one of another application, has ``comqc_rejected``, ``rejected_offset``
    (bytes from its start), and no calls.

    Example, with ``messages`` of ``silver.messages``::

        messages.where("is_comqc").select(decode_comqc_body("body", "body_bytes").alias("recorded"))
    """
    return _call("decode_comqc_body", body, *body_bytes)


def decode_management_answer(
    request_stub: ColumnOrName,
    response_stub: ColumnOrName,
    transfer_syntax: ColumnOrName,
    byte_order: ColumnOrName,
    *response_byte_order: ColumnOrName,
) -> Column:
    """Decode R_QMMgmtGetInfo calls: a struct with ``properties``, an array of what the queue manager answered.

    The columns are those of ``bronze.rpc_calls``, of calls that are not encrypted; without ``response_byte_order`` both
    halves have one. An element of ``properties`` has the columns of ``silver.properties`` that a property has. It is
    null without a response ([MS-MQMR] 3.1.4.1).

    Example, with ``calls`` of ``bronze.rpc_calls``::

        calls.where("interface_name = 'qmmgmt' AND opnum = 0 AND outcome = 'ok'").select(
            decode_management_answer("request_stub", "response_stub", "transfer_syntax", "byte_order").alias("answer")
        )
    """
    return _call(
        "decode_management_answer", request_stub, response_stub, transfer_syntax, byte_order, *response_byte_order
    )


def decode_stub(
    stub: ColumnOrName,
    interface_name: ColumnOrName,
    opnum: ColumnOrName,
    direction: ColumnOrName,
    transfer_syntax: ColumnOrName,
    byte_order: ColumnOrName,
) -> Column:
    """Decode stubs of any methods: a struct with the parameters, by the columns of the silver tables of calls.

    ``direction``: ``request`` or ``response``. The others are columns of ``bronze.rpc_calls``, of calls that are not
    encrypted: ``transfer_syntax`` ``NDR``, ``NDR64`` or null if it is not known, ``byte_order`` ``little`` or ``big``.
    Parameters that the method does not have are null. ``management_action`` is that of R_QMMgmtAction, ``values`` are
    what R_QMMgmtGetInfo returned, ``packet`` is the message that a Start brought. A method or column that is not known
    is ``unsupported`` in ``errors``.

    Example, with ``calls`` of ``bronze.rpc_calls``::

        calls.where("outcome = 'ok'").select(
            decode_stub("request_stub", "interface_name", "opnum", lit("request"), "transfer_syntax", "byte_order")
            .alias("request")
        )
    """
    return _call("decode_stub", stub, interface_name, opnum, direction, transfer_syntax, byte_order)


def normalize_queue_name(name: ColumnOrName) -> Column:
    """Return the normal form of queue names of any kind: the text that identifies a queue in the tables.

    Example, with ``calls`` of ``silver.remote_read_calls``::

        calls.select(normalize_queue_name("queue_format_name").alias("queue"))
    """
    return _call("normalize_queue_name", name)


def register_functions(spark: SparkSession) -> None:
    """Register all functions with a session, for SQL: ``SELECT decode_message(packet, 'qm2qm').label``."""
    for name in _FUNCTIONS:
        spark.udf.register(name, _function(name))


def _call(name: str, *columns: ColumnOrName) -> Column:
    return _function(name)(*columns)


def _function(name: str) -> UserDefinedFunctionLike:
    """Return a function; it is made when it is needed, and known whether the session is a Spark Connect one."""
    decode, returned = _FUNCTIONS[name]
    made: UserDefinedFunctionLike = arrow_udf(decode, returned)  # type: ignore[call-overload]  # it takes structs too
    return made


def _decode_messages(packets: pa.Array, protocols: pa.Array, *sections: pa.Array) -> pa.Array:
    known = pc.is_in(protocols, pa.array(PROTOCOLS))
    readable = pc.if_else(known, packets, pa.scalar(None, packets.type))
    lists = dict(zip(SECTION_TYPES, sections, strict=True)) if sections else {}
    columns = decode_messages(
        readable, pc.if_else(known, protocols, PROTOCOL_QM2QM), bodies=True, application=KeptColumns(), **lists
    )
    errors = columns["errors"].to_pylist()
    for row in pc.indices_nonzero(pc.and_not(packets.is_valid(), known)).to_pylist():
        errors[row] = [{"code": UNSUPPORTED, "field": "seen_in", "offset": 0}]
    columns["errors"] = pa.array(errors, ERRORS)
    columns.setdefault("body", pa.nulls(len(packets), pa.binary()))  # no packet has one
    return pa.StructArray.from_arrays([columns[name] for name in _MESSAGE.names], names=_MESSAGE.names)


def _decode_comqc_bodies(bodies: pa.Array, *body_bytes: pa.Array) -> pa.Array:
    return decode_bodies(bodies, None, *body_bytes, marshaled=True).to_struct_array()


def _decode_management_answers(
    requests: pa.Array, responses: pa.Array, syntaxes: pa.Array, orders: pa.Array, *response_orders: pa.Array
) -> pa.Array:
    (of_response,) = response_orders or (orders,)
    return decode_management_answers(requests, responses, syntaxes, orders, of_response).to_struct_array()


def _decode_stubs(
    stubs: pa.Array, interfaces: pa.Array, opnums: pa.Array, directions: pa.Array, syntaxes: pa.Array, orders: pa.Array
) -> pa.Array:
    return decode_mixed_stubs(stubs, interfaces, opnums, directions, syntaxes, orders).to_struct_array()


def _struct_type(schema: pa.Schema, *tables: Table) -> StructType:
    """Return the Spark type of a struct; columns of the tables are of the types that these declare."""
    declared = {name: table.column(name).type for table in reversed(tables) for name in table.names}
    return from_arrow_schema(pa.schema([(field.name, declared.get(field.name, field.type)) for field in schema]))


_MESSAGE_COLUMNS: Final = {"body": pa.nulls(0, pa.binary())} | decode_messages(
    pa.nulls(0, pa.binary()), PROTOCOL_QM2QM, application=KeptColumns()
)
_MESSAGE: Final = _struct_type(pa.schema({name: array.type for name, array in _MESSAGE_COLUMNS.items()}), MESSAGES)
_FUNCTIONS: Final[Mapping[str, tuple[Callable[..., pa.Array], DataType]]] = {
    "decode_message": (_decode_messages, _MESSAGE),
    "decode_comqc_body": (_decode_comqc_bodies, _struct_type(BODY_SCHEMA, MESSAGES)),
    "decode_management_answer": (_decode_management_answers, _struct_type(ANSWERS_SCHEMA, MANAGEMENT_CALLS)),
    "normalize_queue_name": (normalize_queue_names, StringType()),
    "decode_stub": (_decode_stubs, _struct_type(PARAMETERS_SCHEMA, REMOTE_READ_CALLS, CLIENT_CALLS, MANAGEMENT_CALLS)),
}
