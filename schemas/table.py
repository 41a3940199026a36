"""A table is declared once: name, meaning, key and columns, each with its Arrow type, unit and origin.

The declaration makes the Arrow schema, Spark's, the comments in the Delta schema, the DDL, the documentation page and
the frames of tests. It knows Arrow and nothing of ours. PySpark is imported when Spark's types are asked for, and not
before: decoders and commands without Spark import these modules too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType

Layer = Literal["bronze", "silver", "gold"]

STRING = pa.string()
INT = pa.int32()  # 16 bits and less of the wire
BIGINT = pa.int64()  # 32 bits unsigned of the wire, counts, sizes
UINT64 = pa.decimal128(20, 0)  # 64 bits unsigned of the wire
DOUBLE = pa.float64()
BOOLEAN = pa.bool_()
BINARY = pa.binary()
TIMESTAMP = pa.timestamp("us", "UTC")  # floored
DATE = pa.date32()


def list_of(element: pa.DataType) -> pa.ListType:
    """Return the type of lists, whose elements are named as in Delta tables."""
    return pa.list_(pa.field("element", element))


STRINGS = list_of(STRING)
INTS = list_of(INT)
BIGINTS = list_of(BIGINT)
ERRORS = list_of(pa.struct([("code", STRING), ("field", STRING), ("offset", BIGINT)]))


@cache
def _spark_type(kind: pa.DataType) -> DataType:
    from pyspark.sql.pandas.types import from_arrow_type  # noqa: PLC0415 (see above)

    return from_arrow_type(kind)


EVENT_DATE = "event_date"
RUN_ID = "run_id"
INGESTED_AT = "ingested_at"
RUN_COLUMNS = (RUN_ID, INGESTED_AT)
"""The columns that say which run wrote a row, and when."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, its Arrow type, and what it holds, with the unit and where it comes from.

    All columns may be null: a capture can lack anything, and a null that should not be there is a matter for the
    quality rules, not for a failed write.
    """

    name: str
    type: pa.DataType
    comment: str

    @property
    def spark_type(self) -> DataType:
        """Its type in Spark."""
        return _spark_type(self.type)

    @property
    def sql_type(self) -> str:
        """Its type in Spark's SQL."""
        return self.spark_type.simpleString()

    def field(self) -> StructField:
        """This column as a field of a StructType, its comment in the metadata (Delta stores it there)."""
        from pyspark.sql.types import StructField  # noqa: PLC0415

        return StructField(self.name, self.spark_type, nullable=True, metadata={"comment": self.comment})

    def ddl(self) -> str:
        """This column as it stands in CREATE TABLE."""
        return f"{quoted(self.name)} {self.sql_type} COMMENT {literal(self.comment)}"


@dataclass(frozen=True, slots=True)
class Table:
    """One Delta table: ``<layer>/<name>``, what one row is, its key, its columns in order.

    ``event_date_columns`` lists the time columns that give ``event_date``: the UTC date of the first that is not null.
    It is empty for a table without that column. ``looked_up_by`` lists the columns by which a query looks for rows of
    a date, of plain types.
    """

    layer: Layer
    name: str
    comment: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    event_date_columns: tuple[str, ...] = ()
    looked_up_by: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = self.names
        if len(set(names)) != len(names):
            raise ValueError(f"{self}: a column twice")
        if unknown := {*self.key, *self.event_date_columns, *self.looked_up_by} - set(names):
            raise ValueError(f"{self}: no such column: {', '.join(sorted(unknown))}")
        if bool(self.event_date_columns) != (EVENT_DATE in names):
            raise ValueError(f"{self}: {EVENT_DATE} and what it is taken from belong together")

    def __str__(self) -> str:
        return f"{self.layer}.{self.name}"

    def __hash__(self) -> int:
        return hash((self.layer, self.name))  # of all columns takes longer than what is looked up by a table

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names, in order."""
        return tuple(column.name for column in self.columns)

    @property
    def layout(self) -> tuple[str, ...]:
        """The columns by which its files are laid out: rows with near values stand in the same files."""
        return (*((EVENT_DATE,) if self.event_date_columns else ()), *self.looked_up_by)

    def column(self, name: str) -> Column:
        """The column of that name; KeyError when there is none."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(f"{self} has no column {name}")

    def schema(self, *, only: Iterable[str] | None = None, without: tuple[str, ...] = ()) -> pa.Schema:
        """The Arrow schema: of all columns, or ``only`` some, in their order; ``without`` leaves columns out."""
        columns = self.columns if only is None else map(self.column, only)
        return pa.schema([(column.name, column.type) for column in columns if column.name not in without])

    def struct(self, *, without: tuple[str, ...] = ()) -> StructType:
        """The Spark schema, comments in the fields' metadata; ``without`` leaves columns out."""
        from pyspark.sql.types import StructType  # noqa: PLC0415

        return StructType([column.field() for column in self.columns if column.name not in without])

    def columns_ddl(self) -> str:
        """The columns as they stand between the brackets of CREATE TABLE."""
        return ",\n  ".join(column.ddl() for column in self.columns)

    def comment_literal(self) -> str:
        """The table's comment as a SQL literal."""
        return literal(self.comment)


