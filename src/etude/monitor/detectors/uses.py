"""Which files a tool call, a shell command or a piece of Python touched, and how. Fills Deeds.uses, .sources, .commands and .made.

In: an Act, or one simple command, and the Deeds so far. What a command runs that the trajectory wrote itself is looked into, too.

Not here: putting a trajectory together (look.py), judging (the detectors).
"""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from etude.monitor.detectors.code import Call, Code, constant_text, parse_python
from etude.monitor.detectors.deeds import Deeds, Ran, Source, Use, place_of, shorten
from etude.monitor.detectors.shell import Command, parse_shell
from etude.monitor.trajectory import Act

READERS = frozenset({
    "cat", "head", "tail", "less", "more", "nl", "sed", "awk", "gawk", "grep", "egrep", "fgrep", "rg", "ag", "ack", "zgrep", "zcat",
    "strings",
    "xxd", "od", "hexdump", "hd", "diff", "cmp", "sort", "uniq", "cut", "base64", "jq", "sqlite3", "unzip", "bsdtar", "gunzip", "bat",
    "tac",
    "rev", "vim", "vi", "nano", "emacs", "view", "zless", "xz", "tar", "7z", "column", "pr", "fold", "paste", "comm", "join", "dd", "iconv",
    "openssl", "cpio", "zipinfo", "javap", "jar", "unxz", "lz4", "zstd", "bzcat", "source", ".", "perl", "ruby", "node",
})  # fmt: skip
LISTERS = frozenset({
    "ls", "find", "tree", "du", "fd", "locate", "plocate", "mlocate", "dir", "stat", "file", "wc", "readlink", "realpath",
})  # fmt: skip
COPIERS = frozenset({"cp", "mv", "rsync", "scp", "install", "ln"})
REMOVERS = frozenset({"rm", "unlink", "shred", "rmdir", "trash"})
_PATTERN_FIRST = frozenset({"grep", "egrep", "fgrep", "rg", "ag", "ack", "zgrep", "sed", "awk", "gawk", "jq", "perl"})
_PYTHON = re.compile(r"(?:(?:python|pypy)[\d.]*(?:w)?|ipython3?)\Z")
_NOT_PATHS = frozenset({"-not", "!", "--exclude", "--exclude-dir", "--include", "--ignore", "--ignore-dir", "-g", "--glob"})
_FIND_VALUES = frozenset({
    "-name", "-iname", "-path", "-ipath", "-wholename", "-type", "-maxdepth", "-mindepth", "-size", "-newer", "-mtime", "-perm",
    "-regex", "-user",
    "-exec", "-printf",
})  # fmt: skip
_COUNTS = frozenset({"-n", "-c", "-A", "-B", "-C", "-m", "-d", "-k"})
_WRITE_TOOLS = re.compile(r"(?:^|[._])(?:write|create|save|edit|str_replace|insert|replace|patch|append|apply)", re.IGNORECASE)
_LIST_TOOLS = frozenset({"list", "ls", "glob", "list_dir", "list_files", "find_file", "search_dir"})
_SEARCH_TOOLS = frozenset({"search", "grep", "search_file", "find", "ripgrep"})
_NEW = ("new_str", "new_string", "new", "file_text", "content", "text", "contents", "new_text", "code")
_OLD = ("old_str", "old_string", "old", "old_text", "search")
_PATHLIKE = re.compile(r"[^\s'\"|;<>(){}$`]*[/.][^\s'\"|;<>(){}$`]*\Z")
_BUILDS = re.compile(
    r"-m build\b|setup\.py (?:build|sdist|bdist)|pip3? wheel \.|^(?:poetry|hatch|flit|uv|npm run|yarn|mvn|gradle\w*) .*(?:build|"
    r"package|compile)"
)
_STARTS = frozenset({"run", "Popen", "check_output", "check_call", "call", "system", "popen"})
_DELETES = frozenset({"unlink", "remove", "rmtree"})
_LINKS = frozenset({"symlink", "link", "symlink_to", "hardlink_to"})
_LISTS = frozenset({"listdir", "iterdir", "walk", "scandir", "rglob", "glob", "iglob"})
_READS = frozenset({
    "open", "read_text", "read_bytes", "readlines", "load", "loads", "connect", "ZipFile", "TarFile", "copy", "copy2", "copyfile",
    "copytree", "move",
    "getline", "get_data", "exec_module", "spec_from_file_location", "SourcelessFileLoader", "run_path", "is_tarfile",
})  # fmt: skip
_WRITES = frozenset({"write_text", "write_bytes"})
_PATH_CALLS = frozenset({
    "Path", "PurePath", "PosixPath", "expanduser", "abspath", "join", "realpath", "fspath", "glob", "iglob", "rglob", "open", "str",
})  # fmt: skip

