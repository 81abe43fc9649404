"""ReFrame's configuration, made of the system files: `reframe -C systems/settings.py`, or RFM_CONFIG_FILES.

The account that jobs are charged to is PAR4D_ACCOUNT, or else SBATCH_ACCOUNT, of the environment. Run reports and
the results database go to ./results, where `python -m reports build` looks for them.
"""

import os
import shlex
from typing import Any

import systems
from engine.errors import UsageError
from systems import Partition, System, schedulers
from systems.partition import ACCOUNT, DEVICES, PBS, SLURM, fill, has_placeholder

ENVIRONMENT = "engine"
RESULTS = "results/reframe"
NOWHERE = "(?!)"
UNKNOWN = "this-machine"
HOLE = "\0"
NODES = dict.fromkeys(SLURM, "${SLURM_JOB_NUM_NODES:-1}")
NODES |= dict.fromkeys(PBS, '$(sort -u "${PBS_NODEFILE:-/dev/null}" | wc -l)')
"""Number of nodes of a job, in its script."""
SLURM_DEVICES = "--gpus-per-node={devices}"
FIRST_NODE = 'export MASTER_ADDR="${MASTER_ADDR:-$(head -n 1 "$PBS_NODEFILE")}"'
"""Only the first node of a job of PBS can read the list of nodes."""
REPORT = {"report_file": f"{RESULTS}/run-report-{{sessionid}}.json"}
OFTEN = {"poll_rate_min": 4}
"""Least polls a second of a scheduler of our own: ReFrame's usual rate falls, and sees a job of seconds too late."""


def account() -> str | None:
    return os.environ.get("PAR4D_ACCOUNT") or os.environ.get("SBATCH_ACCOUNT")


def access(partition: Partition) -> list[str]:
    charged = account()
    return [
        fill(option, ACCOUNT, charged) for option in partition.access if charged or not has_placeholder(ACCOUNT, option)
    ]


def variables(partition: Partition) -> dict[str, str]:
    """Return the environment variables of every job there, with those of its network."""
    return partition.env_vars | (partition.transport.env_vars.value if partition.transport else {})


def exported(partition: Partition) -> list[str]:
    """Return the commands that set the variables. ReFrame's own way runs here what a value has of commands."""
    return [f"export {name}={shlex.quote(value)}" for name, value in variables(partition).items()]


def prepared(partition: Partition) -> list[str]:
    """Return the commands that every job there begins with.

    What a site or a user, or a module of either, has set of NCCL's log would keep the engine from reading in it which
    network was taken. NCCL_NET may be a module's too.
    """
    commands = list(partition.prepare_cmds)
    if partition.scheduler in PBS:
        commands.append(FIRST_NODE)
    if partition.transport:
        network, nodes = shlex.quote(partition.transport.nccl_net), NODES.get(partition.scheduler, "1")
        commands.append("unset NCCL_DEBUG NCCL_DEBUG_SUBSYS NCCL_DEBUG_FILE")
        commands.append(f'if [ "{nodes}" -gt 1 ]; then export NCCL_NET={network}; else unset NCCL_NET; fi')
    return commands


def _partition(system: System, partition: Partition) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": partition.name,
        "descr": system.title,
        "scheduler": schedulers.OURS.get(partition.scheduler, partition.scheduler),
        "launcher": partition.launcher,
        "access": access(partition),
        "environs": [ENVIRONMENT],
        "features": list(partition.features),
        "prepare_cmds": [*prepared(partition), *exported(partition)],
        "max_jobs": partition.max_jobs,
        "time_limit": partition.time_limit,
        "sched_options": {"use_nodes_option": True},
    }
    if partition.cancel_reasons:
        entry["sched_options"]["slurm_job_cancel_reasons"] = list(partition.cancel_reasons)
    asked = SLURM_DEVICES if partition.devices_option is None and partition.is_slurm else partition.devices_option
    if asked and system.device.kind == "cuda":
        # _rfm_gpu is ReFrame's own name for what a test's num_gpus_per_node asks for. It would fill all other braces.
        literal = fill(asked, DEVICES, HOLE).replace("{", "{{").replace("}", "}}")
        entry["resources"] = [{"name": "_rfm_gpu", "options": [literal.replace(HOLE, "{num_gpus_per_node}")]}]
    if system.node.devices and system.device.kind == "cuda":
        entry["devices"] = [{"type": "gpu", "num_devices": system.node.devices.value}]
    if partition.is_local:  # said here, or ReFrame finds it out and keeps it in the home directory
        entry["processor"] = {"num_cpus": os.cpu_count() or 1}
    return entry


def _system(system: System, here: System | None) -> dict[str, Any]:
    if why := system.no_jobs():
        return _without_jobs(system.name, system.title, system == here, why)
    return {
        "name": system.name,
        "descr": system.title,
        "hostnames": [systems.ANY if system == here else NOWHERE],
        "max_local_jobs": 1,
        "partitions": [_partition(system, partition) for partition in system.partitions],
    }


def _without_jobs(name: str, title: str, is_here: bool, why: str) -> dict[str, Any]:
    """Return a system that ReFrame lists, and whose choice it ends with that sentence."""
    partition = {"name": "none", "scheduler": schedulers.refused(name, why), "launcher": "local", "environs": []}
    return {"name": name, "descr": title, "hostnames": [systems.ANY if is_here else NOWHERE], "partitions": [partition]}


def _systems() -> list[dict[str, Any]]:
    """Return all systems, and one for this machine where none of them is it, or several are."""
    try:
        return [_system(system, systems.here()) for system in SYSTEMS]
    except UsageError as error:
        unknown = _without_jobs(UNKNOWN, "this machine", True, str(error))
        return [*(_system(system, None) for system in SYSTEMS), unknown]


SYSTEMS = [systems.load(name) for name in systems.names()]
site_configuration = {
    "systems": _systems(),
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
