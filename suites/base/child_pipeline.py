"""`reframe --ci-generate FILE` writes a GitLab pipeline whose commands run what this command would.

ReFrame's own leave out --system and all that says how tests run, and have a job for each fixture, of which no command
selects one.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from reframe.core.exceptions import ReframeError
from reframe.core.runtime import runtime

from engine.errors import UsageError
from suites.base.costs import cannot_run

CARRIED = {
    "vars": "--setvar",
    "job_options": "--job-option",
    "hooks": "--disable-hook",
    "module_mappings": "--map-module",
    "user_modules": "--module",
    "unload_modules": "--unload-module",
    "module_paths": "--module-path",
}
"""The options of ReFrame's that may be given several times, by the names of its parser."""
FLAGS = ("skip_performance_check", "skip_prgenv_check", "skip_sanity_check", "skip_system_check", "keep_stage_files")
GENERATED = ("parameterize", "repeat", "distribute")
"""These make tests which no name selects in another command."""


def carry_options(cli: Any) -> None:
    """Make the commands of a generated pipeline have the options of this one."""
    given: list[Any] = []
    emit = cli.ci.emit_pipeline

    class Parser(cli.argparse.ArgumentParser):
        def parse_args(self, *arguments: Any, **keywords: Any) -> Any:
            given[:] = [super().parse_args(*arguments, **keywords)]
            for name in GENERATED if given[0].ci_generate else ():
                if getattr(given[0], name):
                    raise UsageError(f"--ci-generate selects tests by name, but --{name} makes new ones: leave it out.")
            return given[0]

    def emit_with_options(out: IO[str], testcases: Sequence[Any], words: Sequence[str]) -> None:
        try:
            emit(out, _by_themselves(testcases), [*words, *carried(*given)])
        except ReframeError:
            Path(out.name).unlink(missing_ok=True)
            raise

    cli.argparse.ArgumentParser, cli.ci.emit_pipeline = Parser, emit_with_options


def carried(options: Any) -> list[str]:
    """Return the words for a shell that make another command run as this one. Raises ReframeError for a path that
    ReFrame's words would break.
    """
    config = runtime().site_config
    for path in (*config.sources[1:], *config.get("general/0/check_search_path")):
        if shlex.quote(str(path)) != str(path):
            raise ReframeError(f"--ci-generate can't write {str(path)!r} into a command: move it to a plain path")
    words = [f"--system={options.system or runtime().system.name}"]
    words += [f"{option}={value}" for name, option in CARRIED.items() for value in getattr(options, name) or ()]
    words += [f"--{name.replace('_', '-')}" for name in FLAGS if getattr(options, name)]
    return [shlex.quote(word) for word in words]


def _by_themselves(testcases: Sequence[Any]) -> list[Any]:
    """Leave fixtures to the commands of the tests that need them, and leave out tests that would be skipped. Raises
    ReframeError where none is left.
    """
    tests = [case for case in testcases if not case.check.is_fixture()]
    reasons = {id(case): cannot_run(case.check) for case in tests}
    kept = [case for case in tests if not reasons[id(case)]]
    if not kept:
        raise ReframeError(f"--ci-generate has no test to run: {reasons[id(tests[0])]}")
    for case in kept:
        case.deps[:] = [other for other in case.deps if other in kept]
    return kept
