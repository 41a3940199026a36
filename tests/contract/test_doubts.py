"""docs/internals/decoders.md lists every doubt that the decoders name, and the files that it names exist."""

import re

ROW = re.compile(r"^\| (D[\d, D]+) \| (.+) \| (.+) \|$", re.MULTILINE)


def listed(project):
    text = (project / "docs" / "internals" / "decoders.md").read_text(encoding="utf-8")
    return ROW.findall(text)


def test_every_place_is_a_file(project):
    places = [path for _, _, where in listed(project) for path in re.findall(r"`([^`]+)`", where)]
    assert len(places) > 30
    assert [path for path in places if not (project / path).is_file()] == []


def test_every_doubt_that_the_decoders_name_is_listed(project):
    known = {number for numbers, _, _ in listed(project) for number in numbers.split(", ")}
    named = {
        number
        for path in (project / "udfs").rglob("*.py")
        for number in re.findall(r"(?:doubts? |\()(D\d+)\b", path.read_text(encoding="utf-8"))
    }
    assert len(named) > 20
    assert named <= known
