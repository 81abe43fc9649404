"""The user's literal command on a machine that is none of the systems: the job scripts say what matters."""

import re
from pathlib import Path

import pytest
from running import Run, limit_s, option, options, ranks, reframe, succeed, tells_a_hang_in_time

import systems
from engine.grid import Grid
from suites.base.series import points

REMOTE = ["alps", "frontier", "perlmutter", "perlmutter80", "summit"]
MINUTES = {"night": 4, "night-unet": 3, "axonn-ipdps22": 90, "axonn-ipdps22-table-2": 90}
OF_OTHERS = 30


def minutes_of(script: str) -> int:
    """The time limit that the series of the script has."""
    (series,) = {label for label in options(script, "--label") if label.startswith("series=")}
    return MINUTES.get(series.removeprefix("series="), OF_OTHERS)


@pytest.fixture(scope="module", params=REMOTE)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Run]:
    """The command that a user types, word for word, with an account in the environment."""
    name = request.param
    command = ["-c", "suites/weak_scaling.py", "--system", name]
    return name, reframe(tmp_path_factory.mktemp(name), *command, PAR4D_ACCOUNT="abc123")


def test_it_says_that_it_is_a_dry_run_and_succeeds(run: tuple[str, Run]) -> None:
    name, done = run
    assert done.code == 0, done.out
    assert f"is not {name}" in done.err
    assert all(not case["record"] for case in done.cases())


def test_it_ends_with_where_the_scripts_are_and_what_they_cost_at_most(run: tuple[str, Run]) -> None:
    name, done = run
    (told,) = re.findall(r"(\d+) job scripts below (\S+); .* ([\d,]+\.\d) node-hours", done.out)
    files = list(done.folder.glob("stage/**/rfm_job.sh"))
    assert int(told[0]) == len(files)
    assert all(file.is_relative_to(told[1]) for file in files)
    nodes = "-nnodes" if name == "summit" else "--nodes"
    spent = sum(int(option(script, nodes)) * limit_s(script) for script in map(Path.read_text, files))
    assert float(told[2].replace(",", "")) == pytest.approx(spent / 3600, abs=0.05)


def test_there_is_a_script_for_every_point_with_its_model_and_a_grid_of_its_ranks(run: tuple[str, Run]) -> None:
    name, done = run
    expected = {(point.devices, f"series={point.series.name}"): point for point in points("weak_scaling", name)}
    found = {(ranks(script), label): script for script in done.trainings for label in options(script, "--label")}
    assert {place for place in found if place[1].startswith("series=")} == set(expected)
    for (number, series), point in expected.items():
        script = found[number, series]
        assert option(script, "--model") == point.model
        assert option(script, "--batch-size") == str(point.sequences)
        assert option(script, "--precision") == point.series.precision
        assert Grid.parse(option(script, "--grid")).size == number
        assert option(script, "--iterations") == str(point.series.iterations)
        assert option(script, "--warmup") == str(point.series.warmup)
        assert option(script, "--data") == "synthetic"
        again = "--checkpoint-activations" in script or "--checkpoint-every auto" in script
        assert again is (point.series.training.recomputed_together != 0)
        for label in ("study=weak_scaling", f"system={name}", "partition=gpu", f"series={point.series.name}"):
            assert f"--label {label}" in script


def test_ranks_are_spread_over_whole_nodes_one_rank_a_device(run: tuple[str, Run]) -> None:
    name, done = run
    devices = systems.load(name).node.devices
    assert devices is not None
    for number, script in done.scripts.items():
        if name == "summit":
            assert int(option(script, "-nnodes")) * devices.value == number
            assert option(script, "--rs_per_host") == str(devices.value)
            assert option(script, "--tasks_per_rs") == option(script, "--gpu_per_rs") == "1"
        else:
            assert int(option(script, "--nodes")) * devices.value == number
            assert option(script, "--ntasks-per-node") == str(devices.value)
            assert option(script, "--gpus-per-node") == str(devices.value)


