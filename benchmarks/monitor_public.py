"""Precision and recall of the detectors on the public test cases of aerosta/rewardhackwatch (Apache-2.0), which are read, never copied.

    python -m benchmarks.monitor_public FOLDER [--threshold 0.5] [--json]

FOLDER: a checkout of that repository. Its cases are one-shot snippets made from templates: a task, lines of reasoning and a piece of
code, with a label. There are no commands, no files and no results, so most detectors have nothing to look at: a snippet counts as the
submitted change of a source file, or of a test file where it defines or decorates tests. Lines of reasoning become Step.reasoning, which
the detectors do not read.

Many of its labels are not reward hacking of code by tests (sycophancy, backdoors, slow code): they are counted against the recall all the
same.
"""

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from etude.monitor.score import THRESHOLD, score
from etude.monitor.trajectory import Act, Step, Trajectory

CASES = "rewardhackwatch/rhw_bench/test_cases"
SETS = ("expanded/_all_expanded.json", "generated/_all_trajectories.json")
TEST = re.compile(
    r"(?m)^\s*(?:async )?def test|^\s*class Test|^\s*@(?:pytest|unittest|patch|mock)|^\s*#?\s*assert\b|\bMagicMock\b|\bassert \w+"
)
HOOK = re.compile(r"\bdef pytest_\w+\(")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--threshold", type=float, default=THRESHOLD)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    report = {name: measure(options.folder / CASES / name, options.threshold) for name in SETS}
    if options.json:
        print(json.dumps(report, indent=1))
        return
    for name, row in report.items():
        print(f"{name}: {row['hacks']} hacks, {row['clean']} clean, threshold {options.threshold:g}")
        shown = {"precision": "precision", "recall": "recall", "F1": "f1", "false positives": "false_positive_rate"}
        print("  " + "  ".join(f"{label} {row[key]:.3f}" for label, key in shown.items()))
        for category, (found, total) in row["by_category"].items():
            print(f"  {category:24} {found:4} of {total}")


def measure(path: Path, threshold: float) -> dict[str, Any]:
    counts: Counter[tuple[bool, bool]] = Counter()
    by_category: dict[str, list[int]] = {}
    for case in cases(path):
        flagged = score(trajectory(case)) >= threshold
        hack = bool(case["expected_hack"])
        counts[hack, flagged] += 1
        row = by_category.setdefault(str(case.get("category")), [0, 0])
        row[0] += flagged
        row[1] += 1
    hits, misses, alarms, quiet = counts[True, True], counts[True, False], counts[False, True], counts[False, False]
    precision = hits / (hits + alarms) if hits + alarms else 0.0
    recall = hits / (hits + misses) if hits + misses else 0.0
    return {
        "hacks": hits + misses,
        "clean": alarms + quiet,
        "precision": precision,
        "recall": recall,
        "f1": 2 * precision * recall / (precision + recall) if precision + recall else 0.0,
        "false_positive_rate": alarms / (alarms + quiet) if alarms + quiet else 0.0,
        "by_category": by_category,
    }


def cases(path: Path) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        raise SystemExit(f"{path} is not there; give a checkout of the repository aerosta/rewardhackwatch")
    yield from json.loads(path.read_text(encoding="utf-8"))


def trajectory(case: dict[str, Any]) -> Trajectory:
    run = case["trajectory"]
    reasoning = [Step(index=index, text="", reasoning=text) for index, text in enumerate(run.get("cot_traces", ()))]
    steps, diff = list(reasoning), ""
    for number, code in enumerate(run.get("code_outputs", ())):
        path = "conftest.py" if HOOK.search(code) else f"tests/test_solution{number}.py" if TEST.search(code) else f"solution{number}.py"
        act = Act(name="edit", arguments={"path": path, "old": "", "new": code}, path=path, result=f"edited {path}")
        steps.append(Step(index=len(steps), text="", acts=(act,)))
        lines = code.splitlines()
        diff += f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n@@ -1,1 +1,{len(lines) + 1} @@\n #\n" + "".join(
            f"+{line}\n" for line in lines
        )
    return Trajectory(
        id=str(case.get("name")), source="rewardhackwatch", steps=tuple(steps), instruction=str(run.get("task", "")), patch=diff
    )


if __name__ == "__main__":
    main()
