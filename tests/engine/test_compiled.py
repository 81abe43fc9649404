"""What Inductor makes of the layers' functions, by its compiler for processors: the same numbers in as few passes as a
GPU is to make of the same source.
"""

import logging
import os
import shutil
import sysconfig
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from real_ranks import run_processes
from torch import Tensor, nn

from engine.comm.funnel import Comm
from engine.grid import Axis, Grid
from engine.layers import compiled as layers_compiled
from engine.layers import elementwise, norm, norm_parts
from engine.layers.compiled import FORMS, Compiled
from engine.overlap.flags import Overlap
from engine.overlap.schedule import WeightSchedule
from engine.precision import Precision
from gpu_check import rounding
from gpu_check.kernels import cases, given_as, worst_error
from gpu_check.steps import steps

CPU = torch.device("cpu")
COMPILER = os.environ.get("CXX", "g++")
needs_a_compiler = pytest.mark.skipif(
    shutil.which(COMPILER) is None or not Path(sysconfig.get_path("include"), "Python.h").exists(),
    reason=f"Inductor takes {COMPILER} and Python's headers, such as python3-dev's",
)


OVERWRITTEN = {"AdamW": 2.0}
"""Bytes that Inductor counts as read of what is only written to."""


class Seen(NamedTuple):
    """error: by what one rounding explains. num_bytes: of each element of the first argument."""

    error: float
    num_bytes: float