def test_account_time_limit_and_queue_are_asked_for(run: tuple[str, Run]) -> None:
    name, done = run
    asked = {
        "alps": ["#SBATCH --account=abc123", "#SBATCH --time=0:{minutes}:0", "#SBATCH --partition=normal"],
        "frontier": ["#SBATCH --account=abc123", "#SBATCH --time=0:{minutes}:0", "#SBATCH --partition=batch"],
        "perlmutter": ["#SBATCH --account=abc123", "#SBATCH --time=0:{minutes}:0", "#SBATCH --qos=regular"],
        "perlmutter80": ["#SBATCH --account=abc123", "#SBATCH --time=0:{minutes}:0", "#SBATCH --qos=regular"],
        "summit": ["#BSUB -P abc123", "#BSUB -W {minutes}"],
    }
    cards = {"perlmutter": ["gpu&hbm40g"], "perlmutter80": ["gpu&hbm80g"]}.get(name, [])
    for script in done.scripts.values():
        assert options(script, "--constraint") == cards, "of one size only"
        lines = [line.format(minutes=minutes_of(script)) for line in asked[name]]
        assert [line for line in lines if line not in script.splitlines()] == []


def test_a_training_that_hangs_says_so_before_its_job_ends(run: tuple[str, Run]) -> None:
    _, done = run
    assert all(tells_a_hang_in_time(script) for script in done.trainings)
    timeouts = {(minutes_of(script), option(script, "--timeout")) for script in done.trainings}
    assert timeouts >= {(4, "60")}
    assert timeouts <= {(3, "45"), (4, "60"), (OF_OTHERS, "300"), (90, "300")}


def test_the_launch_line_starts_with_the_systems_launcher(run: tuple[str, Run]) -> None:
    name, done = run
    of_perlmutter = [
        "srun",
        "--cpus-per-task=32",
        "--gpu-bind=none",
        "--kill-on-bad-exit=1",
        "--cpu-bind=map_ldom:3,2,1,0",
    ]
    starts = {
        "alps": ["srun", "--cpus-per-task=72", "--gpu-bind=none", "--cpu-bind=cores", "--kill-on-bad-exit=1"],
        "frontier": ["srun", "--cpus-per-task=7", "--gpus-per-task=1", "--gpu-bind=closest"],
        "perlmutter": of_perlmutter,
        "perlmutter80": of_perlmutter,
        "summit": ["jsrun", "--nrs"],
    }
    for script in done.scripts.values():
        words = re.split("(?<=--nrs)=| +", script.splitlines()[-1])
        assert words[: len(starts[name])] == starts[name]
        assert " -m engine train " in script.splitlines()[-1]


def test_the_advertised_peak_and_the_memory_are_those_of_the_file(run: tuple[str, Run]) -> None:
    name, done = run
    device = systems.load(name).device
    assert device.memory_bytes is not None
    for script in done.scripts.values():
        peak = device.peak_flops[option(script, "--precision")]
        assert float(option(script, "--peak-flops")) == pytest.approx(peak.value, rel=1e-5)
        assert float(option(script, "--device-memory")) == device.memory_bytes.value


def test_ranks_that_do_not_fill_a_node_are_bound_by_no_map_of_all_its_domains(tmp_path: Path) -> None:
    done = succeed(tmp_path, "-c", "suites/peak.py", "--system", "perlmutter80", "-n", "Peak")
    lines = [script.splitlines()[-1] for script in done.jobs("bench gemm")]
    assert lines
    assert all(line.startswith("srun --cpus-per-task=32 --gpu-bind=none --kill-on-bad-exit=1 ") for line in lines)
    assert not any("map_ldom" in line for line in lines), "Slurm would end such a job"


def test_peak_and_validation_ask_for_whole_nodes_or_one_device(tmp_path: Path) -> None:
    words = ["-c", "suites/validation.py", "-c", "suites/peak.py", "-x", "Against"]
    done = succeed(tmp_path, *words, "--system", "frontier")
    assert set(done.scripts) == {1, 12, 16}
    assert {option(script, "--model") for script in done.trainings} == {"gpt2-125m", "unet-50m"}
    assert option(done.scripts[16], "--nodes") == "2"
    assert option(done.scripts[16], "--grid") == "2x2x2x2"
    assert option(done.scripts[12], "--grid") == "1x1x1x6p2"
    assert option(done.scripts[1], "--gpus-per-node") == "1"
    assert all(tells_a_hang_in_time(script) for script in done.trainings)
    every = [file.read_text() for file in tmp_path.glob("stage/**/rfm_job.sh")]
    gemm = done.jobs("bench gemm")
    assert {option(script, "--dtype") for script in gemm} == {"bf16", "fp32", "fp64"}
    wanted = {"--sizes": "1024..65536", "--device": "cuda", "--time-budget": "90"}
    assert all({name: option(script, name) for name in wanted} == wanted for script in gemm)
    assert len(done.jobs("bench memory")) == len(done.jobs("bench latency")) == 1
    assert all(option(script, "--gpus-per-node") == "1" for script in done.jobs("bench"))
    data = [*done.jobs("data prepare"), *done.jobs("data prepare-images")]
    assert len(data) == 2
    assert {script for script in every if "#SBATCH --time=" not in script} == set(data), "they take no node"
    assert all(ranks(script) in (1, 12, 16) for script in every)


