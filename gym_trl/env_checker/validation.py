"""Validation of the library's own environments: solver against optimum, blind policies against their baselines."""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from json import dumps, loads
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import gymnasium as gym

from gym_trl.env_checker.inspector import Inspector
from gym_trl.envs.baselines import Blind, Measured
from gym_trl.envs.text_env import TextEnv
from gym_trl.errors import ConfigError
from gym_trl.evaluation.blind import (
    EPISODES,
    SECONDS,
    STEPS,
    BlindBaseline,
    HeldOut,
    describe,
    is_near,
    play_blind,
    search_blind,
)
from gym_trl.evaluation.blind_search import Objective
from gym_trl.evaluation.play import optimum, play_tasks
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.files import read_text, replace_text
from gym_trl.report import PROBLEM
from gym_trl.seeding import derive_seed, task_seed
from gym_trl.testing.checks import check_text_env
from gym_trl.types import Policy, Task
from gym_trl.wrappers.traits import baselines_of

_T = TypeVar("_T")

MEASURED = Path(__file__).parents[1] / "envs" / "baselines.json"
"""File that ``gym-trl validate --measure`` writes."""
MEASURED_BLIND = MEASURED.with_name("blind_baselines.json")
"""File of the blind baselines that it writes, with the sequences of actions."""
_FEWER_STEPS = {"CodeAgent": 100, "ToolUse": 5_000, "Adventure": 20_000, "Sokoban": 20_000}
_FEWER_STEPS_OF = {("ConnectFour", "medium"): 30_000, ("ConnectFour", "hard"): 2_000, ("Countdown", "hard"): 2_000}
"""Maximum steps of a published search, for environments whose step or reset takes milliseconds."""

_ROUNDS = 3
"""Number of consecutive searches, each of which starts with the results of the earlier ones."""

HELD_OUT_SEED = 2
"""Seed of the held-out episodes of every published blind baseline, so that their values can be compared."""

_IDLE = ("constant", "garbage", "noop")
_ALWAYS_ALLOWED = 0.1
"""Success that is always allowed to a policy that does not play (an acceptance rule of the suite)."""
_ERRORS = 4.0
"""Maximum distance of two measurements of the same value, in standard errors."""


