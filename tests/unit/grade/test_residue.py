"""One feature cut out of a tiny repository, its left-overs planted in every way that tools leave them: found, removed, found no more."""

import base64
import bz2
import gzip
import html
import io
import json
import lzma
import marshal
import os
import pickle
import py_compile
import sqlite3
import struct
import subprocess
import tarfile
import textwrap
import zipfile
import zlib
from pathlib import Path
from urllib.parse import quote

import pytest

from etude.grade.residue import Needles, ScanLimits, Scanner, scan, visible_libraries
from etude.grade.scrub import scrub

KEPT = '''\
"""Tools for quorbs."""

import math


def steady(number):
    """Round a number down."""
    return math.floor(number)
'''
FEATURE = '''

def quorble_feature(alphazed: int, *, betazed="zeta77q") -> list[str]:
    """Wind the given number around a quorb, one turn for each letter of the coil."""
    localvarx = alphazed * 73313  # the winding constant
    if localvarx < 0 and betazed != "bodyconst9":
        raise ValueError(f"cannot wind {alphazed!r} backwards")
    return [betazed + str(localvarx % turn) for turn in range(1, 9)]
'''
KEPT_TEST = "from quorb.core import steady\n\n\ndef test_steady():\n    assert steady(2.5) == 2\n"
HIDDEN_TEST = """

def test_winding_is_exact():
    found = quorble_feature(12, betazed="hidden41expected")
    assert found[4] == "hidden41expected879756"
"""
ORIGINAL = {
    "README.md": "# quorb\n\nTools for quorbs, written with care.\n",
    "quorb/__init__.py": "from quorb.core import *\n",
    "quorb/core.py": KEPT + FEATURE,
    "tests/test_core.py": KEPT_TEST.replace("steady\n", "quorble_feature, steady\n", 1) + HIDDEN_TEST,
}
CUT = ORIGINAL | {"quorb/core.py": KEPT, "tests/test_core.py": KEPT_TEST}
SOURCE = ORIGINAL["quorb/core.py"].encode()
IDENTITY = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]


def lay(folder, files):
    for path, data in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data if isinstance(data, bytes) else data.encode())
    return folder


@pytest.fixture(scope="module")
def scanner():
    return Scanner()


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return lay(tmp_path_factory.mktemp("original"), ORIGINAL)


@pytest.fixture
def tree(tmp_path):
    return lay(tmp_path / "tree", CUT)


# -- what tools leave behind; each returns files by path, or writes into the tree itself


def zipped(**files):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name.replace("__", "/").replace("_DOT_", "."), data)
    return out.getvalue()


def tarred(mode, data=SOURCE, name="quorb-1.0/quorb/core.py"):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=f"w:{mode}") as archive:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def compiled(source, optimize=0, name="quorb/core.py"):
    code = compile(source, name, "exec", dont_inherit=True, optimize=optimize)
    return py_compile.importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(code)


def database(*statements):
    with sqlite3.connect(":memory:") as made:
        for statement in statements:
            made.execute(*statement)
        made.commit()
        return made.serialize()


def spans(source):
    """As coverage.py and pygments show code: a tag around every token."""
    tags = {"(": '<span class="op">(</span>', " ": ' <span class="w"></span>'}
    lines = ("".join(tags.get(letter, html.escape(letter)) for letter in line) for line in source.split("\n"))
    return "<pre>" + "\n".join(f'<p id="t{n}"><span class="n"><a href="#t{n}">{n}</a></span>{line}</p>' for n, line in enumerate(lines))


def java_class(*names, number=73313):
    pool = b"".join(b"\1" + struct.pack(">H", len(name)) + name.encode() for name in names) + b"\3" + struct.pack(">i", number)
    return b"\xca\xfe\xba\xbe" + struct.pack(">HHH", 0, 61, len(names) + 2) + pool + bytes(20)


def ar(**files):
    out = b"!<arch>\n"
    for name, data in files.items():
        out += f"{name.replace('_', '.'):<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode() + data + b"\n" * (len(data) % 2)
    return out


def pdf():
    stream = zlib.compress(b"BT /F1 12 Tf (" + FEATURE.encode().replace(b"(", rb"\(").replace(b")", rb"\)") + b") Tj ET")
    head = b"%%PDF-1.4\n1 0 obj <</Filter /FlateDecode /Length %d>>\nstream\n" % len(stream)
    return head + stream + b"\nendstream\nendobj\n"


