"""Checks that an environment meets the requirements of training, with suggested fixes."""

import math
import os
import random
import re
import statistics
import sysconfig
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from pickle import PicklingError, dumps, loads
from selectors import EVENT_READ, DefaultSelector
from time import perf_counter
from typing import Any, NamedTuple, NoReturn, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium.utils.env_checker import check_env

from gym_trl.errors import ConfigError, NotTextError
from gym_trl.evaluation.blind import SECONDS, STEPS, describe, is_near, search_blind
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.executors.step import read_step
from gym_trl.executors.worker import Worker, WorkerError
from gym_trl.spaces import holds_text
from gym_trl.testing.checks import STRANGE_ACTIONS, scrambled_generators
from gym_trl.text.discovery import description, marks
from gym_trl.text.textify import counted
from gym_trl.types import Policy
from gym_trl.wrappers.admissible_actions import listed_actions
from gym_trl.wrappers.as_text import as_text
from gym_trl.wrappers.declare_success import declare_success

OK, WARNING, PROBLEM, SKIPPED = "ok", "warning", "problem", "skipped"
"""Verdicts: requirement met; training works, but worse; training does not work; could not be checked."""

_MOST_TURNS = 1_000
_LONGEST_S = 8.0  # for the episodes of one check, estimated from the first one
_SLOW_STEP_S, _SLOW_START_S = 0.1, 5.0
_LONG_EPISODE = 16_000  # characters, about 4,000 tokens
_LONG_RULES = 4_000
_SHORT = 160
_BLIND = "blind baseline"
_START_S = 120.0
_LATE = 2  # checks that timed out, after which the others are skipped


class Finding(NamedTuple):
    """Result of one check."""

    promise: str
    verdict: str
    """``"ok"``, ``"warning"``, ``"problem"``, or ``"skipped"`` if it could not be checked."""
    got: str
    """Observed behavior."""
    why: str
    """Reason why training requires it."""
    fix: str = ""
    """Suggested change."""
    numbers: Mapping[str, Any] | None = None
    """Measured values, for programs."""


