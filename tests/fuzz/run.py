"""Fuzz the decoders, and whole runs: ``python -m fuzz.run [--seconds N] [harness ...]``, or ``make fuzz``.

Each harness runs in its own process for the given time. Failing inputs are written to ``tests/fuzz/crashes``, to the
folder of the harness, where the tests find them. ``run_all`` is no harness of atheris but ``fuzz/whole_runs.py``. Exit
code 1: something failed; 2: atheris is missing.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

WHOLE_RUNS = "run_all"
CRASHES = Path(__file__).parent / "crashes"
LONGEST = 4096  # bytes of an input: many headers, yet small enough for a thousand runs in seconds
INSTALL = "make fuzz needs atheris. Type: .venv/bin/python -m pip install 'atheris>=3,<4'"


def fuzz(name, seconds, corpus):
    """Run one harness in this process until its time is over or it fails; libFuzzer then ends the process."""
    import atheris  # noqa: PLC0415 (the other commands do not need it)

    with atheris.instrument_imports(include=["udfs"]):
        from fuzz.harnesses import HARNESSES  # noqa: PLC0415

    harness = HARNESSES[name]
    for number, seed in enumerate(harness.seeds()):
        (corpus / f"seed-{number:04d}").write_bytes(seed)
    for crash in sorted((CRASHES / name).glob("*")):
        (corpus / crash.name).write_bytes(crash.read_bytes())
    (CRASHES / name).mkdir(parents=True, exist_ok=True)
    options = {
        "max_total_time": seconds, "max_len": LONGEST, "timeout": 120, "rss_limit_mb": 3000, "print_final_stats": 1,
        "artifact_prefix": f"{CRASHES / name}/", "verbosity": 1,
    }  # fmt: skip
    atheris.Setup(["fuzz", *(f"-{key}={value}" for key, value in options.items()), str(corpus)], harness.run)
    atheris.Fuzz()


def main():
    from importlib.util import find_spec  # noqa: PLC0415

    top = argparse.ArgumentParser(prog="python -m fuzz.run", description=__doc__)
    top.add_argument("harness", nargs="*", help="of: qm2qm, RemoteRead, qmmgmt, qmcomm, qmcomm2, messages, comqc, ...")
    top.add_argument("--seconds", type=int, default=20, help="for each harness (20)")
    top.add_argument("--corpus", type=Path, help="folder for the corpus, which the next run starts from")
    top.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = top.parse_args()
    if find_spec("atheris") is None and arguments.harness != [WHOLE_RUNS]:
        print(INSTALL, file=sys.stderr)
        return 2
    if arguments.inside:
        fuzz(arguments.harness[0], arguments.seconds, arguments.corpus)
        return 0
    from fuzz.harnesses import HARNESSES  # noqa: PLC0415

    targets = [*HARNESSES, WHOLE_RUNS]
    if unknown := set(arguments.harness) - {*targets}:
        top.error(f"no such harness: {', '.join(sorted(unknown))}; there are {', '.join(targets)}")
    failed = []
    for name in arguments.harness or targets:
        if name == WHOLE_RUNS:
            rounds = [sys.executable, "-m", "fuzz.whole_runs", f"--seconds={arguments.seconds}"]
            failed += [name] if subprocess.run(rounds, check=False).returncode else []
            continue
        with tempfile.TemporaryDirectory(prefix="msmq-fuzz-") as scratch:
            corpus = (arguments.corpus or Path(scratch)) / name
            corpus.mkdir(parents=True, exist_ok=True)
            print(f"fuzz: {name}, {arguments.seconds} s", flush=True)
            command = [sys.executable, "-m", "fuzz.run", "--inside", f"--seconds={arguments.seconds}"]
            if subprocess.run([*command, f"--corpus={corpus}", name], check=False).returncode:
                failed.append(name)
    print(f"fuzz: {', '.join(failed)} failed: see {CRASHES}" if failed else "fuzz: nothing failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
