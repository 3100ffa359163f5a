"""Fill an environment folder: the runner (pytest) and what a repository's tests need, without running foreign set-up code.

In: requirements; out: `out/<digest>/`, packages with bytecode, to be put on the import path, and its Environment record.
pytest and its dependencies are copied from the distributions that are installed beside etude, so they have the locked versions
and need no network. Everything else comes from pip as wheels only. A copy of the repository's own package, which a test's requirement
may bring along, is taken out again: only the tree's can be imported. Bytecode is of the unchecked kind: it holds whatever the
times of the files are, and imports need not look at the sources.

    out/<digest>/        the packages
    out/<digest>.lock    every wheel with its sha256, as pip reads it (--require-hashes)
    out/.wheels/         the wheels themselves, so that `restore_environment` makes the folder again without a network

Not here: where the folders lie (store.py).
"""

import base64
import hashlib
import importlib.util
import json
import marshal
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from pathlib import Path

from etude.errors import UserError
from etude.types import Environment

RUNNER = "pytest"
WHEELS = ".wheels"
PYC_HEADER_BYTES = 16  # PEP 552: magic, flags, then time and size or a hash
UNCHECKED = (1).to_bytes(4, "little")  # flags: a hash, not compared with the source


def make_environment(requirements: Sequence[str], out: Path, *, under_test: Sequence[str] = ()) -> Environment:
    """The environment for `requirements`, made unless it is there. `under_test`: import names of the repository itself.

    UserError where a requirement cannot be had as wheels, or the repository holds what the runner itself imports.
    """
    refuse_runner_packages(under_test)
    runner = runner_distributions()
    names = {_normal(each.name) for each in runner}
    wanted = [text for text in requirements if _normal(_requirement_name(text)) not in names]
    out.mkdir(parents=True, exist_ok=True)
    if not wanted and not runner_names() & set(under_test):
        environment = _record(runner)
        if (out / environment.digest).is_dir():
            return environment
    wheels = _download(wanted, runner, out / WHEELS) if wanted else []
    return _fill(wheels, runner, out, under_test)


def restore_environment(environment: Environment, out: Path, *, under_test: Sequence[str] = (), fetch: bool = False) -> None:
    """Make the folder of an environment again from its lock and the wheels that were kept; no network is needed.

    `fetch`: wheels that are gone come from the package index, by their hash. UserError where the lock is gone, a wheel is gone or changed,
    or what comes out is not the environment, as with another version of pytest.
    """
    lock = out / f"{environment.digest}.lock"
    runner = runner_distributions()
    more = sorted(set(environment.requirements) - set(_record(runner).requirements))
    if not lock.is_file() and {text.partition("==")[0] for text in more} - {_normal(each.name) for each in runner}:
        raise UserError(f"{lock} is missing, which names the wheels of {', '.join(more[:3])}; put it back, or build the tasks again")
    locked = re.findall(r"^# (\S+)\n.*--hash=sha256:(\w+)", lock.read_text("utf-8"), re.MULTILINE) if lock.is_file() else []
    wheels = [out / WHEELS / name for name, _ in locked]
    if fetch and not all(wheel.is_file() for wheel in wheels):
        _fetch(lock, out / WHEELS)
    for wheel, (_, wanted) in zip(wheels, locked, strict=True):
        if not wheel.is_file() or _sha256(wheel) != wanted:
            raise UserError(f"{wheel} is missing or was changed; build the tasks again, or put back the file with sha256 {wanted}")
    made = _fill(wheels, runner, out, under_test)
    if made.digest != environment.digest:
        other = sorted(set(made.requirements) ^ set(environment.requirements))
        raise UserError(
            f"the environment cannot be made here, as these differ: {', '.join(other)}; install the same pytest, or build again"
        )


def _fetch(lock: Path, kept: Path) -> None:
    """The lock's wheels from pip, in the folder `kept`. What pip cannot have is told by what is missing then."""
    with tempfile.TemporaryDirectory() as folder:
        options = ("--only-binary", ":all:", "--no-deps", "--require-hashes", "--find-links", str(kept))
        kept.mkdir(exist_ok=True)
        _pip("download", *options, "--dest", folder, "-r", str(lock))
        _keep(sorted(Path(folder).iterdir()), kept)


