"""``check``: run the checks in a child process, which a hang ends, and report what they find.

>>> report = check("TrlEnv/GuessNumber-v0", episodes=10, only=["interface", "end"])
>>> report.failed, report.findings, report.numbers["solver"]["success"].mean
(False, [], 1.0)
"""

import faulthandler
import multiprocessing
import re
import shlex
import sysconfig
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from gym_trl.check import contract, learning, repeating
from gym_trl.check.contract import Finding, error
from gym_trl.check.evidence import Evidence, NotPlayedError
from gym_trl.check.report import Report, Table
from gym_trl.errors import ConfigError, described, raise_interrupt
from gym_trl.models import find_model
from gym_trl.players import text_policy
from gym_trl.registration import EnvSource
from gym_trl.setting import LONG_ANSWER, Options, Setting

CHECKS: dict[str, Callable[[Evidence], Iterator[Finding]]] = {
    "interface": contract.interface,
    "closing": contract.closing,
    "repeats": repeating.repeats,
    "text": contract.text,
    "rules": contract.rules,
    "invalid actions": contract.invalid_actions,
    "seats": contract.seats,
    "end": contract.end,
    "speed": contract.speed,
    "state key": contract.state_key,
    "success": learning.success,
    "tasks": learning.tasks,
    "exploits": learning.exploits,
    "blind": learning.blind,
    "model": learning.model,
}
"""Checks by name, in their order: those that explain what others would find come first."""
_MOST_HANGS = 3
_LOADING = 30  # times the patience, for a model to be loaded


def check(
    env: EnvSource | Sequence[EnvSource],
    *,
    model: Any = None,
    episodes: int = 60,
    patience: float = 60.0,
    seed: int = 0,
    only: Sequence[str] = (),
    json: Path | None = None,
    markdown: Path | None = None,
    **options: Unpack[Options],
) -> Report | Table:
    """Say whether an environment is fit to train on, and whether a model can begin on it.

    Random play, the solver if there is one, and policies that do not read play once; each check looks at their games.

    Args:
        env: Environment; several make a table.
        model: Model to look at as well: see ``evaluate``.
        episodes: Number of games of each policy; slow environments and long games play fewer.
        patience: Seconds without a word after which a check hangs.
        seed: Seed of the tasks.
        only: Names of checks. Default: all.
        json: File for the report as JSON.
        markdown: File for the report as Markdown.
        options: How the environment is played.

    Raises:
        ConfigError: An option or the name of a check is wrong, or there is no such model.
    """
    if unknown := [name for name in only if name not in CHECKS]:
        raise ConfigError(f"only: there is no check {unknown[0]!r}; there are {', '.join(CHECKS)}")
    names = [name for name in CHECKS if name in (only or CHECKS) and (name != "model" or model is not None)]
    if isinstance(model, str | Path) and model != "tiny" and text_policy(str(model)) is None:
        find_model(model)
    sources = list(env) if isinstance(env, Sequence) and not isinstance(env, str) else [env]
    reports = []
    for source in sources:
        setting = Setting.beside(model, env=source, **options)
        evidence = partial(Evidence, setting, model=model, episodes=episodes, seed=seed)
        began = time.monotonic()
        run = _Run(Report(setting.name), evidence, patience)
        run.run(names, model_here=isinstance(model, tuple))
        report = run.report
        report.seconds = time.monotonic() - began
        report.next = _next_command(report, setting, model, options)
        reports.append(report)
    result = reports[0] if sources == [env] else Table(reports)
    for file, text in ((json, result.json), (markdown, result.markdown)):
        if file is not None:
            Path(file).write_text(text(), encoding="utf-8")
    return result


