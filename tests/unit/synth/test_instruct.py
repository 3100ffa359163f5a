"""Instructions at their levels: complete whatever the level, and no more than the level tells."""

from pathlib import Path
from types import SimpleNamespace

from etude.synth.instruct import choose_visible, draft, missing_identifiers, needed_names
from etude.synth.proposal import propose_change, propose_cut
from etude.synth.prove import Proof
from etude.synth.write import words_of
from etude.synth.writer import gold_lines

FILES = {
    "pkg/__init__.py": "from .core import *\n",
    "pkg/core.py": '''\
__all__ = ["pairs", "total"]


def pairs(items, size=2, *, strict=False):
    """Cut items into groups.

    The last group may be shorter.

    >>> pairs([1, 2, 3])
    [(1, 2), (3,)]
    """
    if size < 1:
        raise ValueError("size must be positive")
    return [tuple(items[start : start + size]) for start in range(0, len(items), size)]


def total(items):
    return sum(items)
''',
    "tests/conftest.py": "import pytest\n\n\n@pytest.fixture\ndef three():\n    import pkg\n    return pkg.pairs([1, 2, 3])\n",
    "tests/test_core.py": """\
import pytest
from pkg import pairs as cut, total
from pkg.core import pairs


def test_pairs():
    assert cut([1, 2, 3, 4]) == [(1, 2), (3, 4)]
    assert cut([], strict=True) == []


def test_size():
    with pytest.raises(ValueError, match="positive"):
        pairs([1], size=0)


def test_three(three):
    local = three
    assert len(local) == 2


def test_total():
    assert total([1]) == 1
""",
}


class Case:
    """A proof that nobody ran: instructions are made from texts alone."""

    def __init__(self, repository, make, messages=None, failing=("test_pairs", "test_size", "test_three")):
        self.repo = repository(FILES)
        layout = SimpleNamespace(sources=self.repo.sources, tests=self.repo.tests)
        self.workshop = SimpleNamespace(index=self.repo.index, layout=layout, repo=SimpleNamespace(name="pkg"), files={})
        proposal = make(self)
        self.tests = [self.repo.definition(name) for name in failing]
        self.words = {path: words_of(FILES[path]) for path in self.repo.sources}
        self.proof = Proof(
            proposal=proposal,
            source_changes=proposal.source_changes,
            changes=proposal.source_changes,
            fail_to_pass=tuple(f"tests/test_core.py::{name}" for name in failing),
            pass_to_pass=(),
            lost=(),
            num_runs=0,
            hidden_tree=Path(),
            agent_tree=Path(),
            messages=messages or {},
        )

    def text(self, level, **options):
        text = draft(self.workshop, self.proof, self.tests, self.words, level=level, **options).whole()
        assert missing_identifiers(self.workshop, self.proof, self.tests, self.words, text) == []
        return text


def deletion(case, mode="remove"):
    return propose_cut(case.workshop, [case.repo.definition("pairs")], mode, name="pairs", tests=None)


def bug(case):
    data = FILES["pkg/core.py"].replace("size < 1", "size < 0").encode()
    symbols = [case.repo.definition("pairs")]
    return propose_change(
        case.workshop, {"pkg/core.py": data}, kind="bug_injection", name="b", mode="stub", symbols=symbols, tests=None
    )  # fmt: skip


def test_level_a_has_signature_and_docstring(repository):
    text = Case(repository, deletion).text("A")
    assert "def pairs(items, size=2, *, strict=False):" in text
    assert ">>> pairs([1, 2, 3])" in text


def test_level_b_has_names_and_behaviour_and_no_signature(repository):
    text = Case(repository, deletion).text("B")
    assert "gone from `pkg/core.py`" in text
    assert "- `pairs`: Cut items into groups. It takes `items`, `size` and by keyword only `strict`" in text
    assert "It raises `ValueError` (size must be positive) when `size < 1`." in text
    assert "`pairs([1, 2, 3])` gives `[(1, 2), (3,)]`" in text
    assert "def pairs" not in text


def test_level_c_names_what_hidden_tests_need_and_nothing_else(repository):
    text = Case(repository, deletion).text("C")
    assert "Cut items into groups." in text
    assert "The hidden tests reach it as `pkg.core.pairs`, `pkg.pairs`." in text.replace(
        "`pkg.pairs`, `pkg.core.pairs`", "`pkg.core.pairs`, `pkg.pairs`"
    )
    assert "with a message that matches `positive`" in text  # a test asks for it
    assert "strict" in text  # a keyword that a hidden test gives
    assert "pkg/core.py" not in text
    assert "It takes" not in text


def test_names_that_only_a_fixture_or_an_import_alias_of_hidden_tests_uses_are_missed(repository):
    case = Case(repository, deletion)
    case.tests = [case.repo.definition("test_three")]
    assert missing_identifiers(case.workshop, case.proof, case.tests, case.words, "nothing") == ["pairs"]
    case.tests = [case.repo.definition("test_pairs")]
    assert missing_identifiers(case.workshop, case.proof, case.tests, case.words, "nothing") == ["pairs", "strict"]
    case.tests = [case.repo.definition("test_total")]
    assert missing_identifiers(case.workshop, case.proof, case.tests, case.words, "nothing") == []


def test_a_bug_is_told_by_its_symptoms(repository):
    said = {"tests/test_core.py::test_size": "Failed: DID NOT RAISE <class 'ValueError'>"}
    case = Case(repository, bug, messages=said, failing=("test_size",))
    texts = {level: case.text(level) for level in "ABC"}
    seen = "- `pairs([1], size=0)` raises nothing; `ValueError` with a message that matches `positive` was expected."
    assert all(seen in text for text in texts.values())
    assert "`pairs` in `pkg/core.py`" in texts["A"]
    assert "wrong in `pairs`" in texts["B"]
    assert "core" not in texts["C"]


def test_where_no_symptom_can_be_told_a_test_is_quoted(repository):
    case = Case(repository, bug, messages={}, failing=("test_size",))
    assert "def test_size():" in case.text("C")


def test_a_share_of_the_tests_is_quoted_and_never_all_of_several(repository):
    case = Case(repository, deletion)
    chosen = [[test.name for test in choose_visible(case.tests, share)] for share in (0, 0.3, 0.3, 0.9, 1)]
    assert [len(names) for names in chosen] == [0, 1, 1, 2, 3]
    assert chosen[1] == chosen[2]
    text = case.text("B", visible=0.3)
    assert f"def {chosen[1][0]}(" in text
    assert "One of the hidden tests is:\n\n```python\n# tests/test_core.py\ndef test_" in text


def test_lines_of_gold_are_those_of_what_is_to_be_written_without_docstrings(repository):
    case = Case(repository, deletion)
    found = gold_lines(case.repo.index, case.proof.proposal)
    assert {'raise ValueError("size must be positive")', "if size < 1:"} < set(found)
    assert not any("Cut items" in line or ">>>" in line for line in found)


def test_names_are_needed_of_a_text_that_only_it_tells(repository):
    case = Case(repository, deletion)
    made = draft(case.workshop, case.proof, case.tests, case.words, level="C")
    assert needed_names(case.workshop, case.proof, case.tests, case.words, made) == ["pairs", "size", "strict"]
    case = Case(repository, lambda case: deletion(case, "stub"))
    made = draft(case.workshop, case.proof, case.tests, case.words, level="C")
    assert needed_names(case.workshop, case.proof, case.tests, case.words, made) == []