def _fill(wheels: Sequence[Path], runner: Sequence[Distribution], out: Path, under_test: Sequence[str]) -> Environment:
    new = Path(tempfile.mkdtemp(prefix=".new.", dir=out))
    try:
        if wheels:
            _install(wheels, new)
        for each in runner:
            _copy(each, new)
        _drop_copies(new, set(under_test))
        environment = _record(distributions(path=[str(new)]))
        _compile(new)
        new.chmod(0o755)
        if wheels:
            _write_lock(wheels, out / f"{environment.digest}.lock")
        try:
            new.rename(out / environment.digest)
        except OSError:
            if not (out / environment.digest).is_dir():
                raise
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return environment


def refuse_runner_packages(names: Iterable[str]) -> None:
    """UserError if one of these import names is the runner itself, or too large a part of it to be carried."""
    both = sorted({"pytest", "_pytest", "pygments"} & set(names))
    if both:
        raise UserError(f"{', '.join(both)}: this runs the tests, so tasks cannot be cut from it; choose another repository")


@cache
def carried_sources() -> str:
    """What pytest imports of other projects, for environments where it is left out: base64 of zlib of JSON {module: [is package, source]}.

    A repository that is one of these must not find its own code on the disk, so it travels with each run (child.py).
    """
    found: dict[str, tuple[bool, str]] = {}
    for each in runner_distributions():
        for file in each.files or () if each.name not in (RUNNER, "pygments") else ():
            if file.suffix == ".py" and ".." not in file.parts:
                name = ".".join(file.with_suffix("").parts)
                text = Path(str(file.locate())).read_text("utf-8")
                found[name.removesuffix(".__init__")] = (file.name == "__init__.py", text)
    return base64.b64encode(zlib.compress(json.dumps(dict(sorted(found.items()))).encode(), 9)).decode()


def runner_distributions() -> list[Distribution]:
    """pytest and all that it requires here, sorted by name."""
    from packaging.requirements import Requirement  # comes with pytest

    found: dict[str, Distribution] = {}
    todo = [RUNNER]
    while todo:
        name = todo.pop()
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            raise UserError(f"{name} is not installed beside etude, but runs the tests; install it: pip install {name}") from None
        for text in found[name].requires or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                todo.append(_normal(requirement.name))
    return [found[name] for name in sorted(found)]


@cache
def runner_names() -> frozenset[str]:
    """The import names of the runner and of all that it requires."""
    return frozenset(name for each in runner_distributions() for name in import_names(each))


def import_names(each: Distribution) -> set[str]:
    """The top-level modules and packages of an installed distribution."""
    parts = (file.parts for file in each.files or ())
    first = {path[0] for path in parts if path and ".." not in path and not path[0].endswith((".dist-info", ".egg-info"))}
    return {name.removesuffix(".py") for name in first if name != "__pycache__" and (name.endswith(".py") or "." not in name)}


def _record(found: Iterable[Distribution]) -> Environment:
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    requirements = tuple(sorted(f"{_normal(each.name)}=={each.version}" for each in found))
    digest = hashlib.sha256("\n".join((python, *requirements)).encode()).hexdigest()
    return Environment(python=python, requirements=requirements, digest=digest)


def _download(wanted: Sequence[str], runner: Sequence[Distribution], kept: Path) -> list[Path]:
    """The wheels of the requirements and of all that they need, but not the runner's, in the folder `kept`."""
    with tempfile.TemporaryDirectory() as folder:
        pins, new = Path(folder, "constraints.txt"), Path(folder, "wheels")
        pins.write_text("".join(f"{each.name}=={each.version}\n" for each in runner))
        done = _pip("download", "--only-binary", ":all:", "--constraint", str(pins), "--dest", str(new), "--", *wanted)
        if done.returncode:
            lines = (
                [line for line in done.stderr.splitlines() if line.startswith("ERROR: ")] or done.stderr.splitlines() or ["no reason given"]
            )
            raise UserError(f"pip could not install {', '.join(wanted)} as wheels: {lines[-1].removeprefix('ERROR: ')}")
        kept.mkdir(exist_ok=True)
        names = {_normal(each.name) for each in runner}
        return _keep([wheel for wheel in sorted(new.iterdir()) if _normal(wheel.name.partition("-")[0]) not in names], kept)


