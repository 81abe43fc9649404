"""Bundle of verdicts: a zip archive from which anybody judges the same results anew, without the machine.

    bundle.json      the document of `par4d reproduce --out`, with claims, tolerances, digests, verdicts, commit and the
                     versions of all packages, and the SHA-256 of every other file
    results/         the results that verdicts rest on, and those of the same studies on the same machines
    systems/         every system's file and device, and what was measured of the machines
    published/       the papers' numbers, claims and conditions of their runs

An archive is read by the names in bundle.json alone: what isn't as it says is refused by name.
"""

import hashlib
import json
import re
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

import engine.published
import systems
from engine import files
from engine.errors import RunError, UsageError
from reports.frames.reproduction import JudgedFigure
from reports.read.load import Loaded, Run
from reports.reproduction_compare import MOST_BYTES, Kept, Packed, compare, of_document, parse
from reports.text import clean, plural

DOCUMENT, RESULTS = "bundle.json", "results"
MOST_FILES, MOST_BYTES_IN_ALL = 100_000, 2 * 2**30
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.+-]*){0,4}")
"""Names of files in a bundle: relative, and below no hidden folder."""
FACTS = {"systems": systems.FOLDER, "published": engine.published.FOLDER}
"""Folders of a bundle besides results, and those here."""
LONG_AGO = (1980, 1, 1, 0, 0, 0)
Judge = Callable[[Path], dict[str, Any]]
"""Judges the results below a folder, and returns the document."""


def is_bundle(file: Path) -> bool:
    """Say whether a file is an archive; any other may be a document."""
    return zipfile.is_zipfile(file)


def pack(file: Path, document: dict[str, Any], loaded: Loaded, judged: Sequence[JudgedFigure], judge: Judge) -> str:
    """Write a bundle in one step, after its results were judged anew to the same verdicts; returns what it has.

    Raises UsageError where no verdict rests on a result, RunError where the verdicts are others.
    """
    results = _results(loaded, judged)
    if not results:
        raise UsageError("--bundle has nothing to pack: no verdict of these figures rests on a result here.")
    machines, papers = _machines(judged), {one.figure.paper for one in judged}
    contents = {name: text for name, (text, _) in results.items()} | _facts(machines, papers)
    listed = {
        name: {"sha256": hashlib.sha256(text).hexdigest(), "source": results[name][1] if name in results else ""}
        for name, text in sorted(contents.items())
    }
    whole = document | {"files": listed}
    archive = _archive({DOCUMENT: _json(whole)} | contents)
    with TemporaryDirectory() as folder:
        kept = unpack(BytesIO(archive), Path(folder), str(file))
        found = compare(kept, of_document(judge(Path(folder, RESULTS))))
    if not found.agrees:
        raise RunError(f"{file} would not be judged to the same verdicts, so it wasn't written: {found.differing[0]}.")
    files.write_bytes(file, archive)
    said = f"{plural(len(results), 'result')}, {plural(found.same, 'verdict')} and {plural(len(machines), 'machine')}"
    return f"{file}: {said}"


def unpack(file: Path | IO[bytes], folder: Path, name: str) -> Kept:
    """Check an archive, write its results below a folder, and return its document.

    Raises UsageError for what is damaged, missing, too large, or not as the document says, by its name.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            members = _members(archive, name)
            if DOCUMENT not in members:
                raise UsageError(f"{name} has no {DOCUMENT}: give what par4d reproduce --bundle wrote.")
            kept = parse(_read(archive, members[DOCUMENT], name), f"{DOCUMENT} in {name}")
            if missing := sorted(set(kept.files) - set(members)):
                raise UsageError(f"{name} lacks {clean(missing[0])}, which its {DOCUMENT} names: pack it again.")
            if others := sorted(set(members) - set(kept.files) - {DOCUMENT}):
                raise UsageError(f"{name} has {others[0]}, which its {DOCUMENT} doesn't name: pack it again.")
            for member, listed in kept.files.items():
                text = _checked(archive, members[member], listed, name)
                if member.startswith(f"{RESULTS}/"):
                    files.write_bytes(folder / member, text)
    except (zipfile.BadZipFile, NotImplementedError, EOFError) as error:
        raise UsageError(f"{name} is no whole archive ({clean(str(error))}): pack it again.") from None
    except OSError as error:
        raise UsageError(f"{name} can't be unpacked: {error.strerror or error}.") from None
    return kept


def changed_facts(kept: Kept) -> list[str]:
    """List the facts of systems and papers in a bundle that aren't as they are here: verdicts by them may differ."""
    named = {name: one.sha256 for name, one in kept.files.items() if NAME.fullmatch(name)}
    listed = {name: digest for name, digest in named.items() if name.partition("/")[0] in FACTS}
    return sorted(name for name, digest in listed.items() if _digest(_place(name)) != digest)


def _place(name: str) -> Path:
    """Return the file here that a fact of a bundle is of."""
    folder, _, rest = name.partition("/")
    return FACTS[folder] / rest


def _digest(path: Path) -> str:
    try:
        return files.digest_of(path)
    except OSError:
        return ""