@dataclass(frozen=True, slots=True)
class Report:
    """Results of all checks of an environment."""

    name: str
    findings: tuple[Finding, ...]

    def count(self, verdict: str) -> int:
        """Return the number of checks with this verdict."""
        return sum(one.verdict == verdict for one in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON values."""
        counts = {verdict: self.count(verdict) for verdict in (OK, WARNING, PROBLEM, SKIPPED)}
        return {"version": 1, "id": self.name, **counts, "findings": [one._asdict() for one in self.findings]}


def inspect_env(
    make: Callable[[], gym.Env[Any, Any]],
    *,
    name: str = "the environment",
    episodes: int = 20,
    patience_s: float = 60.0,
    blind_steps: int = STEPS,
    blind_seconds: float = SECONDS,
    seed: int = 0,
    on_finding: Callable[[Finding], None] | None = None,
) -> Report:
    """Check every requirement of training, in a separate process.

    >>> from gym_trl.envs.echo import Echo
    >>> report = inspect_env(lambda: Echo(turns=3), episodes=5)
    >>> report.count("problem"), report.count("warning"), {one.promise: one.got for one in report.findings}["solver"]
    (0, 0, 'returns 1.000 and solves 1.000 of 5 games')

    Any Gymnasium environment can be checked. It is checked as it is, and converted to text (``as_text``), as in
    training. An environment that hangs or kills the process is reported, too.

    Args:
        make: Makes a new environment; transferred to the process by value.
        name: Name in the report.
        episodes: Number of episodes for measurements; fewer if the environment is slow.
        patience_s: Maximum seconds for one check.
        blind_steps: Number of environment steps in the search for the best blind policy; 0 for no search.
        blind_seconds: Maximum seconds for this search, in addition to ``patience_s``.
        seed: Seed of this search and of its held-out episodes.
        on_finding: Called with each finding as soon as it is available.

    Raises:
        ConfigError: ``make`` cannot be sent to another process, or a number is out of range.
    """
    if episodes < 2 or not patience_s > 0:
        raise ConfigError(f"episodes must be at least 2 and patience_s above 0, got {episodes} and {patience_s}")
    findings, late = [], 0
    if blind_steps < 0 or not blind_seconds > 0:
        given = f"{blind_steps} and {blind_seconds}"
        raise ConfigError(f"blind_steps must be at least 0 and blind_seconds above 0, got {given}")
    with _Other(make, episodes, patience_s, (blind_steps, blind_seconds, seed)) as other:
        for promise in PROMISES:
            found = _not_tried(promise) if late >= _LATE else _found(other, promise)
            late += found.verdict == PROBLEM and found.got.startswith(_NO_ANSWER)
            findings.append(found)
            if on_finding:
                on_finding(found)
            if promise == "construction" and found.verdict == PROBLEM:
                late = _LATE
    return Report(name, tuple(findings))


_NO_ANSWER = "no answer within "


def _not_tried(promise: str) -> Finding:
    return Finding(promise, SKIPPED, "not looked at: see above", PROMISES[promise])


def _found(other: "_Other", promise: str) -> Finding:
    try:
        if promise == "processes":
            return _in_processes(other)
        if promise == _BLIND:
            found: Finding = other.ask("look_at", promise, more_s=other.blind[1])
        else:
            found = other.ask("look_at", promise)
        return found
    except _Hung as error:
        fix = "an endless loop, a wait for input, or a service that does not answer: give what waits a deadline"
        return Finding(promise, PROBLEM, f"{_NO_ANSWER}{error} s", PROMISES[promise], fix)
    except WorkerError as error:
        fix = "nothing in an environment may end the process: see what it printed above"
        return Finding(promise, PROBLEM, _last_line(str(error)), PROMISES[promise], fix)


def _last_line(text: str) -> str:
    return _short(text.strip().splitlines()[-1])


def _in_processes(other: "_Other") -> Finding:
    """Compare the same episodes in two processes, in which hashes and addresses differ."""
    promise = "processes"
    first = other.ask("games")
    second = other.again().ask("games")
    if first is None or second is None:
        return _not_tried(promise)
    if (where := _difference(first, second)) is None:
        return Finding(promise, OK, f"{counted(len(first), 'game')} the same in two processes", PROMISES[promise])
    fix = (
        "nothing may depend on the order of a set, on hash(), id() or the process: sort sets before you draw from them"
    )
    return Finding(promise, PROBLEM, where, PROMISES[promise], fix)


# ---------------------------------------------------------------------------------------------------------------------
# The process
# ---------------------------------------------------------------------------------------------------------------------


class _Hung(Exception):  # noqa: N818 -- it becomes a finding
    """Timeout of the process."""


class _Other:
    """Process that runs the checks, replaced by another one when it is lost."""

    def __init__(
        self, make: Callable[[], gym.Env[Any, Any]], episodes: int, patience_s: float, blind: tuple[int, float, int]
    ) -> None:
        self._make, self._episodes, self._patience_s, self.blind = make, episodes, patience_s, blind
        self._worker: Worker | None = None

    def __enter__(self) -> "_Other":
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._worker is not None:
            self._worker.kill()

    def ask(self, method: str, *arguments: Any, more_s: float = 0.0) -> Any:
        return self._answer(self._worker or self._start(), self._patience_s + more_s, method, *arguments)

    def _answer(self, worker: Worker, patience_s: float, method: str, *arguments: Any) -> Any:
        try:
            worker.ask(method, *arguments)
            with DefaultSelector() as selector:
                selector.register(worker, EVENT_READ)
                if not selector.select(patience_s):
                    raise _Hung(f"{patience_s:g}")
            return worker.answer()
        except (_Hung, WorkerError):
            worker.kill()
            self._worker = None
            raise

    def again(self) -> "_Other":
        """Return this object with a new process."""
        if self._worker is not None:
            self._worker.kill()
        self._start()
        return self

    def _start(self) -> Worker:
        import cloudpickle

        make, episodes, blind = self._make, self._episodes, self.blind
        try:
            cloudpickle.dumps(make)
        except (PicklingError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"what makes the environment cannot be sent to another process ({error}): give a function or a class "
                "that holds no open files, locks or connections"
            ) from error
        self._worker = worker = Worker(lambda: Inspector(make, episodes, *blind))
        self._answer(worker, _START_S, "ready")  # the start of the process is not limited by patience_s
        return worker


# ---------------------------------------------------------------------------------------------------------------------
# Playing
# ---------------------------------------------------------------------------------------------------------------------

_Seen: TypeAlias = tuple[Any, ...]
"""Values that two episodes are compared by: action, observation, reward, flags, and entries of ``info``."""


@dataclass
class _Game:
    """One episode with text, up to its end or a failure."""

    seed: int
    seen: list[_Seen] = field(default_factory=list)
    ended: bool = False
    success: Any = None
    """``info["success"]`` of the last step, if any."""
    error: str | None = None
    reset_s: float = 0.0
    step_s: list[float] = field(default_factory=list)

    @property
    def actions(self) -> list[str]:
        return [seen[0] for seen in self.seen[1:]]

    @property
    def observations(self) -> list[str]:
        return [seen[1] for seen in self.seen]

    @property
    def total(self) -> float:
        return math.fsum(seen[2] for seen in self.seen[1:])

    @property
    def solved(self) -> bool:
        return self.ended and bool(self.success)


_Actor: TypeAlias = Callable[[str, Mapping[str, Any]], Any]


def _played(env: TextEnvironment, seed: int, act: _Actor | Sequence[str], most: int = _MOST_TURNS) -> _Game:
    """Play an episode with a policy or the actions of another episode; an exception ends it."""
    game = _Game(seed)
    actions = None if callable(act) else iter(act)
    try:
        began = perf_counter()
        observation, info = env.reset(seed=seed, options=None)
        game.reset_s = perf_counter() - began
        game.seen.append((None, _text(observation), 0.0, False, False, None, None))
        for _ in range(most):
            action = act(observation, info) if callable(act) else next(actions or iter(()), None)
            if action is None:
                break
            began = perf_counter()
            step = env.step(action)
            game.step_s.append(perf_counter() - began)
            reply = read_step(*step)
            observation, info, game.success = reply.observation, dict(reply.info), reply.info.get("success")
            flags = reply.terminated, reply.truncated
            said = reply.info.get("action_valid"), reply.info.get("success")
            game.seen.append((action, observation, reply.reward, *flags, *said))
            if any(flags):
                game.ended = True
                break
    except Exception as error:
        game.error = _told(error)
    return game


def _text(observation: Any) -> str:
    if not isinstance(observation, str):
        raise TypeError(f"the observation must be text, got {_kind(observation)}")
    return observation


def _difference(first: Sequence[list[_Seen]], second: Sequence[list[_Seen]]) -> str | None:
    """Return a description of the first difference between episodes that should be the same."""
    names = ("action", "observation", "reward", "terminated", "truncated", "action_valid", "success")
    for seed, (one, other) in enumerate(zip(first, second, strict=True)):
        for turn, (seen, again) in enumerate(zip(one, other, strict=False)):
            for name, this, that in zip(names, seen, again, strict=True):
                if this != that:
                    return f"seed {seed}, turn {turn}: {name} {_short(repr(this), 60)}, then {_short(repr(that), 60)}"
        if len(one) != len(other):
            return f"seed {seed}: {counted(len(one) - 1, 'turn')}, then {len(other) - 1}"
    return None


def _short(text: str, length: int = _SHORT) -> str:
    # Control characters of an environment must not reach the terminal.
    line = "".join(char if char.isprintable() else "�" for char in " ".join(text.split()))
    return line if len(line) <= length else f"{line[: length - 3]}..."


def _kind(value: Any) -> str:
    return f"{type(value).__name__} {_short(repr(value), 60)}"


def _told(error: BaseException) -> str:
    """Return a description of an exception, with its place in the user's own code."""
    where = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if not _is_library(frame.filename):
            where = f" ({Path(frame.filename).name}:{frame.lineno})"
    return f"{type(error).__name__}: {_short(str(error))}{where}"


def _is_library(file: str) -> bool:
    ours = any(file.startswith(f"{folder}{os.sep}") for folder in _LIBRARIES)
    return file.startswith("<") or (ours and "site-packages" not in file.replace(str(_SITE), ""))


_SITE = Path(gym.__file__).parents[1]
_LIBRARIES = (Path(gym.__file__).parent, Path(__file__).parents[1], sysconfig.get_path("stdlib"))


class _Skip(Exception):  # noqa: N818 -- it becomes a finding
    """Check that is not possible because another one failed."""


def _skip(reason: str) -> NoReturn:
    raise _Skip(reason)


@dataclass
class _Survey:
    """Observations of the environment without wrappers, by check."""

    issues: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """Problems, each with a suggested change."""
    info: Any = None
    """``info`` of a step."""

    def add(self, promise: str, got: str, fix: str) -> None:
        self.issues.setdefault(promise, []).append((got, fix))


class Inspector:
    """Implementation of the checks, for a separate process and for tests.

    >>> from gym_trl.envs.echo import Echo
    >>> Inspector(Echo, episodes=5).look_at("end").got
    'after 1 to 1 turns, 1.0 in the mean'
    """

    def __init__(
        self,
        make: Callable[[], gym.Env[Any, Any]],
        episodes: int,
        blind_steps: int = STEPS,
        blind_seconds: float = SECONDS,
        seed: int = 0,
    ) -> None:
        import gym_trl  # noqa: F401 -- registers the library's own games

        self._make, self._episodes = make, episodes
        self._blind_steps, self._blind_seconds, self._seed = blind_steps, blind_seconds, seed

    def ready(self) -> None:
        """Return at once, to show that the process has started."""

    def look_at(self, promise: str) -> Finding:
        """Return the finding of one of ``PROMISES``."""
        verdict, got, fix, numbers = self._looked_at(promise)
        return Finding(promise, verdict, got, PROMISES[promise], fix, numbers)

    def games(self) -> list[list[_Seen]] | None:
        """Return some episodes with random actions, for the comparison with another process."""
        try:
            return [game.seen for game in self._some]
        except _Skip:
            return None

    def _looked_at(self, promise: str) -> "_Told":
        look = getattr(self, f"_look_at_{promise.replace(' ', '_')}")
        try:
            told: _Told = look()
        except _Skip as reason:
            return _Told(SKIPPED, f"not looked at: {reason}")
        except NotTextError:
            return _Told(SKIPPED, "not looked at: there are no words for it")
        except Exception as error:
            return _Told(PROBLEM, f"raised {_told(error)}", "an environment raises only what is a bug of its own")
        return told

    # --- helpers of the checks ---

    def _text(self) -> TextEnvironment:
        return as_text(declare_success(self._make()))

    @contextmanager
    def _open(self) -> Iterator[TextEnvironment]:
        env = self._text()
        try:
            yield env
        finally:
            with suppress(Exception):
                env.close()

    def _play(self, seed: int, act: Sequence[str] | None = None, most: int = _MOST_TURNS) -> _Game:
        with self._open() as env:
            return _played(env, seed, self._at_random(env, seed) if act is None else act, most)

    def _at_random(self, env: TextEnvironment, seed: int) -> _Actor:
        """Return the environment's own random policy, or one that samples from its listed actions or its space."""
        rng = random.Random(seed)
        if env.has_wrapper_attr("random_policy"):
            policy: Policy = env.get_wrapper_attr("random_policy")(seed)
        else:
            space = deepcopy(env.action_space)
            space.seed(seed)
            policy = lambda observation: space.sample()  # noqa: E731 -- as short as it can be

        def act(observation: str, info: Mapping[str, Any]) -> str:
            listed = listed_actions(env, info)
            return rng.choice(listed) if listed else policy(observation)

        return act

    @cached_property
    def _survey(self) -> _Survey:
        """Results of one pass over what the environment itself returns."""
        survey = _Survey()
        env = self._make().unwrapped
        with suppress(_Skip):
            _survey_resets(env, survey)
            _survey_steps(env, survey)
        with suppress(Exception):
            env.close()
        return survey

    def _issues(self, promise: str, kept: str) -> "_Told":
        found = self._survey.issues.get(promise)
        if not found:
            if promise != "reset" and "reset" in self._survey.issues:
                _skip("reset is broken")
            if promise not in ("reset", "step") and "step" in self._survey.issues and self._survey.info is None:
                _skip("step is broken")
            return _Told(OK, kept)
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        return _Told(PROBLEM, f"{found[0][0]}{more}", found[0][1])

    @cached_property
    def _first(self) -> _Game:
        game = self._play(0)
        if not game.seen:
            _skip(f"reset raised {game.error}")
        return game

    @cached_property
    def _some(self) -> list[_Game]:
        """Three episodes with random actions, or fewer of a slow environment."""
        games = [self._first, *(self._play(seed) for seed in range(1, self._affordable(3)))]
        if all(len(game.seen) < 2 for game in games):
            _skip("step raises")
        return games

    @cached_property
    def _many(self) -> list[_Game]:
        return [*self._some, *(self._play(seed) for seed in range(len(self._some), self._affordable(self._episodes)))]

    def _affordable(self, wanted: int) -> int:
        """Return the number of episodes that there is time for, estimated from the first one."""
        seconds = self._first.reset_s + sum(self._first.step_s)
        return max(2, min(wanted, int(_LONGEST_S / max(seconds, 1e-6))))

    def _replayed(self, game: _Game) -> _Game:
        return self._play(game.seed, game.actions)

    # --- the checks, in the order of PROMISES ---

    def _look_at_construction(self) -> "_Told":
        began = perf_counter()
        try:
            env, second = self._make(), self._make()
        except Exception as error:
            fix = "make it with no arguments that have no default, or give them with --env NAME=VALUE"
            return _Told(PROBLEM, f"raised {_told(error)}", fix)
        seconds = (perf_counter() - began) / 2
        if not isinstance(env, gym.Env):
            return _Told(PROBLEM, f"made {_kind(env)}", "make an object whose class is a gymnasium.Env")
        for one in (env, second):
            one.close()
        if seconds > _SLOW_START_S:
            fix = "load what is large once, outside of the class: an instance is made for each episode in flight"
            return _Told(WARNING, f"{seconds:.1f} s each", fix)
        return _Told(OK, f"two at once, {_time(seconds)} each")

    def _look_at_reset(self) -> "_Told":
        return self._issues("reset", "takes seed and options, returns (observation, info)")

    def _look_at_step(self) -> "_Told":
        return self._issues("step", "returns observation, reward, terminated, truncated, info")

    def _look_at_spaces(self) -> "_Told":
        env = self._make()
        return self._issues("spaces", f"shows {_short(str(env.observation_space), 70)}, takes {env.action_space!s:.70}")

    def _look_at_words(self) -> "_Told":
        try:
            env = self._text()
        except NotTextError as error:
            fix = "say how: GymSpec(observe=lambda observation, info: ..., act=lambda words: ...), or as_text(env, ...)"
            return _Told(PROBLEM, str(error), fix)
        env.close()
        game = self._play(0)
        if game.error and "must be text" in game.error:
            return _Told(PROBLEM, game.error, "return a str, as the space of the observations says")
        said = self._first.observations
        if not any(one.strip() for one in said):
            return _Told(PROBLEM, "every observation is empty", "say in words what there is to see")
        if any("\ud800" <= char <= "\udfff" for one in said for char in one):
            return _Told(PROBLEM, "a lone surrogate in an observation", "decode bytes with errors='replace'")
        if strange := next((one for one in said if marks(one) != one), None):
            fix = "leave terminal codes out: the model reads them as characters"
            return _Told(WARNING, f"control characters in {_short(repr(strange), 60)}", fix)
        own = holds_text(env.unwrapped.observation_space) and holds_text(env.unwrapped.action_space)
        return _Told(OK, "speaks text" if own else f"put into words: {_short(repr(said[0]), 80)}")

    def _look_at_determinism(self) -> "_Told":
        games = self._some
        again = [self._replayed(game) for game in games]
        where = _difference([one.seen for one in games], [one.seen for one in again])
        if where is None:
            held = self._scrambled(games)
            where = held and f"with other global generators: {held}"
        if where is None:
            return _Told(OK, f"{counted(len(games), 'game')} played twice")
        with _fixed_generators():
            games = [self._replayed(game) for game in games]
        with _fixed_generators():
            again = [self._replayed(game) for game in games]
        if _difference([one.seen for one in games], [one.seen for one in again]) is None:
            fix = "draw from self.np_random, after super().reset(seed=seed), and not from random or numpy.random"
        else:
            fix = "what is drawn or looked up must follow from the seed: no clock, no uuid, no service"
        return _Told(PROBLEM, where, fix)

    def _scrambled(self, games: Sequence[_Game]) -> str | None:
        replayed = []
        for game in games:
            with suppress(AssertionError), scrambled_generators():
                replayed.append(self._replayed(game))
        return _difference([one.seen for one in games], [one.seen for one in replayed])

    def _look_at_own_generator(self) -> "_Told":
        for game in self._some:
            try:
                with scrambled_generators():
                    self._replayed(game)
            except AssertionError:
                fix = "leave random.seed(), numpy.random and torch.manual_seed() to the trainer: use self.np_random"
                return _Told(WARNING, f"a game of seed {game.seed} changed a global generator", fix)
        return _Told(OK, "the global generators were left alone")

    def _look_at_fresh_start(self) -> "_Told":
        games = self._some
        fix = "set everything in reset(), not in __init__(); and nothing in the class itself"
        with self._open() as env:
            used = [_played(env, game.seed, game.actions) for game in games]
            after = _difference([one.seen for one in games], [one.seen for one in used])
            if after is not None:
                return _Told(PROBLEM, f"one that was used is another: {after}", fix)
            _played(env, 0, games[0].actions, most=1)  # left in the middle
            middle = [_played(env, games[-1].seed, games[-1].actions)]
        where = _difference([games[-1].seen], [one.seen for one in middle])
        if where is not None:
            return _Told(PROBLEM, f"one that was left in the middle is another: {where}", fix)
        return _Told(OK, "one that was used starts as a new one does")

    def _look_at_variety(self) -> "_Told":
        games = self._some
        actions = max(games, key=lambda game: len(game.seen)).actions[:20]
        seeds = range(self._affordable(10))
        different = {repr(self._play(seed, actions).seen) for seed in seeds}
        if len(different) == 1:
            fix = "draw something in reset() from self.np_random, or train on few tasks: they are all the same"
            return _Told(WARNING, f"{len(seeds)} seeds gave one game", fix)
        return _Told(OK, f"{len(different)} different games of {len(seeds)} seeds")

    def _look_at_end(self) -> "_Told":
        games = self._many
        turns = [len(game.actions) for game in games if game.ended]
        if broken := next((game for game in games if game.error), None):
            got = f"a game of seed {broken.seed} raised {broken.error} after {counted(len(broken.actions), 'turn')}"
            return _Told(PROBLEM, got, "an episode that raises cannot be scored: end it instead")
        if len(turns) < len(games):
            got = f"{len(games) - len(turns)} of {counted(len(games), 'game')} did not end in {_MOST_TURNS} turns"
            fix = "end by yourself, give gym.register max_episode_steps, or GymSpec(turn_limit=...)"
            return _Told(WARNING if turns else PROBLEM, f"{got} of {self._who_is_random}", fix)
        if both := next((game for game in games if game.seen[-1][3] and game.seen[-1][4]), None):
            fix = "terminated is the game's own end, truncated that something cut it off: one of them"
            return _Told(WARNING, f"a game of seed {both.seed} was terminated and truncated together", fix)
        return _Told(OK, f"after {min(turns)} to {max(turns)} turns, {statistics.fmean(turns):.1f} in the mean")

    def _look_at_after_the_end(self) -> "_Told":
        game = next((game for game in self._some if game.ended), None)
        if game is None:
            _skip("no game ended")
        bare = self._make()
        env = bare if holds_text(bare.action_space) else None
        try:
            if env is None:
                return _Told(OK, "actions are put into words, and their wrapper holds the end")
            game = _played(as_text(env), game.seed, game.actions)
            try:
                steps = [env.step(game.actions[-1]) for _ in range(3)]
            except Exception as error:
                return _Told(OK, f"refused with {type(error).__name__}")
            paid = math.fsum(float(step[1]) for step in steps)
            if paid or not all(step[2] or step[3] for step in steps):
                got = f"paid {paid:g} more" if paid else "went on"
                fix = "answer with the last observation, the last flags and no reward; ParseAction does it in training"
                return _Told(WARNING, got, fix)
            return _Told(OK, "nothing more is paid")
        finally:
            bare.close()

    def _look_at_invalid_actions(self) -> "_Told":
        refused, counted_ = 0, False
        with self._open() as env:
            for action in STRANGE_ACTIONS:
                env.reset(seed=0, options=None)
                said = repr(action) if len(action) < 50 else f"{len(action):,} characters"
                try:
                    reply = read_step(*env.step(action))
                except Exception as error:
                    fix = "any text is data: answer with an observation that says what is an action"
                    return _Told(PROBLEM, f"step({said}) raised {_told(error)}", fix)
                refused += reply.info.get("action_valid") is False
                counted_ = counted_ or "action_valid" in reply.info
        if not counted_:
            fix = "put info['action_valid'] = True or False into every step: invalid actions are counted and can cost"
            return _Told(WARNING, "nothing is raised, and info does not say what was valid", fix)
        return _Told(OK, f"{refused} of {len(STRANGE_ACTIONS)} strange texts were refused, none raised")

    def _look_at_instructions(self) -> "_Told":
        with self._open() as env:
            if not env.has_wrapper_attr("instructions"):
                told = f": its docstring begins {description(env)!r:.60}" if description(env) else ""
                fix = "give the class a str instructions with the rules and how to answer, or GymSpec(instructions=...)"
                return _Told(WARNING, f"there are none{told}", fix)
            rules = env.get_wrapper_attr("instructions")
            if not isinstance(rules, str) or not rules.strip():
                return _Told(PROBLEM, f"they are {_kind(rules)}", "instructions must be text that is not empty")
            if len(rules) > _LONG_RULES:
                fix = "they begin every prompt: say it in fewer words"
                return _Told(WARNING, f"{len(rules):,} characters", fix)
            own = self._make().has_wrapper_attr("instructions") or description(env)
            if not own:
                fix = "give the class a docstring or a str instructions with the rules: so far they say how to answer"
                return _Told(WARNING, f"no rules: {_short(repr(rules), 70)}", fix)
        return _Told(OK, f"{len(rules):,} characters: {_short(repr(rules), 60)}")

    def _look_at_success(self) -> "_Told":
        fix = "put info['success'] = True or False into the last step"
        if found := self._survey.issues.get("success"):
            return _Told(PROBLEM, *found[0])
        ended = [game for game in self._many if game.ended]
        if not ended:
            _skip("no game ended")
        said = [game for game in ended if game.success is not None]
        if not said:
            fix = f"{fix}, or say what it is with GymSpec(success=...)"
            return _Told(WARNING, "info never says it: evaluations report returns and no success", fix)
        if len(said) < len(ended):
            return _Told(WARNING, f"{len(ended) - len(said)} of {len(ended)} games did not say it at their end", fix)
        if early := next((game for game in ended for seen in game.seen[1:-1] if seen[6]), None):
            return _Told(WARNING, f"a game of seed {early.seed} was solved and went on", "end it with terminated=True")
        return _Told(OK, f"info says it; {sum(game.solved for game in ended)} of {len(ended)} solved at random")

    def _look_at_reward(self) -> "_Told":
        games = [game for game in self._many if game.ended]
        if not games:
            _skip("no game ended")
        returns = [game.total for game in games]
        got = f"{_mean(returns)} in {counted(len(games), 'game')} of {self._who_is_random}"
        if len(set(returns)) == 1:
            fix = "GRPO learns from differences in a group: pay something that random play reaches now and then"
            solved = all(game.solved for game in games)
            return _Told(WARNING, f"{got}, always the same" + (" and always solved" if solved else ""), fix)
        return _Told(OK, got)

    @cached_property
    def _who_is_random(self) -> str:
        with self._open() as env:
            env_lists = listed_actions(env, env.reset(seed=0)[1])
            own = env.has_wrapper_attr("random_policy")
        return "random play" if own or env_lists else "random characters (give it a random_policy for random play)"

    def _look_at_blind_baseline(self) -> "_Told":
        if not self._blind_steps:
            return _Told(SKIPPED, "not looked at: no steps to search in")
        _ = self._some  # raises _Skip if nothing can be played
        found = search_blind(self._make, steps=self._blind_steps, seconds=self._blind_seconds, seed=self._seed)
        solves = found.objective == "success"
        chance, solver, best = self._references(solves=solves)
        around = [("random play", chance), ("solver", solver), ("optimum", best)]
        beside = ", ".join(f"{name} {'-' if value is None else f'{value:.3f}'}" for name, value in around)
        got = f"{describe(found)}; {beside}"
        numbers = {**found.as_dict(), "random": chance, "solver": solver, "optimum": best}
        reached, level = found.score.mean, solver if best is None else best
        level = 1.0 if level is None and solves else level
        if reached is None or chance is None:
            return _Told(OK, got, numbers=numbers)
        if level is not None and is_near(reached, chance, level):
            fix = "most of a score needs no reading: draw more of the start from the seed, or let more depend on it"
            return _Told(WARNING, got, fix, numbers)
        if level is None and found.score.low is not None and found.score.low > max(0.0, chance):
            fix = "a sequence that observes nothing is paid more than random play: compare models with it"
            return _Told(WARNING, got, fix, numbers)
        return _Told(OK, got, numbers=numbers)

    def _references(self, *, solves: bool) -> tuple[float | None, float | None, float | None]:
        """Return the success or return of random play, the solver and perfect play."""

        def mean(games: Sequence[_Game]) -> float | None:
            values = [float(game.solved) if solves else game.total for game in games if game.ended]
            return statistics.fmean(values) if values else None

        name = "optimal_success" if solves else "optimal_return"
        with self._open() as env:
            best = env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else None
            has_solver = env.has_wrapper_attr("solver")
        return mean(self._many), mean(self._solved) if has_solver else None, None if best is None else float(best)

    @cached_property
    def _solved(self) -> list[_Game]:
        """Episodes of the same seeds as ``_many``, played by the solver."""
        games = []
        for other in self._many:
            with self._open() as env:
                games.append(_played(env, other.seed, _without_info(env.get_wrapper_attr("solver")())))
        return games

    def _look_at_solver(self) -> "_Told":
        with self._open() as env:
            if not env.has_wrapper_attr("solver"):
                return _Told(OK, "it has none; a method solver() that returns a policy would show that it can be won")
            known = [
                env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else None
                for name in ("optimal_success", "optimal_return")
            ]
        games = self._solved
        if broken := next((game for game in games if game.error), None):
            return _Told(
                PROBLEM, f"a game of seed {broken.seed} raised {broken.error}", "the solver must play any game"
            )
        returns, solved = [game.total for game in games], [float(game.solved) for game in games]
        solves = f" and solves {statistics.fmean(solved):.3f}" if games[0].success is not None else ""
        got = f"returns {statistics.fmean(returns):.3f}{solves} of {len(games)} games"
        fix = "correct the solver, or what is said of perfect play (optimal_success, optimal_return)"
        for best, values in zip(known, (solved, returns), strict=True):
            if best is not None and abs(best - statistics.fmean(values)) > 4 * _error(values, float(best)) + 1e-6:
                return _Told(PROBLEM, f"{got}, and {float(best):.3f} is promised", fix)
        if _beyond(self._many, games):
            return _Told(PROBLEM, f"{got}, which is less than random play", fix)
        return _Told(OK, got)

    def _look_at_info(self) -> "_Told":
        self._issues("info", "")
        if found := self._survey.issues.get("info"):
            return _Told(PROBLEM, *found[0])
        info = self._survey.info
        if info is None:
            _skip("no step came back")
        try:
            size = len(dumps(info))
            loads(dumps(info))  # noqa: S301 -- our own bytes
        except Exception as error:
            fix = "put plain values into info: texts, numbers, lists, dicts"
            return _Told(PROBLEM, f"does not pickle: {_short(str(error), 80)}", fix)
        if size > 100_000:
            return _Told(WARNING, f"{size / 1000:,.0f} kB a step", "leave out what nobody reads")
        return _Told(OK, f"pickles in {size:,} bytes: {', '.join(map(str, info)) or 'empty'}"[:_SHORT])

    def _look_at_size(self) -> "_Told":
        games = self._many
        longest = max(len(one) for game in games for one in game.observations)
        whole = max(sum(map(len, game.observations)) for game in games)
        got = f"at most {longest:,} characters an observation, {whole:,} an episode"
        if any(_repeats(game.observations) for game in games):
            fix = "say only what is new: the transcript keeps the rest, and so it grows with the square of the turns"
            return _Told(WARNING, f"{got}; each repeats the one before", fix)
        if whole > _LONG_EPISODE:
            fix = "say it shorter, or train with a max_completion_length that holds it (about 4 characters a token)"
            return _Told(WARNING, got, fix)
        return _Told(OK, got)

    def _look_at_speed(self) -> "_Told":
        games = self._many
        steps = sorted(seconds for game in games for seconds in game.step_s) or [0.0]
        resets = sorted(game.reset_s for game in games)
        step, reset = statistics.median(steps), statistics.median(resets)
        got = f"a step {_time(step)} (at most {_time(steps[-1])}), a reset {_time(reset)} (at most {_time(resets[-1])})"
        if step > _SLOW_STEP_S or reset > _SLOW_START_S:
            fix = "GymSpec(executor='thread') if it waits, executor='process' if it computes; and a step_timeout"
            return _Told(WARNING, got, fix)
        return _Told(OK, got)

    def _look_at_threads(self) -> "_Told":
        games = [game for game in self._some for _ in range(2)]
        with ThreadPoolExecutor(4) as threads:
            replayed = list(threads.map(self._replayed, games))
        where = _difference([one.seen for one in games], [one.seen for one in replayed])
        if where is None:
            return _Told(OK, f"{counted(len(games), 'game')} in four threads")
        if broken := next((game for game in replayed if game.error), None):
            where = f"raised {broken.error}"
        fix = "instances must share nothing that changes; else GymSpec(executor='inline') or executor='process'"
        return _Told(WARNING, where, fix)

    def _look_at_closing(self) -> "_Told":
        self._play(0, most=5)
        before = _held()
        for seed in range(5):
            env = self._text()
            _played(env, seed, self._at_random(env, seed), most=5)
            try:
                env.close()
                env.close()
            except Exception as error:
                fix = "close() must work at any time, also twice"
                return _Told(PROBLEM, f"raised {_told(error)}", fix)
        left = {name: now - then for (name, then), now in zip(before.items(), _held().values(), strict=True)}
        leaks = [f"{counted(number, name)}" for name, number in left.items() if number >= 5]
        if leaks:
            fix = "end in close() what __init__() or reset() has begun"
            return _Told(WARNING, f"five that were closed left {' and '.join(leaks)}", fix)
        return _Told(OK, "nothing is left of five that were closed")

    def _look_at_gymnasium(self) -> "_Told":
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            try:
                check_env(self._make().unwrapped, skip_render_check=True)
            except Exception as error:
                return _Told(PROBLEM, f"check_env raised {_told(error)}", "see Gymnasium's page on making environments")
        said = dict.fromkeys(_short(re.sub(r"\x1b\[[0-9;]*m", "", str(one.message))) for one in heard)
        if said:
            return _Told(WARNING, f"check_env says: {next(iter(said))}", "what it says; training does not mind it")
        return _Told(OK, "its own check_env has nothing to say")


class _Told(NamedTuple):
    verdict: str
    got: str
    fix: str = ""
    numbers: Mapping[str, Any] | None = None


def _survey_resets(env: gym.Env[Any, Any], survey: _Survey) -> None:
    contract = "def reset(self, *, seed=None, options=None), which returns (observation, info)"
    for seed, options in ((0, None), (1, {}), (None, None)):
        try:
            returned = env.reset(seed=seed, options=options)
        except Exception as error:
            survey.add("reset", f"reset(seed={seed}, options={options}) raised {_told(error)}", contract)
            _skip("reset")
        if not isinstance(returned, tuple) or len(returned) != 2:
            survey.add("reset", f"returned {_kind(returned)}", contract)
            _skip("reset")
        observation, info = returned
        if not isinstance(info, Mapping):
            survey.add("reset", f"info is {_kind(info)}", "info is a dict")
            _skip("reset")
        _survey_observation(env, observation, "reset", survey)


def _survey_observation(env: gym.Env[Any, Any], observation: Any, where: str, survey: _Survey) -> None:
    space = env.observation_space
    try:
        inside = observation in space
    except Exception:
        inside = False
    if inside:
        return
    if isinstance(space, gym.spaces.Text) and isinstance(observation, str):
        strange = sorted(set(observation) - space.character_set)
        why = f"has {''.join(strange)!r:.30}" if strange else f"has {len(observation)} characters"
        fix = "observation_space = gym_trl.spaces.AnyText(): Gymnasium's Text holds letters and digits only by itself"
        survey.add("spaces", f"{where} gave a text that is not in {_short(str(space), 60)}: it {why}", fix)
        return
    shape = f" of {observation.dtype} {observation.shape}" if isinstance(observation, np.ndarray) else ""
    got = f"{where} gave {_kind(observation)}{shape}, which is not in {_short(str(space), 70)}"
    survey.add("spaces", got, "return what the observation_space says, or correct the space (type, bounds, shape)")


def _survey_steps(env: gym.Env[Any, Any], survey: _Survey) -> None:
    space = deepcopy(env.action_space)
    space.seed(0)
    _, info = env.reset(seed=0)
    for turn in range(50):
        listed = listed_actions(env, info) if holds_text(space) else None
        masked = isinstance(space, gym.spaces.Discrete) and isinstance(info.get("action_mask"), np.ndarray)
        action = listed[turn % len(listed)] if listed else space.sample(info["action_mask"] if masked else None)
        said = f"step({_short(repr(action), 30)})"
        try:
            returned = env.step(action)
        except Exception as error:
            survey.add("step", f"{said} raised {_told(error)}", "take every action that the action_space holds")
            return
        if not isinstance(returned, tuple) or len(returned) != 5:
            got = f"{said} returned {len(returned)} values" if isinstance(returned, tuple) else f"{_kind(returned)}"
            survey.add("step", got, "return observation, reward, terminated, truncated, info")
            return
        observation, _, terminated, truncated, info = returned
        _survey_values(said, returned, survey)
        if not isinstance(info, Mapping):
            return
        survey.info = deepcopied(info)
        _survey_observation(env, observation, said, survey)
        if terminated or truncated:
            _, info = env.reset()
            if turn > 20:
                return


def deepcopied(value: Any) -> Any:
    """Return a deep copy, or the value itself if it cannot be copied."""
    try:
        return deepcopy(value)
    except Exception:
        return value


def _survey_values(said: str, returned: tuple[Any, ...], survey: _Survey) -> None:
    _, reward, terminated, truncated, info = returned
    if isinstance(reward, bool) or not isinstance(reward, int | float | np.number) or not math.isfinite(float(reward)):
        survey.add("step", f"{said} gave the reward {_kind(reward)}", "a reward is a finite number")
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, bool | np.bool_):
            survey.add("step", f"{said} gave {name} = {_kind(flag)}", f"{name} is True or False")
    if not isinstance(info, Mapping):
        survey.add("step", f"{said} gave info = {_kind(info)}", "info is a dict")
        return
    if strange := [name for name in info if not isinstance(name, str)]:
        survey.add("info", f"a key is {_kind(strange[0])}", "the keys of info are strings")
    for name, promise in (("success", "success"), ("action_valid", "info")):
        if name in info and not isinstance(info[name], bool | np.bool_):
            survey.add(promise, f"{said} gave info[{name!r}] = {_kind(info[name])}", "it is True or False")


