"""MPI's channel: what it says where there is no MPI, and what its ranks get where there is."""

import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from mpi_ranks import run_mpi
from mpi_works import CASE, messages_beside_waits, trained
from test_comm import _collectives, _exchange
from test_parity import TOLERANCE
from training import train_serial, worst_error
from waiting import LONG_S, until

from engine.comm import mpi
from engine.comm.collective import OF_MESSAGES, Kind, Lane
from engine.comm.contact import LostContact
from engine.comm.funnel import Comm
from engine.comm.launch import Launch
from engine.comm.launchers import PREPARES_MPI
from engine.errors import RunError, UsageError
from engine.grid import Axis, Grid

CPU = torch.device("cpu")
TWO = Launch(0, 2, 0, "mpirun", "127.0.0.1", 20000)


@pytest.fixture
def nobody_launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in PREPARES_MPI:
        monkeypatch.delenv(name, raising=False)
    mpi.library.cache_clear()
    yield
    if mpi.library.cache_info().currsize:
        mpi.library().progress.end()
    mpi.library.cache_clear()


@pytest.fixture
def launched(nobody_launched: None, monkeypatch: pytest.MonkeyPatch) -> Callable[..., SimpleNamespace]:
    """Planter of an mpi4py whose other ranks never answer, with a world of that rank and size."""
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setattr("atexit.register", lambda _: None)

    def plant(rank: int, size: int) -> SimpleNamespace:
        silent = SimpleNamespace(Test=lambda status: size == 1)
        among = SimpleNamespace(Irecv=lambda *_: silent)
        world = SimpleNamespace(
            rank=rank,
            size=size,
            Get_group=lambda: SimpleNamespace(Incl=lambda ranks: ranks),
            Create_group=lambda group: among,
            Ibarrier=lambda: silent,
            Iprobe=lambda: False,
        )
        planted, package = SimpleNamespace(), ModuleType("mpi4py")
        planted.COMM_WORLD, planted.BYTE, planted.ANY_TAG = world, "byte", -1
        planted.Status, planted.Exception, planted.__file__ = object, RuntimeError, None
        planted.buffer = SimpleNamespace(fromaddress=lambda address, count: (address, count))
        planted.THREAD_SERIALIZED = 2
        planted.Query_thread = lambda: 2
        planted.get_vendor = lambda: ("Planted MPI", (1, 0, 0))
        package.rc, package.MPI = SimpleNamespace(), planted  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "mpi4py", package)
        return planted

    return plant


def _said(device: torch.device = CPU) -> str:
    with pytest.raises(UsageError) as refused:
        mpi.check(TWO, device)
    return str(refused.value)


