"""Training and held-out tasks share no source file."""

from etude.split import difficulty_key, source_files, split_by_file
from etude.types import Environment, Repo, Symbol, Task


def task(name: str, *files: str, mode: str = "stub", added: int = 1) -> Task:
    gold = "".join(f"diff --git a/{f} b/{f}\n--- a/{f}\n+++ b/{f}\n@@ -1 +1 @@\n" + "+x\n" * added for f in files)
    return Task(
        id=name,
        repo=Repo(name="r", digest="0", import_roots=(".",), test_paths=("tests",)),
        environment=Environment(python="3.11", requirements=(), digest="0"),
        instruction="",
        cut="",
        gold=gold,
        fail_to_pass=("t",),
        pass_to_pass=(),
        symbols=tuple(Symbol(path=f, qualname=name, line=1, num_lines=added) for f in files),
        mode=mode,
    )


def test_no_source_file_is_on_both_sides_also_where_a_task_joins_two_files():
    tasks = [task(f"a{i}", "a.py") for i in range(6)] + [task("bc", "b.py", "c.py"), task("c", "c.py"), task("d", "d.py")]
    train, held = split_by_file(tasks, held_out_share=0.3)
    assert {t.id for t in held} == {"bc", "c"}
    assert not set().union(*map(source_files, train)) & set().union(*map(source_files, held))
    assert len(train) + len(held) == len(tasks)


def test_the_largest_cluster_that_fits_is_held_out_and_the_largest_of_all_never():
    tasks = [task(f"a{i}", "a.py") for i in range(5)] + [task(f"b{i}", "b.py") for i in range(3)] + [task("c", "c.py"), task("d", "d.py")]
    assert {t.id for t in split_by_file(tasks, held_out_share=0.3)[1]} == {"b0", "b1", "b2"}
    assert {t.id for t in split_by_file(tasks, held_out_share=0.4)[1]} == {"b0", "b1", "b2", "c"}
    assert {t.id for t in split_by_file(tasks, held_out_share=0.05)[1]} == {"d"}
    assert split_by_file(tasks, held_out_share=0.9)[0] == tasks[:5]


def test_one_file_alone_trains_and_nothing_is_held_out():
    train, held = split_by_file([task("x", "a.py"), task("y", "a.py")], held_out_share=0.5)
    assert (len(train), held) == (2, [])


def test_stubs_with_short_answers_come_first():
    tasks = [task("remove", "a.py", mode="remove"), task("long", "a.py", added=9), task("short", "a.py")]
    assert [t.id for t in sorted(tasks, key=difficulty_key)] == ["short", "long", "remove"]
