"""The targets that are shipped, and the files of users: what is read, and what is refused with its place."""

import math
import re
from contextlib import suppress
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.reports.targets.facts import FACTS
from pipeline.reports.targets.target_file import DocumentedValue, TargetError, bundled_targets, read_targets
from pipeline.yaml_file import YamlFile

NAMES = [
    "Amazon SQS, standard queue",
    "Amazon SQS, FIFO queue",
    "Azure Service Bus, standard tier",
    "Azure Service Bus, premium tier",
    "Apache Kafka 4.3, topic",
    "RabbitMQ 4.3, quorum queue",
    "RabbitMQ 4.3, classic queue",
]
GIVEN = """\
product: Own
sources:
  manual: {address: https://example.com/manual, as_of: 2026-01-31, checked: 2026-02-01}
facts:
  order: {value: yes, source: manual, says: In order.}
targets:
  queue:
    message_bytes:
      value: 2 MiB
      source: manual
      default: {value: 256 KB, source: manual, change: Ask for more.}
    priorities: {value: unlimited, source: manual}
    encryption: {value: no}
"""


@pytest.fixture
def read(tmp_path):
    def read_text(text):
        path = tmp_path / "own.yml"
        path.write_text(text, encoding="utf-8")
        return read_targets([path])

    return read_text


def statements(target):
    for name, fact in target.facts.items():
        yield name, fact.limit
        if fact.default is not None:
            yield f"{name}, default", fact.default


def test_what_is_shipped():
    assert [target.name for target in bundled_targets()] == NAMES


@pytest.mark.parametrize("target", bundled_targets(), ids=lambda target: target.name)
def test_each_shipped_fact_says_where_it_stands_and_when_that_was_checked(target):
    assert {*target.facts} == {*FACTS}  # also those that are unknown, with what was looked for
    for name, stated in statements(target):
        assert stated.says, name  # of an unknown one, why it is unknown
        if stated.value is not None:
            assert stated.source.address.startswith("https://"), name
            assert date(2026, 11, 1) <= stated.source.checked, name
            assert stated.source.as_of is None or stated.source.as_of <= stated.source.checked, name
    assert not target.facts["queued_components"].limit.value


def test_no_shipped_source_is_without_a_fact(project):
    for path in (project / "conf" / "targets").glob("*.yml"):
        text = path.read_text(encoding="utf-8")
        sources = re.findall(r"^  (\w+):\n    address:", text, re.MULTILINE)
        assert sources
        assert {*sources} == {*re.findall(r"source: (\w+)", text)}, path.name


def test_a_file_of_a_user(read):
    (target,) = read(GIVEN)
    assert target.name == "Own, queue"
    source = target.facts["order"].limit.source
    assert (source.address, source.as_of, source.checked) == (
        "https://example.com/manual", date(2026, 1, 31), date(2026, 2, 1),
    )  # fmt: skip
    assert target.facts["order"].limit == DocumentedValue(1, "yes", source, "In order.")
    size = target.facts["message_bytes"]
    assert size.limit == DocumentedValue(2 * 1024 * 1024, "2 MiB", source, None)
    assert size.default == DocumentedValue(256_000, "256 KB", source, None, "Ask for more.")
    assert target.facts["priorities"].limit.value == math.inf


def test_a_fact_without_a_source_is_unknown(read):
    (target,) = read(GIVEN)
    assert target.facts["encryption"].limit == DocumentedValue(None, "unknown", None, None)


