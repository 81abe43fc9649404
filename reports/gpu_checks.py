"""What ci/gpu has found, as pandas frames. Figures that were not measured are NaN; missing texts are ""."""

from collections.abc import Sequence

import pandas as pd

from engine.result.gpu_check import GpuCheck
from reports.jobs import with_moments
from reports.load import Checked
from reports.text import clean, number, significant

COLUMNS = ["device", "name", "status", "end", "source", "result"]
FINDINGS = ["finding", "outcome", "figure", "want", "seen", "seconds"]


def frame(found: Sequence[Checked]) -> pd.DataFrame:
    """One row a run of the command. device: cuda, or cpu for a rehearsal; result: the whole of it."""
    rows = [
        (of.device, clean(of.device_name, 120), of.status, of.provenance.end, clean(one.source), of)
        for one in found
        for of in [one.result]
    ]
    return with_moments(pd.DataFrame(rows, columns=COLUMNS), "end")


def findings(result: GpuCheck) -> pd.DataFrame:
    """One row a finding of a run, as text: each figure has a unit of its own."""
    rows = [
        (
            clean(one.name, 160),
            one.status,
            "" if one.figure is None else f"{significant(number(one.figure), 3)} {clean(one.unit, 40)}".strip(),
            clean(one.want, 160),
            clean(one.sentence),
            number(one.seconds),
        )
        for one in result.findings
    ]
    return pd.DataFrame(rows, columns=FINDINGS)
