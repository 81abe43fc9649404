"""`par4d reproduce`: verdicts on the papers' claims, from results that are there."""

import json as to_json
import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from engine import files
from engine.cli.common import Json, write
from engine.errors import UsageError
from engine.options import check_file
from engine.output import complain
from engine.published.claims import Claim, Figure, figures

if TYPE_CHECKING:
    from reports.frames.reproduction import Finding, Judged, JudgedFigure

SCHEMA, VERSION = "par4d.reproduction", 1
RESULTS = Path("results")


def reproduce(
    *,
    paper: Annotated[str | None, Parameter(metavar="PAPER", help="figures of one paper, such as axonn-sc24")] = None,
    figure: Annotated[
        str | None, Parameter(metavar="FIGURE", help='one figure, table or section, such as "Fig. 5"')
    ] = None,
    system: Annotated[str | None, Parameter(metavar="NAME", help="claims of one machine, and what it measured")] = None,
    results: Annotated[
        tuple[Path, ...],
        Parameter(
            metavar="DIR",
            consume_multiple=True,
            help="folders to search, with all below them: results, run reports, databases with nights "
            "(default: results, if it is there)",
        ),
    ] = (),
    only_list: Annotated[
        bool, Parameter(name="--list", negative=(), help="say what redoes each figure and what it costs; reads nothing")
    ] = False,
    json: Json = False,
    out: Annotated[Path | None, Parameter(metavar="FILE", help="write the document for programs there, too")] = None,
    bundle: Annotated[
        Path | None, Parameter(metavar="FILE", help="pack results, claims, facts and verdicts, to be judged elsewhere")
    ] = None,
    compare: Annotated[
        Path | None,
        Parameter(
            metavar="FILE",
            help="judge a bundle's results anew, or those here, and compare with the verdicts of that bundle or of "
            "what --out wrote: exit code 1 where one differs, or its claim or tolerance has changed since",
        ),
    ] = None,
    run: Annotated[
        bool, Parameter(help="run what redoes the figures on a system, the cheapest first, then judge")
    ] = False,
    node_hours: Annotated[
        float | None, Parameter(metavar="N", help="with --run: that it may take at most, all jobs together")
    ] = None,
    repeat: Annotated[int | None, Parameter(metavar="N", help="with --run: jobs of each test (default: 3)")] = None,
    timeout: Annotated[
        float | None,
        Parameter(metavar="SECONDS", help="with --run: for all, and their time in a queue (default: 86400)"),
    ] = None,
    dry_run: Annotated[bool, Parameter(help="with --run: say what would run, and what it takes")] = False,
    openmetrics: Annotated[
        Path | None, Parameter(metavar="FILE", help="write verdicts and values as OpenMetrics there, for monitoring")
    ] = None,
    fail_on: Annotated[
        tuple[Literal["differs", "undecided"], ...],
        Parameter(
            metavar="VERDICT",
            consume_multiple=True,
            help="exit code 1 if a figure differs or a threshold of systems/acceptance fails; or if a measured "
            "figure, or any threshold, can't be told",
        ),
    ] = (),
) -> int:
    """Judge each claim of the papers by what was measured here: does it reproduce?

    On the paper's machine the interval over jobs has to lie within a tolerance that was fixed beforehand: 10 % of a
    rate or a time, 5 points of a share, 5 % of a ratio. On another machine only who is ahead counts. Two jobs or more
    tell. A figure reproduces if all of its claims do, or are better, and differs if one does; what nothing here can
    judge is left out of that, and told beside it. That is a result, so the exit code is 0 without --fail-on; it is 1
    where a run failed, or verdicts aren't as --compare has them, and 2 where nothing was done.

    Elsewhere than on the paper's machine --run takes the same suites with that system's own, smaller series.

      par4d reproduce --list --paper par4d --figure "Fig. 3"
      par4d reproduce --run --paper par4d --figure "Fig. 3" --system local --node-hours 1
      par4d reproduce --results results/ /scratch/nights --json --out all.json
      par4d reproduce --bundle verdicts.zip
      par4d reproduce --compare verdicts.zip
    """
    for option, file in (("--out", out), ("--bundle", bundle), ("--openmetrics", openmetrics)):
        if file is not None:
            check_file(option, file)
    chosen = _chosen(paper or "", figure or "", system or "")
    judging = {"--bundle": bundle, "--compare": compare, "--openmetrics": openmetrics, "--fail-on": fail_on}
    of_run = {"--node-hours": node_hours, "--repeat": repeat, "--timeout": timeout, "--dry-run": dry_run}
    for taken, options, why in (
        (only_list, {"--run": run} | judging, "--list judges nothing"),
        (run, {"--compare": compare}, "--run judges what it measures"),
        (compare is not None, {"--bundle": bundle, "--system": system}, "--compare judges as its file does"),
        (not run, of_run, "only --run takes it"),
        (dry_run, {"--out": out} | judging, "--dry-run judges nothing"),
    ):
        given = [name for name, value in options.items() if value is not None and value is not False and value != ()]
        if taken and given:
            raise UsageError(f"{given[0]} can't be given here, as {why}: leave it out.")
    failures = list[str]()
    if run:
        from reports import reproduction_run as runs

        planned = runs.plan_within(chosen, system, node_hours, repeat, dry_run=dry_run)
        if dry_run:
            write(runs.as_text(planned), runs.as_data(planned), as_json=json)
            return 0
        failures = runs.carry_out(planned, timeout)
        results = (*results, runs.RESULTS)
    agrees = True
    if only_list:
        listed = [one for one in (_of_system(each, system) for each in chosen) if one is not None]
        if not listed:
            raise UsageError(
                f"--list: no claim of these figures is of {system}; par4d reproduce --run --dry-run --system {system} "
                "says what it can redo of them."
            )
        words, document = _listed(listed), _document([_of_figure(one) for one in listed])
    elif compare is not None:
        words, document, agrees = _compared(chosen, compare, results)
    else:
        words, document = _judged(chosen, system or "", results, bundle)
    if out is not None:
        files.write_text(out, to_json.dumps(document, indent=1) + "\n")
    if openmetrics is not None:
        from reports.openmetrics import of_document

        files.write_text(openmetrics, of_document(document))
    write(words, document, as_json=json)
    for sentence in failures:
        complain(sentence)
    if failures or not agrees:
        return 1
    if not fail_on:
        return 0
    from reports.reproduction_document import fails

    return int(fails(document, fail_on))


