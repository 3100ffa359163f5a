"""Continued pretraining (or pretraining from scratch): phases of packed text, on one process or many, with the same call.

    run_pretrain(load_pretrain_config(Path("laptop.toml")), Path("runs/pretrain"))          # under torchrun, or alone

In: sources, a Hugging Face folder or dimensions. Out, in the run folder: config.toml, tokens.json (names of the token sets in the cache),
metrics.jsonl, routing.txt (which parameter goes to which algorithm), checkpoints/step-000100 (reload on other meshes and worlds) and at
the end model/ (a Hugging Face folder). config.toml comes once data and model are found good: until then the run may be started again.

    loss of a step = sum of -log p(next token) over its trained tokens, all ranks and micro-batches / their number

Everything random comes from the seed and the step, so a run that was killed goes on from its last checkpoint and ends with the weights
that it would have had: bit for bit in fp32 on a CPU. A phase that changes rotary scaling builds the model anew from the checkpoint.

Not here: the data (data.py) and its order (corpus), meshes (parallel), the optimizer (optim), formats (model/shards.py, model/export.py).
"""

import contextlib
import math
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from etude.corpus import Batch, Cursor, Stream
from etude.corpus.order import IGNORED
from etude.corpus.tokens import end_token
from etude.errors import UserError
from etude.metrics import Metrics, read_metrics
from etude.model.export import export_model
from etude.model.load import default_model
from etude.optim.schedule import learning_rate
from etude.parallel import Degrees, DualMesh, clip_gradients, context_inputs, cut, load, load_balance, save, start
from etude.pretrain.config import DEFAULT, Phase, PretrainConfig, stages
from etude.pretrain.data import on_first, streams_of
from etude.pretrain.folder import Position, about, begin, checkpoint_errors, open_metrics, open_run
from etude.pretrain.model import build, check_models, flops_per_step, make_optimizer, model_config, peak_flops
from etude.runfolder import RunFolder, write_atomically
from etude.view import Silent, View

_NO_MEMORY = ("not enough memory", "can't allocate memory")  # of torch on a CPU
LOSS_ROWS = 1024  # tokens whose logits are in fp32 at a time


@dataclass(frozen=True, slots=True)
class PretrainResult:
    model: Path
    """the Hugging Face folder"""
    steps: int
    tokens: int
    """trained on, padding not counted"""
    losses: tuple[float, ...]
    """of every step that trained, also of those before a resume"""
    tokens_per_s: float
    """median of all steps"""
    mfu: float
    """median, a share; see model.flops_per_step"""

    def __str__(self) -> str:
        """The end line: steps, tokens, the curve of the loss."""
        curve = f"{self.losses[0]:.3f} {sparkline(self.losses)} {self.losses[-1]:.3f}" if self.losses else "none"
        return (
            f"{self.steps} steps, {self.tokens} tokens, loss {curve}, "
            f"{self.tokens_per_s:.0f} tokens/s, MFU {self.mfu:.1%}, model in {self.model}"
        )


def run_pretrain(config: PretrainConfig, run: Path, *, resume: bool = False, view: View | None = None) -> PretrainResult:
    """All phases, or what is left of them. Call on all ranks with equal arguments. Raises: UserError; EtudeError if the loss overflows."""
    device = config.device if config.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError('device is "cuda", and torch sees no GPU here; set device = "cpu" or "auto", or install a CUDA build of torch')
    if config.threads:
        torch.set_num_threads(config.threads)
    mine = not dist.is_initialized()
    start(device)
    try:
        with _memory(config), contextlib.ExitStack() as held:
            return _run(config, run, resume, device, view, held)
    finally:
        if mine:
            dist.destroy_process_group()


