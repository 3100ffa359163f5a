"""Every format gives the same Trajectory of the same small run; damage is named and costs one record."""

import json
from pathlib import Path
from typing import Any

import pytest

from etude.errors import UserError
from etude.monitor.readers import read_trajectories
from etude.monitor.trajectory import Trajectory
from etude.records import encode
from etude.types import Observation, Reward, Rollout, Segment, ToolCall, Turn

PATCH = "diff --git a/calc/core.py b/calc/core.py\n--- a/calc/core.py\n+++ b/calc/core.py\n@@ -1 +1 @@\n-a = 0\n+a = 1\n"


def write(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value, indent=1))
    return path


def only(path: Path) -> Trajectory:
    (found,) = read_trajectories(path)
    return found


def rollout(name: str = "r1") -> Rollout:
    call = ToolCall(name="run", arguments={"command": "pytest -q"}, raw="{}")
    turn = Turn(
        context_ids=(1, 2),
        header_tokens=1,
        sampled_ids=(3,),
        logprobs=(-0.5,),
        versions=(0,),
        text='<think>hm</think>Let us see.<tool_call>{"name": "run", "arguments": {"command": "pytest -q"}}</tool_call>',
        calls=(call,),
        observations=(Observation(text="exit code 1\n1 failed"),),
    )
    return Rollout(
        id=name, task_id="calc-1", group="g", seed=0, status="finished", segments=(Segment(turns=(turn,)),), patch=PATCH,
        reward=Reward(total=0.0, solved=False),
    )  # fmt: skip


def run_folder(path: Path) -> Path:
    (path / "rollouts").mkdir(parents=True)
    (path / "rollouts/after.jsonl").write_bytes(encode(rollout()) + b"\n" + encode(rollout("r2")) + b"\n")
    write(path / "tasks.json", {"train": [{"id": "calc-1", "instruction": "Implement a.", "symbols": ["src/calc/core.py:a"]}]})
    write(path / "metrics.jsonl", '{"step": 1}\n')
    return path


def test_a_run_folder_gives_its_rollouts_with_their_tasks(tmp_path: Path) -> None:
    first, second = read_trajectories(run_folder(tmp_path))
    assert (first.id, second.id, first.source, first.group, first.solved) == ("r1", "r2", "etude", "g", False)
    assert (first.instruction, first.packages, first.patch) == ("Implement a.", ("calc",), PATCH)
    (step,) = first.steps
    assert (step.text, step.reasoning) == ("Let us see.", "hm")
    assert (step.acts[0].command, step.acts[0].failed) == ("pytest -q", True)


def test_a_damaged_rollout_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    file = folder / "rollouts/after.jsonl"
    lines = file.read_bytes().splitlines()
    broken = json.loads(lines[0])
    broken["segments"] = 3
    file.write_bytes(b"\n".join([json.dumps(broken).encode(), lines[1], b'{"record": "roll', lines[0]]) + b"\n")
    damaged: list[str] = []
    assert [one.id for one in read_trajectories(folder, damaged)] == ["r2", "r1"]
    assert [line.split(": ")[0].rpartition(":")[2] for line in damaged] == ["1", "3"]


def test_atif(tmp_path: Path) -> None:
    value = {
        "schema_version": "ATIF-v1.4",
        "session_id": "s",
        "agent": {"name": "any", "version": "1"},
        "extra": {"task_id": "calc-1", "patch": PATCH, "reward": 1.0},
        "steps": [
            {"step_id": 1, "source": "user", "message": "Implement a."},
            {
                "step_id": 2,
                "source": "agent",
                "message": "Both.",
                "reasoning_content": "hm",
                "tool_calls": [
                    {"tool_call_id": "x", "function_name": "bash", "arguments": {"command": "ls"}},
                    {"tool_call_id": "y", "function_name": "str_replace_editor", "arguments": {"command": "view", "path": "/testbed/a.py"}},
                ],
                "observation": {"results": [{"source_call_id": "y", "content": "a = 0"}, {"source_call_id": "x", "content": "a.py"}]},
            },
        ],
    }
    found = only(write(tmp_path / "trajectory.json", value))
    assert (found.id, found.source, found.task_id, found.instruction, found.patch, found.solved) == (
        "s", "atif", "calc-1", "Implement a.", PATCH, True,
    )  # fmt: skip
    shell, view = found.steps[0].acts
    assert (shell.command, shell.result, view.command, view.path, view.result) == ("ls", "a.py", "", "/testbed/a.py", "a = 0")
    assert found.steps[0].reasoning == "hm"


