"""PagerDuty, Events API v2: a notice is an event, its key the ``dedup_key``. No Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from pipeline.notices.https_post import Endpoint
from pipeline.notices.notice import ENDED, Notice
from pipeline.notices.target import (
    SUMMARY,
    SUMMARY_KEY,
    Call,
    NoticeRequest,
    Summary,
    Target,
    keys_of,
    single_or_summary,
)
from pipeline.text import cut_text

PAGERDUTY_URL: Final = "https://events.pagerduty.com/v2/enqueue"
_SUMMARY_CHARS: Final = 900  # PagerDuty takes 1,024
_CLIENT: Final = "msmq-lakehouse"


@dataclass(frozen=True)
class PagerDuty(Target):
    """A service of PagerDuty by its integration key."""

    endpoint: Endpoint
    routing_key: str = field(repr=False)

    def requests(self, call: Call) -> Iterator[NoticeRequest]:
        """Yield what resolves incidents, one by one, then what triggers them, or one summary of too many.

        The incident of a summary is resolved when nothing is open any more.
        """
        ended = [notice for notice in call.to_send if notice.action == ENDED]
        for notice in ended:
            yield self._request(frozenset({notice.notice_key}), self._resolve(notice.notice_key))
        if ended and not call.open:
            yield self._request(frozenset(), self._resolve(SUMMARY_KEY))
        for message in single_or_summary([notice for notice in call.to_send if notice.action != ENDED]):
            yield self._request(keys_of(message), self._trigger(message))

    def _request(self, notice_keys: frozenset[str], event: dict[str, Any]) -> NoticeRequest:
        return NoticeRequest(notice_keys, partial(self.endpoint.post, {"routing_key": self.routing_key, **event}))

    @staticmethod
    def _resolve(dedup_key: str) -> dict[str, Any]:
        return {"event_action": "resolve", "dedup_key": dedup_key}

    def _trigger(self, message: Notice | Summary) -> dict[str, Any]:
        payload: dict[str, Any] = {"summary": cut_text(message.title, _SUMMARY_CHARS), "severity": message.severity}
        if isinstance(message, Summary):
            payload |= {"source": _CLIENT, "class": SUMMARY, "custom_details": {"notices": message.lines}}
        else:
            facts = message.facts
            source = facts["queue_manager"] or facts["to_machine"] or facts["from_machine"] or facts["subject"]
            payload |= {
                "source": source,
                "class": facts["condition"],
                "custom_details": message.body(),
                **({"timestamp": facts["since"]} if facts["since"] else {}),
                **({"component": facts["queue"]} if facts["queue"] else {}),
            }
        own_key = SUMMARY_KEY if isinstance(message, Summary) else message.notice_key
        return {"event_action": "trigger", "dedup_key": own_key, "client": _CLIENT, "payload": payload}