def _chosen(paper: str, figure: str, system: str) -> list[Figure]:
    """Return the figures that are asked for. Raises UsageError for a name that nothing has."""
    of_paper = figures(paper)
    places = list(dict.fromkeys(one.where for one in of_paper))
    wanted = figure.casefold().replace("figure", "fig.")
    found = [one for one in of_paper if wanted in ("", one.where.casefold())]
    if not found:
        raise UsageError(f"--figure: {figure!r} is none of {paper or 'the papers'}: there are {', '.join(places)}.")
    if system:
        import systems

        known = sorted({*systems.names(), *(claim.machine for one in figures() for claim in one.claims)} - {"any"})
        if system not in known:
            raise UsageError(f"--system: {system!r} is no system: there are {', '.join(known)}.")
    return found


def _of_system(figure: Figure, system: str | None) -> Figure | None:
    """Return a figure with the claims of one machine, or of all; None where it has none."""
    claims = tuple(claim for claim in figure.claims if system in (None, claim.machine))
    return figure.model_copy(update={"claims": claims}) if claims else None


def _judged(
    chosen: Sequence[Figure], system: str, results: Sequence[Path], bundle: Path | None = None
) -> tuple[str, dict[str, Any]]:
    """Judge figures by results below folders, and pack them if asked; returns words and the document."""
    from reports.figures.reproduction import as_text
    from reports.frames.acceptance import check
    from reports.frames.frame import of_loaded
    from reports.frames.reproduction import judge_figures
    from reports.read.load import load
    from reports.reproduction_bundle import pack
    from reports.reproduction_compare import origin
    from reports.reproduction_document import enriched
    from systems import acceptance

    folders = list(results) or ([RESULTS] if RESULTS.is_dir() else [])
    loaded = load(folders)
    frames = of_loaded(loaded)
    judged, checked = judge_figures(frames, chosen, system), check(frames, acceptance.known(), system)
    where = ", ".join(loaded.folders) or "no folder"
    read = f"{len(loaded.statuses):,} results read from {where}, {len(loaded.skipped):,} skipped"
    document = enriched(_document([_of_figure(one.figure, one) for one in judged]), frames, judged, checked)
    document |= {"system": system, "origin": origin()}
    words = f"{as_text(judged)}\n{read}."
    if bundle is not None:
        words += f"\n{pack(bundle, document, loaded, judged, lambda folder: _judged(chosen, system, [folder])[1])}."
    return words, document


