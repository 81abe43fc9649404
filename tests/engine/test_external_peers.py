"""Peers in another Python, beside the ranks: the baton, and what is told when one fails."""

import os
import pickle
import re
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

import pytest
import torch
from external_cases import CASE, GPT, LLAMA, hold, skip_with_older_torch
from forked_python import forked_python
from real_ranks import run_processes, take_part_again
from torch.torch_version import TorchVersion
from waiting import LONG_S, until

from engine.cli.main import main
from engine.comm.funnel import Comm
from engine.comm.launch import Launch
from engine.comm.transport import listen
from engine.errors import RunError
from engine.grid import Grid
from engine.models.adapters.stored import stored
from engine.models.gpt.config import GPTConfig
from engine.models.llama.config import LlamaConfig
from engine.peers import external_side, registry
from engine.peers.compare import compare
from engine.peers.comparison import Case, Comparison, Unavailable
from engine.peers.external import torchtitan
from engine.peers.external.__main__ import average_over_ranks, external_step
from engine.peers.layout import Layout
from engine.peers.ours import Ours
from engine.peers.peer import StepMetrics, check_torch
from engine.peers.pickled import _made, dumps
from engine.peers.registry import COMPARISONS, another_commit
from engine.result.schema.peers import PeerContest
from engine.training.equality import TOLERANCES
from engine.training_record import OptimConfig, PrecisionName

PAIR = Layout(data=2)
CPU = torch.device("cpu")


def external(layout: Layout = PAIR, **arguments: str) -> Comparison:
    """Make the comparison with plain_externals, in this Python."""
    built_by = "tests.engine.plain_externals:PlainExternal"
    plain = Comparison("external", "an external peer", Grid(data=layout.size), built_by, splits=("data",))
    return replace(plain, layout=layout, arguments=arguments)


def test_an_external_peer_has_the_engines_losses_and_takes_turns_with_it() -> None:
    for found in run_processes(Grid(data=2), hold, external(), CASE):
        assert isinstance(found, PeerContest), found
        assert found.peer.losses == pytest.approx(found.ours.losses, rel=1e-5)
        assert found.peer.gradient_norms == pytest.approx(found.ours.gradient_norms, rel=1e-5)
        assert len(set(found.peer.losses)) == 3
        assert [len(times) for times in found.peer.rounds_s] == [2, 2]
        assert all(second > 0 for times in found.peer.rounds_s for second in times)
        assert found.peer.peak_bytes


BOTH: tuple[PrecisionName, ...] = ("fp32", "bf16")
WITHIN = {"fp32": 1e-5, "bf16": TOLERANCES["bf16"].losses}
RATES = {"fp32": CASE.optim.learning_rate, "bf16": 1e-3}


def in_turn(
    comm: Comm, contest: Comparison, model: GPTConfig | LlamaConfig, precision: PrecisionName
) -> tuple[list[StepMetrics], list[StepMetrics]]:
    """Three steps of ours and of an external peer in the same process, as its own would take them."""
    os.environ |= {"RANK": str(comm.rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(comm.rank)}
    case = replace(CASE, model=model, precision=precision, optim=OptimConfig(learning_rate=RATES[precision]))
    ours = Ours(case, comm).step
    theirs = external_step(contest, case, CPU)
    return [ours() for _ in range(3)], average_over_ranks([theirs() for _ in range(3)])


def in_each(comm: Comm, *words: Any) -> dict[PrecisionName, tuple[list[StepMetrics], list[StepMetrics]]]:
    """In one process, as libraries take longer to load than to train."""
    *of, precisions = words
    return {precision: in_turn(comm, *of, precision) for precision in precisions}


@pytest.mark.parametrize(
    ("name", "layout", "model", "precisions"),
    [
        ("pipeline-gpipe", "pipeline=2,micro_batches=4", GPT, BOTH),
        ("pipeline-1f1b", "pipeline=2", GPT, BOTH[:1]),
        ("pipeline-1f1b", "pipeline=2", LLAMA, BOTH[:1]),
        ("pipeline-interleaved", "pipeline=2", GPT, BOTH[:1]),
        ("pipeline-zero-bubble", "pipeline=2", LLAMA, BOTH),
        ("transformers-tp", "tensor=2", LLAMA, BOTH),
        pytest.param("transformers-tp", "data=2", GPT, BOTH, marks=pytest.mark.weekly),
    ],
)
def test_an_external_peer_of_pytorch_alone_trains_what_the_engine_trains(
    name: str, layout: str, model: GPTConfig | LlamaConfig, precisions: tuple[PrecisionName, ...]
) -> None:
    """The first rank of a pipeline knows no loss: it is told."""
    contest = COMPARISONS[name].with_layout(Layout.parse(layout), Grid(data=2))
    skip_with_older_torch(contest)
    for found in run_processes(Grid(data=2), in_each, contest, model, precisions):
        assert set(found) == set(precisions)
        for precision, (ours, theirs) in found.items():
            for own, other in zip(ours, theirs, strict=True):
                assert other == pytest.approx(own, rel=WITHIN[precision]), precision


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("fails", "RunError: Rank 1 of external failed"),
        ("dies", "RunError: A rank of external died"),
        ("hangs", "ContactError: .* rank 0 .* external's round 1 of 2 for 0.9 s, as --timeout allows 1 s"),
        ("lacks", "Unavailable: .* no such kernel"),
    ],
)
def test_why_an_external_peer_fails_is_told(fault: str, told: str) -> None:
    contest = external(Layout(data=2 if fault == "fails" else 1), fault=fault)
    found = run_processes(contest.grid, hold, contest, replace(CASE, timeout_s=1), forked_python())
    assert any(re.search(told, str(one), re.IGNORECASE) for one in found), found


