"""Inside the sandbox: run pytest and write what happens to a pipe. Read as text by runner.py, started by supervise.py.

Standard library and pytest only. pytest and the plugins of the environment folder are imported before the repository comes
onto the import path, so no module of the repository can stand in for them. What of this the repository owns itself (pluggy, say) is
then forgotten: its tests import the tree's, pytest keeps its own copy. Each event is one line: the nonce, a space, JSON:

    ["ready"] ["items", ids] ["error", where, message] ["start", id] ["report", id, when, outcome, was_xfail, seconds, message]
    ["code", number, path, line] ["reach", id, numbers] ["module", name, file, loader] ["exit", code]
    ["variant", number] ... ["end", exit code or None, is as before]    around the events of each variant of the tree

In: argv[1] the descriptor of the pipe, argv[2] the environment folder; standard input the configuration as JSON: {"nonce", "env",
"roots", "paths", "ids", "order", "seed", "trace", "carried", "modules"}, or with "variants", of which each has "paths", "ids", "until",
"wall_s" and the changed "files". "trace" is the texts of tracer.py and subtrace.py, "elsewhere" that of elsewhere.py, or nothing; under the
latter tests are collected and not run. Out: events; what is printed is for people, it decides nothing.

Not here: outcomes (runner.py puts the reports of one id together).
"""

import base64
import builtins
import configparser
import contextlib
import gc
import importlib
import importlib.metadata
import importlib.util
import json
import os
import random
import re
import shlex
import signal
import stat
import sys
import time
import tomllib
import zlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

LIBRARY = [path for path in sys.path if path]
CONFIG: dict[str, Any] = json.loads(sys.stdin.buffer.read())
MEMORY = "<carried>/"  # in place of a folder


class Carried:
    """Finds what pytest imports of other projects in the request, where the environment has no copy: it would tell the answer to a task."""

    def __init__(self, packed: str) -> None:
        self.packed, self.sources = packed, dict[str, tuple[bool, str]]()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if path is not None and MEMORY not in path:
            return None
        self.sources = self.sources or json.loads(zlib.decompress(base64.b64decode(self.packed)))
        if name not in self.sources:
            return None
        loader: Any = self
        spec = ModuleSpec(name, loader, origin=f"{MEMORY}{name}", is_package=self.sources[name][0])
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(MEMORY)
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        module.__file__ = f"{MEMORY}{name}"
        exec(compile(self.sources[name][1], module.__file__, "exec", dont_inherit=True), module.__dict__)


sys.path[:] = [*LIBRARY, sys.argv[2]]
sys.meta_path.append(CARRIED := Carried(CONFIG.pop("carried", "")))
import pytest  # noqa: E402

NEVER = {"xdist", "xdist.looponfail", "randomly", "random_order", "pytest_cov", "cov", "timeout", "rerunfailures"}  # reorder, repeat, slow
OPTIONS = (
    *("-c", os.devnull, "-q", "--no-header", "--no-summary", "--color=no", "--tb=line", "--assert=plain"),
    "--continue-on-collection-errors",
    *("-p", "no:cacheprovider", "-p", "no:junitxml", "-p", "no:pastebin", "-p", "no:stepwise"),
)
SETTINGS = (("pytest.ini", "pytest"), ("tox.ini", "pytest"), ("setup.cfg", "tool:pytest"))  # the repository's own, after pyproject.toml
KEPT_SETTINGS = ("python_classes", "python_functions", "asyncio_mode", "asyncio_default_fixture_loop_scope", "anyio_mode")
PLACES = (".", "/tmp", "/dev/shm")  # all that can be written to
KILLS = 50  # rounds of killing what a variant left running
getpid = os.getpid  # elsewhere.py has another
Send = Callable[[list[Any]], None]


def main() -> None:
    fd = int(sys.argv[1])
    os.set_inheritable(fd, False)
    config = CONFIG
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    nonce = config.pop("nonce")
    send = sender(fd, nonce)
    sys.argv[:] = ["pytest"]
    plugins = environment_plugins(config["env"])
    add_site_builtins()
    send(["ready"])
    if "variants" in config:
        run_variants(config, send, lambda: sender(fd, nonce), plugins)
        os._exit(0)
    finish(send, run(config, send, plugins))


def finish(send: Send, code: int) -> NoReturn:
    send(["exit", code])
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)  # neither atexit functions nor threads that hang have a say


