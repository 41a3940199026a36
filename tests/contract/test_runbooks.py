"""The runbooks: msmq takes their commands, what they name exists, and each fact about Windows has a source."""

import re

import pytest

from contract.test_pages import FENCE, commands
from jobs.command_line.parsers import build_parser
from pipeline.alerts.conditions import CONDITIONS
from pipeline.reports.views.catalog import VIEWS_BY_NAME
from schemas import catalog
from tools.write_questions_doc import runbooks

SECTIONS = ["What it means", "See it", "Check on Windows", "Do", "What it costs", "See that it worked"]
MOST_LINES = 80  # a screen and a half
SOURCE = re.compile(r"\]\(https?://|\[M[SC]-[A-Z]+\] \d|not verified on Windows")
# https://learn.microsoft.com/en-us/powershell/module/msmq
CMDLETS = {
    "Clear-MsmqOutgoingQueue", "Clear-MsmqQueue", "Get-MsmqOutgoingQueue", "Get-MsmqQueue", "Get-MsmqQueueManager",
    "Move-MsmqMessage", "Receive-MsmqQueue", "Resume-MsmqOutgoingQueue", "Set-MsmqQueue", "Set-MsmqQueueACL",
    "Set-MsmqQueueManager", "Suspend-MsmqOutgoingQueue",
}  # fmt: skip

STATES = {"sequence_behind"}  # of gold.eod_sources.disagrees_with_sender


@pytest.fixture(scope="module")
def texts(project):
    """The text of each runbook, by its file name."""
    pages = sorted((project / "docs" / "runbooks").glob("*.md"))
    return {page.name: page.read_text(encoding="utf-8") for page in pages if page.name != "README.md"}


def sections(text):
    """The sections of a page by heading."""
    parts = re.split(r"^## (.*)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def items(section):
    """The list items of a section, each as one line without its code block."""
    plain = FENCE.sub("", section)
    return [" ".join(item.split()) for item in re.split(r"^(?:\* |\d+\. )", plain, flags=re.MULTILINE)[1:]]


def test_each_runbook_is_for_conditions_that_there_are_as_the_index_says(texts):
    listed = runbooks()
    assert set(listed) <= CONDITIONS.keys()
    assert set(listed.values()) == texts.keys()
    assert len(texts) == 10
    for name, text in texts.items():
        (said,) = re.findall(r"^For (.*)\.$", text, re.MULTILINE)
        assert re.findall(r"`(\w+)`", said) == [condition for condition, page in listed.items() if page == name]


def test_each_runbook_has_the_sections_and_is_short(texts):
    assert {name: list(sections(text)) for name, text in texts.items()} == dict.fromkeys(texts, SECTIONS)
    assert [name for name, text in texts.items() if text.count("\n") > MOST_LINES] == []


def test_each_fact_about_windows_has_a_source_or_says_that_it_was_not_verified(texts):
    facts = [
        (name, item)
        for name, text in texts.items()
        for heading in ("Check on Windows", "Do", "What it costs")
        for item in items(sections(text)[heading])
    ]
    assert len(facts) > 80
    assert [fact for fact in facts if not SOURCE.search(fact[1])] == []


def test_each_runbook_shows_the_alert_and_how_it_ends(texts):
    for text in texts.values():
        begin, end = (commands(sections(text)[heading]) for heading in ("See it", "See that it worked"))
        assert any(job == "alerts" for job, *_ in begin)
        assert any(job == "alerts" and "--ended" in arguments for job, *arguments in end)


def test_what_the_commands_name_exists(texts):
    for job, *arguments in (command for text in texts.values() for command in commands(text)):
        parsed = build_parser(job).parse_args(arguments)
        assert parsed.lake == "/data/lake"
        if job == "alerts":
            assert set(parsed.condition) <= CONDITIONS.keys()
        if job == "ask":
            assert_can_be_asked(parsed)


def assert_can_be_asked(parsed):
    assert parsed.questions
    for view in (VIEWS_BY_NAME[name] for name in parsed.questions):
        assert parsed.machine is None or view.scope.machines, f"{view.name} --machine"
        assert parsed.queue is None or view.scope.queues, f"{view.name} --queue"


def test_tables_columns_and_cmdlets_that_are_named_exist(texts):
    tables = {str(table) for table in catalog.ALL_TABLES}
    names = {name for table in catalog.ALL_TABLES for name in table.names} | VIEWS_BY_NAME.keys() | CONDITIONS.keys()
    for text in texts.values():
        assert set(re.findall(r"`((?:bronze|silver|gold)\.\w+)`", text)) <= tables
        assert set(re.findall(r"`([a-z]+(?:_[a-z]+)+)`", text)) <= names | STATES
        assert set(re.findall(r"\b[A-Z][a-z]+-Msmq\w+", text)) <= CMDLETS