Scripts = dict[str, str]  # place -> Python text that the trajectory wrote


def by_tool(act: Act, step: int, deeds: Deeds, scripts: Scripts) -> None:
    """What a tool call that is no shell did to its file."""
    if not act.path or act.command:
        return
    place = place_of(act.path, "", deeds.root)
    name = act.name.rpartition(".")[2].lower()
    verb = str(act.arguments.get("command", ""))
    new, old = _first(act.arguments, _NEW), _first(act.arguments, _OLD)
    quote = shorten(act.path)
    if verb in ("create", "str_replace", "insert") or (verb != "view" and (_WRITE_TOOLS.search(name) or (new and name != "search"))):
        how = "edit" if old or verb in ("str_replace", "insert") or "edit" in name else "write"
        _wrote(
            Use(step=step, how=how, place=place, new=new, old=old, quote=quote, result=act.result, failed=act.failed), deeds, scripts, act
        )
    else:
        how = "list" if name in _LIST_TOOLS else "search" if name in _SEARCH_TOOLS else "read"
        deeds.uses.append(Use(step=step, how=how, place=place, quote=quote, result=act.result, failed=act.failed))


def _first(arguments: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    return next((value for key in keys if isinstance(value := arguments.get(key), str) and value), "")


def _wrote(use: Use, deeds: Deeds, scripts: Scripts, act: Act) -> None:
    deeds.uses.append(use)
    if use.how == "write" and not use.failed:
        deeds.made.setdefault(use.place, use.step)
    if use.place.endswith((".py", ".pyi", ".pth")) and use.new:
        scripts[use.place] = use.new if use.how == "write" else scripts.get(use.place, "") + "\n" + use.new
        deeds.sources.append(Source(step=use.step, path=use.place, code=parse_python(use.new), act=act))


def by_command(ran: Ran, deeds: Deeds, scripts: Scripts) -> None:
    command = ran.command
    for path in command.inputs:
        deeds.uses.append(_use(ran, deeds, "read", path))
    if _BUILDS.search(" ".join(command.argv)):
        for place in ("dist", "build", "target"):
            deeds.made.setdefault(place, ran.step)
    said = (
        command.stdin
        if command.program in ("cat", "tee")
        else " ".join(command.operands())
        if command.program in ("echo", "printf")
        else ""
    )
    for path in command.outputs:
        if not path.startswith("/dev/") or path.startswith("/dev/fd"):
            _wrote(_use(ran, deeds, "write", path, new=said), deeds, scripts, ran.act)
    _operands(ran, deeds, scripts)
    if _PYTHON.match(command.program):
        _python(ran, deeds, scripts)
    elif command.argv and (place := place_of(command.argv[0], command.cwd, deeds.root)) in scripts:
        _run_code(ran, scripts[place], deeds)


def _use(ran: Ran, deeds: Deeds, how: str, path: str, *, new: str = "", target: str = "", quote: str = "") -> Use:
    place = place_of(path, ran.command.cwd, deeds.root)
    return Use(
        step=ran.step, how=how, place=place, quote=quote or ran.quote, new=new, target=target, result=ran.act.result, failed=ran.act.failed
    )  # fmt: skip


def _operands(ran: Ran, deeds: Deeds, scripts: Scripts) -> None:
    """What a program does to the files that are its operands."""
    command = ran.command
    paths = list(_paths(command))
    git = command.argv[1] if command.program == "git" and len(command.argv) > 1 else ""
    if command.program == "sed" and any(option.startswith(("-i", "--in-place")) for option in command.options()):
        for path in paths[-1:]:
            _wrote(_use(ran, deeds, "edit", path, new=" ".join(command.operands()[:-1])), deeds, scripts, ran.act)
    elif command.program == "tee":
        for path in command.operands():
            _wrote(_use(ran, deeds, "write", path, new=command.stdin), deeds, scripts, ran.act)
    elif command.program in ("touch", "truncate", "mkdir"):
        for path in paths:
            use = _use(ran, deeds, "write", path)
            deeds.made.setdefault(use.place, ran.step)
            if command.program != "mkdir":
                deeds.uses.append(use)
    elif command.program in REMOVERS or git == "rm":
        deeds.uses += [_use(ran, deeds, "delete", path) for path in paths if path != "rm"]
    elif command.program in COPIERS or git == "mv":
        _copies(ran, [path for path in paths if path != git], deeds)
    elif command.program == "find" and ({"-delete", "rm"} & set(command.argv)):
        return
    elif command.program in LISTERS | READERS:
        how = "list" if command.program in LISTERS else "read"
        deeds.uses += [_use(ran, deeds, how, path) for path in paths]


def _copies(ran: Ran, paths: list[str], deeds: Deeds) -> None:
    if len(paths) < 2:
        return
    *sources, last = paths
    target = place_of(last, ran.command.cwd, deeds.root)
    for path in sources:
        deeds.uses.append(_use(ran, deeds, "link" if ran.command.program == "ln" else "copy", path, target=target))
        if ran.command.program in ("mv", "git"):
            deeds.uses.append(_use(ran, deeds, "delete", path))
    deeds.made.setdefault(target, ran.step)


def _paths(command: Command) -> Iterator[str]:
    """Operands that may be paths: not those that say what to leave out, nor the pattern of a search."""
    words = command.argv[1:]
    skip = 0
    pattern = command.program in _PATTERN_FIRST and not any(word in ("-e", "-f", "--regexp") or re.match(r"-e.", word) for word in words)
    for position, word in enumerate(words):
        following = words[position + 1] if position + 1 < len(words) else ""
        if skip:
            skip -= 1
        elif word in _NOT_PATHS:
            skip = 2 if word in ("-not", "!") and following.startswith("-") else 1
        elif word.startswith("-"):
            finds = command.program in ("find", "fd") and word in _FIND_VALUES
            counts = command.program in ("head", "tail", "grep", "rg", "cut", "sort", "ls") and word in _COUNTS
            skip = 1 if finds or counts else 0
        elif command.program == "dd":
            if word.startswith("if="):
                yield word[3:]
        elif pattern:
            pattern = False
        elif command.program in ("sqlite3", "perl", "ruby", "node") and not _PATHLIKE.match(word):
            continue
        elif word not in (";", "{}", "+", ")", "("):
            yield from word.split() if "$" not in word and " " in word else [word]


def _python(ran: Ran, deeds: Deeds, scripts: Scripts) -> None:
    words = ran.command.argv[1:]
    for position, word in enumerate(words):
        if word == "-c" and position + 1 < len(words):
            return _run_code(ran, words[position + 1], deeds)
        if word == "-m":
            if words[position + 1 : position + 2] in (("zipfile",), ("tarfile",)):
                deeds.uses += [_use(ran, deeds, "read", path) for path in words[position + 2 :] if not path.startswith("-")]
            return None
        if word == "-":
            break
        if not word.startswith("-"):
            place = place_of(word, ran.command.cwd, deeds.root)
            return _run_code(ran, scripts[place], deeds) if place in scripts else None
    return _run_code(ran, ran.command.stdin, deeds) if ran.command.stdin else None


def _run_code(ran: Ran, text: str, deeds: Deeds) -> None:
    code = parse_python(text)
    deeds.sources.append(Source(step=ran.step, path="", code=code, executed=True, act=ran.act))
    for call in code.calls:
        name = call.name.rpartition(".")[2]
        if name in _STARTS:
            _started(ran, call.node, deeds)
        elif how := _how(name, call.node):
            deeds.uses += _touched(ran, call, name, how, code, deeds)


def _how(name: str, node: ast.Call) -> str:
    if name in _WRITES or (name == "open" and set(_mode(node)) & set("wax")):
        return "write"
    kinds = ((_DELETES, "delete"), (_LINKS, "link"), (_LISTS, "list"), (_READS, "read"))
    return next((how for names, how in kinds if name in names), "")


def _touched(ran: Ran, call: Call, name: str, how: str, code: Code, deeds: Deeds) -> Iterator[Use]:
    node = call.node
    paths = [text for argument in node.args[:2] if (text := _path_text(argument)) is not None]
    if isinstance(node.func, ast.Attribute) and (receiver := _path_text(node.func.value)) is not None:
        paths.insert(0, receiver)
    both = how == "link" or name in ("copy", "copy2", "copyfile", "copytree", "move")
    for path in paths[: 2 if both else 1]:
        if path and "\n" not in path and len(path) < 400:
            new = constant_text(node.args[0]) or "" if name == "write_text" and node.args else ""
            use = _use(ran, deeds, how, path, new=new, quote=shorten(code.line(node) or path))
            if how == "write":
                deeds.made.setdefault(use.place, ran.step)
            yield use


def _started(ran: Ran, node: ast.Call, deeds: Deeds) -> None:
    """A command that Python code starts."""
    commands = _constant_commands(node.args[0], ran.command.cwd) if node.args else []
    for command in commands:
        inner = Ran(step=ran.step, command=command, act=ran.act)
        deeds.commands.append(inner)
        by_command(inner, deeds, {})


def submitted_commands(deeds: Deeds) -> Iterator[Ran]:
    """Commands that submitted sources start, as far as their texts are constants; the step is -1."""
    for source in deeds.code_in_patch:
        for call in source.code.calls:
            if call.name.rpartition(".")[2] in _STARTS and call.node.args:
                line = source.code.line(call.node)
                for command in _constant_commands(call.node.args[0], ""):
                    yield Ran(step=source.step, command=replace(command, text=line), act=Act(name="", command=line))


def _constant_commands(first: ast.expr, cwd: str) -> list[Command]:
    if isinstance(first, ast.List | ast.Tuple):
        words = [constant_text(item) or "?" for item in first.elts]
        return [Command(argv=tuple(words), text=" ".join(words), cwd=cwd)]
    text = constant_text(first)
    return parse_shell(text, cwd) if text is not None else []


def _path_text(node: ast.AST) -> str | None:
    """The path that an expression of constants is: "a", Path("a"), Path("a") / "b", os.path.join("a", "b"), f"a/{b}"."""
    if (text := constant_text(node)) is not None:
        return text
    match node:
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            first, second = _path_text(left), _path_text(right)
            return None if first is None else f"{first}/{second or '*'}"
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[_, *_] as arguments) if name in _PATH_CALLS:
            texts = [_path_text(argument) for argument in arguments]
            return None if not any(texts) else "/".join(text or "*" for text in texts)
    return None


def _mode(node: ast.Call) -> str:
    """Of a call of open: open(path, mode), or path.open(mode)."""
    method = isinstance(node.func, ast.Attribute) and not (
        isinstance(node.func.value, ast.Name) and node.func.value.id in ("io", "os", "codecs", "builtins")
    )
    position = 0 if method else 1
    second = node.args[position] if len(node.args) > position else next((key.value for key in node.keywords if key.arg == "mode"), None)
    return constant_text(second) or "r"
