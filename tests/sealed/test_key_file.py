"""The key file: valid contents, error messages for invalid ones, and that no secret is ever shown."""

import base64
import struct
import sys
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs import ingest_captures, run_all
from jobs.command_line.key_file import KEYS_FILE_VARIABLE, load_keys
from jobs.config import ConfigError
from udfs.sealed.decryption_keys import DecryptionKeys, KerberosKey, NtlmKey

SECRET = "c0rrect-h0rse"


def keytab(*entries):
    data = b"\x05\x02"
    for principal, enctype, key in entries:
        names, realm = principal.split("@")
        counted = [part.encode() for part in (realm, *names.split("/"))]
        body = struct.pack(">H", len(counted) - 1) + b"".join(struct.pack(">H", len(c)) + c for c in counted)
        body += struct.pack(">IIB", 1, 0, 3) + struct.pack(">HH", enctype, len(key)) + key
        data += struct.pack(">i", len(body)) + body
    return data


@pytest.fixture
def write(tmp_path):
    def made(text, name="keys.yml", mode=0o600):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        path.chmod(mode)
        return str(path)

    return made


def test_what_it_may_say(write, tmp_path):
    write(keytab(("host/srv1.corp@CORP", 18, bytes(32)), ("host/srv1.corp@CORP", 23, bytes(16))), "srv1.keytab")
    said = []
    path = write(
        "ntlm:\n"
        "- {principal: 'CORP\\svc', password: 12345}\n"
        "- principal: '*'\n  nt_hash: A4F49C406510BDCAB6824EE7C30FD852\n"
        "kerberos: [{keytab: srv1.keytab}]\n"
    )
    keys = load_keys(path, said.append)
    assert keys.ntlm == (
        NtlmKey.from_password("CORP\\svc", "12345"),
        NtlmKey("*", bytes.fromhex("a4f49c406510bdcab6824ee7c30fd852")),
    )
    assert [(key.principal, key.enctype, key.key) for key in keys.kerberos] == [
        ("host/srv1.corp@CORP", 18, bytes(32)),
        ("host/srv1.corp@CORP", 23, bytes(16)),
    ]
    assert said == []


def test_the_environment_names_it_too_and_without_either_there_are_no_keys(write, monkeypatch):
    assert not load_keys(None, print)
    monkeypatch.setenv(KEYS_FILE_VARIABLE, write(f"ntlm: [{{principal: a, password: {SECRET}}}]"))
    assert load_keys(None, print).ntlm == (NtlmKey.from_password("a", SECRET),)
    assert load_keys(write("ntlm: [{principal: b, password: b}]", "other.yml"), print).ntlm[0].principal == "b"


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_file_that_others_may_read_is_used_with_a_warning(write, mode):
    said = []
    assert load_keys(write(f"ntlm: [{{principal: a, password: {SECRET}}}]", mode=mode), said.append)
    (line,) = said
    assert f"{mode:04o}" in line
    assert "others may read it" in line


WRONG = {
    f"ntlm: [{SECRET}]": ":1: ntlm[0]: expected a mapping of principal, password, nt_hash",
    f"ntlm: {SECRET}": ":1: ntlm: expected a list",
    f"{SECRET}: []": ":1: unknown name (there are ntlm, kerberos)",
    f"- {SECRET}": ":1: expected a mapping of ntlm, kerberos",
    SECRET: ":1: expected a mapping of ntlm, kerberos",
    f"ntlm:\n- {{principal: a, {SECRET}: b}}": ":2: unknown name (there are principal, password, nt_hash)",
    f"ntlm: [{{password: {SECRET}}}]": ":1: ntlm[0]: principal is missing: DOMAIN\\user, * stands for anything",
    "ntlm: [{principal: a}]": ":1: ntlm[0]: expected either password or nt_hash",
    f"ntlm: [{{principal: a, password: {SECRET}, nt_hash: {SECRET}}}]": "expected either password or nt_hash",
    f"ntlm: [{{principal: a, nt_hash: {SECRET}}}]": "nt_hash: expected 32 hexadecimal digits",
    f"ntlm: [{{principal: a, password: [{SECRET}]}}]": "password: expected text",
    f"ntlm: [{{principal: a, password: *{SECRET}}}]": "not YAML",
    f"ntlm: [{{principal: a, password: {SECRET}": "not YAML",
    f'ntlm: [{{principal: a, password: "\\q{SECRET}"}}]': "not YAML",
    f"ntlm:\n- principal: a\n  principal: {SECRET}": ":3: principal appears twice",
    "kerberos: [{}]": "kerberos[0]: keytab is missing: the path of a keytab",
    "kerberos: [{keytab: nowhere}]": "keytab nowhere: cannot be read: No such file or directory",
    "kerberos: [{keytab: keys.yml}]": "keytab: not a keytab of version 2",
    "": "no keys: expected a mapping with ntlm, kerberos or both",
    "ntlm: []": "no keys: both lists are empty",
    "ntlm:": "no keys: both lists are empty",
    "ntlm: [{principal: a, password: '{{secrets/scope/key}}'}]": "secret scope/key: secret scopes can only be read on",
}


