"""The table of all checks, the most telling first: does it work, is it right, does a step wait or hang, how fast is the
largest network, how fast are others, single figures, and what is left out first. No torch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from engine.result.schema.gpu_check import Finding
from gpu_check.judges import Judge
from gpu_check.sizes import largest, training

REHEARSED = 0.5
"""A check of tiny networks needs this part of its seconds on a GPU where a processor rehearses it."""
OPTIONS = {
    "cuda": {
        "contest": ("--jobs", "1", "--rounds", "3", "--threads", "4"),
        "profile": ("--iterations", "14", "--warmup", "2", "--profile-iterations", "3..8"),
        "memory": (),
        "latency": (),
        "half": ("--sizes", "4096..16384", "--time-budget", "4"),
        "single": ("--sizes", "2048..8192", "--time-budget", "4"),
    },
    "cpu": {
        "contest": ("--jobs", "1", "--rounds", "2", "--threads", "1"),
        "profile": ("--iterations", "15", "--warmup", "1", "--profile-iterations", "3..14"),
        "memory": ("--array-size", "4e6", "--repeats", "3"),
        "latency": ("--samples", "50"),
        "half": ("--sizes", "128,256"),
        "single": ("--sizes", "128,256"),
    },
}
"""How much each command measures, by the device; matrices of half and of single precision have sizes of their own."""


@dataclass(frozen=True, slots=True)
class Check:
    """A process of some Python module.

    words: the module and its command, after which the file comes that it writes. judge: makes findings of the files of
    all processes of the check. least_s: what a process takes, as far as that is known (budget.py). repeats: whether
    another one adds to what is known, where a finding is undecided. processes: so many of them then come before the
    next check. gpu_only: whether a rehearsal leaves it out, as another check differs by what it is run with only.
    """

    name: str
    words: tuple[str, ...]
    judge: Callable[[Sequence[Path]], list[Finding]]
    least_s: float
    repeats: bool = False
    processes: int = 1
    gpu_only: bool = False

    @property
    def slug(self) -> str:
        return self.name.replace(" ", "-").replace(",", "")

    def on(self, device: str) -> "Check":
        """Return the check with the device among its words, and the time that it takes there."""
        where = (device,) if self.words[0] == "gpu_check" else ("--device", device, "--out")
        return replace(
            self, words=(*self.words, *where), least_s=self.least_s * (1.0 if device == "cuda" else REHEARSED)
        )


def checks(judge: Judge, memory_bytes: float, folder: Path, *, devices: int, tf32: bool) -> list[Check]:
    """Return all checks for so many devices of so much memory, in their order.

    folder: where they write. tf32: whether the device knows that format.
    """
    on_gpu = judge.on_gpu
    device = "cuda" if on_gpu else "cpu"
    whole, alone = largest(device, memory_bytes), largest(device, memory_bytes, alone=True)
    gpt, llama = (training(family, device, memory_bytes) for family in ("gpt", "llama"))
    two_ranks = devices > 1 or not on_gpu
    options, part, bench = OPTIONS[device], ("gpu_check", "inside"), ("engine", "bench")
    contest, gemm = (*bench, "peers", *options["contest"], "--peer"), (*bench, "gemm", "--dtype")
    profile = ("engine", "train", *alone.options, "--data", "synthetic", "--profile", str(folder / "profile"))
    tuner = (*bench, "matmul", *gpt.network, "--micro-batch", str(gpt.sequences), "--twice")
    products = Check("gemm, bf16", (*gemm, "bf16", *options["half"]), judge.gemm, 10)
    table = [
        Check("parity", (*part, "parity"), judge.own, 40),
        Check("streams", (*part, "streams"), judge.own, 40),
        Check("pipelines", (*part, "pipelines"), judge.own, 40),
        Check("steady", (*part, "steady"), judge.own, 20),
        Check("network", (*part, "network"), judge.own, 12),
        Check("lost", (*part, "lost"), judge.own, 40 if two_ranks else 8),
        products,
        Check(
            "contest with plain, gpt", (*contest, "plain", *whole.options), judge.contest(whole), 60, repeats=True,
            processes=2 if on_gpu else 1,  # one knows too little
        ),
        Check(
            "profile", (*profile, *options["profile"]), judge.profile(alone, folder / f"{products.slug}.json"), 40
        ),
        Check("kernels", (*part, "kernels"), judge.kernels, 50),
        Check("flags", (*part, "flags"), judge.flags, 20, repeats=True),
        Check(
            "contest with compile, gpt", (*contest, "compile", *gpt.options), judge.contest(gpt), 45, repeats=True,
            gpu_only=True,
        ),
        Check(
            "contest with plain, llama", (*contest, "plain", *llama.options), judge.contest(llama), 35, repeats=True,
            gpu_only=True,
        ),
        Check("tuner, gpt", tuner, judge.matmul, 25, repeats=True),
        Check("memory", (*bench, "memory", *options["memory"]), judge.memory, 10),
        Check("latency", (*bench, "latency", *options["latency"]), judge.latency, 8),
        Check(
            "contest with compile, llama", (*contest, "compile", *llama.options), judge.contest(llama), 35,
            repeats=True, gpu_only=True,
        ),
        Check("gemm, fp32", (*gemm, "fp32", *options["single"]), judge.gemm, 10, gpu_only=True),
        Check("gemm, tf32", (*gemm, "tf32", *options["half"]), judge.gemm, 10, gpu_only=True),
    ]  # fmt: skip
    known = [check for check in table if tf32 or check.name != "gemm, tf32"]
    return [check.on(device) for check in known if on_gpu or not check.gpu_only]
