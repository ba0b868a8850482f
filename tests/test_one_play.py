"""Law 21: the same responses give the same episode, whoever plays it."""

import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, strategies as st
from plays import CHAT, ENDINGS, GAMES, SPACES, WRAPPERS, Plan, Planned, Play, make_named, responses
from support.lanes import examples
from support.seat_games import HighCard

from gym_trl.envspec import EnvSpec
from gym_trl.errors import ConfigError
from gym_trl.executors import InlinePool, make_pool
from gym_trl.grpo.environment_factory import EnvironmentFactory
from gym_trl.grpo.rollout_func import RolloutFunc
from gym_trl.history import last_turns
from gym_trl.players import ModelPlayer, TextPlayer, play_all
from gym_trl.records import record_of
from gym_trl.rollout import Episode, Limits, rollout, run
from gym_trl.testing import ScriptedEngine
from gym_trl.types import ModelStopped, StopReason, Task

LIMITS = Limits(tokens_per_turn=99)
Outcome = dict[str, Any]


def outcome(played: Episode) -> Outcome:
    """Return what of an episode does not depend on who has played it."""
    record = record_of(played)
    turns = [(turn["answer"], turn["observation"], turn["reward"], turn["action_valid"]) for turn in record["turns"]]
    same = ("stop_reason", "success", "terminated", "last_observation")
    return {"return": record["return"], "turns": turns, **{name: record[name] for name in same}}


# ---------------------------------------------------------------------------------------------------------------------
# Doors
# ---------------------------------------------------------------------------------------------------------------------


def rolled_out(play: Play, **options: Any) -> Episode:
    with InlinePool(play.make) as pool:
        [[episode]] = run(
            rollout([play.task], pool=pool, engine=play.engine, chat=CHAT, **{"limits": LIMITS, **options})
        )
    return episode


def segments(play: Play) -> Outcome:
    return outcome(rolled_out(play, history=last_turns(1)))


class Trainer(SimpleNamespace):
    """Trainer that is about to train on one episode, as far as a ``rollout_func`` reads it."""

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)


def trainer(play: Play) -> Outcome:
    args = SimpleNamespace(gradient_accumulation_steps=1, steps_per_generation=1, generation_batch_size=1)
    args.max_completion_length, args.temperature, args.use_vllm = 10**6, 1.0, False
    args.use_transformers_continuous_batching = False
    double: Any = Trainer(args=args, num_generations=1, num_generations_eval=1, num_iterations=1, use_vllm=False)
    double.chat_template, double.chat_template_kwargs = None, {}
    double.accelerator = SimpleNamespace(process_index=0, num_processes=1)
    double.model = SimpleNamespace(training=True, config=SimpleNamespace(get_text_config=SimpleNamespace))
    double.state = SimpleNamespace(global_step=0, stateful_callbacks={})
    double.callback_handler, double.eos_token_ids = SimpleNamespace(eval_dataloader=None), [*CHAT.stop_ids]
    prompt = [{"role": "user", "content": "", "task": play.task.to_json()}]
    with (
        InlinePool(play.make) as pool,
        patch("gym_trl.grpo.rollout_func.trainer_engine", lambda *_, **__: nullcontext(play.engine)),
    ):
        columns = RolloutFunc(pool, chat=CHAT, max_tokens_per_turn=99)([prompt], double)
    return outcome(columns["episode"][0])


def tools(play: Play) -> Outcome:
    env, words = EnvironmentFactory(play.make, play.task.env_id)(), play.policy()
    env.reset(prompt=[{"role": "user", "content": "", "task": play.task.to_json()}])
    while env._episode is not None and env._episode.stop_reason is None:
        env._play(words(""))
    assert env.get_reward() == env.episode.episode_return
    return outcome(env.episode)


def played_all(play: Play, one: Any) -> Episode:
    [game] = play_all(play.make, [play.task], [one])
    return game.episodes[0]


def says(play: Play) -> TextPlayer:
    """Return the player that says the words, with their marks."""

    def policy(env: object, seed: int) -> Callable[[str, Mapping[str, Any]], str]:
        said = play.policy()
        return lambda observation, info: said(observation)

    return TextPlayer(policy, raw=True)


def model(play: Play) -> Outcome:
    chat: Any = CHAT
    return outcome(played_all(play, ModelPlayer(chat, play.engine, LIMITS)))


def policy(play: Play) -> Outcome:
    return outcome(played_all(play, says(play)))


DOORS = (trainer, tools, segments, model, policy)


def disagreements(play: Play) -> dict[str, object]:
    """Return the outcomes that differ from that of a rollout."""
    expected, found = outcome(rolled_out(play)), dict[str, object]()
    for door in DOORS:
        played = door(play)
        if played != {name: expected[name] for name in played}:
            found[door.__name__] = played
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
    """Law 21."""
    words = data.draw(st.lists(st.sampled_from(responses(SPACES[plan.space][1])), min_size=1, max_size=5))
    assert disagreements(Play(lambda: Planned(plan), options, tuple(words))) == {}


@pytest.mark.parametrize("env_id", GAMES)
@examples(20)
@given(OPTIONS, st.data())
def test_all_players_agree_on_a_game(env_id: str, options: dict[str, Any], data: st.DataObject) -> None:
    """Law 21."""
    words = data.draw(st.lists(st.sampled_from(responses(GAMES[env_id])), min_size=1, max_size=5))
    assert disagreements(Play(env_id, options, tuple(words))) == {}


