"""Inspection of an environment in a separate process, which may hang or die."""

from collections.abc import Callable
from functools import partial
from pickle import PicklingError
from typing import Any

import gymnasium as gym

from gym_trl.bases import Closing
from gym_trl.env_checker.checks import CHECKS
from gym_trl.env_checker.inspector import Inspector
from gym_trl.env_checker.play import difference, shortened
from gym_trl.errors import ConfigError
from gym_trl.evaluation.as_trained import as_trained
from gym_trl.evaluation.blind import SECONDS, STEPS
from gym_trl.executors.process import ProcessEnded, PythonProcess, pack
from gym_trl.options import chosen
from gym_trl.report import PROBLEM, Finding, Report, ok, problem, skipped
from gym_trl.text import counted

_BLIND = "blind baseline"
_START_S = 120.0
_LATE = 2  # checks that timed out, after which the others are skipped


def inspect_env(
    make: Callable[[], gym.Env[Any, Any]],
    *,
    name: str = "the environment",
    episodes: int = 20,
    patience_s: float = 60.0,
    search_steps: int = STEPS,
    search_seconds: float = SECONDS,
    seed: int = 0,
    on_finding: Callable[[Finding], None] | None = None,
    **options: Any,
) -> Report:
    """Check every requirement of training, in a separate process.

    >>> from gym_trl.envs.echo import Echo
    >>> report = inspect_env(lambda: Echo(turns=3), episodes=5, search_steps=1_000)
    >>> report.count("problem"), report.count("warning"), {one.name: one.got for one in report.findings}["solver"]
    (0, 0, 'returns 1.000 and solves 1.000 of 5 episodes')

    Any Gymnasium environment can be checked. It is checked as it is, and converted to text (``as_text``), as in
    training. An environment that hangs or kills the process is reported, too.

    Args:
        make: Makes a new environment; transferred to the process by value.
        name: Name in the report.
        episodes: Number of episodes for measurements; fewer if the environment is slow.
        patience_s: Maximum seconds for one check.
        search_steps: Number of environment steps in the search for the best blind policy; 0 for no search.
        search_seconds: Maximum seconds for this search, in addition to ``patience_s``.
        seed: Seed of this search and of its held-out episodes.
        on_finding: Called with each finding as soon as it is available.
        options: Options of ``GymSpec`` with which the environment is trained, such as ``turn_limit=8``. Without
            ``action_format``, actions are not marked.

    Raises:
        ConfigError: ``make`` cannot be sent to another process, a number is out of range, or an option is unknown or
            has a wrong value.
    """
    import cloudpickle

    trained_with = chosen(options, by="a check")
    as_trained(make, trained_with)  # reports wrong values now
    if episodes < 2 or not patience_s > 0:
        raise ConfigError(f"episodes must be at least 2 and patience_s above 0, got {episodes} and {patience_s}")
    if search_steps < 0 or not search_seconds > 0:
        raise ConfigError(
            f"search_steps must be at least 0 and search_seconds above 0, got {search_steps} and {search_seconds}"
        )
    try:
        cloudpickle.dumps((make, trained_with))
    except (PicklingError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"make, or spec, cannot be sent to another process ({error}): give a function or a class without open "
            "files, locks or connections"
        ) from error
    inspector = partial(Inspector, make, episodes, search_steps, search_seconds, seed=seed, options=trained_with)
    findings, late = [], 0
    with _Process(inspector, patience_s) as process:
        for check in CHECKS:
            patience = patience_s + (search_seconds if check == _BLIND else 0.0)
            finding = CHECKS[check].named(skipped("see above") if late >= _LATE else _look(process, check, patience))
            late += finding.verdict is PROBLEM and finding.got.startswith(NO_ANSWER)
            findings.append(finding)
            if on_finding:
                on_finding(finding)
            if check == "construction" and finding.verdict is PROBLEM:
                late = _LATE
    return Report(name, tuple(findings))


NO_ANSWER = "no answer within "
"""Beginning of the finding of a check that timed out."""


def _look(process: "_Process", name: str, patience_s: float) -> Finding:
    try:
        if name == "processes":
            return _compare_processes(process)
        finding: Finding = process.ask("look_at", name, patience_s=patience_s)
        return finding
    except TimeoutError as error:
        fix = "look for an endless loop, a wait for input, or a service that does not answer; set time limits on waits"
        return problem(str(error), fix)
    except (ProcessEnded, ConfigError) as error:
        fix = "no code of an environment may end the process; see its output above"
        return problem(shortened(str(error)), fix)


def _compare_processes(process: "_Process") -> Finding:
    """Compare the same episodes in two processes, in which hashes and addresses differ."""
    first, keys = process.ask("games"), process.ask("keys")
    process.restart()
    second, keys_again = process.ask("games"), process.ask("keys")
    if first is None or second is None:
        return skipped("see above")
    tried = min(len(first), len(second))  # a process that is slow at its first episode plays fewer
    first, second = first[:tried], second[:tried]
    if (where := difference(first, second)) is None:
        pairs = [pair for one, two in zip(keys, keys_again, strict=False) for pair in zip(one, two, strict=False)]
        where = next((f"a state key is {this}, then {that}" for this, that in pairs if this != that), None)
    if where is None:
        return ok(f"{counted(len(first), 'episode')} the same in two processes")
    fix = "do not depend on the order of a set, on hash(), id() or the process; sort sets before drawing from them"
    return problem(where, fix)


# ---------------------------------------------------------------------------------------------------------------------
# The process
# ---------------------------------------------------------------------------------------------------------------------


class _Process(Closing):
    """Process that runs the checks, replaced by another one when it is lost."""

    def __init__(self, inspector: Callable[[], Inspector], patience_s: float) -> None:
        self._packed, self._patience_s = pack(inspector), patience_s
        self._process: PythonProcess | None = None
        self._start()

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def ask(self, method: str, *arguments: Any, patience_s: float | None = None) -> Any:
        return self._call(self._process or self._start(), patience_s or self._patience_s, method, *arguments)

    def restart(self) -> None:
        """Replace the process by a new one."""
        self.close()
        self._start()

    def _start(self) -> PythonProcess:
        self._process = process = PythonProcess(self._packed)
        self._call(process, _START_S, "ready")  # the start of the process is not limited by patience_s
        return process

    def _call(self, process: PythonProcess, patience_s: float, method: str, *arguments: Any) -> Any:
        try:
            return process.call(method, *arguments, timeout=patience_s)
        except TimeoutError:
            self.close()
            raise TimeoutError(f"{NO_ANSWER}{patience_s:g} s") from None
        except ProcessEnded:
            self.close()
            raise
