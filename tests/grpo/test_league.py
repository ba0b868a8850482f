"""Leagues: opponents are drawn as the schedule says, the same in a resumed training, and their tokens are in no row."""

import json
import random
import re
import signal
import time
from collections import Counter
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import pytest
from hypothesis import given, strategies as st
from support import training_ways, warm
from support.chat_server import ChatServer
from support.lanes import examples

from gym_trl import GymSpec
from gym_trl.engines.routed import RoutedEngine
from gym_trl.engines.sample_all import sample_all
from gym_trl.engines.scripted import ScriptedEngine
from gym_trl.errors import ConfigError
from gym_trl.grpo.attach import Place
from gym_trl.grpo.league import LeagueState, outcome_of
from gym_trl.grpo.parts.league_games import LeagueGames
from gym_trl.grpo.planned_rows import Planned
from gym_trl.options import League
from gym_trl.policies import TextPolicy
from gym_trl.seeding import derive_seed
from gym_trl.types import Answer, EpisodeResult, Request, StopReason, Task, Turn

TASK = Task("TrlEnv/TicTacToe-v0", 0)
SCRIPT = Path(__file__).parent / "train_in_league.py"
FIXED = ("random", "solver", "constant")


@st.composite
def leagues(draw):
    """Return a league with snapshots and results."""
    schedule = draw(st.sampled_from(["uniform", "latest", "prioritized"]))
    own = {
        "latest": {"latest": draw(st.integers(1, 3))},
        "prioritized": {"prefer": draw(st.sampled_from(["hard", "even"]))},
    }
    settings = League(
        draw(st.lists(st.sampled_from(FIXED), unique=True)),
        every=draw(st.integers(1, 5)),
        most=draw(st.integers(3, 6)),
        schedule=schedule,
        self_play=draw(st.sampled_from([0.0, 0.25, 0.5, 0.75])),
        at_once=draw(st.integers(1, 3)),
        **own.get(schedule, {}),
    )
    league = LeagueState(settings)
    for step in sorted(draw(st.sets(st.integers(1, 40), max_size=8))):
        league.join(step)
    names = league.names
    if names:
        league.count(draw(st.lists(st.tuples(st.sampled_from(names), st.sampled_from([-1, 0, 1])), max_size=30)))
    return league


@given(leagues())
@examples(100)
def test_each_opponent_has_the_probability_that_the_schedule_says(league):
    found = league.probabilities()
    past = league.past[-(league.settings.latest or 20) :]
    assert set(found) == {*league.policies, *past}
    if not found:
        return
    assert sum(found.values()) == pytest.approx(1)
    if league.settings.schedule != "prioritized":
        assert set(found.values()) == {1 / len(found)}
        return
    weight = {"hard": lambda p: (1 - p) ** 2, "even": lambda p: p * (1 - p)}[league.settings.prefer or "hard"]
    first = next(iter(found))
    for name, share in found.items():
        expected = weight(league.win_rate(name)) / weight(league.win_rate(first))
        assert share / found[first] == pytest.approx(expected)


@given(leagues(), st.integers(0, 2**62))
@examples(20)
def test_groups_draw_opponents_in_these_proportions_and_few_at_once(league, seed):
    drawn: Counter[str] = Counter()
    rollouts, groups = 600, 8
    for rollout in range(rollouts):
        names = {
            league.opponent(derive_seed(seed, rollout), derive_seed(seed, rollout, group)) for group in range(groups)
        }
        assert len(names - {""}) <= league.settings.at_once
        drawn.update(
            league.opponent(derive_seed(seed, rollout), derive_seed(seed, rollout, group)) for group in range(groups)
        )
    shares = league.probabilities()
    expected = {name: share * (1 - league.settings.self_play) for name, share in shares.items()}
    expected[""] = league.settings.self_play if shares else 1.0
    for name in {*drawn, *expected}:
        # Groups of a rollout are correlated: at the least there are as many independent draws as rollouts.
        share = expected.get(name, 0.0)
        assert drawn[name] / (rollouts * groups) == pytest.approx(
            share, abs=5 * (share * (1 - share) / rollouts) ** 0.5
        )