@dataclass
class _Run:
    """Checks of one environment, and what is known of them; a child process sends that after each change."""

    report: Report
    evidence: Callable[..., Evidence]
    patience: float
    waiting: list[str] = field(default_factory=list)
    """Names of checks that have not begun."""
    hung: list[str] = field(default_factory=list)
    """Names of checks, and of policies, that have hung."""
    lines: set[str] = field(default_factory=set)
    """Lines that have hung; one may stop several checks."""
    check: str = ""
    policy: str = ""
    """Names of the check that runs and of the policy that plays."""

    def run(self, names: Sequence[str], *, model_here: bool) -> None:
        """Run checks in a child process; where one hangs, a next one runs those that are left without what has hung.

        Args:
            names: Names of the checks.
            model_here: The model is in the memory of this process, which lets it play.
        """
        checks = [name for name in names if name != "model"]
        models = [name for name in names if name == "model"]
        self.waiting = [*checks, "numbers", *([] if model_here else models)]
        while self.waiting and len(self.hung) < _MOST_HANGS:
            try:
                for known in _sent_by(self.run_here):
                    vars(self).update(known)
            except _StoppedError as stopped:
                got, fix = stopped.args
                if got not in self.lines:
                    self.add(error(f"{got} while {self.policy} is played" if self.policy else got, fix))
                self.lines.add(got)
                self.hung.append(self.policy or self.check)
        self.report.missing |= {name: "mend what hangs first" for name in self.waiting if name != "numbers"}
        if model_here:
            self.waiting = models
            self.run_here(lambda known, patience: None)

    def run_here(self, send: Callable[[Mapping[str, Any], float], None]) -> None:
        """Run the checks that wait, and send what is known whenever it changes, with the patience for what follows."""

        def tell(policy: str) -> None:
            self.policy = policy
            is_loading = self.check == "model" and not policy
            known = {name: value for name, value in vars(self).items() if name not in ("evidence", "patience")}
            send(known, self.patience * (_LOADING if is_loading else 1))

        it = self.evidence(hung=self.hung, on_play=tell)
        it.broken |= {one.check for one in self.report.errors}
        for name in list(self.waiting):
            self.waiting.remove(name)
            self.check = name
            tell("")
            try:
                if name == "numbers":
                    learning.measure(it)
                for one in CHECKS[name](it) if name in CHECKS else ():
                    self.add(one)
                    tell("")
                    if one.verdict == "error":
                        it.broken.add(name)
            except NotPlayedError as missing:
                if name != "numbers":
                    self.report.missing[name] = str(missing)
            except BaseException as raised:
                raise_interrupt(raised)
                self.add(error(f"raised {described(raised)}"[:200], "see the message"))
                it.broken.add(name)
            self.report.numbers |= it.numbers
            self.report.prompt = it.prompt or self.report.prompt
            tell("")

    def add(self, one: Finding) -> None:
        """Add a finding of the check that runs to the report."""
        self.report.findings.append(one._replace(check=self.check))


class _StoppedError(Exception):
    """A child process hangs, or has ended before its work: the reason, and what helps."""


def _sent_by(work: Callable[[Callable[[Any, float], None]], None]) -> Iterator[Any]:
    """Run a function in a child process, and yield what it sends, each time with a patience for what follows.

    Raises:
        _StoppedError: It sends nothing for longer than that, or its process ends.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    with tempfile.TemporaryFile("w+") as stack:

        def child() -> None:
            warnings.simplefilter("ignore")
            one_at_a_time = threading.Lock()

            def send(value: Any, patience: float) -> None:
                with one_at_a_time:
                    faulthandler.dump_traceback_later(patience, exit=True, file=stack)
                    sender.send(value)

            work(send)
            sender.send(None)

        process = context.Process(target=child, daemon=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
            process.start()
        sender.close()
        try:
            while (known := receiver.recv()) is not None:
                yield known
        except EOFError:
            process.join()
            stack.seek(0)
            if trace := stack.read():
                raise _StoppedError(f"hangs at {_place(trace)}", "end every step") from None
            raise _StoppedError(f"ended its process ({process.exitcode})", "see its output") from None
        finally:
            process.kill()
            process.join()


def _place(stack: str) -> str:
    """Return the innermost line of a stack that is neither Python's nor this library's nor Gymnasium's."""
    frames = re.findall(r'File "(.+)", line (\d+) in (\S+)', stack)
    library = (*(sysconfig.get_path(name) for name in ("stdlib", "purelib")), str(Path(__file__).parents[1]))
    own = [one for one in frames if not one[0].startswith(library)] or frames
    return "{}:{} in {}".format(*own[0]) if own else "a place that is not known"


def _next_command(report: Report, setting: Setting, model: Any, options: Mapping[str, Any]) -> str:
    """Return the command to run next."""
    flags: dict[str, Any] = {"model": model} if isinstance(model, str) else {}
    flags |= {name: value for name, value in options.items() if isinstance(value, str | int | float)}
    numbers = report.numbers
    command = "check" if report.failed else "train"
    if not report.failed and model is not None:
        if numbers.get("cut", 0) > learning.CUT:
            command, flags["max_tokens_per_turn"] = "check", 2 * (setting.max_tokens_per_turn or LONG_ANSWER)
        elif numbers.get("legal", 1) < learning.LEGAL or not numbers.get("spread", 1):
            flags["warm_start"] = "solver" if "solver" in numbers else "random"
    words = [report.env, *(word for name, value in flags.items() for word in (f"--{name}", str(value)))]
    return f"gym-trl {command} {shlex.join(words)}"