def git(tree, *command):
    env = {"PATH": "/usr/bin:/bin", "HOME": "/nowhere"}
    subprocess.run(["git", *IDENTITY, *command], cwd=tree, check=True, capture_output=True, env=env)


def committed(tree):
    """A repository whose first commit holds the feature and whose amended one does not."""
    (tree / "quorb/core.py").write_bytes(SOURCE)
    git(tree, "init", "-q")
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "one")
    (tree / "quorb/core.py").write_text(KEPT)
    git(tree, "add", "-A")
    git(tree, "commit", "-q", "--amend", "-m", "one")


def git_amended(tree):
    committed(tree)


def git_after_gc(tree):
    committed(tree)
    git(tree, "gc", "-q", "--prune=now")
    assert list((tree / ".git/objects/pack").glob("*.pack"))


def git_stash(tree):
    committed(tree)
    (tree / "quorb/core.py").write_bytes(SOURCE)
    git(tree, "stash", "-q")
    git(tree, "reflog", "expire", "--expire=now", "--all")
    git(tree, "gc", "-q", "--prune=now")


def git_kept_pack(tree):
    committed(tree)
    git(tree, "repack", "-adq")
    pack = next((tree / ".git/objects/pack").glob("*.pack"))
    pack.with_suffix(".keep").touch()
    git(tree, "reflog", "expire", "--expire=now", "--all")
    git(tree, "gc", "-q", "--prune=now")


def git_delta(tree):
    """The feature is only in an object that is stored as the difference to another one."""
    long = "".join(f"def filler_{n}(value):\n    return value + {n}\n\n\n" for n in range(300))
    for text in (KEPT + long, KEPT + long + FEATURE + "#" * 9, KEPT + long + "\n" * 4000):
        (tree / "quorb/filler.py").write_text(text)
        git(tree, "init", "-q")
        git(tree, "add", "-A")
        git(tree, "commit", "-qm", "x")
    git(tree, "gc", "-q", "--aggressive", "--prune=now")
    (tree / "quorb/filler.py").unlink()


def git_bundle(tree):
    committed(tree)
    git(tree, "update-ref", "refs/heads/old", "ORIG_HEAD" if (tree / ".git/ORIG_HEAD").exists() else "HEAD@{1}")
    git(tree, "bundle", "create", "-q", "old.bundle", "--all")
    scrub(tree)
    assert not (tree / ".git").exists()


def bytecode_of_tests(tree):
    code = compiled(ORIGINAL["tests/test_core.py"], name="tests/test_core.py")
    lay(tree, {"tests/__pycache__/test_core.cpython-311-pytest-9.2.0.pyc": code})


def swap_file(name):
    """vim's: blocks of lines, last first, NUL between them."""
    return b"b0VIM 9.0\0" + bytes(200) + b"\0".join(reversed(FEATURE.encode().split(b"\n")))


def freed_pages():
    with sqlite3.connect(":memory:") as made:
        made.execute("PRAGMA secure_delete = OFF")
        made.execute("CREATE TABLE t (x)")
        made.executemany("INSERT INTO t VALUES (?)", [(FEATURE,), ("y" * 5000,)])
        made.execute("DELETE FROM t")
        made.commit()
        return made.serialize()


