import math
from typing import Any

import gymnasium as gym
import pytest

from gym_trl.envs.echo import Echo
from gym_trl.envs.guess_number import GuessNumber
from gym_trl.episode import Episode, Limits
from gym_trl.evaluation import Exchange, Result, Score, optimum, play_policy, play_task, random_score
from gym_trl.pool import InlinePool
from gym_trl.rollout import run_episodes
from gym_trl.spaces import AnyText
from gym_trl.testing import ByteChat, ScriptedEngine
from gym_trl.types import Task

GUESS = [Task("TrlEnv/GuessNumber-v0", seed, {"instance": seed}) for seed in range(50)]


class Bare(gym.Env[str, str]):
    """What somebody else wrote: text, and nothing that this library adds."""

    def __init__(self, turns: float = 1) -> None:
        self.observation_space, self.action_space = AnyText(), AnyText()
        self.turns = turns

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self.left = self.turns
        return "Go.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if action == "raise":
            raise RuntimeError("it broke")
        self.left -= 1
        return "On.", 1.0, self.left == 0 and action == "win", self.left == 0 and action != "win", {}


def bare(env_id: str = "Bare-v0") -> Bare:
    return Bare()


BARE = [Task("Bare-v0", seed) for seed in range(4)]


def test_the_solver_reaches_the_optimum() -> None:
    score = play_policy(gym.make, GUESS, lambda env: env.get_wrapper_attr("solver")())
    assert (score.success, score.mean_return, score.episodes, score.unscored) == (1.0, 1.0, 50, 0)
    assert score.turns == pytest.approx(4.86)
    assert optimum(GuessNumber()) == (1.0, 1.0)
    assert optimum(GuessNumber(turns=5)) == (0.62, 0.62)


def test_random_play_is_as_good_as_chance_and_repeats_itself() -> None:
    score = random_score(gym.make, GUESS * 20, seed=1)
    assert score is not None
    chance = 1 - (49 / 50) ** 6
    assert score.success == pytest.approx(chance, abs=4 * math.sqrt(chance * (1 - chance) / score.episodes))
    assert score == random_score(gym.make, GUESS * 20, seed=1) != random_score(gym.make, GUESS * 20, seed=2)


def test_an_environment_that_knows_no_random_policy_has_no_random_score() -> None:
    assert random_score(bare, BARE) is None
    assert optimum(Bare()) == (None, None)


def test_success_is_judged_as_in_training() -> None:
    won = play_policy(bare, BARE, lambda env: lambda observation: "win")
    truncated = play_policy(bare, BARE, lambda env: lambda observation: "lose")
    assert (won.success, truncated.success, truncated.mean_return) == (1.0, 0.0, 1.0)


def test_an_environment_that_raises_has_an_episode_without_a_score() -> None:
    words = iter(["win", "raise", "win", "win"])
    score = play_policy(bare, BARE, lambda env: lambda observation: next(words))
    assert (score.episodes, score.unscored, score.success) == (3, 1, 1.0)


def test_an_environment_that_raised_is_not_played_again() -> None:
    made: list[Bare] = []

    class Closing(Bare):
        def close(self) -> None:
            closed.append(made.index(self))
            raise RuntimeError("and it does not close")

    def make(env_id: str) -> Bare:
        made.append(Closing() if not made else Bare())
        return made[-1]

    words = iter(["raise", "win", "win", "win"])
    used: list[int] = []
    closed: list[int] = []

    def policy_for(env: Any) -> Any:
        used.append(made.index(env))
        return lambda observation: next(words)

    play_policy(make, BARE, policy_for)
    assert (used, closed) == ([0, 1, 1, 1], [0])


def test_what_an_environment_raises_is_the_last_of_the_exchanges() -> None:
    words = iter(["a", "raise"])
    first, error = play_task(Bare(turns=9), BARE[0], lambda env: lambda observation: next(words))
    assert isinstance(first, Exchange)
    assert first.action == "a"
    assert str(error) == "it broke"


def test_an_episode_that_does_not_end_has_no_score() -> None:
    score = play_policy(lambda _: Bare(turns=math.inf), BARE[:1], lambda env: lambda observation: "on")
    assert (score.episodes, score.unscored, score.success, score.turns) == (0, 1, None, None)


def test_a_models_trajectories_score_like_the_same_policy_played_directly() -> None:
    chat = ByteChat()
    tasks = [Task("TrlEnv/Echo-v0", seed) for seed in range(5)]
    engine = ScriptedEngine(lambda request: chat.say("aaaaa"))
    episodes = [Episode(task, chat=chat, limits=Limits(tokens_per_turn=9)) for task in tasks]
    with InlinePool(gym.make) as pool:
        trajectories = run_episodes(episodes, pool=pool, engine=engine)
    direct = play_policy(lambda _: Echo(), tasks, lambda env: lambda observation: "aaaaa")
    results = [Result(one.episode_return, one.success, len(one.turns), one.invalid_actions) for one in trajectories]
    assert Score.of(results) == direct
