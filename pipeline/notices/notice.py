"""A notice: what a target is told of one entry of alerts. No Spark.

Names and texts that come from the wire are escaped and cut here, so that every form of a notice has them so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from pipeline.alerts.entries import AlertRow, Entry
from pipeline.alerts.episodes import SEVERITY_ORDER
from pipeline.text import escape_as_hex, json_default
from udfs.keys import key

BEGAN: Final = "began"
WORSENED: Final = "worsened"
UPDATED: Final = "updated"
REPEATED: Final = "repeated"  # it is still there
ENDED: Final = "ended"
HAPPENED: Final = "happened"  # a single event, which has no end
UNCHANGED: Final = "unchanged"  # nothing is told

WITHDRAWN: Final = "withdrawn"  # later evidence removed the alert
JOINED: Final = "joined"  # another notice tells of it from now on
MUTED: Final = "muted"

FORM_VERSION: Final = 1  # of a notice as JSON: docs/reference/notice.schema.json
_MAX_ALERTS: Final = 20
_MAX_KEYS: Final = 200
_TEXTS: Final = ("subject", "queue", "queue_manager", "from_machine", "to_machine", "cause", "message", "suggestion")


@dataclass(frozen=True, slots=True)
class Notice:
    """What a target is told of an entry, or was told.

    ``notice_key`` stays the same as long as the entry goes on. ``facts`` are JSON values. ``alert_keys`` say of which
    conditions and subjects the entry is made: the leading one first. ``begun_at``: when it was told first, ISO 8601.
    ``joined_to`` is the key of the notice that tells of it from now on.
    """

    notice_key: str
    action: str
    facts: Mapping[str, Any]
    alert_keys: Sequence[str] = ()
    begun_at: str | None = None
    reason: str | None = None
    joined_to: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether the entry is still there."""
        return self.action not in (ENDED, HAPPENED)

    @property
    def severity(self) -> str:
        """The worst severity of the entry."""
        return str(self.facts["severity"])

    @property
    def rank(self) -> int:
        """The severity as a number: the higher, the worse."""
        return SEVERITY_ORDER.index(self.severity)

    def with_action(self, action: str, **fields: Any) -> Notice:  # noqa: ANN401 - fields of this class
        """Return the notice with another action, and other ``fields``."""
        return replace(self, action=action, **fields)

    def body(self) -> dict[str, Any]:
        """Return the notice as JSON: docs/reference/notice.schema.json."""
        said = {"version": FORM_VERSION, "action": self.action, "reason": self.reason, "joined_to": self.joined_to}
        return {**said, "notice_key": self.notice_key, "begun_at": self.begun_at, **self.facts}

    @property
    def title(self) -> str:
        """One line: what happened to what."""
        why = {WITHDRAWN: " (withdrawn)", JOINED: " (now part of another notice)", MUTED: " (muted)"}
        return (
            f"{self.severity} {self.facts['condition']} {self.action}{why.get(self.reason or '', '')}: "
            f"{self.facts['subject']}"
        )

    @property
    def lines(self) -> list[str]:
        """What a person reads below the title: since when, what was observed, what to do, and what follows from it."""
        facts = self.facts
        until = f", ended {facts['until']}" if facts["until"] else ""
        others = [f"also {row['severity']} {row['condition']}: {row['subject']}" for row in facts["alerts"][1:]]
        more = facts["alert_count"] - len(facts["alerts"])
        texts = [
            f"Since {facts['since']}{until}; last seen {facts['last_seen_at']}.",
            facts["message"],
            "" if self.action == ENDED else facts["suggestion"],
            *others,
            f"and {more} more" if more > 0 else "",
            f"Key: {self.notice_key}",
        ]
        return [text for text in texts if text]


def notice_key(row: AlertRow) -> str:
    """Return the key of an alert's condition and subject: the same for all its episodes."""
    return key(row["condition"], row["subject"])


def entry_facts(entry: Entry) -> dict[str, Any]:
    """Return what there is to tell of an entry, as JSON values; texts are escaped."""
    leading = entry.leading
    told = {name: _text(leading.get(name)) for name in _TEXTS}
    return {
        "condition": leading["condition"],
        "severity": entry.severity,
        **told,
        "subject": _text(leading.get("subject_text") or leading["subject"]),
        **episode_facts(leading),
        "confidence": leading.get("confidence"),
        "missing": list(leading.get("missing") or ()),
        "alert_count": len(entry.alerts),
        "alerts": [_alert_facts(row) for row in entry.alerts[:_MAX_ALERTS]],
    }


def episode_facts(row: AlertRow) -> dict[str, Any]:
    """Return since when and until when an alert holds, ISO 8601 in UTC."""
    return {name: _time(row.get(name)) for name in ("since", "until", "last_seen_at")}


def entry_keys(entry: Entry) -> list[str]:
    """Return the keys of condition and subject of an entry's alerts, the leading one first."""
    return [notice_key(row) for row in entry.alerts[:_MAX_KEYS]]


def _alert_facts(row: AlertRow) -> dict[str, Any]:
    names = {name: row[name] for name in ("alert_key", "condition", "severity")}
    return {**names, "subject": _text(row.get("subject_text") or row["subject"]), "since": _time(row["since"])}


def _text(value: object) -> str | None:
    return None if value is None else escape_as_hex(str(value))


def _time(value: datetime | None) -> str | None:
    return None if value is None else str(json_default(value))
