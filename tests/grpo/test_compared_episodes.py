"""One definition of a group for means, scales and dead groups; and whose rewards are those of the environment."""

import math
import warnings
from functools import partial
from typing import Any
from zlib import crc32

import gymnasium as gym
import pytest
import torch
from hypothesis import assume, example, given, settings, strategies as st
from support import tiny_trainer
from support.credited import SIZE, credited
from support.lanes import examples

from gym_trl.grpo.credit import ESTIMATORS
from gym_trl.grpo.credit.groups import SPREAD
from gym_trl.grpo.parts.dead_groups import dead_groups, scored_member
from gym_trl.grpo.rewards import env_reward
from gym_trl.report import Verdict
from gym_trl.spaces import AnyText
from gym_trl.training.findings import Played, group_spread
from gym_trl.types import Answer, EpisodeResult, StopReason, Task, TokenTrace, Turn

pytestmark = pytest.mark.trl
RETURNS = st.sampled_from([-20.0, -1.0, 0.0, 0.5, 1.0, 20.0])


def played(rewards, *, task=0, seat=None, scored=True):
    """Return an episode whose turns all begin in the task's one state, which is declared Markov."""
    turns = tuple(
        Turn("go", Answer("", "a"), reward, True, 2 * number, 2 * number + 1) for number, reward in enumerate(rewards)
    )
    keys = tuple(f"task {task} turn {turn}" for turn in range(len(turns) + 1))
    reason = StopReason.TERMINATED if scored else StopReason.ENV_ERROR
    about: dict[str, Any] = {"state_keys": keys, "markov_keys": True, "task_key": f"task {task}", "seat": seat}
    return EpisodeResult(Task("Some-v0", task), reason, turns, (), TokenTrace([1], [2], [1], [0.0]), **about)


def assigned(episodes, credit, reward_funcs=(env_reward,), weights=None, *, scale="group"):
    """Return the advantages that credit per turn assigns to episodes."""
    return credited(episodes, credit, reward_funcs, weights, scale=scale).values


def by_hand(values, scale, *, leave_out):
    """Return the advantages of episodes of one turn that are compared with each other."""
    if len(values) == 1:
        return [0.0]
    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    found = [value - mean for value in values]
    if leave_out:  # each is compared with the mean of the others
        found = [value * len(values) / (len(values) - 1) for value in found]
        deviation = max(deviation, math.sqrt(sum(value**2 for value in found) / len(found)))
    return [value / (deviation + 1e-4 if scale == "group" else 1.0) for value in found]


@st.composite
def batches(draw):
    """Groups of one-turn episodes of one or two seats, some of the same task; returns differ by seat and task."""
    seats = draw(st.sampled_from([1, 2]))
    rows = []
    for _ in range(draw(st.integers(1, 3))):
        task = draw(st.integers(0, 1))
        for member in range(SIZE):
            seat = member % 2 if seats == 2 else None
            worth = draw(RETURNS) + 100 * (seat or 0) + 1000 * task
            rows.append(played([worth], task=task, seat=seat, scored=draw(st.integers(0, 5)) > 0))
    return rows


def sets_of(episodes, credit):
    """Return the places that are compared with each other."""
    found: dict[Any, list[int]] = {}
    for place, one in enumerate(episodes):
        if one.scored:
            whose = one.task.seed if credit == "pool" else place // SIZE
            found.setdefault((whose, one.seat), []).append(place)
    return found.values()


@settings(examples(100))
@given(episodes=batches(), credit=st.sampled_from(["episode", "pool"]), scale=st.sampled_from(["group", "none"]))
@example(  # seats whose returns are far apart, and alike within a seat but for 1
    episodes=[played([value], seat=seat) for value, seat in ((0.0, 0), (100.0, 1), (1.0, 0), (101.0, 1))],
    credit="episode",
    scale="group",
)
def test_mean_and_deviation_are_of_the_same_episodes(episodes, credit, scale):
    assume(any(one.scored for one in episodes))
    found = assigned(episodes, ESTIMATORS[credit], scale=scale)
    for places in sets_of(episodes, credit):
        right = by_hand([episodes[place].episode_return for place in places], scale, leave_out=credit == "pool")
        for place, value in zip(places, right, strict=True):
            assert found[place] == pytest.approx([value], rel=1e-4, abs=1e-6)


