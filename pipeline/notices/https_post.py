"""JSON sent by HTTP: certificates are verified, redirects are not followed. No Spark."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final, NoReturn

from pipeline.notices.target import NotDeliveredError

_REFUSED_AGAIN: Final = (408, 425, 429)  # beside 5xx: another request would get the same answer now


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Leaves a redirect the error that it then is."""

    def redirect_request(self, *_: object) -> None:
        return None


@dataclass(frozen=True)
class Endpoint:
    """Where JSON is posted to. ``ca_file``: certificates to trust in place of the system's.

    Address and headers are secrets: neither its text nor its errors hold them.
    """

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    ca_file: Path | None = None

    def post(self, body: object, timeout_s: float) -> None:
        """Post a value as JSON; NotDeliveredError unless the answer is a success."""
        data = json.dumps(body).encode()
        try:
            headers = {"Content-Type": "application/json", "User-Agent": "msmq-lakehouse", **self.headers}
            request = urllib.request.Request(self.url, data, headers, method="POST")  # noqa: S310 - http(s) alone
            with self._opener.open(request, timeout=timeout_s):
                pass
        except urllib.error.HTTPError as error:
            error.close()
            _raise_for_status(error.code)
        except (OSError, http.client.HTTPException) as error:
            raise NotDeliveredError(describe_connection_failure(error), is_down=True) from None

    @cached_property
    def _opener(self) -> urllib.request.OpenerDirector:
        context = ssl.create_default_context(cafile=self.ca_file)
        handlers: list[urllib.request.BaseHandler] = [urllib.request.HTTPSHandler(context=context), _NoRedirects()]
        if not self.url.startswith("https:"):  # on this machine: no proxy of the environment is to see it
            handlers.append(urllib.request.ProxyHandler({}))
        return urllib.request.build_opener(*handlers)


def _raise_for_status(status: int) -> NoReturn:
    how = " (redirects are not followed)" if 300 <= status < 400 else ""
    is_down = status >= 500 or status in _REFUSED_AGAIN
    raise NotDeliveredError(f"it answered with HTTP status {status}{how}", is_down=is_down) from None


def describe_connection_failure(error: BaseException) -> str:
    """Return why a connection failed, without any text that could name the other end."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted (OpenSSL's code {reason.verify_code})"
    if isinstance(reason, TimeoutError):
        return "it did not answer in time"
    if isinstance(reason, OSError) and reason.errno is not None and reason.errno > 0:
        return os.strerror(reason.errno)
    return type(reason).__name__
