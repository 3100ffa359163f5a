"""Documents from folders, JSON lines and conversations; what is refused is counted, what is broken is named."""

import json
import os
from collections import Counter

import pytest

from etude.corpus.sources import Source, documents, fingerprint
from etude.errors import UserError


@pytest.fixture
def folder(tmp_path):
    for name, data in {
        "b.py": b"b = 1\n",
        "a/a.py": "# gr\u00fc\u00dfe\n".encode(),
        "notes.txt": b"not code",
        "binary.py": b"x\0y",
        "latin.py": b"# \xfc\n",
        "empty.py": b" \n",
        "large.py": b"x = 1\n" * 20,
        ".git/c.py": b"hidden",
        "__pycache__/d.py": b"cached",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    (tmp_path / "link.py").symlink_to(tmp_path / "b.py")
    return tmp_path


def test_a_folder_gives_its_text_files_in_order_and_counts_what_it_refuses(folder):
    refused = Counter()
    found = list(documents(Source(path=str(folder), suffixes=(".py",), max_bytes=100), refused=refused))
    assert [(d.name, d.text) for d in found] == [("a/a.py", "# grüße\n"), ("b.py", "b = 1\n")]
    assert refused == {"binary": 1, "encoding": 1, "empty": 1, "large": 1}


def test_the_fingerprint_changes_with_a_byte_a_name_and_how_it_is_read(folder):
    source = Source(path=str(folder), suffixes=(".py",))
    seen = {fingerprint(source), fingerprint(Source(path=str(folder), suffixes=(".py",), max_bytes=7))}
    (folder / "b.py").write_bytes(b"b = 2\n")
    seen.add(fingerprint(source))
    (folder / "b.py").rename(folder / "c.py")
    seen.add(fingerprint(source))
    assert len(seen) == 4
    assert fingerprint(source) in seen


def test_json_lines_give_their_field_and_a_line_without_it_is_named(tmp_path):
    file = tmp_path / "x.jsonl"
    file.write_text('{"code": "one"}\n\n{"code": "two"}\n')
    assert [d.text for d in documents(Source(path=str(file), field="code"))] == ["one", "two"]
    with pytest.raises(UserError, match=r"x\.jsonl:1: no text under 'text' \(there is: code\); set the source's field"):
        list(documents(Source(path=str(file))))
    file.write_text("{\n")
    with pytest.raises(UserError, match=r"x\.jsonl:1: not JSON"):
        list(documents(Source(path=str(file))))


def test_conversations_come_as_roles_and_contents(tmp_path):
    file = tmp_path / "chat.jsonl"
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    file.write_text(json.dumps({"messages": messages}) + "\n")
    assert next(documents(Source(path=str(file)), chat=True)).messages == (("user", "hi"), ("assistant", "ho"))
    file.write_text('{"messages": [{"role": "user", "content": null}]}\n')
    with pytest.raises(UserError, match="a message is"):
        list(documents(Source(path=str(file)), chat=True))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"path": "nowhere"}, "source nowhere does not exist"),
        ({"path": "x.bin"}, r"ends neither in \.jsonl nor in \.parquet"),
        ({"path": "empty"}, r"has no file that ends in \.py"),
    ],
)
def test_an_unusable_source_says_what_to_do(tmp_path, source, message):
    (tmp_path / "x.bin").touch()
    (tmp_path / "empty").mkdir()
    path = str(tmp_path / source["path"]) if source["path"] != "nowhere" else "nowhere"
    with pytest.raises(UserError, match=message):
        list(documents(Source(path=path, suffixes=(".py",))))


@pytest.mark.parametrize(
    "wrong", [{"kind": "csv"}, {"weight": 0.0}, {"weight": float("inf")}, {"weight": float("nan")}, {"max_bytes": 0}, {"suffixes": ("py",)}]
)
def test_a_wrong_setting_is_refused_at_once(wrong):
    with pytest.raises(UserError, match="source x: "):
        Source(path="x", **wrong)


def test_text_of_json_lines_is_refused_for_the_reasons_of_files(tmp_path):
    file = tmp_path / "x.jsonl"
    rows = ["a", None, " ", "x\0y", "\ud800", "b" * 200, "c"]
    file.write_text("\n".join(json.dumps({"text": row}) for row in rows))
    refused = Counter()
    assert [d.text for d in documents(Source(path=str(file), max_bytes=100), refused=refused)] == ["a", "c"]
    assert refused == {"empty": 2, "binary": 1, "encoding": 1, "large": 1}


@pytest.mark.parametrize("line", [b"[" * 200_000, b"\xff", b"{'a': 1}", b'{"text": 1', b'{"text": 1}', b"[1]"], ids=lambda line: line[:9])
def test_a_line_that_is_no_document_is_named(tmp_path, line):
    (tmp_path / "x.jsonl").write_bytes(b'{"text": "a"}\n' + line + b"\n")
    with pytest.raises(UserError, match=r"x\.jsonl:2: ") as caught:
        list(documents(Source(path=str(tmp_path / "x.jsonl"))))
    assert "\n" not in str(caught.value)


def test_what_would_block_or_leave_the_corpus_is_not_read(folder, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret.py").write_text("secret = 1\n")
    os.mkfifo(folder / "pipe.py")
    (folder / "away").symlink_to(outside)
    (folder / "dangling.py").symlink_to(outside / "none.py")
    found = [d.name for d in documents(Source(path=str(folder), suffixes=(".py",)))]
    assert found == ["a/a.py", "b.py", "large.py"]
    (folder / "x.toml").symlink_to(outside / "secret.py")
    with pytest.raises(UserError, match=r"no file that ends in \.toml \(1 links are not followed\)"):
        list(documents(Source(path=str(folder), suffixes=(".toml",))))
    for special in (str(folder / "pipe.py"), "/dev/zero"):
        with pytest.raises(UserError, match="is neither a file nor a folder"):
            list(documents(Source(path=special, kind="jsonl")))


def test_what_the_system_refuses_names_the_file(folder):
    (folder / "loop").symlink_to(folder / "loop")
    with pytest.raises(UserError, match=r"cannot read .*loop.*; mend it"):
        list(documents(Source(path=str(folder / "loop"))))
    reading = documents(Source(path=str(folder), suffixes=(".py",)))
    assert next(reading).name == "a/a.py"
    (folder / "b.py").unlink()
    with pytest.raises(UserError, match=r"cannot read .*b\.py: No such file or directory"):
        next(reading)


def test_names_in_any_script_or_encoding_are_read(tmp_path):
    (tmp_path / "grüße 😀.py").write_text("a")
    with open(os.fsencode(tmp_path) + b"/\xff.py", "w") as file:
        file.write("b")
    assert len(list(documents(Source(path=str(tmp_path))))) == 2
    assert fingerprint(Source(path=str(tmp_path)))
