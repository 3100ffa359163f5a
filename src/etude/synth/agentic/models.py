"""Which model a user names: an OpenAI-compatible endpoint, a recorded run, or a model folder in this process.

In: the words of a command line; out: a Model. Torch is loaded only for a model in this process.

Not here: what a model is (limits.py).
"""

from pathlib import Path
from typing import TYPE_CHECKING

from etude.agent.endpoint import Endpoint
from etude.errors import UserError
from etude.render import Renderer
from etude.synth.agentic.limits import EndpointModel, EngineModel, Model, parse_prices
from etude.synth.agentic.record import RecordedModel

if TYPE_CHECKING:
    from etude.engine.local import LocalEngine


def choose_model(where: str, name: str, *, prices: str, key: str, deadline_s: float = 300.0, tries: int = 5) -> Model:
    """`where`: the address of an endpoint, "local" (`name`: a folder, "": the default model), or a recorded run. `deadline_s`: of one try.

    Raises: UserError.
    """
    if where.endswith(".jsonl"):
        return RecordedModel(Path(where))
    if where != "local":
        if not name:
            raise UserError(f"which model of {where}? give --model NAME")
        endpoint = Endpoint(where, name, key=key, deadline_s=deadline_s, tries=tries)
        return EndpointModel(endpoint, prices=parse_prices(prices) if prices else None)
    title, engine, renderer, context = local_model(name)
    return EngineModel(title, engine, renderer, context_tokens=context)


def local_model(name: str) -> "tuple[str, LocalEngine, Renderer, int]":
    """Name, engine, renderer and context in tokens of the model in a folder; "": the default model. Raises: UserError."""
    import torch

    from etude.engine.local import LocalEngine
    from etude.model.load import default_model, load_model

    folder = Path(name) if name else default_model()
    loaded = load_model(folder, torch.float32)
    return folder.name, LocalEngine(loaded, slots=1), Renderer.from_folder(folder), int(loaded.config.max_position_embeddings)