def test_without_its_launcher_or_mpi4py_one_sentence_says_what_to_do(
    nobody_launched: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    remedies = ("'mpi4py>=4'", "srun --mpi=pmix", "torchrun")
    assert all(remedy in _said() for remedy in remedies)
    monkeypatch.setenv("PMIX_RANK", "0")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    assert all(remedy in _said() for remedy in (*remedies, "(import of"))


def test_ranks_that_mpi_and_the_launcher_number_differently_are_refused(
    launched: Callable[..., SimpleNamespace],
) -> None:
    launched(0, 1)
    assert "of 1, mpirun" in _said()


def test_device_memory_takes_an_mpi_that_reads_it_or_a_users_word(
    launched: Callable[..., SimpleNamespace], monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = launched(0, 2)
    mpi.check(TWO, CPU)
    cuda = torch.device("cuda")
    assert all(name in _said(cuda) for name in ("Planted MPI", mpi.READS_DEVICES))
    monkeypatch.setenv(mpi.READS_DEVICES, "1")
    mpi.check(TWO, cuda)
    planted.Query_thread = lambda: 1
    assert "one thread" in _said(cuda)


def test_a_peer_that_never_answers_is_lost_after_the_time_out(launched: Callable[..., SimpleNamespace]) -> None:
    launched(0, 2)
    limit = timedelta(seconds=0.03)
    comm = Comm(Grid(2), timeout=limit, backend=mpi.MpiGroups(Grid(2), CPU, limit))
    with pytest.raises(LostContact) as lost:
        comm.issue(Kind.RECV, Axis.X, torch.zeros(3), peer=1).wait()
    assert all(part in str(lost.value) for part in ("Rank 0", "rank 1 ", "(MPI:", "0.03 s"))
    assert mpi.library().progress.lost


def test_stages_take_mpi_for_their_messages_and_what_others_take_for_all_else(
    launched: Callable[..., SimpleNamespace],
) -> None:
    launched(0, 2)
    usual = SimpleNamespace(rank=0, channel=lambda *_: "usual")
    backend = mpi.MessagesByMpi(usual, Grid(pipe=2), CPU, timedelta(seconds=1))
    lanes = {lane: backend.channel(Axis.PIPE, lane, (0, 1)) for lane in (Lane.MAIN, Lane.FORWARD, Lane.BACKWARD)}
    assert lanes[Lane.MAIN] == "usual"
    assert all(isinstance(lanes[lane], mpi.MpiChannel) for lane in OF_MESSAGES)


def _all(comm: Comm) -> list[object]:
    """Do everything that a Comm does, then exchange messages that don't belong together."""
    found: list[object] = [_collectives(comm), _exchange(comm)]
    own = comm.rank
    ahead = [comm.issue(Kind.RECV, Axis.X, torch.zeros(2), peer=1 - own) for _ in range(2)]
    assert not any(handle.arrived() for handle in ahead)
    comm.barrier()
    given = comm.issue(Kind.SEND, Axis.X, torch.ones(2), peer=1 - own)
    comm.wait_any(ahead)
    assert [handle.arrived() for handle in ahead] == [True, False]
    assert [handle.wait().tolist() for handle in (given, ahead[0])] == [[1, 1]] * 2
    comm.barrier()
    given = comm.issue(Kind.SEND, Axis.X, torch.ones(2), peer=1 - own)
    assert [handle.wait().tolist() for handle in (given, ahead[1])] == [[1, 1]] * 2
    for sent, due in (
        (torch.zeros(5), torch.zeros(4)),
        (torch.zeros(3), torch.zeros(4)),
        (torch.zeros(4).long(), torch.zeros(8)),
    ):
        given = comm.issue(Kind.SEND, Axis.X, sent, peer=1 - own)
        try:
            comm.issue(Kind.RECV, Axis.X, due, peer=1 - own).wait()
        except ValueError as error:
            found.append(str(error))
        given.wait()
    try:
        comm.run(Kind.ALL_REDUCE, Axis.X, torch.zeros(2).bfloat16())
    except RunError as error:
        found.append(str(error))
    return found


def test_ranks_of_mpi_exchange_and_add_up_and_check_what_comes(tmp_path: Path) -> None:
    a, b = torch.arange(4.0), torch.arange(4.0) + 10
    for rank, (sums, (got, recorded), *said) in enumerate(run_mpi(tmp_path, Grid(2), _all)):
        assert torch.equal(sums["all_gather to"], torch.cat([a, b]))
        assert torch.equal(sums["reduce_scatter"], (a + b).chunk(2)[rank])
        assert torch.equal(sums["all_reduce"], a + b)
        assert torch.equal(sums["max_reduce"], b)
        assert sums["everyone"].flatten().tolist() == [0, 1]
        assert got == [v for _ in range(2) for v in (10.0 * (1 - rank) + rank,) * 2 + (-1.0 * (1 - rank),) * 2]
        assert recorded == {("send", "x"): (4, 2 * (400_000 + 8)), ("recv", "x"): (4, 2 * (400_000 + 8))}
        assert ["longer" in words for words in said] == [True, False, False, False]
        assert ["isn't the one" in words for words in said] == [False, True, True, False]
        assert "torch.bfloat16" in said[-1]


def test_a_message_comes_whatever_its_sender_waits_for(tmp_path: Path) -> None:
    assert run_mpi(tmp_path, Grid(pipe=2), messages_beside_waits, messages_alone=True) == [[], [0.0, 1.0, 2.0, 3.0]]


def test_stages_of_several_ranks_train_like_the_serial_model_where_messages_take_a_rendezvous(tmp_path: Path) -> None:
    (first, *_) = run_mpi(tmp_path, Grid(x=2, pipe=3), trained, messages_alone=True)
    assert worst_error(first, train_serial(CASE)) < TOLERANCE


def test_another_thread_ends_with_mpi_and_calls_it_no_more(launched: Callable[..., SimpleNamespace]) -> None:
    called: list[str] = []
    planted = launched(0, 1)
    planted.COMM_WORLD.Iprobe = lambda: called.append(threading.current_thread().name)
    planted.Finalize = lambda: called.append("end")
    mpi.MpiGroups(Grid(), CPU, timedelta(seconds=LONG_S))
    until(lambda: "mpi" in called)
    mpi.library().end()
    assert called[-1] == "end"
    assert "mpi" not in {thread.name for thread in threading.enumerate()}


def test_a_rank_that_does_not_come_to_its_end_is_not_waited_for_for_ever(
    launched: Callable[..., SimpleNamespace],
) -> None:
    planted = launched(0, 2)
    mpi.MpiGroups(Grid(2), CPU, timedelta(seconds=0.03))
    mpi.library().end()
    assert mpi.library().progress.lost
    assert not hasattr(planted, "Finalize")  # it would have been called else
