"""Images that a network made after more and more steps of its training, in a strip."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from engine.result.schema import Result
from reports import text
from reports.jobs import grouped
from reports.page import Picture, Pictures, Section

KIND = "sample"
MOST_SECTIONS = 6
MOST_PICTURES = 12
SAMPLERS = {"ddim": "DDIM", "ddpm": "DDPM"}
COLUMNS = ["run", "trained", "trained_steps", "sampler", "steps", "images", "side", "png"]
_OF_RUN = ["system", "partition", "variant", "model"]
_TRAINING = [*_OF_RUN, "trained"]


def samples(results: Sequence[Result]) -> pd.DataFrame:
    """Make a row for each sheet of images. trained: the folder of the training's checkpoints."""
    rows = [
        (place, str(Path(str(result.config.get("resume", ""))).parent), *(getattr(sheet, key) for key in COLUMNS[2:]))
        for place, result in enumerate(results)
        if (sheet := result.images) is not None
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def sections(sheets: pd.DataFrame, runs: pd.DataFrame) -> list[Section]:
    """Give a strip for each training, from the first steps to the last: of several sheets alike the newest. sheets: as
    samples() makes them.
    """
    done = runs.loc[runs["status"] == "ok", ["end", *_OF_RUN]]
    sheets = sheets.join(done, on="run", how="inner").sort_values("end")
    sheets = sheets.drop_duplicates([*_TRAINING, "trained_steps", "sampler", "steps"], keep="last")
    sheets = sheets.sort_values(["trained_steps", "steps"])
    return [
        Section(title, [Pictures([_picture(row) for _, row in rows.tail(MOST_PICTURES).iterrows()])], name)
        for name, title, rows in grouped(sheets, _TRAINING, _title, MOST_SECTIONS)
    ]


def _title(sheet: "pd.Series[Any]") -> str:
    return f"Images of {text.title(sheet['system'], sheet['partition'], sheet['model'], sheet['variant'])}"


def _picture(sheet: "pd.Series[Any]") -> Picture:
    after = f"After {text.plural(sheet['trained_steps'], 'step')}"
    sampler = f"{SAMPLERS[sheet['sampler']]}, {text.plural(sheet['steps'], 'step')}"
    side = sheet["side"]
    said = (
        f"{text.plural(sheet['images'], 'image')} of {side} x {side} pixels, sampled by {sampler}. {after} of training."
    )
    return Picture(after, sampler, sheet["png"], said)
