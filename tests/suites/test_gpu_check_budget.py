"""How ci/gpu divides its minutes, by a clock that only its processes move: a check that is slow or hangs takes no more
than it may, and what is left out comes last.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from engine.result import provenance
from engine.result.gate import NOTHING_KNOWN, over_rounds
from engine.result.schema.gpu_check import Finding
from gpu_check import lost, network, pair, session
from gpu_check.budget import LOOK_S, MINUTES, RANKS_WAIT, RESERVE_S, late_s
from gpu_check.checks import Check, checks
from gpu_check.command import judge_of
from gpu_check.process import Ended
from gpu_check.session import Session, There

THERE = There(1, "a card", 2**34, 2**34, False, provenance.collect(start=provenance.now(), launcher="none"))
CARDS = ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB", "AMD Instinct MI300X", "NVIDIA L40S", "nobody's card")
FIRST = (
    "parity",
    "streams",
    "pipelines",
    "steady",
    "network",
    "lost",
    "gemm, bf16",
    "contest with plain, gpt",
    "profile",
)
"""What tells most."""
LEFT_OUT_FIRST = {"contest with compile, llama", "gemm, fp32", "gemm, tf32"}
WHOLE = FIRST[7]


@pytest.fixture(autouse=True)
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Fill Inductor's cache beforehand."""
    kept = tmp_path / "inductor"
    kept.mkdir()
    (kept / "fxgraph").touch()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(kept))
    return kept


def _every(
    devices: int, device: Literal["cuda", "cpu"] = "cuda", *, card: str = CARDS[0], gib: float = 79.1
) -> list[Check]:
    return checks(judge_of(card, device, None), gib * 2**30, Path("x"), devices=devices, tf32=True)


@pytest.mark.parametrize("card", CARDS)
def test_all_checks_but_the_last_three_fit_into_the_minutes_that_there_are_by_default(card: str) -> None:
    """Those are what is left out first."""
    for gib in (8, 16, 24, 32, 40, 48, 64, 79.1, 80, 96, 139, 180, 192, 288):
        for devices in (1, 2, 8):
            every = _every(devices, card=card, gib=gib)
            assert len({check.slug for check in every}) == len(every)
            assert tuple(check.name for check in every[: len(FIRST)]) == FIRST
            assert {check.name for check in every[-3:]} == LEFT_OUT_FIRST
            needed = sum(check.processes * check.least_s for check in every[:-3])
            assert needed + LOOK_S + RESERVE_S <= 60 * MINUTES
    rehearsed = checks(judge_of("a processor", "cpu", None), 2**34, Path("x"), devices=1, tf32=False)
    assert sum(check.processes * check.least_s for check in rehearsed) + LOOK_S + RESERVE_S <= 60 * MINUTES / 2


def _carried_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch, wanted: Sequence[Check], *, slow: float = 1.0, hangs: str = ""
) -> dict[str, Finding]:
    """Findings of each check, all `slow` times as slow as expected and one standing still.

    Each decides what it is to decide by the processes that it has before the next one.
    """
    clock = SimpleNamespace(now=0.0)
    of = {check.slug: check for check in wanted}

    def run(module: Sequence[str], *, log: Path, timeout_s: float, environment: Mapping[str, str]) -> Ended:
        check = next(check for slug, check in of.items() if log.stem in (slug, f"{slug}-2"))
        takes_s = float("inf") if check.name == hangs else slow * check.least_s
        taken_s = min(takes_s, timeout_s)
        clock.now += taken_s
        return Ended(0 if takes_s <= timeout_s else None, taken_s, "waiting")

    def planned(check: Check) -> Check:
        def judge(outs: Sequence[Path]) -> list[Finding]:
            return [Finding(name=check.name, status="pass" if len(outs) >= check.processes else "undecided")]

        return replace(check, judge=judge)

    monkeypatch.setattr(session, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(session.process, "run", run)
    begun = Session("cuda", folder / "gpu.json", MINUTES)
    clock.now += LOOK_S
    findings = begun.carry_out([planned(check) for check in wanted], THERE).findings
    assert clock.now <= 60 * MINUTES
    assert [finding.name for finding in findings] == [check.name for check in wanted]
    return {finding.name: finding for finding in findings}


@pytest.mark.parametrize("devices", [1, 2])
def test_where_all_checks_are_slow_the_first_of_them_finish_and_only_the_end_of_the_minutes_ends_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, devices: int
) -> None:
    every = _every(devices)
    usual = _carried_out(tmp_path, monkeypatch, every)
    assert {usual[check.name].status for check in every[:-3]} == {"pass"}
    slow = _carried_out(tmp_path, monkeypatch, every, slow=1.5)
    assert {slow[name].status for name in FIRST} == {"pass"}
    assert {found.status for found in slow.values()} == {"pass", "not run"}
    assert sum("it was ended after" in found.sentence for found in slow.values()) <= 1


