"""Loss at equal steps on real code: AdamW, torch.optim.Muon and ShardedMuon on a small mixture of experts.

    python -m benchmarks.muon_loss [--quick] [--seeds 3] [--steps 200] [--plot loss.svg]

The corpus is what is installed: Python files of site-packages, every 20th file held out. One process; per seed, the three start from equal
weights and see equal rows. torch.optim.Muon takes matrices alone, so here it trains the same parameters as ShardedMuon does, experts as
views of one matrix each, with AdamW for the rest; heads are units only for ShardedMuon (`--whole` makes it use whole matrices, then the
two differ by rounding alone). The rate of each is the best of those tried on seed 0 (`--lrs`). The last line is JSON.

Not here: speed (muon_link.py and others), sharding.
"""

import argparse
import json
import statistics
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from benchmarks.common import report
from etude.corpus import Batch, Cursor, Source, Stream, TextEncoder, TokenSet, documents, tokenize
from etude.optim import muon_param_groups
from etude.optim.muon_config import MuonOptions, NewtonSchulz
from etude.optim.sharded_muon import ShardedMuon
from etude.pretrain.loop import sparkline

VOCABULARY = 2048
DECAY = 0.1
BETAS = (0.9, 0.95)
WARMUP_SHARE = 0.1
HELD_OUT = 20


def corpus(root: Path, packages: Sequence[str], work: Path) -> tuple[TokenSet, TokenSet]:
    """(train, held out) from Python files of installed packages, with a tokenizer trained on the training side."""
    found = [d for name in packages for d in documents(Source(path=str(root / name), suffixes=(".py",), max_bytes=200_000))]
    sides = {"train": [d for i, d in enumerate(found) if i % HELD_OUT], "held": found[::HELD_OUT]}
    for name, side in sides.items():
        (work / f"{name}.jsonl").write_text("".join(json.dumps({"text": d.text}) + "\n" for d in side), encoding="utf-8")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<|endoftext|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator((d.text for d in sides["train"]), trainer)
    encoder = TextEncoder(tokenizer.to_str(), tokenizer.token_to_id("<|endoftext|>"))
    train, held = (tokenize(Source(path=str(work / f"{name}.jsonl")), encoder, work / "cache") for name in sides)
    return train, held


def small_moe(seed: int, quick: bool) -> nn.Module:
    torch.manual_seed(seed)
    hidden, layers = (64, 2) if quick else (128, 4)
    return Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            vocab_size=VOCABULARY, hidden_size=hidden, intermediate_size=2 * hidden, moe_intermediate_size=hidden,
            num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2, head_dim=hidden // 4, num_experts=8,
            num_experts_per_tok=2, max_position_embeddings=1024, tie_word_embeddings=False,
        )
    )  # fmt: skip


class Several:
    """Optimizers that step together."""

    def __init__(self, *parts: torch.optim.Optimizer, before: Callable[[], None] = lambda: None) -> None:
        self.param_groups = [group for part in parts for group in part.param_groups]
        self._parts, self._before = parts, before

    def step(self) -> None:
        self._before()
        for part in self._parts:
            part.step()


def adamw(model: nn.Module, whole: bool) -> Several:
    matrices = [p for p in model.parameters() if p.ndim > 1]
    rest = [{"params": matrices, "weight_decay": DECAY}, {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0}]
    return Several(torch.optim.AdamW(rest, lr=0.0, betas=BETAS))


