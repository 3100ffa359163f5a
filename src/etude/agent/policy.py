"""What can stand in for a model: scripted messages, and the driver that plays one agent with one policy.

In: an agent (loop.py) and a policy, which turns a Request into a Completion. Out: its Rollout.

Not here: the expert that knows the answer (expert.py), sampling from a model (engine/).
"""

from collections.abc import Callable, Sequence

from etude.agent.loop import Agent, interrupt
from etude.engine.protocol import Completion, Request
from etude.render import Renderer
from etude.types import Rollout

Policy = Callable[[Request], Completion | None]  # None: it has nothing more to say


class ScriptedPolicy:
    """Says the given messages one after the other, as the ids that a model would have sampled. Cut where a request allows no more."""

    def __init__(self, texts: Sequence[str], renderer: Renderer) -> None:
        self.requests: list[Request] = []  # what it was asked, for tests
        self._texts = list(texts)
        self._renderer = renderer

    def __call__(self, request: Request) -> Completion | None:
        self.requests.append(request)
        if len(self.requests) > len(self._texts):
            return None
        ids = self._renderer.assistant(self._texts[len(self.requests) - 1])
        kept = ids[: request.max_tokens]
        return Completion(ids=kept, logprobs=(0.0,) * len(kept), versions=(0,) * len(kept), stopped=len(kept) == len(ids))


def play(agent: Agent, policy: Policy) -> Rollout:
    """The rollout of one agent. Where the policy falls silent it is interrupted."""
    try:
        request = next(agent)
        while True:
            completion = policy(request)
            if completion is None:
                return interrupt(agent)
            request = agent.send(completion)
    except StopIteration as end:
        rollout: Rollout = end.value
        return rollout
