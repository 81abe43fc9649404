"""Contests of one device: torch.compile and transformers train what the engine trains, what each side holds, and what
is said where one of them can't be.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from real_ranks import run_processes, take_part_again
from torch._inductor import config
from torch._inductor.exc import InductorError
from waiting import LONG_S

from engine.batch import Batch
from engine.cli.main import main
from engine.comm.funnel import Comm
from engine.errors import RunError, UsageError
from engine.grid import Grid
from engine.measure.memory import Allocated
from engine.models.gpt.config import GPTConfig
from engine.models.llama.config import LlamaConfig
from engine.models.transformer import rotary_frequencies
from engine.peers.alternate import measure
from engine.peers.apart import check_apart
from engine.peers.compare import check_comparisons
from engine.peers.comparison import Case, Unavailable
from engine.peers.known.plain import Compiled
from engine.peers.ranks import Job
from engine.peers.registry import COMPARISONS
from engine.result.judges.peers import peak_bytes, speed
from engine.result.schema.peers import Peaks, PeerContest, PeerSide, PeersResult, Work, parse
from engine.training.equality import TOLERANCES
from engine.training_record import OptimConfig

GPT = GPTConfig("tiny", layers=2, hidden=32, heads=4, vocabulary=64, sequence=16)
CASE = Case(GPT, Batch(4), optim=OptimConfig(learning_rate=1e-2), warmup=3, rounds=2, steps=1)
LLAMA = LlamaConfig("tiny", layers=2, hidden=32, heads=4, kv_heads=2, ffn=48, vocabulary=64, sequence=16)
TINY = ["--layers", "1", "--hidden", "16", "--heads", "2", "--vocab", "32", "--seq", "8", "--batch-size", "2"]
TINY += ["--rounds", "2", "--steps-per-round", "1", "--device", "cpu"]


def bench(out: Path, *words: str) -> PeersResult:
    """Run the command; return what it leaves."""
    assert main(["bench", "peers", *TINY, *words, "--out", str(out)]) == 0
    return parse(json.loads(out.read_text()), str(out))


def test_memory_is_what_is_held_at_once_beyond_what_was_there() -> None:
    before = torch.ones(1 << 20)
    with Allocated(torch.device("cpu")) as memory:
        kept = torch.ones(1 << 18)
        for _ in range(3):
            passing = torch.ones(1 << 20)
            del passing
    assert memory.peak_bytes == pytest.approx(4 * ((1 << 18) + (1 << 20)), rel=1e-3)
    assert before.numel() > kept.numel()


def test_each_side_has_its_own_memory_and_both_the_same_steps() -> None:
    both = []
    for hidden in (16, 64):
        (found,) = run_processes(Grid(), train, replace(CASE, model=replace(GPT, hidden=hidden)), "plain")
        assert isinstance(found, PeerContest), found
        ours, peer = peak_bytes([found])
        assert ours is not None
        assert peer is not None
        assert 0.5 < ours / peer < 2
        both.append((ours, peer))
    assert all(much > 4 * little for little, much in zip(*both, strict=True))


@pytest.mark.usefixtures("forked_contests")
def test_sides_apart_have_processes_of_their_own_and_are_still_equal_and_the_peak_is_measured_once(
    tmp_path: Path,
) -> None:
    words = ["--peer", "plain", "--jobs", "2", "--apart", "--measure-peak", "--peak-flops", "3e12"]
    result = bench(tmp_path / "a.json", *words)
    (contest,) = result.comparisons
    assert result.work is not None
    assert result.case["apart"] is True
    assert len(contest.jobs) == 2
    assert contest.equality is not None
    assert contest.equality.losses <= contest.equality.tolerance
    for job in contest.jobs:
        assert len(job.ours.losses) == len(job.peer.losses) == 3
        assert [len(times) for times in job.ours.rounds_s] == [len(times) for times in job.peer.rounds_s] == [1, 1]
        assert job.ours.peak_bytes
        assert job.peer.peak_bytes
    assert (result.peaks.advertised, result.peaks.measured) == (3e12, True), "and what was given is kept"
    assert result.peaks.empirical is not None
    assert result.peaks.empirical > 1e6


def test_sides_apart_that_differ_are_not_compared() -> None:
    side = PeerSide(losses=(2.0, 1.0), gradient_norms=(1.0, 1.0), rounds_s=((1.0,),), cpu_s=((1.0,),))
    other = side.model_copy(update={"losses": (2.0, 1.1)})
    check_apart("plain", PeerContest.of(side, side), TOLERANCES["fp32"])
    with pytest.raises(RunError, match=r"step 1 .*1\.1"):
        check_apart("plain", PeerContest.of(side, other), TOLERANCES["fp32"])


def test_speeds_are_those_of_the_step_and_shares_those_of_the_peaks_that_are_known() -> None:
    work = Work(tokens=1000, model_flops=6_000, hardware_flops=8_000)
    found = speed(work, Peaks(advertised=24_000.0, empirical=20_000.0), ranks=1, step_s=0.5)
    assert found == pytest.approx((2000.0, 12_000.0, 0.5, 16 / 24, 0.8))
    assert speed(work, Peaks(), ranks=1, step_s=0.5)[2:] == (None, None, None)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"peak_flops": 0.0}, "--peak-flops .* 0 was given"),
        ({"empirical_peak_flops": float("nan")}, "--empirical-peak-flops .* nan"),
    ],
)
def test_a_peak_that_is_none_is_refused(change: dict[str, float], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        check_comparisons(replace(CASE, **change), [COMPARISONS["plain"]], ranks=1)  # type: ignore[arg-type]


def _apart(comm: Comm) -> tuple[int, int]:
    """Take part as ranks of a launcher; count the timed steps of each side."""
    (job,) = take_part_again(comm, [COMPARISONS["ddp"]], replace(CASE, apart=True, rounds=2, steps=2))
    assert isinstance(job, Job)
    return sum(map(len, job.contest.ours.rounds_s)), sum(map(len, job.contest.peer.rounds_s))


def test_under_a_launcher_sides_that_are_apart_come_one_after_the_other() -> None:
    assert run_processes(Grid(data=2), _apart) == [(4, 4)] * 2


@pytest.mark.weekly
@pytest.mark.slow
def test_where_no_compiler_works_the_contest_is_skipped_and_the_next_one_run(tmp_path: Path) -> None:
    environment = os.environ | {"CXX": "/bin/false", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    out = tmp_path / "a.json"
    words = ["bench", "peers", "--peer", "compile", "--peer", "plain", "--jobs", "1", *TINY, "--out", str(out)]
    code = "import sys; from engine.cli.main import main; sys.exit(main(sys.argv[1:]) or 'torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr or "what only starts the ranks has loaded torch"
    result = parse(json.loads(out.read_text()), "a.json")
    compiled, plain = result.contests
    assert (result.status, plain.missing) == ("ok", None)
    assert str(compiled.missing).startswith("torch.compile fails")
    assert [contest.peer for contest in result.comparisons] == ["plain"]
    assert f"skipped: {compiled.missing}" in done.stdout


NO_C = RuntimeError(
    "Failed to find C compiler. Please specify via CC environment variable or set triton.knobs.build.impl"
)


@pytest.mark.parametrize("error", [InductorError(NO_C, None), NO_C])
def test_tritons_missing_compiler_is_none_as_well_and_another_error_is_a_failure(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it compiles, or when it first launches."""

    def raised(*_: object) -> NoReturn:
        raise errors[0]

    errors = [error]
    monkeypatch.setattr(torch, "compile", lambda *_, **__: raised)
    peer, rows = Compiled(CASE, Comm(Grid())), torch.zeros(4, 16, dtype=torch.int64)
    batch = {"tokens": rows, "targets": rows}
    with pytest.raises(Unavailable, match="find C compiler"):
        peer.step(batch)
    errors[0] = RuntimeError("CUDA error: an illegal memory access was encountered")
    with pytest.raises(RuntimeError, match="illegal memory"):
        peer.step(batch)


