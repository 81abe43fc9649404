"""Libraries with environments of their own train what the engine trains, in each way that they split a network, in
micro-batches too, and take the settings that the table has for them.

ci/test runs a few on two ranks where `ci/peers` has made the environment: of Megatron-core and of DeepSpeed a pipeline,
and a grid that sums gradients of micro-batches. `ci/weekly` makes all environments and runs all.
"""

import math
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from external_cases import CASE, GPT, LLAMA, hold
from real_ranks import run_processes
from test_micro_batches import CASE as IN_PARTS
from test_micro_batches import check
from waiting import LONG_S

from engine import yaml_text
from engine.grid import Grid
from engine.models.gpt.config import GPTConfig
from engine.models.llama.config import LlamaConfig
from engine.peers.layout import Layout
from engine.peers.registry import COMPARISONS, OPTIONS, choose_settings, environment_lack, python_of
from engine.result.schema.peers import PeerContest

AT_EACH_CHANGE = {("megatron-core", "pipeline=2,micro_batches=4", LLAMA), ("deepspeed-pipeline", "pipeline=2", LLAMA)}
ROWS = yaml_text.parse(Path(__file__).with_name("libraries.yaml").read_text())
IN_MICRO_BATCHES = [(name, layout, kind) for kind, rows in ROWS["micro_batches"].items() for name, layout in rows]
IN_MICRO_BATCHES_AT_EACH_CHANGE = (("deepspeed-zero3", "data=2"), ("megatron-core", "tensor=2"))
BUILDS: dict[str, str] = ROWS["builds"]
SETTINGS_AT_EACH_CHANGE = ("megatron-core", "deepspeed")


def contests() -> Iterator[Any]:
    """Every layout with either network."""
    for name, layouts in ROWS["layouts"].items():
        for layout in layouts:
            for model in (GPT, LLAMA):
                if COMPARISONS[name].lacking(model, recompute=False):
                    continue
                marks = () if (name, layout, model) in AT_EACH_CHANGE else (pytest.mark.weekly,)
                kind = "gpt" if model is GPT else "llama"
                yield pytest.param(name, layout, model, marks=marks, id=f"{name}-{layout}-{kind}")


@pytest.mark.parametrize(("name", "layout", "model"), list(contests()))
def test_a_library_trains_what_the_engine_trains(name: str, layout: str, model: GPTConfig | LlamaConfig) -> None:
    grid = Grid(data=Layout.parse(layout).size)
    contest = COMPARISONS[name].with_layout(Layout.parse(layout), grid)
    assert contest.library is not None
    if reason := environment_lack(contest.library):
        pytest.skip(reason)
    for found in run_processes(grid, hold, contest, replace(CASE, model=model)):
        assert isinstance(found, PeerContest), found
        assert found.peer.losses == pytest.approx(found.ours.losses, rel=1e-5)
        assert found.peer.gradient_norms == pytest.approx(found.ours.gradient_norms, rel=1e-5)
        assert set(found.peer.versions) == {"torch", contest.library}
        assert found.ours.versions == {}
        assert not any(math.isnan(loss) for loss in found.peer.losses)


@pytest.mark.parametrize(
    ("name", "layout", "kind"),
    [
        pytest.param(*row, marks=() if row[:2] in IN_MICRO_BATCHES_AT_EACH_CHANGE else (pytest.mark.weekly,))
        for row in IN_MICRO_BATCHES
    ],
)
def test_a_library_adds_up_the_gradients_of_its_micro_batches(name: str, layout: str, kind: str) -> None:
    contest = COMPARISONS[name].with_layout(Layout.parse(layout), Grid(data=2))
    assert contest.library is not None
    if reason := environment_lack(contest.library):
        pytest.skip(reason)
    check(contest, replace(IN_PARTS, model=GPT if kind == "gpt" else LLAMA), 1e-5)


@pytest.mark.parametrize(
    "library",
    [pytest.param(one, marks=() if one in SETTINGS_AT_EACH_CHANGE else (pytest.mark.weekly,)) for one in BUILDS],
)
def test_the_installed_library_takes_each_setting(library: str) -> None:
    """Also those of GPUs, which nothing else here builds."""
    if reason := environment_lack(library):
        pytest.skip(reason)
    script = BUILDS[library]
    for device in ("cpu", "cuda"):
        given = {section: choose_settings(library, section, device) for section in OPTIONS[library]}
        script += f"for name, own in {given!r}.items(): known[name](**own)\n"
    done = subprocess.run(
        [python_of(library), "-P", "-c", script],
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
