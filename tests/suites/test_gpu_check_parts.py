"""What ci/gpu looks at in a warm training and in kernels: each fault that it must find is planted."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine.checkpoint import store
from engine.layers import attention, compiled, norm_parts
from engine.layers.attention import AttentionKernel
from engine.layers.compiled import Compiled
from engine.result.schema.gpu_check import Finding
from engine.training.offload import Buckets
from engine.training.trainer import Trainer
from gpu_check import compiler, offloaded, steady, traffic
from gpu_check import kernels as kernels_part
from gpu_check.kernels import ROUNDS, by_plain, cases, kernels

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")


def failed(findings: Iterable[Finding]) -> list[str]:
    return [finding.name for finding in findings if finding.status == "fail"]


def test_a_compiled_function_that_is_a_hundredth_off_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    assert failed(kernels(CPU)) == []

    class Off(Compiled):  # type: ignore[type-arg]
        def __call__(self, *given: object, **named: object) -> object:
            return self.plain(*given, **named) * 1.01

    monkeypatch.setattr(norm_parts, "norm_gradient", Off(norm_parts._norm_gradient))
    assert failed(kernels(CPU)) == ["gradient from shares, compiled"]


@pytest.mark.parametrize("taken", [AttentionKernel.MATH, None])
def test_attention_without_a_kernel_fails(monkeypatch: pytest.MonkeyPatch, taken: AttentionKernel | None) -> None:
    plain = attention.backend

    def without(heads: int, kv_heads: int, head_size: int, *others: Any, **causal: bool) -> AttentionKernel | None:
        return taken if head_size == 80 and kv_heads < heads else plain(heads, kv_heads, head_size, *others, **causal)

    monkeypatch.setattr(attention, "backend", without)
    assert failed(kernels(CPU)) == ["attention of heads of 80, grouped"]


@pytest.mark.parametrize(
    ("switch", "why", "status", "remedy"),
    [
        ("0", "Failed to find C compiler", "fail", "Install a C compiler"),
        ("1", None, "told", "unset it"),
        ("0", None, "pass", ""),
    ],
)
def test_where_a_gpu_has_no_compiler_that_fails_and_no_function_is_compared_with_itself(
    monkeypatch: pytest.MonkeyPatch, switch: str, why: str | None, status: str, remedy: str
) -> None:
    """The device is there in name only: a processor runs its functions and nobody times them."""

    def told(name: str, *_: object) -> Finding:
        return Finding(name=name, status="told")

    monkeypatch.setenv("TORCH_COMPILE_DISABLE", switch)
    for module in (compiler, compiled):
        monkeypatch.setattr(module, "why_not", lambda device: why)
    monkeypatch.setattr(attention, "backend", lambda *_, causal: AttentionKernel.FLASH)
    monkeypatch.setattr(kernels_part, "cases", lambda _: {"SwiGLU": cases(CPU)["SwiGLU"]})
    monkeypatch.setattr(kernels_part, "rate", told)
    monkeypatch.setattr(kernels_part, "sets", lambda *_: 1)
    monkeypatch.setattr(kernels_part, "_faster", lambda name, *_: told(f"{name}, compiled by plain"))
    found = compiler.compiler(GPU)
    assert found.status == status
    assert remedy in found.sentence
    of_functions = {one.name: one for one in kernels(GPU) if not one.name.startswith("attention")}
    if status == "pass":
        assert list(of_functions) == ["SwiGLU, compiled", "SwiGLU, compiled by plain", "SwiGLU"]
        return
    assert list(of_functions) == ["compiled functions", "SwiGLU, uncompiled"]
    assert of_functions["compiled functions"].status == "not run"
    assert of_functions["compiled functions"].sentence == found.sentence


def test_processors_run_functions_as_they_are_written_which_is_told() -> None:
    assert compiler.compiler(CPU).status == "told"


def test_another_course_from_a_checkpoint_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    assert failed(steady.steady(CPU)) == []
    load = store.load

    def forgetful(saved, model, state) -> None:  # type: ignore[no-untyped-def]
        load(saved, model, state)
        next(iter(state.values()))["exp_avg"].zero_()

    monkeypatch.setattr(store, "load", forgetful)
    assert failed(steady.steady(CPU)) == ["steps from a checkpoint"]


def test_steps_with_the_optimizer_on_the_host_are_held_to_those_without(monkeypatch: pytest.MonkeyPatch) -> None:
    here = offloaded.taken(CPU, offload=False)
    told = offloaded.judged(here, offloaded.taken(CPU, offload=True))
    assert (told.status, told.sentence) == ("pass", "0 of 87 tensors differ; a processor's allocator doesn't tell")
    less, more = here._replace(peak_bytes=9_000_000), here._replace(peak_bytes=4_000_000)
    assert (offloaded.judged(less, more).status, offloaded.judged(more, less).status) == ("pass", "fail")
    monkeypatch.setattr(Buckets, "_take_back", lambda *given: None)
    forgetful = offloaded.judged(here, offloaded.taken(CPU, offload=True))
    assert forgetful.status == "fail"
    assert "losses and norms" in forgetful.sentence


def test_a_host_that_waits_fails_and_another_error_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """As PyTorch says it, of a device that is there in name only."""
    modes: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)

    def training(words: str) -> Trainer:
        class Waiting:
            def launch_step(self) -> None:
                raise RuntimeError(words)

            class model:
                abort_step = staticmethod(lambda: None)

        return Waiting()  # type: ignore[return-value]

    found = steady._never_waits(training("called a synchronizing CUDA operation"), torch.device("cuda"))
    assert (found.status, modes) == ("fail", ["error", "default"])
    with pytest.raises(RuntimeError, match="out of memory"):
        steady._never_waits(training("out of memory"), torch.device("cuda"))
    assert modes[-1] == "default"


@pytest.mark.parametrize(
    ("ratios", "status"),
    [
        ([0.9] * ROUNDS, "pass"),
        ([1.05] * ROUNDS, "fail"),
        ([0.9, 1.1] * (ROUNDS // 2), "undecided"),
        ([0.9] * (ROUNDS - 1) + [5.0], "pass"),
    ],
)
def test_a_compiled_function_that_is_slower_in_nearly_all_rounds_fails(ratios: list[float], status: str) -> None:
    found = by_plain("it", [(2e-3 * ratio, 2e-3) for ratio in ratios])
    assert found.status == status, found.sentence


def test_a_sample_has_as_many_calls_as_the_fastest_way_needs_once_it_is_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ways take a millisecond, a fifth of one and ten, and seconds when they are first called."""

    class Way:
        def __init__(self, usual_s: float) -> None:
            self.usual_s, self.called = usual_s, False

        def __call__(self) -> None:
            self.called = True

    def sample(way: Way, calls: int, device: torch.device) -> float:
        took_s = way.usual_s if way.called else 5.0
        way()
        return took_s

    monkeypatch.setattr(traffic, "sample", sample)
    assert traffic.calls_of_each([Way(1e-3)], CPU) == 2
    assert traffic.calls_of_each([Way(1e-3), Way(2e-4), Way(1e-2)], CPU) == 10


