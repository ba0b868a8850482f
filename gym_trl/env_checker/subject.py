"""Environment under inspection: the episodes that its checks share."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import chain
from time import perf_counter
from typing import Any

import gymnasium as gym

from gym_trl.env_checker.play import MOST_TURNS, PlayedEpisode, SeatGame, play_one, play_seats
from gym_trl.env_checker.survey import NotCheckedError, Survey, skip, survey_resets, survey_steps
from gym_trl.evaluation.as_trained import as_trained, text_env
from gym_trl.evaluation.blind import SECONDS, STEPS
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.executors.step import close_env
from gym_trl.random_play import description_of, random_play, solver_play
from gym_trl.report import Checks, Finding, ok, problem
from gym_trl.wrappers.as_text import as_text
from gym_trl.wrappers.base import attribute_of
from gym_trl.wrappers.declare_success import declare_success
from gym_trl.wrappers.seats import Seats

LONGEST_S = 8.0
"""Seconds for the episodes of one check, estimated from the first one."""
_MOST_GAMES = 400  # of several seats: enough to find what happens once in a while


class Subject:
    """Environment under inspection, with the options of a training, and the episodes that its checks share.

    >>> from gym_trl.envs.echo import Echo
    >>> [len(game.actions) for game in Subject(Echo, episodes=5).many]
    [1, 1, 1, 1, 1]

    Args:
        make: Makes the environment.
        episodes: Number of episodes for measurements; fewer if the environment is slow.
        search_steps: Number of environment steps in the search for a blind policy.
        search_seconds: Maximum seconds for this search.
        seed: Seed of this search.
        options: Options of ``GymSpec`` with which the environment is trained.
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
        self.make, self._episodes = make, episodes
        self.options = options or {}
        self.make_played = as_trained(make, self.options)
        """Makes the environment as a training with the options does."""
        self.search_steps, self.search_seconds, self.seed = search_steps, search_seconds, seed

    @property
    def state_key(self) -> Any:
        """Function that names states in place of the environment's own names, if any."""
        key = self.options.get("state_key")
        return None if key == "auto" else key

    def text_env(self) -> TextEnvironment:
        """Make the environment as text."""
        return text_env(self.make_played)

    @contextmanager
    def open(self) -> Iterator[TextEnvironment]:
        """Make the environment as text, and close it at the end."""
        env = self.text_env()
        try:
            yield env
        finally:
            close_env(env, broken=True)

    def play(self, seed: int, act: Sequence[str] | None = None, most: int = MOST_TURNS) -> PlayedEpisode:
        """Play an episode in a new instance, at random or with given actions."""
        with self.open() as env:
            return play_one(env, seed, random_play(env, seed) if act is None else act, most)

    def replayed(self, game: PlayedEpisode) -> PlayedEpisode:
        """Play the actions of an episode again."""
        return self.play(game.seed, game.actions)

    def solved(self, seeds: Sequence[int]) -> list[PlayedEpisode]:
        """Return episodes of the solver, or fewer if it is slow."""
        games, began = list[PlayedEpisode](), perf_counter()
        for seed in seeds:
            if len(games) >= 2 and perf_counter() - began > LONGEST_S:
                break
            with self.open() as env:
                games.append(play_one(env, seed, solver_play(env)))
        return games

    def affordable(self, wanted: int) -> int:
        """Return the number of episodes that there is time for, estimated from the first one."""
        seconds = sum(self.first.seconds)
        return max(2, min(wanted, int(LONGEST_S / max(seconds, 1e-6))))

    def issues(self, name: str, kept: str) -> Finding:
        """Return the issues of the survey as the finding of a check; ``kept`` says that there are none."""
        if problems := self.survey.issues.get(name):
            got, fix = problems[0]
            return problem(f"{got} (and {len(problems) - 1} more)" if len(problems) > 1 else got, fix)
        if name != "reset" and "reset" in self.survey.issues:
            skip("reset is broken")
        if name not in ("reset", "step") and "step" in self.survey.issues and self.survey.info is None:
            skip("step is broken")
        return ok(kept)

    @cached_property
    def survey(self) -> Survey:
        """Results of one pass over what the environment itself returns."""
        survey = Survey()
        env = self.make().unwrapped
        with suppress(NotCheckedError):
            survey_resets(env, survey)
            survey_steps(env, survey)
        close_env(env, broken=True)
        return survey

    @cached_property
    def first(self) -> PlayedEpisode:
        """First episode with random actions."""
        game = self.play(0)
        if not game.seen:
            skip(f"reset raised {game.error}")
        return game

    @cached_property
    def some(self) -> list[PlayedEpisode]:
        """Three episodes with random actions, or fewer of a slow environment."""
        games = [self.first, *(self.play(seed) for seed in range(1, self.affordable(3)))]
        if all(len(game.seen) < 2 for game in games):
            skip("step raises")
        return games

    @cached_property
    def many(self) -> list[PlayedEpisode]:
        """As many episodes with random actions as are wanted and affordable."""
        return [*self.some, *(self.play(seed) for seed in range(len(self.some), self.affordable(self._episodes)))]

    @cached_property
    def ended(self) -> list[PlayedEpisode]:
        """Those of the many episodes that the environment ended."""
        games = [game for game in self.many if game.ended]
        if not games:
            skip("no episode ended")
        return games

    @cached_property
    def scored(self) -> list[PlayedEpisode]:
        """Those of the many episodes that a training would score."""
        games = [game for game in self.many if game.episode.scored]
        if len(games) < 2:
            skip(f"only {len(games)} of {len(self.many)} episodes could be scored")
        return games

    @cached_property
    def shows_success(self) -> bool:
        """An episode of random play or of the solver declares success, be it in a last step or before."""
        games = chain(self.many, self.solved_many if self.has_solver else ())
        return any(game.episode.success is not None for game in games)

    @cached_property
    def has_solver(self) -> bool:
        """The environment has a solver."""
        with self.open() as env:
            return attribute_of(env, "solver") is not None

    @cached_property
    def solved_many(self) -> list[PlayedEpisode]:
        """Episodes of the same seeds as the many, played by the solver."""
        return self.solved([game.seed for game in self.many])

    @cached_property
    def num_seats(self) -> int:
        """Number of seats."""
        with self.open() as env:
            return int(attribute_of(env, "num_seats", 1))

    @cached_property
    def seat_games(self) -> list[SeatGame]:
        """Random games of an environment of several seats, checked for the protocol."""
        games: list[SeatGame] = []
        began = perf_counter()
        while len(games) < _MOST_GAMES and (len(games) < 2 or perf_counter() - began < LONGEST_S / 2):
            env = as_text(Seats(declare_success(self.make())))
            seed = len(games)
            games.append(play_seats(env, seed, random_play(env, seed)))
            close_env(env, broken=True)
            if games[-1].error:
                break
        return games

    @cached_property
    def ended_seat_games(self) -> list[SeatGame]:
        """Those of these games that ended."""
        games = [game for game in self.seat_games if game.ended]
        if not games:
            skip("no game ended")
        return games

    @cached_property
    def random_policy(self) -> str:
        """Description of random play."""
        with self.open() as env:
            return description_of(env, *env.reset(seed=0))


check: Checks[[Subject]] = Checks()
"""Checks of an environment by name, each declared beside its function in ``gym_trl.env_checker.checks``."""
