"""Replay of recorded episodes: compare the environment's results with the record, or apply another reward."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple, cast

from gym_trl.envspec import SELF_PLAY, EnvSpec, spec_names
from gym_trl.errors import ConfigError, described, raise_interrupt, refused
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.executors.step import close_env, take_step
from gym_trl.records.json_lines import to_json
from gym_trl.records.schema import Record
from gym_trl.rollout.episode import as_response
from gym_trl.rollout.game import OWN_FAULT
from gym_trl.trust import REGISTERED, Named, Trust, argument_names, env_names
from gym_trl.types import EnvFailure, StepResult, StopReason, reason_to_stop
from gym_trl.wrappers.settlement import settlement

_CUT_OFF = frozenset(reason for reason in StopReason if reason.cut_off)
_OUTSIDE = _CUT_OFF | {StopReason.CRASHED}
"""Stop reasons of seats whose game the environment has not ended."""

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
    trust: Trust = REGISTERED,
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
    ``reward``, rewards are expected to differ and are not compared. A game of several seats is replayed from the
    records of all its seats, which are neighbours in a run's file. Games of a league are left out: the opponent's
    actions are not recorded.

    Args:
        records: Episodes, from ``read_records``.
        env_kwargs: Arguments for ``gym.make``, in addition to the recorded ones: ``{"reward": "efficient"}``.
        reward: Function that returns an episode's return from its record; it becomes the reward of the last turn.
        make: Makes an episode's environment, for anything that records do not contain, such as custom wrappers.
        trust: Names in the records, other than registered ones, that may be used: ``Trust(names=["my_game.py:Game"])``.

    Raises:
        UntrustedError: a record names code that is neither registered nor trusted.
        ConfigError: an environment cannot be made, a record does not name its environment, or the records of a game's
            other seats are missing.
    """
    with ExitStack() as stack:
        made: dict[str, TextEnvironment] = {}
        for game in _games(records):
            record = game[0]
            if make is not None:
                with refused(f"make for {record['task']['id']}"):
                    env = make(record)
                stack.callback(close_env, env)
            else:
                task, alone = record["task"], record["seat"] is None
                key = to_json([task["env_id"], task["env_kwargs"], record["spec"], alone])
                trust.check("a record", _names(record, made=key in made))
                if key not in made:
                    made[key] = _make(record, env_kwargs or {}, stack)
                env = made[key]
            for found in _Replay(env, game, paid=not env_kwargs).run():
                yield found if reward is None else found._replace(record=_rescored(found.record, reward))