CYTHON = b"/* Generated by Cython 3.0 */\n" + b"".join(b" * %s\n" % line for line in SOURCE.split(b"\n"))
WHEEL = zipped(quorb__core_DOT_py=SOURCE, quorb__init_DOT_py=b"")
NOTEBOOK = json.dumps({"cells": [{"cell_type": "code", "source": FEATURE.splitlines(keepends=True), "outputs": []}]})
PATCH = "".join(f"-{line}\n" for line in FEATURE.splitlines())
PLANTED = {
    "bytecode": {"quorb/__pycache__/core.cpython-311.pyc": compiled(SOURCE)},
    "bytecode without docstrings": {"quorb/__pycache__/core.cpython-311.opt-2.pyc": compiled(SOURCE, optimize=2)},
    "bytecode of hidden tests": bytecode_of_tests,
    "mypy's database": {
        ".mypy_cache/3.11/cache.4.db": database(
            ("CREATE TABLE files2 (path TEXT, data BLOB)",),
            ("INSERT INTO files2 VALUES ('quorb/core.data.ff', ?)", (b"\x10\x0equorble_feature\x05\x08alphazed\x07betazed",)),
        )
    },
    "build folder": {"build/lib/quorb/core.py": SOURCE},
    "wheel": {"dist/quorb-1.0-py3-none-any.whl": WHEEL},
    "source distribution": {"dist/quorb-1.0.tar.gz": tarred("gz")},
    "tar.bz2 outside of dist": {"old/quorb.tar.bz2": tarred("bz2")},
    "tar.xz outside of dist": {"old/quorb.tar.xz": tarred("xz")},
    "egg": {"quorb-1.0.egg": WHEEL},
    "egg-info": {"quorb.egg-info/PKG-INFO": f"Name: quorb\n\n{FEATURE}"},
    "coverage page": {"htmlcov/quorb_core_py.html": spans(FEATURE)},
    "Sphinx page": {"docs/_build/html/_modules/quorb/core.html": spans(FEATURE)},
    "Sphinx environment": {"docs/_build/doctrees/environment.pickle": pickle.dumps({"modules": {"quorb.core": SOURCE.decode()}})},
    "Sphinx search index": {"docs/build/searchindex.js": 'Search.setIndex({"terms":{"quorble_feature":[0],"alphazed":0}})'},
    "Sphinx inventory": {
        "objects.inv": b"# Sphinx inventory\n# zlib.\n" + zlib.compress(b"quorb.core.quorble_feature py:function 1 - -\n")
    },
    "hypothesis constants": {".hypothesis/constants/0a1b": "# file: quorb/core.py\n[73313, 'bodyconst9', 'zeta77q']"},
    "pytest's cache": {".pytest_cache/v/cache/nodeids": '["tests/test_core.py::test_winding_is_exact"]'},
    "coverage data with contexts": {
        ".coverage": database(
            ("CREATE TABLE context (name)",), ("INSERT INTO context VALUES ('tests/test_core.py::test_winding_is_exact')",)
        )
    },
    "git: amended commit": git_amended,
    "git: after gc": git_after_gc,
    "git: stash": git_stash,
    "git: kept pack": git_kept_pack,
    "git: delta in a pack": git_delta,
    "git: bundle": git_bundle,
    "notebook checkpoint": {".ipynb_checkpoints/try-checkpoint.ipynb": NOTEBOOK},
    "log in UTF-16": {"run.log": FEATURE.encode("utf-16")},
    "log in UTF-16 big endian without a mark": {"run.log": FEATURE.encode("utf-16-be")},
    "base64": {"mail.b64": base64.encodebytes(FEATURE.encode())},
    "base64 of gzip in JSON": {"trace.log": json.dumps({"body": base64.b64encode(gzip.compress(SOURCE)).decode()})},
    "hexadecimal": {"memory.dump": FEATURE.encode().hex()},
    "per cent codes": {"access.log": "GET /run?code=" + quote(FEATURE)},
    "archives in archives": {"old/all.zip": zipped(inner_DOT_tar_DOT_gz=tarred("gz", WHEEL, "quorb.whl"))},
    "Java class": {"out/Core.class": java_class("org/quorb/Quorble", "quorble_feature", "(I)V", "zeta77q")},
    "Java archive": {"lib/quorb.jar": zipped(Core_DOT_class=java_class("Core", "test_winding_is_exact", "bodyconst9"))},
    "source map": {"site/app.js.map": json.dumps({"version": 3, "sourcesContent": [FEATURE]})},
    "minified bundle": {"static/app.min.js": 'var a=function(b){return b*73313};exports.quorble_feature=a;var c="zeta77q"'},
    "swap file": {"quorb/.core.py.swp": swap_file("core.py")},
    "backup": {"quorb/core.py~": SOURCE},
    "rejected patch": {"quorb/core.py.rej": PATCH},
    "patch": {"feature.patch": PATCH},
    "ctags": {"tags": 'quorble_feature\tquorb/core.py\t/^def quorble_feature(alphazed: int, *, betazed="zeta77q") -> list[str]:$/;"\tf\n'},
    "freed pages of a database": {"state.sqlite3": freed_pages()},
    "compressed cell of a database": {
        "cache.db": database(("CREATE TABLE page (body BLOB)",), ("INSERT INTO page VALUES (?)", (zlib.compress(SOURCE),)))
    },
    "shared library": {"quorb/_core.so": b"\x7fELF" + bytes(60) + b"\0quorble_feature\0alphazed\0zeta77q\0" + bytes(60)},
    "gzip of a pickle": {"old/state.pickle.gz": gzip.compress(pickle.dumps([SOURCE]))},
    "pickle protocol 0": {"state.pkl": pickle.dumps({"quorble_feature": 73313}, protocol=0)},
    "bzip2 file": {"core.bz2": bz2.compress(SOURCE)},
    "lzma file": {"core.lzma": lzma.compress(SOURCE, format=lzma.FORMAT_ALONE)},
    "stream inside of other bytes": {"firmware.dump": bytes(range(256)) * 3 + zlib.compress(SOURCE) + bytes(range(256))},
    "PDF": {"manual.pdf": pdf()},
    "Debian package": {"python3-quorb.deb": ar(debian_binary=b"2.0\n", data_tar_xz=tarred("xz"))},
    "shell history": {".bash_history": "python -c 'from quorb import quorble_feature; print(quorble_feature(3))'\n"},
    "node's cache": {".cache/v8/blob": b"\0\1quorble_feature\0zeta77q\0"},
    "only a file's name": {"build/temp/quorble_feature.o": b"\x7fELF"},
}


