"""An agent's deletions, from scripted texts through the real harness, sandbox, proof and assembly."""

import json
import threading
from pathlib import Path

import pytest

from etude.agent.calls import write_call
from etude.agent.chat import plain_renderer, said
from etude.agent.meter import Prices
from etude.errors import UserError
from etude.grade.grader import grade
from etude.store import TaskStore
from etude.synth.agentic.limits import AgentLimits
from etude.synth.agentic.propose import Proposer
from etude.synth.agentic.record import RecordedModel, read_record
from etude.synth.agentic.run import NoTask, build_with_agent
from etude.synth.build import BuildOptions, build_tasks

GOLDEN = Path(__file__).parents[2] / "golden" / "agent_run.jsonl"
FILES = {
    "shop/__init__.py": 'from shop.cart import Cart\nfrom shop.tax import rate, tax\n\n__all__ = ["Cart", "rate", "tax"]\n',
    "shop/cart.py": (
        "from shop.tax import tax\n\n\nclass Cart:\n    def __init__(self):\n        self.items = []\n\n"
        "    def add(self, price):\n        self.items.append(price)\n        return self\n\n"
        "    def total(self, country=None):\n        total = sum(self.items)\n"
        "        if country:\n            total += tax(total, country)\n"
        "        return total\n\n    def __len__(self):\n        return len(self.items)\n"
    ),
    "shop/tax.py": (
        'RATES = {"DE": 0.19, "FR": 0.2}\n\n\ndef rate(country):\n    """The share of a price that is tax."""\n'
        "    if country not in RATES:\n        raise KeyError(country)\n    return RATES[country]\n\n\n"
        "def tax(price, country):\n    share = rate(country)\n"
        "    return round(price * share, 2)\n"
    ),
    "shop/words.py": (
        "def plural(word, count):\n    if count == 1:\n        return word\n    return word + 's'\n\n\ndef one():\n    return 1\n"
    ),
    "tests/test_cart.py": (
        "from shop import Cart\n\n\ndef test_add():\n    assert Cart().add(2).add(3).total() == 5\n\n\n"
        "def test_empty():\n    assert Cart().total() == 0\n\n\ndef test_len():\n    assert len(Cart().add(1)) == 1\n"
    ),
    "tests/test_tax.py": (
        "import pytest\n\nfrom shop import Cart, rate, tax\n\n\ndef test_tax():\n    assert tax(100, 'DE') == 19\n\n\n"
        "def test_unknown():\n    with pytest.raises(KeyError):\n        rate('XX')\n\n\n"
        "def test_cart_with_tax():\n    assert Cart().add(100).total('FR') == 120\n"
    ),
    "tests/test_words.py": (
        "from shop.words import one, plural\n\n\ndef test_plural():\n    assert plural('cat', 2) == 'cats'\n\n\n"
        "def test_one():\n    assert plural('cat', 1) == 'cat'\n\n\ndef test_number():\n    assert one() == 1\n\n\n"
        "def test_a(): pass\n\n\ndef test_b(): pass\n"
    ),
    "pyproject.toml": '[project]\nname = "shop"\nversion = "1.0"\n',
}


def call(name, **arguments):
    return write_call(name, arguments)


def submit(*symbols, feature="Taxes", summary="What a country takes of a price."):
    return call("submit", feature=feature, symbols=", ".join(symbols), summary=summary)


TAXES = [
    "Let me see.\n" + call("suggest"),
    call("tests_of", symbol="tax") + call("only", tests="tests/test_tax.py"),
    call("delete", path="shop/tax.py"),
    call("edit", path="shop/__init__.py", old="from shop.tax import rate, tax\n", new=""),
    call("edit", path="shop/__init__.py", old=', "rate", "tax"', new=""),
    call("edit", path="shop/cart.py", old="from shop.tax import tax\n\n\n", new=""),
    call("delete", path="shop/cart.py", start=11, end=12),
    call("test"),
    submit("rate", "tax"),
]


