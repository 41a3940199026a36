"""Queries and small commits run concurrently, by threads: most of the time of a small one is planning on one thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

_MAX_THREADS: Final = 5  # the tables of bronze without its ledger

Result = TypeVar("Result")
TaskName = TypeVar("TaskName")


def run_concurrently(
    questions: Mapping[TaskName, Callable[[], Result]], *, at_once: int = _MAX_THREADS
) -> dict[TaskName, Result]:
    """Call functions in threads, ``at_once`` of them, and return each result by its name.

    All share the settings of the session.
    """
    if len(questions) < 2:
        return {name: ask() for name, ask in questions.items()}
    with ThreadPoolExecutor(at_once) as pool:
        asked = {name: pool.submit(ask) for name, ask in questions.items()}
        return {name: answer.result() for name, answer in asked.items()}
