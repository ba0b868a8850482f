"""Laws of trainings on one process: tokens, groups, unscored episodes, repetition, metrics."""

import warnings
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import gymnasium as gym
import pytest
import torch
from datasets import Dataset
from support import tiny_trainer
from trl import GRPOTrainer

from grpo.gradient_grid import Ragged, RaggedGame
from gym_trl import GymGRPOTrainer, StopReason, env_reward
from gym_trl.errors import ChatTemplateError, ConfigError, InfrastructureError
from gym_trl.grpo import curriculum
from gym_trl.grpo.dataset import make_dataset
from gym_trl.grpo.resampling import other_task
from gym_trl.grpo.rewards import Outcome, metrics
from gym_trl.grpo.rollout_func import STATE
from gym_trl.spaces import AnyText
from gym_trl.testing import tiny_tokenizer
from gym_trl.types import Message, Task

GROUP = 4


class Recorder:
    """Keeps the rollouts of a spec, and the batches of its trainer."""

    def __init__(self, env: Any = Ragged, **options: Any) -> None:
        usual = {"max_tokens_per_turn": 3, "executor": "inline", "num_tasks": 24, "num_eval_tasks": 3}
        self.rollouts: list[Any] = []
        self.spec = tiny_trainer.plain_spec(
            env, **{"instructions": "", **usual, **options}, on_rollout=self.rollouts.append
        )

    def trainer(self, folder: Path, kind: Any = GymGRPOTrainer, *, grpo: Any = None, **named: Any) -> Any:
        settings = {"per_device_train_batch_size": 8, "max_steps": 2, "max_completion_length": 96, **(grpo or {})}
        return tiny_trainer.make(folder, self.spec, kind, grpo=settings, **named)

    def train(self, folder: Path, kind: Any = GymGRPOTrainer, **named: Any) -> Any:
        trainer = self.trainer(folder, kind, **named)
        trainer.train()
        return trainer

    @property
    def texts(self) -> list[list[str]]:
        """Return what was said in each episode."""
        return [[turn.answer.text for turn in one.turns] for rollout in self.rollouts for one in rollout.episodes]


KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "stock": (GRPOTrainer, Ragged, {}),
    "plain": (GymGRPOTrainer, Ragged, {}),
    "credit": (GymGRPOTrainer, Ragged, {"credit": "return_to_go"}),
    "history": (GymGRPOTrainer, Ragged, {"history": 1}),
    "notes": (GymGRPOTrainer, Ragged, {"history": "notes"}),
    "rendered": (GymGRPOTrainer, Ragged, {"history": "rendered", "system_prompt": "Play."}),
    "seats": (GymGRPOTrainer, RaggedGame, {"seats": "self"}),
    "resampled": (GymGRPOTrainer, Ragged, {"resample_dead_groups": 1}),
    "flaky": (GymGRPOTrainer, Ragged, {"env_kwargs": {"flaky": True}}),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_training_has_whole_groups_of_exact_tokens_and_loses_no_episode(name: str, tmp_path: Path) -> None:
    """Laws 1, 2, 6 and 8."""
    kind, env, options = KINDS[name]
    recorder, calls = Recorder(env, **options), []
    rollout_func = recorder.spec.rollout_func

    def see(request: Any, completion: Any) -> Any:
        calls.append((tuple(request.prompt_ids), tuple(completion.ids)))

    with pytest.MonkeyPatch.context() as patch:
        watch_engine(patch, see)
        recorder.train(tmp_path, kind)
    assert rollout_func is recorder.spec.rollout_func
    asked = Counter(calls)
    seeds = set()
    for rollout in recorder.rollouts:
        assert len(rollout.episodes) == 8
        assert all(isinstance(one.stop_reason, StopReason) for one in rollout.episodes)
        for first in range(0, 8, GROUP):
            tasks = {one.task.to_json() for one in rollout.episodes[first : first + GROUP]}
            assert len(tasks) == 1
            seeds |= tasks
        for one in rollout.episodes:
            for segment in one.segments if one.scored else ():
                assert len(segment.completion_ids) == len(segment.mask) == len(segment.logprobs)
                assert all(
                    (bit == 0) == (value == 0.0) for bit, value in zip(segment.mask, segment.logprobs, strict=True)
                )
            for turn in one.turns:
                for place, start, stop in turn.spans:
                    segment = one.segments[place]
                    before = tuple(segment.prompt_ids + segment.completion_ids[:start])
                    assert asked[before, tuple(segment.completion_ids[start:stop])]
                    assert all(segment.mask[start:stop])
            sampled = sum(stop - start for turn in one.turns for _, start, stop in turn.spans)
            assert not one.scored or sampled == sum(map(sum, (segment.mask for segment in one.segments)))
    assert len(seeds) == 4