@pytest.mark.parametrize("text", WRONG, ids=range(len(WRONG)))
@pytest.mark.parametrize("job", [run_all, ingest_captures])
def test_a_wrong_one_is_one_clear_line_and_exit_2(write, tmp_path, capsys, text, job):
    path = write(text)
    arguments = ["--lake", str(tmp_path / "lake"), "--captures", str(tmp_path), "--keys", path]
    assert job.main(arguments) == 2
    out = capsys.readouterr()
    assert out.out == ""
    (line,) = out.err.splitlines()
    assert path in line
    assert WRONG[text] in line
    assert SECRET not in line
    assert not (tmp_path / "lake").exists()


def test_a_missing_one_and_one_that_is_no_text(write, tmp_path):
    with pytest.raises(ConfigError, match=r"--keys .*nowhere: cannot be read: No such file or directory$"):
        load_keys(str(tmp_path / "nowhere"), print)
    with pytest.raises(ConfigError, match=r"not text in UTF-8$"):
        load_keys(write(b"ntlm: \xff"), print)


def test_a_damaged_keytab(write):
    write(keytab(("a@B", 18, bytes(32)))[:-20], "cut.keytab")
    with pytest.raises(ConfigError, match=r"kerberos\[0\]: keytab: damaged$") as raised:
        load_keys(write("kerberos: [{keytab: cut.keytab}]"), print)
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


def test_secrets_of_databricks_by_reference(write, monkeypatch):
    """The secret scope is read through the runtime's utilities, replaced by a stand-in here."""
    kept = {
        "password": SECRET,
        "hash": "a4f49c406510bdcab6824ee7c30fd852",
        "keytab": base64.b64encode(keytab(("a@B", 17, bytes(16)))).decode(),
        "file": f"ntlm: [{{principal: whole, password: {SECRET}}}]",
        "bad": "{" + SECRET,
    }

    class Secrets:
        @staticmethod
        def get(scope, key):
            if scope != "msmq" or key not in kept:
                raise RuntimeError(f"no such secret, but {SECRET}")
            return kept[key]

    runtime = types.ModuleType("databricks.sdk.runtime")
    runtime.dbutils = types.SimpleNamespace(secrets=Secrets)
    monkeypatch.setitem(sys.modules, "databricks", types.ModuleType("databricks"))
    monkeypatch.setitem(sys.modules, "databricks.sdk", types.ModuleType("databricks.sdk"))
    monkeypatch.setitem(sys.modules, "databricks.sdk.runtime", runtime)
    keys = load_keys(
        write(
            "ntlm:\n"
            "- {principal: a, password: '{{secrets/msmq/password}}'}\n"
            "- {principal: a, nt_hash: '{{secrets/msmq/hash}}'}\n"
            "kerberos: [{keytab: '{{secrets/msmq/keytab}}'}]\n"
        ),
        print,
    )
    assert keys.ntlm[0] == NtlmKey.from_password("a", SECRET)
    assert keys.ntlm[1].nt_hash.hex() == kept["hash"]
    assert keys.kerberos == (KerberosKey("a@B", 17, 3, bytes(16)),)
    assert load_keys("{{secrets/msmq/file}}", print).ntlm[0].principal == "whole"
    for text in ("{{secrets/msmq/bad}}", "{{secrets/msmq/none}}", "{{secrets/other/file}}"):
        with pytest.raises(ConfigError) as raised:
            load_keys(text, print)
        assert SECRET not in str(raised.value)
        assert raised.value.__suppress_context__


@given(st.text(min_size=8).filter(lambda text: text.strip()), st.binary(min_size=16, max_size=16))
def test_no_repr_shows_a_key(password, key):
    keys = DecryptionKeys((NtlmKey.from_password("principal", password),), (KerberosKey("service@REALM", 23, 1, key),))
    shown = f"{keys!r} {keys} {keys.ntlm[0]!r} {keys.kerberos[0]!r}"
    assert repr(keys.ntlm[0].nt_hash) not in shown
    assert repr(key) not in shown
    assert key.hex() not in shown
