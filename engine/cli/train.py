"""`train` is one training run under any launcher."""

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from cyclopts import Parameter

from engine.cli.common import Json, take_place, write
from engine.cli.grid import check_traced_memory, with_grid
from engine.comm.launch import Launch
from engine.errors import UsageError
from engine.loading import loading
from engine.overlap.flags import Pace
from engine.training.checks import CheckedRun, checked, notices
from engine.training.config import TrainConfig
from engine.training_record import OVERLAP

log = logging.getLogger(__name__)

PaceOptions = Annotated[Pace, Parameter(name="*", group=OVERLAP)]


def train(*, config: TrainConfig, pace: PaceOptions = Pace(), json: Json = False) -> int:
    """Train a network with 4D parallelism for a fixed number of iterations and write one result (--out).

    Start one process a device with any launcher; the grid's four sizes multiply to the number of processes:

      python -m engine train --model gpt-local-1 --batch-size 8 --data synthetic

      torchrun --standalone --nproc-per-node 2 -m engine train \\
          --model gpt-local-2 --grid 1x1x2x1 --batch-size 8 --data synthetic

      srun -N 64 --ntasks-per-node 8 python -m engine train \\
          --model llama-3.1-8b --grid 8x1x1x64 --batch-size 8192 \\
          --micro-batch 1 --precision bf16 --checkpoint-activations \\
          --devices-per-node 8 --data synthetic --out results/result.json

    Exit codes: 0 trained; 1 the run failed, and its result says why; 2 it can't work as asked, and nothing was run.
    """
    launch = take_place()
    if config.optimizer == "none":
        raise UsageError(
            "--optimizer none changes no weight, so that train would train nothing: give it to bench pipeline, bench "
            "grids or bench overlap."
        )
    overlap = config.overlap.at(pace)
    config, said = with_grid(replace(config, overlap=overlap), overlap, launch.world_size, launch)
    run = checked(config, launch.world_size)
    return carry_out(run, launch, [*said, *notices(run)], as_json=json)


def carry_out(run: CheckedRun, launch: Launch, notices: Sequence[str], *, as_json: bool) -> int:
    """Train on this rank, after these sentences of what to expect of the run; return the exit code."""
    check_traced_memory(run)
    for notice in notices:
        log.warning("%s", notice)
    from engine.training.failure import RunReporter

    reporter = RunReporter(run, launch)
    try:
        reporter.begin()
        reporter.listen()
        if run.config.verify and launch.local_rank == 0:
            run.verify()
        with loading():
            from engine.training.run import train

        train(run, launch, reporter)
    except Exception as error:
        reporter.report(error)
        if isinstance(error, UsageError):
            raise
        # Leave at once: while a failed rank tidies up its groups, the others wait for it.
        logging.shutdown()
        os._exit(1)
    if launch.rank == 0:
        from engine.cli.trained import trained
        from engine.result.schema import read

        out = run.config.out
        write(f"{trained(read(out))}\n{out}", out, as_json=as_json)
    return 0
