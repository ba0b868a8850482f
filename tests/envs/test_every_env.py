"""The rules that hold for every registered game, whoever wrote it.

1. Its contract is kept without a warning: laws 7 and 11, strange actions, the optimum.
2. Its solver beats random play (law 9), and knows no more than the player: equal histories give equal choices.
3. Vectorised, in threads and in processes, it plays what it plays alone (laws 7 and 10).
4. Arguments and reset options are checked; an instance is one game, whatever the seed.
5. What is listed is legal, no text is too strange, and what is no action wins nothing.
"""

import json
import os
import pickle
import random
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from support.games import IDS, SEATS, game_class, states_played

import gym_trl
from gym_trl.check import Report, check
from gym_trl.envs.echo import Echo
from gym_trl.envs.guess_number import GuessNumber
from gym_trl.envs.text_game import Step
from gym_trl.errors import ActionTypeError, ConfigError
from gym_trl.testing import play
from gym_trl.wrappers import Opponent

PRESETS = [
    pytest.param(env_id, difficulty, marks=[pytest.mark.slow] if number else [])  # the first is the easiest
    for env_id in IDS
    for number, difficulty in enumerate(game_class(env_id).presets)
]
every_env = pytest.mark.parametrize("env_id", IDS)
every_preset = pytest.mark.parametrize(("env_id", "difficulty"), PRESETS)
COUNTED = [env_id for env_id in IDS if gym.make(env_id).get_wrapper_attr("num_instances") is not None]
ELSEWHERE = [*IDS, "FrozenLake-v1"]
CONTRACT = ["interface", "closing", "repeats", "rules", "invalid actions", "seats", "end", "state key"]
FEWER = {"TrlEnv/CodeAgent-v0": 100}
"""Divisor of the number of actions and episodes that are tried where an action may start a process."""


def make(env_id: str, difficulty: str) -> gym.Env[str, str]:
    """Return a game of one seat; a random opponent plays the others."""
    env = gym.make(env_id, difficulty=difficulty)
    return Opponent(env) if env_id in SEATS else env


def solver(env: Any, seed: int = 0) -> Any:
    return env.get_wrapper_attr("solver")(seed)


def trajectory(env_id: str, seed: int) -> list[tuple[Any, ...]]:
    env = gym.make(env_id)
    return play(env, env.get_wrapper_attr("random_policy")(seed), seed=seed)


