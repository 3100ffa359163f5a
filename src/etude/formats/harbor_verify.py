"""Inside the verifier's container of a Harbor task: grade what the agent left behind, by the rules of grade/.

Run as root with the standard library only; this file and what it imports lie beside the tests (harbor.py puts them there). From the agent's
container comes /work, as a declared artifact. Nothing of it is run before the new tree is put together: source files that a diff may
touch come from the agent, everything else from the original, hidden tests included. The tests run as another user, who can read neither
/tests nor write the reward, and every process of that user is dead before the reward is written.

In: /tests (grading.json, original.tar, start.tar), /work, /env. Out: /logs/verifier/reward.json, {"reward": 0 or 1, and the shares of
both kinds of tests}, and verdict.json with the outcome of each. A verifier that itself fails ends with an error and writes no reward: that
is no verdict, not a zero.

Not here: the rules (grade/filter.py), what a passed test is (grade/runner.py).
"""

import argparse
import contextlib
import filecmp
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from etude import tree
from etude.formats.archive import read_tar
from etude.grade.filter import MAX_FILE_BYTES, Rules, bad_content, make_rules, refusal
from etude.grade.runner import TestRun, run_tests
from etude.sandbox.protocol import ENV, ExecResult, Sandbox
from etude.types import Repo

MAX_CHANGED_BYTES = 4 * 2**20
NOBODY = 65534
KILL_S = 10.0
Refused = list[tuple[str, str]]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    for name, place in (("tests", "/tests"), ("work", "/work"), ("graded", "/graded"), ("out", "/logs/verifier")):
        parser.add_argument(f"--{name}", type=Path, default=Path(place))
    places = parser.parse_args(arguments)
    sys.path.append(ENV)  # the runner's distributions, which the rules ask for
    grading = json.loads((places.tests / "grading.json").read_text("utf-8"))
    places.out.mkdir(parents=True, exist_ok=True)
    mode = places.out.stat().st_mode & 0o777
    places.out.chmod(0o700)
    try:
        write_verdict(places.out, verify(grading, places.tests, places.work, places.graded))
    finally:
        places.out.chmod(mode)


def verify(grading: Mapping[str, Any], tests: Path, work: Path, graded: Path) -> dict[str, Any]:
    repo = Repo(
        name=grading["name"], digest="", import_roots=tuple(grading["import_roots"]), test_paths=tuple(grading["test_paths"])
    )  # fmt: skip
    ids = {kind: list(grading[kind]) for kind in ("fail_to_pass", "pass_to_pass")}
    with tempfile.TemporaryDirectory(prefix="etude-verify-") as name:
        original, start = Path(name, "original"), Path(name, "start")
        read_tar(tests / "original.tar", original)
        read_tar(tests / "start.tar", start)
        rules = make_rules(repo, tree.files(original), protected=grading["protected"], environment=Path(ENV))
        if not work.is_dir():
            return verdict(ids, None, "nothing came from the agent's container: no folder /work", [])
        try:
            refused = assemble(work, original=original, start=start, removed=grading["removed"], graded=graded, rules=rules)
        except ValueError as error:
            return verdict(ids, None, str(error), [])
    container = Container(graded)
    try:
        run = run_tests(cast(Sandbox, container), repo, ids=[*ids["fail_to_pass"], *ids["pass_to_pass"]], wall_s=grading["wall_s"])
    finally:
        container.close()
    return verdict(ids, run, "", refused)


def assemble(work: Path, *, original: Path, start: Path, removed: Sequence[str], graded: Path, rules: Rules) -> Refused:
    """Make the tree to be tested; returns what of the agent's was not let in. ValueError where it is too much.

    `start`: the files of the agent's first tree that are not as in the original; `removed`: those of the original that it lacks.
    """
    first = {path: file for path, file in tree.files(original).items() if path not in removed} | tree.files(start)
    found, refused = submitted(work)
    chosen = {path: file for path, file in tree.files(original).items() if refusal(path, rules)}
    odd = {path for path, _ in refused}
    changed = 0
    for path in sorted(found.keys() | first.keys()):
        why = refusal(path, rules)
        same = path in first and path in found and filecmp.cmp(first[path], found[path], shallow=False)
        if path in found and not same:
            size = found[path].stat().st_size
            why = why or bad_content(path, found[path].read_bytes() if size <= MAX_FILE_BYTES else bytes(MAX_FILE_BYTES + 1))
            if why:
                refused.append((path, why))
            else:
                changed += size
        if why:
            if path in first and not refusal(path, rules):
                chosen[path] = first[path]
        elif path in found:
            chosen[path] = found[path]
        elif path in first and path in odd:
            chosen[path] = first[path]
    if changed > MAX_CHANGED_BYTES:
        raise ValueError(f"more than {MAX_CHANGED_BYTES >> 20} MiB of files were changed")
    for path, file in chosen.items():
        lay(graded, path, file)
    return sorted(refused)