def test_an_external_peer_takes_no_log_of_nccls_over_from_us_and_its_death_between_turns_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"):
        monkeypatch.setenv(name, "")  # so that it is gone again after this test
        monkeypatch.delenv(name)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
    launch = Launch(0, 1, 0, "test", "127.0.0.1", 0)
    listen("nccl", os.environ)
    with external_side.ExternalSide(external(Layout()), CASE, Comm(Grid()), launch) as beside:
        theirs = Path(f"/proc/{beside._process.pid}/environ").read_text().split("\0")
        assert [one for one in theirs if one.startswith("NCCL_")] == ["NCCL_SOCKET_IFNAME=lo"]
        assert os.environ["NCCL_DEBUG_FILE"].startswith("/proc/self/fd/"), "ours stays"
        beside.take(1)
        beside._process.kill()
        beside._process.wait()
        with pytest.raises(RunError, match="rank of external died"):
            beside.take(1)


@pytest.mark.parametrize(("version", "lacks"), [("2.9.1+cu128", True), ("2.10.0", False), ("2.13.0+cpu", False)])
def test_what_needs_a_newer_torch_than_the_engine_is_skipped(
    monkeypatch: pytest.MonkeyPatch, version: str, lacks: bool
) -> None:
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    with pytest.raises(Unavailable, match=r"2\.10 .* 2\.9\.1") if lacks else nullcontext():
        check_torch("a peer", "2.10")


class LacksHere:
    """Peer that can't be run."""

    def __init__(self, case: Case, comm: Comm) -> None:
        raise Unavailable("there is no such kernel")


def two_contests(comm: Comm) -> list[str]:
    """Start ranks of a launcher, of which the first can't be run."""
    contests = [replace(COMPARISONS["ddp"], built_by="tests.engine.test_external_peers:LacksHere"), COMPARISONS["ddp"]]
    return [type(job).__name__ for job in take_part_again(comm, contests, CASE)]


def test_under_a_launcher_contests_go_on_after_one_that_is_skipped() -> None:
    assert run_processes(Grid(data=2), two_contests) == [["Unavailable", "Job"]] * 2


def test_without_its_environment_a_peer_of_all_is_a_row_that_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "ENVIRONMENTS", tmp_path)
    contest = COMPARISONS["megatron-core"].with_layout(Layout(), Grid())
    found = compare([contest], CASE, tmp_path / "out.json", Launch(0, 1, 0, "none", "127.0.0.1", 0))
    assert found is not None
    assert found.status == "ok"
    assert "ci/peers megatron-core" in str(found.contests[0].missing)


def test_an_external_peer_ends_with_the_rank_beside_it(tmp_path: Path) -> None:
    """Even when that is killed, and whatever it does."""
    script = tmp_path / "rank.py"
    script.write_text(
        "import sys\n"
        "from engine.comm.funnel import Comm\n"
        "from engine.comm.launch import Launch\n"
        "from engine.grid import Grid\n"
        "from engine.peers import external_side\n"
        "from tests.engine.test_external_peers import CASE, external\n"
        "from engine.peers.layout import Layout\n"
        "launch = Launch(0, 1, 0, 'test', '127.0.0.1', 0)\n"
        "beside = external_side.ExternalSide(external(Layout()), CASE, Comm(Grid()), launch)\n"
        "print(beside._process.pid, flush=True)\n"
        "beside._pipe.send(10**9)\n"
        "beside._process.wait()\n"
    )
    paths = os.pathsep.join([str(registry.ROOT), str(registry.ROOT / "tests" / "engine")])
    rank = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": paths}
    )
    assert rank.stdout is not None
    other = int(rank.stdout.readline())
    rank.kill()
    rank.wait()
    until(lambda: not _runs(other))


