"""The teacher: whose weights read the hint. EMA of the student (default), the student itself (live), or its first weights (frozen).

    EMA, after every optimizer step:   teacher += rate (student - teacher)         arXiv 2601.20802 (rate .05), 2601.19897 (.01)

A live teacher costs no memory but chases itself: measured on a small tool agent it collapses on some seeds (docs/algorithms.md).
EMA and frozen are a second copy of the weights, in the student's dtype; for a bf16 student the EMA is kept in fp32 as well, because a
step of rate x update is smaller than bf16 can add. Nothing flows into the teacher: its weights ask for no gradient and its
forwards run without.

`hinted` gives the hidden states with the hint, by branches where they are exact and by separate forwards elsewhere (`Teacher.route`
says which and why), and those without it, which the gate compares against: for a live teacher the student's own forward is that.

Not here: the branches (branches.py), the loss (feedback_kl.py), the gate (step.py).
"""

import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from etude.config import TeacherKind
from etude.learn.batch import Batch
from etude.learn.branches import Branch, Trunk, branch_hidden, branches_reason, separate_hidden
from etude.learn.head import Head, head_of, hidden_states
from etude.model.attention import attention

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Hinted:
    hidden_MD: Tensor  # teacher, hint in context; one row per token of the hinted turns
    unhinted_MD: Tensor | None  # the same weights without the hint; None for a live teacher


class Teacher:
    """Holds the second set of weights, if there is one. `update()` after every optimizer step; state for checkpoints."""

    def __init__(self, student: nn.Module, kind: TeacherKind = "ema", ema_rate: float = 0.05) -> None:
        if kind not in ("ema", "live", "frozen"):
            raise ValueError(f"teacher is {kind!r}, allowed is 'ema', 'live' or 'frozen': choose one of them")
        self.kind = kind
        self.ema_rate = ema_rate
        self._student = student
        self.module = student if kind == "live" else copy.deepcopy(student).requires_grad_(False).eval()
        reason = branches_reason(student)
        self.route = "branches" if reason is None else f"separate forwards: {reason}"
        log.info("hints are read through %s", self.route)
        self._exact: dict[str, Tensor] = {}
        if kind == "ema":
            narrow = ((name, p) for name, p in self.module.named_parameters() if p.dtype in (torch.bfloat16, torch.float16))
            self._exact = {name: p.detach().float() for name, p in narrow}

    @property
    def shares_prefix(self) -> bool:
        return self.route == "branches"

    @property
    def reads_trunk(self) -> bool:
        """Whether it reads the training forward's keys and values."""
        return self.kind == "live" and self.shares_prefix

    def head(self) -> Head:
        return head_of(self.module).detach()

    @torch.no_grad()
    def update(self) -> None:
        """One EMA step toward the student; nothing for the other kinds."""
        if self.kind != "ema":
            return
        student = dict(self._student.named_parameters())
        for name, ours in self.module.named_parameters():
            target = self._exact.get(name, ours)
            target.lerp_(student[name].to(target.dtype), self.ema_rate)
            if target is not ours:
                ours.copy_(target)

    def state_dict(self) -> dict[str, Tensor]:
        """By parameter name, in the precision that is kept; empty for a live teacher."""
        if self.kind == "live":
            return {}
        return {name: self._exact.get(name, p).detach() for name, p in self.module.named_parameters()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Bit for bit what `state_dict` gave. ValueError if the names differ."""
        ours = self.state_dict()
        if set(ours) != set(state):
            odd = sorted(set(ours) ^ set(state))[:3]
            raise ValueError(
                f"teacher state does not fit a {self.kind!r} teacher of this model (differs in {odd}): resume with the same settings"
            )
        parameters = dict(self.module.named_parameters())
        for name, value in state.items():
            ours[name].copy_(value)
            if ours[name] is not parameters[name]:
                parameters[name].copy_(value)

    @torch.no_grad()
    def hinted(self, batch: Batch, branches: Sequence[Branch], trunk: Trunk | None, max_tokens: int = 8192) -> Hinted:
        """Hidden states at the branches' turns. `trunk`: of the training forward, needed for a live teacher that shares prefixes."""
        if self.kind == "live":
            if self.shares_prefix:
                assert trunk is not None, "a live teacher reads the training forward's keys and values"
                return Hinted(branch_hidden(self.module, trunk, branches, max_tokens), None)
            return Hinted(separate_hidden(self.module, branches, batch.rows), None)
        rows = sorted({branch.row for branch in branches})
        own = [Branch(rows.index(b.row), b.prefix, b.ids, b.num_hint, b.num_header) for b in branches]
        # The trunk is read up to the last hinted turn only.
        length = max(b.prefix + len(b.ids) - b.num_hint for b in branches)
        own_trunk = Trunk()
        with attention(own_trunk.plan):
            plain_BTD = hidden_states(self.module, batch.ids[rows, :length])
        unhinted = [plain_BTD[b.row, b.prefix + b.num_header - 1 : b.prefix + len(b.ids) - b.num_hint] for b in own]
        if self.shares_prefix:
            hidden_MD = branch_hidden(self.module, own_trunk, own, max_tokens)
        else:
            hidden_MD = separate_hidden(self.module, branches, batch.rows)
        return Hinted(hidden_MD, torch.cat(unhinted))
