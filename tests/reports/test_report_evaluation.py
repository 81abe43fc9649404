"""Evaluations: accuracy of each tensor mode beside data parallelism of the same seed, and perplexity of text."""

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from sample_results import train
from test_report_reproduction import claim, evidence, verdicts

from engine.result.schema import Evaluation, Result
from reports.frames.evaluations import beside_data, with_last
from reports.page import Table
from reports.pages.evaluation import STUDY

GRIDS = {"data": "1x1x1x4", "1d": "4x1x1x1", "2d": "2x2x1x1", "2.5d": "2x2x1x2", "3d": "2x2x2x1"}
LEARNT = (0.5, 0.8, 0.9)
"""Share that is right after each epoch."""
FIG_7 = claim("colossal-ai", "Fig. 7")


def evaluated(
    mode: str, shares: Sequence[float] = LEARNT, *, seed: int = 0, job: int = 0, system: str = "local", series: str = ""
) -> Result:
    """A training of a vision transformer on digits."""
    grid = GRIDS[mode]
    ranks = math.prod(map(int, grid.split("x")))
    labels = {"study": "evaluation", "system": system, "series": f"{series or 'small'}-{mode}"}
    found = train(ranks=ranks, grid=grid, sequences=64, dtype="fp32", job=job, **labels)
    assert found.model is not None
    network = found.model.model_copy(update={"name": "vit-digits", "family": "vit", "vocabulary": None})
    assert found.summary is not None
    slow = found.summary.model_copy(update={"hardware_flops_per_s": 1e9, "model_flops_per_s": 1e9})
    told = tuple(
        Evaluation(step=24 * (epoch + 1), loss=1 - share, right=share, samples=256, time_s=0.1)
        for epoch, share in enumerate(shares)
    )
    config = found.config | {"seed": seed}
    return found.model_copy(update={"model": network, "summary": slow, "evaluations": told, "config": config})


def every_mode(by: float = 1.0, seeds: int = 2, **known: str) -> list[Result]:
    """Data parallelism, and modes whose accuracy in the second epoch is so many times as high, from each seed."""
    results = []
    for seed in range(seeds):
        results.append(evaluated("data", seed=seed, job=10 * seed, **known))
        for place, mode in enumerate(("1d", "2d", "2.5d", "3d"), 1):
            shares = (LEARNT[0], LEARNT[1] * by, LEARNT[2])
            results.append(evaluated(mode, shares, seed=seed, job=10 * seed + place, **known))
    return results


@pytest.mark.parametrize(
    ("by", "seeds", "expected"),
    [(1.0, 2, "reproduces"), (0.99, 2, "reproduces"), (0.9, 2, "differs"), (1.1, 2, "better"), (1.0, 1, "can't tell")],
    ids=["alike", "nearly", "less in one epoch", "more in one epoch", "one seed"],
)
def test_each_mode_is_held_to_data_parallelism_in_every_epoch(
    by: float, seeds: int, expected: str, tmp_path: Path
) -> None:
    frames = evidence(tmp_path, every_mode(by, seeds))
    better = "differs" if expected == "better" else expected  # no side is better: curves have to be alike
    assert verdicts(FIG_7, frames) == [("local", better, False)] * 4


def test_the_papers_machine_answers_by_the_papers_series(tmp_path: Path) -> None:
    small = evidence(tmp_path / "small", every_mode(system="system-iii"))
    assert verdicts(FIG_7, small) == []
    frames = evidence(tmp_path / "own", every_mode(system="system-iii", series="colossal-ai"))
    assert verdicts(FIG_7, frames) == [("system-iii", "reproduces", False)] * 4


def test_only_trainings_of_one_seed_are_compared(tmp_path: Path) -> None:
    results = [
        evaluated("data", (0.1, 0.1, 0.1), seed=7),
        evaluated("1d", seed=1, job=1),
        evaluated("2d", seed=7, job=2),
    ]
    frames = evidence(tmp_path, results)
    pairs = beside_data(with_last(frames.runs, frames.evaluations), frames.evaluations)
    assert list(pairs["mode"]) == ["2D"]
    assert list(pairs["farthest"]) == pytest.approx([9.0])
    assert list(pairs["apart"]) == pytest.approx([0.8])


def test_the_page_has_curves_and_a_row_a_training(tmp_path: Path) -> None:
    frames = evidence(tmp_path, every_mode(0.99))
    page = STUDY.page(frames)
    assert "0.80 points" in page.headline
    (table,) = (
        block
        for section in page.sections
        for block in section.blocks
        if isinstance(block, Table) and "apart" in {column.key for column in block.columns}
    )
    assert len(table.data) == 10
    assert table.data["apart"].max() == pytest.approx(0.008)
    assert table.data["best_right"].max() == pytest.approx(LEARNT[-1])


def test_perplexity_is_of_text_in_any_study(tmp_path: Path) -> None:
    told = (
        Evaluation(step=8, loss=2.0, right=0.4, samples=64, time_s=0.1),
        Evaluation(step=16, loss=900.0, samples=64, time_s=0.1),
    )
    frames = evidence(tmp_path, [train(job=1).model_copy(update={"evaluations": told})])
    assert list(frames.evaluations["perplexity"]) == pytest.approx([math.exp(2), math.inf])
    page = STUDY.page(frames)
    assert not page.empty
    keys = {
        column.key
        for section in page.sections
        for block in section.blocks
        if isinstance(block, Table)
        for column in block.columns
    }
    assert {"perplexity", "loss"} <= keys


def test_without_any_the_page_says_so(tmp_path: Path) -> None:
    assert STUDY.page(evidence(tmp_path, [train()])).empty
