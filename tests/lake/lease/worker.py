"""``python worker.py LAKE JOURNAL RUN ROUNDS HOLD_S``: take the lease again and again, and tell when it is held.

Who holds it for long starts a child, as a driver does its JVM.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

from pipeline.runs.lease import hold_lease


def main(lake: str, journal: str, run: str, rounds: str, hold_s: str) -> None:
    out = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(out, f"start {run}\n".encode())
    for _ in range(int(rounds)):
        with hold_lease(lake, run, wait_s=120, say=lambda _: None, beat_s=0.1, poll_s=0.01) as held:
            if float(hold_s) > 60:
                subprocess.Popen(["sleep", "30"])
            os.write(out, f"enter {run}\n".encode())
            time.sleep(float(hold_s))
            held.check()
            os.write(out, f"leave {run}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
