"""Does all of Par4D still work, on other machines, too? Once a week, in some hours, part by part.

    ci/weekly                               # every part; --list names them
    ci/weekly --resume                      # after a break: the parts that are not done on this commit
    ci/weekly --part lowest --part python3.13

Parts are the files of tests of which ci/test runs a few cases and the week all (does every library of ci/peers train
what the engine trains, every grid, flag and schedule what the serial model does, is each wrong collective noticed, are
published times predicted, does each command that redoes a published claim run, dry or sized down?), training on 16
ranks with all four axes, the commands of every README, and ci/test once more: with the instructions of an older
processor, with the lowest and the newest versions of what Par4D needs, and with each other Python on PATH, in clones of
the last commit. It takes the internet, no GPU and no job.

exit code: 0 fine, 1 something is not as it has to be, 2 couldn't test all of it, as where a library can't be installed.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

from junitparser import Error, Failure, JUnitXml, TestCase, TestSuite
from tabulate import tabulate

import bounds
import readme_commands
from command_line import Parser
from engine import processes
from engine.errors import UsageError
from engine.files import write_text
from engine.result.provenance import git_state, processor_name

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results" / "weekly"
FINE, WRONG, UNKNOWN = 0, 1, 2
OUTCOMES = {FINE: "fine", WRONG: "wrong", UNKNOWN: "unknown"}
MARK = "mark.weekly"
"""Files with this leave some of their tests to the week, which runs all of theirs."""
AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
PYTHON = re.compile(r"Programming Language :: Python :: (3\.\d+)")
OF_ITS_OWN = {"PYTHONPATH": "", "PAR4D_TORCH": "", "PAR4D_VERSIONS": ""}
"""Variables that would bring this tree, or other versions, into a clone."""
ON_16_RANKS = ["-c", "suites/validation.py", "-n", "^Validation", "-S", "Validation.grid=2x2x2x2", "--system", "local"]
READMES = "readmes"
SUMMARY = re.compile(r"^(?:=+ )?(\d+ (?:passed|failed|skipped|error).*) in [\d.]+s", re.MULTILINE)
COUNTED = ("passed", "failed", "error", "skipped")
SHOWN_LINES = 40
ANSWER_S = 60
"""Time-out of a command that only tells its version."""
NOT_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Letters that XML can't hold, such as those that color a terminal."""
MODIFIED, UNTOLD = ", modified", "unknown"


@dataclass(frozen=True, slots=True)
class Part:
    """Part of a week."""

    name: str
    words: Sequence[str]
    """The command, to run in the project's folder; none in place of all commands of the READMEs."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to that of the week."""
    cloned: bool = False
    """Whether it runs in a clone of the last commit, with an environment of its own."""
    of_peers: bool = False
    """Whether no test may be skipped, as one is whose library couldn't be installed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a part."""

    part: str
    code: int = -1
    """FINE, WRONG or UNKNOWN; -1 for a part that has not run."""
    minutes: float = 0.0
    tests: Mapping[str, int] = field(default_factory=dict)
    """Numbers of tests that passed, failed, were skipped or met an error."""
    commit: str = ""
    processor: str = ""

    def is_done(self, commit: str) -> bool:
        """Return whether running the part again would tell nothing new."""
        return self.code in (FINE, WRONG) and self.commit == commit and not commit.endswith((MODIFIED, UNTOLD))


def parts() -> Iterator[Part]:
    """Yield the parts of a week on this machine."""
    for file in sorted(ROOT.glob("tests/*/test_*.py")):
        if MARK in file.read_text():
            words = [sys.executable, "-m", "pytest", "-rs", str(file.relative_to(ROOT))]
            yield Part(file.stem.removeprefix("test_"), words, of_peers=True)
    yield Part("16-ranks", ["ci/bin/reframe", *ON_16_RANKS])
    if platform.machine() == "x86_64":
        yield Part("avx2", ["ci/test"], AVX2)
    yield Part(READMES, (), OF_ITS_OWN | a_shell_of_its_own(), cloned=True)
    for versions in ("lowest", "newest"):
        yield Part(versions, ["ci/test"], OF_ITS_OWN | {"PAR4D_VERSIONS": versions}, cloned=True)
    for name, there in other_pythons().items():
        if there:
            yield Part(name, ["ci/test"], OF_ITS_OWN | {"PAR4D_PYTHON": name}, cloned=True)


