"""Decryption of sealed calls in a lake: without keys, with wrong ones, by a later run; and keys are stored nowhere.

The tests are steps on one lake: each starts from what the one before left.
"""

import base64
import hashlib
import json
import subprocess
import sys

import pytest
from impacket.krb5 import crypto
from pyspark.sql import functions as F

from jobs import ingest_captures, run_all
from jobs.cli import ExitCode
from pcapgen.reading import to_rows
from peer.kerberos import AES256, forge_ticket
from pipeline.lake.lake import Lake
from schemas import catalog
from schemas.attempts import RECEIVE_ATTEMPTS
from schemas.bronze import RPC_BINDS, RPC_CALLS
from schemas.calls import REMOTE_READ_CALLS
from sealed.opened import decrypted_calls, password
from sealed.test_kerberos import REALM, SERVICE, keytab, read, recorded
from sealed.test_key_file import keytab as keytab_file
from tests.support.lakes import versions_text
from udfs.capture.capture_reader import read_capture
from udfs.sealed.enctypes import USAGE_CHECKSUM, USAGE_ENCRYPTION, USAGE_INTEGRITY, derive_key
from udfs.sealed.ntlm_handshake import sealing_keys, signing_key
from udfs.sealed.security_contexts import build_security_contexts
from udfs.sealed.security_tokens import tokens_from_rows

pytestmark = [pytest.mark.spark, pytest.mark.long]

