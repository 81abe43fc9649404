"""A column of a table may have numbers of many units."""

from reports.nights.summary import amount


class Amount(float):
    """A number that knows its unit: it sorts and goes to a CSV as a number, and is read with the unit."""

    unit: str

    def __new__(cls, value: float, unit: str) -> "Amount":
        made = super().__new__(cls, value)
        made.unit = unit
        return made


def read(value: Amount) -> str:
    return amount(value, value.unit)
