"""Candidates on made-up reach: who is free, what belongs together, in which order."""

from etude.synth.candidates import find_candidates

FILES = {
    "pkg/a.py": (
        "def alone():\n    return 1\n\n\n"  # line 1
        "def entry():\n    return inner()\n\n\n"  # line 5
        "def inner():\n    return [x for x in ()]\n\n\n"  # line 9
        "def shared():\n    return 4\n\n\n"  # line 13
        "def at_import():\n    return 5\n\n\n"  # line 17
        "def once():\n    return 6\n\n\n"  # line 21
        "def nothing():\n    pass\n"  # line 25
    ),
    "pkg/b.py": (
        "class Thing:\n    @property\n    def x(self):\n        return 1\n\n"  # line 2
        "    @x.setter\n    def x(self, value):\n        self.y = lambda: value\n"  # line 6
    ),
    "tests/test_a.py": "def test_1(): pass\n",
}
TESTS = frozenset(f"tests/test_a.py::test_{number}" for number in range(1, 13))
A, B = "pkg/a.py", "pkg/b.py"


def ids(*numbers):
    return frozenset(f"tests/test_a.py::test_{number}" for number in numbers)


def reach(**owners):
    """owner=[(path, line), ...]; t1 is test_1."""
    return {f"tests/test_a.py::test_{name[1:]}" if name[0] == "t" else f"<{name}>": places for name, places in owners.items()}


FIRST = reach(
    t1=[(A, 1), ("tests/test_a.py", 1), (A, 13)],
    t2=[(A, 5), (A, 9), (A, 13), (A, 21)],
    t3=[(A, 9), (A, 10), (A, 5), (A, 13), (A, 25), (B, 2)],
    t4=[(B, 2), (B, 6), (B, 8), (A, 13)],
    collect=[(A, 17), (B, 1)],
)
SECOND = FIRST | reach(t5=[(A, 21)], between=[(A, 1)][:0])


def found(repository, runs=(FIRST, SECOND), stable=TESTS, **options):
    repo = repository(FILES)
    outside = ("<collect>", "<between>")
    return {
        (c.kind, *(f"{d.qualname}@{d.line}" for d in c.targets)): c.tests
        for c in find_candidates(repo.index, repo.sources, stable, runs, outside, **options)
    }


def test_a_function_is_free_if_only_a_share_of_the_tests_reach_it(repository):
    candidates = found(repository)
    assert candidates["function", "alone@1"] == ids(1)
    assert candidates["function", "entry@5"] == ids(2, 3)
    assert ("function", "shared@13") not in candidates  # 4 of 12 tests, more than a quarter
    assert ("function", "shared@13") in found(repository, max_share=0.5)


def test_what_runs_at_import_or_does_nothing_is_no_candidate(repository):
    names = {name for _, *names in found(repository, max_share=1) for name in names}
    assert "at_import@17" not in names
    assert "nothing@25" not in names


def test_code_inside_a_function_is_the_functions(repository):
    assert found(repository)["function", "inner@9"] == ids(2, 3)  # line 10 is its comprehension


def test_a_getter_and_a_setter_are_told_apart_by_their_lines(repository):
    candidates = found(repository)
    assert candidates["function", "Thing.x@2"] == ids(3, 4)
    assert candidates["function", "Thing.x@6"] == ids(4)
    assert candidates["class", "Thing@1"] == ids(3, 4)


def test_a_second_order_finds_who_else_needs_what_is_kept_once_it_is_there(repository):
    assert found(repository, runs=(FIRST,))["function", "once@21"] == ids(2)
    assert found(repository)["function", "once@21"] == ids(2, 5)


def test_what_no_test_reaches_in_both_orders_is_needed_by_whichever_comes_first_and_is_no_candidate(repository):
    other = FIRST | reach(t2=[(A, 5), (A, 9), (A, 13)], t5=[(A, 21)])
    assert not any("once@21" in names for _, *names in found(repository, runs=(FIRST, other)))


def test_what_runs_where_all_modules_are_imported_is_no_candidate(repository):
    assert ("function", "alone@1") in found(repository)
    assert not any("entry@5" in names for _, *names in found(repository, runs=(FIRST, reach(collect=[(A, 5)]))))


def test_a_set_holds_what_hangs_together_and_nothing_else_needs(repository):
    candidates = found(repository, runs=(FIRST,))
    assert candidates["set", "entry@5", "inner@9"] == ids(2, 3)  # `once` is reached by a subset too, but nothing ties it to them


def test_a_module_is_a_candidate_if_all_that_is_reached_in_it_is_free(repository):
    repo = {**FILES, "pkg/c.py": "def one():\n    return 1\n\n\ndef two():\n    return 2\n"}
    run = FIRST | reach(t6=[("pkg/c.py", 1)], t7=[("pkg/c.py", 5)])
    made = repository(repo)
    kinds = {(c.kind, len(c.targets)): c.tests for c in find_candidates(made.index, ["pkg/c.py"], TESTS, [run], ["<collect>"])}
    assert kinds["module", 2] == ids(6, 7)


def test_a_definition_on_the_first_line_is_not_taken_for_its_module(repository):
    run = reach(collect=[(A, 1), ("pkg/b.py", 1)], t1=[(A, 1)])
    assert ("function", "alone@1") in found(repository, runs=(run,))


def test_unstable_tests_count_for_nothing(repository):
    assert ("function", "alone@1") not in found(repository, stable=TESTS - ids(1))


def test_the_order_is_fixed_and_mixes_kinds_and_files(repository):
    first, second = list(found(repository)), list(found(repository))
    assert first == second
    assert [kind for kind, *_ in first[:4]] == ["function", "function", "class", "set"]
