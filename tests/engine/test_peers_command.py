"""Files of `bench peers`: every step time with the statistics, or why there are none."""

import json
import os
import re
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_command import finish, start
from forked_python import forked_python
from waiting import LONG_S

from engine.batch import Batch
from engine.cli.main import main
from engine.comm.launch import Launch
from engine.errors import RunError, UsageError
from engine.models.catalogue import lookup
from engine.models.gpt.config import GPTConfig
from engine.peers.compare import ONE_JOB, check_comparisons, check_devices, choose_comparisons, summarise, table
from engine.peers.comparison import Case
from engine.peers.known.ddp import DDP
from engine.peers.peer import StepMetrics
from engine.peers.ranks import Job
from engine.peers.registry import COMPARISONS
from engine.peers.result_writer import ResultWriter
from engine.reporter import UNFINISHED
from engine.result.judges.peers import round_ratios
from engine.result.metrics import paired
from engine.result.schema import Memory, ResultError
from engine.result.schema.machine import BindingFault, Bindings, NodeBinding, RankBinding
from engine.result.schema.peers import PeerContest, PeerSide, PeersResult, parse
from engine.training.equality import TOLERANCES

SHAPE = {"--layers": 1, "--hidden": 16, "--heads": 2, "--vocab": 32, "--seq": 8, "--batch-size": 2}
TINY = [str(word) for pair in (SHAPE | {"--jobs": 2, "--rounds": 3, "--steps-per-round": 2}).items() for word in pair]
CASE = Case(GPTConfig("tiny", layers=1, hidden=16, heads=2, vocabulary=32, sequence=8), Batch(2), precision="bf16")


def side(scale: float = 1.0, *rounds: tuple[float, ...], losses: tuple[float, ...] = (2.0, 1.0)) -> PeerSide:
    wall = tuple(tuple(scale * s for s in steps) for steps in rounds or ((1.0, 2.0), (2.0, 90.0)))
    return PeerSide(losses=losses, gradient_norms=losses, rounds_s=wall, cpu_s=((scale, scale),))


def job(ours: PeerSide, peer: PeerSide, peak: int = 5) -> Job:
    memory = Memory(kind="resident", peak_bytes_per_rank=(peak, 10 - peak))
    clocks = (("n1", 1e8 * peak), ("n0", 2e9))
    return Job(PeerContest.of(ours, peer), memory, ("n0", "n1"), ("a core",), None, clocks=clocks)


JOBS = [
    job(side(scale), side(1.0, (4.0, 4.0), (5.0, 3.0), losses=(2.0, 1.0 + scale * 1e-6)), peak)
    for scale, peak in ((1.0, 4), (3.0, 7), (2.0, 5))
]


def test_ratios_equality_and_memory_of_a_contest() -> None:
    """The ratio is the median of the jobs' ratios of medians; the paired one is over jobs and their rounds."""
    found = summarise(COMPARISONS["ddp"], JOBS, TOLERANCES["fp32"], load=0.0)
    assert found.job_ratios == pytest.approx((0.5, 1.5, 1.0))
    assert (found.ratio, found.cpu_ratio, found.peer_median_s) == pytest.approx((1.0, 2.0, 4.0))
    assert round_ratios(found.jobs)[:4] == pytest.approx((1.5 / 4, 46.0 / 4, 4.5 / 4, 138.0 / 4))
    assert found.paired is not None
    rounds = [[(scale * 1.5, 4.0), (scale * 46.0, 4.0)] for scale in (1.0, 3.0, 2.0)]
    assert found.paired.interval == pytest.approx(paired(rounds).interval)
    assert found.paired.ratio == pytest.approx((0.375 + 11.5) / 2 * 6 ** (1 / 3))
    assert found.equality is not None
    assert found.memory is not None
    assert (found.equality.steps, found.equality.tolerance, found.equality.norm_tolerance) == (2, 1e-5, 1e-4)
    assert found.equality.losses == found.equality.gradient_norms == pytest.approx(3e-6, rel=1e-3)
    assert found.memory.peak_bytes_per_rank == (7, 6)


