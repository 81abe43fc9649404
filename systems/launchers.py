"""Launchers that ReFrame does not bring: torchrun on one node, and jsrun. Importing this module registers them."""

import shlex
import sys

from reframe.core.backends import register_launcher
from reframe.core.launchers import JobLauncher
from reframe.core.schedulers import Job

CPUS_OF_A_SET = ("--cpu_per_rs", "-c")
"""The options of jsrun that a system's file may give in place of its cpus_per_task."""


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
