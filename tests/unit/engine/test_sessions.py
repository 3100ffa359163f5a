"""Common prefixes and the grouping of neighbouring rows."""

from hypothesis import given
from hypothesis import strategies as st

from etude.engine.kv import Span, _runs
from etude.engine.sessions import common_prefix

IDS = st.lists(st.integers(0, 2), max_size=30)


@given(IDS, IDS, IDS)
def test_common_prefix_is_the_longest(start: list[int], left: list[int], right: list[int]) -> None:
    length = common_prefix(start + left, start + right)
    assert (start + left)[:length] == (start + right)[:length]
    assert length == min(len(start + left), len(start + right)) or (start + left)[length] != (start + right)[length]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 900)), unique_by=lambda pair: pair[0], min_size=1, max_size=12))
def test_runs_cover_every_row_once_with_windows_that_reach_it(pairs: list[tuple[int, int]]) -> None:
    spans = [Span(row, start, 1) for row, start in sorted(pairs)]
    runs = _runs(spans, 1, 1024)
    assert [index for first, count, _ in runs for index in range(first, first + count)] == list(range(len(spans)))
    for first, count, window in runs:
        members = spans[first : first + count]
        assert window == max(span.stop for span in members)
        assert [span.row for span in members] == list(range(members[0].row, members[0].row + count))
