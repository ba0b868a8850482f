"""Law 21: the same actions give the same result, whoever plays the episode."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import cycle
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import given, strategies as st
from support.lanes import examples
from support.plays import CHAT, ENDINGS, GAMES, SPACES, WRAPPERS, Plan, Planned, Play, make_named, responses
from support.seat_games import HighCard
from support.trainer_double import TrainerDouble

from gym_trl.env_checker.play import play_one
from gym_trl.envspec import END_AFTER_INVALID, EnvSpec
from gym_trl.errors import ConfigError
from gym_trl.evaluation.blind_play import Arena
from gym_trl.evaluation.evaluation import evaluate
from gym_trl.evaluation.play import play_tasks
from gym_trl.executors import GuardedPool, InlinePool, make_pool
from gym_trl.grpo.environment_factory import EnvironmentFactory, outcomes
from gym_trl.grpo.rollout import make_rollout_func
from gym_trl.options import History
from gym_trl.policies.interactive import ParallelEpisode
from gym_trl.policies.model import LoadedModel, Model
from gym_trl.policies.protocol import Attempt, TextPolicy
from gym_trl.records.schema import Record, as_record
from gym_trl.rollout.episode import Episode
from gym_trl.rollout.game import Game, run_games
from gym_trl.rollout.limits import Limits
from gym_trl.rollout.loop import GameResult, run_episodes
from gym_trl.testing import ScriptedEngine
from gym_trl.text.chat_client import ModelStopped
from gym_trl.types import EpisodeResult, StopReason, Task

LIMITS = Limits(tokens_per_turn=99)


class Outcome(NamedTuple):
    """Part of a result that does not depend on who has played it; ``...`` where a player does not say."""

    stop_reason: Any
    scored: Any
    episode_return: Any
    success: Any
    turns: Any
    invalid: Any
    rewards: Any = ...
    terminated: Any = ...

    @classmethod
    def of(cls, played: EpisodeResult) -> "Outcome":
        return cls.read(as_record(played))

    @classmethod
    def read(cls, record: Record) -> "Outcome":
        numbers = record["return"], record["success"], record["num_turns"], record["invalid_actions"]
        rewards = tuple(turn["reward"] for turn in record["turns"])
        return cls(record["stop_reason"], record["return"] is not None, *numbers, rewards, record["terminated"])

    def agrees(self, other: "Outcome") -> bool:
        return all(... in pair or pair[0] == pair[1] for pair in zip(self, other, strict=True))


# ---------------------------------------------------------------------------------------------------------------------
# Players
# ---------------------------------------------------------------------------------------------------------------------


def rollout(play: Play, limits: Limits = LIMITS, history: History | None = None) -> EpisodeResult:
    episode = Episode(play.task, chat=CHAT, limits=limits, history=history)
    with InlinePool(play.make) as pool:
        [played] = run_episodes([episode], pool=pool, engine=play.engine)
    return played


def segments(play: Play) -> Outcome:
    return Outcome.of(rollout(play, history=History(last=1)))


def trainer(play: Play) -> Outcome:
    double: Any = TrainerDouble(size=1)
    double.use_vllm, double.eos_token_ids = False, [*CHAT.stop_ids]
    double.args.max_completion_length = 10**6
    double.model.config = SimpleNamespace(get_text_config=SimpleNamespace)
    play_all = make_rollout_func(play.make, assign=Task, chat=CHAT, max_tokens_per_turn=99)
    with patch("gym_trl.grpo.rollout.trainer_engine", lambda *_, **__: nullcontext(play.engine)):
        columns = play_all([[{"role": "user", "content": "", "task": play.task.to_json()}]], double)
    at = {name: column[0] for name, column in columns.items()}
    numbers = at["episode_return"], at["success"], at["num_turns"], at["invalid_actions"]
    return Outcome(at["stop_reason"], at["episode_return"] is not None, *numbers, tuple(at["step_rewards"]))


def model(play: Play) -> Outcome:
    kept: list[EpisodeResult] = []
    chat: Any = CHAT
    loaded = LoadedModel(Model("no/model", max_tokens_per_turn=99), play.engine, chat, None, str)
    pool = GuardedPool(InlinePool(play.make))
    loaded.play(pool, [Attempt(play.task, 0, 0)], 0, lambda one, played, decode: kept.append(played))
    return Outcome.of(kept[0])


def recorded(play: Play, make: Callable[..., Callable[[str], str]] | None = None) -> Record:
    kept: list[Record] = []
    policy = TextPolicy("words", make or play.policy, marks=True)
    options = {"action_format": None, **play.options}
    evaluate(play.source, policy, episodes=1, on_episode=lambda record, board: kept.append(record), **options)
    return kept[0]


def evaluation(play: Play) -> Outcome:
    return Outcome.read(recorded(play))


def score(play: Play) -> Outcome:
    [played] = play_tasks(play.make, [play.task], play.policy)
    return Outcome.of(played)


def tools(play: Play, turns: int = 99, **factory: Any) -> Outcome:
    env, words = EnvironmentFactory(**{"make": play.make, "env_id": play.task.env_id, **factory})(), play.policy()
    env.reset(prompt=[{"role": "user", "content": "", "task": play.task.to_json()}])
    env._count()  # as a trainer does
    while turns and outcomes([env])["stop_reason"] == ["unfinished"]:
        env._play(words(""))
        turns -= 1
    at = {name: column[0] for name, column in outcomes([env]).items()}
    assert env.get_reward() == at["episode_return"]
    numbers = at["episode_return"], at["success"], at["num_turns"], at["invalid_actions"]
    return Outcome(at["stop_reason"], numbers[0] is not None, *numbers)


def person(play: Play) -> Outcome:
    episode = ParallelEpisode(play.make, play.task.seed, play.policy)
    episode.play()
    played = Outcome.of(episode.log.result())
    if played.scored:
        assert (episode.total, episode.success, episode.error) == (played.episode_return, played.success, None)
    return played


def search(play: Play) -> Outcome:
    with Arena(play.make, math.inf, math.inf, 0) as arena:
        held = arena.play(tuple(play.words), play.task.seed)
        if held is None:
            return Outcome(..., False, None, None, ..., ...)
        success = False if held.success is None and arena.declares else held.success
        return Outcome(..., True, held.total, success, held.turns, ...)


def checker(play: Play) -> Outcome:
    words = play.policy()
    return Outcome.of(play_one(play.make(), play.task.seed, lambda observation, info: words(observation)).result)


PLAYERS = (trainer, segments, model, evaluation, score, tools, person, search, checker)


def disagreements(play: Play, players: Iterable[Callable[[Play], Outcome]] = PLAYERS) -> dict[str, object]:
    """Return the outcomes that differ from that of a rollout."""
    expected, found = Outcome.of(rollout(play)), dict[str, object]()
    for player in players:
        try:
            outcome: Any = player(play)
        except Exception as error:
            outcome = error
        if not (isinstance(outcome, Outcome) and outcome.agrees(expected)):
            found[player.__name__] = outcome
    return {"rollout": expected, **found} if found else {}


# ---------------------------------------------------------------------------------------------------------------------
# Environments of one seat
# ---------------------------------------------------------------------------------------------------------------------

FEW = [0.0, 1.0, -0.5, 0.1]
SAID = st.lists(st.sampled_from([None, True, False]), min_size=1, max_size=4).map(tuple)
PLANS = st.builds(
    Plan,
    st.sampled_from(sorted(SPACES)),
    st.lists(st.sampled_from(FEW), min_size=1, max_size=4).map(tuple),
    SAID,
    SAID,
    st.integers(1, 5),
    st.sampled_from(ENDINGS),
    st.sampled_from([0.0, -1.0]),
    st.booleans(),
)
OPTIONS = st.fixed_dictionaries(
    {
        "turn_limit": st.sampled_from([1, 2, 4, 9]),
        "invalid_penalty": st.sampled_from([0.0, 0.5]),
        "end_after_invalid": st.sampled_from([1, 2, None]),
        "wrappers": st.sampled_from(list(WRAPPERS.values())),
        "action_format": st.sampled_from([None, "tag", "plain"]),
    }
)


@examples(100)
@given(PLANS, OPTIONS, st.data())
def test_all_players_give_the_same_result(plan: Plan, options: dict[str, Any], data: st.DataObject) -> None:
    words = data.draw(st.lists(st.sampled_from(responses(SPACES[plan.space][1])), min_size=1, max_size=5))
    assert disagreements(Play(lambda: Planned(plan), options, tuple(words))) == {}


@pytest.mark.parametrize("env_id", GAMES)
@examples(20)
@given(OPTIONS, st.data())
def test_all_players_agree_on_a_game(env_id: str, options: dict[str, Any], data: st.DataObject) -> None:
    words = data.draw(st.lists(st.sampled_from(responses(GAMES[env_id])), min_size=1, max_size=5))
    assert disagreements(Play(env_id, options, tuple(words))) == {}


def test_an_episode_that_nothing_ends_is_cut_off_by_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gym_trl.rollout.log.MAX_TURNS", 6)
    plan = Plan("text", (0.5,), (None, True, None), (None,), 99, "never", -1.0, declares=False)
    play = Play(lambda: Planned(plan), {"end_after_invalid": None}, ("go",))
    assert disagreements(play) == {}
    played = rollout(play)
    assert (played.stop_reason, len(played.turns), played.success) == (StopReason.TURN_LIMIT, 6, False)


@examples(60)
@given(PLANS, OPTIONS, st.integers(1, 4))
def test_an_invalid_action_costs_the_penalty_once(plan: Plan, options: dict[str, Any], turns: int) -> None:
    words = (SPACES[plan.space][1] * turns)[:turns]
    with_penalty, without = (
        rollout(Play(lambda: Planned(plan), {**options, "invalid_penalty": penalty}, words)) for penalty in (0.5, 0.0)
    )
    if with_penalty.episode_return is not None and with_penalty.stop_reason is not StopReason.CRASHED:
        assert without.episode_return is not None
        cost = 0.5 * with_penalty.invalid_actions
        assert with_penalty.episode_return == pytest.approx(without.episode_return - cost)


@examples(60)
@given(PLANS, OPTIONS, st.integers(1, 4), st.data())
def test_an_episode_that_the_model_leaves_is_settled_by_all(
    plan: Plan, options: dict[str, Any], turns: int, data: st.DataObject
) -> None:
    words = tuple(data.draw(st.lists(st.sampled_from(responses(SPACES[plan.space][1])), min_size=1, max_size=5)))
    play = Play(lambda: Planned(plan), options, words)
    whole = rollout(play)
    if len(whole.turns) <= turns:
        return
    left = rollout(play, replace(LIMITS, tokens=whole.turns[turns].start))
    assert len(left.turns) == turns
    expected = Outcome.of(left)
    assert expected.stop_reason == "token_limit"

    def policy(env: object, seed: int) -> Callable[[str], str]:
        said, count = play.policy(), iter(range(99))

        def act(observation: str) -> str:
            if next(count) == turns:
                raise ModelStopped(StopReason.TOKEN_LIMIT, "no room")
            return said(observation)

        return act

    record = recorded(play, policy)
    assert Outcome.read(record) == expected
    assert tools(play, turns)._replace(stop_reason=...).agrees(expected)


@pytest.mark.parametrize("player", [player for player in PLAYERS if player is not checker])  # which reports it
def test_a_mistake_of_the_user_is_raised_by_all(player: Callable[[Play], Outcome]) -> None:
    plan = Plan("text", (1.0,), (None,), (None,), 2, "mistake", 0.0, declares=False)
    with pytest.raises(ConfigError, match="no such level"):
        player(Play(lambda: Planned(plan), {"turn_limit": 9}, ("go",)))


# ---------------------------------------------------------------------------------------------------------------------
# Executors
# ---------------------------------------------------------------------------------------------------------------------

PLANNED = [
    Plan(space, (0.5, 0.1), success, (True, False), 3, ending, -1.0, declares=declares)
    for ending in ("terminated", "truncated", "never", "crashed", "left", "disconnected", "nan")
    for space, success, declares in (("text", (True, None), False), ("dict", (None,), False), ("box", (None,), True))
]


def in_pool(plans: Iterable[Plan], pool: Any) -> list[Outcome]:
    """Return the outcomes of plans in two wrappings, whose environments a pool has made by name."""
    plays = [(json.dumps([plan, wrapping, 4]), plan) for plan in plans for wrapping in ("step penalty", "time limit")]
    said = [SPACES[plan.space][1][0] for _, plan in plays]
    engine = ScriptedEngine(lambda request: CHAT.say(said[int(request.episode_id)]))
    episodes = [Episode(Task(name, 0), chat=CHAT, limits=LIMITS) for name, _ in plays]
    with pool:
        return [Outcome.of(played) for played in run_episodes(episodes, pool=pool, engine=engine)]


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_all_executors_give_the_same_result(executor: Any) -> None:
    inline = in_pool(PLANNED, make_pool(make_named))
    assert in_pool(PLANNED, make_pool(make_named, executor=executor, workers=2)) == inline


def test_a_step_that_hangs_is_worth_as_much_as_one_that_raises() -> None:
    crashed, hangs = ([PLANNED[0]._replace(ending=ending)] for ending in ("crashed", "hangs"))
    expected = in_pool(crashed, make_pool(make_named))
    assert [one.stop_reason for one in expected] == ["crashed", "crashed"]
    assert in_pool(hangs, make_pool(make_named, executor="thread", step_timeout=0.2)) == expected
    name = json.dumps([hangs[0], "step penalty", 4])
    pooled = partial(make_pool, executor="thread", step_timeout=0.2)
    played = Play(lambda: Planned(hangs[0]), {"turn_limit": 4, "wrappers": WRAPPERS["step penalty"]}, ("go",))
    assert tools(played, make=lambda env_id: make_named(name), make_pool=pooled).agrees(expected[0])


# ---------------------------------------------------------------------------------------------------------------------
# Games of several seats
# ---------------------------------------------------------------------------------------------------------------------


class Fragile(HighCard):
    """Game that breaks or loses its connection at a word."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if action == "break":
            raise KeyError(action)
        if action == "unplug":
            raise ConnectionResetError(action)
        return super().step(action)


