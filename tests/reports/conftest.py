"""Fixtures of the report's tests: a folder of results, and a site built from it."""

from pathlib import Path

import pytest
from sample_results import gemm, save, series, train, validation

from reports.site import build

HOSTILE = "<script>document.title='ran'</script><img src=x onerror=\"document.title='ran'\">"


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of everything: two series, failures, validation, peaks, unreadable files."""
    folder = tmp_path_factory.mktemp("results")
    results = [
        *series("frontier"),
        *series("local"),
        *validation(),
        gemm(),
        gemm(system="local", partition="cpu", dtype="fp32", best=95e9),
    ]
    results.append(train(ranks=16384, model="gpt-160b", grid="8x8x32x8", failure="rank 3 was killed", job=400))
    paths = save(results, folder)
    Path(folder, "cut.json").write_text(paths[0].read_text()[:200])
    out = tmp_path_factory.mktemp("out") / "site"
    build([folder], out)
    return out


@pytest.fixture(scope="session")
def hostile_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of results whose every free text tries to be markup, a formula, a path or an overlong name."""
    folder = tmp_path_factory.mktemp("hostile")
    names = (HOSTILE, "=1+1", "../../etc/passwd", "$\\frac{1}$", "x" * 500, "a\x00b\u202ec", "]]>--></svg></style>")
    results = [
        train(
            name=name, system=name, partition=name, variant=name, other=name, ranks=512 * 2**n, job=n,
            environment={"hosts": (name,), "launcher": name, "versions": {name: name}, "git_commit": name},
        )
        for n, name in enumerate(names)
    ]  # fmt: skip
    results += [train(name=name, failure=name, job=50 + n) for n, name in enumerate(names)]
    results += [train(name=name, study=name, job=100 + n) for n, name in enumerate(names)]
    results += [run.model_copy(update={"labels": run.labels | {"system": HOSTILE}}) for run in validation()]
    results += [gemm(system=HOSTILE)]
    save(results, folder)
    out = tmp_path_factory.mktemp("out") / "site"
    build([folder], out)
    return out
