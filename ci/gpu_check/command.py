"""One command for a GPU: is everything right on this one, and is it fast?"""

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

import systems
from engine.cli.main import program, run
from engine.errors import UsageError
from engine.options import File, check_file
from engine.output import columns
from engine.processes import end_by_signals
from engine.result.schema.gpu_check import UNJUDGED, Finding, GpuCheck
from gpu_check.budget import MINUTES
from gpu_check.checks import checks
from gpu_check.judges import Judge
from gpu_check.session import Session

OUT_HELP = "where the result goes; logs and results of its parts go beside it"
DEVICE_HELP = "cpu rehearses: tiny sizes, and nothing that is timed is judged"
PEAK_HELP = "advertised dense bf16 peak of one device, where systems/devices has none, such as 181e12 for an MI210"
EXIT_CODES = {"ok": 0, "failed": 1, "undecided": 2}
MINUTES_HELP = "for all of it: what no longer fits is shown as not run"


def gpu(
    *,
    device: Annotated[Literal["cuda", "cpu"], Parameter(help=DEVICE_HELP)] = "cuda",
    out: Annotated[File, Parameter(help=OUT_HELP)] = Path("results/gpu.json"),
    minutes: Annotated[float, Parameter(help=MINUTES_HELP)] = MINUTES,
    peak_flops: Annotated[float | None, Parameter(metavar="FLOPS", help=PEAK_HELP)] = None,
) -> int:
    """Check the engine on the GPUs of this machine: is it right, and how fast?

    Layers and training steps are compared with float64, and what fp16
    skips with GradScaler. Collectives run on their streams, with one rank
    and with two, of which one is killed. Stages of a pipeline train, also
    where they share a card.
    Then come a whole network by plain PyTorch, its memory against the plan,
    a profile and the energy, single kernels, the cost of overlap, compiled
    PyTorch, the tuner, matrix products. It ends with a table and one JSON
    file, which the report shows.

    Checks come in the order of what they tell. Where they are slow the last
    ones are left out; one that takes more than three times as long as
    expected, and half a minute, stands still or is too slow, and fails.
    Where PyTorch has compiled nothing yet each has twice that at first.

      ci/gpu

      ci/gpu --peak-flops 181e12 wheels/*.whl

      ci/gpu --device cpu

    It takes the PyTorch of python3, or of the Python that PAR4D_PYTHON
    names. What that lacks besides (cyclopts, pydantic, numpy, yaml) comes as
    wheels, files or names for pip, without what they depend on.

    What varies passes if all of its interval keeps the limit, fails if all
    of it is beyond, and else is undecided. Contests, tunings and the cost of
    overlap are measured again then, in six processes at most, while there
    is time.

    Exit codes: 0 all that is judged passed; 1 something failed; 2 nothing
    failed, but not everything could be decided or run, or nothing at all,
    for want of a GPU for instance.
    """
    check_file("--out", out)
    if not minutes > 0:
        raise UsageError(f"--minutes is a positive number, but {minutes:g} was given.")
    end_by_signals()
    session = Session(device, out, minutes)
    there = session.look()
    judge = judge_of(there.name, device, peak_flops)
    wanted = checks(judge, there.free_bytes, session.folder, devices=there.devices, tf32=there.tf32)
    result = session.carry_out(wanted, there)
    sys.stdout.write(f"{table(result)}\n{out}\n")
    return EXIT_CODES[result.status]


def judge_of(name: str, device: Literal["cuda", "cpu"], peak_flops: float | None) -> Judge:
    """Give the judge who knows what is advertised of the GPU of that name. peak_flops: counts for bf16 in its place."""
    known = systems.device_called(name) if device == "cuda" else None
    peaks = {str(dtype): fact.value for dtype, fact in known.peak_flops.items()} if known else {}
    if peak_flops is not None:
        peaks["bf16"] = peak_flops
    bandwidth = known.memory_bytes_per_s.value if known and known.memory_bytes_per_s else None
    return Judge(device == "cuda", peaks, bandwidth)


def table(result: GpuCheck) -> str:
    """Return the findings for a person, each in a line, and how many came out how."""
    rows = [("check", "figure", "wanted", "outcome")]
    for one in result.findings:
        figure = "" if one.figure is None else f"{one.figure:.4g} {one.unit}".rstrip()
        rows.append((one.name, figure, one.want.partition(";")[0], one.status))
    outcomes = [one.status for one in result.findings]
    counts = [f"{outcomes.count(name)} {name}" for name in dict.fromkeys(outcomes)]
    explained = [one for one in result.findings if one.status in ("fail", *UNJUDGED) or _without_figure(one)]
    reasons = [f"{one.name}: {one.sentence}" for one in explained]
    return "\n".join(
        [columns(rows, left=4), "", *reasons, f"{', '.join(counts)} in {result.seconds:.0f} s on {result.device_name}"]
    )


def _without_figure(finding: Finding) -> bool:
    """Say whether a finding has a sentence in place of a figure, and no verdict."""
    return finding.status == "told" and finding.figure is None


def main() -> int:
    """Run `ci/gpu`, whose wheels are installed already."""
    app = program("ci/gpu")
    app.default(gpu)
    return run(app)
