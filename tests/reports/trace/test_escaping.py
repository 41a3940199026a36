"""What a sender may write into a label does nothing to a terminal."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from pipeline.text import cut_text, escape_unprintable, format_cell

HOSTILE = {
    "\x1b]0;owned\x07": "<U+001B>]0;owned<U+0007>",
    "\x9b2J": "<U+009B>2J",
    "invoice\u202efdp.exe": "invoice<U+202E>fdp.exe",
    "a\r\nb\tc": "a<U+000D><U+000A>b<U+0009>c",
    "\u2066x\u2069\u200b\ufeff": "<U+2066>x<U+2069><U+200B><U+FEFF>",
    "\ud800": "<U+D800>",
    "\u2028\u2029\xa0": "<U+2028><U+2029><U+00A0>",
}


def test_what_a_terminal_would_obey_is_its_code_point():
    for text, expected in HOSTILE.items():
        assert escape_unprintable(text) == expected


def test_letters_of_all_people_stay():
    for text in ("Bestellung für Zoë", "订单 17", "הזמנה", "e\u0301"):
        assert escape_unprintable(text) == text


def test_marks_do_not_pile_up():
    assert escape_unprintable("a" + "\u0301" * 40).count("\u0301") == 3


@given(st.text(st.characters(codec=None), max_size=60), st.integers(0, 60))
def test_nothing_that_is_obeyed_is_left(text, most):
    found = escape_unprintable(text, most)
    assert all(unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") for char in found)
    found.encode()
    if len(text) > most:
        assert found.endswith(f"... (+{len(text) - most} characters)")


def test_texts_of_a_megabyte_are_cut_and_say_so():
    one, two = ("x" * 1_000_000 + end for end in "ab")
    assert escape_unprintable(one) == "x" * 500 + "... (+999501 characters)"
    assert format_cell(one) == "x" * 36 + "... (+999965 characters)"
    assert format_cell([1] * 22) == "1, " * 20 + "... (+2 values)"
    assert cut_text(one, 9, distinct=True) != cut_text(two, 9, distinct=True)
