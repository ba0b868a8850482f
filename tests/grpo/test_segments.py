"""Episodes of several segments, each of which is a row of the trainer; their gradients are in the gradient grid."""

from typing import Any

import pytest
from support import tiny_trainer

from gym_trl import adopt
from gym_trl.errors import ConfigError
from gym_trl.rollout import History

pytestmark = [pytest.mark.trl, pytest.mark.processes]


def guess(**changes):
    settings = {"env_kwargs": {"high": 50, "turns": 6}, "executor": "inline", "num_tasks": 8, "num_eval_tasks": 2}
    return tiny_trainer.plain_spec(**{**settings, "history": History(last=1, most=2), **changes})


@pytest.mark.parametrize("credit", ["episode", "pool"])
def test_each_row_of_a_training_is_a_segment_as_the_model_saw_it(tmp_path, credit):
    rollouts: list[Any] = []
    grpo: dict[str, Any] = {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "max_completion_length": 48,
    }
    grpo |= {"max_steps": 2, "learning_rate": 1e-3}
    trainer = tiny_trainer.make(tmp_path, guess(on_rollout=rollouts.append, credit=credit), grpo=grpo)
    trained: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    compute = trainer._compute_loss

    def watch(model, inputs, *given, **named):
        if trainer.model.training:
            for row in range(len(inputs["prompt_ids"])):
                prompt, completion = (
                    inputs[f"{part}_ids"][row][inputs[f"{part}_mask"][row].bool()].tolist()
                    for part in ("prompt", "completion")
                )
                mask = inputs["tool_mask"][row][inputs["completion_mask"][row].bool()].tolist()
                trained.append((tuple(prompt + completion), tuple(mask)))
                if sum(mask) == 0:
                    assert not inputs["advantages"][row].any()
        return compute(model, inputs, *given, **named)

    trainer._compute_loss = watch
    trainer.train()
    segments = [
        (tuple(trace.prompt_ids + trace.completion_ids), tuple(trace.mask))
        for rollout in rollouts
        for episode in rollout.episodes
        for trace in episode.trace.segments
    ]
    assert len(segments) > 2 * 8
    assert sorted(row for row in trained if sum(row[1])) == sorted(segments)
    assert len(trained) % 2 == 0, "the steps of a generation"
    trainer.evaluate()


def test_a_rollout_func_around_ours_needs_the_trainer_to_know_the_spec(tmp_path):
    spec = guess()
    grpo = {"per_device_train_batch_size": 4, "max_steps": 1}

    def around(prompts, trainer):
        return spec.rollout_func(prompts, trainer)

    trainer = tiny_trainer.make(tmp_path, spec, grpo=grpo, rollout_func=around)
    with pytest.raises(ConfigError, match=r"adopt\(trainer, spec\) before trainer.train"):
        trainer.train()
    adopt(trainer, spec)
    trainer.train()


def test_a_rollout_func_around_ours_must_return_where_segments_begin(tmp_path):
    spec = guess()

    def around(prompts, trainer):
        return {name: values for name, values in spec.rollout_func(prompts, trainer).items() if name != "segments"}

    grpo = {"per_device_train_batch_size": 4, "max_steps": 1}
    trainer = tiny_trainer.make(tmp_path, spec, grpo=grpo, rollout_func=around)
    adopt(trainer, spec)
    with pytest.raises(ConfigError, match="the columns segments, env_mask and logprobs are needed"):
        trainer.train()


def test_what_is_not_possible_with_a_history_is_refused_by_name():
    with pytest.raises(ConfigError, match="does not support max_tokens_per_turn, history"):
        _ = guess().environment_factory


def test_states_do_not_say_what_a_summary_keeps():
    with pytest.raises(ConfigError, match="compares states of the environment"):
        guess(history=History(summary="model"), credit="pool")
