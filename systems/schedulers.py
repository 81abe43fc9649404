"""Schedulers that ReFrame does not bring: of a machine that has none, and of PBS. Importing this registers them."""

import os
import re
import shlex
import time
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

from reframe.core.backends import register_scheduler
from reframe.core.exceptions import JobError
from reframe.core.schedulers import JobScheduler
from reframe.core.schedulers.local import LocalJobScheduler
from reframe.core.schedulers.pbs import PbsJobScheduler, PbsProJobScheduler, TorqueJobScheduler

OURS = {"local": "local-by-progress", "pbs": "pbs-quoted", "pbspro": "pbspro-quoted", "torque": "torque-quoted"}
"""The schedulers of systems' files for which ReFrame gets one of ours."""
STANDSTILL_S = 1200
"""Time without output after which a job is ended."""


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


@register_scheduler(OURS["pbs"])
class QuotedPbs(QuotedFolder, PbsJobScheduler):
    """PBS."""


@register_scheduler(OURS["pbspro"])
class QuotedPbsPro(QuotedFolder, PbsProJobScheduler):
    """PBS Professional."""


@register_scheduler(OURS["torque"])
class QuotedTorque(QuotedFolder, TorqueJobScheduler):
    """Torque."""


@cache
def refused(system: str, why: str) -> str:
    """Register a scheduler that ReFrame refuses to start with that sentence; returns its name."""
    name = f"none-of-{system}-{crc32(why.encode()):08x}"

    @register_scheduler(name, error=why)
    class NoScheduler(JobScheduler):
        """Scheduler of a system that runs no jobs."""

    return name
