"""`plan --validate` says how well the model predicts what was published and measured. No torch until it runs."""

import sys
from pathlib import Path

from engine.files import write_text
from engine.loading import loading


def validated(measured: Path | None, *, refit: bool, json: bool, out: Path | None) -> int:
    """Print the comparison, and what was fitted anew as the files of systems/ have it."""
    from engine.validation.document import measured_rows
    from engine.validation.measured import as_yaml, rows_in, with_numbers

    with loading():
        from engine.validation.run import run
        from engine.validation.table import as_text

    rows = measured_rows() if measured is None else rows_in(measured, refit=refit)
    found, fits = run(rows, refit=refit)
    if out is not None:
        write_text(out, found.to_json())
    sys.stdout.write(found.to_json() if json else as_text(found))
    others_out = sys.stderr if json else sys.stdout
    for fit in fits:
        name = fit.machine.name
        if name in rows.machines:
            rows = with_numbers(rows, name, fit.numbers(), fit.rows)
        elif refit:
            others_out.write(f"\n# systems/{name}.yaml\n{fit.as_yaml()}")
    if measured is not None or (refit and rows.jobs):
        others_out.write(f"\n# engine/validation/rows/measured.yaml\n{as_yaml(rows)}")
    return 0
