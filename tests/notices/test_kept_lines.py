"""The lines that are kept of notices: what counts of them, and their bounds."""

import datetime as dt
import json

import pytest

from notices.told import Listener, alert, at
from pipeline.lake.lake_path import LakePath
from pipeline.notices import kept_lines
from pipeline.notices.changes import Notification
from pipeline.notices.kept_lines import (
    KeptLines,
    Mute,
    acknowledged_line,
    bound_lines,
    muted_line,
    notification_line,
    target_line,
)
from pipeline.notices.notice import ENDED
from udfs.keys import key

DAY = 24 * 60


@pytest.fixture
def folder(tmp_path):
    return LakePath(str(tmp_path))


def notice(subject="queue a", **more):
    listener = Listener()
    listener.call(0, alert(subject=subject, **more))
    return listener.notices[0]


def test_what_was_told_is_read_as_it_was_written(folder):
    kept = KeptLines(folder)
    assert (kept.lines, kept.is_known("hook")) == ([], False)
    told, other = Notification(notice(), at(3), is_waiting=True, is_known=False), Notification(notice("queue b"), at(4))
    kept.add([target_line("hook", at(3)), notification_line("hook", told), notification_line("pd", other)], at(3))
    again = KeptLines(folder)
    assert again.is_known("hook")
    assert not again.is_known("mail")
    assert again.told("hook") == kept.told("hook") == {told.notice.notice_key: told}
    assert {*again.open_notices()} == {told.notice.notice_key, other.notice.notice_key}
    newer = told._replace(notice=told.notice.with_action(ENDED), is_waiting=False)
    again.add([notification_line("hook", newer)], at(5))
    assert KeptLines(folder).told("hook") == {told.notice.notice_key: newer}
    assert {*KeptLines(folder).open_notices()} == {other.notice.notice_key}


def test_nothing_is_written_without_lines(folder, tmp_path):
    KeptLines(folder).add([], at(0))
    KeptLines(folder).forget(dt.date(2030, 1, 1))
    assert [*tmp_path.iterdir()] == []


def test_lines_that_are_damaged_are_left_out(folder, tmp_path):
    kept = KeptLines(folder)
    kept.add([notification_line("hook", Notification(notice(), at(3))), target_line("hook", at(3))], at(3))
    file = tmp_path / "_notices" / "notices.jsonl"
    whole = json.loads(file.read_text().splitlines()[0])
    damaged = [
        "{", "[]", "null", '{"line": "told"}', '{"line": "other", "at": "2026-03-01T09:00:00Z"}',
        json.dumps(whole | {"notice": whole["notice"] | {"facts": {}}}),
        json.dumps(whole | {"at": 5}),
        json.dumps({"line": "muted", "at": whole["at"], "until": whole["at"]}),
    ]  # fmt: skip
    file.write_text("\n".join([*damaged, file.read_text()]))
    assert KeptLines(folder).lines == kept.lines


def test_the_newest_acknowledgement_and_the_newest_mute_count(folder):
    kept, mute = KeptLines(folder), Mute("queue_stuck", "srv\\*")
    first = acknowledged_line(notice(), by="ann", until=at(60), reason="looking", now=at(1))
    kept.add([first, muted_line(mute, until=at(60), now=at(1)), muted_line(Mute("calls_failing", None), until=at(9),
                                                                           now=at(1))], at(1))  # fmt: skip
    own_key = notice().notice_key
    assert kept.acknowledged()[own_key].until == at(60)
    assert kept.mutes(at(2)) == [mute, Mute("calls_failing", None)]
    assert kept.mutes(at(9)) == [mute]
    kept.add([muted_line(mute, until=at(5), now=at(5))], at(5))  # --until 0s
    kept.add([acknowledged_line(notice(), by="bob", until=at(99), reason=None, now=at(5))], at(5))
    assert kept.mutes(at(5)) == [Mute("calls_failing", None)]
    assert KeptLines(folder).acknowledged()[own_key].until == at(99)


