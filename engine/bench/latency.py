"""Launch latency: what one tiny operator costs, on all ranks at once."""

from collections.abc import Iterator
from pathlib import Path

import torch

from engine.bench.at_once import LOST, AtOnce, at_once, first_line
from engine.bench.record import Begun
from engine.comm.launch import Launch, choose_device
from engine.errors import UsageError
from engine.measure.launches import SAMPLES, WAYS, launch_time
from engine.result.device import LaunchTime
from engine.result.schema import Result
from engine.timeouts import Timeouts

FEWEST = 20  # samples, of which a 5th percentile can be told
MOST = 10_000_000


def latency(device: torch.device, samples: int, ranks: AtOnce) -> Iterator[LaunchTime]:
    """Of every way to launch that the device has, as soon as it is known. Collective."""
    for name in WAYS[device.type]:
        ranks.meet()
        own = launch_time(name, device, samples)
        middle, low, high = ranks.mean([own.median_s, own.low_s, own.high_s])
        yield own.model_copy(update={"median_s": middle, "low_s": low, "high_s": high})


def run_latency(
    launch: Launch, *, device: str, samples: int = SAMPLES, timeouts: Timeouts = Timeouts(), labels: dict[str, str],
    out: Path,
) -> Result:  # fmt: skip
    """Measure and, on rank 0, write result.json; one that is "failed" says why. Raises UsageError."""
    if not FEWEST <= samples <= MOST:
        raise UsageError(f"Samples are a number from {FEWEST} to {MOST}, but {samples} was given.")
    target = choose_device(device, launch.local_rank)
    begun = Begun("latency", launch, target, config={"samples": samples}, dtype="fp32", labels=labels, out=out)
    found: list[LaunchTime] = []
    reason = None
    try:
        with at_once(launch, target, timeouts, begun) as ranks:
            for launched in latency(target, samples, ranks):
                found.append(launched)
    except LOST as error:
        reason = f"The launches failed with: {first_line(error)}."
    return begun.end(reason, launches=tuple(found))
