"""ci/gpu: what it says without a GPU, that what is wrong fails, and that no part of it can take the rest along."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from forked_python import BRIEFLY, FIRST, forked_python
from waiting import LONG_S

from engine import processes
from engine.peers.compare import summarise
from engine.peers.ranks import Job
from engine.peers.registry import COMPARISONS
from engine.result import provenance, schema
from engine.result.schema import Memory
from engine.result.schema.gpu_check import Finding, GpuCheck, Status, parse, write_findings
from engine.result.schema.peers import Peaks, PeerContest, PeerSide, PeersResult, Work
from engine.result.schema.tuning import ModeTime, TunedShape, Tuning
from engine.training.equality import TOLERANCES
from gpu_check import budget, process, session
from gpu_check.__main__ import NEEDED
from gpu_check.checks import Check, checks
from gpu_check.command import EXIT_CODES, judge_of, table
from gpu_check.judges import MOST_PROCESSES, STEP_BY, Judge
from gpu_check.session import Session, There
from gpu_check.sizes import ON_GPU, TINY, TrainingSize, largest, training

ROOT = Path(__file__).parents[2]
THERE = There(1, "a card", 2**34, 2**34, False, provenance.collect(start=provenance.now(), launcher="none"))


def command(*words: str, ci: Path = ROOT / "ci", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ci / "gpu"), *words],
        env=os.environ | {"PAR4D_PYTHON": sys.executable} | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is visible")
def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    done = command("--out", str(tmp_path / "gpu.json"), PAR4D_PYTHON=str(forked_python()))
    assert done.returncode == 2
    assert done.stderr.startswith("No GPU is visible to PyTorch")
    assert "rehearse with --device cpu" in done.stderr
    assert not (tmp_path / "gpu.json").exists()


def test_a_python_that_lacks_something_is_told_what(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    done = command("--device", "cpu", PAR4D_PYTHON=str(bare), PYTHONPATH="")
    assert done.returncode == 2
    assert "has no torch, numpy, pydantic, cyclopts, yaml: name the wheels" in done.stderr
    done = command(PAR4D_PYTHON="/bin/false")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_a_torch_that_is_too_old_is_refused_with_its_version(tmp_path: Path) -> None:
    for name in NEEDED:
        (tmp_path / f"{name}.py").touch()
    metadata = tmp_path / "torch-2.4.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.4.0\n")
    done = command("--device", "cpu", PYTHONPATH=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.endswith(
        " has PyTorch 2.4.0, and Par4D needs 2.9 or newer: set PAR4D_PYTHON to a Python with one.\n"
    )


def test_wheels_are_told_from_options_and_installed_beside_ci_alone(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "ci", tmp_path / "ci")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/said\n')
    python.chmod(0o755)
    done = command("a.whl", "--out", "b.json", "c", "--device=cpu", ci=tmp_path / "ci", PAR4D_PYTHON=str(python))
    assert done.returncode == 0, done.stderr
    _, pip, check = (tmp_path / "said").read_text().splitlines()
    assert pip.endswith(f"--no-deps --target {tmp_path}/.gpu-packages a.whl c")
    assert check == "-m gpu_check --out b.json --device=cpu"


@pytest.mark.slow
@pytest.mark.weekly
def test_on_a_processor_all_that_is_judged_is_right(tmp_path: Path) -> None:
    briefly = {"PAR4D_PYTHON": str(forked_python()), FIRST: BRIEFLY}
    done = command("--device", "cpu", "--minutes", str(LONG_S / 60), "--out", str(tmp_path / "gpu.json"), **briefly)
    assert done.returncode == 0, done.stdout + done.stderr
    findings = parse(json.loads((tmp_path / "gpu.json").read_text()), "it").findings
    assert {finding.status for finding in findings} == {"pass", "told"}
    assert sum(finding.status == "pass" for finding in findings) >= 20


def _module(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> str:
    (folder / "part.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return "part"


WRITES = """import sys; open(sys.argv[1], 'w').write('[{"name": "first", "status": "pass"}]')\n"""
"""A part that finds one thing. It loads nothing, and is there at once."""


def _carried_out(folder: Path, words: tuple[str, ...], *, least_s: float = 20, minutes: float = 9) -> list[Finding]:
    """Findings of one such check, in the result too."""
    check = Check("some part", words, Judge(True, {}, None).own, least_s)
    result = Session("cuda", folder / "gpu.json", minutes).carry_out([check], THERE)
    assert parse(json.loads((folder / "gpu.json").read_text()), "it").findings == result.findings
    assert table(result).count("some part") > 0
    return list(result.findings)


def test_a_part_that_hangs_is_ended_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import threading; print('waiting', flush=True); threading.Event().wait()"
    monkeypatch.setattr(budget, "LATE_S", 0.0)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(ROOT))  # where there is something
    (found,) = _carried_out(tmp_path, (_module(tmp_path, monkeypatch, code),), least_s=2 / budget.LATE["cuda"])
    assert found.status == "fail"
    assert re.match(r"It stood still or was too slow: it did not end within \d+ s and was ended", found.sentence)


def test_a_part_that_crashes_keeps_what_it_had_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = (_module(tmp_path, monkeypatch, f"{WRITES}raise RuntimeError('illegal access')"),)
    first, crash = _carried_out(tmp_path, words)
    assert (first.name, first.status) == ("first", "pass")
    assert crash.sentence.startswith("It ended with exit code 1; its last words: RuntimeError: illegal access")


def test_a_part_that_finds_nothing_or_nonsense_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (nothing,) = _carried_out(tmp_path, (_module(tmp_path, monkeypatch, ""),))
    assert (nothing.status, nothing.sentence) == ("fail", "It ended well and has found nothing.")
    code = "import sys; open(sys.argv[1], 'w').write('[{}]')"
    (nonsense,) = _carried_out(tmp_path, (_module(tmp_path, monkeypatch, code),))
    assert nonsense.sentence.startswith("What it wrote can't be judged")


def test_the_tuners_cache_begins_empty_and_what_inductor_compiled_for_the_user_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = ("XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR")
    code = f"import json, os, sys; sentence = '|'.join(os.environ[name] for name in {folders})\n" + (
        "json.dump([{'name': 'it', 'status': 'told', 'sentence': sentence}], open(sys.argv[1], 'w'))\n"
    )
    cache = tmp_path / "gpu-parts" / "cache"
    (cache / "of a run before").mkdir(parents=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    session = Session("cuda", tmp_path / "gpu.json", 9)
    assert not (cache / "of a run before").exists()
    words = (_module(tmp_path, monkeypatch, code),)
    (found,) = session.carry_out([Check("some part", words, Judge(True, {}, None).own, 20)], THERE).findings
    assert found.sentence == f"{cache}|{tmp_path / 'home' / 'par4d' / 'inductor'}"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/the/users")
    session = Session("cuda", tmp_path / "gpu.json", 9)
    (found,) = session.carry_out([Check("some part", words, Judge(True, {}, None).own, 20)], THERE).findings
    assert found.sentence == f"{cache}|/the/users"


def test_what_no_longer_fits_is_told_and_never_left_out(tmp_path: Path) -> None:
    (found,) = _carried_out(tmp_path, ("nothing",), minutes=0.1)
    assert (found.status, found.sentence) == ("not run", "Out of time: it takes 20 s or more of 0.1 minutes.")


def test_what_is_ended_with_the_time_of_all_checks_is_not_run_and_keeps_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their time is over once a part that goes on has found something."""

    def over_with(found: str) -> None:
        file = tmp_path / "gpu-parts" / found
        clock = SimpleNamespace(sleep=time.sleep, monotonic=lambda: 9 * (file.exists() and file.stat().st_size > 0))
        for module in (session, processes):
            monkeypatch.setattr(module, "time", clock)

    monkeypatch.setattr(budget, "RESERVE_S", 0.0)
    over_with("varies.json")
    code = f"{WRITES}import threading; threading.Event().wait()"
    check = Check("varies", (_module(tmp_path, monkeypatch, code),), Judge(True, {}, None).own, 5)
    first, found = Session("cuda", tmp_path / "gpu.json", 6 / 60).carry_out([check], THERE).findings
    assert (first.name, first.status, found.status) == ("first", "pass", "not run")
    assert found.sentence.startswith("Out of time: it was ended after")
    shortest = len(str(tmp_path / "gpu-parts" / "varies.json"))
    again = f"import threading; {WRITES}threading.Event().wait() if len(sys.argv[1]) > {shortest} else None"
    words = (_module(tmp_path, monkeypatch, again),)
    undecided = Check("varies", words, lambda outs: [Finding(name="it", status="undecided")], 5, repeats=True)
    over_with("varies-2.json")
    (found,) = Session("cuda", tmp_path / "gpu.json", 8 / 60).carry_out([undecided], THERE).findings
    assert (found.name, found.status) == ("it", "undecided")


