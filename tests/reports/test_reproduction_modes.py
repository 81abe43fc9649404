"""Claims about tensor modes: each mode in its fastest shape, on machines with links of the same sort."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from sample_results import train
from test_report_reproduction import claim, evidence, verdicts

from engine.result.schema import Result

PAPER = {"1d": 5.06, "2d": 6.18, "2.5d": 6.73}
"""Images a second on 4 devices of Table 3."""
GRIDS = {"1d": "4x1x1x1", "2d": "2x2x1x1", "2.5d": "2x2x1x1", "3d": "2x2x2x1"}


def jobs(
    rates: Mapping[str, float],
    *,
    system: str,
    ranks: int = 4,
    series: str = "colossal-ai",
    model: str = "vit-24x2048",
    grid: str = "",
    first: int = 0,
) -> list[Result]:
    """Three jobs of each mode at these images a second. first: number of a mode's first job."""
    return [
        _job(mode, rate, job, system, ranks, series, model, grid)
        for mode, rate in rates.items()
        for job in range(first, first + 3)
    ]


def _job(mode: str, rate: float, job: int, system: str, ranks: int, series: str, model: str, grid: str) -> Result:
    labels = {"study": "tensor_modes", "system": system, "series": f"{series}-{mode}"}
    found = train(
        ranks=ranks, grid=grid or GRIDS[mode], sequences=512, time_s=512 / rate, dtype="fp16", job=job, **labels
    )
    assert found.model is not None
    assert found.summary is not None
    network = found.model.model_copy(update={"name": model, "family": "vit", "vocabulary": None})
    rates = {"samples_per_s": rate * (1 + 1e-4 * job), "hardware_flops_per_s": 1e9, "model_flops_per_s": 1e9}
    summary = found.summary.model_copy(update=rates)
    return found.model_copy(update={"model": network, "summary": summary})


@pytest.mark.parametrize(
    ("by", "expected"), [(1.0, "reproduces"), (1.2, "better"), (0.8, "differs")], ids=["as printed", "faster", "slower"]
)
def test_rates_are_judged_on_the_papers_machine(by: float, expected: str, tmp_path: Path) -> None:
    frames = evidence(tmp_path, jobs({mode: rate * by for mode, rate in PAPER.items()}, system="system-iv"))
    found = verdicts(claim("colossal-ai", "Table 3", "rates"), frames)
    assert found[:3] == [("system-iv", expected, False)] * 3


def test_a_gain_is_over_1d_of_the_same_devices_and_of_the_fastest_shape(tmp_path: Path) -> None:
    rates = jobs(PAPER, system="system-iv") + jobs({"2.5d": 3.0}, system="system-iv", grid="1x1x2x2")
    frames = evidence(tmp_path, rates + jobs({"1d": 1e-3}, system="system-iv", ranks=8, grid="8x1x1x1"))
    found = verdicts(claim("colossal-ai", "Table 3", "gains over 1D"), frames)
    assert found[:2] == [("system-iv", "reproduces", False)] * 2


@pytest.mark.parametrize(("ahead", "expected"), [(1.3, "reproduces"), (0.8, "differs")])
def test_another_machine_answers_by_sign_where_its_links_are_of_the_same_sort(
    ahead: float, expected: str, tmp_path: Path
) -> None:
    rates = {"1d": 10.0, "2d": 10.0 * ahead, "2.5d": 10.0 * ahead}
    results = jobs(rates, system="vcluster-pairs", series="small", model="vit-2x512")
    results += jobs({"1d": 10.0, "2d": 5.0, "2.5d": 5.0}, system="vcluster", series="small", model="vit-2x512")
    frames = evidence(tmp_path, results)
    paired = verdicts(claim("colossal-ai", "Fig. 11", "order on System II"), frames)
    assert ("vcluster-pairs", expected, True) in paired
    assert {machine for machine, *_ in paired} == {"vcluster-pairs"}
    largest = verdicts(claim("colossal-ai", "Table 3", "largest speed-up"), frames)
    assert {machine for machine, *_ in largest} == {"vcluster"}, "the paper's 64 nodes have equal links"
    equal = verdicts(claim("colossal-ai", "Fig. 11", "order on System I"), frames)
    assert ("vcluster", "reproduces", True) in equal
    assert {machine for machine, *_ in equal} == {"vcluster"}
