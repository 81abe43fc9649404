"""Errors of the `reframe` command where ReFrame itself warns or calls it a pass.

Otherwise a mistyped option would run other tests, or the same with other settings. Functions here change what ReFrame's
command line (reframe.frontend.cli) calls.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from reframe.core.exceptions import ReframeError
from reframe.core.fields import make_convertible
from reframe.core.pipeline import RegressionTest
from reframe.core.runtime import runtime

import systems
from engine.errors import UsageError, nearest
from suites.base import feasible
from suites.base.allocation import LIMIT_BY_HAND
from suites.base.listings import cannot_run

INTERNAL = frozenset({"cases", "fixture_jobs", "record", "worth", LIMIT_BY_HAND})
"""Variables that no user sets."""
OF_ANOTHER = "skipped dependencies"
"""ReFrame's reason for a test that needs one which was skipped."""
NO_TEST = "no test matches the selection: check -c, -n, -t and --system, or list all tests with -c suites -R -l"


def refuse_all(cli: Any) -> None:
    """Make ReFrame's command line refuse what is mistyped, and runs without a test that ran."""
    _refuse_no_assignment(cli)
    _refuse_unknown_variables(cli)
    _refuse_unknown_parameters(cli)
    _refuse_no_tests(cli)


def _refuse_no_assignment(cli: Any) -> None:
    class Parser(cli.argparse.ArgumentParser):
        def parse_args(self, *arguments: Any, **keywords: Any) -> Any:
            options = super().parse_args(*arguments, **keywords)
            for word in options.vars or ():
                if "=" not in word:
                    raise UsageError(f"-S takes VARIABLE=VALUE, but {word!r} was given.")
            return options

    cli.argparse.ArgumentParser = Parser


def _refuse_unknown_variables(cli: Any) -> None:
    """Refuse a variable that no loaded test has, a value that it can't take, and a file that isn't there."""

    class Loader(cli.RegressionCheckLoader):
        def __init__(self, load_path: Any, recurse: bool, external_vars: Mapping[str, str], *rest: Any) -> None:
            self.given = {name: value for name, value in external_vars.items() if not name.startswith("_rfm")}
            self.classes: dict[type, None] = {}
            self.wrong = ""
            parted = [name.rpartition(".") for name in self.given]
            more = {f"{of}{dot}{LIMIT_BY_HAND}": "yes" for of, dot, own in parted if own == "time_limit"}
            super().__init__(load_path, recurse, {**external_vars, **more}, *rest)

        def load_from_module(self, module: Any) -> list[Any]:
            found = dict.fromkeys(_with_fixtures(getattr(module, "_rfm_test_registry", ())))
            self.classes.update(found)
            said = (wrong_value(one, name, value) for name, value in self.given.items() for one in found)
            self.wrong = self.wrong or next(filter(None, said), "")
            loaded: list[Any] = [] if self.wrong else super().load_from_module(module)
            return loaded

        def load_all(self, force: bool = False) -> list[Any]:
            if missing := [path for path in self.load_path if not Path(path).exists()]:
                raise ReframeError(f"-c {missing[0]}: there is no such file or folder")
            loaded: list[Any] = super().load_all(force)
            for name in self.given if self.classes else ():
                if not any(has(one, name) for one in self.classes):
                    raise ReframeError(unknown(name, self.given[name], [*self.classes]))
            if self.wrong:
                raise ReframeError(self.wrong)
            return loaded

        def unset_vars(self, testname: str) -> list[str]:
            return [name for name in super().unset_vars(testname) if name != LIMIT_BY_HAND]

    cli.RegressionCheckLoader = Loader


def _with_fixtures(classes: Iterable[Any]) -> Iterator[Any]:
    for one in classes:
        yield one
        yield from _with_fixtures(fixture.cls for fixture in one.fixture_space.fixtures.values())


def _variable(test: Any, name: str) -> Any:
    """Return what -S calls VAR, TEST.VAR or TEST.FIXTURE.VAR of a test or a fixture, or None."""
    first, _, rest = name.partition(".")
    if not rest:
        return test.var_space.vars.get(name)
    if first != test.__name__:
        return None
    name, _, of_fixture = rest.partition(".")
    if not of_fixture:
        return test.var_space.vars.get(name)
    fixture = test.fixture_space.fixtures.get(name)
    return None if fixture is None else fixture.cls.var_space.vars.get(of_fixture)


def has(test: Any, name: str) -> bool:
    return _variable(test, name) is not None


def wrong_value(test: Any, name: str, value: str) -> str:
    """Say why a variable can't have that value; "" if it can, or if the class has no such variable."""
    variable = _variable(test, name)
    if variable is None or value == "@none":
        return ""
    try:
        variable.field.__set__(None, make_convertible(value))
    except (TypeError, ValueError) as error:
        return f"-S {name}={value}: {test.__name__} can't take that value: {_last_part(error)}"
    return ""


def _last_part(error: Exception) -> str:
    """Return what a type's own conversion says, without the words that ReFrame puts before it."""
    return re.sub(r"^failed to set variable .*supported types: \[.*?\]: ", "", str(error))


