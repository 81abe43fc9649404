"""Once a training on one rank is warm the host never waits, memory stays, and a checkpoint goes on the same."""

import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from engine.batch import Batch
from engine.checkpoint import store
from engine.checkpoint.manifest import Saved, read_manifest
from engine.comm.funnel import Comm
from engine.grid import Grid
from engine.measure.recorder import Recorder
from engine.peers.comparison import Case
from engine.peers.ours import trainer
from engine.result.schema.gpu_check import Finding
from engine.training.trainer import Trainer
from gpu_check.findings import passes_if, reported
from gpu_check.sizes import ONE_RANK
from gpu_check.steps import MODELS

WARM_UP = 3
STEPS = {"cpu": 2, "cuda": 20}
"""Memory must not grow over so many steps."""


def steady(device: torch.device) -> Iterator[Finding]:
    """Check all of it on one trainer, and a checkpoint on a small network."""
    chosen = ONE_RANK[device.type]
    case = Case(chosen.choice.resolve(), Batch(chosen.sequences), precision=chosen.precision)
    comm = Comm(Grid(), device=device, recorder=Recorder.on(device, breakdown=False, alone=True))
    training = trainer(case, comm)
    for _ in range(WARM_UP):
        training.step()
    yield _never_waits(training, device)
    yield _host(training, device, chosen.words)
    yield _memory(training, device)
    yield _resumed(device)


def _never_waits(training: Trainer, device: torch.device) -> Finding:
    """Launch a step; PyTorch raises an error where the host would wait for a GPU."""
    waited: str | None = None
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.synchronize(device)
        torch.cuda.set_sync_debug_mode("error")
    try:
        training.launch_step()
    except RuntimeError as error:
        if not on_gpu or "synchroniz" not in str(error):
            raise
        waited = str(error).splitlines()[0]
        training.model.abort_step()
    finally:
        if on_gpu:
            torch.cuda.set_sync_debug_mode("default")
    return passes_if(waited is None, "a step for which the host never waits", sentence=waited or "")


def _host(training: Trainer, device: torch.device, words: str) -> Finding:
    """Time how much of a step the host needs to launch it."""
    times = []
    for _ in range(STEPS[device.type]):
        _wait(device)
        start = time.perf_counter()
        training.launch_step()
        launched_s = time.perf_counter() - start
        _wait(device)
        times.append((launched_s, time.perf_counter() - start))
    launched_s, step_s = min(times, key=lambda pair: pair[1])
    sentence = f"{launched_s * 1e3:.2f} of {step_s * 1e3:.2f} ms, {words}"
    return reported("host time of a step", sentence, launched_s / step_s)


def _memory(training: Trainer, device: torch.device) -> Finding:
    """Compare what the allocator has given out and holds before and after some steps."""
    steps = STEPS[device.type]
    if device.type != "cuda":
        training.step()
        return reported(f"memory over {steps} steps", "a processor's allocator doesn't tell")
    torch.cuda.reset_peak_memory_stats(device)  # what compiling and tuning took is over
    held = []
    for _ in range(steps + 1):
        training.step()
        held.append((torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)))
    return memory(held, torch.cuda.max_memory_allocated(device))


def memory(held: Sequence[tuple[int, int]], peak: int) -> Finding:
    """Judge memory. held: bytes given out and reserved after each step. peak: the most given out in any step."""
    (allocated, reserved), (allocated_then, reserved_then) = held[0], held[-1]
    grown = max(allocated_then - allocated, reserved_then - reserved)
    sentence = f"{grown / 1e6:+.1f} MB; reserved {reserved_then / 1e9:.2f} GB for a peak of {peak / 1e9:.2f}"
    name = f"memory over {len(held) - 1} steps"
    return passes_if(grown <= 0, name, "none of it grows", sentence, figure=reserved_then / peak)


def _resumed(device: torch.device) -> Finding:
    """Take steps after a checkpoint, and again from it: they have to be the same to the last bit.

    Sequences are so short that even fused attention adds in one order, as in steps.repeated.
    """
    comm = Comm(Grid(), device=device, recorder=Recorder.on(device, breakdown=False, alone=True))
    training = trainer(Case(MODELS[0], Batch(4), precision="bf16"), comm)
    training.step()
    with tempfile.TemporaryDirectory() as folder:
        path = training.save(Path(folder))
        first = [training.step()[:2] for _ in range(2)]
        saved = Saved(path, read_manifest(path, MODELS[0]))
        training.done = saved.manifest.step
        store.load(saved, training.model, training.optimizer.state)
        again = [training.step()[:2] for _ in range(2)]
    differing = f"losses and norms {first} and {again}" if first != again else ""
    return passes_if(not differing, "steps from a checkpoint", "the same to the last bit", differing)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
