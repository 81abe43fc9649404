"""The engine's command line has its commands here, and says how an error ends one.

A command is a function whose parameters are its options; it loads what computes when it runs, so that --help and check
need no torch.
"""

import os
import sys
from collections.abc import Sequence
from inspect import cleandoc

from cyclopts import App, CycloptsError, MissingArgumentError, UnusedCliTokensError

from engine.cli.bench import collectives, flops, gemm, latency, layers, matmul, memory, p2p, startup
from engine.cli.breakdown import breakdown
from engine.cli.check import check
from engine.cli.contests import grids, optimisations, overlap, pipeline
from engine.cli.data import prepare, prepare_images
from engine.cli.dry import dry
from engine.cli.peers import peers
from engine.cli.plan import plan
from engine.cli.sample import sample
from engine.cli.train import train
from engine.comm.identity import COMMAND
from engine.errors import EngineError, UsageError, of_a_file
from engine.options import DEFAULTS
from engine.output import complain, no_output, open_streams, say


def program(name: str, words: str | None = None) -> App:
    """Make a command line for run(). words: its help, where no function's docstring is that."""
    return App(
        name=name,
        help=words,
        version=version,
        version_flags=("--version",),
        help_format="plaintext",
        default_parameter=DEFAULTS,
        verbose=False,
        result_action="return_value",
        exit_on_error=False,
        print_error=False,
    )


def version() -> str:
    """Name the version and the commit that run, and say whether tracked files differ from it."""
    from engine.result.provenance import CHECKOUT, git_state, versions

    commit, differs = git_state(CHECKOUT)
    kind = "commit not known" if commit is None else f"commit {commit}{', with changes' if differs else ''}"
    return f"par4d {versions().get('par4d', 'not installed')}, {kind}"


def commands(name: str) -> App:
    """Gather every command of the engine, for a program of that name."""
    app = program(name, "The 4D-parallel training engine of Par4D.")
    app.command(train)
    app.command(sample)
    app.command(check)
    app.command(plan)
    app.command(breakdown)
    data = App(name="data", help="Prepare training data.")
    data.command(prepare)
    data.command(prepare_images)
    app.command(data)
    bench = App(
        name="bench",
        help="Measure a device, links between several, overlaps, schedules, grids, optimisations, or us against peers.",
    )
    devices = (gemm, memory, latency, flops, layers, collectives, p2p, matmul, startup)
    for command in (*devices, overlap, pipeline, grids, optimisations, peers, dry):
        bench.command(command)
    app.command(bench)
    return app


def run(app: App, argv: Sequence[str] | None = None) -> int:
    """Carry out one command; return the exit code: 2 if it can't work as asked, 1 if it failed."""
    words = sys.argv[1:] if argv is None else list(argv)
    asks_for_help = bool({"--help", "-h", "--version"} & set(words))
    open_streams()
    fill_paragraphs(app)
    COMMAND.set(tuple(words))
    try:
        _check_utf8(words)
        code: int | None = app(words)
        if code is None:  # help was printed: as asked, or for want of a command
            say("", kept=True)
            if asks_for_help:
                return 0
            raise UsageError("Name a command: they are listed above.")
    except CycloptsError as error:
        command = " ".join([*app.name, *(error.command_chain or ())])
        complain(f"{_sentence(error)} See {command} --help.")
        return 2
    except UsageError as error:
        complain(str(error))
        return 2
    except EngineError as error:
        complain(str(error))
        return 1
    except OSError as error:
        if not asks_for_help and not of_a_file(error):
            raise
        complain(no_output(error) if asks_for_help else f"{error.filename}: {error.strerror}.")
        return 1
    return code


def _check_utf8(words: Sequence[str]) -> None:
    """Raise UsageError for a word that no result can hold, as its bytes are not UTF-8."""
    for before, word in zip(["", *words], words, strict=False):
        try:
            word.encode()
        except UnicodeEncodeError:
            name, _, value = word.partition("=") if word.startswith("--") else (before, "", word)
            option = name if name.startswith("--") else "The word"
            raise UsageError(f"{option} {os.fsencode(value)!r} is not UTF-8, as results are: rename it.") from None


def fill_paragraphs(app: App) -> None:
    """Let --help fill lines as wide as the terminal: paragraphs of docstrings are lines of code. Indented ones stay."""
    if app.help:
        paragraphs = cleandoc(app.help).split("\n\n")
        app.help = "\n\n".join(one if "\n " in f"\n{one}" else one.replace("\n", " ") for one in paragraphs)
    for name in app:
        if name not in app.help_flags:
            fill_paragraphs(app[name])


def _sentence(error: CycloptsError) -> str:
    """Say what is wrong with the words of a command line."""
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        return f"The word {error.unused_tokens[0]!r} belongs to no option."
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        if error.keyword is not None:
            return f"The option {error.keyword} needs a value."
        # Of options that are fields of one dataclass, none of which was given, the dataclass itself is missing.
        of_class = [option for option in error.argument.children_recursive if not option.children]
        needed = [option.name for option in of_class or [error.argument] if option.required]
        return f"The command needs {' and '.join(needed)}."
    return str(error)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program `python -m engine`."""
    return run(commands("python -m engine"), argv)
