"""Whether games keep their promises: the solver at its reference, nothing to be had without playing, the same twice."""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from json import dumps, loads
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import gymnasium as gym

from gym_trl.envs.text_env import Baseline, Measured, TextEnv
from gym_trl.errors import ConfigError
from gym_trl.evaluation import optimum, play_tasks
from gym_trl.pool import TextEnvironment
from gym_trl.seeding import derive_seed, task_seed
from gym_trl.testing import check_text_env
from gym_trl.types import Policy, Task

_T = TypeVar("_T")

MEASURED = Path(__file__).parent / "envs" / "baselines.json"
"""What ``gym-trl validate --measure`` writes."""

_HACKS = ("constant", "garbage", "noop")
_ALWAYS_ALLOWED = 0.1
"""What a policy that does not play may win where a random one wins less (an acceptance rule of the suite)."""
_ERRORS = 4.0
"""How many standard errors two measurements of the same thing may be apart."""


class Game(NamedTuple):
    """An environment with one of its presets."""

    env_id: str
    difficulty: str | None

    def make(self) -> gym.Env[str, str]:
        """A new one."""
        return gym.make(self.env_id, **self.arguments)

    @property
    def arguments(self) -> dict[str, Any]:
        """What chooses the preset."""
        return {} if self.difficulty is None else {"difficulty": self.difficulty}


@dataclass(frozen=True, slots=True)
class Validation:
    """What was found out about a game."""

    game: Game
    measured: dict[str, Measured]
    """By policy."""
    optimal_success: float | None
    problems: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "id": self.game.env_id,
            "difficulty": self.game.difficulty,
            "optimal_success": self.optimal_success,
            "policies": {name: measured._asdict() for name, measured in self.measured.items()},
            "problems": list(self.problems),
        }


def games(env_ids: Iterable[str]) -> list[Game]:
    """Every preset of every environment.

    >>> [game.difficulty for game in games(["TrlEnv/GuessNumber-v0"])]
    ['easy', 'medium', 'hard']

    Raises:
        ConfigError: one of them is no game of this kind.
    """
    found = []
    for env_id in env_ids:
        env = gym.make(env_id)
        if not isinstance(env.unwrapped, TextEnv):
            raise ConfigError(f"{env_id} is no TextEnv: it has no solver and no baselines to validate it with")
        found += [Game(env_id, difficulty) for difficulty in env.unwrapped.presets or (None,)]
        env.close()
    return found


def validate(game: Game, *, episodes: int = 100, seed: int = 0) -> Validation:
    """Play a game with its baselines, and compare with what it promises and with what was measured before.

    >>> found = validate(Game("TrlEnv/GuessNumber-v0", "easy"), episodes=20)
    >>> found.problems, found.measured["solver"].success
    ((), 1.0)

    Args:
        game: What to play.
        episodes: How many each policy plays; the same for every policy.
        seed: Of the episodes.
    """
    problems = []
    try:
        check_text_env(game.make, episodes=min(episodes, 20))
    except AssertionError as broken:
        problems.append(str(broken))
    best = optimum(game.make())
    measured = measure(game, episodes=episodes, seed=seed, split="eval")
    if best.success is not None:
        problems += _compare("solver", "optimum", measured["solver"], best.success, exact=True)
    for name, baseline in _baselines(game.make()).items():
        if baseline.measured is None:
            problems.append(f"{name} was never measured: gym-trl validate --measure")
        else:
            problems += _compare(name, "reference", measured[name], baseline.measured)
    if game.make().get_wrapper_attr("reward_modes")[0] == "success":
        problems += _farmed(measured)
    return Validation(game, measured, best.success, tuple(problems))


def validate_all(chosen: Sequence[Game], *, episodes: int = 100, seed: int = 0, jobs: int = 1) -> Iterator[Validation]:
    """Validate games in ``jobs`` processes; the results come in order."""
    return _map(partial(validate, episodes=episodes, seed=seed), chosen, jobs)


def measure_all(chosen: Sequence[Game], *, episodes: int, jobs: int = 1) -> Iterator[tuple[Game, dict[str, Measured]]]:
    """Measure the baselines of games in ``jobs`` processes; the results come in order."""
    return zip(chosen, _map(partial(measure, episodes=episodes, seed=0, split="train"), chosen, jobs), strict=True)


