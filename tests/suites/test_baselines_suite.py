"""Baselines as tests: which layouts of which peer run where, what is left out, and what is kept."""

from pathlib import Path

import pytest
from running import figures, option, project, reframe

import systems
from engine.batch import Batch
from engine.footprint.memory import USABLE
from engine.grid import Grid
from engine.models.catalogue import lookup
from engine.peers.comparison import Case
from engine.peers.layout import Layout, PeerLayout
from engine.peers.layout_choice import LayoutChoice, layout_choices
from engine.peers.memory import Room
from engine.peers.registry import COMPARISONS
from reports.read.load import load
from suites.base.contests import matches

LOCAL = ["-c", "suites/baselines.py", "--system", "local", "-S", "model=gpt-test"]
LOCAL += ["-S", "rounds=1", "-S", "steps_per_round=1"]


NOTHING_KNOWN = Room("cpu")


def of(name: str, ranks: int, per_node: int, model: str) -> list[PeerLayout]:
    case = Case(lookup(model), Batch(16))
    return [one.layout for one in layout_choices(COMPARISONS[name], case, ranks, per_node, NOTHING_KNOWN)]


def test_of_a_few_ranks_every_layout_that_divides_is_a_candidate_with_tensor_ranks_within_a_node() -> None:
    assert of("ddp", 8, 2, "gpt-vcluster-deep") == [Grid(data=8)]
    assert of("hsdp", 8, 2, "gpt-vcluster-deep") == [Grid(z=2, data=4), Grid(z=4, data=2)]
    assert of("tensor-parallel", 8, 2, "gpt-vcluster-deep") == []
    assert of("tensor-parallel", 2, 2, "gpt-vcluster-deep") == [Grid(x=2)]
    megatron = of("megatron-core", 8, 2, "gpt-vcluster-deep")
    assert Layout(pipeline=8) in megatron
    assert Layout(tensor=2, pipeline=2, data=2) in megatron
    assert all(isinstance(one, Layout) and one.tensor <= 2 for one in megatron)
    assert Layout(pipeline=4, data=2) not in of("megatron-core", 8, 2, "gpt-vcluster-small"), "it has two blocks"


def test_where_a_series_says_so_pipelines_are_measured_with_several_micro_batches() -> None:
    found: dict[tuple[str, str], set[int]] = {}
    for match in matches(systems.load("vcluster")):
        if match.point.series.name == "deep":
            found.setdefault((match.peer, str(match.layout)), set()).add(match.micro_batch)
    assert found["pipeline-gpipe", "pipeline=8"] == {1, 2, 4}
    assert found["pipeline-1f1b", "pipeline=8"] == {1, 2}, "it takes one for each stage, or more"
    assert found["deepspeed-pipeline", "pipeline=4,data=2"] == {1, 2, 4}
    assert found["ddp", "1x1x1x8"] == {2}


def test_of_many_ranks_tensor_ranks_fill_a_node_and_stages_are_as_few_as_the_memory_allows() -> None:
    case = Case(lookup("gpt-20b"), Batch(8192), precision="bf16", checkpoint_every=1)

    def one(name: str, room: Room) -> LayoutChoice:
        (found,) = layout_choices(COMPARISONS[name], case, 1024, 4, room)
        return found

    small = one("megatron-core", Room("cuda", 1e15))
    assert small.layout == Layout(tensor=4, data=256)
    large = one("megatron-core", Room("cuda", 40e9))
    assert isinstance(large.layout, Layout)
    assert large.layout.tensor == 4
    assert large.layout.pipeline > 1
    assert large.lacking is None
    assert large.needs <= USABLE * 40e9
    assert one("hsdp", NOTHING_KNOWN).layout == Grid(z=4, data=256)
    more = one("hsdp", Room("cuda", 40e9))
    assert isinstance(more.layout, Grid)
    assert more.layout.z > 4, "four devices don't hold it"
    assert more.lacking is None


def test_the_largest_micro_batch_that_fits_is_taken_and_what_fits_with_none_says_so() -> None:
    case = Case(lookup("gpt-5b"), Batch(2048), precision="bf16", checkpoint_every=1)
    by_memory = {
        gb: layout_choices(COMPARISONS["fsdp2"], case, 64, 4, Room("cuda", gb * 1e9))[0] for gb in (24, 40, 64, 96)
    }
    assert by_memory[24].lacking is not None
    assert by_memory[24].lacking.startswith("fsdp2 does not fit: needs ")
    assert by_memory[24].micro_batch == 1
    sizes = [by_memory[gb].micro_batch for gb in (40, 64, 96)]
    assert sizes == sorted(set(sizes))
    assert all(by_memory[gb].lacking is None and 32 % by_memory[gb].micro_batch == 0 for gb in (40, 64, 96))
    (host,) = layout_choices(COMPARISONS["megatron-core"], case, 64, 4, Room("cuda", 96e9, 128e9))
    assert "its ranks make whole networks first" in str(host.lacking)


