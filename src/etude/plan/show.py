"""The report of `etude plan` for a person: the answer first, then the tables it follows from.

Not here: any figure (report.py).
"""

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from etude.plan.config import VARIANTS
from etude.plan.report import ChipTable, LayoutRow, PlanReport
from etude.plan.search import TIE

BAR = 17
"""Characters of the longest bar."""
LINKS = {"intra": "in node", "inter": "between"}
BINDS = {"links between nodes": "between nodes", "links inside a node": "inside a node"}
FLOP_UNITS = ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"))


def show(report: PlanReport, console: Console) -> None:
    parts = [answer(report), parameter_table(report), step_table(report), layout_table(report), memory_table(report)]
    parts += [unit_table(report), what_if_table(report), *(chip_panel(one, report) for one in report.chips)]
    for part in parts:
        console.print(part)
        console.print()


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms" if seconds < 0.0995 else f"{seconds * 1e3:,.0f} ms"


def scaled(value: float, unit: str, *, digits: int = 2) -> str:
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:,.{digits}f} {prefix}{unit}"
    return f"{value:,.0f} {unit}"


def three_digits(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def count(number: float) -> str:
    """Parameters as people say them: 1.03T, 32.1B, 7M."""
    for size, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:,.{3 if size == 1e12 else 2}f}{suffix}"
    return f"{number:,.0f}"


def bytes_text(number: float) -> str:
    return scaled(number, "B")


def table(title: str, *columns: str, left: int = 1) -> Table:
    made = Table(title=title, title_justify="left", title_style="bold", header_style="dim", box=None, pad_edge=False)
    for index, column in enumerate(columns):
        made.add_column(column, justify="left" if index < left else "right", no_wrap=index >= left)
    return made


def dense_text(row: LayoutRow) -> str:
    dense = row.dense
    return f"{dense.replicate}×{dense.shard}×{dense.cp}" + (f" ÷{dense.split}" if dense.split > 1 else "")


def expert_text(row: LayoutRow) -> str:
    if row.expert is None:
        return "-"
    expert = row.expert
    text = f"{expert.replicate}×{expert.efsdp}×{expert.ep}" + (f" ÷{expert.split}" if expert.split > 1 else "")
    return text + (" *" if row.whole_experts else "")


def answer(report: PlanReport) -> RenderableType:
    config, best = report.config, report.best
    time, target = best.time, config.optimizer.target_s
    within = time.overlapped_s <= target
    name = config.model.name or config.model.model_type
    head = Text.assemble(
        ("one optimizer step in ", ""),
        (milliseconds(time.overlapped_s), "bold green" if within else "bold red"),
        (f"  ({milliseconds(time.serial_s)} without overlap; target {milliseconds(target)})", ""),
    )
    lines: list[RenderableType] = [
        Text(f"{count(report.total)} parameters, {count(report.active)} active per token, {count(report.muon)} on Muon"),
        Text(
            f"{config.cluster.ranks:,} × {config.cluster.chip}, {config.cluster.gpus_per_node} a node; {bytes_text(best.memory_bytes)} each"
        ),
        head,
        Text(f"binds: {time.binds}"),
        Text(breaking_text(report)),
    ]
    if not best.fits:
        most = config.cluster.usable_hbm * config.chip().hbm_bytes
        lines.append(Text(f"no layout fits: the best needs {bytes_text(best.memory_bytes)} of {bytes_text(most)} a rank", style="bold red"))
    return Panel(Group(*lines), title=f"etude plan: {name}", title_align="left", expand=False, padding=(0, 2))


def breaking_text(report: PlanReport) -> str:
    assumed, target = report.config.cluster.efficiency, milliseconds(report.config.optimizer.target_s)
    says = f"assumed: matrix products reach {assumed:.0%} of peak; "
    breaks = report.breaking_efficiency
    if breaks is None:
        return says + f"{target} cannot be reached at any efficiency: links or HBM alone take longer"
    if breaks > 1:
        return says + f"{target} would ask for {breaks:.0%}: more ranks, a faster chip or a cheaper Newton-Schulz"
    return says + f"{target} breaks below {breaks:.1%}"


