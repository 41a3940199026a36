"""``python worker.py LAKE JOURNAL RUN ROUNDS HOLD_S``: take the lease again and again, and tell when it is held."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from pipeline.lake.lease import hold_lease


def main(lake: str, journal: str, run: str, rounds: str, hold_s: str) -> None:
    out = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for _ in range(int(rounds)):
        with hold_lease(lake, run, wait_s=120, say=lambda _: None, beat_s=0.1, stale_s=60, poll_s=0.002) as held:
            os.write(out, f"enter {run}\n".encode())
            if float(hold_s) < 0:
                subprocess.Popen(["sleep", str(-float(hold_s))])  # as a JVM that goes on when its driver is killed
                time.sleep(0.3)  # a beat tells of it
                os.write(out, f"child {run}\n".encode())
            time.sleep(abs(float(hold_s)))
            held.check()
            os.write(out, f"leave {run}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
