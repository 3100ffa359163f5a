"""A tool-using world and a language model small enough to train from scratch in minutes on one CPU thread.

World. Four files hold a key and its digit each; the user asks for one of the keys. A turn is four sampled tokens:

    S tool argument <e>       S the server whose tools are there; R file: read it, G key: which file has the key, A digit: answer, the end
    X tool argument <e>       a server that is not there: an unknown tool
    S tool argument +         one argument too many

A bad call gives an error observation and nothing else. The episode goes on, so the two bad habits say nothing about what the agent wants
to do and cost (almost) no reward: the reward alone has no reason to remove them, which is the case hints are for. Best play is G, R, A.
The reward is 1 for the right digit, else 0.

    <b> U ?key <e>   M S G key <e>   T file <e>   M S R file <e>   T key 3 <e>   M S A 3 <e>

`M` is the assistant header, one token; a hint is one message `H x x x <e>` that stands just before it.

Demonstrations come from an expert with noise: it guesses, wanders and makes bad calls. A hint in its context removes its own kind of bad
call and changes nothing else (`obey=1`), so that a teacher's advantage is exactly the hint's content.

Model. A Llama of about 115k parameters through transformers, random weights. `Sampler` runs the same weights with its own buffers.

Not here: rewards to advantages, losses, teachers (etude.learn), arms and tables (feedback_ablation.py).
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

DIGITS, FILES, KEYS = tuple("0123456789"), tuple("abcd"), tuple("klmnopqr")
MARKS = ("R", "G", "A", "S", "X", "+", "U", "T", "M", "H", "!", "F", "K", "D")
TOKENS = ("<pad>", "<b>", "<e>", *DIGITS, *FILES, *KEYS, *MARKS, *(f"?{key}" for key in KEYS))
ID = {token: index for index, token in enumerate(TOKENS)}
PAD, END, HEADER = ID["<pad>"], ID["<e>"], ID["M"]
TURN_TOKENS = 4
MAX_TURNS, MAX_VALID_CALLS = 8, 6  # an episode ends at either
MAX_TOKENS = 4 + MAX_TURNS * (1 + TURN_TOKENS + 4) + 5 * MAX_TURNS  # the last part: hints in demonstrations

ARGUMENTS = {"R": FILES, "G": KEYS, "A": DIGITS}
UNKNOWN_TOOL, BAD_ARGUMENT = "unknown_tool", "bad_argument"
HINTS = {  # the available tools; the kinds of argument: file, key, digit. Equal lengths, so that one can stand in for the other
    UNKNOWN_TOOL: tuple(ID[token] for token in ("H", "R", "G", "A", "<e>")),
    BAD_ARGUMENT: tuple(ID[token] for token in ("H", "F", "K", "D", "<e>")),
}
OTHER_KIND = {UNKNOWN_TOOL: BAD_ARGUMENT, BAD_ARGUMENT: UNKNOWN_TOOL}


def encode(*tokens: str) -> list[int]:
    return [ID[token] for token in tokens]


@dataclass(slots=True)
class Episode:
    """One episode: hidden files, the question, and what happened so far."""

    seed: int
    files: dict[str, tuple[str, str]] = field(init=False)
    key: str = field(init=False)
    reward: float = 0.0
    turns: int = 0
    valid: int = 0
    errors: dict[str, int] = field(default_factory=lambda: {UNKNOWN_TOOL: 0, BAD_ARGUMENT: 0})
    done: bool = False

    def __post_init__(self) -> None:
        rng = random.Random(self.seed)
        keys = rng.sample(KEYS, len(FILES))
        self.files = {name: (key, rng.choice(DIGITS)) for name, key in zip(FILES, keys, strict=True)}
        self.key = rng.choice(keys)

    @property
    def file(self) -> str:
        return next(name for name, (key, _) in self.files.items() if key == self.key)

    @property
    def answer(self) -> str:
        return self.files[self.file][1]

    def opening(self) -> list[int]:
        return encode("<b>", "U", f"?{self.key}", "<e>")

    def step(self, server: str, tool: str, argument: str, end: str) -> tuple[list[int], str | None]:
        """(observation ids, kind of error or None)."""
        self.turns += 1
        fits = argument in ARGUMENTS.get(tool, ()) and end == "<e>"
        error = UNKNOWN_TOOL if server != "S" or tool not in ARGUMENTS else None if fits else BAD_ARGUMENT
        if error is None:
            self.valid += 1
            observation = self._call(tool, argument)
        else:
            self.errors[error] += 1
            observation = encode("T", "!", "<e>")
        self.done = self.done or self.turns >= MAX_TURNS or self.valid >= MAX_VALID_CALLS
        return observation, error

    def _call(self, tool: str, argument: str) -> list[int]:
        if tool == "A":
            self.reward, self.done = float(argument == self.answer), True
            return []
        if tool == "G":
            return encode("T", *(name for name, (key, _) in self.files.items() if key == argument), "<e>")
        return encode("T", *self.files[argument], "<e>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """How the demonstrating expert plays: probabilities per turn."""

    unknown_tool: float = 0.25
    bad_argument: float = 0.15
    guess: float = 0.25  # answers without having seen the value
    wander: float = 0.5  # reads a random file instead of searching
    hinted_demos: float = 0.5  # share of demonstrations that may hold hints
    hinted_turns: float = 0.5  # of their turns
    obey: float = 1.0  # a hint removes its kind of bad call with this probability
    rush: float = 0.0  # extra guessing when a hint of the unknown tool stands there: a hint with a side effect


def demonstration(rng: random.Random, habits: Habits) -> tuple[list[int], list[bool]]:
    """(ids, which of them the expert wrote) of one noisy episode."""
    episode = Episode(rng.getrandbits(32))
    ids = episode.opening()
    wrote = [False] * len(ids)
    hinted = rng.random() < habits.hinted_demos
    found = seen = False
    while not episode.done:
        kind = rng.choice((UNKNOWN_TOOL, BAD_ARGUMENT)) if hinted and rng.random() < habits.hinted_turns else None
        tool, argument = _intention(rng, episode, habits, found, seen, kind)
        server = "X" if _slips(rng, habits.unknown_tool, habits, kind == UNKNOWN_TOOL) else "S"
        end = "+" if _slips(rng, habits.bad_argument, habits, kind == BAD_ARGUMENT) else "<e>"
        context = [*(HINTS[kind] if kind else ()), HEADER]
        turn = encode(server, tool, argument, end)
        observation, error = episode.step(server, tool, argument, end)
        ids += context + turn + observation
        wrote += [False] * len(context) + [True] * len(turn) + [False] * len(observation)
        found |= error is None and tool == "G" and argument == episode.key
        seen |= error is None and tool == "R" and argument == episode.file
    return ids, wrote


def _intention(rng: random.Random, episode: Episode, habits: Habits, found: bool, seen: bool, kind: str | None) -> tuple[str, str]:
    if seen:
        return "A", episode.answer
    if rng.random() < habits.guess + (habits.rush if kind == UNKNOWN_TOOL else 0.0):
        return "A", rng.choice(DIGITS)
    if found:
        return "R", episode.file
    return ("R", rng.choice(FILES)) if rng.random() < habits.wander else ("G", episode.key)


def _slips(rng: random.Random, probability: float, habits: Habits, hinted: bool) -> bool:
    draw, obeys = rng.random(), rng.random() < habits.obey
    return draw < probability and not (hinted and obeys)


def build_model(seed: int, attention: str = "sdpa") -> LlamaForCausalLM:
    """A random Llama with 64 channels, two layers, four heads."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(TOKENS), hidden_size=64, intermediate_size=192, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
        max_position_embeddings=MAX_TOKENS + 16, tie_word_embeddings=False, pad_token_id=PAD, bos_token_id=ID["<b>"], eos_token_id=END,
        initializer_range=0.06, rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
    )  # fmt: skip
    config._attn_implementation = attention
    return LlamaForCausalLM(config).float().eval()


