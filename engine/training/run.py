"""Carry out `train`, and what takes turns, once torch is loaded: connect, train, write what was measured.

Whatever goes wrong here flies to the command, whose reporter makes it the result (failure.py).
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from datetime import timedelta
from statistics import median
from typing import Any

import torch

from engine.comm import mpi
from engine.comm.backend import ChannelSource
from engine.comm.funnel import Comm
from engine.comm.groups import ProcessGroups
from engine.comm.launch import Launch, take_device
from engine.comm.meeting import all_ranks
from engine.comm.transport import NetworkLog
from engine.footprint.fit import check_host_memory, offloaded_bytes
from engine.grid import Grid
from engine.layers import attention
from engine.layers.compiled import compiles
from engine.layers.matmul import Kernels, widened_by
from engine.measure.memory import forget_peak
from engine.measure.recorder import Recorder
from engine.models.adapters.files import export
from engine.models.flops import model_flops, repeated_flops
from engine.models.operations import Attention
from engine.precision import DTYPES, Precision
from engine.profiling.regions import NamingRecorder
from engine.profiling.session import Profiling, Request, write_chrome_trace
from engine.result import metrics, provenance
from engine.result.schema import Iteration, Memory, Summary
from engine.result.schema.step import LossScaling, Timeline
from engine.result.schema.tuning import Tuning
from engine.tensor_mode import Side
from engine.training.checks import CheckedRun, ContestSetup
from engine.training.config import TuneMatmul
from engine.training.energy import JobMeter
from engine.training.failure import RunReporter
from engine.training.gathered import breakdown, collectives, everyones, joint_peak, profile, roster, timeline
from engine.training.iterations import Measurements, run_iterations
from engine.training.stall import watched
from engine.training.trainer import LossScale, Trainer
from engine.training_record import Training
from engine.tuning.shapes import products
from engine.tuning.tune import tune

log = logging.getLogger(__name__)


def train(run: CheckedRun, launch: Launch, reporter: RunReporter) -> None:
    """Carry out a run on this rank. reporter: takes note of how far the run is."""
    config = run.config
    device = take_device(config.device, launch)
    reporter.devices = (provenance.device_name(device),)
    reporter.resolved = {"device": device.type, "threads": torch.get_num_threads()}
    timeout = timedelta(seconds=config.timeout_s)
    if any(map(config.over_mpi, run.grids)):
        mpi.check(launch, device)
    timed = config.breakdown or config.timeline is not None or config.profile is not None
    kind = Recorder if config.profile is None else NamingRecorder
    recorder = kind.on(device, breakdown=timed, alone=launch.world_size == 1)
    with ExitStack() as ends:

        def connect(grid: Grid) -> Comm:
            backend: ChannelSource = ProcessGroups(grid, device, timeout)
            if config.over_mpi(grid):
                backend = mpi.MessagesByMpi(backend, grid, device, timeout)
            comm = Comm(grid, timeout=timeout, recorder=recorder, device=device, backend=backend)
            ends.enter_context(watched(comm, config.timeout_s, reporter.fail))
            return comm

        with reporter.meeting(config.meeting_timeout_s + config.timeout_s):
            met = ends.enter_context(all_ranks(launch, device, timeout, meeting_s=config.meeting_timeout_s))
            reporter.bindings = met.bindings
            reporter.met = True
            comm = connect(run.grid)
            reporter.roster = roster(comm)
        _train(run, launch, reporter, comm, connect, recorder, met.read_network)


def _train(
    run: CheckedRun,
    launch: Launch,
    reporter: RunReporter,
    comm: Comm,
    connect: Callable[[Grid], Comm],
    recorder: Recorder,
    heard: Callable[[], NetworkLog] | None,
) -> None:
    """Train, once the ranks have met. connect: connects them as another grid. heard: what the back end said of its
    network.
    """
    config, training, device = run.config, run.training, comm.device
    if offloaded_bytes(training, run.grid):
        check_host_memory(training, run.grid, *comm.tightest_host())
    measurements = Measurements(reporter.iterations)
    if config.measure_peak:
        measurements.peak_flops_per_s = joint_peak(comm, DTYPES[training.precision])
        forget_peak(device)
    tunings: list[Tuning] = []

    def made(training: Training, comm: Comm = comm, *, tune_matmul: TuneMatmul | None = None) -> Trainer:
        kernels: Mapping[str, Kernels] = {}
        asked = config.tune_matmul if tune_matmul is None else tune_matmul
        if asked:
            kernels, tuning = tuned(training, comm, force=asked == "force" and not tunings)
            tunings.append(tuning)
        return Trainer(
            training,
            run.dataset,
            comm,
            recorder,
            kernels,
            overlaps=run.overlaps,
            pretrained=run.pretrained,
            saved=run.saved,
        )

    trainer = made(training)
    if config.save is not None:
        trainer.claim(config.save)
    precision = Precision.parse(*training.formats)
    reporter.resolved["widened_by"] = widened_by(precision.compute, precision.gradient, device, shards=run.grid.shards)
    reporter.resolved["attention"] = _attention(training, run.grid, device)
    reporter.resolved["compiled"] = compiles(device)
    reporter.training = True
    setup = ContestSetup(trainer, connect, made, measurements.iterations, reporter.began, config.link_bytes_per_s)
    contest = run.compare(setup)
    if contest is None:
        profiling, energy = None, JobMeter(comm, config.energy)
        if config.profile is not None and isinstance(recorder, NamingRecorder):
            request = Request(config.profile, config.profiled_iterations, config.profile_ranks)
            profiling = Profiling(request, comm, trainer.model, recorder)
        run_iterations(trainer, config, measurements, energy.meter, profiling, run.evaluated)
        trainer.release()
        if config.export is not None and run.pretrained is not None:
            export(run.pretrained, comm, trainer.model.own_parameters(), config.export, run.dataset.tokenizer)
            log.info("wrote %s", config.export)
        if profiling is not None:
            profiling.write(overlap=str(training.overlap))
            measurements.profile = profile(comm, profiling)
        counted = sum(iteration.counted for iteration in reporter.iterations)
        measurements.energy = energy.result(counted, training.batch.sequences * training.model.sequence)
        measurements.breakdown = breakdown(comm, measurements.recording, config.link_bytes_per_s)
    ranks = everyones(comm, heard)
    if launch.rank == 0:
        fields = run_fields(run, measurements, ranks.memory) if contest is None else {"contest": contest}
        scaling = loss_scaling(trainer.loss_scale, measurements.iterations)
        reporter.end_well(ranks, fields | {"tuning": next(iter(tunings), None), "loss_scaling": scaling})
    reporter.end()
    comm.barrier()


def tuned(training: Training, comm: Comm, *, force: bool = False) -> tuple[Mapping[str, Kernels], Tuning]:
    """Choose how the layers multiply, by name, and say by what. Collective. force: time again what is known."""
    try:
        return tune(products(training, comm.grid, comm.device), training.precision, comm, force=force)
    finally:
        forget_peak(comm.device)


def _attention(training: Training, grid: Grid, device: torch.device) -> str | None:
    """Name the kernel that a rank's heads take; warn where it is none."""
    model, network, mode = training.model, training.model.network(), training.mode(grid)
    section, of_block = next((section, op) for section in network.sections for op in section.of_kind(Attention))
    ranks = mode.parts(Side.INNER, grid) if mode.by_heads else grid[mode.inner.features]
    kv_heads = -(-of_block.kv_heads // ranks)
    taken = attention.backend(
        kv_heads * of_block.heads // of_block.kv_heads,
        kv_heads,
        of_block.head_size,
        section.tokens_of(of_block, model.sequence),
        Precision.parse(training.precision).compute,
        device,
        causal=of_block.causal,
    )
    if taken is attention.AttentionKernel.MATH and device.type == "cuda":
        log.warning(
            "PyTorch has no attention kernel for heads of %d features in %s on this GPU: the scores of all pairs of "
            "positions lie in memory.",
            of_block.head_size,
            training.precision,
        )
    return taken


def run_fields(run: CheckedRun, measurements: Measurements, memory: Memory) -> dict[str, Any]:
    """Make the fields that only a whole run has, and write the timeline if one is asked for. memory: of the ranks."""
    gathered = ("prefetch_bytes", "cached_blocks", "cache_bytes")
    return {
        "summary": _summary(run, measurements),
        "evaluations": tuple(measurements.evaluations),
        "memory": memory.model_copy(update={name: getattr(measurements, name) for name in gathered}),
        "collectives": collectives(measurements.recording),
        "breakdown": measurements.breakdown,
        "energy": measurements.energy,
        "timeline": _timeline(run, measurements),
        "profile": measurements.profile,
    }


def loss_scaling(scale: LossScale | None, iterations: Iterable[Iteration]) -> LossScaling | None:
    """Say how the loss was scaled; None in other formats than fp16. scale: after the last of these iterations."""
    if scale is None:
        return None
    skipped = tuple(iteration.index for iteration in iterations if iteration.skipped)
    return LossScaling(scale=scale.value, skipped=scale.skipped, skipped_iterations=skipped)


def _timeline(run: CheckedRun, measurements: Measurements) -> Timeline | None:
    """Return the last counted iteration, and write it as a Chrome trace; None if that isn't asked for."""
    path = run.config.timeline
    if path is None:
        return None
    last = next(iteration for iteration in reversed(measurements.iterations) if iteration.counted)
    about = {"grid": str(run.grid), "overlap": str(run.training.overlap), "iteration": last.index}
    write_chrome_trace(path, measurements.recording.events, rank=0, about=about)
    return timeline(last, measurements.recording)


def _summary(run: CheckedRun, measurements: Measurements) -> Summary:
    training, config, ranks = run.training, run.config, run.grid.size
    times = [i.time_s for i in measurements.iterations if i.counted]
    time_s = metrics.time_per_iteration(times)
    network, sequences, recomputed = training.model, training.batch.sequences, training.recomputed_blocks
    hardware = metrics.rate(training.flops, time_s)
    model = metrics.rate(model_flops(network, sequences), time_s)
    repeated = metrics.rate(
        repeated_flops(network, sequences, run.grid, recomputed=recomputed, mode=training.mode(run.grid)), time_s
    )
    measured = measurements.peak_flops_per_s
    advertised, empirical = config.peak_flops, measured or config.empirical_peak_flops
    return Summary(
        counted_iterations=len(times),
        time_per_iteration_s=time_s,
        median_time_s=median(times),
        tokens_per_s=metrics.rate(sequences * network.sequence, time_s),
        samples_per_s=metrics.rate(sequences, time_s),
        hardware_flops_per_s=hardware,
        model_flops_per_s=model,
        repeated_flops_per_s=repeated,
        peak_flops_per_device=advertised,
        hfu=metrics.utilisation(hardware, ranks, advertised) if advertised else None,
        mfu=metrics.utilisation(model, ranks, advertised) if advertised else None,
        empirical_peak_flops_per_device=empirical,
        empirical_peak_measured=measured is not None,
        of_empirical=metrics.utilisation(hardware, ranks, empirical) if empirical else None,
    )
