"""A world for pretraining runs: a tiny tokenizer (and model), and a folder of code."""

from pathlib import Path
from typing import Any

from etude.model.tiny import tiny_folder

INIT = {"kind": "qwen3_moe", "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48, "head_dim": 8, "moe_intermediate_size": 16}


def lay_down(folder: Path, *, files: int = 8, lines: int = 12, weights: bool = False) -> Path:
    """tiny/ and code/ in `folder`; returns it."""
    tiny_folder(folder / "tiny", weights=weights)
    (folder / "code").mkdir()
    for i in range(files):
        (folder / "code" / f"{i}.py").write_text("".join(f"def f{i}_{k}(x):\n    return x + {k}\n" for k in range(lines)))
    return folder


def values(world: Path, phases: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """A configuration as nested dicts: a small mixture of experts from scratch, one thread, no measurement of the machine."""
    found = {
        "model": {"tokenizer": str(world / "tiny")}, "init": INIT, "data": {"cache": str(world / "cache")}, "peak_flops": 1e12,
        "threads": 1, "optimizer": {"newton_schulz_dtype": "float32"}, "phases": phases,
    }  # fmt: skip
    return {**found, **more}
