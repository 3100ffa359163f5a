"""Rollout -> hints: one writer a file, each for one kind of bad turn; write.py asks all of them."""

from etude.feedback.write import WRITERS, write_hints

__all__ = ["WRITERS", "write_hints"]