def test_facts_of_a_target_come_before_those_of_the_product(read):
    own = "    order: {value: no, source: manual}\n"
    (target,) = read(GIVEN + own)
    assert target.facts["order"].limit.value == 0


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (GIVEN, "", ": no targets: expected a mapping of product, sources, facts, targets"),
        (GIVEN, "product: [", ":1: not YAML"),
        (GIVEN, "- 1", ":1: the file: expected a mapping of product, targets, sources, facts"),
        (GIVEN, "product: Own", ":1: the file: targets is missing"),
        ("targets:", "target:", ":6: the file: unknown name target (there are product, targets, sources, facts)"),
        ("product: Own", "product: {a: b}", ":1: product: expected text"),
        ("product: Own", f"product: {'a' * 61}", ":1: product: expected at most 60 characters, all printable"),
        ("product: Own", 'product: "\\u202eA"', ":1: product: expected at most 60 characters, all printable"),
        ("  order:", "  ordr:", ":5: facts: unknown name ordr (there are message_bytes, binary_bodies"),
        ("    priorities:", "    message_bytes:", ":12: targets: queue: message_bytes appears twice"),
        ("value: yes", "value: true", ":5: facts: order: value: expected yes, no or unknown, not true"),
        ("2 MiB", "2", ":9: targets: queue: message_bytes: value: expected a number and its unit (bytes, KB, MB"),
        ("2 MiB", "-2 MiB", ":9: targets: queue: message_bytes: value: expected a number and its unit"),
        ("2 MiB", "2 d", ":9: targets: queue: message_bytes: value: expected a number and its unit"),
        ("2 MiB", "1e9 MiB", ":9: targets: queue: message_bytes: value: expected a number and its unit"),
        ("2 MiB", "9999999999999 MiB", ":9: targets: queue: message_bytes: value: expected a number and its unit"),
        ("value: unlimited", "value: 8 d", ":12: targets: queue: priorities: value: expected a whole number, unlim"),
        ("256 KB", "lots", ":11: targets: queue: message_bytes: default: value: expected a number and its unit"),
        ("default: {value: 256 KB,", "default: {", ":11: targets: queue: message_bytes: default: value is missing"),
        ("source: manual, says", "source: man, says", ":5: facts: order: no source man (there are manual)"),
        ("In order.", "a" * 501, ":5: facts: order: says: expected at most 500 characters"),
        ("https:", "http:", ":3: sources: manual: address: expected https://..., not http://example.com/manual"),
        ("https:", "javascript:", ":3: sources: manual: address: expected https://..."),
        ("manual,", "<script>,", ":3: sources: manual: address: expected https://..., not https://example.com/<script>"),
        ("2026-01-31", "31.1.2026", ":3: sources: manual: as_of: expected a date like 2026-01-31, not 31.1.2026"),
        (", checked: 2026-02-01", "", ":3: sources: manual: checked is missing"),
        ("  queue:", f"  {'q' * 61}:", ":7: targets: a name: expected at most 60 characters"),
        ("  queue:", "  ? [a]\n  :", ":7: targets: a name: expected text"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused_with_its_place(read, old, new, message):
    with pytest.raises(TargetError, match=rf"own\.yml{re.escape(message)}"):
        read(GIVEN.replace(old, new, 1))


def nested(depth):
    return "product: " + "[" * depth + "]" * depth


BILLION_LAUGHS = "a: &a [x]\n" + "".join(
    f"{chr(98 + each)}: &{chr(98 + each)} [{', '.join([f'*{chr(97 + each)}'] * 9)}]\n" for each in range(8)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BILLION_LAUGHS, ":2: not YAML: aliases are not allowed"),
        ("facts: &a\n  order: *a\n", ":2: not YAML: aliases are not allowed"),
        (nested(21), ":1: not YAML: deeper than 20"),
        (nested(30_000), ":1: not YAML: deeper than 20"),
        ("product: !!python/object/apply:os.system [ls]\ntargets: {}", ":1: product: expected text"),
        (f"product: {'a' * 65_536}", ": more than 65536 bytes"),
        ("product: Own\ntargets: {" + ", ".join(f"t{each}: {{}}" for each in range(11)) + "}", ":2: targets: 11, at"),
        ("product: '\udcff'", ": not YAML: 'utf-8' codec"),
        ("product: a\0b", ": not YAML: unacceptable character"),
    ],
    ids=["billion laughs", "of itself", "deep", "very deep", "python", "large", "many", "bytes", "control"],
)
def test_hostile_files_are_refused_at_once(tmp_path, text, message):
    path = tmp_path / "own.yml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(TargetError, match=rf"own\.yml{re.escape(message)}"):
        read_targets([path])


@settings(max_examples=100, deadline=None)
@given(st.integers(0, len(GIVEN)), st.integers(0, 40), st.text(max_size=30))
def test_any_other_text_is_read_or_refused(tmp_path_factory, begin, length, text):
    path = tmp_path_factory.getbasetemp() / "changed.yml"
    changed = GIVEN[:begin] + text + GIVEN[begin + length :]
    path.write_bytes(changed.encode(errors="surrogatepass"))
    with suppress(TargetError):
        assert all(target.name.isprintable() for target in read_targets([path]))


def test_all_files_together_are_bounded_and_their_names_differ(tmp_path):
    def file(number, product):
        path = tmp_path / f"{number}.yml"
        path.write_text(f"product: {product}\ntargets: {{{', '.join(f't{each}: {{}}' for each in range(9))}}}")
        return path

    with pytest.raises(TargetError, match=r"1\.yml: there is another target A, t0"):
        read_targets([file(0, "A"), file(1, "A")])
    with pytest.raises(TargetError, match="45 targets: at most 40"):
        read_targets([file(number, f"A{number}") for number in range(5)])


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(TargetError, match=r"none\.yml: No such file"):
        read_targets([tmp_path / "none.yml"])


def test_other_files_may_have_aliases_but_are_not_too_deep(tmp_path):
    path = Path(tmp_path, "any.yml")
    path.write_text("a: &a x\nb: *a\n")
    assert YamlFile(path, TargetError).root().value[1][1].value == "x"
    path.write_text(nested(50))
    with pytest.raises(TargetError, match="deeper than 20"):
        YamlFile(path, TargetError).root()


def test_a_fact_is_described_once():
    assert len({fact.about for fact in FACTS.values()}) == len(FACTS)
