"""A model puts instructions better: what is taken, refused, kept and paid, and a build that goes on without it."""

import contextlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from etude.agent.chat import plain_renderer, read_messages, said
from etude.agent.endpoint import EndpointError
from etude.agent.meter import Prices
from etude.errors import UserError
from etude.grade.grader import grade
from etude.store import TaskStore
from etude.synth.agentic.limits import EndpointModel
from etude.synth.agentic.models import Endpoint
from etude.synth.build import BuildOptions, build_tasks
from etude.synth.foreign.build import build_any
from etude.synth.instruct import Draft
from etude.synth.options import WriterOptions
from etude.synth.writer import PATIENCE, Writer, open_writer, wrong

TEXT = "Write `pairs` so that `f(1)` holds.\n\n```python\ndef pairs(items): ...\n```"
GOLD = ["def pairs(items):", "return 2 * items", "return items", "raise ValueError"]
FILES = {
    "calc/__init__.py": "from calc.ops import double, triple\n",
    "calc/ops.py": (
        'def double(x):\n    """Twice a number."""\n    return 2 * x\n\n\n'
        'def triple(x):\n    """Three times a number."""\n    return 3 * x\n\n\ndef other(x):\n    return x\n'
    ),
    "tests/test_ops.py": (
        "import calc\nfrom calc.ops import other\n\n\ndef test_double():\n    assert calc.double(2) == 4\n\n\n"
        "def test_triple():\n    assert calc.triple(2) == 6\n\n\n"
        + "\n\n\n".join(f"def test_other_{n}():\n    assert other({n}) == {n}" for n in range(4))
        + "\n"
    ),
}


class Scripted:
    """Says what `answer` makes of a prompt; each costs 100 tokens of input and 10 of output."""

    def __init__(self, answer, *, prices=None, name="script", context_tokens=None, whole=True):
        self.answer, self.name, self.prices, self.whole = answer, name, prices, whole
        self.renderer, self.unit, self.context_tokens = plain_renderer(), 3, context_tokens
        self.asked = []

    def policy(self, session, meter, limits):
        def ask(request):
            if not meter.room(100, 10):
                return None
            (prompt,) = [text for role, text in read_messages(self.renderer, request.ids) if role == "user"]
            self.asked.append(prompt)
            text = self.answer(prompt)
            meter.add(100, 10)
            return said(self.renderer, text, request.max_tokens, stopped=self.whole)

        return ask

    def end(self, session):
        pass


def better(prompt):
    return "Please! " + prompt.split("\n\n", 1)[1]


def fails(prompt):
    raise EndpointError("nobody is there")


# -- what may stand


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (f"Please. {TEXT}", ""),
        (TEXT.replace("Write", "Kindly write") + "\nIt may `raise ValueError` and return items.", ""),
        ("", "it is empty"),
        (TEXT.replace("pairs", "them"), "it has lost pairs"),
        (TEXT.replace("`f(1)`", "it"), "it has lost f(1)"),
        (TEXT.replace("items", "things"), "it has lost a block of code: def pairs(items): ..."),
        (f"{TEXT}\n\nreturn  2*items", "it holds code of the solution: return 2 * items"),
        (TEXT + " x" * 100, "it is too long"),
    ],
    ids=["good", "words that are code", "empty", "name", "span", "block", "gold", "long"],
)
def test_a_models_text_must_keep_what_is_needed_and_tell_nothing_more(answer, why):
    assert wrong(answer, TEXT, ["pairs"], GOLD) == why


