"""Law 15, no way out pays: what is cut off never returns more than the same prefix played on to a loss."""

import random
from functools import partial
from typing import Any

import gymnasium as gym
import pytest
from hypothesis import given, settings, strategies as st
from support.games import IDS, SEATS, game_class

from gym_trl.errors import ConfigError
from gym_trl.executors import InlinePool
from gym_trl.executors.inline import take_step
from gym_trl.rollout import Episode, Limits, rollout, run
from gym_trl.testing import ByteChat, ScriptedEngine
from gym_trl.types import StopReason, Task
from gym_trl.wrappers import (
    InvalidActionPenalty,
    Opponent,
    ParseAction,
    PotentialShaping,
    StepPenalty,
    SuccessReward,
    TurnLimit,
    as_text,
)
from gym_trl.wrappers.turn_limit import loss_return_of

CHAT = ByteChat()
UNLIMITED = "TrlEnv/ConnectFour-v0", "TrlEnv/TicTacToe-v0"
"""Games without a limit on turns, in which costs of actions are charged once."""
GAMES = [env_id for env_id in IDS if env_id not in ("TrlEnv/CodeAgent-v0", *UNLIMITED)]


def progress(game: Any) -> float:
    """Return a potential that goes up and down."""
    return 0.1 * (len(game._last.text if game._last else "") % 7)


WRAPPERS: dict[str, Any] = {
    "none": lambda env: env,
    "step_penalty": partial(StepPenalty, penalty=0.1),
    "invalid_penalty": partial(InvalidActionPenalty, penalty=0.1),
    "success": SuccessReward,
    "scaled": lambda env: gym.wrappers.TransformReward(env, lambda reward: 3 * float(reward)),
    "shifted": lambda env: gym.wrappers.TransformReward(env, lambda reward: float(reward) - 0.1),
    "potential": partial(PotentialShaping, potential=progress),
    "parse": partial(ParseAction, format="plain"),
    "parse_and_end": lambda env: InvalidActionPenalty(ParseAction(env, "plain", end_after=4), 0.1),
    "limited": lambda env: TurnLimit(StepPenalty(env, penalty=0.1), 30),
    "limited_shaping": lambda env: StepPenalty(TurnLimit(PotentialShaping(env, progress), 9), penalty=0.1),
}


class Crash(gym.Wrapper):
    """Breaks at a word."""

    def step(self, action):
        if action == "crash":
            raise KeyError(action)
        return self.env.step(action)


def make(env_id, wrapper):
    env = gym.make(env_id, disable_env_checker=True, difficulty=next(iter(game_class(env_id).presets)))
    return WRAPPERS[wrapper](Crash(Opponent(env) if env_id in SEATS else env))


def losses(env, seed, prefix, chance):
    """Returns of the prefix, played on to a loss in several ways."""
    for how in ("garbage", "random", "mixed"):
        env.reset(seed=seed)
        total = sum(take_step(env, action).reward for action in prefix)
        guess = env.get_wrapper_attr("random_policy")(chance.randrange(99))
        for _ in range(400):
            garbage = how == "garbage" or (how == "mixed" and chance.random() < 0.5)
            reply = take_step(env, "xyzzy" if garbage else guess(""))
            total += reply.reward
            if reply.terminated or reply.truncated:
                if not reply.info.get("success"):
                    yield total
                break


def play(env, seed, actions, *, limits=None) -> Episode:
    """The episode whose model says these actions; it ends with the last one at the latest."""
    said = iter(actions)
    engine = ScriptedEngine(lambda request: CHAT.say(next(said, "x" * 50)))
    limits = limits or Limits(tokens_per_turn=99)
    with InlinePool(lambda env_id: env) as pool:
        [[played]] = run(rollout([Task("game", seed)], pool=pool, engine=engine, chat=CHAT, limits=limits))
    return played


def budget(env, seed, prefix, *, context):
    """Limits that have room for the prefix and for nothing more."""
    whole = play(env, seed, [*prefix, "crash"])
    used = whole.turns[len(prefix)].spans[-1].start
    return Limits(context=used + len(whole.row.prompt_ids)) if context else Limits(tokens=used)


