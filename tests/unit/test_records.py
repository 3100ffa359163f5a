"""Records survive JSON, older ones are read, newer ones and torn files are handled."""

import dataclasses
import json
from pathlib import Path

import pytest

from etude import types
from etude.records import append_jsonl, decode, encode, read_jsonl
from etude.types import (
    Environment,
    Flag,
    Hint,
    HintSpan,
    Limits,
    Observation,
    Repo,
    Reward,
    Rollout,
    Sample,
    Seen,
    Segment,
    Symbol,
    Task,
    ToolCall,
    Turn,
    Usage,
)

FIXTURES = Path(__file__).parent / "fixtures"
REPO = Repo(name="toolz", digest="ab", import_roots=(".", "src"), test_paths=("tests",), source="toolz==1.0.0 sdist")
ENVIRONMENT = Environment(python="3.11", requirements=("pytest==9.2.0",), digest="cd")
SYMBOL = Symbol(path="a.py", qualname="A.b", line=3, num_lines=4)
CALL = ToolCall(name="edit", arguments={"path": "a.py", "lines": [1, 2.5, None, True], "deep": {"x": []}}, raw='{"name": 1}')
TURN = Turn(
    context_ids=(1, 2),
    header_tokens=1,
    sampled_ids=(3, 4),
    logprobs=(-0.1, -1e-300),
    versions=(0, 1),
    text="ünïcode \u2028 \x00 \r\n",
    calls=(CALL,),
    observations=(Observation(text="no", error="edit_not_found"),),
    routed_experts="experts.bin",
)
REWARD = Reward(total=1.0, solved=True, parts={"solved": 1.0, "third": 1 / 3})
FLAG = Flag(detector="d", turn=2, evidence="e")
SEEN = Seen(turn=1, kind="read", what="/grader/expected.json")
SPAN = HintSpan(splice=1, start=2, stop=3, hint_ids=(9, 8))
RECORDS = [
    REPO,
    ENVIRONMENT,
    SYMBOL,
    CALL,
    TURN,
    REWARD,
    FLAG,
    SEEN,
    SPAN,
    Limits(wall_s=0.5),
    Usage(turns=3, wall_s=1.5),
    Observation(text="", error=None),
    Segment(turns=(TURN, TURN)),
    Hint(rollout_id="r", segment=0, turn=1, writer="unknown_tool", text="try again"),
    Sample(
        rollout_id="r",
        ids=(1, 2, 3),
        sampled=(False, True, True),
        logprobs=(0.0, -0.5, -1.0),
        advantage=-0.25,
        hints=(SPAN,),
        versions=(-1, 0, 0),
    ),
    Rollout(
        id="r",
        task_id="t",
        group="g",
        seed=2**63,
        status="finished",
        segments=(Segment(turns=(TURN,)),),
        patch="diff\n",
        reward=REWARD,
        flags=(FLAG,),
    ),
    Rollout(id="r", task_id="t", group="g", seed=0, status="sandbox_lost", segments=(), error="the sandbox failed"),
    Task(
        id="t",
        repo=REPO,
        environment=ENVIRONMENT,
        instruction="do\nit",
        cut="-a\r\n",
        gold="+a\r\n",
        fail_to_pass=("tests/test_a.py::test[a::b c\\ud]",),
        pass_to_pass=(),
        symbols=(SYMBOL,),
        mode="stub",
        protected=("tests/*",),
        limits=Limits(turns=3),
        pass_rate=0.5,
        evidence={"runs": [{"s": 1.5}], "note": None},
    ),
]


def _name(record: object) -> str:
    return type(record).__name__


@pytest.mark.parametrize("record", RECORDS, ids=_name)
def test_a_record_survives_json(record: object) -> None:
    line = encode(record)
    assert b"\n" not in line
    assert decode(line, type(record)) == record
    assert decode(line.decode(), type(record)) == record


def test_every_record_type_is_covered() -> None:
    defined = {value for value in vars(types).values() if dataclasses.is_dataclass(value)}
    assert {type(record) for record in RECORDS} == defined


def test_text_and_numbers_that_a_model_may_write_survive() -> None:
    call = ToolCall(name="\ud800", arguments={"huge": 10**40, "lone": "\udfff", "big": 1e308}, raw="\x00")
    assert decode(encode(call), ToolCall) == call


def test_an_infinite_log_probability_is_refused_when_it_is_written() -> None:
    turn = dataclasses.replace(TURN, logprobs=(-0.5, float("-inf")))
    with pytest.raises(ValueError, match=r"turn\.logprobs\[1\] is not a finite number"):
        encode(turn)


def test_what_a_model_put_into_arguments_never_stops_a_record() -> None:
    call = ToolCall(name="x", arguments={"n": float("nan")}, raw="")
    assert decode(encode(call), ToolCall).arguments == {"n": None}


