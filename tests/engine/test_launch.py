"""Every launcher's variables give the right rank, and real processes meet by them."""

import os
import re
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from engine_command import free_port
from forked_python import forked_python
from real_ranks import CONTEXT
from torch import distributed as dist
from waiting import LONG_S

from engine.comm import nccl
from engine.comm.launch import HOST_FILES, Launch, choose_device, first_of_nodelist, from_environment
from engine.comm.meeting import NotMet, init_process_group, meet
from engine.errors import RunError, UsageError

Environ = dict[str, str]


def env(words: str) -> Environ:
    return dict(word.split("=", 1) for word in words.split())


SRUN: Environ = env(
    "SLURM_JOB_ID=4711 SLURM_STEP_ID=2 SLURM_PROCID=5 SLURM_NTASKS=8 SLURM_LOCALID=1 SLURM_NNODES=2 "
    "SLURM_JOB_NODELIST=nid[001-003,007] SLURM_STEP_NODELIST=nid[002-003]"
)
BATCH: Environ = {name: value for name, value in SRUN.items() if "STEP" not in name} | env(
    "SLURM_PROCID=0 SLURM_LOCALID=0"
)
OPEN_MPI: Environ = env(
    "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=3 OMPI_COMM_WORLD_LOCAL_SIZE=4 "
    "PMIX_NAMESPACE=1920008193"
)
HYDRA: Environ = env("PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2")
PALS: Environ = env("PALS_RANKID=13 PMI_RANK=13 PMI_SIZE=24 PALS_LOCAL_RANKID=1 PALS_LOCAL_SIZE=12")
PMI2: Environ = env("PMI_FD=12 PMI_JOBID=4711.2 PMI_RANK=5 PMI_SIZE=8 PMI2_SUN_PATH=/x")
CRAY: Environ = env("PALS_APID=77.0 PALS_RANKID=5 PMI_LOCAL_RANK=1 PMI_LOCAL_SIZE=4 SLURM_STEP_NUM_TASKS=8")
MVAPICH: Environ = env(
    "MV2_COMM_WORLD_RANK=1 MV2_COMM_WORLD_SIZE=2 MV2_COMM_WORLD_LOCAL_RANK=1 MV2_COMM_WORLD_LOCAL_SIZE=2 "
    "MPIRUN_RANK=1 MPIRUN_NPROCS=2"
)
JSRUN: Environ = env(
    "JSM_NAMESPACE_RANK=7 JSM_NAMESPACE_SIZE=12 JSM_NAMESPACE_LOCAL_RANK=1 JSM_NAMESPACE_LOCAL_SIZE=6 "
    "OMPI_COMM_WORLD_RANK=7 LSB_JOBID=99"
) | {"LSB_MCPU_HOSTS": "batch3 1 h41n08 42 h41n09 42"}
FLUX: Environ = env("FLUX_TASK_RANK=2 FLUX_JOB_SIZE=4 FLUX_TASK_LOCAL_ID=0 FLUX_JOB_NNODES=1 FLUX_JOB_ID=f3ETxsR9H")
TORCHRUN: Environ = env(
    "RANK=9 WORLD_SIZE=16 LOCAL_RANK=1 LOCAL_WORLD_SIZE=8 MASTER_ADDR=node7 MASTER_PORT=29400 TORCHELASTIC_RUN_ID=x"
)
SHELLS = [{}, *({"SLURM_STEP_ID": step} for step in ("4294967290", "4294967291", "batch"))]
"""Steps of a job's shell, which is one rank whatever the task count."""
INSIDE = {name: value for name, value in OPEN_MPI.items() if "LOCAL_SIZE" not in name}


