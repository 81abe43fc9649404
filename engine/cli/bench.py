"""`bench gemm`, `memory`, `latency`, `flops`, `layers`, `matmul`, `collectives` and `p2p` measure what devices do, and
the links between them.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from engine.cli.common import Json, take_place, write
from engine.errors import RunError
from engine.grid import Grid
from engine.loading import loading
from engine.models.choice import ModelChoice
from engine.models.mode_choice import ModeName
from engine.options import GRID, Bytes, DeviceName, Labels, Out, Seconds, word
from engine.output import columns
from engine.timeouts import Timeouts
from engine.training.config import MODEL
from engine.training_record import PrecisionName, TrainingOptions

if TYPE_CHECKING:
    from engine.bench.frame import Benchmark


FEWER = "fewer repeats if they would take longer"


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """Options of every benchmark, and of what measures as one."""

    device: DeviceName = "auto"
    timeouts: Timeouts = Timeouts()
    labels: Labels = ()
    json: Json = False


def gemm(
    *,
    dtype: Annotated[Literal["bf16", "fp16", "fp32", "tf32", "fp64"], Parameter(help="of the matrices")] = "bf16",
    sizes: Annotated[str, Parameter(help="LOW..HIGH doubles, or a comma list")] = "1024..65536",
    time_budget: Annotated[Seconds, Parameter(help="sizes that would take longer are skipped")] = 120.0,
    common: Common = Common(),
    out: Out = Path("results/gemm.json"),
) -> int:
    """Measure the empirical peak: square matrix multiplications, on all ranks at once where a launcher starts several.

    On processors a rank takes as many threads as OMP_NUM_THREADS says, or all cores.
    """
    with loading():
        from engine.bench.gemm import Gemm, parse_sizes

    return measure(Gemm(dtype, parse_sizes(sizes), time_budget), common, out)


def memory(
    *,
    array_size: Annotated[Bytes | None, Parameter(help="of each of three; by default four times the cache")] = None,
    repeats: Annotated[int, Parameter(help="of each kernel")] = 10,
    time_budget: Annotated[Seconds, Parameter(help=FEWER)] = 60.0,
    common: Common = Common(),
    out: Out = Path("results/memory.json"),
) -> int:
    """Measure the memory bandwidth: STREAM's copy, scale, add and triad, on all ranks at once."""
    with loading():
        from engine.bench.memory import MemoryBandwidth

    return measure(MemoryBandwidth(array_size, repeats, time_budget), common, out)


def latency(
    *,
    samples: Annotated[int, Parameter(help="of each way to launch")] = 1000,
    common: Common = Common(),
    out: Out = Path("results/latency.json"),
) -> int:
    """Measure the launch latency: what one tiny operator costs, on all ranks at once."""
    with loading():
        from engine.bench.latency import Latency

    return measure(Latency(samples), common, out)


def flops(
    *,
    model: Annotated[ModelChoice, Parameter(name="*", group=MODEL)] = ModelChoice(),
    micro_batch: Annotated[int, Parameter(help="sequences of a rank")] = 1,
    precision: Annotated[PrecisionName, Parameter(help="of the training")] = "fp32",
    common: Common = Common(),
    out: Out = Path("results/flops.json"),
) -> int:
    """Count the flops of a training step as torch dispatches its products, and by the formula that utilisation takes.

    Of two steps: one that recomputes nothing, and one that recomputes each block. No counter of a device is read.

      python -m engine bench flops --model gpt-5b --layers 2 --precision bf16
    """
    with loading():
        from engine.bench.flops import Flops

    return measure(Flops(model.resolve(), micro_batch, precision), common, out)


def layers(
    *,
    grid: Annotated[
        Grid, word(Grid.parse, GRID), Parameter(help="of the job, one of whose ranks this may be")
    ] = Grid(),
    tensor_mode: Annotated[ModeName, Parameter(help="way in which both lie on the grid")] = "auto",
    batch: Annotated[str, Parameter(help="sequences of all ranks: LOW..HIGH doubles, or a comma list")] = "32",
    hidden: Annotated[str, Parameter(help="features that each takes and gives, likewise")] = "1024",
    seq: Annotated[int, Parameter(help="tokens of a sequence")] = 512,
    precision: Annotated[PrecisionName, Parameter(help="of the layers")] = "fp32",
    common: Common = Common(),
    out: Out = Path("results/layers.json"),
) -> int:
    """Count what two linear layers move and hold in a step of a tensor mode, beside closed forms.

    One rank alone stands for any rank of the grid; then nothing is sent, and its memory and what it would send count.

      python -m engine bench layers --grid 4x4x4x1 --tensor-mode 3d
      torchrun --nproc-per-node 4 -m engine bench layers --grid 2x2x1x1 --tensor-mode 2d --batch 64..512
    """
    with loading():
        from engine.bench.layers import Layers, parse_counts

    batches, features = parse_counts("--batch", batch), parse_counts("--hidden", hidden)
    return measure(Layers(grid, tensor_mode, batches, features, seq, precision), common, out)