class Table(NamedTuple):
    """Game of two seats that is played, and the responses in their order."""

    source: Any
    options: Mapping[str, Any]
    words: tuple[str, ...]

    @property
    def spec(self) -> EnvSpec:
        limits = {"end_after_invalid": END_AFTER_INVALID, **self.options}
        return EnvSpec(self.source, seats="self", action_format=None, **limits)

    @property
    def task(self) -> Task:
        [env_id] = self.spec.weights
        return Task(env_id, 3)

    def play(self, seats: Sequence[Any], engine: Any) -> GameResult:
        with InlinePool(self.spec.make) as pool:
            [played] = run_games([Game(seats, self.task)], pool=pool, engine=engine)
        return played


def models(table: Table) -> GameResult:
    engine = ScriptedEngine(lambda request: CHAT.say(table.words[(request.turn - 1) % len(table.words)]))
    return table.play([Episode(table.task, chat=CHAT, limits=LIMITS) for _ in range(2)], engine)


def policies(table: Table) -> GameResult:
    words = cycle(table.words)
    return table.play([lambda result: next(words)] * 2, ScriptedEngine(lambda request: []))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (Fragile, ("bet", "pass", "fold", "break", "unplug")),
        ("TrlEnv/KuhnPoker-v0", ("bet", "pass", "x")),
        ("TrlEnv/TicTacToe-v0", ("1", "2", "3", "5", "7", "x")),
    ],
)
@examples(40)
@given(data=st.data(), turn_limit=st.sampled_from([None, 3]))
def test_all_players_of_a_game_agree(
    source: Any, words: tuple[str, ...], turn_limit: int | None, data: st.DataObject
) -> None:
    said = data.draw(st.lists(st.sampled_from(words), min_size=1, max_size=9))
    table = Table(source, {"turn_limit": turn_limit}, tuple(said))
    expected = [Outcome.of(one) for one in models(table)]
    assert [Outcome.of(one) for one in policies(table)] == expected
