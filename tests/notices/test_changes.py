"""What a target is told from call to call."""

import pytest

from notices.told import Listener, alert, at
from pipeline.notices.kept_lines import Mute, acknowledged_line
from udfs.keys import key

STUCK = key("queue_stuck", "queue a")


def test_it_begins_worsens_is_repeated_and_ends_once_each():
    target = Listener()
    assert target.call(1, alert()) == [("began", STUCK, None)]
    assert target.call(2, alert(last=2)) == []  # still there, and observed once more
    assert target.call(3, alert(severity="error")) == [("worsened", STUCK, None)]
    assert target.call(3 + 239, alert(severity="error")) == []
    assert target.call(3 + 240, alert(severity="error")) == [("repeated", STUCK, None)]
    assert target.call(3 + 241, alert(severity="error")) == []
    assert target.call(300, alert(severity="error", until=290)) == [("ended", STUCK, None)]
    assert target.notices[0].facts["until"] == "2026-03-01T13:50:00Z"
    assert target.call(301, alert(severity="error", until=290)) == []
    assert target.call(2000, alert(severity="error", until=290), alert(since=1990)) == [("began", STUCK, None)]


def test_the_key_is_that_of_condition_and_subject_and_since_is_content():
    target = Listener()
    target.call(1, alert(since=0))
    assert target.call(2, alert(since=-30)) == [("updated", STUCK, None)]  # a late capture, or a merged episode
    (notice,) = target.notices
    assert notice.body()["since"] == "2026-03-01T08:30:00Z"
    assert notice.begun_at == "2026-03-01T09:01:00Z"
    assert target.call(3, alert(since=-30)) == []
    assert target.call(4, alert(since=-30, severity="info")) == [("updated", STUCK, None)]


def test_an_alert_that_later_evidence_removes_is_withdrawn():
    target = Listener()
    target.call(1, alert(since=0))
    assert target.call(2) == [("ended", STUCK, "withdrawn")]
    target.call(3, alert(since=3))
    # An earlier episode is none of its own.
    assert target.call(4, alert(since=-100, until=-90)) == [("ended", STUCK, "withdrawn")]


def test_what_began_and_ended_between_two_calls_is_not_told():
    target = Listener()
    assert target.call(1, alert(since=-500, until=-400), alert("queue_stuck", "queue b")) == [
        ("began", key("queue_stuck", "queue b"), None)
    ]
    # A backfill: old alerts that have ended, and one that is active.
    past = [alert(subject=f"queue {n}", since=-9_000, until=-8_000) for n in range(50)]
    begun = alert("calls_failing", "method m", since=-9_000)
    told = target.call(2, *past, begun, alert("queue_stuck", "queue b"))
    assert told == [("began", key("calls_failing", "method m"), None)]


def hop(condition, subject, **more):
    return alert(condition, subject, from_machine="10.0.0.1", to_machine="10.0.0.2", **more)


def test_a_cause_that_shows_later_is_an_update_of_the_notice_that_is_open():
    """Nobody is called again for what follows from the same cause."""
    target = Listener()
    waiting = alert("transfer_stalled", "to q1", from_machine="10.0.0.1", to_machine="10.0.0.2", queue="r\\q1")
    own_key = key("transfer_stalled", "to q1")
    assert target.call(1, waiting) == [("began", own_key, None)]
    failing = hop("sessions_refused", "1 to 2", queue=None)
    assert target.call(2, waiting, failing) == [("updated", own_key, None)]
    assert target.notices[0].facts["condition"] == "sessions_refused"
    assert [row["condition"] for row in target.notices[0].facts["alerts"]] == ["sessions_refused", "transfer_stalled"]
    # The cause is over, and what followed from it still there: an update again.
    assert target.call(3, waiting, failing | {"until": at(3)}) == [("updated", own_key, None)]
    assert target.call(4, waiting | {"until": at(4)}) == [("ended", own_key, None)]