def run(config: dict[str, Any], send: Send, plugins: list[object]) -> int:
    """pytest's exit code."""
    root = os.getcwd()
    move = loaded(config["elsewhere"])["move"] if config.get("elsewhere") else None
    tracing = loaded(config["trace"][0])["Tracer"] if config["trace"] else None
    roots = [os.path.normpath(os.path.join(root, path)) for path in config["roots"]]
    sys.path[:] = [*roots, config["env"], *LIBRARY]
    set_apart(roots, config["env"])
    sys.meta_path.insert(0, OwnMetadata(root))
    os.environ["PYTHONPATH"] = os.pathsep.join([*roots, config["env"]])
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    paths = [path for path in config["paths"] if os.path.exists(path)]
    if config["paths"] and not paths:
        send(["items", []])
        return int(pytest.ExitCode.NO_TESTS_COLLECTED)
    tracer = tracing(root, send, config["trace"][1]) if tracing else None
    once = ["--benchmark-disable"] if "pytest_benchmark" in sys.modules else []  # what is measured runs for seconds, and with no profiler
    arguments = [*OPTIONS, *once, *own_settings(root), "--rootdir", root, "--confcutdir", root, *paths]
    if move:
        move()
    if tracer:
        tracer.start()
    code = pytest.main(arguments, plugins=[*plugins, Reporter(send, root, config, tracer)])
    if tracer:
        tracer.stop()
    for name in config.get("modules", ()):
        send(["module", name, *origin_of(sys.modules.get(name))])
    return int(code)


def loaded(text: str) -> dict[str, Any]:
    """What another of these files defines; while the repository is not yet on the import path."""
    scope: dict[str, Any] = {"__name__": "beside"}
    exec(text, scope)
    return scope


def run_variants(config: dict[str, Any], send: Send, new_send: Callable[[], Send], plugins: list[object]) -> None:
    """Each in a process forked from this one, which has imported nothing of the repository. Ends at the first that cannot be undone."""
    for name in getattr(sys.modules["_pytest.config"], "default_plugins", ()):  # pytest imports them before it looks at the repository
        importlib.import_module(f"_pytest.{name}")
    scope = ModuleType("clock")
    exec(config.pop("clock"), scope.__dict__)
    known = processes()
    gc.freeze()
    for number, variant in enumerate(config.pop("variants")):
        send(["variant", number])
        originals = lay(variant["files"])
        before = listing()
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                random.seed()
                own = new_send()
                finish(own, run({**config, **variant}, own, plugins))
            finally:
                os._exit(1)
        code = wait(pid, variant["wall_s"], scope.Clock(known))
        as_before = kill_others(known) and tidy(before)
        lay(originals)
        send(["end", code, as_before])
        if not as_before:
            return


def lay(files: Mapping[str, str]) -> dict[str, str]:
    """Write files, base64 of their content, over those of the tree; what was there. Bytecode of theirs goes: it is used unchecked."""
    originals: dict[str, str] = {}
    for path, data in files.items():
        with open(path, "rb") as file:
            originals[path] = base64.b64encode(file.read()).decode()
        mode = os.lstat(path).st_mode
        os.unlink(path)
        with open(path, "xb") as file:
            file.write(base64.b64decode(data))
        os.chmod(path, stat.S_IMODE(mode))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(importlib.util.cache_from_source(path))
    return originals


def wait(pid: int, wall_s: float, clock: Any) -> int | None:
    """Its exit code; None if it ran out of time."""
    while not (found := os.waitpid(pid, os.WNOHANG))[0]:
        if clock.seconds() > wall_s:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return None
        time.sleep(0.005)
    code = os.waitstatus_to_exitcode(found[1])
    return code if code >= 0 else 128 - code


def processes() -> set[int]:
    """All that run."""
    found = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                if file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X"):
                    found.add(int(name))
    return found


def kill_others(known: set[int]) -> bool:
    """Are only these left?"""
    for _ in range(KILLS):
        others = processes() - known
        if not others:
            return True
        for pid in others:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)
    return False


def listing() -> dict[str, tuple[int, int, int, int]]:
    """Every file and folder that could be changed. What a folder holds stands here itself."""
    found: dict[str, tuple[int, int, int, int]] = {}
    for place in PLACES:
        for folder, folders, files in os.walk(place):
            for path in (f"{folder}/{name}" for name in (*folders, *files)):
                status = os.lstat(path)
                changing = (0, 0, 0) if stat.S_ISDIR(status.st_mode) else (status.st_size, status.st_mtime_ns, status.st_ctime_ns)
                found[path] = (status.st_mode, *changing)
    return found


def tidy(before: Mapping[str, tuple[int, int, int, int]]) -> bool:
    """Take away what is new. Is all else as it was?"""
    after = listing()
    new = after.keys() - before.keys()
    for path in sorted(new, reverse=True):  # what is in a folder comes first
        with contextlib.suppress(OSError):
            (os.rmdir if stat.S_ISDIR(after[path][0]) else os.unlink)(path)
    return (listing() if new else after) == before