def test_a_process_that_is_killed_is_told_by_its_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [_module(tmp_path, monkeypatch, "import os; os.abort()")]
    ended = process.run(words, log=tmp_path / "log", timeout_s=LONG_S, environment={})
    assert ended.fault is not None
    assert ended.fault.startswith("It ended with SIGABRT")


HINT = "Set TORCHDYNAMO_VERBOSE=1 for the internal stack trace"


@pytest.mark.parametrize(
    "named", ["torch._inductor.exc.InductorError: no compiler", "RuntimeError", "torch._dynamo.exc.Unsupported: it"]
)
def test_the_last_words_of_what_raised_are_not_the_hints_that_follow(named: str) -> None:
    said = f"ValueError: before\n{named}\n\n{HINT}\n"
    assert process.last_words(said, raised=True) == named
    assert process.last_words(said, raised=False) == HINT, "what hangs or is killed may have handled that"
    assert process.last_words("No Error here\n", raised=True) == "No Error here"
    assert process.last_words("\n", raised=True) == "it said nothing"


def _job(ours_s: float, theirs_s: float, bytes_of: tuple[int, int], compiled: bool | None) -> Job:
    """Six rounds of one step a side."""
    sides = [
        PeerSide(
            losses=(1.0,), gradient_norms=(1.0,), rounds_s=((time_s,),) * 6, cpu_s=((time_s,),) * 6, peak_bytes=taken
        )
        for time_s, taken in zip((ours_s, theirs_s), bytes_of, strict=True)
    ]
    measured = PeerContest.of(*sides, compiled=compiled)
    return Job(measured, Memory(kind="allocated", peak_bytes_per_rank=(1,)), (), (), None)