class Scripted:
    """Says the texts of a run; each answer costs 100 tokens of input and 10 of output."""

    def __init__(self, *runs, prices=None, name="script"):
        self.name, self.prices, self.runs = name, prices, runs
        self.renderer, self.unit, self.context_tokens = plain_renderer(), 3, None
        self.asked = []  # session of every question
        self._lock = threading.Lock()
        self._sessions = {}

    def policy(self, session, meter, limits):
        with self._lock:
            texts = iter(self.runs[self._sessions.setdefault(session, len(self._sessions)) % len(self.runs)])

        def ask(request):
            if not meter.room(100, 10):
                return None
            text = next(texts, None)
            if text is None:
                return None
            self.asked.append(session)
            meter.add(100, 10)
            return said(self.renderer, text, request.max_tokens)

        return ask

    def end(self, session):
        pass


def lay(folder, files):
    for path, data in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(data)
    return folder


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    return lay(tmp_path_factory.mktemp("source") / "shop", FILES)


def build(shop, out, model, backend, **more):
    limits = AgentLimits(**{"runs": 1, "turns": 16, **more})
    return build_with_agent(str(shop), out, model=model, limits=limits, options=BuildOptions(jobs=1), backend=backend)


@pytest.fixture(scope="module")
def built(shop, tmp_path_factory, backend):
    """The taxes taken out: (build report, agent's report, store, model)."""
    out = tmp_path_factory.mktemp("agent") / "tasks"
    model = Scripted(TAXES, prices=Prices(input=2.0, output=10.0))
    report, agent = build(shop, out, model, backend, dollars=1.0)
    return report, agent, TaskStore.open(out), model


def test_a_deletion_becomes_a_task_that_the_grader_takes(built, backend):
    report, _, store, _ = built
    (task,) = store.tasks()
    assert report.tasks == (task.id,)
    assert (report.tried, report.valid) == ({"agent": 1}, {"agent": 1})
    assert [symbol.qualname for symbol in task.symbols] == ["rate", "tax"]
    assert task.fail_to_pass == ("tests/test_tax.py::test_cart_with_tax", "tests/test_tax.py::test_tax", "tests/test_tax.py::test_unknown")
    assert "`Cart.total` in `shop/cart.py`" in task.instruction
    assert grade(task, task.gold, store=store, backend=backend).solved
    assert not grade(task, "", store=store, backend=backend).solved
    assert not (store.workspace(task) / "shop/tax.py").exists()


def test_a_deletion_of_an_agent_passes_every_gate(shop, tmp_path, backend):
    limits = AgentLimits(runs=1, turns=16)
    options = BuildOptions(jobs=1, gates="full")
    report, _ = build_with_agent(str(shop), tmp_path / "tasks", model=Scripted(TAXES), limits=limits, options=options, backend=backend)
    (task,) = TaskStore.open(tmp_path / "tasks").tasks()
    assert report.tasks == (task.id,)
    gates = task.evidence["gates"]
    assert gates["residue"] == {"findings": 0}
    assert (gates["inverse"]["symbols"], gates["inverse"]["matter"]) == (2, 2)
    assert gates["mutation"]["noticed"] * 2 >= gates["mutation"]["mutants"] > 0
    assert gates["pass_to_pass"]["runs"] == gates["fail_to_pass"]["runs"] == 3


def test_a_task_tells_who_made_it_of_what_and_what_it_cost(built):
    _, agent, store, _ = built
    (task,) = store.tasks()
    told = task.evidence
    assert (told["agent"], told["feature"], told["summary"]) == ("script", "Taxes", "What a country takes of a price.")
    assert (told["turns"], told["input_tokens"], told["output_tokens"], told["dollars"]) == (9, 900, 90, 0.0027)
    assert told["facts"] == {
        "files": 3,
        "symbols": 2,
        "groups": 1,
        "removed_lines": 14,
        "added_lines": 1,
        "tests": 3,
        "also_changed": ["shop/cart.py:Cart.total"],
    }
    assert agent.line() == "script: 1 of 1 candidates valid (100%), 990 tokens, $0.00, $0.003 a valid task"
    assert agent.outcomes[0].task == task.id