@pytest.mark.parametrize("env_id", GAMES)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    wrapper=st.sampled_from(sorted(WRAPPERS)),
    seed=st.integers(0, 500),
    length=st.integers(1, 6),
    ending=st.sampled_from(["crash", "tokens", "context"]),
)
def test_a_cut_off_episode_returns_no_more_than_its_prefix_lost(env_id, wrapper, seed, length, ending):
    chance, env = random.Random(seed), make(env_id, wrapper)
    env.reset(seed=seed)
    guess, prefix = env.get_wrapper_attr("random_policy")(seed), []
    for _ in range(length):
        prefix.append("xyzzy" if chance.random() < 0.3 else guess(""))
        reply = take_step(env, prefix[-1])
        if reply.terminated or reply.truncated:
            return
    if ending == "crash":
        played = play(env, seed, [*prefix, "crash"])
        assert played.stop_reason is StopReason.CRASHED
    else:
        played = play(env, seed, prefix, limits=budget(env, seed, prefix, context=ending == "context"))
        assert played.stop_reason is StopReason.TOKEN_LIMIT
        assert len(played.turns) == len(prefix)
    for lost in losses(env, seed, prefix, chance):
        assert played.episode_return <= lost + 1e-9


class Foreign(gym.Env):
    """Somebody else's: each step pays, and a loss costs what the environment declares."""

    loss_return: float | None = None

    def __init__(self, pays: float = 0.25) -> None:
        self.observation_space = self.action_space = gym.spaces.Text(99)
        self.pays = pays

    def reset(self, *, seed=None, options=None):
        return "begin", {}

    def step(self, action):
        return "on", self.pays, False, False, {}


class Declares(Foreign):
    loss_return = -7.0


def returned(env, *actions: str) -> float:
    env.reset(seed=0)
    return float(sum(take_step(env, action).reward for action in actions))


def test_progress_that_a_wrapper_paid_is_taken_back_once_however_an_episode_ends():
    def inside():
        return PotentialShaping(Foreign(0.0), potential=lambda env: 0.5)

    for env, actions in (
        (TurnLimit(ParseAction(inside(), "tag", end_after=1), 9), ["<action>4</action>", "none"]),
        (ParseAction(TurnLimit(inside(), 2), "tag"), ["<action>4</action>"] * 2),
        (
            ParseAction(PotentialShaping(gym.wrappers.TimeLimit(Foreign(0.0), 2), lambda _: 0.5)),
            ["<action>4</action>"] * 2,
        ),
    ):
        assert returned(env, *actions) == pytest.approx(-0.5)
        assert play(env, 0, actions).episode_return == pytest.approx(-0.5)


def test_a_foreign_environment_declares_what_a_loss_returns():
    env = TurnLimit(ParseAction(Declares(), "plain", end_after=2), 9)
    assert play(env, 0, ["a", "b"], limits=Limits(tokens=40)).episode_return == -7.0
    assert returned(TurnLimit(Declares(), 2), "a", "b") == 0.5 - 7.0


def test_without_a_declaration_a_turn_limit_leaves_what_was_paid_and_other_cuts_take_it_back():
    assert returned(TurnLimit(Foreign(), 2), "a", "b") == 0.5
    assert play(TurnLimit(Foreign(), 99), 0, ["a", "b"], limits=Limits(tokens=40)).episode_return == 0.0
    paid = play(TurnLimit(Foreign(-1.0), 99), 0, ["a", "b"], limits=Limits(tokens=40)).episode_return
    assert (paid or 0.0) < -1.0


@pytest.mark.parametrize(
    ("env_id", "worth"),
    [("CliffWalking-v1", -100.0), ("Blackjack-v1", -1.0), ("MountainCar-v0", -200.0), ("CartPole-v1", None)],
)
def test_what_gymnasiums_own_environments_cost_is_known(env_id, worth):
    env = as_text(gym.make(env_id))
    env.reset(seed=3)
    assert loss_return_of(env) == worth


def test_a_penalty_of_every_turn_counts_the_turns_of_the_smallest_limit():
    env = TurnLimit(StepPenalty(Declares(), 0.5), 4)
    env.reset()
    assert loss_return_of(env) == loss_return_of(StepPenalty(TurnLimit(Declares(), 4), 0.5)) == -9.0


@pytest.mark.parametrize("declared", [float("nan"), float("inf"), float("-inf")])
def test_a_loss_that_is_no_finite_number_is_refused_by_its_name(declared):
    foreign = Foreign()
    foreign.loss_return = declared
    with pytest.raises(ConfigError, match="loss_return"):
        play(TurnLimit(foreign, 4), 0, ["a"])
