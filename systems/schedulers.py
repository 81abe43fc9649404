"""Schedulers and launchers that ReFrame does not bring. Importing this registers them."""

import os
import re
import shlex
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

from reframe.core.backends import register_launcher, register_scheduler
from reframe.core.exceptions import JobError
from reframe.core.launchers import JobLauncher
from reframe.core.schedulers import Job, JobScheduler
from reframe.core.schedulers.local import LocalJobScheduler
from reframe.core.schedulers.pbs import PbsJobScheduler, PbsProJobScheduler, TorqueJobScheduler

OURS = {"local": "local-by-progress", "pbs": "pbs-quoted", "pbspro": "pbspro-quoted", "torque": "torque-quoted"}
"""Our schedulers, by the name that a system's file has."""
STANDSTILL_S = 1200
"""Time without output after which a job is ended."""
CPUS_OF_A_SET = ("--cpu_per_rs", "-c")
"""Options of jsrun that a system's file may give in place of its cpus_per_task."""


@register_scheduler(OURS["local"], local=True)
class ProgressScheduler(LocalJobScheduler):
    """Scheduler of processes of this machine, which no queue limits.

    The engine writes a line for each step, so a job whose output and errors stay as they are stands still. A job's time
    limit has no meaning here.
    """

    def submit(self, job: Any) -> None:
        """Start the job. ReFrame splits the script's path as a shell would."""
        job.time_limit = None
        script = job.script_filename
        job._script_filename = re.sub(r"([^\w/.-])", r"\\\1", str(Path(script).absolute()))
        try:
            super().submit(job)
        finally:
            job._script_filename = script

    def _poll_job(self, job: Any) -> None:
        super()._poll_job(job)
        if job is None or job.jobid is None or job.cancel_time or self.finished(job):
            return
        silent_s = time.time() - max(os.fstat(file.fileno()).st_mtime for file in (job.f_stdout, job.f_stderr))
        if silent_s > STANDSTILL_S:
            self.cancel(job)
            job._state = "TIMEOUT"
            job._exception = JobError(f"ended after {silent_s / 60:.0f} minutes without a line of output", job.jobid)


class QuotedFolder:
    """Scheduler whose job scripts go to the job's folder, whatever it is called."""

    def emit_preamble(self, job: Any) -> list[str]:
        *directives, _ = super().emit_preamble(job)  # type: ignore[misc]
        return [*directives, f"cd {shlex.quote(job.workdir)}"]


for name, scheduler in (("pbs", PbsJobScheduler), ("pbspro", PbsProJobScheduler), ("torque", TorqueJobScheduler)):
    register_scheduler(OURS[name])(type(f"Quoted{scheduler.__name__}", (QuotedFolder, scheduler), {}))


@cache
def refused(system: str, why: str) -> str:
    """Register a scheduler that ReFrame refuses to start with that sentence; returns its name."""
    name = f"none-of-{system}-{crc32(why.encode()):08x}"

    @register_scheduler(name, error=why)
    class NoScheduler(JobScheduler):
        """Scheduler of a system that runs no jobs."""

    return name


@register_launcher("torchrun-one-node")
class TorchrunLauncher(JobLauncher):
    """PyTorch's own launcher on this node; a single task needs no launcher."""

    def command(self, job: Job) -> list[str]:
        if job.num_tasks == 1:
            self.options: list[str] = []
            return []
        torchrun = [shlex.quote(sys.executable), "-m", "torch.distributed.run"]
        return [*torchrun, "--standalone", f"--nproc-per-node={job.num_tasks}", "--no-python"]


@register_launcher("jsrun")
class JsrunLauncher(JobLauncher):
    """jsrun with a resource set of one device for each task; a node is filled before the next."""

    def command(self, job: Job) -> list[str]:
        per_host = job.num_tasks_per_node or 1
        words = ["jsrun", f"--nrs={job.num_tasks}", f"--rs_per_host={per_host}", "--tasks_per_rs=1", "--gpu_per_rs=1"]
        if job.num_cpus_per_task and not any(option.startswith(CPUS_OF_A_SET) for option in self.options):
            words.append(f"--cpu_per_rs={job.num_cpus_per_task}")
        return words