def pad(rows: Sequence[Sequence[int]]) -> Tensor:
    """Right-padded ids [B, T]."""
    length = max(map(len, rows))
    return torch.tensor([[*row, *[PAD] * (length - len(row))] for row in rows])


class Sampler:
    """The model's own weights with key-value buffers: blocks of new tokens, each row at its own position.

    A block is right-padded; what padding writes into the buffers lies beyond the row's length and is overwritten before anyone may read it.
    Legend: B rows, N new tokens, S buffer slots, H heads, D channels a head.
    """

    def __init__(self, model: LlamaForCausalLM, rows: int):
        self.model, self.config = model, model.config
        heads, width = self.config.num_attention_heads, self.config.hidden_size // self.config.num_attention_heads
        shape = (self.config.num_hidden_layers, 2, rows, heads, MAX_TOKENS + 16, width)
        self.buffers = torch.zeros(shape)
        self.length_B = torch.zeros(rows, dtype=torch.long)
        frequency = 1.0 / (self.config.rope_parameters["rope_theta"] ** (torch.arange(0, width, 2) / width))
        angle = torch.arange(shape[4])[:, None] * torch.cat([frequency, frequency])[None]
        self.cos_SD, self.sin_SD = angle.cos(), angle.sin()

    def keep(self, rows: Sequence[int]) -> None:
        """Drop every other row."""
        index = torch.tensor(rows)
        self.buffers, self.length_B = self.buffers[:, :, index], self.length_B[index]

    @torch.no_grad()
    def feed(self, blocks: Sequence[Sequence[int]]) -> Tensor:
        """Append one block per row; logits [B, V] after each row's last new token."""
        ids_BN = pad(blocks)
        new_B = torch.tensor([len(block) for block in blocks])
        rows, count = ids_BN.shape
        position_BN = self.length_B[:, None] + torch.arange(count)
        longest = int(position_BN[:, -1].max()) + 1
        mask_BHNS = (torch.arange(longest) <= position_BN[..., None])[:, None]
        cos, sin = self.cos_SD[position_BN][:, None], self.sin_SD[position_BN][:, None]
        hidden = self.model.model.embed_tokens(ids_BN)
        slot = position_BN[:, None, :, None].expand(-1, self.config.num_attention_heads, -1, self.buffers.shape[-1])
        for layer, (keys, values) in zip(self.model.model.layers, self.buffers, strict=True):
            normed = layer.input_layernorm(hidden)
            q, k, v = (
                projection(normed).view(rows, count, self.config.num_attention_heads, -1).transpose(1, 2)
                for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj)
            )
            keys.scatter_(2, slot, _rotate(k, cos, sin))
            values.scatter_(2, slot, v)
            mixed = F.scaled_dot_product_attention(_rotate(q, cos, sin), keys[:, :, :longest], values[:, :, :longest], attn_mask=mask_BHNS)
            hidden = hidden + layer.self_attn.o_proj(mixed.transpose(1, 2).reshape(rows, count, -1))
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        self.length_B += new_B
        logits: Tensor = self.model.lm_head(self.model.model.norm(hidden[torch.arange(rows), new_B - 1]))
        return logits


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin


