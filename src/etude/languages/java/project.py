"""What a folder of Java holds: where sources and tests lie, which classes are tests, which artefacts they need.

In: a folder; out: a Project. The layout is read from the files themselves (the `package` of each), so Maven, Gradle, Ant and none at all
are the same; of pom.xml only the dependencies and the encoding are used. Files that import what no jar on this machine has are left out:
as sources they are not compiled, as tests not run.

Not here: the jars (jars.py), the environment folder (environment.py).
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from xml.etree import ElementTree

from etude import tree
from etude.errors import UserError
from etude.languages.java import jars
from etude.languages.protocol import Project

MANIFESTS = ("pom.xml", "build.gradle", "build.gradle.kts", "build.xml", "settings.gradle", "settings.gradle.kts")
TEST_PARTS = frozenset({"test", "tests", "junit", "testing"})
OTHER_PARTS = frozenset({
    "example", "examples", "sample", "samples", "demo", "demos", "benchmark", "benchmarks", "jmh", "site", "doc", "docs", "target",
    "build", "out", "bin", "debian", "resources", "META-INF", "java9", "it", "integration-test", "integrationTest", "tools", "buildSrc",
})  # fmt: skip
PACKAGE = re.compile(r"^\s*package\s+([\w.]+)\s*;", re.M)
IMPORT = re.compile(r"^\s*import\s+(?:static\s+)?([\w.]+?)(?:\.\*)?\s*;", re.M)
TEST_NAME = re.compile(r"^Test[A-Z0-9_]|(Test|Tests|TestCase)$")
TEST_CODE = re.compile(r"@(?:Test|ParameterizedTest|RepeatedTest|TestFactory|TestTemplate|Theory|RunWith)\b|\bextends\s+[\w.]*Test\w*")
MAX_BYTES = 2**20
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
OUR_OWN = ("junit", "org.junit", "org.hamcrest", "org.opentest4j", "org.apiguardian")
OWN_GROUPS = ("junit", "org.junit", "org.hamcrest")
PROTECTED = (
    "pom.xml", "*/pom.xml", "*.gradle", "*.gradle.kts", "build.xml", "*/build.xml", "*.properties", "*.jar", "*.class", "META-INF/*",
    "*/META-INF/*", "module-info.java", "*/module-info.java",
)  # fmt: skip


def discover(folder: Path, name: str) -> Project | None:
    found = tree.files(folder)
    java = {p: file for p, file in found.items() if p.endswith(".java") and file.stat().st_size <= MAX_BYTES}
    if not java or (not any(manifest in found for manifest in MANIFESTS) and "src" not in {path.partition("/")[0] for path in java}):
        return None
    texts = {path: file.read_text("utf-8", "replace") for path, file in java.items() if not path.endswith("-info.java")}
    own = name or folder.name
    encoding, wanted, artefact = _pom(folder / "pom.xml")
    roots = {path: _root(path, text) for path, text in texts.items()}
    roots = {path: root for path, root in roots.items() if not _is_other(root)}
    test_roots = sorted({root for root in roots.values() if TEST_PARTS & set(root.split("/"))})
    source_roots = sorted(set(roots.values()) - set(test_roots))
    missing = _without_jar(roots, texts, wanted)
    sources = [path for path, root in roots.items() if root in source_roots and path not in missing]
    tests = [path for path, root in roots.items() if root in test_roots and path not in missing and _is_test(path, texts[path])]
    if not test_roots or not sources or not tests:
        because = f" ({next(iter(missing.values()))})" if missing else ""
        raise UserError(f"{own} has no {'tests of JUnit' if sources else 'sources'} that can be worked on{because}; look at its folders")
    support = sorted(path for path, root in roots.items() if root in test_roots and path not in tests)
    return Project(
        name=re.sub(r"[^A-Za-z0-9._-]+", "-", own).strip("-._") or "project",
        language="java",
        runner="junit",
        sources=tuple(sorted(sources)),
        tests=tuple(sorted(tests)),
        support=tuple(support),
        import_roots=tuple(source_roots),
        requirements=tuple(sorted(wanted)),
        own_names=(artefact,) if artefact else (),
        protected=(*PROTECTED, *(f"{root}/*" for root in test_roots), *_lone_resources(found, test_roots)),
        settings={
            "sources": "\n".join(source_roots),
            "tests": "\n".join(test_roots),
            "resources": "\n".join(sorted(_resources(found))),
            "left_out": "\n".join(sorted(path for path in missing if roots[path] in source_roots)),
            "encoding": encoding,
        },
    )


def products(folder: Path, project: Project) -> list[str]:
    """Compiled classes, jars that hold a class of the project, pages of javadoc."""
    classes = own_classes(project)
    found: list[str] = []
    for path, file in tree.files(folder).items():
        built = any(part in ("target", "build", "out", "bin", "classes", ".pc") for part in path.split("/")[:-1])
        jar = path.endswith((".jar", ".war", ".zip"))
        if path.endswith(".class") or (jar and (built or classes & jars.classes_of(file))) or (built and path not in project.sources):
            found.append(path)
    return found


def own_classes(project: Project) -> frozenset[str]:
    """Names as in a jar, without the suffix: org/example/Name."""
    found = set()
    for path in project.sources:
        root = max((r for r in project.import_roots if r == "." or path.startswith(f"{r}/")), key=len, default=".")
        found.add(path.removeprefix(f"{root}/").removesuffix(".java"))
    return frozenset(found)


def _root(path: str, text: str) -> str:
    """The folder that a file's package begins in."""
    match = PACKAGE.search(COMMENT.sub("", text))
    above = path.rpartition("/")[0]
    package = match[1].replace(".", "/") if match else ""
    if package and (above == package or above.endswith(f"/{package}")):
        return above[: len(above) - len(package)].rstrip("/") or "."
    return "" if package else above or "."