def torch_muon(model: nn.Module, whole: bool) -> Several:
    """Experts as one leaf a matrix that shares the stack's memory; gate and up are one matrix of an expert."""
    groups, _ = muon_param_groups(model)
    leaves: list[tuple[nn.Parameter, Tensor, int | None]] = []
    for _, parameter in _named(groups, "muon"):
        parts = range(len(parameter)) if parameter.ndim == 3 else [None]
        leaves += [(nn.Parameter(parameter.detach() if i is None else parameter.detach()[i]), parameter, i) for i in parts]

    def give_gradients() -> None:
        for leaf, parameter, i in leaves:
            assert parameter.grad is not None
            leaf.grad = parameter.grad if i is None else parameter.grad[i]

    muon = torch.optim.Muon([leaf for leaf, _, _ in leaves], lr=0.0, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw")
    rest = [
        {"params": [p for _, p in _pairs(group)], "weight_decay": group.get("weight_decay", DECAY)}
        for group in groups
        if group["algorithm"] == "adamw"
    ]
    return Several(muon, torch.optim.AdamW(rest, lr=0.0, betas=BETAS), before=give_gradients)


def sharded_muon(model: nn.Module, whole: bool) -> Several:
    groups, _ = muon_param_groups(model)
    if whole:
        groups = [{**group, "units": {}} if group["algorithm"] == "muon" else group for group in groups]
    options = MuonOptions(newton_schulz=NewtonSchulz(dtype="bfloat16"))
    return Several(ShardedMuon(groups, lr=0.0, weight_decay=DECAY, betas=BETAS, options=options))


def _pairs(group: dict[str, Any]) -> list[tuple[str, nn.Parameter]]:
    return [pair if isinstance(pair, tuple) else ("", pair) for pair in group["params"]]


def _named(groups: Sequence[dict[str, Any]], algorithm: str) -> list[tuple[str, nn.Parameter]]:
    return [pair for group in groups if group["algorithm"] == algorithm for pair in _pairs(group)]


SIDES: dict[str, Callable[[nn.Module, bool], Several]] = {"AdamW": adamw, "torch.optim.Muon": torch_muon, "ShardedMuon": sharded_muon}


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    ids, positions, labels = (torch.from_numpy(array) for array in (batch.ids, batch.positions, batch.labels))
    logits = model(input_ids=ids, position_ids=positions).logits
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def train(side: str, seed: int, lr: float, data: tuple[TokenSet, TokenSet], args: argparse.Namespace) -> tuple[list[float], float]:
    """(training loss of every step, held-out loss at the end)."""
    model = small_moe(seed, args.quick)
    optimizer = SIDES[side](model, args.whole)
    stream = Stream([data[0]], [1.0], seq_len=args.seq_len, seed=seed)
    cursor, losses = Cursor.start(1), []
    for step in range(args.steps):
        batch, cursor = stream.batch(cursor, size=args.batch)
        loss = loss_of(model, batch)
        model.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        rise = min(1.0, (step + 1) / max(1, round(WARMUP_SHARE * args.steps)))
        for group in optimizer.param_groups:
            group["lr"] = lr * rise * min(1.0, 2 * (1 - step / args.steps))
        optimizer.step()
        losses.append(loss.item())
    held = Stream([data[1]], [1.0], seq_len=args.seq_len, seed=0)
    with torch.no_grad():
        parts, cursor = [], Cursor.start(1)
        for _ in range(4):
            batch, cursor = held.batch(cursor, size=args.batch)
            parts.append(loss_of(model, batch).item())
    return losses, statistics.fmean(parts)


def plot(curves: dict[str, list[list[float]]], path: Path) -> None:
    """An SVG: the mean over seeds of each side, a band from the lowest to the highest seed."""
    width, height, margin = 720.0, 400.0, 50.0
    smooth = {name: [_smoothed(run) for run in runs] for name, runs in curves.items()}
    values = [value for runs in smooth.values() for run in runs for value in run]
    low, high = min(values), max(values)
    steps = len(next(iter(smooth.values()))[0])

    def at(step: int, value: float) -> str:
        x = margin + (width - 2 * margin) * step / max(1, steps - 1)
        return f"{x:.1f},{margin + (height - 2 * margin) * (high - value) / ((high - low) or 1):.1f}"

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" font-family="sans-serif" font-size="13">']
    for i, ((name, runs), color) in enumerate(zip(smooth.items(), ("#888888", "#d08020", "#2060c0"), strict=True)):
        columns = list(zip(*runs, strict=True))
        band = [at(k, max(column)) for k, column in enumerate(columns)] + [at(k, min(c)) for k, c in reversed(list(enumerate(columns)))]
        line = [at(k, statistics.fmean(column)) for k, column in enumerate(columns)]
        parts.append(f'<polygon points="{" ".join(band)}" fill="{color}" opacity="0.2"/>')
        parts.append(f'<polyline points="{" ".join(line)}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts.append(f'<text x="{width - 190:.0f}" y="{margin + 18 * i:.0f}" fill="{color}">{name}</text>')
    parts += [f'<text x="4" y="{margin:.0f}">{high:.2f}</text>', f'<text x="4" y="{height - margin:.0f}">{low:.2f}</text>']
    parts += [f'<text x="{width / 2 - 60:.0f}" y="{height - 15:.0f}">training loss, {steps} steps</text>', "</svg>"]
    path.write_text("\n".join(parts) + "\n", encoding="utf-8")


def _smoothed(losses: Sequence[float], window: int = 10) -> list[float]:
    return [statistics.fmean(losses[max(0, i - window + 1) : i + 1]) for i in range(len(losses))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smaller model, 40 steps, 2 seeds, one rate")
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--lrs", type=float, nargs="+", default=None)
    parser.add_argument("--packages", nargs="+", default=["rich", "jinja2", "pygments"])
    parser.add_argument("--whole", action="store_true", help="ShardedMuon on whole matrices, as torch.optim.Muon does it")
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    args.seeds = args.seeds or (2 if args.quick else 3)
    args.steps = args.steps or (40 if args.quick else 200)
    lrs = args.lrs or ([4e-3] if args.quick else [1e-3, 2e-3, 4e-3, 8e-3])
    root = Path(sysconfig.get_paths()["purelib"])
    packages = [name for name in args.packages if (root / name).is_dir()]
    with tempfile.TemporaryDirectory() as work:
        data = corpus(root, packages, Path(work))
        best, curves, held = {}, {}, {}
        for side in SIDES:
            tried = {lr: train(side, 0, lr, data, args) for lr in lrs}
            best[side] = min(tried, key=lambda lr: tried[lr][1])
            runs = [tried[best[side]], *(train(side, seed, best[side], data, args) for seed in range(1, args.seeds))]
            curves[side], held[side] = [losses for losses, _ in runs], [loss for _, loss in runs]
            print(f"{side:>17} lr {best[side]:g} {sparkline(curves[side][0], 40)} held out {statistics.fmean(held[side]):.4f}", flush=True)
    if args.plot is not None:
        plot(curves, args.plot)
    rows = [
        {
            "optimizer": side, "lr": best[side], "train loss, last tenth": statistics.fmean(
                value for run in curves[side] for value in run[-max(1, args.steps // 10) :]
            ),
            "held-out loss": statistics.fmean(held[side]), "spread over seeds": max(held[side]) - min(held[side]),
        }
        for side in SIDES
    ]  # fmt: skip
    tokens = args.steps * args.batch * args.seq_len
    report(
        "muon_loss", rows, {"rows": rows, "steps": args.steps, "tokens": tokens, "seeds": args.seeds, "corpus_tokens": data[0].num_tokens}
    )


if __name__ == "__main__":
    main()
