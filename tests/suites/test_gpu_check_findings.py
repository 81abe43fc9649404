"""What ci/gpu says of a profile, kernels, energy, NCCL's network and a killed rank: what must fail is planted."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from traces import TraceFile, recorded

from engine.comm.transport import NetworkLog, parse
from engine.result import schema
from engine.result.schema import ResultError
from engine.result.schema.gpu_check import Finding, write_findings
from engine.result.schema.profile import OperationTime, Profile, ProfileTrace
from engine.result.schema.step import ComponentEnergy, Energy
from gpu_check import lost, network, profiled
from gpu_check.judges import RATE, Judge
from gpu_check.lost import Left
from gpu_check.sizes import TINY

LOG = """nid1:7:7 [0] NCCL INFO NET/OFI Initializing aws-ofi-nccl 1.14.0
nid1:7:7 [0] NCCL INFO NET/OFI Selected provider is cxi, fabric is cxi
nid1:7:9 [0] NCCL INFO Using network AWS Libfabric
NCCL version 2.27.3+cuda12.9
"""


def test_the_network_that_nccl_tells_is_told_with_its_version_and_plugin() -> None:
    found = network.judged("nccl", [parse(LOG)])
    assert found.status == "pass"
    assert found.sentence == (
        "library NCCL 2.27.3+cuda12.9, network AWS Libfabric, plugin aws-ofi-nccl 1.14.0, provider cxi, by the log of "
        "1 rank"
    )
    second = parse(LOG.replace("NCCL version", "nothing"))
    assert network.judged("nccl", [parse(LOG), second]).status == "pass", "one of them tells the version"


@pytest.mark.parametrize(
    "heard",
    [
        parse(""),
        parse("NCCL version 2.27.3+cuda12.9\n"),
        parse(LOG.replace("NCCL version", "nothing")),
        NetworkLog(unread="NCCL_DEBUG=WARN keeps it from being named: unset NCCL_DEBUG"),
    ],
)
def test_a_network_that_cannot_be_read_fails(heard: NetworkLog) -> None:
    found = network.judged("nccl", [heard])
    assert found.status == "fail"
    assert found.sentence.startswith(("The log ", "NCCL_DEBUG=WARN"))
    assert network.judged("nccl", [parse(LOG), NetworkLog()]).status == "fail", "one rank of two"


def test_what_a_site_has_set_of_nccls_log_keeps_nothing_from_being_told(monkeypatch: pytest.MonkeyPatch) -> None:
    set_then: dict[str, str] = {}
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.setenv("NCCL_DEBUG_FILE", "/nowhere/%h")
    monkeypatch.setattr(network, "listen", lambda backend, environ: set_then.update(environ) or NetworkLog)
    monkeypatch.setattr(network, "init_process_group", _stop)
    with pytest.raises(InterruptedError):
        network._rank(0, 1, "store", "cpu")
    assert set_then
    assert not [name for name in set_then if name.startswith("NCCL_DEBUG")]


def _stop(*given: object) -> None:
    raise InterruptedError


REASON = "Rank 1 (process 7 on nid1) is gone, killed or crashed, so rank 0 lost contact with rank 1 in iteration 2."
GOOD = Left(1, 18.5, "failed", REASON)


@pytest.mark.parametrize(
    "wrong",
    [
        {"code": None},
        {"code": 0},
        {"code": -6},
        {"seconds": 90.0},
        {"status": "ok"},
        {"status": "unreadable"},
        {"reason": ""},
        {"reason": "The run has not ended."},
        {"reason": REASON.replace("Rank 1", "Rank 0")},
    ],
)
def test_a_killed_rank_that_is_not_named_in_time_by_the_others_result_fails(wrong: dict[str, Any]) -> None:
    assert lost.judged(GOOD).status == "pass"
    assert lost.judged(GOOD._replace(**wrong)).status == "fail"


def _profiled(
    monkeypatch: pytest.MonkeyPatch, trace: ProfileTrace, *, on_gpu: bool = True
) -> dict[str, tuple[str, float | None]]:
    """Outcome and figure of each finding of a run with that trace."""
    summary = SimpleNamespace(model_flops_per_s=5e14, time_per_iteration_s=0.3, tokens_per_s=1e4)
    profile, model = Profile(iterations=tuple(range(6)), traces=(trace,)), SimpleNamespace(name="gpt")
    result = SimpleNamespace(profile=profile, model=model, summary=summary, energy=None, config={})
    monkeypatch.setattr(schema, "read", lambda path: result)
    judge = Judge(on_gpu, {"bf16": 1e15}, None)
    found = judge.profile(TINY["gpt"], Path("no products.json"))([Path("profile.json")])
    return {one.name: (one.status, one.figure) for one in found}


def _trace(path: Path, *, steps: int = 6, off: float = 1.0, collective: bool = True) -> ProfileTrace:
    """Trace steps of 900 us, with a sum from 650 to 750. off: factor by which the run recorded longer steps."""
    trace = TraceFile()
    for start in range(0, 1000 * steps, 1000):
        trace.region(f"step/{start // 1000}", start, start + 990)
        trace.kernel("gemm", start + 5, start + 10, start + 650, stream=7)
        trace.region("wait/all_reduce x 2", start + 80, start + 95)
        trace.region("launch/all_reduce x 2", start + 83, start + 93)
        if collective:
            trace.kernel("ncclDevKernel_AllReduce_Sum", start + 86, start + 650, start + 750, stream=7)
        trace.kernel("adam", start + 110, start + 760, start + 900, stream=7)
    told = [recorded(number, off * 900, 100, 0, x=(100, 0)) for number in range(steps)]
    return ProfileTrace(rank=0, file=str(trace.write(path / "trace.json", *told)))


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ({}, "pass"),
        ({"off": 1.05}, "fail"),
        ({"off": 0.95}, "fail"),
        ({"collective": False}, "fail"),
        ({"steps": 5}, "undecided"),
    ],
)
def test_a_trace_that_does_not_say_what_the_run_recorded_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], status: str
) -> None:
    trace = _trace(tmp_path, **given)
    found = _profiled(monkeypatch, trace)
    assert found["profile by the run's own record"][0] == status
    assert found["MFU alone, gpt-test"] == ("fail", pytest.approx(50))
    assert found["kernel 1 of a step, gemm"][0] == "told"
    assert {outcome for outcome, _ in _profiled(monkeypatch, trace, on_gpu=False).values()} == {"told"}


def test_a_profile_that_could_not_be_written_is_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ResultError, match="The profile could not be written: the disk is full"):
        _profiled(monkeypatch, ProfileTrace(rank=0, unwritten="the disk is full"))


def test_the_ten_kernels_that_take_most_of_a_step_are_told_with_their_shares() -> None:
    operations = [
        OperationTime(name=f"kernel<{n}, {'of a long name, ' * 9}>", calls=n, time_s=0.01 * n) for n in range(12, 0, -1)
    ]
    found = profiled.longest(SimpleNamespace(operations=operations, step_s=1.0, device="cuda"), "gpt")  # type: ignore[arg-type]
    assert [one.figure for one in found] == pytest.approx([12, 11, 10, 9, 8, 7, 6, 5, 4, 3])
    assert {(one.status, one.unit) for one in found} == {("told", "%")}
    assert found[0].name == "kernel 1 of a step, kernel<12, of a long na...name, of a long name, >"
    assert found[0].sentence == "120.00 of 1000.00 ms in 12 calls, gpt"


def _energy(*components: ComponentEnergy, unmeasured: str | None = None) -> Finding:
    measured = Energy(iterations=20, components=components, unmeasured=unmeasured)
    return profiled.energy(SimpleNamespace(energy=measured), "gpt")  # type: ignore[arg-type]


def test_joules_of_a_token_are_those_of_the_card_and_without_a_counter_it_is_told_why() -> None:
    card = ComponentEnergy(
        component="device", joules=1e3, joules_per_iteration=50.0, tokens_per_joule=20.0, source="NVML", scope="its own"
    )
    processor = card.model_copy(update={"component": "processor", "tokens_per_joule": 5.0, "source": "RAPL"})
    found = _energy(processor, card)
    assert (found.figure, found.unit) == (pytest.approx(0.05), "J")
    assert "50 J a step over 20 steps, by NVML" in found.sentence
    without = ComponentEnergy(component="device", unmeasured="zeus, which reads it, is not installed")
    assert _energy(without, processor).figure == pytest.approx(0.2)
    assert _energy(without).sentence == "not measured: zeus, which reads it, is not installed"
    assert _energy(unmeasured="it was turned off").sentence == "not measured: it was turned off"


def test_rates_of_memory_are_told_as_shares_of_what_is_advertised_where_that_is_known(tmp_path: Path) -> None:
    out = tmp_path / "kernels.json"
    write_findings([Finding(name="of a norm", status="told", figure=1675.0, unit=RATE, sentence="it")], out)
    (found,) = Judge(True, {}, 3.35e12).kernels([out])
    assert (found.figure, found.unit, found.status) == (pytest.approx(50), "%", "told")
    assert found.sentence == "1,675 of the advertised 3,350 GB/s: it"
    (found,) = Judge(True, {}, None).kernels([out])
    assert (found.figure, found.unit) == (1675.0, RATE)