def test_an_episode_that_nothing_ends_is_cut_off_by_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gym_trl.episode.MAX_TURNS", 6)
    plan = Plan("text", (0.5,), (None, True, None), (None,), 99, "never", -1.0, declares=False)
    play = Play(lambda: Planned(plan), {}, ("go",))
    assert disagreements(play) == {}
    played = rolled_out(play)
    assert (played.stop_reason, len(played.turns), played.success) == (StopReason.TURN_LIMIT, 6, False)


@examples(60)
@given(PLANS, OPTIONS, st.integers(1, 4))
def test_an_invalid_action_costs_the_penalty_once(plan: Plan, options: dict[str, Any], turns: int) -> None:
    words = (SPACES[plan.space][1] * turns)[:turns]
    with_penalty, without = (
        rolled_out(Play(lambda: Planned(plan), {**options, "invalid_penalty": penalty}, words))
        for penalty in (0.5, 0.0)
    )
    assert with_penalty.stop_reason is not None
    if with_penalty.scored and not with_penalty.stop_reason.cut_off:
        assert with_penalty.paid == pytest.approx(without.paid - 0.5 * with_penalty.invalid_actions)


@examples(60)
@given(PLANS, OPTIONS, st.integers(1, 4), st.data())
def test_a_policy_that_leaves_an_episode_is_charged_as_a_model_is(
    plan: Plan, options: dict[str, Any], turns: int, data: st.DataObject
) -> None:
    words = tuple(data.draw(st.lists(st.sampled_from(responses(SPACES[plan.space][1])), min_size=1, max_size=5)))
    play = Play(lambda: Planned(plan), options, words)
    whole = rolled_out(play)
    if len(whole.turns) <= turns:
        return
    left = rolled_out(play, limits=replace(LIMITS, tokens=whole.turns[turns].spans[0].start))
    assert (len(left.turns), left.stop_reason) == (turns, "token_limit")

    def leaves(env: object, seed: int) -> Callable[[str, Mapping[str, Any]], str]:
        said, count = play.policy(), itertools.count()

        def act(observation: str, info: Mapping[str, Any]) -> str:
            if next(count) == turns:
                raise ModelStopped(StopReason.TOKEN_LIMIT, "no room")
            return said(observation)

        return act

    assert outcome(played_all(play, TextPlayer(leaves, raw=True))) == outcome(left)


@pytest.mark.parametrize("door", DOORS)
def test_a_mistake_of_the_user_is_raised_by_all(door: Callable[[Play], Outcome]) -> None:
    plan = Plan("text", (1.0,), (None,), (None,), 2, "mistake", 0.0, declares=False)
    with pytest.raises(ConfigError, match="no such level"):
        door(Play(lambda: Planned(plan), {"turn_limit": 9}, ("go",)))


# ---------------------------------------------------------------------------------------------------------------------
# Executors
# ---------------------------------------------------------------------------------------------------------------------

PLANNED = [
    Plan(space, (0.5, 0.1), success, (True, False), 3, ending, -1.0, declares=declares)
    for ending in ("terminated", "truncated", "never", "crashed", "left", "disconnected", "nan")
    for space, success, declares in (("text", (True, None), False), ("dict", (None,), False), ("box", (None,), True))
]


def in_pool(plans: Iterable[Plan], **options: Any) -> list[Outcome]:
    """Return the outcomes of plans in two wrappings, whose environments a pool has made by name."""
    plays = [(json.dumps([plan, wrapping, 4]), plan) for plan in plans for wrapping in ("step penalty", "time limit")]
    said = [SPACES[plan.space][1][0] for _, plan in plays]
    engine = ScriptedEngine(lambda request: CHAT.say(said[int(request.episode_id)]))
    tasks = [Task(name, 0) for name, _ in plays]
    with make_pool(make_named, **options) as pool:
        return [outcome(one) for [one] in run(rollout(tasks, pool=pool, engine=engine, chat=CHAT, limits=LIMITS))]


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_all_executors_give_the_same_result(executor: Any) -> None:
    assert in_pool(PLANNED, executor=executor, workers=2) == in_pool(PLANNED)


@pytest.mark.slow
def test_a_step_that_hangs_is_worth_as_much_as_one_that_raises() -> None:
    crashed, hangs = ([PLANNED[0]._replace(ending=ending)] for ending in ("crashed", "hangs"))
    expected = in_pool(crashed)
    assert [one["stop_reason"] for one in expected] == ["crashed", "crashed"]
    assert in_pool(hangs, executor="thread", step_timeout=0.2) == expected


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
def test_models_and_policies_in_all_seats_play_the_same_game(
    source: Any, words: tuple[str, ...], turn_limit: int | None, data: st.DataObject
) -> None:
    """Law 21."""
    said = data.draw(st.lists(st.sampled_from(words), min_size=1, max_size=9))
    spec = EnvSpec(source, seats="self", action_format=None, turn_limit=turn_limit)
    [env_id] = spec.weights
    task, counts = Task(env_id, 3), {0: itertools.count(), 1: itertools.count()}
    engine = ScriptedEngine(lambda request: CHAT.say(said[(request.number - 1) % len(said)]))

    def seated(seat: int) -> TextPlayer:
        return TextPlayer(lambda env, seed: lambda observation, info: said[next(counts[seat]) % len(said)], raw=True)

    chat: Any = CHAT
    one = ModelPlayer(chat, engine, LIMITS)
    [models] = play_all(lambda: spec.make(env_id), [task], [one, one])
    [policies] = play_all(lambda: spec.make(env_id), [task], [seated(0), seated(1)])
    assert [outcome(one) for one in policies.episodes] == [outcome(one) for one in models.episodes]