@every_preset
def test_it_keeps_every_promise(env_id: str, difficulty: str) -> None:
    """Laws 7 and 11."""
    make = partial(gym.make, env_id, difficulty=difficulty)
    report = check(make, only=CONTRACT, episodes=max(3, 20 // FEWER.get(env_id, 1)))
    assert isinstance(report, Report)
    assert (report.findings, report.missing) == ([], {})


# ---------------------------------------------------------------------------------------------------------------------
# Solvers
# ---------------------------------------------------------------------------------------------------------------------


@every_preset
def test_a_solver_beats_random_play_and_reaches_a_known_optimum(env_id: str, difficulty: str) -> None:
    """Law 9."""
    env, returns = make(env_id, difficulty), {}
    episodes = 10 if env_id in FEWER else 50
    for name in ("solver", "random_policy"):
        games = [play(env, env.get_wrapper_attr(name)(seed), seed=seed)[1:] for seed in range(episodes)]
        returns[name] = sum(step[2] for steps in games for step in steps) / episodes
        if name == "solver" and (best := env.get_wrapper_attr("optimal_success")) is not None:
            share = sum(steps[-1][-1]["success"] for steps in games) / episodes
            assert share == pytest.approx(best, abs=4 * (best * (1 - best) / episodes) ** 0.5 + 1e-6)
    assert returns["solver"] > returns["random_policy"]


def clashes(make_env: Any, games: int) -> int:
    """Return how often a solver chooses differently after the same history, in games that only random play varies."""
    choices: dict[tuple[str, ...], list[str]] = {}
    found = 0
    for game in range(games):
        env, rng = make_env(), random.Random(game % 3)
        history: tuple[str, ...] = (env.reset(seed=game)[0],)
        guess, over = env.get_wrapper_attr("random_policy")(game % 3), False
        while not over and len(history) < 60:
            best = list(env.unwrapped.best_actions())
            found += choices.setdefault(history, best) != best
            action = best[0] if rng.random() < 0.8 else guess(history[-1])
            observation, _, over, _, _ = env.step(action)
            history += (action, observation)
    return found


@pytest.mark.parametrize(("env_id", "difficulty"), [one for one in PRESETS if one.values[0] not in FEWER])
def test_a_solver_knows_no_more_than_the_player(env_id: str, difficulty: str) -> None:
    assert clashes(lambda: gym.make(env_id, difficulty=difficulty), 40) == 0


class Cheat(GuessNumber):
    def solve(self) -> str:
        return str(self.secret)


def test_a_solver_that_reads_a_secret_is_found() -> None:
    assert clashes(Cheat, 20)


@pytest.mark.parametrize("env_id", SEATS)
def test_the_solver_against_itself_plays_various_games(env_id: str) -> None:
    """A seed chooses among what is equally good."""
    env = gym.make(env_id)
    games = [str(play(env, solver(env, seed), seed=0)) for seed in [*range(8), 0]]
    assert games[-1] == games[0]
    assert len(set(games)) > 1


@every_preset
def test_the_example_in_the_instructions_is_never_how_the_solver_begins(env_id: str, difficulty: str) -> None:
    """Whoever repeated it would win too often."""
    env = gym.make(env_id, difficulty=difficulty)
    examples = re.split(r"\blike:? |\bfor example:? |\bsuch as ", env.get_wrapper_attr("instructions"), flags=re.I)[1:]
    for seed in range(20) if examples else ():
        observation, _ = env.reset(seed=seed)
        action = re.escape(solver(env)(observation))
        assert not any(re.search(rf"(?<![\w-]){action}(?![\w'])", example) for example in examples)


# ---------------------------------------------------------------------------------------------------------------------
# Actions and rewards
# ---------------------------------------------------------------------------------------------------------------------


@every_env
def test_what_is_no_action_wins_nothing(env_id: str) -> None:
    env = gym.make(env_id)
    for seed, action in enumerate(("", "xyzzy", "what?")):
        env.reset(seed=seed)
        for _ in range(500):
            _, _, terminated, _, info = env.step(action)
            assert not info["success"]
            if terminated:
                break


@every_env
def test_a_lost_game_returns_at_least_its_declared_loss(env_id: str) -> None:
    env = gym.make(env_id)
    for seed in range(10):
        steps = play(env, env.get_wrapper_attr("random_policy")(seed), seed=seed)[1:]
        total, success = sum(step[2] for step in steps), steps[-1][-1]["success"]
        assert env.get_wrapper_attr("loss_return") <= total
        assert total <= 1 or env_id in SEATS
        assert not any(step[-1]["success"] for step in steps[:-1])
        if success:
            assert total > env.get_wrapper_attr("loss_return")


@every_env
def test_actions_that_are_listed_are_legal_and_all_others_of_them_are_not(env_id: str) -> None:
    """In the middle of random games; ``info`` lists them, and none when it is over."""
    rng = random.Random(0)
    ever: set[str] = set()
    for seed in range(3):
        env = gym.make(env_id)
        info = env.reset(seed=seed)[1]
        for _ in range(100):
            listed = info.get("admissible_actions")
            if listed is None:
                return
            assert list(dict.fromkeys(listed)) == listed
            ever |= set(listed)
            for action in rng.sample(sorted(ever), min(3, len(ever))):
                assert pickle.loads(pickle.dumps(env)).step(action)[-1]["action_valid"] is (action in listed)
            _, _, terminated, _, info = env.step(rng.choice(listed))
            if terminated:
                assert info["admissible_actions"] == []
                break


MARKUP = [
    *("<action>", "</action>", "<|im_end|>", "\\boxed{", "```", "{}", "%s", "\x1b[31m", "\x00"),
    *map(chr, (0x202E, 0xD800, 0x663, 0xBD, 0x212A, 0xDF)),  # among them an Arabic digit and the Kelvin sign
]


def strange(rng: random.Random, action: str, count: int) -> str:
    """An action, or what is left when something was done to it."""
    place = rng.randint(0, len(action))
    return [
        lambda: action,
        lambda: f"  {action.upper()}\n",
        lambda: action[:place] + rng.choice(MARKUP) + action[place:],
        lambda: action[:place],
        lambda: action * rng.choice([2, 3, 100]),
        lambda: "".join(
            chr(rng.choice([rng.randrange(128), rng.randrange(0x11_0000)])) for _ in range(rng.randrange(20))
        ),
        lambda: str(rng.choice([-1, 0, 1, 10**30, 1.5, "1e9", "9" * 5000])),
        lambda: " ".join(rng.choice(MARKUP) for _ in range(rng.randrange(6))),
        lambda: "x" * 10**6 if count % 1000 == 0 else "",
        lambda: " ".join(str(rng.randint(-9, 99)) for _ in range(rng.randrange(5))),
    ][count % 10 if count % 3 else 0]()


@pytest.mark.parametrize("texts", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
@every_env
def test_no_text_is_too_strange(env_id: str, texts: int) -> None:
    """Fuzzed: whole and broken actions, Unicode, huge, empty, markup; never an exception, always in the space."""
    rng = random.Random(0)
    env = gym.make(env_id)
    env.reset(seed=0)
    guess, observation = env.get_wrapper_attr("random_policy")(0), ""
    for count in range(texts // FEWER.get(env_id, 1)):
        observation, reward, terminated, truncated, info = env.step(strange(rng, guess(observation), count))
        if count % 50 == 0:
            assert observation in env.observation_space
        assert isfinite(reward)
        assert not truncated
        assert isinstance(info["action_valid"], bool)
        if terminated:
            observation, _ = env.reset()


# ---------------------------------------------------------------------------------------------------------------------
# Elsewhere
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env_id", "mode"), [*((env_id, "sync") for env_id in IDS), *((env_id, "async") for env_id in IDS[::4])]
)
def test_vectorised_it_plays_what_it_plays_alone(env_id: str, mode: str) -> None:
    """Law 10."""
    alone = [trajectory(env_id, seed) for seed in (11, 12, 13)]
    makers = [lambda: gym.make(env_id)] * 3
    envs: Any = SyncVectorEnv(makers) if mode == "sync" else AsyncVectorEnv(makers, context="fork")
    try:
        assert list(envs.reset(seed=11)[0]) == [steps[0][0] for steps in alone]
        for turn in range(1, min(map(len, alone))):
            observations, rewards, terminated, _, infos = envs.step(tuple(steps[turn][0] for steps in alone))
            assert list(observations) == [steps[turn][1] for steps in alone]
            assert list(rewards) == [steps[turn][2] for steps in alone]
            assert list(terminated) == [steps[turn][3] for steps in alone]
            assert list(infos["action_valid"]) == [steps[turn][5]["action_valid"] for steps in alone]
    finally:
        envs.close()


@every_env
def test_threads_see_the_same_games(env_id: str) -> None:
    """Law 7."""
    seeds = list(range(max(3, 8 // FEWER.get(env_id, 1)))) * 2

    def scrambled(seed: int) -> list[tuple[Any, ...]]:
        random.random()
        np.random.random()
        return trajectory(env_id, seed)

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(scrambled, seeds)) == [trajectory(env_id, seed) for seed in seeds]


@pytest.fixture(scope="module")
def elsewhere() -> dict[str, str]:
    """Return what another process sees, with another hash seed, for the order of sets."""
    script = (
        "import json, sys\n"
        "import gym_trl\n"
        "from support.games import states_played\n"
        "print(json.dumps({env_id: states_played(env_id) for env_id in sys.argv[1:]}))\n"
    )
    path = os.pathsep.join((str(Path(gym_trl.__file__).parents[1]), str(Path(__file__).parents[1])))
    ran = subprocess.run(
        [sys.executable, "-c", script, *ELSEWHERE],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "123"},
    )
    played: dict[str, str] = json.loads(ran.stdout)
    return played


@pytest.mark.parametrize("env_id", ELSEWHERE)
def test_another_process_sees_the_same_game_and_names_its_states_alike(env_id: str, elsewhere: dict[str, str]) -> None:
    assert elsewhere[env_id] == states_played(env_id)


# ---------------------------------------------------------------------------------------------------------------------
# Arguments and options
# ---------------------------------------------------------------------------------------------------------------------


@every_env
def test_a_preset_gives_all_arguments_and_they_can_be_replaced(env_id: str) -> None:
    presets = game_class(env_id).presets
    for difficulty, preset in presets.items():
        assert preset.keys() == presets["medium"].keys()
        for name, value in preset.items():
            assert gym.make(env_id, difficulty=difficulty, **{name: value}).get_wrapper_attr(name) == value


@every_env
@pytest.mark.parametrize("difficulty", ["nightmare", ["easy"], None])
def test_a_difficulty_that_does_not_exist_is_refused(env_id: str, difficulty: Any) -> None:
    with pytest.raises(ConfigError):
        gym.make(env_id, difficulty=difficulty)


@every_env
def test_an_argument_of_another_type_is_refused(env_id: str) -> None:
    for name, value in game_class(env_id).presets["medium"].items():
        for wrong in (None, b"1", [value], str(value) if not isinstance(value, str) else 1):
            with pytest.raises(ConfigError):
                gym.make(env_id, **dict[str, Any]({name: wrong}))


@pytest.mark.parametrize("env_id", COUNTED)
def test_the_same_instance_is_the_same_game_whatever_the_seed(env_id: str) -> None:
    env = gym.make(env_id)
    count = env.get_wrapper_attr("num_instances")
    for instance in [0, count // 2, count - 1, np.int64(0)]:
        games = [play(env, solver(env), seed=seed, options={"instance": instance}) for seed in (0, 1)]
        assert env.get_wrapper_attr("draws") or games[0] == games[1]


@pytest.mark.parametrize("env_id", COUNTED)
@pytest.mark.parametrize("instance", [-1, 10**80, 1.0, "0", True])
def test_an_instance_that_does_not_exist_is_refused(env_id: str, instance: Any) -> None:
    with pytest.raises(ConfigError):
        gym.make(env_id).reset(options={"instance": instance})


@every_env
def test_an_option_that_does_not_exist_is_refused(env_id: str) -> None:
    with pytest.raises(ConfigError):
        gym.make(env_id).reset(options={"nonsense": "hard"})


@every_env
def test_a_step_needs_a_reset_and_a_text(env_id: str) -> None:
    env = gym.make(env_id).unwrapped
    with pytest.raises(ResetNeeded):
        env.step("1")
    env.reset(seed=0)
    with pytest.raises(ActionTypeError):
        env.step(7)


@every_preset
def test_an_environment_is_rebuilt_from_its_spec_and_is_small(env_id: str, difficulty: str) -> None:
    """Under 64 KB in the middle of a game, apart from what all instances share; one with a sandbox is not copied."""
    env = gym.make(env_id, difficulty=difficulty)
    assert env.spec is not None
    assert gym.make(env.spec).reset(seed=3) == env.reset(seed=3)
    if env_id not in FEWER:
        env.step(env.get_wrapper_attr("random_policy")(0)(""))
        assert len(pickle.dumps(env.unwrapped)) < 2**16


# ---------------------------------------------------------------------------------------------------------------------
# Games that break a promise
# ---------------------------------------------------------------------------------------------------------------------


class GlobalDice(GuessNumber):
    def show(self) -> str:
        return f"{random.random()} " + super().show()


class NumpyDice(GuessNumber):
    def play(self, action: str) -> Step:
        np.random.random()
        return super().play(action)


class Farm(GuessNumber):
    def step(self, action: str) -> Any:
        observation, _, terminated, truncated, info = super().step(action)
        return observation, float(terminated), terminated, truncated, info


class TwoFlags(GuessNumber):
    def step(self, action: str) -> Any:
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, terminated, info


class Poor(GuessNumber):
    def solve(self) -> str:
        return str(self.low)


class Fragile(Echo):
    def play(self, action: str) -> Step:
        action.encode()
        return super().play(action)


class Endless(GuessNumber):
    def play(self, action: str) -> Step:
        return Step("on")


@pytest.mark.parametrize("broken", [GlobalDice, NumpyDice, Farm, TwoFlags, Poor, Fragile, Endless])
def test_a_broken_promise_is_noticed(broken: type[gym.Env[str, str]]) -> None:
    report = check(broken, only=[*CONTRACT, "success"], episodes=20)
    assert isinstance(report, Report)
    assert report.findings
