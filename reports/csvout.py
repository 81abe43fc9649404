"""CSV files that a spreadsheet opens as data and never as formulas."""

import pandas as pd

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def to_csv(table: pd.DataFrame) -> str:
    """Return the frame as CSV text. A string that a spreadsheet would run gets an apostrophe in front; numbers stay."""
    names = [_safe(str(name)) for name in table]
    return table.astype(object).map(_value).to_csv(index=False, header=names, lineterminator="\n")


def _value(value: object) -> object:
    if isinstance(value, str):
        return _safe(value)
    if isinstance(value, pd.Timestamp):
        return value.isoformat()
    return "" if value is None or value is pd.NaT or value != value else value


def _safe(value: str) -> str:
    return f"'{value}" if value.startswith(_FORMULA) else value
