"""The run folder of a pretraining: begun, found again, locked; which checkpoint to go on from; what is said of damaged ones.

    with ExitStack() as held:
        newest, begun_with = open_run(config, run, resume, view, held)      # on one rank; the lock is kept until the block ends

A damaged checkpoint is passed over with a note, in favour of the one before.

Not here: weights and optimizer state (parallel/checkpoint.py).
"""

import contextlib
import fcntl
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from torch.distributed.checkpoint.api import CheckpointException

from etude.corpus import Stream
from etude.errors import EtudeError, UserError
from etude.metrics import Metrics, truncate
from etude.pretrain.config import PretrainConfig, load_pretrain_config, resumable, to_toml
from etude.runfolder import RunFolder, write_atomically
from etude.view import View


@dataclass(slots=True)
class Position:
    """How far a run is; with the weights, all that a checkpoint holds."""

    step: int = 0
    """finished ones, over all phases"""
    cursor: list[list[int]] | None = None
    """of the phase that `step` is in; None: at its start"""
    tokens: int = 0
    checkpoint: str | None = None
    """the folder that has this"""


def open_run(
    config: PretrainConfig, run: Path, resume: bool, view: View, held: contextlib.ExitStack
) -> tuple[str | None, list[list[str]] | None]:
    """Make or check the run folder, and keep others out of it; the newest whole checkpoint, and the token sets that the run began with."""
    begun = (run / "config.toml").exists()
    if begun != resume and not (run / "checkpoints").is_dir():
        RunFolder.create(run, resume=resume)  # says what is wrong
    run.mkdir(parents=True, exist_ok=True)
    held.enter_context(_only_one(run))
    begun = (run / "config.toml").exists()
    folder = RunFolder.create(run, resume=resume and begun)  # one that was stopped before its first step is started anew
    if not begun:
        return None, None
    resumable(load_pretrain_config(run / "config.toml"), config)
    return _newest(folder, view), _begun_with(run / "tokens.json", config)


@contextlib.contextmanager
def _only_one(run: Path) -> Iterator[IO[str]]:
    """The lock of a run folder, which ends with the process that has it. UserError where another one does."""
    with (run / ".lock").open("w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another process is working in {run}; wait until it ends, or name another folder with --run") from None
        yield lock


def begin(config: PretrainConfig, run: Path, streams: Sequence[Stream]) -> None:
    """From here on the run is one that is resumed."""
    if not (run / "config.toml").exists():
        names = [[tokens.name for tokens in stream.sets] for stream in streams]
        write_atomically(run / "tokens.json", json.dumps(names) + "\n")
        write_atomically(run / "config.toml", to_toml(config))


def _begun_with(file: Path, config: PretrainConfig) -> list[list[str]] | None:
    if not file.is_file():
        return None
    try:
        names: list[list[str]] = json.loads(file.read_text(encoding="utf-8"))
        fits = [len(sets) for sets in names] == [len(phase.sources) for phase in config.phases]
        if not fits or not all(isinstance(name, str) and name.isalnum() for sets in names for name in sets):
            raise ValueError("it does not fit the configuration")
    except (ValueError, TypeError) as error:
        raise UserError(
            f"{file} is damaged ({error}); remove it, and the sources as they are now are taken for the ones of before"
        ) from None
    return names


def _newest(folder: RunFolder, view: View) -> str | None:
    """The last checkpoint that is whole; later ones that are not are told. UserError where there are some and none is whole."""
    damaged = []
    for path in reversed(folder.checkpoints()):
        try:
            about(path)
        except UserError as error:
            damaged.append(path.name)
            view.note(f"{error}: going on from the one before")
        else:
            return str(path)
    if damaged:
        raise UserError(f"no checkpoint in {folder.path / 'checkpoints'} is whole ({', '.join(damaged)}); restore one, or begin a new run")
    return None


def about(checkpoint_folder: Path) -> dict[str, Any]:
    """etude.json of a whole checkpoint. UserError where files are missing, cut short or not ours."""
    try:
        found: dict[str, Any] = json.loads((checkpoint_folder / "etude.json").read_text(encoding="utf-8"))
        for name, size in found["files"].items():
            if (checkpoint_folder / name).stat().st_size != size:
                raise ValueError(f"{name} has not {size} bytes")
        Position(**found["extra"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{checkpoint_folder} is no whole checkpoint ({error})") from None
    return found


@contextlib.contextmanager
def checkpoint_errors(what: str) -> Iterator[None]:
    """torch wraps whatever stops a rank, Ctrl-C too, in an exception of its own."""
    try:
        yield
    except CheckpointException as error:
        reasons = [reason for reason, _ in error.failures.values()]
        if any(isinstance(reason, KeyboardInterrupt) for reason in reasons):
            raise KeyboardInterrupt from None
        raise UserError(f"{what}: {_line(reasons[0]) if reasons else error}") from None
    except EtudeError:
        raise
    except Exception as error:  # of torch's reader of damaged files
        raise UserError(f"{what}: {_line(error)}") from error


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def open_metrics(run: Path, step: int) -> Metrics:
    """metrics.jsonl up to a step, to be written on. UserError where it is damaged."""
    try:
        truncate(run / "metrics.jsonl", step)
        return Metrics(run / "metrics.jsonl")
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{run / 'metrics.jsonl'} is damaged ({error}); remove the broken line") from None
