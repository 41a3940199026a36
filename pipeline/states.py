"""What silver and gold tell of queues, in one form of rows, and the rows of gold that are made of it.

``told`` is a frame of everything that histories and transfers are made of, ``named`` gives its rows their queue
managers and canonical queues, ``history_rows``, ``transfer_rows`` and ``source_rows`` make gold's of them, whatever
queues they hold: here or in a task of Spark. Times are microseconds since the epoch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from pipeline import eod, eod_sources, queue_history
from pipeline.lake import Lake
from pipeline.machines import Machines
from pipeline.queue_history import Cut, Event
from pipeline.rows import day_of, microseconds, us
from pipeline.rows import table_of as as_arrow
from pipeline.touched import only
from schemas.ack_sequences import QUEUE_OPERATIONS
from schemas.calls import MANAGEMENT_CALLS
from schemas.gold import RECEIVE_ATTEMPTS
from schemas.properties import QUEUE_SNAPSHOTS
from schemas.table import EVENT_DATE, RUN_ID, Table
from udfs.codes import MQ_OK
from udfs.keys import key
from udfs.queues.aliases import canonical_text
from udfs.queues.normal_form import normal_text

Row = dict[str, Any]
Place = tuple[str | None, str]  # queue manager, queue
Series = tuple[str | None, str, str | None]  # and format name

_VALUES: Final = {  # of the history, by the properties that report them
    "state": "state",
    "message_count": "message_count",
    "bytes": "bytes_in_queue",
    "journal_count": "journal_message_count",
    "journal_bytes": "bytes_in_journal",
}
_SEQUENCES: Final = ("eod_last_ack", "eod_first_non_ack", "eod_last_non_ack", "eod_next_seq")
_PLAIN: Final = (
    "location", "xact", *_VALUES.values(), "eod_last_ack_count", "eod_no_read_count", "eod_no_ack_count",
    "eod_resend_count", "eod_resend_interval",
)  # fmt: skip
_EVENT: Final = "struct<code:string,field:string,offset:bigint>"


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that gold's states rest on; ``declared`` are the collector's machines, names by address."""

    max_gap: timedelta = timedelta(minutes=15)
    resend_rise: int = 1
    ladder: tuple[timedelta, ...] = tuple(timedelta(seconds=each) for each in eod.LADDER_S)
    cleanup: timedelta = timedelta(minutes=5)
    declared: Mapping[str, str] = field(default_factory=dict)

    @property
    def gap_us(self) -> int:
        """How long an observation holds, microseconds."""
        return us(self.max_gap)

    def said(self) -> dict[str, Any]:
        """Return them as a commit tells what rows are made of."""
        return {
            "max_gap_us": self.gap_us,
            "resend_rise": self.resend_rise,
            "ladder_s": [each.total_seconds() for each in self.ladder],
            "cleanup_us": us(self.cleanup),
            "machines": dict(sorted(self.declared.items())),
        }


@dataclass(frozen=True, slots=True)
class Names:
    """What queues and queue managers are called in gold."""

    machines: Machines
    texts: Mapping[str, str]  # the canonical text of each normal form

    def queue(self, text: str | None) -> str | None:
        """Return the canonical text of a normal form."""
        return canonical_text(text, self.texts)


def told(
    lake: Lake,
    settings: Settings,
    *,
    raw: Collection[str] | None = None,
    queues: Collection[str] = (),
    since: int = 0,
    attempts_since: int = 0,
) -> DataFrame:
    """Return everything that is told of queues since some times: of all, or of the normal forms ``raw``.

    ``queues`` are the canonical texts of those, by which gold's own tables are asked.
    """
    frames = [
        _snapshots(_of(lake.read(QUEUE_SNAPSHOTS), raw, "queue"), since),
        attempts_told(
            _of(lake.read(RECEIVE_ATTEMPTS), None if raw is None else queues, "queue"), settings, attempts_since
        ),
        _actions(_of(lake.read(MANAGEMENT_CALLS), raw, "queue"), since),
        *_operations(lake.read(QUEUE_OPERATIONS), None if raw is None else queues, since),
    ]
    out = frames[0]
    for frame in frames[1:]:
        out = out.unionByName(frame, allowMissingColumns=True)
    return out


