"""Matrix products by mode: how both factors lie in memory (axonn-sc24 V-C)."""

from collections.abc import Sequence

import pandas as pd

from engine.result import metrics
from engine.result.schema import Result
from reports.columns import columns_of
from reports.derived import by_row
from reports.jobs import long, measured_by
from reports.page import Table
from reports.text import clean

KEYS = ["dtype", "size", "mode"]
NOTE = "N: a factor lies row by row, T: column by column. All modes of a size were timed in turns, within one job."


def gemm_modes(results: Sequence[Result]) -> pd.DataFrame:
    """Make one row for each mode that a result measured. of_nn: of the rate of mode NN in the same job."""
    table = long(results, lambda one: one.gemm_modes, plain="mode", numbers="size", positives="flops_per_s")
    nn = table[table["mode"] == "NN"].drop_duplicates("run").set_index("run")["flops_per_s"]
    return table.assign(
        dtype=[clean(results[run].dtype, 20) for run in table["run"]],
        of_nn=by_row(metrics.mode_rate, table["flops_per_s"], table["run"].map(nn)),
    )


def by_mode(every: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Make a row a number format, size and mode of what gemm_modes makes: medians over jobs that ended well."""
    rows = measured_by(every, runs)
    columns = {name: (name, "median") for name in ("flops_per_s", "of_nn")}
    return rows.groupby(KEYS, sort=False).agg(**columns, jobs=("run", "count")).reset_index()


def table(name: str, rows: pd.DataFrame) -> Table:
    columns = columns_of("dtype size mode flops_per_s of_nn jobs")
    return Table("Matrix products by mode", columns, rows, f"{name}-modes", NOTE)
