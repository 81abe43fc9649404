"""How ci/gpu divides its minutes: what is late takes nothing that those after it need."""

import os
from pathlib import Path

import pytest

from engine.result import provenance
from engine.result.gpu_check import Finding
from gpu_check import budget
from gpu_check.budget import LATE, LOOK_S, MINUTES, RESERVE_S, limit_s
from gpu_check.checks import Check, checks
from gpu_check.command import judge_of
from gpu_check.judges import Judge
from gpu_check.session import Session, There

ROOT = Path(__file__).parents[2]
THERE = There(1, "a card", 2**34, 2**34, False, provenance.collect(start=provenance.now(), launcher="none"))
CARDS = ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB", "AMD Instinct MI300X", "NVIDIA L40S", "nobody's card")


@pytest.mark.parametrize("card", CARDS)
def test_all_checks_fit_into_the_minutes_that_there_are_by_default(card: str) -> None:
    judge = judge_of(card, "cuda", None)
    for gib in (8, 16, 24, 32, 40, 48, 64, 79.1, 80, 96, 139, 180, 192, 288):
        for devices in (1, 2, 8):
            every = checks(judge, gib * 2**30, Path("x"), devices=devices, tf32=True)
            assert len({check.slug for check in every}) == len(every)
            assert sum(check.least_s for check in every) + LOOK_S + RESERVE_S <= 60 * MINUTES
    rehearsed = checks(judge_of("a processor", "cpu", None), 2**34, Path("x"), devices=1, tf32=False)
    assert sum(check.least_s for check in rehearsed) + LOOK_S + RESERVE_S <= 60 * MINUTES / 2


@pytest.mark.parametrize("slow", [{0}, {2}, {0, 1, 2, 3}, {4}])
def test_whichever_checks_hang_all_others_have_their_time(slow: set[int]) -> None:
    own = [30.0, 40.0, 10.0, 60.0, 20.0]
    left = sum(own) + 15
    for number, least in enumerate(own):
        limit = limit_s(left, least, sum(own[number + 1 :]), LATE["cuda"])
        assert limit is not None
        assert least <= limit <= LATE["cuda"] * least
        left -= limit if number in slow else least
    assert left >= 0


def test_with_fewer_minutes_the_first_ones_have_their_time_and_the_last_are_left_out() -> None:
    assert limit_s(50, 20, 40, 3.0) == pytest.approx(20)
    assert limit_s(30, 20, 20, 3.0) == pytest.approx(20)
    assert limit_s(10, 20, 0, 3.0) is None


HANGS = "import threading; threading.Event().wait()"
LATE_ONE = "import time; time.sleep(2)"


def _with_one_that_is_slow(
    folder: Path, monkeypatch: pytest.MonkeyPatch, code: str, late: float
) -> tuple[dict[str, str], str]:
    """What becomes of it, which has a second at first, and of two that need most of the time there is."""
    told = "import sys; from pathlib import Path; from engine.result.gpu_check import *\n"
    told += "write_findings([Finding(name=Path(sys.argv[1]).stem, status='pass')], Path(sys.argv[1]))\n"
    for name, body in (("slow", f"{code}\n{told}"), ("quick", told)):
        (folder / f"{name}.py").write_text(body)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setitem(budget.LATE, "cuda", late)
    own = Judge(True, {}, None).own
    most_s = (60 * MINUTES - RESERVE_S - 1) / 2
    wanted = [Check("slow", ("slow",), own, 0.5), *(Check(f"after-{n}", ("quick",), own, most_s) for n in range(2))]
    findings = Session("cuda", folder / "gpu.json", MINUTES).carry_out(wanted, THERE).findings
    return {finding.name: finding.status for finding in findings}, _sentence(findings, "slow")


def _sentence(findings: tuple[Finding, ...], name: str) -> str:
    return next(finding.sentence for finding in findings if finding.name == name)


def test_a_check_that_hangs_starves_none_behind_it_and_fails_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, sentence = _with_one_that_is_slow(tmp_path, monkeypatch, HANGS, 4.0)
    assert found == {"slow": "fail", "after-0": "pass", "after-1": "pass"}
    assert sentence.startswith("It did not end within 2 s and was ended")


def test_a_check_that_was_cut_short_is_begun_again_with_the_time_that_others_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _ = _with_one_that_is_slow(tmp_path, monkeypatch, LATE_ONE, 400.0)
    assert found == {"slow": "pass", "after-0": "pass", "after-1": "pass"}
