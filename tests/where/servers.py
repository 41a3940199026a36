"""Spark elsewhere, on this machine: a standalone cluster of a master and two workers, and a Spark Connect server.

Each is processes of their own, started as one starts them where pip's PySpark is all there is. The cluster's workers
work in folders of their own: nothing of the project is on their path, and the packages alone are there.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

HOME = Path(pyspark.__file__).parent
HERE = "127.0.0.1"
_LONGEST_S = 240.0


def environment(**more: str) -> dict[str, str]:
    """This process's environment without what says where Spark is, and that its Python is the workers'."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_", "PYTHON"))}
    path = f"{Path(sys.executable).parent}:{own['PATH']}"
    spark = {"SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": HERE, "SPARK_NO_DAEMONIZE": "1"}
    return {**own, "PATH": path, **spark, "PYSPARK_PYTHON": sys.executable, **more}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HERE, 0))
        return int(probe.getsockname()[1])


@contextmanager
def _process(command: Sequence[str], folder: Path, log: Path, **more: str) -> Iterator[subprocess.Popen]:
    folder.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as out:
        running = subprocess.Popen(command, cwd=folder, env=environment(**more), stdout=out, stderr=subprocess.STDOUT)
        try:
            yield running
        finally:
            running.terminate()
            try:
                running.wait(30)
            except subprocess.TimeoutExpired:
                running.kill()
                running.wait()


def _until(what: str, there, running: subprocess.Popen, log: Path) -> None:
    until = time.monotonic() + _LONGEST_S
    while not there():
        assert running.poll() is None, f"{what} has ended:\n{log.read_text()[-4000:]}"
        assert time.monotonic() < until, f"no {what} after {_LONGEST_S:.0f} s:\n{log.read_text()[-4000:]}"
        time.sleep(0.2)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HERE, port)) == 0


@contextmanager
def cluster(folder: Path, **more: str) -> Iterator[str]:
    """A master and two workers of one core and 1 GB each; the master's URL. ``more`` is the workers' environment."""
    port, spark_class = free_port(), str(HOME / "bin" / "spark-class")
    url, deploy = f"spark://{HERE}:{port}", "org.apache.spark.deploy"
    small = {"SPARK_DAEMON_MEMORY": "256m", **more}
    with ExitStack() as stack:
        log = folder / "master.log"
        folder.mkdir(parents=True, exist_ok=True)
        listen = ["--host", HERE, "--port", str(port), "--webui-port", "0"]
        master = stack.enter_context(_process([spark_class, f"{deploy}.master.Master", *listen], folder, log, **small))
        _until("master", lambda: _answers(port), master, log)
        for number in (1, 2):
            own = folder / f"worker{number}"
            size = ["--cores", "1", "--memory", "1g", "--work-dir", str(own), "--webui-port", "0"]
            command = [spark_class, f"{deploy}.worker.Worker", "--host", HERE, *size, url]
            log = folder / f"worker{number}.log"
            worker = stack.enter_context(_process(command, own, log, **small))
            _until("worker", lambda log=log: "Successfully registered with master" in log.read_text(), worker, log)
        yield url


@contextmanager
def connect_server(folder: Path, properties: Path, *settings: str, **more: str) -> Iterator[str]:
    """A Spark Connect server with two cores; its URL. Nothing of the project is on its path."""
    port, log = free_port(), folder / "connect.log"
    folder.mkdir(parents=True, exist_ok=True)
    bound = [f"spark.connect.grpc.binding.port={port}", f"spark.connect.grpc.binding.address={HERE}", *settings]
    command = [
        str(HOME / "bin" / "spark-submit"), "--master", "local[2]", "--properties-file", str(properties),
        *(word for each in bound for word in ("--conf", each)),
        "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal",
    ]  # fmt: skip
    with _process(command, folder, log, **more) as running:
        _until("Connect server", lambda: _answers(port), running, log)
        yield f"sc://{HERE}:{port}"