def parameter_table(report: PlanReport) -> Table:
    made = table("Parameters", "kind", "algorithm", "tensors", "elements", "share", "active", left=2)
    for row in report.parameters:
        share = f"{row.elements / report.total:.1%}"
        made.add_row(row.kind, row.algorithm, f"{row.tensors:,}", count(row.elements), share, count(row.active))
    made.add_section()
    tensors = sum(row.tensors for row in report.parameters)
    made.add_row("total", "", f"{tensors:,}", count(report.total), "", count(report.active), style="bold")
    return made


def step_table(report: PlanReport) -> Table:
    best = report.best
    time = best.time
    title = (
        f"Optimizer step: dense {dense_text(best)}, experts {expert_text(best)}" if best.expert else f"Optimizer step: {dense_text(best)}"
    )
    made = table(title, "what a rank does", "link", "busiest rank", "time", "", left=2)
    made.columns[-1].justify = "left"
    rank_flops = time.newton_schulz_s * report.config.cluster.efficiency * report.config.chip().peak_flops
    rows = [
        ("Newton-Schulz", "", scaled(rank_flops, "FLOP"), time.newton_schulz_s, "cyan"),
        ("elementwise, by HBM", "", "", time.elementwise_s, "cyan"),
    ]
    for row in report.traffic:
        rows.append((row.what, f"{row.launches}× {LINKS[row.tier]}", bytes_text(row.busiest_bytes), row.seconds, "magenta"))
    rows += [("all links, latencies too", LINKS[tier], "", seconds, "magenta") for tier, seconds in time.links_s.items() if seconds]
    rows += [("first out, last back", "", "", time.ramp_s, "yellow")]
    rows += [("overlapped", "", "", time.overlapped_s, "green"), ("one after the other", "", "", time.serial_s, "dim")]
    longest = max(row[3] for row in rows)
    for what, link, amount, seconds, style in rows:
        made.add_row(what, link, amount, milliseconds(seconds), Text("█" * round(BAR * seconds / longest), style=style))
    made.caption = (
        f"An exchange ends with its busiest rank: those bytes count. A mean rank sends {bytes_text(best.inter_bytes)} between nodes. "
        f"Busiest rank over an even share: {time.imbalance:.3f} by the formula, {report.max_over_mean:.3f} with an owner for every unit."
    )
    made.caption_justify = "left"
    return made


def layout_table(report: PlanReport) -> Table:
    columns = (
        "",
        "dense\nr×s×cp",
        "experts\nr×fsdp×ep",
        "step\nms",
        "serial\nms",
        "binds",
        "step\nGB",
        "train\nGB",
        "memory\nGB",
    )
    made = table(f"Best of {report.num_layouts:,} layouts", *columns, left=3)
    made.columns[5].justify = "left"
    rows = [(str(index), row) for index, row in enumerate(report.layouts, 1)]
    if report.given is not None:
        rows.append(("yours", report.given))
    for label, row in rows:
        made.add_row(
            label,
            dense_text(row),
            expert_text(row),
            three_digits(1e3 * row.time.overlapped_s),
            three_digits(1e3 * row.time.serial_s),
            BINDS.get(row.time.binds, row.time.binds),
            three_digits(row.inter_bytes / 1e9),
            three_digits(row.training_inter_bytes / 1e9),
            Text(three_digits(row.memory_bytes / 1e9), style="" if row.fits else "red"),
            style="bold" if label in ("1", "yours") else "",
        )
    made.caption = (
        "÷k: k replicas share the Newton-Schulz work. *: whole experts, none is cut. Red: does not fit into HBM. GB: what a rank sends "
        "between nodes in one optimizer step, and (an estimate) in one micro-batch of training, by which layouts within "
        f"{TIE:.0%} of the shortest step are put in order."
    )
    made.caption_justify = "left"
    return made


