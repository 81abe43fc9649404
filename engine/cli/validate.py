"""`plan --validate`: how well the model predicts what was published and measured. No torch until it runs."""

import sys
from pathlib import Path

from engine.files import write_text
from engine.loading import loading


def validated(*, refit: bool, json: bool, out: Path | None) -> int:
    """Print it, and what was fitted anew, as the files of systems/ have it."""
    with loading():
        from engine.planning.validation_table import told
        from engine.tracing.validation_run import run

    found, fits = run(refit=refit)
    if out is not None:
        write_text(out, found.as_json())
    sys.stdout.write(found.as_json() if json else told(found))
    for name, fitted in fits.items():
        sys.stdout.write(f"\n# systems/{name}.yaml\n{fitted}")
    return 0
