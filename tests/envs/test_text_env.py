"""A text game is its instructions, its start and its actions; everything else is an extra."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from gym_trl.envs.text_env import Outcome, TextEnv
from gym_trl.errors import ConfigError
from gym_trl.evaluation.play import optimum, play_tasks, random_reference
from gym_trl.policies.functions import environment_policy
from gym_trl.policies.interactive import InteractiveEpisode
from gym_trl.testing import check_text_env
from gym_trl.types import Task


class Coin(TextEnv):
    """Call the coin."""

    instructions = "Call the coin: heads or tails."

    def _start(self, instance: int | None, options: Mapping[str, Any]) -> str:
        self.side = str(self.np_random.choice(["heads", "tails"]))
        return "It is in the air."

    def _act(self, action: str) -> Outcome:
        if action not in ("heads", "tails"):
            return self._reject("Heads or tails?")
        return Outcome(self.side, done=True, success=action == self.side)


class Listing(Coin):
    def admissible_actions(self) -> list[str]:
        return ["heads", "tails"]


class Stubborn(Coin):
    constant_action = "heads"


TASKS = [Task("Coin", seed) for seed in range(20)]


@pytest.mark.parametrize("game", [Coin, Listing, Stubborn])
def test_a_game_with_no_extra_keeps_every_promise(game: type[Coin]) -> None:
    check_text_env(game)


def test_what_a_game_does_not_have_it_does_not_offer() -> None:
    env = Coin()
    assert not any(env.has_wrapper_attr(name) for name in ("solver", "random_policy"))
    assert sorted(env.baselines) == ["garbage", "noop"]
    assert sorted(Listing().baselines) == ["garbage", "noop", "random"]
    assert sorted(Stubborn().baselines) == ["constant", "garbage", "noop", "random"]
    assert optimum(env) == (None, None)
    assert random_reference(lambda _: Coin(), "Coin") is None
    played = play_tasks(lambda _: Listing(), TASKS, lambda env: env.random_policy(0))  # type: ignore[attr-defined]
    assert 0 < sum(one.success is True for one in played) < len(played)


def test_an_action_that_cannot_be_played_costs_nothing_by_default() -> None:
    env = Coin()
    env.reset(seed=0)
    assert env.step("edge")[:4] == ("Heads or tails?", 0.0, False, False)
    assert env.step("tails")[1:3] == (1.0, True)


def test_an_extra_that_is_asked_for_and_absent_is_named() -> None:
    said = r"Coin has no policy 'solver'; it has garbage, noop, random, .*a method solver\(\)"
    with pytest.raises(ConfigError, match=said):
        environment_policy("solver").check(Coin())


def test_every_game_can_be_played_at_random() -> None:
    env = Coin()
    environment_policy("random").check(env)
    observation, _ = env.reset(seed=0)
    assert environment_policy("random").make(env, 0)(observation) in env.action_space


def test_a_misspelt_policy_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="has no policy 'randon'; did you mean 'random'"):
        environment_policy("randon").check(Listing())


def test_a_game_without_a_solver_gives_no_hint() -> None:
    game = InteractiveEpisode(Coin, seed=0)
    game.start()
    assert game.hint() is None


class Dealt(Coin):
    """One of two coins, whose side is its number, or drawn for the second."""

    num_instances = 2

    def _start(self, instance: int | None, options: Mapping[str, Any]) -> str:
        draw = self.np_random.choice
        self.side = str(draw(["heads", "tails"])) if instance else "heads"
        return "It is in the air."


def test_a_task_is_named_where_its_number_alone_decides_which_game_it_is() -> None:
    env = Dealt()
    named = [(env.reset(seed=0, options={"instance": instance}), env.task_key)[1] for instance in (0, 1, 0)]
    assert named == [(0,), None, (0,)]


def test_the_only_game_of_its_kind_is_dealt_without_a_draw() -> None:
    env = Dealt()
    env.num_instances = 1
    env.reset(seed=0)
    assert env.np_random.random() == np.random.default_rng(0).random()


def test_the_generator_can_be_replaced() -> None:
    env = Coin()
    env.np_random = np.random.default_rng(5)
    env.reset()
    assert env.side == np.random.default_rng(5).choice(["heads", "tails"])
