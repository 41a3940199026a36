"""What every test may use: one Spark session, the shared captures, and a list of what could not be run.

A test whose program, right or data is missing is not skipped in silence: it is listed at the end, with the line
that would make it run, and ``--require-tools`` (``make test-all``) makes it a failure.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from jobs.session import ONE_COMPILER, java_settings, session

ROOT = Path(__file__).resolve().parents[1]

# Naive times out of collect() are in the process's zone; rows of tests are written in UTC.
os.environ["TZ"] = "UTC"
time.tzset()

INSTALL = {
    "tshark": "apt-get install tshark (dnf install wireshark-cli)",
    "editcap": "apt-get install wireshark-common (dnf install wireshark-cli)",
    "tcpdump": "apt-get install tcpdump",
    "ip": "apt-get install iproute2",
    "unshare": "apt-get install util-linux",
    "make": "apt-get install make",
    "git": "apt-get install git",
    **dict.fromkeys(("krb5kdc", "kdb5_util"), "apt-get install krb5-kdc (dnf install krb5-server)"),
    "kadmin.local": "apt-get install krb5-admin-server (dnf install krb5-server)",
    "chromium": "apt-get install chromium (dnf install chromium)",
    **dict.fromkeys(("kinit", "kvno"), "apt-get install krb5-user (dnf install krb5-workstation)"),
}
NAMESPACES = "network namespaces"
INSTALL[NAMESPACES] = "run as root, or allow user namespaces (sysctl user.max_user_namespaces)"
CAPTURES = "captures"
INSTALL[CAPTURES] = "set MSMQ_CAPTURES to the folder with the shared captures"

NOT_RUN = (
    "not run"  # a report's property, which reaches the process that prints the summary from whichever ran the test
)


def pytest_addoption(parser):
    group = parser.getgroup("this project")
    group.addoption("--long", action="store_true", help="run the tests marked long too")
    group.addoption("--require-tools", action="store_true", help="a missing program or data set is a failure")


def pytest_collection_modifyitems(config, items):
    items.sort(key=lambda item: item.path.parent.name != "end_to_end")  # the longest first, for both processes to end
    if config.getoption("--long"):
        return
    long = [item for item in items if item.get_closest_marker("long")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    for marker in item.iter_markers("tool"):
        for name in marker.args:
            if shutil.which(name) is None:
                not_run(item, name)
    if item.get_closest_marker("network_namespace") and not network_namespaces():
        not_run(item, NAMESPACES)


def not_run(item: pytest.Item, what: str) -> None:
    """Leave the test out, on the list shown at the end; fail it where everything is required."""
    item.user_properties.append((NOT_RUN, what))
    if item.config.getoption("--require-tools"):
        pytest.fail(f"{what} missing: {INSTALL.get(what, 'install it')}", pytrace=False)
    pytest.skip(f"not run: needs {what}")


@cache
def network_namespaces() -> bool:
    """Whether this user may make a network namespace and bring its loopback up."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return False
    done = subprocess.run(["unshare", "-rn", "ip", "link", "set", "lo", "up"], capture_output=True, check=False)
    return done.returncode == 0


def pytest_terminal_summary(terminalreporter):
    missing = defaultdict(list)
    for report in (
        report for kind in ("skipped", "failed", "error") for report in terminalreporter.stats.get(kind, ())
    ):
        for name, what in getattr(report, "user_properties", ()):
            if name == NOT_RUN:
                missing[what].append(report.nodeid)
    for what, tests in sorted(missing.items()):
        install = INSTALL.get(what, f"install {what}")
        terminalreporter.write_line(f"not run: {len(tests)} for want of {what}; to run: {install}", yellow=True)
        for test in tests:
            terminalreporter.write_line(f"  {test}")


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """One local session for the run: two cores, UTC, few shuffle partitions, Delta."""
    running = session(
        "tests",
        {
            "spark.master": "local[2]",
            "spark.sql.shuffle.partitions": "2",
            "spark.default.parallelism": "2",
            "spark.driver.memory": "4g",  # of hundreds of lakes one after the other Delta keeps what it has read
            # A job is short, this session is not: here the optimising compiler pays for itself.
            "spark.driver.extraJavaOptions": java_settings()["spark.driver.extraJavaOptions"].replace(ONE_COMPILER, ""),
            "spark.sql.warehouse.dir": tmp_path_factory.mktemp("warehouse").as_uri(),
        },
    )
    yield running
    running.stop()


@pytest.fixture
def captures(request) -> Path:
    """The folder of captures from public test suites, shared beside the repository."""
    folder = Path(os.environ.get("MSMQ_CAPTURES") or ROOT.parent / "shared" / "data" / "captures")
    if not folder.is_dir():
        not_run(request.node, CAPTURES)
    return folder


@pytest.fixture
def need_tool(request):
    """Call it with a program's name where only the test itself can tell that it is missing."""
    return lambda name: not_run(request.node, name)


@pytest.fixture(scope="session")
def project() -> Path:
    """The repository's top folder."""
    return ROOT
