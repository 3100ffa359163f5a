"""A report of what a bug does: what was called, what came, what was expected. It tells no more than a user would see.

In: the functions of the tests that fail, what their calls come to, and the one line that each failed test gave; out: `Symptom`s, and as
text for a level. What was observed of a test's calls goes before its line. One crash is told once.

    A  names the function and its file          B  names the function            C  names neither

Not here: which tests fail (prove.py), what calls they make (examples.py), what comes of them (observe.py).
"""

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from etude.synth.examples import Example, code, test_examples
from etude.synth.names import Index, Key
from etude.synth.observe import Observed
from etude.synth.source import Definition

MAX_SYMPTOMS = 6
MAX_OBSERVED = 2  # of one test
MAX_LISTED = 4  # calls of one test
MAX_MESSAGE = 160  # characters
BARE = re.compile(r"(?:AssertionError: )?assert (not )?\w+\b.*", re.DOTALL)
COMPARED = re.compile(r"(?:AssertionError: )?assert (.+?) == (.+)", re.DOTALL)
RAISED = re.compile(
    r"(?:[\w.]+\.)?(\w*(?:Error|Exception|Warning|Interrupt|Iteration|Exit|Failed|Timeout|NotFound|Missing))\b:?\s*(.*)", re.DOTALL
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    test: str  # the test's function
    called: str  # "" where the call does not stand for itself
    came: str  # "" where it is not known
    expected: str
    helpers: tuple[str, ...] = ()
    is_clear: bool = False  # says where to begin
    crash: str = ""  # the exception

    @property
    def sentence(self) -> str:
        if self.called and self.came:
            return f"{code(self.called)} {self.came}; {self.expected} was expected."
        if self.called:
            return f"{code(self.called)} does not do what it should: {self.expected} was expected."
        return f"{self.came[0].upper()}{self.came[1:]}." if self.came else ""


def symptoms(
    index: Index,
    tests: Mapping[str, Definition],
    messages: Mapping[str, str],
    observed: Mapping[Key, Sequence[Observed]] | None = None,
) -> list[Symptom]:
    """`tests`: failed node id -> its function; one or two symptoms of each function, in the order of ids."""
    found: dict[str, Symptom] = {}
    seen = observed or {}
    for id in sorted(tests):
        test = tests[id]
        told = [_observed(test, each) for each in seen.get(test.key, ())[:MAX_OBSERVED]]
        if not told and id in messages:
            told = _of(index, test, messages[id])
        for symptom in told:
            if symptom.sentence:
                found.setdefault(symptom.sentence, symptom)
    crashes: dict[str, Symptom] = {}
    for symptom in sorted(found.values(), key=lambda symptom: not symptom.is_clear):  # of one crash the clearest
        crashes.setdefault(symptom.crash or symptom.sentence, symptom)
    return [symptom for symptom in found.values() if symptom is crashes[symptom.crash or symptom.sentence]]


def _observed(test: Definition, seen: Observed) -> Symptom:
    example = seen.example
    crash = seen.came if seen.verb == "raises" else ""
    came = f"{seen.verb} {code(_short(seen.came))}" if seen.came else "gives something else"
    if example.relation in ("gives", "raises", "is true", "is false"):
        return _symptom(test, example, came, crash)
    claim = code(f"{example.call} {example.relation} {example.value}")
    said = f"{claim} {came}" if crash else f"{claim} does not hold"
    return Symptom(test=test.qualname, called="", came=said, expected="", helpers=example.helpers, is_clear=True, crash=crash)


def _of(index: Index, test: Definition, message: str) -> list[Symptom]:
    examples = test_examples(index, test)
    compared = COMPARED.fullmatch(message.strip())
    if compared:
        came, expected = _value(compared[1]), _value(compared[2])
        matching = [e for e in examples if e.relation == "gives" and _same(e.value, expected)]
        if len({e.call for e in matching}) == 1 and came is not None:
            return [_symptom(test, matching[0], f"gives {code(came)}")]
        plain = [e for e in examples if e.relation in ("gives", "is true", "is false")]
        if len(plain) == 1:
            return [_symptom(test, plain[0], f"gives {code(came)}" if came is not None else "")]
        if came is not None and expected is not None:
            return [Symptom(test=test.qualname, called="", came=f"something gives {code(came)} instead of {code(expected)}", expected="")]
    raised = RAISED.fullmatch(message.strip())
    if raised and raised[1] == "Failed" and raised[2].startswith("DID NOT RAISE"):
        wanted = [e for e in examples if e.relation == "raises" and e.value in raised[2]] or [e for e in examples if e.relation == "raises"]
        return [_symptom(test, e, "raises nothing") for e in wanted[:1]]
    if raised and raised[1] not in ("AssertionError", "Failed"):
        said = f": {_short(raised[2])}" if raised[2] else ""
        crash = raised[1] + said
        came = f"raises {code(crash)}"
        if len(examples) == 1:
            return [_symptom(test, examples[0], came, crash)]
        calls = [e for e in examples if e.relation != "raises"][:2]
        if calls:
            listed = " or ".join(code(e.call) for e in calls)
            return [Symptom(test=test.qualname, called="", came=f"a call like {listed} {came}", expected="", is_clear=True, crash=crash)]
        return [Symptom(test=test.qualname, called="", came=f"a call {came}", expected="", crash=crash)]
    bare = BARE.fullmatch(message.strip())
    if bare:
        examples = [e for e in examples if e.relation == ("is false" if bare[1] else "is true")] or examples
    if len(examples) <= 1:
        return [_symptom(test, example, "") for example in examples]
    listed = "; ".join(example.sentence for example in examples[:MAX_LISTED])
    helpers = tuple(dict.fromkeys(sentence for example in examples[:MAX_LISTED] for sentence in example.helpers))
    came = f"not all of this holds any more: {listed}"
    return [Symptom(test=test.qualname, called="", came=came, expected="", helpers=helpers, is_clear=True)]


def _symptom(test: Definition, example: Example, came: str, crash: str = "") -> Symptom:
    expected = {
        "gives": code(example.value),
        "is true": "a true value",
        "is false": "a false value",
        "raises": f"{code(example.value)}{f' with a message that matches {code(example.match)}' if example.match else ''}",
    }.get(example.relation, f"that {code(f'{example.call} {example.relation} {example.value}')}")
    return Symptom(
        test=test.qualname, called=example.call, came=came, expected=expected, helpers=example.helpers, is_clear=True, crash=crash
    )  # fmt: skip


def _value(text: str) -> str | None:
    """A value as pytest shows it; None if it was cut short or is no plain value."""
    text = text.strip()
    if "..." in text or len(text) > MAX_MESSAGE:
        return None
    try:
        ast.parse(text, mode="eval")
    except (SyntaxError, ValueError):
        return None
    return text


def _same(told: str, shown: str | None) -> bool:
    if shown is None:
        return False
    try:
        return bool(ast.literal_eval(told) == ast.literal_eval(shown))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return told.replace('"', "'") == shown.replace('"', "'")


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 3] + "..."


def report(found: Sequence[Symptom], places: Sequence[Definition], level: str) -> list[str]:
    """Paragraphs. `places`: the functions with a bug in them."""
    names = [code(definition.qualname) for definition in places]
    if level == "A":
        listed = [f"{code(place.qualname)} in {code(place.path)}" for place in places]
        parts = [
            f"There is a bug in {_and(listed)}. Find it and mend it."
            if len(places) == 1
            else f"There are bugs in {_and(listed)}. Mend them."
        ]
    elif level == "B":
        parts = [f"Something is wrong in {_and(names)}. Find the mistake and mend it."]
    else:
        parts = ["Something that worked does so no longer. Find the mistake and mend it."]
    if found:
        lines = [f"- {symptom.sentence}" for symptom in found[:MAX_SYMPTOMS]]
        parts.append("What was seen:\n" + "\n".join(lines))
        helpers = list(dict.fromkeys(sentence for symptom in found[:MAX_SYMPTOMS] for sentence in symptom.helpers))
        if helpers:
            parts.append(f"There {'; '.join(helpers)}.")
    return parts


def _and(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