@pytest.fixture
def needles(original, tree, scanner):
    return Needles.of(original, tree, scanner)


def test_at_least_twenty_kinds_are_planted():
    assert len(PLANTED) >= 20


@pytest.mark.parametrize("kind", PLANTED)
def test_a_left_over_is_found_and_scrubbed_away(tree, needles, scanner, kind):
    plant = PLANTED[kind]
    if callable(plant):
        plant(tree)
    else:
        lay(tree, plant)
    findings = scanner.scan(tree, needles)
    assert findings
    assert all(finding.removable for finding in findings), [str(finding) for finding in findings]
    report = scrub(tree, findings)
    assert report.left == ()
    assert scanner.scan(tree, needles) == ()
    assert {path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()} >= CUT.keys()


STAYS = {
    "copy among the sources": ({"quorb/legacy.py": SOURCE}, "copy"),
    "copy in the documentation": ({"docs/guide.md": f"```python{FEATURE}```\n"}, "copy"),
    "notebook": ({"docs/try.ipynb": NOTEBOOK}, "lines"),
    "fixture of the tests": ({"tests/data/sample.zip": WHEEL}, "lines"),
    "file of unknown kind": ({"quorb/data.bin": gzip.compress(SOURCE)}, "lines"),
    "generated C": ({"quorb/core.c": CYTHON}, "lines"),
    "encoded in a source": ({"quorb/blob.py": b'BLOB = "' + base64.b64encode(zlib.compress(SOURCE)) + b'"\n'}, "lines"),
    "escaped in a source": ({"quorb/blob.py": b"CODE = " + json.dumps(FEATURE).encode() + b"\n"}, "lines"),
}


@pytest.mark.parametrize("kind", STAYS)
def test_what_may_not_be_removed_is_left_and_reported(original, tree, scanner, kind):
    files, expected = STAYS[kind]
    lay(tree, files)
    needles = Needles.of(original, tree, scanner)
    findings = scanner.scan(tree, needles)
    assert expected in {finding.kind for finding in findings}
    report = scrub(tree, findings)
    assert report.left == findings
    assert all((tree / path).exists() for path in files)


def test_a_clean_tree_and_its_environment_have_no_finding(tree, needles, scanner, tmp_path):
    lay(tmp_path / "env", {"other/core.py": KEPT, "other/dist.whl": zipped(a=KEPT), "words.txt": "wind the given number\n"})
    assert needles.blind == ()
    assert scanner.scan(tree, needles, {"environment": tmp_path / "env"}) == ()


@pytest.mark.parametrize(
    "files",
    [
        {"quorb/core.py": SOURCE},
        {"quorb/__pycache__/core.cpython-311.pyc": compiled(SOURCE)},
        {"quorb/__pycache__/core.cpython-311.opt-2.pyc": compiled(SOURCE, optimize=2)},
        {"wheels/quorb-1.0-py3-none-any.whl": WHEEL},
        {"unrelated/deep/cache.db": database(("CREATE TABLE t (x)",), ("INSERT INTO t VALUES (?)", (SOURCE,)))},
    ],
)
def test_a_second_copy_in_the_environment_is_found_and_never_removable(tree, needles, scanner, tmp_path, files):
    lay(tmp_path / "env", files)
    findings = scanner.scan(tree, needles, {"environment": tmp_path / "env"})
    assert [finding.path for finding in findings] == list(files)
    assert scrub(tree, findings).left == findings


