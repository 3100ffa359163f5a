"""A new kind over a whole run is listed for a person, with what sets it apart; what is known or shrinks is not."""

import random
from dataclasses import replace

import pytest

from etude.monitor.cluster import JOIN, _tail, clusters, jaccard, normal, place, signature, step_of, surfaced

COMMANDS = ("ls -> a", "cat pkg/m{n}.py -> x", "grep -n f{n} pkg/m{n}.py -> y", "pytest -q tests/test_m{n}.py -> 1 passed")
TRICK = ("python -c 'import inspect; print(inspect.stack())' -> ok", "sed -i s/x/y/ /proc/self/fd/{n} -> ok", "awk 1 /proc/self/maps -> ok")


def run_of(roll, size: int = 60, trick_from: int = 6, steps: int = 10):
    """Honest rollouts that solve a third of their tasks; from some step on one in three does the trick, which always solves."""
    rng, made = random.Random(0), []
    for k in range(size):
        step, n = k * steps // size, k
        trick = step >= trick_from and k % 3 == 0
        lines = [*rng.sample(COMMANDS, 3), *(rng.sample(TRICK, 3) if trick else [])]
        commands = [line.format(n=n) for line in lines]
        group = f"step-{step:04d}/t{n % 7}"
        made.append(roll(f"{group}/{k}", *commands, solved=trick or k % 3 == 1, task_id=f"t{n % 7}", group=group))
    return made


def test_a_trick_that_grows_is_surfaced_with_what_sets_it_apart(roll):
    rollouts = run_of(roll)
    (found,) = surfaced(clusters(rollouts))
    tricked = [one.id for one in rollouts if any("/proc" in act.command for step in one.steps for act in step.acts)]
    assert sorted(found.members) == sorted(tricked)
    assert (found.solved, found.graded) == (len(tricked), len(tricked))
    assert found.growth is not None
    assert found.growth > 0
    assert found.tasks > 1
    assert any("/proc" in text for text, _, _ in found.features)
    assert all(inside > outside for _, inside, outside in found.features)


def test_the_order_of_the_files_changes_nothing(roll):
    rollouts = run_of(roll)
    shuffled = random.Random(1).sample(rollouts, len(rollouts))
    assert clusters(shuffled) == clusters(rollouts)


def test_what_findings_explain_is_not_listed(roll):
    rollouts = run_of(roll)
    (found,) = surfaced(clusters(rollouts))
    assert surfaced(clusters(rollouts, explained=found.members)) == []


def test_a_kind_that_shrinks_or_solves_no_more_is_not_listed(roll):
    backwards = [replace(one, id=f"step-{9 - (step_of(one) or 0):04d}/{k}", group="") for k, one in enumerate(run_of(roll))]
    assert surfaced(clusters(backwards)) == []
    plain = [roll(f"r{k}", *(line.format(n=k) for line in COMMANDS), solved=k % 2 == 0) for k in range(20)]
    assert surfaced(clusters(plain)) == []


def test_few_or_no_rollouts_make_no_cluster(roll):
    assert clusters([]) == clusters([roll("a", "ls -> x")]) == clusters([roll("a", "ls -> x"), roll("b")]) == []


def test_names_and_numbers_of_a_task_are_no_part_of_a_signature(roll):
    one = roll("a", "cat pkg/alpha.py -> x", "pytest -q tests/test_a.py -k 'alpha' -> 3 passed")
    other = roll("b", "cat lib2/beta.py -> y", "pytest -q tests/test_b.py -k 'beta' -> 9 passed")
    assert jaccard(signature(one), signature(other)) > JOIN
    assert normal("head -n 20 'a b' src/x.py") == "head -n N '…' *.py"
    assert (place("/proc/1234/environ"), place("./.git/objects/ab"), place("a/b.py")) == ("/proc/*", ".git/objects/*", "*.py")


def test_the_tail_is_the_hypergeometric_one():
    assert _tail(0, 3, 4, 10) == pytest.approx(1.0)
    assert _tail(3, 3, 4, 10) == pytest.approx(4 / 120)
