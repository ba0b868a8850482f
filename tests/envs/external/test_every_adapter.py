"""Requirements of every adapter to other people's environments, with the real ones."""

import random
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from support.java import HAS_JAVA

import gym_trl
from gym_trl.errors import ActionTypeError, ConfigError, MissingDependencyError

pytestmark = pytest.mark.external

_made: list[gym.Env[Any, Any]] = []


def make(*args: Any, **kwargs: Any) -> Any:
    env = gym.make(*args, **kwargs)
    _made.append(env)
    return env


@pytest.fixture(autouse=True)
def all_are_closed():
    yield
    while _made:
        _made.pop().close()


# What to import, the id, its arguments, and actions that do not all end it.
CASES: dict[str, tuple[str, str, dict[str, Any], list[str]]] = {
    "pettingzoo/tictactoe": (
        "pettingzoo",
        "External/PettingZoo-v0",
        {"game": "classic/tictactoe-v3", "seat": 1},
        ["4", "nine", *"01235678"],
    ),
    "pettingzoo/chess": (
        "pettingzoo",
        "External/PettingZoo-v0",
        {"game": "classic/chess-v6"},
        ["e2e4", "e2e4", "d2d3", "b1c3"],
    ),
    "openspiel": ("pyspiel", "External/OpenSpiel-v0", {"game": "leduc_poker"}, ["call", "raise it", "raise", "fold"]),
    "openspiel/self": (
        "pyspiel",
        "External/OpenSpiel-v0",
        {"game": "goofspiel(num_cards=4)", "opponent": "self"},
        [f"[P{player}]bid: {card}" for card in (2, 3, 1, 4) for player in (0, 1)],
    ),
    "reasoning-gym": ("reasoning_gym", "External/ReasoningGym-v0", {"dataset": "leg_counting"}, ["12"]),
    "reasoning-gym/sokoban": ("reasoning_gym", "External/ReasoningGym-v0", {"dataset": "sokoban"}, ["LRUD"]),
    "textarena": ("textarena", "External/TextArena-v0", {"game": "GuessTheNumber-v0"}, ["[1]", "20", "?", "[3]"]),
    "textarena/Blackjack": ("textarena", "External/TextArena-v0", {"game": "Blackjack-v0"}, ["[hit]", "[stand]"] * 3),
    "textarena/TicTacToe": (
        "textarena",
        "External/TextArena-v0",
        {"game": "TicTacToe-v0", "players": 2, "seat": 1},
        ["[0]", "[1]", "[2]", "[3]", "[4]"],
    ),
    "gem": ("gem", "External/GEM-v0", {"game": "game:GuessTheNumber-v0-easy"}, ["\\boxed{1}", "\\boxed{9}", "nothing"]),
    "gem/Minesweeper": ("gem", "External/GEM-v0", {"game": "game:Minesweeper-v0-easy"}, ["\\boxed{reveal 2 2}"] * 2),
    "scienceworld": (
        "scienceworld",
        "External/ScienceWorld-v0",
        {"task": "lifespan-longest-lived"},
        ["look around", "dance", "open door to hallway", "wait", "go to hallway", "look around"],
    ),
    "textworld": ("textworld", "External/TextWorld-v0", {}, ["look", "go north", "xyzzy", "take banana", "go south"]),
}


EXTRAS = {"pyspiel": "openspiel"}
NAMES = ("dataset", "game", "path", "task")


@pytest.fixture(params=CASES)
def case(request):
    package, env_id, kwargs, actions = CASES[request.param]
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    if package == "scienceworld":
        request.getfixturevalue("open_java")(env_id, kwargs)
    if package == "textworld":
        kwargs = {"path": str(request.getfixturevalue("textworld_games") / "1.z8")}
    return env_id, kwargs, actions


@pytest.fixture(scope="module")
def open_java():
    """A function that keeps a virtual machine from game to game, because starting it takes seconds."""
    kept: dict[str, gym.Env[Any, Any]] = {}

    def keep(env_id, kwargs):
        if not HAS_JAVA:
            pytest.skip("there is no Java")
        if env_id not in kept:
            kept[env_id] = gym.make(env_id, **kwargs)

    yield keep
    for env in kept.values():
        env.close()


def several(case):
    """Seeds; few where a game takes half a second."""
    return range(3 if "ScienceWorld" in case[0] else 8)


def play(case, seed, *, before=lambda: None):
    env_id, kwargs, actions = case
    env = make(env_id, **kwargs)
    seen: list[Any] = [env.reset(seed=seed)]
    for action in actions:
        before()
        seen.append(env.step(action))
        if seen[-1][2] or seen[-1][3]:
            break
    env.close()
    return seen


