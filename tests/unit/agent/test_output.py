import pytest
from hypothesis import given
from hypothesis import strategies as st

from etude.agent.output import canonical, cut, whole_lines


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("2 passed in 0.37s\n", "2 passed in 0.00s"),
        ("1 failed in 71.20s (0:01:11)", "1 failed in 0.00s"),
        ("Ran 3 tests in 0.001s", "Ran 3 tests in 0.00s"),
        ("real\t0m1.204s", "real\t0.00s"),
        ("took 1.5 seconds, 12.25 ms", "took 0.00 seconds, 0.00 ms"),
        ("# duration_ms 185.119078\n  duration_ms: 2", "# duration_ms 0.00\n  duration_ms: 0.00"),
        ("   Duration  312ms (transform 20ms, tests 3ms)\n   Start at  12:01:02", "   Duration 0.00s\n   Start at 0.00s"),
        (" + test/a.test.ts (3 tests) 14ms\n", " + test/a.test.ts (3 tests) 0ms"),
        ("/tmp/tmpab12cd_x/a.txt", "/tmp/tmp/a.txt"),
        ("/tmp/pytest-of-user/pytest-3/test_a0", "/tmp/pytest-of-agent/pytest-0/test_a0"),
        ("worker pid 4242, pid=17", "worker pid 0, pid=0"),
        ("<object object at 0x7f3a5c0b1d90>", "<object object at 0x0>"),
        ("-rw-r--r-- 1 user user 5 Nov 30 12:41 a.py", "-rw-r--r-- 1 user user 5 Jan  1 00:00 a.py"),
        ("....F.s  [ 50%]\n..  [100%]\nend", "end"),
        ("\x1b[31mred\x1b[0m \x1b]0;title\x07x", "red x"),
        ("10%\r50%\rdone\r\nnext", "done\nnext"),
        ("bad \xff\x00 bytes", "bad \ufffd\ufffd bytes"),
    ],
)
def test_what_depends_on_chance_is_replaced(printed: str, shown: str) -> None:
    assert canonical(printed.encode("latin-1")) == shown


@pytest.mark.parametrize(
    "text", ["x = 0.5", "version 1.24.3", "take 5 s", "1.5story", "tmp_folders/a", "0xdeadbeef00", "F\nxs", "assert 3 == 4", "a1.5s"]
)
def test_other_text_stays_as_it_is(text: str) -> None:
    assert canonical(text.encode()) == text


@given(text=st.text(), size=st.integers(60, 200), head=st.floats(0, 1))
def test_a_cut_text_fits_and_says_how_much_is_missing(text: str, size: int, head: float) -> None:
    shown = cut(text * 20, size, head=head)
    assert len(shown) <= size
    if len(text * 20) <= size:
        assert shown == text * 20
    else:
        (count,) = (int(line.split("(")[1].split()[0]) for line in shown.split("\n") if line.endswith(" characters cut) ..."))
        kept = len(shown) - len(f"... ({count} characters cut) ...") - (0 if head in (0, 1) else 1)
        assert kept - 2 <= len(text * 20) - count <= kept + 1


def test_a_cut_falls_between_lines() -> None:
    assert (
        cut("\n".join(f"line {i}" for i in range(100)), 80)
        == "line 0\nline 1\nline 2\n... (746 characters cut) ...\nline 97\nline 98\nline 99"
    )


def test_only_lines_that_fit_as_a_whole_are_counted() -> None:
    assert [whole_lines(["ab", "cde", "f"], n) for n in (1, 2, 5, 6, 7, 8, 99)] == [0, 1, 1, 2, 2, 3, 3]