@pytest.mark.usefixtures("forked_contests")
def test_what_is_not_installed_is_said_and_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of that name that can't be imported hides one that is there, also from processes that are started."""
    (tmp_path / "transformers.py").write_text("raise ImportError('hidden')\n")
    monkeypatch.syspath_prepend(tmp_path)
    result = bench(tmp_path / "a.json", "--peer", "transformers", "--jobs", "1")
    (asked,) = result.contests
    assert (result.status, result.comparisons) == ("ok", ())
    assert "pip install '.[peers]'" in str(asked.missing)


def train(comm: Comm, case: Case, peer: str = "transformers") -> PeerContest | str:
    config.cpp.simdlen = 1  # vectors take a C++ compiler three times as long, and are no part of what is compared
    try:
        return measure(comm, COMPARISONS[peer], case)
    except Unavailable as reason:
        return str(reason)


@pytest.mark.slow
@pytest.mark.weekly
def test_a_compiled_model_has_the_engines_losses() -> None:
    (found,) = run_processes(Grid(), train, replace(CASE, model=replace(LLAMA, layers=1)), "compile")
    if not isinstance(found, PeerContest):
        pytest.skip(found)
    assert found.ours.losses == pytest.approx(found.peer.losses, rel=TOLERANCES["fp32"].losses)
    assert len(set(found.peer.losses)) == 3
    assert found.compiled is False, "the engine's side, on a processor"


