"""Functions that frames of jobs share: gaps that other jobs fill, rows of the jobs that ended well, times and words."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pandas as pd

from reports.text import clean, number, positive, titled


def as_others(table: pd.DataFrame, column: str, keys: Sequence[str]) -> pd.DataFrame:
    """Return the table with a column filled where a job that failed, or was not run, left it empty.

    Such a job counts with those that ended well and agree with it in these keys, where those all recorded the same.
    """
    ok = table["status"] == "ok"
    known = table.assign(known=table[column].where(ok)).groupby(list(keys), dropna=False)["known"]
    only = known.transform("first").where(known.transform("nunique") == 1)
    return table.assign(**{column: table[column].mask(~ok & (table[column] == "") & only.notna(), only)})


def measured_by(rows: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a long frame that belong to those of the runs that ended well."""
    return rows[rows["run"].isin(runs.index[runs["status"] == "ok"])]


def with_moments(table: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Return the table with ISO 8601 texts of these columns read as times in UTC; NaT stands for what is none."""
    read = {key: pd.to_datetime(table[key], errors="coerce", utc=True, format="ISO8601") for key in columns}
    return table.assign(**read)


def by_time(rows: pd.DataFrame) -> pd.DataFrame:
    """Return runs in the order of their ends, with run (their index) and when; a run without an end comes first."""
    when = rows["end"].fillna(pd.Timestamp(0, tz="UTC"))
    return rows.assign(run=rows.index, when=when).sort_values("when", kind="stable")


def beside_nearest(rows: pd.DataFrame, others: pd.DataFrame, keys: Sequence[str], name: str) -> pd.DataFrame:
    """Return runs of by_time with the run of those others, under name, that agrees in these keys and is the nearest in
    time; NaN where none agrees.
    """
    known = others[[*keys, "when", "run"]].rename(columns={"run": name})
    return pd.merge_asof(rows, known, on="when", by=list(keys), direction="nearest")


def each_once(words: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(word for word in words if word))


def all_said(sentences: Iterable[str]) -> str:
    return " ".join(dict.fromkeys(filter(None, sentences)))


def fields(record: object, read: Callable[[Any], Any], names: str, **renamed: str) -> dict[str, Any]:
    """Return the named fields of a record, each as `read` gives it; None is read for what the record lacks.

    renamed: the field of a key that is called otherwise.
    """
    known = {name: name for name in names.split()} | renamed
    return {key: read(getattr(record, name, None)) for key, name in known.items()}


def long(
    records: Sequence[Any],
    listed: Callable[[Any], Iterable[Any]],
    *,
    plain: str = "",
    texts: str = "",
    numbers: str = "",
    positives: str = "",
    key: str = "run",
) -> pd.DataFrame:
    """Make one row for each thing that a record lists: the place of the record, under key, and fields of the thing."""
    readers: list[tuple[str, Callable[[Any], Any]]] = [
        *((name, lambda value: value) for name in plain.split()),
        *((name, lambda words: clean(words or "")) for name in texts.split()),
        *((name, number) for name in numbers.split()),
        *((name, positive) for name in positives.split()),
    ]
    rows = [
        (place, *(read(getattr(thing, name)) for name, read in readers))
        for place, record in enumerate(records)
        for thing in listed(record)
    ]
    return pd.DataFrame(rows, columns=[key, *(name for name, _ in readers)])


def grouped(
    table: pd.DataFrame, by: Sequence[str], title: Callable[["pd.Series[Any]"], str], most: int | None = None
) -> list[tuple[str, str, pd.DataFrame]]:
    """Rows that agree in these columns are a part of a page, with a name, and a title by the first of them."""
    groups = [rows for _, rows in table.groupby(list(by), dropna=False, sort=True)][:most]
    return titled(groups, lambda rows: title(rows.iloc[0]))
