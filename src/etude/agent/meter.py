"""What one conversation with a model has used, and what it may use: tokens as the model counts them, dollars by the user's prices.

Not here: turns and the length of a context (loop.py).
"""

import threading
from dataclasses import dataclass, field

from etude.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Dollars for a million tokens."""

    input: float
    output: float

    def __post_init__(self) -> None:
        """Raises: UserError."""
        if not all(0 <= price < float("inf") for price in (self.input, self.output)):
            raise UserError(f"prices of {self.input} and {self.output}; give dollars for a million tokens of input and of output, from 0")

    def dollars(self, input_tokens: int, output_tokens: int) -> float:
        return (input_tokens * self.input + output_tokens * self.output) / 1e6


@dataclass(slots=True)
class Purse:
    """The dollars that all conversations may spend together."""

    limit: float | None = None
    spent: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def left(self) -> float:
        with self.lock:
            return float("inf") if self.limit is None else self.limit - self.spent

    def pay(self, dollars: float) -> None:
        with self.lock:
            self.spent += dollars


@dataclass(slots=True, kw_only=True)
class Meter:
    """Of one conversation. `stopped` says which limit ended it."""

    prices: Prices | None = None
    max_tokens: int | None = None  # input of every request and output, together
    max_dollars: float | None = None
    purse: Purse = field(default_factory=Purse)
    input_tokens: int = 0
    output_tokens: int = 0
    requests: int = 0
    stopped: str = ""
    is_broke: bool = False  # stopped for lack of dollars, which may be given another time

    @property
    def dollars(self) -> float:
        return self.prices.dollars(self.input_tokens, self.output_tokens) if self.prices else 0.0

    def room(self, context_tokens: int, wanted: int) -> int:
        """How many of `wanted` tokens may be sampled after a context of about so many; 0: none, and `stopped` says why."""
        left = wanted
        if self.max_tokens is not None:
            left = min(left, self.max_tokens - self.input_tokens - self.output_tokens - context_tokens)
            if left < 1:
                self.stopped = f"the limit of {self.max_tokens} tokens is reached"
                return 0
        if self.prices is not None:
            own = float("inf") if self.max_dollars is None else self.max_dollars - self.dollars
            common = self.purse.left()
            after = min(own, common) - self.prices.dollars(context_tokens, 0)
            affordable = after * 1e6 / self.prices.output if self.prices.output else float("inf") if after > 0 else 0.0
            if affordable < 1:
                self.is_broke = True
                limit = self.max_dollars if own <= common else self.purse.limit
                self.stopped = f"the limit of ${limit:g} {'is' if own <= common else 'for all candidates is'} reached"
                return 0
            left = int(min(left, affordable))
        return left

    def add(self, input_tokens: int, output_tokens: int) -> None:
        before = self.dollars
        self.input_tokens += input_tokens
        self.output_tokens += output_tokens
        self.requests += 1
        self.purse.pay(self.dollars - before)
