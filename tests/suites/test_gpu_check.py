"""ci/gpu: what it says without a GPU, that what is wrong fails, and that no part of it can take the rest along."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import systems
from engine.comm.collective import Kind
from engine.layers import matmul
from engine.peers.compare import comparison
from engine.peers.contest import CONTESTS
from engine.peers.ranks import Job
from engine.result import provenance
from engine.result.gpu_check import Finding, parse
from engine.result.peers import Measured, Peaks, PeersResult, Side, Work
from engine.result.schema import Memory
from gpu_check import inside, layers, process, staged, steps, streams
from gpu_check.checks import Check, checks
from gpu_check.command import table
from gpu_check.judges import Judge
from gpu_check.session import Session, There
from gpu_check.sizes import ON_GPU, TINY, training

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
THERE = There(1, "a card", 2**34, False, provenance.collect(start=provenance.now(), launcher="none"))


def command(*words: str, ci: Path = ROOT / "ci", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ci / "gpu"), *words],
        env=os.environ | {"PAR4D_PYTHON": sys.executable} | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is visible")
def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    done = command("--out", str(tmp_path / "gpu.json"))
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


def test_wheels_are_told_from_options_and_installed_beside_ci_alone(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "ci", tmp_path / "ci")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/said\n')
    python.chmod(0o755)
    done = command("a.whl", "--out", "b.json", "c", "--device=cpu", ci=tmp_path / "ci", PAR4D_PYTHON=str(python))
    assert done.returncode == 0, done.stderr
    _, pip, check = (tmp_path / "said").read_text().splitlines()
    assert pip.endswith(f"--no-deps --target {tmp_path}/.gpu-packages a.whl c")
    assert check == "-m gpu_check --out b.json --device=cpu"


@pytest.mark.slow
def test_on_a_processor_all_that_is_judged_is_right(tmp_path: Path) -> None:
    done = command("--device", "cpu", "--out", str(tmp_path / "gpu.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    findings = parse(json.loads((tmp_path / "gpu.json").read_text()), "it").findings
    assert {finding.status for finding in findings} == {"pass", "told"}
    assert sum(finding.status == "pass" for finding in findings) >= 20


@pytest.mark.slow
def test_layers_and_steps_are_right_in_each_format_and_a_wrong_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    right = [finding.status for finding in inside.parity(CPU)]
    assert set(right) == {"pass", "told"}
    exact = matmul.forward

    def off_by_the_rounding_of_tf32(*operands: object) -> torch.Tensor:
        return exact(*operands) * (1 + 2**-11)  # type: ignore[arg-type]

    monkeypatch.setattr(matmul, "forward", off_by_the_rounding_of_tf32)
    failed = {finding.name for finding in layers.layers(CPU, "fp32") if finding.status == "fail"}
    assert failed == {"linear layer, all modes, fp32"}
    assert [finding.status for finding in steps.steps(CPU, "fp32")] == ["fail", "fail"]
    monkeypatch.setattr(matmul, "forward", lambda *operands: exact(*operands) * 1.2)
    failed = {finding.name for finding in layers.layers(CPU, "bf16") if finding.status == "fail"}
    assert failed == {"linear layer, all modes, bf16"}


def test_what_is_no_number_or_has_another_shape_fails() -> None:
    ones = torch.ones(3, dtype=torch.float64)
    for measure in (layers.error, steps.distance):
        assert measure(ones, ones) == pytest.approx(0)
        assert measure(ones * float("nan"), ones) == float("inf")
        assert measure(ones[:2], ones) == float("inf")


class Forgetful(staged.StagedChannel):
    """Sums over one rank only."""

    def carry_out(self, kind, source, target, flight) -> None:  # type: ignore[no-untyped-def]
        if kind is not Kind.ALL_REDUCE:
            super().carry_out(kind, source, target, flight)


def _forgetful_rank(*args: object) -> None:
    staged.StagedChannel = Forgetful  # type: ignore[misc]
    streams.STEPS, streams.CASE = 1, WITHOUT_RECOMPUTATION
    RIGHT(*args)  # type: ignore[arg-type]


RIGHT, WITHOUT_RECOMPUTATION = streams._rank, replace(streams.CASE, checkpoint_activations=False)


@pytest.mark.slow
def test_a_sum_that_is_left_out_fails_on_every_axis_that_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first step already."""
    monkeypatch.setattr(streams, "STEPS", 1)
    monkeypatch.setattr(streams, "CASE", WITHOUT_RECOMPUTATION)
    monkeypatch.setattr(streams, "_rank", _forgetful_rank)
    found = {finding.name: finding.status for finding in streams.two_ranks(CPU)}
    assert found == {f"two ranks, {grid}": "fail" for grid in streams.GRIDS}