def test_a_name_that_survives_tells_nothing(original, tree, scanner):
    lay(tree, {"CHANGES.md": "quorble_feature(alphazed, betazed) came in 0.9\n", ".pytest_cache/x": "quorble_feature alphazed betazed"})
    needles = Needles.of(original, tree, scanner)
    assert not {"quorble_feature", "alphazed", "betazed"} & {needle.text for needle in needles.by_feature.values()}
    assert scanner.scan(tree, needles) == ()


def test_the_names_of_sources_tell_nothing(tmp_path, scanner):
    before = "def test_a():\n    assert here() == 'test_quorbs.py'\n\n\ndef test_b():\n    assert 1\n"
    original = lay(tmp_path / "original", {"tests/test_quorbs.py": before})
    tree = lay(tmp_path / "tree", {"tests/test_quorbs.py": "def test_b():\n    assert 1\n"})
    needles = Needles.of(original, tree, scanner)
    assert "test_a" in {needle.text for needle in needles.by_feature.values()}
    assert scanner.scan(tree, needles) == ()


def test_what_only_removed_tests_held_may_be_left_out(original, tree, scanner):
    lay(tree, {"tests/data.json": '{"calls": ["odd_case_31337", "wound by nobody at all today"]}'})
    more = lay(original.parent / "more", {**ORIGINAL, "tests/test_more.py": "def test_m():\n    assert f('odd_case_31337')\n"})
    hidden = frozenset(path for path in [*ORIGINAL, "tests/test_more.py"] if path.startswith("tests/"))
    assert any(finding.path == "tests/data.json" for finding in scanner.scan(tree, Needles.of(more, tree, scanner)))
    needles = Needles.of(more, tree, scanner, but=hidden)
    assert scanner.scan(tree, needles) == ()
    assert "quorble_feature" in {needle.text for needle in needles.by_feature.values()}


def test_findings_say_where_and_what(tree, needles, scanner):
    lay(tree, {"old/all.zip": zipped(inner_DOT_tar_DOT_gz=tarred("gz", WHEEL, "quorb.whl"))})
    (finding,) = scanner.scan(tree, needles)
    assert finding.place == "workspace:old/all.zip!inner.tar.gz!inner.tar!quorb.whl!quorb/core.py"
    assert finding.matched[0] == "quorble_feature"
    assert str(finding).endswith("of what was cut at quorb/core.py:11 (quorble_feature)")


# -- fail closed


def bomb(levels=3, size=1 << 20):
    data = bytes(size)
    for _ in range(levels):
        data = zipped(**{f"x{n}": data for n in range(8)})
    return data


SMALL = ScanLimits(file_bytes=1 << 20, unpacked_bytes=4 << 20, entries=200, depth=3, tries=50)
CLOSED = {
    "zip bomb": (bomb(), "unpacks to more than 4 MiB"),
    "gzip bomb": (gzip.compress(bytes(64 << 20)), "unpacks to more than 4 MiB"),
    "many entries": (zipped(**{f"x{n}": b"" for n in range(300)}), "holds more than 200 entries"),
    "deep": (bomb(levels=6, size=10)[:0] or zipped(a=zipped(a=zipped(a=zipped(a=zipped(a=b"x"))))), "is nested more than 3 levels deep"),
    "large": (bytes(2 << 20), "is larger than 1 MiB"),
    "many beginnings": (b"\0x\x9c" * 100, "has more than 50 places"),
    "7z": (b"7z\xbc\xaf\x27\x1c" + bytes(50), "is a 7z archive"),
    "zstd": (b"\x28\xb5\x2f\xfd" + bytes(50), "is a zstd archive"),
    "broken gzip": (gzip.compress(SOURCE)[:60], "cannot be unpacked to its end"),
    "broken zip": (WHEEL[:200], "cannot be unpacked to its end"),
    "broken pack": (b"PACK\0\0\0\2\0\0\0\1\x95\x0a" + b"rubbish" * 9, "cannot be unpacked to its end"),
    "broken database": (b"SQLite format 3\0" + b"\1" * 500, "a database that cannot be read"),
    "broken bytecode": (compiled(SOURCE)[:300], "the bytecode ends too early"),
    "bytecode of another Python": (b"\xee\x0c\r\n" + bytes(40), "bytecode of an unknown Python"),
}


