"""What a language is: the protocol that every adapter meets, and the records that pass through it.

    discover       folder -> Project            which files are source, which hold tests, what the tests need
    environment    Project -> Environment       a content-addressed folder that the sandbox shows, read-only, as /env
    launch         Request -> Launch            the commands that run tests; events come back over a private pipe (child.py)
    read           bytes -> Code                definitions and tests with their byte ranges
    trace          Code -> Edits                a call to the tracer at the start of every body
    stub, remove, remove_tests -> Edits         the cut

An adapter is a module with these functions; nothing else in the project knows the language. Edits are byte ranges of the file as it
lies on the disk, so encodings, line ends and formatting survive. Nothing here runs code of the repository: only `Launch` does, in the
sandbox.

The events of a test process, one line each, the nonce, a space, JSON (the same as grade/child.py's for pytest, and `where`):

    ["items", ids]               the tests that will run, after selection; once or, one file after the other, several times
    ["where", id, path, line]    where a test stands: the line of its call or function
    ["start", id]                before a test
    ["report", id, when, outcome, was_xfail, seconds, message]
                                 when: setup | call | teardown; outcome: passed | failed | skipped; the pass of a test is a "call" that
                                 passed and a "teardown" that passed, both after its "start"
    ["error", path, message]     a file that cannot be loaded
    ["code", number, path, offset] ["reach", id, numbers]  only traced: which definitions ran in a test
    ["crash", message]           an exception that nobody caught: told only if the process does not come to its end
    ["done"]                     this process came to its own end: the last event of every step with tests

Ids are `path::title`, titles of nested groups joined by " > ". Tests with equal ids count as one, with the worst of their outcomes.

Not here: any language (javascript/, java/; Python is synth/python.py), what is made of the edits (synth/foreign/).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from etude.types import Environment

Order = Literal["plain", "reversed", "shuffled"]
COLLECT = "<collect>"  # owner in ["reach", ...] of what loading the files ran
BETWEEN = "<between>"  # and of what ran outside every test
SEPARATOR = " > "  # between the titles of an id


class Unreadable(ValueError):
    """A file that cannot be worked on; the message is one line without the file's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """What `discover` found."""

    name: str
    language: str  # as in Task.language
    runner: str  # as in Environment.runner
    sources: tuple[str, ...]  # files that may be cut, sorted
    tests: tuple[str, ...]  # files that hold tests, sorted; what the runner is given
    support: tuple[str, ...] = ()  # other files of the tests: helpers, fixtures with code
    import_roots: tuple[str, ...] = (".",)  # folders from which a diff may enter a grading
    requirements: tuple[str, ...] = ()  # what the tests need, as the language's package client writes it
    own_names: tuple[str, ...] = ()  # names under which the project itself could be installed: no second copy may be
    protected: tuple[str, ...] = ()  # globs that a diff may not touch: tests, manifests, configuration
    manifests: tuple[str, ...] = ()  # files that list dependencies: what they say of a removed test's needs is no residue
    settings: Mapping[str, str] = field(default_factory=dict)  # what the adapter wants to remember


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A function, method or class that can be cut."""

    path: str
    qualname: str  # "Router.find"
    name: str  # "find"
    owner: str  # "Router", "" outside a class
    line: int  # of `start`, from 1
    end_line: int
    start: int  # byte range, modifiers, decorators, annotations and the comment that documents it included
    end: int
    body: tuple[int, int] | None  # byte range inside the braces (or of the expression of an arrow); None: nothing to stub
    is_class: bool = False
    is_public: bool = False
    doc: str = ""  # the documenting comment, without its marks

    @property
    def key(self) -> tuple[str, int]:
        return self.path, self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class TestBlock:
    """The call or the method that is one test, or a group of them."""

    __test__ = False  # for pytest: no class of tests

    path: str
    line: int
    end_line: int
    start: int
    end: int
    is_group: bool = False
    call_lines: tuple[int, ...] = ()  # lines that the runner may report for it, if others than `line`

    @property
    def key(self) -> tuple[str, int]:
        return self.path, self.start


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Code:
    """One parsed file."""

    path: str
    data: bytes
    definitions: tuple[Definition, ...]  # by start
    tests: tuple[TestBlock, ...]  # by start; empty in a source file
    words: frozenset[str]  # identifiers outside strings and comments
    tree: Any  # the adapter's own; its `root` is a node of tree-sitter


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """Bytes start..end become `data`."""

    start: int
    end: int
    data: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """Definitions taken out, with their imports and exports, in the sources."""

    edits: Mapping[str, tuple[Edit, ...] | None]  # path -> edits; None: the file goes
    removed: tuple[Definition, ...]
    kept: tuple[Definition, ...] = ()  # surviving code refers to them: to be stubbed instead
    blockers: tuple[str, ...] = ()  # "path:line" of those references


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Which tests to run, and how."""

    files: tuple[str, ...]  # test files, relative
    ids: tuple[str, ...] | None = None  # None: all of them
    order: Order = "plain"
    seed: int = 0
    codes: tuple[tuple[int, str, int], ...] | None = None  # traced: number, path, offset (Definition.key); the tree has the calls
    wall_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One process of a run. Its standard input is a JSON object: `config`, and "nonce" and "fd" of the private pipe."""

    argv: tuple[str, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    path: str = ""  # the test file it runs, for errors
    tests: bool = True  # False: a build; if it fails, its last line of output is the error and nothing else runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    steps: tuple[Step, ...]  # one after the other, in the workspace
    env: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)  # path in the workspace -> place inside the sandbox, made before the first step


class Language(Protocol):
    """A module with these functions."""

    def discover(self, folder: Path, name: str) -> Project | None:
        """None where the folder is not of this language. UserError, one line, where it is but cannot be worked on."""
        ...

    def products(self, folder: Path, project: Project) -> list[str]:
        """Files that were made from the sources and lie beside them (built, minified, compiled): no part of the snapshot."""
        ...

    def make_environment(self, project: Project, folder: Path, out: Path) -> Environment:
        """Make `out/<digest>/` unless it is there. Downloads by the language's own client, never runs code of a package. UserError."""
        ...

    def runtime(self) -> tuple[Path, ...]:
        """Files of this machine's compiler and interpreter, copied into environments: nothing of a project is in them. UserError."""
        ...

    def launch(self, runner: str, request: Request) -> Launch: ...

    def import_launch(self, runner: str, paths: Sequence[str]) -> Launch | None:
        """Load every one of these source files; reports them as tests whose ids are the paths. None: building or running tests shows it."""
        ...

    def read(self, path: str, data: bytes, *, is_test: bool) -> Code:
        """Raises Unreadable: a syntax error, an encoding that would not survive."""
        ...

    def trace(self, code: Code, numbers: Mapping[tuple[str, int], int]) -> list[Edit]:
        """Calls of the tracer with the number (by Definition.key) of the innermost definition, in every body inside one."""
        ...

    def stub(self, code: Code, definition: Definition) -> list[Edit]:
        """The body throws "not implemented"; signature and documentation stay. A class: its methods. Empty: nothing to stub."""
        ...

    def remove(self, codes: Mapping[str, Code], sources: Sequence[str], targets: Sequence[Definition]) -> Removal: ...

    def remove_tests(
        self, codes: Mapping[str, Code], tests: Sequence[TestBlock], removed: Sequence[Definition]
    ) -> Mapping[str, tuple[Edit, ...] | None]:
        """Tests go, groups left empty go, imports of what is removed or no longer used in a changed test file go; None: no test is left."""
        ...

    def signature(self, code: Code, definition: Definition) -> str:
        """One or a few lines for the instruction, without the body."""
        ...