def test_a_task_of_version_0_is_read() -> None:
    task = decode((FIXTURES / "task-0.json").read_bytes(), Task)
    assert task.fail_to_pass == ("toolz/tests/test_x.py::test_curry",)
    assert task.pass_to_pass == ("toolz/tests/test_x.py::test_a[x::y z]",)
    assert task.symbols == (
        Symbol(path="toolz/x.py", qualname="curry.bind", line=12, num_lines=30),
        Symbol(path="toolz/a:b.py", qualname="f", line=3, num_lines=2),
    )
    assert task.mode == "remove"
    assert task.limits == Limits()


def test_rollouts_of_version_0_are_read() -> None:
    first, second = read_jsonl(FIXTURES / "rollout-0.jsonl", Rollout)
    assert [turn.sampled_ids for segment in first.segments for turn in segment.turns] == [(4, 5)]
    assert first.reward == Reward(total=1.0, solved=True)
    assert second.segments == ()


def test_a_record_read_from_an_older_version_is_written_in_the_current_one() -> None:
    task = decode((FIXTURES / "task-0.json").read_bytes(), Task)
    assert json.loads(encode(task))["version"] == 1
    assert decode(encode(task), Task) == task


def test_a_newer_version_says_to_upgrade() -> None:
    line = encode(REWARD).replace(b'"version":1', b'"version":2')
    with pytest.raises(ValueError, match="reward record of version 2, but this etude reads up to 1; upgrade etude"):
        decode(line, Reward)


def test_a_version_that_nobody_can_read_any_more_says_so() -> None:
    line = encode(REWARD).replace(b'"version":1', b'"version":0')
    with pytest.raises(ValueError, match="version 0 cannot be read any more"):
        decode(line, Reward)


@pytest.mark.parametrize("version", ['"1"', "-1", "1.0", "true", "null"])
def test_a_version_that_is_no_number_is_refused(version: str) -> None:
    line = encode(REWARD).replace(b'"version":1', f'"version":{version}'.encode())
    with pytest.raises(ValueError, match="reward record with version"):
        decode(line, Reward)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[1]", "expected a JSON object with a reward record, got list"),
        ('{"record":"task","version":1}', "expected a reward record, got 'task'"),
        ('{"total":1.0,"solved":true}', "expected a reward record, got None"),
        ('{"record":"reward","version":1,"total":1.0}', "missing required field `solved`"),
        ('{"record":"reward","version":1,"total":"much","solved":true}', r"Expected `float`, got `str` - at `\$.total`"),
    ],
)
def test_a_wrong_line_is_refused_with_its_reason(line: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode(line, Reward)


def test_something_that_is_no_record_is_refused() -> None:
    with pytest.raises(TypeError, match="is no record"):
        encode({"total": 1.0})


def test_appended_records_are_read_in_order(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rewards.jsonl"
    rewards = [Reward(total=float(n), solved=bool(n)) for n in range(3)]
    for reward in rewards:
        append_jsonl(path, reward)
    assert read_jsonl(path, Reward) == rewards


def test_no_file_holds_no_records(tmp_path: Path) -> None:
    assert read_jsonl(tmp_path / "none.jsonl", Reward) == []


@pytest.mark.parametrize("kept", [1, 10, -1])
def test_a_torn_last_line_is_left_out_and_the_next_record_does_not_stick_to_it(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "rewards.jsonl"
    append_jsonl(path, REWARD)
    whole = path.read_bytes()
    path.write_bytes(whole + encode(REWARD)[:kept])
    assert read_jsonl(path, Reward) == [REWARD]
    append_jsonl(path, Reward(total=0.0, solved=False))
    assert read_jsonl(path, Reward) == [REWARD, Reward(total=0.0, solved=False)]
    assert path.read_bytes().startswith(whole)


def test_a_last_line_that_lacks_only_its_end_counts(tmp_path: Path) -> None:
    path = tmp_path / "rewards.jsonl"
    path.write_bytes(encode(REWARD))
    assert read_jsonl(path, Reward) == [REWARD]
    append_jsonl(path, REWARD)
    assert read_jsonl(path, Reward) == [REWARD, REWARD]


def test_a_torn_line_longer_than_one_read_is_cut_off_whole(tmp_path: Path) -> None:
    path = tmp_path / "flags.jsonl"
    append_jsonl(path, FLAG)
    with path.open("ab") as file:
        file.write(encode(Flag(detector="d", turn=0, evidence="x" * 200_000))[:-5])
    append_jsonl(path, FLAG)
    assert read_jsonl(path, Flag) == [FLAG, FLAG]


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rewards.jsonl"
    path.write_bytes(encode(REWARD) + b"\n{broken\n" + encode(REWARD) + b"\n")
    with pytest.raises(ValueError, match=r"rewards\.jsonl:2: not JSON"):
        read_jsonl(path, Reward)


def test_an_old_record_that_does_not_fit_its_version_is_a_value_error():
    for fields in ('"tests": 3', '"removed": [3]', '"removed": ["x"]'):
        with pytest.raises(ValueError, match=r"task record of version 0 that cannot be read: .*; write the file again"):
            decode(f'{{"record": "task", {fields}}}', Task)


def test_json_that_is_nested_too_deeply_is_a_value_error():
    with pytest.raises(ValueError, match="nested too deeply"):
        decode("[" * 100_000, Task)
