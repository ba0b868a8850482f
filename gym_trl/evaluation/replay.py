"""Replay of recorded episodes: compare the environment's results with the record, or apply another reward."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple, cast

from gym_trl.envspec import SELF_PLAY, EnvSpec, spec_names
from gym_trl.errors import ConfigError, described, raise_interrupt, refused
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.executors.step import close_env, take_reset, take_step
from gym_trl.records.json_lines import to_json
from gym_trl.records.schema import OpponentTurnRecord, Record, TurnRecord
from gym_trl.rollout.episode import Act, Ask, Sample
from gym_trl.rollout.game import Game
from gym_trl.rollout.log import as_response
from gym_trl.rollout.text_player import TextPlayer
from gym_trl.text.chat_client import ModelStopped
from gym_trl.trust import REGISTERED, Named, Trust, argument_names, env_names
from gym_trl.types import EpisodeResult, StepResult, StopReason, Task
from gym_trl.wrappers.traits import traits

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
    records of all its seats, which are neighbours in a run's file, and a game of a league from one record, which has
    the turns of the opponent. One without them, of another release, is left out.

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
            for replayed in _Replay(env, game, paid=not env_kwargs).run():
                yield replayed if reward is None else replayed._replace(record=_rescored(replayed.record, reward))


def _games(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Yield the records of each episode, or of each game of several seats: those of its seats are neighbours."""
    game: list[Record] = []
    for record in records:
        if record["opponent"] is not None:  # a game of its own
            if game:
                yield game
            game = []
            if record["opponent_turns"] is not None:
                yield [record]
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


class _Turn(NamedTuple):
    """Recorded turn."""

    place: int
    """Index among the turns of all seats."""
    who: int
    """Index of its record; that of a game of a league for an opponent's turn, too."""
    turn: int
    """Index in its record."""
    opponents: bool = False
    """It is one of the record's ``opponent_turns``."""


