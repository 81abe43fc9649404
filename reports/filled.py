"""What jobs that failed, or were not held, did not record of their machine."""

from collections.abc import Sequence

import pandas as pd


def as_others(table: pd.DataFrame, column: str, keys: Sequence[str]) -> pd.DataFrame:
    """The table with a column filled where such a job left it empty.

    It counts with the jobs that ended well and agree with it in these keys, where those all recorded the same.
    """
    ok = table["status"] == "ok"
    known = table.assign(known=table[column].where(ok)).groupby(list(keys), dropna=False)["known"]
    only = known.transform("first").where(known.transform("nunique") == 1)
    return table.assign(**{column: table[column].mask(~ok & (table[column] == "") & only.notna(), only)})
