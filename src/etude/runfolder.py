"""One run on disk: where everything of it lies, written so that a kill at any moment loses nothing that was finished.

    config.toml  metrics.jsonl  tasks.json  summary.json  report.html
    rollouts/{before,step-0001,...,after}.jsonl   one Rollout a line
    hints/step-0001.jsonl                         one Hint a line
    feedback/step-0001.jsonl                      per hinted turn: gate and the KL of each token
    checkpoints/warmup-0010/ step-0001/           what resuming needs (train.py), renamed into place when whole

Not here: what goes into the files.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from etude.errors import UserError
from etude.records import append_jsonl, read_jsonl
from etude.types import Rollout


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, *, resume: bool) -> "RunFolder":
        """Raises UserError where the folder holds a run already and `resume` is off, or none and it is on."""
        there = (path / "config.toml").exists()
        if there and not resume:
            raise UserError(f"{path} already holds a run; continue it with --resume or name another folder with --run")
        if resume and not there:
            raise UserError(f"{path} holds no run to resume; start one without --resume")
        for name in ("rollouts", "hints", "feedback", "checkpoints"):
            (path / name).mkdir(parents=True, exist_ok=True)
        return cls(path)

    def rollouts(self, name: str) -> Path:
        return self.path / "rollouts" / f"{name}.jsonl"

    def finished(self, name: str) -> list[Rollout]:
        """The rollouts of one stage that are on disk, without those that have no verdict through an interruption."""
        path = self.rollouts(name)
        return [r for r in read_jsonl(path, Rollout) if r.status != "interrupted"] if path.exists() else []

    def add_rollout(self, name: str, rollout: Rollout) -> None:
        append_jsonl(self.rollouts(name), rollout)

    def write_json(self, name: str, value: Any) -> None:
        write_atomically(self.path / name, json.dumps(value, indent=1, sort_keys=True) + "\n")

    def read_json(self, name: str) -> Any:
        path = self.path / name
        return json.loads(path.read_text()) if path.exists() else None

    def write_lines(self, name: str, rows: Iterable[dict[str, Any]]) -> None:
        write_atomically(self.path / name, "".join(json.dumps(row) + "\n" for row in rows))

    def checkpoint(self, name: str, write: Callable[[Path], None], *, keep: int = 2) -> None:
        """Let `write` fill a folder, then give it its name in one step; older checkpoints beyond `keep` go."""
        target = self.path / "checkpoints" / name
        partial = target.with_name(f".{name}.partial")
        for stale in (partial, target):
            shutil.rmtree(stale, ignore_errors=True)
        partial.mkdir(parents=True)
        write(partial)
        _sync_folder(partial)
        os.replace(partial, target)
        _sync_folder(target.parent)
        for old in self.checkpoints()[:-keep]:
            shutil.rmtree(old, ignore_errors=True)

    def checkpoints(self) -> list[Path]:
        """Whole ones, oldest first: those of the warm-up, then those of the steps."""
        found = [p for p in (self.path / "checkpoints").iterdir() if not p.name.startswith(".")]
        return sorted(found, key=lambda p: (not p.name.startswith("warmup"), p.name))


def write_atomically(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