def _module(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> str:
    (folder / "part.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return "part"


WRITES = "import sys; from pathlib import Path; from engine.result.gpu_check import *\n" + (
    "write_findings([Finding(name='first', status='pass')], Path(sys.argv[1]))\n"
)


def _carried_out(folder: Path, words: tuple[str, ...], *, most_s: float = 100, minutes: float = 9) -> list[Finding]:
    """What is told of one such check, in the result too."""
    session = Session("cuda", folder / "gpu.json", minutes)
    check = Check("some part", words, Judge(True, {}, None).own, 20, most_s)
    result = session.carry_out([check], THERE)
    assert parse(json.loads((folder / "gpu.json").read_text()), "it").findings == result.findings
    assert table(result).count("some part") > 0
    return list(result.findings)


def test_a_part_that_hangs_is_ended_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import threading; print('waiting', flush=True); threading.Event().wait()"
    (found,) = _carried_out(tmp_path, (_module(tmp_path, monkeypatch, code),), most_s=2)
    assert found.status == "fail"
    assert found.sentence.startswith("It did not end within 2 s and was ended")


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


def test_what_no_longer_fits_is_told_and_never_left_out(tmp_path: Path) -> None:
    (found,) = _carried_out(tmp_path, ("nothing",), minutes=0.1)
    assert (found.status, found.sentence) == ("not run", "Out of time: it takes 20 s or more of 0.1 minutes.")


def test_a_process_that_is_killed_is_told_by_its_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [_module(tmp_path, monkeypatch, "import os; os.abort()")]
    ended = process.run(words, log=tmp_path / "log", timeout_s=100, environment={})
    assert ended.fault is not None
    assert ended.fault.startswith("It ended with SIGABRT")


def _contest(ours_s: float, *, peak: float | None = None, bytes_of: tuple[int, int] = (1, 1)) -> list[Finding]:
    """What is made of a contest with plain PyTorch whose steps take a second."""
    sides = [
        Side(losses=(1.0,), gradient_norms=(1.0,), wall_s=((time_s,),) * 6, cpu_s=((time_s,),) * 6, peak_bytes=taken)
        for time_s, taken in zip((ours_s, 1.0), bytes_of, strict=True)
    ]
    job = Job(Measured(ours=sides[0], peer=sides[1]), Memory(kind="allocated", peak_bytes_per_rank=(1,)), (), (), None)
    held = comparison(CONTESTS["plain"], [job], 1e-4, 0.0)
    result = PeersResult(
        dtype="bf16", case={}, contests=(held,), comparisons=(held,), peaks=Peaks(), provenance=THERE.provenance,
        work=Work(tokens=10, model_flops=500, hardware_flops=500),
    )  # fmt: skip
    judge = Judge(True, {} if peak is None else {"bf16": peak}, None)
    return judge._contest(result, TINY["gpt"])


def test_a_contest_is_judged_by_its_ratio_its_rate_and_its_memory() -> None:
    planned = round(TINY["gpt"].needs.total)
    good = _contest(0.9, peak=1000.0, bytes_of=(planned, planned))
    assert [finding.status for finding in good] == ["pass"] * 4
    bad = _contest(0.95, peak=1200.0, bytes_of=(2 * planned, planned))
    assert [finding.status for finding in bad] == ["fail"] * 4
    assert [finding.status for finding in _contest(0.9)][2] == "told", "no peak is known"


def test_the_largest_network_that_fits_is_taken() -> None:
    for family, sizes in ON_GPU.items():
        assert training(family, "cuda", 141e9) == sizes[0]
        small = training(family, "cuda", 16 * 2**30)
        assert small.choice.layers is not None
        assert small.sequences < sizes[0].sequences
        assert training(family, "cpu", 141e9) == TINY[family]
    every = checks(Judge(True, {}, None), 141e9, Path("x"), tf32=True)
    assert len({check.slug for check in every}) == len(every)
    assert sum(check.least_s for check in every) < 9 * 60


def test_a_gpu_is_known_by_its_model() -> None:
    assert systems.device_called("NVIDIA A100-SXM4-40GB") == systems.load("perlmutter").device
    assert systems.device_called("AMD Instinct MI250X") == systems.load("frontier").device
    assert systems.device_called("NVIDIA H200") is None