def _run(given: PretrainConfig, run: Path, resume: bool, device: str, view: View | None, held: contextlib.ExitStack) -> PretrainResult:
    config = on_first(lambda: with_default_model(given))
    mesh = DualMesh(_degrees(config), device)
    first = dist.get_rank() == 0
    view = view if view is not None and first else Silent()
    _check_batches(config, mesh)
    newest, begun_with = on_first(lambda: open_run(given, run, resume, view, held))
    on_first(lambda: check_models(config, end_token(config.tokenizer_folder)))
    streams = streams_of(config, view, begun_with)
    on_first(lambda: begin(given, run, streams))
    loop = Loop(config, RunFolder(run), mesh, device, streams, view)
    if newest is not None:
        loop.position = Position(**dict(about(Path(newest))["extra"], checkpoint=newest))
    if first:
        loop.metrics = open_metrics(run, loop.position.step)
        held.callback(loop.metrics.close)
    while loop.position.step < config.num_steps:
        loop.phase()
    return loop.finish()


@contextlib.contextmanager
def _memory(config: PretrainConfig) -> Iterator[None]:
    """Too little of it is the user's to mend."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        text = " ".join(str(error).split())
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and not any(why in text for why in _NO_MEMORY):
            raise
        raise UserError(
            f"out of memory ({text[:150]}); lower micro_batch or seq_len, set model.checkpoint = true, or use more ranks, then --resume"
        ) from error


def _check_batches(config: PretrainConfig, mesh: DualMesh) -> None:
    for phase in config.phases:
        if phase.batch % mesh.degrees.batch:
            raise UserError(
                f"phase {phase.name!r}: a batch of {phase.batch} rows does not divide over {mesh.degrees.batch} ranks that read different "
                f"rows; choose a multiple of {mesh.degrees.batch}"
            )
        if mesh.degrees.cp > 1 and phase.seq_len % (2 * mesh.degrees.cp):
            raise UserError(
                f"phase {phase.name!r}: seq_len {phase.seq_len} does not divide into the {2 * mesh.degrees.cp} chunks of mesh.cp = "
                f"{mesh.degrees.cp}; choose a multiple of {2 * mesh.degrees.cp}"
            )


def with_default_model(config: PretrainConfig) -> PretrainConfig:
    """Where the configuration names the default model, or no tokenizer, its folder. UserError where its package is not installed."""
    model = config.model
    if model.path == DEFAULT:
        model = replace(model, path=str(default_model()))
    if not model.path and not model.tokenizer:
        model = replace(model, tokenizer=str(default_model()))
    return replace(config, model=model)


def _degrees(config: PretrainConfig) -> Degrees:
    mesh = config.mesh
    return Degrees.fit(dist.get_world_size(), replicate=mesh.replicate, cp=mesh.cp, expert_replicate=mesh.expert_replicate, ep=mesh.ep)


class Loop:
    """The steps of a run; holds the model between them."""

    def __init__(self, config: PretrainConfig, run: RunFolder, mesh: DualMesh, device: str, streams: list[Stream], view: View) -> None:
        self.config, self.run, self.mesh, self.device, self.streams, self.view = config, run, mesh, device, streams, view
        self.metrics: Metrics | None = None
        self.position = Position()
        self.model: nn.Module | None = None
        self.optimizer: torch.optim.Optimizer | None = None
        self._peak = 0.0

    def phase(self) -> None:
        """The rest of the phase that the position is in."""
        index, done = self._find()
        phase = self.config.phases[index]
        self._prepare(index, fresh=phase.fresh_optimizer and done == 0)
        assert self.model is not None
        assert self.optimizer is not None
        stream = self.streams[index]
        cursor = Cursor.start(len(stream.sets)) if self.position.cursor is None else Cursor.from_json(self.position.cursor)
        self.view.stage(stages(self.config)[1 + index], total=phase.steps)
        self.view.advance(done)
        for k in range(done, phase.steps):
            begun = time.monotonic()
            batch, cursor = stream.batch(cursor, size=phase.batch, rank=self.mesh.batch_rank, ranks=self.mesh.degrees.batch)
            rate = learning_rate_of(phase, k)
            row = train_step(
                self.model, self.optimizer, batch, self.mesh, self.device,
                lr=rate, micro_batch=phase.micro_batch, max_norm=self.config.optimizer.max_grad_norm,
            )  # fmt: skip
            self.position.step += 1
            self.position.tokens += round(row["tokens"])
            self.position.cursor = cursor.to_json() if k + 1 < phase.steps else None
            self._tell(row, phase, rate, time.monotonic() - begun)
            if (k + 1) % self.config.checkpoints.every == 0 or k + 1 == phase.steps:
                self._checkpoint()

    def finish(self) -> PretrainResult:
        """Export the model and sum up."""
        last = len(self.config.phases) - 1
        if self.model is None:  # resumed after the last step
            self._prepare(last, fresh=False)
        assert self.model is not None
        target = self.run.path / "model"
        self.view.stage(stages(self.config)[-1])
        source = Path(self.config.model.path) if self.config.model.path else None
        dtype = {"same": None, "float32": torch.float32, "bfloat16": torch.bfloat16}[self.config.export_dtype]
        hf_config = model_config(self.config, last, end_token(self.config.tokenizer_folder))
        export_model(self.model, target, config=hf_config, like=source, dtype=dtype, files_of=self.config.tokenizer_folder)
        rows = on_first(lambda: read_metrics(self.run.path / "metrics.jsonl", "pretrain"))
        return PretrainResult(
            target, self.position.step, self.position.tokens, tuple(row["loss"] for row in rows if row["loss"] is not None),
            *(statistics.median([row[name] or 0.0 for row in rows] or [0.0]) for name in ("tokens_per_s", "mfu")),
        )  # fmt: skip

    def _find(self) -> tuple[int, int]:
        """(phase, finished steps of it) of the next step."""
        left = self.position.step
        for index, phase in enumerate(self.config.phases):
            if left < phase.steps:
                return index, left
            left -= phase.steps
        raise AssertionError("no step is left")

    def _prepare(self, index: int, *, fresh: bool) -> None:
        """Model and optimizer for a phase: as they are, or built and filled from the last checkpoint or the open one."""
        config = self.config
        built_anew = self.model is None or bool(config.phases[index].rope and self.position.cursor is None)
        if built_anew:
            self.model = self.optimizer = None  # their memory is needed
            self.model = build(config, index, self.mesh, self.device, fill=self.position.checkpoint is None, note=self.view.note)
        assert self.model is not None
        if built_anew or fresh:
            self.optimizer, routing = make_optimizer(self.model, config.optimizer)
            if dist.get_rank() == 0:
                write_atomically(self.run.path / "routing.txt", routing + "\n")
        if built_anew and self.position.checkpoint is not None:
            folder = self.position.checkpoint
            with checkpoint_errors(f"checkpoint {folder} is damaged; remove it to go on from the one before it"):
                load(Path(folder), self.model, None if fresh else self.optimizer)

    def _tell(self, row: dict[str, float], phase: Phase, rate: float, seconds: float) -> None:
        assert self.model is not None
        if not self._peak:
            self._peak = peak_flops(self.config, self.device)
        tokens_per_s = row["tokens"] / seconds
        mfu = row["flops"] / (seconds * self._peak * self.mesh.degrees.world)
        balance = load_balance(self.model)  # a collective
        if self.metrics is not None:
            more = {"expert_max_over_mean": max(layer.expert_max_over_mean for layer in balance)} if balance else {}
            self.metrics.log(
                "pretrain", step=self.position.step, phase=phase.name, loss=row["loss"], tokens=self.position.tokens, lr=rate,
                grad_norm=row["grad_norm"], tokens_per_s=tokens_per_s, mfu=mfu, seconds=seconds, **more,
            )  # fmt: skip
        self.view.advance()
        self.view.numbers(loss=row["loss"], tokens_per_s=tokens_per_s, mfu=mfu, lr=rate, grad_norm=row["grad_norm"])

    def _checkpoint(self) -> None:
        assert self.model is not None
        folder = self.run.path / "checkpoints" / f"step-{self.position.step:06d}"
        extra = {"step": self.position.step, "cursor": self.position.cursor, "tokens": self.position.tokens}
        try:
            with checkpoint_errors(f"cannot write the checkpoint {folder}; make room or mend it, then go on with --resume"):
                save(folder, self.model, self.optimizer, extra=extra)
        except UserError:
            shutil.rmtree(folder.with_name(f".{folder.name}.partial"), ignore_errors=True)  # it may be what fills the disk
            raise
        self.position.checkpoint = str(folder)
        if dist.get_rank() == 0:
            for old in self.run.checkpoints()[: -self.config.checkpoints.keep]:
                shutil.rmtree(old, ignore_errors=True)


def train_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    mesh: DualMesh,
    device: str,
    *,
    lr: float,
    micro_batch: int,
    max_norm: float,
) -> dict[str, float]:
    """One update from this rank's rows. Returns, summed over all ranks: loss (mean), tokens, grad_norm, flops."""
    ids, positions, labels = (torch.from_numpy(array).to(device) for array in (batch.ids, batch.positions, batch.labels))
    labels_here = cut(labels, mesh.cp)
    share = 1 / mesh.degrees.cp  # the cp ranks of a row count it together
    ours = [float((labels_here != IGNORED).sum()), batch.num_tokens * share, flops_per_step(model, batch.positions) * share]
    counts = torch.tensor(ours, dtype=torch.float64, device=device)
    dist.all_reduce(counts)
    trained, tokens, flops = counts.tolist()
    if trained == 0:  # the last token of a source, alone in its row: nothing follows it
        return {"loss": math.nan, "tokens": tokens, "trained": 0.0, "grad_norm": 0.0, "flops": 0.0}
    loss = torch.zeros((), dtype=torch.float64, device=device)
    last = len(ids) - micro_batch
    for at in range(0, len(ids), micro_batch):
        rows = slice(at, at + micro_batch)
        _sync_gradients(model, at >= last)
        logits = _logits(model, mesh, ids[rows], positions[rows])
        part = summed_loss(logits.flatten(0, 1), labels_here[rows].flatten()) / trained
        part.backward()
        loss += part.detach().double()
    dist.all_reduce(loss)
    norm = clip_gradients([p for p in model.parameters() if p.requires_grad], max_norm)
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return {"loss": float(loss), "tokens": tokens, "trained": trained, "grad_norm": norm, "flops": flops}