def _is_other(root: str) -> bool:
    return root == "" or any(part in OTHER_PARTS or part.startswith(".") for part in root.split("/") if part != ".")


def _is_test(path: str, text: str) -> bool:
    stem = path.rpartition("/")[2].removesuffix(".java")
    return bool(TEST_NAME.search(stem) and TEST_CODE.search(text)) and not re.search(rf"\babstract\s+(?:\w+\s+)*class\s+{stem}\b", text)


def _resources(found: Iterable[str]) -> set[str]:
    """Folders named resources next to java, and roots themselves are on the class path anyway."""
    places = set()
    for path in found:
        match = re.match(r"(?:.*/)?src/(?:main|test)/resources(?=/)", path)
        if match:
            places.add(match[0])
    return places


def _lone_resources(found: Iterable[str], test_roots: Iterable[str]) -> list[str]:
    return sorted({f"{place}/*" for place in _resources(found) if "/test/" in f"/{place}/"})


def _without_jar(roots: Mapping[str, str], texts: Mapping[str, str], wanted: Iterable[str]) -> dict[str, str]:
    """Files that import a package that is nowhere, and which; and files that name those of their own."""
    own = {match[1] for path in roots if (match := PACKAGE.search(COMMENT.sub("", texts[path])))}
    there = own | {package for place in jars.resolve(wanted)[0] for package in jars.packages_of(place)}
    missing: dict[str, str] = {}
    for path in roots:
        for name in IMPORT.findall(texts[path]):
            parts = name.split(".")
            if (
                not name.startswith(OUR_OWN)
                and not jars.in_jdk(name)
                and not any(".".join(parts[:size]) in there for size in range(len(parts), 0, -1))
            ):
                missing[path] = f"{path} imports {name}, which no jar here has"
                break
    while True:
        names = {path.rpartition("/")[2].removesuffix(".java"): why for path, why in missing.items()}
        pattern = re.compile(rf"\b({'|'.join(map(re.escape, names))})\b") if names else None
        more = {
            path: missing_name
            for path in roots
            if path not in missing
            and pattern
            and (match := pattern.search(COMMENT.sub("", texts[path])))
            and (missing_name := names[match[1]])
        }
        if not more:
            return missing
        missing |= more


def _pom(path: Path) -> tuple[str, list[str], str]:
    """Encoding, dependencies as group:artifact without JUnit's own, the project's own group:artifact."""
    if not path.is_file():
        return "UTF-8", [], ""
    try:
        root = ElementTree.fromstring(re.sub(rb'\sxmlns="[^"]*"', b"", path.read_bytes(), count=1))
    except ElementTree.ParseError as error:
        raise UserError(f"pom.xml cannot be read: {error}") from None

    def text(node: ElementTree.Element, name: str) -> str:
        return (node.findtext(name) or "").strip()

    wanted = []
    for each in root.findall("dependencies/dependency"):
        group, artefact = text(each, "groupId"), text(each, "artifactId")
        if group and artefact and not group.startswith(OWN_GROUPS) and "${" not in group + artefact and text(each, "scope") != "system":
            wanted.append(f"{group}:{artefact}")
    group = text(root, "groupId") or text(root, "parent/groupId")
    encoding = text(root, "properties/project.build.sourceEncoding") or text(root, "properties/encoding") or "UTF-8"
    return encoding if "$" not in encoding else "UTF-8", wanted, f"{group}:{text(root, 'artifactId')}"