@pytest.mark.parametrize(
    ("environ", "rank", "size", "local", "launcher", "address"),
    [
        ({}, 0, 1, 0, "none", "127.0.0.1"),
        (TORCHRUN, 9, 16, 1, "torchrun", "node7"),
        (SRUN, 5, 8, 1, "srun", "nid002"),
        (SRUN | {"SLURM_NNODES": "1"}, 5, 8, 1, "srun", "127.0.0.1"),
        (OPEN_MPI, 3, 4, 3, "mpirun", "127.0.0.1"),
        (HYDRA, 1, 2, 1, "mpiexec", "127.0.0.1"),
        (PALS | {"MASTER_ADDR": "x4"}, 13, 24, 1, "mpiexec", "x4"),
        (JSRUN, 7, 12, 1, "jsrun", "h41n08"),
        (JSRUN | {"OMPI_COMM_WORLD_SIZE": "12"}, 7, 12, 1, "jsrun", "h41n08"),
        (FLUX, 2, 4, 0, "flux", "127.0.0.1"),
        (FLUX | {"PMI_RANK": "2", "PMI_SIZE": "4"}, 2, 4, 0, "flux", "127.0.0.1"),
        (SRUN | PMI2, 5, 8, 1, "srun", "nid002"),
        (SRUN | PMI2 | {"PALS_RANKID": "5", "PALS_LOCAL_RANKID": "1"}, 5, 8, 1, "srun", "nid002"),
        (MVAPICH, 1, 2, 1, "mpirun_rsh", "127.0.0.1"),
        (SRUN | {"RANK": "5", "WORLD_SIZE": "8"}, 5, 8, 1, "srun", "nid002"),
        (SRUN | {"RANK": "", "WORLD_SIZE": ""}, 5, 8, 1, "srun", "nid002"),
        (SRUN | {"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "3", "MASTER_ADDR": "a"}, 9, 16, 3, "environment", "a"),
        (SRUN | FLUX | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, 2, 4, 0, "flux", "127.0.0.1"),
        (SRUN | HYDRA | {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, 1, 2, 1, "mpiexec", "127.0.0.1"),
        ({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, 1, 2, 1, "environment", "a"),
        *((BATCH | step, 0, 1, 0, "none", "127.0.0.1") for step in SHELLS),
        (BATCH | INSIDE, 3, 4, 3, "mpirun", "nid001"),
        (SRUN | OPEN_MPI, 3, 4, 3, "mpirun", "127.0.0.1"),
        (SRUN | TORCHRUN, 9, 16, 1, "torchrun", "node7"),
        (SRUN | PMI2 | CRAY, 5, 8, 1, "srun", "nid002"),
        (SRUN | {"SLURM_STEP_NUM_TASKS": "6"}, 5, 6, 1, "srun", "nid002"),
        (SRUN | {"SLURM_STEP_NUM_NODES": "1"}, 5, 8, 1, "srun", "127.0.0.1"),
        (SRUN | {"MASTER_ADDR": "[::1]"}, 5, 8, 1, "srun", "::1"),
    ],
)
def test_each_launcher_is_understood(
    environ: dict[str, str], rank: int, size: int, local: int, launcher: str, address: str
) -> None:
    launch = from_environment(environ)
    assert (launch.rank, launch.world_size, launch.local_rank) == (rank, size, local)
    assert (launch.launcher, launch.master_addr) == (launcher, address)


STEP = {"SLURM_STEP_NUM_TASKS": "8"}
LEFT = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        *(
            (started | LEFT, ("WORLD_SIZE=1", name))
            for started, name in (
                (SRUN | STEP, "SLURM_STEP_NUM_TASKS=8"),
                (OPEN_MPI, "OMPI_COMM_WORLD_SIZE=4"),
                (PALS, "PMI_SIZE=24"),
                (JSRUN, "JSM_NAMESPACE_SIZE=12"),
                (FLUX, "FLUX_JOB_SIZE=4"),
                (MVAPICH, "MV2_COMM_WORLD_SIZE=2"),
            )
        ),
        (SRUN | LEFT, ("WORLD_SIZE=1", "SLURM_NTASKS=8")),
        (SRUN | {"WORLD_SIZE": "1"}, ("WORLD_SIZE=1", "SLURM_NTASKS=8")),
        (SRUN | {"LOCAL_RANK": "0"}, ("LOCAL_RANK=0", "SLURM_LOCALID=1")),
        (SRUN | STEP | {"PMI_RANK": "0", "PMI_SIZE": "1"}, ("PMI_RANK=0", "SLURM_PROCID=5")),
        (SRUN | STEP | OPEN_MPI, ("OMPI_COMM_WORLD_SIZE=4", "SLURM_STEP_NUM_TASKS=8")),
        (PALS | {"PALS_RANKID": "12"}, ("PMI_RANK=13", "PALS_RANKID=12")),
        (SRUN | TORCHRUN | {"GROUP_WORLD_SIZE": "1"}, ("torchrun", "SLURM_NTASKS=8")),
        ({"WORLD_SIZE": "2", "LOCAL_RANK": "1"}, ("WORLD_SIZE=2", "RANK")),
        ({"RANK": "1"}, ("RANK=1", "WORLD_SIZE")),
        ({"LOCAL_RANK": "1"}, ("RANK", "WORLD_SIZE")),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "2"}, ("LOCAL_RANK=2",)),
        ({"PMIX_RANK": "1"}, ("PMIX_RANK=1",)),
        *(({name: "2"}, (f"{name}=2",)) for name in ("OMPI_COMM_WORLD_SIZE", "PMI_LOCAL_RANK", "MPI_LOCALRANKID")),
        ({"ALPS_APP_PE": "3"}, ("ALPS_APP_PE=3", "aprun")),
        ({"PMI_RANK": "1", "PMI_SIZE": "4", "MASTER_ADDR": "a"}, ("PMI_RANK=1", "LOCAL_RANK")),
        *((SRUN | {"MASTER_PORT": port}, ("MASTER_PORT",)) for port in ("0", "65536", "99999", "-1", "1.5", "ssh")),
        (OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}, ("MASTER_ADDR=",)),
        (FLUX | {"FLUX_JOB_NNODES": "2"}, ("MASTER_ADDR=$(flux hostlist",)),
        (PALS, ("MASTER_ADDR",)),
        (SRUN | {"SLURM_PROCID": "8"}, ("SLURM_PROCID=8",)),
        (SRUN | {"SLURM_PROCID": "five"}, ("SLURM_PROCID", "'five'")),
        ({"PALS_RANKID": "1"}, ("PMI_SIZE",)),
        (SRUN | {"SLURM_STEP_NODELIST": ""}, ("MASTER_ADDR",)),
    ],
)
def test_what_contradicts_or_is_left_out_is_refused_by_its_name(
    environ: dict[str, str], names: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError) as refused:
        from_environment(environ)
    assert all(name in str(refused.value) for name in names)