def test_a_run_is_recorded_with_what_it_read(built):
    _, agent, store, _ = built
    lines = [json.loads(line) for line in (store.path / ".builds/agent" / f"{agent.outcomes[0].run.key}.jsonl").read_text().splitlines()]
    assert (lines[0]["record"], lines[0]["model"], lines[0]["repo"], lines[0]["prices"]) == ("agent_run", "script", "shop", [2.0, 10.0])
    assert [line["text"] for line in lines[1:-1]] == TAXES
    shown = [line["observations"] for line in lines[1:-1]]
    assert "set, 7 lines, " in shown[0][0]["text"] or "function, " in shown[0][0]["text"]
    assert shown[1][0]["text"].startswith("shop/tax.py:11-13 tax: 2 of 11 tests")
    assert shown[1][1]["text"].startswith("reached by 3 tests and no others:\nshop/tax.py:4-8 rate: 3 of them\nshop/tax.py:11-13 tax: 2")
    assert shown[6][0]["text"].startswith("deleted lines 11 to 12 of shop/cart.py, `if country:` to `total += tax(total, country)`")
    assert "tests/test_tax.py: " in shown[7][0]["text"]
    assert "8 of 11 tests pass, 0 fail" in shown[7][0]["text"]
    assert (lines[-1]["end"], lines[-1]["feature"], lines[-1]["symbols"], lines[-1]["turns"]) == ("finished", "Taxes", ["rate", "tax"], 9)


def test_a_second_build_asks_nobody_and_gives_the_same_bytes(built, shop, backend):
    report, agent, store, model = built
    (task,) = store.tasks()
    before = (store.path / f"{task.id}.json").read_bytes()
    asked = len(model.asked)
    (store.path / f"{task.id}.json").unlink()
    again, costs = build(shop, store.path, model, backend, dollars=1.0)
    assert again.tasks == report.tasks
    assert (store.path / f"{task.id}.json").read_bytes() == before
    assert len(model.asked) == asked
    assert costs == agent


PLURAL = call("delete", path="shop/words.py", start=1, end=6)
REFUSED = {
    "an impure edit": (
        [call("edit", path="shop/words.py", old="count == 1", new="count"), PLURAL.replace('"end": 6', '"end": 2')],
        submit("plural"),
        "shop/words.py",
    ),
    "a body that raises": (
        [
            call(
                "edit",
                path="shop/words.py",
                old="    if count == 1:\n        return word\n    return word + 's'",
                new="    raise ValueError",
            )
        ],
        submit("plural"),
        "shop/words.py: `raise ValueError` is not in the original like this",
    ),
    "sabotage of one line": (
        [call("edit", path="shop/cart.py", old="        self.items.append(price)\n", new="")],
        submit("Cart.add"),
        "shop/cart.py:9: `self.items.append(price)` in Cart.add, which stays, is gone but has nothing to do with",
    ),
    "too little": ([call("delete", path="shop/words.py", start=7, end=8)], submit("one"), "only 2 lines of code are gone"),
    "too much": (
        [
            call("delete", path="shop/cart.py"),
            call("edit", path="shop/__init__.py", old="from shop.cart import Cart\n", new=""),
            call("edit", path="shop/__init__.py", old='"Cart", ', new=""),
            PLURAL,
        ],
        submit("Cart", "plural"),
        "55% of the tests reach it; at most 40% may",
    ),
    "nothing": ([], submit("tax"), "nothing was deleted"),
    "a name that is not gone": ([PLURAL], submit("plural", "tax"), "symbols names tax, which is not gone"),
    "a name that is not said": (
        [call("delete", path="shop/words.py")],
        submit("plural"),
        "one is gone too, but not in symbols; name it or put it back",
    ),
    "a file that does not parse": ([call("delete", path="shop/words.py", start=1, end=1)], submit("plural"), "no longer parses"),
}


