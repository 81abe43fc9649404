"""Baselines: which layouts of which peer run where, fit on both sides, cost what they may, and are kept."""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from running import figures, option, project, reframe, succeed

import systems
from engine.batch import Batch
from engine.errors import UsageError
from engine.footprint.fit import check_grid
from engine.footprint.memory import USABLE
from engine.grid import Grid
from engine.models.catalogue import lookup
from engine.models.flops import hardware_flops
from engine.peers import memory
from engine.peers.comparison import Case, Sampling, Unavailable
from engine.peers.layout import Layout, PeerLayout, check_split
from engine.peers.layout_choice import LayoutChoice, layout_choices
from engine.peers.memory import Room, choose_apart
from engine.peers.registry import ALONE, COMPARISONS
from engine.planning.rank import choose_grid
from engine.simulator.bandwidth import Bandwidths
from reports.read.load import load
from suites.base import contests
from suites.base.allocation import OF_LIMIT_TO_A_COLLECTIVE, OF_LIMIT_TO_MEET
from suites.base.contests import Match, case_of, matches, our_micro_batch, room
from suites.base.series import AUTO, Point, points

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
    assert by_memory[24].micro_batch == 1
    sizes = [by_memory[gb].micro_batch for gb in (40, 64, 96)]
    assert sizes == sorted(set(sizes))
    assert all(by_memory[gb].lacking is None and 32 % by_memory[gb].micro_batch == 0 for gb in (40, 64, 96))
    (host,) = layout_choices(COMPARISONS["colossalai"], case, 64, 4, Room("cuda", 96e9, 128e9))
    assert "make whole networks" in str(host.lacking)


def test_rivals_that_make_their_own_shard_need_neither_a_node_nor_a_device_for_a_whole_network() -> None:
    """Planted: the same peers, with whole networks on a host or a device as other libraries make them."""
    case = Case(lookup("gpt-80b"), Batch(2048), precision="bf16", checkpoint_every=1)
    machine = Room("cuda", 64e9, 512e9)
    for name in RIVALS:
        (parts,) = layout_choices(COMPARISONS[name], case, 1024, 8, machine)
        assert parts.lacking is None, parts.lacking
        habits = COMPARISONS[name].memory
        assert habits is not None
        assert habits.built == "parts"
        for where in ("host", "device"):
            whole = replace(COMPARISONS[name], memory=replace(habits, built=where))
            (found,) = layout_choices(whole, case, 1024, 8, machine)
            assert found.lacking is not None, where
    (bounded,) = layout_choices(COMPARISONS["deepspeed-zero3"], case, 128, 4, Room("cuda", 40e9))
    assert bounded.lacking is None, "it gathers no two blocks at once, of 7 GB"


def test_a_layout_of_a_series_that_does_not_divide_its_network_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the network as printed, whose vocabulary three tensor ranks don't divide."""
    point = next(one for one in points("baselines", "summit") if one.model == "gpt-12b-adjusted")
    planted = replace(point, model="gpt-12b")
    monkeypatch.setattr(contests, "points", lambda *_: [planted])
    with pytest.raises(UsageError, match="51200"):
        list(matches(systems.load("summit")))


def test_on_a_calibrated_machine_our_grid_is_the_planners(tmp_path: Path) -> None:
    words = ["-c", "suites/baselines.py", "--system", "vcluster", "-n", "wide.*ddp", "--dry-run"]
    script = succeed(tmp_path, *words, "-S", "model=gpt-test").script
    assert Grid.parse(option(script, "--grid")).size == 8
    assert option(script, "--layout") == "1x1x1x8"
    assert "'grid_is=found by par4d plan'" in script
    script = succeed(tmp_path / "given", *words, "-S", "model=gpt-test", "-S", "micro_batch=4").script
    assert "'grid_is=found by par4d plan'" in script
    assert option(script, "--micro-batch") == "4"
    check_grid(lookup("gpt-test"), Grid.parse(option(script, "--grid")), Batch(8, 4))


