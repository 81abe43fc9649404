"""Does `ci/nightly --against` find a slowdown of 3 % in one night, and is it silent where nothing is slower? For real.

    python tests/suites/prove_against.py                          10 planted and 20 quiet nights; two hours
    python tests/suites/prove_against.py --planted 2 --quiet 4 -- -- --exclude unet

In copies of this checkout's last commit nights are run against that commit, planted and quiet ones mixed, by the seed's
order. In planted ones each step of the engine is followed by work of 3 % of its time. A night is a line with its exit
code, its minutes, the machine's load before and after, and its table; words behind -- are those of ci/nightly.
"""

import argparse
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
SEED = 36
BY = 0.03
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
    wrong = {True: 0, False: 0}
    with TemporaryDirectory() as folder:
        copies = {planted: copy(Path(folder, "planted" if planted else "quiet"), planted) for planted in (True, False)}
        for number, planted in enumerate(order, 1):
            began, load = time.monotonic(), os.getloadavg()[0]
            done = night(copies[planted], given.words)
            minutes = (time.monotonic() - began) / 60
            found = done.returncode == 1 and "slower" in done.stdout
            wrong[planted] += found is not planted
            sys.stdout.write(
                f"night {number} of {len(order)}, {'planted' if planted else 'quiet'}: exit code {done.returncode}, "
                f"{minutes:.1f} minutes, load {load:.1f} and {os.getloadavg()[0]:.1f}\n{done.stdout}\n"
            )
            if done.returncode not in (0, 1, 2) or not done.stdout:
                sys.stdout.write(done.stderr[-2000:])
            sys.stdout.flush()
    sys.stdout.write(
        f"found {given.planted - wrong[True]} of {given.planted} slowdowns by {BY:.0%}; "
        f"{wrong[False]} of {given.quiet} quiet nights raised an alarm\n"
    )
    return int(wrong[False] > 0 or 10 * wrong[True] > given.planted)


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
    return subprocess.run(
        command, env=kept, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LONGEST_S,
        check=False,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