def matmul(
    *,
    model: Annotated[ModelChoice, Parameter(name="*", group=MODEL)] = ModelChoice(),
    grid: Annotated[Grid, word(Grid.parse, GRID), Parameter(help="of the job, one of whose ranks this is")] = Grid(),
    micro_batch: Annotated[int, Parameter(help="sequences that a rank takes at once")] = 1,
    micro_batches: Annotated[int, Parameter(help="of a step: from the second on gradients are added up")] = 1,
    training: TrainingOptions = TrainingOptions(),
    twice: Annotated[bool, Parameter(help="time all ways once more, to see whether the choice holds")] = False,
    common: Common = Common(),
    out: Out = Path("results/matmul.json"),
) -> int:
    """Time the matrix products of one rank of a job in every mode, and say which train --tune-matmul would take.

    One device stands for a rank of any grid; under a launcher all time the same at once. Whatever was timed before is
    timed again, and kept for jobs that train.

      python -m engine bench matmul --model gpt-5b --grid 4x1x2x8 --micro-batch 2 --precision bf16
    """
    with loading():
        from engine.bench.matmul import Matmul

    network = model.resolve()
    training.check(network)
    return measure(Matmul(network, grid, micro_batch, micro_batches, training, twice), common, out)


def collectives(
    *,
    size: Annotated[
        Bytes | None,
        Parameter(name="--bytes", help="of the largest message; by default 1 GB on GPUs and 16 MiB on processors"),
    ] = None,
    pairs: Annotated[
        bool, Parameter(negative=(), help="broadcasts between each two ranks instead, of 125 MB on GPUs")
    ] = False,
    repeats: Annotated[int, Parameter(help="of each collective")] = 7,
    time_budget: Annotated[Seconds, Parameter(help=FEWER)] = 60.0,
    common: Common = Common(),
    out: Out = Path("results/collectives.json"),
) -> int:
    """Measure the bandwidth of rings: within a node for every G0 and G1, and between nodes where there are several.

    All-gather, reduce-scatter and all-reduce, at once in all groups of G1 ranks that are G0 apart. --pairs shows which
    links of a node, or between nodes, are slower than others.

      srun -N2 --ntasks-per-node 4 python -m engine bench collectives
    """
    with loading():
        from engine.bench.collectives import Collectives

    return measure(Collectives(size, repeats, time_budget, pairs), common, out)


def p2p(
    *,
    backend: Annotated[
        str | None, Parameter(metavar="NAME,NAME", help="gloo, nccl, mpi; by default all that are there")
    ] = None,
    sizes: Annotated[str, Parameter(help="in bytes: FIRST..LAST doubles, or a comma list")] = "1KiB..256MiB",
    repeats: Annotated[int, Parameter(help="samples of each size, of as many calls as a clock needs")] = 7,
    time_budget: Annotated[Seconds, Parameter(help=f"{FEWER}; larger sizes are left out once it is over")] = 120.0,
    common: Common = Common(),
    out: Out = Path("results/p2p.json"),
) -> int:
    """Measure messages between two ranks and all-reduces by back end and size, within a node and between nodes.

    Back ends take turns. Times are those of osu_latency and osu_allreduce. MPI takes mpi4py and MPI's own launcher:

      mpirun -n 4 python -m engine bench p2p --backend gloo,mpi
    """
    with loading():
        from engine.bench.p2p import P2P, parse_backends, parse_lengths

    backends = None if backend is None else parse_backends(backend)
    return measure(P2P(backends, parse_lengths(sizes), repeats, time_budget), common, out)


def measure(benchmark: "Benchmark", common: Common, out: Path) -> int:
    """Carry it out, and print the result. Raises RunError if it has failed."""
    from engine.bench.frame import run

    launch = take_place(out)
    result = run(benchmark, launch, device=common.device, timeouts=common.timeouts, labels=dict(common.labels), out=out)
    if result.reason is not None:
        raise RunError(result.reason)
    if launch.rank == 0:
        at_once = result.ranks > 1 and not benchmark.between_ranks
        each = f", on each of {result.ranks} ranks at once" if at_once else ""
        head, rows = benchmark.table(result)
        write(f"{columns([head, *rows], left=1)}\n{out}{each}", out, as_json=common.json)
    return 0


def startup(
    *,
    grid: Annotated[Grid, word(Grid.parse, GRID), Parameter(help="the default has 32,768 ranks")] = Grid.parse(
        "8x4x16x64"
    ),
    model: Annotated[str | None, Parameter(help="of which more is measured, such as gpt-320b")] = None,
    json: Json = False,
) -> int:
    """Measure what Grid and Comm, and a model's initial values and plan of a checkpoint, cost a rank of a large job."""
    with loading():
        from engine.bench.startup import connect, draw_largest, list_checkpoint

    network = ModelChoice(model=model).resolve() if model else None
    found = connect(grid)
    words, record = f"{grid.size:,} ranks, {found}", {"ranks": grid.size, **asdict(found)}
    if network is not None:
        for more in (list_checkpoint(network, grid), draw_largest(network, grid)):
            words += f"\n{network.name}, {more}"
            record |= asdict(more)
    write(words, record, as_json=json)
    return 0
