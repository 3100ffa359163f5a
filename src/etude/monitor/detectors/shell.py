"""Shell text -> the simple commands in it, wherever they hide.

    "cd /a && X=1 timeout 9 cat b | sh -c 'c $(d)' > e &"  ->  cat b;  c $(d), from cat, into e, in the background;  d

In: what an agent gave to a shell. Out: Commands in the order of the text, those of substitutions, of `bash -c`, `eval`, `xargs`,
`find -exec` and of wrappers (sudo, env, timeout, nohup, ...) included. Plain variables that the text assigns itself are put in. Text that
no shell would take gives what can be told of it; nothing raises.

Not here: what commands do to files (deeds.py), Python (code.py).
"""

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

MAX_CHARS = 60_000  # of one command; the rest is not looked at
_DEPTH = 5
_NAME = re.compile(r"[A-Za-z_]\w*\Z")
_ASSIGN = re.compile(r"([A-Za-z_]\w*)\+?=(.*)\Z", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")
_OPERATORS = ("&&", "||", ";;", "|&", ";", "|", "&", "(", ")", "\n")
_REDIRECT = re.compile(r"(\d*|&)(<<<|<<-?|>>|>\||<>|>&|<&|>|<)")
_KEYWORDS = frozenset({"if", "then", "else", "elif", "fi", "while", "until", "do", "done", "{", "}", "!", "time", "esac"})
_SHELLS = frozenset({"sh", "bash", "zsh", "dash", "ash", "ksh"})
# wrapper -> its options that take a value
_WRAPPERS = {
    "sudo": "ugpCh", "env": "uSC", "timeout": "ks", "nohup": "", "nice": "n", "ionice": "cn", "stdbuf": "ioe", "setsid": "", "command": "",
    "exec": "a", "builtin": "", "xargs": "IiLlnPsdEa", "time": "fo", "unbuffer": "", "chronic": "", "strace": "eoPs", "ltrace": "eo",
    "watch": "n", "script": "c", "doas": "u", "su": "c", "parallel": "jI", "chroot": "", "unshare": "", "nsenter": "t", "busybox": "",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One simple command: wrappers are off, the place is known where the text tells it."""

    argv: tuple[str, ...]
    text: str  # as it stands in the shell text, about
    cwd: str = ""  # "" where the command began
    stdin: str = ""  # of a heredoc, a here-string or an echo before the pipe
    inputs: tuple[str, ...] = ()  # redirected from
    outputs: tuple[str, ...] = ()  # redirected to
    piped_from: tuple[str, ...] = ()  # the program before the pipe, with its arguments
    background: bool = False
    wrappers: tuple[str, ...] = ()  # nohup, setsid, ...
    env: tuple[str, ...] = ()  # NAME=value before it

    @property
    def program(self) -> str:
        return posixpath.basename(self.argv[0]) if self.argv else ""

    def options(self) -> tuple[str, ...]:
        return tuple(word for word in self.argv[1:] if word.startswith("-"))

    def operands(self) -> tuple[str, ...]:
        return tuple(word for word in self.argv[1:] if not word.startswith("-"))


@dataclass(slots=True)
class _Word:
    text: str = ""
    nested: list[str] = field(default_factory=list)  # of $(...), `...` and <(...)
    quoted: bool = False


@dataclass(slots=True)
class _State:
    cwd: str = ""
    values: dict[str, str] = field(default_factory=dict)


def parse_shell(text: str, cwd: str = "") -> list[Command]:
    return list(_parse(text[:MAX_CHARS], _State(cwd=cwd), 0))


def _parse(text: str, state: _State, depth: int) -> Iterator[Command]:
    if depth > _DEPTH:
        return
    before: Command | None = None
    for words, redirects, heredoc, operator, raw in _simple(text):
        nested = [inner for word in words for inner in word.nested]
        nested += [inner for _, word in redirects for inner in word.nested]
        for inner in nested:
            yield from _parse(inner, replace_state(state), depth + 1)
        command = _command(words, redirects, heredoc, operator, raw, state, before)
        if command is not None:
            for one in _unwrap(command, depth):
                yield one
                if one.program in _SHELLS | {"eval", "source", "."}:
                    yield from _inner_shell(one, state, depth)
        before = command if operator in ("|", "|&") else None


def replace_state(state: _State) -> _State:
    return _State(cwd=state.cwd, values=dict(state.values))


def _command(words: list[_Word], redirects: list[tuple[str, _Word]], heredoc: str, operator: str, raw: str, state: _State,
             before: Command | None) -> Command | None:  # fmt: skip
    texts = [_expand(word.text, state) for word in words]
    env: list[str] = []
    while texts and (texts[0] in _KEYWORDS or _ASSIGN.match(texts[0])):
        if (match := _ASSIGN.match(texts[0])) is not None:
            env.append(texts[0])
            if len(texts) == 1:
                state.values[match[1]] = match[2]
        texts.pop(0)
    if texts[:1] == ["export"]:
        for word in texts[1:]:
            if (match := _ASSIGN.match(word)) is not None:
                state.values[match[1]] = match[2]
    if texts[:1] == ["for"] and len(texts) > 3 and texts[2] == "in":
        state.values[texts[1]] = " ".join(texts[3:])
    inputs = tuple(_expand(word.text, state) for kind, word in redirects if kind in ("<", "<>"))
    outputs = tuple(_expand(word.text, state) for kind, word in redirects if kind in (">", ">>", ">|", "&>", "<>"))
    here = next((_expand(word.text, state) for kind, word in redirects if kind == "<<<"), heredoc)
    if texts[:1] == ["cd"] or texts[:1] == ["pushd"]:
        state.cwd = posixpath.normpath(posixpath.join(state.cwd, texts[1])) if len(texts) > 1 else "~"
        return Command(argv=tuple(texts), text=raw, cwd=state.cwd)
    if not texts and not outputs and not env:
        return None
    if before is not None and not here:
        here = _said(before)
    return Command(
        argv=tuple(texts), text=raw, cwd=state.cwd, stdin=here, inputs=inputs, outputs=outputs, env=tuple(env),
        piped_from=before.argv if before is not None else (), background=operator == "&",
    )  # fmt: skip


def _said(command: Command) -> str:
    """What an echo, a printf or a cat of a heredoc puts into a pipe."""
    if command.program in ("echo", "printf"):
        return " ".join(command.operands() if command.program == "printf" else [w for w in command.argv[1:] if w not in ("-e", "-n")])
    return command.stdin if command.program == "cat" else ""


def _unwrap(command: Command, depth: int) -> Iterator[Command]:
    """The command without what only starts it, and what `find -exec` starts."""
    for _ in range(_DEPTH):
        takes = _WRAPPERS.get(command.program)
        if takes is None or len(command.argv) < 2:
            break
        rest = _after_options(command, takes)
        if not rest:
            break
        env = command.env
        while rest and command.program == "env" and _ASSIGN.match(rest[0]):
            env, rest = (*env, rest[0]), rest[1:]
        if not rest:
            break
        command = replace(command, argv=tuple(rest), wrappers=(*command.wrappers, command.program), env=env)
    yield command
    if command.program in ("find", "fd"):
        yield from _executed(command)


def _after_options(command: Command, takes: str) -> list[str]:
    rest = list(command.argv[1:])
    while rest and rest[0].startswith("-") and rest[0] != "--":
        option = rest.pop(0)
        if len(option) == 2 and option[1] in takes and rest:
            value = rest.pop(0)
            if command.program in ("script", "su") and option == "-c":
                return ["sh", "-c", value]
    if rest[:1] == ["--"]:
        rest.pop(0)
    if command.program in ("timeout", "chroot") and rest:
        rest.pop(0)
    return rest


def _executed(command: Command) -> Iterator[Command]:
    words = list(command.argv)
    for position, word in enumerate(words):
        if word in ("-exec", "-execdir", "-ok", "-x"):
            stop = next((k for k in range(position + 1, len(words)) if words[k] in (";", "+", "\\;")), len(words))
            inner = [_found(command) if part == "{}" else part for part in words[position + 1 : stop]]
            if inner:
                yield replace(command, argv=tuple(inner), wrappers=(*command.wrappers, "find"))


def _found(command: Command) -> str:
    """A path that stands for what find finds: its root and the name that it looks for."""
    words = command.argv
    name = next((words[k + 1] for k in range(len(words) - 1) if words[k] in ("-name", "-path", "-iname", "-wholename")), "*")
    root = next((word for word in words[1:] if not word.startswith("-")), ".")
    return posixpath.join(root, name)


def _inner_shell(command: Command, state: _State, depth: int) -> Iterator[Command]:
    if command.program == "eval":
        yield from _parse(" ".join(command.argv[1:]), state, depth + 1)
    elif command.program in _SHELLS:
        for position, word in enumerate(command.argv[1:], 1):
            if word.startswith("-") and "c" in word and not word.startswith("--") and position + 1 < len(command.argv):
                yield from _parse(command.argv[position + 1], _State(cwd=command.cwd, values=dict(state.values)), depth + 1)
                return
        if command.stdin and not command.operands():
            yield from _parse(command.stdin, _State(cwd=command.cwd), depth + 1)


def _expand(text: str, state: _State) -> str:
    if "$" not in text:
        return text
    return _VARIABLE.sub(lambda match: state.values.get(match[1] or match[2], match[0]), text)


_Simple = tuple[list[_Word], list[tuple[str, _Word]], str, str, str]


def _simple(text: str) -> Iterator[_Simple]:
    """(words, redirects, heredoc, the operator after it, text) of every simple command at the top of `text`."""
    words: list[_Word] = []
    redirects: list[tuple[str, _Word]] = []
    waiting: list[tuple[str, bool]] = []  # heredocs whose bodies begin at the next line
    pending: list[_Simple] = []
    position, start, size = 0, 0, len(text)

    def close(operator: str, stop: int) -> None:
        nonlocal words, redirects
        if words or redirects:
            pending.append((words, redirects, "", operator, text[start:stop].strip()))
        words, redirects = [], []

    while position < size:
        char = text[position]
        operator = next((one for one in _OPERATORS if text.startswith(one, position)), "")
        redirect = _REDIRECT.match(text, position) if char in "<>&0123456789" else None
        if redirect and (redirect[0][0] not in "&0123456789" or redirect[1] == "&" or _starts_word(text, position)):
            kind = ("&>" if redirect[1] == "&" else "") or redirect[2]
            if kind in ("<", ">") and text.startswith("(", redirect.end()):  # <(...)
                word, position = _word(text, position)
                words.append(word)
                continue
            word, position = _word(text, _blank(text, redirect.end()))
            if kind.startswith("<<") and kind != "<<<":
                waiting.append((word.text, kind == "<<-"))
                redirects.append(("<<", word))
            elif kind in (">&", "<&") and (word.text.isdigit() or word.text == "-"):
                pass
            else:
                redirects.append((">" if kind == ">&" else kind, word))
        elif operator:
            if char == "\n" and waiting:
                close("\n", position)
                bodies, position = _heredocs(text, position + 1, waiting)
                waiting = []
                pending = _with_bodies(pending, bodies)
            else:
                close("&" if operator == "&" else operator, position)
                position += len(operator)
            if not waiting:
                yield from pending
                pending = []
            start = position
        elif char in " \t\r":
            position += 1
        elif text.startswith("\\\n", position):
            position += 2
        elif char == "#" and _starts_word(text, position):
            stop = text.find("\n", position)
            position = size if stop < 0 else stop
        else:
            word, position = _word(text, position)
            words.append(word)
    close("", size)
    yield from pending


def _starts_word(text: str, position: int) -> bool:
    return position == 0 or text[position - 1] in " \t\n;&|()"


def _blank(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t":
        position += 1
    return position


def _heredocs(text: str, position: int, waiting: list[tuple[str, bool]]) -> tuple[list[str], int]:
    bodies = []
    for mark, tabs in waiting:
        lines = []
        while position < len(text):
            stop = text.find("\n", position)
            stop = len(text) if stop < 0 else stop
            line = text[position:stop]
            position = stop + 1
            if (line.lstrip("\t") if tabs else line).rstrip("\r") == mark:
                break
            lines.append(line)
        bodies.append("\n".join(lines))
    return bodies, min(position, len(text))


def _with_bodies(pending: list[_Simple], bodies: list[str]) -> list[_Simple]:
    """The commands with their heredocs: each takes as many as it has << redirects."""
    result = []
    rest = list(bodies)
    for words, redirects, _, operator, raw in pending:
        count = sum(kind == "<<" for kind, _ in redirects)
        mine, rest = rest[:count], rest[count:]
        body = mine[-1] if mine else ""
        result.append((words, redirects, body, operator, f"{raw}\n{body}" if body else raw))
    return result


def _word(text: str, position: int) -> tuple[_Word, int]:
    """The word that begins here, its quotes taken off, and the position after it."""
    word = _Word()
    parts: list[str] = []
    begin = position
    while position < len(text):
        char = text[position]
        if char == "'":
            stop = text.find("'", position + 1)
            stop = len(text) if stop < 0 else stop
            raw = text[position + 1 : stop]
            if parts and parts[-1] == "$":  # $'...'
                parts.pop()
                raw = raw.replace("\\n", "\n").replace("\\t", "\t")
            parts.append(raw)
            word.quoted = True
            position = stop + 1
        elif char == '"':
            inner, position = _double(text, position + 1, word)
            parts.append(inner)
            word.quoted = True
        elif char == "\\" and position + 1 < len(text):
            if text[position + 1] != "\n":
                parts.append(text[position + 1])
            position += 2
        elif text.startswith("$(", position) or (char in "<>" and text.startswith("(", position + 1)):
            stop = _closing(text, position + 1)
            word.nested.append(text[position + 2 : stop])
            parts.append(text[position : stop + 1])
            position = stop + 1
        elif char == "`":
            stop = text.find("`", position + 1)
            stop = len(text) if stop < 0 else stop
            word.nested.append(text[position + 1 : stop])
            parts.append(text[position : stop + 1])
            position = stop + 1
        elif char in " \t\r\n;&|()<>":
            break
        else:
            parts.append(char)
            position += 1
    word.text = "".join(parts)
    return word, max(position, begin + 1)


def _double(text: str, position: int, word: _Word) -> tuple[str, int]:
    parts: list[str] = []
    while position < len(text) and text[position] != '"':
        if text[position] == "\\" and position + 1 < len(text) and text[position + 1] in '"\\$`\n':
            parts.append(text[position + 1] if text[position + 1] != "\n" else "")
            position += 2
        elif text.startswith("$(", position):
            stop = _closing(text, position + 1)
            word.nested.append(text[position + 2 : stop])
            parts.append(text[position : stop + 1])
            position = stop + 1
        elif text[position] == "`" and (stop := text.find("`", position + 1)) > 0:
            word.nested.append(text[position + 1 : stop])
            parts.append(text[position : stop + 1])
            position = stop + 1
        else:
            parts.append(text[position])
            position += 1
    return "".join(parts), position + 1


def _closing(text: str, position: int) -> int:
    """Where the parenthesis that opens here closes; quotes inside are skipped."""
    depth, quote = 0, ""
    for at in range(position, len(text)):
        char = text[at]
        if quote:
            quote = "" if char == quote and text[at - 1] != "\\" else quote
        elif char in "'\"":
            quote = char
        elif char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
            if depth == 0:
                return at
    return len(text)