def _of(rows: DataFrame, values: Collection[str] | None, column: str) -> DataFrame:
    return rows if values is None else only(rows, column, values)


def _since(at: int, *columns: str) -> Column:
    """Tell of rows that one of their times is not before another; files that hold none are not read."""
    condition = F.lit(False)  # noqa: FBT003
    for column in columns:
        condition |= F.col(column) >= F.timestamp_micros(F.lit(at))
    return condition


def _snapshots(rows: DataFrame, since: int) -> DataFrame:
    """Return successful snapshots; a failed one is no evidence."""
    source = F.transform(
        "eod_source_info",
        lambda each: F.struct(
            each["sender_format_name"].alias("sender_format_name"),
            each["sender_queue_manager"].alias("sender_queue_manager"),
            each["sequence_id"].alias("sequence_id"),
            each["last_number"].alias("last_number"),
            F.unix_micros(each["last_access_at"]).alias("last_access_at"),
            each["reject_count"].alias("reject_count"),
        ),
    )
    snapshot = F.struct(
        *_PLAIN, *_SEQUENCES, source.alias("eod_source_info"),
        *(F.unix_micros(name).alias(name) for name in ("eod_last_ack_time", "eod_resend_time")),
        F.map_filter("property_states", lambda name, _: name.isin(*_VALUES.values())).alias("property_states"),
    )  # fmt: skip
    good = rows.where("hresult = 0 AND queue IS NOT NULL AND observed_at IS NOT NULL").where(
        _since(since, "observed_at")
    )
    return good.select(
        F.lit("snapshot").alias("kind"),
        "queue_manager",
        "queue",
        F.unix_micros("observed_at").alias("at"),
        F.col("snapshot_id").alias("key"),
        F.col("queue_format_name").alias("name"),
        "source",
        F.lit(None).cast("bigint").alias("held_since"),
        F.array().cast("array<string>").alias("missing"),
        F.coalesce("errors", F.array().cast(f"array<{_EVENT}>")).alias("errors"),
        snapshot.alias("snapshot"),
    )


def attempts_told(rows: DataFrame, settings: Settings, since: int) -> DataFrame:
    """Return what attempts did to their queues, and those of which that is not known."""
    outcome, ended, returned = F.col("outcome"), F.unix_micros("ended_at"), F.unix_micros("returned_at")
    began = F.coalesce(returned, F.unix_micros("started_at"))
    given_back = outcome.isin("nacked", "rundown", "expired")
    taken = (outcome == "acked") & ended.isNotNull()
    kind = (
        F.when(taken, "received")
        .when(outcome == "peeked", "peeked")
        .when(given_back, "nacked")
        .when(outcome.isin("acked", "rejected", "unknown"), "doubt")
        .when((outcome == "in_flight") & returned.isNotNull(), "doubt")
    )
    expired = F.when(outcome == "expired", returned + F.lit(us(settings.cleanup)))
    at = (
        F.when(taken, ended)
        .when(given_back, F.coalesce(ended, expired, began))
        .when(outcome == "rejected", F.coalesce(ended, began))
        .otherwise(began)
    )
    # A message that expired counts later than any of the row's times says.
    wide = max(since - us(settings.cleanup), 0)
    known = rows.where("queue IS NOT NULL AND (is_receive IS NULL OR is_receive OR outcome = 'peeked')")
    known = known.where(_since(wide, "started_at", "returned_at", "ended_at"))
    found = known.select(
        kind.alias("kind"),
        F.col("server_address").alias("queue_manager"),
        "queue",
        at.alias("at"),
        F.element_at("evidence", -1).alias("key"),
        F.lit(None).cast("string").alias("name"),
        F.lit("wire").alias("source"),
        returned.alias("held_since"),
        "missing",
        F.array().cast(f"array<{_EVENT}>").alias("errors"),
    )
    return found.where(f"kind IS NOT NULL AND at IS NOT NULL AND at >= {since}")


