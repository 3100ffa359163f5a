"""What a trajectory did, whichever tools it used for it: commands, files that were touched, code that was run or left behind.

    Trajectory -> Deeds(commands, uses, sources, patches, ...)        look(trajectory): made once, remembered for the last few

A place is a path as the workspace sees it: relative inside of it, absolute elsewhere. Uses come from tool calls, from shell commands and from
Python code that was run (-c, heredocs, scripts that the trajectory wrote itself), and from the sandbox's log where one was kept.

Not here: which of it is suspicious (the detectors).
"""

import ast
import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from etude.grade.patches import FilePatch, parse
from etude.monitor.detectors.code import Code, constant_text, parse_python
from etude.monitor.detectors.shell import Command, parse_shell
from etude.monitor.trajectory import Act, Trajectory

READERS = frozenset({
    "cat", "head", "tail", "less", "more", "nl", "sed", "awk", "gawk", "grep", "egrep", "fgrep", "rg", "ag", "ack", "zgrep", "zcat", "strings",
    "xxd", "od", "hexdump", "hd", "diff", "cmp", "sort", "uniq", "cut", "base64", "jq", "sqlite3", "unzip", "bsdtar", "gunzip", "bat", "tac",
    "rev", "vim", "vi", "nano", "emacs", "view", "zless", "xz", "tar", "7z", "column", "pr", "fold", "paste", "comm", "join", "dd", "iconv",
    "openssl", "cpio", "zipinfo", "javap", "jar", "unxz", "lz4", "zstd", "bzcat", "source", ".", "perl", "ruby", "node",
})  # fmt: skip
LISTERS = frozenset({"ls", "find", "tree", "du", "fd", "locate", "plocate", "mlocate", "dir", "stat", "file", "wc", "readlink", "realpath"})
COPIERS = frozenset({"cp", "mv", "rsync", "scp", "install", "ln"})
REMOVERS = frozenset({"rm", "unlink", "shred", "rmdir", "trash"})
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*(?:w)?\Z")
_NOT_PATHS = {"-not", "!", "--exclude", "--exclude-dir", "--include", "--ignore", "--ignore-dir", "-g", "--glob"}
_WRITE_TOOLS = re.compile(r"(?:^|[._])(?:write|create|save|edit|str_replace|insert|replace|patch|append|apply)", re.IGNORECASE)
_LIST_TOOLS = frozenset({"list", "ls", "glob", "list_dir", "list_files", "find_file", "search_dir"})
_SEARCH_TOOLS = frozenset({"search", "grep", "search_file", "find", "ripgrep"})
_ROOTS = ("/work", "/testbed", "/workspace", "/repo", "/app", "/src", "/code", "/project")
SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc", "/opt", "/dev", "/sys", "/proc", "/var", "/boot", "/run")
_PATHLIKE = re.compile(r"[^\s'\"|;<>(){}$`]*[/.][^\s'\"|;<>(){}$`]*\Z")
_BUILDS = re.compile(
    r"-m build\b|setup\.py (?:build|sdist|bdist)|pip3? wheel \.|^(?:poetry|hatch|flit|uv|npm run|yarn|mvn|gradle\w*) .*(?:build|package|compile)"
)
_QUOTE = 300
_READ_CALLS = re.compile(
    r"(?:^|\.)(?:open|read_text|read_bytes|readlines|glob|iglob|rglob|iterdir|listdir|walk|scandir|load|loads|connect|ZipFile|copy|copy2|copyfile|"
    r"copytree|move|run|Popen|check_output|system|popen|getline|get_data|exec_module|spec_from_file_location|SourcelessFileLoader|run_path|is_tarfile)\Z"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A file or folder that was touched."""

    step: int
    how: str  # read | list | search | write | edit | delete | copy | link | log
    place: str
    quote: str
    new: str = ""  # written text
    old: str = ""  # what an edit replaced
    target: str = ""  # of a copy or a link
    result: str = ""
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One simple command."""

    step: int
    command: Command
    act: Act

    @property
    def quote(self) -> str:
        return shorten(self.command.text or " ".join(self.command.argv))


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Python text that was run, written, or submitted."""

    step: int  # -1: in the patch
    path: str  # "" for code that was run from no file
    code: Code
    executed: bool = False
    act: Act | None = None

    @property
    def submitted(self) -> bool:
        return self.step < 0


@dataclass(slots=True, kw_only=True)
class Deeds:
    trajectory: Trajectory
    root: str
    commands: list[Ran] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    patches: list[FilePatch] = field(default_factory=list)
    packages: tuple[str, ...] = ()
    made: dict[str, int] = field(default_factory=dict)  # place -> the step in which the trajectory made it

    def made_before(self, place: str, step: int) -> bool:
        """The trajectory itself wrote that file, or a file in that folder, earlier."""
        return any(
            at <= step and (place == own or own.startswith(f"{place.rstrip('/')}/") or place.startswith(f"{own}/"))
            for own, at in self.made.items()
        )

    @property
    def code_in_patch(self) -> list[Source]:
        """Submitted sources that are no tests; what was written, where there is no patch."""
        submitted = [source for source in self.sources if source.submitted and not is_test(source.path)]
        if submitted or self.patches:
            return submitted
        return [one for one in self.sources if one.path and not one.executed and not is_test(one.path) and not one.path.startswith("/")]


_LAST: list[tuple[Trajectory, Deeds]] = []


def look(trajectory: Trajectory) -> Deeds:
    for known, deeds in _LAST:
        if known is trajectory:
            return deeds
    deeds = _look(trajectory)
    _LAST.insert(0, (trajectory, deeds))
    del _LAST[4:]
    return deeds


def shorten(text: str, limit: int = _QUOTE) -> str:
    return text.strip()[:limit]


def is_test(path: str) -> bool:
    name = posixpath.basename(path)
    named = name.startswith("test_") or name.endswith(("_test.py", "_tests.py", "_test.go", ".test.js", ".test.ts", ".spec.js", ".spec.ts"))
    return (
        named
        or name == "conftest.py"
        or name.endswith(("Test.java", "Tests.java"))
        or bool({"tests", "test", "__tests__", "testing"} & set(path.split("/")[:-1]))
    )


def added(patch: FilePatch) -> list[str]:
    return [line[1:] for line in patch.body if line.startswith("+")]


def removed(patch: FilePatch) -> list[str]:
    return [line[1:] for line in patch.body if line.startswith("-")]


def new_side(patch: FilePatch) -> str:
    """The new file as far as the diff shows it: added lines and those around them."""
    return "\n".join(line[1:] if line[:1] in "+ " else "" for line in patch.body if line[:1] in ("+", " ", "") or line.startswith("@@"))


def _look(trajectory: Trajectory) -> Deeds:
    patches = _patches(trajectory.patch)
    deeds = Deeds(trajectory=trajectory, root=_root(trajectory, patches), patches=patches)
    deeds.packages = trajectory.packages or _packages(trajectory, patches)
    scripts: dict[str, str] = {}  # place -> Python text that the trajectory wrote
    for step in trajectory.steps:
        for act in step.acts:
            _tool(act, step.index, deeds, scripts)
            cwd = deeds.root
            for command in parse_shell(act.command, cwd) if act.command else ():
                ran = Ran(step=step.index, command=command, act=act)
                deeds.commands.append(ran)
                _shell_uses(ran, deeds, scripts)
    for patch in patches:
        path = patch.new or patch.old or ""
        if path.endswith((".py", ".pyi", ".pth")) and not patch.binary and patch.new:
            deeds.sources.append(Source(step=-1, path=path, code=parse_python("\n".join(added(patch)))))
    for event in trajectory.events or ():
        if event.kind in ("read", "written"):
            deeds.uses.append(
                Use(
                    step=event.step,
                    how="log" if event.kind == "read" else "write",
                    place=place_of(event.what, "", deeds.root),
                    quote=event.what,
                )
            )
    return deeds


def _patches(text: str) -> list[FilePatch]:
    try:
        return parse(text)
    except ValueError:
        return []


def _root(trajectory: Trajectory, patches: Sequence[FilePatch]) -> str:
    """The workspace, as the agent names it: a patched file shows it, else where it works most, else a usual one that is named."""
    if trajectory.source == "etude":
        return "/work"
    paths = [act.path for step in trajectory.steps for act in step.acts if act.path.startswith("/")]
    commands = [act.command for step in trajectory.steps for act in step.acts if act.command]
    named = {path for patch in patches for path in patch.paths}
    for path in paths:
        for inner in named:
            if path.endswith(f"/{inner}"):
                return path.removesuffix(f"/{inner}")
    places = Counter(match for command in commands for match in re.findall(r"(?:^|[;&\n(]\s*)cd\s+(/[\w./-]+)", command))
    for place, _ in places.most_common():
        if not place.startswith((*SYSTEM, "/tmp")):
            return place.rstrip("/")
    text = "\n".join([*paths, *commands])
    return next((root for root in _ROOTS if re.search(rf"{root}(?:/|\b)", text)), "")


def _packages(trajectory: Trajectory, patches: Sequence[FilePatch]) -> tuple[str, ...]:
    names = set()
    for patch in patches:
        for path in patch.paths:
            parts = [part for part in path.split("/") if part not in ("src", "lib", "python", "packages", ".")]
            if path.endswith(".py") and len(parts) > 1 and not is_test(path):
                names.add(parts[0])
    match = re.match(r"(?:[\w.-]+__)?([A-Za-z][\w.]*)-\d+\Z", trajectory.task_id)
    if match:
        names.add(match[1])
    return tuple(sorted(names))


def place_of(path: str, cwd: str, root: str) -> str:
    path = path.strip().removeprefix("file://")
    if path.startswith("~"):
        path = "/root" + path[1:]
    if not path.startswith("/"):
        path = posixpath.join(cwd or root, path)
    path = posixpath.normpath(path)
    if root and (path == root or path.startswith(f"{root}/")):
        return path[len(root) + 1 :] or "."
    return path


def _tool(act: Act, step: int, deeds: Deeds, scripts: dict[str, str]) -> None:
    """What a tool call that is no shell did to its file."""
    if not act.path or act.command:
        return
    place = place_of(act.path, "", deeds.root)
    name = act.name.rpartition(".")[2].lower()
    arguments = act.arguments
    verb = str(arguments.get("command", ""))
    new = _first(arguments, "new_str", "new_string", "new", "file_text", "content", "text", "contents", "new_text", "code")
    old = _first(arguments, "old_str", "old_string", "old", "old_text", "search")
    quote = shorten(act.path)
    if verb in ("create", "str_replace", "insert") or (verb != "view" and (_WRITE_TOOLS.search(name) or (new and name != "search"))):
        how = "edit" if old or verb in ("str_replace", "insert") or "edit" in name else "write"
        _wrote(step, how, place, new, deeds, scripts, act, old=old, quote=quote)
    else:
        how = "list" if name in _LIST_TOOLS else "search" if name in _SEARCH_TOOLS else "read"
        deeds.uses.append(Use(step=step, how=how, place=place, quote=quote, result=act.result, failed=act.failed))


def _first(arguments: object, *keys: str) -> str:
    get = arguments.get if isinstance(arguments, dict) else dict(arguments).get  # type: ignore[call-overload]
    return next((value for key in keys if isinstance(value := get(key), str) and value), "")


def _wrote(
    step: int, how: str, place: str, new: str, deeds: Deeds, scripts: dict[str, str], act: Act, *, old: str = "", quote: str = ""
) -> None:
    deeds.uses.append(Use(step=step, how=how, place=place, quote=quote or place, new=new, old=old, result=act.result, failed=act.failed))
    if how == "write" and not act.failed:
        deeds.made.setdefault(place, step)
    if place.endswith((".py", ".pyi", ".pth")) and new:
        scripts[place] = new if how == "write" else scripts.get(place, "") + "\n" + new
        deeds.sources.append(Source(step=step, path=place, code=parse_python(new), act=act))


def _shell_uses(ran: Ran, deeds: Deeds, scripts: dict[str, str]) -> None:
    command, act, step = ran.command, ran.act, ran.step

    def use(how: str, path: str, **more: str) -> None:
        deeds.uses.append(
            Use(
                step=step,
                how=how,
                place=place_of(path, command.cwd, deeds.root),
                quote=ran.quote,
                result=act.result,
                failed=act.failed,
                **more,
            )
        )

    for path in command.inputs:
        use("read", path)
    if _BUILDS.search(" ".join(command.argv)):
        for place in ("dist", "build", "target"):
            deeds.made.setdefault(place, step)
    for path in command.outputs:
        if not path.startswith("/dev/"):
            text = (
                command.stdin
                if command.program in ("cat", "tee")
                else " ".join(command.operands())
                if command.program in ("echo", "printf")
                else ""
            )
            _wrote(step, "write", place_of(path, command.cwd, deeds.root), text, deeds, scripts, act, quote=ran.quote)
    operands = list(_paths(command))
    if command.program == "sed" and any(option.startswith(("-i", "--in-place")) for option in command.options()):
        for path in operands[-1:]:
            _wrote(
                step,
                "edit",
                place_of(path, command.cwd, deeds.root),
                " ".join(command.operands()[:-1]),
                deeds,
                scripts,
                act,
                quote=ran.quote,
            )
    elif command.program == "tee":
        for path in command.operands():
            _wrote(step, "write", place_of(path, command.cwd, deeds.root), command.stdin, deeds, scripts, act, quote=ran.quote)
    elif command.program in ("touch", "truncate", "mkdir"):
        for path in operands:
            if command.program != "mkdir":
                use("write", path)
            deeds.made.setdefault(place_of(path, command.cwd, deeds.root), step)
    elif command.program in REMOVERS or (command.program == "git" and command.argv[1:2] == ("rm",)):
        for path in operands:
            use("delete", path)
    elif command.program == "find" and ("-delete" in command.argv or "rm" in command.argv):
        pass
    elif command.program in COPIERS or (command.program == "git" and command.argv[1:2] == ("mv",)):
        *sources, target = operands or [""]
        for path in sources:
            how = "link" if command.program == "ln" else "copy"
            use(how, path, target=place_of(target, command.cwd, deeds.root))
            if command.program == "mv" or command.program == "git":
                use("delete", path)
        if sources and target:
            deeds.made.setdefault(place_of(target, command.cwd, deeds.root), step)
    elif command.program in LISTERS:
        for path in operands:
            use("list", path)
    elif command.program in READERS:
        for path in operands:
            use("read", path)
    if _PYTHON.match(command.program) or command.program in ("ipython", "ipython3"):
        _python(ran, deeds, scripts)
    elif command.program in ("pytest", "tox") or not command.argv:
        return
    elif command.argv[0] in scripts or place_of(command.argv[0], command.cwd, deeds.root) in scripts:
        _run_code(ran, scripts[place_of(command.argv[0], command.cwd, deeds.root)], deeds)


def _paths(command: Command) -> Iterator[str]:
    """Operands that may be paths: not those that say what to leave out, nor patterns of a search."""
    words = command.argv[1:]
    skip = False
    pattern = command.program in ("grep", "egrep", "fgrep", "rg", "ag", "ack", "zgrep", "sed", "awk", "gawk", "jq", "perl") and not any(
        word in ("-e", "-f", "--regexp") or (word.startswith("-e") and len(word) > 2) for word in words
    )
    for position, word in enumerate(words):
        if skip:
            skip = False
            continue
        if word in _NOT_PATHS or (command.program == "tar" and word == "--exclude"):
            skip = True
            if word in ("-not", "!") and words[position + 1 : position + 2] and words[position + 1].startswith("-"):
                skip = True
            continue
        if word.startswith("-"):
            if command.program in ("find", "fd") and word in ("-name", "-iname", "-path", "-ipath", "-wholename", "-type", "-maxdepth", "-mindepth",
                                                              "-size", "-newer", "-mtime", "-perm", "-regex", "-user", "-exec", "-printf"):  # fmt: skip
                skip = True
            elif command.program in ("head", "tail", "grep", "rg", "cut", "sort", "ls") and word in (
                "-n",
                "-c",
                "-A",
                "-B",
                "-C",
                "-m",
                "-d",
                "-k",
            ):
                skip = True
            elif word.startswith(("--", "-")) and command.program == "dd":
                continue
            continue
        if command.program == "dd":
            if word.startswith("if="):
                yield word[3:]
            continue
        if pattern:
            pattern = False
            continue
        if command.program in ("sqlite3", "perl", "ruby", "node") and not _PATHLIKE.match(word):
            continue
        if word not in (";", "{}", "+", ")", "("):
            yield from word.split() if "$" not in word and " " in word else [word]


def _python(ran: Ran, deeds: Deeds, scripts: dict[str, str]) -> None:
    command = ran.command
    words = command.argv[1:]
    for position, word in enumerate(words):
        if word == "-c" and position + 1 < len(words):
            return _run_code(ran, words[position + 1], deeds)
        if word == "-m":
            if words[position + 1 : position + 2] == ("zipfile",) or words[position + 1 : position + 2] == ("tarfile",):
                for path in words[position + 2 :]:
                    if not path.startswith("-"):
                        deeds.uses.append(
                            Use(
                                step=ran.step,
                                how="read",
                                place=place_of(path, command.cwd, deeds.root),
                                quote=ran.quote,
                                result=ran.act.result,
                            )
                        )
            return None
        if word == "-":
            break
        if not word.startswith("-"):
            place = place_of(word, command.cwd, deeds.root)
            if place in scripts:
                _run_code(ran, scripts[place], deeds)
            return None
    if command.stdin:
        _run_code(ran, command.stdin, deeds)
    return None


def _run_code(ran: Ran, text: str, deeds: Deeds) -> None:
    code = parse_python(text)
    deeds.sources.append(Source(step=ran.step, path="", code=code, executed=True, act=ran.act))
    for call in code.calls:
        name = call.name.rpartition(".")[2]
        if not _READ_CALLS.search(call.name) and name not in (
            "write_text",
            "write_bytes",
            "unlink",
            "remove",
            "rmtree",
            "symlink",
            "link",
            "symlink_to",
        ):
            continue
        node = call.node
        if name in ("run", "Popen", "check_output", "system", "popen", "call", "check_call"):
            _inner_command(ran, node, deeds)
            continue
        paths = [text for argument in node.args[:2] if (text := _path_text(argument)) is not None]
        if isinstance(node.func, ast.Attribute) and (receiver := _path_text(node.func.value)) is not None:
            paths.insert(0, receiver)
        mode = _mode(node) if name == "open" else ""
        how = (
            "write"
            if set(mode) & set("wax") or name.startswith("write_")
            else "delete"
            if name in ("unlink", "remove", "rmtree")
            else "read"
        )
        how = (
            "link"
            if name in ("symlink", "link", "symlink_to")
            else "list"
            if name in ("listdir", "iterdir", "walk", "scandir", "rglob", "glob", "iglob")
            else how
        )
        for path in paths[:2] if how in ("link",) or name.startswith("copy") or name == "move" else paths[:1]:
            if path and "\n" not in path and len(path) < 400 and path not in (mode, "utf-8", "utf8"):
                place = place_of(path, ran.command.cwd, deeds.root)
                if how == "write":
                    deeds.made.setdefault(place, ran.step)
                new = constant_text(node.args[0]) or "" if name == "write_text" and node.args else ""
                deeds.uses.append(
                    Use(
                        step=ran.step,
                        how=how,
                        place=place,
                        quote=shorten(code.line(node) or path),
                        result=ran.act.result,
                        failed=ran.act.failed,
                        new=new,
                    )
                )


def _inner_command(ran: Ran, node: ast.Call, deeds: Deeds) -> None:
    first = node.args[0] if node.args else None
    if isinstance(first, ast.List | ast.Tuple):
        words = [constant_text(item) or "?" for item in first.elts]
        commands = [Command(argv=tuple(words), text=" ".join(words), cwd=ran.command.cwd)]
    elif (text := constant_text(first)) is not None:
        commands = parse_shell(text, ran.command.cwd)
    else:
        return
    for command in commands:
        inner = Ran(step=ran.step, command=command, act=ran.act)
        deeds.commands.append(inner)
        _shell_uses(inner, deeds, {})


def _path_text(node: ast.AST) -> str | None:
    """The path that an expression of constants is: "a", Path("a"), Path("a") / "b", os.path.join("a", "b"), f"a/{b}"."""
    if (text := constant_text(node)) is not None:
        return text
    match node:
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            first, second = _path_text(left), _path_text(right)
            return None if first is None else f"{first}/{second or '*'}"
        case ast.Call(func=func, args=[*arguments]) if arguments and isinstance(func, ast.Name | ast.Attribute):
            name = func.id if isinstance(func, ast.Name) else func.attr
            if name in (
                "Path",
                "PurePath",
                "PosixPath",
                "expanduser",
                "abspath",
                "join",
                "realpath",
                "fspath",
                "glob",
                "iglob",
                "rglob",
                "open",
                "str",
            ):
                texts = [_path_text(argument) for argument in arguments]
                return None if texts[0] is None else "/".join(text or "*" for text in texts)
    return None


def _mode(node: ast.Call) -> str:
    second = node.args[1] if len(node.args) > 1 else next((keyword.value for keyword in node.keywords if keyword.arg == "mode"), None)
    if isinstance(node.func, ast.Attribute) and not isinstance(node.func.value, ast.Name):
        second = node.args[0] if node.args else second
    return constant_text(second) or "r"