def _logits(model: nn.Module, mesh: DualMesh, ids: Tensor, positions: Tensor) -> Tensor:
    try:
        logits: Tensor = model(**context_inputs(model, mesh.cp, ids, positions)).logits
    except ValueError as error:  # attention that cannot be packed, which only shows when a layer calls it
        raise UserError(
            f"this model cannot be trained on packed documents: {error}; set its dropout to 0 in config.json, or take another"
        ) from error
    return logits


def _sync_gradients(model: nn.Module, on: bool) -> None:
    """Reduce gradients between ranks in the last micro-batch only."""
    sync: Callable[[bool], None] = model.set_requires_gradient_sync  # type: ignore[assignment]
    sync(on)


def summed_loss(logits_TV: Tensor, labels_T: Tensor) -> Tensor:
    """Sum of -log p(label), fp32; the fp32 copy of the logits exists for LOSS_ROWS tokens at a time."""
    total = logits_TV.new_zeros((), dtype=torch.float32)
    for at in range(0, len(labels_T), LOSS_ROWS):
        rows = slice(at, at + LOSS_ROWS)
        total = total + checkpoint(_cross_entropy, logits_TV[rows], labels_T[rows], use_reentrant=False)
    return total


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.float(), labels, reduction="sum", ignore_index=IGNORED)


def learning_rate_of(phase: Phase, step: int) -> float:
    """Of a step of the phase, from 0. wsd: rise, constant, then a line down over the last decay_steps (MiniCPM, arXiv:2404.06395)."""
    if phase.schedule != "wsd":
        return learning_rate(
            step, peak=phase.lr, total_steps=phase.steps, warmup_steps=phase.warmup_steps, shape=phase.schedule, floor=phase.floor
        )
    stable = phase.steps - phase.decay_steps
    if step < stable:
        return learning_rate(step, peak=phase.lr, total_steps=phase.steps, warmup_steps=phase.warmup_steps)
    return learning_rate(step - stable + 1, peak=phase.lr, total_steps=phase.decay_steps, shape="linear", floor=phase.floor)


_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 24) -> str:
    """Means of `width` equal parts as bars, from the lowest to the highest."""
    width = min(width, len(values))
    means = [statistics.fmean(values[i * len(values) // width : (i + 1) * len(values) // width]) for i in range(width)]
    low, high = min(means), max(means)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((mean - low) * scale)] for mean in means)