def _compared(chosen: Sequence[Figure], file: Path, results: Sequence[Path]) -> tuple[str, dict[str, Any], bool]:
    """Judge a bundle's results, or those here, and compare; returns words, the document, and whether all is as kept."""
    from reports import reproduction_bundle as bundles
    from reports import reproduction_compare as comparison

    with TemporaryDirectory() as folder:
        packed = bundles.is_bundle(file)
        kept = bundles.unpack(file, Path(folder), str(file)) if packed else comparison.read(file)
        inside = [Path(folder, bundles.RESULTS)] if packed else []
        words, document = _judged(kept.chosen(chosen), kept.system, results or inside)
    compared = comparison.compare(kept, comparison.of_document(document), chosen)
    if compared.empty:
        raise UsageError(
            f"Neither {file} nor what was judged now has a verdict on a measurement of these figures: name other "
            "figures, or give another file."
        )
    facts = bundles.changed_facts(kept)
    document |= {"compared": comparison.as_data(kept, compared, file) | {"facts": facts}}
    words = f"{words.replace(folder, str(file))}\n\n{comparison.as_text(kept, compared, file)}"
    if facts:
        words += f"\nNot as in the bundle are here: {', '.join(facts)}."
    return words, document, compared.agrees


def _listed(chosen: Sequence[Figure]) -> str:
    """Write a line for each command of a figure, and for a figure without one why."""
    from tabulate import tabulate

    rows = [row for figure in chosen for row in _commands(figure)]
    return tabulate(rows, ["Figure", "Redone by", "Node-hours at most"], "plain", disable_numparse=True)


def _commands(figure: Figure) -> list[tuple[str, str, str]]:
    from reports.figures.reproduction import hours_of

    place = f"{figure.paper} {figure.where}"
    rows = [(shlex.join(words), hours_of(words)) for words in figure.commands]
    found = [(place, words, "not known" if hours is None else f"{hours:g}") for words, hours in rows]
    reasons = dict.fromkeys(claim.status for claim in figure.claims if not claim.redo)
    return found or [(place, f"nothing here yet: {', '.join(reasons)}", "")]


def _document(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"schema": SCHEMA, "version": VERSION, "figures": list(found)}


def _of_figure(figure: Figure, judged: "JudgedFigure | None" = None) -> dict[str, Any]:
    """Return a figure as JSON has it, with its verdicts where it was judged."""
    known = {"paper": figure.paper, "where": figure.where, "says": figure.says, "node_hours": figure.node_hours}
    if judged is None:
        return known | {"claims": [_of_claim(claim) for claim in figure.claims]}
    known |= judged.overall._asdict() | {"by_sign": judged.by_sign}
    return known | {"claims": [_of_judged(part) for part in judged.parts]}


def _of_claim(claim: Claim) -> dict[str, Any]:
    return {
        **{"name": claim.name, "kind": claim.kind, "system": claim.system, "status": claim.status},
        "note": claim.note,
        **{"tolerance": claim.tolerance, "digest": claim.digest, "node_hours": claim.node_hours},
        "commands": [list(words) for words in claim.commands],
    }


def _of_judged(part: "Judged") -> dict[str, Any]:
    findings = [_of_finding(part.claim, one) for one in part.findings]
    return _of_claim(part.claim) | part.overall._asdict() | {"why": part.why, "findings": findings}


def _of_finding(claim: Claim, finding: "Finding") -> dict[str, Any]:
    """Return a verdict, what it is on in the units of Measured, and the published value in its own."""
    from reports.figures.reproduction import point_text, published_text

    judgement, sample = finding.judgement, finding.sample
    judged = {key: value for key, value in judgement._asdict().items() if key not in ("digest", "tolerance")}
    measured: dict[str, Any] | None = None
    if sample is not None:
        ends = {"value": sample.value, **sample.interval._asdict()}
        measured = {name: _finite(value) for name, value in ends.items()}
        measured |= {"jobs": sample.jobs, "of": sample.of, "machine": finding.machine}
    published = published_text(finding.target, judgement.reading)
    said = {"published": published, "of": point_text(finding.target), "measured": measured}
    return said | judged | {"off": _finite(judgement.off)}


def _finite(value: float) -> float | None:
    """Return a number as JSON can hold it."""
    return value if math.isfinite(value) else None
