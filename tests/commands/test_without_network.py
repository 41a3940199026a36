"""Set-up: afterwards nothing needs the network, the command msmq works, and failures are reported in one line."""

import json
import os
import shutil
import subprocess

import pytest

from jobs.__main__ import list_jobs
from jobs.session import PROJECT_ROOT

# A new network namespace has no route out. Loopback is up, as on a machine without a network cable.
WITHOUT_NETWORK = ["unshare", "-rn", "sh", "-ec", 'ip link set lo up; exec "$@"', "sh"]


def run(command, **options):
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_", "PYTEST_"))}
    env |= options.pop("env", {})
    return subprocess.run(
        [*options.pop("before", ()), *command],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
        **options,
    )


@pytest.fixture
def set_up(project):
    """The project's folder, with the environment that `make test` has set up."""
    if not (project / ".venv" / ".stamp").exists():
        pytest.fail("the project is not set up: these tests are run by `make test`")
    return project


@pytest.mark.network_namespace
def test_the_namespace_has_no_way_out():
    code = "import socket; socket.create_connection(('192.0.2.1', 80), 5)"
    done = run(["python3", "-c", code], before=WITHOUT_NETWORK)
    assert "Network is unreachable" in done.stderr


@pytest.mark.network_namespace
@pytest.mark.tool("make")
def test_make_test_needs_no_network_once_set_up(set_up):
    done = run(
        ["make", "test", "PYTEST_ARGS=-q --numprocesses=0 tests/commands/test_config.py"],
        cwd=set_up,
        before=WITHOUT_NETWORK,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    assert "setup:" not in done.stderr  # nothing was left to do


def msmq(project, *arguments, **options):
    return run([project / ".venv" / "bin" / "msmq", *arguments], **options)


def test_the_command_msmq_works_from_any_folder(set_up, tmp_path):
    (tmp_path / "schemas").mkdir()  # a package of the same name in the current folder is not imported
    (tmp_path / "schemas" / "__init__.py").write_text("raise SystemExit('the wrong schemas')")
    listed = msmq(set_up, "--help", cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert {line.split()[0] for line in listed.stdout.splitlines() if line.startswith("  ")} == set(list_jobs())
    asked = msmq(set_up, "ask", "--lake", "none", cwd=tmp_path)
    assert asked.returncode == 0, asked.stderr
    assert json.loads(asked.stdout.splitlines()[-1])["job"] == "ask"
    assert msmq(set_up, "run_all", "--as-of", "soon", cwd=tmp_path).returncode == 2


def test_the_command_msmq_works_by_a_link_and_after_a_move(set_up, tmp_path):
    (tmp_path / "link").symlink_to(set_up / ".venv" / "bin" / "msmq")
    assert run([tmp_path / "link", "--help"], cwd="/").stdout == msmq(set_up, "--help").stdout != ""
    moved = tmp_path / "moved"
    (moved / ".venv" / "bin").mkdir(parents=True)
    shutil.copy(set_up / ".venv" / "bin" / "msmq", moved / ".venv" / "bin")
    program(moved, ".venv/bin/python", 'echo "$PYTHONPATH" "$@"')
    assert msmq(moved, "ask", env={"PYTHONPATH": ""}).stdout == f"{moved} -m jobs ask\n"


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.network_namespace
@pytest.mark.tool("make")
def test_make_demo_needs_no_network_once_set_up(set_up, tmp_path):
    done = run(["make", "demo", f"LAKE={tmp_path / 'lake'}"], cwd=set_up, before=WITHOUT_NETWORK)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["tables"]["bronze.rpc_calls"]["rows_out"] > 0


@pytest.fixture
def elsewhere(tmp_path):
    """A folder with a copy of the set-up script, and a folder bin for the programs that a test fakes."""
    for name in ("tools/setup.sh", "conf/requirements.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(PROJECT_ROOT / name, tmp_path / name)
    (tmp_path / "bin").mkdir()
    return tmp_path


def program(folder, name, text):
    """Write a shell script that stands for a program."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def set_up_alone(folder, **more):
    env = {"PATH": f"{folder}/bin:/usr/bin:/bin", "HOME": str(folder), "MSMQ_NO_SYSTEM_PACKAGES": "1", "JAVA_HOME": ""}
    env |= more
    return run(["bash", "tools/setup.sh"], cwd=folder, env=env)


def java(version):
    return f"echo 'openjdk version \"{version}\" 2022-01-18' >&2"


@pytest.mark.parametrize("answer", [java("11.0.22"), java("1.8.0_402"), "exit 127"])
def test_a_java_too_old_or_missing_is_one_line_with_what_to_type(elsewhere, answer):
    program(elsewhere, "bin/java", answer)
    done = set_up_alone(elsewhere)
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith("setup: Java 17 or later is needed. Type: ")
    assert not (elsewhere / ".venv").exists()


def test_no_fitting_python_is_one_line_with_what_to_type(elsewhere):
    program(elsewhere, "bin/java", java("17.0.15"))
    for name in ("python3", "python3.11", "python3.12"):
        program(elsewhere, f"bin/{name}", "exit 1")
    done = set_up_alone(elsewhere)
    assert done.returncode == 2
    assert done.stderr == (
        "setup: Python 3.11 or 3.12 is needed. Install one, or name it: PYTHON=/path/to/python3.12 make setup\n"
    )


@pytest.mark.parametrize("kept", [False, True])
def test_a_python_that_is_named_and_not_used_is_said(elsewhere, kept):
    program(elsewhere, "bin/java", java("17.0.15"))
    program(elsewhere, "bin/python3.10", '[ "$1" = -V ] && echo "Python 3.10.4" || exit 1')
    program(elsewhere, "bin/python3.11", '[ "$1" != -V ] || echo "Python 3.11.9"')
    # It fits, and can do nothing: set-up goes no further than the virtual environment.
    program(elsewhere, "bin/python3.12", '[ "$1" = -V ] && echo "Python 3.12.1"; [ "$1" != -m ]')
    if kept:
        (elsewhere / ".venv" / "bin").mkdir(parents=True)
        shutil.copy(elsewhere / "bin" / "python3.12", elsewhere / ".venv" / "bin" / "python")
        sum_of = run(["cksum"], input=(elsewhere / "conf" / "requirements.txt").read_text()).stdout.strip()
        (elsewhere / ".venv" / ".stamp").write_text(f"{sum_of} {elsewhere}\n")
    said = set_up_alone(elsewhere, PYTHON="python3.10").stderr
    used = ".venv/bin/python" if kept else "python3.12"
    needed = "Python 3.11 or 3.12 is needed"
    assert f"setup: not python3.10 (Python 3.10.4) but {used} (Python 3.12.1) is used: {needed}\n" in said
    said = set_up_alone(elsewhere, PYTHON="python3.9").stderr
    assert f"setup: not python3.9 (no such program) but {used} (Python 3.12.1) is used: {needed}\n" in said
    if kept:
        said = set_up_alone(elsewhere, PYTHON="python3.11").stderr
        assert (
            f"setup: not python3.11 (Python 3.11.9) but {used} (Python 3.12.1) is used: remove .venv to use it" in said
        )
    assert " is used: " not in set_up_alone(elsewhere, PYTHON="python3.12").stderr
    assert " is used: " not in set_up_alone(elsewhere).stderr


def test_the_archive_of_classes_is_made_again_where_java_would_not_take_it(elsewhere):
    """Java compares its own version, and path, size and time of each jar on its class path."""
    program(elsewhere, "bin/java", java("17.0.15"))
    (elsewhere / "jobs").mkdir()
    for name in ("conf/jars.sha256", "tools/archive_classes.py", "tools/msmq", "tools/write_spark_conf.py"):
        shutil.copy(PROJECT_ROOT / name, elsewhere / name)
    shutil.copy(PROJECT_ROOT / "jobs" / "session.py", elsewhere / "jobs")
    (elsewhere / ".venv" / "bin").mkdir(parents=True)
    program(elsewhere, ".venv/bin/python", 'echo "$@" >>calls')
    sum_of = run(["cksum"], input=(elsewhere / "conf" / "requirements.txt").read_text()).stdout.strip()
    (elsewhere / ".venv" / ".stamp").write_text(f"{sum_of} {elsewhere}\n")
    spark, delta = elsewhere / ".venv/lib/python3.12/site-packages/pyspark/jars/a.jar", elsewhere / ".cache/jars/b.jar"
    for jar in (spark, delta):
        jar.parent.mkdir(parents=True)
        jar.touch()

    def is_made():
        (elsewhere / "calls").write_text("")
        done = set_up_alone(elsewhere)
        assert done.returncode == 0, done.stderr
        return "tools/archive_classes.py" in (elsewhere / "calls").read_text()

    assert (is_made(), is_made()) == (True, False)
    spark.write_text("installed again")
    assert (is_made(), is_made()) == (True, False)
    delta.rename(delta.with_name("c.jar"))
    assert (is_made(), is_made()) == (True, False)
    program(elsewhere, "bin/java", java("21.0.2"))
    assert (is_made(), is_made()) == (True, False)