def _runs(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


TINY = [*("--layers", "2", "--hidden", "16", "--heads", "2", "--vocab", "32", "--seq", "8", "--batch-size", "4")]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--peer torchtitan", "ci/peers torchtitan"),
        ("--peer megatron", "did you mean megatron-core"),
        ("--peer ddp --layout data=2", "but data=2 was given"),
        ("--peer ddp --layout 2x1x1x1", "grid 2x1x1x1: only data"),
        ("--peer pipeline-1f1b --layout 1x1x1x2", "some of pipeline, but 1x1x1x2"),
        ("--peer ddp --layout 1x1x1x2 --grid 1x1x1x1", "grid 1x1x1x1 has 1"),
        ("--peer all --layout tensor=two", "tensor, pipeline, data, micro_batches"),
        ("--peer megatron-core-sp --layout tensor=4", "its 2 heads; 1, 2"),
        ("--peer megatron-core-sp --layout pipeline=4", "its 2 layers; 1, 2"),
        ("--peer megatron-core-sp --layout data=2,micro_batches=4 --grid 1x1x1x2", "micro_batches is 8,"),
        ("--peer deepspeed-zero1 --layout tensor=2", "no tensor ranks"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_ranks_start(
    words: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Environments exist for Megatron-core and DeepSpeed only."""
    monkeypatch.setattr(registry, "ENVIRONMENTS", tmp_path)
    for library in ("megatron-core", "deepspeed"):
        make_environment(tmp_path, library)
    assert main(["bench", "peers", *TINY, *words.split(), "--out", str(tmp_path / "peers.json")]) == 2
    assert named in capsys.readouterr().err
    assert not (tmp_path / "peers.json").exists()


def make_environment(folder: Path, library: str) -> None:
    """Make one that looks whole."""
    (folder / library / "bin").mkdir(parents=True)
    for name in ("bin/python", "par4d-installed"):
        (folder / library / name).touch()


def test_an_environment_that_could_not_be_made_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "ENVIRONMENTS", tmp_path)
    (tmp_path / "deepspeed.failed").write_text("ERROR: no matching distribution\n")
    assert "no matching distribution" in str(registry.environment_lack("deepspeed"))
    make_environment(tmp_path, "deepspeed")
    assert registry.environment_lack("deepspeed") is None


def test_torchtitan_keeps_each_key_head_between_its_queries_and_its_value() -> None:
    (part,) = stored(LLAMA, torchtitan.names(LLAMA)).parts["blocks.0.attention.qkv.weight"]
    assert (part.index[:: LLAMA.head_size] // LLAMA.head_size).tolist() == [0, 1, 4, 5, 2, 6, 3, 7]


def test_the_engine_of_a_checkout_is_a_peer_whose_losses_are_ours() -> None:
    contest = another_commit(registry.ROOT).with_grid(Grid(data=2))
    for found in run_processes(Grid(data=2), hold, contest, replace(CASE, precision="fp64")):
        assert isinstance(found, PeerContest), found
        assert found.peer.losses == pytest.approx(found.ours.losses, rel=1e-15)
        assert found.peer.gradient_norms == pytest.approx(found.ours.gradient_norms, rel=1e-15)
        assert len(found.peer.versions["engine"]) in (4, 40), "a commit, or None without git"
        assert found.peer.versions["torch"] == torch.__version__
        assert {"python", "nodes", "data"} <= found.peer.versions.keys()


def test_a_peer_is_asked_by_the_names_of_what_is_not_as_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = (another_commit(registry.ROOT), CASE)
    assert pickle.loads(dumps(asked)) == asked
    assert b"rounds" in dumps(asked)
    assert b"autocast" not in dumps(asked), "another commit need not know it"
    assert b"autocast" in dumps(replace(CASE, autocast=True))
    assert b"loss_scale" not in dumps(CASE), "it scales no loss"
    assert b"loss_scale" in dumps(replace(CASE, precision="fp16")), "its default may be another there"


def test_another_commit_that_does_not_know_what_is_asked_says_so() -> None:
    sent = pickle.dumps(Unheard())
    here, there = Pipe()
    words = [sys.executable, "-P", "-m", "engine.peers.external", str(there.fileno())]
    env = os.environ | {"PYTHONPATH": str(registry.ROOT)}
    process = subprocess.Popen(words, pass_fds=(there.fileno(),), env=env)
    try:
        there.close()
        here.send_bytes(sent)
        assert here.poll(LONG_S), "it has loaded torch"
        told = here.recv()
        assert isinstance(told, RunError)
        assert "unheard" in str(told)
        here.close()
        assert process.wait(LONG_S) == 0
    finally:
        process.kill()
        process.wait()


class Unheard:
    """Grid with a kind of axis that the other side doesn't have."""

    def __reduce__(self) -> Any:
        return _made, (Grid, {"unheard": 1})


def test_a_folder_without_an_engine_that_can_be_asked_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "peers", "--against", str(tmp_path), "--out", str(tmp_path / "out.json")]) == 2
    assert f"{tmp_path} has no engine" in capsys.readouterr().err