def is_action(calls: DataFrame) -> Column:
    """Tell of the calls of silver.management_calls which pause or resume a queue ([MS-MQMR] 3.1.4.2)."""
    return (calls["object_type"] == "queue") & F.upper(calls["action"]).isin("PAUSE", "RESUME")


def _actions(calls: DataFrame, since: int) -> DataFrame:
    """Return pauses and resumes; in doubt is what was not answered, or cannot be read."""
    done = calls.where(is_action(calls)).where(_since(since, "responded_at", "requested_at"))
    done = done.where("queue IS NOT NULL").where(F.col("hresult").isNull() | (F.col("hresult") == MQ_OK))
    codes = {
        "decode_error": F.size("errors") > 0,
        "no_request": F.col("requested_at").isNull(),
        "no_response": F.col("responded_at").isNull(),
    }
    missing = F.array_compact(F.array(*(F.when(holds, F.lit(code)) for code, holds in codes.items())))
    kind = F.when(F.col("hresult").isNull(), "doubt").otherwise(F.lower("action"))
    return _done(done, kind, "queue", missing)


def _operations(rows: DataFrame, queues: Collection[str] | None, since: int) -> list[DataFrame]:
    """Return purges, and of moves both ends; in doubt is what was not answered, or cannot be read."""
    recent = rows.where(_since(since, "responded_at", "requested_at")).where("outcome <> 'failed'")
    ends = []
    for column, moved in (("queue", "moved_out"), ("target_queue", "moved_in")):
        kind = F.when(F.col("outcome") == "unknown", "doubt").when(F.col("operation") == "move", moved)
        found = _of(recent, queues, column).where(f"{column} IS NOT NULL")
        ends.append(_done(found, kind.otherwise(F.col("operation")), column, F.col("missing")))
    return ends


def _done(rows: DataFrame, kind: Column, queue: str, missing: Column) -> DataFrame:
    """Return calls that did something to a queue: from their answer on it counts."""
    return rows.select(
        kind.alias("kind"),
        F.col("server_address").alias("queue_manager"),
        F.col(queue).alias("queue"),
        F.unix_micros(F.coalesce("responded_at", "requested_at")).alias("at"),
        F.col("call_key").alias("key"),
        F.col("queue_format_name").alias("name"),
        F.lit(queue_history.OPERATIONS).alias("source"),
        F.lit(None).cast("bigint").alias("held_since"),
        missing.alias("missing"),
        F.coalesce("errors", F.array().cast(f"array<{_EVENT}>")).alias("errors"),
    ).where("at IS NOT NULL")


def named(rows: Iterable[Mapping[str, Any]], names: Names) -> list[Row]:
    """Return rows of ``told`` with the queue managers and queues that gold knows them by."""
    out = []
    for row in rows:
        found = dict(row)
        found["queue_manager"] = names.machines.name(row["source"], row["queue_manager"])
        found["queue"] = names.queue(row["queue"])
        out.append(found)
    return out


def events(rows: Iterable[Mapping[str, Any]]) -> dict[Place, list[Event]]:
    """Return the events of each queue at each queue manager."""
    found: defaultdict[Place, list[Event]] = defaultdict(list)
    for row in rows:
        found[row["queue_manager"], row["queue"]].append(
            Event(
                at=row["at"],
                kind=row["kind"],
                key=row["key"],
                name=row["name"],
                source=row["source"],
                values=_values(row["snapshot"]) if row["kind"] == "snapshot" else {},
                held_since=row["held_since"],
                missing=tuple(row["missing"] or ()),
                errors=tuple(row["errors"] or ()),
            )
        )
    return found


