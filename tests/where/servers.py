"""Spark servers on this machine: a standalone cluster with a master and two workers, and a Spark Connect server.

They are separate processes, started from pip's PySpark. The workers of the cluster run in other folders. Their Python
has the required packages, but nothing of the project is on their path.
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

from jobs.session import JAVA_CLASS_ARCHIVE, delta_jars

SPARK_HOME = Path(pyspark.__file__).parent
LOCALHOST = "127.0.0.1"
_MAX_WAIT_S = 240.0
# For Java that does not run for long: options, and the class path for which set-up has made an archive of classes.
QUICK_JAVA = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:SharedArchiveFile={JAVA_CLASS_ARCHIVE} -Xlog:cds*=off"
CLASS_PATH = os.pathsep.join(map(str, delta_jars()))


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment without Spark variables, with this Python for the workers."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_", "PYTHON"))}
    path = f"{Path(sys.executable).parent}:{own['PATH']}"
    spark = {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": LOCALHOST, "SPARK_NO_DAEMONIZE": "1"}
    return {**own, "PATH": path, **spark, "PYSPARK_PYTHON": sys.executable, **more}


def made_by(project: Path, tool: str, path: Path) -> Path:
    """Let a tool of the project write a file; return its path."""
    made = [sys.executable, f"tools/{tool}.py", str(path)]
    subprocess.run(made, cwd=project, env=environment(PYTHONPATH=str(project)), check=True, capture_output=True)
    return path


def free_port() -> int:
    """Return a TCP port that is free now."""
    with socket.socket() as probe:
        probe.bind((LOCALHOST, 0))
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


def _wait_until(what: str, condition, running: subprocess.Popen, log: Path) -> None:
    until = time.monotonic() + _MAX_WAIT_S
    while not condition():
        assert running.poll() is None, f"{what} has ended:\n{log.read_text()[-4000:]}"
        assert time.monotonic() < until, f"no {what} after {_MAX_WAIT_S:.0f} s:\n{log.read_text()[-4000:]}"
        time.sleep(0.2)


def _port_is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((LOCALHOST, port)) == 0


@contextmanager
def cluster(folder: Path, **more: str) -> Iterator[str]:
    """Run a master and two workers with one core and 1 GB each; yield the master's URL.

    ``more`` are environment variables of all three.
    """
    port, spark_class = free_port(), str(SPARK_HOME / "bin" / "spark-class")
    url, deploy = f"spark://{LOCALHOST}:{port}", "org.apache.spark.deploy"
    small = {
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA,
        "SPARK_DAEMON_CLASSPATH": CLASS_PATH,
        **more,
    }
    with ExitStack() as stack:
        log = folder / "master.log"
        folder.mkdir(parents=True, exist_ok=True)
        listen = ["--host", LOCALHOST, "--port", str(port), "--webui-port", "0"]
        master = stack.enter_context(_process([spark_class, f"{deploy}.master.Master", *listen], folder, log, **small))
        _wait_until("master", lambda: _port_is_open(port), master, log)
        for number in (1, 2):
            own = folder / f"worker{number}"
            size = ["--cores", "1", "--memory", "1g", "--work-dir", str(own), "--webui-port", "0"]
            command = [spark_class, f"{deploy}.worker.Worker", "--host", LOCALHOST, *size, url]
            log = folder / f"worker{number}.log"
            worker = stack.enter_context(_process(command, own, log, **small))
            _wait_until("worker", lambda log=log: "Successfully registered with master" in log.read_text(), worker, log)
        yield url


@contextmanager
def connect_server(folder: Path, properties: Path, *settings: str, **more: str) -> Iterator[str]:
    """Run a Spark Connect server with two cores and yield its URL. Nothing of the project is on its path."""
    port, log = free_port(), folder / "connect.log"
    folder.mkdir(parents=True, exist_ok=True)
    bound = [f"spark.connect.grpc.binding.port={port}", f"spark.connect.grpc.binding.address={LOCALHOST}", *settings]
    command = [
        str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2]", "--properties-file", str(properties),
        *(word for each in bound for word in ("--conf", each)),
        "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal",
    ]  # fmt: skip
    with _process(command, folder, log, **more) as running:
        _wait_until("Connect server", lambda: _port_is_open(port), running, log)
        yield f"sc://{LOCALHOST}:{port}"
