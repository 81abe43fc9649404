"""What is checked, the most telling first: whether it works and is right, whether a step waits or hangs, how fast the
largest network is, how fast others are, single figures, and what is left out first. No torch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.result.gpu_check import Finding
from gpu_check.judges import Judge
from gpu_check.sizes import Training, largest, training

FAMILIES = ("gpt", "llama")
REHEARSED = 0.5
"""Of its seconds on a GPU, what a check of tiny networks needs on a processor."""


@dataclass(frozen=True, slots=True)
class Check:
    """A process. words: of its command, the file that it writes as the last; judge: from the files of all processes of
    the check to findings.

    least_s: what a process takes, as far as that is known (budget.py). repeats: whether another one adds to what is
    known, where a finding is undecided. processes: so many of them then come before the next check.
    """

    name: str
    words: tuple[str, ...]
    judge: Callable[[Sequence[Path]], list[Finding]]
    least_s: float
    repeats: bool = False
    processes: int = 1

    @property
    def slug(self) -> str:
        """Of its files."""
        return self.name.replace(" ", "-").replace(",", "")


def checks(judge: Judge, memory_bytes: float, folder: Path, *, devices: int, tf32: bool) -> list[Check]:
    """All of them for so many devices of so much memory; a rehearsal leaves out what differs by what it is run with
    only.

    folder: of what they write. tf32: whether the device knows it.
    """
    device, part = ("cuda", 1.0) if judge.on_gpu else ("cpu", REHEARSED)
    whole, alone = largest(device, memory_bytes), largest(device, memory_bytes, alone=True)
    trained = {family: training(family, device, memory_bytes) for family in FAMILIES}

    def inside(name: str, least_s: float, of: Callable[[Sequence[Path]], list[Finding]] = judge.own) -> Check:
        return Check(name, ("gpu_check", "inside", name, device), of, part * least_s, repeats=name == "flags")

    def bench(
        name: str, words: list[str], of: Callable[[Sequence[Path]], list[Finding]], least_s: float,
        *, repeats: bool = False, processes: int = 1,
    ) -> Check:  # fmt: skip
        return Check(name, ("engine", *words, "--device", device, "--out"), of, part * least_s, repeats, processes)

    def gemm(dtype: str) -> Check:
        large = "4096..16384" if dtype in ("bf16", "tf32") else "2048..8192"
        words = ["--sizes", large, "--time-budget", "4"] if judge.on_gpu else ["--sizes", "128,256"]
        return bench(f"gemm, {dtype}", ["bench", "gemm", "--dtype", dtype, *words], judge.gemm, 10)

    def contest(family: str, peer: str, of: Training, least_s: float, processes: int = 1) -> Check:
        often = ["--jobs", "1", "--rounds", "3" if judge.on_gpu else "2", "--threads", "4" if judge.on_gpu else "1"]
        words = ["bench", "peers", "--peer", peer, *of.options, *often]
        return bench(
            f"contest with {peer}, {family}", words, judge.contest(of), least_s, repeats=True,
            processes=processes,
        )  # fmt: skip

    def tuner(of: Training) -> Check:
        words = ["bench", "matmul", *of.network, "--micro-batch", str(of.sequences), "--twice"]
        return bench("tuner, gpt", words, judge.matmul, 25, repeats=True)

    often = ("14", "2", "3..8") if judge.on_gpu else ("15", "1", "3..14")
    profile = ["train", *alone.options, "--data", "synthetic", "--profile", str(folder / "profile")]
    for option, value in zip(("--iterations", "--warmup", "--profile-iterations"), often, strict=True):
        profile += [option, value]
    memory = ["bench", "memory", *([] if judge.on_gpu else ["--array-size", "4e6", "--repeats", "3"])]
    latency = ["bench", "latency", *([] if judge.on_gpu else ["--samples", "50"])]
    two = not judge.on_gpu or devices > 1
    right = [inside("parity", 35), inside("streams", 40)]
    waits = [inside("steady", 20), inside("network", 12), inside("lost", 40 if two else 8)]
    products = gemm("bf16")
    fast = [
        products,
        contest("gpt", "plain", whole, 60, processes=2 if judge.on_gpu else 1),  # one knows too little
        bench("profile", profile, judge.profile(alone, folder / f"{products.slug}.json"), 40),
    ]
    of_parts = [inside("kernels", 50, judge.kernels), inside("flags", 20, judge.flags)]
    single = [bench("memory", memory, judge.memory, 10), bench("latency", latency, judge.latency, 8)]
    if not judge.on_gpu:
        return [*right, *waits, *fast, *of_parts, tuner(trained["gpt"]), *single]
    others = [
        contest("gpt", "compile", trained["gpt"], 45),
        contest("llama", "plain", trained["llama"], 35),
        tuner(trained["gpt"]),
    ]
    first_left_out = [
        contest("llama", "compile", trained["llama"], 35),
        gemm("fp32"),
        *([gemm("tf32")] if tf32 else []),
    ]
    return [*right, *waits, *fast, *of_parts, *others, *single, *first_left_out]
