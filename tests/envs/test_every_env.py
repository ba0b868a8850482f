"""The rules that hold for every registered game.

1. It keeps the promises of ``check_text_env``, and the kit notices when one is broken.
2. Vectorised in any way, it plays what it plays alone.
3. Same seed and same actions give the same trajectory in any thread and any process.
4. Reset options choose the game or are refused by name.
"""

import io
import os
import pickle
import random
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

import gym_trl
from gym_trl.envs.echo import Echo
from gym_trl.envs.guess_number import GuessNumber
from gym_trl.envs.text_env import Outcome
from gym_trl.errors import ActionTypeError, ConfigError
from gym_trl.testing import check_text_env, play

IDS = sorted(env_id for env_id in gym.registry if env_id.startswith("TrlEnv/"))
every_env = pytest.mark.parametrize("env_id", IDS)


def trajectory(env_id: str, seed: int) -> list[tuple[Any, ...]]:
    env = gym.make(env_id)
    return play(env, env.get_wrapper_attr("random_policy")(seed), seed=seed)


@every_env
def test_it_keeps_every_promise(env_id: str) -> None:
    check_text_env(env_id)


@every_env
def test_check_env_passes_with_no_warning(env_id: str) -> None:
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("error")
        check_env(gym.make(env_id).unwrapped)


@every_env
@pytest.mark.parametrize(
    ("mode", "arguments"),
    [
        ("sync", {}),
        ("async", {"shared_memory": True, "context": "fork"}),
        ("async", {"shared_memory": False, "context": "fork"}),
        ("async", {"shared_memory": True, "context": "spawn"}),
    ],
)
def test_vectorised_it_plays_what_it_plays_alone(env_id: str, mode: str, arguments: dict[str, Any]) -> None:
    count, seed = 3, 11
    alone = [trajectory(env_id, seed + i) for i in range(count)]
    envs = gym.make_vec(env_id, count, vectorization_mode=mode, vector_kwargs=arguments)
    try:
        observations, _ = envs.reset(seed=seed)
        assert observations in envs.observation_space
        assert list(observations) == [steps[0][0] for steps in alone]
        for turn in range(1, min(map(len, alone))):
            observations, rewards, terminated, truncated, infos = envs.step(tuple(steps[turn][0] for steps in alone))
            assert list(observations) == [steps[turn][1] for steps in alone]
            assert list(rewards) == [steps[turn][2] for steps in alone]
            assert list(terminated) == [steps[turn][3] for steps in alone]
            assert not any(truncated)
            assert list(infos["action_valid"]) == [steps[turn][5]["action_valid"] for steps in alone]
    finally:
        envs.close()


@every_env
def test_threads_see_the_same_games(env_id: str) -> None:
    seeds = list(range(8)) * 2

    def scrambled(seed: int) -> list[tuple[Any, ...]]:
        random.random()
        np.random.random()
        return trajectory(env_id, seed)

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(scrambled, seeds)) == [trajectory(env_id, seed) for seed in seeds]


@every_env
def test_another_process_sees_the_same_game(env_id: str) -> None:
    script = (
        "import gymnasium as gym, gym_trl, sys\n"
        "from gym_trl.testing import play\n"
        "env = gym.make(sys.argv[1])\n"
        "print(ascii([play(env, env.get_wrapper_attr('random_policy')(seed), seed=seed) for seed in range(5)]))\n"
    )
    path = str(Path(gym_trl.__file__).parents[1])
    ran = subprocess.run(
        [sys.executable, "-c", script, env_id],
        capture_output=True,
        text=True,
        check=True,
        # Another hash seed: the order of a set must not matter.
        env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "123"},
    )
    assert ran.stdout.strip() == ascii([trajectory(env_id, seed) for seed in range(5)])


