"""The scheduler of a machine that has none. Importing this module registers it."""

import os
import time
from typing import Any

from reframe.core.backends import register_scheduler
from reframe.core.exceptions import JobError
from reframe.core.schedulers.local import LocalJobScheduler

NAME = "local-by-progress"
STANDSTILL_S = 1200
"""A job that has written nothing for so long is ended."""


@register_scheduler(NAME, local=True)
class ProgressScheduler(LocalJobScheduler):
    """Processes of this machine, which may be as slow as it is: no queue needs to know when they end.

    The engine writes a line for each step, so a job whose output and errors stay as they are stands still. A job's time
    limit has no meaning here.
    """

    def submit(self, job: Any) -> None:
        job.time_limit = None
        super().submit(job)

    def _poll_job(self, job: Any) -> None:
        super()._poll_job(job)
        if job is None or job.jobid is None or job.cancel_time or self.finished(job):
            return
        silent_s = time.time() - max(os.fstat(file.fileno()).st_mtime for file in (job.f_stdout, job.f_stderr))
        if silent_s > STANDSTILL_S:
            self.cancel(job)
            job._state = "TIMEOUT"
            job._exception = JobError(f"ended after {silent_s / 60:.0f} minutes without a line of output", job.jobid)