class _Replay:
    """Replay of one episode, or of one game from the records of its seats, by policies that say what is recorded."""

    def __init__(self, env: TextEnvironment, records: Sequence[Record], *, paid: bool) -> None:
        self._env, self._records, self._paid = env, records, paid
        self._differences: list[list[str]] = [[] for _ in records]
        own = (
            _Turn(place, who, index)
            for who, record in enumerate(records)
            for index, place in enumerate(record["order"] or range(len(record["turns"])))
        )
        others = enumerate(records[0]["opponent_turns"] or ())
        self._turns = sorted([*own, *(_Turn(turn["place"], 0, index, True) for index, turn in others)])
        self._number = 0  # of turns played
        self._alone = False  # a seat that is to move has no record
        self._in_league = records[0]["opponent"] is not None
        self._end: StopReason | None = None  # of an episode that goes on after its last recorded turn

    def run(self) -> list[Replayed]:
        """Play all turns, and return the result of each record."""
        try:
            episodes = self._play()
        except BaseException as error:  # a mistake that is not the environment's first is a difference as well
            raise_interrupt(error)
            if self._alone:
                raise
            self._differ(self._last, f"it raised {described(error)}")
            return [
                Replayed(one, tuple(differences))
                for one, differences in zip(self._records, self._differences, strict=True)
            ]
        self._compare_length(episodes)
        for who, (record, episode) in enumerate(zip(self._records, episodes, strict=True)):
            self._compare_turns(who, record, episode)
            if record["turns"] and len(episode.turns) >= len(record["turns"]):
                self._compare_end(who, record, episode)
        return [
            Replayed(_paid(record, [turn.reward for turn in episode.turns]), tuple(differences))
            for record, episode, differences in zip(self._records, episodes, self._differences, strict=True)
        ]

    def _play(self) -> Sequence[EpisodeResult]:
        """Return the episode of each record, played again."""
        first = self._records[0]
        recorded, longest = first["task"], first["spec"].get("max_observation")
        task = Task(cast(str, recorded["env_id"]), cast(int, recorded["seed"]), recorded["options"])
        seats = [0] if first["seat"] is None else range(traits(self._env).num_seats)
        players = [TextPlayer(task, partial(self._respond, seat), max_observation=longest) for seat in seats]
        player = players[0] if first["seat"] is None else Game(players, task)
        todo = player.started(take_reset(self._env, task))
        while isinstance(todo, Act):
            todo = player.stepped(take_step(self._env, todo.action)) if self._end is None else player.stopped(self._end)
        assert not isinstance(todo, Sample | Ask)
        return [todo] if isinstance(todo, EpisodeResult) else [todo[record["seat"] or 0] for record in self._records]

    def _respond(self, seat: int, result: StepResult) -> str:
        """Return the next recorded response, or end the episode as it was ended where there is none."""
        by_seat = {record["seat"] or 0: record for record in self._records}
        played = self._turns[self._number : self._number + 1]
        if not played or played[0].place != self._number:  # a turn of another seat, or one that a failed game has lost
            if self._in_league:
                return self._respond_no_more(played)
            whole = all(record["return"] is not None for record in self._records) and not any(self._differences)
            if whole and (played or seat not in by_seat):
                self._alone = True
                raise _alone(self._records)
            reasons = {who: StopReason(record["stop_reason"]) for who, record in by_seat.items()}
            if {*reasons.values()} - {StopReason.UNPLAYED} == {reasons.get(seat)}:  # of all seats
                self._end = _outside(reasons[seat])
                return ""
            raise ModelStopped(_outside(reasons.get(seat, StopReason.CANCELLED)), "")
        self._number += 1
        record = self._records[played[0].who]
        turn: TurnRecord | OpponentTurnRecord
        if played[0].opponents:
            turn = (record["opponent_turns"] or [])[played[0].turn]
            then = turn["seat"]
        else:
            turn, then = record["turns"][played[0].turn], record["seat"] or 0
        self._compare(played[0], "the seat to move was", seat, then)
        return as_response(turn["answer"], cut=turn["action_cut"], longest=record["spec"].get("max_action"))

    def _respond_no_more(self, later: Sequence[_Turn]) -> str:
        """End a game of a league as it was ended."""
        record = self._records[0]
        reason = StopReason(record["stop_reason"])
        if reason is StopReason.FORFEIT:  # of the opponent, for a reason that the record does not have
            raise ModelStopped(StopReason.TOKEN_LIMIT, "")
        if later:
            self._differ(later[0], "a turn before it is not recorded")
        elif reason.scored and _outside(reason) is not reason:
            self._differ(self._last, "the opponent is to move next, and the game was over when it was recorded")
        self._end = _outside(reason)
        return ""

    @property
    def _last(self) -> _Turn:
        """Turn that was played last."""
        return self._turns[self._number - 1] if self._number else _Turn(0, 0, 0)

    def _compare_length(self, episodes: Sequence[EpisodeResult]) -> None:
        """Note a failure, and turns that were recorded after the end."""
        played = self._number < len(self._turns)
        reason = episodes[self._last.who].stop_reason
        error = episodes[self._last.who].error
        if error and (played or reason.value != self._records[self._last.who]["stop_reason"]):
            self._differ(self._last, error)
        elif played and self._turns[self._number].place == self._number:
            self._differ(self._turns[self._number], "the episode was over, and went on when it was recorded")

    def _compare_turns(self, who: int, record: Record, episode: EpisodeResult) -> None:
        # What a seat was paid in the lost turns of a game that failed is not known.
        paid = self._paid and (record["seat"] is None or record["return"] is not None)
        for index, (turn, then) in enumerate(zip(episode.turns, record["turns"], strict=False)):
            where = _Turn(index, who, index)
            self._compare(where, "the observation was", turn.observation, then["observation"])
            self._compare(where, "action_valid was", turn.action_valid, then["action_valid"])
            if paid:
                self._compare(where, "the reward was", turn.reward, then["reward"])

    def _compare_end(self, who: int, record: Record, episode: EpisodeResult) -> None:
        over, ended = self._end is None, episode.messages[-1]
        if record["last_observation"] is not None and ended.role == "user" and (record["seat"] is None or over):
            self._compare(who, "the observation was", ended.content, record["last_observation"])
        if record["return"] is not None:
            self._compare(who, "terminated was", episode.terminated, record["terminated"])
            if over:
                self._compare(who, "the stop reason was", episode.stop_reason.value, record["stop_reason"])

    def _compare(self, where: _Turn | int, what: str, now: object, then: object) -> None:
        if now != then:
            self._differ(where, f"{what} {now!r:.200}, and {then!r:.200} when it was recorded")

    def _differ(self, where: _Turn | int, difference: str) -> None:
        """Note a difference in a turn, or at the end of the record with this index."""
        if isinstance(where, int):
            who, place = where, "the end"
        else:
            who, place = where.who, f"turn {where.turn}{' of the opponent' if where.opponents else ''}"
        self._differences[who].append(f"{place}: {difference}")


def _outside(reason: StopReason) -> StopReason:
    """Return the reason for which a rollout ended an episode; unscored where the environment has ended it."""
    limit = not reason.scored or reason.cut_off or reason is StopReason.TURN_LIMIT
    return reason if limit else StopReason.CANCELLED


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
        worth = reward(record)
    try:
        value = float(worth)
    except BaseException as error:
        raise_interrupt(error)
        value = math.nan
    if not math.isfinite(value):
        raise ConfigError(f"reward must return a finite number, got {worth!r:.80} for {record['task']['id']}")
    return _paid(record, [0.0] * (len(record["turns"]) - 1) + [value])