@dataclass(slots=True)
class Play:
    """What one episode leaves: per token, in order; and the turns that went wrong as (first sampled token, kind)."""

    episode: Episode
    ids: list[int]
    sampled: list[bool]
    logprobs: list[float]
    bad_turns: list[tuple[int, str]]


def play(model: LlamaForCausalLM, episodes: Sequence[Episode], generator: torch.Generator) -> list[Play]:
    """Sample every episode to its end at temperature 1, all rows in lockstep."""
    plays = [Play(e, e.opening(), [False] * len(e.opening()), [0.0] * len(e.opening()), []) for e in episodes]
    sampler, active, pending = Sampler(model, len(plays)), list(range(len(plays))), [list(p.ids) for p in plays]
    while active:
        for row, index in enumerate(active):
            pending[row].append(HEADER)
            _extend(plays[index], [HEADER])
        for _ in range(TURN_TOKENS):
            logprobs_BV = F.log_softmax(sampler.feed(pending), -1)
            choice_B = torch.multinomial(logprobs_BV.exp(), 1, generator=generator)
            chosen = logprobs_BV.gather(-1, choice_B)[:, 0].tolist()
            pending = choice_B.tolist()
            for row, index in enumerate(active):
                plays[index].ids.append(pending[row][0])
                plays[index].sampled.append(True)
                plays[index].logprobs.append(chosen[row])
        pending = [pending[row] + _observe(plays[index]) for row, index in enumerate(active)]
        going = [row for row, index in enumerate(active) if not plays[index].episode.done]
        if len(going) < len(active) and going:
            sampler.keep(going)
        active, pending = [active[row] for row in going], [pending[row] for row in going]
    return plays


def _observe(play_: Play) -> list[int]:
    observation, error = play_.episode.step(*(TOKENS[token] for token in play_.ids[-TURN_TOKENS:]))
    if error:
        play_.bad_turns.append((len(play_.ids) - TURN_TOKENS, error))
    _extend(play_, observation)
    return observation


def _extend(play_: Play, ids: list[int]) -> None:
    play_.ids += ids
    play_.sampled += [False] * len(ids)
    play_.logprobs += [0.0] * len(ids)


def evaluate(model: LlamaForCausalLM, episodes: int, seed: int = 7) -> dict[str, float]:
    """Means over fresh episodes: accuracy, turns, invalid_rate (invalid calls over calls, by kind too)."""
    rng = random.Random(seed)
    plays = play(model, [Episode(rng.getrandbits(32)) for _ in range(episodes)], torch.Generator().manual_seed(seed))
    turns = sum(p.episode.turns for p in plays)
    kinds = {kind: sum(p.episode.errors[kind] for p in plays) / turns for kind in HINTS}
    return {
        "accuracy": sum(p.episode.reward for p in plays) / episodes,
        "turns": turns / episodes,
        "invalid_rate": math.fsum(kinds.values()),
        **kinds,
    }


def warm_start(seed: int, steps: int, habits: Habits, *, batch: int = 32, lr: float = 3e-3) -> LlamaForCausalLM:
    """A fresh model trained on noisy demonstrations until it copies values from files. The rate falls linearly over the last 40%."""
    model, rng = build_model(seed), random.Random(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0, betas=(0.9, 0.98))
    pool: list[list[tuple[list[int], list[bool]]]] = []
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = lr * min(1.0, (step + 1) / 50, (steps - step) / (0.4 * steps))
        if not pool:
            # Batches of similar length: half of the padding's cost.
            demos = sorted((demonstration(rng, habits) for _ in range(8 * batch)), key=lambda demo: len(demo[0]))
            pool = [demos[i : i + batch] for i in range(0, len(demos), batch)]
            rng.shuffle(pool)
        rows = pool.pop()
        ids_BT = pad([ids for ids, _ in rows])
        wrote_BT = pad([[int(w) for w in wrote] for _, wrote in rows]).bool()[:, 1:]
        logits_BTV = model(ids_BT[:, :-1]).logits
        loss = F.cross_entropy(logits_BTV[wrote_BT], ids_BT[:, 1:][wrote_BT])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model
