"""The records that travel between stages: Task, Rollout (Segment, Turn, ToolCall, Observation), Flag, Hint, Sample.

    repository --synth--> Task --collect--> Rollout --grade--> Rollout with Reward
                                               \\--feedback--> Hint
    Rollout + Hint --learn--> Sample --learn--> Batch (learn/batch.py, the only one with tensors)

Every record is frozen: a stage makes a new one (`dataclasses.replace`), it never writes into one it was given.

A Turn keeps only the tokens it *adds*. With three turns, the token ids of a segment are

    t0.context_ids + t0.sampled_ids + t1.context_ids + t1.sampled_ids + t2.context_ids + t2.sampled_ids
    [system, user, header]  [sampled]  [observation, header]  [sampled]  ...

so a rollout's size is linear in its tokens and sampled ids are never tokenised again. The last `header_tokens` of
`context_ids` are the assistant header; a hint is spliced in just before them.

Not here: JSON (records.py), tensors (learn/batch.py), behaviour of any kind.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal[
    "finished",  # the agent called finish
    "out_of_turns",
    "out_of_tokens",
    "out_of_time",
    "sandbox_lost",  # no verdict: the sandbox failed, not the agent
    "interrupted",
]

CallError = Literal[
    "unknown_tool",
    "malformed_call",  # no call, or a call that is not JSON of the right shape
    "bad_arguments",  # known tool, arguments that do not fit its schema
    "edit_not_found",  # edit: the old text occurs nowhere, or more than once
    "finished_untested",  # finish without having run anything since the last edit
    "tool_failed",  # the tool itself answered with an error (no such file, ...)
]
INVALID_CALLS: tuple[CallError, ...] = ("unknown_tool", "malformed_call", "bad_arguments")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one command, or one agent, may use."""

    wall_s: float = 60.0  # seconds for one command; for a run of tests those that it needs, without waits for a CPU
    memory_mb: int = 1024  # all processes together
    processes: int = 64  # alive at one time
    disk_mb: int = 256  # everything written, tmp included
    output_bytes: int = 65536  # kept of stdout and of stderr, each; the rest is dropped
    turns: int = 12  # agent turns
    tokens: int = 4096  # tokens of one context


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What the tests of a repository need besides the repository."""

    python: str  # "3.11", for people; runs use the interpreter that etude runs on
    requirements: tuple[str, ...]  # "name==version", sorted, the runner (pytest) included
    digest: str  # sha256 hex of the two above; names the folder that holds the packages
    runner: str = "pytest"  # what runs the tests: pytest | node | vitest | junit


@dataclass(frozen=True, slots=True, kw_only=True)
class Repo:
    """One frozen state of a repository."""

    name: str  # "toolz"
    digest: str  # sha256 hex over sorted (path, content); names the snapshot folder
    import_roots: tuple[str, ...]  # folders put on the import path, relative: (".",) or ("src",)
    test_paths: tuple[str, ...]  # files and folders with tests, relative
    source: str = ""  # where it came from, for people ("toolz==1.0.0 sdist", a URL, a path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Symbol:
    """One definition that a cut removes."""

    path: str  # relative to the repository
    qualname: str  # "Response.encoding"
    line: int  # first line in the original file, decorators included, from 1: the key, as names may repeat
    num_lines: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A feature that is gone, the patch that restores it, and the tests that tell. Data only."""

    id: str
    repo: Repo
    environment: Environment
    instruction: str
    cut: str  # git patch, original -> what the agent sees
    gold: str  # git patch, what the agent sees -> feature restored (source files only, no tests)
    fail_to_pass: tuple[str, ...]  # pytest node ids that fail after the cut and pass with gold, sorted
    pass_to_pass: tuple[str, ...]  # pytest node ids that pass before, after and with gold, sorted
    symbols: tuple[Symbol, ...]
    mode: Literal["remove", "stub"] = "remove"  # definition gone, or body raises NotImplementedError
    kind: str = "feature_deletion"  # | joined_features | bug_injection | commit_replay | refactor_back
    language: str = "python"
    level: Literal["A", "B", "C"] = "A"  # the instruction tells: A signatures and docstrings, B names and behaviour, C behaviour only
    visible_share: float = 0.0  # of the feature's tests that the agent may see
    origin: tuple[str, ...] = ()  # ids of the tasks that this one was made from: joined, evolved
    protected: tuple[str, ...] = ()  # path globs that the agent's diff may not touch (tests, configuration)
    limits: Limits = field(default_factory=Limits)
    band: str = "S"  # S: up to 40 removed lines, M: up to 200, L: up to 1,000, XL
    pass_rate: float | None = None  # measured; None before anyone tried
    evidence: dict[str, Any] = field(default_factory=dict)  # what the checks measured


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    name: str  # as the model wrote it; "" for a malformed call
    arguments: dict[str, Any]
    raw: str  # the text between the tags


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What the model reads back for one call."""

    text: str
    error: CallError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    context_ids: tuple[int, ...]  # tokens added before sampling: messages since the last turn, then the header
    header_tokens: int  # how many of them, at the end, are the assistant header
    sampled_ids: tuple[int, ...]  # what the model sampled, the stop token included
    logprobs: tuple[float, ...]  # natural log, one per sampled token, of the distribution sampled from (temperature 1: the model's own)
    versions: tuple[int, ...]  # policy version, one per sampled token
    text: str  # sampled_ids decoded, for people
    calls: tuple[ToolCall, ...] = ()
    observations: tuple[Observation, ...] = ()  # one per call; for a turn without a call one that says so
    routed_experts: str | None = None  # name of a uint16 file [tokens, layers, top_k]


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Turns over one context. A segment ends where the context was compacted."""

    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    total: float  # what training uses
    solved: bool  # every fail_to_pass and every pass_to_pass test passes
    parts: dict[str, float] = field(default_factory=dict)  # e.g. solved, fail_to_pass_share


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    sampled_tokens: int = 0
    context_tokens: int = 0  # added by messages, headers included
    turns: int = 0
    calls: int = 0  # turns without a call count as one malformed call
    invalid_calls: int = 0  # errors in INVALID_CALLS
    wall_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """A suspicion, with the turn that shows it."""

    detector: str
    turn: int
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the sandbox saw, whatever the text of the turn says."""

    turn: int  # over the whole rollout
    kind: Literal["read", "written"]
    what: str  # a path inside the sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    id: str
    task_id: str
    group: str  # rollouts of one group share task and policy version at the start
    seed: int
    status: Status
    segments: tuple[Segment, ...]
    patch: str = ""  # git patch of everything the agent changed, unfiltered
    reward: Reward | None = None  # None: not graded, or no verdict
    usage: Usage = field(default_factory=Usage)
    flags: tuple[Flag, ...] = ()
    error: str | None = None  # one line, when something failed
    log: tuple[Seen, ...] | None = None  # None: the sandbox kept none


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    rollout_id: str
    segment: int
    turn: int  # index within the segment
    writer: str  # which rule wrote it: "unknown_tool", ...
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HintSpan:
    """A hint as token ids, placed in a Sample. The teacher reads ids[:splice] + hint_ids + ids[splice:stop]."""

    splice: int  # index into Sample.ids where the assistant header of the hinted turn begins
    start: int  # first sampled token of the turn
    stop: int  # one past its last sampled token
    hint_ids: tuple[int, ...]
    segment: int = 0  # where the hint came from, for reports: as in Hint
    turn: int = 0
    writer: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One segment, ready for training. All tuples but `hints` have one entry per token."""

    rollout_id: str
    ids: tuple[int, ...]
    sampled: tuple[bool, ...]  # the policy sampled this token
    logprobs: tuple[float, ...]  # sampler's log-probability, 0 where not sampled
    advantage: float  # of the rollout; every sampled token carries it
    hints: tuple[HintSpan, ...] = ()
    versions: tuple[int, ...] = ()  # policy version per token, -1 where not sampled
