"""Fixtures of the report's tests: a folder of results, and a site built from it."""

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from sample_ablation import OWN_CORES, SHARED, ablation, with_sides
from sample_checks import check, save_checks
from sample_contests import ONE_DEVICE, RATIOS, baseline, baselines, contests, one_device, save_contests
from sample_devices import latency, links, memory, transfers
from sample_images import images
from sample_nights import hostile_nights, referred, slowed, store
from sample_pipelines import hostile, pipeline
from sample_predictions import hostile_predictions, plan, save_predictions
from sample_predictions import validation as validated
from sample_results import ALL, energy, gemm, save, series, strong, train, validation
from sample_systems import LONGEST, MANY, names, of_system
from sample_tuning import EVEN, tuning, untuned

from engine.peers.layout import Layout
from engine.result.schema.contest import OverlapSide
from engine.result.schema.peers import Peaks, PeersResult
from reports.site import build
from systems import references

HOSTILE = "<script>document.title='ran'</script><img src=x onerror=\"document.title='ran'\">"
HOSTILES = (HOSTILE, "=1+1", "../../etc/passwd", "$\\frac{1}$", "x" * 500, "a\x00b\u202ec", "]]>--></svg></style>")


def built_once(name: str, folders: Sequence[Path], factory: pytest.TempPathFactory) -> Path:
    """A report of the results, by whichever worker comes first."""
    base = factory.getbasetemp()
    out = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    with out.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (out / "index.html").exists():  # which is written last
            build(folders, out)
    return out


@pytest.fixture
def own_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """References are kept in a folder of the test's own."""
    monkeypatch.setattr(references, "FOLDER", tmp_path / "references")


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of everything: two series, failures, overlaps, strong scaling, validation, peaks, unreadable files."""
    folder = tmp_path_factory.mktemp("results")
    made = [
        *series("frontier"),
        *series("local"),
        *validation(),
        *(images(steps, job=700 + steps) for steps in (250, 500, 1000, 2000)),
        gemm(),
        gemm(system="local", partition="cpu", dtype="fp32", best=95e9),
        gemm(system="local", partition="cpu", dtype="fp32", best=31e9, ranks=4, job=1),
        *(memory(job=job) for job in range(2)),
        links(),
        transfers(),
        latency(),
        memory(system="local", partition="cpu", triad=9e9, array_bytes=2**20, cache_bytes=2**25),
        latency(system="local", partition="cpu"),
        *ablation(jobs=2, machine=SHARED),
        *ablation(grid="1x1x2x1", machine=OWN_CORES, hosts=2, job=290),
        *ablation(grid="2x1x2x2", overlaps=["none", ALL], job=300),
        *strong(points=4),
        *pipeline(jobs=2),
        *pipeline(slow_stage=1, job=10),
    ]
    counted = energy({"node": 9e5, "device": 7e5})
    made += [train(ranks=ranks, study="by hand", energy=counted, job=500 + ranks) for ranks in (512, 1024)]
    products, even = tuning(job=500), tuning(system="local", partition="cpu", dtype="fp32", rates=EVEN, job=501)
    made += [products, even, tuning(model="gpt-5b", grid="4x1x1x16", failure="no GPU is visible", job=502)]
    made.append(train(ranks=16384, model="gpt-160b", grid="8x8x32x8", failure="rank 3 was killed", job=400))
    paths = save(made, folder)
    own = [untuned(products, job=8), untuned(even, ratio=1.004, job=9)]
    held = [*own, contests(), contests(("fsdp2",), failure="rank 1 of hsdp died", job=7)]
    held += [baselines(baseline(1.2, Layout(tensor=2)), baseline(0.9, Layout(data=2)), job=30)]
    held += [one_device(job=20), one_device("llama-local", job=21, missing=True)]
    held.append(
        one_device(
            "llama-3.2-1b", job=22, system="perlmutter", device="cuda", dtype="bf16", step_s=0.001, peaks=Peaks()
        )
    )
    save_contests(held, folder)
    save_checks([check(), check("AMD EPYC", cpu=True, job=1)], folder)
    save_predictions([plan(simulated=False, model="gpt-5b", devices=512), plan(), validated()], folder)
    Path(folder, "cut.json").write_text(paths[0].read_text()[:200])
    return folder


@pytest.fixture(scope="session")
def site(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of them."""
    return built_once("site", [results], tmp_path_factory)


