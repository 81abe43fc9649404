"""`plan --validate` says how well the model predicts what was published and measured. No torch until it runs."""

from pathlib import Path

from engine.files import write_text
from engine.loading import loading
from engine.output import complain, say


def validated(measured: Path | None, *, refit: bool, json: bool, out: Path | None) -> int:
    """Print the comparison, and what was fitted anew as the files of systems/ have it."""
    from engine.validation.measured import MEASURED, as_yaml, campaigns, rows_in

    with loading():
        from engine.validation.run import run
        from engine.validation.table import as_text

    found, fits, rows = run(campaigns() if measured is None else [rows_in(measured, refit=refit)], refit=refit)
    if out is not None:
        write_text(out, found.to_json())
    say(found.to_json() if json else as_text(found), kept=out is not None)
    tell = complain if json else say
    for fit in fits if refit else ():
        tell(f"\n# systems/{fit.machine.name}.yaml\n{fit.as_yaml()}")
    for one in rows if refit or measured is not None else ():
        tell(f"\n# a file of {MEASURED}\n{as_yaml(one)}")
    return 0