class Game(NamedTuple):
    """Environment with one of its presets."""

    env_id: str
    difficulty: str | None

    def make(self) -> gym.Env[str, str]:
        """Make the environment."""
        return gym.make(self.env_id, **self.arguments)

    def text_env(self) -> TextEnv:
        """Make the environment without its wrappers."""
        env = self.make().unwrapped
        assert isinstance(env, TextEnv)
        return env

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments that select the preset."""
        return {} if self.difficulty is None else {"difficulty": self.difficulty}


@dataclass(frozen=True, slots=True)
class Validation:
    """Results of the validation of an environment."""

    game: Game
    measured: dict[str, Measured]
    """Results by policy."""
    optimal_success: float | None
    problems: tuple[str, ...]
    blind: BlindBaseline | None = None
    """Result of a search for a blind policy; ``None`` if there was none."""

    @property
    def near_optimum(self) -> bool:
        """True if a blind policy comes near the best score, so that scores do not show reading."""
        best = self.measured["solver"].success if self.optimal_success is None else self.optimal_success
        reached = [self.measured["blind"].success] if "blind" in self.measured else []
        if self.blind is not None and self.blind.success.mean is not None:
            reached.append(self.blind.success.mean)
        return bool(reached) and is_near(max(reached), self.measured["random"].success, best)

    def as_dict(self) -> dict[str, Any]:
        """Return the results as plain JSON values."""
        return {
            "id": self.game.env_id,
            "difficulty": self.game.difficulty,
            "optimal_success": self.optimal_success,
            "policies": {name: measured._asdict() for name, measured in self.measured.items()},
            "blind": None if self.blind is None else self.blind.as_dict(),
            "near_optimum": self.near_optimum,
            "problems": list(self.problems),
        }


def games(env_ids: Iterable[str]) -> list[Game]:
    """Return all presets of these environments.

    >>> [game.difficulty for game in games(["TrlEnv/GuessNumber-v0"])]
    ['easy', 'medium', 'hard']

    Raises:
        ConfigError: an environment is not a ``TextEnv``.
    """
    presets = []
    for env_id in env_ids:
        env = gym.make(env_id)
        if not isinstance(env.unwrapped, TextEnv):
            raise ConfigError(f"{env_id} is no TextEnv: it has no solver and no baselines to validate it with")
        presets += [Game(env_id, difficulty) for difficulty in env.unwrapped.presets or (None,)]
        env.close()
    return presets


def validate(
    game: Game, *, episodes: int = 100, seed: int = 0, search_steps: int = STEPS, search_seconds: float = SECONDS
) -> Validation:
    """Play with all baselines, and compare the results with the declared optimum and with earlier measurements.

    >>> found = validate(Game("TrlEnv/GuessNumber-v0", "easy"), episodes=20, search_steps=2_000)
    >>> found.problems, found.measured["solver"].success
    ((), 1.0)

    Args:
        game: Environment and preset.
        episodes: Number of episodes of each policy; all play the same ones.
        seed: Seed of the episodes.
        search_steps: Number of environment steps in the search for a blind policy; 0 for no search.
        search_seconds: Maximum seconds for this search.
    """
    env, problems = game.text_env(), []
    try:
        check_text_env(game.make, episodes=min(episodes, 20))
    except AssertionError as broken:
        problems.append(str(broken))
    best = optimum(env)
    measured = measure(game, episodes=episodes, seed=seed, split="eval")
    if best.success is not None:
        problems += _compare("solver", "optimum", measured["solver"], best.success, exact=True)
    for name, baseline in env.baselines.items():
        if baseline.measured is None:
            problems.append(f"{name} was never measured: gym-trl validate --measure")
        else:
            problems += _compare(name, "reference", measured[name], baseline.measured)
    if env.reward_modes[0] == "success":
        problems += _farmed(measured)
    key = Inspector(game.make, episodes=episodes, seed=seed).look_at("state key")
    if key.verdict is PROBLEM:
        problems.append(f"state key: {key.got}")
    blind = None
    if search_steps:
        blind = search_blind(
            _unchecked(game),
            steps=search_steps,
            seconds=search_seconds,
            episodes=EPISODES,
            seed=seed,
            extra=[one.actions for one in env.blind_baselines.values()],
        )
        problems += _beaten(env.blind_baselines, blind)
    return Validation(game, measured, best.success, tuple(problems), blind)


def _unchecked(game: Game) -> Callable[[], gym.Env[Any, Any]]:
    return partial(gym.make, game.env_id, disable_env_checker=True, **game.arguments)


def _beaten(published: dict[str, Blind], blind: BlindBaseline) -> list[str]:
    """Return a sentence if a blind policy is better than the published one by more than chance explains."""
    baseline = published.get(blind.objective)
    if baseline is None:
        return ["the blind baseline was never measured: gym-trl validate --measure"]
    if blind.score.low is None or blind.score.low <= baseline.high:
        return []
    interval = f"[{baseline.low:.3f}, {baseline.high:.3f}]"
    return [f"a blind policy {describe(blind)}; the published blind baseline's interval is {interval}"]


def on_all(function: Callable[[Game], _T], chosen: Sequence[Game], *, jobs: int = 1) -> Iterator[_T]:
    """Apply a function to environments in ``jobs`` processes, and yield the results in order.

    >>> list(on_all(lambda game: game.difficulty, games(["TrlEnv/GuessNumber-v0"])))
    ['easy', 'medium', 'hard']
    """
    if jobs == 1:
        yield from map(function, chosen)
        return
    # New interpreters, because some loaded libraries do not survive a fork.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_register) as pool:
        yield from pool.map(function, chosen)


def measure_blind(game: Game, *, episodes: int = 2000, steps: int = STEPS) -> dict[str, BlindBaseline]:
    """Search for the blind baselines of an environment, limited by steps only, so that the result is reproducible.

    >>> found = measure_blind(Game("TrlEnv/LightsOut-v0", "easy"), episodes=100, steps=3_000)["success"]
    >>> found.budget, found.episodes, found.cut
    (3000, 100, False)

    If the reward is not success, each gets a baseline of its own. Each of three searches has ``steps`` steps and
    different training seeds, and starts with the results of the earlier ones and with the published sequences. These
    stay unless a result is better on the same held-out episodes.
    """
    env = game.text_env()
    name = type(env).__name__
    most = _FEWER_STEPS_OF.get((name, str(game.difficulty)), _FEWER_STEPS.get(name, math.inf))
    budget = int(min(steps, most))
    episodes = int(min(episodes, max(100, most / 10)))
    objectives: list[Objective] = ["success"] if env.reward_modes[0] == "success" else ["success", "return"]
    sequences = [one.actions for one in env.blind_baselines.values()]
    published, measured = len(sequences), dict[tuple[str, ...], HeldOut]()
    baselines: dict[str, BlindBaseline] = {}
    for objective in objectives:
        for number in range(_ROUNDS):
            one = search_blind(
                _unchecked(game),
                steps=budget,
                seconds=math.inf,
                episodes=2,
                seed=number,
                objective=objective,
                extra=sequences,
            )
            sequences.append(one.actions)
        for actions in (*sequences[:published], one.actions):
            if actions not in measured:
                measured[actions] = play_blind(_unchecked(game), actions, episodes=episodes, seed=HELD_OUT_SEED)
        several = [replace(one, actions=actions, **reached._asdict()) for actions, reached in measured.items()]
        baselines[objective] = max(several, key=_level)
    return baselines


def _level(baseline: BlindBaseline) -> tuple[float, int]:
    return baseline.score.mean or 0.0, -len(baseline.actions)


def write_blind(path: Path, game: Game, baselines: dict[str, BlindBaseline]) -> None:
    """Write an environment's part of the table of ``TextEnv.blind_baselines``, by objective; all others are kept.

    A sequence that is kept keeps the steps and rounds of the search that found it.
    """
    table: dict[str, dict[str, Any]] = loads(read_text(path)) if path.exists() else {}
    presets, preset = table.setdefault(type(game.text_env()).__name__, {}), game.difficulty or "medium"
    now = {objective: {**_as_published(one), "rounds": _ROUNDS} for objective, one in baselines.items()}
    for one in now.values():
        for earlier in presets.get(preset, {}).values():
            if earlier["actions"] == one["actions"]:
                one |= {"steps": earlier["steps"], "rounds": earlier["rounds"]}
    presets[preset] = now
    replace_text(path, _lines(table))


def _as_published(baseline: BlindBaseline) -> dict[str, Any]:
    measured = Measured(
        baseline.success.mean or 0.0,
        baseline.mean_return.mean or 0.0,
        baseline.deviation,
        baseline.turns,
        baseline.episodes,
    )
    low, high = baseline.score.low or 0.0, baseline.score.high or 0.0
    numbers = {"low": round(low, 6), "high": round(high, 6), "steps": baseline.budget}
    return {"measured": _rounded(measured), **numbers, "actions": list(baseline.actions)}


def measure(game: Game, *, episodes: int, seed: int, split: str) -> dict[str, Measured]:
    """Play ``episodes`` of an environment with each of its baselines."""
    tasks = [Task(game.env_id, task_seed(seed, split, number)) for number in range(episodes)]
    names = [name for name in game.text_env().baselines if name != "blind" or split == "eval"]
    return {name: _measure(game, name, tasks) for name in names}


def write_measurements(path: Path, game: Game, measured: dict[str, Measured]) -> None:
    """Write an environment's part of the table of ``TextEnv.baselines``, by policy; all others are kept."""
    table: dict[str, dict[str, Any]] = loads(read_text(path)) if path.exists() else {}
    policies = {policy: _rounded(numbers) for policy, numbers in measured.items()}
    table.setdefault(type(game.text_env()).__name__, {})[game.difficulty or "medium"] = policies
    replace_text(path, _lines(table))