@pytest.mark.parametrize("name", HOST_FILES)
def test_a_schedulers_file_of_nodes_says_where_rank_0_is(name: str, tmp_path: Path) -> None:
    nodes = tmp_path / "nodes"
    nodes.write_text("# nodes\n\nx3001 4 gpu@x3001\nx3001\nx3002\n")
    launch = from_environment(PALS | {name: str(nodes)})
    assert (launch.master_addr, launch.master_by_list) == ("x3001", True)
    lsf = {word: value for word, value in JSRUN.items() if word != "LSB_MCPU_HOSTS"}
    assert from_environment(lsf | {name: str(nodes)}).master_addr == "x3002"
    assert not from_environment(PALS | {name: str(nodes), "MASTER_ADDR": "x4"}).master_by_list
    for unread in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(UsageError, match=f"{name}={unread}"):
            from_environment(PALS | {name: str(unread)})
    nodes.write_text("\n")
    with pytest.raises(UsageError, match=f"{name}="):
        from_environment(PALS | {name: str(nodes)})


def test_a_given_master_wins_everywhere() -> None:
    given = {"MASTER_ADDR": "elsewhere", "MASTER_PORT": "1234"}
    for environ in (SRUN, OPEN_MPI, HYDRA, JSRUN, FLUX):
        launch = from_environment(environ | given)
        assert (launch.master_addr, launch.master_port) == ("elsewhere", 1234)


