"""Credit per turn in a real GRPOTrainer, on one process and on two."""

from pathlib import Path
from statistics import pstdev
from typing import Any

import pytest
import torch
from rich.console import Console
from support import credit_trainings as given, tiny_trainer, training_ways
from trl import GRPOTrainer

from gym_trl import GymGRPOTrainer, GymSpec, adopt
from gym_trl.errors import ConfigError
from gym_trl.grpo.adopt import attach
from gym_trl.grpo.credit import ESTIMATORS, TurnCredit, groups, pool
from gym_trl.grpo.credit.columns import TurnRow
from gym_trl.records import read_records
from gym_trl.records.json_lines import read_json_lines
from gym_trl.testing import tiny_model, tiny_tokenizer
from gym_trl.training import run
from gym_trl.training.options import choose, read_options

pytestmark = [pytest.mark.trl, pytest.mark.processes]
SCRIPT = Path(given.__file__)
GUESS: dict[str, Any] = {
    "env_kwargs": {"high": 8, "turns": 4},
    "max_tokens_per_turn": 1,
    "executor": "inline",
    "num_tasks": 8,
    "num_eval_tasks": 2,
}


@pytest.fixture(scope="module", params=training_ways.WAYS)
def trained(request, tmp_path_factory):
    """On two processes of six rows each, the second group of four straddles them."""
    return training_ways.run(request.param, SCRIPT, tmp_path_factory.mktemp("trained"))


def test_every_token_has_the_advantage_of_its_turn_whoever_pays(trained):
    for report in trained:
        for name, found in report["advantages"].items():
            assert found["wrong"] == 0, name
            assert found["turns"] > 0
        assert report["advantages"]["num_iterations"]["seen"] == 4 * given.GROUPS * given.SIZE // len(trained)


def test_logs_have_the_company_and_spread_of_turns_over_all_processes(trained):
    turns, company = 8, 5  # all first turns, and the two at "a"
    for report in trained:
        for log in report["logs"]:
            assert log["credit/company"] == pytest.approx(company / turns)
            spread = sum(map(pstdev, given.BY_HAND)) / len(given.BY_HAND) * (1 + 2 + 3) / 3
            assert log["credit/spread"] == pytest.approx(spread)


def guess(credit, folder, *, adopted=False, reward_funcs=None, options=None, **grpo):
    """Train on a game; return the weights and the columns that reward functions were given."""
    seen = []

    def look(completion_ids, **columns):
        seen.append({"completion_ids": completion_ids, **columns})
        return [None] * len(completion_ids)

    torch.manual_seed(0)
    spec = tiny_trainer.plain_spec(**GUESS | (options or {}), credit=credit)
    trainer = tiny_trainer.make(
        folder,
        spec,
        GRPOTrainer if adopted else GymGRPOTrainer,
        grpo={"per_device_train_batch_size": 8, "max_steps": 1, "learning_rate": 1e-2, **grpo},
        reward_funcs=[*spec.reward_funcs, look, *(reward_funcs or [])],
    )
    if adopted:
        adopt(trainer)
    trainer.train()
    return tiny_trainer.weights_of(trainer), seen


def arbitrary(completion_ids, **_):
    return [sum(ids) % 7 / 7 for ids in completion_ids]


@pytest.mark.parametrize(
    "scale", ["group", *(pytest.param(name, marks=pytest.mark.full) for name in ("batch", "none"))]
)
def test_credit_per_episode_is_the_trainers_own_up_to_rounding(tmp_path, scale):
    """With another reward function and weights."""
    grpo = {"scale_rewards": scale, "reward_weights": [2.0, 1.0, 0.5]}
    own, _ = guess("episode", tmp_path, reward_funcs=[arbitrary], **grpo)
    ours, _ = guess(ESTIMATORS["episode"], tmp_path, reward_funcs=[arbitrary], **grpo)
    assert float((own - ours).abs().max()) < 1e-4
    assert float((own - tiny_trainer_weights()).abs().max()) > 5e-3


def runs_of_ones(mask):
    edges = [place for place, (before, now) in enumerate(zip([0, *mask], [*mask, 0], strict=True)) if before != now]
    return list(zip(edges[::2], edges[1::2], strict=True))


