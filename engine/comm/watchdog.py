"""What torch's watchdog of NCCL is told where thousands of ranks share one store. No torch.

Its monitor has every rank look into rank 0's store each second, and when a collective fails every rank writes its
flight recorder to the user's home. Names and defaults are those of torch 2.13 (ProcessGroupNCCL.hpp,
FlightRecorder.hpp); an older one takes no notice of a name that it doesn't know.
"""

from collections.abc import MutableMapping

LOOK_EVERY = "TORCH_NCCL_COORD_CHECK_MILSEC"
RECORD, OLD_RECORD = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"
"""How many collectives; of both names the first counts."""
FEW = 1000
"""Ranks for which torch's own choices do."""
LOOKS_PER_S = 1000
"""Into the store, of all ranks together."""
RECORDED, LEAST_RECORDED = 2000, 250
"""Collectives of a rank: unasked, and at least. CUDA queues about a thousand launches, most of them of compute, and so
far the host is ahead of what hangs.
"""


def configure(environ: MutableMapping[str, str], ranks: int) -> None:
    """Have so many ranks ask and write about as much together as FEW do. What the user has set stays."""
    if ranks <= FEW:
        return
    environ.setdefault(LOOK_EVERY, str(1000 * ranks // LOOKS_PER_S))
    if not {RECORD, OLD_RECORD} & environ.keys():
        environ[RECORD] = str(max(LEAST_RECORDED, RECORDED * FEW // ranks))