def submitted(work: Path) -> tuple[dict[str, Path], Refused]:
    """The agent's regular files without caches, no link followed; and its links, which are refused."""
    found: dict[str, Path] = {}
    refused: Refused = []
    for where, folders, names in os.walk(work):
        folders[:] = [name for name in folders if name not in tree.IGNORED_FOLDERS]
        for name in (*names, *(name for name in folders if Path(where, name).is_symlink())):
            file = Path(where, name)
            path = file.relative_to(work).as_posix()
            if name in tree.IGNORED_FILES or name.endswith(tree.IGNORED_SUFFIXES):
                continue
            if file.is_symlink() or not file.is_file():
                refused.append((path, "link" if file.is_symlink() else "not a regular file"))
            else:
                found[path] = file
    return found, refused


def lay(folder: Path, path: str, file: Path) -> None:
    """A file of the new tree; where a file and a folder want the same place, the later one has it."""
    place = folder / path
    for parent in reversed(place.relative_to(folder).parents):
        if (folder / parent).is_file():
            (folder / parent).unlink()
    if place.is_dir():
        shutil.rmtree(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, place)
    place.chmod(0o755 if file.stat().st_mode & 0o100 else 0o644)


def verdict(ids: Mapping[str, list[str]], run: TestRun | None, reason: str, refused: Refused) -> dict[str, Any]:
    outcomes = {kind: {id: run.outcomes.get(id, "missing") if run else "missing" for id in of_kind} for kind, of_kind in ids.items()}
    solved = run is not None and run.passed([id for of_kind in ids.values() for id in of_kind])
    failing = [id for of_kind in outcomes.values() for id, outcome in of_kind.items() if outcome != "passed"]
    if run is not None and not solved:
        ended = run.result.status if run.result.status != "exited" else "pytest ended" if run.complete else "pytest did not come to its end"
        reason = f"{len(failing)} tests do not pass ({ended}){f'; {run.collect_errors[0]}' if run.collect_errors else ''}"
    return {
        "solved": solved,
        "reason": reason or "all tests pass",
        **outcomes,
        "refused": refused,
        "messages": {id: run.messages[id] for id in failing if id in run.messages} if run else {},
    }


def write_verdict(out: Path, found: Mapping[str, Any]) -> None:
    def share(outcomes: Mapping[str, str]) -> float:
        return sum(outcome == "passed" for outcome in outcomes.values()) / len(outcomes) if outcomes else 0.0

    kinds = ("fail_to_pass", "pass_to_pass")
    reward = {"reward": float(found["solved"]), **{f"{kind}_share": share(found[kind]) for kind in kinds}}
    for name in ("reward.txt", "reward.json", "verdict.json"):  # whatever lies there, a folder too
        shutil.rmtree(out / name, ignore_errors=True)
        (out / name).unlink(missing_ok=True)
    (out / "verdict.json").write_text(json.dumps(found, indent=1) + "\n", "ascii")
    (out / "reward.json").write_text(json.dumps(reward) + "\n", "ascii")
    print(f"reward {reward['reward']:g}: {found['reason']!a}")


class Container:
    """What grade/runner.py needs of a sandbox, in the container that this process runs in. The code under test is another user."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.user = NOBODY if os.geteuid() == 0 else None
        for place in (folder, *folder.rglob("*")):
            if self.user is not None:
                os.chown(place, self.user, self.user, follow_symlinks=False)

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", wall_s: float = 60.0) -> ExecResult:
        started = time.monotonic()
        who: dict[str, Any] = {} if self.user is None else {"user": self.user, "group": self.user, "extra_groups": []}
        environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": "/tmp"}
        child = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.folder,
            env=environment,
            start_new_session=True,
            **who,
        )
        try:
            output, errors = child.communicate(stdin, timeout=wall_s)
            status, code = "exited", child.returncode if child.returncode >= 0 else 128 - child.returncode
        except subprocess.TimeoutExpired:
            self.kill(child.pid)
            output, errors = child.communicate()
            status, code = "timeout", -1
        self.kill(child.pid)
        return ExecResult(
            status="exited" if status == "exited" else "timeout",
            code=code if status == "exited" else None,
            stdout=output,
            stderr=errors,
            truncated=False,
            wall_s=time.monotonic() - started,
        )

    def read(self, path: str) -> bytes:
        handle = os.open(self.folder / path, os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(handle, "rb") as file:
            return file.read()

    def kill(self, group: int | None) -> None:
        """Everything that was started: the group, and whatever else that user still runs."""
        if group is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        end = time.monotonic() + KILL_S
        while self.user is not None and (alive := processes_of(self.user)):
            if time.monotonic() > end:
                raise RuntimeError(f"processes of the tests cannot be ended: {alive}")
            for pid in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    def close(self) -> None:
        self.kill(None)


def processes_of(user: int) -> list[int]:
    """Living processes of a user; a dead one that nobody waited for can do nothing any more."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                lines = (entry / "status").read_text("utf-8", "replace").splitlines()
            except OSError:
                continue
            fields = dict(line.split(":", 1) for line in lines if ":" in line)
            if int(fields["Uid"].split()[0]) == user and fields["State"].strip()[0] not in "ZX":
                found.append(int(entry.name))
    return found