def tiny_trainer_weights():
    model = tiny_model(tiny_tokenizer())
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


def test_credit_of_an_adopted_trainer_and_of_one_made_with_it_is_the_same(tmp_path):
    first, _ = guess("pool", tmp_path, reward_funcs=[arbitrary])
    rollouts: list[Any] = []
    options = {"on_rollout": rollouts.append}
    before, seen = guess("pool", tmp_path, reward_funcs=[arbitrary], adopted=True, options=options)
    episode, _ = guess("episode", tmp_path, reward_funcs=[arbitrary])
    assert torch.equal(first, before)
    assert not torch.equal(first, episode)
    for columns in seen:
        rows = ("completion_ids", "turn_spans", "turn_rewards", "turn_keys", "episode_return", "num_turns")
        for ids, spans, rewards, keys, worth, turns in zip(*(columns[name] for name in rows), strict=True):
            assert len(spans) == len(rewards) == len(keys) - 1 == turns > 0
            assert sum(rewards) == pytest.approx(worth)
            assert spans[-1][1] == len(ids)
            assert all(start < stop for start, stop in spans)
        played = rollouts.pop(0).episodes
        assert columns["turn_keys"] == [list(one.state_keys) for one in played]
        assert columns["turn_spans"] == [runs_of_ones(one.mask) for one in played]
        for start in range(0, 8, 4):  # a group begins in one state, and no two in the same
            assert len({keys[0] for keys in columns["turn_keys"][start : start + 4]}) == 1


@pytest.mark.parametrize("across", [True, False])
def test_groups_of_one_task_are_compared_where_the_estimator_gains(tmp_path, monkeypatch, across):
    given = []

    def look(group):
        given.append(group)
        return pool(group)

    monkeypatch.setattr(groups, "ACROSS_GROUPS", frozenset({look} if across else ()))
    guess(look, tmp_path, options={"env_kwargs": {"high": 2, "turns": 2}}, max_steps=3)
    assert {len(group) for group in given} == ({4, 8} if across else {4})  # two groups of four in each of three steps
    assert sum(map(len, given)) == 3 * 8
    for group in given:
        assert len({one.keys[0] for one in group}) == 1
        assert {one.left[0] for one in group} == {2}


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    spec = tiny_trainer.plain_spec(**GUESS)
    return tiny_trainer.make(tmp_path_factory.mktemp("trainer"), spec, grpo={"per_device_train_batch_size": 4})


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("importance_sampling_level", "sequence", "importance_sampling_level='sequence'"),
        ("multi_objective_aggregation", "normalize_then_sum", "multi_objective_aggregation='normalize_then_sum'"),
        ("loss_type", "gspo", "loss_type='gspo', which may reduce a row to one number; use one of bnpo, cispo"),
    ],
)
def test_a_setting_that_needs_one_number_per_row_is_refused_by_name(trainer, monkeypatch, name, value, told):
    monkeypatch.setattr(trainer, name, value)
    with pytest.raises(ConfigError, match=f"credit per turn is not possible with {told}"):
        TurnCredit("pool").trainer_part().check(trainer)


def test_a_trainer_with_its_own_loss_is_refused_unless_it_calls_trls(trainer, monkeypatch):
    class Own(GRPOTrainer):
        def _compute_loss(self, model, inputs):
            return model(inputs["completion_ids"]).logits.sum()

    class More(GRPOTrainer):
        calls_trl_loss = True

        def _compute_loss(self, model, inputs):
            return super()._compute_loss(model, inputs) + 1

    spec = tiny_trainer.plain_spec(**GUESS, credit="pool")
    monkeypatch.setattr(trainer, "rollout_func", spec.rollout_func)
    monkeypatch.setattr(trainer, "__class__", Own)
    with pytest.raises(ConfigError, match="Own, which overrides _compute_loss: set calls_trl_loss = True"):
        adopt(trainer, spec)
    assert type(trainer) is Own
    monkeypatch.setattr(trainer, "__class__", More)
    assert [part.name for part in adopt(trainer, spec).gym_trl.parts] == ["credit"]
    assert isinstance(trainer, More)


