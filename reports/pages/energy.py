"""Energy: what training takes of devices, processors, memory and whole nodes, wherever a run could count it."""

from collections.abc import Sequence

import pandas as pd

from engine.result import metrics
from engine.result.schema.step import COMPONENTS
from reports import text
from reports.columns import columns_of, provenance
from reports.derived import by_row
from reports.figures.scaling import DEVICES
from reports.frames.frame import POINT, SERIES, Frames, series_title
from reports.frames.jobs import each_once, grouped
from reports.frames.points import fastest
from reports.page import MOST_SECTIONS, Column, Facts, Figure, Figures, Page, PageSection, Paragraph, Table
from reports.pages.study import Study
from reports.plots.canvas import Scale, plain
from reports.plots.lines import Line, lines
from reports.words import NOTES

OF_RUNS = ["status", "time_s", "model_flops_per_s", "images_per_s", "end", *POINT]
_COLOURS = {"node": "red", "device": "blue", "processor": "green", "memory": "purple"}
"""Components from the one that counts most to the least: the first that a series has is its headline."""


def build(mine: Frames, everything: Frames) -> Page:
    """Make the page; with no energy it is one sentence."""
    table = energy_points(everything)
    if table.empty:
        return Page(lead=NOTES["no_energy"], empty=True)
    series = grouped(table, SERIES, series_title)
    sections = [_section(*one) for one in series[:MOST_SECTIONS]]
    if rest := [rows for *_, rows in series[MOST_SECTIONS:]]:
        sections.append(
            PageSection("Further series", [_table("more_series", pd.concat(rest, ignore_index=True), SERIES)])
        )
    return Page([*sections, PageSection("Details", [provenance(mine.runs)])], _headline(table))


STUDY = Study("energy", 20, lambda runs: runs["counts_energy"].astype(bool), build, shared=True)


def energy_points(frames: Frames) -> pd.DataFrame:
    """Make a row a component of a point, by series and devices: medians over the jobs that measured it.

    per_joule: tokens, or images where the network sees them (of_images); its _low and _high are of the jobs. seconds,
    sample_s: medians too. unmeasured: what the newest job without a figure says. Only of series in which some job
    measured something.
    """
    runs = frames.runs.loc[frames.runs["status"] == "ok", OF_RUNS].assign(run=lambda known: known.index)
    rows = frames.energy.merge(runs, on="run").sort_values("end", kind="stable")
    rows = rows.merge(rows.loc[rows["joules_per_iteration"].notna(), SERIES].drop_duplicates(), on=SERIES)
    batch = pd.to_numeric(rows["batch_size"], errors="coerce")
    images = by_row(metrics.tokens_per_joule, batch, rows["joules_per_iteration"])
    rows = rows.assign(of_images=rows["images_per_s"].notna())
    rows["per_joule"] = images.where(rows["of_images"], rows["tokens_per_joule"])
    table = (
        rows.groupby([*POINT, "component"], dropna=False, sort=False)
        .agg(
            **{key: (key, "median") for key in ("time_s", "model_flops_per_s", "joules_per_iteration", "seconds")},
            **{key: (key, "max") for key in ("counters", "machines", "sample_s")},
            **{key: (key, each_once) for key in ("scope", "source")},
            of_images=("of_images", "any"),
            per_joule=("per_joule", "median"),
            per_joule_low=("per_joule", "min"),
            per_joule_high=("per_joule", "max"),
            jobs=("per_joule", "count"),
            unmeasured=("unmeasured", _last),
        )
        .reset_index()
    )
    joules, time_s = table["joules_per_iteration"], table["time_s"]
    for end in ("per_joule_low", "per_joule_high"):
        table[end] = table[end].where(table["jobs"] > 1)
    table["flops_per_joule"] = by_row(metrics.flops_per_joule, table["model_flops_per_s"], time_s, joules)
    table["power_w"] = by_row(metrics.mean_power, joules, time_s)
    places = {component: place for place, component in enumerate(COMPONENTS)}
    table["place"] = table["component"].map(places)
    return table.sort_values([*SERIES, "ranks", "time_s", "place"], kind="stable").reset_index(drop=True)


def _last(words: "pd.Series[str]") -> str:
    return next((word for word in reversed(words.tolist()) if word), "")