@pytest.mark.parametrize(
    ("mib", "free_gib", "wanted"), [(128, 70, 8), (300, 70, 4), (1500, 70, 1), (128, 2, 2), (128, 0.5, 1)]
)
def test_a_turn_of_arguments_is_larger_than_caches_as_far_as_memory_allows(
    monkeypatch: pytest.MonkeyPatch, mib: int, free_gib: float, wanted: int
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (int(free_gib * 2**30), 80 * 2**30))
    assert traffic.sets(mib * 2**20, GPU) == wanted
    assert traffic.sets(mib * 2**20, CPU) == 1


@pytest.mark.parametrize("judged", ["_faster", "_rate"])
def test_kernels_take_another_set_of_arguments_and_another_place_for_results_in_each_call(
    monkeypatch: pytest.MonkeyPatch, judged: str
) -> None:
    """Where a cache would answer, it is what would be measured."""
    read, written = [], []

    def added(x_MH: torch.Tensor, by: float) -> torch.Tensor:
        read.append(x_MH.data_ptr())
        result_MH = x_MH + by
        written.append(result_MH.data_ptr())
        return result_MH

    monkeypatch.setattr(kernels_part, "sets", lambda *_: 3)
    never = Compiled(added, lambda *_: torch.empty(0))
    case = kernels_part.Call(never, (torch.ones(64, 64), 1.0), 8, rival=lambda x_MH, by: lambda: x_MH + by)
    getattr(kernels_part, judged)("sum", case, CPU)
    for places in (read, written):
        assert all(len({*places[at : at + 3]}) == 3 for at in range(len(places) - 2)), places
    assert len({*read}) == 3


@pytest.mark.parametrize(
    ("allocated", "reserved", "status"), [(5, 8, "pass"), (4, 8, "pass"), (6, 8, "fail"), (5, 9, "fail")]
)
def test_memory_that_grows_fails(allocated: int, reserved: int, status: str) -> None:
    """Given out to the step or held by the allocator."""
    found = steady.memory([(5, 8)] * 3 + [(allocated, reserved)], 6)
    assert (found.status, found.name) == (status, "memory over 3 steps")


def test_what_was_taken_before_is_no_part_of_the_peak_of_warm_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is there in name only."""
    counted = {"peak": 4e9}  # of a compilation

    def step() -> None:
        counted["peak"] = max(counted["peak"], 2e9)

    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: counted.update(peak=1e9))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 1e9)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 3e9)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: counted["peak"])
    found = steady._memory(SimpleNamespace(step=step), torch.device("cuda"))  # type: ignore[arg-type]
    assert (found.status, found.figure) == ("pass", pytest.approx(1.5))


def test_what_a_compiled_norm_has_to_beat_computes_the_same() -> None:
    for name, case in cases(CPU).items():
        if case.rival is not None:
            ours, theirs = case.function.plain(*case.given), case.rival(*case.given)()
            of_x = slice(1, 2) if name.startswith("sum") else slice(0, 1)  # other statistics are in other formats
            torch.testing.assert_close(theirs[of_x], ours[of_x], rtol=0.02, atol=0.05)