LOOP = [call("list", path="shop")] * 100
RICH = Prices(input=100.0, output=1000.0)  # two cents an answer
LIMITED = {
    "turns": ({"turns": 3}, LOOP, None, "its turns are used up", 3),
    "tokens": ({"tokens": 500}, LOOP, None, "the limit of 500 tokens is reached", 4),
    "context": ({"context_tokens": 1000}, LOOP, None, "its context is full", 9),
    "dollars": ({"dollars": 0.05}, LOOP, RICH, "the limit of $0.05 is reached", 2),
    "dollars of all": ({"total_dollars": 0.07}, LOOP, RICH, "the limit of $0.07 for all candidates is reached", 3),
    "submissions": ({}, [submit("tax")] * 9, None, "the agent's deletion was refused 4 times, last: nothing was deleted", 4),
}
FOREIGN = [
    (call("delete", path="tests/test_tax.py"), "tests/test_tax.py is a test; tests of what is gone are taken out by themselves"),
    (call("edit", path="pyproject.toml", old="1.0", new=""), "pyproject.toml is no source file; only code may go"),
    (call("delete", path="shop/new.py"), "there is no file shop/new.py"),
    (call("delete", path="../shop/tax.py"), "is outside the repository"),
    (call("write", path="shop/a.py", content="x"), "tool not found: write"),
    (call("run", command="rm -r ."), "tool not found: run"),
    (call("edit", path="shop/tax.py", old="price", new="price + 1"), "new is no shorter than old"),
    (call("edit", path="shop/tax.py", old="country", new=""), "old text found 6 times in shop/tax.py"),
    (call("delete", path="shop/tax.py", start=3, end=99), "shop/tax.py has 13 lines; there are no lines 3 to 99"),
    (call("tests_of", symbol="nobody"), "no definition nobody"),
    (call("only", tests="test_nothing"), "no test that passes every time has this in its id"),
    (call("restore", path="shop/tax.py"), "shop/tax.py is as it was"),
    (call("test"), "there are no test runs left"),
    ("I am done.", "no tool call in the message"),
]


class Case:
    """One run in the build of all cases."""

    def __init__(self, folder, model, **limits):
        self.proposer = Proposer(model, AgentLimits(**{"runs": 1, **limits}), folder)
        self.model, self.outcome = model, None

    @property
    def run(self):
        (run,) = self.proposer.runs.values()
        return run

    @property
    def record(self):
        return self.proposer.folder / f"{self.run.key}.jsonl"

    @property
    def turns(self):
        return [line for line in map(json.loads, self.record.read_text().splitlines()) if "turn" in line]


@pytest.fixture(scope="module")
def cases(built, shop, tmp_path_factory, backend):
    """Every case by name, its outcome a Task or the reason why there is none."""
    folder = tmp_path_factory.mktemp("cases")
    _, agent, store, model = built
    found = {name: Case(folder, Scripted([*texts, end], name=name)) for name, (texts, end, _) in REFUSED.items()}
    for name, (limits, texts, prices, _, _) in LIMITED.items():
        found[name] = Case(folder, Scripted(texts, prices=prices, name=f"limit of {name}"), **limits)
    found["foreign"] = Case(folder, Scripted([text for text, _ in FOREIGN], name="foreign"), test_runs=0)
    found["golden"] = Case(folder, RecordedModel(GOLDEN))
    found["poor"] = Case(folder, Scripted([PLURAL, *[call("suggest")] * 9], prices=RICH, name="spender"), dollars=0.1)
    found["richer"] = Case(folder, Scripted([submit("plural", feature="Words")], prices=RICH, name="spender"), dollars=1.0)
    record = store.path / ".builds/agent" / f"{agent.outcomes[0].run.key}.jsonl"
    whole = record.read_bytes().splitlines(keepends=True)
    torn = tmp_path_factory.mktemp("torn")
    (torn / record.name).write_bytes(b"".join(whole[:6]) + whole[6][:20])
    found["killed"] = Case(torn, Scripted(TAXES[5:], prices=model.prices), dollars=1.0)

    def find(workshop, baseline, options, made):
        for case in found.values():
            case.idea = next(case.proposer.find(workshop, baseline, options, made))
            yield case.idea

    out = tmp_path_factory.mktemp("built") / "tasks"
    options = BuildOptions(jobs=1, kinds=("agent",), max_candidates=None)
    report = build_tasks(str(shop), out, options=options, backend=backend, finders={"agent": find})
    tasks = {task.evidence["agent_run"]: task for task in TaskStore.open(out).tasks()}
    for case in found.values():
        case.outcome = report.rejected.get(case.idea.name) or tasks[case.run.key]
    return found


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_deletion_of_a_feature_is_refused_with_the_reason(cases, name):
    case = cases[name]
    assert case.outcome.startswith("the agent submitted nothing that holds: it fell silent; its last submission was refused: ")
    assert REFUSED[name][2] in case.outcome
    assert case.turns[-1]["observations"][0]["error"] == "tool_failed"
    assert case.turns[-1]["observations"][0]["text"].startswith("error: not accepted: ")


