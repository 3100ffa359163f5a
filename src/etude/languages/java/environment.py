"""The environment folder of a Java project: the JDK, JUnit, the jars that its code needs, our harness, compiled.

In: a Project; out: `out/<digest>/` with jdk/, lib/ and etude/, and its Environment record. Jars are those of this machine (jars.py); the
digest is that of the JDK's version, of the jars' bytes, of the harness and of the project's layout. The JDK is stored once per `out`.

Not here: how the tests are started (launch.py).
"""

import hashlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from etude.errors import UserError
from etude.languages.java import jars
from etude.languages.java.jdk import Jdk, copy_jdk, find_jdk, link_tree
from etude.languages.java.project import own_classes
from etude.languages.protocol import Project
from etude.sandbox.protocol import ENV
from etude.types import Environment

HARNESS = Path(__file__).with_name("harness")
SERVICE = "META-INF/services/org.junit.jupiter.api.extension.Extension"
CLASSES = "/tmp/etude-classes"  # harness/Build.java
FLAGS = (
    "-Xmx700m", "-Xss4m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xshare:auto", "-Djava.awt.headless=true",
    "-Dfile.encoding=UTF-8", "-Duser.language=en", "-Duser.country=US", "-Duser.timezone=UTC",
)  # fmt: skip
OPENED = (
    "java.lang",
    "java.lang.reflect",
    "java.util",
    "java.util.concurrent",
    "java.io",
    "java.net",
    "java.text",
    "java.time",
    "java.math",
)
COMPILE_S = 300.0


def make_environment(project: Project, folder: Path, out: Path) -> Environment:
    jdk = find_jdk()
    junit = jars.junit()
    found, _ = jars.resolve(project.requirements)
    needed = [jar for jar in found if jar not in junit]
    _refuse_own(project, (*junit, *needed))
    out.mkdir(parents=True, exist_ok=True)
    settings = _settings(project)
    harness = [file.read_bytes() for file in _harness()]
    of_jars = [f"{jar.name} {hashlib.sha256(jar.read_bytes()).hexdigest()}" for jar in (*junit, *needed)]
    text = "\n".join((jdk.version, settings, *of_jars, *_arguments(settings, junit, needed).values()))
    digest = hashlib.sha256(b"\0".join((text.encode(), *harness))).hexdigest()
    if not (out / digest).is_dir():
        new = Path(tempfile.mkdtemp(prefix=".new.", dir=out))
        try:
            _fill(new, jdk, junit, needed, settings, out)
            new.chmod(0o755)
            if not (out / digest).is_dir():
                new.rename(out / digest)
        finally:
            shutil.rmtree(new, ignore_errors=True)
    names = tuple(sorted(jars.version_of(jar) for jar in (*junit, *needed)))
    return Environment(python=f"java {jdk.version}", requirements=names, digest=digest, runner=project.runner)


def runtime() -> tuple[Path, ...]:
    return tuple(sorted(path for path in find_jdk().home.rglob("*") if path.is_file()))


def _fill(new: Path, jdk: Jdk, junit: Iterable[Path], needed: Iterable[Path], settings: str, out: Path) -> None:
    link_tree(copy_jdk(jdk, out), new / "jdk")
    (new / "lib").mkdir()
    for jar in (*junit, *needed):
        shutil.copyfile(jar, new / "lib" / jar.name)
    classes = new / "etude" / "classes"
    (classes / SERVICE).parent.mkdir(parents=True)
    (classes / SERVICE).write_text("etude_.Before\n")
    (new / "etude" / "settings.json").write_text(settings)
    for name, text in _arguments(settings, junit, needed).items():
        (new / "etude" / name).write_text(text)
    argv = [str(jdk.home / "bin" / "javac"), "-proc:none", "-nowarn", "-cp", f"{new / 'lib'}/*", "-d", str(classes), *map(str, _harness())]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=COMPILE_S, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        first = next((line for line in (done.stdout + done.stderr).splitlines() if "error" in line), "no reason given")
        raise UserError(f"JUnit of this machine does not fit, its versions 4.13 and 5.9 or later are needed: {first.rpartition('/')[2]}")
    for place in (new / "etude").rglob("*"):
        place.chmod(0o755 if place.is_dir() else 0o644)
    for place in (new / "lib", new / "etude"):
        place.chmod(0o755)


def _arguments(settings: str, junit: Iterable[Path], needed: Iterable[Path]) -> dict[str, str]:
    """Files of arguments for java. Our classes and JUnit come first on the path, so that no code of the project replaces them."""
    told = json.loads(settings)
    ours = [f"{ENV}/etude/classes", *(f"{ENV}/lib/{jar.name}" for jar in (*junit, *needed))]
    theirs = [CLASSES, *told["resources"], *told["tests"], *told["sources"]]
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED]
    return {
        "build.args": "\n".join((*FLAGS, "-cp", ":".join(ours), "")),
        "run.args": "\n".join((*FLAGS, *opened, "-ea", "-cp", ":".join((*ours, *theirs)), "")),
    }


def _settings(project: Project) -> str:
    told = project.settings
    found: dict[str, list[str]] = {name: told.get(name, "").split("\n") for name in ("sources", "tests", "resources", "left_out")}
    found = {name: [each for each in lines if each] for name, lines in found.items()}
    found["options"] = ["-encoding", told.get("encoding", "UTF-8")]
    return json.dumps(found, sort_keys=True)


def _refuse_own(project: Project, needed: Iterable[Path]) -> None:
    """A published copy of the project among its dependencies would be the feature, ready to be taken; and JUnit's classes come first."""
    own = own_classes(project)
    for jar in needed:
        if both := own & jars.classes_of(jar):
            raise UserError(
                f"what {project.name} needs holds a published copy of it: {jar.name} has {min(both)}; choose another repository"
            )


def _harness() -> list[Path]:
    return sorted(HARNESS.glob("*.java"))
