"""Images that a network made: a row a sheet."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from engine.result.schema import Result

KIND = "sample"
COLUMNS = ["run", "trained", "trained_steps", "sampler", "steps", "images", "side", "png"]


def samples(results: Sequence[Result]) -> pd.DataFrame:
    """Make a row for each sheet of images. trained: the folder of the training's checkpoints."""
    rows = [
        (place, str(Path(str(result.config.get("resume", ""))).parent), *(getattr(sheet, key) for key in COLUMNS[2:]))
        for place, result in enumerate(results)
        if (sheet := result.images) is not None
    ]
    return pd.DataFrame(rows, columns=COLUMNS)