def test_of_90_days_all_lines_are_kept_and_of_older_ones_those_that_still_count():
    ended = notice().with_action(ENDED)
    old = [
        target_line("hook", at(0)),
        notification_line("hook", Notification(notice("queue b"), at(0))),  # open
        notification_line("hook", Notification(ended, at(0))),
        notification_line("pd", Notification(ended, at(0), is_waiting=True)),
        muted_line(Mute("queue_stuck", None), until=at(200 * DAY), now=at(0)),
        muted_line(Mute("calls_failing", None), until=at(2 * DAY), now=at(0)),
        acknowledged_line(notice(), by="a", until=at(2 * DAY), reason=None, now=at(0)),
    ]
    assert bound_lines(old, at(90 * DAY - 1)) == old
    assert bound_lines(old, at(90 * DAY)) == [old[0], old[1], old[3], old[4]]
    # A newer line of the same thing takes its place.
    newer = notification_line("hook", Notification(notice("queue b").with_action(ENDED), at(90 * DAY)))
    assert bound_lines([*old, newer], at(90 * DAY)) == [old[0], old[3], old[4], newer]


def test_of_more_lines_than_there_may_be_the_oldest_go_that_count_least(monkeypatch):
    monkeypatch.setattr(kept_lines, "MAX_LINES", 4)
    told = [notification_line("hook", Notification(notice(f"queue {n}").with_action(ENDED), at(n))) for n in range(6)]
    first = target_line("hook", at(0))
    assert bound_lines([first, *told], at(9)) == [first, *told[3:]]
    still_open = [notification_line("hook", Notification(notice(f"queue {n}"), at(n))) for n in range(6)]
    assert bound_lines([first, *still_open], at(9)) == still_open[2:]


def test_the_limits_are_90_days_and_100_000_lines():
    assert (dt.timedelta(days=90), 100_000) == (kept_lines.MAX_AGE, kept_lines.MAX_LINES)


def test_forget_removes_what_is_older_and_keeps_the_key_of_what_is_open(folder, tmp_path):
    kept = KeptLines(folder)
    ended = notice("queue SECRET1").with_action(ENDED)
    kept.add(
        [
            target_line("hook", at(0)),
            notification_line("hook", Notification(ended, at(0))),
            notification_line("hook", Notification(notice("queue SECRET2"), at(1))),
            notification_line(
                "hook", Notification(notice("queue SECRET3"), at(2 * DAY))
            ),  # told later of what began before
            notification_line("hook", Notification(notice("queue recent", since=2 * DAY), at(2 * DAY))),
            acknowledged_line(notice("queue SECRET2"), by="SECRET4", until=at(9 * DAY), reason="SECRET5", now=at(1)),
            muted_line(Mute("queue_stuck", "x"), until=at(1), now=at(0)),
        ],
        at(2 * DAY),
    )
    kept.forget(dt.date(2026, 3, 2))
    text = (tmp_path / "_notices" / "notices.jsonl").read_text()
    assert "SECRET" not in text
    assert "queue recent" in text
    again = KeptLines(folder)
    assert {*again.told("hook")} == {key("queue_stuck", f"queue {name}") for name in ("SECRET2", "SECRET3", "recent")}
    assert again.is_known("hook")
    assert len(again.acknowledged()) == 1
    # What was forgotten can still end.
    listener = Listener(folder, "hook")
    told = listener.call(2 * DAY + 1, alert(subject="queue recent", since=2 * DAY))
    assert [action for action, _, _ in told] == ["ended", "ended"]
    assert all(each.title and each.lines and each.body() for each in listener.notices)


def test_the_pattern_of_a_mute_is_for_whole_names_whatever_the_case():
    mute = Mute("queue_stuck", "SRV\\private$\\ord*")
    row = alert(queue="srv\\Private$\\ORDERS")
    assert mute.covers(row)
    assert not mute.covers(row | {"queue": "x" + row["queue"]})
    assert not mute.covers(row | {"queue": None})
    assert not mute.covers(row | {"condition": "calls_failing"})
    assert Mute("queue_stuck", None).covers(row | {"queue": None})