def _members(archive: zipfile.ZipFile, name: str) -> dict[str, zipfile.ZipInfo]:
    """Return the files of an archive by name. Raises UsageError for a bad one, or for too much of them."""
    found: dict[str, zipfile.ZipInfo] = {}
    if len(archive.infolist()) > MOST_FILES:
        raise UsageError(f"{name} has more than {MOST_FILES:,} files, which no bundle has.")
    for one in archive.infolist():
        said = clean(repr(one.filename))
        if not NAME.fullmatch(one.filename):
            raise UsageError(f"{name} has a file {said}, a name that no bundle has: nothing was unpacked.")
        if one.filename in found:
            raise UsageError(f"{name} has {said} twice: nothing was unpacked.")
        if one.filename.startswith(f"{RESULTS}/") and not one.filename.endswith(".json"):
            raise UsageError(f"{name} has {said}, but results of a bundle are .json files: nothing was unpacked.")
        plain = (one.external_attr >> 16) & 0o170000 in (0, stat.S_IFREG)
        if not plain or one.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise UsageError(f"{name} has {said}, which is no plain, deflated file: nothing was unpacked.")
        found[one.filename] = one
    if sum(one.file_size for one in found.values()) > MOST_BYTES_IN_ALL:
        raise UsageError(f"{name} unpacks to more than {MOST_BYTES_IN_ALL // 2**30} GiB, which no bundle does.")
    return found


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str) -> bytes:
    """Read a file of an archive. Raises UsageError for one that is damaged, encrypted or too large."""
    if member.file_size > MOST_BYTES:
        raise UsageError(f"{member.filename} in {name} has more than {MOST_BYTES // 2**20} MiB, which no file has.")
    try:
        with archive.open(member) as opened:
            return opened.read(MOST_BYTES)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise UsageError(f"{member.filename} in {name} is damaged ({clean(str(error))}): pack it again.") from None


def _checked(archive: zipfile.ZipFile, member: zipfile.ZipInfo, listed: Packed, name: str) -> bytes:
    text = _read(archive, member, name)
    if hashlib.sha256(text).hexdigest() != listed.sha256:
        raise UsageError(f"{member.filename} in {name} isn't what was packed, by its SHA-256: get the bundle again.")
    return text


def _archive(contents: Mapping[str, bytes]) -> bytes:
    """Return an archive of these files, of the same bytes whenever they are packed."""
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, text in sorted(contents.items(), key=lambda pair: (pair[0] != DOCUMENT, pair[0])):
            member = zipfile.ZipInfo(name, LONG_AGO)
            member.compress_type, member.external_attr = zipfile.ZIP_DEFLATED, (stat.S_IFREG | 0o644) << 16
            archive.writestr(member, text)
    return buffer.getvalue()


def _json(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=1) + "\n").encode()


def _machines(judged: Iterable[JudgedFigure]) -> set[str]:
    every = (one for figure in judged for part in figure.parts for one in part.findings)
    return {one.machine for one in every if one.sample}


def _results(loaded: Loaded, judged: Sequence[JudgedFigure]) -> dict[str, tuple[bytes, str]]:
    """Return the results of the studies that measured claims are redone by, with their sources, by name.

    Products of a machine come along, as shares of its peak rest on them.
    """
    measured = [part for figure in judged for part in figure.parts if part.measured]
    studies = {redo.suite for part in measured for redo in part.claim.redo}
    machines = _machines(judged)

    def rests(run: Run) -> bool:
        labels = run.result.labels
        wanted = labels.get("study") in studies or run.result.kind in (*studies, "gemm")
        return labels.get("system") in machines and wanted

    found = [(one.result.to_json(), one.source) for one in loaded.runs if rests(one)]
    if "baselines" in studies:
        of_machine = [one for one in loaded.contests if one.result.labels.get("system") in machines]
        found += [(one.result.to_json(), one.source) for one in of_machine]
    if "model_validation" in studies and loaded.validations:
        newest = max(sorted(loaded.validations, key=lambda one: one.source), key=lambda one: one.written)
        found.append((newest.result.to_json(), newest.source))
    by_name = {f"{RESULTS}/{hashlib.sha256(text.encode()).hexdigest()[:20]}.json": (text, of) for text, of in found}
    return {name: (text.encode(), clean(of, 1000)) for name, (text, of) in by_name.items()}


def _facts(machines: Iterable[str], papers: Iterable[str]) -> dict[str, bytes]:
    """Return the files of all systems and devices, what was measured of machines, and what papers say."""
    folders = {"systems": systems.FOLDER, "systems/devices": systems.FOLDER / "devices"}
    names = [f"{name}/{path.name}" for name, folder in folders.items() for path in systems.files(folder)]
    names += [f"systems/measured/{machine}.yaml" for machine in machines]
    names += [f"published/{folder}{paper}.yaml" for paper in papers for folder in ("", "claims/", "conditions/")]
    known = [name for name in names if NAME.fullmatch(name) and _place(name).exists()]
    return {name: _place(name).read_bytes() for name in known}
