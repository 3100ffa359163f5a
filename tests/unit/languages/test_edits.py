import pytest

from etude.languages.edits import apply, removal
from etude.languages.protocol import Edit


def cut(text, part):
    start = text.index(part)
    return apply(text.encode(), [removal(text.encode(), start, start + len(part))]).decode()


def test_edits_apply_in_any_order():
    assert apply(b"abcdef", [Edit(start=4, end=5, data=b"E"), Edit(start=0, end=1, data=b"A")]) == b"AbcdEf"


def test_an_edit_inside_a_removal_is_dropped_and_overlapping_removals_become_one():
    assert apply(b"abcdef", [Edit(start=1, end=4), Edit(start=2, end=3, data=b"X")]) == b"aef"
    assert apply(b"abcdef", [Edit(start=1, end=3), Edit(start=2, end=5)]) == b"af"


def test_overlapping_replacements_are_refused():
    with pytest.raises(ValueError, match="overlap at byte 2"):
        apply(b"abcdef", [Edit(start=1, end=3, data=b"x"), Edit(start=2, end=5, data=b"y")])


def test_a_statement_goes_with_its_lines_and_one_of_the_blank_gaps():
    assert cut("one()\n\ntwo()\n\nthree()\n", "two()") == "one()\n\nthree()\n"
    assert cut("{\n  one()\n\n  two()\n}\n", "two()") == "{\n  one()\n}\n"
    assert cut("{\n  one()\n\n  two()\n}\n", "one()") == "{\n  two()\n}\n"
    assert cut("one()\n\ntwo()\n", "two()") == "one()\n"


def test_line_ends_of_windows_leave_no_ghost():
    assert cut("one()\r\n\r\ntwo();\r\n\r\nthree()\r\n", "two()") == "one()\r\n\r\nthree()\r\n"


def test_what_shares_a_line_goes_alone():
    assert cut("a(); b(); c()\n", "b(); ") == "a(); c()\n"
