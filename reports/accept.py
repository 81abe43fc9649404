"""`par4d accept`: a site's own thresholds, judged by results that are there."""

import json as to_json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from engine import files
from engine.cli.common import Json, write
from engine.errors import UsageError
from engine.options import check_file

PASS, FAIL, UNDECIDED = 0, 1, 2
"""Exit codes."""
RESULTS = Path("results")


def accept(
    *,
    system: Annotated[str | None, Parameter(metavar="NAME", help="thresholds of one system")] = None,
    thresholds: Annotated[
        tuple[Path, ...],
        Parameter(
            metavar="FILE", consume_multiple=True, help="files of thresholds (default: systems/acceptance/*.yaml)"
        ),
    ] = (),
    results: Annotated[
        tuple[Path, ...],
        Parameter(metavar="DIR", consume_multiple=True, help="folders to search for results (default: results)"),
    ] = (),
    json: Json = False,
    out: Annotated[Path | None, Parameter(metavar="FILE", help="write the document for programs there, too")] = None,
    openmetrics: Annotated[Path | None, Parameter(metavar="FILE", help="write outcomes as OpenMetrics there")] = None,
) -> int:
    """Judge a site's own thresholds by what was measured: is the machine accepted? Runs nothing.

    A threshold passes if the whole interval over jobs keeps its limit, fails if none of it does, and is undecided
    otherwise: two jobs or more tell.

    exit code: 0 all pass, 1 one fails, 2 none fails but one is undecided.

      par4d accept --system perlmutter
      par4d accept --thresholds contract.yaml --results /scratch/acceptance --json
    """
    from reports.figures.acceptance import as_text
    from reports.frames.acceptance import check
    from reports.frames.frame import of_loaded
    from reports.openmetrics import of_document
    from reports.read.load import load
    from reports.reproduction_document import of_threshold
    from systems.acceptance import FOLDER, acceptance, known

    for option, file in (("--out", out), ("--openmetrics", openmetrics)):
        if file is not None:
            check_file(option, file)
    given = [acceptance(path) for path in thresholds] if thresholds else known()
    mine = [one for one in given if system in (None, one.system)]
    if not mine:
        there = ", ".join(sorted({one.system for one in given})) or "none"
        of = f" of {system}" if system else ""
        raise UsageError(f"There are no thresholds{of} (of other systems: {there}): write {FOLDER}/NAME.yaml.")
    checked = check(of_loaded(load(list(results) or ([RESULTS] if RESULTS.is_dir() else []))), mine)
    document = {"schema": "par4d.acceptance", "version": 1, "thresholds": [of_threshold(one) for one in checked]}
    if out is not None:
        files.write_text(out, to_json.dumps(document, indent=1) + "\n")
    if openmetrics is not None:
        files.write_text(openmetrics, of_document({"figures": [], **document}))
    write(as_text(checked), document, as_json=json)
    outcomes = {one.outcome for one in checked}
    return FAIL if "fail" in outcomes else UNDECIDED if "undecided" in outcomes else PASS