@pytest.fixture(scope="session")
def many_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of many systems with matrix products, and of two of them with trainings."""
    folder = tmp_path_factory.mktemp("many")
    known = names(MANY)
    products = [gemm(system=name, best=1e12 * (place + 1), job=place) for place, name in enumerate(known)]
    places = (known.index("perlmutter"), known.index(LONGEST))
    trained = [run for place in places for run in of_system(known[place], place, jobs=1, every_study=False)]
    save([*products, *trained], folder)
    return built_once("many_site", [folder], tmp_path_factory)


def hostile_lanes(variant: OverlapSide, name: str) -> OverlapSide:
    """The variant with this name for one of its axes, lanes and phases, and times that no clock shows."""
    breakdown, timeline = variant.breakdown, variant.timeline
    assert breakdown
    assert breakdown.bound
    axes = (breakdown.axes[0].model_copy(update={"axis": name}), *breakdown.axes[1:])
    phases = (breakdown.phases[0].model_copy(update={"name": name, "exposed_s": 1e308}), *breakdown.phases[1:])
    if timeline:
        first, second, *others = timeline.spans
        odd = (first.model_copy(update={"lane": name, "name": name}), second.model_copy(update={"end_s": 0.0}))
        timeline = timeline.model_copy(update={"spans": (*odd, *others)})
    bound = breakdown.bound.model_copy(update={"by": name})
    changed = breakdown.model_copy(update={"axes": axes, "phases": phases, "bound": bound})
    return variant.model_copy(update={"breakdown": changed, "timeline": timeline})


def hostile_contests(
    name: str, job: int, peers: tuple[str, str] = ("ddp", "fsdp2"), study: str = "peers"
) -> PeersResult:
    """A command whose free texts are all this name, with times that no clock shows."""
    environment = {"hosts": (name,), "launcher": name, "versions": {"torch": name, name: name}, "devices": (name,)}
    known = {"system": name, "series": name, "model": name, "failure": name, "environment": environment}
    found = contests(peers, job=job, ratios=RATIOS | ONE_DEVICE, missing=name, **known)
    first, second = found.comparisons
    odd = second.jobs[0].ours.model_copy(update={"rounds_s": ((1e308, 1e308), (5e-324, 1e308))})
    jobs = (second.jobs[0].model_copy(update={"sides": (odd, second.jobs[0].peer)}), *second.jobs[1:])
    first = first.model_copy(update={"peer": name, "peer_is": name})
    asked = tuple(asked.model_copy(update={"peer": name, "peer_is": name}) for asked in found.contests)
    second = second.model_copy(update={"jobs": jobs, "target": 1e300})
    case = found.case | {"sequences": name, "threads": name, "overlap": name}
    theirs = {"layout": name, "does": name, "peer": name}
    versions = first.jobs[0].peer.model_copy(update={"versions": {name: name}})
    told = (first.jobs[0].model_copy(update={"sides": (first.jobs[0].ours, versions)}), *first.jobs[1:])
    first = first.model_copy(update=theirs | {"jobs": told})
    asked = tuple(one.model_copy(update=theirs) for one in asked)
    labels = found.labels | {"study": study}
    return found.model_copy(update={"comparisons": (first, second), "contests": asked, "case": case, "labels": labels})


@pytest.fixture(scope="session")
def hostile_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of results whose every free text tries to be markup, a formula, a path or an overlong name."""
    folder = tmp_path_factory.mktemp("hostile")
    names = HOSTILES
    results = [
        train(
            name=name,
            system=name,
            partition=name,
            variant=name,
            other=name,
            ranks=512 * 2**n,
            job=n,
            environment={"hosts": (name,), "launcher": name, "versions": {name: name}, "git_commit": name},
            energy=energy({"node": 9e5, "device": 1e-3}, why=name, scope=name, source=name),
        )
        for n, name in enumerate(names)
    ]
    results += [train(name=name, failure=name, job=50 + n) for n, name in enumerate(names)]
    results += [train(name=name, study=name, job=100 + n) for n, name in enumerate(names)]
    results += [run.model_copy(update={"labels": run.labels | {"system": HOSTILE}}) for run in validation()]
    results += [
        gemm(system=HOSTILE),
        memory(system=HOSTILE),
        latency(system=HOSTILE),
        links(system=HOSTILE),
        transfers(system=HOSTILE),
    ]
    results += [gemm(dtype=name, job=30 + n) for n, name in enumerate(names)]
    results += [images(9, name=name, resume=name, system=name, job=750 + n) for n, name in enumerate(names)]
    for n, name in enumerate(names):
        known = {"name": name, "system": name, "partition": name, "series": name}
        for run in ablation(job=200 + 20 * n, **known):
            variants = [hostile_lanes(variant, name) for variant in run.sides(OverlapSide)]
            variants.append(variants[-1].model_copy(update={"name": name}))
            results.append(with_sides(run, variants))
        results += [hostile(run, name) for run in pipeline(job=600 + n, **known)]
        results += strong(points=2, token_budget=name if n % 2 else "2e+12", **(known | {"model": "gpt-5b"}))
    save(results, folder)
    odd = [hostile_contests(name, n) for n, name in enumerate(names)]
    odd += [hostile_contests(name, 20 + n, ("plain", "compile")) for n, name in enumerate(names)]
    odd += [hostile_contests(name, 40 + n, study="baselines") for n, name in enumerate(names)]
    products = [tuning(name=name, system=name, series=name, model="gpt-test", grid="1x1x1x1") for name in names]
    save(products, folder / "products")
    own = [untuned(result, job=n) for n, result in enumerate(products)]
    save_contests([*odd, *own], folder)
    save_predictions([made for name in names for made in hostile_predictions(name)], folder)
    return built_once("hostile_site", [folder], tmp_path_factory)


@pytest.fixture(scope="session")
def nightly_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of nights of two tests, three jobs each, of which one got slower when torch was updated."""
    folder = tmp_path_factory.mktemp("nights")
    with referred(store(folder / "results.db", slowed(jobs=3))):
        return built_once("nightly_site", [folder], tmp_path_factory)


@pytest.fixture(scope="session")
def hostile_nightly_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of nights whose every free text tries to be something else, with numbers that no clock shows."""
    folder = tmp_path_factory.mktemp("hostile_nights")
    store(folder / "results.db", hostile_nights(HOSTILES))
    return built_once("hostile_nightly_site", [folder], tmp_path_factory)
