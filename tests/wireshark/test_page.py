"""The page on Wireshark shows what tshark prints, and its filters and preferences exist."""

from __future__ import annotations

import re

import pytest

from tools.write_wireshark_page import PAGE, page_with_outputs, picture
from wireshark.shown import run_tshark

pytestmark = pytest.mark.tool("tshark")
TEXT = PAGE.read_text(encoding="utf-8")


def cells(heading):
    """The first cells of the table in a section, without backticks."""
    section = TEXT.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `(.+?)` \|", section, re.MULTILINE)


def test_outputs_are_those_of_today():
    """`make wireshark-doc` writes them again."""
    assert TEXT.count("make wireshark-doc") == 2
    assert page_with_outputs(TEXT) == TEXT


def test_filters_and_preferences_of_the_page_exist(project):
    filters, preferences = cells("Filters"), cells("Preferences")
    assert len(filters) > 8
    assert len(preferences) == 3
    given = {"msmq.tcp_ports": "1801", "msmq.udp_ports": "3527", "msmq.rpc": "TRUE"}
    options = [item for name in preferences for item in ("-o", f"{name}:{given[name]}")]
    one = " || ".join(f"({each})" for each in [*filters, *re.findall(r"`(msmq\.[a-z_]+\.[a-z_]+)`", TEXT)])
    recording = project / "data" / "transfers" / "01-handshakes.pcap"
    assert run_tshark(recording, *options, "-Y", one) != ""


def test_the_picture_shows_a_message_and_what_acknowledged_it():
    drawn = picture()
    for text in (
        "&quot;final ack wanted&quot;",
        "transaction number: 1",
        "acknowledged in: 14",
        "acknowledgement in: 16",
    ):
        assert text in drawn