SAMPLE = "05-sealed-ntlm.pcap"
PASSWORD = "Passw0rd!"
ALL = ("one.pcap", "two.pcap", "kerberos.pcap")
SECRETS = {AES256: crypto.Key(AES256, hashlib.sha256(b"of the service").digest())}  # bytes that occur nowhere else
USAGES = (22, 23, 24, 25)  # sealing and signing, of the acceptor and of the initiator (RFC 4121 2)
PURPOSES = (USAGE_ENCRYPTION, USAGE_INTEGRITY, USAGE_CHECKSUM)
IN_SPARK = """
import json
import sys
from jobs import run_all
from jobs.session import get_spark_session
from pipeline.lake import lake
from tests.support.lakes import versions_text
lake.MAX_ROWS_IN_MEMORY = -1  # Spark's tasks decrypt, as with many calls
get_spark_session("run with keys", json.loads(sys.argv[1]))
sys.exit(run_all.main(sys.argv[2:]))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory, project):
    """A folder with key files and the sample in two files: the first one ends within conversations."""
    root = tmp_path_factory.mktemp("sealed")
    data = (project / "data" / "sample" / SAMPLE).read_bytes()
    at, places = 24, []
    while at < len(data):
        places.append(at)
        at += 16 + int.from_bytes(data[at + 8 : at + 12], "little")
    (root / "captures").mkdir()
    half = places[len(places) // 2]
    (root / "captures" / "one.pcap").write_bytes(data[:half])
    (root / "captures" / "two.pcap").write_bytes(data[:24] + data[half:])
    granted = forge_ticket(SERVICE, REALM, SECRETS[AES256])
    tap, _ = recorded(read(granted, mutual=True, spnego=True, subkey=True), secrets=SECRETS)
    (root / "captures" / "kerberos.pcap").write_bytes(tap.capture())
    (root / "srv1.keytab").write_bytes(keytab_file((f"{SERVICE}@{REALM}", AES256, SECRETS[AES256].contents)))
    (root / "srv1.keytab").chmod(0o600)
    for name, text in (("right", PASSWORD), ("wrong", "not " + PASSWORD)):
        path = root / f"{name}.yml"
        tickets = "\nkerberos: [{keytab: srv1.keytab}]" if name == "right" else ""
        path.write_text(f"ntlm: [{{principal: 'testdom\\*', password: '{text}'}}]{tickets}")
        path.chmod(0o600)
    return root


@pytest.fixture(scope="module")
def lake(spark, place):
    return Lake(spark, str(place / "lake"))


def arguments(place, *captures, keys=None):
    named = ["--captures", *(str(place / "captures" / name) for name in captures)]
    return ["--lake", str(place / "lake"), *named, *(["--keys", str(place / f"{keys}.yml")] if keys else [])]


def undecrypted_counts(lake):
    rows = lake.read(RPC_CALLS).where("sealed").groupBy("outcome", "opened_by", "closed_reason").count().collect()
    return {(row.outcome, row.opened_by, row.closed_reason): row[3] for row in rows}


def test_wrong_keys_leave_all_as_captured(lake, place):
    assert ingest_captures.main(arguments(place, "one.pcap")) == 0
    without = undecrypted_counts(lake)
    assert without
    assert {reason for _, _, reason in without} <= {"no_key", None}
    assert ingest_captures.main(arguments(place, "one.pcap", "two.pcap", keys="wrong")) == 0
    found = undecrypted_counts(lake)
    assert {(outcome, by, reason) for outcome, by, reason in found} == {
        ("encrypted", None, "bad_signature"), ("fault", None, None)
    }  # fmt: skip
    assert sum(found.values()) == 19


def test_a_run_is_killed_while_it_opens(lake, place, monkeypatch):
    before, changing = undecrypted_counts(lake), Lake.delete_and_insert

    def killed(*args, **more):
        changing(*args, **more)
        raise KeyboardInterrupt

    monkeypatch.setattr(Lake, "delete_and_insert", killed)
    assert ingest_captures.main(arguments(place, "one.pcap", keys="right")) == ExitCode.INTERRUPTED
    monkeypatch.undo()
    assert undecrypted_counts(lake) != before  # the next test's run decrypts them all again


@pytest.fixture(scope="module")
def run_with_keys(lake, place, project):
    """A run that decrypts all, in a process of its own with an event log; return the finished process."""
    events = place / "events"
    events.mkdir()
    settings = {
        "spark.eventLog.enabled": "true", "spark.eventLog.dir": events.as_uri(), "spark.eventLog.compress": "false",
        "spark.sql.shuffle.partitions": "2", "spark.master": "local[2]",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", IN_SPARK, json.dumps(settings), *arguments(place, *ALL, keys="right")],
        cwd=project, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def test_a_run_with_keys_opens_what_earlier_runs_left_closed(lake, place, project, run_with_keys):
    expected = decrypted_calls([(project / "data" / "sample" / SAMPLE).read_bytes()], password(PASSWORD))
    by_ticket = decrypted_calls([(place / "captures" / "kerberos.pcap").read_bytes()], keytab(AES256, secrets=SECRETS))
    assert {row["opened_by"] for row in by_ticket} == {f"reader@{REALM}"}
    expected += by_ticket
    assert "an earlier run did not end: its work is undone" in run_with_keys.stderr
    summary = json.loads(run_with_keys.stdout.strip().splitlines()[-1])
    counts = {what: sum(row[f"{what}_by"] is not None for row in expected) for what in ("opened", "verified")}
    assert counts["opened"] > 19
    assert counts["verified"] == 23
    assert summary["sealed"] == counts
    columns = [
        "request_stub", "response_stub", "outcome", "opened_by", "verified_by", "closed_reason", "sealed",
        "request_signed_bytes",
    ]  # fmt: skip
    found = {row["call_key"]: row for row in to_rows(lake.read(RPC_CALLS).toArrow())}
    assert found.keys() == {row["call_key"] for row in expected}
    for row in expected:
        assert {name: found[row["call_key"]][name] for name in columns} == {name: row[name] for name in columns}
    # Downstream tables follow: parameters, and attempts with the queues that they read from.
    by_password = lake.read(RPC_CALLS).where("sealed AND coalesce(opened_by, '') NOT LIKE '%@%'").select("call_key")
    reads = lake.read(REMOTE_READ_CALLS).join(by_password, "call_key")
    assert reads.where("method = 'R_StartReceive' AND context_handle IS NOT NULL").count() == 5
    attempts = lake.read(RECEIVE_ATTEMPTS).where(F.array_contains("missing", "sealed") | F.col("queue").isNull())
    assert attempts.count() == 0
    assert lake.read(RECEIVE_ATTEMPTS).where("outcome = 'acked'").count() > 1


def forms(secret):
    """Yield the forms a secret may be written in: raw, hexadecimal, base64, UTF-16, as Python or JSON show bytes."""
    text = secret.decode("latin-1")
    yield from (secret, secret.hex().encode(), secret.hex().upper().encode(), secret.hex(":").encode())
    yield from (base64.b64encode(secret).rstrip(b"="), base64.urlsafe_b64encode(secret).rstrip(b"="))
    yield from (repr(secret).encode()[2:-1], json.dumps(text).encode()[1:-1], text.encode("utf-16le"), text.encode())
    yield ", ".join(map(str, secret)).encode()


def test_keys_are_nowhere(lake, place, project, run_with_keys):
    """No password, hash, keytab key or session key is in the lake, staging files, event log, plans or output."""
    tables = read_capture(str(project / "data" / "sample" / SAMPLE))
    (key,) = password(PASSWORD, "testdom\\*").ntlm
    secrets = {PASSWORD.encode(), key.nt_hash}
    for row in tables["rpc_binds"].to_pylist():
        for context in build_security_contexts(tokens_from_rows(row["handshake"] or []), password(PASSWORD)):
            if context.session is not None:
                flags, exported = context.session._flags, context.session._key
                secrets.add(exported)
                for client in (True, False):
                    secrets |= {
                        signing_key(flags, exported, client=client),
                        *sealing_keys(flags, exported, client=client),
                    }
    secrets.add(SECRETS[AES256].contents)
    for row in read_capture(str(place / "captures" / "kerberos.pcap"))["rpc_binds"].to_pylist():
        for context in build_security_contexts(
            tokens_from_rows(row["handshake"] or []), keytab(AES256, secrets=SECRETS)
        ):
            for each in context.session._keys if context.session is not None else ():
                secrets.add(each.key)
                secrets |= {derive_key(each.enctype, each.key, usage, what) for usage in USAGES for what in PURPOSES}
    secrets.discard(b"")
    assert len(secrets) > 20
    texts = {form for secret in secrets for form in forms(secret)}
    files = [path for part in ("lake", "events") for path in (place / part).rglob("*") if path.is_file()]
    assert any("events" in path.parts for path in files)
    texts_of = {str(path): path.read_bytes() for path in files}
    texts_of |= {"stdout": run_with_keys.stdout.encode(), "stderr": run_with_keys.stderr.encode()}
    assert b"MapInArrow" in b"".join(data for name, data in texts_of.items() if "/events/" in name)
    for name, data in texts_of.items():
        assert [form for form in texts if form in data] == [], name
    # Columns are compressed in files: search the rows themselves.
    for table in catalog.DATA_TABLES:
        shown = repr(lake.select(table, "TRUE").to_pylist()) if lake.exists(table) else ""
        assert [form for form in texts if form.decode("latin-1") in shown] == [], str(table)


def test_running_again_with_the_keys_changes_nothing(lake, place, capsys):
    before = versions_text(lake, *catalog.DATA_TABLES)
    assert run_all.main(arguments(place, *ALL, keys="right")) == 0
    assert versions_text(lake, *catalog.DATA_TABLES) == before
    assert json.loads(capsys.readouterr().out.strip().splitlines()[-1])["sealed"] == {}
    assert lake.read(RPC_BINDS).where("handshake IS NOT NULL").count() > 3