def test_an_answer_is_taken_without_its_thoughts_and_asked_for_once(tmp_path):
    model = Scripted(lambda prompt: f"<think>Write return 2 * items.</think>\nPlease. {TEXT}", prices=Prices(input=10.0, output=100.0))
    writer = Writer(model, tmp_path)
    found = [writer.improve(Draft(text=TEXT), ["pairs"], GOLD) for _ in range(2)]
    again = Writer(model, tmp_path)
    found.append(again.improve(Draft(text=TEXT), ["pairs"], GOLD))
    assert [each.text for each in found] == [f"Please. {TEXT}"] * 3
    assert found[0] == found[2]
    assert found[0].evidence == {"model": "script", "taken": True, "input_tokens": 100, "output_tokens": 10}
    assert len(model.asked) == 1
    assert (writer.spent()["asked"], writer.spent()["kept"], writer.spent()["dollars"]) == (1, 1, 0.002)
    assert (again.spent()["asked"], again.spent()["kept"], again.spent()["dollars"]) == (0, 1, 0.0)


def test_many_threads_with_one_prompt_ask_once(tmp_path):
    model = Scripted(lambda prompt: (time.sleep(0.05), f"{len(model.asked)} {TEXT}")[1])
    writer, found = Writer(model, tmp_path), []
    threads = [threading.Thread(target=lambda: found.append(writer.improve(Draft(text=TEXT), [], []).text)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [f"1 {TEXT}"] * 4


def test_an_answer_that_is_damaged_on_disk_is_asked_for_again(tmp_path):
    model = Scripted(better)
    Writer(model, tmp_path).improve(Draft(text=TEXT), [], [])
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:20])
    assert Writer(model, tmp_path).improve(Draft(text=TEXT), [], []).is_taken
    assert file.read_bytes() == whole


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (Scripted(fails), "no answer: nobody is there"),
        (Scripted(better, whole=False), "it is cut off"),
        (Scripted(better, context_tokens=20), "no answer: the prompt is longer than its context"),
    ],
    ids=["fails", "cut off", "too long"],
)
def test_without_a_whole_answer_the_draft_stays(tmp_path, model, why):
    found = Writer(model, tmp_path).improve(Draft(text=TEXT), [], [])
    assert (found.text, found.is_taken, found.evidence["reason"]) == (TEXT, False, why)


def test_who_fails_again_and_again_is_not_asked_any_more(tmp_path):
    model = Scripted(fails)
    writer = Writer(model, tmp_path)
    found = [writer.improve(Draft(text=f"{TEXT} {n}"), [], []) for n in range(PATIENCE + 2)]
    assert not any(each.is_taken for each in found)
    assert len(model.asked) == PATIENCE
    assert (writer.spent()["failed"], writer.spent()["not_asked"]) == (PATIENCE, 2)
    assert not list(tmp_path.iterdir())  # nothing to go by another time


def test_no_more_dollars_are_spent_than_allowed(tmp_path):
    model = Scripted(better, prices=Prices(input=10_000.0, output=0.0))
    writer = open_writer(WriterOptions(where="local", dollars=1.5), tmp_path, model)
    found = [writer.improve(Draft(text=f"{TEXT} {n}"), [], []) for n in range(2)]
    assert [each.is_taken for each in found] == [True, False]
    assert "limit of $1.5" in found[1].evidence["reason"]
    with pytest.raises(UserError, match="needs prices"):
        open_writer(WriterOptions(where="local", dollars=1.5), tmp_path, Scripted(better))


def test_mistakes_are_one_line():
    with pytest.raises(UserError, match="no writer 'gpt'; give the address"):
        WriterOptions(where="gpt")
    with pytest.raises(UserError, match="which model of http"):
        open_writer(WriterOptions(where="http://127.0.0.1:1"), None)


# -- builds


def lay(folder, files):
    for path, data in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(data)
    return folder


def options(where="local", **more):
    return BuildOptions(modes=("stub",), gates="quick", max_share=0.5, max_candidates=2, jobs=1, writer=WriterOptions(where=where, **more))


@pytest.fixture(scope="module")
def built(tmp_path_factory, backend):
    """A model that improves `double` and loses the name of `triple`: (report, folder, source, model)."""
    folder = tmp_path_factory.mktemp("writer")
    model = Scripted(lambda prompt: better(prompt) if "double" in prompt else "Write it.", prices=Prices(input=1.0, output=2.0))
    source = str(lay(folder / "calc", FILES))
    return build_tasks(source, folder / "tasks", options=options(), backend=backend, model=model), folder / "tasks", source, model


