"""Settings: conf/local.yml holds the defaults; every error is one line with its location."""

import ast
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from jobs.alerts import alert_thresholds
from jobs.command_line.settings_file import load_config
from jobs.config import Config, ConfigError, list_settings
from jobs.ingest_captures import reader_options
from jobs.run_all import queue_state_settings
from pipeline.alerts.conditions import Thresholds
from pipeline.bronze.capture_tasks import read_options
from pipeline.bronze.isolated_reads import IsolatedReadLimits
from pipeline.queues.queue_rows import QueueSettings
from udfs.capture.capture_reader import ReadOptions


def test_the_local_file_holds_every_setting_at_its_default(project):
    path = project / "conf" / "local.yml"
    assert load_config(path) == Config()
    written = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert {f"{section}.{name}" for section, values in written.items() for name in values} == list_settings().keys()


@pytest.mark.parametrize("name", ["databricks", "cluster"])
def test_the_files_for_production_hold_what_differs_from_the_defaults(project, name):
    """`tests/where` and `tests/user_code` run jobs with them."""
    written = yaml.safe_load((project / "conf" / f"{name}.yml").read_text(encoding="utf-8"))
    found, defaults = load_config(project / "conf" / f"{name}.yml"), Config()
    settings = [(section, setting) for section, values in written.items() for setting in values]
    assert settings
    for section, setting in settings:
        assert getattr(getattr(found, section), setting) != getattr(getattr(defaults, section), setting)


def test_every_setting_of_the_file_has_its_meaning_as_comment_above(project):
    section, comment, commented = "", [], {}
    for line in (project / "conf" / "local.yml").read_text(encoding="utf-8").split("\n"):
        name, colon, _ = line.strip().partition(":")
        if line.startswith("  #"):
            comment.append(line.strip("# "))
        elif line.startswith("  ") and colon:
            commented[f"{section}.{name}"] = " ".join(comment)
            comment = []
        elif colon:
            section = name
    assert commented.keys() == list_settings().keys()
    assert [key for key, setting in list_settings().items() if setting.meaning not in commented[key]] == []


def test_the_contracts_defaults():
    config = Config()
    assert (config.store.bodies, config.store.packets, config.store.stubs) == (False, False, True)
    assert config.pending.expire == timedelta(days=7)
    assert (config.reads.lost_after, config.reads.poison_after) == (timedelta(seconds=60), 3)
    assert config.capture.reorder_window_s == 2
    assert config.history.max_gap == timedelta(minutes=15)
    assert config.eod.resend_rise == 1
    assert config.timers.cleanup == timedelta(minutes=5)
    assert config.privacy.redact == ()


def test_what_rests_on_settings_has_their_defaults():
    assert alert_thresholds(Config()) == Thresholds()
    assert queue_state_settings(Config()) == QueueSettings()
    assert read_options(reader_options(Config())) == ReadOptions()  # decoders know no settings
    assert IsolatedReadLimits.of(reader_options(Config())) == IsolatedReadLimits()


def test_a_default_is_declared_once(project):
    """What else has a setting's value by default refers to its section, as in ``= HistoryConfig.max_gap``."""
    names = {key.partition(".")[2] for key, setting in list_settings().items() if type(setting.default) is not bool}
    modules = {*(project / "pipeline").rglob("*.py"), *(project / "jobs").rglob("*.py")}
    again = [
        f"{path.relative_to(project)}: {name} = {ast.unparse(value)}"
        for path in modules - {project / "pipeline" / "settings.py"}
        for name, value in defaults(ast.parse(path.read_text(encoding="utf-8")))
        if name in names and is_spelled_out(value)
    ]
    assert again == []


def defaults(module):
    """Yield (name, default) of the fields of classes and of the parameters of functions."""
    for node in ast.walk(module):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, node.value
        elif isinstance(node, ast.arguments):
            positional = [*node.posonlyargs, *node.args]
            yield from ((each.arg, value) for each, value in zip(positional[::-1], node.defaults[::-1], strict=False))
            yield from (
                (each.arg, value) for each, value in zip(node.kwonlyargs, node.kw_defaults, strict=True) if value
            )


def is_spelled_out(value):
    """Whether a default is a time span or a number above 1, in place of a reference."""
    return any(
        (isinstance(each, ast.Constant) and type(each.value) in {int, float} and each.value > 1)
        for each in ast.walk(value)
    )


def test_quotas_of_queue_managers_are_thresholds(tmp_path):
    (tmp_path / "c.yml").write_text("quotas:\n  machine: 2GiB\n  machines: [{machine: srv1, bytes: 8GiB}]\n")
    found = alert_thresholds(load_config(tmp_path / "c.yml"))
    assert (found.machine_quota_bytes, found.machine_quotas) == (2 << 30, {"srv1": 8 << 30})


def test_a_file_and_what_overrides_it(tmp_path):
    path = tmp_path / "c.yml"
    path.write_text(
        "reads: {poison_after: 5, lost_after: 500ms}\ncapture:\nprivacy:\n  redact: [hosts, labels, hosts]\n"
    )
    config = load_config(path, ["reads.poison_after=7", "capture.spool_bytes=2MiB", "lake.catalog=main"])
    assert config.reads.poison_after == 7
    assert config.reads.lost_after == timedelta(milliseconds=500)
    assert config.capture.spool_bytes == 2 << 20
    assert config.privacy.redact == ("hosts", "labels")
    assert config.lake.catalog == "main"
    assert config.store == Config().store