def origin_of(module: ModuleType | None) -> tuple[str, str]:
    """The file that a module came from and what loaded it; both "" for one that was never imported."""
    spec = getattr(module, "__spec__", None)
    loader = getattr(spec, "loader", None)
    return str(getattr(module, "__file__", None) or getattr(spec, "origin", None) or ""), type(loader).__name__ if loader else ""


def own_settings(root: str) -> list[str]:
    """What of the repository's settings says which tests there are, and how asynchronous ones are run; nothing that reports or stops."""
    settings: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError, AttributeError):
        with open(os.path.join(root, "pyproject.toml"), "rb") as file:
            tool = tomllib.load(file).get("tool", {}).get("pytest", {})
        settings = tool.get("ini_options") or tool
    for name, section in SETTINGS:
        parser = configparser.ConfigParser(interpolation=None, strict=False)
        with contextlib.suppress(OSError, ValueError, configparser.Error):
            parser.read(os.path.join(root, name), "utf-8")
            if parser.has_section(section):
                settings = {**parser[section], **settings}
    found: list[str] = []
    for key in KEPT_SETTINGS:
        if value := settings.get(key):
            found += ["-o", f"{key}={' '.join(map(str, value)) if isinstance(value, list) else value}"]
    options = settings.get("addopts", "")
    words = list(map(str, options)) if isinstance(options, list) else []
    with contextlib.suppress(ValueError):
        words = words or shlex.split(str(options))
    for word, after in zip(words, [*words[1:], ""], strict=False):
        if word in ("-m", "--import-mode"):
            found += [word, after]
        elif word.startswith(("-m", "--import-mode=")):
            found.append(word)
    return found


def sender(fd: int, nonce: str) -> Send:
    """Reports wait for what comes next, which is the start of another test or the end: without them a test that was started has failed."""
    owner = getpid()
    waiting = bytearray()

    def send(event: list[Any]) -> None:
        nonlocal waiting
        if getpid() != owner:  # a fork of this process that came back into pytest
            return
        line = f"{nonce} {json.dumps(event)}\n".encode()
        if event[0] == "report":
            waiting += line
            return
        line, waiting = bytes(waiting) + line, bytearray()
        with contextlib.suppress(OSError):  # the code under test closed it: no evidence, so nothing passes
            while line:
                line = line[os.write(fd, line) :]

    return send


def environment_plugins(env: str) -> list[object]:
    """The pytest plugins among the packages of the environment folder; those that reorder or repeat tests stay out."""
    found: list[object] = []
    for distribution in importlib.metadata.distributions(path=[env]):
        found += [entry.load() for entry in distribution.entry_points if entry.group == "pytest11" and entry.name not in NEVER]
    if "hypothesis" in sys.modules or os.path.isdir(os.path.join(env, "hypothesis")):
        hypothesis = __import__("hypothesis")
        phases = [phase for phase in hypothesis.Phase if phase.name not in ("shrink", "explain")]  # that it fails is enough
        hypothesis.settings.register_profile("etude", derandomize=True, deadline=None, database=None, phases=phases)
        hypothesis.settings.load_profile("etude")
    return found


def add_site_builtins() -> None:
    """`exit`, `help` and the like, which -S leaves out with the rest of site."""
    import site

    site.setquit()
    site.setcopyright()
    site.sethelper()


def set_apart(roots: Sequence[str], env: str) -> None:
    """Forget what pytest has imported and the repository has too, so that everybody but pytest gets the repository's."""
    sys.meta_path.remove(CARRIED)
    tops = {name.partition(".")[0] for name, module in sys.modules.items() if is_ours(module, env)} - {"pytest", "_pytest"}
    specs = {name: PathFinder.find_spec(name, roots) for name in tops}
    owned = {name for name, spec in specs.items() if spec is not None and spec.origin is not None}
    if owned:
        kept = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in owned}
        builtins.__import__ = keeping_apart(builtins.__import__, kept, owned, env)


def is_ours(module: ModuleType, env: str) -> bool:
    return (getattr(module, "__file__", None) or "").startswith((env + os.sep, MEMORY))