def test_of_notices_that_become_one_the_oldest_goes_on_and_the_others_join_it():
    target = Listener()
    first, second = (
        alert("transfer_stalled", f"to q{n}", from_machine="10.0.0.1", to_machine="10.0.0.2", queue=f"r\\q{n}")
        for n in (1, 2)
    )
    target.call(1, first)
    target.call(2, first, second)
    told = target.call(3, first, second, hop("sessions_refused", "1 to 2", queue=None))
    keys = [key("transfer_stalled", f"to q{n}") for n in (1, 2)]
    assert told == [("ended", keys[1], "joined"), ("updated", keys[0], None)]
    assert next(each for each in target.notices if each.reason == "joined").joined_to == keys[0]


def test_more_alerts_of_an_entry_are_no_news():
    target = Listener()
    cause = hop("sessions_refused", "1 to 2", queue=None)
    target.call(1, cause)
    stalled = [
        alert("transfer_stalled", f"to q{n}", from_machine="10.0.0.1", to_machine="10.0.0.2", queue=f"r\\q{n}")
        for n in range(3)
    ]
    assert target.call(2, cause, *stalled) == []
    # They were kept all the same: what is left of the entry is no new notice.
    own_key = key("sessions_refused", "1 to 2")
    assert target.call(3, stalled[0], cause | {"until": at(3)}) == [("updated", own_key, None)]


@pytest.mark.parametrize("condition", ["ends_refused", "containers_rejected"])
def test_a_single_event_is_told_once_when_it_is_first_read_however_old_up_to_event_hold(condition):
    target = Listener()
    own_key = key(condition, "reader r")
    event = alert(condition, "reader r", since=-1000, until=-940, last=-1000)
    assert target.call(0) == []
    assert target.call(1, event) == [("happened", own_key, None)]
    assert target.call(2, event) == []
    assert target.call(3) == []  # its end is not told, and it is not withdrawn
    later = alert(condition, "reader r", since=10, until=70)
    assert target.call(80, event, later) == [("happened", own_key, None)]
    too_old = alert(condition, "reader z", since=-1500, until=-1440, last=-1500)
    assert target.call(81, too_old, hold=24 * 60) == []


def test_an_event_that_is_still_active_is_told_as_an_alert_and_not_once_more():
    target = Listener()
    target.call(0)
    own_key = key("ends_refused", "reader r")
    assert target.call(1, alert("ends_refused", "reader r")) == [("began", own_key, None)]
    ended = alert("ends_refused", "reader r", until=60)
    assert target.call(61, ended) == [("ended", own_key, None)]
    assert target.call(62, ended) == []


def test_the_first_call_knows_earlier_events_without_telling_them():
    target = Listener()
    event = alert("ends_refused", "reader r", since=-60, until=0)
    assert target.call(1, event, alert()) == [("began", STUCK, None)]
    assert target.call(2, event, alert()) == []


def test_what_is_acknowledged_is_not_repeated_until_then_or_until_it_worsens_and_its_end_is_told():
    target = Listener()
    target.call(0, alert())
    held = [acknowledged_line(target.notices[0], by="ann", until=at(600), reason=None, now=at(1))]
    assert target.call(300, alert(), acknowledged=held) == []
    assert target.call(599, alert(), acknowledged=held) == []
    assert target.call(600, alert(), acknowledged=held) == [("repeated", STUCK, None)]

    target = Listener()
    target.call(0, alert())
    assert target.call(5, alert(severity="error"), acknowledged=held) == [("worsened", STUCK, None)]
    assert target.call(245, alert(severity="error"), acknowledged=held) == [("repeated", STUCK, None)]
    assert target.call(250, alert(severity="error", until=249), acknowledged=held) == [("ended", STUCK, None)]
    # It was the earlier one that somebody looked after.
    assert target.call(260, alert(since=255), acknowledged=held) == [("began", STUCK, None)]
    assert target.call(510, alert(since=255), acknowledged=held) == [("repeated", STUCK, None)]


def test_what_is_muted_is_not_told_and_what_was_told_before_ends_as_muted():
    target, mute = Listener(), [Mute("queue_stuck", "SRV\\*\\a")]
    other = alert(subject="queue b")
    assert target.call(0, alert(), other, mutes=mute) == [("began", key("queue_stuck", "queue b"), None)]
    assert target.call(1, alert(), other) == [("began", STUCK, None)]
    assert target.call(2, alert(), other, mutes=mute) == [("ended", STUCK, "muted")]
    assert target.call(3, alert(severity="error"), other, mutes=mute) == []
    assert target.call(4, alert(), other) == [("began", STUCK, None)]
    event = alert("ends_refused", "reader r", since=-60, until=0)
    assert target.call(5, alert(), other, event, mutes=[Mute("ends_refused", None)]) == []


