"""Jobs of a machine without a scheduler: a slow one ends by itself, one that stands still is ended."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from waiting import LONG_S

RUN = """
import json, sys
from reframe.core.backends import getlauncher
from reframe.core.exceptions import JobError
from reframe.core.schedulers import Job
from systems import schedulers

class Alone(schedulers.ProgressScheduler):
    def get_option(self, name):
        return None

schedulers.STANDSTILL_S = float(sys.argv[1])
job = Job.create(Alone(), getlauncher("local")(), name="job", script_filename="job.sh", stdout="out", stderr="err")
job.time_limit = "1s"
job.submit()
reason = None
try:
    job.wait()
except JobError as error:
    reason = str(error)
print(json.dumps({"state": job.state, "code": job.exitcode, "signal": job.signal, "reason": reason}))
"""
"""Runs a job without ReFrame's configuration, in a process of its own, as ReFrame waits for all children of one."""


def _ended(folder: Path, script: str, standstill_s: float) -> dict[str, Any]:
    file = folder / "job.sh"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    command = [sys.executable, "-c", RUN, str(standstill_s)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        start_new_session=True,
        timeout=LONG_S,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_job_may_take_longer_than_its_time_limit(tmp_path: Path) -> None:
    ended = _ended(tmp_path, "for second in 1 2 3; do sleep 1; echo $second; done", standstill_s=3600)
    assert ended == {"state": "SUCCESS", "code": 0, "signal": None, "reason": None}
    assert (tmp_path / "out").read_text() == "1\n2\n3\n"


def test_a_job_that_falls_silent_is_ended(tmp_path: Path) -> None:
    ended = _ended(tmp_path, "echo begun; exec sleep 36000", standstill_s=2)
    assert ended["state"] == "TIMEOUT"
    assert ended["signal"] is not None
    assert "without a line" in ended["reason"]