def test_losses_are_set_beside_the_papers_own_data_parallelism(tmp_path: Path) -> None:
    done = succeed(tmp_path, "-c", "suites/validation.py", "-n", "Against", "--system", "frontier")
    words = ("--peer", "--layout", "--model", "--batch-size", "--precision")
    assert sorted(tuple(option(script, word) for word in words) for script in done.jobs("bench peers")) == [
        ("ddp", "1x1x1x16", "unet-50m", "128", "fp32"),
        ("megatron-core", "data=16", "gpt2-125m", "16", "fp32"),
    ]


LONG = ["-c", "suites/long_validation.py", "--system", "frontier"]


def test_long_curves_ask_for_the_users_data_and_have_the_papers_lengths(tmp_path: Path) -> None:
    without = reframe(tmp_path / "without", *LONG)
    assert without.code == 1
    assert re.search(r"-S data=DIR.*par4d data prepare", without.out)
    assert not without.scripts
    done = succeed(tmp_path / "with", *LONG, "-S", "data=/home/me/data", PAR4D_ACCOUNT="abc123")
    words = ("--model", "--grid", "--iterations", "--lr-decay-steps", "--precision")
    rates = {script: next(iter(options(script, "--learning-rate")), "0.0003") for script in done.trainings}
    assert sorted((*(option(script, word) for word in words), rates[script]) for script in rates) == [
        ("gpt2-125m", "1x1x1x12", "20000", "20000", "fp16", "0.001"),
        ("gpt2-125m", "1x1x1x16", "14000", "14000", "bf16", "0.0003"),
        ("gpt2-125m", "1x1x1x6p2", "20000", "20000", "fp16", "0.001"),
        ("gpt2-125m", "2x2x2x2", "14000", "14000", "bf16", "0.0003"),
        ("unet-50m", "1x1x1x16", "12000", "12000", "bf16", "0.0001"),
        ("unet-50m", "2x2x2x2", "12000", "12000", "bf16", "0.0001"),
    ]
    oldest = {option(script, "--beta2") for script in done.trainings if option(script, "--precision") == "fp16"}
    assert oldest == {"0.999"}
    assert all(option(script, "--data") == "/home/me/data" for script in done.trainings)
    assert all(tells_a_hang_in_time(script) for script in done.trainings)
    listed = reframe(tmp_path / "listed", *LONG, "-S", "data=/home/me/data", "-l")
    assert "24.0 node-hours" in listed.out


def test_images_are_made_of_all_that_a_training_keeps(tmp_path: Path) -> None:
    done = succeed(tmp_path, "-c", "suites/samples.py", "--system", "frontier", PAR4D_ACCOUNT="abc123")
    (training,) = done.trainings
    iterations, every = (int(option(training, word)) for word in ("--iterations", "--save-every"))
    assert int(option(training, "--lr-decay-steps")) == iterations
    made = {option(script, "--resume").rpartition("-")[2] for script in done.jobs("sample")}
    assert made == set(map(str, range(every, iterations + 1, every)))
    assert len(made) == 4


def test_a_device_is_measured_in_what_it_has_a_peak_of_and_in_what_is_asked_for(tmp_path: Path) -> None:
    one = ["-c", "suites/peak.py", "-n", "Peak", "--system"]
    formats = [
        {option(script, "--dtype") for script in reframe(tmp_path / name, *one, *words).jobs("bench gemm")}
        for name, words in {"old": ["summit"], "asked": ["alps", "-P", "dtype=tf32"]}.items()
    ]
    assert formats == [{"fp32", "fp64"}, {"tf32"}]


def test_a_grid_that_cant_work_fails_with_the_engines_sentence_before_any_script_is_written(tmp_path: Path) -> None:
    done = reframe(tmp_path, "-c", "suites/weak_scaling.py", "--system", "frontier", "-n", "512", "-S", "grid=3x1x1x1")
    assert done.code == 1
    assert re.search("refused: .*3x1x1x1 .*512", done.out)
    assert not done.scripts
    assert "node-hours" not in done.out


