"""Megatron-core makes no more of a network on the host than a rank's shard, bit by bit as before.

A shard is what Megatron keeps of the network once it is built, in fp32 on processors: the rank's weights and the
buffer of their gradients. AdamW's moments come with the first step.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from external_cases import CASE, GPT, LLAMA, hold
from real_ranks import run_processes
from waiting import LONG_S

from engine.batch import Batch
from engine.grid import Grid
from engine.models.gpt.config import GPTConfig
from engine.models.llama.config import LlamaConfig
from engine.peers.layout import Layout
from engine.peers.registry import COMPARISONS, ROOT, environment_lack, python_of
from engine.result.schema.peers import PeerContest

LIBRARY = "megatron-core"
SMALL: dict[str, Any] = {"layers": 4, "hidden": 512, "heads": 8, "vocabulary": 8192, "sequence": 64}
LARGE: dict[str, Any] = {"layers": 8, "hidden": 3584, "heads": 28, "vocabulary": 8192, "sequence": 64}
"""1.3 billion parameters: 1.2 GB of weights on each of four ranks, and as much of gradients."""
TINY: dict[str, Any] = {"layers": 4, "hidden": 48, "heads": 6, "vocabulary": 96, "sequence": 8}
GATED: dict[str, Any] = TINY | {"kv_heads": 2, "ffn": 72}
BEYOND = 1.1


def built(family: str, fields: dict[str, Any], layout: str, ranks: Sequence[int] = (), **order: Any) -> list[Any]:
    """Build what is ordered on every rank, or on these alone, which then pretend to meet the others."""
    if reason := environment_lack(LIBRARY):
        pytest.skip(reason)
    words = {"family": family, "fields": fields, "layout": layout, "alone": bool(ranks), "timeout_s": LONG_S}
    script = str(Path(__file__).with_name("megatron_rank.py"))
    # Freed memory goes back at once, so that a limit counts what is in use.
    own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": str(2**16)}
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            subprocess.Popen(
                [python_of(LIBRARY), "-P", script, str(rank), str(Path(folder, "store")), json.dumps(words | order)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=os.environ | own,
            )
            for rank in ranks or range(Layout.parse(layout).size)
        ]
        try:
            said = [process.communicate(timeout=2 * LONG_S) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
    for process, (_, errors) in zip(processes, said, strict=True):
        assert process.returncode == 0, errors[-2000:]
    return [json.loads(output.splitlines()[-1]) for output, _ in said]


def test_a_shard_fits_where_a_whole_network_does_not() -> None:
    """The limit is of private memory: a shard and 10 %."""
    cut = GPTConfig("cut", **SMALL).parameters * 4 / 2
    ((shard, whole),) = built("gpt", SMALL, "tensor=2", [1], values=["Shares", "Whole"], limit=int(BEYOND * 2 * cut))
    assert shard["weights"] == pytest.approx(cut, rel=0.01)
    assert shard["gradients"] == pytest.approx(cut, rel=0.01)
    assert "memory" in whole["error"]


@pytest.mark.weekly
@pytest.mark.parametrize("layout", ["tensor=2", "pipeline=2", "tensor=4", "tensor=2,pipeline=2", "pipeline=4"])
def test_a_rank_takes_no_more_of_the_host_than_its_shard_and_a_tenth(layout: str) -> None:
    for (rank,) in built("gpt", LARGE, layout, values=["Shares"]):
        shard = rank["weights"] + rank["gradients"]
        assert rank["weights"] > 1e9
        assert rank["grew"] <= BEYOND * shard


@pytest.mark.parametrize(
    ("family", "fields", "layout", "arguments"),
    [
        ("llama", GATED, "tensor=2,pipeline=2", {"sequence_parallel": True}),
        pytest.param("llama", GATED | {"tied": True}, "tensor=2", {}, marks=pytest.mark.weekly),
        pytest.param("gpt", TINY, "tensor=3", {}, marks=pytest.mark.weekly),
        pytest.param("gpt", TINY | {"tied": True}, "pipeline=2,data=2", {}, marks=pytest.mark.weekly),
        pytest.param("gpt", TINY | {"bias": False}, "pipeline=4", {}, marks=pytest.mark.weekly),
    ],
)
def test_weights_have_the_bits_of_a_whole_network_that_is_renamed_and_cut(
    family: str, fields: dict[str, Any], layout: str, arguments: dict[str, Any]
) -> None:
    last = Layout.parse(layout).size - 1
    for ranks in ([last], [0]):
        ((outcome,),) = built(family, fields, layout, ranks, values=["Compared"], arguments=arguments)
        assert outcome["weights"] > 0, outcome


@pytest.mark.weekly
@pytest.mark.parametrize(
    ("layout", "model"),
    [
        ("pipeline=2,micro_batches=2", replace(GPT, tied=True)),
        ("tensor=2", replace(LLAMA, tied=True)),
        ("tensor=3", replace(GPT, hidden=48, heads=6, vocabulary=96)),
    ],
    ids=["tied-pipeline", "tied-tensor", "three"],
)
def test_a_tied_network_and_thirds_train_as_the_engines(layout: str, model: GPTConfig | LlamaConfig) -> None:
    if reason := environment_lack(LIBRARY):
        pytest.skip(reason)
    ranks = Layout.parse(layout)
    contest = COMPARISONS[LIBRARY].with_layout(ranks, Grid(data=ranks.size))
    for found in run_processes(contest.grid, hold, contest, replace(CASE, model=model, batch=Batch(12))):
        assert isinstance(found, PeerContest), found
        assert found.peer.losses == pytest.approx(found.ours.losses, rel=1e-5)
        assert found.peer.gradient_norms == pytest.approx(found.ours.gradient_norms, rel=1e-5)
        assert len(found.peer.shard_bytes) == ranks.size
        assert sum(found.peer.shard_bytes) >= 2 * 4 * model.parameters, "weights and gradients"