@pytest.mark.parametrize("kind", CLOSED)
def test_what_could_not_be_looked_into_is_a_finding(tree, needles, kind):
    data, why = CLOSED[kind]
    lay(tree, {"thing.dat": data})
    findings = scan(tree, needles, limits=SMALL)
    assert any(finding.kind == "unreadable" and why in finding.why for finding in findings), [str(finding) for finding in findings]


def test_an_encrypted_archive_is_a_finding(tree, needles, scanner):
    data = bytearray(zipped(a_DOT_txt=b"hello"))
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(signature) + offset] |= 1
    lay(tree, {"secret.zip": bytes(data)})
    assert [finding.kind for finding in scanner.scan(tree, needles)] == ["unreadable"]


def test_links_out_and_special_files_are_findings(tree, needles, scanner, tmp_path):
    (tree / "inside").symlink_to("quorb/core.py")
    (tree / "outside").symlink_to("/etc")
    (tree / "upwards").symlink_to("../../elsewhere")
    os.mkfifo(tree / "pipe")
    lay(tree, {".git": "gitdir: /somewhere/else\n"})
    assert {finding.path for finding in scanner.scan(tree, needles)} == {"outside", "upwards", "pipe", ".git"}


def test_what_equals_a_program_of_this_machine_is_not_looked_into_and_what_only_has_its_name_is(tree, needles, tmp_path):
    (program,) = (lay(tmp_path / "machine", {"bin/node": "x" * len(SOURCE)}) / "bin").iterdir()
    env = lay(tmp_path / "env", {"bin/node": SOURCE, "lib/node": program.read_bytes(), "node_modules/a/index.js": "x"})
    (env / "node_modules/quorb").symlink_to("/work")  # the code under test by its name
    (env / "node_modules/other").symlink_to("/work/..")

    def places(cache=None):
        scanner = Scanner(cache=cache)
        return [finding.path for finding in scanner.scan(tree, needles, {"environment": env}, runtime=[program])]

    assert places() == ["bin/node", "node_modules/other"]
    program.write_bytes(SOURCE)
    assert places(tmp_path / "cache") == places(tmp_path / "cache") == ["node_modules/other"]
    program.write_bytes(b"y" * len(SOURCE))
    assert places(tmp_path / "cache") == ["bin/node", "node_modules/other"]


def test_what_the_standard_library_has_too_is_found_there(tmp_path, scanner):
    source = Path(textwrap.__file__).read_text()
    original = lay(tmp_path / "original", {"wrapping.py": source, "kept.py": KEPT})
    tree = lay(tmp_path / "tree", {"kept.py": KEPT})
    found = scanner.scan(tree, Needles.of(original, tree, scanner), libraries=visible_libraries())
    assert "library:textwrap.py" in {finding.place for finding in found}
    assert not any(finding.removable for finding in found)


def test_a_feature_of_ones_own_is_in_no_library(tree, needles, scanner):
    assert scanner.scan(tree, needles, libraries=visible_libraries()) == ()


def test_hostile_names_are_printed_on_one_line(tree, needles, scanner):
    lay(tree, {"build/a\nb\x1b[31m.py": SOURCE})
    (finding,) = scanner.scan(tree, needles)
    assert str(finding).isprintable()


def test_a_deeply_nested_marshal_stream_ends(tree, needles, scanner):
    header = py_compile.importlib.util.MAGIC_NUMBER + bytes(12)
    lay(tree, {"a.dat": header + b")\1" * 200_000 + b"N", "b.dat": header + b"{N" * 100_000})
    assert [finding.path for finding in scanner.scan(tree, needles)] == ["b.dat"]