FAULT_NAME = Column(
    "fault_name", STRING, "name of bronze.rpc_calls.fault_status, methods raise HRESULTs too; null without a fault"
)
ENDPOINT_COLUMNS = (
    Column("client_address", STRING, "IP address of the client, as text"),
    Column("client_port", INT, "TCP port of the client"),
    Column("server_address", STRING, "IP address of the server, as text"),
    Column("server_port", INT, "TCP port of the server"),
)

NAMED_QUEUE_MANAGER = Column(
    "queue_manager", STRING, "configured name of the queue manager, if one is known for its address, else the address"
)
CLIENT_IDENTITY = (
    Column(
        "principal",
        STRING,
        "who the client is: as the handshake proves whose key opened the call, else as the NTLM handshake of its "
        "connection claims (bronze.rpc_binds.auth_principal); null where neither shows one",
    ),
    Column("workstation", STRING, "name of its machine that the client claims there; null likewise"),
)
CLOCKS = Column(
    "clocks",
    pa.struct(
        [
            ("request_tap", INT),
            ("request_ahead_us", BIGINT),
            ("response_tap", INT),
            ("response_ahead_us", BIGINT),
        ]
    ),
    "where several taps saw the connection side by side: which of them request and response are of (a number within "
    "the connection), and how far its clock is then ahead of the one that is behind all others, us; in a capture whose "
    "clock was set, a multiple of 1000 is added to the number, another one behind each place, and it is ahead by less, "
    "or behind (negative), behind a place where it was set back and before one where it was set forward; where the "
    "clocks of two taps jump apart, by 1 s or more, a multiple of 1000 is added to the numbers of both behind that "
    "place; else null",
)
"""Times of two taps give no duration. Less what the clocks are ahead, they give the order of events."""
TUNNEL_IDENTIFIER = Column(
    "tunnel_identifier",
    BIGINT,
    "VNI, key, label or session of the tunnel that tells the connection from others with its addresses and ports; null "
    "without one",
)


NOT_ESTABLISHED = Column(
    "not_established",
    STRING,
    "why it was not established: no_answer to the client's SYNs (network or host), reset by the server (service not "
    "running, or a firewall that rejects), answer_not_captured (no packet to the client was captured), too_early to "
    "tell; null where any packet shows more than SYNs and the server's RST",
)


def run_columns(layer: Layer, dated_by: str, clock_of: str = "that run") -> tuple[Column, ...]:
    """The columns that end every fact table of a layer.

    ``dated_by`` says in words where event_date is from, ``clock_of`` when ingested_at was.
    """
    columns: tuple[Column, ...] = (
        Column(EVENT_DATE, DATE, f"UTC date of {dated_by}; files of other dates are not read"),
        Column(RUN_ID, STRING, "run that wrote the row; may differ between two ways of reading the same files"),
    )
    if layer == "bronze":
        columns += (Column(INGESTED_AT, TIMESTAMP, f"clock time of {clock_of}, UTC; may differ like run_id"),)
    return columns


def quoted(name: str) -> str:
    """A name as an identifier of Spark SQL."""
    return f"`{name.replace('`', '``')}`"


def literal(text: str) -> str:
    """A text as a literal of Spark SQL.

    ``$`` is escaped too: Spark replaces ``${...}`` in SQL, also within literals, before it parses it. To be parsed with
    ``spark.sql.parser.escapedStringLiterals`` off. DuckDB spells literals in another way.
    """
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024")
    return f"'{escaped}'"


DECODER_COLUMNS = (
    Column("errors", ERRORS, "what did not decode: code, field, offset in the stub in bytes; empty when all is well"),
    Column("decoder_version", STRING, "version of the decoders that made the row"),
)