def test_on_a_calibrated_machine_our_grid_is_the_planners(tmp_path: Path) -> None:
    words = [
        "-c",
        "suites/baselines.py",
        "--system",
        "vcluster",
        "-n",
        "wide.*ddp",
        "--dry-run",
        "-S",
        "model=gpt-test",
    ]
    done = reframe(tmp_path, *words)
    assert done.code == 0, done.out
    (script,) = [file.read_text() for file in tmp_path.glob("stage/**/rfm_job.sh")]
    assert Grid.parse(option(script, "--grid")).size == 8
    assert option(script, "--layout") == "1x1x1x8"
    assert "--label 'grid_is=found by par4d plan'" in script


def test_on_one_machine_our_grid_is_the_one_that_moves_least_between_its_ranks(tmp_path: Path) -> None:
    done = reframe(tmp_path, "-c", "suites/baselines.py", "--system", "local", "-n", "gpt-pair-ddp", "--dry-run")
    assert done.code == 0, done.out
    (script,) = [file.read_text() for file in tmp_path.glob("stage/**/rfm_job.sh")]
    assert option(script, "--grid") == "2x1x1x1"
    assert "--label 'grid_is=chosen by the engine'" in script


def test_a_grid_that_the_series_fixes_is_not_said_to_be_chosen(tmp_path: Path) -> None:
    root = project(tmp_path)
    series = root / "suites" / "series.yaml"
    series.write_text(series.read_text().replace("  - name: deep\n", "  - name: deep\n    grids: [2x1x1x4]\n"))
    words = ["-c", "suites/baselines.py", "--system", "vcluster", "-n", "deep.*ddp", "--dry-run"]
    done = reframe(tmp_path, *words, root=root)
    assert done.code == 0, done.out
    (script,) = [file.read_text() for file in tmp_path.glob("stage/**/rfm_job.sh")]
    assert option(script, "--grid") == "2x1x1x4"
    assert "--label 'grid_is=fixed by the series after measuring several'" in script


def test_what_does_not_fit_takes_no_allocation_and_is_kept_as_a_row(tmp_path: Path) -> None:
    """Run for real: not on that system, but not as a job of it either."""
    words = ["-c", "suites/baselines.py", "--system", "frontier", "-n", "weak-64-gpt-5b-ddp", "-r"]
    done = reframe(tmp_path, *words, PAR4D_ACCOUNT="abc123")
    assert done.code == 0, done.out
    (script,) = [file.read_text() for file in tmp_path.glob("output/**/rfm_job.sh")]
    assert "#SBATCH" not in script
    assert "srun" not in script
    (case,) = done.cases()
    assert (case["nodes"], case["node_hours"]) == (0, 0)
    (kept,) = load([tmp_path / "results"]).contests
    (asked,) = kept.result.contests
    assert kept.result.comparisons == ()
    assert asked.missing == "ddp does not fit: needs 94.7 of 44.8 GB that a plan counts on of a device's 64."
    assert (asked.grid, asked.layout) == ("1x1x4x16", "1x1x1x64")


def test_a_job_is_told_both_sides_layouts(tmp_path: Path) -> None:
    words = ["-c", "suites/baselines.py", "--system", "frontier", "-n", "gpt-5b-.*megatron-core-tensor"]
    done = reframe(tmp_path, *words, PAR4D_ACCOUNT="abc123")
    assert done.code == 0, done.out
    (script,) = [file.read_text() for file in tmp_path.glob("stage/**/rfm_job.sh")]
    wanted = {"--peer": "megatron-core", "--layout": "tensor=8,data=8", "--device": "cuda", "--precision": "bf16"}
    for name, value in wanted.items():
        assert option(script, name) == value
    assert Grid.parse(option(script, "--grid")).size == 64
    assert "--checkpoint-activations" in script
    memory = {"--device-memory": "64000000000", "--node-memory": "512000000000", "--devices-per-node": "8"}
    assert {name: option(script, name) for name in memory} == memory
    assert " --apart " not in script, "which the engine decides"
    assert 1 <= int(option(script, "--micro-batch")) < 2048 // 8
    assert 1 <= int(option(script, "--peer-micro-batch")) <= 2048 // 8
    assert "--label study=baselines" in script
    assert "--label 'grid_is=chosen by the engine'" in script


@pytest.mark.slow
def test_what_has_no_environment_is_skipped_and_the_rest_is_kept(tmp_path: Path) -> None:
    words = [*LOCAL, "-n", "gpt-pair-(ddp|megatron-core-tensor)"]
    done = reframe(tmp_path, *words, root=project(tmp_path))  # a copy has no environments
    assert done.code == 0, done.out
    assert "megatron-core has no environment here: make it by ci/peers megatron-core." in done.out
    kept = {one.result.comparisons[0].peer: one for one in load([tmp_path / "results"]).contests}
    assert "ddp" in kept
    assert kept["ddp"].result.labels["study"] == "baselines"
    assert kept["ddp"].result.comparisons[0].layout == "1x1x1x2"
    case = next(case for case in done.cases() if case["record"] and "ddp" in case["display_name"])
    assert figures(case)["ratio"] == pytest.approx(kept["ddp"].result.comparisons[0].ratio)