@pytest.mark.parametrize("name", LIMITED)
def test_every_limit_ends_a_run_with_its_reason(cases, name):
    assert LIMITED[name][3] in cases[name].outcome
    assert cases[name].run.turns == LIMITED[name][4]


def test_tools_refuse_what_is_not_theirs(cases):
    assert cases["foreign"].outcome == "the agent submitted nothing that holds: it fell silent"
    for (_, why), turn in zip(FOREIGN, cases["foreign"].turns, strict=True):
        assert why in turn["observations"][0]["text"]


def test_a_replayed_transcript_gives_the_task(cases):
    case, golden = cases["golden"], read_record(GOLDEN)
    assert (case.outcome.evidence["agent"], case.outcome.evidence["feature"]) == ("some-model", "Plural words")
    assert (case.outcome.id, case.run.dollars) == (golden.end["task"], golden.end["dollars"])
    assert read_record(case.record).turns == golden.turns


def test_a_run_that_was_killed_goes_on_where_it_was(cases, built):
    _, agent, store, _ = built
    assert [cases["killed"].outcome] == store.tasks()
    assert len(cases["killed"].model.asked) == 4
    assert cases["killed"].record.read_bytes() == (store.path / ".builds/agent" / cases["killed"].record.name).read_bytes()
    assert cases["killed"].run.dollars == agent.dollars


def test_more_dollars_let_a_run_go_on(cases):
    assert "the limit of $0.1 is reached" in cases["poor"].outcome
    assert cases["richer"].outcome == f"same cut as {cases['golden'].outcome.id}"
    assert (len(cases["richer"].model.asked), cases["richer"].run.turns) == (1, 6)


def test_a_build_without_a_task_says_what_it_cost(shop, tmp_path, backend):
    why = r"shop gives no task: 2 candidates, first agent script 0 .*: the agent submitted nothing that holds: .*; script: 0 of 2 "
    with pytest.raises(NoTask, match=why) as raised:
        build(shop, tmp_path / "tasks", Scripted(["Hello.", "Bye."], ["?"]), backend, runs=2)
    report = raised.value.report
    assert (report.valid_share, report.input_tokens, report.output_tokens, report.dollars) == (0.0, 300, 30, None)


def test_mistakes_are_one_line(shop, tmp_path, backend):
    with pytest.raises(UserError, match="a limit in dollars needs prices"):
        build(shop, tmp_path / "a", Scripted(TAXES), backend, dollars=1.0)
    with pytest.raises(UserError, match="the agent's turns is 0; give 1 or more"):
        AgentLimits(turns=0)
    (tmp_path / "b.jsonl").write_text('{"record": "task"}\n')
    with pytest.raises(UserError, match=r"b.jsonl is no record of an agent's run"):
        RecordedModel(tmp_path / "b.jsonl")
    (tmp_path / "c.jsonl").write_text("x\n")
    with pytest.raises(UserError, match=r"c.jsonl:1 is not JSON"):
        RecordedModel(tmp_path / "c.jsonl")
    with pytest.raises(UserError, match="cannot be read: No such file"):
        RecordedModel(tmp_path / "d.jsonl")
