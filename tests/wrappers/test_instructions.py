from typing import Any

import gymnasium as gym
import pytest

from gym_trl.envs.echo import Echo
from gym_trl.spaces import AnyText
from gym_trl.text.discovery import description
from gym_trl.wrappers import Instructions, ParseAction, TurnLimit, as_text
from gym_trl.wrappers.base import instructions_of


def test_they_stand_instead_of_the_environments_own_or_below_them() -> None:
    own = Echo().instructions
    assert Instructions(Echo(), "Play.").instructions == "Play."
    assert Instructions(Echo(), "Play.", append=True).instructions == f"{own}\nPlay."
    assert Instructions(Instructions(Echo(), ""), "Play.", append=True).instructions == "Play."


def test_the_sentence_of_a_format_is_added_to_them() -> None:
    env = ParseAction(Instructions(Echo(), "Play."), format="plain")
    assert env.instructions == "Play. Answer with your action alone."


class Asked(gym.Wrapper[str, str, str, str]):
    """Wrapper that counts how often its instructions are read."""

    times = 0

    @property
    def instructions(self) -> str:
        self.times += 1
        return instructions_of(self.env)


def test_they_are_read_once_through_any_number_of_wrappers() -> None:
    layers = [Asked(gym.make("TrlEnv/Echo-v0"))]
    for _ in range(3):
        layers.append(Asked(gym.wrappers.TimeLimit(layers[-1], 9)))
    assert instructions_of(layers[-1]) == Echo().instructions
    assert [layer.times for layer in layers] == [1, 1, 1, 1]


class Mesh(gym.Env[Any, Any]):
    """Solver of the finite element mesh."""

    def __init__(self, space: gym.Space[Any]) -> None:
        self.observation_space = self.action_space = space


@pytest.mark.parametrize("space", [AnyText(), gym.spaces.Discrete(3), gym.spaces.Dict(at=gym.spaces.Discrete(3))])
@pytest.mark.parametrize("wrap", [lambda env: env, TurnLimit, gym.wrappers.OrderEnforcing])
def test_a_docstring_is_never_the_instructions_of_a_users_environment(space: Any, wrap: Any) -> None:
    env = Mesh(space)
    assert "Solver" in description(env)
    assert "Solver" not in instructions_of(ParseAction(as_text(wrap(env, 9) if wrap is TurnLimit else wrap(env))))
    env.instructions = "Refine the mesh."  # type: ignore[attr-defined]
    assert instructions_of(ParseAction(as_text(env))).startswith("Refine the mesh.")


@pytest.mark.parametrize("env_id", ["FrozenLake-v1", "CartPole-v1", "Blackjack-v1", "Taxi-v4"])
def test_gymnasiums_own_environments_have_the_rules_that_it_publishes(env_id: str) -> None:
    env: Any = gym.make(env_id)
    for one in (env, TurnLimit(env, 9), as_text(env), Instructions(env, "Think.", append=True)):
        assert instructions_of(one).startswith(description(env))


def test_an_environment_of_numbers_can_have_some() -> None:
    env: Any = Instructions(gym.make("FrozenLake-v1"), "Cross the lake.")
    assert env.reset(seed=0)[0] == 0
    assert env.instructions == "Cross the lake."