@pytest.mark.parametrize("name", ["../elsewhere", "/root", "step-1/../../x", "step-", "model", "", None, 7, ["step-1"]])
def test_a_checkpoint_names_snapshots_of_its_league_only(name):
    league = LeagueState(League(["random"], every=2))
    with pytest.raises(ConfigError, match="snapshots called step-NUMBER"):
        league.state = {"past": ["step-2", name], "played": {}}
    assert league.past == []


@given(leagues(), st.integers(0, 2**62))
@examples(60)
def test_a_league_with_the_same_state_draws_the_same(league, seed):
    again = LeagueState(league.settings)
    again.state = json.loads(json.dumps(league.state))
    assert again.state == league.state
    assert again.metrics() == league.metrics()
    random.seed(0)
    for group in range(20):
        assert again.opponent(seed, group) == league.opponent(seed, group)


@given(st.integers(1, 7), st.integers(1, 4), st.lists(st.integers(1, 5), max_size=12))
@examples(60)
def test_a_snapshot_joins_once_per_interval_however_often_there_are_rollouts(every, most, strides):
    league, step = LeagueState(League(every=every, most=most)), 0
    joined: list[int] = []
    for stride in strides:
        step += stride
        if league.is_due(step):
            assert step // every > (joined[-1] if joined else 0) // every
            league.join(step)
            joined.append(step)
        assert not league.is_due(step)
    assert league.past == [f"step-{one}" for one in joined[-most:]]
    assert {one // every for one in joined} == {passed // every for passed in _sums(strides) if passed >= every}


def _sums(strides):
    total = 0
    for stride in strides:
        total += stride
        yield total


def test_results_against_an_opponent_that_left_are_forgotten():
    league = LeagueState(League(every=1, most=2))
    for step in (1, 2):
        league.join(step)
    league.count([("step-1", 1), ("step-2", -1)])
    league.join(3)
    assert set(league.state["played"]) == {"step-2"}
    smaller = LeagueState(League(every=1, most=1))
    smaller.state = league.state
    assert smaller.state == {"past": ["step-3"], "played": {}}


def test_a_function_is_the_same_opponent_after_a_resume():
    made = League([json.loads, "random"])
    again = League.of(json.loads(json.dumps(made.as_dict())))
    assert list(LeagueState(made).policies) == list(LeagueState(again).policies) == ["json:loads", "random"]


def test_a_league_without_opponents_yet_plays_itself():
    league = LeagueState(League(every=10))
    assert {league.opponent(1, group) for group in range(20)} == {""}


def episode(reason, success=None, returned=0.0):
    turns = () if reason is StopReason.UNPLAYED else (Turn("", Answer("", ""), returned, True, 0, 1),)
    return EpisodeResult(TASK, reason, turns, (), declared=success)


@pytest.mark.parametrize(
    ("mine", "other", "outcome"),
    [
        (episode(StopReason.SUCCESS, True, 1.0), episode(StopReason.FAILURE, False, -1.0), 1),
        (episode(StopReason.FAILURE, False, -1.0), episode(StopReason.SUCCESS, True, 1.0), -1),
        (episode(StopReason.FAILURE, False), episode(StopReason.FAILURE, False), 0),
        (episode(StopReason.SUCCESS, True, 1.0), episode(StopReason.SUCCESS, True, 1.0), 0),
        (episode(StopReason.FORFEIT), episode(StopReason.TOKEN_LIMIT), 1),
        (episode(StopReason.TOKEN_LIMIT), episode(StopReason.FORFEIT), -1),
        (episode(StopReason.FAILURE, False, -1.0), episode(StopReason.UNPLAYED), -1),
        (episode(StopReason.SUCCESS, True, 1.0), episode(StopReason.UNPLAYED), 1),
        (episode(StopReason.ENV_ERROR), episode(StopReason.ENV_ERROR), None),
        (episode(StopReason.UNPLAYED), episode(StopReason.SUCCESS, True, 1.0), None),
    ],
)
def test_a_game_is_won_lost_drawn_or_not_counted(mine, other, outcome):
    assert outcome_of(mine, [other]) == outcome


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "opponents must have at least one policy, or every=N add snapshots"),
        ({"opponents": [], "every": None}, "opponents must have at least one policy, or every=N add snapshots"),
        ({"opponents": 3}, "opponents must be a list of policies or their names, got 3"),
        ({"schedule": "lastest"}, "schedule must be 'uniform', 'latest' or 'prioritized', got 'lastest'"),
        ({"schedule": "prioritized", "prefer": "easy"}, "prefer must be 'hard' or 'even', got 'easy'"),
        ({"prefer": "even"}, "prefer='even' needs schedule=\"prioritized\", got schedule='uniform'"),
        ({"latest": 3}, 'latest needs schedule="latest"'),
        ({"every": 5, "schedule": "latest", "latest": 30}, "latest .* at most most=20; got latest=30"),
        ({"every": 0}, "every must be an integer of at least 1, got 0"),
        ({"every": "often"}, "every must be an integer of at least 1, got 'often'"),
        ({"self_play": 1}, "self_play must be a number from 0 to below 1, got 1"),
        ({"at_once": 0}, "at_once must be an integer of at least 1"),
        ({"opponents": ["random", "random"]}, "two opponents are called 'random'"),
        ({"opponents": ["self"]}, "no opponent can be called 'self': the share of self-play is self_play="),
        ({"opponents": ["step-5"]}, "no opponent can be called 'step-5': give the folder as './step-5'"),
        ({"opponents": ["./nowhere/model"]}, "there is no folder './nowhere/model'"),
    ],
)
def test_what_no_league_can_have_is_refused(given, said):
    named: Any = {"opponents": ["random"], **given} if given else given
    with pytest.raises(ConfigError, match=f"^{said}"):
        LeagueState(League(**named))
    with pytest.raises(ConfigError, match=r"^seats[.:]") as raised:
        GymSpec("TrlEnv/TicTacToe-v0", seats=named)
    assert re.search(said, str(raised.value))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"seats": League("slover")}, "TrlEnv/KuhnPoker-v0 has no policy 'slover'; did you mean 'solver'"),
        ({"seats": League(["random", "perfect"])}, "has no policy 'perfect'"),
        ({"env": "TrlEnv/Echo-v0", "seats": {"opponents": "random"}}, "has one seat"),
        ({"seats": {"opponents": ["random"], "evry": 3}}, "^there is no option seats.evry; did you mean 'every'"),
        ({"seats": 3}, "^seats must be 'self' or a League, got 3"),
        ({"seats": "random every=25"}, "^seats must be 'self' or a League, got 'random every=25'"),
    ],
)
def test_a_league_that_the_environment_cannot_play_is_refused(options, said):
    with pytest.raises(ConfigError, match=said):
        GymSpec(**{"env": "TrlEnv/KuhnPoker-v0", **options})