def _games(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Yield the records of each episode, or of each game of several seats: those of its seats are neighbours."""
    game: list[Record] = []
    for record in records:
        if record["opponent"] is not None:
            continue
        seats = {one["seat"] for one in game}  # one that recurs begins another game of the same name
        if game and (_game_of(record) is None or _game_of(record) != _game_of(game[0]) or record["seat"] in seats):
            yield game
            game = []
        game.append(record)
    if game:
        yield game


def _game_of(record: Record) -> tuple[object, ...] | None:
    """Return what the records of a game share; ``None`` for an episode in an environment of one seat."""
    if record["seat"] is None:
        return None
    return record["task"]["id"], record["split"], record["step"], record["group"], record["game"]


def _alone(records: Sequence[Record]) -> ConfigError:
    seats = ", ".join(str(record["seat"]) for record in records)
    return ConfigError(
        f"a game is replayed from the records of all its seats, one after the other, and of one of "
        f"{records[0]['task']['id']} only those of seat {seats} are there: a seat cannot be replayed alone"
    )


def _names(record: Record, *, made: bool) -> Iterator[Named]:
    """Yield what a record names that is not registered; of one whose environment is made, its reset options only."""
    task = record["task"]
    if task["options"]:
        yield from argument_names(task["env_id"], task["options"], field="options")
    if not made:
        yield from env_names(task["env_id"], task["env_kwargs"])
        yield from spec_names(record["spec"], task["env_id"])


def _make(record: Record, env_kwargs: Mapping[str, Any], stack: ExitStack) -> TextEnvironment:
    task = record["task"]
    if task["env_id"] is None:
        raise ConfigError("a record does not say which environment it was played in: give make=")
    seats = {} if record["seat"] is None else {"seats": SELF_PLAY}
    spec = EnvSpec.of_options(
        task["env_id"],
        {"action_format": None, **record["spec"], **seats},
        env_kwargs={**task["env_kwargs"], **env_kwargs},
    )
    return stack.enter_context(spec.checked(task["env_id"]))


class _Replay:
    """Replay of one episode, or of one game from the records of its seats: the results, and what each seat is paid."""

    def __init__(self, env: TextEnvironment, records: Sequence[Record], *, paid: bool) -> None:
        self._env, self._records, self._paid = env, records, paid
        self._rewards: list[list[float]] = [[] for _ in records]
        self._differences: list[list[str]] = [[] for _ in records]
        self._result = StepResult("")
        self._mover = 0  # index of the record whose turn was the last

    def run(self) -> list[Replayed]:
        """Play all turns, and return the result of each record."""
        try:
            self._play()
        except BaseException as error:  # any exception becomes a difference
            raise_interrupt(error)
            where = f"turn {len(self._rewards[self._mover])}"
            self._differences[self._mover].append(f"{where}: it raised {described(error)}")
            self._compare_rewards()
        else:
            if self._lacks_seats():
                raise _alone(self._records)
            self._compare_rewards()
            self._compare_ends()
        return [
            Replayed(_paid(record, rewards), tuple(differences))
            for record, rewards, differences in zip(self._records, self._rewards, self._differences, strict=True)
        ]

    def _play(self) -> None:
        task = self._records[0]["task"]
        observation, info = self._env.reset(seed=task["seed"], options=dict(task["options"]) or None)
        self._result = StepResult(observation, info=info, settlement=settlement(self._env))
        mover = None
        turns = sorted(
            (place, who, index)
            for who, record in enumerate(self._records)
            for index, place in enumerate(record["order"] or range(len(record["turns"])))
        )
        for number, (place, who, index) in enumerate(turns):
            if place != number:  # a turn of another seat, or one that a game that failed has lost
                break
            self._mover, record, before = who, self._records[who], self._result
            where = f"turn {index}"
            if before.terminated or before.truncated:
                self._differences[who].append(f"{where}: the episode was over, and went on when it was recorded")
                break
            if record["seat"] is not None:
                mover = before.info.get("to_move", mover)  # missing where a wrapper has rejected the response
                self._compare(who, where, "the seat to move was", mover, record["seat"])
            self._compare(who, where, "the observation was", before.observation, record["turns"][index]["observation"])
            self._step(record, index, before, last=number == len(turns) - 1)
        if not (self._result.terminated or self._result.truncated):  # a limit of the rollout has ended it
            for record, rewards in zip(self._records, self._rewards, strict=True):
                if rewards and record["stop_reason"] in _CUT_OFF:
                    rewards[-1] += self._result.settlement

    def _lacks_seats(self) -> bool:
        """Return whether the game went on, or must have, with turns that are not recorded."""
        records = [record for record in self._records if record["turns"]]
        if not records or any(record["seat"] is None or record["return"] is None for record in records):
            return False
        if any(self._differences):
            return False
        if sum(map(len, self._rewards)) < sum(len(record["turns"]) for record in records):
            return True
        over = self._result.terminated or self._result.truncated
        return not over and all(record["stop_reason"] not in _OUTSIDE for record in records)

    def _step(self, record: Record, index: int, before: StepResult, *, last: bool) -> None:
        turn = record["turns"][index]
        response = as_response(turn["answer"], cut=turn["action_cut"], longest=record["spec"].get("max_action"))
        result = take_step(self._env, response)
        if isinstance(result, EnvFailure):
            if not (last and result.reason is StopReason.CRASHED and record["stop_reason"] == "crashed"):
                raise RuntimeError(result.error)
            result = StepResult("", before.settlement, info={"action_valid": False})
        owed = before.settlement if result.truncated and result.info.get("stop_reason") not in OWN_FAULT else 0.0
        payoffs = result.info.get("payoffs")
        for who, rewards in enumerate(self._rewards):  # a seat is paid for its last action, also while others act
            if who == self._mover:
                rewards.append(result.reward)
            elif rewards and payoffs is not None:
                rewards[-1] += payoffs[self._records[who]["seat"]] + owed
        self._result = result
        valid = bool(result.info.get("action_valid", True))
        self._compare(self._mover, f"turn {index}", "action_valid was", valid, turn["action_valid"])

    def _compare_rewards(self) -> None:
        for who, (record, rewards) in enumerate(zip(self._records, self._rewards, strict=True)):
            if not self._paid or (record["seat"] is not None and record["return"] is None):
                continue  # what a seat was paid in the lost turns of a game that failed is not known
            for index, (reward, turn) in enumerate(zip(rewards, record["turns"], strict=False)):
                self._compare(who, f"turn {index}", "the reward was", reward, turn["reward"])

    def _compare_ends(self) -> None:
        over = self._result.terminated or self._result.truncated
        for who, record in enumerate(self._records):
            if not record["turns"] or len(self._rewards[who]) < len(record["turns"]):
                continue
            told = self._told(who, record)
            if record["last_observation"] is not None and (record["seat"] is None or over):
                self._compare(who, "the end", "the observation was", told.observation, record["last_observation"])
            if record["return"] is not None:
                self._compare(who, "the end", "terminated was", told.terminated, record["terminated"])
                if over:
                    reason = reason_to_stop(told).value
                    self._compare(who, "the end", "the stop reason was", reason, record["stop_reason"])

    def _told(self, who: int, record: Record) -> StepResult:
        """Return the last result as the seat of a record is told it."""
        result, seat = self._result, record["seat"]
        if seat is None:
            return result
        if result.info.get("stop_reason") in OWN_FAULT:
            if who == self._mover:
                return result
            return StepResult("", truncated=True, info={"stop_reason": StopReason.FORFEIT.value})
        texts = result.info.get("observations") or ({seat: result.observation} if who == self._mover else {})
        successes = result.info.get("successes")
        info = {name: value for name, value in result.info.items() if name != "success"}
        if result.terminated and successes is not None:
            info["success"] = successes[seat]
        return replace(result, observation=texts.get(seat, ""), info=info)

    def _compare(self, who: int, where: str, what: str, now: object, then: object) -> None:
        if now != then:
            self._differences[who].append(f"{where}: {what} {now!r:.200}, and {then!r:.200} when it was recorded")


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
    with refused(f"reward for {record['task']['id']}"):
        given = reward(record)
    try:
        value = float(given)
    except BaseException as error:
        raise_interrupt(error)
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(f"reward must return a finite number, got {given!r:.80} for {record['task']['id']}")
    return _paid(record, [0.0] * (len(record["turns"]) - 1) + [value])
