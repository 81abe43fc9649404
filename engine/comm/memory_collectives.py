# mypy: disable-error-code="override, assignment"
# Of the overloads that torch declares, those with options alone are called.
"""The collectives of torch.distributed go through memory that ranks share: other people's libraries call them, too.

Every rank writes its input where the others can read it, and reads what it needs of theirs, as in shared_memory.py.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from engine.comm.exchange import Inputs
from engine.comm.memory_group import GroupWithMemory, operation


class MemoryGroup(GroupWithMemory):
    """Its collectives have the names and arguments that torch.distributed calls.

    Sums are in the order of the ranks. Raises LostContact where another rank has ended or takes too long, and
    ValueError where ranks call different things.
    """

    def allreduce(self, tensors: Any, opts: Any = None) -> dist.Work:
        return self._all_reduced("allreduce", [tensors] if isinstance(tensors, Tensor) else tensors, opts)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        return self._all_reduced("allreduce_coalesced", tensors, opts)

    def _all_reduced(self, name: str, tensors: list[Tensor], opts: Any) -> dist.Work:
        op = operation(opts)
        if not self._can(*tensors, op=op):
            return self._leave(name, tensors, opts)

        def read(inputs: Inputs) -> None:
            for one, offset in _with_offsets(tensors):
                self._reduced(inputs.every(one, offset), op, one)

        return self._work("allreduce", tensors, _bytes(tensors), read, tensors, opts)

    def reduce(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        (one,), op = tensors, operation(opts)
        if not self._can(one, op=op):
            return self._leave("reduce", tensors, opts)

        root = opts.rootRank

        def read(inputs: Inputs) -> None:
            if self._own == root:
                self._reduced(inputs.every(one), op, one)

        return self._work("reduce", [one], one.nbytes, read, [one], opts)

    def broadcast(self, tensors: Any, opts: Any = None) -> dist.Work:
        (one,) = tensors if not isinstance(tensors, Tensor) else (tensors,)
        if not self._can(one):
            return self._leave("broadcast", [one], opts)
        root = opts.rootRank

        def read(inputs: Inputs) -> None:
            if self._own != root:
                one.copy_(inputs.of(root, one))

        return self._work("broadcast", [one] if self._own == root else [], one.nbytes, read, [one], opts)

    def allgather(self, outputs: list[list[Tensor]], tensors: list[Tensor], opts: Any = None) -> dist.Work:
        (targets,), (one,) = outputs, tensors
        alike = all(target.shape == one.shape for target in targets)
        if not alike or not self._can(one, *targets):
            return self._leave("allgather", outputs, tensors, opts)
        return self._work("allgather", [one], one.nbytes, _into(targets, one), outputs, opts)

    def all_gather_single(self, output: Tensor, one: Tensor, opts: Any = None) -> dist.Work:
        return self._gather_all("_allgather_base", [output], [one], (output, one), opts)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: list[Tensor], tensors: list[Tensor], opts: Any = None) -> dist.Work:
        return self._gather_all("allgather_into_tensor_coalesced", outputs, tensors, (outputs, tensors), opts)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def _gather_all(
        self, name: str, outputs: list[Tensor], tensors: list[Tensor], called: tuple[Any, Any], opts: Any
    ) -> dist.Work:
        if not self._can(*tensors, *outputs):
            return self._leave(name, *called, opts)

        def read(inputs: Inputs) -> None:
            for output, (one, offset) in zip(outputs, _with_offsets(tensors), strict=True):
                _into(output.view(-1).chunk(self._ranks), one.view(-1), offset)(inputs)

        return self._work("allgather", tensors, _bytes(tensors), read, called[0], opts)

    def reduce_scatter(self, outputs: list[Tensor], tensors: list[list[Tensor]], opts: Any = None) -> dist.Work:
        (output,), (parts,), op = outputs, tensors, operation(opts)
        if not self._can(output, *parts, op=op) or any(part.shape != output.shape for part in parts):
            return self._leave("reduce_scatter", outputs, tensors, opts)
        offset = self._own * output.nbytes
        return self._work(
            "reduce_scatter", parts, _bytes(parts),
            lambda inputs: self._reduced(inputs.every(output, offset), op, output), outputs, opts,
        )  # fmt: skip

    def reduce_scatter_single(self, output: Tensor, one: Tensor, opts: Any = None) -> dist.Work:
        return self._scatter_sums("_reduce_scatter_base", [output], [one], (output, one), opts)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], tensors: list[Tensor], opts: Any = None
    ) -> dist.Work:
        return self._scatter_sums("reduce_scatter_tensor_coalesced", outputs, tensors, (outputs, tensors), opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _scatter_sums(
        self, name: str, outputs: list[Tensor], tensors: list[Tensor], called: tuple[Any, Any], opts: Any
    ) -> dist.Work:
        op = operation(opts)
        if not self._can(*outputs, *tensors, op=op):
            return self._leave(name, *called, opts)

        def read(inputs: Inputs) -> None:
            for output, (_, offset) in zip(outputs, _with_offsets(tensors), strict=True):
                self._reduced(inputs.every(output, offset + self._own * output.nbytes), op, output)

        return self._work("reduce_scatter", tensors, _bytes(tensors), read, called[0], opts)

    def alltoall(self, outputs: list[Tensor], tensors: list[Tensor], opts: Any = None) -> dist.Work:
        if self._exchange is None:
            return self._leave("alltoall", outputs, tensors, opts)
        return self._everyone_to_everyone(outputs, tensors, opts, outputs)

    def all_to_all_single(
        self, output: Tensor, one: Tensor, output_splits: list[int], input_splits: list[int], opts: Any = None
    ) -> dist.Work:
        if self._exchange is None or not (output.is_contiguous() and one.is_contiguous()):
            return self._leave("alltoall_base", output, one, output_splits, input_splits, opts)
        targets = output.split(output_splits) if output_splits else output.chunk(self._ranks)
        sources = one.split(input_splits) if input_splits else one.chunk(self._ranks)
        return self._everyone_to_everyone(targets, sources, opts, output)

    alltoall_base = all_to_all_single

    def _everyone_to_everyone(
        self, outputs: Sequence[Tensor], tensors: Sequence[Tensor], opts: Any, results: Any
    ) -> dist.Work:
        """Write the sizes of a rank's pieces before them, as no other rank knows all of them."""
        pieces = [piece.contiguous() for piece in tensors]
        sizes = torch.tensor([piece.nbytes for piece in pieces])

        def read(inputs: Inputs) -> None:
            for rank, output in enumerate(outputs):
                theirs = inputs.of(rank, sizes).tolist()
                if theirs[self._own] != output.nbytes:
                    raise ValueError(f"Rank {rank} sends {theirs[self._own]} bytes to one that takes {output.nbytes}.")
                if output.numel():
                    output.copy_(inputs.of(rank, output, sizes.nbytes + sum(theirs[: self._own])))

        return self._work("alltoall", [sizes, *pieces], 0, read, results, opts)

    def gather(self, outputs: list[list[Tensor]], tensors: list[Tensor], opts: Any = None) -> dist.Work:
        (one,) = tensors
        if not self._can(one):
            return self._leave("gather", outputs, tensors, opts)
        read = _into(outputs[0] if outputs else [], one)
        return self._work("gather", [one], one.nbytes + opts.rootRank, read, outputs, opts)

    def scatter(self, outputs: list[Tensor], tensors: list[list[Tensor]], opts: Any = None) -> dist.Work:
        (output,), root = outputs, opts.rootRank
        if not self._can(output):
            return self._leave("scatter", outputs, tensors, opts)
        pieces = [piece.contiguous() for piece in tensors[0]] if self._own == root else []

        def read(inputs: Inputs) -> None:
            output.copy_(inputs.of(root, output, self._own * output.nbytes))

        return self._work("scatter", pieces, output.nbytes, read, outputs, opts)


def _into(targets: Sequence[Tensor], one: Tensor, offset: int = 0) -> Callable[[Inputs], None]:
    """Make what reads from each rank what it has written like this one, into its own target."""

    def read(inputs: Inputs) -> None:
        for rank, target in enumerate(targets):
            target.copy_(inputs.of(rank, one, offset))

    return read


def _with_offsets(tensors: Sequence[Tensor]) -> Iterator[tuple[Tensor, int]]:
    """Pair each with the byte at which it begins where all are written one after the other."""
    return zip(tensors, accumulate((one.nbytes for one in tensors), initial=0), strict=False)


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum(one.nbytes for one in tensors)