@given(st.lists(st.sampled_from(["", "a", "b"]), min_size=1, max_size=12))
@examples(40)
def test_every_request_is_answered_by_the_engine_of_its_model(models):
    def engine(name):
        return ScriptedEngine(lambda request: [ord(name or "0"), request.seed], delay=lambda request: request.seed % 3)

    asked = [Request(str(seed), [0], 9, seed, 1, model) for seed, model in enumerate(models)]
    found = sample_all(RoutedEngine(engine(""), engine), asked)
    assert [one.ids for one in found] == [[ord(model or "0"), seed] for seed, model in enumerate(models)]


def test_a_cancelled_request_frees_its_place_in_the_engine_of_its_model():
    others = {"a": ScriptedEngine(lambda request: [1])}
    engine = RoutedEngine(ScriptedEngine(lambda request: [0]), others.__getitem__)
    engine.submit(Request("x", [0], 9, 0, 1, "a"))
    engine.cancel("x-1")
    engine.submit(Request("y", [0], 9, 0, 1))
    assert [one.request_id for one in engine.collect(block=True)] == ["y-1"]
    assert engine.collect(block=True) == []


def games(opponents, **options):
    return LeagueGames(
        LeagueState(League(opponents)), make=GymSpec("TrlEnv/TicTacToe-v0", seats="self").make, **options
    )