def watch_engine(patch: pytest.MonkeyPatch, see: Any) -> None:
    """Call a function with each request of the trainer's engine and its completion."""
    from gym_trl.engines.transformers import TransformersEngine

    submit, collect, requests = TransformersEngine.submit, TransformersEngine.collect, {}

    def submitted(engine: Any, request: Any) -> None:
        requests[id(engine), request.id] = request
        submit(engine, request)

    def collected(engine: Any) -> Any:
        completions = collect(engine)
        for one in completions:
            see(requests[id(engine), one.request_id], one)
        return completions

    patch.setattr(TransformersEngine, "submit", submitted)
    patch.setattr(TransformersEngine, "collect", collected)


@pytest.mark.parametrize("grpo", [{}, {"temperature": 0.5, "top_k": 5}], ids=str)
@pytest.mark.parametrize("name", ["plain", "notes", "seats"])
def test_logprobs_are_those_of_the_model_in_training(name: str, grpo: Any, tmp_path: Path) -> None:
    """Law 4."""
    kind, env, options = KINDS[name]
    recorder = Recorder(env, **options)
    trainer = recorder.trainer(tmp_path, kind, grpo={"max_steps": 1, "learning_rate": 0.0, **grpo})
    trainer.train()
    assert tiny_trainer.logprob_difference(trainer.model, recorder.rollouts[0].episodes, **grpo) < 1e-4


@pytest.mark.parametrize("name", ["plain", "credit", "history", "resampled", "seats"])
def test_a_training_that_is_repeated_is_the_same(name: str, tmp_path: Path) -> None:
    """Law 17."""
    kind, env, options = KINDS[name]
    ways = []
    for _ in range(2):
        recorder = Recorder(env, **options)
        trainer = recorder.train(tmp_path, kind)
        ways.append((recorder.texts, tiny_trainer.weights_of(trainer).tolist()))
    assert ways[0] == ways[1]


def test_a_second_training_and_evaluation_with_one_trainer_are_sampled_like_the_first(tmp_path: Path) -> None:
    """Law 17: no hidden counter outlives a training."""
    recorder = Recorder()
    trainer = recorder.trainer(tmp_path, grpo={"learning_rate": 0.0, "per_device_eval_batch_size": 8})
    found = []
    for run in (trainer.train, trainer.train, trainer.evaluate, trainer.evaluate):
        recorder.rollouts.clear()
        run()
        found.append(recorder.texts)
    assert found[0] == found[1] != found[2]
    # Evaluations know the step, which their samples depend on.
    assert found[2] == found[3]


def test_a_resumed_training_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    """Law 17: seeds depend on the step alone."""
    grpo = {"max_steps": 3, "save_strategy": "steps", "save_steps": 1, "shuffle_dataset": False, "learning_rate": 1e-3}
    whole, rest = (
        Recorder(curriculum=[{}, {}], resample_dead_groups=1),
        Recorder(curriculum=[{}, {}], resample_dead_groups=1),
    )
    trained = whole.train(tmp_path, grpo=grpo)
    trainer = rest.trainer(tmp_path, grpo=grpo)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert rest.texts == whole.texts[8:]
    assert torch.equal(tiny_trainer.weights_of(trained), tiny_trainer.weights_of(trainer))
    assert trainer.state.stateful_callbacks[STATE] == trained.state.stateful_callbacks[STATE]


def test_a_training_that_resumes_between_two_steps_on_the_same_episodes_says_so(tmp_path: Path) -> None:
    grpo = {"max_steps": 2, "num_iterations": 2, "save_strategy": "steps", "save_steps": 1}
    Recorder().train(tmp_path, grpo=grpo)
    with pytest.warns(RuntimeWarning, match="resumes at step 1"):
        Recorder().trainer(tmp_path, grpo=grpo).train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))


class Unlucky(gym.Wrapper[Any, Any, Any, Any]):
    """Environment that fails at some actions."""

    def step(self, action: Any) -> Any:
        if crc32(action.encode()) % 5 == 0:
            raise InfrastructureError("the machine is gone")
        return self.env.step(action)


