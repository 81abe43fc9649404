"""`bench overlap` as a user meets it: real ranks, one result with every variant, one sentence if it can't work."""

import math
import socket
from pathlib import Path
from statistics import median

import pytest
from engine_command import SMALL, finish, start

from engine.cli.main import main
from engine.cli.trained import trained
from engine.result.metrics import paired, share_of_greatest_gain, time_per_iteration
from engine.result.schema import Result, read
from engine.result.schema.contest import OverlapSide, Ratio

CHECKPOINTED = [*SMALL, "--checkpoint-activations"]
FEW = ["--rounds", "3", "--steps-per-round", "2"]


def compare(ranks: int, out: Path, *options: str) -> tuple[list[int], list[str]]:
    return finish(start(ranks, "bench", "overlap", *options, "--out", str(out)))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, list[str]]:
    """On two ranks of z, and what they said."""
    out = tmp_path_factory.mktemp("ablation") / "deep" / "r.json"
    options = ["--grid", "1x1x2x1", "--clip", "0", "--overlap", "oag,cache=1,data", "--label", "study=a"]
    codes, said = compare(2, out, *CHECKPOINTED, *options, *FEW, "--prefetch-depth", "3")
    assert codes == [0, 0], said
    return read(out), said


def by_name(result: Result) -> dict[str, OverlapSide]:
    return {variant.name: variant for variant in result.sides(OverlapSide)}


def test_every_variant_has_its_steps_of_every_round_after_one_of_warm_up(run: tuple[Result, list[str]]) -> None:
    result, _ = run
    assert (result.kind, result.status, result.grid, result.labels) == ("ablation", "ok", "1x1x2x1", {"study": "a"})
    names = ["none", "oag", "oag,cache=1", "cache=1"]
    assert list(by_name(result)) == names
    assert [line.split()[0] for line in trained(result).splitlines()] == ["overlap", *names]
    assert [step.warmup for step in result.iterations] == [True] * 4 + [False] * 4 * 3 * 2
    assert [step.index for step in result.iterations] == list(range(28))
    assert all(math.isfinite(step.loss) for step in result.iterations)
    counted = sorted(step.time_s for step in result.iterations[4:])
    told = sorted(s for variant in result.sides(OverlapSide) for times in variant.rounds_s for s in times)
    assert told == counted
    assert all([len(times) for times in variant.rounds_s] == [2] * 3 for variant in result.sides(OverlapSide))


def test_variants_are_compared_round_by_round_with_none(run: tuple[Result, list[str]]) -> None:
    result, _ = run
    none, *others = result.sides(OverlapSide)
    assert none.over_base is None
    assert none.share_of_greatest_gain is None
    for variant in others:
        pairs = [(median(own), median(base)) for own, base in zip(variant.rounds_s, none.rounds_s, strict=True)]
        assert variant.over_base is not None
        assert variant.over_base == Ratio.of(paired([pairs]))
        every = [s for times in variant.rounds_s for s in times]
        assert variant.time_per_iteration_s == pytest.approx(time_per_iteration(every))
        assert variant.breakdown is not None
        assert none.breakdown is not None
        assert variant.breakdown.bound is not None
        assert none.breakdown.bound is not None
        bounds = (variant.breakdown.bound.bound_s, none.breakdown.bound.bound_s)
        share = share_of_greatest_gain(variant.over_base.ratio, none.time_per_iteration_s, *bounds)
        assert variant.share_of_greatest_gain == (share if share is None else pytest.approx(share))


def test_what_is_recorded_is_each_variants_own(run: tuple[Result, list[str]]) -> None:
    result, _ = run
    found = by_name(result)
    layers, others = 2 * 4, 2
    gathers = {
        name: next(c.calls for c in variant.collectives if (c.kind, c.axis) == ("all_gather", "z"))
        for name, variant in found.items()
    }
    every, cached = 2 * layers + others, 2 * layers + others - layers / 2
    assert gathers == {"none": every, "oag": every, "oag,cache=1": cached, "cache=1": cached}
    assert [side.cached_blocks for side in found.values()] == [0, 0, 1, 1]
    assert [name for name, variant in found.items() if variant.prefetch_bytes] == ["oag", "oag,cache=1"]
    assert [name for name, variant in found.items() if variant.cache_bytes] == ["oag,cache=1", "cache=1"]
    for variant in result.sides(OverlapSide):
        assert variant.breakdown is not None
        assert [(host.host, host.ranks) for host in variant.breakdown.hosts] == [(socket.gethostname(), 2)]
        assert all(one.hidden_s is not None for one in variant.collectives)
        exposed = sum(one.exposed_s or 0.0 for one in variant.collectives)
        assert exposed == pytest.approx(variant.breakdown.collectives_s)
        whole = variant.breakdown.compute_s + variant.breakdown.collectives_s
        assert whole == pytest.approx(variant.time_per_iteration_s)


