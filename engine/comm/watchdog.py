"""torch's watchdog of NCCL is configured here for thousands of ranks that share one store. No torch.

Its monitor has every rank look into rank 0's store each second, and when a collective fails every rank writes its
flight recorder to the user's home. Names and defaults are those of torch 2.13 (ProcessGroupNCCL.hpp,
FlightRecorder.hpp); an older one takes no notice of a name that it doesn't know.
"""

from collections.abc import MutableMapping

LOOK_EVERY = "TORCH_NCCL_COORD_CHECK_MILSEC"
RECORD, OLD_RECORD = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"
"""These say how many collectives are recorded; of both names the first counts."""
FEW = 1000
"""torch's own choices do for so many ranks."""
LOOKS_PER_S = 1000
"""All ranks together look into the store so often."""
RECORDED, LEAST_RECORDED = 2000, 250
"""A rank records so many collectives: unasked, and at least. CUDA queues about a thousand launches, mostly compute, and
so far the host is ahead of what hangs.
"""


def configure(environ: MutableMapping[str, str], ranks: int) -> None:
    """Have so many ranks ask and write about as much together as FEW do. What the user has set stays."""
    if ranks <= FEW:
        return
    environ.setdefault(LOOK_EVERY, str(1000 * ranks // LOOKS_PER_S))
    if not {RECORD, OLD_RECORD} & environ.keys():
        environ[RECORD] = str(max(LEAST_RECORDED, RECORDED * FEW // ranks))
