"""What frames of jobs share: gaps that other jobs fill, rows of the jobs that ended well, times and words."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pandas as pd


def as_others(table: pd.DataFrame, column: str, keys: Sequence[str]) -> pd.DataFrame:
    """The table with a column filled where a job that failed, or was not held, left it empty.

    Such a job counts with those that ended well and agree with it in these keys, where those all recorded the same.
    """
    ok = table["status"] == "ok"
    known = table.assign(known=table[column].where(ok)).groupby(list(keys), dropna=False)["known"]
    only = known.transform("first").where(known.transform("nunique") == 1)
    return table.assign(**{column: table[column].mask(~ok & (table[column] == "") & only.notna(), only)})


def measured_by(rows: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """The rows of a long frame that belong to those of the runs that ended well."""
    return rows[rows["run"].isin(runs.index[runs["status"] == "ok"])]


def with_moments(table: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """The table with ISO 8601 texts of these columns read as times in UTC; NaT stands for what is none."""
    read = {key: pd.to_datetime(table[key], errors="coerce", utc=True, format="ISO8601") for key in columns}
    return table.assign(**read)


def each_once(words: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(word for word in words if word))


def fields(record: object, read: Callable[[Any], Any], names: str, **renamed: str) -> dict[str, Any]:
    """The named fields of a record, each as `read` gives it; None is read for what the record lacks.

    renamed: the field of a key that is called otherwise.
    """
    known = {name: name for name in names.split()} | renamed
    return {key: read(getattr(record, name, None)) for key, name in known.items()}
