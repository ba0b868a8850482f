import enum
from typing import Any

import gymnasium as gym
import pytest
from gymnasium import spaces

from gym_trl.text.discovery import action_names, field_names, marks, published_rules


class Moves(enum.IntEnum):
    LEFT = 0
    RIGHT = 1


class Bare(gym.Env):
    observation_space = spaces.Discrete(2)
    action_space = spaces.Discrete(2)


class Asked(Bare):
    def get_action_meanings(self):
        return ["NOOP", "FIRE"]


class Enumerated(Bare):
    actions = Moves


class Members(Bare):
    actions = (Moves.LEFT, Moves.RIGHT)


class Listed(Bare):
    ACTIONS = ("up", "down")


class Described(Bare):
    """A game.

    ## Action Space
    | Num | Action |
    |-----|--------|
    | 0   | open   |
    | 1   | shut (softly) |

    ## Rewards
    - 0: nothing
    """


class Miscounted(Bare):
    ACTIONS = ("up", "down", "left")


class Repeated(Bare):
    ACTIONS = ("up", "UP")


@pytest.mark.parametrize(
    ("env", "names"),
    [
        (Asked, ("NOOP", "FIRE")),
        (Enumerated, ("LEFT", "RIGHT")),
        (Members, ("LEFT", "RIGHT")),
        (Listed, ("up", "down")),
        (Described, ("open", "shut")),
        (Bare, ()),
        (Miscounted, ()),
        (Repeated, ()),
    ],
)
def test_names_of_actions_are_found_where_they_are_told(env, names):
    assert action_names(env()) == names


@pytest.mark.parametrize("env_id", ["Acrobot-v1", "Blackjack-v1", "CartPole-v1", "CliffWalking-v1", "FrozenLake-v1"])
def test_gymnasiums_own_games_tell_the_names_of_their_actions(env_id):
    env: Any = gym.make(env_id)
    assert len(action_names(env)) == env.action_space.n


def test_fields_are_named_only_where_all_of_them_are():
    assert len(field_names(gym.make("MountainCar-v0"))) == 2
    assert field_names(gym.make("FrozenLake-v1")) == ()


def test_the_docstring_of_an_environment_of_ones_own_is_never_shown():
    assert published_rules(Bare()) == published_rules(Described()) == ""


def test_colours_tell_the_states_of_the_frozen_lake_apart():
    env: Any = gym.make("FrozenLake-v1", render_mode="ansi")
    env.reset(seed=0)
    shown = set()
    for square in range(16):
        env.unwrapped.s = square
        shown.add(marks(env.render()))
    assert len(shown) == 16


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("plain", "plain"),
        ("\x1b[31mred\x1b[0m", "[red|red]"),
        ("\x1b[1;97;44mx\x1b[m", "[x|white on blue]"),
        ("\x1b[7mx", "[x|reversed]"),
        ("\x1b[31ma\nb\x1b[0m", "[a|red]\n[b|red]"),
        ("\x1b[2J\x1b[Hhome\x07", "home"),
        ("\x1b[41m \x1b[0m", "[ |on red]"),
    ],
)
def test_colours_become_words_and_other_codes_go(text, words):
    assert marks(text) == words
