"""Slurm: its configuration, its daemons' command lines, and what it says of the nodes."""

import os
from ipaddress import IPv4Address
from pathlib import Path

from virtual_cluster.machine import Problem, run
from virtual_cluster.network import HEAD_ADDRESS
from virtual_cluster.record import HEAD, STATE

CONFIGURATION = Path("/etc/slurm/slurm.conf")  # where Debian's Slurm looks, whatever the environment

TEMPLATE = """# Written by ci/cluster; `ci/cluster down` removes it.
ClusterName=par4d
SlurmctldHost={head}({head_address})
AuthType=auth/munge
AuthInfo=socket={state}/munge.socket
SlurmUser=root
StateSaveLocation={state}/slurmctld
SlurmctldPidFile={state}/slurmctld.pid
SlurmdPidFile={state}/slurmd-%n.pid
SlurmdSpoolDir={state}/spool-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
# A node has as many processors as ranks, whatever the machine has.
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0
ReturnToService=2
JobRequeue=0
KillOnBadExit=1
KillWait=5
SlurmdTimeout=30
EnforcePartLimits=ALL
NodeName=DEFAULT CPUs={ranks} Features={links} State=UNKNOWN
{nodes}
PartitionName=all Nodes=ALL Default=YES OverSubscribe=EXCLUSIVE DefaultTime=10 MaxTime=240 State=UP
"""


def refuse_another() -> None:
    """Raise Problem if this machine has a Slurm of its own, or Slurm's commands speak to another one."""
    if (CONFIGURATION.exists() or CONFIGURATION.is_symlink()) and not configured():
        raise Problem(f"{CONFIGURATION} is there, so this machine has a Slurm of its own, which is left alone.")
    if other := os.environ.get("SLURM_CONF"):
        raise Problem(f"SLURM_CONF={other} makes Slurm's commands speak to another cluster: unset it.")


def configure(nodes: dict[str, IPv4Address], ranks_per_node: int, *, slow_pairs: bool) -> None:
    """Write munge's key, the hosts that nodes know, and Slurm's configuration, which its commands find by a link.

    slow_pairs: whether links between pairs of nodes are slower, which nodes have as a feature: jobs may ask for it.
    """
    key = os.open(STATE / "munge.key", os.O_CREAT | os.O_WRONLY, 0o600)
    os.write(key, os.urandom(128))
    os.close(key)
    hosts = ["127.0.0.1 localhost", "::1 localhost"]
    for name, address in {HEAD: HEAD_ADDRESS, **nodes}.items():
        hosts += [f"{address} {name}", f"::ffff:{address} {name}"]  # the latter is how torch's store sees its clients
    (STATE / "hosts").write_text("\n".join([*hosts, ""]))
    lines = "\n".join(f"NodeName={name} NodeAddr={address}" for name, address in nodes.items())
    slurm = TEMPLATE.format(
        head=HEAD,
        head_address=HEAD_ADDRESS,
        state=STATE,
        ranks=ranks_per_node,
        nodes=lines,
        links="pairs" if slow_pairs else "equal",
    )
    (STATE / "slurm.conf").write_text(slurm)
    version = [int(part) for part in run("slurmd", "-V").split()[-1].split(".")[:2]]
    plugin = "disabled" if version >= [24, 5] else "cgroup/v1"  # before 24.05 this is what does nothing unless asked
    (STATE / "cgroup.conf").write_text(f"CgroupPlugin={plugin}\n")
    CONFIGURATION.parent.mkdir(exist_ok=True)
    if not configured():  # a machine that lost power keeps the link
        CONFIGURATION.symlink_to(STATE / "slurm.conf")


def configured() -> bool:
    return CONFIGURATION.is_symlink() and CONFIGURATION.readlink() == STATE / "slurm.conf"


def unconfigure() -> None:
    """Leave this machine without Slurm's configuration, if it is the cluster's."""
    if configured():
        CONFIGURATION.unlink()


def daemons(name: str) -> list[list[str]]:
    """Return the command lines of the daemons of the head or of a node."""
    slurm = ["-D", "-f", str(STATE / "slurm.conf")]
    munged = ["munged", "--foreground", "--num-threads=10", f"--socket={STATE}/munge.socket"]
    munged += [f"--{kind}-file={STATE}/munge.{kind}" for kind in ("key", "pid", "seed")]
    return [munged, ["slurmctld", *slurm]] if name == HEAD else [["slurmd", *slurm, "-N", name]]


def answers() -> bool:
    """Say whether slurmctld answers. Raises Problem if it is not there."""
    return "UP" in run("scontrol", "ping")


def states() -> dict[str, str]:
    """Ask slurmctld for the state of each node, such as idle, with a * if it doesn't answer. Raises Problem."""
    lines = run("sinfo", "--Node", "--noheader", "--format=%N %T").splitlines()
    return dict(line.split() for line in lines)