@settings(examples(100))
@given(episodes=batches(), credit=st.sampled_from(["episode", "return_to_go", "pool"]))
@example(episodes=[played([1.0])] * SIZE + [played([0.0])] * SIZE, credit="pool")
def test_a_group_is_dead_if_and_only_if_the_training_gives_it_no_advantage(episodes, credit):
    assume(any(one.scored for one in episodes))
    dead, found = credited(episodes, ESTIMATORS[credit]).dead, assigned(episodes, ESTIMATORS[credit], scale="none")
    scored = {place // SIZE for place, one in enumerate(episodes) if one.scored}
    alive = {place // SIZE for place, values in enumerate(found) if any(abs(value) > SPREAD for value in values)}
    members = [scored_member(place // SIZE, one) for place, one in enumerate(episodes) if one.scored]
    assert dead_groups(members, ESTIMATORS[credit]) == sorted(scored - alive)
    assert dead == len(scored - alive) * SIZE / len(episodes)


# ---------------------------------------------------------------------------------------------------------------------
# The environment's return among the reward functions
# ---------------------------------------------------------------------------------------------------------------------


class Rewarding:
    """Object with a method that pays the return."""

    def pay(self, **columns):
        return env_reward(**columns)

    def __call__(self, *, episode_return, **_):
        return list(episode_return)


def length(*, turn_rewards, **_):
    return [0.25 * len(rewards) for rewards in turn_rewards]


def nothing(*, turn_rewards, **_):
    return [None] * len(turn_rewards)


CALLS = {
    "partial": partial(env_reward),
    "partial of partial": partial(partial(env_reward), log_extra=None),
    "lambda": lambda **columns: list(env_reward(**columns)),
    "method": Rewarding().pay,
    "object": Rewarding(),
}
EPISODES = st.lists(
    st.lists(st.sampled_from([0.0, 1.0, -0.5, 1 / 3]), min_size=1, max_size=4), min_size=SIZE, max_size=2 * SIZE
).map(lambda rows: [played(row) for row in rows[: len(rows) // SIZE * SIZE]])


@settings(examples(100))
@given(
    episodes=EPISODES,
    call=st.sampled_from(sorted(CALLS)),
    others=st.lists(st.sampled_from([length, nothing]), max_size=2),
    weights=st.lists(st.sampled_from([1.0, 0.5, 2.0, -1.0]), min_size=3, max_size=3),
    credit=st.sampled_from(["return_to_go", "pool"]),
)
@example(
    episodes=[played([1.0, 0.0]), played([0.0, 1.0]), played([1.0, 1.0]), played([0.0, 0.0])],
    call="lambda",
    others=[length],
    weights=[2.0, 1.0, 1.0],
    credit="return_to_go",
)
def test_a_function_that_pays_the_return_is_env_reward_whatever_it_is(episodes, call, others, weights, credit):
    assume(len({one.episode_return for one in episodes}) > 1)
    used = weights[: 1 + len(others)]
    right = assigned(episodes, credit, [env_reward, *others], used)
    found = assigned(episodes, credit, [CALLS[call], *others], used)
    assert found == [pytest.approx(row, abs=1e-9) for row in right]


class Paying(gym.Env):
    """Game of three turns, each of which pays by a coin that the response flips."""

    observation_space = action_space = AnyText()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._left, self._paid = 3, 0.0
        return "begin", {}

    def step(self, action):
        self._left -= 1
        self._paid = self._paid_for(action)
        return "go on", self._paid, self._left == 0, False, {}

    def _paid_for(self, action):
        return float(crc32(action.encode()) % 3)


class Late(Paying):
    """The same, but all that the response chooses is if 1 is paid in the first turn or in the second."""

    def _paid_for(self, action):
        return [0.0, 1.0 - self._paid, float(crc32(action.encode()) % 2)][self._left]


class Alike(Paying):
    """Game of which all episodes return the same, which 32 bits do not have exactly, or none do."""

    def __init__(self, paid=-0.2, odd=0.0):
        self.paid, self.odd = paid, odd

    def _paid_for(self, action):
        return self.paid + self.odd * (crc32(action.encode()) % 64)


def trained(folder, env, *reward_funcs, credit="return_to_go", **grpo):
    """Return a trainer that was trained for a step."""
    settings = {"instructions": "", "num_tasks": 4, "num_eval_tasks": 0, "executor": "inline"}
    spec = tiny_trainer.plain_spec(env, credit=credit, **settings)
    grpo = {"per_device_train_batch_size": 8, "max_steps": 1, "learning_rate": 1e-2, **grpo}
    torch.manual_seed(0)
    trainer = tiny_trainer.make(folder, spec, grpo=grpo, reward_funcs=list(reward_funcs), eval_dataset=None)
    trainer.train()
    return trainer


def test_a_training_is_the_same_whatever_env_reward_is_wrapped_in(tmp_path):
    own = tiny_trainer.weights_of(trained(tmp_path, Paying, env_reward))
    assert torch.equal(own, tiny_trainer.weights_of(trained(tmp_path, Paying, CALLS["method"])))
    with pytest.warns(UserWarning, match="no function in reward_funcs pays"):
        assert not torch.equal(own, tiny_trainer.weights_of(trained(tmp_path, Paying, length)))


def test_equal_returns_of_unequal_turns_are_not_logged_as_dead(tmp_path):
    logs = trained(tmp_path, Late, env_reward).state.log_history[0]
    assert (logs["reward_std"], logs["frac_reward_zero_std"]) == (0.0, 0.0)


@pytest.mark.parametrize("scale", ["group", "none"])
@pytest.mark.parametrize("credit", ["episode", "return_to_go"])
@pytest.mark.parametrize("paid", [-0.2, 0.1, 1 / 3, 0.0])
def test_groups_of_equal_returns_are_logged_as_dead(tmp_path, paid, credit, scale):
    """TRL's own metric is 0 where 32 bits do not have the return."""
    logs = trained(tmp_path, partial(Alike, paid), env_reward, credit=credit, scale_rewards=scale).state.log_history[0]
    assert logs["frac_reward_zero_std"] == 1.0


def test_groups_of_nearly_equal_returns_are_not_logged_as_dead(tmp_path):
    logs = trained(tmp_path, partial(Alike, 0.1, 1e-4), env_reward, credit="episode").state.log_history[0]
    assert logs["frac_reward_zero_std"] == 0.0


def test_two_functions_that_pay_the_return_pay_it_with_both_weights():
    episodes = [played([1.0, 0.0]), played([0.0, 2.0]), played([1.0, 1.0, 0.5]), played([0.0])]
    both = assigned(episodes, "return_to_go", [env_reward, CALLS["lambda"]], [1.0, 0.5], scale="none")
    assert both == [pytest.approx(row) for row in assigned(episodes, "return_to_go", weights=[1.5], scale="none")]


def test_what_is_added_to_the_return_is_paid_with_the_last_turn_and_said():
    """Returns to go by hand: with the turns' own rewards they are 2 1, 0 0; paid at the end, also 2 2."""
    episodes = [played([1.0, 1.0]), played([0.0, 0.0])] * 2

    def shaped(**columns):
        return [(value or 0.0) + 0.25 * (place % 2) for place, value in enumerate(env_reward(**columns))]

    with pytest.warns(UserWarning, match=r"no function in reward_funcs pays the episodes' returns.*env_reward"):
        found = assigned(episodes, "return_to_go", [shaped], scale="none")
    assert found[0] == pytest.approx([2 - (2 + 0.25 + 0.25) / 3] * 2)


def test_nothing_is_said_where_all_is_paid_with_the_last_turn_anyway():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assigned([played([0.0, 1.0]), played([0.0, 0.0])] * 2, "return_to_go", [length])


def test_in_a_batch_of_equal_returns_only_a_known_function_pays_them():
    """A function that pays nothing pays what episodes that earn nothing return."""
    episodes = [played([1.0, -1.0]), played([-1.0, 1.0])] * 2
    zeros = [env_reward, lambda turn_rewards, **_: [0.0] * len(turn_rewards)]
    found = assigned(episodes, "return_to_go", zeros, [1.0, 3.0], scale="none")
    assert found == [pytest.approx(row) for row in assigned(episodes, "return_to_go", scale="none")]


@settings(examples(30))
@given(episodes=EPISODES, credit=st.sampled_from(["episode", "return_to_go", "pool"]))
@example(episodes=[played([1.0, 0.0]), played([0.0, 1.0])] * 2, credit="return_to_go")
def test_the_doctor_calls_a_group_dead_where_the_training_gives_it_no_advantage(episodes, credit):
    about: dict[str, Any] = {"best": None, "group_size": SIZE, "readable": Verdict.OK, "credit": credit}
    finding = group_spread(Played(episodes, group_size=SIZE, ends=()), **about)
    found = assigned(episodes, ESTIMATORS[credit], scale="none")
    alive = {place // SIZE for place, values in enumerate(found) if any(abs(value) > SPREAD for value in values)}
    assert finding.numbers["spread"] == len(alive) / (len(episodes) // SIZE)