def _repeats(observations: Sequence[str]) -> bool:
    pairs = list(pairwise(observations))
    return len(pairs) >= 3 and all(len(one) >= 10 and len(two) > len(one) and one in two for one, two in pairs)


def _without_info(policy: Policy) -> _Actor:
    """Return a policy as an actor that ignores ``info``."""
    return lambda observation, info: policy(observation)


def _beyond(games: Sequence[_Game], others: Sequence[_Game]) -> bool:
    """Return whether episodes have higher returns than another policy's on the same tasks, beyond chance."""
    more = [game.total - other.total for game, other in zip(games, others, strict=True)]
    return statistics.fmean(more) > 3 * statistics.pstdev(more) / math.sqrt(len(more)) + 1e-9


def _mean(values: Sequence[float]) -> str:
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return f"{statistics.fmean(values):.3g} ± {error:.2g}"


def _error(values: Sequence[float], expected: float) -> float:
    """Return the standard error of a mean; if all values are equal, estimate it from the expected share."""
    spread = statistics.pstdev(values) or (math.sqrt(expected * (1 - expected)) if 0 < expected < 1 else 0.0)
    return spread / math.sqrt(len(values))


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.0f} µs"


def _held() -> dict[str, int]:
    """Return the numbers of open files, threads and child processes of this process."""
    files = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 0  # noqa: PTH208 -- numbers only
    return {"file": files, "thread": threading.active_count(), "process": _children()}