def _contest(
    ours_s: float,
    *,
    noise: Sequence[float] = (0.999, 1.0, 1.001),
    peak: float | None = None,
    bytes_of: tuple[int, int] = (1, 1),
    compiled: bool | None = None,
    training: TrainingSize = TINY["gpt"],
) -> list[Finding]:
    """Judge contests with plain PyTorch, whose steps take a second, one of each process; noise is ours. Of
    four findings the third is only told.
    """
    jobs = [_job(ours_s * by, 1.0, bytes_of, compiled) for by in noise]
    every = [summarise(COMPARISONS["plain"], [job], TOLERANCES["fp32"], 0.0) for job in jobs]
    empty = PeersResult(
        dtype="bf16",
        case={},
        comparisons=(),
        peaks=Peaks(),
        provenance=THERE.provenance,
        work=Work(tokens=10, model_flops=500, hardware_flops=500),
    )
    results = [empty.model_copy(update={"contests": (held,), "comparisons": (held,)}) for held in every]
    return Judge(True, {} if peak is None else {"bf16": peak}, None)._contest(results, training)


def test_a_contest_is_judged_by_its_ratio_and_its_memory_and_its_rate_is_told() -> None:
    planned = round(TINY["gpt"].needs.total)
    good = _contest(0.89, peak=1000.0, bytes_of=(planned, planned))
    assert [finding.status for finding in good] == ["pass", "pass", "told", "pass"]
    bad = _contest(0.95, peak=1200.0, bytes_of=(2 * planned, planned))
    assert [finding.status for finding in bad] == ["fail", "fail", "told", "fail"]
    assert (good[2].name, good[2].unit, _contest(0.9)[2].unit) == ("MFU beside plain, gpt-test", "%", "Tflop/s")