def _values(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that a snapshot reports, None those that were not available."""
    states = dict(snapshot["property_states"] or {})
    found = {name: snapshot[column] for name, column in _VALUES.items() if column in states}
    if found.get("state") is not None:
        found["state"] = found["state"].upper()
    return found


def history_rows(
    rows: Iterable[Mapping[str, Any]], settings: Settings, taken_up: Mapping[Series, Cut] | None = None
) -> list[Row]:
    """Return the rows of gold.queue_history that rows of ``told``, named, give; from where each is taken up."""
    by_place = events(rows)
    cuts: defaultdict[Place, dict[str | None, Cut]] = defaultdict(dict)
    for (manager, queue, name), cut in (taken_up or {}).items():
        cuts[manager, queue][name] = cut
        by_place.setdefault((manager, queue), [])
    out = []
    for (manager, queue), found in by_place.items():
        for name, intervals in queue_history.histories(found, settings.gap_us, cuts.get((manager, queue))).items():
            place = {"queue_manager": manager, "queue": queue, "queue_format_name": name}
            out += [
                {"interval_key": key(manager, queue, name, each["valid_from"]), **place, **each} for each in intervals
            ]
    return out


def observations(rows: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Return the snapshots among rows of ``told``, as exactly-once delivery takes them."""
    return [
        {
            **row["snapshot"],
            **{name: row[name] for name in ("queue_manager", "queue", "source", "errors")},
            "queue_format_name": row["name"],
            "snapshot_id": row["key"],
            "observed_at": row["at"],
        }
        for row in rows
        if row["kind"] == "snapshot"
    ]


def transfer_rows(
    rows: Iterable[Mapping[str, Any]], settings: Settings, earlier: Iterable[Mapping[str, Any]] = ()
) -> list[Row]:
    """Return the rows of gold.eod_transfers that ``observations`` give, after earlier ones of the table."""
    ladder = [each.total_seconds() for each in settings.ladder]
    return eod.transfers(rows, earlier, resend_rise=settings.resend_rise, ladder_s=ladder, max_gap=settings.gap_us)


def with_senders(rows: Iterable[Mapping[str, Any]], names: Names) -> list[Row]:
    """Return those of ``observations`` that tell of incoming sequences, each with its sender's queue."""
    out = []
    for row in rows:
        found = [
            {**each, "sequence_id": int(each["sequence_id"]), "sender_queue": sender_queue(each, names)}
            for each in row["eod_source_info"] or ()
        ]
        if found:
            out.append({**row, "eod_source_info": found})
    return out


def sender_queue(told: Mapping[str, Any], names: Names) -> str | None:
    """Return the queue of an incoming sequence as its sender knows it."""
    return names.queue(normal_text(told["sender_format_name"]))


def source_rows(
    rows: Iterable[Mapping[str, Any]], senders: Iterable[Mapping[str, Any]], names: Names, settings: Settings
) -> list[Row]:
    """Return the rows of gold.eod_sources that ``with_senders`` gives, against senders' rows of gold.eod_transfers."""
    found = eod_sources.sources(rows, eod_sources.Senders(senders), names.machines.managers, max_gap=settings.gap_us)
    for row in found:
        row["source_key"] = key(row["snapshot_id"], row.pop("place"))
    return found


def table_of(table: Table, rows: Iterable[Mapping[str, Any]], run_id: str) -> pa.Table:
    """Return rows as a table of gold; times come as microseconds since the epoch."""
    whole = [{**row, EVENT_DATE: day_of(*(row[name] for name in table.dated_by)), RUN_ID: run_id} for row in rows]
    return as_arrow(whole, to_arrow_schema(table.struct()))


def rows_of(table: pa.Table) -> list[Row]:
    """Return a table of gold as such rows: the other way round."""
    for place, each in enumerate(table.schema):
        if pa.types.is_timestamp(each.type):
            table = table.set_column(place, each.name, microseconds(table.column(place)))
    rows: list[Row] = table.to_pylist()
    for row in rows:
        if row.get("sequence_id") is not None:
            row["sequence_id"] = int(row["sequence_id"])
    return rows
