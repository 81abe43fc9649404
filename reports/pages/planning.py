"""Planning: the grids that a plan recommends, where their time would go and what they would cost."""

import pandas as pd

from engine.planning.document import GridPlan, describe
from engine.tensor_mode import ALGORITHM_1
from reports import text
from reports.columns import columns_of
from reports.figures import plans
from reports.frames.frame import Frames
from reports.frames.predictions import plan_rows
from reports.page import Block, Figures, Page, PageSection, Paragraph, Table, nothing_measured
from reports.pages.study import Study
from reports.read.load import Planned
from reports.words import STUDIES

MOST_PLANS = 12
ORDERS = {
    "simulated": "those that communicate least by the equations were simulated and are listed fastest first, but by "
    "the equations where times are too close to tell",
    "equations": "they are listed by the equations' communication, the least first",
    "as_run": "they are listed by what a run communicates, latency and repetitions counted, the least first",
}


def build(mine: Frames, everything: Frames) -> Page:
    plans = everything.predictions.plans
    if not plans:
        nothing = nothing_measured(*STUDIES["planning"].run, done="planned", how="Ask for a plan")
        return Page([nothing], empty=True, remark=nothing.title)
    shown = plans[:MOST_PLANS]
    sections = [_section(*one) for one in text.titled(shown, lambda one: _title(one.result))]
    if len(plans) > MOST_PLANS:
        sections.append(_older(plans[MOST_PLANS:]))
    remark = f"{text.plural(len(plans), 'plan')}, last on {plans[0].written:%Y-%m-%d}, predicted"
    return Page(sections, _headline(plans[0].result), remark=remark)


STUDY = Study("planning", 11, lambda runs: pd.Series(False, index=runs.index), build)


def _title(plan: GridPlan) -> str:
    where = f"{text.plural(plan.devices, 'device')} of {plan.system}"
    return text.clean(f"{plan.model} on {where}", 120)


def _headline(plan: GridPlan) -> str:
    if not plan.rows:
        return f"no grid for {_title(plan)}"
    best = plan_rows(plan).iloc[0]
    time = f"{text.seconds(best['predicted_s'])} a batch on " if best["predicted_s"] > 0 else ""
    return f"{time}grid {best['grid']} predicted for {_title(plan)}"


def _section(name: str, title: str, one: Planned) -> PageSection:
    words = Paragraph(f"{asked(one.result)} Written {text.moment(one.written)}; read from {text.clean(one.source)}.")
    blocks: list[Block] = [words]
    if one.result.rows:
        rows = plan_rows(one.result)
        drawn = (plans.times(name, rows), *plans.step(name, one.result))
        blocks += [_table(name, rows, one.result), Figures(drawn, wide=True)]
    return PageSection(title, blocks, f"plan-{name}", one_of_many=True)


def asked(plan: GridPlan) -> str:
    """Say what was asked, and how many grids there are for it."""
    activations, rank = text.clean(plan.activations, 40), ORDERS[plan.ordered_by]
    memory = text.number(plan.device_memory_bytes)
    where = f" in {text.percent(1 - plan.reserve)} of the {text.memory(memory)} of a device" if memory > 0 else ""
    aware = "" if plan.placement_aware else ", as if all axes had the same bandwidth"
    tokens = "" if plan.samples == "images" else f" ({text.tokens(text.number(plan.tokens))})"
    machine = f" {text.clean(describe(plan.machine), 400)}" if plan.machine else ""
    return (
        f"{text.clean(plan.model, 120)} on {text.plural(plan.devices, 'device')} of {text.clean(plan.system, 120)}, "
        f"{plan.devices_per_node:,} on a node, with {text.plural(plan.sequences, plan.samples.removesuffix('s'))}"
        f"{tokens} a batch in {text.clean(plan.precision, 40)}, activations "
        f"{activations}, overlap {text.clean(plan.overlap, 120)}: of {text.plural(plan.valid, 'valid grid')}, "
        f"{plan.fit:,} fit{where}; {rank}{aware}.{machine}"
    )


def _table(name: str, rows: pd.DataFrame, plan: GridPlan) -> Table:
    columns = columns_of(
        "place grid micro_batch tensor_mode recomputed_blocks predicted_s exposed_s",
        *(() if plan.ordered_by == "simulated" else BY_EQUATIONS),
        "memory_bytes of_device hfu solution_s device_hours traced",
        missing={"tensor_mode": ALGORITHM_1.name}
        | dict.fromkeys(("predicted_s", "exposed_s", "solution_s", "device_hours"), LEFT_OUT),
        predicted_s="Time per batch, predicted",
        exposed_s="Exposed communication",
    )
    rows = rows.assign(device_hours=rows["device_hours"].round())
    note = "Predicted, not measured."
    if rows["solution_s"].notna().any():
        budget = text.tokens(text.number(plan.token_budget))
        note += f" Time to solution and device-hours are for {budget}, restarts and evaluation not counted."
    if (rows["traced"] == "few layers").any():
        note += " A trace of few layers stands for the whole network's."
    shown = tuple(column for column in columns if _is_known(rows, column.key))
    return Table("Ranked grids", shown, rows, f"{name}-grids", note)


LEFT_OUT = "not simulated"
BY_EQUATIONS = columns_of("equations_s as_run_s", equations_s="Communication by the equations")


def _is_known(rows: pd.DataFrame, key: str) -> bool:
    return bool((rows[key].notna() & (rows[key] != "")).any())


def _older(plans: tuple[Planned, ...]) -> PageSection:
    data = pd.DataFrame(
        {
            "written": [one.written for one in plans],
            "asked": [asked(one.result) for one in plans],
            "grid": [one.result.rows[0].grid if one.result.rows else "" for one in plans],
            "source": [text.clean(one.source) for one in plans],
        }
    )
    columns = columns_of("written asked grid source", missing={"grid": "none"}, grid="Its first grid", source="File")
    return PageSection("Older plans", (Table("Plans that are not drawn", columns, data, "older"),))
