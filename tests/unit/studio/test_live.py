"""studio/live.py: a view that redraws in place on a terminal and prints few plain lines elsewhere."""

import io
import threading

import pytest
from rich.console import Console

from etude.studio.live import Live, clock_time, draw, printable, rough_time, sparkline

STAGES = ["build tasks", "warm start", "step 1 of 3", "step 2 of 3", "step 3 of 3", "evaluate after"]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def plain() -> Console:
    return Console(file=io.StringIO(), force_terminal=False, width=200)


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=100, height=30, legacy_windows=False, _environ={"TERM": "xterm"})


def output(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def drawn(live: Live) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(draw(live))
    return output(console)


def test_without_a_terminal_many_events_make_one_line_every_few_seconds() -> None:
    console, clock = plain(), Clock()
    with Live("demo", STAGES, console=console, clock=clock) as live:
        live.stage("build tasks", total=1000)
        lines = output(console).count("\n")
        for i in range(1000):
            clock.now += 0.0125  # 12.5 s in all
            live.advance()
            live.note(f"task {i}")
        assert output(console).count("\n") - lines == 2
    assert "\x1b" not in output(console)


def test_no_note_is_lost_silently_without_a_terminal() -> None:
    console, clock = plain(), Clock()
    with Live("demo", STAGES, console=console, clock=clock) as live:
        live.stage("build tasks")
        for i in range(5):
            live.note(f"task {i}")
    last = output(console).splitlines()[-1]
    assert last.startswith("[00:00] done after 00:00 | 3 notes before | task 3 | task 4")


def test_a_plain_line_says_stage_count_numbers_and_time_left() -> None:
    console, clock = plain(), Clock()
    with Live("demo", ["a", "b"], console=console, clock=clock) as live:
        live.stage("a", total=10)
        live.numbers(tokens_per_s=1234.0, solved=0.25)
        clock.now += 60
        live.advance(5)
    assert "[01:00] a 5/10 · 25% of all, about 3 min left · tokens/s 1,234, solved 25%" in output(console)


def test_a_new_stage_says_how_long_the_one_before_took() -> None:
    console, clock = plain(), Clock()
    with Live("demo", STAGES, console=console, clock=clock) as live:
        live.stage("build tasks")
        clock.now += 75
        live.stage("warm start", total=4)
    assert "build tasks took 01:15, now warm start 0/4" in output(console)


def test_a_stage_that_was_not_announced_is_refused() -> None:
    with Live("demo", ["a"], console=plain()) as live, pytest.raises(ValueError, match="the stages are a"):
        live.stage("b")


def test_of_numbered_stages_only_the_current_one_is_on_show() -> None:
    with Live("demo", STAGES, console=plain()) as live:
        assert "step 1 of 3" in drawn(live)
        live.stage("step 2 of 3", total=8)
        text = drawn(live)
    assert "step 2 of 3" in text
    assert "step 1 of 3" not in text
    assert "step 3 of 3" not in text


def test_stages_that_a_resumed_run_jumps_over_are_marked_as_skipped_and_not_counted_as_speed() -> None:
    clock = Clock()
    with Live("demo", ["a", "b", "c"], expected_s={"a": 1000.0, "b": 100.0, "c": 100.0}, console=plain(), clock=clock) as live:
        live.stage("b", total=10)
        clock.now += 50
        live.advance(5)
        left = live.left_s()
        text = drawn(live)
    assert next(line for line in text.splitlines() if " a " in line).split() == ["–", "a", "skipped"]
    assert left == pytest.approx(150)


def test_the_time_left_follows_the_measured_speed_more_than_the_expected_one() -> None:
    clock = Clock()
    with Live("demo", ["a"], expected_s={"a": 100.0}, console=plain(), clock=clock) as live:
        live.stage("a", total=100)
        assert live.left_s() == pytest.approx(100)
        clock.now += 100  # half as fast as expected
        live.advance(50)
        left = live.left_s()
    assert left is not None
    assert 90 < left < 100


def test_the_whole_is_done_only_when_every_stage_is() -> None:
    with Live("demo", ["a", "b"], console=plain()) as live:
        live.stage("a", total=2)
        live.advance(7)
        assert live.share() == 0.5
        live.stage("b")
        assert live.share() == 0.5
    assert live.share() == 1.0


@pytest.mark.parametrize(("error", "word"), [(KeyboardInterrupt, "interrupted"), (RuntimeError, "failed")])
def test_leaving_by_an_error_shows_the_cursor_again_and_names_the_stage_that_did_not_end(error: type[BaseException], word: str) -> None:
    console = terminal()
    live = Live("demo", STAGES, console=console)

    def run() -> None:
        with live:
            live.stage("warm start", total=10)
            live.advance(3)
            raise error

    with pytest.raises(error):
        run()
    assert output(console).rfind("\x1b[?25h") > output(console).rfind("\x1b[?25l") >= 0
    assert next(line for line in drawn(live).splitlines() if "warm start" in line).split()[:4] == ["✗", "warm", "start", word]
    assert live.share() < 0.5


def test_notes_and_numbers_cannot_move_the_cursor_or_inject_markup() -> None:
    with Live("demo", STAGES, console=plain()) as live:
        live.note("evil \x1b[2J\x07 [red]text[/red]\r\nsecond")
        live.numbers(policy="\x1b]0;title\x07")
        text = drawn(live)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "evil �[2J� [red]text[/red]" in text


def test_right_to_left_overrides_are_not_printed() -> None:
    assert printable("a\u202eb\u2066c") == "a�b�c"


def test_threads_may_report_at_once() -> None:
    with Live("demo", STAGES, console=terminal()) as live:
        live.stage("build tasks", total=400)
        threads = [threading.Thread(target=lambda: [live.advance() for _ in range(100)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert "400/400" in drawn(live)


def test_a_sparkline_runs_from_the_lowest_to_the_highest_value() -> None:
    assert sparkline([0, 7, 3.5]) == "▁█▅"
    assert sparkline([2, 2]) == "▁▁"


def test_times_are_printed_with_the_precision_they_deserve() -> None:
    assert (clock_time(59.9), clock_time(3725)) == ("00:59", "1:02:05")
    assert (rough_time(3), rough_time(47), rough_time(125), rough_time(9000)) == ("10 s", "50 s", "2 min", "2.5 h")
