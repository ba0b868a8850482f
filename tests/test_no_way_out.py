"""Law 15, no way out pays: what is cut off never returns more than the same prefix played on to a loss."""

import random
from functools import partial
from typing import Any

import gymnasium as gym
import pytest
from hypothesis import given, settings, strategies as st

from gym_trl.bases import Settling
from gym_trl.executors import InlinePool
from gym_trl.executors.step import take_step as take
from gym_trl.rollout import Episode, Limits, rollout, run
from gym_trl.testing import ByteChat, ScriptedEngine
from gym_trl.types import StepResult, StopReason, Task
from gym_trl.wrappers import (
    CutoffReturn,
    Discount,
    InvalidActionPenalty,
    ParseAction,
    PotentialShaping,
    StepPenalty,
    SuccessReward,
    TurnLimit,
    as_text,
)
from gym_trl.wrappers.settlement import settlement

CHAT = ByteChat()
GAMES: dict[str, dict[str, Any]] = {
    "GuessNumber": {"low": 1, "high": 20, "turns": 4},
    "Hangman": {},
    "LightsOut": {"difficulty": "easy"},
    "Mastermind": {"difficulty": "easy"},
    "FrozenLake": {"difficulty": "easy"},
    "TowerOfHanoi": {"difficulty": "easy"},
    "Minesweeper": {"difficulty": "easy"},
    "TicTacToe": {},
    "KuhnPoker": {},
    "Bandit": {"difficulty": "easy"},
    "Echo": {"turns": 3},
}
REWARDS = ("success", "efficient", "shaped", "payoff", "repetition")
WRAPPERS: dict[str, Any] = {
    "none": lambda env: env,
    "step_penalty": partial(StepPenalty, penalty=0.1),
    "invalid_penalty": partial(InvalidActionPenalty, penalty=0.1),
    "discount": partial(Discount, gamma=0.9),
    "discounted_penalty": lambda env: Discount(StepPenalty(env, penalty=0.1), gamma=0.9),
    "penalised_discount": lambda env: StepPenalty(Discount(env, gamma=0.9), penalty=0.1),
    "success": SuccessReward,
    "scaled": lambda env: gym.wrappers.TransformReward(env, lambda reward: 3 * float(reward)),
    "potential": partial(PotentialShaping, potential=lambda env: 0.25 + 0.5 * (env._actions % 2)),
    "parse": partial(ParseAction, format="plain", penalty=0.1),
    "parse_and_end": partial(ParseAction, format="plain", penalty=0.1, end_after=4),
    "limited": lambda env: TurnLimit(StepPenalty(env, penalty=0.1), 30),
}


def take_step(env, action):
    reply = take(env, action)
    assert isinstance(reply, StepResult)
    return reply


class Crash(gym.Wrapper):
    """Breaks at a word."""

    def step(self, action):
        if action == "crash":
            raise KeyError(action)
        return self.env.step(action)


def make(game, reward, wrapper):
    kwargs = GAMES[game]
    env = gym.make(f"TrlEnv/{game}-v0", disable_env_checker=True, **kwargs, **({"reward": reward} if reward else {}))
    return WRAPPERS[wrapper](Crash(env))


def replayed(env, seed, prefix):
    env.reset(seed=seed)
    total = 0.0
    for action in prefix:
        reply = take_step(env, action)
        total += reply.reward
    return total


def losses(env, seed, prefix, chance):
    """Returns of the prefix, played on to a loss in several ways."""
    for how in ("garbage", "random", "mixed", "constant"):
        total = replayed(env, seed, prefix)
        for _ in range(400):
            legal = env.unwrapped.admissible_actions() or [env.unwrapped.constant_action]
            action = {"garbage": "xyzzy", "constant": env.unwrapped.constant_action}.get(how) or chance.choice(
                [*legal, *(["xyzzy"] if how == "mixed" else [])]
            )
            reply = take_step(env, action)
            total += reply.reward
            if reply.terminated or reply.truncated:
                if not reply.info.get("success") and (env.unwrapped.reward != "payoff" or reply.reward <= 0):
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
    if len(whole.turns) <= len(prefix):
        return None
    used = whole.turns[len(prefix)].spans[-1].start
    return Limits(context=used + len(whole.row.prompt_ids)) if context else Limits(tokens=used)


