"""Headless Chromium for tests of pages, driven by the DevTools protocol over a pair of pipes."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "headless_shell", "chrome")
_LONGEST_S = 120.0

# The address changes at once; the page is drawn from it by a later event.
_IS_DRAWN = (
    "typeof STATE !== 'undefined' && JSON.stringify(STATE) === JSON.stringify(parseAddress())"
    " && document.querySelector('main h1') !== null"
)


def find_browser():
    """The name of a browser on the path; None if there is none."""
    return next((name for name in NAMES if shutil.which(name)), None)


class BrowserError(AssertionError):
    """The browser refused a command, or a script in the page threw."""


class Browser:
    """One page in a browser. ``console_errors`` are exceptions, policy violations and warnings of its console.

    ``page`` is the file from which the browser loads what it opens.
    """

    def __init__(self, process, commands, answers, page):
        self._process, self._commands, self._answers, self._page = process, commands, answers, page
        self._number, self._rest, self._session = 0, b"", None
        self.console_errors, self.requests = [], []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method, **params):
        """Send a command and return its result; events that come before it are recorded."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + _LONGEST_S
        while time.monotonic() < deadline:
            answer = self._read_message()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']}")
                return answer["result"]
            self._record(answer)
        raise BrowserError(f"{method}: no answer")

    def _read_message(self):
        while b"\0" not in self._rest:
            part = os.read(self._answers, 1 << 20)
            if not part:
                raise BrowserError("the browser has ended")
            self._rest += part
        message, self._rest = self._rest.split(b"\0", 1)
        return json.loads(message)

    def _record(self, event):
        params = event.get("params", {})
        if event.get("method") == "Log.entryAdded":
            self.console_errors.append(params["entry"]["text"])
        if event.get("method") == "Runtime.exceptionThrown":
            self.console_errors.append(str(params["exceptionDetails"].get("exception", params)))
        if event.get("method") == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.console_errors.append(" ".join(str(each.get("value", each)) for each in params["args"]))
        if event.get("method") == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def run(self, script):
        """The value of an expression in the page."""
        found = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise BrowserError(str(found["exceptionDetails"]))
        return found["result"].get("value")

    def wait(self, script):
        """Wait until the page is drawn from its address and an expression is true; return its value."""
        deadline = time.monotonic() + _LONGEST_S
        while time.monotonic() < deadline:
            if value := self.run(f"{_IS_DRAWN} && ({script})"):
                return value
            time.sleep(0.01)
        raise BrowserError(f"not true in time: {script}")

    def open(self, path, address=""):
        """Open a copy of a file and wait until it is drawn.

        All copies have one address: the browser keeps by it what it has compiled of scripts, which takes two seconds.
        """
        self.send("Page.navigate", url="about:blank")
        shutil.copyfile(path, self._page)
        self.send("Page.navigate", url=self._page.as_uri() + address)
        self.wait("document.readyState === 'complete'")

    def go(self, address):
        """Go to an address within the page."""
        self.run(f"go({json.dumps(address)})")
        self.wait(f"location.hash === {json.dumps(address)}")

    def key(self, key):
        """Press a key."""
        text = key if len(key) == 1 else {"Enter": "\r"}.get(key, "")
        codes = {"Enter": 13, "Escape": 27, "ArrowDown": 40, "Tab": 9}
        code = codes.get(key, ord(key.upper()) if len(key) == 1 else 0)
        self.send("Input.dispatchKeyEvent", type="keyDown", key=key, text=text, windowsVirtualKeyCode=code)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    def type(self, selector, text):
        """Type a text into an input, with the events of a person typing."""
        self.run(f"document.querySelector({json.dumps(selector)}).focus(); document.activeElement.value = ''")
        self.send("Input.insertText", text=text)

    def set_display(self, *, width, height, dark=False, mobile=False):
        """Set the window size and the preferred colour scheme."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, path, *, max_height=4000):
        """Write a screenshot of the whole page, at most ``max_height`` pixels high."""
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], max_height), "scale": 1}
        data = self.send("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)["data"]
        Path(path).write_bytes(base64.b64decode(data))


@contextmanager
def chromium(name):
    """Run a browser without network access."""
    # Tests may run as root, where Chromium has no sandbox; the pages are this project's own.
    options = [
        "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--disable-extensions", "--disable-background-networking", "--disable-component-update", "--disable-sync",
        "--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-pipe",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        there, to = os.pipe()
        back, here = os.pipe()

        # The browser reads commands from 3 and writes answers to 4.
        redirect = f'exec "$0" "$@" 3<&{there} 4>&{here}'
        process = subprocess.Popen(
            ["bash", "-c", redirect, name, *options, f"--user-data-dir={profile}"],
            pass_fds=(there, here),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(there)
        os.close(here)
        try:
            yield Browser(process, to, back, Path(profile) / "page.html")
        finally:
            os.close(to)
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            os.close(back)
