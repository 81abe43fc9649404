"""The canary times products, copies and small operations of PyTorch: it knows nothing of the engine and never changes.

    python suites/base/canary.py cpu

Beside the engine in the same job it tells the machine's mood. Each rank writes the median seconds of a round. A test
knows the digest of what is timed: whoever changes that gives the figure another name, as no older night is like it.
"""

import os
import statistics
import sys
import time

import torch

LOCAL_RANKS = (
    *("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "MVP_COMM_WORLD_LOCAL_RANK"),
    *("PMI_LOCAL_RANK", "PALS_LOCAL_RANKID", "MPI_LOCALRANKID", "JSM_NAMESPACE_LOCAL_RANK", "FLUX_TASK_LOCAL_ID"),
    "SLURM_LOCALID",
)
"""Variables of launchers, as the engine knows them (engine/comm/launchers.py); the first that is set counts, as srun
starts the daemons of others.
"""
SIZE = {"cpu": 512, "cuda": 4096}
COPIED = {"cpu": 1 << 22, "cuda": 1 << 27}
SMALL, PRODUCTS, COPIES = 1000, 8, 4
WARM_UP, ROUNDS = 2, 15


def main(device: str) -> None:
    """Time the rounds on this rank's device."""
    if device == "cuda":
        local_rank = next((int(os.environ[name]) for name in LOCAL_RANKS if os.environ.get(name)), 0)
        torch.cuda.set_device(local_rank % torch.cuda.device_count())
    sys.stdout.write(f"canary {statistics.median(rounds(device)[WARM_UP:]):.9f}\n")


def rounds(device: str) -> list[float]:
    """Warm up and time all rounds; the seconds of a round are those until the device has done all of it."""
    factor = torch.ones(SIZE[device], SIZE[device], device=device)
    product = torch.empty_like(factor)
    source = torch.ones(COPIED[device], device=device)
    copied, small = torch.empty_like(source), torch.ones(16, device=device)
    seconds = []
    for _ in range(WARM_UP + ROUNDS):
        began = time.perf_counter()
        for _ in range(PRODUCTS):
            torch.mm(factor, factor, out=product)
        for _ in range(COPIES):
            copied.copy_(source)
        for _ in range(SMALL):
            small.mul_(1.0)
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return seconds


if __name__ == "__main__":
    main(sys.argv[1])
