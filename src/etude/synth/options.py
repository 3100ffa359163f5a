"""What a build may be told.

Not here: the build (build.py), the command line (cli.py).
"""

from dataclasses import dataclass
from typing import Literal

from etude.errors import UserError
from etude.synth.cut import Mode

Gates = Literal["quick", "full"]
Level = Literal["A", "B", "C"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterOptions:
    """Who puts instructions better."""

    where: str  # the address of an OpenAI-compatible endpoint, or "local"
    model: str = ""  # the endpoint's; for local, a model folder ("": the default model)
    prices: str = ""  # dollars per million tokens, "IN,OUT"
    key_env: str = "OPENAI_API_KEY"  # the environment variable that holds the endpoint's key; the key itself is written nowhere
    dollars: float | None = None  # for one repository

    def __post_init__(self) -> None:
        """Raises: UserError."""
        if self.where != "local" and not self.where.startswith(("http://", "https://")):
            raise UserError(f"no writer {self.where!r}; give the address of an OpenAI-compatible endpoint, or local")
        if self.dollars is not None and not 0 < self.dollars < float("inf"):
            raise UserError(f"the writer's limit is {self.dollars} dollars; give more than 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    modes: tuple[Mode, ...] = ("remove", "stub")  # stub: single functions and classes only
    kinds: tuple[str, ...] = ("feature_deletion",)  # names of synth/kinds, in this order: a later one sees the tasks of the earlier
    gates: Gates = "quick"  # quick: what prove.py runs; full: gates.py too
    level: Level = "A"  # of the instruction
    visible_share: float = 0.0  # of the feature's tests that the instruction quotes
    writer: WriterOptions | None = None  # of instructions; None: they are written without a model
    jobs: int = 0  # threads, each with one sandbox; 0: one per core
    max_candidates: int | None = 60  # of each kind; each is tried in every mode; None: all
    max_tasks: int | None = None  # stop after so many, in the order of candidates
    max_share: float = 0.25  # of the stable tests may reach one candidate

    def __post_init__(self) -> None:
        """Raises: UserError."""
        if not self.modes:
            raise UserError("no mode to cut in; give remove, stub or both")
        if not self.kinds:
            raise UserError("no kind of task to build; feature_deletion is the usual one")
        if self.gates not in ("quick", "full"):
            raise UserError(f"gates is {self.gates!r}; give quick or full")
        if self.level not in ("A", "B", "C") or not 0 <= self.visible_share <= 1:
            raise UserError(f"level {self.level!r} with a share of {self.visible_share}; give A, B or C, and a share from 0 to 1")
        if self.jobs < 0:
            raise UserError(f"jobs is {self.jobs}; give 1 or more, or 0 for one per core")
        if self.max_candidates is not None and self.max_candidates < 1:
            raise UserError(f"the limit of candidates is {self.max_candidates}; give 1 or more, or none for all")
