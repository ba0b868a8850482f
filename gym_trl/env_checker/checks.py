"""The checks of an environment: one method for each requirement of training."""

import math
import os
import re
import statistics
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from pickle import dumps, loads
from time import perf_counter
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.utils.env_checker import check_env

from gym_trl.env_checker.as_trained import as_trained
from gym_trl.env_checker.leaks import SeatGame, find_leak
from gym_trl.env_checker.play import (
    MOST_TURNS,
    SHORT,
    PlayedEpisode,
    Seen,
    describe_error,
    difference,
    kind_of,
    play_one,
    play_seats,
    shortened,
    without_info,
)
from gym_trl.env_checker.report import OK, PROBLEM, SKIPPED, WARNING, Finding
from gym_trl.env_checker.state_keys import keys_of, search_keys
from gym_trl.env_checker.survey import NotCheckedError, Survey, skip, survey_resets, survey_steps
from gym_trl.envs.external.own_global_random import OwnGlobalRandom
from gym_trl.errors import ConfigError, NotTextError, raise_interrupt, safe_str
from gym_trl.evaluation.blind import SECONDS, STEPS, describe, is_near, search_blind
from gym_trl.evaluation.play import optimum
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.executors.step import close_env, read_step
from gym_trl.rollout.random_play import RANDOM_PLAY, description_of, random_play
from gym_trl.spaces import holds_text
from gym_trl.testing.checks import STRANGE_ACTIONS, scrambled_generators
from gym_trl.text.discovery import action_names, description, marks
from gym_trl.text.textify import counted, explain
from gym_trl.wrappers.as_text import as_text
from gym_trl.wrappers.declare_success import declare_success
from gym_trl.wrappers.image_observation import shows_images
from gym_trl.wrappers.inner import attribute_of, instructions_of
from gym_trl.wrappers.seats import Seats, num_seats

_LONGEST_S = 8.0  # for the episodes of one check, estimated from the first one
_SLOW_STEP_S, _SLOW_START_S = 0.1, 5.0
_MOST_GAMES = 400  # of several seats: enough to find what happens once in a while
_LONG_EPISODE = 16_000  # characters, about 4,000 tokens
_LONG_RULES = 4_000
_MANY_EPISODES = 100  # from which on an interval is narrow enough to be compared
_FOR_NETWORKS = ("recommend using a symmetric and normalized space", "infinity. This is probably too")
"""Parts of Gymnasium's warnings that concern networks which read and write numbers."""
_MANY_ACTIONS = 100
_READ_IN_FRONT = (
    "read texts in front of the environment with GymSpec(act=...), a function that raises ValueError with a hint for "
    "what is no action, or with a wrapper; or return an observation that explains valid actions"
)


