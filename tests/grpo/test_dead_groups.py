"""Groups that teach nothing are replaced within the rollout, alike on all processes, and everything played counts."""

import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import gymnasium as gym
import pytest
from datasets import Dataset, IterableDataset
from hypothesis import given, strategies as st
from support import tiny_trainer, warm

from gym_trl.errors import ConfigError
from gym_trl.grpo.attach import Place
from gym_trl.grpo.dataset import make_dataset, read_prompt
from gym_trl.grpo.parts.curriculum import LevelCurriculum, make_curriculum
from gym_trl.grpo.parts.dead_groups import DeadGroups
from gym_trl.grpo.planned_rows import read_rows
from gym_trl.grpo.training_tasks import Choice, Draws, TrainingTasks
from gym_trl.options import Curriculum
from gym_trl.types import Task

pytestmark = pytest.mark.trl
SIZE = 4
SCRIPT = Path(__file__).parent / "train_some_steps.py"


class Flip(gym.Wrapper):
    """Game of one turn that half of the tasks never pay, and that the others pay by a coin that the response flips."""

    def reset(self, *, seed=None, options=None):
        self.hopeless = (seed // 2) % 2 == 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action):
        observation, _, _, _, info = self.env.step(action)
        won = not self.hopeless and crc32(action.encode()) % 2 == 0
        return observation, float(won), True, False, {**info, "success": won}


def spec(**options):
    settings = {"num_tasks": 24, "num_eval_tasks": 8, "max_tokens_per_turn": 3, "executor": "inline"}
    return tiny_trainer.plain_spec("TrlEnv/Echo-v0", wrappers=[Flip], **{**settings, **options})


def task_in(prompt):
    task = read_prompt(prompt)[1]
    assert task is not None
    return task


def hopeless(task):
    return (task.seed // 2) % 2 == 0


def train(folder, *, steps=3, resume=None, dataset=None, reward=None, **options):
    """Train and return the trainer with its rollouts."""
    rollouts: list[Any] = []
    made = spec(on_rollout=rollouts.append, **options)
    trainer = tiny_trainer.make(
        folder,
        made,
        grpo={
            "max_steps": steps,
            "per_device_train_batch_size": 16,
            "per_device_eval_batch_size": 8,
            "num_generations": SIZE,
            "max_completion_length": 32,
            "save_strategy": "steps",
            "save_steps": 2,
            "learning_rate": 0.0,
        },
        reward_funcs=[*made.reward_funcs, *([reward] if reward else [])],
        **({} if dataset is None else {"train_dataset": dataset}),
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer, rollouts


def in_groups(rollout):
    return [rollout.episodes[start : start + SIZE] for start in range(0, len(rollout.episodes), SIZE)]


def returns(episodes):
    return {episode.episode_return for episode in episodes}


ROUNDS = 2


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Three steps of four groups, whose reward function tells what it is given, and an evaluation."""
    told: list[Any] = []

    def tell(prompts, task, dataset_row, label=None, **_):
        told.extend(zip(prompts, task, label or task, dataset_row, strict=True))
        return [0.0] * len(prompts)

    rows = spec().train_dataset
    labelled = rows.add_column("label", [task_in(prompt).seed for prompt in rows["prompt"]])
    folder = tmp_path_factory.mktemp("trained")
    trainer, rollouts = train(folder, resample_dead_groups=ROUNDS, dataset=labelled, reward=tell)
    trainer.evaluate()
    return trainer, rollouts, told


def test_only_dead_groups_are_replaced_and_only_after_all_rounds_is_one_left(trained):
    _, rollouts, _ = trained
    seen = []
    for rollout in [one for one in rollouts if one.split == "train"]:
        for number, last in enumerate(in_groups(rollout)):
            before = [one for one in rollout.replaced if one.place // SIZE == number]
            attempts = [[one for one in before if one.attempt == attempt] for attempt in range(ROUNDS)]
            history = [[one.episode for one in some] for some in attempts if some] + [last]
            seen.append(len(history))
            assert [one.place for one in before] == [number * SIZE + row % SIZE for row in range(len(before))]
            assert all(len(some) == SIZE and len({one.task.to_json() for one in some}) == 1 for some in history)
            assert all(len(returns(some)) == 1 for some in history[:-1])
            assert len(history) == ROUNDS + 1 or len(returns(last)) > 1
            assert all(one[0].task != other[0].task for one, other in pairwise(history))
    assert len(seen) == 12
    assert {1, ROUNDS + 1} <= set(seen)


def test_an_evaluation_plays_its_own_tasks_and_replaces_none(trained):
    trainer, rollouts, _ = trained
    evaluated = [rollout for rollout in rollouts if rollout.split == "eval"]
    assert all(not rollout.replaced for rollout in evaluated)
    expected = [task_in(prompt).seed for prompt in trainer.eval_dataset["prompt"]]
    played = [episode.task.seed for rollout in evaluated for episode in rollout.episodes]
    assert sorted(played) == sorted(expected * SIZE)  # TRL shuffles them
    [log] = [log for log in trainer.state.log_history if "eval_env/return" in log]
    assert not any("replaced" in name for name in log)


def test_reward_functions_get_the_columns_of_the_task_that_was_played(trained):
    _, rollouts, told = trained
    told = [(task_in(prompt), Task.from_json(task), label, row) for prompt, task, label, row in told]
    trained_on = [episode for rollout in rollouts if rollout.split == "train" for episode in rollout.episodes]
    assert [task for _, task, _, _ in told][: len(trained_on)] == [episode.task for episode in trained_on]
    for prompted, task, label, _ in told[: len(trained_on)]:
        assert prompted == task
        assert label == task.seed
    assert any(row is not None for *_, row in told)


def test_the_logs_count_everything_that_was_played(trained):
    trainer, rollouts, _ = trained
    logs = [log for log in trainer.state.log_history if "env/return" in log]
    for log, rollout in zip(logs, [one for one in rollouts if one.split == "train"], strict=True):
        everything = [*rollout.episodes, *(one.episode for one in rollout.replaced)]
        assert log["env/success"] == pytest.approx(sum(one.success for one in everything) / len(everything))
        assert log["env/return"] == pytest.approx(sum(one.episode_return for one in everything) / len(everything))
        assert log["env/replaced_groups"] == len(rollout.replaced) / SIZE
        assert log["env/replaced_share"] == pytest.approx(len(rollout.replaced) / len(everything))
        assert log["env/replaced_tokens"] == sum(sum(one.episode.mask) for one in rollout.replaced)
        # TRL's own mean is that of the rows that are trained on.
        trained_on = [one.episode_return for one in rollout.episodes]
        assert log["rewards/env_reward/mean"] == pytest.approx(sum(trained_on) / len(trained_on))


@pytest.mark.full
def test_a_resumed_training_draws_the_tasks_of_one_that_was_not_interrupted(tmp_path):
    options = {"resample_dead_groups": 2}

    def tasks(rollouts):
        return [
            (
                [one.task for one in rollout.episodes],
                [(one.place, one.attempt, one.episode.task) for one in rollout.replaced],
            )
            for rollout in rollouts
        ]

    _, whole = train(tmp_path / "whole", steps=4, **options)
    train(tmp_path / "some", steps=2, **options)
    _, resumed = train(tmp_path / "some", steps=4, resume=str(tmp_path / "some" / "checkpoint-2"), **options)
    assert [rollout.step for rollout in resumed] == [2, 3]
    assert tasks(resumed) == tasks(whole)[2:]
    assert any(rollout.replaced for rollout in resumed)


@pytest.mark.full
@pytest.mark.processes
def test_two_processes_replace_the_same_groups_also_one_that_straddles_them(tmp_path):
    options = {"resample_dead_groups": 2}
    grpo = {"per_device_train_batch_size": 6, "per_device_eval_batch_size": 6, "num_generations": SIZE}
    asked = json.dumps({"spec": options, "grpo": grpo})
    ranks = [report["rollouts"] for report in warm.run_ranks(SCRIPT, tmp_path, asked, processes=2)]
    straddling = 0
    for step in zip(*ranks, strict=True):
        if step[0]["split"] != "train":
            assert all(rollout["replaced"] == [] for rollout in step)
            continue
        tasks = [task for rollout in step for task in rollout["tasks"]]
        assert [len(set(tasks[start : start + SIZE])) for start in (0, 4, 8)] == [1, 1, 1]
        replaced = [
            (6 * rank + place, attempt, task, value)
            for rank, rollout in enumerate(step)
            for place, attempt, task, value in rollout["replaced"]
        ]
        groups = {(row // SIZE, attempt) for row, attempt, _, _ in replaced}
        for number, attempt in groups:
            some = [one for one in replaced if (one[0] // SIZE, one[1]) == (number, attempt)]
            assert [row for row, *_ in some] == list(range(number * SIZE, number * SIZE + SIZE))
            assert len({task for _, _, task, _ in some}) == len({value for *_, value in some}) == 1
        straddling += any(number == 1 for number, _ in groups)
    assert straddling
    logs = [json.loads((tmp_path / f"rank{rank}.json").read_text())["logs"] for rank in range(2)]
    for one, other in zip(*logs, strict=True):
        assert {name: value for name, value in one.items() if "env/" in name} == {
            name: value for name, value in other.items() if "env/" in name
        }


TASKS = [Task("TrlEnv/Echo-v0", seed, {"level": 0}) for seed in range(9)]
ROWS = make_dataset(TASKS)
PROMPTS = list(ROWS["prompt"])
CURRICULA: dict[str, Curriculum | None] = {"none": None, "levels": Curriculum([{}, {}], level=1)}


@given(st.data(), st.sampled_from(sorted(CURRICULA)), st.integers(1, 4), st.integers(1, 4), st.booleans())
def test_what_a_group_plays_does_not_depend_on_how_its_rows_are_distributed(data, name, size, processes, plain):
    """Law 6, also for what is drawn."""
    rows = data.draw(st.integers(1, 6).map(lambda count: count * size * processes))
    dead = data.draw(st.sets(st.integers(0, rows // size)))
    seed, step = data.draw(st.tuples(st.integers(0, 99), st.integers(0, 3)))
    prompts = ["Play." if plain else PROMPTS[row // size % 9] for row in range(rows)]
    curriculum = None if plain else make_curriculum(CURRICULA[name])
    trainer = SimpleNamespace(num_generations=size, num_generations_eval=1, train_dataset=ROWS)

    def assign(split, number):
        return Task("TrlEnv/Echo-v0", number)

    def tasks(processes):
        """Return the task of each row in each of three attempts, and the rows that are the first of their groups."""
        seen, first = [], []
        for rank in range(processes):
            begin, end = (rows // processes * part for part in (rank, rank + 1))
            draws = Draws(assign, seed, None if curriculum is None else curriculum.choose)
            place = Place("train", step, 0, begin, 0)
            planned = [read_rows(prompts[begin:end], place, size, assign=assign, seed=seed)]
            if curriculum is not None:
                call: Any = SimpleNamespace(trainer=trainer, place=place)
                planned = [curriculum.plan(planned[0], call)]
            for _ in range(2):
                planned.append(draws.others([row for row in planned[-1] if row.group in dead], trainer, place))
            seen += [(row.number, row.attempt, row.task, row.dataset_row) for some in planned for row in some]
            first += [row.group for row in planned[0] if row.first_of_group]
        return sorted(seen, key=lambda one: one[:2]), first

    played, first = tasks(processes)
    assert (played, first) == tasks(1)
    assert first == list(range(rows // size))
    found: dict[tuple[int, int], Task] = {}
    for number, attempt, task, _ in played:
        assert found.setdefault((number // size, attempt), task) == task
    for (number, attempt), task in found.items():
        assert attempt == 0 or task != found[number, attempt - 1]
        assert name != "levels" or plain or task.options["level"] == 1


def test_evaluations_are_never_drawn():
    assert not LevelCurriculum.in_evaluations
    assert not DeadGroups.in_evaluations
    planned = read_rows(PROMPTS, Place("eval", 3, 0, 0, 0), 1, assign=lambda split, number: TASKS[0], seed=0)
    assert [(row.task, row.dataset_row) for row in planned] == [(task, None) for task in TASKS]


# ---------------------------------------------------------------------------------------------------------------------
# Bad input
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"resample_dead_groups": -1}, "resample_dead_groups must be an integer of at least 0, got -1"),
        ({"resample_dead_groups": 1, "num_tasks": 1}, "num_tasks must be at least 2 for resample_dead_groups"),
        ({"curriculum": "hard"}, "^curriculum must be a Curriculum, got 'hard'"),
    ],
)
def test_what_cannot_be_drawn_is_refused_by_name(options, said):
    with pytest.raises(ConfigError, match=said):
        spec(**options)


def test_trainers_that_choose_tasks_themselves_are_refused():
    made = spec(resample_dead_groups=2)
    with pytest.raises(ConfigError, match="needs rollout_func"):
        _ = made.environment_factory


def test_a_dataset_that_is_streamed_or_has_one_task_is_refused():
    def assign(split, number):
        return Task("TrlEnv/Echo-v0", number)

    with pytest.raises(ConfigError, match="streaming dataset"):
        TrainingTasks(IterableDataset.from_generator(lambda: iter([{"prompt": "Play."}])), assign)
    with pytest.raises(ConfigError, match="train_dataset has only one"):
        TrainingTasks(make_dataset([Task("TrlEnv/Echo-v0", 3)] * 4), assign)
    plain = TrainingTasks(Dataset.from_dict({"prompt": ["Play."]}), assign)
    assert plain.draw([Choice(0)], other_than=Task("TrlEnv/Echo-v0", 3), number=5).task.seed == 5