def test_a_missing_snapshot_is_named(tmp_path):
    league = LeagueState(League(every=1))
    league.join(7)
    trainer: Any = SimpleNamespace(
        args=SimpleNamespace(output_dir=str(tmp_path)), state=SimpleNamespace(global_step=7, stateful_callbacks={})
    )
    call: Any = SimpleNamespace(trainer=trainer, training=True, seats={})
    with pytest.raises(ConfigError, match=r"snapshot step-7 is missing in .*league: .* copy of its folder 'league'"):
        LeagueGames(league, make=gym.make).begin(call)


def test_a_group_has_one_opponent_on_all_processes_until_it_is_replaced():
    found = games(["random", "solver"], seed=5)
    call: Any = SimpleNamespace(place=Place("train", 3, 0, 0, 3), training=True)
    groups = []
    for group in range(40):
        names = {found.opponent(Planned(8 * group + k, group, k, [], TASK), call) for k in range(8)}
        assert len(names) == 1
        groups.append(names.pop())
    again = [found.opponent(Planned(8 * group, group, 0, [], TASK, attempt=1), call) for group in range(40)]
    assert again != groups
    call.place = call.place._replace(step=4)
    later = [found.opponent(Planned(8 * group, group, 0, [], TASK), call) for group in range(40)]
    assert later != groups


# ---------------------------------------------------------------------------------------------------------------------
# Training
# ---------------------------------------------------------------------------------------------------------------------


def train(folder, *, way=training_ways.WAYS[0], **settings):
    folder.mkdir(exist_ok=True)
    return training_ways.run(way, SCRIPT, folder, json.dumps(settings), "whole")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("league")
    [report] = train(
        folder,
        league={"opponents": ["random", "solver"], "every": 2, "most": 2, "self_play": 0.4},
        grpo={"max_steps": 6},
    )
    return folder, report


