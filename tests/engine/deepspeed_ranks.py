"""Ranks of DeepSpeed that are built and take no step, in its own Python: deepspeed_ranks.py PEERS.

PEERS is a list of dicts in JSON. Of each it writes what the ranks found, as JSON. Ranks are forked when all is
imported, so that what they take counts from there.
"""

import json
import multiprocessing
import os
import re
import resource
import sys
import tempfile
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import deepspeed as library
import torch
import torch.distributed as dist
from torch import Tensor

from engine.batch import Batch
from engine.measure.memory import return_freed_memory
from engine.models.gpt.config import GPTConfig
from engine.models.llama.config import LlamaConfig
from engine.peers.comparison import Case
from engine.peers.external import deepspeed as adapter
from engine.peers.host_memory import STATUS, peak_resident_bytes
from engine.peers.known.tensor_parallel import regroup_parts
from engine.peers.layout import Layout
from engine.peers.peer import cut_model, serial_model
from engine.peers.registry import COMPARISONS
from engine.peers.shards import count_bytes

CPU = torch.device("cpu")
SHAPES = {"gpt": GPTConfig, "llama": LlamaConfig}
TIME_S = 240
SMALL_BUCKETS = {"reduce_bucket_size": 1 << 18, "allgather_bucket_size": 1 << 18}
"""Elements of DeepSpeed's buffers under a limit, which counts what is allocated and never touched."""


def main() -> None:
    sys.stdout.write(json.dumps([start(asked) for asked in json.loads(sys.argv[1])]))


def start(asked: dict[str, Any]) -> list[dict[str, Any]]:
    """Fork the ranks of a peer and return what each found."""
    context = multiprocessing.get_context("fork")
    size, answers = Layout.parse(asked["layout"]).size, context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        ranks = [context.Process(target=take_part, args=(asked, size, rank, store, answers)) for rank in range(size)]
        for process in ranks:
            process.start()
        found = dict(answers.get() for _ in ranks)
        for process in ranks:
            process.join(TIME_S)
            process.kill()
    return [found[rank] for rank in range(size)]


def take_part(asked: dict[str, Any], size: int, rank: int, store: str, answers: Any) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what DeepSpeed prints
    met, limit = dist.FileStore(store, size), timedelta(seconds=TIME_S)
    try:
        dist.init_process_group("gloo", store=met, rank=rank, world_size=size, timeout=limit)
        answers.put((rank, build(asked)))
    except BaseException:
        answers.put((rank, {"error": traceback.format_exc()}))
    os._exit(0)


def build(asked: dict[str, Any]) -> dict[str, Any]:
    """Build this rank's peer, under a limit of memory where one is asked for."""
    layout = Layout.parse(asked["layout"])
    shape = SHAPES[asked["kind"]]("asked", **asked["model"])
    case = Case(shape, Batch(2 * layout.data * layout.pipeline), precision=asked["precision"])
    if asked.get("whole"):
        make_whole(case)
    if asked.get("copies"):
        adapter.without_copies = lambda: None
    allowed = asked.get("allowed_bytes")
    if allowed or asked.get("trains"):
        settings = adapter.choose_settings
        adapter.choose_settings = lambda *words: {**settings(*words), **SMALL_BUCKETS}
    if allowed:
        limit = data_bytes() + allowed
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    return_freed_memory()
    before = peak_resident_bytes()
    peer = COMPARISONS[asked["peer"]].implementation()(case, layout.for_batch(case.peer_batch), CPU)
    found = {"grown_bytes": peak_resident_bytes() - before, "shard_bytes": count_bytes(peer.list_shard())}
    found["steps"] = [train(peer, case, layout, seed) for seed in range(asked.get("trains", 0))]
    found["trained_bytes"] = peak_resident_bytes() - before
    return found | ({"unequal": unequal(peer, case, layout)} if asked.get("compares") else {})


def train(peer: Any, case: Case, layout: Layout, seed: int) -> list[float]:
    """Take a step, and return its loss and the norm of its gradients."""
    sequences = case.batch.sequences // layout.data
    drawn = torch.Generator().manual_seed(layout.data * seed + peer.data_rank)
    size = (sequences, case.model.sequence + 1)
    tokens = torch.randint(case.model.vocabulary, size, generator=drawn)
    return list(peer.step({"tokens": tokens[:, :-1], "targets": tokens[:, 1:]}))


def make_whole(case: Case) -> None:
    """Plant the fault: every rank makes the whole network first."""
    whole = serial_model
    adapter.partitioned_model = lambda case, device, config: whole(case, device)
    adapter.model_without_values = lambda case, dtype: whole(case, CPU)


def data_bytes() -> int:
    """Return what RLIMIT_DATA counts."""
    found = re.search(r"^VmData:\s+(\d+) kB$", STATUS.read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def unequal(peer: Any, case: Case, layout: Layout) -> list[str]:
    """Name the weights that differ in a bit from those of the whole network, which DeepSpeed itself gathers or cuts."""
    serial = serial_model(case, CPU)
    if isinstance(peer, adapter.ZeRO):
        expected: dict[str, Tensor] = dict(serial.named_parameters())
        with library.zero.GatheredParameters(list(peer._model.parameters())):
            return differing(dict(peer._model.named_parameters()), expected)
    placements = case.model.placements()
    if layout.tensor > 1:
        regroup_parts(serial, placements, layout.tensor)
        adapter.split_layers(serial, placements, layout.tensor)
    layers = torch.nn.ModuleDict({str(number): layer for number, layer in enumerate(cut_model(serial))})
    own = dict(peer._engine.module.named_parameters())
    return differing(own, {name: weight for name, weight in layers.named_parameters() if name in own})


def differing(own: dict[str, Tensor], expected: dict[str, Tensor]) -> list[str]:
    assert own
    wrong = [name for name, weight in own.items() if not torch.equal(weight, expected[name].to(weight.dtype))]
    return wrong + sorted(own.keys() ^ expected.keys())


if __name__ == "__main__":
    main()
