"""Targets that get a notice as JSON: a webhook, and a command on standard input. No Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pipeline.notices.https_post import Endpoint
from pipeline.notices.target import Call, NotDeliveredError, NoticeRequest, Target, keys_of, single_or_summary


@dataclass(frozen=True)
class Webhook(Target):
    """A URL that gets each notice by POST."""

    endpoint: Endpoint

    def requests(self, call: Call) -> Iterator[NoticeRequest]:
        """Yield one request for each notice, or one for all of too many."""
        for message in single_or_summary(call.to_send):
            yield NoticeRequest(keys_of(message), partial(self.endpoint.post, message.body()))


@dataclass(frozen=True)
class Command(Target):
    """A command that is called for each notice, without a shell."""

    arguments: tuple[str, ...] = field(repr=False)

    def requests(self, call: Call) -> Iterator[NoticeRequest]:
        """Yield one request for each notice, or one for all of too many."""
        for message in single_or_summary(call.to_send):
            yield NoticeRequest(keys_of(message), partial(self._call, message.body()))

    def _call(self, body: dict[str, Any], timeout_s: float) -> None:
        """Call the command; NotDeliveredError unless it ends in time with exit code 0. What it prints is not kept."""
        try:
            process = subprocess.Popen(  # noqa: S603 - what the owner of the targets' file says
                self.arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else type(error).__name__
            raise NotDeliveredError(f"the command cannot be started: {why}", is_down=True) from None
        try:
            process.communicate(f"{json.dumps(body)}\n".encode(), timeout=timeout_s)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with all that it has started
            process.wait()
            raise NotDeliveredError("the command did not end in time", is_down=True) from None
        if process.returncode != 0:
            raise NotDeliveredError(f"the command ended with {process.returncode}", is_down=False)
