"""Figure and tables that the pages of contests share: a row a contest, what failed and was skipped, and where from."""

from collections.abc import Callable

import pandas as pd

from reports import text
from reports.columns import ORIGIN, columns_of, first, samples_of
from reports.page import NOT_RECORDED, Figure, PageSection, Paragraph, Table
from reports.plots.rows import Dot, around_one
from reports.words import NOTES

MOST_ROWS = 40
COLOURS = {"won": "blue", "lost": "red"}
OF_MEDIANS = ["ratio", "low", "high", "of_medians", "of_medians_low", "of_medians_high", "target"]


def ratios(
    name: str,
    rows: pd.DataFrame,
    *,
    other: str,
    label: Callable[[pd.Series], str],
    heads: tuple[str, str],
    beside: Callable[[pd.Series], tuple[str, str]],
    columns: list[str],
    remark: str = "",
) -> Figure:
    """Draw the first rows of the frame that contests.points makes, each by the other's; other: what that one is called.

    label: of a row; heads, beside: two columns besides the ratio; columns: what else the data holds.
    """
    shown = rows.head(MOST_ROWS)
    drawn = [
        Dot(
            label(row),
            row["low"],
            row["high"],
            row["of_medians"],
            ratio=row["ratio"],
            least=row["of_medians_low"],
            most=row["of_medians_high"],
            target=float(row["target"] or "nan"),
            colour=COLOURS.get(row["verdict"], "muted"),
            notes=_notes(row, beside) if row["jobs"] else ("",) * 4,
            missing="failed" if row["failed"] else "not run",
        )
        for _, row in shown.iterrows()
    ]
    title = f"Step time by the {other}'s"
    caption = (
        "Dot and whiskers: paired ratio with its interval. Open circle and pale band: ratio of medians with its range "
        f"over jobs. Dashed: the target. {remark}{' ' if remark else ''}Grey: undecided, as the interval holds 1 or is "
        "of one job."
    )
    if len(rows) > len(shown):
        caption += f" The first {MOST_ROWS} contests."
    said = [
        f"{' '.join(label(row).split())}: {row['ratio']:.3f} ({text.span(row['low'], row['high'])})"
        for _, row in shown.iterrows()
        if row["jobs"]
    ]
    sides = ("the engine is faster", f"the {other} is faster")
    drawing = around_one(drawn, sides, "our step time by the peer's", columns=("paired", "interval", *heads))
    data = shown[[*columns, *OF_MEDIANS]]
    return Figure(title, caption, drawing, data, f"{name}-ratios", "Paired ratios. " + ". ".join(said))


def _notes(row: pd.Series, beside: Callable[[pd.Series], tuple[str, str]]) -> tuple[str, ...]:
    return f"{row['ratio']:.3f}", text.span(row["low"], row["high"]), *beside(row)


_OF_ONE_KIND = ("sequence", *(f"{side}_{of}_per_s" for side in ("ours", "peer") for of in ("tokens", "images")))


def contests_table(name: str, rows: pd.DataFrame) -> Table:
    of_images = rows["of_images"].astype(bool)
    mixed = of_images.any() and not of_images.all()
    shown = columns_of(
        first(rows),
        "model" if rows["model"].nunique() > 1 else "",
        "peer peer_is layout grid verdict ratio of_medians of_medians_low of_medians_high",
        "target standing processor ours_s peer_s jobs rounds losses norms tolerance compared sequences",
        "" if of_images.all() else "sequence",
        "checkpointing threads overlap apart bf16",
        "" if of_images.all() else "ours_tokens_per_s peer_tokens_per_s",
        "ours_images_per_s peer_images_per_s" if of_images.any() else "",
        "ours_mfu peer_mfu ours_bytes peer_bytes memory_max network",
        missing={"norms": "not kept", "memory_max": NOT_RECORDED} | (dict.fromkeys(_OF_ONE_KIND, "") if mixed else {}),
        memory_max="Memory, fullest rank",
        sequences=samples_of(of_images).capitalize(),
    )
    note = (
        "Losses and gradient norms: the largest relative difference in a step before those that were timed. Memory: of "
        "a side by the device's allocator on rank 0; of the fullest rank, all of a process, which may have both."
    )
    lost = (rows["failed"] > 0) & (rows["jobs"] == 0)
    return Table("Contests", shown, rows.assign(lost=lost), f"{name}-contests", note, "lost")


def equal(name: str, rows: pd.DataFrame, which: str = "") -> Table:
    """Say how alike both sides were before they were timed. which: the columns before the peer's."""
    note = "Same initial weights, data and optimizer; of the steps before those that were timed."
    ran = rows[rows["jobs"] > 0]
    does = ran["does"].where(ran["does"] != "", "as " + ran["layout"].where(ran["layout"] != "", "our grid"))
    keys = f"{which} peer peer_versions losses norms tolerance compared does"
    columns = columns_of(keys, tolerance="Losses may")
    return Table("Equal work?", columns, ran.assign(does=does), f"{name}-equal", note)


def failures(table: pd.DataFrame) -> list[Table]:
    data = table[table["status"] == "failed"].sort_values("end", ascending=False, kind="stable")
    if data.empty:
        return []
    return [Table("Failed contests", columns_of("peer grid system model dtype end reason source"), data, "failed")]


def missing(table: pd.DataFrame) -> list[Table]:
    """Give contests that no machine of theirs could hold, each machine and reason once. models: those it is said of."""
    data = table[table["status"] == "missing"].sort_values("end", ascending=False, kind="stable")
    if data.empty:
        return []
    same = ["peer", "layout", "ranks", "system", "reason"]
    models = data.groupby(same)["model"].transform(lambda names: text.clean(", ".join(sorted(set(names) - {""})), 200))
    data = data.assign(models=models).drop_duplicates(same)
    columns = columns_of("peer peer_is layout ranks models system reason source", ranks="Ranks", reason="Why")
    return [Table("Contests that can't be run there", columns, data, "missing")]


def settings(table: pd.DataFrame) -> list[Table]:
    """Say what peers are set to, as the newest results of each record it."""
    data = table.sort_values("end", ascending=False, kind="stable")[["peer", "settings"]]
    rows = [
        {"peer": peer, **{name: text.clean(str(value or ""), 200) for name, value in setting.model_dump().items()}}
        for peer, known in data.drop_duplicates("peer").sort_values("peer").itertuples(index=False)
        for setting in known
    ]
    if not rows:
        return []
    columns = columns_of("peer name cpu cuda needs source", source="Source")
    return [Table("How each peer is set", columns, pd.DataFrame(rows), "settings", NOTES["not_fused"])]


def details(table: pd.DataFrame, how: str, contests: pd.DataFrame | None = None) -> PageSection:
    """Say how contests are judged, and list those points, failures, what is missing, settings and every contest."""
    listed = [] if contests is None else [contests_table("all", contests)]
    tables = (*listed, *failures(table), *missing(table), *settings(table), provenance(table))
    return PageSection("Details", [Paragraph(how), *tables])


def provenance(table: pd.DataFrame, name: str = "provenance") -> Table:
    """List every contest of every command, newest first."""
    data = table.sort_values("end", ascending=False, kind="stable").assign(jobs=table["contests"].map(len))
    keys = "start end status peer grid network system partition model dtype jobs warmup steps_per_round load"
    columns = columns_of(keys, ORIGIN)
    return Table("Provenance of every contest", columns, data, name)
