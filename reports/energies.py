"""The energy of results as a frame: one row a component of a job."""

from collections.abc import Sequence

import pandas as pd

from engine.result.schema import Result
from reports.jobs import fields
from reports.text import clean, number, positive

COLUMNS = [
    *("run", "component", "joules_per_iteration", "tokens_per_joule", "counters", "machines", "scope", "source"),
    *("seconds", "sample_s", "unmeasured"),
]


def energy(results: Sequence[Result]) -> pd.DataFrame:
    """One row for each component of results that looked for counters. unmeasured: why there is no figure, else ""."""
    rows = [
        {
            "run": run,
            "component": part.component,
            "seconds": positive(result.energy.seconds),
            **fields(part, positive, "joules_per_iteration tokens_per_joule sample_s"),
            **fields(part, lambda many: number(many or None), "counters machines"),
            **fields(part, lambda words: clean(words or ""), "scope source unmeasured"),
        }
        for run, result in enumerate(results)
        if result.energy
        for part in result.energy.components
    ]
    return pd.DataFrame(rows, columns=COLUMNS)
