"""What is checked, in its order: what must be right first, then what it costs, then figures. No torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from engine.result.gpu_check import Finding
from gpu_check.judges import Judge
from gpu_check.sizes import training

FAMILIES = ("gpt", "llama")


@dataclass(frozen=True, slots=True)
class Check:
    """A process. words: of its command, the file that it writes as the last; judge: from the files of all processes of
    the check to findings.

    least_s: with less time left it isn't begun; most_s: then it is ended. Both are for a GPU; a rehearsal has patience.
    repeats: whether another process adds to what is known, where a finding is undecided.
    """

    name: str
    words: tuple[str, ...]
    judge: Callable[[Sequence[Path]], list[Finding]]
    least_s: float
    most_s: float
    repeats: bool = False

    @property
    def slug(self) -> str:
        """Of its files."""
        return self.name.replace(" ", "-").replace(",", "")


def checks(judge: Judge, memory_bytes: float, folder: Path, *, tf32: bool) -> list[Check]:
    """All of them for a device with so much memory; a rehearsal leaves out what differs by what it is run with only.

    folder: of what they write. tf32: whether the device knows it.
    """
    device, patience = ("cuda", 1) if judge.on_gpu else ("cpu", 3)
    trained = {family: training(family, device, memory_bytes) for family in FAMILIES}

    def inside(part: str, most_s: float) -> Check:
        return Check(part, ("gpu_check", "inside", part, device), judge.own, 20, patience * most_s)

    def bench(
        name: str, words: list[str], of: Callable[[Sequence[Path]], list[Finding]], least_s: float, most_s: float,
        *, repeats: bool = False,
    ) -> Check:  # fmt: skip
        return Check(name, ("engine", *words, "--device", device, "--out"), of, least_s, patience * most_s, repeats)

    def gemm(dtype: str) -> Check:
        large = "4096..16384" if dtype in ("bf16", "tf32") else "2048..8192"
        words = ["--sizes", large, "--time-budget", "15"] if judge.on_gpu else ["--sizes", "128,256"]
        return bench(f"gemm, {dtype}", ["bench", "gemm", "--dtype", dtype, *words], judge.gemm, 15, 40)

    def tuner(family: str) -> Check:
        of = trained[family]
        words = ["bench", "matmul", *of.network, "--micro-batch", str(of.sequences), "--twice"]
        return bench(f"tuner, {family}", words, judge.matmul, 25, 60, repeats=True)

    def contest(family: str, peer: str) -> Check:
        often = ["--jobs", "1", "--rounds", "3" if judge.on_gpu else "2", "--threads", "4" if judge.on_gpu else "1"]
        words = ["bench", "peers", "--peer", peer, *trained[family].options, *often]
        least_s, most_s = (40, 100) if peer == "plain" else (60, 120)
        return bench(
            f"contest with {peer}, {family}", words, judge.contest(trained[family]), least_s, most_s, repeats=True
        )

    profile = ["train", *trained["gpt"].options, "--data", "synthetic", "--iterations", "15", "--warmup", "1"]
    profile += ["--energy", "off", "--profile", str(folder / "profile"), "--profile-iterations", "3..14"]
    memory = ["bench", "memory", *([] if judge.on_gpu else ["--array-size", "4e6", "--repeats", "3"])]
    latency = ["bench", "latency", *([] if judge.on_gpu else ["--samples", "50"])]
    rehearsed = [
        inside("parity", 90),
        inside("kernels", 60),
        inside("steady", 50),
        inside("streams", 100),
        replace(inside("flags", 60), judge=judge.flags, repeats=True),
        gemm("bf16"),
        tuner("gpt"),
        contest("gpt", "plain"),
        bench("profile", profile, judge.profile, 30, 70),
        bench("memory", memory, judge.memory, 12, 40),
        bench("latency", latency, judge.latency, 10, 30),
    ]
    if not judge.on_gpu:
        return rehearsed
    others = [contest("llama", "plain"), *(contest(family, "compile") for family in FAMILIES)]
    return [*rehearsed, *others, gemm("fp32"), *([gemm("tf32")] if tf32 else []), gemm("fp64"), tuner("llama")]
