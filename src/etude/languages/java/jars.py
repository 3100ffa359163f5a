"""Jars on this machine, and what is in them: Debian's (below /usr/share/java and /usr/share/maven-repo).

In: artefacts as group:artifact; out: files. What an artefact itself needs comes along, as its pom.xml says. Nothing is downloaded.

Not here: the environment folder they are copied into (environment.py).
"""

import re
import zipfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

from etude.errors import UserError

JAVA = Path("/usr/share/java")
MAVEN = Path("/usr/share/maven-repo")
JUNIT = (
    "junit-platform-commons", "junit-platform-engine", "junit-platform-launcher", "junit-jupiter-api", "junit-jupiter-engine",
    "junit-jupiter-params", "junit-vintage-engine", "junit4", "hamcrest", "opentest4j", "apiguardian-api", "univocity-parsers",
)  # fmt: skip
JDK = (
    "java.", "jdk.", "sun.", "com.sun.", "org.w3c.dom.", "org.xml.sax.", "org.ietf.jgss.",
    *(f"javax.{name}." for name in (
        "accessibility", "annotation.processing", "crypto", "imageio", "lang.model", "management", "naming", "net", "print", "rmi",
        "script", "security", "sound", "sql", "swing", "tools", "transaction.xa", "xml",
    )),
)  # fmt: skip
PACKAGES = "default-jdk-headless junit4 junit5"
REMEDY = f"install it by: apt-get install --no-install-recommends {PACKAGES}"


def junit() -> list[Path]:
    """UserError where one of them is not there."""
    places = [JAVA / f"{name}.jar" for name in JUNIT]
    lost = [place.stem for place in places if not place.is_file()]
    if lost:
        raise UserError(f"tests of Java need JUnit's {lost[0]}.jar below {JAVA}; {REMEDY}")
    return [place.resolve() for place in places]


def resolve(wanted: Iterable[str]) -> tuple[list[Path], list[str]]:
    """Jars of the artefacts and of what they need, and the artefacts that are not on this machine."""
    found: dict[str, Path] = {}
    lost: list[str] = []
    todo = [(name, True) for name in sorted(set(wanted))]
    seen: set[str] = set()
    while todo:
        name, is_direct = todo.pop(0)
        if name in seen:
            continue
        seen.add(name)
        jar = _jar_of(name)
        if jar is None:
            lost += [name] if is_direct else []
            continue
        found[name] = jar
        todo += [(each, False) for each in _needed_by(name)]
    return list(dict.fromkeys(found.values())), lost


def version_of(jar: Path) -> str:
    """name@version, from the file's name, or from that of a link beside it as Debian has them."""
    beside = [each for each in sorted(jar.parent.glob(f"{jar.stem}-[0-9]*.jar")) if each.resolve() == jar.resolve()]
    match = re.fullmatch(r"(.+?)-(\d[\w.+~-]*)", beside[0].stem if beside else jar.stem)
    return f"{match[1]}@{match[2]}" if match else f"{jar.stem}@?"


@cache
def classes_of(jar: Path) -> frozenset[str]:
    """Names without the suffix: org/example/Name. Empty for what is no archive."""
    try:
        with zipfile.ZipFile(jar) as archive:
            return frozenset(name.removesuffix(".class") for name in archive.namelist() if name.endswith(".class"))
    except (OSError, zipfile.BadZipFile):
        return frozenset()


def packages_of(jar: Path) -> frozenset[str]:
    return frozenset(name.rpartition("/")[0].replace("/", ".") for name in classes_of(jar))


def in_jdk(name: str) -> bool:
    """Is a package or class of this name part of every JDK?"""
    return name.startswith(JDK) and not name.startswith(("javax.xml.bind.", "javax.xml.ws.", "javax.xml.soap."))


def _jar_of(name: str) -> Path | None:
    group, _, artefact = name.partition(":")
    folder = MAVEN.joinpath(*group.split("."), artefact)
    found = sorted(folder.glob("*/*.jar"), key=lambda jar: (jar.parent.name == "debian", jar.name))
    if found:
        return found[0].resolve()
    plain = JAVA / f"{artefact}.jar"
    return plain.resolve() if plain.is_file() else None


def _needed_by(name: str) -> list[str]:
    group, _, artefact = name.partition(":")
    poms = sorted(MAVEN.joinpath(*group.split("."), artefact).glob("*/*.pom"))
    if not poms:
        return []
    try:
        root = ElementTree.fromstring(re.sub(rb'\sxmlns="[^"]*"', b"", poms[-1].read_bytes(), count=1))
    except (OSError, ElementTree.ParseError):
        return []
    found = []
    for each in root.findall("dependencies/dependency"):
        scope = (each.findtext("scope") or "compile").strip()
        if scope in ("compile", "runtime") and (each.findtext("optional") or "").strip() != "true":
            found.append(f"{(each.findtext('groupId') or '').strip()}:{(each.findtext('artifactId') or '').strip()}")
    return found
