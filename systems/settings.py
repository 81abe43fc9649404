"""ReFrame's configuration, made of the system files: `reframe -C systems/settings.py`, or RFM_CONFIG_FILES.

The account that jobs are charged to is PAR4D_ACCOUNT, or else SBATCH_ACCOUNT, of the environment. Run reports and
the results database go to ./results, where `python -m reports build` looks for them.
"""

import os
import shlex
from typing import Any

import systems
from systems import Partition, System, launchers, schedulers

ENVIRONMENT = "engine"
RESULTS = "results/reframe"
SLURM_DEVICES = "--gpus-per-node={devices}"
REPORT = {"report_file": f"{RESULTS}/run-report-{{sessionid}}.json"}
OFTEN = {"poll_rate_min": 4}
"""How often ReFrame asks a scheduler of one's own: its usual rate falls, and sees a job of seconds much too late."""

__all__ = ["launchers", "schedulers", "site_configuration"]  # importing them is what registers what they have


def account() -> str | None:
    return os.environ.get("PAR4D_ACCOUNT") or os.environ.get("SBATCH_ACCOUNT")


def access(partition: Partition) -> list[str]:
    charged = account()
    return [option.format(account=charged) for option in partition.access if charged or "{account}" not in option]


def variables(partition: Partition) -> dict[str, str]:
    """Return the environment variables of every job there, with those of its network."""
    return partition.env_vars | (partition.transport.env_vars.value if partition.transport else {})


def prepared(partition: Partition) -> list[str]:
    """Return the commands that every job there begins with.

    What a site or a user, or a module of either, has set of NCCL's log would keep the engine from reading in it which
    network was taken. NCCL_NET may be a module's too.
    """
    commands = list(partition.prepare_cmds)
    if partition.transport:
        network = shlex.quote(partition.transport.nccl_net)
        commands.append("unset NCCL_DEBUG NCCL_DEBUG_SUBSYS NCCL_DEBUG_FILE")
        commands.append(
            f'if [ "${{SLURM_JOB_NUM_NODES:-1}}" -gt 1 ]; then export NCCL_NET={network}; else unset NCCL_NET; fi'
        )
    return commands


def _partition(system: System, partition: Partition) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": partition.name,
        "descr": system.title,
        "scheduler": schedulers.NAME if partition.is_local else partition.scheduler,
        "launcher": partition.launcher,
        "access": access(partition),
        "environs": [ENVIRONMENT],
        "features": list(partition.features),
        "env_vars": [[name, shlex.quote(value)] for name, value in variables(partition).items()],
        "prepare_cmds": prepared(partition),
        "max_jobs": partition.max_jobs,
        "time_limit": partition.time_limit,
        "extras": {
            "launcher_options": list(partition.launcher_options),
            "full_node_options": list(partition.full_node_options),
            "cpus_per_task": partition.cpus_per_task,
        },
        "sched_options": {"use_nodes_option": True},
    }
    if partition.cancel_reasons:
        entry["sched_options"]["slurm_job_cancel_reasons"] = list(partition.cancel_reasons)
    asked = partition.devices_option or (SLURM_DEVICES if partition.scheduler == "slurm" else None)
    if asked and system.device.kind == "cuda":
        # _rfm_gpu is ReFrame's own name for what a test's num_gpus_per_node asks for.
        entry["resources"] = [{"name": "_rfm_gpu", "options": [asked.format(devices="{num_gpus_per_node}")]}]
    if system.node.devices and system.device.kind == "cuda":
        entry["devices"] = [{"type": "gpu", "num_devices": system.node.devices.value}]
    if partition.is_local:  # said here, or ReFrame finds it out and keeps it in the home directory
        entry["processor"] = {"num_cpus": os.cpu_count() or 1}
    return entry


def _system(system: System, here: System) -> dict[str, Any]:
    return {
        "name": system.name,
        "descr": system.title,
        "hostnames": [".*" if system == here else "(?!)"],
        "max_local_jobs": 1,
        "partitions": [_partition(system, partition) for partition in system.partitions],
    }


SYSTEMS = [systems.load(name) for name in systems.names()]
site_configuration = {
    "systems": [_system(system, systems.here()) for system in SYSTEMS],
    "environments": [{"name": ENVIRONMENT}],
    "general": [
        REPORT,
        REPORT | OFTEN | {"target_systems": [system.name for system in SYSTEMS if system.device.kind == "cpu"]},
    ],
    "logging": [
        {
            "handlers$": [{"type": "stream", "name": "stdout", "level": "info", "format": "%(message)s"}],
            "handlers": [{"type": "file", "name": "reframe.log", "level": "debug", "append": False}],
            "handlers_perflog": [],  # the report and the database hold every number already
        }
    ],
    "storage": [{"enable": True, "sqlite_db_file": f"{RESULTS}/results.db"}],
}