def _keep(wheels: Iterable[Path], kept: Path) -> list[Path]:
    for wheel in wheels:
        beside = Path(tempfile.mkdtemp(prefix=".new.", dir=kept))  # whole or not at all
        shutil.copyfile(wheel, beside / wheel.name).rename(kept / wheel.name)
        beside.rmdir()
    return [kept / wheel.name for wheel in wheels]


def _install(wheels: Sequence[Path], target: Path) -> None:
    done = _pip("install", "--no-index", "--no-deps", "--no-compile", "--target", str(target), "--", *map(str, wheels))
    if done.returncode:
        raise UserError(f"pip could not install the wheels it had: {(done.stderr.splitlines() or ['no reason given'])[-1]}")
    for name in ("bin", "share", "etc", "include"):
        if (target / name).is_dir() and not (target / name / "__init__.py").exists():
            shutil.rmtree(target / name)


def _pip(verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", verb, "--quiet", "--disable-pip-version-check", "--no-input", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _drop_copies(folder: Path, under_test: set[str]) -> None:
    """Packages of the repository itself, the runner's among them. A distribution that only shares a namespace with it stays."""
    for each in list(distributions(path=[str(folder)])):
        files = [file for file in each.files or () if ".." not in file.parts]
        tops = {str(file) for file in files}
        mine = any(f"{name}.py" in tops or f"{name}/__init__.py" in tops for name in under_test)
        if mine:
            places = {folder / file for file in files}
            places |= {Path(importlib.util.cache_from_source(str(place))) for place in places if place.suffix == ".py"}
            for place in places:
                place.unlink(missing_ok=True)
            for parent in sorted({parent for place in places for parent in place.parents}, key=lambda path: -len(path.parts)):
                if folder in parent.parents and parent.is_dir() and not any(parent.iterdir()):
                    parent.rmdir()


def _write_lock(wheels: Sequence[Path], place: Path) -> None:
    lines = []
    for wheel in wheels:
        name, version = wheel.name.split("-")[:2]
        lines.append(f"# {wheel.name}\n{_normal(name)}=={version} --hash=sha256:{_sha256(wheel)}\n")
    beside = place.with_name(f"{place.name}.{os.getpid()}.new")
    beside.write_text("".join(lines), "utf-8")
    beside.rename(place)


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _copy(each: Distribution, target: Path) -> None:
    for file in each.files or ():
        source = Path(str(file.locate()))
        if ".." in file.parts or "__pycache__" in file.parts or not source.is_file():
            continue
        place = target / file
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, place)
        if source.suffix == ".py":
            _reuse_bytecode(source, place)


def _compile(folder: Path) -> None:
    """Bytecode for what has none yet. A file that this Python cannot compile stays as it is."""
    for source in folder.rglob("*.py"):
        place = Path(importlib.util.cache_from_source(str(source)))
        if place.exists():
            continue
        data = source.read_bytes()
        try:
            code = compile(data, str(source.relative_to(folder)), "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            continue
        _write_bytecode(place, data, marshal.dumps(code))


def _reuse_bytecode(source: Path, place: Path) -> None:
    """pip has compiled most files already: take their code if it belongs to this very source."""
    try:
        old = Path(importlib.util.cache_from_source(str(source))).read_bytes()
    except OSError:
        return
    status = source.stat()
    stamp = (int(status.st_mtime) & 0xFFFFFFFF).to_bytes(4, "little") + (status.st_size & 0xFFFFFFFF).to_bytes(4, "little")
    if old[:PYC_HEADER_BYTES] == importlib.util.MAGIC_NUMBER + bytes(4) + stamp:
        _write_bytecode(Path(importlib.util.cache_from_source(str(place))), source.read_bytes(), old[PYC_HEADER_BYTES:])


def _write_bytecode(place: Path, source: bytes, code: bytes) -> None:
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(importlib.util.MAGIC_NUMBER + UNCHECKED + importlib.util.source_hash(source) + code)


def _requirement_name(text: str) -> str:
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        raise UserError(f"requirement {text!r}: {str(error).splitlines()[0]}") from None
    if requirement.url is not None and not requirement.url.endswith(".whl"):  # pip would run its set-up code, --only-binary or not
        raise UserError(f"requirement {text!r}: only a wheel can be given by its address; give a name, or the address of a .whl file")
    return requirement.name


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