def test_the_last_counted_step_of_none_and_of_the_fullest_is_drawn(run: tuple[Result, list[str]]) -> None:
    result, _ = run
    drawn = {variant.name: variant.timeline for variant in result.sides(OverlapSide) if variant.timeline is not None}
    assert set(drawn) == {"none", "oag,cache=1"}
    for name, timeline in drawn.items():
        assert timeline.step_s == pytest.approx(by_name(result)[name].rounds_s[-1][-1])
        assert timeline.step_s == pytest.approx(result.iterations[timeline.iteration].time_s)
        phases = [span for span in timeline.spans if span.kind == "phase"]
        assert sum(span.end_s - span.start_s for span in phases) == pytest.approx(timeline.step_s)


def test_the_result_says_every_option_and_rank_0_what_is_left_out(run: tuple[Result, list[str]]) -> None:
    result, said = run
    assert result.config["variants"] == ["none", "oag", "oag,cache=1", "cache=1"]
    asked = {"overlap": "oag,cache=1,data", "rounds": 3, "steps_per_round": 2, "warmup": 1, "prefetch_depth": 3}
    assert asked.items() <= result.config.items()
    assert {"threads", "device", "batch", "optim", "seed", "link_bytes_per_s"} <= result.config.keys()
    assert not {"iterations", "save", "resume", "timeline", "measure_peak"} & result.config.keys()
    assert "data is left out" in said[0]
    assert "round 3/3  oag,cache=1" in said[0]
    assert said[1] == "", "only rank 0 reports progress"


def test_the_order_of_turns_is_drawn_anew_for_each_round_and_by_the_seed(run: tuple[Result, list[str]]) -> None:
    _, said = run
    rounds = [[line.split("  ")[1] for line in said[0].splitlines() if line.startswith(f"round {n}/")] for n in "123"]
    assert [sorted(names) for names in rounds] == [["cache=1", "none", "oag", "oag,cache=1"]] * 3
    assert len({tuple(names) for names in rounds}) > 1


def test_no_round_is_begun_that_would_not_end_in_time_and_what_is_measured_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    options = ["--grid", "1x1x2x1", "--variant", "ors", "--end-within", "0.001"]
    codes, said = compare(2, out, *SMALL, *options, *FEW)
    assert codes == [0, 0], said
    result = read(out)
    assert [len(variant.rounds_s) for variant in result.sides(OverlapSide)] == [1, 1]
    assert (result.config["rounds"], result.config["end_within_s"]) == (3, pytest.approx(0.001))
    assert "1 of 3 rounds" in said[0]


def test_named_variants_are_compared_instead_and_a_lost_loss_is_a_failed_ablation(tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    options = ["--grid", "1x1x1x2", "--variant", "data", "--learning-rate", "1e30"]
    codes, said = compare(2, out, *SMALL, *options, *FEW)
    assert codes == [1, 1]
    assert "clipping" in said[0]
    result = read(out)
    assert (result.kind, result.status, result.contest) == ("ablation", "failed", None)
    assert result.config["variants"] == ["none", "data"]
    assert f"in step {len(result.iterations) + 1} " in (result.reason or "")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--rounds", "0"], "--rounds is at least 1"),
        (["--steps-per-round", "0"], "--steps-per-round is at least 1"),
        (["--end-within", "0"], "--end-within"),
        (["--warmup", "0"], "--warmup is at least 1"),
        ([], "without --checkpoint-activations"),
        (["--variant", "none"], "grid 1x1x1x1"),
        (["--variant", "oag", "--variant", "cache=5"], "but gpt-test has 2"),
        (["--variant", "oar,org"], "'oar,org'"),
        (["--overlap", "cache=3"], "use cache=2"),
        (["--iterations", "3"], "Unknown option: --iterations."),
        (["--out", "."], "--out . is a folder"),
    ],
)
def test_what_cant_be_compared_is_one_sentence_and_exit_code_2(
    options: list[str],
    sentence: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "overlap", *SMALL, *options]) == 2
    told = capsys.readouterr().err
    assert sentence in told
    assert told.count("\n") == 1
    assert not list(tmp_path.iterdir())