def test_what_was_read_of_an_environment_is_kept_on_disk(tree, needles, tmp_path):
    env = lay(tmp_path / "env", {"quorb/core.py": SOURCE, "x.zip": zipped(a=SOURCE)})
    first = Scanner(cache=tmp_path / "cache").scan(tree, needles, {"environment": env})
    assert [finding.path for finding in first] == ["quorb/core.py", "x.zip"]
    times = (env / "quorb/core.py").stat().st_mtime_ns
    (env / "quorb/core.py").write_bytes(bytes(len(SOURCE)))
    os.utime(env / "quorb/core.py", ns=(times, times))
    assert Scanner(cache=tmp_path / "cache").scan(tree, needles, {"environment": env}) == first  # nobody looked again
    kept = next((tmp_path / "cache").iterdir())
    kept.write_bytes(kept.read_bytes()[:-20])
    assert [finding.path for finding in Scanner(cache=tmp_path / "cache").scan(tree, needles, {"environment": env})] == ["x.zip"]
    os.utime(env / "quorb/core.py")
    assert len(Scanner(cache=tmp_path / "cache").scan(tree, needles, {"environment": env})) == 1


def test_environments_share_what_was_read_of_equal_files(tree, needles, tmp_path):
    shared = {"quorb/core.py": SOURCE, "quorb/core.zip": zipped(core=SOURCE), "other.py": "x = 1\n"}
    one = lay(tmp_path / "one", shared)
    two = lay(tmp_path / "two", {**shared, "sub/core.py": SOURCE, "sub/renamed.txt": SOURCE, "quorb/core.zip": b"no archive"})
    cache = tmp_path / "cache"
    Scanner(cache=cache).scan(tree, needles, {"environment": one})
    warm, cold = (Scanner(cache=folder).scan(tree, needles, {"environment": two}) for folder in (cache, None))
    assert warm == cold
    assert [finding.path for finding in warm] == ["quorb/core.py", "sub/core.py", "sub/renamed.txt"]
    for place in cache.iterdir():  # as if the shared files had held nothing
        head, rest = place.read_bytes().split(b"\n", 1)
        place.write_bytes(head + b"\n" + bytes(len(rest)))
    (two / "new.py").write_text("")
    told = Scanner(cache=cache).scan(tree, needles, {"environment": two})
    assert told == ()  # they were not read again
    assert Scanner(ScanLimits(depth=5), cache=cache).scan(tree, needles, {"environment": two}) == warm  # other limits read anew


def test_bytecode_tells_where_every_single_name_survives(tree, scanner, tmp_path):
    """A stub keeps the names; what is gone is only how they were used."""
    kept = {"a.py": "def pick(rows, keys):\n    raise NotImplementedError\n\n\ndef other(out, key, row, append, get, zip):\n    pass\n"}
    whole = kept["a.py"].replace(
        "    raise NotImplementedError\n",
        "    out = []\n    for row in rows:\n        for key in keys:\n            out.append(row.get(key))\n    return zip(out)\n",
    )
    needles = Needles.of(lay(tmp_path / "one", {"a.py": whole}), lay(tree, kept), scanner)
    assert {needle.kind for needle in needles.by_feature.values()} == {"lines", "bytecode"}
    lay(tree, {"a.dat": compiled(whole.encode(), optimize=2, name="a.py")})
    lay(tmp_path / "env", {"a.pyc": compiled(whole.encode(), name="a.py"), "b.pyc": compiled(kept["a.py"].encode(), name="a.py")})
    found = scanner.scan(tree, needles, {"environment": tmp_path / "env"})
    assert [finding.place for finding in found] == ["workspace:a.dat", "environment:a.pyc"]


def test_line_ends_encodings_and_comments_do_not_matter(original, tree, tmp_path, scanner):
    latin = "# -*- coding: latin-1 -*-\n" + FEATURE.replace("coil", "Spüle")
    before = lay(tmp_path / "before", {**ORIGINAL, "quorb/latin.py": latin.encode("latin-1")})
    needles = Needles.of(before, lay(tree, {"quorb/latin.py": b"# -*- coding: latin-1 -*-\n"}), scanner)
    bare = "\n".join(line.split("  #")[0].strip() for line in FEATURE.splitlines() if '"""' not in line)
    lay(tree, {"build/core.txt": bare.replace("\n", "\r\n").encode("utf-8-sig")})
    (finding,) = scanner.scan(tree, needles)
    assert finding.kind == "lines"


def test_paths_are_only_read(original, tree, needles, scanner):
    before = {path: path.read_bytes() for path in Path(tree).rglob("*") if path.is_file()}
    scanner.scan(tree, needles)
    assert {path: path.read_bytes() for path in Path(tree).rglob("*") if path.is_file()} == before
