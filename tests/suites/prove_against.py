"""Does `ci/nightly --against` find a slowdown of 3 % in one night, and is it silent where nothing is slower? For real.

    python tests/suites/prove_against.py                          10 planted and 20 quiet nights; two hours
    python tests/suites/prove_against.py --planted 2 --quiet 4 -- -- --exclude unet

In copies of this checkout's last commit nights are run against that commit, planted and quiet ones mixed, by the seed's
order. In planted ones each step of the engine is followed by work of 3 % of its time. A night is a line with what
became of it, its minutes (more than ten are wrong), the machine's load before and after, and its table; words behind --
are those of ci/nightly. The exit code is 0 if nine of ten slowdowns are found and no quiet night raises an alarm.

Thirty nights of gpt-local-1 on one core of an AMD EPYC, whose other core did other work, found all ten slowdowns, each
in less than four minutes (ratios of 1.028 to 1.034); none of the twenty quiet nights was slower (0.997 to 1.003). On an
H200 two jobs of one code differed by 3 % in steps of 50 ms: six jobs of such steps would not find that much.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from reports.nights.report import FINE, UNKNOWN, WORSE

ROOT = Path(__file__).parents[2]
SEED = 36
BY = 0.03
MOST_MINUTES = 10
LONGEST_S = 1800
PLANTED = """

_step = Trainer.step


def _slower(self: Trainer) -> object:
    began = time.perf_counter()
    done = _step(self)
    until = time.perf_counter() + {by} * (time.perf_counter() - began)
    while time.perf_counter() < until:
        pass
    return done


Trainer.step = _slower
"""


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--planted", type=int, default=10)
    options.add_argument("--quiet", type=int, default=20)
    options.add_argument("words", nargs="*", help="for ci/nightly")
    given = options.parse_args()
    order = [True] * given.planted + [False] * given.quiet
    random.Random(SEED).shuffle(order)
    became: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    with TemporaryDirectory() as folder:
        copies = {planted: copy(Path(folder, "planted" if planted else "quiet"), planted) for planted in (True, False)}
        for number, planted in enumerate(order, 1):
            began, load = time.monotonic(), os.getloadavg()[0]
            done = night(copies[planted], given.words)
            minutes = (time.monotonic() - began) / 60
            word = outcome(done) if minutes <= MOST_MINUTES else "took too long"
            became[planted][word] += 1
            sys.stdout.write(
                f"night {number} of {len(order)}, {'planted' if planted else 'quiet'}: {word}, {minutes:.1f} minutes, "
                f"load {load:.1f} and {os.getloadavg()[0]:.1f}\n{done.stdout}\n"
            )
            if word == "broken":
                sys.stdout.write(done.stderr[-2000:])
            sys.stdout.flush()
    for planted, words in became.items():
        kind = f"slower by {BY:.0%}" if planted else "quiet"
        sys.stdout.write(f"{kind}: {', '.join(f'{count} {word}' for word, count in words.items())}\n")
    missed = given.planted - became[True]["slower"]
    silent = became[False]["no slower"] + became[False]["undecided"]
    return int(silent < given.quiet or 10 * missed > given.planted)


def outcome(done: "subprocess.CompletedProcess[str]") -> str:
    """Say what a night's table says, of several tests the worst: slower, undecided or no slower; or broken."""
    verdicts = [line.split("  ")[0] for line in done.stdout.splitlines()]
    codes = {"slower": WORSE, "undecided": UNKNOWN, "no slower": FINE}
    word = next((word for word in codes if word in verdicts), "")
    return word if word and "failed" not in verdicts and done.returncode == codes[word] else "broken"


def copy(folder: Path, planted: bool) -> Path:
    """Clone the last commit."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True, timeout=LONGEST_S)
    if planted:
        trainer = folder / "engine" / "training" / "trainer.py"
        trainer.write_text(f"import time\n{trainer.read_text()}{PLANTED.format(by=BY)}")
    return folder


def night(folder: Path, words: list[str]) -> "subprocess.CompletedProcess[str]":
    """Run what ci/nightly runs, of that copy against its own last commit, in this environment."""
    own = {"PYTHONPATH": f"{folder}:{folder / 'ci'}", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    kept = {"HOME": os.environ["HOME"], "RFM_CONFIG_FILES": str(folder / "systems" / "settings.py")} | own
    command = [sys.executable, "-P", "-m", "night", "--system", "local", "--against", "HEAD", *words]
    running = subprocess.Popen(
        command,
        env=kept,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    try:
        out, err = running.communicate(timeout=LONGEST_S)
        return subprocess.CompletedProcess(command, running.returncode, out, err)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, UNKNOWN, "", f"It took longer than {LONGEST_S} s.")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGTERM)
        running.wait()


if __name__ == "__main__":
    sys.exit(main())
