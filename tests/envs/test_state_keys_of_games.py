"""Every game names its state: equal keys mean equal games from there on (in every process: ``test_every_env``)."""

import random
from functools import partial
from typing import Any

import gymnasium as gym
import pytest
from hypothesis import given, strategies as st
from support.games import IDS, SEATS

from gym_trl.check import check
from gym_trl.envspec import EnvSpec
from gym_trl.executors import make_pool
from gym_trl.executors.inline import TextEnvironment
from gym_trl.random_play import Act, random_play
from gym_trl.rollout import rollout, run
from gym_trl.testing import ByteChat, ScriptedEngine
from gym_trl.types import Task
from gym_trl.wrappers import StateKey, as_text

WITHOUT = {"TrlEnv/CodeAgent-v0"}
"""Games whose state cannot be known: a program may do anything."""
every_game = pytest.mark.parametrize("env_id", [env_id for env_id in IDS if env_id not in WITHOUT])
TOYS: list[Any] = [
    ("FrozenLake-v1", {}),
    ("FrozenLake-v1", {"is_slippery": False}),
    pytest.param("CliffWalking-v1", {}, marks=pytest.mark.slow),
    ("CliffWalking-v1", {"is_slippery": True}),
    pytest.param("Taxi-v4", {}, marks=pytest.mark.slow),
    ("Taxi-v4", {"is_rainy": True, "fickle_passenger": True}),
    ("Blackjack-v1", {}),
]


def made(env_id: str, **arguments: Any) -> TextEnvironment:
    """Return an environment as text, in its easiest preset."""
    presets = getattr(gym.make(env_id).unwrapped, "presets", None)
    preset: dict[str, Any] = {"difficulty": next(iter(presets))} if presets else {}
    return as_text(gym.make(env_id, **preset, **arguments))


def legal(env: TextEnvironment, seed: int) -> Act:
    """Return a policy that plays random legal actions and, now and then, what is none."""
    rng, act = random.Random(seed), random_play(env, seed)
    return lambda observation, info: "xyzzy" if rng.random() < 0.1 else act(observation, info)


def played(env: StateKey, seed: int, *actions: str) -> list[str]:
    """Return the keys of an episode, from the one after the reset."""
    env.reset(seed=seed)
    keys = [env.state.key]
    for action in actions:
        env.step(action)
        keys.append(env.state.key)
    return keys


@pytest.mark.parametrize(("env_id", "arguments"), [*((one, {}) for one in IDS if one not in SEATS), *TOYS], ids=str)
def test_states_that_share_a_key_behave_alike(env_id: str, arguments: dict[str, Any]) -> None:
    """A planted fault shows that the check looks at them (``test_planted``)."""
    report = check(partial(made, env_id, **arguments), only=["state key"], episodes=3)
    assert not report.failed, report


@every_game
def test_tasks_that_share_a_name_are_the_same_whatever_the_seed(env_id: str) -> None:
    env = StateKey(made(env_id))
    count = env.unwrapped.num_instances  # type: ignore[attr-defined]
    options = None if count is None else {"instance": count - 1}
    walks = []
    for seed in (0, 1):
        begun, info = env.reset(seed=seed, options=options)
        policy = legal(env, 5)
        walks.append([(env.task_key, env.state, begun)])
        for _ in range(20):
            begun, *result, info = env.step(policy(begun, info))
            walks[-1].append((env.state, begun, *result))
            if any(result[1:]):
                break
    if walks[0][0][:2] == walks[1][0][:2] and walks[0][0][0]:
        assert walks[0] == walks[1]


def test_a_task_has_a_name_where_its_number_and_the_state_say_all() -> None:
    def begin(env: Any, seed: int) -> tuple[str, str]:
        key = StateKey(as_text(env))
        key.reset(seed=seed)
        return key.task_key, key.state.key

    lamp = partial(gym.make, "TrlEnv/LightsOut-v0", size=1)
    lake = partial(gym.make, "FrozenLake-v1")
    assert begin(lamp(), 0) == begin(lamp(), 1) != ("", "")
    assert begin(lake(is_slippery=False), 0) == begin(lake(is_slippery=False), 1)
    assert begin(lake(), 0) != begin(lake(), 1)  # the generator is part of the state
    assert begin(gym.make("TrlEnv/Bandit-v0"), 0)[0] == ""  # what its arms pay is drawn
    assert begin(gym.make("TrlEnv/GuessNumber-v0", high=2), 0)[0] in {"0", "1"}


@pytest.mark.parametrize("env_id", sorted(WITHOUT))
def test_a_game_without_a_known_state_is_named_by_its_history(env_id: str) -> None:
    env = StateKey(gym.make(env_id))
    try:
        env.reset(seed=0)
        assert not env.markov_state_key
    finally:
        env.close()


@every_game
def test_each_turn_of_an_episode_has_a_key(env_id: str) -> None:
    spec = EnvSpec(env_id, state_keys=True, action_format=None, turn_limit=6)
    with spec.checked(env_id) as env:
        policy, actions = env.get_wrapper_attr("random_policy")(3), []
        observation, over = env.reset(seed=3)[0], False
        while not over:
            actions.append(policy(observation))
            observation, _, terminated, truncated, _ = env.step(actions[-1])
            over = terminated or truncated
    chat, said = ByteChat(), iter(actions)
    engine = ScriptedEngine(lambda request: chat.say(next(said)))
    with make_pool(spec.make, executor="inline") as pool:
        [[episode]] = run(rollout([Task(env_id, 3)], pool=pool, engine=engine, chat=chat))
    assert episode.error is None
    assert len(episode.turns) == len(actions)
    assert all(turn.state.key for turn in episode.turns)
    assert episode.reset.markov_keys


# ---------------------------------------------------------------------------------------------------------------------
# One state, reached in several ways
# ---------------------------------------------------------------------------------------------------------------------


def alike(env_id: str, one: tuple[str, ...], other: tuple[str, ...], **arguments: Any) -> bool:
    """Return whether two histories of a task lead to one key."""
    env = StateKey(as_text(gym.make(env_id, **arguments)))
    return played(env, 1, *one)[-1] == played(env, 1, *other)[-1]


def test_one_board_of_lights_has_one_key() -> None:
    assert alike("TrlEnv/LightsOut-v0", ("1 1", "2 3"), ("2 3", "1 1"))
    assert not alike("TrlEnv/LightsOut-v0", ("1 1", "no press"), ("1 1", "2 3"))


def test_time_is_part_of_the_state_where_turns_are_limited() -> None:
    assert not alike("TrlEnv/GuessNumber-v0", ("1",), ("1", "1"))
    assert alike("TrlEnv/GuessNumber-v0", ("1", "nothing"), ("nothing", "1"))
    left, down = "Move left", "Move down"
    assert alike("FrozenLake-v1", (left, left, down), (left, down, left), is_slippery=False)
    assert not alike("FrozenLake-v1", (left, down), (down,), is_slippery=False)


def test_what_was_learnt_is_part_of_a_hidden_state() -> None:
    assert not alike("TrlEnv/GuessNumber-v0", ("1",), ("2",))
    assert alike("TrlEnv/Wordle-v0", ("crane", "moist"), ("moist", "crane"), difficulty="medium")
    assert not alike("TrlEnv/Wordle-v0", ("crane",), ("moist",), difficulty="medium")


@given(st.permutations(["A", "B", "B", "x"]))
def test_the_order_of_pulls_does_not_matter(pulls: list[str]) -> None:
    env = StateKey(gym.make("TrlEnv/Bandit-v0"))
    assert played(env, 2, *pulls)[-1] == played(env, 2, *sorted(pulls))[-1]