def test_on_one_machine_our_grid_is_the_one_that_moves_least_between_its_ranks(tmp_path: Path) -> None:
    words = ["-c", "suites/baselines.py", "--system", "local", "-n", "gpt-pair-ddp", "--dry-run"]
    script = succeed(tmp_path, *words).script
    assert option(script, "--grid") == "2x1x1x1"


def test_a_grid_that_the_series_fixes_is_not_said_to_be_chosen(tmp_path: Path) -> None:
    root = project(tmp_path)
    series = root / "suites" / "series.yaml"
    key = "    peer_micro_batches: [1, 2, 4] "
    series.write_text(series.read_text().replace(key, f"    grids: [2x1x1x4]\n{key}"))
    words = ["-c", "suites/baselines.py", "--system", "vcluster", "-n", "deep.*ddp", "--dry-run"]
    script = succeed(tmp_path, *words, root=root).script
    assert option(script, "--grid") == "2x1x1x4"
    assert "'grid_is=fixed by the series" in script


@pytest.mark.parametrize(
    ("of_series", "given", "expected"), [("no", [], False), ("yes", [], True), ("no", ["yes"], True)]
)
def test_a_step_is_parted_where_the_series_or_the_user_says_so(
    of_series: str, given: list[str], expected: bool, tmp_path: Path
) -> None:
    root = project(tmp_path)
    series = root / "suites" / "series.yaml"
    key = "    peer_micro_batches: [1, 2, 4] "
    series.write_text(series.read_text().replace(key, f"    breakdown: {of_series}\n{key}"))
    words = ["-c", "suites/baselines.py", "--system", "vcluster", "-n", "deep.*ddp", "--dry-run"]
    words += ["-S", "grid=2x1x1x4", *(word for value in given for word in ("-S", f"breakdown={value}"))]
    assert (" --breakdown" in succeed(tmp_path, *words, root=root).script) is expected


def test_what_does_not_fit_takes_no_allocation_and_is_kept_as_a_row(tmp_path: Path) -> None:
    """The test runs here, without a job of that system."""
    words = ["-c", "suites/baselines.py", "--system", "frontier", "-n", "weak-64-gpt-5b-ddp", "-r"]
    done = succeed(tmp_path, *words, PAR4D_ACCOUNT="abc123")
    (script,) = [file.read_text() for file in tmp_path.glob("output/**/rfm_job.sh")]
    assert "#SBATCH" not in script
    assert "srun" not in script
    (case,) = done.cases()
    assert (case["nodes"], case["node_hours"]) == (0, 0)
    (kept,) = load([tmp_path / "results"]).contests
    (asked,) = kept.result.contests
    assert kept.result.comparisons == ()
    assert re.match(r"ddp .*\b94\.7 of 44\.8\b", asked.missing or "")
    assert (asked.grid, asked.layout) == ("1x1x4x16", "1x1x1x64")


def test_a_job_is_told_both_sides_layouts(tmp_path: Path) -> None:
    words = ["-c", "suites/baselines.py", "--system", "frontier", "-n", "gpt-5b-.*megatron-core-tensor"]
    script = succeed(tmp_path, *words, PAR4D_ACCOUNT="abc123").script
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
    assert "'grid_is=chosen by the engine'" in script


@pytest.mark.parametrize(
    ("system", "name", "settings", "wanted"),
    [
        (
            "summit", "axonn-ipdps22-weak-96-.*megatron", ("-S", "loss_scale=1024"),
            {"--layout": "tensor=3,pipeline=16,data=2", "--peer-micro-batch": "1", "--model": "gpt-24b-adjusted",
             "--batch-size": "16384", "--precision": "fp16", "--loss-scale": "1024", "--warmup": "1",
             "--timeout": "1125"},
        ),
        (
            "frontier", "par4d-strong-64-.*3d", (),
            {"--layout": "tensor=8,pipeline=2,data=4", "--model": "gpt-80b", "--batch-size": "2048",
             "--precision": "bf16", "--warmup": "1", "--timeout": "1650", "--meeting-timeout": "3300"},
        ),
    ],
)  # fmt: skip
def test_a_rivals_job_has_its_papers_layout_and_waits_for_steps_of_minutes(
    system: str, name: str, settings: tuple[str, ...], wanted: dict[str, str], tmp_path: Path
) -> None:
    words = ["-c", "suites/baselines.py", "--system", system, "-n", name, *settings, "--dry-run"]
    script = succeed(tmp_path, *words, PAR4D_ACCOUNT="abc123").script
    wanted = wanted | {"--rounds": "2", "--steps-per-round": "1"}
    assert {key: option(script, key) for key in wanted} == wanted