def test_an_empty_file_is_the_defaults(tmp_path):
    path = tmp_path / "c.yml"
    path.write_text("# nothing yet\n")
    assert load_config(path) == load_config(None) == Config()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("reads:\n  posion_after: 3", ":2: unknown setting reads.posion_after (there are lost_after, poison_after)"),
        ("\nraeds:\n  lost_after: 3s", ":2: unknown setting raeds (there are lake, run, ingest, capture, "),
        ("store: 3", ":1: store must hold settings"),
        ("- 1", ":1: the file must hold settings"),
        ("store:\n  stubs: 1", ":2: store.stubs: expected true or false, not 1"),
        ("store:\n  stubs: true\n  stubs: true", ":3: store.stubs appears twice"),
        ("store:\n  stubs: true\nstore:\n  stubs: true", ":3: store appears twice"),
        ("reads:\n  poison_after: true", ":2: reads.poison_after: expected a whole number, not True"),
        ("reads:\n  poison_after: 0", ":2: reads.poison_after: must be at least 1, not 0"),
        (
            "reads:\n  lost_after: 60",
            ":2: reads.lost_after: expected a duration like 500ms, 60s, 15m, 12h or 7d, not 60",
        ),
        ("reads:\n  lost_after: -1s", ":2: reads.lost_after: expected a duration"),
        ("reads:\n  lost_after: 999999999d", ":2: reads.lost_after: 999999999d is too long a time"),
        ("capture:\n  reorder_window_s: .nan", ":2: capture.reorder_window_s: must be at least 0, not nan"),
        ("capture:\n  block_bytes: 2GiB", ":2: capture.block_bytes: must be at most 1073741824, not 2GiB"),
        ("capture:\n  spool_bytes: 1MB", ":2: capture.spool_bytes: expected bytes, like 1048576 or 16MiB, not '1MB'"),
        (
            "privacy:\n  redact: [names]",
            ":2: privacy.redact: expected a list of labels, queues, hosts, addresses, senders",
        ),
        ("queues:\n  aliases: [[one]]", ":2: queues.aliases: expected a list of lists of two names or more"),
        ("queues:\n  aliases: [[one, 2]]", ":2: queues.aliases: expected a list of lists of two names or more"),
        ("queues:\n  aliases: one", ":2: queues.aliases: expected a list of lists of two names or more"),
        ("privacy:\n  redact: [[labels]]", ":2: privacy.redact: expected a list"),
        ("quotas:\n  machines: [{machine: srv1}]", ":2: quotas.machines[0]: bytes is missing"),
        ("quotas:\n  machines: [{bytes: 8GiB}]", ":2: quotas.machines[0]: machine is missing"),
        ("lake:\n  prefix: null", ":2: lake.prefix: expected text, not None"),
        ("lake:\n  catalog: !!python/object:os.system x", ":2: lake.catalog: could not determine a constructor"),
        ("reads: [", ":1: not YAML: "),
        ("\0", ": not YAML: "),
    ],
)
def test_what_is_wrong_in_a_file_is_one_line_with_its_place(tmp_path, text, complaint):
    path = tmp_path / "c.yml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        load_config(path)
    assert str(error.value).startswith(f"{path}{complaint}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("reads.poison_after", "--set reads.poison_after: expected key.path=value"),
        ("reads=3", "--set reads=3: unknown setting reads (there are lost_after, poison_after)"),
        ("a.b.c=3", "--set a.b.c=3: unknown setting a.b.c (there are lake, "),
        ("store.stubs=maybe", "--set store.stubs=maybe: store.stubs: expected true or false, not 'maybe'"),
        ("store.stubs=[", "--set store.stubs=[: not YAML: "),
    ],
)
def test_what_is_wrong_in_an_override_names_it(override, complaint):
    with pytest.raises(ConfigError) as error:
        load_config(None, [override])
    assert str(error.value).startswith(complaint)
    assert "\n" not in str(error.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.yml: No such file or directory$"):
        load_config(tmp_path / "none.yml")
    with pytest.raises(ConfigError, match=r": Is a directory$"):
        load_config(tmp_path)
    (tmp_path / "latin.yml").write_bytes(b"lake: \xe9")
    with pytest.raises(ConfigError, match=r"latin\.yml: not UTF-8 text at byte 6$"):
        load_config(tmp_path / "latin.yml")


@pytest.mark.parametrize("name", ["quality.suites", "privacy.scratch_folder", "collector.password_file"])
def test_places_in_settings_are_paths_or_file_uris(name):
    section, key = name.split(".")
    for form in ("/a b", "file:///a%20b", "file:/a%20b"):
        assert getattr(getattr(load_config(None, [f"{name}={form}"]), section), key) == Path("/a b")
    with pytest.raises(ConfigError, match=f"{name}: s3://bucket/x: not a place on this machine"):
        load_config(None, [f"{name}=s3://bucket/x"])
    with pytest.raises(ConfigError, match=f"{name}: expected text, not 5"):
        load_config(None, [f"{name}=5"])