def of_ids(completion_ids: Any, **_: Any) -> list[float]:
    """Pay for ids, also those of unscored episodes."""
    return [sum(ids) % 7 / 7 for ids in completion_ids]


def and_much_for_unscored(completion_ids: Any, episode: Any, **_: Any) -> list[float]:
    """Pay the same, and a lot for unscored episodes."""
    paid = zip(of_ids(completion_ids), episode, strict=True)
    return [value if one.scored else 1000.0 for value, one in paid]


async def later(completion_ids: Any, episode: Any, **_: Any) -> list[float]:
    """Pay in another way, as a function that is awaited."""
    return [2.0 * value for value in and_much_for_unscored(completion_ids, episode)]


@pytest.mark.parametrize("options", [{}, {"credit": "return_to_go"}, {"history": 1}], ids=str)
@pytest.mark.parametrize("grpo", [{}, {"scale_rewards": "batch", "loss_type": "grpo"}], ids=str)
def test_an_unscored_episode_moves_no_weight_whatever_functions_pay_for_it(
    options: Any, grpo: Any, tmp_path: Path
) -> None:
    """Law 14."""
    weights = []
    for paid in (of_ids, and_much_for_unscored):
        recorder = Recorder(wrappers=[Unlucky], **options)
        rewards = [env_reward, paid, *([later] if paid is and_much_for_unscored else [])]
        settings = {"learning_rate": 1e-2, "max_steps": 1, "reward_weights": [1.0, 0.5, 0.0][: len(rewards)], **grpo}
        trainer = recorder.train(tmp_path, grpo=settings, reward_funcs=rewards)
        weights.append(tiny_trainer.weights_of(trainer))
        assert 0 < trainer.state.log_history[0]["env/unscored"] < 1
    assert torch.equal(*weights)


@pytest.mark.parametrize("kind", [GRPOTrainer, GymGRPOTrainer])
def test_a_batch_without_a_scored_episode_moves_no_weight(kind: Any, tmp_path: Path) -> None:
    """Law 14, with the stock class too."""

    def break_(env: Any) -> Any:
        return gym.wrappers.TransformAction(env, partial(_fail), AnyText())

    recorder = Recorder(wrappers=[break_])
    trainer = recorder.trainer(tmp_path, kind, grpo={"learning_rate": 1.0, "max_steps": 1})
    before = tiny_trainer.weights_of(trainer)
    trainer.train()
    assert torch.equal(before, tiny_trainer.weights_of(trainer))
    assert trainer.state.log_history[0]["env/unscored"] == 1.0


def _fail(action: Any) -> Any:
    raise InfrastructureError("no license")


def mean(values: Any) -> float:
    values = list(values)
    return float(sum(values) / len(values))


@pytest.mark.parametrize("logging_steps", [1, 3])
def test_what_is_logged_is_counted_over_all_episodes_since_the_last_log(logging_steps: int, tmp_path: Path) -> None:
    """Law 18, and 13: the same quantity is the same number wherever it is shown."""
    recorder = Recorder(wrappers=[Unlucky])
    trainer = recorder.train(tmp_path, grpo={"max_steps": 3, "logging_steps": logging_steps})
    logs = [log for log in trainer.state.log_history if "env/return" in log]
    assert len(logs) == 3 // logging_steps
    for number, log in enumerate(logs):
        rollouts = recorder.rollouts[number * logging_steps : (number + 1) * logging_steps]
        episodes = [one for rollout in rollouts for one in rollout.episodes]
        scored = [one for one in episodes if one.scored]
        assert log["env/return"] == pytest.approx(mean(one.episode_return for one in scored))
        assert log["env/turns"] == pytest.approx(mean(len(one.turns) for one in scored))
        assert log["env/success"] == pytest.approx(mean(one.success for one in scored))
        assert log["env/unscored"] == pytest.approx(1 - len(scored) / len(episodes))
        stops = {name.removeprefix("env/stop/"): value for name, value in log.items() if name.startswith("env/stop/")}
        counted = Counter(str(one.stop_reason) for one in episodes)
        assert stops == pytest.approx({name: count / len(episodes) for name, count in counted.items()})


def test_the_stock_class_logs_the_same_metrics(tmp_path: Path) -> None:
    logs = []
    for kind in (GRPOTrainer, GymGRPOTrainer):
        trainer = Recorder().train(tmp_path, kind, grpo={"max_steps": 1})
        logs.append({name: value for name, value in trainer.state.log_history[0].items() if name.startswith("env/")})
    assert logs[0] == pytest.approx(logs[1], abs=1e-6)


