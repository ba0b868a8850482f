"""Replay of recorded episodes: compare the environment's results with the record, or apply another reward."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple, cast

from gym_trl.envspec import EnvSpec
from gym_trl.errors import ConfigError
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.executors.step import take_step
from gym_trl.records.json_lines import to_json
from gym_trl.records.schema import Record
from gym_trl.rollout.episode import as_response
from gym_trl.types import EnvFailure, StepResult, StopReason, reason_to_stop
from gym_trl.wrappers.settlement import settlement

_CUT_OFF = frozenset(reason for reason in StopReason if reason.cut_off)

Reward = Callable[[Record], float]
"""Function that returns the return of an episode from its record."""


class Replayed(NamedTuple):
    """Result of a replay."""

    record: Record
    """Record with the rewards of the replay."""
    differences: tuple[str, ...]
    """One sentence per difference; empty if there are none."""


def replay(
    records: Iterable[Record],
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    reward: Reward | None = None,
    make: Callable[[Record], TextEnvironment] | None = None,
) -> Iterator[Replayed]:
    """Replay the responses of recorded episodes, in environments made from their records.

    >>> from gym_trl.evaluation import evaluate
    >>> kept = []
    >>> _ = evaluate("TrlEnv/Echo-v0", "solver", episodes=2, on_episode=lambda record, board: kept.append(record))
    >>> [found.differences for found in replay(kept)]
    [(), ()]
    >>> kept[0]["turns"][0]["reward"] = 0.5
    >>> next(replay(kept)).differences
    ('turn 0: the reward was 1.0, and 0.5 when it was recorded',)

    Observations, rewards, the validity of actions and the end of the episode are compared. With ``env_kwargs`` or
    ``reward``, rewards are expected to differ and are not compared.

    Args:
        records: Episodes, from ``read_records``.
        env_kwargs: Arguments for ``gym.make``, in addition to the recorded ones: ``{"reward": "efficient"}``.
        reward: Function that returns an episode's return from its record; it becomes the reward of the last turn.
        make: Makes an episode's environment, for anything that records do not contain, such as custom wrappers.

    Raises:
        ConfigError: an environment cannot be made, or a record does not name its environment.
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
                    made[key] = _make(record, env_kwargs or {}, stack)
                env = made[key]
            found = _replay(env, record, paid=not env_kwargs)
            yield found if reward is None else found._replace(record=_rescored(found.record, reward))


def _make(record: Record, env_kwargs: Mapping[str, Any], stack: ExitStack) -> TextEnvironment:
    task = record["task"]
    if task["env_id"] is None:
        raise ConfigError("a record does not say which environment it was played in: give make=")
    spec = EnvSpec.from_options(
        task["env_id"], {"action_format": None, **record["spec"]}, env_kwargs={**task["env_kwargs"], **env_kwargs}
    )
    return stack.enter_context(spec.checked(task["env_id"]))


def _replay(env: TextEnvironment, record: Record, *, paid: bool) -> Replayed:
    task, turns = record["task"], record["turns"]
    differences: list[str] = []

    def compare(where: str, what: str, now: object, then: object) -> None:
        if now != then:
            differences.append(f"{where}: {what} {now!r:.200}, and {then!r:.200} when it was recorded")

    rewards: list[float] = []
    result = StepResult("")
    try:
        observation, _ = env.reset(seed=task["seed"], options=dict(task["options"]) or None)
        result = StepResult(observation, settlement=settlement(env))
        for index, turn in enumerate(turns):
            where = f"turn {index}"
            if result.terminated or result.truncated:
                differences.append(f"{where}: the episode was over, and went on when it was recorded")
                break
            compare(where, "the observation was", result.observation, turn["observation"])
            answer, last, owed = turn["answer"], index == len(turns) - 1, result.settlement
            response = as_response(answer, cut=turn["action_cut"], longest=record["spec"].get("max_action"))
            answered = take_step(env, response)
            if isinstance(answered, EnvFailure):
                if not (last and answered.reason is StopReason.CRASHED and record["stop_reason"] == "crashed"):
                    raise RuntimeError(answered.error)
                answered = StepResult("", owed, info={"action_valid": False})
            elif last and record["stop_reason"] in _CUT_OFF:
                answered = replace(answered, reward=answered.reward + answered.settlement)
            result = answered
            rewards.append(result.reward)
            compare(where, "action_valid was", bool(result.info.get("action_valid", True)), turn["action_valid"])
            if paid:
                compare(where, "the reward was", result.reward, turn["reward"])
    except Exception as error:  # any exception becomes a difference
        differences.append(f"turn {len(rewards)}: it raised {type(error).__name__}: {error}")
    else:
        if turns and record["last_observation"] is not None:
            compare("the end", "the observation was", result.observation, record["last_observation"])
        if len(rewards) == len(turns) and record["return"] is not None:
            compare("the end", "terminated was", result.terminated, record["terminated"])
            if result.terminated or result.truncated:
                compare("the end", "the stop reason was", reason_to_stop(result).value, record["stop_reason"])
    return Replayed(_paid(record, rewards), tuple(differences))


def _paid(record: Record, rewards: list[float]) -> Record:
    """Return the record with these rewards for its first turns."""
    turns = list(record["turns"])
    for index, reward in enumerate(rewards):
        turns[index] = {**turns[index], "reward": reward}
    total = None if record["return"] is None else math.fsum(turn["reward"] for turn in turns)
    return cast(Record, {**record, "turns": turns, "return": total})


def _rescored(record: Record, reward: Reward) -> Record:
    """Return the record with the return that ``reward`` computes; unscored records are not changed."""
    if record["return"] is None or not record["turns"]:
        return record
    try:
        given = reward(record)
    except Exception as error:  # whatever a user's function raises
        raise ConfigError(f"reward raised {type(error).__name__} for {record['task']['id']}: {error}") from error
    try:
        value = float(given)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(f"reward must return a finite number, got {given!r:.80} for {record['task']['id']}")
    return _paid(record, [0.0] * (len(record["turns"]) - 1) + [value])
