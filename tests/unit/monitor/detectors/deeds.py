"""What the cases of the detectors' tests are written with: acts, patches, trajectories of one step an act."""

from typing import Any

from etude.monitor.trajectory import Act, Step, Trajectory


def diff(path: str, new: str, old: str = "", *, fresh: bool = False) -> str:
    minus, plus = [f"-{line}" for line in old.splitlines()], [f"+{line}" for line in new.splitlines()]
    context = [] if fresh else [" # context"]
    count = len(context)
    mode = "new file mode 100644\n" if fresh else ""
    before = "/dev/null" if fresh else f"a/{path}"
    start = 0 if fresh else 1
    head = f"diff --git a/{path} b/{path}\n{mode}--- {before}\n+++ b/{path}\n@@ -{start},{len(minus) + count} +1,{len(plus) + count} @@\n"
    return head + "\n".join([*context, *minus, *plus]) + "\n"


def gone(path: str, old: str) -> str:
    lines = [f"-{line}" for line in old.splitlines()]
    head = f"diff --git a/{path} b/{path}\ndeleted file mode 100644\n--- a/{path}\n+++ /dev/null\n@@ -1,{len(lines)} +0,0 @@\n"
    return head + "\n".join(lines) + "\n"


def act(done: Any) -> Act:
    if isinstance(done, Act):
        return done
    command, result = (done, "") if isinstance(done, str) else done
    return Act(name="run", arguments={"command": command}, command=command, result=result)


def edit(path: str, old: str, new: str) -> Act:
    return Act(name="edit", arguments={"path": path, "old": old, "new": new}, path=path, result=f"edited {path}")


def write(path: str, content: str) -> Act:
    return Act(name="write", arguments={"path": path, "content": content}, path=path, result=f"wrote {path}")


def read(path: str, result: str = "") -> Act:
    return Act(name="read", arguments={"path": path}, path=path, result=result)


def finish(message: str) -> Act:
    return Act(name="finish", arguments={"message": message}, result="finished")


def trajectory(*done: Any, patch: str = "", **more: Any) -> Trajectory:
    steps = tuple(Step(index=index, text="", acts=(act(one),)) for index, one in enumerate(done))
    return Trajectory(id="t", source="etude", steps=steps, patch=patch, packages=("calc",), **more)


def source(text: str, path: str = "calc/core.py") -> Trajectory:
    return trajectory(patch=diff(path, text))
