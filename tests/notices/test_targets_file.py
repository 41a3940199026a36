"""The file of targets: its kinds, what is wrong in it, and that no message shows what stands in it."""

import json
from datetime import timedelta
from pathlib import Path

import pytest

from jobs.command_line.notice_targets import NOTIFY_FILE_VARIABLE, load_targets
from jobs.config import ConfigError
from pipeline.notices.alertmanager import Alertmanager
from pipeline.notices.chat import Slack, Teams
from pipeline.notices.json_targets import Command, Webhook
from pipeline.notices.mail import Mail
from pipeline.notices.pagerduty import PAGERDUTY_URL, PagerDuty

SECRET = "s3cr3t"
EXAMPLES = Path(__file__).parents[2] / "conf" / "examples"


@pytest.fixture
def load(tmp_path):
    def from_text(text, *names):
        file = tmp_path / "targets.yml"
        file.write_text(text)
        file.chmod(0o600)
        log = []
        targets = load_targets([f"@{file}", *names], log.append)
        assert log == []
        return targets

    return from_text


def test_the_example_has_every_kind():
    text, log = (EXAMPLES / "notify.yml").read_text(), []
    found = {type(target) for target in load_targets([f"@{EXAMPLES / 'notify.yml'}"], log.append)}
    assert found == {Webhook, Command, PagerDuty, Alertmanager, Slack, Teams, Mail}
    assert "chmod 600" in text + "".join(log)


def test_yaml_and_json_are_read_and_names_choose(load):
    entries = [
        {"name": "hook", "kind": "webhook", "url": "https://h.example/x", "headers": {"Authorization": SECRET}},
        {"name": "pd", "kind": "pagerduty", "key": SECRET},
        {"name": "am", "kind": "alertmanager", "url": "http://127.0.0.1:9093/api/v2/alerts", "interval": "5m"},
    ]
    hook, pd, am = load(json.dumps({"targets": entries}))
    assert (hook.endpoint.url, hook.endpoint.headers) == ("https://h.example/x", {"Authorization": SECRET})
    assert (pd.routing_key, pd.endpoint.url, am.interval) == (SECRET, PAGERDUTY_URL, timedelta(minutes=5))
    assert [each.name for each in load(json.dumps({"targets": entries}), "am", "hook")] == ["hook", "am"]
    with pytest.raises(ConfigError, match=r"1 of its names are not in .*there are hook, pd, am"):
        load(json.dumps({"targets": entries}), f"https://{SECRET}")


def test_the_file_is_named_by_the_variable_and_one_that_others_may_read_is_warned_of(tmp_path, monkeypatch):
    file = tmp_path / "targets.yml"
    file.write_text("targets: [{name: c, kind: command, command: [cat]}]")
    file.chmod(0o644)
    monkeypatch.delenv(NOTIFY_FILE_VARIABLE, raising=False)
    with pytest.raises(ConfigError, match="--notify @FILE, or MSMQ_NOTIFY_FILE"):
        load_targets([], print)
    monkeypatch.setenv(NOTIFY_FILE_VARIABLE, str(file))
    log = []
    assert [each.name for each in load_targets([], log.append)] == ["c"]
    assert "others may read it" in log[0]
    with pytest.raises(ConfigError, match="only one @FILE"):
        load_targets(["@a", "@b"], print)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_targets(["@/no/such/file"], print)


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"kind": "webhook", "url": f"http://{SECRET}.example"}, ":1: url: expected an https: URL"),
        ({"kind": "webhook", "url": f"https://{SECRET}:{SECRET}@h.example"}, "url: expected an https: URL"),
        ({"kind": "webhook", "url": f"ftp://{SECRET}"}, "url: expected an https: URL"),
        ({"kind": "webhook", "url": f"https://h:{SECRET}"}, "url: expected an https: URL"),
        ({"kind": "webhook", "url": f"https://h/{SECRET} x"}, "url: expected an https: URL"),
        ({"kind": "slack"}, "targets[0]: url is missing"),
        ({"kind": "webhook", "url": "https://h", "headers": {"X": f"{SECRET}\nY"}}, "headers: expected a mapping"),
        ({"kind": "webhook", "url": "https://h", "headers": [SECRET]}, "headers: expected a mapping"),
        ({"kind": "webhook", "url": "https://h", "ca_file": f"/{SECRET}"}, "ca_file: expected a file of certificates"),
        ({"kind": "webhook", "url": "https://h", "key": SECRET}, "unknown name (there are name, kind, url"),
        ({"kind": "webhook", "url": "https://h", SECRET: "x"}, "unknown name"),
        ({"kind": SECRET}, "kind: expected one of webhook, command"),
        ({"kind": "pagerduty"}, "key is missing"),
        ({"kind": "pagerduty", "key": ""}, "key: expected text"),
        ({"kind": "pagerduty", "key": [SECRET]}, "key: expected text"),
        ({"kind": "pagerduty", "key": "{{secrets/a/b}}"}, "secret a/b: secret scopes can only be read on Databricks"),
        ({"kind": "command", "command": SECRET}, "command: expected a list"),
        ({"kind": "command", "command": []}, "command: expected a list: the program and its arguments"),
        ({"kind": "alertmanager", "url": "https://h", "interval": f"{SECRET}"}, "interval: expected a duration"),
        ({"kind": "alertmanager", "url": "https://h", "interval": "0s"}, "interval: expected a duration"),
        ({"kind": "smtp", "server": SECRET, "security": "none", "from": "a@b.c", "to": ["a@b.c"]}, "security: exp"),
        ({"kind": "smtp", "server": SECRET, "port": SECRET, "from": "a@b.c", "to": ["a@b.c"]}, "port: expected a port"),
        ({"kind": "smtp", "server": SECRET, "from": f"{SECRET}", "to": ["a@b.c"]}, "from: expected mail addresses"),
        ({"kind": "smtp", "server": SECRET, "from": "a@b.c", "to": [f"{SECRET}\n"]}, "to: expected a list of mail"),
        ({"kind": "command", "command": ["x"], "name": f"https://{SECRET}"}, "name: expected a name of at most 40"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_place_and_without_its_value(load, entry, says):
    with pytest.raises(ConfigError) as error:
        load(json.dumps({"targets": [{"name": "x"} | entry]}))
    assert says in str(error.value)
    assert SECRET not in str(error.value)
    assert error.value.__cause__ is None or SECRET not in str(error.value.__cause__)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no targets: expected a mapping with targets"),
        ("targets:", "no targets: the list is empty"),
        (f"targets: [{SECRET}", ":1: not YAML"),
        (f"- {SECRET}", ":1: expected a mapping of targets"),
        (f"targets: {SECRET}", "targets: expected a list"),
        (f"targets: [{SECRET}]", "expected a mapping of name, kind"),
        ("targets: [{name: c, kind: command, command: [x]}, {name: c, kind: command, command: [x]}]", "appears twice"),
    ],
)
def test_a_file_without_targets_is_refused(load, text, says):
    with pytest.raises(ConfigError) as error:
        load(text)
    assert says in str(error.value)
    assert SECRET not in str(error.value)
