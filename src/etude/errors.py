"""Errors: one base, one class per boundary.

1. `UserError`: the user's input or machine is wrong. The CLI prints its one line and exits with code 2.
2. `SandboxError`: the sandbox could not do its work. It is never the fault of the code inside, so it is "no verdict", not a zero.
3. `TemplateError`: a chat template that cannot be used token in, token out.
4. `NoSignal`: a training step without one informative group; the run stops and says why.
5. `EngineError`: the model gave no distribution to sample from (its weights are broken).

A rollout that fails is data (`Rollout.status`), not an exception.

An error may quote a file, a test or a tool: `printable` makes such text fit for a terminal.
"""

import unicodedata


class EtudeError(Exception):
    """Base of every error that this package raises on purpose."""


class UserError(EtudeError):
    """What was wrong and what to do, in one line; exit code 2."""


class SandboxError(EtudeError):
    """The sandbox itself failed: nothing may be concluded about the code that was to run in it."""


class TemplateError(UserError):
    """A chat template changes earlier tokens when a message is added, or has no place for a hint."""


class NoSignal(EtudeError):
    """No group of a training step was informative."""


class EngineError(EtudeError):
    """The model gave no distribution to sample from: NaN or infinite logits."""


def printable(text: str) -> str:
    """Without the characters that would move a terminal's cursor, change its colours or its order, or cannot be written to it."""
    return "".join(c if c.isprintable() or c in "\n\t" or unicodedata.category(c) == "Zs" else "�" for c in text)
