"""The energy of results as a frame: one row a component of a job."""

from collections.abc import Sequence

import pandas as pd

from engine.result.schema import Result
from reports.text import clean, number, positive

COLUMNS = [
    *("run", "component", "joules_per_iteration", "tokens_per_joule", "counters", "machines", "scope", "source"),
    *("seconds", "sample_s", "unmeasured"),
]


def energy(results: Sequence[Result]) -> pd.DataFrame:
    """One row for each component of results that looked for counters. unmeasured: why there is no figure, else ""."""
    rows = [
        (
            run,
            part.component,
            positive(part.joules_per_iteration),
            positive(part.tokens_per_joule),
            number(part.counters or None),
            number(part.machines or None),
            clean(part.scope or ""),
            clean(part.source or ""),
            positive(result.energy.seconds),
            positive(part.sample_s),
            clean(part.unmeasured or ""),
        )
        for run, result in enumerate(results)
        if result.energy
        for part in result.energy.components
    ]
    return pd.DataFrame(rows, columns=COLUMNS)