def test_atif_with_content_in_parts_and_without_call_ids(tmp_path: Path) -> None:
    step = {
        "source": "agent",
        "message": [{"type": "text", "text": "Go."}],
        "tool_calls": [{"function_name": "bash_command", "arguments": {"keystrokes": "ls\n"}}],
        "observation": {"results": [{"content": [{"type": "text", "text": "a.py"}]}]},
    }
    found = only(write(tmp_path / "t.json", {"schema_version": "ATIF-v1.6", "session_id": "s", "agent": {}, "steps": [step]}))
    assert (found.steps[0].text, found.steps[0].acts[0].command, found.steps[0].acts[0].result) == ("Go.", "ls\n", "a.py")


def test_swe_agent(tmp_path: Path) -> None:
    value = {
        "environment": "swe_main",
        "trajectory": [
            {
                "thought": "Look.",
                "action": "str_replace_editor view /testbed/calc/core.py --view_range 1 5",
                "observation": "a = 0",
                "state": {},
            },
            {"thought": "Change.", "action": "str_replace_editor str_replace /testbed/calc/core.py --old_str 'a = 0' --new_str 'a = 1'"},
            {"thought": "Run.", "action": "cd /testbed && pytest -q", "observation": "1 failed in 0.1s"},
            {"thought": "Done.", "action": "submit", "observation": ""},
        ],
        "history": [{"role": "system", "content": "You"}, {"role": "user", "content": "Implement a."}],
        "info": {"exit_status": "submitted", "submission": PATCH},
    }
    found = only(write(tmp_path / "calc__calc-1.traj", value))
    assert (found.id, found.source, found.instruction, found.patch, found.solved) == (
        "calc__calc-1",
        "swe-agent",
        "Implement a.",
        PATCH,
        None,
    )
    view, change, run, submit = (step.acts[0] for step in found.steps)
    assert (view.path, change.arguments["new_str"]) == ("/testbed/calc/core.py", "a = 1")
    assert (run.command, run.failed, submit.command) == ("cd /testbed && pytest -q", True, "")


def test_mini_swe_agent_version_1(tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "You"},
        {"role": "user", "content": "Implement a."},
        {"role": "assistant", "content": "THOUGHT: look\n\n```bash\nls\n```"},
        {"role": "user", "content": "<returncode>2</returncode>\n<output>\nno such\n</output>"},
    ]
    value = {"info": {"exit_status": "Submitted", "submission": PATCH}, "messages": messages, "trajectory_format": "mini-swe-agent-1"}
    found = only(write(tmp_path / "calc-1.traj.json", value))
    assert (found.id, found.source, found.instruction, found.patch) == ("calc-1", "mini-swe-agent", "Implement a.", PATCH)
    (act,) = found.steps[0].acts
    assert (found.steps[0].text, act.command, act.result, act.failed) == ("THOUGHT: look", "ls", "no such", True)


def test_mini_swe_agent_version_2_with_several_calls(tmp_path: Path) -> None:
    calls = [{"id": name, "function": {"name": "bash", "arguments": json.dumps({"command": name})}} for name in ("ls", "pwd")]
    messages = [
        {"role": "user", "content": "Implement a."},
        {"role": "assistant", "content": None, "tool_calls": calls, "extra": {"actions": [{"command": "ls"}, {"command": "pwd"}]}},
        {"role": "tool", "tool_call_id": "ls", "content": "<returncode>0</returncode>", "extra": {"raw_output": "a.py", "returncode": 0}},
        {
            "role": "tool",
            "tool_call_id": "pwd",
            "content": "<returncode>1</returncode>",
            "extra": {"raw_output": "/testbed", "returncode": 1},
        },
    ]
    found = only(write(tmp_path / "x.traj.json", {"info": {"mini_version": "2"}, "messages": messages, "instance_id": "calc-1"}))
    assert [(act.command, act.result, act.failed) for act in found.steps[0].acts] == [("ls", "a.py", False), ("pwd", "/testbed", True)]
    assert found.id == "calc-1"


def test_mini_swe_agent_messages_alone(tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "You"},
        {"role": "user", "content": "Implement a."},
        {"role": "assistant", "content": "Look.\n```mswea_bash_command\nls\n```"},
        {"role": "user", "content": "<returncode>0</returncode>\n<output>\na.py\n</output>"},
    ]
    found = only(write(tmp_path / "local.traj.json", messages))
    assert (found.source, found.id, found.steps[0].acts[0].command, found.steps[0].acts[0].result) == (
        "mini-swe-agent",
        "local",
        "ls",
        "a.py",
    )