def test_each_of_several_environments_has_its_own_success_and_return() -> None:
    echo = Outcome("Echo", StopReason.ENDED, 1.0, True, {"turns": 1})
    chess = Outcome("Chess", StopReason.TOKEN_LIMIT, 0.0, False, {"turns": 3})
    found = metrics([echo, chess, chess])
    assert (found["success/Echo"], found["success/Chess"], found["return/Chess"]) == (1.0, 0.0, 0.0)
    assert found["success"] == pytest.approx(1 / 3)
    assert not {"success/Echo", "stop/crashed"} & set(metrics([echo]))


def test_an_episode_that_declares_no_success_has_failed_where_another_declares_it(tmp_path: Path) -> None:
    """Law 13."""
    recorder = Recorder(turn_limit=2)  # Ragged declares success in its last step only
    trainer = recorder.train(tmp_path, grpo={"max_steps": 1})
    found = {(one.stop_reason, one.success) for one in recorder.rollouts[0].episodes}
    assert (StopReason.TURN_LIMIT, False) in found
    assert (StopReason.ENDED, True) in found
    assert trainer.state.stateful_callbacks[STATE]["declaring"] == [recorder.rollouts[0].episodes[0].task.env_id]


@pytest.mark.parametrize(
    "options",
    [{"credit": "pool"}, {"history": 2}, {"seats": "self", "env": RaggedGame}],
    ids=["credit", "history", "seats"],
)
def test_what_changes_rows_is_refused_with_the_stock_class(options: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="GymGRPOTrainer"):
        Recorder(**options).train(tmp_path, GRPOTrainer)


def test_a_function_around_the_rollout_says_which_one_it_is(tmp_path: Path) -> None:
    recorder = Recorder(history=1)
    with pytest.raises(ConfigError, match=r"functools\.wraps"):
        recorder.train(tmp_path, rollout_func=partial(recorder.spec.rollout_func))


@pytest.mark.parametrize(
    ("options", "grpo"),
    [
        ({"credit": "pool"}, {"multi_objective_aggregation": "normalize_then_sum"}),
        ({"credit": "pool"}, {"importance_sampling_level": "sequence"}),
        ({"history": 1}, {"mask_truncated_completions": True}),
        ({"seats": "self", "env": RaggedGame}, {"num_generations": 3, "per_device_train_batch_size": 6}),
        ({}, {"use_transformers_continuous_batching": True}),
    ],
    ids=str,
)
def test_settings_that_would_change_the_loss_are_refused_when_the_trainer_is_made(
    options: Any, grpo: Any, tmp_path: Path
) -> None:
    """Law 22."""
    with pytest.raises(ConfigError):
        Recorder(**options).trainer(tmp_path, grpo=grpo)


def test_credit_needs_the_function_that_pays_the_turns(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="env_reward"):
        Recorder(credit="pool").trainer(tmp_path, reward_funcs=[of_ids])


