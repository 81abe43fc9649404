"""A machine may have room for a comparison, and for both of its sides at once. No torch, but to ask a GPU here.

memory.py has what a side needs; a comparison that doesn't fit is no job but a row with the sentence.
"""

from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

from engine.comm.launch import choose_device
from engine.peers.comparison import Case, Comparison, Unavailable
from engine.peers.memory import Room, host, side_bytes


def settled(comparison: Comparison, case: Case, room: Room) -> Case:
    """Give the case with apart decided: what is asked for, else both sides at once where a device has room for both.

    Raises Unavailable where a side doesn't fit by itself.
    """
    ours, peer = side_bytes(comparison, case, room.device)
    ranks_of_a_node = min(case.devices_per_node or comparison.grid.size, comparison.grid.size)
    lacking = room.lacking("the engine", ours) or room.lacking(comparison.name, peer)
    if reason := lacking or room.lacking_in_node(comparison.name, host(comparison, case, ranks_of_a_node)):
        raise Unavailable(reason)
    return case if case.apart is not None else replace(case, apart=not room.fits(ours + peer))


def room_here(case: Case, device: str) -> Room:
    """Take the room that the case says, or the first GPU's where it says nothing. Raises UsageError without one."""
    memory = case.device_memory
    if memory is None and device == "cuda":
        choose_device(device, 0)
        with ProcessPoolExecutor(1, get_context("spawn")) as other:  # so that this process takes nothing of it
            memory = other.submit(bytes_of_gpu, 0).result()
    return Room(device, memory, case.node_memory)


def bytes_of_gpu(index: int) -> float:
    import torch

    return float(torch.cuda.get_device_properties(index).total_memory)
