"""Questions to Spark, and small commits, side by side: most of a small one is planning, by one thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

_AT_ONCE: Final = 5  # as many as bronze has tables beside its ledger

Answer = TypeVar("Answer")
Name = TypeVar("Name")


def gather(questions: Mapping[Name, Callable[[], Answer]]) -> dict[Name, Answer]:
    """Return the answer to each question, by its name. They share the session's settings (``settings.having``)."""
    if len(questions) < 2:
        return {name: ask() for name, ask in questions.items()}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        asked = {name: pool.submit(ask) for name, ask in questions.items()}
        return {name: answer.result() for name, answer in asked.items()}