@every_env
def test_the_same_instance_is_the_same_game_whatever_the_seed(env_id: str) -> None:
    env = gym.make(env_id)
    count = env.get_wrapper_attr("num_instances")
    assert count is None or count >= 1
    for instance in [] if count is None else [0, count // 2, count - 1, np.int64(0)]:
        policies = [env.get_wrapper_attr("solver")() for _ in range(2)]
        one, other = (play(env, policy, seed=i, options={"instance": instance}) for i, policy in enumerate(policies))
        assert one == other


@every_env
@pytest.mark.parametrize("instance", [-1, 10**80, 1.0, "0", True])
def test_an_instance_that_does_not_exist_is_refused(env_id: str, instance: Any) -> None:
    with pytest.raises(ConfigError, match="instance must be an integer from 0 to"):
        gym.make(env_id).reset(options={"instance": instance})


@every_env
def test_an_option_that_does_not_exist_is_refused_by_name(env_id: str) -> None:
    with pytest.raises(ConfigError, match=f"{env_id} has no reset option 'difficulty'; it has .'instance'.") as error:
        gym.make(env_id).reset(options={"instance": 0, "difficulty": "hard"})
    assert isinstance(error.value, ValueError)


@every_env
def test_a_step_before_the_first_reset_is_an_error(env_id: str) -> None:
    with pytest.raises(ResetNeeded, match="call reset"):
        gym.make(env_id).unwrapped.step("1")


@every_env
def test_an_action_that_is_no_text_is_named(env_id: str) -> None:
    env = gym.make(env_id)
    env.reset(seed=0)
    with pytest.raises(ActionTypeError, match=f"{env_id} takes text as an action, got int: 7"):
        env.step(7)


@every_env
def test_human_rendering_prints_the_transcript_while_it_is_played(
    env_id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    env = gym.make(env_id, render_mode="human")
    first, _ = env.reset(seed=0)
    assert capsys.readouterr().out == f"{first}\n"
    second = env.step("1\ud800")[0]
    assert capsys.readouterr().out == f"> 1\\ud800\n{second}\n"
    assert env.render() is None
    assert capsys.readouterr().out == ""


@every_env
def test_ansi_rendering_returns_the_transcript_of_this_game_only(env_id: str) -> None:
    env = gym.make(env_id, render_mode="ansi")
    env.reset(seed=0)
    env.step("1")
    first, _ = env.reset(seed=1)
    second = env.step("2")[0]
    env.step("3")
    rendered = env.render()
    assert isinstance(rendered, str)
    assert rendered.startswith(f"{first}\n> 2\n{second}")


@every_env
def test_an_environment_is_rebuilt_from_its_spec(env_id: str) -> None:
    env = gym.make(env_id, turns=2)
    again = gym.make(gym.spec(env_id), turns=2) if env.spec is None else gym.make(env.spec)
    assert again.get_wrapper_attr("turns") == 2
    assert pickle.loads(pickle.dumps(env)).reset(seed=3) == again.reset(seed=3)


# What follows are broken games, each of which breaks one promise.


class GlobalDice(GuessNumber):
    def _start(self, instance: int | None, options: Any) -> str:
        return f"{random.random()} " + super()._start(instance, options)


class NumpyDice(GuessNumber):
    def _act(self, action: str) -> Outcome:
        np.random.random()
        return super()._act(action)


class Farm(GuessNumber):
    def step(self, action: str) -> Any:
        observation, _, terminated, truncated, info = super().step(action)
        return observation, float(terminated), terminated, truncated, info


class TwoFlags(GuessNumber):
    def step(self, action: str) -> Any:
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, terminated, info


class Proud(GuessNumber):
    def solver(self) -> Any:
        return self.random_policy(0)


class Silent(Echo):
    instructions = ""


class Fragile(Echo):
    def _act(self, action: str) -> Outcome:
        action.encode()
        return super()._act(action)


class Lenient(Echo):
    def step(self, action: Any) -> Any:
        return super().step(str(action))


class Numeric(Echo):
    def step(self, action: str) -> Any:
        _, *rest = super().step(action)
        return (7, *rest)


class Unpicklable(Echo):
    def _start(self, instance: int | None, options: Any) -> str:
        self.hook = lambda: None
        return super()._start(instance, options)


class Greedy(Echo):
    optimal_return = 2.0


class Endless(Echo):
    def _end_turn(self, share: float, *, shown: str, valid: bool = True) -> Outcome:
        return Outcome(shown, share, valid=valid)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (GlobalDice, "reset|deterministic"),
        (NumpyDice, "global generators"),
        (Farm, "after the end"),
        (TwoFlags, "terminated and truncated together"),
        (Proud, "the solver must reach optimal_success=1"),
        (Silent, "instructions"),
        (Fragile, "any text is data|surrogates|encode"),
        (Lenient, "ActionTypeError"),
        (Numeric, "observation"),
        (Unpicklable, "must pickle"),
        (Greedy, "optimal_return=2"),
        (Endless, "an episode must end"),
    ],
)
def test_the_kit_notices_a_broken_promise(broken: type[gym.Env[str, str]], said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_text_env(broken)
