"""What every benchmark shares: timing two sides alternately, and printing a table with one JSON object as the last line.

Rows are mappings with the same keys (the columns, in the first row's order); the result is whatever other programs read.
Not here: command lines (each benchmark parses its own), files.
"""

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def cell(value: Any) -> str:
    """One table cell: four significant digits for floats, "-" for nothing."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a Markdown table that also reads well in a terminal; text to the left, numbers to the right."""
    if not rows:
        return "(no rows)"
    columns = list(rows[0])
    cells = [[cell(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(column), *(len(line[i]) for line in cells)) for i, column in enumerate(columns)]
    left = [all(isinstance(row.get(column), str) for row in rows) for column in columns]

    def line(values: Sequence[str]) -> str:
        padded = [value.ljust(width) if to_left else value.rjust(width) for value, width, to_left in zip(values, widths, left, strict=True)]
        return "| " + " | ".join(padded) + " |"

    rule = (
        "| " + " | ".join("-" * width if to_left else "-" * (width - 1) + ":" for width, to_left in zip(widths, left, strict=True)) + " |"
    )
    return "\n".join([line(columns), rule, *(line(values) for values in cells)])


def report(name: str, rows: Sequence[Mapping[str, Any]], result: Mapping[str, Any]) -> None:
    """Print the table and, as the last line, {"benchmark": name, **result} as one JSON object."""
    print(f"{name}\n\n{table(rows)}\n", flush=True)
    print(json.dumps({"benchmark": name, **result}, sort_keys=True), flush=True)


def alternate(sides: Mapping[str, Callable[[], object]], repeats: int = 5, warmup: int = 1) -> dict[str, float]:
    """Median seconds of each side, all sides once per round, so that a slow moment of the machine hits every side."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for round_ in range(warmup + repeats):
        for name, run in sides.items():
            start = time.perf_counter()
            run()
            if round_ >= warmup:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}
