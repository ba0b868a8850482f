"""The rules that hold for every registered game.

1. It keeps the promises of ``check_text_env``, and the kit notices when one is broken.
2. Vectorised in any way, it plays what it plays alone.
3. Same seed and same actions give the same trajectory in any thread and any process, and the same keys of states.
4. Reset options choose the game or are refused by name.
"""

import json
import os
import pickle
import random
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from math import isfinite
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from support.games import IDS, game_class
from support.lanes import in_full

import gym_trl
from gym_trl.envs.echo import Echo
from gym_trl.envs.guess_number import GuessNumber
from gym_trl.envs.text_env import Outcome
from gym_trl.errors import ActionTypeError, ConfigError
from gym_trl.testing import check_text_env, play
from gym_trl.wrappers import StateKey, as_text
from gym_trl.wrappers.parse_action import ParseAction
from gym_trl.wrappers.turn_limit import TurnLimit

every_env = pytest.mark.parametrize("env_id", IDS)
PRESETS = [
    pytest.param(env_id, difficulty, marks=[pytest.mark.full] if number else [])  # the first is the easiest
    for env_id in IDS
    for number, difficulty in enumerate(game_class(env_id).presets or ("medium",))
]
every_preset = pytest.mark.parametrize(("env_id", "difficulty"), PRESETS)
EASIEST = [
    pytest.param(env_id, {"difficulty": "easy"} if game_class(env_id).presets else {}, id=env_id) for env_id in IDS
]


def easiest(*modes: str) -> Any:
    """Return the parameters of all games that have one of these rewards, in their easiest presets."""
    return [one for one, env_id in zip(EASIEST, IDS, strict=True) if {*modes} & {*game_class(env_id).reward_modes}]


PAID_FOR_SUCCESS = [
    one for one, env_id in zip(EASIEST, IDS, strict=True) if game_class(env_id).reward_modes[0] == "success"
]
COUNTED = [env_id for env_id in IDS if gym.make(env_id).get_wrapper_attr("num_instances") is not None]
ELSEWHERE = [*IDS, "FrozenLake-v1"]
FUZZED = in_full(10_000, fast=1_000)
FEWER = {"TrlEnv/CodeAgent-v0": 100}
"""Divisor of the number of actions and episodes that are tried where an action may start a process."""


def make(env_id: str, difficulty: str, **more: Any) -> gym.Env[str, str]:
    arguments: dict[str, Any] = {"difficulty": difficulty} if game_class(env_id).presets else {}
    return gym.make(env_id, **arguments, **more)


def trajectory(env_id: str, seed: int) -> list[tuple[Any, ...]]:
    env = gym.make(env_id)
    return play(env, env.get_wrapper_attr("random_policy")(seed), seed=seed)


