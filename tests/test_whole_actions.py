"""Law 19: half an action is no action."""

from typing import Any

import gymnasium as gym
import pytest
from hypothesis import given, strategies as st
from support.lanes import examples

from gym_trl import GymSpec
from gym_trl.executors import InlinePool
from gym_trl.executors.inline import take_step
from gym_trl.rollout import Episode, Limits, rollout, run
from gym_trl.testing import ByteChat, ScriptedEngine
from gym_trl.text.parsing import CUT
from gym_trl.types import StepResult, StopReason, Task, UnfinishedResponse
from gym_trl.wrappers import InvalidActionPenalty, ParseAction, TurnLimit

CHAT = ByteChat()
FORMATS = ["tag", "boxed", "json:move", "plain", r"regex:move (\d+)", None]
MARKED = {
    "tag": "<action>{}</action>",
    "boxed": r"\boxed{{{}}}",
    "json:move": '{{"move": {}}}',
    "plain": "{}",
    r"regex:move (\d+)": "move {}",
    None: "{}",
}


class Heard(gym.Env[str, str]):
    """Environment that keeps what it was given, and declares nothing."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012
    heard: list[str]

    def __init__(self, rewards: tuple[float, ...] = ()) -> None:
        self.observation_space = self.action_space = gym.spaces.Text(100)
        self.rewards = rewards

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self.heard = []
        return "go", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.heard.append(action)
        over = len(self.heard) > len(self.rewards)
        return "on", 0.0 if over else self.rewards[len(self.heard) - 1], over, False, {}


def played(env: gym.Env[Any, Any], answer: str, tokens: int, turns: int = 1, **limits: Any) -> Episode:
    """An episode of a model that always says ``answer``, of which ``tokens`` bytes are sampled in a turn."""
    engine = ScriptedEngine(lambda request: CHAT.say(answer))
    budget = Limits(tokens_per_turn=tokens, **limits)
    with InlinePool(lambda _: TurnLimit(env, turns)) as pool:
        [[one]] = run(rollout([Task("Heard", 0)], pool=pool, engine=engine, chat=CHAT, limits=budget))
    return one


@examples(60)
@given(st.sampled_from(FORMATS), st.integers(10, 999), st.sampled_from(["", "So: "]), st.data())
def test_half_an_action_is_no_action(how: Any, number: int, before: str, data: st.DataObject) -> None:
    whole = before * (how not in ("plain", None)) + MARKED[how].format(number)
    env = Heard()
    cut = data.draw(st.integers(1, len(whole) - 1))
    one = played(ParseAction(env, how), whole, cut)
    assert env.heard == []
    assert (one.cut_actions, one.invalid_actions, one.turns[0].action_valid) == (1, 1, False)
    assert CUT in one.messages[-1].content
    assert played(ParseAction(env, how), whole, len(whole) + 9).cut_actions == 0
    assert env.heard == [str(number) if how is not None else whole]


@pytest.mark.parametrize("how", [one for one in FORMATS if one not in ("plain", None)])
def test_an_action_whose_mark_was_complete_before_the_cut_is_whole(how: str) -> None:
    env = Heard()
    said = MARKED[how].format(42) + " because it is"
    one = played(ParseAction(env, how), said, len(said) - 4)
    assert (env.heard, one.cut_actions, one.invalid_actions) == (["42"], 0, 0)


def test_an_open_action_may_end_at_the_cut() -> None:
    env = Heard()
    played(ParseAction(env, "open"), "420", 2)
    assert env.heard == ["42"]


def test_a_response_that_is_refused_costs_what_any_invalid_action_costs() -> None:
    """Its penalty, its place in the row of invalid ones, and its turn."""
    for format_ in ("tag", None):
        env = Heard()
        one = played(InvalidActionPenalty(ParseAction(env, format_), 0.25), "<action>4242</action>", 10, turns=3)
        assert (one.episode_return, len(one.turns), one.stop_reason) == (-0.75, 3, StopReason.TURN_LIMIT)
        one = played(ParseAction(env, format_, end_after=2), "<action>4242</action>", 10, turns=9)
        assert (len(one.turns), one.stop_reason) == (2, StopReason.INVALID)
        assert env.heard == []


def test_an_environment_that_reads_no_responses_never_gets_an_unfinished_one() -> None:
    env = Heard()
    env.reset()
    reply = take_step(env, UnfinishedResponse("4"))
    assert isinstance(reply, StepResult)
    assert (env.heard, reply.info["action_valid"]) == ([], False)


def test_a_spec_rejects_cut_actions_unless_they_are_open() -> None:
    for how, valid in [("tag", False), ("plain", False), (None, False), ("open", True)]:
        spec = GymSpec("TrlEnv/GuessNumber-v0", num_tasks=1, num_eval_tasks=0, action_format=how)
        env = spec.make("TrlEnv/GuessNumber-v0")
        env.reset(seed=0)
        assert env.step(UnfinishedResponse("<action>25" if how == "tag" else "25"))[4]["action_valid"] is valid
        env.close()


# ---------------------------------------------------------------------------------------------------------------------
# Whoever samples says truly what was cut off
# ---------------------------------------------------------------------------------------------------------------------


def test_what_a_transformers_model_had_not_finished_is_no_action() -> None:
    """A tiny model that is asked for one token at a time, with real chat ends, in every format."""
    from gym_trl.chat import Chat
    from gym_trl.engines.transformers import TransformersEngine
    from gym_trl.testing import tiny_model, tiny_tokenizer

    tokenizer = tiny_tokenizer()
    chat = Chat(tokenizer)
    model = tiny_model(tokenizer)
    ends = {tokenizer.eos_token_id, *chat.stop_ids}
    engine = TransformersEngine(model, pad_id=tokenizer.pad_token_id, eos_ids=ends, decode=tokenizer.decode)
    for tokens in (1, 3):
        tasks, limits = [Task("Heard", seed) for seed in range(16)], Limits(tokens_per_turn=tokens)
        envs: list[Heard] = []

        def make(_: str, envs: list[Heard] = envs) -> gym.Env[str, str]:
            envs.append(Heard())
            return ParseAction(TurnLimit(envs[-1], 1), "plain", end_after=1)

        with InlinePool(make) as pool:
            for [one] in run(rollout(tasks, pool=pool, engine=engine, chat=chat, limits=limits)):
                closed = one.row.completion_ids[-1] in ends
                assert len(one.row.completion_ids) == tokens or closed
                assert (one.cut_actions, one.turns[0].action_valid) == ((0, True) if closed else (1, False))