@pytest.mark.slow
def test_what_has_no_environment_is_skipped_and_the_rest_is_kept(tmp_path: Path) -> None:
    words = [*LOCAL, "-n", "gpt-pair-(ddp|megatron-core-tensor)"]
    done = reframe(tmp_path, *words, root=project(tmp_path))  # a copy has no environments
    assert done.code == 0, done.out
    assert "ci/peers megatron-core" in done.out
    kept = {one.result.comparisons[0].peer: one for one in load([tmp_path / "results"]).contests}
    assert "ddp" in kept
    assert kept["ddp"].result.labels["study"] == "baselines"
    assert kept["ddp"].result.comparisons[0].layout == "1x1x1x2"
    case = next(case for case in done.cases() if case["record"] and "ddp" in case["display_name"])
    assert figures(case)["ratio"] == pytest.approx(kept["ddp"].result.comparisons[0].ratio)


NODE_HOURS = 2060
"""As suites/README.md has it."""
OF_RIVALS = 2000
"""Of each system's GPTs against all rivals of a paper, repeats included."""
RIVALS = ("megatron-core", "deepspeed-3d", "deepspeed-zero3")
OF_PEAK = 1 / 3
OF_THE_LIMIT = 0.8
"""Of a job's time, what steps may take at that share of the peak: the rest is for starting and making networks."""
BUILDS = 3
"""Of ours before the peer and after it, and of the peer: each is warmed up."""


@cache
def every(name: str) -> list[Match]:
    """Return all matches of a system."""
    return list(matches(systems.load(name)))


def held(name: str) -> list[Match]:
    """Return the matches that fit."""
    return [match for match in every(name) if match.fits]


