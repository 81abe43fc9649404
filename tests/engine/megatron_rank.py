"""Rank of Megatron-core that is built and no more, in its own environment; what that took is printed as JSON.

python megatron_rank.py RANK STORE ORDER. The order is JSON: family and fields of the network, the layout, further
arguments of the peer, what gives the initial values (of each of several that are built one after the other), a limit of
private memory, and whether the others are there; a rank that is alone only pretends to meet them.
"""

import gc
import json
import resource
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from engine.batch import Batch
from engine.models.adapters.stored import Stored
from engine.models.architecture import Architecture
from engine.models.gpt.config import GPTConfig
from engine.models.llama.config import LlamaConfig
from engine.peers.comparison import Case
from engine.peers.external import megatron_core
from engine.peers.host_memory import STATUS, peak_resident_bytes
from engine.peers.layout import Layout
from engine.peers.peer import rename_weights
from engine.peers.shards import Shares

FAMILIES = {"gpt": GPTConfig, "llama": LlamaConfig}


class Whole:
    """Planted fault: every rank makes the whole network, and once more under the library's names."""

    def __init__(self, architecture: Architecture, places: Stored, seed: int) -> None:
        self._whole = rename_weights(Case(architecture, Batch(1), seed=seed), places)

    @torch.no_grad()
    def fill(self, share: Tensor, tensor: str, dim: int = 0, place: int = 0, shares: int = 1) -> None:
        value = self._whole[tensor].chunk(shares, dim)[place] if share.dim() else self._whole[tensor]
        assert value.shape == share.shape
        share.copy_(value)


class Compared(Shares):
    """Shares whose bits are those of the whole network, renamed and cut."""

    def __init__(self, architecture: Architecture, places: Stored, seed: int) -> None:
        super().__init__(architecture, places, seed)
        self._other = Whole(architecture, places, seed)

    def fill(self, share: Tensor, tensor: str, dim: int = 0, place: int = 0, shares: int = 1) -> None:
        super().fill(share, tensor, dim, place, shares)
        other = torch.empty_like(share)
        self._other.fill(other, tensor, dim, place, shares)
        if not torch.equal(share.detach().view(torch.int32), other.view(torch.int32)):
            raise ValueError(f"the share of {tensor} has other bits")


VALUES = {"Shares": Shares, "Whole": Whole, "Compared": Compared}


def private_bytes() -> int:
    """Return the bytes that RLIMIT_DATA counts."""
    (line,) = [line for line in STATUS.read_text().splitlines() if line.startswith("VmData:")]
    return int(line.split()[1]) * 1024


def limit_private(extra: float) -> None:
    """Allow so many more bytes than there are now."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (private_bytes() + int(extra), hard))


def build(order: dict[str, Any], values: str, layout: Layout) -> dict[str, Any]:
    """Build the peer once; return what it took and what it keeps, or why it could not."""
    megatron_core.Shares = VALUES[values]  # type: ignore[misc, assignment]
    case = Case(FAMILIES[order["family"]]("built", **order["fields"]), Batch(layout.data))
    before = peak_resident_bytes()
    try:
        if order.get("limit"):
            limit_private(order["limit"])
        peer = megatron_core.MegatronCore(case, layout, torch.device("cpu"), **order.get("arguments", {}))
    except (RuntimeError, MemoryError) as error:
        return {"error": str(error)}
    built = peer._model
    return {
        "grew": peak_resident_bytes() - before,
        "weights": sum(parameter.nbytes for parameter in built.parameters()),
        "gradients": sum(buffer.grad_data.nbytes for buffer in built.buffers),
    }


def main() -> None:
    rank, store, order = int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    layout = Layout.parse(order["layout"])
    ranks, timeout = layout.size, timedelta(seconds=order["timeout_s"])
    torch.set_num_threads(1)
    if order["alone"]:
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
        make_group = dist.new_group  # it asks for groups of gloo besides
        dist.new_group = lambda *words, **options: make_group(*words, **options | {"backend": "fake"})
    else:
        met = dist.FileStore(store, ranks)
        dist.init_process_group("gloo", store=met, rank=rank, world_size=ranks, timeout=timeout)
    outcomes = []
    for values in order["values"]:
        outcomes.append(build(order, values, layout))
        limit_private(2**40)
        parallel_state.destroy_model_parallel()
        gc.collect()
    dist.barrier()
    print(json.dumps(outcomes))  # noqa: T201


if __name__ == "__main__":
    main()