def keeping_apart(real: Callable[..., ModuleType], kept: dict[str, ModuleType], owned: set[str], env: str) -> Callable[..., ModuleType]:
    """`__import__` that gives pytest's own modules, which import some things late, the copies that it began with."""

    def is_owned(name: str) -> bool:
        return name.partition(".")[0] in owned

    def importer(name: str, globals: Mapping[str, Any] | None = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> ModuleType:
        caller = str((globals or {}).get("__name__", ""))
        whole = caller if level else name
        if not is_owned(whole) or not (is_owned(caller) or caller.partition(".")[0] in ("pytest", "_pytest")):
            return real(name, globals, locals, fromlist, level)
        if not str((globals or {}).get("__file__", "")).startswith((env + os.sep, MEMORY)):
            return real(name, globals, locals, fromlist, level)
        trees = {each: sys.modules.pop(each) for each in list(sys.modules) if is_owned(each)}
        path, sys.path[:] = sys.path[:], [env, *LIBRARY]
        sys.meta_path.append(CARRIED)
        sys.modules.update(kept)
        try:
            return real(name, globals, locals, fromlist, level)
        finally:
            sys.path[:] = path
            sys.meta_path.remove(CARRIED)
            kept.update({each: sys.modules.pop(each) for each in list(sys.modules) if is_owned(each)})
            sys.modules.update(trees)

    return importer


class OwnMetadata(importlib.metadata.Distribution):
    """Name and version of the repository for `importlib.metadata`, as if it were installed. Also the finder of itself."""

    def __init__(self, root: str) -> None:
        self.root = Path(root)
        self.text = self.read_text("METADATA")

    def read_text(self, filename: str) -> str | None:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if filename == "METADATA" and (self.root / "PKG-INFO").is_file():
                return (self.root / "PKG-INFO").read_text("utf-8")
            if filename == "METADATA" and (self.root / "pyproject.toml").is_file():
                return metadata_of((self.root / "pyproject.toml").read_text("utf-8"))
        return None

    def locate_file(self, path: Any) -> Path:
        return self.root.joinpath(path)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return None

    def find_distributions(self, context: Any) -> Iterable[importlib.metadata.Distribution]:
        own = re.search(r"^Name: *(\S+)", self.text or "", re.MULTILINE)
        if own and (context.name is None or normal(context.name) == normal(own[1])):
            yield self


def metadata_of(pyproject: str) -> str | None:
    try:
        project = tomllib.loads(pyproject).get("project", {})
        return f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project.get('version', '0.0.0')}\n"
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


class Reporter:
    """The pytest plugin: chooses and orders the items, and sends every report."""

    def __init__(self, send: Send, root: str, config: dict[str, Any], tracer: Any) -> None:
        self.send, self.root, self.tracer = send, root, tracer
        self.order, self.seed, self.only_collect = config["order"], config["seed"], bool(config.get("elsewhere"))
        self.wanted: set[str] | None = None if config["ids"] is None else set(config["ids"])
        # a parameter may hold "::", so every beginning of an id that could be a file counts; wrong ones name no file
        self.files = {id[: match.start()] for id in self.wanted or () for match in re.finditer("::", id)}
        self.until: list[set[str]] | None = [set(ids) for ids in config["until"]] if config.get("until") else None

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        if self.wanted is None or collection_path.is_dir() or collection_path.name in ("conftest.py", "__init__.py"):
            return None
        relative = os.path.relpath(collection_path, self.root)
        return None if relative in self.files else True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None, None, None]:
        yield
        chosen = [item for item in items if self.wanted is None or item.nodeid in self.wanted]
        if self.order == "reversed":
            chosen.reverse()
        elif self.order == "shuffled":
            random.Random(self.seed).shuffle(chosen)
        items[:] = chosen
        self.send(["items", [item.nodeid for item in chosen]])
        if self.only_collect:
            items.clear()
        if self.until is not None and self.is_enough(lambda ids: not ids <= {item.nodeid for item in chosen}):
            items.clear()
        if self.tracer:
            self.tracer.switch("<between>")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.send(["start", item.nodeid])
        if self.tracer:
            self.tracer.switch(item.nodeid)
        try:
            return (yield)
        finally:
            if self.tracer:
                self.tracer.switch("<between>")
            if self.until == []:
                item.session.shouldstop = "enough is known"

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str]:
        return report.outcome, "", ""  # nobody watches a letter for each test

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.send(["error", report.nodeid, message_of(report)])

    def is_enough(self, is_noticed: Callable[[set[str]], bool]) -> bool:
        """Has each of the sets of ids that are waited for a test that does not pass?"""
        self.until = [ids for ids in self.until or () if not is_noticed(ids)]
        return not self.until

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self.until and (report.outcome != "passed" or hasattr(report, "wasxfail")):
            self.is_enough(lambda ids: report.nodeid in ids)
        message = message_of(report) if report.failed else ""
        self.send(["report", report.nodeid, report.when, report.outcome, hasattr(report, "wasxfail"), report.duration, message])


def message_of(report: pytest.CollectReport | pytest.TestReport) -> str:
    """One line that says what went wrong."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else str(report.longrepr or "")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not crash:  # a collection error: the last marked line names the exception
        lines = [line[2:].strip() for line in lines if line.startswith("E ")][-1:] or lines[-1:]
    return lines[0][:500] if lines else ""


if __name__ == "__main__":
    main()
