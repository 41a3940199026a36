"""What pages show of commands is what the commands print now."""

import re

import pytest

from tools.write_command_outputs import ROOT, lakes_below, marked_pages, output_of, page_with_outputs

STALL = "data/transfers/08-stall.pcap.gz"
PAGE = """
```
msmq queue --lake /data/lake 'c\\0000000a'
```

<!-- output, lake of data/transfers/08-stall.pcap.gz: `make outputs-doc` writes it -->
```text
It is well.
```
"""


@pytest.fixture(scope="module")
def make_lake(tmp_path_factory):
    return lakes_below(tmp_path_factory.mktemp("lakes"))


def text_of(page):
    return page.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", marked_pages(), ids=lambda page: page.name)
def test_a_page_shows_what_commands_print(page, make_lake):
    """`make outputs-doc` writes the pages again."""
    assert text_of(page) == page_with_outputs(text_of(page), make_lake)


def test_each_command_from_an_alert_to_its_packets_names_the_next_one():
    steps = text_of(ROOT / "docs/guides/operations.md").partition("### From an alert to its packets\n")[2]
    alerts, queue, export = re.findall(
        r"   ```\n   (msmq .*)\n   ```\n\n.*\n   ```text\n((?:   .*\n)+?)   ```\n", steps
    )
    assert [said.split()[1] for said, _ in (alerts, queue, export)] == ["alerts", "queue", "export_packets"]
    assert f"packets   {export[0]}\n" in queue[1]


def test_a_page_that_is_not_current_is_written_again(make_lake):
    written = page_with_outputs(PAGE, make_lake)
    assert written.partition("```text\n")[0] == PAGE.partition("```text\n")[0]
    assert "  TROUBLE since 2026-11-21 12:36:46: the receiver refuses the sequence" in written
    assert "It is well." not in written
    assert str(ROOT) not in written
    assert '"job"' not in written
    indented = "".join(f"   {line}" if line.strip() else line for line in PAGE.splitlines(keepends=True))
    assert re.sub("^   ", "", page_with_outputs(indented, make_lake), flags=re.MULTILINE) == written


def test_a_marker_without_its_two_blocks_is_refused(make_lake):
    with pytest.raises(SystemExit, match="each marker"):
        page_with_outputs(PAGE.replace("```text", "```"), make_lake)


@pytest.mark.parametrize("command", ["msmq queue --lake /data/lake", "ls /data/lake"])
def test_a_command_that_fails_is_no_output(command, make_lake):
    with pytest.raises(SystemExit, match=r"exit code 2|not a command"):
        output_of(command, make_lake(STALL))