@pytest.mark.trl
@pytest.mark.processes
def test_against_an_opponent_the_model_plays_each_seat_equally_often(alone):
    _, report = alone
    kinds: Counter[str] = Counter()
    for rollout in report["rollouts"]:
        rows = [dict(zip(rollout, row, strict=True)) for row in zip(*rollout.values(), strict=True)]
        assert [row["seat"] for row in rows] == [0, 1] * (len(rows) // 2)
        for group in range(0, len(rows), 4):
            [opponent] = {row["opponent"] for row in rows[group : group + 4]}
            kinds[opponent] += 1
            for row in rows[group : group + 4]:
                assert row["role"].endswith(f"seat {row['seat']}" + (f" against {_kind(opponent)}" if opponent else ""))
                key = json.loads(row["task_key"])
                assert (key[-1] if isinstance(key, list) else "") == opponent
                if row["stop_reason"] != "unplayed":
                    assert row["completion_ids"]
    assert kinds[""]
    assert kinds["random"]
    assert any(name.startswith("step-") for name in kinds)


def _kind(name):
    return "past" if name.startswith("step-") else name


@pytest.mark.trl
@pytest.mark.processes
def test_snapshots_are_saved_and_bounded_and_their_results_logged(alone):
    folder, report = alone
    assert report["state"]["past"] == ["step-2", "step-4"]
    saved = folder / "whole" / "checkpoints" / "league"
    assert sorted(path.name for path in saved.iterdir()) == ["step-2", "step-4"]
    assert {"config.json", "model.safetensors"} <= {path.name for path in (saved / "step-4").iterdir()}
    counted = report["state"]["played"]
    played = Counter(
        opponent
        for rollout in report["rollouts"]
        for opponent, returned in zip(rollout["opponent"], rollout["episode_return"], strict=True)
        if opponent and returned is not None
    )
    assert set(counted) == set(played)
    for name, counts in counted.items():
        assert 0.99 ** played[name] * played[name] <= sum(counts) <= played[name]
    last = report["logs"][-1]
    assert last["league/opponents"] == 4
    assert 0 <= last["league/win_rate"] <= 1


@pytest.mark.trl
@pytest.mark.processes
@pytest.mark.full
def test_a_snapshot_samples_what_the_model_sampled_then(tmp_path):
    """With learning switched off, a game against the past is a game of the model with itself."""
    [report] = train(tmp_path, league={"every": 1, "self_play": 0}, grpo={"max_steps": 3, "learning_rate": 0.0})
    assert set(report["rollouts"][0]["opponent"]) == {""}
    assert set(report["rollouts"][1]["opponent"]) == {"step-1"}
    assert report["snapshot_differs"] == 0.0
    [moved] = train(tmp_path / "again", league={"every": 1, "self_play": 0}, grpo={"max_steps": 3})
    assert moved["snapshot_differs"] > 0


@pytest.mark.trl
@pytest.mark.processes
@pytest.mark.full
def test_adapters_share_the_weights_of_the_trained_model_and_are_saved_alone(tmp_path):
    [report] = train(
        tmp_path, league={"every": 1, "self_play": 0}, grpo={"max_steps": 4, "learning_rate": 0.0}, lora=True
    )
    saved = tmp_path / "whole" / "checkpoints" / "league" / "step-1"
    assert (saved / "adapter_model.safetensors").exists()
    assert not (saved / "model.safetensors").exists()
    assert report["snapshot_differs"] == pytest.approx(0.0, abs=1e-5)
    assert report["shared"] > 0.5
    [moved] = train(tmp_path / "again", league={"every": 1, "self_play": 0}, grpo={"max_steps": 4}, lora=True)
    assert moved["snapshot_differs"] > 1e-4
    assert moved["base_differs"] == 0.0


@pytest.mark.trl
@pytest.mark.processes
@pytest.mark.full
def test_a_model_in_a_folder_is_an_opponent_with_its_own_tokenizer(tmp_path):
    [_] = train(tmp_path, league={"every": 1}, grpo={"max_steps": 2})
    model = tmp_path / "whole" / "checkpoints" / "league" / "step-1"
    [report] = train(tmp_path / "next", league={"opponents": str(model), "self_play": 0}, grpo={"max_steps": 2})
    assert set(report["rollouts"][0]["opponent"]) == {str(model)}
    assert sum(report["state"]["played"][str(model)])


@pytest.mark.trl
@pytest.mark.processes
@pytest.mark.full
def test_games_of_a_league_are_the_same_on_two_processes(alone, tmp_path):
    _, single = alone
    settings = {"max_steps": 6, "per_device_train_batch_size": 8}
    pair = warm.run_ranks(
        SCRIPT,
        tmp_path,
        json.dumps(
            {"league": {"opponents": ["random", "solver"], "every": 2, "most": 2, "self_play": 0.4}, "grpo": settings}
        ),
        "whole",
        processes=2,
    )
    assert pair[0]["state"] == pair[1]["state"]
    first = [[one["rollouts"][0][name] for one in pair] for name in ("opponent", "seat", "completion_ids")]
    assert [[*one, *other] for one, other in first] == [
        single["rollouts"][0][name] for name in ("opponent", "seat", "completion_ids")
    ]
    everything = [[one["rollouts"][k]["opponent"] for one in pair] for k in range(6)]
    assert [[*one, *other] for one, other in everything] == [rollout["opponent"] for rollout in single["rollouts"]]


@pytest.mark.trl
@pytest.mark.processes
@pytest.mark.full
# Checkpoints are at 4 and 8, and snapshots at 2, 4, 6, 8 and 10.
@pytest.mark.parametrize(("processes", "dies_at"), [(1, 7), (1, 10), (2, 9)])
def test_a_league_whose_training_was_killed_goes_on_with_the_same_pairings(processes, dies_at, tmp_path):
    settings = {
        "league": {"opponents": ["random"], "every": 2, "most": 2, "schedule": "prioritized", "self_play": 0.3},
        "grpo": {
            "max_steps": 12,
            "save_strategy": "steps",
            "save_steps": 4,
            "per_device_train_batch_size": 16 // processes,
        },
        "dies_at": dies_at,
    }
    for status, said in warm.end_ranks(SCRIPT, tmp_path, json.dumps(settings), "whole", "killed", processes=processes):
        assert status == -signal.SIGKILL, said[-3000:]
    for status, said in warm.end_ranks(SCRIPT, tmp_path, json.dumps(settings), "resumed", processes=processes):
        assert status == 0, said[-3000:]
    for rank in range(processes):
        whole, resumed = (
            [json.loads(line) for line in (tmp_path / name / f"played-{rank}.jsonl").read_text().splitlines()]
            for name in ("whole", "killed")
        )
        again = [line for line in resumed if line.pop("resumed")]
        start = dies_at // 4 * 4
        assert [line["step"] for line in again] == list(range(start, 12)), f"died at {dies_at}"
        for line in whole:
            del line["resumed"]
        assert again == whole[start:], f"died at {dies_at}"
        states = [json.loads((tmp_path / name / f"result-{rank}.json").read_text()) for name in ("whole", "killed")]
        assert states[0] == states[1], f"died at {dies_at}"


@pytest.mark.trl
def test_a_slow_opponent_on_a_server_is_asked_for_all_games_at_once(tmp_path):
    from support import tiny_trainer

    def answer(body, times):
        time.sleep(0.3)
        free = [one for one in body["messages"][-1]["content"] if one in "123456789"]
        return 200, {"choices": [{"message": {"content": free[0] if free else "1"}, "finish_reason": "stop"}]}

    with ChatServer(answer) as home:
        Thread(target=home.serve_forever, daemon=True).start()
        spec = GymSpec(
            "TrlEnv/TicTacToe-v0",
            seats=League(f"{home.url}#the-model", self_play=0),
            action_format="plain",
            max_tokens_per_turn=1,
            cut_actions="accept",
            num_tasks=8,
            num_eval_tasks=2,
        )
        grpo = {"max_steps": 1, "per_device_train_batch_size": 16, "num_generations": 8}
        trainer = tiny_trainer.make(tmp_path, spec, grpo=grpo)
        trainer.train()
        home.shutdown()
    assert home.peak > 2
    assert {body["model"] for body in home.bodies} == {"the-model"}
    assert spec.league is not None
    assert set(spec.league.state["played"]) == {"the-model"}


def test_an_opponent_that_raises_leaves_its_game_unscored_in_a_thread_too():
    from gym_trl.executors.inline import InlinePool
    from gym_trl.rollout.episode import Episode
    from gym_trl.rollout.game import Game, run_games
    from gym_trl.rollout.limits import Limits
    from gym_trl.testing import ByteChat

    chat, found = ByteChat(), games([TextPolicy("slow", lambda env, seed: _raise, concurrency=4)])
    learner = Episode(TASK, chat=chat, limits=Limits(tokens_per_turn=9))
    make = GymSpec("TrlEnv/TicTacToe-v0", seats="self", action_format="plain").make
    with InlinePool(make) as pool:
        engine = ScriptedEngine(lambda request: chat.say("1"))
        [result] = run_games([Game([learner, found.policy("slow", TASK, 0)])], pool=pool, engine=engine)
    assert {one.stop_reason for one in result} == {StopReason.ENV_ERROR}
    assert "the policy raised KeyError: 'no plan'" in str(result[0].error)


def _raise(observation):
    raise KeyError("no plan")
