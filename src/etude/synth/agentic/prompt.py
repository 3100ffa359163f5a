"""What an agent that deletes a feature is told.

Not here: the tools' own words (desk.py), roles (render.py).
"""

from etude.synth.agentic.accept import MIN_LINES
from etude.synth.agentic.limits import AgentLimits
from etude.synth.candidates import MAX_LINES, MAX_SYMBOLS
from etude.synth.prove import MAX_GONE_SHARE
from etude.synth.workshop import Baseline, Workshop


def deletion_prompt(workshop: Workshop, baseline: Baseline, limits: AgentLimits) -> str:
    sources = [path for path in workshop.layout.sources if path.endswith(".py")]
    return "\n".join([
        f"Take one feature out of {workshop.repo.name}. Later somebody who never saw it is asked to build it; hidden tests decide.",
        f"It has {len(sources)} source files, such as {', '.join(sources[:5])}, and {len(baseline.stable)} tests.",
        "",
        "A feature is one thing that a user of the package would name: whole functions, methods or classes that belong together, of "
        f"{MIN_LINES} to {MAX_LINES} lines, at most {MAX_SYMBOLS} of them. At most {MAX_GONE_SHARE:.0%} of the tests may reach it.",
        "",
        "1. suggest lists sets of definitions that only a few tests reach. Take one, or several that make one feature.",
        "2. Read the code. Delete whole definitions and all that hangs on them: imports, exports, entries of lists, and in other functions "
        "the statements that use them. Line numbers are those of the file as it is now, so delete from the bottom up.",
        "3. Only take away. edit may shorten an import, __all__ or a list, and write pass where nothing is left. Never change what a "
        "function that stays does otherwise. Tests, configuration and documents are cleaned by themselves.",
        f"4. test: what reaches the feature fails, all else passes. You have {limits.test_runs} runs.",
        "5. submit the feature's name, the qualified names of all that is deleted, with commas, and a sentence or two on what it does.",
        "",
        f"You have {limits.turns} messages in all.",
    ])  # fmt: skip