OPENHANDS = [
    {"id": 0, "source": "user", "action": "message", "args": {"content": "Implement a."}},
    {"id": 1, "source": "agent", "action": "run", "args": {"command": "ls", "thought": "Look."}},
    {"id": 2, "source": "agent", "cause": 1, "observation": "run", "content": "a.py", "extras": {"metadata": {"exit_code": 1}}},
    {"id": 3, "source": "agent", "action": "edit", "args": {"path": "/workspace/calc/a.py", "command": "view"}},
    {"id": 4, "source": "agent", "cause": 3, "observation": "edit", "content": "a = 0", "extras": {}},
    {"id": 5, "source": "agent", "action": "run_ipython", "args": {"code": "print(1)"}},
    {"id": 6, "source": "agent", "action": "finish", "args": {"final_thought": "All done."}},
]


def check_openhands(found: Trajectory) -> None:
    assert (found.source, found.instruction) == ("openhands", "Implement a.")
    run, edit, notebook, finish = found.steps
    assert (run.text, run.acts[0].command, run.acts[0].result, run.acts[0].failed) == ("Look.", "ls", "a.py", True)
    assert (edit.acts[0].command, edit.acts[0].path, edit.acts[0].result) == ("", "/workspace/calc/a.py", "a = 0")
    assert "print(1)" in notebook.acts[0].command
    assert finish.text == "All done."


def test_openhands_as_a_list_of_events(tmp_path: Path) -> None:
    check_openhands(only(write(tmp_path / "events.json", OPENHANDS)))


def test_openhands_as_a_folder_of_events(tmp_path: Path) -> None:
    for event in OPENHANDS:
        write(tmp_path / f"events/{event['id']}.json", event)
    check_openhands(only(tmp_path))


def test_openhands_output_lines(tmp_path: Path) -> None:
    line = {"instance_id": "calc-1", "test_result": {"git_patch": PATCH, "report": {"resolved": True}}, "history": OPENHANDS}
    pairs = {"instance_id": "calc-2", "test_result": {}, "history": [OPENHANDS[:1], OPENHANDS[1:3], OPENHANDS[3:5], *OPENHANDS[5:]]}
    first, second = read_trajectories(write(tmp_path / "output.jsonl", f"{json.dumps(line)}\n{json.dumps(pairs)}\n"))
    assert (first.id, first.patch, first.solved, second.id, second.solved) == ("calc-1", PATCH, True, "calc-2", None)
    check_openhands(first)
    check_openhands(second)


def test_openhands_sdk_events(tmp_path: Path) -> None:
    action = {
        "kind": "ActionEvent", "id": "a", "source": "agent", "thought": [{"type": "text", "text": "Look."}], "reasoning_content": "hm",
        "tool_name": "terminal", "tool_call_id": "c", "action": {"kind": "TerminalAction", "command": "ls"},
    }  # fmt: skip
    answer = {
        "kind": "ObservationEvent", "id": "b", "source": "environment", "tool_call_id": "c",
        "observation": {"kind": "TerminalObservation", "content": [{"type": "text", "text": "a.py"}], "exit_code": 1},
    }  # fmt: skip
    found = only(write(tmp_path / "t.json", [action, answer]))
    (step,) = found.steps
    assert (step.text, step.reasoning) == ("Look.", "hm")
    assert (step.acts[0].command, step.acts[0].result, step.acts[0].failed) == ("ls", "a.py", True)


@pytest.mark.parametrize("text", ["", "no json", "[1, 2]", '{"steps": []}', "[" * 100_000])
def test_a_file_of_no_format_gives_one_clear_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match="no trajectory that can be read; known formats are etude rollouts, ATIF") as caught:
        list(read_trajectories(write(tmp_path / "x.json", text)))
    assert "\n" not in str(caught.value)


def test_a_missing_path_gives_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no such file or folder"):
        list(read_trajectories(tmp_path / "none"))


def test_a_folder_of_many_formats_is_read_and_what_is_broken_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a/events.json", OPENHANDS)
    write(tmp_path / "b/x.traj", {"trajectory": [3], "info": {}})
    write(tmp_path / "c/y.traj", {"trajectory": [{"action": "ls", "observation": "", "thought": ""}], "info": {}})
    write(tmp_path / "d/config.json", {"any": 1})
    damaged: list[str] = []
    assert [one.source for one in read_trajectories(tmp_path, damaged)] == ["openhands", "swe-agent"]
    assert damaged == [f"{tmp_path}/b/x.traj: turn 1 is no object"]
