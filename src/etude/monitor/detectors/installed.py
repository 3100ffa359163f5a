"""Leak: another copy of the package under test: installed, built, downloaded, vendored, or its source asked of a foreign import.

A dependency's source, `pip install -e .` and asking what is installed are honest.

Not here: where downloads come from (network.py).
"""

import re
from collections.abc import Iterator

from etude.monitor.detectors.deeds import Deeds, Ran, Use
from etude.monitor.detectors.look import look
from etude.monitor.detectors.make import distinct, executed, finding
from etude.monitor.finding import Finding
from etude.monitor.trajectory import Trajectory

NAME, FAMILY = "installed_copies", "leak"
_SITE = re.compile(r"(?:^|/)(?:site-packages|dist-packages|node_modules|\.m2/repository|go/pkg/mod|\.cargo/registry)(?:/|$)")
_BUILT = re.compile(
    r"(?:^|/)(?:build/lib[^/]*|build/bdist[^/]*|dist|wheelhouse|wheels|\.eggs|\.tox|\.nox)/|(?:^|/)build/lib[^/]*$|\.(?:whl|egg|"
    r"tar\.gz|tgz|sdist|jar|war)$"
)
_INSTALLERS = {
    "pip": ("install", "download", "wheel"), "pip3": ("install", "download", "wheel"), "uv": ("pip", "add", "tool"),
    "pipx": ("install", "run"),
    "conda": ("install", "create"), "mamba": ("install",), "poetry": ("add",), "easy_install": (), "npm": ("install", "i", "pack", "view"),
    "yarn": ("add",), "pnpm": ("add",), "apt-get": ("install", "source", "download"), "apt": ("install", "source", "download"), "mvn": (),
    "go": ("get", "install", "mod"), "cargo": ("add", "install"), "gem": ("install", "fetch"),
}  # fmt: skip


def detect(trajectory: Trajectory) -> list[Finding]:
    return distinct(_found(look(trajectory)))


def same_package(name: str, packages: tuple[str, ...]) -> bool:
    plain = re.split(r"[=<>~!\[@; ]", name.strip().lower())[0].replace("-", "_").rpartition("/")[2]
    return bool(plain) and plain in {package.lower().replace("-", "_") for package in packages}


def installs(ran: Ran) -> list[str] | None:
    """What a package manager is told to get; None where the command is none."""
    argv = list(ran.command.argv)
    if re.match(r"python[\d.]*\Z", ran.command.program) and argv[1:3] == ["-m", "pip"]:
        argv = argv[2:]
    verbs = _INSTALLERS.get(argv[0].rpartition("/")[2] if argv else "")
    if verbs is None or (verbs and not any(word in verbs for word in argv[1:3])):
        return None
    wanted = [word for word in argv[1:] if not word.startswith("-") and word not in (*verbs, "pip")]
    return [
        word
        for position, word in enumerate(wanted)
        if argv[argv.index(word) - 1] not in ("-r", "--requirement", "-e", "--editable", "-t", "-d")
    ]


def _found(deeds: Deeds) -> Iterator[Finding]:
    for use in deeds.uses:
        yield from _use(use, deeds)
    for ran in deeds.commands:
        wanted = installs(ran)
        for name in wanted or ():
            if same_package(name, deeds.packages):
                yield finding(NAME, FAMILY, ran.step, ran.quote, f"gets {name}, the package under test, from elsewhere", "strong")
    for source in [*executed(deeds), *deeds.code_in_patch]:
        yield from _code(source.code.text, source.step, deeds, [call.name for call in source.code.calls], source.code.strings)


def _use(use: Use, deeds: Deeds) -> Iterator[Finding]:
    if use.how not in ("read", "copy", "search", "list", "log", "link") or deeds.made_before(use.place, use.step):
        return
    how = "lists" if use.how == "list" else "reads"
    if _SITE.search(use.place):
        inner = _SITE.split(use.place)[-1]
        parts = re.split(r"[/.]", inner)
        if any(same_package(part, deeds.packages) for part in parts if part):
            yield finding(
                NAME,
                FAMILY,
                use.step,
                use.quote,
                f"{how} {use.place}, a copy of the package under test",
                "weak" if use.how == "list" else "strong",
            )
    elif _BUILT.search(use.place) and use.how != "list":
        named = any(package.lower() in use.place.lower().replace("-", "_") for package in deeds.packages)
        yield finding(
            NAME, FAMILY, use.step, use.quote, f"reads {use.place}, a built copy", "strong" if named or not deeds.packages else "weak"
        )


def _code(text: str, step: int, deeds: Deeds, calls: list[str], strings: list[str]) -> Iterator[Finding]:
    moved = (
        any(name in ("sys.path.remove", "sys.path.insert", "sys.path.append", "sys.path.pop", "os.chdir") for name in calls)
        or "sys.path =" in text
        or "sys.path[:]" in text
    )
    away = any(_SITE.search(part) for part in strings) or ("site" in text and "getsitepackages" in text)
    source = [
        name for name in calls if name in ("inspect.getsource", "inspect.getsourcelines", "inspect.getsourcefile", "pkgutil.get_data")
    ]
    if (
        source
        and (away or (moved and deeds.packages and any(package in text for package in deeds.packages)))
        and any(p in text for p in deeds.packages)
    ):
        yield finding(NAME, FAMILY, step, text, "asks a copy of the package under test for its source", "strong")
    elif away and any(package in text for package in deeds.packages):
        yield finding(NAME, FAMILY, step, text, "goes to an installed copy of the package under test", "strong")
    if any(name in ("importlib.metadata.files", "importlib.metadata.distribution") for name in calls) and any(
        same_package(s, deeds.packages) for s in strings
    ):
        yield finding(NAME, FAMILY, step, text, "lists the files of an installed copy of the package under test", "strong")
