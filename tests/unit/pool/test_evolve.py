"""Wishes: harder ones of what is solved, easier ones of what is not, one change at a time."""

from etude.config import PoolConfig
from etude.pool.entry import CHANGES, Entry, Outcome, outcome_of
from etude.pool.evolve import wishes
from etude.pool.view import look


def entry(name: str, **traits: object) -> Entry:
    return Entry(**{"id": name, "kind": "feature_deletion", "repo": "toolz", "band": "S", "files": (f"{name}.py",), **traits})


def group(task: str, version: int, solved: int, n: int = 8) -> Outcome:
    flags = [k < solved for k in range(n)]
    return outcome_of(f"{version}/{task}", task, version, flags, [float(one) for one in flags], 1.0)


def asked(entries, outcomes, known=(), can=CHANGES[:-1], limit=10):
    view = look(entries, outcomes, version=2, group_size=8, settings=PoolConfig(max_draws=0))
    return wishes(view, dict(known), can, limit=limit, step=1)


def changes(found):
    return [(wish.task, wish.change, wish.to) for wish in found]


def test_a_solved_task_is_made_harder_and_one_in_between_is_left_alone():
    entries = [entry("solved", level="A"), entry("half"), entry("fresh"), entry("few")]
    assert changes(asked(entries, [group("solved", 1, 7), group("half", 1, 4), group("few", 1, 4, n=4)])) == [
        ("solved", "lower_level", "B")
    ]


def test_the_next_way_is_taken_where_one_cannot_be_made_or_has_failed_and_none_while_one_is_under_way():
    one = entry("a", level="B", visible_share=0.5, mode="stub")
    ways, known = [], {}
    while found := asked([one], [group("a", 1, 8)], known.items()):
        assert asked([one], [group("a", 1, 8)], {found[0].id: "open"}.items() | known.items()) == []
        assert asked([one], [group("a", 1, 8)], {found[0].id: "made"}.items() | known.items()) == []
        ways += changes(found)
        known[found[0].id] = "failed"
    assert ways == [("a", "lower_level", "C"), ("a", "hide_tests", "0"), ("a", "remove", "")]
    assert changes(asked([one], [group("a", 1, 8)], can=("remove",))) == [("a", "remove", "")]


def test_solved_features_of_one_file_are_joined_each_once_and_never_with_their_own_parts():
    same = {"level": "C", "files": ("x.py",)}
    entries = [
        entry("a", **same),
        entry("b", **same),
        entry("c", **same),
        entry("d", level="C"),
        entry("ab", origin=("a", "b"), kind="joined_features", **same),
    ]
    found = asked(entries, [group(name, 1, 8) for name in ("a", "b", "c", "d", "ab")], can=("join",))
    pairs = [(wish.task, *wish.partners) for wish in found]
    assert pairs == [("a", "b"), ("ab", "c")]


def test_joining_ends_at_four_features():
    same = {"level": "C", "files": ("x.py",), "kind": "joined_features"}
    entries = [entry("abc", origin=("a", "b", "c"), **same), entry("de", origin=("d", "e"), **same)]
    assert asked(entries, [group("abc", 1, 8), group("de", 1, 8)], can=("join",)) == []


def test_an_unsolved_task_is_made_easier():
    hopeless = [outcome_of(f"{version}", "a", version, [False] * 8, [0.0] * 8, 1.0) for version in (0, 1)]
    assert changes(asked([entry("a", level="C"), *map(entry, "bcdefgh")], hopeless)) == [("a", "raise_level", "B")]
    assert changes(asked([entry("a", visible_share=0.5)], hopeless)) == [("a", "show_tests", "1")]
    assert changes(asked([entry("a", visible_share=1.0, kind="joined_features")], hopeless)) == [("a", "split", "")]
    assert asked([entry("a", level="C", held="gold fails")], hopeless) == []


def test_what_is_still_missing_is_asked_for_new_where_it_pays_most():
    entries = [entry("a", repo="good"), entry("b", repo="dull"), entry("c", repo="good")]
    found = asked(entries, [group("a", 1, 4), group("b", 1, 6)], can=CHANGES, limit=2)
    assert [(wish.change, wish.arm[1]) for wish in found] == [("new", "good"), ("new", "dull")]
    assert len(asked(entries, [group("a", 1, 8), group("b", 1, 4)], can=CHANGES, limit=1)) == 1
