"""The versions of the rules change with their code, and with nothing else."""

import ast

import pytest

from pipeline.findings.rules import versions
from tools import write_rule_versions
from tools.code_digest import CodeDigest, Definition, canonical_text

RULE = '''\
"""Rules."""

from typing import Final

from pipeline.rooms import limits
from udfs.calls import Calls, is_long

_MOST: Final = 3


def unused(calls):
    return calls


@rule("R1", needs="request")
def too_long(calls: Calls) -> list[str]:
    """A call is too long."""
    # The limit is a guess.
    return [f"{each} of {_MOST}" for each in calls.lengths() if is_long(each) and each > _MOST + limits.SLACK]
'''
LIMITS = "SLACK = 1\nOTHER = 2\n"
CALLS = '''\
def is_long(number):
    return number > _least()


def _least():
    return 2


class Calls:
    def lengths(self):
        """Return lengths."""
        return [1, 2]
'''
FILES = {"pipeline/rooms/rules.py": RULE, "pipeline/rooms/limits.py": LIMITS, "udfs/calls.py": CALLS}
TOO_LONG = Definition("pipeline.rooms.rules", "too_long")


def digest(folder, changed=("", "", "")):
    """The digest of the rule, with a text of one of the files replaced."""
    name, old, new = changed
    for path, text in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        assert path != name or old in text
        (folder / path).write_text(text.replace(old, new) if path == name else text, encoding="utf-8")
    return CodeDigest(folder).of([TOO_LONG])


RULES, LIMITS_FILE, CALLS_FILE = FILES


@pytest.mark.parametrize("change", [
    (RULES, "# The limit is a guess.", "# The limit was measured."),
    (RULES, "A call is too long.", "A call is longer than allowed."),
    (RULES, '"""Rules."""', '"""Rules on calls."""'),
    (RULES, '[f"{each}', '[\n        f"{each}'),
    (RULES, "import Calls, is_long", "import is_long, Calls"),
    (RULES, "def unused(calls):", "def unused(calls, more):"),
    (LIMITS_FILE, "OTHER = 2", "OTHER = 3"),
    (CALLS_FILE, "Return lengths.", "Return the lengths."),
])  # fmt: skip
def test_what_computes_nothing_leaves_the_version(tmp_path, change):
    assert digest(tmp_path, change) == digest(tmp_path)


@pytest.mark.parametrize("change", [
    (RULES, "each > _MOST", "each >= _MOST"),
    (RULES, "Final = 3", "Final = 4"),
    (RULES, "} of {", "} after {"),
    (RULES, 'needs="request"', 'needs="ok"'),
    (LIMITS_FILE, "SLACK = 1", "SLACK = 2"),
    (CALLS_FILE, "number > _least()", "number >= _least()"),
    (CALLS_FILE, "return 2\n", "return 3\n"),
    (CALLS_FILE, "return [1, 2]", "return [1, 2, 3]"),
])  # fmt: skip
def test_a_condition_a_constant_or_a_helper_changes_the_version(tmp_path, change):
    assert digest(tmp_path, change) != digest(tmp_path)


def test_what_is_excluded_does_not_count(tmp_path):
    digests = []
    for slack in ("1", "2"):
        digest(tmp_path, (LIMITS_FILE, "SLACK = 1", f"SLACK = {slack}"))
        digests.append(CodeDigest(tmp_path, ["pipeline.rooms.limits"]).of([TOO_LONG]))
    assert digests[0] == digests[1]


def test_a_name_that_is_no_definition_is_refused(tmp_path):
    digest(tmp_path)
    with pytest.raises(KeyError, match=r"pipeline\.rooms\.rules has no renamed"):
        CodeDigest(tmp_path).of([TOO_LONG._replace(name="renamed")])


def test_the_text_of_code_is_the_same_in_all_versions_of_python():
    """The syntax tree of one differs in fields that are not there or empty, and in how formats are cut."""
    code = 'def f(a, *, b: int = 0x10) -> str:\n    "Text."\n    return "x" f"{a!r:>{b}} {{" "y" if a else b"\\0"\n'
    assert canonical_text(ast.parse(code).body[0]) == (
        "(FunctionDef name=f args=(arguments args=[(arg arg=a)] kwonlyargs=[(arg arg=b annotation=(Name id=int))]"
        ' kw_defaults=[16]) body=[(Return value=(IfExp test=(Name id=a) body=(JoinedStr "x" (FormattedValue'
        ' value=(Name id=a) conversion=114 format_spec=(JoinedStr ">" (FormattedValue value=(Name id=b)'
        ' conversion=-1))) " {y") orelse=00))] returns=(Name id=str))'
    )  # fmt: skip


def test_the_versions_of_the_rules_are_current(project):
    """Else: ``make rules-doc``."""
    assert write_rule_versions.page(project) == (project / "pipeline/findings/rules/versions.py").read_text("utf-8")
    found = {name: value for name, value in vars(versions).items() if name.endswith("_RULES")}
    assert len({*found.values()}) == len(found) == 5