def test_a_template_that_does_not_continue_is_refused_unless_it_is_rendered_anew(tmp_path: Path) -> None:
    """Law 3."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ '<|' + m.role + '|>' + loop.revindex0|string + m.content + '<|end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
    )
    with pytest.raises(ChatTemplateError):
        Recorder().trainer(tmp_path, processing_class=tokenizer)
    Recorder(history="rendered").train(tmp_path, processing_class=tokenizer, grpo={"max_steps": 1})


def test_evaluations_play_other_tasks_and_whole_games(tmp_path: Path) -> None:
    recorder = Recorder(RaggedGame, seats="self")
    grpo = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 8}
    trainer = recorder.train(tmp_path, grpo=grpo)
    tasks = {
        split: {one.task.seed for r in recorder.rollouts if r.split == split for one in r.episodes}
        for split in ("train", "eval")
    }
    assert tasks["eval"] == {task.seed for task in recorder.spec.tasks("eval")}
    assert not tasks["eval"] & tasks["train"]
    for rollout in recorder.rollouts:
        for first, second in zip(rollout.episodes[::2], rollout.episodes[1::2], strict=True):
            assert (first.seat, second.seat, first.task) == (0, 1, second.task)
            assert first.paid == -second.paid
    assert any("eval_env/return_seat_1" in log for log in trainer.state.log_history)


def test_prompts_without_a_task_get_one_for_each_group_the_same_in_every_evaluation(tmp_path: Path) -> None:
    """Law 6."""
    recorder, rows = Recorder(), Dataset.from_dict({"prompt": ["Play."] * 4})
    grpo = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 8}
    recorder.train(tmp_path, grpo=grpo, train_dataset=rows, eval_dataset=rows)
    seeds: dict[str, list[list[int]]] = {"train": [], "eval": []}
    for rollout in recorder.rollouts:
        groups = [rollout.episodes[place : place + GROUP] for place in range(0, len(rollout.episodes), GROUP)]
        assert all(len({one.task.to_json() for one in group}) == 1 for group in groups)
        seeds[rollout.split].append([group[0].task.seed for group in groups])
    assert len({seed for step in seeds["train"] for seed in step}) == 4
    first, second, *again = seeds["eval"]
    assert [first, second] == again
    assert not {*first, *second} & {seed for step in seeds["train"] for seed in step}


def test_members_of_a_group_are_sampled_apart(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.train(tmp_path, grpo={"max_steps": 1})
    assert len({tuple(texts) for texts in recorder.texts[:GROUP]}) > 1


class Hopeless(Ragged):
    """Task of which half pay nothing, whatever is said."""

    def __init__(self) -> None:
        super().__init__(hopeless=True)


@pytest.mark.parametrize("credit", ["episode", "return_to_go"])
def test_dead_groups_are_played_again_with_other_tasks_and_counted(credit: str, tmp_path: Path) -> None:
    recorder = Recorder(Hopeless, resample_dead_groups=3, credit=credit)
    trainer = recorder.train(tmp_path, grpo={"max_steps": 3})
    replaced = [one for rollout in recorder.rollouts for one in rollout.replaced]
    assert replaced
    assert len(replaced) % GROUP == 0
    for rollout in recorder.rollouts:
        for first in range(0, len(rollout.replaced), GROUP):
            group = rollout.replaced[first : first + GROUP]
            assert len({one.task.to_json() for one in group}) == 1
            assert len({one.episode_return for one in group}) == 1
    for rollout, log in zip(recorder.rollouts, trainer.state.log_history, strict=False):
        everything = [*rollout.episodes, *rollout.replaced]
        assert log["env/return"] == pytest.approx(mean(one.episode_return for one in everything))
        assert log.get("env/replaced", 0.0) == pytest.approx(len(rollout.replaced) / len(everything))


def test_a_dead_group_plays_another_task_which_there_must_be() -> None:
    tasks = [Task("Any", 0), Task("Any", 1)]
    prompts = [*make_dataset(tasks[:1])["prompt"], *make_dataset(tasks[1:], system_prompt="Be brief.")["prompt"]]
    other = [Message("system", "Be brief.")], tasks[1]
    assert all(other_task(Dataset.from_dict({"prompt": prompts}), tasks[0], seed) == other for seed in range(20))
    with pytest.raises(ConfigError, match="num_tasks"):
        other_task(make_dataset(tasks[:1]), tasks[0], 0)


def test_groups_without_a_scored_episode_are_not_played_again(tmp_path: Path) -> None:
    def break_(env: Any) -> Any:
        return gym.wrappers.TransformAction(env, partial(_fail), AnyText())

    recorder = Recorder(wrappers=[break_], resample_dead_groups=3)
    recorder.train(tmp_path, grpo={"max_steps": 1})
    assert not recorder.rollouts[0].replaced


def test_the_level_rises_with_the_success_rate_and_is_that_of_all_tasks_of_a_rollout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curriculum, "EPISODES", 8)
    recorder = Recorder(curriculum=[{}, {}, {}], num_eval_tasks=2)  # Ragged is won whenever it ends
    trainer = recorder.train(tmp_path, grpo={"max_steps": 4, "per_device_eval_batch_size": 4})
    trainer.evaluate()
    levels = [{one.task.options["level"] for one in rollout.episodes} for rollout in recorder.rollouts]
    assert levels == [{0}, {1}, {2}, {2}, *[{2}] * (len(levels) - 4)]
    assert [log["env/level"] for log in trainer.state.log_history if "env/level" in log] == [0, 1, 2, 2]


def test_a_curriculum_falls_where_little_is_won_and_needs_declared_success() -> None:
    state = {"level": 1}
    curriculum.count(state, 3, [(1, False)] * curriculum.EPISODES)
    assert state["level"] == 0
    with pytest.raises(ConfigError, match="success"):
        curriculum.count({"level": 1}, 3, [(1, None)] * curriculum.EPISODES)
