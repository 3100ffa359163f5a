"""The JDK of this machine: where it is, which version, and a copy of what compiling and running need.

In: nothing; out: its home. JAVA_HOME is asked first, then the javac on the search path. The copy has no links: Debian keeps a JDK's
configuration in /etc, which a sandbox does not show.

Not here: what else an environment holds (environment.py).
"""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from etude.errors import UserError

MIN_VERSION = 11
REMEDY = "install it by: apt-get install --no-install-recommends default-jdk-headless junit4 junit5"
LEFT_OUT = ("jmods", "man", "demo", "include", "legal", "docs", "src.zip", "release")


@dataclass(frozen=True, slots=True, kw_only=True)
class Jdk:
    home: Path
    version: str  # "17.0.15+6"


@cache
def find_jdk() -> Jdk:
    return jdk_of(os.environ.get("JAVA_HOME"), os.environ.get("PATH", os.defpath))


def jdk_of(java_home: str | None, path: str) -> Jdk:
    """UserError, with what to install, where there is none."""
    javac = shutil.which("javac", path=f"{java_home}/bin" if java_home else path)
    if javac is None:
        raise UserError(f"Java needs a JDK{f', and JAVA_HOME={java_home} has no bin/javac' if java_home else ''}; {REMEDY}")
    home = Path(os.path.realpath(javac)).parent.parent
    done = subprocess.run([str(home / "bin" / "java"), "-Xinternalversion"], capture_output=True, text=True, check=False)
    match = re.search(r"\((\d+[\w.+-]*)\)", done.stdout)
    version = match[1] if match else "0"
    if int(re.match(r"\d+", version)[0]) < MIN_VERSION:  # type: ignore[index]
        raise UserError(f"{home} is a JDK of version {version}, and {MIN_VERSION} is needed; {REMEDY}")
    return Jdk(home=home, version=version)


def copy_jdk(jdk: Jdk, out: Path) -> Path:
    """A copy of its own for all environments in `out`, made once."""
    shared = out / f".jdk-{jdk.version}"
    if not shared.is_dir():
        new = out / f".jdk-{jdk.version}.{os.getpid()}"
        shutil.rmtree(new, ignore_errors=True)
        shutil.copytree(jdk.home, new, ignore=shutil.ignore_patterns(*LEFT_OUT), ignore_dangling_symlinks=True)
        try:
            new.rename(shared)
        except OSError:  # somebody else was faster
            shutil.rmtree(new, ignore_errors=True)
    return shared


def link_tree(src: Path, dst: Path) -> None:
    """Hard links, copies where the file system has none."""
    shutil.copytree(src, dst, copy_function=_link)


def _link(src: str, dst: str) -> None:
    try:
        os.link(src, dst)
    except OSError:
        shutil.copy2(src, dst)
