"""Any environment in words: each id of Gymnasium's own, what users say themselves, rules and lists of actions."""

import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import OrderEnforcing, TransformAction, TransformObservation
from hypothesis import given, strategies as st

from gym_trl.envs.echo import Echo
from gym_trl.envs.guess_number import GuessNumber
from gym_trl.errors import ConfigError, NotTextError
from gym_trl.random_play import random_play
from gym_trl.spaces import AnyText
from gym_trl.text.discovery import published_rules
from gym_trl.wrappers import AdmissibleActions, Instructions, ParseAction, TurnLimit, as_text
from gym_trl.wrappers.admissible_actions import listed_actions
from gym_trl.wrappers.as_text import changed_by
from gym_trl.wrappers.base import instructions_of


def can_be_made(env_id: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            gym.make(env_id).close()
        except (ImportError, gym.error.Error):
            return False
    return True


TOY = [
    max(env_id for env_id in gym.registry if env_id.startswith(name))
    for name in ("FrozenLake-", "Taxi-", "CliffWalking-")
]
FOREIGN = [
    env_id
    for env_id, spec in sorted(gym.registry.items())
    if str(spec.entry_point).startswith("gymnasium.") and can_be_made(env_id)
]
assert {*TOY, "Blackjack-v1", "CartPole-v1", "Pendulum-v1"} <= {*FOREIGN}


class Picture(gym.Env[Any, Any]):
    observation_space: Any = spaces.Box(0, 255, (64, 64, 3), dtype=np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.low, {"hint": "dark"}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.low, 1.0, True, True, {}


class Secret(Picture):
    """Shows a number, by a space that is made anew each time, and draws a secret for whoever debugs it."""

    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012
    render_mode: str | None = None

    @property
    def observation_space(self) -> Any:  # type: ignore[override]
        return spaces.Discrete(3, start=7)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return 8, {}

    def render(self) -> Any:
        return "\x1b[31mthe secret is 42\x1b[0m\n"


@pytest.mark.parametrize("env_id", FOREIGN)
@pytest.mark.filterwarnings("ignore:.*")
def test_every_id_takes_a_hundred_random_actions_in_words(env_id: str) -> None:
    env = as_text(gym.make(env_id))
    observation, info = env.reset(seed=0)
    act = random_play(env, 0)
    for _ in range(100):
        assert observation in env.observation_space
        observation, reward, terminated, truncated, info = env.step(act(observation, info))
        assert info["action_valid"]
        assert not (terminated and truncated)
        assert np.isfinite(float(reward))
        if terminated or truncated:
            observation, info = env.reset()
    env.close()


@pytest.mark.parametrize("env_id", TOY)
@pytest.mark.parametrize("observe", [None, "render"])
def test_states_that_differ_are_shown_by_texts_that_differ(env_id: str, observe: Any) -> None:
    """Law 25."""

    class At(gym.Wrapper[Any, Any, Any, Any]):
        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            self.env.reset(seed=seed)
            game: Any = self.unwrapped
            game.s, game.lastaction = options["state"], None
            return options["state"], {}

    env: Any = as_text(At(gym.make(env_id)), observe=observe)
    states = range(env.unwrapped.observation_space.n)
    assert len({env.reset(options={"state": state})[0] for state in states}) == len(states)


@pytest.mark.parametrize("env_id", [*TOY, "Blackjack-v1"])
@pytest.mark.parametrize("space", [None, spaces.Discrete(1), spaces.Discrete(1000)])
def test_a_wrapper_that_changes_observations_is_never_undone(env_id: str, space: Any) -> None:
    """Law 25."""
    env: Any = gym.make(env_id)
    assert published_rules(env)
    zero = (0, 0, 0) if env_id == "Blackjack-v1" and space is None else 0
    changed = TransformObservation(env, lambda observation: zero, space or env.observation_space)
    text = as_text(changed)
    assert (text.reset(seed=0)[0], text.step("0")[0]) == (("[0, 0, 0]",) * 2 if zero else ("0", "0"))
    with pytest.raises(ConfigError):
        as_text(changed, observe="render")
    pole: Any = gym.make("CartPole-v1")
    turned = as_text(TransformObservation(pole, lambda fields: fields[::-1], pole.observation_space))
    assert len(turned.reset(seed=0)[0].split()) == 4  # without the names of fields


def test_an_environment_that_speaks_text_is_returned_as_it_is() -> None:
    env = gym.make("TrlEnv/Echo-v0")
    assert as_text(env) is env


def test_words_that_are_no_action_do_not_reach_the_environment() -> None:
    env: Any = as_text(gym.make("FrozenLake-v1", is_slippery=False))
    first, _ = env.reset(seed=0)
    said, reward, terminated, truncated, info = env.step("swim")
    assert "Move up" in said
    assert (reward, terminated, truncated, info["action_valid"]) == (0.0, False, False, False)
    assert env.step("Move up")[0] == first


def test_users_functions_come_first() -> None:
    def act(words: str) -> int:
        if words != "bang":
            raise ValueError("Say bang.")
        return 1

    env = as_text(Picture(), observe=lambda picture, info: f"{picture.shape} {info.get('hint')}", act=act)
    assert env.reset()[0] == "(64, 64, 3) dark"
    assert env.step("boo")[0] == "Say bang."
    assert env.step("bang")[4]["action_valid"]


def test_a_rendering_is_shown_only_where_it_is_asked_for_and_can_be() -> None:
    assert as_text(OrderEnforcing(Secret()), observe="render").reset()[0] == "[the secret is 42|red]"
    assert changed_by(OrderEnforcing(Secret())) == ""
    assert as_text(Secret()).reset()[0] == "8"
    hidden = Secret()
    hidden.render_mode = "human"
    observe: Any
    for env, observe in ((Picture(), "render"), (hidden, "render"), (Secret(), 5)):
        with pytest.raises(ConfigError):
            as_text(env, observe=observe)
    with pytest.raises(NotTextError):
        as_text(Picture())


# ---------------------------------------------------------------------------------------------------------------------
# Lists of actions
# ---------------------------------------------------------------------------------------------------------------------


class Door(gym.Env[str, str]):
    """Says in ``info`` what it is told to say; the second action ends it."""

    observation_space = AnyText(20)
    action_space = AnyText(20)

    def __init__(self, info: dict[str, Any]) -> None:
        self.info = info

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = 2
        return "A door.", self.info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return f"You {action}.", 1.0, not self.left, not self.left, self.info


@pytest.mark.parametrize(
    "info",
    [
        {"admissible_actions": ["open", "go in"]},
        {"admissible_commands": ("open", "go in")},
        {"valid_actions": np.array(["open", "go in"])},
        {"available_actions": ["open", "go in"], "secret": "key"},
    ],
)
def test_what_is_listed_is_said_below_every_observation_but_the_last(info: dict[str, Any]) -> None:
    env = AdmissibleActions(Door(info))
    assert env.reset()[0] == "A door.\nPossible actions: open, go in"
    assert env.step("open")[0] == "You open.\nPossible actions: open, go in"
    assert env.step("wait")[:4] == ("You wait.", 1.0, True, False)


@pytest.mark.parametrize("info", [{}, {"admissible_actions": []}, {"valid_actions": "all"}, {"action_mask": [1, 1]}])
def test_nothing_is_said_where_nothing_is_listed(info: dict[str, Any]) -> None:
    assert AdmissibleActions(Door(info)).reset()[0] == "A door."


def test_masks_are_said_with_the_names_of_the_actions_or_their_numbers_and_sets_in_one_order() -> None:
    env = AdmissibleActions(as_text(gym.make(TOY[1])))
    observation, info = env.reset(seed=0)
    names = env.get_wrapper_attr("names")
    allowed = [name for name, bit in zip(names, info["action_mask"], strict=True) if bit]
    assert info["admissible_actions"] == allowed
    assert observation.endswith(f"Possible actions: {', '.join(allowed)}")
    numbered: Any = TransformAction(Door({}), str, spaces.Discrete(3, start=4))
    assert listed_actions(numbered, {"action_mask": np.array([1, 0, 1])}) == ["4", "6"]
    assert listed_actions(Door({}), {"valid_actions": {"b", "c", "a"}}) == ["a", "b", "c"]


@given(st.lists(st.text(min_size=1) | st.integers(1, 3000).map("x".__mul__), min_size=1))
def test_a_list_that_is_too_long_is_cut_between_two_actions_and_counted(actions: list[str]) -> None:
    env = AdmissibleActions(Door({"admissible_actions": actions}))
    observation = env.reset()[0]
    assert observation in env.observation_space
    shown = observation.removeprefix("A door.\nPossible actions: ")
    fitting = [count for count in range(len(actions) + 1) if shown.startswith(", ".join(actions[:count]))][-1]
    assert shown == ", ".join(actions) or shown.endswith(f" and {len(actions) - fitting} more")
    assert len(", ".join(actions)) > 1990 or shown == ", ".join(actions)


# ---------------------------------------------------------------------------------------------------------------------
# Rules
# ---------------------------------------------------------------------------------------------------------------------


def test_instructions_stand_instead_of_the_environments_own() -> None:
    assert Instructions(Echo(), "Play.").instructions == "Play."
    assert ParseAction(Instructions(Echo(), "Play."), "plain").instructions.startswith("Play. ")
    assert Instructions(gym.make("FrozenLake-v1"), "Cross the lake.").instructions == "Cross the lake."


class Asked(gym.Wrapper[str, str, str, str]):
    """Wrapper that counts how often its instructions are read."""

    times = 0

    @property
    def instructions(self) -> str:
        self.times += 1
        return instructions_of(self.env)


def test_instructions_are_read_once_through_any_number_of_wrappers() -> None:
    layers = [Asked(GuessNumber())]
    for _ in range(3):
        layers.append(Asked(gym.wrappers.TimeLimit(layers[-1], 9)))
    assert instructions_of(layers[-1]) == GuessNumber().instructions
    assert [layer.times for layer in layers] == [1, 1, 1, 1]


class Mesh(gym.Env[Any, Any]):
    """Solver of the finite element mesh."""

    def __init__(self, space: gym.Space[Any]) -> None:
        self.observation_space = self.action_space = space


@pytest.mark.parametrize("space", [AnyText(), spaces.Discrete(3), spaces.Dict(at=spaces.Discrete(3))])
@pytest.mark.parametrize("wrap", [lambda env: env, lambda env: TurnLimit(env, 9), OrderEnforcing])
def test_a_docstring_is_never_the_instructions_of_a_users_environment(space: Any, wrap: Any) -> None:
    env: Any = Mesh(space)
    assert "Solver" in (Mesh.__doc__ or "")
    assert "Solver" not in instructions_of(ParseAction(as_text(wrap(env))))
    env.instructions = "Refine the mesh."
    assert instructions_of(ParseAction(as_text(wrap(env)))).startswith("Refine the mesh.")


@pytest.mark.parametrize("env_id", [*TOY, "CartPole-v1", "Blackjack-v1"])
def test_gymnasiums_own_environments_have_the_rules_that_it_publishes(env_id: str) -> None:
    env: Any = gym.make(env_id)
    assert published_rules(env)
    for one in (env, TurnLimit(env, 9), as_text(env)):
        assert instructions_of(one).startswith(published_rules(env))
