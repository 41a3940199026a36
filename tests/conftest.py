"""Fixtures of all tests: the Spark session, the shared captures, and the list of tests that were not run.

If a program, a permission or data is missing, a test is skipped and listed at the end with the command that would make
it run. With ``--require-tools`` (``make test-all``) it fails instead.
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
from hypothesis import settings

import pipeline.lake.lake as lake_module
from engines import LOCAL, shared_sql
from example_counts import examples, use_all_examples
from jobs import cli
from jobs.command_line.settings_file import load_config
from jobs.session import get_spark_session

ROOT = Path(__file__).resolve().parents[1]

# collect() returns naive times in the time zone of the process. The rows of tests are written in UTC.
os.environ["TZ"] = "UTC"
time.tzset()

INSTALL = {
    "tshark": "apt-get install tshark (dnf install wireshark-cli)",
    "luac5.4": "apt-get install lua5.4",
    "editcap": "apt-get install wireshark-common (dnf install wireshark-cli)",
    "tcpdump": "apt-get install tcpdump",
    "ip": "apt-get install iproute2",
    "unshare": "apt-get install util-linux",
    "make": "apt-get install make",
    "systemd-analyze": "apt-get install systemd",
    "promtool": "apt-get install prometheus",
    "prometheus-alertmanager": "apt-get install prometheus-alertmanager",
    "pwsh": "install PowerShell (https://learn.microsoft.com/powershell)",
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

# Files that take more than half a minute, the longest first, and one of the last files, which takes half of that: with
# them at the beginning, the processes of a run end at about the same time.
LONGEST = (
    "user_code/test_notebooks.py",
    "where/test_servers.py",
    "dashboards/test_browser.py",
    "transfers/test_checkpoints.py",
    "transfers/test_findings.py",
    "questions/test_views.py",
    "end_to_end/test_stores_and_engines.py",
    "notices/test_command.py",
    "end_to_end/test_without_java.py",
    "transfers/test_update_sequences.py",
    "questions/test_evidence.py",
    "questions/test_recorded_transfers.py",
    "user_code/test_capture_source.py",
    "lake/test_refused_settings.py",
    "end_to_end/test_run_all.py",
    "bronze/test_learned_ports.py",
    "lake/test_trusted_watermarks.py",
    "wireshark/test_same_as_tables.py",
)

NOT_RUN = "not run"  # name of a report property; it reaches the process that prints the summary from any test process


def pytest_addoption(parser):
    group = parser.getgroup("this project")
    group.addoption("--long", action="store_true", help="also run the tests marked long")
    group.addoption("--require-tools", action="store_true", help="a missing program or data set is a failure")


def pytest_configure(config):
    if config.getoption("--long"):
        use_all_examples()
    # A busy machine is no fault of the code. Property tests without a number of their own try that of Hypothesis.
    few_or_all = examples(settings().max_examples)
    settings.register_profile("this project", deadline=None, derandomize=True, max_examples=few_or_all)
    settings.load_profile("this project")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Let the second process import the files from the last one on: of two that compile them, each compiles a half."""
    report = yield
    if isinstance(collector, pytest.Directory) and os.environ.get("PYTEST_XDIST_WORKER") == "gw1":
        report.result.reverse()
    return report


def pytest_collection_modifyitems(config, items):
    items.sort(key=lambda item: (_place_among_longest(item.path), item.path.parts))
    if config.getoption("--long"):
        return
    plain, long = [], []
    for item in items:
        (long if item.get_closest_marker("long") else plain).append(item)
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = plain


def _place_among_longest(path: Path) -> int:
    name = f"{path.parent.name}/{path.name}"
    return LONGEST.index(name) if name in LONGEST else len(LONGEST)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    for marker in item.iter_markers("tool"):
        for name in marker.args:
            if shutil.which(name) is None:
                not_run(item, name)
    if item.get_closest_marker("network_namespace") and not network_namespaces():
        not_run(item, NAMESPACES)


def not_run(item: pytest.Item, what: str) -> None:
    """Skip the test and add it to the list at the end; fail it with --require-tools."""
    item.user_properties.append((NOT_RUN, what))
    if item.config.getoption("--require-tools"):
        pytest.fail(f"{what} missing: {INSTALL.get(what, 'install it')}", pytrace=False)
    pytest.skip(f"not run: needs {what}")


@cache
def network_namespaces() -> bool:
    """Whether this user may create a network namespace and start its loopback interface."""
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


@pytest.fixture(scope="session", autouse=True)
def local_engine():
    """Command lines of tests that do not name an engine compute in this process: a job of Spark takes half a second."""

    def load(path, overrides=()):
        return load_config(path, [LOCAL[1], *overrides])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli, "load_config", load)
        yield


@pytest.fixture(scope="session", autouse=True)
def one_database():
    """The lakes of a test process share a database of DuckDB, which holds no rows between queries."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lake_module, "DuckDbSql", shared_sql)
        yield


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """The local Spark session of the test run: two cores, UTC, few shuffle partitions, Delta."""
    running = get_spark_session(
        "tests",
        {
            "spark.master": "local[2]",
            "spark.sql.shuffle.partitions": "2",
            "spark.default.parallelism": "2",
            "spark.sql.adaptive.enabled": "false",  # what it finds out about rows takes longer than these few take
            "spark.driver.memory": "4g",  # Delta caches what it has read of hundreds of lakes
            "spark.sql.warehouse.dir": tmp_path_factory.mktemp("warehouse").as_uri(),
        },
    )
    yield running
    running.stop()


@pytest.fixture
def captures(request) -> Path:
    """The folder of captures from public test suites, beside the repository or named by MSMQ_CAPTURES."""
    folder = Path(os.environ.get("MSMQ_CAPTURES") or ROOT.parent / "shared" / "data" / "captures")
    if not folder.is_dir():
        not_run(request.node, CAPTURES)
    return folder


@pytest.fixture
def need_tool(request):
    """A function that skips the test for a missing program, if only the test itself can find that out."""
    return lambda name: not_run(request.node, name)


@pytest.fixture(scope="session")
def project() -> Path:
    """The top folder of the repository."""
    return ROOT
