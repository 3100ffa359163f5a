"""What an agent did, kept as it happens: one JSON Lines file a run.

    {"record": "agent_run", "version": 1, "model": ..., "repo": ..., "digest": ..., "run": 0, "prices": [in, out] | null, "limits": {...}}
    {"turn": 0, "text": "...", "whole": true, "input_tokens": 900, "output_tokens": 40, "observations": [{"text": ..., "error": ...}]}
    {"end": "finished", "reason": "", "feature": ..., "symbols": [...], "summary": ..., "turns": ..., "dollars": ..., ...}

A line is written the moment the model has answered, so a run that was killed goes on from there without asking again, and a run that
ended is played from its file. The observations come in when a run ends. Played again, the same texts give the same task.

Not here: what is done with the texts (propose.py).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from etude.agent.chat import plain_renderer, said
from etude.agent.meter import Meter, Prices
from etude.agent.policy import Policy
from etude.engine.protocol import Completion, Request
from etude.errors import UserError
from etude.render import Renderer
from etude.synth.agentic.limits import AgentLimits
from etude.types import Turn

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One turn of a record."""

    text: str
    whole: bool  # it came to its end
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    head: Mapping[str, Any]
    turns: tuple[Said, ...]
    end: Mapping[str, Any] | None  # None: it is not over


def read_record(path: Path) -> Record:
    """Raises: UserError for a file that is no record. A last line that a kill tore is left out."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    found: list[dict[str, Any]] = []
    for number, line in enumerate(lines[:-1], 1):
        try:
            value = json.loads(line)
        except ValueError:
            raise UserError(f"{path}:{number} is not JSON; it is no record of an agent's run, or it is damaged") from None
        found.append(value if isinstance(value, dict) else {})
    if not found or found[0].get("record") != "agent_run":
        raise UserError(f"{path} is no record of an agent's run")
    if found[0].get("version") != VERSION:
        raise UserError(f"{path} was written by another version of etude, with version {found[0].get('version')} of records")
    try:
        turns = tuple(
            Said(
                text=str(line["text"]),
                whole=bool(line.get("whole", True)),
                input_tokens=int(line.get("input_tokens", 0)),
                output_tokens=int(line.get("output_tokens", 0)),
            )
            for line in found[1:]
            if "turn" in line
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path} has a turn without {error}; it is damaged") from None
    return Record(head=found[0], turns=turns, end=next((line for line in found if "end" in line), None))


class Recorder:
    """A policy that writes down what another one says; what is in the file already is said from there."""

    def __init__(self, path: Path, head: Mapping[str, Any], renderer: Renderer, meter: Meter, ask: Policy) -> None:
        self._path, self._renderer, self._meter, self._ask = path, renderer, meter, ask
        self._head = {"record": "agent_run", "version": VERSION, **head}
        known = read_record(path) if path.exists() and path.stat().st_size else Record(head=self._head, turns=(), end=None)
        self._known, self._is_over = list(known.turns), known.end is not None
        self.said: list[Said] = []
        path.parent.mkdir(parents=True, exist_ok=True)
        if not self._is_over:  # without a torn line
            path.write_bytes(b"".join(_line(each) for each in (self._head, *map(_turn, range(len(self._known)), self._known))))

    def __call__(self, request: Request) -> Completion | None:
        number = len(self.said)
        if number < len(self._known):
            turn = self._known[number]
            self._meter.add(turn.input_tokens, turn.output_tokens)
            self.said.append(turn)
            return said(self._renderer, turn.text, request.max_tokens, stopped=turn.whole)
        if self._is_over:
            self._meter.stopped = "its record ends here"
            return None
        before = self._meter.input_tokens, self._meter.output_tokens
        completion = self._ask(request)
        if completion is None:
            return None
        turn = Said(
            text=self._renderer.sampled_text(completion.ids),
            whole=completion.stopped,
            input_tokens=self._meter.input_tokens - before[0],
            output_tokens=self._meter.output_tokens - before[1],
        )
        self.said.append(turn)
        with self._path.open("ab", buffering=0) as file:
            file.write(_line(_turn(number, turn)))
        return said(self._renderer, turn.text, request.max_tokens, stopped=turn.whole)

    def close(self, turns: Sequence[Turn], end: Mapping[str, Any]) -> None:
        """The run is over: the file gets its observations and its end."""
        lines = [_line(self._head)]
        for number, (said_, turn) in enumerate(zip(self.said, turns, strict=False)):
            observations = [{"text": o.text, **({"error": o.error} if o.error else {})} for o in turn.observations]
            lines.append(_line({**_turn(number, said_), "observations": observations}))
        whole = b"".join([*lines, _line(end)])
        beside = self._path.with_suffix(".new")
        beside.write_bytes(whole)
        beside.replace(self._path)


class RecordedModel:
    """Says again what a record holds, whoever said it: every run of a build gets the same."""

    def __init__(self, path: Path) -> None:
        """Raises: UserError."""
        self.record = read_record(path)
        prices = self.record.head.get("prices")
        self.name = str(self.record.head.get("model", path.stem))
        self.prices = Prices(input=prices[0], output=prices[1]) if prices else None
        self.renderer, self.unit = plain_renderer(), 3
        self.context_tokens: int | None = None

    def policy(self, session: str, meter: Meter, limits: AgentLimits) -> Policy:
        turns = iter(self.record.turns)

        def ask(request: Request) -> Completion | None:
            turn = next(turns, None)
            if turn is None:
                meter.stopped = "its record ends here"
                return None
            meter.add(turn.input_tokens, turn.output_tokens)
            return said(self.renderer, turn.text, request.max_tokens, stopped=turn.whole)

        return ask

    def end(self, session: str) -> None:
        pass


def _turn(number: int, turn: Said) -> dict[str, Any]:
    return {
        "turn": number,
        "text": turn.text,
        "whole": turn.whole,
        "input_tokens": turn.input_tokens,
        "output_tokens": turn.output_tokens,
    }


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(dict(value)).encode("ascii") + b"\n"