def line_of(tmp_path: Path, jobs: list[Job], target: float) -> str:
    mine = account(tmp_path / "a.json", names=("ddp",))
    found = summarise(COMPARISONS["ddp"], jobs, TOLERANCES["fp32"], 0.0).model_copy(update={"target": target})
    return table(mine.add(found, jobs))


def test_the_table_says_what_a_contest_decides_and_whether_its_target_is_met(tmp_path: Path) -> None:
    peer = side(1.0, (4.0, 4.0), (5.0, 3.0))
    jobs = [job(side(scale, (1.0, 1.0), (1.0, 1.0)), peer) for scale in (1.0, 1.01, 0.99)]
    assert re.search(r"0\.250 \(0\.24\d to 0\.25\d\)", line_of(tmp_path, jobs, 0.9))
    assert re.search(r"\) +won +0\.90 met", line_of(tmp_path, jobs, 0.9))
    assert re.search(r" won +0\.20 missed", line_of(tmp_path, jobs, 0.2))
    assert re.search(r" won +0\.25 undecided", line_of(tmp_path, jobs, 0.25))
    assert ONE_JOB not in line_of(tmp_path, jobs, 0.9)
    one = line_of(tmp_path, jobs[:1], 0.9)
    assert re.search(r"0\.250 \(interval not known\)", one)
    assert re.search(r"\) +undecided +0\.90 undecided", one)
    assert one.endswith(f"{ONE_JOB}\n")


def run(out: Path, *options: str) -> int:
    return main(["bench", "peers", *TINY, *options, "--out", str(out)])


@pytest.mark.usefixtures("forked_contests")
def test_the_command_writes_every_step_time_and_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "peers.json"
    assert run(out, "--peer", "plain", "--precision", "fp64", "--device", "cpu", "--label", "study=peers") == 0
    report = parse(json.loads(out.read_text()), "peers.json")
    (found,) = report.comparisons
    for measured in found.jobs:
        for one in (measured.ours, measured.peer):
            assert [len(times) for times in one.rounds_s] == [2, 2, 2]
    assert len(found.jobs) == 2
    assert (report.status, report.reason, report.labels) == ("ok", None, {"study": "peers"})
    assert (report.device, report.dtype) == ("cpu", "fp64")
    case = report.case
    assert (case["model"]["hidden"], case["threads"], case["device"], case["precision"]) == (16, 1, "cpu", "fp64")
    assert found.equality is not None
    assert found.equality.losses <= found.equality.tolerance < 1e-12
    assert [asked.peer for asked in report.contests] == ["plain"]
    header, row, file = capsys.readouterr().out.splitlines()
    assert header.startswith("peer")
    assert row.split()[:2] == ["plain", "1x1x1x1"]
    assert file == str(out)


