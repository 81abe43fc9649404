"""Tensor modes: which split of a product is the fastest where (colossal-ai 5.2, Table 3 and Fig. 11), and what two
layers move and hold (Table 1, Fig. 5 and 8).
"""

from collections.abc import Sequence

import pandas as pd

from engine.published import select
from reports import text
from reports.columns import columns_of, failures, first, provenance
from reports.figures import layers
from reports.frames.frame import Frames
from reports.frames.tensor_modes import PAPER, ModesSetting, ranked, settings
from reports.frames.tensor_modes import STUDY as NAME
from reports.page import MOST_SECTIONS, Block, Column, Figure, Figures, Page, PageSection, Table, nothing_measured
from reports.pages.study import Study, trainings_of
from reports.plots.canvas import WIDE
from reports.plots.rows import Bars, Row, stacked
from reports.words import NOTES, STUDIES

LAYERS = "layers"
"""Study of suites/layers.py."""
OVER_1D = Column("By 1D", "over_1d", text.times, missing="no 1D")
PUBLISHED = Column("Published, images/s", "published", text.significant, missing="not printed")


def build(mine: Frames, everything: Frames) -> Page:
    found = settings(mine)
    sections = [_overview(found) if found else nothing_measured(*STUDIES[NAME].run)]
    titled = text.titled(found[:MOST_SECTIONS], _title)
    sections += [
        PageSection(title, _blocks(name, setting), f"modes-{name}", one_of_many=True) for name, title, setting in titled
    ]
    if counted := layers.blocks(mine.layers, mine.runs):
        sections.append(PageSection("What two layers move and hold", counted, "layers"))
    if found:
        sections.append(PageSection("Details", (*failures(mine.runs, "failed"), provenance(mine.runs))))
    sections.append(PageSection("Published figures", (_published(),)))
    return Page(sections, _headline(found), empty=not found and not counted)


STUDY = Study(NAME, 3.6, lambda runs: trainings_of(NAME)(runs) | (runs["study"] == LAYERS), build)


def _title(setting: ModesSetting) -> str:
    first = setting.first
    return text.clean(f"{first['model']} on {text.plural(int(first['ranks']), 'device')} of {first['system']}", 160)


def _headline(found: Sequence[ModesSetting]) -> str:
    if not found:
        return "no mode measured"
    fastest = [f"{ranked(one)[0]} on {int(one.first['ranks'])} of {one.first['system']}" for one in found[:3]]
    return f"fastest: {', '.join(fastest)}"


def _overview(found: Sequence[ModesSetting]) -> PageSection:
    data = pd.DataFrame(
        [
            {
                **{key: one.first[key] for key in ("system", "model", "ranks")},
                "order": " > ".join(ranked(one)),
                "jobs": int(one.table["jobs"].min()),
            }
            for one in found
        ]
    )
    columns = columns_of(first(data), "model ranks", Column("Fastest to slowest", "order", numeric=False), "jobs")
    return PageSection("Which mode wins where", (Table("Order of modes", columns, data, "modes"),))


def _blocks(name: str, setting: ModesSetting) -> Sequence[Block]:
    table = setting.table
    columns = columns_of(
        "mode grid batch_size images_per_s",
        OVER_1D,
        "time_s compute_s collectives_s",
        Column("Moved by a rank", "moved_bytes", text.memory),
        "memory_max jobs",
        *([PUBLISHED] if table["published"].notna().any() else []),
        time_s="Step",
        collectives_s="Exposed communication",
    )
    note = (
        "Each mode has a batch of its own, so that rates compare and times don't. Bytes are those that a rank moves by "
        f"rings in a step. {NOTES['intervals']}"
    )
    return (Figures((_drawing(name, setting),), wide=True), Table("Modes", columns, table, f"{name}-modes", note))


def _drawing(name: str, setting: ModesSetting) -> Figure:
    """Draw the time of an image in its parts, mode by mode."""
    table = setting.table
    each = 1 / table["batch_size"].astype(float)
    parts = [
        Bars("compute", (table["compute_s"] * each).tolist(), "blue"),
        Bars("exposed communication", (table["collectives_s"] * each).tolist(), "red"),
    ]
    rows = [
        Row(
            f"{row['mode']} on {row['grid']}",
            1 / row["images_per_s_high"],
            1 / row["images_per_s_low"],
            notes=(
                f"{row['images_per_s']:.3g}",
                text.times(row["over_1d"]) if row["over_1d"] == row["over_1d"] else "",
            ),
        )
        for _, row in table.iterrows()
    ]
    caption = f"Medians over jobs, parted on rank 0; whiskers span the interval of jobs. {NOTES['intervals']}"
    said = ". ".join(
        f"{row['mode']} on {row['grid']}: {row['images_per_s']:.3g} images a second" for _, row in table.iterrows()
    )
    drawing = stacked(parts, rows, "seconds per image", columns=("images/s", "by 1D"), width=WIDE)
    return Figure("Time of an image by mode", caption, drawing, table, f"{name}-times", f"{said}. {caption}")


def _published() -> Table:
    """List what the paper prints: rates of Table 3, and by how much modes are faster than 1D on System II."""
    printed = [
        {
            **{key: getattr(number, key) for key in ("where", "system", "framework", "model")},
            "ranks": str(number.devices),
            "rate": f"{number.value:g} images/s" if metric == "images_per_s" else f"{number.value:g} % faster than 1D",
        }
        for metric in ("images_per_s", "throughput_gained")
        for number in select(paper=PAPER, metric=metric)
    ]
    columns = [
        Column(head, key, numeric=False, missing="not printed")
        for key, head in (
            *(("where", "Source"), ("system", "System"), ("framework", "Mode"), ("model", "Model")),
            *(("ranks", "Devices"), ("rate", "Rate")),
        )
    ]
    note = "Published figures, not measured here."
    return Table("What colossal-ai prints", tuple(columns), pd.DataFrame(printed), "modes-published", note)