def test_a_muted_cause_hides_nothing_that_follows_from_it():
    target = Listener()
    waiting = alert("transfer_stalled", "to q1", from_machine="10.0.0.1", to_machine="10.0.0.2", queue="r\\q1")
    failing = hop("sessions_refused", "1 to 2", queue=None)
    told = target.call(0, waiting, failing, mutes=[Mute("sessions_refused", None)])
    assert told == [("began", key("transfer_stalled", "to q1"), None)]


def test_of_what_a_target_did_not_get_its_newest_state_waits():
    target = Listener()
    assert target.call(0, alert(), delivered=False) == [("began", STUCK, None)]
    # It never heard of it: whatever has become of it, it begins.
    assert target.call(1, alert(severity="error"), delivered=False) == [("began", STUCK, None)]
    assert target.notices[0].severity == "error"
    assert target.call(2, alert(severity="error")) == [("began", STUCK, None)]
    assert target.call(3, alert(severity="error")) == []
    assert target.call(4, alert(severity="error", until=4), delivered=False) == [("ended", STUCK, None)]
    assert target.call(5, alert(severity="error", until=4), delivered=False) == [("ended", STUCK, None)]
    # It knows of no end: what begins again is an update.
    assert target.call(6, alert(since=6), delivered=False) == [("updated", STUCK, None)]
    assert target.call(7, alert(since=6)) == [("updated", STUCK, None)]
    assert target.call(8, alert(since=6)) == []
    event = alert("ends_refused", "reader r", since=8, until=68)
    waits = [("happened", key("ends_refused", "reader r"), None)]
    assert target.call(70, alert(since=6), event, delivered=False) == waits
    assert target.call(71, alert(since=6)) == waits  # also when it is too old by now
    assert target.call(72, alert(since=6)) == []


def test_of_two_events_that_wait_the_newer_is_told():
    target = Listener()
    target.call(0)
    first, second = (alert("ends_refused", "reader r", since=minute, until=minute + 60) for minute in (-120, 0))
    own_key = key("ends_refused", "reader r")
    assert target.call(1, first, delivered=False) == [("happened", own_key, None)]
    assert target.call(61, first, second) == [("happened", own_key, None)]
    assert target.notices[0].facts["since"] == "2026-03-01T09:00:00Z"
    assert target.call(62, first, second) == []


def test_the_worst_is_told_first():
    target = Listener()
    target.call(0, alert(subject="queue b"), alert(subject="queue c", severity="info"), alert(severity="error"))
    assert [each.severity for each in target.notices] == ["error", "warning", "info"]


def test_a_begin_and_an_end_that_both_wait_are_one_end():
    target = Listener()
    target.call(0, alert(), delivered=False)
    assert target.call(1, alert(until=1)) == [("ended", STUCK, None)]


def test_a_source_that_brings_evidence_again_has_ended_and_is_not_withdrawn():
    target = Listener()
    stopped = alert("evidence_stopped", "captures in /data/ring", queue=None, severity="error")
    own_key = key("evidence_stopped", "captures in /data/ring")
    assert target.call(0, stopped=[stopped]) == [("began", own_key, None)]
    assert target.call(1, stopped=[stopped]) == []
    assert target.call(2) == [("ended", own_key, None)]
    assert target.notices[0].facts["until"] == "2026-03-01T09:02:00Z"


def test_names_of_machines_and_texts_of_the_wire_are_shown_safely():
    target = Listener()
    subject = "queue \x1b[2J\u202eevil"
    target.call(0, alert(subject=subject, message="a\nb", subject_text=f"{subject} at srv"))
    (notice,) = target.notices
    assert notice.facts["subject"] == "queue \\x1b[2J\\x202eevil at srv"
    assert notice.notice_key == key("queue_stuck", subject)
    assert all(text.isprintable() for text in (notice.title, *notice.lines))


def test_a_month_of_calls_tells_of_one_alert_every_four_hours():
    target = Listener()
    told = [target.call(hour * 60, alert()) for hour in range(24 * 30)]
    assert sum(map(len, told)) == 24 * 30 / 4