def _children() -> int:
    return sum(len(file.read_text().split()) for file in Path("/proc/self/task").glob("*/children"))


@contextmanager
def _fixed_generators() -> Iterator[None]:
    python_state, numpy_state = random.getstate(), np.random.get_state()
    random.seed(0)
    np.random.seed(0)
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)


PROMISES: dict[str, str] = {
    "construction": "Training makes one for each episode in flight, also in other processes.",
    "reset": "Every episode begins with reset(seed=..., options=...).",
    "step": "What a step returns is checked, and an episode that returns something else is not scored.",
    "spaces": "Wrappers and vectors trust the spaces.",
    "words": "A model reads and writes text.",
    "determinism": "The members of a group play one game: same seed and same actions, same episode.",
    "own generator": "The trainer's own randomness must not change by what a game draws.",
    "fresh start": "Instances are used again, for other games.",
    "variety": "A model that sees one game learns it by heart.",
    "end": "An episode that does not end fills the context.",
    "after the end": "What is paid after the end can be farmed.",
    "invalid actions": "A model says anything; what raises cannot be scored.",
    "instructions": "A model knows only what it is told.",
    "success": "The success rate is what evaluations report.",
    "reward": "GRPO learns from differences within a group.",
    "blind baseline": "What needs no reading is learned first: a score says something only above it.",
    "solver": "A solver shows that it can be won, and how well.",
    "info": "It travels between processes and into records.",
    "size": "Observations fill the context.",
    "speed": "The model waits for slow steps.",
    "threads": "executor='thread' steps instances beside each other.",
    "processes": "executor='process', other ranks and resumed runs must play the same games.",
    "closing": "Thousands are opened and closed.",
    "gymnasium": "What Gymnasium's own checker finds.",
}
"""Names of the checks, in their order, with the reasons for them."""