def test_a_contest_of_an_engine_that_ran_uncompiled_is_told() -> None:
    assert [_contest(2.0, compiled=compiled)[0].status for compiled in (None, True, False)] == ["fail", "fail", "told"]
    assert _contest(2.0, compiled=False)[0].sentence.endswith("; ours ran uncompiled")


def test_a_contest_7_percent_slower_than_its_limit_fails_and_one_process_decides_what_is_clear() -> None:
    """By the percent that processes are assumed to differ, or by their own once there are three."""
    most = STEP_BY["plain"]
    assert _contest(1.07 * most)[0].status == "fail"
    assert _contest(0.93 * most)[0].status == "pass"
    assert _contest(most)[0].status == "undecided"
    for by, status in ((1.07, "fail"), (1.02, "undecided"), (0.98, "undecided"), (0.93, "pass")):
        assert _contest(by * most, noise=(0.9, 1.0, 1.1))[0].status == "undecided", "processes that differ by 10 %"
        assert _contest(by * most, noise=(0.9, 1.1))[0].status == "undecided", "two of them, too"
        step = _contest(by * most, noise=(1.0,))[0]
        assert step.status == status
        assert "over one process, of which others are assumed to differ by 1%" in step.sentence


def test_two_processes_are_assumed_to_differ_only_as_long_as_their_own_ratios_say_no_more() -> None:
    """Two of 20 % are judged by their own spread, and so are three that differ by nothing to speak of."""
    alike, apart, three = (_contest(0.5, noise=noise)[0] for noise in ((0.999, 1.001), (0.9, 1.1), (0.999, 1.0, 1.001)))
    assert "over 2 processes, of which others are assumed to differ by 1%; " in alike.sentence
    assert "over 2 processes; " in apart.sentence
    assert "over 3 processes; " in three.sentence


def test_only_where_micro_batches_add_up_may_memory_be_more_and_by_what_their_sums_are_wider() -> None:
    """Ours add up in fp32, plain PyTorch's in bf16: two bytes a parameter."""
    whole = replace(TINY["gpt"], precision="bf16")
    parts = replace(whole, micro=2)
    wider = 2 * parts.choice.resolve().parameters
    theirs = round(parts.needs.total)
    for of, more, status in ((parts, 0.9, "pass"), (parts, 1.1, "fail"), (whole, 0.9, "fail"), (whole, 0.0, "pass")):
        ours = theirs + round(more * wider)
        assert _contest(0.9, bytes_of=(ours, theirs), training=of)[1].status == status
    assert replace(parts, precision="fp32").wider_sums == pytest.approx(0)


def _alone(
    mfu: float,
    *,
    products: float | None = None,
    layers: int | None = None,
    peak: float | None = 1e12,
    compiled: bool = True,
) -> Finding:
    """Judge a profiled run of that MFU. products: share of the peak that they reach."""
    result = SimpleNamespace(
        summary=SimpleNamespace(model_flops_per_s=mfu * 1e12, time_per_iteration_s=0.1, tokens_per_s=1.0),
        config={"compiled": compiled},
    )
    of = replace(TINY["gpt"], choice=replace(TINY["gpt"].choice, layers=layers))
    peaks = {} if peak is None else {"bf16": peak}
    reached = None if products is None else products * 1e12
    return Judge(True, peaks, None)._alone(result, of, reached)  # type: ignore[arg-type]