LIKE_OURS = {
    "gpt": CASE,
    "gpt, tied": replace(CASE, model=replace(GPT, tied=True), checkpoint_every=1),
    "llama": replace(CASE, model=LLAMA, checkpoint_every=1),
    "llama, tied": replace(CASE, model=replace(LLAMA, tied=True)),
}
IN_BF16 = {
    f"{model.family}, bf16": replace(CASE, model=model, precision="bf16", optim=OptimConfig(learning_rate=1e-3))
    for model in (GPT, LLAMA)
}
NO_NETWORK = {
    "another norm": replace(CASE, model=replace(GPT, norm="rmsnorm")),
    "no biases": replace(CASE, model=replace(GPT, bias=False)),
    "fp64": replace(CASE, precision="fp64"),
}


def train_each(comm: Comm, cases: dict[str, Case]) -> dict[str, PeerContest | str]:
    return {name: train(comm, case) for name, case in cases.items()}


@pytest.fixture(scope="module")
def trained() -> dict[str, PeerContest | str]:
    """Train each case with transformers, which takes longer to load than all of them."""
    pytest.importorskip("transformers", reason="transformers is not installed: pip install '.[peers]'")
    (found,) = run_processes(Grid(), train_each, LIKE_OURS | IN_BF16 | NO_NETWORK)
    return dict(found)


@pytest.mark.parametrize("name", LIKE_OURS | IN_BF16)
def test_transformers_own_networks_have_the_engines_losses(trained: dict[str, PeerContest | str], name: str) -> None:
    found = trained[name]
    assert isinstance(found, PeerContest), found
    rel = 1e-5 if name in LIKE_OURS else TOLERANCES["bf16"].losses
    assert found.ours.losses == pytest.approx(found.peer.losses, rel=rel)
    assert len(set(found.ours.losses)) == 3
    if name in LIKE_OURS:
        assert found.ours.gradient_norms == pytest.approx(found.peer.gradient_norms, rel=rel)


@pytest.mark.parametrize("scaling", [1.0, 8.0])
def test_transformers_own_llama_turns_by_the_same_angles(scaling: float) -> None:
    """Wavelengths exceed any sequence of a quick test."""
    pytest.importorskip("transformers", reason="transformers is not installed: pip install '.[peers]'")
    from engine.peers.known.hugging_face import build

    shape = replace(LLAMA, hidden=256, rope_scaling=scaling)
    frequencies = build(replace(CASE, model=shape), "cpu").model.rotary_emb.inv_freq
    assert frequencies.tolist() == pytest.approx(rotary_frequencies(shape, torch.device("cpu")).tolist(), rel=1e-5)


@pytest.mark.parametrize(
    ("name", "sentence"), [("another norm", "LayerNorm"), ("no biases", "LayerNorm"), ("fp64", "fp32 or bf16")]
)
def test_what_transformers_has_no_network_for_is_said(
    trained: dict[str, PeerContest | str], name: str, sentence: str
) -> None:
    assert sentence in str(trained[name])