def measure(game: Game, *, episodes: int, seed: int, split: str) -> dict[str, Measured]:
    """Play ``episodes`` of a game with each of its baselines."""
    tasks = [Task(game.env_id, task_seed(seed, split, number)) for number in range(episodes)]
    names = _baselines(game.make())
    return {name: _measure(game, name, tasks) for name in names}


def write_measurements(path: Path, found: Iterable[tuple[Game, dict[str, Measured]]]) -> None:
    """Write what ``TextEnv.baselines`` reads, by class, difficulty and policy; what was not measured now stays."""
    table: dict[str, dict[str, Any]] = loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for game, measured in found:
        name = type(game.make().unwrapped).__name__
        policies = {policy: _rounded(numbers) for policy, numbers in measured.items()}
        table.setdefault(name, {})[game.difficulty or "medium"] = policies
    path.write_text(_lines(table), encoding="utf-8")


def _lines(table: dict[str, dict[str, Any]]) -> str:
    """JSON with a line for each policy, so that a changed number is a changed line."""
    classes = []
    for name, presets in sorted(table.items()):
        blocks = [
            f"    {dumps(preset)}: {{\n"
            + ",\n".join(f"      {dumps(policy)}: {dumps(numbers)}" for policy, numbers in policies.items())
            + "\n    }"
            for preset, policies in presets.items()
        ]
        classes.append(f"  {dumps(name)}: {{\n" + ",\n".join(blocks) + "\n  }")
    return "{\n" + ",\n".join(classes) + "\n}\n"


def _rounded(numbers: Measured) -> dict[str, float]:
    return {name: round(value, 6) for name, value in numbers._asdict().items()}


def _map(function: Callable[[Game], _T], chosen: Sequence[Game], jobs: int) -> Iterator[_T]:
    if jobs == 1:
        yield from map(function, chosen)
        return
    # A new interpreter each: some libraries that are loaded by now do not survive a fork.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_register) as pool:
        yield from pool.map(function, chosen)


def _register() -> None:
    import gym_trl  # noqa: F401 -- registers the games


def _baselines(env: gym.Env[str, str]) -> dict[str, Baseline]:
    found: dict[str, Baseline] = env.get_wrapper_attr("baselines")
    return found


def _measure(game: Game, name: str, tasks: list[Task]) -> Measured:
    numbers = iter(range(len(tasks)))

    def policy_for(env: TextEnvironment) -> Policy:
        made: Policy = env.get_wrapper_attr("baselines")[name].policy(derive_seed("baseline", next(numbers)))
        return made

    results = play_tasks(lambda _: game.make(), tasks, policy_for)
    returns = [result.episode_return for result in results if result.episode_return is not None]
    if len(returns) < len(results):
        raise AssertionError(f"{game.env_id} raised in {len(results) - len(returns)} of {len(results)} episodes")
    return Measured(
        success=statistics.fmean(bool(result.success) for result in results),  # a TextEnv declares it
        mean_return=statistics.fmean(returns),
        deviation=statistics.pstdev(returns),
        turns=statistics.fmean(result.turns for result in results),
        episodes=len(results),
    )


def _compare(name: str, what: str, now: Measured, then: Measured | float, *, exact: bool = False) -> list[str]:
    """A sentence for each number that is further from what it should be than chance explains."""
    reference = now._replace(success=then, episodes=10**12) if isinstance(then, float) else then
    share = 1 / now.episodes + 1 / reference.episodes
    spread = max(_spread(now.success) if not exact else 0.0, _spread(reference.success))
    problems = []
    if abs(now.success - reference.success) > _ERRORS * spread * math.sqrt(share) + 1e-6:
        problems.append(f"{name} wins {now.success:.4g} and its {what} is {reference.success:.4g}")
    if not exact:
        allowed = _ERRORS * max(now.deviation, reference.deviation) * math.sqrt(share) + 1e-6
        if abs(now.mean_return - reference.mean_return) > allowed:
            problems.append(f"{name} returns {now.mean_return:.4g} and its {what} is {reference.mean_return:.4g}")
    return problems


def _spread(success: float) -> float:
    return math.sqrt(success * (1 - success))


def _farmed(measured: dict[str, Measured]) -> list[str]:
    """A sentence for each policy that wins without playing."""
    chance = measured["random"]
    allowed = max(_ALWAYS_ALLOWED, chance.success + _ERRORS * _spread(chance.success) * math.sqrt(2 / chance.episodes))
    return [
        f"{name} wins {measured[name].success:.4g}, more than random play's {chance.success:.4g}"
        for name in _HACKS
        if measured[name].success > allowed
    ]