@pytest.mark.parametrize("hangs", FIRST)
def test_a_check_that_hangs_fails_and_the_others_still_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hangs: str
) -> None:
    every = _every(2)
    found = _carried_out(tmp_path, monkeypatch, every, hangs=hangs)
    assert found[hangs].status == "fail"
    assert found[hangs].sentence.startswith("It stood still or was too slow: it did not end within")
    assert {found[name].status for name in {*FIRST, "kernels", "flags"} - {hangs}} == {"pass"}
    assert {one.status for one in found.values()} <= {"pass", "fail", "not run"}


@pytest.mark.parametrize("hangs", FIRST[:2])
def test_a_check_that_hangs_where_nothing_is_compiled_yet_leaves_the_others_that_tell_whether_all_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: Path, hangs: str
) -> None:
    every = _every(2)
    (compiled / "fxgraph").unlink()
    found = _carried_out(tmp_path, monkeypatch, every, hangs=hangs)
    assert found[hangs].status == "fail"
    assert {found[name].status for name in FIRST[:6] if name != hangs} == {"pass"}


@pytest.mark.parametrize(
    ("device", "cache", "times"),
    [("cuda", "filled", (1, 1)), ("cuda", "empty", (2, 1)), ("cuda", "missing", (2, 1)), ("cpu", "missing", (1, 1))],
)
def test_the_first_process_of_a_check_has_twice_its_time_where_nothing_is_compiled_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: Path, device: Any, cache: str, times: tuple[int, int]
) -> None:
    if cache != "filled":
        (compiled / "fxgraph").unlink()
    if cache == "missing":
        compiled.rmdir()
    limits: list[float] = []

    def run(module: Sequence[str], *, log: Path, timeout_s: float, environment: Mapping[str, str]) -> Ended:
        compiled.mkdir(exist_ok=True)
        (compiled / "fxgraph").touch()  # the first of all checks has
        limits.append(timeout_s)
        return Ended(0, 1.0, "")

    def undecided(outs: Sequence[Path]) -> list[Finding]:
        return [Finding(name="it", status="undecided" if len(outs) < 2 else "pass")]

    monkeypatch.setattr(session.process, "run", run)
    wanted = [Check(name, (), undecided, 20, repeats=True, processes=2) for name in ("one", "another")]
    Session(device, tmp_path / "gpu.json", 10 * MINUTES).carry_out(wanted, THERE)
    usual = late_s(20, device)
    assert limits == pytest.approx([time * usual for time in (*times, *times)])


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_profile_has_steps_enough_to_decide_and_for_a_rate_and_no_more_than_its_trace_is_worth(device: str) -> None:
    every = checks(judge_of(CARDS[1], device, None), 39.1 * 2**30, Path("x"), devices=1, tf32=True)  # type: ignore[arg-type]
    words = next(check.words for check in every if check.name == "profile")
    iterations, warmup = (int(words[words.index(name) + 1]) for name in ("--iterations", "--warmup"))
    first, last = map(int, words[words.index("--profile-iterations") + 1].split(".."))
    profiled = last - first + 1
    assert over_rounds([1.0] * profiled) != NOTHING_KNOWN
    assert iterations - warmup - profiled >= 5 or device == "cpu"
    assert warmup <= first <= last < iterations <= 15


def test_the_whole_network_has_two_processes_before_the_next_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one the step has to be further from its limit."""
    every = _every(1)
    assert [check.name for check in every if check.processes > 1] == [WHOLE]
    until = every[: len(FIRST) - 1]
    assert _carried_out(tmp_path, monkeypatch, until, slow=1.9)[WHOLE].status == "pass"
    slow = _carried_out(tmp_path, monkeypatch, until, slow=2.2)
    assert slow[WHOLE].status == "undecided", "what the first of them has found stays"


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_parts_that_wait_for_a_rank_give_up_before_they_are_ended(device: Literal["cuda", "cpu"]) -> None:
    """Parts must say who did not answer."""
    for check in _every(2, device):
        waits_s = {
            "streams": pair.LIMIT_S,
            "pipelines": pair.LIMIT_S,
            "network": network.LIMIT_S,
            "lost": lost.BEGIN_S + lost.TIMEOUT_S + 2 * lost.LEAVE_S,
        }.get(check.name, 0.0)
        assert check.least_s + RANKS_WAIT[device] * waits_s < late_s(check.least_s, device)
