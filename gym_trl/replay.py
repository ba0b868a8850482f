"""Plays recorded episodes again: whether the environment still answers alike, and what another reward would pay."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple, cast

from gym_trl.episode import EnvFailure, EnvReply, reason_to_stop
from gym_trl.errors import ConfigError
from gym_trl.grpo.spec import GymSpec
from gym_trl.pool import TextEnvironment, take_step
from gym_trl.records import Record, to_json
from gym_trl.settlement import settlement
from gym_trl.types import StopReason, UnfinishedResponse

_CUT_OFF = (StopReason.TOKEN_LIMIT, StopReason.CONTEXT_OVERFLOW, StopReason.TIME_LIMIT)

Reward = Callable[[Record], float]
"""What an episode is worth, all in all."""


class Replayed(NamedTuple):
    """What came of playing an episode again."""

    record: Record
    """With the rewards that were paid now."""
    differences: tuple[str, ...]
    """A sentence for each thing that went otherwise; empty if all was the same."""


def replay(
    records: Iterable[Record],
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    reward: Reward | None = None,
    make: Callable[[Record], TextEnvironment] | None = None,
) -> Iterator[Replayed]:
    """Play the answers of episodes again, in environments that are made as their records say.

    >>> from gym_trl.evaluation import evaluate
    >>> kept = []
    >>> _ = evaluate("TrlEnv/Echo-v0", "solver", episodes=2, on_episode=lambda record, board: kept.append(record))
    >>> [found.differences for found in replay(kept)]
    [(), ()]
    >>> kept[0]["turns"][0]["reward"] = 0.5
    >>> next(replay(kept)).differences
    ('turn 0: the reward was 1.0, and 0.5 when it was recorded',)

    Compared are observations, rewards, what was valid, and how the episode ended. With ``env_kwargs`` or ``reward`` the
    rewards are supposed to be others and are not compared.

    Args:
        records: Episodes, from ``read_records``.
        env_kwargs: For ``gym.make``, over the recorded ones: ``{"reward": "efficient"}``.
        reward: Is given an episode and says its return, all of which the last turn is then paid.
        make: Makes an episode's environment, for what a record cannot say, such as wrappers of one's own.

    Raises:
        ConfigError: an environment cannot be made, or an episode does not say which it was played in.
    """
    with ExitStack() as stack:
        made: dict[str, TextEnvironment] = {}
        for record in records:
            if make is not None:
                env = make(record)
                stack.callback(env.close)
            else:
                key = to_json([record["task"]["env_id"], record["task"]["env_kwargs"], record["spec"]])
                if key not in made:
                    made[key] = _make(record, env_kwargs or {})
                    stack.callback(made[key].close)
                env = made[key]
            found = _replay(env, record, paid=not env_kwargs)
            yield found if reward is None else found._replace(record=_rescored(found.record, reward))


def _make(record: Record, env_kwargs: Mapping[str, Any]) -> TextEnvironment:
    task = record["task"]
    if task["env_id"] is None:
        raise ConfigError("a record does not say which environment it was played in: give make=")
    wrapping = {"action_format": None, **record["spec"]}
    spec = GymSpec(
        task["env_id"], num_tasks=1, num_eval_tasks=0, env_kwargs={**task["env_kwargs"], **env_kwargs}, **wrapping
    )
    return spec.make(task["env_id"])


def _replay(env: TextEnvironment, record: Record, *, paid: bool) -> Replayed:
    task, turns = record["task"], record["turns"]
    differences: list[str] = []

    def compare(where: str, what: str, now: object, then: object) -> None:
        if now != then:
            differences.append(f"{where}: {what} {now!r:.200}, and {then!r:.200} when it was recorded")

    rewards: list[float] = []
    reply = EnvReply("")
    try:
        observation, _ = env.reset(seed=task["seed"], options=dict(task["options"]) or None)
        reply = EnvReply(observation, settlement=settlement(env))
        for index, turn in enumerate(turns):
            where = f"turn {index}"
            if reply.terminated or reply.truncated:
                differences.append(f"{where}: the episode was over, and went on when it was recorded")
                break
            compare(where, "the observation was", reply.observation, turn["observation"])
            answer, last, owed = turn["answer"], index == len(turns) - 1, reply.settlement
            answered = take_step(env, UnfinishedResponse(answer) if turn["action_cut"] else answer)
            if isinstance(answered, EnvFailure):
                if not (last and answered.reason is StopReason.CRASHED and record["stop_reason"] == "crashed"):
                    raise RuntimeError(answered.error)
                answered = EnvReply("", owed, info={"action_valid": False})
            elif last and record["stop_reason"] in _CUT_OFF:
                answered = replace(answered, reward=answered.reward + answered.settlement)
            reply = answered
            rewards.append(reply.reward)
            compare(where, "action_valid was", bool(reply.info.get("action_valid", True)), turn["action_valid"])
            if paid:
                compare(where, "the reward was", reply.reward, turn["reward"])
    except Exception as error:  # whatever an environment raises is found here
        differences.append(f"turn {len(rewards)}: it raised {type(error).__name__}: {error}")
    else:
        if turns and record["last_observation"] is not None:
            compare("the end", "the observation was", reply.observation, record["last_observation"])
        if len(rewards) == len(turns) and record["return"] is not None:
            compare("the end", "terminated was", reply.terminated, record["terminated"])
            if reply.terminated or reply.truncated:
                compare("the end", "the stop reason was", reason_to_stop(reply).value, record["stop_reason"])
    return Replayed(_paid(record, rewards), tuple(differences))


def _paid(record: Record, rewards: list[float]) -> Record:
    """The record with these rewards, as far as there are any."""
    turns = list(record["turns"])
    for index, reward in enumerate(rewards):
        turns[index] = {**turns[index], "reward": reward}
    total = None if record["return"] is None else math.fsum(turn["reward"] for turn in turns)
    return cast(Record, {**record, "turns": turns, "return": total})


def _rescored(record: Record, reward: Reward) -> Record:
    """The record with what ``reward`` says instead; one that could not be scored still cannot."""
    if record["return"] is None or not record["turns"]:
        return record
    value = float(reward(record))
    if not math.isfinite(value):
        raise ConfigError(f"the reward must be a finite number, got {value} for {record['task']['id']}")
    return _paid(record, [0.0] * (len(record["turns"]) - 1) + [value])