class Inspector:
    """Implementation of the checks, for a separate process and for tests.

    >>> from gym_trl.envs.echo import Echo
    >>> Inspector(Echo, episodes=5).look_at("end").got
    'after 1 to 1 turns, 1.0 on average'
    """

    def __init__(
        self,
        make: Callable[[], gym.Env[Any, Any]],
        episodes: int,
        search_steps: int = STEPS,
        search_seconds: float = SECONDS,
        *,
        seed: int = 0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        import gym_trl  # noqa: F401 -- registers the library's own games

        self._make, self._episodes = make, episodes
        self._options = options or {}
        self._make_played = as_trained(make, self._options)
        self._search_steps, self._search_seconds, self._seed = search_steps, search_seconds, seed

    def ready(self) -> None:
        """Return at once, to show that the process has started."""

    def look_at(self, promise: str) -> Finding:
        """Return the finding of one of ``PROMISES``."""
        verdict, got, fix, numbers = self._looked_at(promise)
        return Finding(promise, verdict, got, PROMISES[promise], fix, numbers)

    def games(self) -> list[list[Seen]] | None:
        """Return some episodes with random actions, for the comparison with another process."""
        try:
            return [game.seen for game in self._some]
        except NotCheckedError:
            return None

    def keys(self) -> list[list[str]]:
        """Return the state keys of the same episodes; none if they cannot be played or read."""
        try:
            return [keys_of(self._text_env, game.seed, game.actions, self._key) for game in self._some]
        except BaseException as error:  # "state key" reports it
            raise_interrupt(error)
            return []

    def _looked_at(self, promise: str) -> "_Told":
        look = getattr(self, f"_look_at_{promise.replace(' ', '_')}")
        try:
            told: _Told = look()
        except NotCheckedError as reason:
            return _Told(SKIPPED, f"not checked: {reason}")
        except NotTextError:
            return _Told(SKIPPED, "not checked: its values cannot be converted to text")
        except BaseException as error:
            raise_interrupt(error)
            return _Told(PROBLEM, f"raised {describe_error(error)}", "catch the exception in the environment")
        return told

    # --- helpers of the checks ---

    def _text_env(self) -> TextEnvironment:
        return as_text(declare_success(self._make_played()))

    @property
    def _key(self) -> Any:
        key = self._options.get("state_key")
        return None if key == "auto" else key

    @contextmanager
    def _open(self) -> Iterator[TextEnvironment]:
        env = self._text_env()
        try:
            yield env
        finally:
            close_env(env, broken=True)

    def _play(self, seed: int, act: Sequence[str] | None = None, most: int = MOST_TURNS) -> PlayedEpisode:
        with self._open() as env:
            return play_one(env, seed, random_play(env, seed) if act is None else act, most)

    @cached_property
    def _survey(self) -> Survey:
        """Results of one pass over what the environment itself returns."""
        survey = Survey()
        env = self._make().unwrapped
        with suppress(NotCheckedError):
            survey_resets(env, survey)
            survey_steps(env, survey)
        close_env(env, broken=True)
        return survey

    def _issues(self, promise: str, kept: str) -> "_Told":
        found = self._survey.issues.get(promise)
        if not found:
            if promise != "reset" and "reset" in self._survey.issues:
                skip("reset is broken")
            if promise not in ("reset", "step") and "step" in self._survey.issues and self._survey.info is None:
                skip("step is broken")
            return _Told(OK, kept)
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        return _Told(PROBLEM, f"{found[0][0]}{more}", found[0][1])

    @cached_property
    def _first(self) -> PlayedEpisode:
        game = self._play(0)
        if not game.seen:
            skip(f"reset raised {game.error}")
        return game

    @cached_property
    def _some(self) -> list[PlayedEpisode]:
        """Three episodes with random actions, or fewer of a slow environment."""
        games = [self._first, *(self._play(seed) for seed in range(1, self._affordable(3)))]
        if all(len(game.seen) < 2 for game in games):
            skip("step raises")
        return games

    @cached_property
    def _many(self) -> list[PlayedEpisode]:
        return [*self._some, *(self._play(seed) for seed in range(len(self._some), self._affordable(self._episodes)))]

    def _affordable(self, wanted: int) -> int:
        """Return the number of episodes that there is time for, estimated from the first one."""
        seconds = self._first.reset_s + sum(self._first.step_s)
        return max(2, min(wanted, int(_LONGEST_S / max(seconds, 1e-6))))

    def _replayed(self, game: PlayedEpisode) -> PlayedEpisode:
        return self._play(game.seed, game.actions)

    @cached_property
    def _num_seats(self) -> int:
        with self._open() as env:
            return num_seats(env)

    @cached_property
    def _seat_games(self) -> list[SeatGame]:
        """Random games of an environment of several seats, checked for the protocol."""
        games: list[SeatGame] = []
        began = perf_counter()
        while len(games) < _MOST_GAMES and (len(games) < 2 or perf_counter() - began < _LONGEST_S / 2):
            env = as_text(Seats(declare_success(self._make())))
            seed = len(games)
            games.append(play_seats(env, seed, random_play(env, seed)))
            close_env(env, broken=True)
            if games[-1].error:
                break
        return games

    # --- the checks, in the order of PROMISES ---

    def _look_at_construction(self) -> "_Told":
        began = perf_counter()
        try:
            env, second = self._make(), self._make()
        except BaseException as error:
            raise_interrupt(error)
            fix = "give every argument a default, or pass it with --env-kwargs NAME=VALUE"
            return _Told(PROBLEM, f"raised {describe_error(error)}", fix)
        seconds = (perf_counter() - began) / 2
        if not isinstance(env, gym.Env):
            return _Told(PROBLEM, f"made {kind_of(env)}", "return an instance of gymnasium.Env")
        for one in (env, second):
            one.close()
        if seconds > _SLOW_START_S:
            fix = "load large data once, outside the class; training makes one instance per concurrent episode"
            return _Told(WARNING, f"{seconds:.1f} s each", fix)
        return _Told(OK, f"two instances, {_time(seconds)} each")

    def _look_at_reset(self) -> "_Told":
        return self._issues("reset", "accepts seed and options, returns (observation, info)")

    def _look_at_step(self) -> "_Told":
        return self._issues("step", "returns observation, reward, terminated, truncated, info")

    def _look_at_spaces(self) -> "_Told":
        env = self._make()
        return self._issues(
            "spaces", f"observations {shortened(str(env.observation_space), 70)}, actions {env.action_space!s:.70}"
        )

    def _look_at_words(self) -> "_Told":
        try:
            env = self._text_env()
        except NotTextError as error:
            fix = (
                "convert it: GymSpec(observe=lambda observation, info: ..., act=lambda text: ...), as_text(env, ...), "
                "or GymSpec(images=True)"
            )
            return _Told(PROBLEM, str(error), fix)
        close_env(env, broken=True)
        game = self._play(0)
        if game.error and "must be text" in game.error:
            return _Told(PROBLEM, game.error, "return a str, as the observation space requires")
        said = self._first.observations
        if not any(one.strip() for one in said) and not self._shows_images:
            return _Told(PROBLEM, "every observation is empty", "describe the state in text")
        if any("\ud800" <= char <= "\udfff" for one in said for char in one):
            return _Told(PROBLEM, "a lone surrogate in an observation", "decode bytes with errors='replace'")
        if strange := next((one for one in said if marks(one) != one), None):
            fix = "remove terminal codes; the model reads them as characters"
            return _Told(WARNING, f"control characters in {shortened(repr(strange), 60)}", fix)
        own = holds_text(env.unwrapped.observation_space) and holds_text(env.unwrapped.action_space)
        instead = "images, beside the text" if self._shows_images else attribute_of(env, "shown_instead")
        how = f"observations are shown as {instead}" if instead else "converted to text"
        return _Told(OK, "is text" if own and not instead else f"{how}: {shortened(repr(said[0]), 80)}")

    def _look_at_actions(self) -> "_Told":
        with self._open() as env:
            bare = env.unwrapped
            space = bare.action_space
            if holds_text(space):
                return _Told(OK, "are text")
            how = explain(space, action_names(bare))
            number = int(space.n) if isinstance(space, gym.spaces.Discrete) else 0
            if isinstance(space, gym.spaces.MultiDiscrete):
                number = int(space.nvec.max())
            told = (
                action_names(bare)
                or attribute_of(bare, "instructions")
                or self._options.keys() & {"act", "instructions"}
            )
            if number > _MANY_ACTIONS and not told:
                got = f"{how}: nothing says what {number:,} numbers mean"
                fix = (
                    "name them (action_names), explain them in instructions, or read other texts with GymSpec(act=...)"
                )
                return _Told(WARNING, got, fix)
        return _Told(OK, how)

    def _look_at_determinism(self) -> "_Told":
        games = self._some
        again = [self._replayed(game) for game in games]
        where = difference([one.seen for one in games], [one.seen for one in again])
        if where is None:
            held = self._scrambled(games)
            where = held and f"with other global generators: {held}"
        if where is None:
            return _Told(OK, f"{counted(len(games), 'episode')} repeated exactly")
        with OwnGlobalRandom(0):
            games = [self._replayed(game) for game in games]
        with OwnGlobalRandom(0):
            again = [self._replayed(game) for game in games]
        if difference([one.seen for one in games], [one.seen for one in again]) is None:
            fix = "draw from self.np_random after super().reset(seed=seed), not from random or numpy.random"
        else:
            fix = "derive everything from the seed: no clock, no uuid, no service"
        return _Told(PROBLEM, where, fix)

    def _scrambled(self, games: Sequence[PlayedEpisode]) -> str | None:
        replayed = []
        for game in games:
            with suppress(AssertionError), scrambled_generators():
                replayed.append(self._replayed(game))
        return difference([one.seen for one in games], [one.seen for one in replayed])

    def _look_at_own_generator(self) -> "_Told":
        for game in self._some:
            try:
                with scrambled_generators():
                    self._replayed(game)
            except AssertionError:
                fix = "use self.np_random; do not call random.seed(), numpy.random or torch.manual_seed()"
                return _Told(WARNING, f"the episode with seed {game.seed} changed a global generator", fix)
        return _Told(OK, "global generators are unchanged")

    def _look_at_fresh_start(self) -> "_Told":
        games = self._some
        fix = "set all state in reset(), not in __init__() or in the class"
        with self._open() as env:
            used = [play_one(env, game.seed, game.actions) for game in games]
            after = difference([one.seen for one in games], [one.seen for one in used])
            if after is not None:
                return _Told(PROBLEM, f"a used instance differs from a new one: {after}", fix)
            play_one(env, 0, games[0].actions, most=1)  # left in the middle
            middle = [play_one(env, games[-1].seed, games[-1].actions)]
        where = difference([games[-1].seen], [one.seen for one in middle])
        if where is not None:
            return _Told(PROBLEM, f"an instance left in the middle of an episode differs from a new one: {where}", fix)
        return _Told(OK, "a used instance starts like a new one")

    def _look_at_variety(self) -> "_Told":
        # What the seed draws may show at once, or only in what follows some of the actions.
        games = sorted([*self._some, *self._many, *self._solved_some], key=lambda game: -len(game.seen))
        sequences = list(dict.fromkeys(tuple(game.actions[:20]) for game in games))
        seeds = range(self._affordable(10))
        tried = sequences[: max(1, self._affordable(len(sequences) * len(seeds)) // len(seeds))]
        for actions in tried:
            different = len({repr(self._play(seed, actions).seen) for seed in seeds})
            if different > 1:
                return _Told(OK, f"at least {different} different tasks from {len(seeds)} seeds")
        fix = "draw the start in reset() from self.np_random; otherwise all tasks are the same"
        after = counted(len(tried), "sequence") + " of actions"
        return _Told(WARNING, f"{len(seeds)} seeds gave the same task: the same episode after each of {after}", fix)

    def _look_at_end(self) -> "_Told":
        games = self._many
        turns = [len(game.actions) for game in games if game.ended]
        if broken := next((game for game in games if game.error), None):
            got = f"the episode with seed {broken.seed} raised {broken.error} after turn {len(broken.actions)}"
            return _Told(PROBLEM, got, "end the episode instead of raising, which is a crash of the episode")
        if len(turns) < len(games):
            got = f"{len(games) - len(turns)} of {counted(len(games), 'episode')} did not end in {MOST_TURNS} turns"
            fix = "end every episode, set max_episode_steps in gym.register, or GymSpec(turn_limit=...)"
            return _Told(WARNING if turns else PROBLEM, f"{got} of {self._who_is_random}", fix)
        if both := self._survey.issues.get("end"):  # wrappers of training set one of the two
            return _Told(WARNING, *both[0])
        return _Told(OK, f"after {min(turns)} to {max(turns)} turns, {statistics.fmean(turns):.1f} on average")

    def _look_at_after_the_end(self) -> "_Told":
        game = max((game for game in self._many if game.ended), key=lambda game: game.total, default=None)
        if game is None:
            skip("no episode ended")
        bare = self._make()
        env = bare if holds_text(bare.action_space) else None
        try:
            if env is None:
                return _Told(OK, "handled by the wrapper that converts actions to text")
            game = play_one(as_text(env), game.seed, game.actions)
            try:
                steps = [env.step(game.actions[-1]) for _ in range(3)]
            except BaseException as error:
                raise_interrupt(error)
                return _Told(OK, f"refused with {type(error).__name__}")
            paid = math.fsum(float(step[1]) for step in steps)
            if paid or not all(step[2] or step[3] for step in steps):
                got = f"rewarded with another {paid:g}" if paid else "continued"
                fix = "return the last observation and flags and no reward, as ParseAction does in training"
                return _Told(WARNING, got, fix)
            return _Told(OK, "no further reward")
        finally:
            close_env(bare, broken=True)

    def _look_at_invalid_actions(self) -> "_Told":
        refused, counted_ = 0, False
        with self._open() as env:
            for action in STRANGE_ACTIONS:
                env.reset(seed=0, options=None)
                said = repr(action) if len(action) < 50 else f"{len(action):,} characters"
                try:
                    result = read_step(*env.step(action))
                except BaseException as error:
                    raise_interrupt(error)
                    return _Told(PROBLEM, f"step({said}) raised {describe_error(error)}", _READ_IN_FRONT)
                refused += result.info.get("action_valid") is False
                counted_ = counted_ or "action_valid" in result.info
            if (raised := self._raises_at_forbidden(env)) is not None:
                fix = "answer an action that the mask forbids with info['action_valid'] = False instead of raising"
                return _Told(PROBLEM, raised, fix)
        if not counted_:
            fix = "set info['action_valid'] to True or False in every step, so that invalid actions are counted"
            return _Told(WARNING, "none raised, but info has no 'action_valid'", fix)
        return _Told(OK, f"{refused} of {len(STRANGE_ACTIONS)} strange texts were rejected, none raised")

    def _raises_at_forbidden(self, env: TextEnvironment) -> str | None:
        """Return what happened at the first action that a mask forbids if the environment raised there."""
        space = env.unwrapped.action_space
        if not isinstance(space, gym.spaces.Discrete):
            return None
        for game in self._some:
            _, info = env.reset(seed=game.seed, options=None)
            for action in game.actions:
                allowed = np.asarray(info.get("action_mask"))
                if allowed.shape == (int(space.n),) and not allowed.all():
                    forbidden = str(int(space.start) + int(np.argmin(allowed)))
                    try:
                        env.step(forbidden)
                    except BaseException as error:
                        raise_interrupt(error)
                        return f"step({forbidden}), which the mask forbids, raised {describe_error(error)}"
                    return None
                info = env.step(action)[4]
        return None

    def _look_at_instructions(self) -> "_Told":
        with self._open() as env:
            own = self._make()
            given = self._options.get("instructions") or attribute_of(own, "instructions")
            text = description(own)
            close_env(own, broken=True)
            if given is not None and not (isinstance(given, str) and given.strip()):
                return _Told(PROBLEM, f"they are {kind_of(given)}", "instructions must be text that is not empty")
            if given is None and not instructions_of(own):
                told = f": its docstring begins {text!r:.60}" if text else ""
                fix = "define a string attribute instructions (rules and answer format), or GymSpec(instructions=...)"
                return _Told(WARNING, f"none{told}", fix)
            rules = instructions_of(env)
            if len(rules) > _LONG_RULES:
                fix = "shorten them; they begin every prompt"
                return _Told(WARNING, f"{len(rules):,} characters", fix)
        return _Told(OK, f"{len(rules):,} characters: {shortened(repr(rules), 60)}")

    def _look_at_seats(self) -> "_Told":
        seats = self._num_seats
        if seats < 2:
            return _Told(OK, "one")
        games = self._seat_games
        found = f"{seats} seats"
        if games[-1].error:
            fix = "follow the protocol of gym_trl.wrappers.seats"
            return _Told(PROBLEM, f"{found}; {games[-1].error}, in the game with seed {games[-1].seed}", fix)
        found = f"{found}, {counted(len(games), 'game')} of {self._who_is_random}"
        asked = {seat for game in games for seat, _ in game.shown}
        if idle := [seat for seat in range(seats) if seat not in asked]:
            legal = self._who_is_random == RANDOM_PLAY
            fix = "pass the turn with info['to_move'], or declare fewer seats in num_seats"
            return _Told(PROBLEM if legal else WARNING, f"{found}: seat {idle[0]} is never to move", fix)
        if not any(game.ended for game in games):
            return _Told(WARNING, f"{found}: none ended, so no payoffs were checked", "end every game")
        return _Told(OK, found)

    def _look_at_hidden_information(self) -> "_Told":
        if self._num_seats < 2:
            return _Told(OK, "one seat")
        games = self._seat_games
        if games[-1].error:
            skip("see seats")
        if leak := find_leak(games, self._num_seats):
            fix = (
                "after a step, return what the seat of info['to_move'] sees; a method observe(seat) is checked exactly"
            )
            return _Told(PROBLEM, f"{leak}; found in {leak.games} of {len(games)} games", fix)
        with self._open() as env:
            exact = env.has_wrapper_attr("observe") and callable(env.get_wrapper_attr("observe"))
        shown = sum(len(game.shown) for game in games)
        if exact:
            return _Told(OK, f"{counted(shown, 'observation')} equal to observe(seat)")
        return _Told(OK, f"no line of another seat in {counted(shown, 'observation')}; observe(seat) would show more")

    def _look_at_success(self) -> "_Told":
        fix = "set info['success'] to True or False in the last step"
        if found := self._survey.issues.get("success"):
            return _Told(PROBLEM, *found[0])
        if self._num_seats > 1:
            successes = [game.successes for game in self._seat_games if game.ended]
            if not successes:
                skip("no game ended")
            shares = [statistics.fmean(map(bool, seat)) for seat in zip(*successes, strict=True)]
            return _Told(OK, f"by seat, in random play {', '.join(f'{share:.2f}' for share in shares)}")
        ended = [game for game in self._many if game.ended]
        if not ended:
            skip("no episode ended")
        said = [game for game in ended if game.success is not None]
        if not said:
            fix = f"{fix}, or define it with GymSpec(success=...)"
            return _Told(WARNING, "not declared: evaluations report returns only", fix)
        if len(said) < len(ended):
            return _Told(
                WARNING, f"{len(ended) - len(said)} of {len(ended)} episodes did not declare it in their last step", fix
            )
        if early := next((game for game in ended for seen in game.seen[1:-1] if seen[6]), None):
            return _Told(
                WARNING, f"the episode with seed {early.seed} continued after success", "end it with terminated=True"
            )
        return _Told(
            OK, f"declared in info; {sum(game.solved for game in ended)} of {len(ended)} solved by random play"
        )

    def _look_at_reward(self) -> "_Told":
        if self._num_seats > 1:
            return self._look_at_payoffs()
        games = [game for game in self._many if game.ended]
        if not games:
            skip("no episode ended")
        returns = [game.total for game in games]
        got = f"{_mean(returns)} in {counted(len(games), 'episode')} of {self._who_is_random}"
        if len(set(returns)) == 1:
            fix = "reward something that random play reaches sometimes; GRPO learns from differences within a group"
            solved = all(game.solved for game in games)
            return _Told(WARNING, f"{got}, always the same" + (" and always solved" if solved else ""), fix)
        return _Told(OK, got)

    def _look_at_payoffs(self) -> "_Told":
        payoffs = [game.payoffs for game in self._seat_games if game.ended]
        if not payoffs:
            skip("no game ended")
        means = ", ".join(_mean(seat) for seat in zip(*payoffs, strict=True))
        got = f"by seat {means} in {counted(len(payoffs), 'game')} of {self._who_is_random}"
        if len(set(payoffs)) == 1:
            fix = "pay something that differs between games; GRPO learns from differences within a group"
            return _Told(WARNING, f"{got}, always the same", fix)
        return _Told(OK, got)

    @cached_property
    def _shows_images(self) -> bool:
        with self._open() as env:
            return shows_images(env)

    @cached_property
    def _who_is_random(self) -> str:
        with self._open() as env:
            return description_of(env, *env.reset(seed=0))

    def _look_at_blind_baseline(self) -> "_Told":
        if not self._search_steps:
            return _Told(SKIPPED, "not checked: search_steps is 0")
        if self._num_seats > 1:
            return _Told(SKIPPED, "not checked: what a sequence of actions is worth depends on the other seats")
        _ = self._some  # raises NotCheckedError if nothing can be played
        found = search_blind(self._make_played, steps=self._search_steps, seconds=self._search_seconds, seed=self._seed)
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
        close = level is not None and found.episodes >= _MANY_EPISODES and (found.score.high or reached) >= level
        if close or (level is not None and is_near(reached, chance, level)):
            fix = "most of the score is reached without observations: draw more of the start from the seed"
            return _Told(WARNING, got, fix, numbers)
        if level is None and found.score.low is not None and found.score.low > max(0.0, chance):
            fix = "a fixed sequence of actions beats random play: compare models with it"
            return _Told(WARNING, got, fix, numbers)
        return _Told(OK, got, numbers=numbers)

    def _references(self, *, solves: bool) -> tuple[float | None, float | None, float | None]:
        """Return the success or return of random play, the solver and perfect play."""

        def mean(games: Sequence[PlayedEpisode]) -> float | None:
            values = [float(game.solved) if solves else game.total for game in games if game.ended]
            return statistics.fmean(values) if values else None

        with self._open() as env:
            best = optimum(env)
            has_solver = env.has_wrapper_attr("solver")
        solved = mean(self._solved) if has_solver else None
        return mean(self._many), solved, best.success if solves else best.mean_return

    @cached_property
    def _solved(self) -> list[PlayedEpisode]:
        """Episodes of the same seeds as ``_many``, played by the solver."""
        return self._solve([game.seed for game in self._many])

    @cached_property
    def _solved_some(self) -> list[PlayedEpisode]:
        with self._open() as env:
            solves = env.has_wrapper_attr("solver")
        return self._solve([game.seed for game in self._some]) if solves else []

    def _solve(self, seeds: Sequence[int]) -> list[PlayedEpisode]:
        """Return episodes of the solver, or fewer if it is slow."""
        games, began = list[PlayedEpisode](), perf_counter()
        for seed in seeds:
            if len(games) >= 2 and perf_counter() - began > _LONGEST_S:
                break
            with self._open() as env:
                games.append(play_one(env, seed, without_info(env.get_wrapper_attr("solver")())))
        return games

    def _look_at_solver(self) -> "_Told":
        with self._open() as env:
            if not env.has_wrapper_attr("solver"):
                return _Told(OK, "none; a method solver() that returns a policy would show that it can be solved")
            known = optimum(env)
        games, fix = self._solved, "correct the solver, or optimal_success and optimal_return"
        if _missed(games, known) is not None and not any(game.error for game in games):
            # Chance explains it sometimes, and not again in many more episodes.
            games = self._solve(range(len(games), len(games) + self._affordable(20 * len(games))))
        if broken := next((game for game in games if game.error), None):
            return _Told(
                PROBLEM,
                f"the episode with seed {broken.seed} raised {broken.error}",
                "the solver must handle every task",
            )
        returns, solved = [game.total for game in games], [float(game.solved) for game in games]
        solves = f" and solves {statistics.fmean(solved):.3f}" if games[0].success is not None else ""
        got = f"returns {statistics.fmean(returns):.3f}{solves} of {len(games)} episodes"
        if (best := _missed(games, known)) is not None:
            return _Told(PROBLEM, f"{got}, but the declared optimum is {best:.3f}", fix)
        if _mean_of(self._many) > _mean_of(games) and self._is_worse_than_chance():
            return _Told(PROBLEM, f"{got}, less than random play", fix)
        return _Told(OK, got)

    def _is_worse_than_chance(self) -> bool:
        """Return whether the solver returns less than random play in many more episodes, beyond chance."""
        seeds = range(1_000, 1_000 + self._affordable(200))
        solved = self._solve(seeds)
        return _beyond([self._play(seed) for seed in seeds[: len(solved)]], solved)

    def _look_at_state_key(self) -> "_Told":
        _ = self._some  # raises NotCheckedError if nothing can be played
        fix = "put all that later observations, rewards and ends depend on into it, or do not declare it Markov"
        with self._open() as env:
            solves = env.has_wrapper_attr("solver")
        players = [partial(random_play, seed=seed) for seed in range(4)]
        solver = [lambda env: without_info(env.get_wrapper_attr("solver")())] if solves else []
        try:
            found = search_keys(
                self._text_env, [*players, *solver], range(3), key=self._key, walks=self._affordable(40)
            )
        except ConfigError as error:
            return _Told(PROBLEM, str(error), "make it of strings, numbers and tuples of these")
        if not found.declared:
            return _Told(OK, 'none; info["state_key"] would let credit per turn compare states, not histories')
        histories = counted(found.histories, "history")
        if not found.markov:
            return _Told(OK, f"declared, and not as Markov, in {histories}: it serves baselines only")
        if found.counterexample is not None:
            return _Told(PROBLEM, found.counterexample, fix)
        return _Told(OK, f"Markov in {histories}: {counted(found.tested, 'pair')} with one key went on alike")

    def _look_at_info(self) -> "_Told":
        self._issues("info", "")
        if found := self._survey.issues.get("info"):
            return _Told(PROBLEM, *found[0])
        info = self._survey.info
        if info is None:
            skip("no step returned")
        try:
            size = len(dumps(info))
            loads(dumps(info))  # noqa: S301 -- our own bytes
        except BaseException as error:
            raise_interrupt(error)
            fix = "put plain values into info: strings, numbers, lists, dicts"
            return _Told(PROBLEM, f"does not pickle: {shortened(safe_str(error), 80)}", fix)
        if size > 100_000:
            return _Told(WARNING, f"{size / 1000:,.0f} kB a step", "remove entries that nothing reads")
        return _Told(OK, f"pickles in {size:,} bytes: {', '.join(map(str, info)) or 'empty'}"[:SHORT])

    def _look_at_size(self) -> "_Told":
        games = self._many
        longest = max(len(one) for game in games for one in game.observations)
        whole = max(sum(map(len, game.observations)) for game in games)
        got = f"at most {longest:,} characters an observation, {whole:,} an episode"
        if any(_repeats(game.observations) for game in games):
            fix = "return only what is new; the transcript keeps the rest"
            return _Told(WARNING, f"{got}; each repeats the previous one", fix)
        if whole > _LONG_EPISODE:
            fix = "shorten it, or train with a max_completion_length that holds it (about 4 characters per token)"
            return _Told(WARNING, got, fix)
        return _Told(OK, got)

    def _look_at_speed(self) -> "_Told":
        games = self._many
        steps = sorted(seconds for game in games for seconds in game.step_s) or [0.0]
        resets = sorted(game.reset_s for game in games)
        step, reset = statistics.median(steps), statistics.median(resets)
        got = f"a step {_time(step)} (at most {_time(steps[-1])}), a reset {_time(reset)} (at most {_time(resets[-1])})"
        if step > _SLOW_STEP_S or reset > _SLOW_START_S:
            fix = "use GymSpec(executor='thread') if it waits, executor='process' if it computes, and a step_timeout"
            return _Told(WARNING, got, fix)
        return _Told(OK, got)

    def _look_at_threads(self) -> "_Told":
        games = [game for game in self._some for _ in range(2)]
        with ThreadPoolExecutor(4) as threads:
            replayed = list(threads.map(self._replayed, games))
        where = difference([one.seen for one in games], [one.seen for one in replayed])
        if where is None:
            return _Told(OK, f"{counted(len(games), 'episode')} in four threads")
        if broken := next((game for game in replayed if game.error), None):
            where = f"raised {broken.error}"
        fix = "share no mutable state between instances, or use GymSpec(executor='inline') or executor='process'"
        return _Told(WARNING, where, fix)

    def _look_at_closing(self) -> "_Told":
        self._play(0, most=5)
        before = _held()
        for seed in range(5):
            env = self._text_env()
            play_one(env, seed, random_play(env, seed), most=5)
            try:
                env.close()
                env.close()
            except BaseException as error:
                raise_interrupt(error)
                fix = "close() must work at any time, and twice"
                return _Told(PROBLEM, f"raised {describe_error(error)}", fix)
        left = {name: now - then for (name, then), now in zip(before.items(), _held().values(), strict=True)}
        leaks = [f"{counted(number, name)}" for name, number in left.items() if number >= 5]
        if leaks:
            fix = "release in close() everything that __init__() or reset() opened"
            return _Told(WARNING, f"five closed instances left {' and '.join(leaks)}", fix)
        return _Told(OK, "five closed instances left nothing")

    def _look_at_gymnasium(self) -> "_Told":
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            try:
                check_env(self._make().unwrapped, skip_render_check=True)
            except BaseException as error:
                raise_interrupt(error)
                return _Told(
                    PROBLEM,
                    f"check_env raised {describe_error(error)}",
                    "see Gymnasium's documentation on creating environments",
                )
        texts = (re.sub(r"\x1b\[[0-9;]*m", "", str(one.message)) for one in heard)
        said = dict.fromkeys(shortened(text) for text in texts if not any(part in text for part in _FOR_NETWORKS))
        if said:
            return _Told(WARNING, f"check_env: {next(iter(said))}", "follow the warning; training works without")
        return _Told(OK, "check_env passes without warnings")


class _Told(NamedTuple):
    verdict: str
    got: str
    fix: str = ""
    numbers: Mapping[str, Any] | None = None


def _repeats(observations: Sequence[str]) -> bool:
    pairs = list(pairwise(observations))
    return len(pairs) >= 3 and all(len(one) >= 10 and len(two) > len(one) and one in two for one, two in pairs)


def _mean_of(games: Sequence[PlayedEpisode]) -> float:
    return statistics.fmean(game.total for game in games)


def _beyond(games: Sequence[PlayedEpisode], others: Sequence[PlayedEpisode]) -> bool:
    """Return whether episodes have higher returns than another policy's on the same tasks, beyond chance."""
    more = [game.total - other.total for game, other in zip(games, others, strict=False)]
    return statistics.fmean(more) > 3 * statistics.pstdev(more) / math.sqrt(len(more)) + 1e-9


def _missed(games: Sequence[PlayedEpisode], known: tuple[float | None, float | None]) -> float | None:
    """Return the declared optimum that episodes of the solver miss by more than chance explains, if any."""
    values = [float(game.solved) for game in games], [game.total for game in games]
    for best, reached in zip(known, values, strict=True):
        if best is not None and abs(best - statistics.fmean(reached)) > 4 * _error(reached, best) + 1e-6:
            return best
    return None


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
    number = 0
    for file in Path("/proc/self/task").glob("*/children"):
        with suppress(FileNotFoundError):  # of a thread that has ended
            number += len(file.read_text().split())
    return number


PROMISES: dict[str, str] = {
    "construction": "Training makes one instance per concurrent episode, also in other processes.",
    "reset": "Every episode starts with reset(seed=..., options=...).",
    "step": "Results of steps are checked; an episode with a malformed one is unscored.",
    "spaces": "Wrappers and vector environments rely on the spaces.",
    "words": "A model reads and writes text.",
    "actions": "A model has to know what its actions mean.",
    "determinism": "Members of a group share a task: same seed and same actions, same episode.",
    "own generator": "An environment must not change the trainer's random numbers.",
    "fresh start": "Instances are reused for other tasks.",
    "variety": "A model that sees one task memorizes it.",
    "end": "An episode that does not end fills the context.",
    "after the end": "Rewards after the end can be farmed.",
    "invalid actions": "A model can write anything; an episode in which an action raises is over, as a crash.",
    "instructions": "The instructions are all that a model knows of the rules.",
    "seats": "Each seat of a game is an episode: it is asked for its own actions, and paid for them.",
    "hidden information": "A seat that sees what another one sees learns a game that nobody plays.",
    "success": "Evaluations report the success rate.",
    "reward": "GRPO learns from differences within a group.",
    "blind baseline": "A score shows that a model reads only if it is above this.",
    "solver": "A solver shows that the environment can be solved, and how well.",
    "state key": "Credit per turn takes what followed from one state for another with its key.",
    "info": "It is sent between processes and written to records.",
    "size": "Observations fill the context.",
    "speed": "Slow steps delay the model.",
    "threads": "executor='thread' steps instances concurrently.",
    "processes": "executor='process', other ranks and resumed runs must play the same episodes.",
    "closing": "Training opens and closes thousands of instances.",
    "gymnasium": "Gymnasium's own checker must pass.",
}
"""Names of the checks, in their order, with the reasons for them."""
