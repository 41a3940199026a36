"""The page in headless Chromium: drawing, filters, links, no network requests, no markup from data."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from dashboards.sites import (
    GUIDS,
    NOON,
    alert,
    attempt,
    call,
    data,
    evidence,
    host,
    latency,
    message_transfer,
    nothing_on_tcp_1801,
    point,
    quality,
    queue,
    session,
    site,
    transfer_sequence,
)
from example_counts import one_in
from hostile import MARKUP
from pipeline.dashboards.dashboard_data import DatasetRows
from pipeline.dashboards.html_page import render_page
from pipeline.quality.results_page import render_results
from pipeline.queues.history import NOT_CONNECTED_STATES, STATE_ON_HOLD

BEGIN = NOON - timedelta(minutes=15)
SECTIONS = (
    "overview", "alerts", "queues", "transfers", "eod", "reads", "calls", "comqc", "findings", "quality", "coverage",
)  # fmt: skip
DRAWN = "document.querySelectorAll('.chart.js-plotly-plot').length"
HEADING = "[...document.querySelectorAll('h2')].find((each) => each.textContent === 'All receives and peeks')"
RECEIVES = f"{HEADING}.nextElementSibling"
A4 = 718  # CSS pixels between margins of 1 cm
TOO_WIDE = f"""[...document.querySelectorAll('main *')]
    .filter((each) => !each.closest('svg') || each.matches('svg.main-svg'))
    .filter((each) => each.getBoundingClientRect().right > {A4} + 1).map((each) => each.outerHTML.slice(0, 80))"""
_TILES = """[...document.querySelectorAll('a.tile')]
    .map((each) => [each.innerText.split('\\n')[0], each.className, each.innerText])"""
FIRST_TABLE = "[...document.querySelector('main table').querySelectorAll('tbody tr')]"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """HTML files of dashboards: ordinary, with hostile names, with very many rows, with all states, with checks."""
    folder = tmp_path_factory.mktemp("site")
    made = {"plain": site(), "hostile": site(names=MARKUP), "large": large(), "states": states(), "checked": checked()}
    for name, each in made.items():
        (folder / f"{name}.html").write_text(render_page(each), encoding="utf-8")
    return {name: folder / f"{name}.html" for name in made}


def states():
    """Dashboard data with a queue in each state, the first of which holds a message."""
    each = (*NOT_CONNECTED_STATES, "INACTIVE", STATE_ON_HOLD, "CONNECTED", "LOCAL CONNECTION")
    return site(queues=data([queue(f"q{n}", n, state=state, message_count=int(not n)) for n, state in enumerate(each)]))


def checked():
    """Dashboard data with results of one expectation in two suites, one of them failed, and with extreme times."""
    wrong = {
        "success": False,
        "suite": "pending",
        "table": "bronze.pending",
        "observed": "1 of 4 rows",
        "unexpected": 3,
    }
    wrong |= {"key_column": "attempt_key", "failed_keys": ["a1", "it's"], "limits": "attempt_key: no value twice"}
    history = [quality("keys_unique", 1), quality("keys_unique", 2, **wrong)]
    history.append(quality("keys_unique", 3, **{**wrong, "success": True, "unexpected": 0, "run_at": NOON}))
    said = {"framework": "NServiceBus", "conversation_id": "7f1c-talk", "application_message_id": "3e-own",
            "related_to": "2d-cause", "sent_types": "Sales.Order, Sales, <b>", "failed_queue": "billing@hq",
            "exception_type": "System.TimeoutException", "delayed_retries": 0}  # fmt: skip
    label = {"message_key": "m1", "label": "order", "message_id": "6b29fc40-ca47-1067-b31d-00dd010662da\\7"}
    labels = data([label | said])
    late = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    return site(
        hosts=data([host(1), host(2, address=None)]),
        alerts=data([alert("queue manager 6b29fc40", 1, **evidence("h1", "h2"))]),
        quality=data(history[:2]),
        quality_history=data(history),
        labels=labels,
        attempts=data([attempt("a", n, started_at=moment) for n, moment in enumerate((NOON, late), 1)]),
    )


def large():
    """Dashboard data of a thousand queues, and of a million attempts as aggregates and first rows."""
    names = [f"srv{number % 9}\\private$\\queue{number:04}" for number in range(1000)]
    groups = [
        {
            "started_at": NOON + timedelta(hours=number // 1000), "protocol": "RemoteRead",
            "queue": names[number % 1000], "inferred_queue": None, "server_address": f"10.0.0.{number % 9}",
            "client_address": "10.1.0.1",
            "outcome": ("acked", "expired")[number % 10 == 0], "n": 100, "wait_ms": 5.0, "hold_ms": 6.0,
        }
        for number in range(10_000)
    ]  # fmt: skip
    truncated = {
        "total_rows": 1_000_000,
        "selection": "the newest of each queue",
        "summary": data(groups).rows,
        "summary_step_s": 3600,
    }
    return site(
        queues=data([queue(name, number) for number, name in enumerate(names, 1)]),
        attempts=data([attempt(names[number % 1000], number) for number in range(5000)], **truncated),
        **many_transfers(names),
    )


def many_transfers(names):
    """The datasets of a million messages between three machines: first rows, and aggregates over all."""
    ends = [{"sender_address": f"10.0.0.{n}", "sender_queue_manager": (GUIDS[0], None)[n]} for n in (0, 1)]
    messages = [
        message_transfer(names[n], n, n=n_rows, sendings=n_rows * 5 // 4, outcome=outcome, **end)
        for n, end in enumerate(ends)
        for outcome, n_rows in (("delivered", 400_000), ("rejected", 100_000))
    ]
    kept = (
        "queue",
        "message_kind",
        "outcome",
        "not_delivered",
        "first_sent_at",
        "packet_bytes",
        "resent_bytes",
        "sendings",
        "n",
    )
    hop = ("sender_queue_manager", "receiver_queue_manager", "sender_address", "receiver_address")
    latencies = [
        latency(0, stage, ms, n=n_rows, **end)
        for end in ends
        for stage in ("session ack", "order ack")
        for ms, n_rows in ((10.0, 900), (1000.0, 90), (60_000.0, 10))
    ]
    classes = (*hop, "first_sent_at", "stage", "latency_ms", "n")
    steps = [{"sequence_key": "z1", "observed_at": at_step, "number": 100, "event": event, "n": 60}
             for event in ("sent", "acknowledged") for at_step in (NOON, NOON + timedelta(hours=1))]  # fmt: skip

    def cut(rows, summary, total, columns=None):
        summary = [{name: row[name] for name in columns or row} for row in summary]
        fields = {"total_rows": total, "selection": "the newest of each pair", "summary_step_s": 3600}
        return data(rows, summary=data(summary).rows, **fields)

    return {
        "message_transfers": cut([message_transfer("q", n) for n in range(100)], messages, 1_000_000, (*hop, *kept)),
        "transfer_latencies": cut([latency(1, "session ack", 5.0)], latencies, 2_000_000, classes),
        "transfer_sequences": data([transfer_sequence(names[0], 1)]),
        "sequence_points": cut([point(1, 1, "sent")], steps, 240),
    }  # fmt: skip


def text(at, selector="main"):
    return at.run(f"document.querySelector({json.dumps(selector)}).textContent")


def test_every_section_draws(at, pages):
    at.open(pages["plain"])
    for section in SECTIONS:
        at.go(f"#{section}")
        assert at.run("document.querySelector('nav a[aria-current]').hash") == f"#{section}"
        assert len(text(at)) > 20
    at.go("#queues")
    assert at.wait(DRAWN) == 3  # states, messages and bytes; there is nothing in a journal
    assert "not computed: the lake has no gold.quality_results" in (at.go("#quality") or text(at))


def test_the_overview_says_what_is_wrong_and_leads_to_its_rows(at, pages):
    at.open(pages["plain"])
    assert "transfers with problems (2)" in text(at, ".verdict")
    tiles = at.run(
        "[...document.querySelectorAll('a.tile')].map((each) => [...each.innerText.split('\\n'), each.hash])"
    )
    assert [tile[:2] for tile in tiles] == [
        ["active alerts", "2"], ["queues not connected", "0"], ["queues in unknown state", "0"],
        ["messages not delivered", "0"], ["messages delivered, not read", "0"], ["sequences stuck", "2"],
        ["sessions refused", "0"],
        ["transfers with problems", "2"], ["rejected senders", "\u2013"], ["messages at risk", "2"],
        ["unsuccessful receives", "0"], ["failed calls", "0"], ["rule violations (error)", "2"],
        ["failed quality checks", "not computed"], ["captures not read whole", "0"],
    ]  # fmt: skip
    for _, number, _, address in tiles:
        at.go(address)
        if not number.isdigit():
            continue
        name = at.run("STATE.params.show")
        table = f"document.querySelector('[data-rows={name}]')"
        assert at.run(f"{table}.querySelectorAll('tbody tr').length") == int(number)
        top = at.run(f"{table}.getBoundingClientRect().top")
        below = at.run("document.querySelector('header').getBoundingClientRect().bottom")
        assert below <= top < 500, (name, top)
    at.go("#reads?_wrong=yes&show=attempts")
    assert "no data for these filters" in text(at, ".chart")  # the charts are filtered like the rows


def test_a_number_leads_to_its_rows_within_the_section_too(at, pages):
    at.open(pages["large"], "#reads")
    at.run("[...document.querySelectorAll('a.tile')].find((each) => each.innerText.startsWith('acked')).click()")
    at.wait("location.hash.includes('outcome=acked')")
    assert 0 < at.run(f"{HEADING}.getBoundingClientRect().top") < 500
    assert at.run("window.scrollY") > 0


def test_a_site_of_captures_that_could_not_be_read_says_so_and_shows_no_green(at, tmp_path):
    nothing = {name: data([]) for name in site().datasets}
    unread = {"capture_id": "one", "path": "/captures/one.pcap", "status": "unreadable", "last_packet_at": None}
    some = {"hour": None, "server_address": None, "layer": "capture", "measure": "files", "value": 1}
    found = nothing | {
        "quality": data([quality("keys_unique", 1, evaluated=0)]),
        "captures": data([unread]),
        "coverage": data([some, some | {"measure": "files_unreadable"}]),
    }
    (tmp_path / "unread.html").write_text(render_page(site(**found)), encoding="utf-8")
    at.open(tmp_path / "unread.html")
    assert text(at, ".verdict") == "Nothing could be read. Captures not read: 1."
    assert at.run("document.querySelector('.verdict').className.trim()") == "verdict"
    tiles = dict(
        at.run(
            "[...document.querySelectorAll('a.tile')].map((each) => [each.innerText.split('\\n')[0], each.className])"
        )
    )
    assert {name for name, look in tiles.items() if look != "tile unknown"} == {"captures not read whole"}
    assert tiles["captures not read whole"] == "tile bad"
    for section in SECTIONS:
        at.go(f"#{section}")
        assert at.run("document.querySelectorAll('.verdict.ok, .tile.ok').length") == 0, section


def test_calls_whose_result_is_not_known_are_no_good_sign(at, tmp_path):
    sealed = [call("k1", 1, outcome="encrypted", result="encrypted", sealed=True)]
    names = ("queues", "transfers", "alerts", "sequences", "attempts", "findings")
    nothing = {name: data([]) for name in names} | nothing_on_tcp_1801()
    (tmp_path / "sealed.html").write_text(render_page(site(calls=data(sealed), **nothing)), encoding="utf-8")
    at.open(tmp_path / "sealed.html")
    assert text(at, ".verdict").startswith("Nothing is known: the captures show no call whose result can be read")
    tile = "[...document.querySelectorAll('a.tile')].find((each) => each.innerText.startsWith('failed calls'))"
    assert at.run(f"[{tile}.className, {tile}.querySelector('.value').textContent]") == ["tile unknown", "\u2013"]


@pytest.mark.parametrize(
    ("seen", "missing"),
    [
        (("calls",), "reports of queues, messages on TCP 1801"),
        (("message_transfers", "sessions"), "RPC calls, reports of queues"),
        (("queues", "intervals"), "RPC calls, messages on TCP 1801"),
    ],
)
def test_what_was_seen_of_one_kind_alone_is_no_good_sign_for_all(at, tmp_path, seen, missing):
    nothing = {name: data([]) for name in site().datasets if name not in ("captures", "coverage")}
    innocent = {
        "calls": data([call("k1", 1)]), "message_transfers": data([message_transfer("m", 1, outcome="received")]),
        "sessions": data([session(1)]), "queues": data([queue("q", 1, state="CONNECTED")]), "intervals": data([]),
    }  # fmt: skip
    found = nothing | {name: innocent[name] for name in seen} | {"quality": data([quality("keys_unique", 1)])}
    (tmp_path / "one.html").write_text(render_page(site(**found)), encoding="utf-8")
    at.open(tmp_path / "one.html")
    assert f"Nothing was seen of {missing}." in text(at, ".verdict")
    assert at.run("document.querySelector('.verdict').className.trim()") == "verdict"
    tiles = {name: (look, said) for name, look, said in at.run(_TILES)}
    for name in ("active alerts", "rule violations (error)"):
        assert tiles[name][0].strip() == "tile"
        assert f"nothing was seen of {missing}" in tiles[name][1]
    assert tiles["failed quality checks"][0] == "tile ok"


def test_captures_without_msmq_show_no_green(at, tmp_path):
    nothing = {name: data([]) for name in site().datasets}
    capture = {"capture_id": "one", "path": "/captures/one.pcap", "status": "complete", "last_packet_at": NOON}
    empty = {"packets": 9, "packets_used": 0, "packets_binary_protocol": 0}
    found = nothing | {"captures": data([capture | empty]), "quality": data([quality("keys_unique", 1)])}
    (tmp_path / "http.html").write_text(render_page(site(**found)), encoding="utf-8")
    at.open(tmp_path / "http.html")
    assert "no capture holds MSMQ (wrong interface or ports?)" in text(at, ".verdict")
    assert {look for _, look, _ in at.run(_TILES)} == {"tile unknown"}
    at.open(tmp_path / "http.html", "#quality")
    assert at.run("document.querySelectorAll('.verdict.ok').length") == 0


def test_a_queue_of_unknown_state_shows_its_last_report_and_since_when(at, tmp_path):
    rows = [queue("q", 7, reported_at=BEGIN, known_until=NOON, state="CONNECTED")]
    (tmp_path / "unknown.html").write_text(render_page(site(queues=data(rows))), encoding="utf-8")
    at.open(tmp_path / "unknown.html", "#queues")
    cells = "[...document.querySelector('main tbody tr').cells].map((each) => [each.dataset.label, each.textContent])"
    shown = dict(at.run(cells))
    assert {name: shown[name] for name in ("state", "unknown since", "last state", "messages", "last report")} == {
        "state": "UNKNOWN", "unknown since": "2024-05-01 12:00:00", "last state": "CONNECTED", "messages": "7",
        "last report": "2024-05-01 11:45:00",
    }  # fmt: skip


def test_queue_managers_and_actions_stand_with_the_queues(at, pages):
    at.open(pages["plain"], "#queues")
    table = "document.querySelector('[data-rows=\"{}\"] tbody')"
    cells = "[...{}.rows].map((row) => [...row.cells].map((each) => each.textContent))"
    machines = at.run(cells.format(table.format("machines")))
    assert [row[:3] for row in machines] == [["srv1", "CONNECTED", "CONNECTED"], ["relay", "UNKNOWN", "CONNECTED"]]
    actions = at.run(cells.format(table.format("actions")))
    assert {(row[1], row[-2], row[-1]) for row in actions} == {("PAUSE", "CONNECTED", "ONHOLD")}


PAIRS = "[...document.querySelector('main table').querySelectorAll('tbody tr')]"
SHOWN = f"{PAIRS}.map((row) => [...row.cells].map((cell) => cell.innerText))"


def heading(title):
    return f"[...document.querySelectorAll('h2')].find((each) => each.textContent === '{title}')"


def test_transfers_begin_with_who_sends_to_whom(at, tmp_path):
    again = message_transfer("q", 3, sendings=4, resent_bytes=3672, outcome="rejected", first_sent_at=NOON,
                             not_delivered="never_arrived")  # fmt: skip
    unnamed = message_transfer("q", 4, sender_queue_manager=None, sender_address="10.0.0.9", outcome="in_flight")
    rows = [message_transfer("q", 1), message_transfer("q", 2), again, unnamed]
    found = {
        "message_transfers": data(rows),
        "transfer_latencies": data([latency(n, "session ack", n * 100.0) for n in range(1, 11)]),
        "transfer_sequences": data([transfer_sequence("q", 1), transfer_sequence("q", 2, waiting=0)]),
    }  # fmt: skip
    (tmp_path / "pairs.html").write_text(render_page(site(**found)), encoding="utf-8")
    at.open(tmp_path / "pairs.html", "#transfers")
    headings = at.run("[...document.querySelectorAll('main h2')].map((each) => each.textContent)")
    assert headings == [
        "Who sends to whom", "Sequences: numbers over time", "All sequences", "Sessions", "Messages by outcome",
        "All messages",
    ]  # fmt: skip
    assert at.run(SHOWN) == [
        ["relay1\n10.0.0.1\n6b29fc40\u2026", "10.0.0.7\n7c29fc40\u2026", "3", "3.6 KiB", "50.0 %, 3.6 KiB",
         "500 ms / 1.0 s", "\u2013", "\u2013", "0", "2", "1"],
        ["10.0.0.9", "10.0.0.7\n7c29fc40\u2026", "1", "1.2 KiB", "none", "\u2013", "\u2013", "\u2013", "1", "\u2013",
         "0"],
    ]  # fmt: skip
    for pair, cell, name, keys in (
        (0, 0, "message_transfers", ["t1", "t2", "t3"]), (1, 0, "message_transfers", ["t4"]),
        (0, 4, "message_transfers", ["t3"]), (0, 10, "message_transfers", ["t3"]),
        (1, 8, "message_transfers", ["t4"]), (0, 9, "transfer_sequences", ["z1"]),
    ):  # fmt: skip
        at.go("#transfers")
        at.go(at.run(f"{PAIRS}[{pair}].cells[{cell}].querySelector('a').hash"))
        assert at.run("STATE.params.show") == name
        column = at.run(f"FILTER_COLUMNS.{name}.key")
        kept = (
            f"filterRows('{name}', DATA.{name}.rows, STATE.params).map((row) => DATA.{name}.rows.at(row, '{column}'))"
        )
        assert at.run(kept) == keys, (pair, cell)
        assert at.run(f"document.querySelectorAll('[data-rows={name}] tbody tr').length") == len(keys)


def test_a_machine_of_a_pair_is_found_by_its_name(at, pages):
    at.open(pages["plain"], "#transfers?machine=RELAY1")
    assert len(at.run(SHOWN)) == 1
    assert "2 rows" in at.run(f"{heading('Sessions')}.parentElement.textContent")
    at.go("#transfers?machine=relay2")
    assert text(at, "main .note") == "No data for these filters."


def test_a_sequence_is_drawn_with_what_was_sent_again_and_acknowledged_and_with_its_stall(at, pages):
    at.open(pages["plain"], "#transfers")
    chart = "document.querySelector('[data-rows=sequence_points] .chart')"
    at.wait(f"{chart}.data !== undefined")
    traces = at.run(f"{chart}.data.map((each) => [each.name ?? 'steps', each.y])")
    assert traces == [
        ["steps", [1, 1]], ["acknowledged", [1]], ["sent", [1, 2, 4]], ["sent again", [2, 4]],
    ]  # fmt: skip
    stall, gap = at.run(f"{chart}.layout.shapes.map((each) => [each.x0, each.y0, each.y1])")
    assert stall[0].startswith("2024-05-01 12:00:03")
    assert gap[1:] == [2.5, 3.5]
    at.go(at.run(f"{chart}.data[3].customdata[1]"))
    assert "resent4-60" in text(at, "dialog[open]")


def test_the_row_of_a_sequence_leads_to_its_chart_and_its_messages(at, tmp_path):
    rows = [transfer_sequence("q", n, resends=10 - n) for n in range(1, 8)]
    points = [point(n, n, "sent", key=f"z{n}") for n in range(1, 8)]
    sent = [message_transfer("q", n, sequence_key=f"z{n}") for n in range(1, 8)]
    found = {"transfer_sequences": data(rows), "sequence_points": data(points), "message_transfers": data(sent)}
    (tmp_path / "sequences.html").write_text(render_page(site(**found)), encoding="utf-8")
    at.open(tmp_path / "sequences.html", "#transfers?row=transfer_sequences:z7")
    charts = "[...document.querySelectorAll('[data-rows=sequence_points] .chart')]"
    assert at.run(f"{charts}.length") == 4
    assert "4 of 7 sequences, the most troubled first" in text(at)
    links = "[...document.querySelectorAll('dialog[open] a')].map((each) => [each.textContent, each.hash])"
    addresses = dict(at.run(links))
    at.go(addresses["its sequence over time"])
    at.wait(f"{charts}.length === 1 && {charts}[0].data")
    assert at.run(f"{charts}[0].data.find((each) => each.name === 'sent').y") == [7]
    at.go(addresses["messages of its sequence"])
    assert at.run("document.querySelectorAll('[data-rows=message_transfers] tbody tr').length") == 1


@pytest.mark.parametrize(
    "row", one_in(2, ["message_transfers:t2", "transfer_sequences:z1", "sessions:c1", "sequence_points:p2"])
)
def test_rows_of_transfers_lead_to_packets(at, pages, row):
    at.open(pages["plain"], f"#transfers?row={row}")
    at.wait("document.querySelector('dialog[open]') !== null")
    commands = at.run("[...document.querySelectorAll('dialog[open] .command')].map((each) => each.textContent)")
    number = 1 if row.startswith("sessions") else 2
    assert commands[-4:] == [
        "/captures/wire.pcap",
        f"frame.number == {20 + number}",
        "ip.addr == 10.0.0.1 && ip.addr == 10.0.0.7 && tcp.port == 50001 && tcp.port == 1801",
        f"msmq export_packets --lake /lake --packet p{number} --out packet.pcapng",
    ]
    if row.startswith("sessions"):
        assert "msmq export_packets --lake /lake --session c1 --out session.pcapng" in commands


def test_where_tcp_1801_was_not_captured_transfers_are_unknown_and_not_zero(at, tmp_path):
    without = {each: DatasetRows(None, note=f"not computed: no {each}") for each in nothing_on_tcp_1801()}
    for name, found, said in (
        ("none", nothing_on_tcp_1801(), "TCP 1801 was not captured."),
        ("old", without, "not computed"),
    ):
        (tmp_path / f"{name}.html").write_text(render_page(site(**found)), encoding="utf-8")
        at.open(tmp_path / f"{name}.html", "#transfers")
        assert said in text(at)
        assert at.run("document.querySelectorAll('main table, main .tile, main .chart').length") == 0
        assert "0" not in text(at).replace("1801", "")
        at.go("#overview")
        tiles = dict(
            at.run("[...document.querySelectorAll('a.tile')].map((each) => each.innerText.split('\\n').slice(0, 2))")
        )
        unknown = {tiles[each] for each in ("messages not delivered", "sequences stuck", "sessions refused")}
        assert unknown == {"\u2013" if name == "none" else "not computed"}


def test_sessions_without_a_message_are_shown_and_said(at, tmp_path):
    refused = session(1, session_outcome="refused", session_end="refused", messages=0)
    found = nothing_on_tcp_1801() | {"sessions": data([refused])}
    (tmp_path / "refused.html").write_text(render_page(site(**found)), encoding="utf-8")
    at.open(tmp_path / "refused.html", "#transfers")
    assert "Sessions were captured, and no message in them." in text(at)
    assert "No transactional message was captured on TCP 1801" in text(at)
    tiles = at.run("[...document.querySelectorAll('a.tile')].map((each) => each.innerText.split('\\n').slice(0, 2))")
    assert ["refused", "1"] in tiles
    at.go("#overview")
    assert "sessions refused (1)" in text(at, ".verdict")


def test_connections_that_were_not_established_are_no_open_sessions_and_not_green(at, tmp_path):
    failed = {"session_outcome": "not_established", "session_end": "not_open", "closed_at": None, "messages": 0}
    rows = [session(1, not_established="no_answer", **failed), session(2, not_established="reset", **failed)]
    early = [session(3, not_established="too_early", **failed)]
    for name, shown in (("failed", rows), ("early", early)):
        found = nothing_on_tcp_1801() | {"sessions": data(shown)}
        (tmp_path / f"{name}.html").write_text(render_page(site(**found)), encoding="utf-8")
    at.open(tmp_path / "failed.html", "#transfers")
    tiles = at.run("[...document.querySelectorAll('a.tile')].map((each) => each.innerText.split('\\n').slice(0, 2))")
    assert ["no answer", "1"] in tiles
    assert ["reset", "1"] in tiles
    assert ["not open", "2"] in tiles
    assert not [tile for tile in tiles if tile[0] == "still open"]
    at.go("#overview")
    assert "sessions refused (2)" in text(at, ".verdict")
    at.open(tmp_path / "early.html", "#overview")
    tiles = at.run("[...document.querySelectorAll('a.tile')].map((each) => each.innerText.split('\\n').slice(0, 2))")
    assert ["sessions refused", "\u2013"] in tiles


def test_of_a_million_messages_figures_are_of_all_and_what_is_cut_is_said(at, pages):
    at.open(pages["large"], "#transfers")
    assert [row[:7] for row in at.run(SHOWN)] == [
        ["relay1\n10.0.0.0\n6b29fc40\u2026", "10.0.0.7\n7c29fc40\u2026", "500\u202f000", "2.4 KiB",
         "20.0 %, 0 B", "10 ms / 1.0 s", "10 ms / 1.0 s"],
        ["10.0.0.1", "10.0.0.7\n7c29fc40\u2026", "500\u202f000", "2.4 KiB", "20.0 %, 0 B", "10 ms / 1.0 s",
         "10 ms / 1.0 s"],
    ]  # fmt: skip
    assert "Percentiles of aggregates are accurate to 9 %" in text(at)
    assert "There are 240 sendings and acknowledgements: charts show the highest number of each 1 h 0 min." in text(at)
    assert "This page has 100 of 1\u202f000\u202f000 rows: the newest of each pair." in text(at)
    at.go("#transfers?outcome=rejected")
    assert [row[2] for row in at.run(SHOWN)] == ["100\u202f000", "100\u202f000"]
    assert "Times are not filtered by outcome." in text(at)


def test_a_total_of_what_nobody_reported_is_not_zero(at, tmp_path):
    rows = [queue("a", 1, message_count=None), queue("b", 2, message_count=None, bytes=None)]
    (tmp_path / "unreported.html").write_text(render_page(site(queues=data(rows))), encoding="utf-8")
    at.open(tmp_path / "unreported.html", "#queues")
    tiles = at.run("[...document.querySelectorAll('.tile')].map((each) => each.innerText.split('\\n'))")
    assert ["messages", "\u2013", "in queues with a report; 2 without"] in tiles
    assert ["bytes", "1000 B", "in queues with a report; 1 without"] in [
        [each.replace("\u202f", "") for each in tile] for tile in tiles
    ]


def test_a_filter_that_does_not_apply_is_said(at, pages):
    at.open(pages["checked"])
    for address, ignored in (
        ("#calls?queue=orders", "queue"), ("#findings?queue=orders", "queue"), ("#quality?machine=srv1", "machine"),
        ("#coverage?queue=orders", "queue"), ("#findings?conversation=x", "conversation"),
        ("#queues?from=2024-05-01", "time"), ("#reads?method=x", "method"),
    ):  # fmt: skip
        at.go(address)
        assert f"Not filtered by {ignored}:" in text(at), address


def test_the_overview_says_which_of_its_numbers_are_not_filtered(at, pages):
    at.open(pages["plain"], "#overview?queue=orders")
    tiles = at.run("[...document.querySelectorAll('a.tile')].map((each) => each.innerText.split('\\n'))")
    assert {name for name, _, detail in tiles if "not by queue" in detail} == {
        "sessions refused", "failed calls", "rule violations (error)", "captures not read whole",
    }  # fmt: skip


def test_a_wrong_time_says_how_to_write_one(at, pages):
    at.open(pages["plain"], "#reads?from=yesterday")
    assert "\u201cyesterday\u201d is not a time" in text(at, "#wrong")
    assert "2024-05-01 12:00" in text(at, "#wrong")
    assert at.run("document.querySelector('#f-from').classList.contains('wrong')")
    at.go("#reads")
    assert text(at, "#wrong") == ""


@pytest.mark.parametrize("name", one_in(3, ["hostile", "plain", "large"]))
def test_on_paper_nothing_is_cut_and_lake_time_and_filters_are_there(at, pages, name):
    at.open(pages[name])
    try:
        for section in SECTIONS:
            at.send("Emulation.setEmulatedMedia", media="")
            at.run("document.body.style.width = ''")
            at.go(f"#{section}?queue=o")
            at.wait("[...document.querySelectorAll('.chart')].every((each) => each.querySelector('.note, svg'))")
            at.send("Emulation.setEmulatedMedia", media="print")
            at.run(f"document.body.style.width = '{A4}px'")  # printing tells a page no new size of its window
            assert at.run(TOO_WIDE) == [], section
            overlaps = (
                "[...document.querySelectorAll('.chart')].filter((each) => each.scrollHeight > each.offsetHeight)"
            )
            assert at.run(f"{overlaps}.length") == 0, section
            head = at.run("document.querySelector('header').innerText")
            assert "/lake" in head
            assert "newest evidence 2024-05-01 12:16:40 UTC" in head
            assert "Filters: queue: o." in head
    finally:
        at.send("Emulation.setEmulatedMedia", media="")


def test_queues_without_a_connection_are_one_number_and_its_rows(at, pages):
    at.open(pages["states"])
    tile = "[...document.querySelectorAll('a.tile')].find((each) => each.innerText.startsWith('queues not connected'))"
    assert at.run(f"[...{tile}.innerText.split('\\n'), {tile}.className]") == [
        "queues not connected", str(len(NOT_CONNECTED_STATES)), "1 with messages, of 9 queues", "tile bad",
    ]  # fmt: skip
    at.go(at.run(f"{tile}.hash"))
    rows = at.run("[...document.querySelector('main table').querySelectorAll('tbody tr')].map((row) => row.innerText)")
    assert len(rows) == len(NOT_CONNECTED_STATES)
    assert all(any(state in row for row in rows) for state in NOT_CONNECTED_STATES)


def test_a_queue_is_as_bad_as_its_worst_active_alert(at, tmp_path):
    """In a good state, and nothing reads it: not green, and shown first."""
    found = [queue(name, number) for number, name in enumerate(("stuck", "ended", "noted", "elsewhere", "q"), 1)]
    raised = [
        alert("stuck", 1, condition="queue_stuck"), alert("stuck", 2, severity="warning"),
        alert("ended", 3, until=BEGIN), alert("noted", 4, severity="info"),
        alert("elsewhere", 5, queue_manager="other"),
    ]  # fmt: skip
    (tmp_path / "alerts.html").write_text(render_page(site(queues=data(found), alerts=data(raised))), encoding="utf-8")
    at.open(tmp_path / "alerts.html", "#queues")
    tile = "document.querySelector('main .tile')"
    assert at.run(f"[...{tile}.innerText.split('\\n'), {tile}.className]") == [
        "LOCAL CONNECTION", "5", "queues, 2 with active alerts", "tile bad",
    ]  # fmt: skip
    shown = at.run(
        f"{FIRST_TABLE}.map((row) => ['queue', 'active alerts'].map("
        "(label) => [...row.cells].find((each) => each.dataset.label === label).textContent))"
    )
    assert shown[0] == ["stuck", "queue_stuck, transfer_stalled"]
    assert sorted(shown[1:]) == [["elsewhere", ""], ["ended", ""], ["noted", "transfer_stalled"], ["q", ""]]


def test_quality_is_shown_what_failed_first(at, pages):
    at.open(pages["checked"])
    assert "failed quality checks (1)" in text(at, ".verdict")
    at.go("#quality")
    heading = "[...document.querySelectorAll('h2')].find((each) => each.textContent === 'All checks')"
    rows = f"[...{heading}.nextElementSibling.querySelectorAll('tbody tr')]"
    cells_shown = at.run(f"{rows}.map((row) => [...row.cells].map((cell) => cell.textContent).slice(0, 5))")
    assert cells_shown == [
        ["no", "error", "bronze.pending", "No call appears twice.", "attempt_key: no value twice"],
        ["yes", "error", "bronze.rpc_calls", "No call appears twice.", "call_key: no value twice"],
    ]
    marks = at.run(f"{rows}.map((row) => [...row.querySelectorAll('.trend i')].map((mark) => mark.className))")
    assert marks == [["ok", "bad"], ["ok"]]  # run by run
    assert at.run("[...document.querySelectorAll('.chart')].map((each) => each.getAttribute('aria-label'))") == [
        "Failed checks by run"
    ]
    badges = at.run(f"{rows}.map((row) => row.cells[1].querySelector('.badge.bad') !== null)")
    assert badges == [True, False]  # a passed check is no error, whatever its severity
    assert at.run("[...document.querySelectorAll('.tile .value')].map((each) => each.textContent)") == list("1001")
    at.run(f"{rows}[0].click()")
    at.wait("document.querySelector('dialog[open]') !== null")
    shown = text(at, "dialog[open]")
    assert "1 of 4 rows" in shown
    assert "2 of 3 rows" in shown  # that are named
    commands = at.run("[...document.querySelectorAll('dialog[open] .command')].map((each) => each.textContent)")
    assert commands == [
        "msmq export_packets --lake /lake --row gold.quality_results r2 --out row.pcapng",
        "SELECT * FROM delta.`/lake/bronze/pending` WHERE attempt_key IN ('a1', 'it\\'s')",
        "msmq check_quality --lake /lake --all",
    ]
    cells = "[...row.cells].map((cell) => cell.textContent)"
    results = at.run(f"[...document.querySelectorAll('dialog[open] tbody tr')].map((row) => {cells}.slice(1))")
    assert results == [["no", "10", "3", "all"], ["yes", "10", "0", "all"]]
    at.run("document.querySelector('dialog[open] li a').click()")
    at.wait("document.querySelector('dialog[open] h2').textContent === 'Receive or peek'")


def test_every_link_of_the_page_of_a_check_leads_to_its_suite(at, tmp_path):
    rows = [
        quality("keys_unique", number, suite=name, success=number > 1) for number, name in enumerate(("a", "b&b", "c"))
    ]
    page = tmp_path / "index.html"
    page.write_text(render_results(rows), encoding="utf-8")
    at.send("Page.navigate", url=page.as_uri())
    while not at.run("document.readyState === 'complete' && document.querySelectorAll('nav a').length"):
        pass
    for number in range(3):
        at.run(f"document.querySelectorAll('nav a')[{number}].click()")
        target = "document.getElementById(decodeURIComponent(location.hash.slice(1)))"
        assert at.run(f"{target}.textContent") == f"{['a', 'b&b', 'c'][number]}: bronze.rpc_calls"
    assert at.run("document.querySelectorAll('tbody tr').length") == 3
    assert at.console_errors == []
    assert [url for url in at.requests if not url.startswith(("file:", "about:"))] == []


def test_a_row_leads_to_the_story_of_its_message(at, pages):
    at.open(pages["checked"], "#reads?row=attempts:a1")
    at.wait("document.querySelector('dialog[open]') !== null")
    trace = r"msmq trace_message --lake /lake --id '6b29fc40-ca47-1067-b31d-00dd010662da\7'"
    assert text(at, "dialog[open] .command") == trace
    at.open(pages["checked"], "#reads")
    buttons = "[...document.querySelectorAll('main td[data-label=trace] button')].map((each) => each.title)"
    assert trace in at.run(buttons)


def test_what_was_seen_of_a_machine_leads_to_its_calls(at, pages):
    at.open(pages["checked"], "#alerts?row=alerts:e1")
    at.wait("document.querySelector('dialog[open]') !== null")
    proofs = at.run("[...document.querySelectorAll('dialog[open] .evidence')].map((each) => each.innerText)")
    assert [each.split("\n")[0] for each in proofs] == [
        "seen together in format names: 6b29fc40, srv1, 10.0.0.1", "seen together in format names: 6b29fc40, srv2",
    ]  # fmt: skip
    assert ["calls of this address in this time" in each for each in proofs] == [True, False]
    at.go(at.run("document.querySelector('dialog[open] .evidence a').hash"))
    at.wait("document.querySelector('dialog[open]') === null")
    assert "2 rows" in text(at)


def test_a_count_of_an_hour_leads_to_what_was_counted(at, pages):
    at.open(pages["plain"], "#coverage")
    heading = "[...document.querySelectorAll('h2')].find((each) => each.textContent === 'Counts by hour')"
    at.run(f"{heading}.nextElementSibling.querySelector('tbody tr').click()")
    at.wait("location.hash.startsWith('#calls?')")
    assert "2 rows" in text(at)


def test_values_are_told_as_people_read_them(at, pages):
    at.open(pages["plain"])
    expected = {
        119_600: "2 min 0 s",
        59_960: "1 min 0 s",
        3_599_700: "1 h 0 min",
        172_799_000: "2.0 d",
        61_000: "1 min 1 s",
    }
    assert at.run(f"[{', '.join(map(str, expected))}].map(durationText)") == list(expected.values())
    assert at.run("['72057594037927936', 9, '10', 'queue10', 'queue9', null].sort((a, b) => compare(a, b, false))") == [
        9, "10", "72057594037927936", "queue9", "queue10", None,
    ]  # fmt: skip
    assert at.run("[plotlyTime(0), plotlyTime(9e15), plotlyTime(-9e15)]") == ["1970-01-01 00:00:00.000", None, None]


def test_filters_choose_rows_and_stand_in_the_address(at, pages):
    at.open(pages["plain"], "#reads")
    rows = f"[...{RECEIVES}.querySelectorAll('tbody tr')].map((each) => each.cells[1].textContent)"
    assert sorted(at.run(rows)) == ["far\\private$\\out", "srv1\\private$\\orders"]
    at.type("#f-queue", "ORDERS")
    at.wait("location.hash.includes('queue=ORDERS')")
    assert at.run(rows) == ["srv1\\private$\\orders"]
    at.go("#reads?machine=10.9")
    assert at.run(rows) == []
    at.go("#reads?from=2024-05-01 12:00:02&to=2024-05-01 12:00:03".replace(" ", "%20"))
    assert at.run(rows) == ["far\\private$\\out"]
    at.go("#reads?outcome=expired")
    assert at.run(rows) == []
    assert "outcome: expired" in text(at, ".facets")
    at.run("document.querySelector('.facets .chip button').click()")
    at.wait("location.hash === '#reads'")
    assert len(at.run(rows)) == 2


@pytest.mark.parametrize("part", ["F1C-TALK", "3e-ow"])
def test_messages_are_filtered_by_conversation_or_the_applications_id(at, pages, part):
    at.open(pages["checked"], "#reads")
    rows = f"[...{RECEIVES}.querySelectorAll('tbody tr')].length"
    assert at.run(rows) == 2
    at.type("#f-conversation", part)
    at.wait("location.hash.includes('conversation=')")
    assert at.run(rows) == 1
    assert at.run("document.querySelector('nav a[href^=\"#transfers\"]').getAttribute('href')").endswith(part)
    at.go("#reads?conversation=other")
    assert at.run(rows) == 0


def test_the_story_of_a_message_has_what_its_application_says(at, pages):
    at.open(pages["checked"], "#message?key=m1")
    facts = dict(at.run("[...document.querySelectorAll('main dl.facts dt')].map((each) => "
                        "[each.textContent, each.nextElementSibling.textContent])"))  # fmt: skip
    assert facts == {
        "Framework": "NServiceBus", "Types": "Sales.Order, Sales, <b>", "Application's id": "3e-own",
        "Conversation": "7f1c-talk", "Caused by": "2d-cause", "Failed in": "billing@hq",
        "Exception": "System.TimeoutException", "Delayed retries": "0",
    }  # fmt: skip
    assert "msmq trace_message --lake /lake --conversation 7f1c-talk" in text(at)
    links = at.run("[...document.querySelectorAll('main dl.facts a')].map((each) => each.getAttribute('href'))")
    assert links == ["#transfers?conversation=7f1c-talk", "#transfers?conversation=2d-cause"]


def test_a_row_leads_to_capture_file_and_packet(at, pages):
    at.open(pages["plain"], "#reads")
    at.run(f"{RECEIVES}.querySelector('tbody tr').focus()")
    at.key("Enter")
    at.wait("document.querySelector('dialog[open]') !== null")
    commands = at.run("[...document.querySelectorAll('dialog[open] .command')].map((each) => each.textContent)")
    assert commands == [
        f"msmq trace_message --lake /lake --queue 'far\\private$\\out' --lookup-id {2**56 - 2}",
        "msmq export_packets --lake /lake --row gold.receive_attempts a2 --out row.pcapng",
        "/captures/one.pcap",
        "frame.number == 12 || frame.number == 13",
        "ip.addr == 10.0.0.2 && ip.addr == 10.0.0.1 && tcp.port == 50000 && tcp.port == 2103",
        "msmq export_packets --lake /lake --call k2 --out call.pcapng",
    ]
    address = at.run("location.hash")
    at.key("Escape")
    at.wait("document.querySelector('dialog[open]') === null && !location.hash.includes('row=')")
    at.open(pages["plain"], address)
    assert "far\\private$\\out" in text(at, "dialog[open]")
    at.go("#queues?row=queues%3Ai1")
    assert "/snapshots/day.jsonl:1" in text(at, "dialog[open]")
    assert "msmq export_packets" not in text(at, "dialog[open]")  # a collector's snapshot
    at.go("#queues?row=queues%3Anone")
    assert "This row is not on this page" in text(at, "dialog[open]")


def test_answers_in_another_capture_and_ipv6_have_filters_of_their_own(at, pages, tmp_path):
    split = call("k1", 1, client_address="fe80::2", server_address="fe80::1", response_capture="/captures/two.pcap")
    (tmp_path / "split.html").write_text(render_page(site(calls=data([split]))), encoding="utf-8")
    at.open(tmp_path / "split.html", "#calls?row=calls%3Ak1")
    commands = at.run("[...document.querySelectorAll('dialog[open] .command')].map((each) => each.textContent)")
    assert commands[:5] == [
        "/captures/one.pcap", "frame.number == 11", "/captures/two.pcap", "frame.number == 12",
        "ipv6.addr == fe80::2 && ipv6.addr == fe80::1 && tcp.port == 50000 && tcp.port == 2103",
    ]  # fmt: skip


def test_charts_keep_their_height_when_the_window_is_resized(at, pages):
    at.open(pages["plain"], "#queues")
    at.wait(DRAWN)
    heights = "[...document.querySelectorAll('.chart')].map((each) => each.offsetHeight)"
    before = at.run(heights)
    at.set_display(width=900, height=800)
    at.wait("document.querySelector('.chart svg').getAttribute('width') < 900")
    assert at.run(heights) == before


def test_hostile_names_stay_text(at, pages):
    at.open(pages["hostile"])
    for section in SECTIONS:
        at.go(f"#{section}")
        at.run("new Promise((done) => setTimeout(done, 50))")
        assert (
            at.run("document.querySelectorAll('main script, main img, main iframe, main a[href^=javascript]').length")
            == 0
        )
    for address in (
        "#reads?row=attempts%3Aa1",
        "#comqc?row=comqc%3Ag2",
        "#transfers?row=message_transfers%3At3",
        "#queues?row=queues%3Ai3",
    ):
        at.go(address)
        assert at.run("document.querySelectorAll('dialog script, dialog img').length") == 0
    at.go("#queues")
    cells_shown = at.run(f"{FIRST_TABLE}.map((each) => each.cells[0].textContent)")
    assert len(cells_shown) == len(MARKUP)
    # Invisible and bidirectional characters are escaped.
    spelt = str.maketrans({c: f"\\u{{{ord(c):x}}}" for c in "\u202e\u2066\u200b\x00\x1b"})
    assert set(cells_shown) == {name.translate(spelt) for name in MARKUP}
    at.wait(DRAWN)
    labels = at.run("[...document.querySelectorAll('.chart text')].map((each) => each.textContent)")
    assert any("<script>" in each for each in labels)
    assert at.run("document.querySelectorAll('.chart svg a, .chart svg script, .chart svg image').length") == 0
    for name in MARKUP:
        at.go("#reads?" + at.run(f"new URLSearchParams({{queue: {json.dumps(name)}}}).toString()"))
        found = at.run(f"[...{RECEIVES}.querySelectorAll('tbody tr')].map((each) => each.cells[1].textContent)")
        assert name.translate(spelt) in found
        assert len(found) < 3
    assert at.run("window.owned === undefined")


def test_very_many_rows_are_paged_and_what_is_cut_is_said(at, pages):
    at.open(pages["large"], "#reads")
    assert "This page has 5\u202f000 of 1\u202f000\u202f000 rows: the newest of each queue" in text(at)
    tiles = at.run("[...document.querySelectorAll('a.tile')].map((each) => each.innerText.split('\\n').slice(0, 2))")
    assert ["acked", "900\u202f000"] in tiles
    assert ["expired", "100\u202f000"] in tiles
    assert at.run(f"{RECEIVES}.querySelectorAll('tbody tr').length") == 50
    assert "page 1 of 100" in at.run(f"{RECEIVES}.querySelector('.pager').textContent")
    at.run(f"{RECEIVES}.querySelector('.pager button:last-of-type').click()")
    assert "page 2 of 100" in at.run(f"{RECEIVES}.querySelector('.pager').textContent")
    at.go("#reads?queue=queue0010")
    tiles = at.run("[...document.querySelectorAll('a.tile')].map((each) => each.innerText.split('\\n').slice(0, 2))")
    assert ["expired", "1\u202f000"] in tiles  # of the aggregates over all rows, not of the rows in the page
    at.go("#queues")
    assert "page 1 of 20" in text(at)


def test_keys_do_what_the_help_says(at, pages):
    at.open(pages["plain"])
    at.key("-")
    at.wait("location.hash === '#coverage'")
    at.key("3")
    at.wait("location.hash === '#queues'")
    at.key("/")
    assert at.run("document.activeElement.id") == "f-queue"
    at.key("Escape")
    at.key("j")
    assert at.run("document.activeElement.tagName") == "TR"
    before = at.run("document.activeElement.rowIndex")
    at.key("j")
    assert at.run("document.activeElement.rowIndex") == before + 1
    at.key("?")
    assert "next row" in text(at, "dialog[open]")
    at.key("Escape")
    theme = at.run("document.documentElement.dataset.theme")
    at.key("t")
    assert at.run("document.documentElement.dataset.theme") != theme
    at.key("t")


def test_the_theme_is_that_of_the_system_until_somebody_chooses_one(at, pages):
    def theme(*, dark):
        at.set_display(width=1366, height=800, dark=dark)
        at.open(pages["plain"])
        return at.run("document.documentElement.dataset.theme")

    at.open(pages["plain"])
    at.run("localStorage.clear()")
    assert [theme(dark=dark) for dark in (False, True)] == ["light", "dark"]
    at.run("document.getElementById('theme').click()")
    assert [theme(dark=dark) for dark in (False, True)] == ["light", "light"]
    at.run("localStorage.clear()")


@pytest.mark.parametrize(("name", "dark"), [("plain", True), ("hostile", False)])
def test_on_a_phone_nothing_is_wider_than_the_screen(at, pages, name, dark):
    at.set_display(width=390, height=844, dark=dark, mobile=True)
    at.open(pages[name])
    at.run("localStorage.clear()")
    at.open(pages[name])
    assert at.run("document.documentElement.dataset.theme") == ("dark" if dark else "light")
    for section in SECTIONS:
        at.go(f"#{section}")
        assert at.run("document.documentElement.scrollWidth") <= 390, section