def a_shell_of_its_own() -> dict[str, str]:
    """Return what makes a shell that knows nothing of this tree's environment."""
    path = [folder for folder in os.environ["PATH"].split(os.pathsep) if not Path(folder).is_relative_to(ROOT)]
    return {"PATH": os.pathsep.join(path), "VIRTUAL_ENV": "", "RFM_CONFIG_FILES": ""}


@cache
def other_pythons() -> dict[str, bool]:
    """Return the names of the Pythons that Par4D is for, but not of this one, and whether each is on PATH."""
    versions = PYTHON.findall("\n".join(bounds.project()["classifiers"]))
    return {f"python{one}": _runs(f"python{one}") for one in versions if not sys.version.startswith(f"{one}.")}


def _runs(python: str) -> bool:
    """Return whether that Python is here. One of pyenv's names may be there without its Python."""
    with suppress(subprocess.TimeoutExpired, OSError):
        return subprocess.run([python, "--version"], capture_output=True, timeout=ANSWER_S, check=False).returncode == 0
    return False


def main() -> int:
    every = {part.name: part for part in parts()}
    options = Parser("ci/weekly", __doc__)
    options.add_argument("--part", metavar="NAME", action="append", choices=every, help="this one; may be repeated")
    options.add_argument("--resume", action="store_true", help="leave out the parts that are done on this commit")
    options.add_argument("--list", action="store_true", help="show the parts and their last outcomes, and run nothing")
    options.add_argument("--minutes", metavar="N", type=float, default=360, help="to take at most (default: 360)")
    options.add_argument(
        "--junit",
        metavar="FILE",
        type=Path,
        default=ROOT / "results" / "weekly.xml",
        help="gets the outcome of every part (default: results/weekly.xml)",
    )
    given = options.parse_args()
    chosen = [every[name] for name in given.part or every]
    if given.list:
        _show([_last(part.name) or Outcome(part.name) for part in chosen])
        return FINE
    processes.end_by_signals(UNKNOWN)
    ends, junit, commit = time.monotonic() + 60 * given.minutes, given.junit.resolve(), _commit()
    junit.unlink(missing_ok=True)  # nobody may take it for this week's
    RESULTS.mkdir(parents=True, exist_ok=True)
    last = {part.name: _last(part.name) for part in chosen if given.resume}
    done = {name: outcome for name, outcome in last.items() if outcome and outcome.is_done(commit)}
    if any(part.of_peers for part in chosen if part.name not in done):
        _say("making the environments of peers")
        write_text(RESULTS / "peers.log", "")
        _run([str(ROOT / "ci" / "peers"), "all"], ROOT, {}, RESULTS / "peers.log", ends)  # tests of others skip
    for number, part in enumerate(chosen, 1):
        if part.name not in done:
            _say(f"part {number} of {len(chosen)}, {part.name}")
            done[part.name] = found = _outcome(part, commit, ends)
            write_text(RESULTS / f"{part.name}.json", json.dumps(asdict(found)))
            _say(f"{part.name} is {OUTCOMES[found.code]} after {found.minutes:.1f} minutes{_end_of_log(found)}")
    outcomes = [done[part.name] for part in chosen]
    _show(outcomes)
    _write_junit(outcomes, junit)
    codes = {outcome.code for outcome in outcomes}
    return WRONG if WRONG in codes else UNKNOWN if UNKNOWN in codes else FINE


def _outcome(part: Part, commit: str, ends: float) -> Outcome:
    began, log, root = time.monotonic(), RESULTS / f"{part.name}.log", ROOT
    write_text(log, "")
    if part.cloned:
        root = RESULTS / f"{part.name}.clone"
        shutil.rmtree(root, ignore_errors=True)
        clone = _run(["git", "clone", "--quiet", str(ROOT), str(root)], ROOT, {}, log, ends)
        if not part.words:
            code = _run_readmes(root, part.environment, log, ends) if clone == 0 else UNKNOWN
        else:
            ready = clone == 0 and _run(["ci/setup"], root, part.environment, log, ends) == 0
            code = _run(part.words, root, part.environment, log, ends) if ready else UNKNOWN
        shutil.rmtree(root, ignore_errors=True)
    else:
        code = _run(part.words, root, part.environment, log, ends)
    tests = Counter[str]()
    for line in SUMMARY.findall(log.read_text(errors="replace")):
        tests.update({word: int(count) for count, word in re.findall(r"(\d+) (passed|failed|skipped|error)", line)})
    if code not in OUTCOMES or (part.of_peers and (tests["skipped"] or not tests["passed"]) and not tests["failed"]):
        code = UNKNOWN
    return Outcome(part.name, code, (time.monotonic() - began) / 60, dict(tests), commit, processor_name())