@every_preset
def test_it_keeps_every_promise(env_id: str, difficulty: str) -> None:
    check_text_env(lambda: make(env_id, difficulty), episodes=max(3, 20 // FEWER.get(env_id, 1)))


@every_preset
def test_a_preset_gives_all_arguments_and_they_can_be_replaced(env_id: str, difficulty: str) -> None:
    presets = game_class(env_id).presets
    env = make(env_id, difficulty)
    assert env.get_wrapper_attr("difficulty") == difficulty
    for name, value in presets.get(difficulty, {}).items():  # type: ignore[call-overload]
        assert env.get_wrapper_attr(name) == value
        again = gym.make(env_id, difficulty=difficulty, **{name: value})
        assert again.get_wrapper_attr("difficulty") == difficulty
    assert all(preset.keys() == presets["medium"].keys() for preset in presets.values())


@every_env
def test_a_difficulty_or_reward_that_does_not_exist_is_refused(env_id: str) -> None:
    with pytest.raises(ConfigError, match="reward must be one of"):
        gym.make(env_id, reward="everything")
    if game_class(env_id).presets:
        with pytest.raises(ConfigError, match="difficulty must be one of"):
            gym.make(env_id, difficulty="nightmare")
        with pytest.raises(ConfigError, match="difficulty must be one of"):
            gym.make(env_id, difficulty=["easy"])


@every_env
def test_what_is_no_action_wins_nothing(env_id: str) -> None:
    """Neither silence nor what looks like an action and is none; constant actions are compared with random ones."""
    env = gym.make(env_id)
    for name in ("noop", "garbage"):
        policy = env.get_wrapper_attr("baselines")[name]
        for seed in range(5):
            observation, _ = env.reset(seed=seed)
            for _ in range(500):
                observation, _, terminated, _, info = env.step(policy(seed)(observation))
                assert not info["success"]
                if terminated:
                    break


@every_env
def test_the_constant_action_is_legal(env_id: str) -> None:
    env = gym.make(env_id)
    for seed in range(5):
        env.reset(seed=seed)
        assert env.step(env.get_wrapper_attr("constant_action"))[-1]["action_valid"]


@pytest.mark.parametrize(
    ("env_id", "arguments", "reward"),
    [(*one.values, mode) for mode in ("efficient", "shaped") for one in easiest(mode)],
)
def test_other_rewards_pay_for_nothing_but_success(env_id: str, arguments: dict[str, Any], reward: str) -> None:
    """The efficient one is at most 1 and 0 without success; the shaped one telescopes to success less a constant."""
    for seed in range(10):
        for player in ("solver", "random_policy"):
            env = gym.make(env_id, reward=reward, **arguments)
            policy = env.get_wrapper_attr(player)(*([] if player == "solver" else [seed]))
            env.reset(seed=seed)
            start = env.unwrapped._potential() if reward == "shaped" else 0.0  # type: ignore[attr-defined]
            steps = play(env, policy, seed=seed)[1:]
            total, success = sum(step[2] for step in steps), steps[-1][-1]["success"]
            if reward == "shaped":
                assert total == pytest.approx(success - start)
                assert 0 <= start <= 1
            else:
                assert 0 < total <= 1 if success else total == 0


# What an answer that cannot be read, and one that is no action, do to a player.

ROOM = {"turns": 4, "guesses": 4, "misses": 20, "mistakes": 20}
"""Arguments that say how much may go wrong, and how much more than twice the preset's is enough here."""


@every_preset
def test_a_solver_plays_on_when_its_answers_cannot_be_read(env_id: str, difficulty: str) -> None:
    """None of them reaches the game, which is played as if there had been none; nor do lines below what is shown."""
    for seed in range(2):
        env = make(env_id, difficulty)
        alone = play(env, env.get_wrapper_attr("solver")(), seed=seed)[1:]
        env = TurnLimit(ParseAction(make(env_id, difficulty)), 10**6, announce=True)
        policy = env.get_wrapper_attr("solver")()
        observation, _ = env.reset(seed=seed)
        for action, *_ in alone:
            assert policy(observation) == action
            told = env.step("I am not sure.")[0]
            assert policy(told) == action
            observation, _, terminated, _, now = env.step(f"<action>{action}</action>")
        assert terminated
        assert now["success"] is alone[-1][-1]["success"]


@every_preset
def test_a_solver_plays_on_when_its_actions_are_lost(env_id: str, difficulty: str) -> None:
    """In every other turn something is played that is no action; where time is left it wins still."""
    preset = game_class(env_id).presets.get(difficulty, {})  # type: ignore[call-overload]
    roomy = {name: 2 * preset[name] + more for name, more in ROOM.items() if name in preset}
    for seed in range(3):
        env = make(env_id, difficulty, **roomy)
        policy, garbage = env.get_wrapper_attr("solver")(), env.get_wrapper_attr("garbage")
        observation, _ = env.reset(seed=seed)
        valid, terminated, turn = False, False, 0
        while not terminated:
            action, turn = policy(observation), turn + 1
            observation, _, terminated, _, info = env.step(garbage if turn % 2 else action)
            valid = valid or (turn % 2 == 1 and info["action_valid"])
        if env.get_wrapper_attr("optimal_success") == 1 and not valid:  # an echo has no action that is none
            assert info["success"]


# What the instructions say.

COSTS = (
    r"(?i)anything (that|else)[^.]*\bcosts? |does anything else|so is anything|a guess that is not [^.]* costs |illegal"
)


@every_preset
def test_the_instructions_say_what_no_action_costs_and_when_the_game_is_lost(env_id: str, difficulty: str) -> None:
    env = make(env_id, difficulty)
    instructions, garbage = env.get_wrapper_attr("instructions"), env.get_wrapper_attr("garbage")
    assert len(instructions) < 800
    env.reset(seed=0)
    info, turns, terminated = {"action_valid": False}, 0, False
    while not terminated and turns < 1000:
        _, _, terminated, _, info = env.step(garbage)
        turns += 1
    if info["action_valid"]:  # an echo has no action that is none
        return
    assert terminated, "who never says an action is never done"
    assert re.search(COSTS, instructions), "that no action costs something must be said"
    unit = "turn|try|tries|guess|guesses|miss|misses|illegal action"
    assert re.search(rf"(?<!\d){turns} ({unit})s?\b", instructions), f"that {turns} of them lose must be said"


@every_preset
def test_the_example_in_the_instructions_is_never_how_the_solver_begins(env_id: str, difficulty: str) -> None:
    """A peer's example was drawn from the secrets: whoever repeated it won."""
    env = make(env_id, difficulty)
    examples = re.split(r"\blike:? |\bfor example:? |\bsuch as ", env.get_wrapper_attr("instructions"), flags=re.I)[1:]
    for seed in range(51) if examples else ():
        observation, _ = env.reset(seed=seed)
        action = re.escape(env.get_wrapper_attr("solver")()(observation))
        assert not any(re.search(rf"(?<![\w-]){action}(?![\w'])", example) for example in examples)


@every_env
def test_instructions_have_an_example_or_list_all_actions(env_id: str) -> None:
    env = gym.make(env_id)
    listed = env.reset(seed=0)[1].get("admissible_actions", ())
    instructions = env.get_wrapper_attr("instructions")
    assert re.search("like|for example", instructions) or all(
        re.search(rf"\b{action}\b", instructions) for action in listed
    )


# What is paid.


@pytest.mark.parametrize(("env_id", "arguments"), PAID_FOR_SUCCESS)
def test_by_default_success_is_paid_and_nothing_else(env_id: str, arguments: dict[str, Any]) -> None:
    """Nothing for coming close, when the time is over least of all."""
    for seed in range(10):
        for player in ("solver", "random_policy"):
            env = gym.make(env_id, **arguments)
            policy = env.get_wrapper_attr(player)(*([] if player == "solver" else [seed]))
            for *_, reward, terminated, _, info in play(env, policy, seed=seed)[1:]:
                assert reward == float(info["success"])
                assert terminated or not info["success"]


@pytest.mark.parametrize(("env_id", "arguments"), easiest("shaped"))
def test_a_shaped_reward_pays_nothing_for_the_place_where_it_is_cut_off(env_id: str, arguments: dict[str, Any]) -> None:
    """By a limit of turns, by answers that cannot be read, by actions that are none: less the start's potential."""
    for seed in range(5):
        for cut in (lambda env: TurnLimit(env, 2), lambda env: ParseAction(env, "plain", end_after=1)):
            env = cut(gym.make(env_id, reward="shaped", **arguments))
            policy = env.get_wrapper_attr("random_policy")(seed)
            env.reset(seed=seed)
            start = env.unwrapped._potential()  # type: ignore[attr-defined]
            total, over, turn = 0.0, False, 0
            while not over:
                turn += 1
                action = policy("") if turn < 3 else env.get_wrapper_attr("garbage")
                _, reward, terminated, truncated, info = env.step(action)
                total, over = total + float(reward), terminated or truncated
            assert total == pytest.approx(info["success"] - start)
            assert env.get_wrapper_attr("settlement") == 0.0 or "stop_reason" in info


@every_preset
def test_a_solver_beats_random_play_and_reaches_a_known_optimum(env_id: str, difficulty: str) -> None:
    """Law 9; and one action again and again wins no more than random play does."""
    env, share = make(env_id, difficulty), {}
    episodes = 10 if env_id in ("TrlEnv/CodeAgent-v0", "TrlEnv/ConnectFour-v0") else 50
    for name in ("solver", "random", "constant"):
        policy = env.get_wrapper_attr("baselines")[name]
        played = [play(env, policy(seed), seed=seed)[-1][-1]["success"] for seed in range(episodes)]
        share[name] = sum(played) / episodes
    assert share["solver"] > share["random"]
    if game_class(env_id).reward_modes[0] == "success":
        assert share["constant"] <= max(0.1, share["random"] + 4 * (0.5 / episodes) ** 0.5)
    best = env.get_wrapper_attr("optimal_success")
    if best is not None:
        assert share["solver"] == pytest.approx(best, abs=4 * (best * (1 - best) / episodes) ** 0.5 + 1e-6)


# What is listed.


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
            assert list(dict.fromkeys(listed)) == list(listed)
            assert list(listed) == list(env.get_wrapper_attr("admissible_actions")())
            ever |= set(listed)
            for action in rng.sample(sorted(ever), min(3, len(ever))):
                assert pickle.loads(pickle.dumps(env)).step(action)[-1]["action_valid"] is (action in listed)
            _, _, terminated, _, info = env.step(rng.choice(list(listed)))
            if terminated:
                assert info["admissible_actions"] == []
                break


@pytest.mark.both
@pytest.mark.parametrize(("env_id", "arguments"), EASIEST)
def test_no_text_is_too_strange(env_id: str, arguments: dict[str, Any]) -> None:
    """Fuzzed: whole and broken actions, Unicode, huge, empty, markup; never an exception, always in the space."""
    rng = random.Random(0)
    env = gym.make(env_id, **arguments)
    env.reset(seed=0)
    player = env.get_wrapper_attr("random_policy")(0)
    observation = ""
    for count in range(FUZZED // FEWER.get(env_id, 1)):
        observation, reward, terminated, truncated, info = env.step(strange(rng, player(observation), count))
        assert isinstance(observation, str)
        if count % 50 == 0:
            assert observation in env.observation_space
        assert isfinite(reward)
        assert not truncated
        assert isinstance(info["action_valid"], bool)
        assert isinstance(info["success"], bool)
        if terminated:
            observation, _ = env.reset()


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


@pytest.mark.parametrize(
    ("env_id", "mode", "arguments"),
    [
        *((env_id, "sync", {}) for env_id in IDS),
        # Processes prove the same for every game.
        *((env_id, "async", {"shared_memory": True, "context": "fork"}) for env_id in IDS[::4]),
        *(
            pytest.param(env_id, "async", {"shared_memory": shared, "context": context}, marks=pytest.mark.full)
            for env_id in IDS[::8]
            for shared, context in ((False, "fork"), (True, "spawn"))
        ),
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
    seeds = list(range(max(3, 8 // FEWER.get(env_id, 1)))) * 2

    def scrambled(seed: int) -> list[tuple[Any, ...]]:
        random.random()
        np.random.random()
        return trajectory(env_id, seed)

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(scrambled, seeds)) == [trajectory(env_id, seed) for seed in seeds]


@pytest.fixture(scope="module")
def elsewhere() -> dict[str, str]:
    """Return the trajectories and keys of states in another process with another hash seed, for the order of sets."""
    script = (
        "import gymnasium as gym, gym_trl, json, sys\n"
        "from gym_trl.testing import play\n"
        "from gym_trl.wrappers import StateKey, as_text\n"
        "played = {}\n"
        "for env_id, arguments in json.loads(sys.argv[1]).items():\n"
        "    env = StateKey(as_text(gym.make(env_id, **arguments)))\n"
        "    policies = [env.get_wrapper_attr('random_policy')(seed) for seed in range(5)]\n"
        "    played[env_id] = ascii([play(env, policy, seed=seed) for seed, policy in enumerate(policies)])\n"
        "print(json.dumps(played))\n"
    )
    path = str(Path(gym_trl.__file__).parents[1])
    ran = subprocess.run(
        [sys.executable, "-c", script, json.dumps({env_id: gym.spec(env_id).kwargs for env_id in ELSEWHERE})],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "123"},
    )
    played: dict[str, str] = json.loads(ran.stdout)
    return played


@pytest.mark.parametrize("env_id", ELSEWHERE)
def test_another_process_sees_the_same_game_and_names_its_states_alike(env_id: str, elsewhere: dict[str, str]) -> None:
    env = StateKey(as_text(gym.make(env_id)))
    policies = [env.get_wrapper_attr("random_policy")(seed) for seed in range(5)]
    assert elsewhere[env_id] == ascii([play(env, policy, seed=seed) for seed, policy in enumerate(policies)])


@pytest.mark.parametrize("env_id", COUNTED)
def test_the_same_instance_is_the_same_game_whatever_the_seed(env_id: str) -> None:
    env = gym.make(env_id)
    count = env.get_wrapper_attr("num_instances")
    assert count >= 1
    for instance in [0, count // 2, count - 1, np.int64(0)]:
        policies = [env.get_wrapper_attr("solver")() for _ in range(2)]
        one, other = (play(env, policy, seed=i, options={"instance": instance}) for i, policy in enumerate(policies))
        assert one == other


@pytest.mark.parametrize("env_id", COUNTED)
@pytest.mark.parametrize("instance", [-1, 10**80, 1.0, "0", True])
def test_an_instance_that_does_not_exist_is_refused(env_id: str, instance: Any) -> None:
    with pytest.raises(ConfigError, match="instance must be an integer from 0 to"):
        gym.make(env_id).reset(options={"instance": instance})


@every_env
def test_an_option_that_does_not_exist_is_refused_by_name(env_id: str) -> None:
    with pytest.raises(ConfigError, match=f"{env_id} has no reset option 'nonsense'; it has ") as error:
        gym.make(env_id).reset(options={"nonsense": "hard"})
    assert isinstance(error.value, ValueError)


@pytest.mark.parametrize("env_id", ["TrlEnv/Wordle-v0", "TrlEnv/TicTacToe-v0"])
def test_a_step_before_the_first_reset_is_an_error(env_id: str) -> None:
    with pytest.raises(ResetNeeded, match="call reset"):
        gym.make(env_id).unwrapped.step("1")


@pytest.mark.parametrize("env_id", ["TrlEnv/Wordle-v0", "TrlEnv/TicTacToe-v0"])
def test_an_action_that_is_no_text_is_named(env_id: str) -> None:
    env = gym.make(env_id)
    env.reset(seed=0)
    with pytest.raises(ActionTypeError, match=f"{env_id} takes text as an action, got int: 7"):
        env.step(7)


@pytest.mark.parametrize("env_id", ["TrlEnv/Wordle-v0", "TrlEnv/TicTacToe-v0"])
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


@every_preset
def test_an_environment_is_rebuilt_from_its_spec(env_id: str, difficulty: str) -> None:
    env = make(env_id, difficulty)
    assert env.spec is not None
    again = gym.make(env.spec)
    assert again.get_wrapper_attr("instructions") == env.get_wrapper_attr("instructions")
    assert pickle.loads(pickle.dumps(env)).reset(seed=3) == again.reset(seed=3)


@every_preset
def test_an_instance_is_small(env_id: str, difficulty: str) -> None:
    """Under 64 KB in the middle of a game, apart from what all instances share."""
    env = make(env_id, difficulty)
    play(env, env.get_wrapper_attr("random_policy")(0), seed=0)
    env.reset(seed=0)
    env.step(env.get_wrapper_attr("constant_action"))
    assert len(pickle.dumps(env.unwrapped)) < 2**16


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


class Fragile(Echo):
    def _act(self, action: str) -> Outcome:
        action.encode()
        return super()._act(action)


class Unpicklable(Echo):
    def _start(self, instance: int | None, options: Any) -> str:
        self.hook = lambda: None
        return super()._start(instance, options)


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
        (Fragile, "any text is data|surrogates|encode"),
        (Unpicklable, "must pickle"),
        (Endless, "an episode must end"),
    ],
)
def test_the_kit_notices_a_broken_promise(broken: type[gym.Env[str, str]], said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_text_env(broken)
