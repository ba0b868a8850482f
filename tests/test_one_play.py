"""Law 21: the same actions give the same result, whoever plays: rollouts, evaluations, scores, replay and searches."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from hypothesis import given, strategies as st
from lanes import examples

from gym_trl.envspec import EnvSpec
from gym_trl.evaluation.blind import play_blind
from gym_trl.evaluation.evaluation import evaluate
from gym_trl.evaluation.play import play_tasks
from gym_trl.evaluation.replay import replay
from gym_trl.executors.inline import InlinePool
from gym_trl.records.schema import Record, as_record
from gym_trl.rollout.episode import Episode
from gym_trl.rollout.limits import Limits
from gym_trl.rollout.loop import run_episodes
from gym_trl.spaces import AnyText
from gym_trl.testing import ByteChat, ScriptedEngine
from gym_trl.types import Task
from gym_trl.wrappers import InvalidActionPenalty, PotentialShaping, StepPenalty

CHAT = ByteChat()
SPACES: dict[str, tuple[gym.Space[Any], tuple[str, ...]]] = {
    "text": (AnyText(), ("go", "stay", "")),
    "discrete": (gym.spaces.Discrete(3), ("0", "2", "7", "what?")),
    "box": (gym.spaces.Box(-1.0, 1.0, (2,), np.float32), ("[0.5, -0.25]", "[1, 1]", "[9, 9]", "no")),
    "dict": (
        gym.spaces.Dict({"move": gym.spaces.Discrete(2), "size": gym.spaces.Box(0.0, 1.0, (1,), np.float32)}),
        ('{"move": 1, "size": [0.5]}', '{"move": 0, "size": [1]}', '{"move": 9}', "?"),
    ),
}


class Plan(NamedTuple):
    """Environment that does in each step what stands here, the last again and again."""

    space: str
    rewards: tuple[float, ...]
    success: tuple[bool | None, ...]
    valid: tuple[bool | None, ...]
    ends: int
    """Step in which it ends."""
    ending: str
    settlement: float
    declares: bool
    """It has the attribute ``declares_success``."""


class Planned(gym.Env[str, Any]):
    """Environment of a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.observation_space, self.action_space = plan, AnyText(), SPACES[plan.space][0]
        if plan.declares:
            self.declares_success = True
        self.played = 0

    @property
    def settlement(self) -> float:
        """Reward of losing."""
        return self.plan.settlement

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.played = 0
        return "Begin.", {}

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        plan, place = self.plan, self.played
        self.played += 1
        over = self.played == plan.ends
        if over and plan.ending == "raised":
            raise ZeroDivisionError("it broke")
        at = {name: one[min(place, len(one) - 1)] for name, one in plan._asdict().items() if isinstance(one, tuple)}
        info = {"success": at["success"], "action_valid": at["valid"]}
        info = {name: one for name, one in info.items() if one is not None}
        ended = over and plan.ending == "terminated", over and plan.ending == "truncated"
        return f"Step {self.played}.", at["rewards"], *ended, info


def limited(env: gym.Env[Any, Any], steps: int) -> gym.Env[Any, Any]:
    return gym.wrappers.TimeLimit(env, steps)


WRAPPERS: dict[str, list[Callable[[Any], Any]]] = {
    "none": [],
    "time limit": [partial(limited, steps=3)],
    "step penalty": [partial(StepPenalty, penalty=0.25)],
    "penalty inside": [partial(InvalidActionPenalty, penalty=0.5)],
    "shaped": [partial(PotentialShaping, potential=lambda env: 0.5)],
    "both": [partial(StepPenalty, penalty=0.125), partial(limited, steps=3)],
}
FEW = [0.0, 1.0, -0.5]
PLANS = st.builds(
    Plan,
    st.sampled_from(sorted(SPACES)),
    st.lists(st.sampled_from(FEW), min_size=1, max_size=4).map(tuple),
    st.lists(st.sampled_from([None, True, False]), min_size=1, max_size=4).map(tuple),
    st.lists(st.sampled_from([None, True, False]), min_size=1, max_size=4).map(tuple),
    st.integers(1, 5),
    st.sampled_from(["terminated", "truncated", "raised"]),
    st.sampled_from([0.0, -1.0]),
    st.booleans(),
)
OPTIONS = st.fixed_dictionaries(
    {
        "turn_limit": st.sampled_from([None, 1, 2, 4]),
        "invalid_penalty": st.sampled_from([0.0, 0.5]),
        "end_after_invalid": st.sampled_from([1, 2, None]),
    }
)


class Outcome(NamedTuple):
    """Part of a result that is the same for all that play."""

    total: float | None
    success: bool | None
    turns: int
    stop_reason: str | None = None


def outcome(record: Record) -> Outcome:
    return Outcome(record["return"], record["success"], record["num_turns"], record["stop_reason"])


@examples(60)
@given(PLANS, st.sampled_from(sorted(WRAPPERS)), OPTIONS, st.data())
def test_the_same_actions_give_the_same_result_whoever_plays(
    plan: Plan, wrapping: str, options: dict[str, Any], data: st.DataObject
) -> None:
    words = data.draw(st.lists(st.sampled_from(SPACES[plan.space][1]), min_size=5, max_size=5))
    options = {**options, "turn_limit": options["turn_limit"] or (None if options["end_after_invalid"] == 1 else 9)}

    def planned() -> gym.Env[str, Any]:
        return Planned(plan)

    given = {**options, "wrappers": WRAPPERS[wrapping]}
    spec = EnvSpec(planned, action_format=None, **given)
    [env_id] = spec.weights

    kept: list[Record] = []
    for penalty in (options["invalid_penalty"], 0.0):
        evaluate(
            planned,
            lambda env: _policy(words),
            episodes=1,
            on_episode=lambda record, board: kept.append(record),
            **{**given, "invalid_penalty": penalty},
        )
    unpunished = kept.pop()
    if kept[0]["stop_reason"] != "crashed" and kept[0]["return"] is not None and unpunished["return"] is not None:
        # Every invalid action costs the penalty, once, and nothing else does: not the end of the episode.
        invalid = kept[0]["invalid_actions"]
        assert kept[0]["return"] == unpunished["return"] - options["invalid_penalty"] * invalid
    task = Task(env_id, kept[0]["task"]["seed"] or 0)
    found = outcome(kept[0])

    engine = ScriptedEngine(lambda request: CHAT.say(words[(request.turn - 1) % len(words)]))
    episode = Episode(task, chat=CHAT, limits=Limits(tokens_per_turn=99))
    with InlinePool(spec.make) as pool:
        [played] = run_episodes([episode], pool=pool, engine=engine)
    assert outcome(as_record(played)) == found
    assert not played.scored or played.terminated is kept[0]["terminated"]

    [scored] = play_tasks(spec.make, [task], lambda env: _policy(words))
    assert Outcome(scored.episode_return, scored.success, scored.turns, found.stop_reason) == found

    # Blind play takes what the environment declares, and knows no limits of a rollout.
    if found.stop_reason in ("success", "failure", "terminated", "turn_limit"):
        held = play_blind(partial(spec.make, env_id), words, episodes=1)
        assert (held.mean_return.mean, held.turns) == (found.total, found.turns)
        assert held.success.mean == (None if found.success is None else float(found.success))

    if found.stop_reason != "crashed":
        [again] = replay(kept, make=lambda record: spec.make(env_id))
        assert again.differences == ()
        assert again.record["return"] == found.total


def _policy(words: list[str]) -> Callable[[str], str]:
    numbers = iter(range(10**6))
    return lambda observation: words[next(numbers) % len(words)]
