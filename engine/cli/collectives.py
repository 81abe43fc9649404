"""`bench collectives`: what ranks send to each other within a node and between nodes."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from engine.cli.place import take_place
from engine.cli.told import Json, columns, tell
from engine.errors import RunError
from engine.loading import loading
from engine.options import Bytes, Device, Labels, Out, Seconds
from engine.timeouts import Timeouts


def collectives(
    *,
    size: Annotated[
        Bytes | None,
        Parameter(name="--bytes", help="of the largest message; by default 1 GB on GPUs and 16 MiB on processors"),
    ] = None,
    repeats: Annotated[int, Parameter(help="of each collective")] = 7,
    device: Device = "auto",
    time_budget: Annotated[Seconds, Parameter(help="fewer repeats if they would take longer")] = 60.0,
    timeouts: Timeouts = Timeouts(),
    labels: Labels = (),
    json: Json = False,
    out: Out = Path("results/collectives.json"),
) -> int:
    """Measure the bandwidth of rings: within a node for every G0 and G1, and between nodes where there are several.

    All-gather, reduce-scatter and all-reduce, at once in all groups of G1 ranks that are G0 apart.

      srun -N2 --ntasks-per-node 4 python -m engine bench collectives
    """
    with loading():
        from engine.bench.collectives import run_collectives

    launch = take_place(out)
    result = run_collectives(
        launch,
        device=device,
        message_bytes=size,
        repeats=repeats,
        time_budget_s=time_budget,
        timeouts=timeouts,
        labels=dict(labels),
        out=out,
    )
    if result.links is None:
        raise RunError(result.reason or "Nothing could be measured.")
    if launch.rank == 0:
        rows = [
            (f"{rings.ranks} ranks, {rings.apart} apart", f"{rings.bytes_per_s / 1e9:.3g}")
            for rings in result.links.within
        ]
        rows += [
            (f"one rank on each of {rings.nodes} nodes", f"{rings.bytes_per_s / 1e9:.3g}")
            for rings in result.links.alone
        ]
        tell(f"{columns(('ring', 'GB/s'), rows)}\n{out}", out, as_json=json)
    return 0