def of(store, name):
    (task,) = [task for task in store.tasks() if [symbol.qualname for symbol in task.symbols] == [name]]
    return task


def test_a_build_takes_what_is_complete_and_says_why_not_the_rest(built, backend):
    report, out, _, _ = built
    store = TaskStore.open(out)
    double, triple = of(store, "double"), of(store, "triple")
    assert double.instruction.startswith("Please! ")
    assert double.instruction.endswith("tests and configuration are not taken over.\n")
    assert double.evidence["writer"] == {"model": "script", "taken": True, "input_tokens": 100, "output_tokens": 10}
    assert not triple.instruction.startswith("Please!")
    assert triple.evidence["writer"]["reason"].startswith("it has lost ")
    assert (report.writer["taken"], report.writer["refused"]) == (1, {"it has lost something": 1})
    assert (report.writer["asked"], report.writer["input_tokens"], report.writer["dollars"]) == (2, 200, 0.00024)
    assert grade(double, double.gold, store=store, backend=backend).solved


def test_a_repeated_build_asks_nobody_and_gives_the_same_bytes(built, backend):
    report, out, source, model = built
    before = {file.name: file.read_bytes() for file in out.glob("*.json")}
    asked = len(model.asked)
    again = build_tasks(source, out, options=options(), backend=backend, model=model)
    assert len(model.asked) == asked
    assert (again.tasks, again.writer["asked"], again.writer["kept"]) == (report.tasks, 0, 2)
    assert {file.name: file.read_bytes() for file in out.glob("*.json")} == before


class Server:
    """An OpenAI-compatible endpoint that answers as `answer` tells for the prompt: a text, or None for an error."""

    def __init__(self, answer):
        self.asked, outer = [], self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.asked.append((body, self.headers.get("Authorization")))
                text = answer(body["messages"][-1]["content"])
                told = {"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}
                told["usage"] = {"prompt_tokens": 70, "completion_tokens": 30}
                data = b"<html>busy</html>" if text is None else json.dumps(told).encode()
                with contextlib.suppress(OSError):  # whoever asked may have gone
                    self.send_response(400 if text is None else 200)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)

            def finish(self):
                with contextlib.suppress(OSError):
                    super().finish()

            def log_message(self, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"

    def __enter__(self):
        return self

    def __exit__(self, *rest):
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


def test_a_build_asks_a_real_endpoint_and_one_that_refuses_or_is_slow_does_not_stop_it(tmp_path, backend):
    source = str(lay(tmp_path / "calc", FILES))
    with Server(better) as server:
        report = build_any(source, tmp_path / "good", options=options(server.url, model="big", prices="1,2"), backend=backend)
        assert (report.writer["model"], report.writer["taken"], report.writer["asked"]) == ("big", 2, 2)
        assert (report.writer["input_tokens"], report.writer["output_tokens"], report.writer["dollars"]) == (140, 60, 0.00026)
        assert [body["temperature"] for body, _ in server.asked] == [0.0, 0.0]
    with Server(lambda prompt: None if "double" in prompt else time.sleep(1)) as server:
        model = EndpointModel(Endpoint(server.url, "big", deadline_s=0.2, tries=1))
        report = build_tasks(source, tmp_path / "bad", options=options(), backend=backend, model=model)
    assert len(report.tasks) == 2
    assert (report.writer["taken"], report.writer["failed"], report.writer["refused"]) == (0, 2, {"no answer": 2})
    told = sorted(task.evidence["writer"]["reason"] for task in TaskStore.open(tmp_path / "bad").tasks())
    assert any("400: <html>busy</html>" in each for each in told)
    assert any("no answer in time" in each for each in told)
