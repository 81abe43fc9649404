"""A training that was profiled has a rate, kernels that its steps spend their time in, and an energy. No torch."""

from engine.result import metrics
from engine.result.schema import Result
from engine.result.schema.gpu_check import Finding
from engine.result.schema.profile import TraceBreakdown
from engine.result.schema.step import ComponentEnergy
from gpu_check.findings import reported

LONGEST, LETTERS = 10, 50
OWN = ("device", "processor")
"""The energy of the first of these that is known is reported."""


def rate(result: Result) -> float:
    """Return model flop/s of the steps that were not profiled."""
    assert result.summary is not None
    return result.summary.model_flops_per_s


def words(result: Result) -> str:
    assert result.summary is not None
    summary = result.summary
    return (
        f"{1e3 * summary.time_per_iteration_s:.1f} ms a step, {summary.tokens_per_s:,.0f} tokens/s, "
        f"{summary.model_flops_per_s / 1e12:.3g} Tflop/s"
    )


def longest(found: TraceBreakdown, model: str) -> list[Finding]:
    """Report the ten kernels (on a processor operators) that take most of the trace's last step, with all calls."""
    what = "operator" if found.device == "cpu" else "kernel"
    return [
        reported(
            f"{what} {place} of a step, {_cut(one.name)}",
            f"{1e3 * one.time_s:.2f} of {1e3 * found.step_s:.2f} ms in {one.calls} calls, {model}",
            100 * metrics.share_of_step(one.time_s, found.step_s),
            "%",
        )
        for place, one in enumerate(found.operations[:LONGEST], 1)
    ]


def energy(result: Result, model: str) -> Finding:
    """Return joules that the card, or else processors, take for a token, or why nothing counts them."""
    name, measured = f"energy of a token, {model}", result.energy
    components = {one.component: one for one in measured.components} if measured is not None else {}
    asked = [components[of] for of in OWN if of in components]
    known = next((one for one in asked if one.tokens_per_joule), None)
    if measured is None or known is None or not known.tokens_per_joule:
        whole = measured.unmeasured if measured is not None else None
        why = next((one.unmeasured for one in asked if one.unmeasured), None) or whole or "no counter was found"
        return reported(name, f"not measured: {why}")
    return reported(name, _counted(known, measured.iterations), 1 / known.tokens_per_joule, "J")


def _counted(known: ComponentEnergy, iterations: int) -> str:
    of = "device" if known.component == "device" else "processors"
    return (
        f"of the {of}, {known.joules_per_iteration:.4g} J a step over {iterations} steps, by {known.source}, which "
        f"counts {known.scope}"
    )


def _cut(name: str) -> str:
    """Return both ends of a long name: kernels differ at one, operators at the other."""
    half = (LETTERS - 3) // 2
    return name if len(name) <= LETTERS else f"{name[:half]}...{name[-half:]}"
