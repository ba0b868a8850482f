"""A text game is its presets, its rules and its texts; everything else is an extra."""

from typing import ClassVar

import numpy as np
import pytest

from gym_trl.envs.text_game import Step, TextGame
from gym_trl.errors import ConfigError
from gym_trl.evaluation import evaluate
from gym_trl.testing import check_text_env


class Coin(TextGame):
    """Call the coin."""

    presets: ClassVar = {"medium": {"turns": 2}}
    instructions = "Call the coin: heads or tails."

    def deal(self) -> None:
        self.side = str(self.np_random.choice(["heads", "tails"]))

    def look(self) -> str:
        return "It is in the air."

    def play(self, action: str) -> Step:
        return (
            self.turn(success=action == self.side) if action in ("heads", "tails") else self.reject("Heads or tails?")
        )


class Listing(Coin):
    def legal(self) -> list[str]:
        return ["heads", "tails"]


@pytest.mark.parametrize("game", [Coin, Listing])
def test_a_game_with_no_extra_keeps_every_promise(game: type[Coin]) -> None:
    check_text_env(game)


def test_what_a_game_does_not_have_it_does_not_offer() -> None:
    env = Coin()
    assert not any(env.has_wrapper_attr(name) for name in ("solver", "random_policy", "state_key"))
    with pytest.raises(ConfigError):
        evaluate(Coin, model="solver", episodes=2)
    [row] = evaluate(Listing, model="random", episodes=20, references=()).scores
    assert 0.0 < row.mean().mean < 1.0


def test_the_generator_can_be_replaced_and_the_only_game_of_its_kind_is_dealt_without_a_draw() -> None:
    env = Coin()
    env.np_random = np.random.default_rng(5)
    env.reset()
    assert env.side == np.random.default_rng(5).choice(["heads", "tails"])
