"""The canary times products, copies and small operations of PyTorch: it knows nothing of the engine and never changes.

    python suites/base/canary.py cpu

Beside the engine in the same job it tells the machine's mood. Each rank writes the median seconds of a round. A test
knows the digest of this file: whoever changes it gives the figure another name, as no older night is like it then.
"""

import os
import statistics
import sys
import time

import torch

LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID", "JSM_NAMESPACE_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")
SIZE = {"cpu": 512, "cuda": 4096}
COPIED = {"cpu": 1 << 22, "cuda": 1 << 27}
SMALL, PRODUCTS, COPIES = 1000, 8, 4
WARM_UP, ROUNDS = 2, 15


def main(device: str) -> None:
    """Warm up and time all rounds; the seconds of a round are those until the device has done all of it."""
    if device == "cuda":
        local_rank = next((int(os.environ[name]) for name in LOCAL_RANKS if name in os.environ), 0)
        torch.cuda.set_device(local_rank % torch.cuda.device_count())
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
    sys.stdout.write(f"canary {statistics.median(seconds[WARM_UP:]):.9f}\n")


if __name__ == "__main__":
    main(sys.argv[1])