def test_a_whole_network_alone_is_judged_by_the_peak_or_by_what_products_reach_where_that_is_less() -> None:
    assert [_alone(mfu).status for mfu in (0.58, 0.555, 0.52)] == ["pass", "undecided", "fail"]
    assert [_alone(mfu, products=0.9).status for mfu in (0.58, 0.52)] == ["pass", "fail"]
    half = [_alone(mfu, products=0.54) for mfu in (0.38, 0.36, 0.33)]
    assert [finding.status for finding in half] == ["pass", "undecided", "fail"]
    assert half[0].want.startswith("at least 36.0%")
    assert "70% of what matrix products reach" in half[0].sentence
    assert _alone(0.4, layers=1).status == _alone(0.4, compiled=False).status == "told"
    unknown = _alone(0.4, peak=None)
    assert (unknown.status, unknown.unit) == ("told", "Tflop/s")
    assert "--peak-flops has to say it" in unknown.sentence


def _flags(folder: Path, *ratios: float) -> Finding:
    outs = [folder / f"{number}.json" for number in range(len(ratios))]
    for ratio, out in zip(ratios, outs, strict=True):
        write_findings([Finding(name="all overlap flags on one rank", status="told", figure=ratio)], out)
    (finding,) = Judge(True, {}, None).flags(outs)
    return finding


def test_flags_that_cost_3_percent_fail(tmp_path: Path) -> None:
    assert _flags(tmp_path, 1.028, 1.03, 1.032).status == "fail"
    assert _flags(tmp_path, 0.999, 1.0, 1.001).status == "pass"
    assert _flags(tmp_path, 1.0, 1.01, 1.02).status == "undecided"
    assert _flags(tmp_path, 1.03).status == "undecided"
    assert _flags(tmp_path, 1.04).status == "fail"


def _tuning(monkeypatch: pytest.MonkeyPatch, *times_s: float, slower: float = 1.0) -> dict[str, Status]:
    """Judge tunings of these times, whose choice takes `slower` times as long as PyTorch's own."""

    def way(role: str, own: bool) -> ModeTime:
        taken = tuple(1e-3 * (1.0 if own else slower) for _ in range(21))
        return ModeTime(
            role=role, column_major=False, mode="NN", own=own, median_s=taken[0], low_s=taken[0], high_s=taken[0],
            flops_per_s=1.0, rounds=21, by_round_s=taken, fastest=own, chosen=not own,
        )  # fmt: skip

    ways = tuple(way(role, own) for role in ("forward", "input_gradient", "weight_gradient") for own in (True, False))
    shape = TunedShape(
        m=8, n=8, k=8, dtype="fp32", layers=1, layer="a", forwards=2, movable=True, own_s=1.0, chosen_s=1.0, best_s=1.0,
        times=ways,
    )  # fmt: skip
    results = {
        Path(f"{number}.json"): SimpleNamespace(
            tuning=Tuning(time_s=time_s, timed=1, shapes=(shape,), again=(shape,)), model=SimpleNamespace(name="gpt")
        )
        for number, time_s in enumerate(times_s)
    }
    monkeypatch.setattr(schema, "read", results.__getitem__)
    return {finding.name: finding.status for finding in Judge(True, {}, None).matmul(list(results))}


def test_a_tuning_is_held_to_its_time_over_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "tuning, gpt"
    assert [_tuning(monkeypatch, time_s)[name] for time_s in (6.0, 9.0, 14.0)] == ["pass", "undecided", "fail"]
    assert _tuning(monkeypatch, 6.0, 6.05, 6.1)[name] == "pass"
    assert _tuning(monkeypatch, 12.0, 12.05, 12.1)[name] == "fail"
    assert _tuning(monkeypatch, 6.0, 12.0)[name] == "undecided"
    (tuner,) = [
        one for one in checks(Judge(True, {}, None), 141e9, Path(), devices=1, tf32=True) if one.name == "tuner, gpt"
    ]
    assert tuner.repeats


def test_a_choice_that_is_slower_than_pytorchs_own_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "tuner's choice by PyTorch's own, gpt"
    assert [_tuning(monkeypatch, 6.0, 6.1, slower=by)[name] for by in (1.0, 1.05)] == ["pass", "fail"]


