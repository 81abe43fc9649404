"""Results of ci/gpu for tests of the report."""

from collections.abc import Iterable
from pathlib import Path

from sample_results import provenance

from engine.result.schema.gpu_check import Finding, GpuCheck, write

FINDINGS = (
    Finding(name="linear layer, fp32", status="pass", figure=4e-7, want="at most 7.6e-06 from float64", seconds=6.0),
    Finding(name="MFU, gpt-5b-l3", status="fail", figure=41.3, unit="%", want="at least 55%", seconds=61.0),
    Finding(name="matrix products in bf16", status="told", figure=788.0, unit="Tflop/s", seconds=12.5),
    Finding(name="tuner, llama", status="not run", sentence="Out of time: it takes 25 s or more of 9 minutes."),
)


def check(
    name: str = "NVIDIA H200", *, findings: Iterable[Finding] = FINDINGS, job: int = 0, cpu: bool = False
) -> GpuCheck:
    """One run. job: a later one has a larger number."""
    return GpuCheck(
        device="cpu" if cpu else "cuda",
        device_name=name,
        devices=1,
        memory_bytes=150_000_000_000,
        minutes=9.0,
        seconds=432.1,
        findings=tuple(findings),
        provenance=provenance(job=job, devices=(name,)),
    )


def save_checks(made: Iterable[GpuCheck], folder: Path) -> None:
    for number, one in enumerate(made):
        write(one, folder / f"gpu-{number}.json")