def memory_table(report: PlanReport) -> Table:
    made = table("Memory of one rank", "kind", "bytes", "", left=1)
    made.columns[-1].justify = "left"
    memory, tokens = report.best.memory, report.config.training.tokens_per_rank
    rows = [
        ("master weights", memory.master),
        ("gathered: two blocks, both ends", memory.gathered_weights),
        ("frozen weights", memory.frozen),
        ("gradients", memory.gradients),
        ("one block's whole gradients", memory.block_gradients),
        ("Muon momentum", memory.momentum),
        ("AdamW moments", memory.adamw),
        ("buckets in flight, scratch", memory.optimizer_buffers),
        (f"activations, {tokens:,} tokens (estimate)", memory.activations),
    ]
    longest = max(number for _, number in rows) or 1
    for name, number in rows:
        if number:
            made.add_row(name, bytes_text(number), Text("█" * max(1, round(BAR * number / longest)), style="blue"))
    made.add_section()
    most = report.config.cluster.usable_hbm * report.config.chip().hbm_bytes
    made.add_row("at the fullest moment", bytes_text(memory.total), f"of {bytes_text(most)} usable", style="bold")
    made.caption = "The optimizer's buffers and what the backward pass holds are not there at the same time: the larger counts."
    made.caption_justify = "left"
    return made


def unit_table(report: PlanReport) -> Table:
    size, unit = next(((size, unit) for size, unit in FLOP_UNITS if report.flops["standard"] >= size), FLOP_UNITS[-1])
    names = [variant.replace("-", "-\n") for variant in VARIANTS]
    made = table(f"Newton-Schulz of all units, {unit}", "matrix", "unit", "units", *names, left=1)
    for row in report.units:
        cells = [f"{row.flops[one] / size:,.3f}" for one in VARIANTS]
        made.add_row(row.role.replace("shared_experts", "shared"), f"{row.rows}×{row.columns}", f"{row.units:,}", *cells)
    made.add_section()
    units = sum(row.units for row in report.units)
    made.add_row("total", "", f"{units:,}", *(f"{report.flops[one] / size:,.2f}" for one in VARIANTS), style="bold")
    return made


def what_if_table(report: PlanReport) -> Table:
    target = milliseconds(report.config.optimizer.target_s)
    made = table("The same layout with another Newton-Schulz", "variant", "step", "serial", "binds", f"{target} breaks below", left=1)
    made.columns[3].justify = "left"
    for row in report.what_if:
        breaks = "never reached" if row.breaking_efficiency is None else f"{row.breaking_efficiency:.1%} of peak"
        own = row.variant == report.config.optimizer.newton_schulz
        cells = (milliseconds(row.time.overlapped_s), milliseconds(row.time.serial_s), row.time.binds, breaks)
        made.add_row(row.variant, *cells, style="bold" if own else "")
    return made


def chip_panel(one: ChipTable, report: PlanReport) -> RenderableType:
    config = report.config
    target, efficiency = milliseconds(config.optimizer.target_s), config.cluster.efficiency
    first, last = "standard", "gram-symmetric"
    columns = (
        "standard",
        "gram-\nsym.",
        f"{target}\nasks for",
        "gram-\nsym.",
        "one leg",
        "legs,\nbetween",
        "legs,\nin node",
        "HBM",
    )
    made = table(f"{one.chip}: Newton-Schulz at {efficiency:.0%} of peak, every matrix cut", "ranks", *columns)
    for row in one.scale:
        times, shares = row.newton_schulz_s, row.needed_efficiency
        made.add_row(
            f"{row.ranks:,}",
            milliseconds(times[first]),
            milliseconds(times[last]),
            f"{shares[first]:.0%}",
            f"{shares[last]:.0%}",
            bytes_text(row.leg_bytes),
            milliseconds(row.inter_s),
            milliseconds(row.intra_s),
            milliseconds(row.elementwise_s),
        )
    needed = table(
        f"{one.chip}: ranks for {target}, communication free", "variant", *(f"at {share:.0%}" for share in config.report.efficiencies)
    )
    for variant, by_share in one.ranks_for_target.items():
        needed.add_row(variant, *(f"{ranks:,}" for ranks in by_share.values()))
    return Group(made, Text(), needed)