@pytest.mark.parametrize("game", GAMES)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    made=st.tuples(st.sampled_from(REWARDS), st.sampled_from(sorted(WRAPPERS))),
    seed=st.integers(0, 500),
    length=st.integers(1, 6),
    ending=st.sampled_from(["crash", "tokens", "context"]),
)
def test_a_cut_off_episode_returns_no_more_than_its_prefix_lost(game, made, seed, length, ending):
    (reward, wrapper), chance = made, random.Random(seed)
    game_itself: Any = gym.make(f"TrlEnv/{game}-v0", disable_env_checker=True).unwrapped
    env = make(game, reward if reward in game_itself.reward_modes else None, wrapper)
    env.reset(seed=seed)
    prefix = []
    for _ in range(length):
        legal = env.unwrapped.admissible_actions() or [env.unwrapped.constant_action]
        prefix.append(chance.choice([*legal, "xyzzy"]))
        reply = take_step(env, prefix[-1])
        if reply.terminated or reply.truncated:
            return
    if ending == "crash":
        played = play(env, seed, [*prefix, "crash"])
        assert played.stop_reason is StopReason.CRASHED
    else:
        limits = budget(env, seed, prefix, context=ending == "context")
        played = play(env, seed, prefix, limits=limits)
        assert played.stop_reason is StopReason.TOKEN_LIMIT
        assert len(played.turns) == len(prefix)
    for lost in losses(env, seed, prefix, chance):
        assert played.episode_return <= lost + 1e-9


def shaped(turns=4):
    return gym.make("TrlEnv/GuessNumber-v0", high=8, turns=turns, reward="shaped", disable_env_checker=True)


@pytest.mark.parametrize("ends", ["parse_error", "turn_limit", "time_limit"])
def test_an_ending_by_a_wrapper_is_settled_once(ends):
    inside = PotentialShaping(shaped(), potential=lambda game: 0.5)
    env = {
        "parse_error": lambda: TurnLimit(ParseAction(inside, "tag", end_after=1), 9),
        "turn_limit": lambda: ParseAction(TurnLimit(inside, 2), "tag"),
        "time_limit": lambda: ParseAction(gym.wrappers.TimeLimit(inside, 2), "tag"),
    }[ends]()
    env.reset(options={"instance": 6})
    total = 0.0
    for answer in ("<action>4</action>", "none" if ends == "parse_error" else "<action>6</action>"):
        reply = take_step(env, answer)
        total += reply.reward
    assert reply.terminated or reply.truncated
    assert total == pytest.approx(-0.5)


class Foreign(gym.Env):
    """Somebody else's, whose steps cost and whose losses cost more."""

    def __init__(self):
        self.observation_space = self.action_space = gym.spaces.Text(99)

    def reset(self, *, seed=None, options=None):
        return "begin", {}

    def step(self, action):
        return "on", -1.0, False, False, {}


class Declares(Foreign):
    settlement = -7.0


def test_a_foreign_environment_declares_what_a_loss_costs():
    env = TurnLimit(ParseAction(Declares(), "plain", end_after=2), 9)
    assert play(env, 0, ["a", "b"], limits=Limits(tokens=40)).episode_return == -7.0
    assert gym_limit(Declares()) == -9.0


def gym_limit(env):
    env = gym.wrappers.TimeLimit(env, 2)
    env.reset(seed=0)
    return sum(take_step(env, "a").reward for _ in range(2))


def test_a_cutoff_return_bounds_what_an_environment_does_not_declare():
    env = CutoffReturn(TurnLimit(Foreign(), 99), -50.0)
    played = play(env, 0, ["a", "b"], limits=Limits(tokens=40))
    assert played.stop_reason is StopReason.TOKEN_LIMIT
    assert played.episode_return == -50.0
    env = CutoffReturn(ParseAction(Foreign(), "tag", end_after=2), -50.0)
    assert play(env, 0, ["a", "b"]).episode_return == -50.0
    with pytest.raises(ValueError, match="must be a finite number"):
        CutoffReturn(Foreign(), float("-inf"))


@pytest.mark.parametrize(
    ("env_id", "owed"), [("CliffWalking-v1", -100.0), ("Blackjack-v1", -1.0), ("MountainCar-v0", -200.0)]
)
def test_what_gymnasiums_own_environments_cost_is_known(env_id, owed):
    env = as_text(gym.make(env_id))
    env.reset(seed=3)
    assert settlement(env) == owed


class Stakes(Foreign):
    """Says that it owes nothing, and its subclass settles otherwise."""

    settlement = 0.0
    owes = False


class Other(Stakes):
    settlement = -3.0


def test_an_environment_that_owes_nothing_is_asked_once():
    asked = []

    class Asked(Settling, Foreign):
        owes = False

        @property
        def settlement(self):
            asked.append(self)
            return 0.0

    env = TurnLimit(ParseAction(Asked(), "plain"), 9)
    env.reset(seed=0)
    settlement(env)
    asked.clear()
    assert [take_step(env, "a").settlement for _ in range(5)] == [0.0] * 5
    assert not asked


class Kept(Settling, Foreign):
    settlement = 0.0
    owes = False


class OtherKept(Kept):
    settlement = -3.0


def test_a_settlement_of_a_subclass_counts_whatever_its_base_class_owes():
    for env in (Stakes(), Other(), Kept(), OtherKept()):
        assert settlement(TurnLimit(ParseAction(env, "plain"), 9)) == env.settlement
    assert settlement(TurnLimit(ParseAction(Stakes(), "plain", penalty=0.5), 9)) == -4.5
