"""The machine: its commands, the packages that bring them, its processes, and what the user is told."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

COMMANDS = ("unshare", "nsenter", "ip", "tc", "munged", "slurmctld", "slurmd", "scontrol", "sbatch", "srun", "sinfo")
PACKAGES = ("slurm-wlm", "munge", "iproute2", "util-linux")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
COMMAND_TIMEOUT_S, INSTALL_TIMEOUT_S = 300, 900


class Problem(Exception):
    """Fault, in one sentence."""

    code = 1


class Misuse(Problem):
    """Fault of the command line."""

    code = 2


def say(text: str) -> None:
    sys.stderr.write(f"cluster: {text}\n")


def install() -> None:
    """Install Debian's packages if a command is missing. Raises Problem."""
    if not (missing := [command for command in COMMANDS if not shutil.which(command)]):
        return
    if not shutil.which("apt-get"):
        raise Problem(f"{', '.join(missing)} are missing, and so is apt-get to install {', '.join(PACKAGES)} with.")
    command = ["apt-get", "install", "-y", "--no-install-recommends", "--no-upgrade", *PACKAGES]
    say(f"{' '.join(command)} (this once, about half a minute)")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        run(*command, timeout_s=INSTALL_TIMEOUT_S, environment=environment)
    except Problem:  # the lists of packages may be old, or not there at all
        run("apt-get", "update", timeout_s=INSTALL_TIMEOUT_S, environment=environment)
        run(*command, timeout_s=INSTALL_TIMEOUT_S, environment=environment)


def run(*command: str, timeout_s: float = COMMAND_TIMEOUT_S, environment: dict[str, str] | None = None) -> str:
    """Run a command and return what it writes. Raises Problem if it fails or takes too long."""
    line = " ".join(command)
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Problem(f"`{line}` did not end within {timeout_s:g} s.") from None
    if done.returncode:
        raise Problem(f"`{line}` failed ({last_line(done.stderr or done.stdout)}).")
    return done.stdout


def last_line(text: str) -> str:
    return ([line.strip() for line in text.splitlines() if line.strip()] or ["it said nothing"])[-1]


def start_ticks(pid: int) -> int:
    """Say when a process began, in the kernel's ticks, which tells it from a later one of its number; 0 for none."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (FileNotFoundError, ProcessLookupError):
        return 0
