"""Episodes of several policies on the same held-out tasks, and their levels."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, TypeAlias

import gymnasium as gym

from gym_trl.bases import Closing
from gym_trl.env_checker.play import PlayedEpisode, play_one
from gym_trl.errors import failures_ignored
from gym_trl.evaluation.as_trained import text_env
from gym_trl.evaluation.blind import is_near
from gym_trl.evaluation.estimates import Estimate, Reference, exceed, settled
from gym_trl.evaluation.play import optimum
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.executors.step import close_env
from gym_trl.random_play import Actor, random_play, solver_play
from gym_trl.seeding import derive_seed, task_seed
from gym_trl.wrappers.base import attribute_of

MakeEnv: TypeAlias = Callable[[], gym.Env[Any, Any]]

ActorFor: TypeAlias = Callable[[TextEnvironment, int], Actor]
"""Function that makes the policy of one episode from its environment, after the reset, and a seed."""


@dataclass(frozen=True)
class Level:
    """Score of a policy on held-out tasks."""

    policy: str
    success: Estimate = field(default_factory=Estimate)
    """Share of the episodes that are solved; its mean is ``None`` if success is not declared."""
    mean_return: Estimate = field(default_factory=Estimate)
    turns: float | None = None
    """Per episode."""
    episodes: int = 0
    about: str = ""
    """Remark, such as the actions of a blind policy."""


def level_of(policy: str, games: Iterable[PlayedEpisode], about: str = "", *, declares: bool = False) -> Level:
    """Return the level of a policy from its episodes; unscored ones are left out.

    ``declares``: other episodes have shown that the environment declares success (``Plays.declares``).

    >>> from gym_trl.envs.echo import Echo
    >>> with Plays(Echo, episodes=20) as plays:
    ...     level = level_of("solver", plays.of("solver", solver_play))
    >>> str(level.success), level.turns, level.episodes
    ('1.000 [0.813, 1.000]', 1.0, 20)
    """
    games = list(games)
    scored = [game for game in games if game.episode.scored]
    if unscored := len(games) - len(scored):
        about = f"{about}; " * bool(about) + f"{unscored} more could not be scored"
    score = Reference.of([(game.total, game.episode.success) for game in scored], declares=declares)
    turns = sum(len(game.episode.turns) for game in scored) / len(scored) if scored else None
    return Level(policy, score.success, score.mean_return, turns, len(scored), about)


class Plays(Closing):
    """Episodes on held-out tasks, which are the same for all policies; each policy's are played once.

    Args:
        make: Makes the environment.
        episodes: Maximum number of episodes of each policy.
        seconds: Maximum seconds for each policy; at least two episodes are played.
        seed: Seed of the tasks and of random policies.
    """

    def __init__(self, make: MakeEnv, *, episodes: int = 200, seconds: float = 2.0, seed: int = 0) -> None:
        self.make, self.seconds, self.seed = make, seconds, seed
        self.seeds = [task_seed(seed, "eval", number) for number in range(episodes)]
        self._env: TextEnvironment | None = None
        self._played: dict[str, list[PlayedEpisode]] = {}

    def close(self) -> None:
        """Close the environment."""
        if self._env is not None:
            close_env(self._env)
            self._env = None

    @property
    def env(self) -> TextEnvironment:
        """Environment in which the episodes are played."""
        if self._env is None:
            self._env = text_env(self.make)
        return self._env

    def of(self, name: str, actor_for: ActorFor) -> list[PlayedEpisode]:
        """Return the episodes of a policy; they are played at the first call with this name."""
        if name not in self._played:
            began, games = perf_counter(), list[PlayedEpisode]()
            for number, seed in enumerate(self.seeds):
                if number >= 2 and perf_counter() - began > self.seconds:
                    break
                games.append(self.play(actor_for, seed))
            self._played[name] = games
        return self._played[name]

    @property
    def declares(self) -> bool:
        """The environment declares success: by its attribute, or in an episode of any policy."""
        shown = (game.episode.success is not None for game in self.all_played())
        return attribute_of(self.env, "declares_success") or any(shown)

    def all_played(self) -> list[PlayedEpisode]:
        """Return the episodes of all policies."""
        return [game for games in self._played.values() for game in games]

    def played(self, name: str) -> list[PlayedEpisode]:
        """Return the episodes of a policy as far as they have been played."""
        return self._played.get(name, [])

    def play(self, actor_for: ActorFor, seed: int, **more: Any) -> PlayedEpisode:
        """Play one episode; an environment that raised is replaced."""
        env, actors = self.env, list[Actor]()

        def act(observation: str, info: Mapping[str, Any]) -> Any:
            if not actors:  # only now, because a policy is made after the reset
                actors.append(actor_for(env, derive_seed(self.seed, "card", seed)))
            return actors[0](observation, info)

        game = play_one(env, seed, act, **more)
        if game.error is not None:
            with failures_ignored():
                self.close()
            self._env = None
        return game


def always(action: str) -> ActorFor:
    """Return a policy with the same action in every turn."""
    return lambda env, seed: lambda observation, info: action


@dataclass(frozen=True)
class References:
    """Levels that other policies are compared with."""

    chance: Level
    solver: Level | None
    """``None`` if the environment has no solver."""
    best: Level
    """Declared optimum, without intervals."""

    @classmethod
    def of(cls, plays: Plays) -> "References":
        """Return the levels of random play and the solver, and the declared optimum."""
        games = {"random": plays.of("random", random_play)}
        if attribute_of(plays.env, "solver") is not None:
            games["solver"] = plays.of("solver", solver_play)
        levels = {name: level_of(name, each, declares=plays.declares) for name, each in games.items()}
        success, paid = optimum(plays.env)
        best = Level("optimum", Estimate(success), Estimate(paid))
        return cls(levels["random"], levels.get("solver"), best)

    @property
    def objective(self) -> str:
        """``"success"`` if the environment declares it, else ``"return"``."""
        return "success" if self.chance.success.mean is not None else "return"

    def value(self, level: Level, *, paid: bool = False) -> Estimate:
        """Return the estimate of the objective, or of the return if ``paid``."""
        return level.mean_return if paid or self.objective == "return" else level.success

    def top(self, *, paid: bool = False) -> float | None:
        """Return the best known value of the objective, or of the return if ``paid``."""
        levels = (self.best, self.solver) if self.solver is not None else (self.best,)
        means = [mean for level in levels if (mean := self.value(level, paid=paid).mean) is not None]
        return means[0] if means else (1.0 if self.objective == "success" and not paid else None)

    def is_near(self, level: Level, *, paid: bool = False) -> bool:
        """Return whether a level is near the best known one, and above random play beyond chance."""
        reached, chance = (self.value(one, paid=paid).mean for one in (level, self.chance))
        top = self.top(paid=paid)
        if top is None or reached is None or chance is None or top <= chance:
            return False
        return self.beats_its_mean(level, paid=paid) and is_near(reached, chance, top)

    def beats_its_mean(self, level: Level, *, paid: bool = False) -> bool:
        """Return whether the objective, or the return, of a level is above the mean of random play beyond chance."""
        low = settled(self.value(level, paid=paid), level.episodes).low
        chance = self.value(self.chance, paid=paid).mean
        return low is not None and chance is not None and low > chance

    def beats_chance(self, games: Sequence[PlayedEpisode], chance: Sequence[PlayedEpisode]) -> bool:
        """Return whether episodes pay more than those of random play on the same tasks, beyond chance."""
        pairs = [one for one in zip(games, chance, strict=False) if one[0].episode.scored and one[1].episode.scored]
        return exceed([one.total - other.total for one, other in pairs])
