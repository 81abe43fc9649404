"""Make the result of a run that ended well; failure.py reports why another failed."""

from statistics import median

from engine.comm.launch import Launch
from engine.models.flops import hardware_flops, model_flops, repeated_flops
from engine.profiling import chrome_trace
from engine.result import metrics
from engine.result.profile import Profile
from engine.result.schema import Result, Summary, Variant
from engine.result.step import Breakdown, Timeline
from engine.training.checks import CheckedRun
from engine.training.failure import Account
from engine.training.gathered import Ranks, collectives, timeline
from engine.training.iterations import Measurements


class Outcome:
    """It makes a result of what a run measured."""

    def __init__(self, run: CheckedRun, launch: Launch, account: Account) -> None:
        self._run, self._launch, self._account = run, launch, account
        self.measurements = Measurements(account.iterations)

    def succeeded(self, ranks: Ranks, breakdown: Breakdown | None, profile: Profile | None) -> Result:
        """Make the result of a whole run."""
        measurements = self.measurements
        memory = ranks.memory.model_copy(
            update={
                "prefetch_bytes": measurements.prefetch_bytes,
                "cached_blocks": measurements.cached_blocks,
                "cache_bytes": measurements.cache_bytes,
            }
        )
        return self._well(ranks).model_copy(
            update={
                "summary": self._summary(),
                "memory": memory,
                "transport": ranks.transport,
                "collectives": collectives(measurements.recording),
                "breakdown": breakdown,
                "energy": measurements.energy,
                "timeline": self._timeline() if self._run.config.timeline is not None else None,
                "profile": profile,
            }
        )

    def compared(self, ranks: Ranks, variants: tuple[Variant, ...]) -> Result:
        """Make the result of a whole ablation."""
        update = {"memory": ranks.memory, "transport": ranks.transport, "variants": variants}
        return self._well(ranks).model_copy(update=update)

    def _well(self, ranks: Ranks) -> Result:
        """Make what every result of a whole run holds."""
        hosts, devices, clocks = ranks.hosts, ranks.devices, ranks.clocks
        return self._account.result("ok", None, None, hosts=hosts, devices=devices, clocks=clocks)

    def _timeline(self) -> Timeline:
        """Give the last counted iteration, and write it as a Chrome trace."""
        last = next(iteration for iteration in reversed(self.measurements.iterations) if iteration.counted)
        events = self.measurements.recording.events
        path = self._run.config.timeline
        assert path is not None
        about = {"grid": str(self._run.grid), "overlap": str(self._run.training.overlap), "iteration": last.index}
        chrome_trace.write(path, events, rank=self._launch.rank, about=about)
        return timeline(last, self.measurements.recording)

    def _summary(self) -> Summary:
        training, config, ranks = self._run.training, self._run.config, self._launch.world_size
        times = [i.time_s for i in self.measurements.iterations if i.counted]
        time_s = metrics.time_per_iteration(times)
        network, sequences, recompute = training.model, training.batch.sequences, training.checkpoint_activations
        hardware = metrics.rate(hardware_flops(network, sequences, recompute=recompute), time_s)
        model = metrics.rate(model_flops(network, sequences), time_s)
        repeated = metrics.rate(repeated_flops(network, sequences, self._run.grid, recompute=recompute), time_s)
        measured = self.measurements.peak_flops_per_s
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