def our_grid(point: Point, system: systems.System) -> Grid:
    """As the engine chooses it where the series doesn't."""
    if point.grid != AUTO:
        return Grid.parse(point.grid)
    device, node, case = system.device, system.node, case_of(point, system)
    training = replace(case, reduce_dtype=None)
    inter, within = node.nic_bytes_per_s, node.intra_node_bytes_per_s
    per_node = node.devices.value if node.devices else 1
    nics = node.nics.value if node.nics else 1
    bandwidths = Bandwidths(per_node, inter=nics * inter.value, within=within.value) if inter and within else None
    bytes_ = device.memory_bytes.value if device.memory_bytes else None
    return choose_grid(
        training,
        point.devices,
        device=case.device,
        devices_per_node=per_node,
        device_memory=bytes_,
        bandwidths=bandwidths,
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", systems.names())
def test_our_side_of_every_baseline_divides_the_network_and_fits(name: str) -> None:
    system = systems.load(name)
    for point in points("baselines", name):
        case, grid = case_of(point, system), our_grid(point, system)
        micro = our_micro_batch(case, grid, room(system))
        case = replace(case, batch=Batch(point.sequences, micro))
        needs = memory.ours(case, grid, system.device.kind)
        assert case.despite_estimate or room(system).fits(needs), f"{point} on {grid} needs {needs / 1e9:.1f} GB"
        assert grid.size == point.devices
        check_grid(case.model, grid, case.batch)


@pytest.mark.parametrize("name", systems.names())
def test_every_peer_of_a_baseline_divides_the_network_and_fits(name: str) -> None:
    system = systems.load(name)
    assert held(name)
    for match in held(name):
        case, layout = replace(case_of(match.point, system), peer_micro_batch=match.micro_batch), match.layout
        assert layout.size == match.point.devices
        contest = COMPARISONS[match.peer].with_layout(layout, Grid(data=layout.size))
        contest.check(case.model)
        if isinstance(layout, Layout):
            layout.for_batch(case.peer_batch).check(case.model, case.batch.sequences)
        else:
            check_split(case.model, layout, case.peer_batch)
        needs = memory.peer(contest, case, system.device.kind)
        assert case.despite_estimate or room(system).fits(needs), f"{match} needs {needs / 1e9:.1f} GB"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", systems.names())
def test_the_command_holds_every_baseline_that_fits_and_says_why_it_holds_no_other(name: str) -> None:
    system, grids = systems.load(name), dict[str, Grid]()
    for match in every(name):
        point = match.point
        grid = grids[str(point)] = grids.get(str(point)) or our_grid(point, system)
        case = replace(
            case_of(point, system),
            batch=Batch(point.sequences, our_micro_batch(case_of(point, system), grid, room(system))),
            peer_micro_batch=match.micro_batch,
            devices_per_node=system.node.devices.value if system.node.devices else None,
        )
        contest = COMPARISONS[match.peer].with_layout(match.layout, grid)
        assert case.despite_estimate == point.series.known_to_fit
        if match.fits:
            assert choose_apart(contest, case, room(system)).apart in (True, False)
        else:
            with pytest.raises(Unavailable, match=r"[\d.]+ of [\d.]+ GB"):
                choose_apart(contest, case, room(system))


@pytest.mark.parametrize("name", ["frontier", "local", "perlmutter", "vcluster"])
def test_every_u_net_is_compared_with_zero_3_fsdp2_and_ddp(name: str) -> None:
    peers: dict[str, set[str]] = {}
    for match in every(name):
        if match.point.series.name == "unet":
            peers.setdefault(str(match.point), set()).add(match.peer)
    assert set(map(str, points("baselines", name))) >= set(peers) != set()
    assert all(found == {"deepspeed-zero3", "fsdp2", "ddp"} for found in peers.values()), peers


@pytest.mark.parametrize("name", ["alps", "frontier", "perlmutter"])
def test_stages_of_a_large_pipeline_are_hardly_idle(name: str) -> None:
    piped = [(m, m.layout) for m in held(name) if isinstance(m.layout, Layout) and m.layout.pipeline > 1]
    large = [(match, layout) for match, layout in piped if match.point.devices == 64]
    assert large
    for match, layout in large:
        parts = match.point.sequences / layout.data / match.micro_batch
        assert (layout.pipeline - 1) / (parts + layout.pipeline - 1) <= 0.05, f"{match} in {parts} micro-batches"


def node_hours(match: Match, system: systems.System) -> float:
    per_node = system.node.devices.value if system.node.devices else match.point.devices
    limit = match.point.time_limit or system.partitions[0].time_limit
    return -(-match.point.devices // per_node) * systems.seconds(limit) / 3600


@pytest.mark.parametrize("name", systems.names())
def test_a_whole_series_of_baselines_takes_no_more_node_hours_than_the_readme_says(name: str) -> None:
    assert sum(node_hours(match, systems.load(name)) for match in held(name)) <= NODE_HOURS


@pytest.mark.parametrize(("name", "figures"), [("frontier", 2), ("perlmutter", 2), ("summit", 2)])
def test_rivals_of_the_papers_cost_what_they_may_with_all_repeats(name: str, figures: int) -> None:
    repeated = [match for match in held(name) if match.point.series.peers and {*match.point.series.peers} <= {*RIVALS}]
    assert {match.point.series.repeats for match in repeated} == {3}
    assert len({match.point.series.name for match in repeated}) == figures
    assert sum(3 * node_hours(match, systems.load(name)) for match in repeated) <= OF_RIVALS


@pytest.mark.parametrize("name", ["alps", "frontier", "perlmutter", "summit"])
def test_the_steps_of_both_sides_end_well_within_the_time_limit(name: str) -> None:
    device = systems.load(name).device
    for match in held(name):
        point = match.point
        flops = hardware_flops(lookup(point.model), point.sequences, recompute=True)
        step_s = flops / (point.devices * OF_PEAK * device.peak_flops[point.series.precision].value)
        series, limit = point.series, point.time_limit
        warmup = series.warmup if "warmup" in series.model_fields_set else Sampling().warmup
        steps = BUILDS * warmup + 2 * series.steps_per_round * series.rounds
        steps += 2 * (series.steps_per_round + 1) * series.breakdown
        assert limit is not None
        limit_s = systems.seconds(limit)
        assert steps * step_s <= OF_THE_LIMIT * limit_s, f"{match}: {steps} of {step_s:.0f} s"
        assert series.steps_per_round * step_s <= OF_LIMIT_TO_A_COLLECTIVE * limit_s, match
        assert warmup * step_s <= OF_THE_LIMIT * OF_LIMIT_TO_MEET * limit_s, match


@pytest.mark.parametrize("name", ["alps", "frontier", "perlmutter"])
def test_every_library_is_compared_at_a_moderate_size_and_the_best_few_at_the_largest(name: str) -> None:
    for match in held(name):
        contest = COMPARISONS[match.peer].with_layout(match.layout, Grid(data=match.layout.size))
        assert contest.lacking(lookup(match.point.model), recompute=True) is None, "no rank would be started"
    moderate = {match.peer for match in held(name) if match.point.devices == 64}
    libraries = {contest.library for contest in COMPARISONS.values()} - {None, "litgpt"}  # which recomputes nothing
    assert {COMPARISONS[peer].library for peer in moderate} >= libraries
    largest = max(match.point.devices for match in held(name))
    for point in {str(match.point) for match in held(name) if match.point.devices == largest}:
        assert 1 <= len({match.peer for match in held(name) if str(match.point) == point}) <= 3
    on_a_node = {match.peer for match in held(name) if match.point.devices <= 8}
    assert {COMPARISONS[peer].library for peer in on_a_node} >= libraries


@pytest.mark.parametrize("name", systems.names())
def test_no_grid_of_ours_is_fixed_by_hand_and_each_side_goes_first_in_half_of_the_rounds(name: str) -> None:
    for point in points("baselines", name):
        assert (point.grid, point.series.rounds % 2) == (AUTO, 0), point


@pytest.mark.parametrize("name", systems.names())
def test_contests_of_peers_on_our_grids_fit_on_both_sides(name: str) -> None:
    system = systems.load(name)
    for point in points("peers", name):
        case, grid = case_of(point, system), Grid.parse(point.grid)
        for contest in COMPARISONS.values():
            beyond = [axis for axis in "xyz" if getattr(grid, axis) > 1 and axis not in contest.axes]
            if contest.splits or contest.name in ALONE or beyond or (grid.data > 1 and "data" not in contest.axes):
                continue
            batch = Batch(point.sequences)
            check_grid(case.model, grid, batch)
            whole = Case(case.model, batch, precision=case.precision)  # that study keeps activations
            found = memory.side_bytes(contest.with_grid(grid), whole, system.device.kind)
            assert room(system).fits(max(found)), f"{point} with {contest.name}"


@pytest.mark.parametrize("name", systems.names())
def test_contests_on_one_device_fit_on_both_sides(name: str) -> None:
    system = systems.load(name)
    for point in points("single_device", name):
        model = lookup(point.model)
        if point.series.sequence:
            model = replace(model, sequence=point.series.sequence)  # type: ignore[type-var]
        case = Case(model, Batch(point.sequences), precision=point.series.precision)
        for peer in ALONE:
            found = memory.side_bytes(COMPARISONS[peer], case, system.device.kind)
            assert room(system).fits(max(found)), f"{point} with {peer}"
