"""What every kind of target has: the requests that tell it, in one call, what has changed. No Spark."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Final

from pipeline.notices.notice import FORM_VERSION, Notice
from pipeline.text import format_count
from udfs.keys import key

MAX_NOTICES: Final = 20  # in one call; more are one summary
SUMMARY: Final = "summary"
SUMMARY_KEY: Final = key(SUMMARY)


class NotDeliveredError(Exception):
    """A request failed. The message is for logs: it holds nothing of the target's address or key.

    ``is_down``: others would fail too.
    """

    def __init__(self, message: str, *, is_down: bool) -> None:
        super().__init__(message)
        self.is_down = is_down


@dataclass(frozen=True, slots=True)
class Call:
    """What a target gets in one call: what it is told, what is open now, and what was before, by notice key."""

    to_send: Sequence[Notice]
    open: Sequence[Notice]
    before: Mapping[str, Notice]
    now: datetime


@dataclass(frozen=True, slots=True)
class NoticeRequest:
    """One request: the keys of the notices that it tells, and the function that sends it within so many seconds.

    The function raises ``NotDeliveredError``.
    """

    notice_keys: frozenset[str]
    send: Callable[[float], None]


@dataclass(frozen=True)
class Target(ABC):
    """Where notices go. Its ``name`` stands in logs and in the lake, its address and its keys do not.

    ``is_reminded``: whether it is told again of what is still there.
    """

    is_reminded: ClassVar[bool] = True
    name: str

    @abstractmethod
    def requests(self, call: Call) -> Iterator[NoticeRequest]:
        """Yield what is to be sent."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Many notices in one."""

    notices: Sequence[Notice]

    @property
    def severity(self) -> str:
        """The worst severity of the notices."""
        return max(self.notices, key=lambda notice: notice.rank).severity

    @property
    def title(self) -> str:
        """One line: how many notices, and of what."""
        counts = Counter(notice.action for notice in self.notices)
        return f"{format_count(len(self.notices), 'notice')}: " + ", ".join(f"{n} {each}" for each, n in counts.items())

    @property
    def lines(self) -> list[str]:
        """The titles of the worst notices, and how many more there are."""
        worst = sorted(self.notices, key=lambda notice: -notice.rank)
        more = len(worst) - MAX_NOTICES
        return [notice.title for notice in worst[:MAX_NOTICES]] + [f"and {more} more: msmq alerts lists them"]

    def body(self) -> dict[str, Any]:
        """Return it as JSON: docs/reference/notice.schema.json."""
        said = {"version": FORM_VERSION, "action": SUMMARY, "notice_key": SUMMARY_KEY, "severity": self.severity}
        return {**said, "message": self.title, "notices": [notice.body() for notice in self.notices]}


def single_or_summary(notices: Sequence[Notice]) -> list[Notice | Summary]:
    """Return notices as they are, or one summary of too many."""
    return [*notices] if len(notices) <= MAX_NOTICES else [Summary(notices)]


def keys_of(message: Notice | Summary) -> frozenset[str]:
    """Return the keys of the notices that one or a summary tells."""
    return frozenset(each.notice_key for each in (message.notices if isinstance(message, Summary) else (message,)))