def _widest(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the component that counts most, of those that are measured."""
    measured = table.dropna(subset="per_joule")
    return next(rows for name in _COLOURS if len(rows := measured[measured["component"] == name]))


def _headline(table: pd.DataFrame) -> str:
    best = _widest(table).sort_values("flops_per_joule").iloc[-1]
    where = f"{text.plural(int(best['ranks']), 'device')} of {best['system'] or 'an unnamed system'}"
    return f"{text.flops_per_joule(best['flops_per_joule'])} of the model on {where}, by {best['component']}"


def _section(name: str, title: str, rows: pd.DataFrame) -> PageSection:
    point = _widest(rows).sort_values(["ranks", "model_flops_per_s"]).iloc[-1]
    per_joule = point["flops_per_joule"]
    what = f"{point['component']}: {point['scope']}, {point['source']}"
    where = f"{point['model']} on {text.plural(int(point['ranks']), 'device')}"
    facts = [
        (text.significant(point["per_joule"]), f"{_trained(point.to_frame().T)} per joule", f"{where}; {what}"),
        (text.flops_per_joule(per_joule), "of the model", "flop/s per watt, recomputation not counted"),
        (text.watts(point["power_w"]), "mean power", f"of all {text.count(point['counters'])} counters"),
    ]
    of = _trained(rows)
    figures = [
        _figure(f"{name}-{text.slug(of)}", f"{of.capitalize()} per joule", rows, "per_joule"),
        _figure(f"{name}-flops", "Model flops per joule", rows, "flops_per_joule"),
    ]
    counted = rows["component"].isin(rows.loc[rows["jobs"] > 0, "component"])
    unknown = rows[~counted].drop_duplicates("component", keep="last")
    why = [f"{row['component']} ({row['unmeasured'] or 'no reason given'})" for _, row in unknown.iterrows()]
    said = [Paragraph(f"Not measured here: {'; '.join(why)}.")] if why else []
    return PageSection(
        title, [Facts(facts), Figures(figures), *said, _table(name, rows[counted])], f"series-{name}", one_of_many=True
    )


def _trained(rows: pd.DataFrame) -> str:
    """Say what networks are trained on."""
    of_images = rows["of_images"].astype(bool)
    return "images" if of_images.all() else "tokens or images" if of_images.any() else "tokens"


def _figure(name: str, title: str, rows: pd.DataFrame, key: str) -> Figure:
    measured = rows.dropna(subset=key)
    drawn = []
    for component, colour in _COLOURS.items():
        line = fastest(measured[measured["component"] == component])
        low, high = (line.get(f"{key}_{end}", pd.Series()).tolist() for end in ("low", "high"))
        drawn.append(Line(line["ranks"].tolist(), line[key].tolist(), colour, component, low, high))
    factor, letter = text.prefix(float(measured[key].min())) if key == "flops_per_joule" else (1.0, "")
    unit = f"{letter}flop per joule" if letter or key == "flops_per_joule" else f"{_trained(rows)} per joule"
    scale = Scale(unit, "log10", write=lambda value: plain(value / factor))
    caption = "The fastest layout at each device count, by the component whose joules they are."
    caption += " Bars span the jobs of a point." if key == "per_joule" else ""
    said = [
        f"{line.label}: {text.significant(line.y[0] / factor)} to {text.significant(line.y[-1] / factor)}"
        for line in drawn
        if line.y
    ]
    kept = ["ranks", "model", "grid", "component", key, "scope", "source", "jobs"]
    drawing = lines(drawn, DEVICES, scale)
    return Figure(title, caption, drawing, measured[kept], name, f"{'; '.join(said)} {unit}.")


def _table(name: str, rows: pd.DataFrame, which: Sequence[str] = ()) -> Table:
    """List every component of every point. which: the columns that tell several series apart."""
    columns = columns_of(
        *(Column(key.title(), key, numeric=False, missing="") for key in which),
        "ranks model grid overlap component per_joule joules_per_iteration flops_per_joule power_w "
        "scope source counters machines seconds sample_s jobs unmeasured",
        source="By",
        per_joule=f"{(of := _trained(rows)).capitalize()} per joule",
    )
    note = f"By component. The spread of {of} per joule is that of the jobs of a point; one job has none."
    return Table("Energy of every point", columns, rows, f"{name}-points", note)
