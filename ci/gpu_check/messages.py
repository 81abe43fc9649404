"""Two ranks send each other messages at once, as stages of a pipeline do: do these arrive as they were sent, how fast,
and how much of them does a matrix product hide?
"""

from collections.abc import Callable, Iterator, Sequence
from statistics import median

import torch
from torch import Tensor

from engine.comm.collective import Kind
from engine.comm.funnel import Comm, Handle
from engine.grid import REPLICATING, Grid
from engine.measure.clock import HostClock
from engine.result.schema.gpu_check import Finding
from gpu_check.findings import passes_if, reported
from gpu_check.pair import Pair
from gpu_check.staged import keep_busy

AXIS, GRID = REPLICATING[0], Grid.replicated(2)
EXCHANGES, MESSAGES, NUMBERS = 3, 3, 1 << 18
ROUNDS = 7
SIZES = {"cpu": (1 << 18, 128), "cuda": (1 << 25, 4096)}
"""A timed message has so many elements in bf16, and square matrices of so many rows are multiplied meanwhile."""


def messages(pair: Pair) -> Iterator[Finding]:
    """Give findings, on the first rank only."""
    comm = pair.comm(GRID)
    wrong = int(comm.gather_rows(_wrong(comm)).sum())
    sent = f"{EXCHANGES} times {MESSAGES} of {NUMBERS:,} numbers each way at once, {pair.words}"
    arrived = passes_if(not wrong, "messages between two ranks", "none is wrong", sent, figure=wrong, unit="numbers")
    speed = _speed(pair, comm)
    if pair.rank == 0:
        yield from (arrived, speed)


def _wrong(comm: Comm) -> Tensor:
    """Count the numbers that have not arrived at this rank as they were sent: [1].

    Each message is late, and what was sent is overwritten as soon as it may be.
    """
    mine, theirs = comm.rank, 1 - comm.rank
    wrong = torch.zeros(1, dtype=torch.int64, device=comm.device)
    for exchange in range(EXCHANGES):
        keep_busy(comm.device)
        sent = [_message(mine, exchange, number, comm) for number in range(MESSAGES)]
        arrived = [torch.full_like(message, -1) for message in sent]
        for handle in _exchange(comm, sent, arrived):
            handle.wait()
        for message in sent:
            message.fill_(-2)
        for number, message in enumerate(arrived):
            wrong += (message != _message(theirs, exchange, number, comm)).sum()
    return wrong


def _message(rank: int, exchange: int, number: int, comm: Comm) -> Tensor:
    """Return a message of whole numbers that differs from all others."""
    place = (rank * EXCHANGES + exchange) * MESSAGES + number
    return torch.arange(NUMBERS, dtype=torch.float32, device=comm.device) + place


def _exchange(comm: Comm, sent: Sequence[Tensor], arriving: Sequence[Tensor]) -> list[Handle]:
    """Exchange tensors; one rank sends first and the other receives first."""
    calls = [(Kind.SEND, sent), (Kind.RECV, arriving)]
    ordered = calls if comm.rank == 0 else calls[::-1]
    return [comm.issue(kind, AXIS, tensor, peer=1 - comm.rank) for kind, tensors in ordered for tensor in tensors]


def _speed(pair: Pair, comm: Comm) -> Finding:
    name = "messages both ways at once, each"
    if pair.device.type == "cuda" and not pair.own_card:
        return reported(name, "not run: NCCL wants a card for each of two ranks")
    elements, edge = SIZES[pair.device.type]
    sent, arriving = (torch.zeros(elements, dtype=torch.bfloat16, device=pair.device) for _ in range(2))
    factor = torch.randn(edge, edge, device=pair.device).bfloat16()
    product, clock = torch.empty_like(factor), HostClock(pair.device)

    def multiply(times: int) -> None:
        for _ in range(times):
            torch.mm(factor, factor, out=product)

    def exchange(times: int) -> None:
        handles = _exchange(comm, [sent], [arriving])
        multiply(times)
        for handle in handles:
            handle.wait()

    def seconds(work: Callable[[int], None], times: int) -> float:
        comm.barrier()
        start = clock.stamp_end()
        work(times)
        return clock.seconds(start, clock.stamp_end())

    for _ in range(2):  # the first of them connects the ranks
        once_s = seconds(exchange, 0), seconds(multiply, 1)
    times = max(1, round(once_s[0] / once_s[1]))
    ways = (exchange, 0), (multiply, times), (exchange, times)
    taken = [[seconds(*way) for way in ways] for _ in range(ROUNDS)]
    alone_s, products_s, both_s = (median(of) for of in zip(*taken, strict=True))
    hidden = max(0.0, alone_s + products_s - both_s) / min(alone_s, products_s)
    slowest_s = max(alone for alone, *_ in taken)
    sentence = (
        f"{sent.nbytes / 1e6:.1f} MB in {alone_s * 1e3:.2f} ms (at most {slowest_s * 1e3:.2f}); with matrix "
        f"products of {products_s * 1e3:.2f} ms in {both_s * 1e3:.2f} ms, so that {hidden:.0%} is hidden; {pair.words}"
    )
    return reported(name, sentence, sent.nbytes / alone_s / 1e9, "GB/s")
