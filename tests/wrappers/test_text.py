"""Any environment in words: each id of Gymnasium's own, and what users say themselves."""

import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import OrderEnforcing, TransformObservation

from gym_trl.errors import ConfigError, NotTextError
from gym_trl.wrappers import TextAction, TextObservation, as_text
from gym_trl.wrappers.as_text import changed_by


def can_be_made(env_id):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            gym.make(env_id).close()
        except (ImportError, gym.error.Error):
            return False
    return True


FOREIGN = [
    env_id for env_id in sorted(gym.registry) if not env_id.startswith(("TrlEnv/", "External/")) and can_be_made(env_id)
]


class Picture(gym.Env):
    observation_space = spaces.Box(0, 255, (64, 64, 3), dtype=np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.low, {"hint": "dark"}

    def step(self, action):
        return self.observation_space.low, 1.0, True, True, {"action_mask": np.array([1, 0])}


class Drawn(Picture):
    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012
    render_mode: str | None = None

    def render(self):
        return "\x1b[31m#\x1b[0m.\n"


def test_several_of_gymnasiums_own_are_tried():
    assert {"FrozenLake-v1", "Taxi-v4", "CliffWalking-v1", "Blackjack-v1", "CartPole-v1", "Pendulum-v1"} <= {*FOREIGN}


@pytest.mark.parametrize("env_id", FOREIGN)
@pytest.mark.filterwarnings("ignore:.*")
def test_every_id_takes_a_hundred_random_actions_in_words(env_id):
    env = as_text(gym.make(env_id))
    policy = env.get_wrapper_attr("random_policy")(0)
    observation, _ = env.reset(seed=0)
    for _ in range(100):
        assert observation in env.observation_space
        observation, reward, terminated, truncated, info = env.step(policy(observation))
        assert info["action_valid"]
        assert not (terminated and truncated)
        assert np.isfinite(float(reward))
        if terminated or truncated:
            observation, _ = env.reset()
    env.close()


@pytest.mark.parametrize("env_id", ["FrozenLake-v1", "Taxi-v4", "CliffWalking-v1"])
@pytest.mark.parametrize("observe", [None, "render"])
def test_states_that_differ_are_shown_by_texts_that_differ(env_id, observe):
    """Law 25."""

    class At(gym.Wrapper):
        def reset(self, *, seed=None, options=None):
            self.env.reset(seed=seed)
            game: Any = self.unwrapped
            game.s, game.lastaction = options["state"], None
            return options["state"], {}

    env: Any = as_text(At(gym.make(env_id)), observe=observe)
    states = range(env.unwrapped.observation_space.n)
    assert len({env.reset(options={"state": state})[0] for state in states}) == len(states)


def test_an_environment_that_speaks_text_is_returned_as_it_is():
    env = gym.make("TrlEnv/Echo-v0")
    assert as_text(env) is env


def test_words_that_are_no_action_do_not_reach_the_environment():
    env = as_text(gym.make("FrozenLake-v1", is_slippery=False))
    first, _ = env.reset(seed=0)
    said, reward, terminated, truncated, info = env.step("swim")
    assert said == "Not an action. Answer with Move left, Move down, Move right or Move up."
    assert (reward, terminated, truncated, info["action_valid"]) == (0.0, False, False, False)
    assert env.step("Move up")[0] == first


def test_users_functions_come_first():
    def act(words):
        if words != "bang":
            raise ValueError("Say bang.")
        return 1

    env = as_text(Picture(), observe=lambda picture, info: f"{picture.shape} {info.get('hint')}", act=act)
    assert env.reset()[0] == "(64, 64, 3) dark"
    assert env.step("boo")[0] == "Say bang."
    assert env.step("bang")[4]["action_valid"]


def test_what_has_no_words_is_refused_with_what_to_do():
    with pytest.raises(NotTextError):
        as_text(Picture())


def test_a_rendering_is_shown_only_where_it_is_asked_for():
    assert as_text(Drawn(), observe="render").reset()[0] == "[#|red]."
    with pytest.raises(NotTextError):
        as_text(Drawn())
    hidden = Drawn()
    hidden.render_mode = "human"
    for env, observe in ((Picture(), "render"), (hidden, "render"), (Drawn(), 5)):
        with pytest.raises(ConfigError):
            as_text(env, observe=observe)  # type: ignore[arg-type]


class Secret(gym.Env):
    """Shows a number, and draws a secret for whoever debugs it."""

    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012
    render_mode = None
    observation_space = spaces.Discrete(3, start=7)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return 8, {}

    def step(self, action):
        return 9, 0.0, False, False, {}

    def render(self):
        return "the secret is 42"


def test_a_debug_rendering_is_not_shown():
    env = as_text(Secret())
    assert (env.reset()[0], env.step("0")[0]) == ("8", "9")


@pytest.mark.parametrize("env_id", ["FrozenLake-v1", "Taxi-v4", "CliffWalking-v1", "Blackjack-v1"])
@pytest.mark.parametrize("space", [None, spaces.Discrete(1), spaces.Discrete(1000)])
def test_a_wrapper_that_changes_observations_is_never_undone(env_id, space):
    env = gym.make(env_id)
    zero = (0, 0, 0) if env_id == "Blackjack-v1" and space is None else 0
    changed = TransformObservation(env, lambda observation: zero, space or env.observation_space)
    text = as_text(changed)
    assert (text.reset(seed=0)[0], text.step("0")[0]) == (("[0, 0, 0]",) * 2 if zero else ("0", "0"))
    with pytest.raises(ConfigError):
        as_text(changed, observe="render")


def test_names_of_fields_are_not_given_to_what_a_wrapper_made_of_them():
    env = gym.make("CartPole-v1")
    turned = TransformObservation(env, lambda fields: fields[::-1], env.observation_space)
    assert len(as_text(turned).reset(seed=0)[0].split()) == 4


class Anew(Secret):
    """Makes its space anew whenever it is asked."""

    @property
    def observation_space(self):  # type: ignore[override]
        return spaces.Discrete(3, start=7)


def test_a_space_that_is_made_anew_each_time_is_the_environments_own():
    assert changed_by(OrderEnforcing(Anew())) == ""
    assert as_text(OrderEnforcing(Anew()), observe="render").reset()[0] == "the secret is 42"


def test_masks_become_the_names_of_what_is_allowed():
    env = as_text(gym.make("Taxi-v4"))
    _, info = env.reset(seed=0)
    allowed = [name for name, bit in zip(env.get_wrapper_attr("names"), info["action_mask"], strict=True) if bit]
    assert info["admissible_actions"] == allowed


@pytest.mark.parametrize("names", [("left",), ("a", "b", "c", "a"), ("a", " a", "b", "c")])
def test_names_that_do_not_tell_the_actions_apart_are_refused(names):
    with pytest.raises(ConfigError):
        TextAction(gym.make("FrozenLake-v1"), names=names)


def test_specs_rebuild_both_wrappers():
    env: Any = as_text(gym.make("CartPole-v1"))
    again: Any = gym.make(env.spec)
    assert again.get_wrapper_attr("instructions") == env.get_wrapper_attr("instructions")
    assert again.reset(seed=1) == env.reset(seed=1)
    assert isinstance(again.env, TextObservation)