def _repeated(
    folder: Path, monkeypatch: pytest.MonkeyPatch, judge: Callable[[Sequence[Path]], list[Finding]]
) -> GpuCheck:
    check = Check("varies", (_module(folder, monkeypatch, WRITES),), judge, 20, repeats=True)
    return Session("cuda", folder / "gpu.json", 9).carry_out([check], THERE)


def test_what_is_undecided_is_measured_again_until_it_is_decided_or_a_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judged(enough: int) -> Callable[[Sequence[Path]], list[Finding]]:
        return lambda outs: [Finding(name="it", status="pass" if len(set(outs)) >= enough else "undecided")]

    result = _repeated(tmp_path, monkeypatch, judged(3))
    assert (result.status, len(list(tmp_path.glob("gpu-parts/varies*.json")))) == ("ok", 3)
    result = _repeated(tmp_path, monkeypatch, judged(100))
    assert (result.status, EXIT_CODES[result.status]) == ("undecided", 2)
    assert len(list(tmp_path.glob("gpu-parts/varies*.json"))) == MOST_PROCESSES
    assert "it: " in table(result), "it is told why"
    assert "1 undecided" in table(result)


@pytest.mark.parametrize(
    ("statuses", "code"),
    [
        (("pass", "told"), 0),
        (("pass", "undecided"), 2),
        (("pass", "not run"), 2),
        (("undecided", "fail"), 1),
        (("not run", "fail"), 1),
    ],
)
def test_the_exit_code_tells_what_failed_from_what_is_not_decided(statuses: tuple[Status, ...], code: int) -> None:
    findings = tuple(Finding(name=status, status=status) for status in statuses)
    found = GpuCheck(
        device="cuda", device_name="it", devices=1, minutes=9, seconds=1, findings=findings, provenance=THERE.provenance
    )
    assert EXIT_CODES[found.status] == code


def test_the_mfu_says_how_many_sequences_are_computed_at_once() -> None:
    """A card of 80 GB takes one at a time of the whole network beside another side, which is slower."""
    assert "4 sequences, 2 at once," in replace(TINY["gpt"], micro=2).words
    assert TINY["gpt"].words in _contest(0.9, peak=1000.0)[2].sentence


def test_the_largest_network_that_fits_is_taken() -> None:
    for family, sizes in ON_GPU.items():
        assert training(family, "cuda", 141e9) == sizes[0]
        small = training(family, "cuda", 16 * 2**30)
        assert small.choice.layers is not None
        assert small.sequences < sizes[0].sequences
        assert training(family, "cpu", 141e9) == TINY[family]
    for gib in (24, 32, 40, 48, 64, 78.5, 80, 96, 141, 180, 192):  # 78.5 are free of an idle card of 80 GB
        for family, sizes in ON_GPU.items():
            taken = training(family, "cuda", gib * 2**30)
            assert taken.fits(gib * 2**30), f"sides of {family} would be apart in {gib} GiB"
            assert gib < 78 or taken in sizes[:3], "about a billion parameters"
        whole, alone = (largest("cuda", gib * 2**30, alone=alone) for alone in (False, True))
        assert whole.fits(gib * 2**30)
        assert alone.fits_alone(gib * 2**30)
        assert gib < 78 or {whole.choice.layers, alone.choice.layers} == {None}, "a whole network"


def test_a_gpu_is_judged_by_what_is_advertised_of_its_whole_name_and_by_nothing_that_is_of_another() -> None:
    h100 = judge_of("NVIDIA H100 80GB HBM3", "cuda", None)
    assert (h100.peaks["bf16"], h100.bytes_per_s) == (989.4e12, 3.35e12)
    assert judge_of("NVIDIA A100-SXM4-80GB", "cuda", None).bytes_per_s == 2.039e12
    unknown = judge_of("NVIDIA L40S", "cuda", None)
    assert (unknown.peaks, unknown.bytes_per_s) == ({}, None)
    assert judge_of("NVIDIA L40S", "cuda", 1e12).peaks == {"bf16": 1e12}
    assert judge_of("NVIDIA H100 80GB HBM3", "cpu", None).peaks == {}