def _lines(table: dict[str, dict[str, Any]]) -> str:
    """Return the table as JSON with one line per policy, so that a changed number is a changed line."""
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


def _register() -> None:
    import gym_trl  # noqa: F401 -- registers the games


def _measure(game: Game, name: str, tasks: list[Task]) -> Measured:
    numbers = iter(range(len(tasks)))

    def policy_for(env: TextEnvironment) -> Policy:
        policy: Policy = baselines_of(env)[name].policy(derive_seed("baseline", next(numbers)))
        return policy

    results = play_tasks(lambda _: game.make(), tasks, policy_for)
    returns = [result.episode_return for result in results if result.episode_return is not None]
    if len(returns) < len(results):
        raise AssertionError(f"{game.env_id} raised in {len(results) - len(returns)} of {len(results)} episodes")
    return Measured(
        success=statistics.fmean(bool(result.success) for result in results),  # a TextEnv declares it
        mean_return=statistics.fmean(returns),
        deviation=statistics.pstdev(returns),
        turns=statistics.fmean(len(result.turns) for result in results),
        episodes=len(results),
    )


def _compare(name: str, what: str, now: Measured, then: Measured | float, *, exact: bool = False) -> list[str]:
    """Return a sentence for each number that differs from its reference by more than chance explains."""
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
    """Return a sentence for each policy that wins without playing."""
    chance = measured["random"]
    allowed = max(_ALWAYS_ALLOWED, chance.success + _ERRORS * _spread(chance.success) * math.sqrt(2 / chance.episodes))
    return [
        f"{name} wins {measured[name].success:.4g}, more than random play's {chance.success:.4g}"
        for name in _IDLE
        if measured[name].success > allowed
    ]
