"""The verb `etude plan`.

Not here: parsing the command line (cli.py).
"""

import json
from pathlib import Path

from rich.console import Console

from etude.plan.config import load_plan_config
from etude.plan.report import as_json as report_json
from etude.plan.report import make_report
from etude.plan.show import show


def run_plan(config_path: Path, *, ranks: int | None, as_json: bool) -> None:
    """Prints the plan of a TOML file or of a Hugging Face folder. `ranks` wins over the file's. Raises UserError for bad input."""
    report = make_report(load_plan_config(config_path, ranks=ranks))
    if as_json:
        print(json.dumps(report_json(report)))
    else:
        show(report, Console())