def test_the_port_is_the_same_for_every_rank_of_a_step_and_another_for_another() -> None:
    port = from_environment(SRUN).master_port
    assert 20000 <= port < 32768
    assert from_environment(SRUN | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0"}).master_port == port
    assert from_environment(SRUN | {"SLURM_STEP_ID": "3"}).master_port != port
    assert from_environment(SRUN | {"SLURM_JOB_ID": "4712"}).master_port != port
    daemon = {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1"}
    on_first_node = from_environment(OPEN_MPI | {"SLURM_JOB_ID": "1"})
    assert from_environment(OPEN_MPI | daemon).master_port == on_first_node.master_port


@pytest.mark.parametrize(
    ("nodelist", "first"),
    [
        ("nid001", "nid001"),
        ("nid[001-003,007]", "nid001"),
        ("nid[007,001],login1", "nid007"),
        ("login1,nid[001-002]", "login1"),
        ("r[1-2]n[03-04]", "r1n03"),
        ("a-b[5]-c.domain", "a-b5-c.domain"),
    ],
)
def test_the_first_host_of_a_list_is_found(nodelist: str, first: str) -> None:
    assert first_of_nodelist(nodelist) == first


def test_a_device_that_is_not_there_is_refused() -> None:
    assert choose_device("cpu", 7) == torch.device("cpu")
    with pytest.raises(UsageError, match="auto, cpu or cuda"):
        choose_device("gpu", 0)
    if not torch.cuda.is_available():
        assert choose_device("auto", 3) == torch.device("cpu")
        with pytest.raises(UsageError, match="no GPU is visible"):
            choose_device("cuda", 0)


PROGRAM = """
import os
from datetime import timedelta
import torch
from torch import distributed as dist
from engine.comm.launch import from_environment
from engine.comm.meeting import init_process_group
launch = from_environment(os.environ)
init_process_group(launch, torch.device("cpu"), timedelta(hours=1))
ranks = torch.zeros(launch.world_size)
ranks[launch.rank] = launch.rank + 1
dist.all_reduce(ranks)
line = f"{launch.launcher} {launch.rank} {launch.local_rank} {ranks.sum().item()}\\n"
os.write(1, line.encode())  # at once: lines stay whole
dist.destroy_process_group()
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def clean_environment() -> dict[str, str]:
    marks = ("SLURM_", "OMPI_", "PMI", "PALS_", "FLUX_", "JSM_", "LSB_", "MASTER_", "TORCHELASTIC_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(marks)}
    return {name: value for name, value in kept.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}


def outputs(commands: Iterable[tuple[list[str], dict[str, str]]]) -> list[str]:
    processes = [
        subprocess.Popen(
            command,
            env=clean_environment() | {"OMP_NUM_THREADS": "1"} | environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for command, environ in commands
    ]
    lines = []
    for process in processes:
        out, err = process.communicate(timeout=LONG_S)
        assert process.returncode == 0, err
        lines += out.splitlines()
    if torch.__version__ < "2.13":  # whose gloo may write lines of its own
        lines = [line for line in lines if re.fullmatch(r"\w+ \d \d \S+", line)]
    return sorted(lines)


def test_two_ranks_of_torchrun_meet(program: Path) -> None:
    torchrun = [str(forked_python()), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    assert outputs([([*torchrun, str(program)], {})]) == ["torchrun 0 0 3.0", "torchrun 1 1 3.0"]


def test_two_ranks_meet_by_their_launchers_variables(program: Path) -> None:
    step = SRUN | env(f"SLURM_NTASKS=2 SLURM_JOB_ID={os.getpid()} SLURM_STEP_NODELIST=localhost")
    environs = [step | env(f"SLURM_PROCID={rank} SLURM_LOCALID={rank}") for rank in range(2)]
    lines = outputs(([str(forked_python()), str(program)], environ) for environ in environs)
    assert lines == ["srun 0 0 3.0", "srun 1 1 3.0"]


def test_a_rank_that_finds_nobody_gives_up_with_a_reason() -> None:
    port = free_port()
    alone = Launch(1, 2, 1, "srun", "127.0.0.1", port)
    with pytest.raises(RunError, match=rf"of 2 .*:{port} .* 1 s"):
        init_process_group(alone, torch.device("cpu"), timedelta(seconds=60), meeting_s=1)


def _meet_late(rank: int, port: int, told: Connection) -> None:
    """Meet after a collective's time is over, where few files may be opened until then."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW_FILES, hard))
    time.sleep(rank * (SHORT_S + 1))
    cpu, timeout = torch.device("cpu"), timedelta(seconds=SHORT_S)
    init_process_group(Launch(rank, 2, rank, "test", "127.0.0.1", port), cpu, timeout, meeting_s=LONG_S)
    own = torch.full((1,), rank + 1.0)
    dist.all_reduce(own)
    told.send((own.item(), resource.getrlimit(resource.RLIMIT_NOFILE)[0]))
    dist.destroy_process_group()


FEW_FILES, SHORT_S = 200, 30


def test_ranks_wait_longer_for_the_last_of_them_than_for_a_collective_and_may_then_open_many_files() -> None:
    reader, writer = CONTEXT.Pipe(duplex=False)
    port = free_port()
    ranks = [CONTEXT.Process(target=_meet_late, args=(rank, port, writer), daemon=True) for rank in range(2)]
    for rank in ranks:
        rank.start()
    writer.close()
    try:
        told = []
        for _ in ranks:
            assert reader.poll(LONG_S)
            told.append(reader.recv())
    finally:
        for rank in ranks:
            rank.join(5)
            rank.kill()
    assert told == [(3.0, resource.getrlimit(resource.RLIMIT_NOFILE)[1])] * 2
    assert told[0][1] > FEW_FILES


def configured(ranks: int, **environ: str) -> tuple[str | None, ...]:
    """Return how often torch's monitor asks, and how much it records."""
    nccl.configure_watchdog(environ, ranks)
    return tuple(map(environ.get, (nccl.LOOK_EVERY, nccl.RECORD, nccl.OLD_RECORD)))


def test_thousands_of_ranks_ask_and_record_about_as_much_together_as_a_thousand() -> None:
    assert configured(8) == configured(1000) == (None, None, None)
    assert configured(4096) == ("4096", "488", None)
    assert configured(32768) == ("32768", "250", None)
    assert configured(4096, **{nccl.LOOK_EVERY: "7", nccl.RECORD: "0"}) == ("7", "0", None), "what the user says stays"
    assert configured(4096, **{nccl.OLD_RECORD: "9"}) == ("4096", None, "9")


def test_torch_knows_the_variables_of_its_watchdog_by_these_names() -> None:
    headers = Path(torch.__file__).parent.glob("include/torch/csrc/distributed/c10d/*.hpp")
    known = "".join(header.read_text() for header in headers)
    assert all(f'"{name}"' in known for name in (nccl.LOOK_EVERY, nccl.RECORD, nccl.OLD_RECORD))


def test_it_is_configured_before_ranks_on_gpus_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (nccl.LOOK_EVERY, nccl.RECORD, nccl.OLD_RECORD):
        monkeypatch.setenv(name, "")  # so that it is gone again after this test
        monkeypatch.delenv(name)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    alone = Launch(1, 4096, 1, "srun", "127.0.0.1", free_port())
    with pytest.raises(RunError, match="did not meet"):
        init_process_group(alone, torch.device("cuda"), timedelta(seconds=60), meeting_s=0.5)
    assert os.environ[nccl.LOOK_EVERY] == "4096"


@pytest.mark.parametrize("host", ["no-such-node-17", "node1:29500", "x" * 80 + ".org", "a b"])
def test_a_master_that_nobody_knows_is_told_at_once(host: str) -> None:
    for rank in range(2):
        with pytest.raises(NotMet) as told:
            meet(Launch(rank, 2, rank, "environment", host, free_port()), 3600.0)
        assert host in str(told.value)
        assert "MASTER_ADDR" in str(told.value)


def test_rank_0_elsewhere_than_on_the_lists_first_node_says_so_at_once() -> None:
    listed = Launch(0, 2, 0, "mpirun", "192.0.2.1", free_port(), master_by_list=True)
    with pytest.raises(NotMet) as told:
        meet(listed, 3600.0)
    assert "192.0.2.1" in str(told.value)
    assert f"MASTER_ADDR={socket.gethostname()}" in str(told.value)


def test_a_port_that_another_program_has_is_told_by_rank_0_at_once() -> None:
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(NotMet) as told:
            meet(Launch(0, 2, 0, "environment", "127.0.0.1", port), 3600.0)
    assert f"MASTER_PORT={port}" in str(told.value)


def test_a_rank_that_looks_for_the_store_ends_with_its_torchrun() -> None:
    """Its parent stands for torchrun."""
    code = "import os; parent = os.getppid(); print('looks', flush=True); from engine.comm.launch import Launch; "
    code += "from engine.comm.meeting import meet; "
    code += f"meet(Launch(1, 2, 1, 'torchrun', '127.0.0.1', {free_port()}, parent), 3600.0)"
    parent = "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', sys.argv[1]]); print(child.pid)"
    parent += "; sys.stdout.flush(); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", parent, code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as started:
        assert started.stdin
        assert started.stdout
        assert started.stderr
        assert {started.stdout.readline().split()[0] for _ in range(2)} > {b"looks"}
        time.sleep(LOOKS_S)
        started.stdin.close()
        assert b"1 of 2 met nobody" in started.stderr.read()  # all that have its standard error have ended


LOOKS_S = 3.0
"""By then it looks for the store on most machines; the others tell of the parent's end before they look."""


def test_a_rank_whose_torchrun_has_ended_waits_for_nobody() -> None:
    launch = from_environment({"RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x", "MASTER_ADDR": "127.0.0.1"})
    assert launch.parent == os.getppid()
    assert from_environment({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}).parent == 0
    with pytest.raises(NotMet, match="torchrun has ended"):
        meet(replace(launch, parent=launch.parent + 1), 600.0)
