"""The command line: `python -m reports build [--results DIR ...] [--out DIR]`."""

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from engine.errors import RunError, UsageError
from engine.output import say

log = logging.getLogger("reports")

RESULTS = Path("results")
SITE = Path("site")
DESCRIPTION = """\
Make a report of what was measured: one index page and one page a study, each a single HTML file that opens without
a network, with the data of every figure and table as CSV beside them (in data/).
"""
EPILOG = """\
What is read, below every folder given by --results:
  result.json files    of `python -m engine train` and `python -m engine bench`, under any name that ends in .json
  run reports          of ReFrame (run-report-*.json): each test case carries the result of its run
  results databases    of ReFrame (*.db), opened read-only; nights in them are judged, as par4d verdict does
  plans, validations   of `par4d plan --out FILE.json` and `par4d plan --validate --out FILE.json`
A run that is found in several of them counts once. Files that are cut short or written by a newer Par4D are left out
and listed on the index page with the reason. Other files are ignored.

examples:
  python -m reports build                                              everything under ./results, into ./site
  python -m reports build --results results/ ~/.reframe/reports --out site/
  python -m reports build --results /scratch/nightly --out public/

exit code: 0 the report was written, 1 it could not be written, 2 the command can't work (one sentence says why).
"""


def parser() -> argparse.ArgumentParser:
    main_parser = argparse.ArgumentParser(prog="python -m reports", description="Results to an HTML report.")
    commands = main_parser.add_subparsers(dest="command", required=True, metavar="build")
    build_parser = commands.add_parser(
        "build",
        help="write the report",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    build_parser.add_argument(
        "--results",
        metavar="DIR",
        type=Path,
        nargs="+",
        action="extend",
        help="folders to search for results, with all below them (default: results, if it is there)",
    )
    build_parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        default=SITE,
        help="folder to write to; other files in it are left alone (default: site)",
    )
    return main_parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    options = parser().parse_args(arguments)
    from reports import text  # with pandas and matplotlib, which --help doesn't wait for
    from reports.site import build

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    folders = options.results or ([RESULTS] if RESULTS.is_dir() else [])
    try:
        first_page, loaded = build(folders, options.out)
    except UsageError as error:
        log.error("%s", error)
        return 2
    except RunError as error:
        log.error("%s", error)
        return 1
    read = f"{text.plural(len(loaded.statuses), 'result')} read from {text.plural(loaded.files, 'file')}"
    summary = f"{read}, {len(loaded.skipped)} skipped, {loaded.duplicates} found twice"
    say(f"{summary}\n{first_page.resolve()}\n", kept=True)
    return 0