def _run(words: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path, ends: float) -> int:
    """Return a command's exit code, UNKNOWN if it doesn't end in time. All that it started ends with this function."""
    with log.open("ab") as out:
        left_s = max(ends - time.monotonic(), 0.0)
        code, _ = processes.carry_out(words, out, timeout_s=left_s, environment=environment, folder=folder)
        if code is None:
            out.write(b"ended by ci/weekly, as --minutes are over\n")
    return UNKNOWN if code is None else code


def _run_readmes(root: Path, environment: Mapping[str, str], log: Path, ends: float) -> int:
    """Run the commands of all READMEs, tell what came of each, and end the log with those that did not go as told."""
    outcomes, told, began = Counter[str](), list[str](), time.monotonic()
    try:
        for ran in readme_commands.run(root, log, environment, ends):
            _say(f"{ran.readme}: {ran}")
            outcomes[ran.outcome] += 1
            told += [f"{ran.readme}: {ran}"] * (ran.outcome != readme_commands.PASSED)
    except UsageError as error:
        outcomes[readme_commands.FAILED] += 1
        told.append(str(error))
    counted = ", ".join(f"{outcomes[word]} {word}" for word in COUNTED if outcomes[word])
    with log.open("a") as out:
        out.write("\n".join(["", *told, f"{counted} in {time.monotonic() - began:.1f}s", ""]))
    if outcomes[readme_commands.FAILED]:
        return WRONG
    return UNKNOWN if outcomes[readme_commands.SKIPPED] else FINE


def _commit() -> str:
    commit, modified = git_state(ROOT)
    return f"{commit or UNTOLD}{MODIFIED if modified else ''}"


def _last(name: str) -> Outcome | None:
    """Return how a part ended last; None where that isn't known."""
    with suppress(OSError, ValueError, TypeError):
        return Outcome(**json.loads((RESULTS / f"{name}.json").read_text()))
    return None


def _end_of_log(outcome: Outcome) -> str:
    if outcome.code == FINE:
        return ""
    log = RESULTS / f"{outcome.part}.log"
    lines = log.read_text(errors="replace").splitlines()[-SHOWN_LINES:]
    return "\n".join([f"; the end of {log}:", *(f"    {line}" for line in lines)])


def _show(outcomes: Sequence[Outcome]) -> None:
    tests = sum((Counter(outcome.tests) for outcome in outcomes), Counter[str]())
    every = Outcome("all", minutes=sum(outcome.minutes for outcome in outcomes), tests=tests)
    cells = [
        (
            one.part,
            "" if one is every else OUTCOMES.get(one.code, "not run"),
            one.minutes,
            *(one.tests.get(word, 0) for word in COUNTED),
        )
        for one in (*outcomes, every)
    ]
    table = tabulate(cells, headers=("part", "outcome", "minutes", *COUNTED), floatfmt=".1f")
    processors = {outcome.processor for outcome in outcomes if outcome.processor} or {processor_name()}
    print(f"\n{table}\n{', '.join(sorted(processors))}; {os.cpu_count()} cores here")  # noqa: T201
    missing = [name for name, there in other_pythons().items() if not there]
    if missing:
        print(f"not tried, as not on PATH: {', '.join(missing)}")  # noqa: T201


def _write_junit(outcomes: Sequence[Outcome], file: Path) -> None:
    suite = TestSuite("weekly")
    for outcome in outcomes:
        case = TestCase(outcome.part, "weekly", 60 * outcome.minutes)
        if outcome.code != FINE:
            kind = Failure if outcome.code == WRONG else Error
            case.result = [kind(NOT_XML.sub("?", f"{OUTCOMES[outcome.code]}{_end_of_log(outcome)}"))]
        suite.add_testcase(case)
    xml = JUnitXml()
    xml.add_testsuite(suite)
    file.parent.mkdir(parents=True, exist_ok=True)
    xml.write(str(file))


def _say(sentence: str) -> None:
    sys.stderr.write(f"weekly: {sentence}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    try:
        code = main()
    except Exception:  # an exit code of 1 would blame a part
        traceback.print_exc()
        code = UNKNOWN
    sys.exit(code)