def scramble():
    random.seed()
    np.random.seed()


def test_gymnasiums_own_checker_has_nothing_to_say(case):
    env_id, kwargs, _ = case
    check_env(make(env_id, disable_env_checker=True, **kwargs).unwrapped, skip_render_check=True)


def test_the_same_seed_and_actions_are_the_same_game(case):
    first = play(case, seed=3)
    assert play(case, seed=3) == first
    assert play(case, seed=3, before=scramble) == first


def test_other_seeds_are_other_games_or_another_luck(case):
    env_id, kwargs, _ = case
    games = {str(play((env_id, kwargs, case[2]), seed=seed)) for seed in several(case)}
    assert len(games) > (0 if "TextWorld-v0" in env_id else 1)  # one file, one game


def test_the_global_generators_are_left_as_they_were(case):
    random.seed(11)
    np.random.seed(11)
    play(case, seed=3)
    drawn = random.random(), np.random.random()
    assert drawn == (random.Random(11).random(), np.random.RandomState(11).random_sample())


def test_games_that_take_turns_are_the_games_alone(case):
    env_id, kwargs, actions = case
    seeds = (1, 2, 3)
    alone = [play(case, seed=seed) for seed in seeds]
    envs = [make(env_id, **kwargs) for _ in seeds]
    seen: list[list[Any]] = [[env.reset(seed=seed)] for env, seed in zip(envs, seeds, strict=True)]
    for action in actions:
        for env, one in zip(envs, seen, strict=True):
            if len(one) == 1 or not (one[-1][2] or one[-1][3]):
                one.append(env.step(action))
    assert seen == alone


def test_games_in_threads_are_the_games_alone(case):
    alone = [play(case, seed=seed) for seed in several(case)]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda seed: play(case, seed=seed), several(case))) == alone


def test_what_is_over_pays_nothing_more(case):
    env_id, kwargs, actions = case
    env = make(env_id, **kwargs)
    env.reset(seed=5)
    for _ in range(30):
        for action in actions:
            ended = env.step(action)
            if ended[2] or ended[3]:
                observation, reward, terminated, truncated, _ = env.step(action)
                assert (observation, terminated, truncated) == (ended[0], ended[2], ended[3])
                assert reward == 0.0
                return
    endless = ("ScienceWorld", "TextWorld", "chess")  # too long, or without end
    assert any(name in f"{env_id} {kwargs}" for name in endless)


def test_a_new_episode_shows_nothing_of_the_old_one(case):
    env_id, kwargs, actions = case
    env = make(env_id, **kwargs)
    first = env.reset(seed=4)
    env.step(actions[0])
    assert env.reset(seed=4) == first


def test_mistakes_of_a_caller_are_said(case):
    env_id, kwargs, _ = case
    env = make(env_id, disable_env_checker=True, **kwargs).unwrapped
    with pytest.raises(ResetNeeded):
        env.step("1")
    with pytest.raises(ConfigError, match="has no reset option 'level'"):
        env.reset(options={"level": 3})
    env.reset(seed=0)
    with pytest.raises(ActionTypeError):
        env.step(1)


def test_a_game_that_does_not_exist_is_said(case):
    env_id, kwargs, _ = case
    with pytest.raises(ConfigError):
        make(env_id, **{name: "nonesuch" if name in NAMES else 1 for name in kwargs})


def test_an_evaluation_plays_it(case):
    env_id, kwargs, actions = case
    limits: Any = {"turn_limit": 3, "num_tasks": 2, "num_eval_tasks": 0}
    if kwargs.get("opponent") == "self":  # otherwise all seats would be one episode
        limits["seats"] = "self"
    spec = gym_trl.GymSpec(env_id, env_kwargs=kwargs, action_format=None, **limits)
    env = spec.make(env_id)
    env.reset(seed=0)
    assert isinstance(env.step(actions[0])[0], str)
    env.close()


@pytest.mark.parametrize(
    ("package", "env_id", "extra"),
    sorted(
        {(package, env_id, EXTRAS.get(package, package.replace("_", "-"))) for package, env_id, *_ in CASES.values()}
    ),
)
def test_what_is_not_installed_is_named_with_its_extra(package, env_id, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    kwargs = next(kwargs for name, _, kwargs, _ in CASES.values() if name == package) or {"path": "game.z8"}
    with pytest.raises(MissingDependencyError, match=rf"{env_id} needs .*pip install 'gym-trl\[{extra}\]'"):
        make(env_id, **kwargs)