def unknown(name: str, value: str, classes: Sequence[Any]) -> str:
    """Say that no test has a variable, and what is like it."""
    *path, own = name.split(".")
    words, named = f"-S {name}={value}: no loaded test", list(classes)
    if path and not (named := [one for one in classes if one.__name__ == path[0]]):
        return (
            f"{words} or fixture is called {path[0]!r}: {nearest(path[0], sorted({one.__name__ for one in classes}))}"
        )
    if len(path) > 1:
        fixtures = {key: fixture.cls for one in named for key, fixture in one.fixture_space.fixtures.items()}
        if path[1] not in fixtures:
            return f"{words} has the fixture {path[1]!r}: {nearest(path[1], sorted(fixtures))}"
        named = [fixtures[path[1]]]
    if any(own in one.param_space.params for one in named):
        return f"-S {name}={value}: {own!r} is a parameter: -n selects its values, and -P {name}={value} sets it"
    return f"{words} has the variable {own!r}: {_nearest_variables(own, named)}"


def _nearest_variables(name: str, classes: Iterable[Any]) -> str:
    """Name the variables that are called nearly so, or where there are none our own."""
    known = {key for one in classes for key in one.var_space.vars if not key.startswith(("_", "."))}
    ours = sorted(known - {*RegressionTest.var_space.vars} - INTERNAL)
    like = nearest(name, sorted(known - INTERNAL))
    return like if like.startswith("did you mean") else nearest(name, ours)


def _refuse_unknown_parameters(cli: Any) -> None:
    parameterize = cli.parameterize_tests

    def checked(cases: Sequence[Any], given: Mapping[str, Sequence[str]]) -> Any:
        classes = [*dict.fromkeys(type(case.check) for case in cases)]
        for name, values in given.items():
            own = name.rpartition(".")[2]
            owners = [one for one in classes if name in (own, f"{one.__name__}.{own}")]
            parameters = {key for one in owners for key in one.param_space.params}
            if classes and own not in parameters and not any(own in one.var_space.vars for one in owners):
                like = nearest(own, sorted(parameters)) if parameters else ""
                if not like.startswith("did you mean"):
                    like = _nearest_variables(own, owners or classes)
                raise ReframeError(f"-P {name}={','.join(values)}: no selected test has {name!r}: {like}")
            for one, value in ((one, value) for one in owners for value in values):
                if wrong := wrong_value(one, own, value) or _wrong_parameter(one, own, value):
                    raise ReframeError(wrong.replace("-S", "-P", 1))
        return parameterize(cases, given)

    cli.parameterize_tests = checked


def _wrong_parameter(test: Any, name: str, value: str) -> str:
    kind = getattr(test.param_space.params.get(name), "type", None)
    try:
        if kind is not None:
            kind(value)
    except (TypeError, ValueError) as error:
        return f"-S {name}={value}: {test.__name__} can't take that value: {error}"
    return ""


def _refuse_no_tests(cli: Any) -> None:
    """Refuse to list or run no test at all, and to call it a pass where every test was skipped."""

    class Runner(cli.Runner):
        def runall(self, testcases: Sequence[Any], restored_cases: Sequence[Any] | None = None) -> None:
            _require(testcases)
            super().runall(without_needless_fixtures(testcases), restored_cases)
            every = [*self.stats.tasks(None)]
            tasks = [task for task in every if not task.check.is_fixture()]
            if tasks and all(task.result == "skip" for task in tasks) and not self.stats.failed(None):
                skipped = (task for task in every if task.result == "skip")
                first = next((task for task in skipped if OF_ANOTHER not in str(task.exc_info[1])), tasks[0])
                many = "the only selected test was" if len(tasks) == 1 else f"all {len(tasks)} selected tests were"
                raise ReframeError(f"{many} skipped: {first.check.display_name}: {first.exc_info[1]}")

    list_checks = cli.list_checks

    def list_some(testcases: Sequence[Any], *arguments: Any) -> None:
        _require(testcases)
        list_checks(testcases, *arguments)

    cli.Runner, cli.list_checks = Runner, list_some


def _require(testcases: Sequence[Any]) -> None:
    if not testcases:
        raise ReframeError(_of_other_partitions() or NO_TEST)


def _of_other_partitions() -> str | None:
    """Say why no partition that --system selects has devices such as the system's; None if one has."""
    chosen = runtime().system
    if chosen.name not in systems.names():
        return None
    system, selected = systems.load(chosen.name), {part.name for part in chosen.partitions}
    own = [one for one in system.partitions if one.name in selected]
    reasons = [feasible.other_kind(system, one, system.device.kind) for one in own]
    return f"no test: {reasons[0]}" if reasons and all(reasons) else None


def without_needless_fixtures(testcases: Sequence[Any]) -> list[Any]:
    """Leave out the fixtures that only tests need which can't run: these are skipped, and none has to wait.

    testcases: ReFrame's, each behind what it needs.
    """
    for case in reversed(testcases):
        case.prepare()
        needless = case.check.is_fixture() and not case.in_degree
        if needless or cannot_run(case.check):
            for needed in case.deps:
                needed.in_degree -= 1
            case.deps.clear()
    return [case for case in testcases if not case.check.is_fixture() or case.in_degree]
