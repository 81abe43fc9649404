"""`plan --validate`: how well the model predicts what was published and measured. No torch until it runs."""

import sys
from pathlib import Path

from engine.files import write_text
from engine.loading import loading


def validated(measured: Path | None, *, refit: bool, json: bool, out: Path | None) -> int:
    """Print it, and what was fitted anew, as the files of systems/ have it."""
    from engine.planning.measured import as_yaml, measured_in
    from engine.planning.validation import measured_jobs

    with loading():
        from engine.planning.validation_table import told
        from engine.tracing.validation_run import run

    jobs = measured_jobs() if measured is None else measured_in(measured)
    found, fits = run(jobs, refit=refit)
    if out is not None:
        write_text(out, found.as_json())
    sys.stdout.write(found.as_json() if json else told(found))
    told_too = sys.stderr if json else sys.stdout
    for name, fitted in fits.items():
        told_too.write(f"\n# systems/{name}.yaml\n{fitted}")
    if refit and measured is not None:
        told_too.write(f"\n# engine/planning/rows/measured.yaml\n{as_yaml(jobs)}")
    return 0