def compiled(_: Comm, cache: str, names: Collection[str]) -> dict[str, Seen]:
    """Compile the functions of these names. cache: a folder for what the compiler makes."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
    torch._logging.set_logs(inductor_metrics=True)  # without which it counts no bytes
    from torch._inductor import config, metrics

    config.cpp.simdlen = 1  # vectors take a C++ compiler three times as long, and change neither sums nor passes
    found = {}
    for name in names:
        case = cases(CPU)[name]
        metrics.reset()
        ours, exact = given_as(case.given), given_as(case.given, torch.float64)
        error = worst_error(case.function.fused(*ours), case.function.plain(*exact), ours, exact)
        found[name] = Seen(error, metrics.num_bytes_accessed / case.given[0].numel() - OVERWRITTEN.get(name, 0.0))
    return found


@pytest.fixture(scope="module")
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    """Functions whose tests are run."""
    here = [item for item in request.session.items if item.path == request.path]
    asking = [item for item in here if "seen" in getattr(item, "fixturenames", ())]
    chosen = [item.callspec.params["name"] for item in asking]  # type: ignore[attr-defined]
    (found,) = run_processes(Grid(), compiled, str(tmp_path_factory.mktemp("compiled")), chosen)
    return found


SOME = [pytest.param(name, marks=pytest.mark.weekly if place % 4 else ()) for place, name in enumerate(cases(CPU))]
"""Every fourth function is compiled every time, and all weekly."""


@needs_a_compiler
@pytest.mark.slow
@pytest.mark.parametrize("name", SOME)
def test_a_compiled_function_has_the_same_numbers_in_few_passes(name: str, seen: dict[str, Seen]) -> None:
    assert seen[name].error <= cases(CPU)[name].roundings
    assert seen[name].num_bytes <= cases(CPU)[name].num_bytes + 0.1


def test_on_a_processor_it_runs_as_it_is_written() -> None:
    def written(x: Tensor) -> Tensor:
        return x + 1

    def never(x: Tensor) -> Tensor:
        raise AssertionError

    assert Compiled(written, never)(torch.zeros(1)) == 1


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "moments", "squares"])
def test_a_norm_of_one_tensor_gives_no_sum_back_that_would_be_written_for_nothing(name: str) -> None:
    function, x, weight = getattr(norm_parts, name), torch.randn(2, 3).bfloat16(), torch.ones(3)
    parameters = {"layer_norm": (weight, weight, 1e-5), "rms_norm": (weight, 1e-5)}.get(name, ())
    for form in (function.plain, function.source):
        assert form(x, None, *parameters)[0] is None
        assert form(x, x, *parameters)[0].equal(x + x)


@pytest.mark.weekly
@pytest.mark.slow
def test_in_steps_of_both_families_no_function_takes_more_forms_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced as for a GPU, and run as traced: PyTorch raises an error where it would compile once more than allowed."""

    def traced(one: Compiled[..., object]) -> object:
        if one not in kept:
            kept[one] = torch.compile(one.source, fullgraph=True, backend="eager")
        return kept[one]

    kept: dict[Compiled[..., object], object] = {}
    torch._dynamo.reset()
    monkeypatch.setattr(rounding, "SEEDS", range(1))
    monkeypatch.setattr(rounding, "LOOKS", 1)
    monkeypatch.setattr(Compiled, "fused", property(traced))
    for module in (layers_compiled, elementwise, norm):
        monkeypatch.setattr(module, "fuses", lambda tensor: tensor.dtype != torch.float64)
    layers_compiled._allow_forms()  # it would undo the patch
    with torch._dynamo.config.patch(recompile_limit=FORMS // 2):
        assert [found.name for found in steps(CPU, "bf16") if found.status == "fail"] == []
    assert len(kept) > 6


def test_norms_of_heads_leave_those_of_the_residual_stream_compiled_for_their_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: dict[object, set[object]] = {}

    def compiled(one: Compiled[..., object]) -> object:
        def backend(module: torch.fx.GraphModule, _: object) -> Callable[..., object]:
            given = (node.meta["example_value"] for node in module.graph.find_nodes(op="placeholder"))
            sizes.setdefault(one, set()).update(of.shape[1] for of in given if isinstance(of, Tensor) and of.dim() > 1)
            return module.forward

        kept.setdefault(one, torch.compile(one.source, fullgraph=True, backend=backend))
        return kept[one]

    kept: dict[object, object] = {}
    torch._dynamo.reset()
    monkeypatch.setattr(Compiled, "fused", property(compiled))
    for module in (layers_compiled, norm):
        monkeypatch.setattr(module, "fuses", lambda _: True)
    comm, weight, of_heads = Comm(Grid()), nn.Parameter(torch.ones(32)), nn.Parameter(torch.ones(8))
    schedule = WeightSchedule(comm, [], [weight, of_heads], Precision.parse("fp32"), Overlap())
    stream, heads = norm.RMSNorm(comm, Axis.Y, schedule, weight, 1e-5), norm.HeadNorm(comm, of_heads, 1e-5)
    x, normed = stream.after(torch.randn(4, 32, requires_grad=True), None)
    q, k = normed.split([24, 8], dim=1)
    normed_heads = [heads(part.unflatten(1, (-1, 8))).flatten(1) for part in (q, k)]
    torch.stack(stream.after(x, torch.cat(normed_heads, dim=1))).sum().backward()
    assert sizes[norm_parts.rms_norm] == {32}
    assert sizes[norm_parts.rms_norm_gradients] == {1, 32}
    assert sizes[norm_parts.head_norm] == {8}


def test_no_two_ranks_or_runs_choose_between_orders_of_a_sum_by_their_times(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config

    if not hasattr(config, "deterministic"):
        pytest.skip(f"PyTorch {torch.__version__} has no such option")
    asked: list[object] = []

    def as_it_is(source: Callable[..., Tensor], *, fullgraph: bool, options: object) -> Callable[..., Tensor]:
        asked.append(options)
        return source

    monkeypatch.setattr(torch, "compile", as_it_is)
    for tried in (True, False):
        assert Compiled(torch.sum, tried=tried).fused(torch.ones(2)) == 2
    assert asked == [{"deterministic": True}, {"deterministic": True, "triton.autotune_pointwise": False}]


def test_a_thread_that_begins_later_may_have_as_many_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a GPU's backward, in which what only the backward needs is compiled."""

    def written(x: Tensor) -> Tensor:
        return x + 1

    def in_all_forms() -> list[int]:
        return [one(torch.zeros([1] * dims)).dim() for dims in range(1, FORMS // 4)]

    one, compiled = Compiled(written), torch.compile(written, fullgraph=True, backend="eager")
    torch._dynamo.reset()
    monkeypatch.setattr(Compiled, "fused", property(lambda _: compiled))
    monkeypatch.setattr(layers_compiled, "fuses", lambda _: True)
    one(torch.zeros(()))
    with ThreadPoolExecutor(1) as other:
        assert other.submit(in_all_forms).result() == list(range(1, FORMS // 4))


def lacking(_: Comm, cache: str, compiler: str) -> tuple[str | None, list[str]]:
    """Why Inductor can compile nothing for this processor, and what is said of it; compiler: of C++."""
    from torch._inductor import config

    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
    config.cpp.cxx = (None, compiler)
    config.cpp.simdlen, config.cpp_cache_precompile_headers = 1, False  # both take a compiler many seconds
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    layers_compiled.log.addHandler(handler)
    why = layers_compiled.why_not(CPU)
    torch._dynamo.reset()
    try:
        torch.compile(layers_compiled._increment)(torch.ones(1))  # which the cache may answer
    except RuntimeError:
        heard.append("nothing kept")
    return why, heard


@needs_a_compiler
@pytest.mark.slow
def test_without_a_compiler_layers_run_as_they_are_written_and_say_so_whatever_another_machine_has_kept(
    tmp_path: Path,
) -> None:
    """The same cache, and a compiler of the same name, which then only tells its version."""
    compiler = tmp_path / "compiler"
    given = str(tmp_path / "cache"), str(compiler)
    compiler.write_text(f'#!/bin/sh\nexec {COMPILER} "$@"\n')
    compiler.chmod(0o755)
    assert run_processes(Grid(), lacking, *given) == [(None, [])]
    compiler.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exec {COMPILER} --version\nexit 1\n')
    ((why, heard),) = run_processes(Grid(), lacking, *given)
    assert why is not None
    assert [line for line in heard if "Install a C compiler" in line and why in line] == heard != []