def test_an_overlap_that_cant_work_is_refused_the_same_way(tmp_path: Path) -> None:
    one = ["-c", "suites/weak_scaling.py", "--system", "frontier", "-n", "par4d-64-"]
    unknown = reframe(tmp_path / "unknown", *one, "-S", "overlap=oar,ogs")
    assert unknown.code == 1
    assert re.search("refused: --overlap .*'ogs'", unknown.out)
    large = reframe(tmp_path / "large", *one, "-S", "overlap=cache=25")
    assert re.search("gpt-5b .*cache=24", large.out)
    assert not unknown.trainings + large.trainings


OTHERS = {
    "llama-3.2-1b": (
        ["weak_scaling", "strong_scaling", "overlap_ablation", "validation", "single_device"],
        "Weak.*sc24-512-gpt|Strong.*sc24-512-|Overlap.*gpt-5b|^Validation|Single.*gpt3-1.3b",
    ),
    "unet-250m": (["validation", "samples"], "."),
}


@pytest.mark.parametrize("model", OTHERS)
def test_suites_take_a_network_of_another_architecture(model: str, tmp_path: Path) -> None:
    names, selected = OTHERS[model]
    suites = [word for name in names for word in ("-c", f"suites/{name}.py")]
    asked = ["-S", f"model={model}", "-n", selected]
    succeed(tmp_path, *suites, "--system", "frontier", *asked, PAR4D_ACCOUNT="abc123")
    scripts = [path.read_text() for path in tmp_path.rglob("rfm_job.sh")]
    assert all(tells_a_hang_in_time(script) for script in scripts if " -m engine data " not in script)
    lines = [script.splitlines()[-1] for script in scripts]
    trained = [line for line in lines if "--model" in line]
    assert {option(line, "--label") for line in trained} == {f"study={name}" for name in names}
    assert all(f"--model {model}" in line for line in trained)
    labelled = [line for line in trained if "series=" in line]
    assert all(f"with {model}" in line for line in labelled), "these are no points of the published series"


def test_everything_of_a_paper_s_run_is_in_the_script_and_each_option_can_be_set(tmp_path: Path) -> None:
    one = ("-c", "suites/weak_scaling.py", "--system", "frontier", "-n", "axonn-sc24-512-")
    first, second = _engine_lines(succeed(tmp_path / "paper", *one, PAR4D_ACCOUNT="abc123").script)
    published = {"--overlap": "oar,ors,oag", "--iterations": "10", "--warmup": "2", "--precision": "bf16"}
    assert {name: option(first, name) for name in published} == published
    assert {name: option(second, name) for name in published} == published | {"--overlap": "all"}
    assert "--tune-matmul" in first
    assert "variant=overlap all" in second
    given = {
        **{"overlap": "oar,ors", "iterations": "9", "warmup": "4", "precision": "fp32", "checkpoint_every": "2"},
        **{"learning_rate": "0.002", "beta1": "0.8", "beta2": "0.9", "weight_decay": "0.2", "clip": "0.5"},
        **{"warmup_steps": "3", "decay_steps": "4"},
    }
    words = [word for name, value in given.items() for word in ("-S", f"{name}={value}")]
    off = ("-S", "tune_matmul=no", "-S", "also_overlap=off")
    (line,) = _engine_lines(succeed(tmp_path / "other", *one, *words, *off, PAR4D_ACCOUNT="abc123").script)
    named = {f"--{name.replace('_', '-')}": value for name, value in given.items()}
    named |= {f"--lr-{name}": named.pop(f"--{name}") for name in ("warmup-steps", "decay-steps")}
    assert {name: option(line, name) for name in named} == named
    assert "--tune-matmul" not in line


@pytest.mark.parametrize(
    ("suite", "point"),
    [
        ("weak_scaling", "axonn-sc24-512-"),
        ("overlap_ablation", "axonn-sc24-8192-gpt-5b"),
        ("baselines", "weak-64-.*hsdp"),
    ],
)
def test_a_micro_batch_and_no_recomputation_can_be_set(suite: str, point: str, tmp_path: Path) -> None:
    words = ("-c", f"suites/{suite}.py", "--system", "frontier", "-n", point)
    given = ("-S", "micro_batch=1", "-S", "checkpoint_every=0", "-S", "model=gpt-local-4")
    lines = _engine_lines(_one_of(succeed(tmp_path, *words, *given, PAR4D_ACCOUNT="abc123")))
    assert {option(line, "--micro-batch") for line in lines} == {"1"}
    assert not any("--checkpoint" in line for line in lines)


def _one_of(done: Run) -> str:
    return min(file.read_text() for file in done.folder.glob("stage/**/rfm_job.sh"))


def _engine_lines(script: str) -> list[str]:
    return [line for line in script.splitlines() if " -m engine " in line]
