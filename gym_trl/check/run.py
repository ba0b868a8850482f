"""``check``: run the checks in a child process, which a hang ends, and report what they find.

>>> report = check("TrlEnv/GuessNumber-v0", episodes=10, only=["interface", "end"])
>>> report.failed, report.findings, report.numbers["solver"]["success"].mean
(False, [], 1.0)
"""

import faulthandler
import multiprocessing
import os
import re
import shlex
import signal
import statistics
import sysconfig
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, Unpack

from gym_trl.check import contract, learning, repeating
from gym_trl.check.contract import Finding, error
from gym_trl.check.evidence import Evidence, NotPlayedError, steps_of
from gym_trl.check.report import Report, Table
from gym_trl.errors import ConfigError, described, raise_interrupt
from gym_trl.intervals import interval
from gym_trl.players import Game, TextPlayer, find_model, play_all, text_policy
from gym_trl.random_play import random_play
from gym_trl.registration import EnvSource
from gym_trl.setting import LONG_ANSWER, Options, Setting

Say: TypeAlias = Callable[[str, Any], None]
"""Function that is told what happens: a kind of message, and its value."""
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
}
"""Checks by name, in their order: those that explain what others would find come first."""
_MOST_HANGS = 3
_LOADING = 30  # times the patience, for a model to be loaded