@pytest.mark.parametrize(
    ("credit", "told"),
    [
        ("pol", "'episode', 'return_to_go', 'pool' or a function"),
        (3, "'episode', .* or a function or its name module:function, got 3"),
        ((), ""),
    ],
)
def test_an_estimator_that_does_not_exist_is_refused(credit, told):
    with pytest.raises(ConfigError, match=f"credit must be {told}"):
        GymSpec("TrlEnv/GuessNumber-v0", credit=credit)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"turn_spans": [(0, 2), (2, 2)]}, "turn_spans of row 0 must be turns .* none of them empty"),
        ({"turn_spans": [(0, 2), (1, 3)]}, "turn_spans of row 0 must be turns .* in order"),
        ({"turn_spans": []}, "turn_spans of row 0"),
        ({"turn_rewards": [1.0]}, "turn_rewards of row 0 must be of 2 turns, got 1"),
        ({"turn_keys": ["a", "b"]}, "turn_keys of row 0 must be of 2 turns, got 1"),
        ({"turns_left": [2]}, "turns_left of row 0 must be of 2 turns, got 1"),
        ({"turn_keys": ["a", ["b"], "c"]}, r"a state key must be hashable, got \['b'\] in row 0"),
    ],
)
def test_columns_that_say_nothing_about_the_turns_are_refused_by_name(changes, told):
    row = {"turn_rewards": [0.0, 1.0], "turn_spans": [(0, 2), (4, 6)], "turn_keys": ["a", "b", "c"]}
    row |= {
        "markov_keys": False,
        "turns_left": [],
        "turn_places": [],
        "task_key": "",
        "turn_penalties": [0.0, 0.0],
        "role": None,
    }
    row |= {"unplayed_costs": 0.0}
    TurnRow.of(row).check("row 0")
    with pytest.raises(ConfigError, match=told):
        TurnRow.of(row | changes).check("row 0")


def test_a_second_estimator_is_refused_and_the_same_one_is_not(tmp_path):
    spec = tiny_trainer.plain_spec(**GUESS, credit="return_to_go")
    trainer = tiny_trainer.make(tmp_path, spec, grpo={"per_device_train_batch_size": 4})
    attach(trainer, [TurnCredit("return_to_go").trainer_part()])
    with pytest.raises(ConfigError, match="credit changes the rows of a batch, and this trainer did not know of it"):
        attach(trainer, [TurnCredit("pool").trainer_part()])


def test_a_resumed_run_keeps_its_credit_and_records_advantages_of_turns(tmp_path):
    options = choose(
        credit="pool",
        steps=1,
        episodes_per_step=16,
        num_generations=4,
        eval_episodes=2,
    )
    console = Console(quiet=True)
    run.train(options, out=tmp_path, console=console)
    run.resume(tmp_path, steps=2, console=console)
    logged = list(read_json_lines(tmp_path / "metrics.jsonl"))
    assert [entry["step"] for entry in logged if "credit/company" in entry] == [1, 2]
    place = ("step", "split", "group", "attempt")
    records = {
        tuple(dict(one)[name] for name in place): one for one in read_records(tmp_path) if one["split"] == "train"
    }
    credit = list(read_json_lines(tmp_path / "credit.jsonl"))
    assert [tuple(one[name] for name in place) for one in credit] == list(records)
    for one, record in zip(credit, records.values(), strict=True):
        assert len(one["advantages"]) == record["num_turns"]
    assert any(any(one["advantages"]) for one in credit)
    assert read_options(tmp_path).credit == "pool"


def test_a_setting_that_credit_cannot_work_with_ends_a_run_before_it_begins(tmp_path):
    options = choose(
        credit="pool", grpo={"importance_sampling_level": "sequence"}, steps=1, episodes_per_step=16, eval_episodes=2
    )
    with pytest.raises(ConfigError, match="importance_sampling_level='sequence'"):
        run.train(options, out=tmp_path / "run", console=Console(quiet=True))
    assert not (tmp_path / "run").exists()
