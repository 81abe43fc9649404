"""Can jobs of a system be submitted from this machine?"""

import shutil
import socket

from engine.errors import UsageError
from suites.base.feasible import other_kind
from systems import System

SUBMITS = {"slurm": "sbatch", "squeue": "sbatch", "lsf": "bsub", "pbs": "qsub", "pbspro": "qsub", "torque": "qsub"}


def check_here(system: System, done: str) -> None:
    """Raise UsageError if no job of the system can be submitted. done: what a job does to it: "calibrated"."""
    if not system.may_be_here():
        raise UsageError(f"{system.name} is {done} on {system.name}, and this machine, {socket.gethostname()}, isn't.")
    if why := system.no_jobs():
        raise UsageError(why)
    taken = [one for one in system.partitions if not other_kind(system, one, system.device.kind)]
    for partition in taken:
        program = SUBMITS.get(partition.scheduler)
        if program and shutil.which(program) is None:
            raise UsageError(f"{system.name} takes jobs by {program}, which this machine doesn't have: is it up?")
