"""Chats: Slack's incoming webhooks, and a workflow of Teams that posts an Adaptive Card. Only changes. No Spark.

Texts stand in elements that show them as they are: what looks like markup or a link in a queue's name is neither.
"""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final

from pipeline.notices.https_post import Endpoint
from pipeline.notices.notice import ENDED, Notice
from pipeline.notices.target import Call, NoticeRequest, Summary, Target, keys_of, single_or_summary
from pipeline.text import cut_text

_SECTION_CHARS: Final = 2_900  # Slack takes 3,000
_CARD_CHARS: Final = 20_000  # Teams takes cards of 28 KB
_COLORS: Final = {"error": "attention", "warning": "warning", "info": "accent"}


@dataclass(frozen=True)
class Slack(Target):
    """A channel of Slack by the URL of an incoming webhook."""

    is_reminded: ClassVar[bool] = False
    endpoint: Endpoint

    def requests(self, call: Call) -> Iterator[NoticeRequest]:
        """Yield one request for each notice, or one for all of too many."""
        for message in single_or_summary(call.to_send):
            yield NoticeRequest(keys_of(message), partial(self.endpoint.post, _slack_message(message)))


@dataclass(frozen=True)
class Teams(Target):
    """A channel of Teams by the URL of a workflow ("when a Teams webhook request is received")."""

    is_reminded: ClassVar[bool] = False
    endpoint: Endpoint

    def requests(self, call: Call) -> Iterator[NoticeRequest]:
        """Yield one request for each notice, or one for all of too many."""
        for message in single_or_summary(call.to_send):
            content = {"contentType": "application/vnd.microsoft.card.adaptive", "content": _card(message)}
            yield NoticeRequest(
                keys_of(message), partial(self.endpoint.post, {"type": "message", "attachments": [content]})
            )


def _slack_message(message: Notice | Summary) -> dict[str, Any]:
    return {
        "text": html.escape(message.title, quote=False),
        "blocks": [_section(message.title), _section("\n".join(message.lines))],
    }


def _section(text: str) -> dict[str, Any]:
    shown = {"type": "plain_text", "text": cut_text(text, _SECTION_CHARS), "emoji": False}
    return {"type": "section", "text": shown}


def _card(message: Notice | Summary) -> dict[str, Any]:
    is_over = isinstance(message, Notice) and message.action == ENDED
    title = {"weight": "bolder", "color": "good" if is_over else _COLORS[message.severity]}
    return {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.5",
        "fallbackText": cut_text(message.title),
        "body": [
            _plain(message.title, **title),
            *map(_plain, cut_text("\n".join(message.lines), _CARD_CHARS).split("\n")),
        ],
    }


def _plain(text: str, **style: str) -> dict[str, Any]:
    """Return an element that shows a text without markup."""
    return {"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": text, **style}]}
