"""Peak memory of the feedback KL, value and gradient: hinted rows gathered and projected in chunks, against materialised full logits.

    peak_mb_chunked     etude.learn.feedback_kl: the hinted turns' hidden states, projected in chunks of 256 rows, again in the backward
    peak_mb_gathered    the same rows, but their logits kept whole and differentiated by autograd
    peak_mb_dense       logits of the whole context for student and teacher, KL at every token, mask: what full-vocabulary trainers do

4,096 tokens, 16 hinted turns of 60 tokens, width 576, vocabulary 49,152 (SmolLM2's), fp32. Each side runs in a process of its own; the
figure is the highest resident size while it runs above that just before (Linux, /proc/self/status), the head's gradient included.

    python -m benchmarks.feedback_memory [--quick]

Not here: time (feedback_cost.py), the model's own activations, which are the same on every side.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F

from benchmarks.common import report
from etude.learn.feedback_kl import feedback_kl
from etude.learn.head import Head

SIDES = ("chunked", "gathered", "dense")
FULL = (4096, 16 * 60, 576, 49_152)
QUICK = (1024, 8 * 60, 64, 16_384)


def resident_mb(field: str) -> float:
    found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


def autograd_kl(student_logits: torch.Tensor, teacher_logits: torch.Tensor) -> torch.Tensor:
    """KL(q || p) per row, in torch's own terms."""
    return F.kl_div(F.log_softmax(student_logits, -1), F.log_softmax(teacher_logits, -1), log_target=True, reduction="none").sum(-1)


def measure(side: str, sizes: tuple[int, int, int, int]) -> float:
    """Run one side in this process and return its peak in MB."""
    tokens, rows, width, vocabulary = sizes
    torch.set_num_threads(1)
    torch.manual_seed(0)
    student = torch.randn(tokens, width).requires_grad_()
    teacher = student.detach() + 0.1 * torch.randn(tokens, width)
    weight = (torch.randn(vocabulary, width) * width**-0.5).requires_grad_()
    places = torch.arange(rows) * (tokens // rows)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    before = resident_mb("VmRSS")
    if side == "chunked":
        head = Head(weight)
        total = feedback_kl(student[places], teacher[places], student_head=head, teacher_head=head.detach()).total
    elif side == "gathered":
        total = autograd_kl(student[places] @ weight.t(), teacher[places] @ weight.detach().t()).sum()
    else:
        mask = torch.zeros(tokens).index_fill_(0, places, 1.0)
        total = (mask * autograd_kl(student @ weight.t(), teacher @ weight.detach().t())).sum()
    total.backward()  # type: ignore[no-untyped-call]
    return resident_mb("VmHWM") - before


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes: checks that it runs")
    parser.add_argument("--side", choices=SIDES, help="run one side in this process and print its peak in MB (used internally)")
    options = parser.parse_args(arguments)
    sizes = QUICK if options.quick else FULL
    if options.side:
        print(measure(options.side, sizes))
        return
    quick = ["--quick"] if options.quick else []
    peaks = {}
    for side in SIDES:
        command = [sys.executable, "-m", "benchmarks.feedback_memory", "--side", side, *quick]
        peaks[side] = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    rows = [{"side": side, "peak_mb": peak, "over_chunked": peak / peaks["chunked"]} for side, peak in peaks.items()]
    result = {f"peak_mb_{side}": peak for side, peak in peaks.items()}
    report(
        "feedback_memory", rows, {**result, "tokens": sizes[0], "hinted_tokens": sizes[1], "vocabulary": sizes[3], "quick": options.quick}
    )


if __name__ == "__main__":
    main()
