from typing import Any

import gymnasium as gym
import pytest
from support.java import needs_java, play_solver

import gym_trl  # noqa: F401 -- registers the ids
from gym_trl.errors import ConfigError

pytest.importorskip("textworld_express", reason="TextWorldExpress is not installed")
pytestmark = [
    pytest.mark.external,
    needs_java,
]

make: Any = gym.make  # whose type knows only its own arguments
GAMES = ("arithmetic", "coin", "cookingworld", "mapreader", "peckingorder", "simonsays", "sorting", "twc")


@pytest.fixture(scope="module", autouse=True)
def open_java():
    """One that stays from game to game, because starting it takes seconds."""
    env = make("External/TextWorldExpress-v0", game="coin")
    yield
    env.close()


@pytest.mark.parametrize("fold", ["train", "test"])
@pytest.mark.parametrize("game", GAMES)
def test_the_solver_scores_one_in_every_game_and_fold(game, fold):
    env = make("External/TextWorldExpress-v0", game=game, fold=fold)
    for number in (0, 999):
        _, total, info = play_solver(env, instance=number)
        assert info["success"]
        assert total == pytest.approx(1.0)
    env.close()


def test_what_was_paid_is_not_paid_again_after_it_was_undone():
    env = make("External/TextWorldExpress-v0", game="twc")
    shown, _ = env.reset(seed=1)
    solver, action, paid = env.unwrapped.solver(), "", []
    while not action.startswith("put "):
        action = solver(shown)
        shown, reward, _, _, info = env.step(action)
    thing = action.removeprefix("put ").partition(" in ")[0]
    for _ in range(2):
        (undo,) = [listed for listed in info["admissible_actions"] if listed.startswith(f"take {thing}")]
        *_, info = env.step(undo.upper())
        assert info["action_valid"]
        _, again, _, _, info = env.step(action)
        assert info["action_valid"]
        paid.append(again)
    assert reward > 0
    assert paid == [0.0, 0.0]
    env.close()


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"game": "chess"}, r"TextWorldExpress has no game 'chess'; it has \['arithmetic'"),
        ({"game": "coin", "fold": "valid"}, r"fold must be one of \['train', 'dev', 'test'\], got 'valid'"),
        ({"game": "coin", "rooms": 3}, r"cannot make coin with {'rooms': 3}: Unrecognized property name \(rooms\)"),
    ],
)
def test_what_does_not_exist_is_said(kwargs, words):
    with pytest.raises(ConfigError, match=words):
        make("External/TextWorldExpress-v0", **kwargs)