def check(
    env: EnvSource | Sequence[EnvSource],
    *,
    model: Any = None,
    episodes: int = 60,
    seconds: float = 20.0,
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
        episodes: Number of games of each policy.
        seconds: Time for all of them, about; slow environments play fewer games.
        patience: Seconds without a word after which a check hangs.
        seed: Seed of the tasks.
        only: Names of checks. Default: all.
        json: File for the report as JSON.
        markdown: File for the report as Markdown.
        options: How the environment is played.

    Raises:
        ConfigError: An option or the name of a check is wrong, or there is no such model.
    """
    all_checks = [*CHECKS, "model"]
    if unknown := [name for name in only if name not in all_checks]:
        raise ConfigError(f"only: there is no check {unknown[0]!r}; there are {', '.join(all_checks)}")
    names = [name for name in all_checks if name in (only or all_checks) and (name != "model" or model is not None)]
    if isinstance(model, str | Path) and model != "tiny" and text_policy(str(model)) is None:
        find_model(model)
    sources = list(env) if isinstance(env, Sequence) and not isinstance(env, str) else [env]
    reports = []
    for source in sources:
        setting = Setting.beside(model, env=source, **options)
        if model == "tiny" and setting.action_format is None:  # it writes no marks
            setting = replace(setting, action_format="plain")
        report = Report(setting.name)
        evidence = partial(Evidence, setting, episodes=episodes, seconds=seconds, seed=seed)
        began = time.monotonic()
        _Run(report, evidence, model, patience).go(names)
        report.seconds = time.monotonic() - began
        report.next = _next_command(report, setting, model, options)
        reports.append(report)
    result = reports[0] if sources == [env] else Table(reports)
    for file, text in ((json, result.json), (markdown, result.markdown)):
        if file is not None:
            Path(file).write_text(text(), encoding="utf-8")
    return result


class _Run:
    """Checks of one environment, and what is heard of them."""

    def __init__(self, report: Report, evidence: Callable[..., Evidence], model: Any, patience: float) -> None:
        self.report, self.evidence, self.model, self.patience = report, evidence, model, patience
        self.left: list[str] = []
        self.hung: list[str] = []
        self.current = self.playing = ""
        self.told: set[str] = set()

    def go(self, names: Sequence[str]) -> None:
        """Run checks in a child process; where one hangs, a next one runs those that are left without what has hung."""
        here = [name for name in names if name == "model" and isinstance(self.model, tuple)]  # weights of this process
        self.left = [name for name in names if name not in here] + ["numbers"]
        while self.left and len(self.hung) < _MOST_HANGS:
            for kind, value in _messages(self.look, self.patience):
                self.hear(kind, value)
        for name in self.left[:-1]:
            self.report.missing[name] = "mend what hangs first"
        self.left = here
        self.look(self.hear)

    def look(self, say: Say) -> None:
        """Run the checks that are left, and say what they find."""
        it = self.evidence(hung=self.hung, on_play=partial(say, "plays"))
        it.broken |= {one.check for one in self.report.errors}
        for name in list(self.left):
            say("check", name)
            try:
                if name == "numbers":
                    say("numbers", _numbers(it))
                    say("prompt", _first_prompt(it))
                    continue
                for one in self.of_model(it, say) if name == "model" else CHECKS[name](it):
                    say("found", one)
                    if one.verdict == "error":
                        it.broken.add(name)
            except NotPlayedError as missing:
                say("missing", str(missing))
            except BaseException as raised:
                raise_interrupt(raised)
                say("found", error(f"raised {described(raised)}"[:200], "see the message"))
                it.broken.add(name)

    def of_model(self, it: Evidence, say: Say) -> Iterator[Finding]:
        """Let the model play, and look at its games."""
        played = learning.played_by(self.model, it, on_game=lambda game: say("plays", "the model"))
        scores = {"model": _scores(it, played.games)}
        say("numbers", scores | {name: round(share, 3) for name, share in played.numbers.items()})
        say("prompt", played.prompt)
        yield from learning.of_model(played)

    def hear(self, kind: str, value: Any) -> None:
        """Note what a check says."""
        report = self.report
        if kind == "check":
            self.current, self.playing = value, ""
            self.left.remove(value)
        elif kind == "plays":
            self.playing = value
        elif kind == "found":
            raised = re.findall(r"\w*(?:Error|Exception|Exit): [^(]{0,40}", value.got)  # an exception is told once
            texts = raised or [f"{self.current}: {value.got}"]
            keys = {re.sub(r"[-\d.\s]+|'[^']*'|\[.*?\]", "", text.strip()) for text in texts}
            if not keys & self.told:
                report.findings.append(value._replace(check=self.current))
            self.told |= keys
        elif kind == "missing":
            if self.current != "numbers":
                report.missing[self.current] = value
        elif kind == "numbers":
            report.numbers = value | report.numbers
        elif kind == "prompt":
            report.prompt = report.prompt or value
        else:
            if value not in self.told:  # one line may stop several checks
                where = f"{value} while {self.playing} is played" if self.playing else value
                self.hear("found", error(where, "end every step" if kind == "hangs" else "see its output"))
            self.told.add(value)
            self.hung.append(self.playing or self.current)


def _messages(work: Callable[[Say], None], patience: float) -> Iterator[tuple[str, Any]]:
    """Run a function in a child process, and yield what it says; last ``hangs`` or ``died``, if it does."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    with tempfile.NamedTemporaryFile("w+") as stack:

        def child() -> None:
            faulthandler.register(signal.SIGUSR1, file=stack, all_threads=False)
            warnings.simplefilter("ignore")
            one_at_a_time = threading.Lock()

            def say(kind: str, value: Any) -> None:
                with one_at_a_time:
                    sender.send((kind, value))

            work(say)
            sender.send(None)

        process = context.Process(target=child, daemon=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
            process.start()
        sender.close()
        most = patience
        try:
            while True:
                if not receiver.poll(most):
                    os.kill(int(process.pid or 0), signal.SIGUSR1)
                    time.sleep(0.5)
                    yield "hangs", f"nothing for {patience:g} s, at {_place(Path(stack.name).read_text())}"
                    return
                message = receiver.recv()
                if message is None:
                    return
                most = _LOADING * patience if message == ("check", "model") else patience
                yield message
        except EOFError:
            process.join()
            yield "died", f"ended its process ({process.exitcode})"
        finally:
            process.kill()
            process.join()


def _place(stack: str) -> str:
    """Return the innermost line of a stack that is neither Python's nor this library's nor Gymnasium's."""
    frames = re.findall(r'File "(.+)", line (\d+) in (\S+)', stack)
    library = (*(sysconfig.get_path(name) for name in ("stdlib", "purelib")), str(Path(__file__).parents[1]))
    own = [one for one in frames if not one[0].startswith(library)] or frames
    return "{}:{} in {}".format(*own[0]) if own else "a place that is not known"


def _numbers(it: Evidence) -> dict[str, Any]:
    """Return the scores of those who have played, and sizes."""
    it.random, it.solved  # noqa: B018 -- play
    found = {name: _scores(it, it.games[name]) for name in ("random", "solver", "blind") if it.games.get(name)}
    if "blind" in found:
        found["blind"]["by"] = it.blind
    constants = [(it.score(games, paid=True), name) for name, games in it.games.items() if name.startswith("always ")]
    if constants:
        _, name = max(constants)
        found["constant"] = _scores(it, it.games[name]) | {"by": name}
    turns = [len(game.here.actions) for game in it.random]
    sizes = [sum(len(one.observation) for one in steps_of(game)) for game in it.random]
    return found | {
        "turns": round(statistics.fmean(turns), 1),
        "most turns": max(turns),
        "characters": round(statistics.fmean(sizes)),
        "step (us)": round(1e6 * contract.step_seconds(it.random)),
    }


def _scores(it: Evidence, games: Sequence[Game]) -> dict[str, Any]:
    """Return success, where it is declared, and return, with their intervals."""
    by_task: dict[int, list[Any]] = {}
    for game in games:
        if game.episodes[0].scored:
            by_task.setdefault(game.task.seed, []).append(game.episodes[0])
    rows = list(by_task.values())
    paid = interval([[one.paid for one in row] for row in rows])
    won = interval([[float(one.success is True) for one in row] for row in rows], share=True)
    return {"success": won, "return": paid} if it.declares else {"return": paid}


def _first_prompt(it: Evidence) -> str:
    """Return the first messages of a conversation."""
    setting = it.setting
    players = [TextPlayer(random_play)] * it.seats
    [game] = play_all(setting.make, setting.tasks(1, seed=it.seed), players, preamble=setting.preamble)
    episode = game.episodes[0]
    return "\n\n".join(one.content for one in episode.messages[: episode.opening])


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