@pytest.mark.usefixtures("forked_contests")
@pytest.mark.parametrize(
    ("option", "at"),
    [("--meeting-timeout", "its start|the engine's warm-up"), ("--timeout", r"(the engine|plain)'s round \d+ of 100")],
)
def test_a_side_that_takes_too_long_is_ended_and_the_file_says_which(
    option: str, at: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "peers.json"
    assert run(out, "--peer", "plain", "--rounds", "100", option, "1e-6") == 1
    report = parse(json.loads(out.read_text()), "peers.json")
    assert (report.status, report.comparisons) == ("failed", ())
    assert report.reason is not None
    assert report.reason in capsys.readouterr().err
    assert re.search(rf"1e-06 s\b.*\brank 0\b.*({at}):.*{option}", report.reason)
    assert [asked.grid for asked in report.contests] == ["1x1x1x1"]


def _hang_in_a_round() -> None:
    """Hang in the peer, after its warm-up."""
    step, done = DDP.step, 0

    def stuck(peer: DDP, *rows: torch.Tensor) -> StepMetrics:
        nonlocal done
        done += 1
        if os.environ["RANK"] == "1" and done > CASE.warmup:
            time.sleep(10 * LONG_S)
        return step(peer, *rows)

    DDP.step = stuck  # type: ignore[method-assign]


def test_a_peer_that_hangs_under_a_launcher_is_named_and_all_ranks_end(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    words = ["bench", "peers", "--peer", "ddp", *TINY, "--device", "cpu", "--timeout", "20", "--out", str(out)]
    codes, said = finish(start(2, *words, before=_hang_in_a_round))
    assert codes == [1, 1], said
    reason = written(out).reason
    assert re.search(r"ddp\D+1 of 3.*--timeout", reason or "")
    assert any(str(reason) in words for words in said)


def test_a_rank_that_fails_under_a_launcher_leaves_its_own_reason(tmp_path: Path) -> None:
    """The tolerance of rank 1 is such that nothing is equal; rank 0 only sees the other go."""
    out, script = tmp_path / "result.json", tmp_path / "unequal.py"
    script.write_text(
        "import os, sys\n"
        "from engine.cli.main import main\n"
        "from engine.peers import alternate\n"
        "if os.environ['RANK'] == '1': alternate.TOLERANCES = dict.fromkeys(alternate.TOLERANCES, (-1.0, -1.0))\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    torchrun = [str(forked_python()), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = ["bench", "peers", "--peer", "ddp", *TINY, "--label", "study=peers", "--out", str(out)]
    done = subprocess.run([*torchrun, str(script), *words], capture_output=True, text=True, timeout=LONG_S, check=False)
    assert done.returncode
    report = parse(json.loads(out.read_text()), "result.json")
    assert report.status == "failed"
    assert re.search("ddp .*step 0 .*loss", str(report.reason))
    assert report.labels == {"study": "peers"}


def account(out: Path, rank: int = 0, names: tuple[str, ...] = ("ddp", "fsdp2")) -> ResultWriter:
    contests = [COMPARISONS[name] for name in names]
    return ResultWriter(CASE, "cpu", contests, {}, Launch(rank, 2, rank, "srun", "n0", 20000), out)


def written(out: Path) -> PeersResult:
    return parse(json.loads(out.read_text()), str(out))


def test_a_command_that_is_killed_has_said_so_and_keeps_its_contests(tmp_path: Path) -> None:
    mine = account(tmp_path / "a.json")
    mine.begin()
    assert (written(tmp_path / "a.json").status, written(tmp_path / "a.json").reason) == ("failed", UNFINISHED)
    mine.add(summarise(COMPARISONS["ddp"], JOBS, TOLERANCES["fp32"], 0.0), JOBS)
    found = written(tmp_path / "a.json")
    assert (found.status, found.reason, len(found.comparisons)) == ("failed", UNFINISHED, 1)
    mine.add(summarise(COMPARISONS["fsdp2"], JOBS, TOLERANCES["fp32"], 0.0), JOBS)
    found = written(tmp_path / "a.json")
    assert (found.status, found.reason, len(found.comparisons)) == ("ok", None, 2)
    assert found.provenance.hosts == ("n0", "n1")
    assert found.provenance.clocks_hz == {"n0": 2e9, "n1": 4e8}
    assert found.provenance.launcher == "srun"


def test_bad_bindings_of_any_job_are_in_the_file_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fault = BindingFault(kind="cores shared", first_rank=1, host="n0", ranks=2, said="Two share a core.")
    node = NodeBinding(host="n0", first_rank=0, ranks=(RankBinding(cores="0", threads=1),))
    bad, good = Bindings(nodes=(node,), faults=(fault,)), Bindings(nodes=(node,))
    jobs = [replace(one, bindings=bound) for one, bound in zip(JOBS, (good, bad, bad), strict=True)]
    mine = ResultWriter(CASE, "cpu", [COMPARISONS["ddp"]], {}, Launch(0, 1, 0, "none", "", 0), tmp_path / "a.json")
    found = mine.add(summarise(COMPARISONS["ddp"], jobs, TOLERANCES["fp32"], 0.0), jobs).provenance.bindings
    assert found is not None
    assert (found.nodes, found.faults) == ((node,), (fault,))
    assert caplog.messages == [fault.said]


@pytest.mark.parametrize("first", ["cause", "contact"])
def test_a_reason_of_its_own_wins_over_lost_contact(first: str, tmp_path: Path) -> None:
    out = tmp_path / "a.json"
    ranks = {"contact": account(out), "cause": account(out, rank=1)}
    ranks["contact"].begin()
    errors = {"contact": RuntimeError("Connection closed by peer"), "cause": RunError("Memory is short.")}
    for name in sorted(ranks, key=lambda name: name != first):
        ranks[name].met = True
        ranks[name].report(errors[name])
    assert written(out).reason == "Memory is short."


def test_an_unexpected_error_names_its_rank_and_contest(tmp_path: Path) -> None:
    mine = account(tmp_path / "a.json", rank=1)
    mine.comparison = "fsdp2"
    mine.report(ValueError("odd\nand more"))
    assert str(written(tmp_path / "a.json").reason).endswith("with fsdp2: odd")


def version_1() -> dict[str, Any]:
    """Read what the first version wrote."""
    stored: dict[str, Any] = json.loads((Path(__file__).parents[1] / "reports/stored/peers_1.json").read_text())
    return stored


def test_a_file_of_version_1_is_read_as_what_it_was() -> None:
    old = parse(version_1(), "old.json")
    assert (old.version, old.status, old.device, old.dtype) == (1, "ok", "cpu", "fp32")
    assert old.comparisons[0].paired is None


@pytest.mark.parametrize(
    ("change", "sentence"),
    [({"schema": "par4d.result"}, "par4d.peers"), ({"version": 7}, "up to 6"), ({"surprise": 1}, "at surprise")],
)
def test_what_is_no_contest_of_a_known_version_is_refused(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ResultError, match=sentence):
        parse(version_1() | change, "x.json")


def test_ranks_started_here_need_a_gpu_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    check_devices([COMPARISONS["plain"]], "cuda", ranks=1)
    with pytest.raises(UsageError, match="2 GPUs, but 1"):
        check_devices([COMPARISONS["ddp"]], "cuda", ranks=1)
    check_devices([COMPARISONS["ddp"]], "cuda", ranks=2)
    check_devices([COMPARISONS["ddp"]], "cpu", ranks=1)


def test_a_peer_that_has_no_such_family_is_a_row_of_its_own_where_the_network_is_tied(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_comparisons(Case(lookup("bert-test"), Batch(8)), choose_comparisons(["all"], [], []), ranks=1)
    words = ["--peer", "tensor-parallel", "--model", "bert-test", "--device", "cpu"]
    assert main(["bench", "peers", *words, "--out", str(tmp_path / "peers.json")]) == 0
    assert "tensor-parallel has no bert" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path / "a.json", "--peer", "plain", "--device", "cuda") == 2
    assert "--device cuda" in capsys.readouterr().err
    assert not (tmp_path / "a.json").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--peer", "fdsp2"], "did you mean fsdp2"),
        (["--rounds", "0"], "--rounds is at least 1"),
        (["--warmup", "0"], "--warmup is at least 1"),
        (["--peer", "ddp", "--batch-size", "3"], "use --batch-size 4"),
        (["--model", "gpt-test", "--hidden", "64"], "not both"),
        (["--dropout", "0.1"], "compare without --dropout"),
        (["--peer", "tensor-parallel", "--tied"], "two tables"),
        (["--out", "."], "--out . is a folder"),
        (["--peer", "fsdp2", "--grid", "2x1x2x1"], "but x is"),
        (["--peer", "plain", "--grid", "1x1x2x2"], "but z and data are"),
    ],
)
def test_what_cannot_be_compared_is_said_before_anything_starts(
    options: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "peers.json"
    assert main(["bench", "peers", "--out", str(out), *options]) == 2
    assert sentence in capsys.readouterr().err
    assert not out.exists()
