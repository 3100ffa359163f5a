"""Rollouts and hints -> Samples: one flat row of tokens per segment, with hints as token ids at their splice points.

In: graded rollouts, hints, something that turns a hint's text into token ids (a Renderer). Out: `list[Sample]`, torch-free.
Every sampled token of every segment carries the rollout's advantage, summaries included: the final reward reaches the whole chain.
Sampled ids are copied, never tokenised again.

A hint is spliced in just before the header of its turn. A hint without tokens makes no branch, nor does one at a turn that sampled
nothing; such hints are left out here.

Not here: the advantage (credit.py), tensors (batch.py), who writes hints (feedback/).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from etude.learn.credit import group_advantages
from etude.types import Hint, HintSpan, Rollout, Sample, Segment


class HintEncoder(Protocol):
    """The part of a Renderer that is needed here."""

    def hint(self, text: str) -> Sequence[int]:
        """Token ids of one whole message that holds the hint."""
        ...


def to_samples(
    rollouts: Iterable[Rollout],
    hints: Iterable[Hint] = (),
    renderer: HintEncoder | None = None,
    *,
    advantages: Mapping[str, float] | None = None,
) -> list[Sample]:
    """One Sample per segment that sampled anything, in the order of the rollouts.

    `advantages` by rollout id; without it they are computed from these rollouts, which then must hold whole groups. ValueError for a
    hint whose rollout or turn is not there, and for hints without a renderer.
    """
    rollouts = list(rollouts)
    by_place: dict[tuple[str, int], list[Hint]] = defaultdict(list)
    for hint in hints:
        by_place[hint.rollout_id, hint.segment].append(hint)
    if by_place and renderer is None:
        raise ValueError(f"{sum(map(len, by_place.values()))} hints but no renderer: pass one, it turns their text into token ids")
    if advantages is None:
        advantages = group_advantages(rollouts).advantages
    samples = []
    for rollout in rollouts:
        for index, segment in enumerate(rollout.segments):
            placed = by_place.pop((rollout.id, index), [])
            sample = _to_sample(rollout.id, segment, advantages[rollout.id], placed, renderer)
            if any(sample.sampled):
                samples.append(sample)
    if by_place:
        name, index = next(iter(by_place))
        raise ValueError(f"a hint is for segment {index} of rollout {name!r}, which is not among these rollouts: pass both together")
    return samples


def _to_sample(name: str, segment: Segment, advantage: float, hints: Sequence[Hint], renderer: HintEncoder | None) -> Sample:
    ids: list[int] = []
    sampled: list[bool] = []
    logprobs: list[float] = []
    versions: list[int] = []
    places = []  # (splice, start, stop) of every turn
    for turn in segment.turns:
        added, new = len(turn.context_ids), len(turn.sampled_ids)
        if len(turn.logprobs) != new or len(turn.versions) != new:
            raise ValueError(
                f"a turn of rollout {name!r} has {new} sampled tokens but {len(turn.logprobs)} logprobs and {len(turn.versions)} versions"
            )
        start = len(ids) + added
        places.append((start - turn.header_tokens, start, start + new))
        ids += [*turn.context_ids, *turn.sampled_ids]
        sampled += [False] * added + [True] * new
        logprobs += [0.0] * added + list(turn.logprobs)
        versions += [-1] * added + list(turn.versions)
    return Sample(
        rollout_id=name,
        ids=tuple(ids),
        sampled=tuple(sampled),
        logprobs=tuple(logprobs),
        versions=tuple(versions),
        advantage=advantage,
        hints=tuple(_spans(name, hints, places, renderer)) if renderer is not None else (),
    )


def _spans(name: str, hints: Sequence[Hint], places: Sequence[tuple[int, int, int]], renderer: HintEncoder) -> list[HintSpan]:
    spans = []
    for hint in sorted(hints, key=lambda h: (h.turn, h.writer, h.text)):
        if not 0 <= hint.turn < len(places):
            raise ValueError(f"a hint is for turn {hint.turn} of rollout {name!r}, whose segment has turns 0 to {len(places) - 1}")
        splice, start, stop = places[hint.turn]
        hint_ids = tuple(renderer.hint(hint.text)) if hint.text.strip() else ()
        if hint_ids and stop > start:
            spans.append(
                HintSpan(splice=splice, start=start, stop=stop, hint_ids=hint_ids, segment=hint.segment, turn=hint.turn, writer=hint.writer)
            )
    return spans
