"""Ownership of a folder of checkpoints by one run at a time, which its file .owner.json names.

While the run lives it counts in that file. Who finds the file of another run takes its place if that run's process is
known to have ended, or if the count stands still for LEASE_S. So a run that was killed keeps nobody out for long,
wherever it ran, and no two clocks are compared. No torch.
"""

import atexit
import logging
import os
import secrets
import shutil
import socket
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from engine.errors import RunError, UsageError, WriteError
from engine.files import json_of, write_text
from engine.schema import Record

log = logging.getLogger(__name__)

FILE = ".owner.json"
BEAT_S = 10.0
"""Time between counts of a run."""
LEASE_S = 60.0
"""Time after which a run that has not counted is over."""
POLL_S, TELL_AFTER_S = 0.5, 3.0
UNFINISHED = ".step-*.part"
"""Names of checkpoints that are being written."""


class Owner(Record):
    """Run that a folder belongs to."""

    token: str
    """Drawn by the run; its unfinished checkpoints have it in their names."""
    user: str
    host: str
    machine: str
    """Boot of this host, and its namespace of process numbers."""
    pid: int
    started: str
    """When the process began, in the kernel's units."""
    job: str
    """The scheduler's number of it, if there is one."""
    since: str
    count: int = 0

    def __str__(self) -> str:
        job = f" of job {self.job}" if self.job else ""
        return f"{self.user}'s run{job} since {self.since} (process {self.pid} on {self.host})"

    @property
    def has_ended(self) -> bool:
        """Whether its process is known to have ended, or is this one, which begins another run."""
        if self.host != socket.gethostname():
            return False
        if self.machine != _machine():
            return _boot() != "" and not self.machine.startswith(_boot())
        return self.pid == os.getpid() or _started(self.pid) != self.started


class Owned:
    """Folder that belongs to this run, which counts in its file until it is released."""

    def __init__(self, folder: Path, owner: Owner) -> None:
        self.folder, self.owner = folder, owner
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._count, daemon=True, name="owner of checkpoints")
        self._thread.start()

    def check(self) -> None:
        """Raise RunError if another run has taken the folder, as it may where this one stood still for long."""
        found = _read(self.folder)
        if found is None or found.token != self.owner.token:
            by = "was removed" if found is None else f"is now that of {found}"
            raise RunError(f"The folder {self.folder} isn't this run's any more, as its {FILE} {by}: save to another.")

    def release(self) -> None:
        """Let others have the folder."""
        self._ended.set()
        with suppress(OSError, RunError):
            self.check()
            (self.folder / FILE).unlink()

    def _count(self) -> None:
        while not self._ended.wait(BEAT_S):
            with suppress(OSError):  # the next may be written again, and save() tells what is wrong
                found = _read(self.folder)
                if found is None or found.token != self.owner.token:
                    return
                write_text(self.folder / FILE, found.model_copy(update={"count": found.count + 1}).model_dump_json())


def own(folder: Path, job: str = "") -> Owned:
    """Make a folder this run's, and remove what a run before left unfinished there.

    Waits for LEASE_S where another run owns it, of which this machine can't tell whether it lives. Raises UsageError if
    it does, or if the folder can't be written.
    """
    mine = Owner(
        token=secrets.token_hex(8),
        user=os.environ.get("USER") or str(os.getuid()),
        host=socket.gethostname(),
        machine=_machine(),
        pid=os.getpid(),
        started=_started(os.getpid()),
        job=job,
        since=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        while not _create(folder, mine):
            _wait_for_the_end(folder)
            _set_aside(folder, mine.token)
        for left in folder.glob(UNFINISHED):
            shutil.rmtree(left, ignore_errors=True)
    except OSError as error:
        raise UsageError(f"{WriteError(error.errno, error.strerror, str(folder))} Give another --save.") from None
    owned = Owned(folder, mine)
    atexit.register(owned.release)
    return owned


def _create(folder: Path, mine: Owner) -> bool:
    """Write the file where there is none; return whether there was none."""
    try:
        descriptor = os.open(folder / FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return False
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(mine.model_dump_json())
            file.flush()
            os.fsync(descriptor)
    except OSError:  # a disk that is full
        (folder / FILE).unlink()
        raise
    return True


def _wait_for_the_end(folder: Path) -> None:
    """Return once the owner is known to be over. Raises UsageError as soon as it is known to live."""
    first, ends = _text(folder), time.monotonic() + LEASE_S
    owner, told = _read(folder), False
    while owner is None or not owner.has_ended:
        if (now := _text(folder)) != first:
            if first and now:
                raise UsageError(
                    f"Checkpoints in {folder} are being written by {owner or 'another run'}: give another --save, or "
                    "wait for its end."
                )
            return  # it was released, or is being written
        if time.monotonic() > ends:
            return
        if not told and time.monotonic() > ends - LEASE_S + TELL_AFTER_S:
            told = True
            log.info("Waiting up to %.0f s to see whether %s still writes to %s.", LEASE_S, owner or "a run", folder)
        time.sleep(POLL_S)


def _set_aside(folder: Path, token: str) -> None:
    """Take the file of a run that is over out of the way; of several that do so at once one succeeds."""
    before, aside = _text(folder), folder / f"{FILE}.{token}"
    try:
        (folder / FILE).rename(aside)
    except FileNotFoundError:
        return
    if aside.read_text() == before:
        aside.unlink()
    else:  # another run was faster, and this is its own
        with suppress(FileExistsError):
            os.link(aside, folder / FILE)
        aside.unlink()


def _text(folder: Path) -> str:
    try:
        return (folder / FILE).read_text()
    except FileNotFoundError:
        return ""


def _read(folder: Path) -> Owner | None:
    """Return whose a folder is; None where nobody's, or where that isn't written yet."""
    try:
        return Owner.model_validate(json_of(_text(folder)))
    except (ValueError, ValidationError):
        return None


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _machine() -> str:
    try:
        processes = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        processes = ""
    return f"{_boot()} {processes}"


def _started(pid: int) -> str:
    """Return when a process began; nothing for one that isn't there, or has ended and is waited for."""
    try:
        after = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if after[0] in "ZX" else after[19]
