"""The trainer class: how it is made, what it refuses, and the methods of a user's part."""

import pickle

import pytest
import torch
from support import failing_trainings, tiny_trainer
from transformers import PrinterCallback
from trl import GRPOConfig, GRPOTrainer

from gym_trl import GymGRPOTrainer, Part, adopt
from gym_trl.errors import ConfigError
from gym_trl.grpo.trainer import GymTraining
from gym_trl.grpo.trainer_parts import TrainerPart
from gym_trl.grpo.trl_versions import pending_metrics
from gym_trl.testing import tiny_model, tiny_tokenizer

pytestmark = [pytest.mark.trl, pytest.mark.processes]
GRPO = {"per_device_train_batch_size": 4, "max_steps": 1, "max_completion_length": 48}


def make(folder, spec=None, kind=GymGRPOTrainer, **given):
    """Return a trainer with only the arguments that are given."""
    grpo = GRPOConfig(output_dir=str(folder), **{**tiny_trainer.QUIET, **GRPO, **given.pop("grpo", {})})
    tokenizer = tiny_tokenizer()
    if spec is not None:
        given["spec"] = spec
    trainer = kind(model=tiny_model(tokenizer), processing_class=tokenizer, args=grpo, **given)
    trainer.remove_callback(PrinterCallback)
    return trainer


def stock(folder, spec, **given):
    arguments = {name: getattr(spec, name) for name in ("train_dataset", "rollout_func", "reward_funcs")}
    return make(folder, kind=GRPOTrainer, **{**arguments, **given})


def test_a_spec_fills_what_is_not_given(tmp_path):
    spec = failing_trainings.guess()
    trainer = make(tmp_path, spec)
    assert trainer.rollout_func is spec.rollout_func
    assert trainer.train_dataset is spec.train_dataset
    assert trainer.eval_dataset is spec.eval_dataset
    assert trainer.reward_funcs == spec.reward_funcs
    trainer.train()
    assert "env/return" in trainer.state.log_history[0]

    def half(completions, **_):
        return [0.5] * len(completions)

    few = spec.train_dataset.select(range(2))
    trainer = make(tmp_path, spec, reward_funcs=[half], train_dataset=few)
    assert trainer.reward_funcs == [half]
    assert trainer.train_dataset is few
    with pytest.raises(ConfigError, match="other arguments than the model by name"):
        GymGRPOTrainer(trainer.model, [half], spec=spec)


def test_another_spec_than_that_of_the_rollouts_is_refused(tmp_path):
    spec, other = failing_trainings.guess(), failing_trainings.guess(credit="return_to_go")
    with pytest.raises(ConfigError, match="rollout_func is that of another GymSpec than spec: leave out one"):
        make(tmp_path, spec, rollout_func=other.rollout_func)
    for trainer in (stock(tmp_path, spec), make(tmp_path, spec)):
        with pytest.raises(ConfigError, match="rollout_func is that of another GymSpec than spec"):
            adopt(trainer, other)
    with pytest.raises(ConfigError, match="spec must be a GymSpec, got 'FrozenLake-v1'"):
        make(tmp_path, "FrozenLake-v1")
    with pytest.raises(ConfigError, match="spec must be a GymSpec, got 3"):
        adopt(trainer, 3)  # type: ignore[arg-type]  # the mistake


def test_settings_that_the_spec_excludes_are_refused_at_construction(tmp_path):
    for feature, told in (("credit", "credit per turn is not possible"), ("history", "history=... is not possible")):
        spec = failing_trainings.guess(**failing_trainings.FEATURES[feature])
        with pytest.raises(ConfigError, match=f"{told} with importance_sampling_level='sequence'"):
            make(tmp_path, spec, grpo={"importance_sampling_level": "sequence"})


def test_a_stock_trainer_gets_the_class_and_its_own_stays_as_it_is(tmp_path):
    trainer = stock(tmp_path, failing_trainings.guess())
    trainer.train()
    assert type(trainer) is GymGRPOTrainer
    assert type(stock(tmp_path, failing_trainings.guess())) is GRPOTrainer
    assert pickle.loads(pickle.dumps(type(trainer))) is GymGRPOTrainer


def test_a_stock_trainer_trains_as_the_class_does(tmp_path):
    def arbitrary(completion_ids, **_):
        return [sum(ids) % 7 / 7 for ids in completion_ids]

    found = []
    for make_trainer in (stock, make):
        torch.manual_seed(0)
        grpo = {**failing_trainings.BATCHES, "max_steps": 3, "learning_rate": 1e-2}
        trainer = make_trainer(tmp_path, failing_trainings.guess(), reward_funcs=[arbitrary], grpo=grpo)
        before = tiny_trainer.weights_of(trainer)
        trainer.train()
        weights = tiny_trainer.weights_of(trainer)
        names = ("reward", "reward_std", "env/turns", "env/return", "env/unscored", "num_tokens")
        found.append((weights, [[log[name] for name in names] for log in trainer.state.log_history[:3]]))
        assert float((weights - before).abs().max()) > 1e-3
    (theirs, their_logs), (ours, our_logs) = found
    assert their_logs == our_logs
    assert float((ours - theirs).abs().max()) < 1e-4


@pytest.mark.parametrize("feature", ["credit", "history", "both"])
def test_a_stock_trainer_is_told_which_line_to_change(tmp_path, feature):
    spec = failing_trainings.guess(**failing_trainings.FEATURES[feature])
    trainer = stock(tmp_path, spec)
    with pytest.raises(ConfigError, match=r"GymGRPOTrainer\(..., spec=spec\), or call gym_trl.adopt\(trainer, spec\)"):
        trainer.train()
    assert type(trainer) is GRPOTrainer
    assert adopt(trainer) is trainer
    trainer.train()
    assert [part.name for part in trainer.gym_trl.parts] == [part.name for part in spec.rollout_func.parts]


def test_a_subclass_of_the_users_keeps_its_methods(tmp_path):
    losses = []

    class Theirs(GRPOTrainer):
        parts, attachment = "theirs", "theirs"
        calls_trl_loss = True

        def _compute_loss(self, model, inputs):
            losses.append(inputs["advantages"].dim())
            return super()._compute_loss(model, inputs)

    class Mine(GymTraining, Theirs):
        """Subclass of both."""

    spec = failing_trainings.guess(credit="pool")
    make(tmp_path, spec, Mine).train()

    def around(prompts, trainer):
        return spec.rollout_func(prompts, trainer)

    adopted = adopt(stock(tmp_path, spec, rollout_func=around), spec)
    assert adopted.gym_trl.parts
    theirs = Theirs(
        model=adopted.model,
        processing_class=adopted.processing_class,
        args=adopted.args,
        train_dataset=spec.train_dataset,
        rollout_func=spec.rollout_func,
        reward_funcs=spec.reward_funcs,
    )
    adopt(theirs).train()
    assert isinstance(theirs, Theirs)
    assert type(theirs).__name__ == "Theirs"
    assert (theirs.parts, theirs.attachment) == ("theirs", "theirs")
    assert losses == [2, 2]


class Noting(TrainerPart):
    """Part that changes nothing, and notes when it is called."""

    name = "noting"

    def __init__(self, called):
        self.called = called

    def check(self, trainer):
        self.called.append("check")

    def generated(self, batch, out):
        self.called.append("generated")
        batch.notes[self] = len(out.completion_ids)
        return out

    def rewards(self, batch, inputs, rewards):
        self.called.append("rewards")
        assert batch.notes[self] == len(inputs) == len(rewards)
        return rewards + 1

    def scored(self, batch, columns):
        self.called.append("scored")
        assert batch.notes[self] == len(columns["advantages"])
        return {**columns, "advantages": columns["advantages"] * 0}

    def loss_inputs(self, trainer, inputs):
        self.called.append("loss_inputs")
        assert not inputs["advantages"].any()
        return inputs


class Noted(Part):
    """Part of a rollout that brings one of the trainer."""

    name = "noted"

    def __init__(self, called):
        self.called = called

    def trainer_part(self):
        return Noting(self.called)


def test_a_part_of_the_users_changes_the_batch_in_each_method_once(tmp_path):
    called: list[str] = []
    trainer = make(tmp_path, failing_trainings.guess(parts=[Noted(called)]))
    assert called == ["check"]
    trainer.train()
    assert called == ["check", "generated", "rewards", "scored", "loss_inputs"]
    log = trainer.state.log_history[0]
    assert log["reward"] == pytest.approx(log["env/return"] + 1)
    assert log["grad_norm"] == 0.0


@pytest.mark.parametrize("method", ["generated", "loss_inputs"])
def test_a_part_that_returns_nothing_is_named(tmp_path, method):
    class Forgetful(Noting):
        """Part of which a method lacks its return."""

    class Bringing(Part):
        def trainer_part(self):
            return Forgetful([])

    setattr(Forgetful, method, lambda *_: None)
    trainer = make(tmp_path, failing_trainings.guess(parts=[Bringing()]))
    with pytest.raises(ConfigError, match=f"{method} of Forgetful must return .*, got None"):
        trainer.train()


JOINED = {
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "num_generations": 4,
    "max_steps": 2,
    "learning_rate": 1e-3,
    "logging_steps": 1,
}


def trained(folder, kind=GymGRPOTrainer, **options):
    """Return the gradients' norms of a training in which two micro-batches of a step are one pass."""
    options = {"env_kwargs": {"high": 50, "turns": 1}, "max_tokens_per_turn": 1, **options}
    trainer = make(folder, failing_trainings.guess(**options), kind, grpo=JOINED, reward_funcs=[lengths])
    trainer.train()
    return [log["grad_norm"] for log in trainer.state.log_history if "grad_norm" in log]


def lengths(completion_ids, **_):
    return [float(sum(ids)) for ids in completion_ids]


def test_a_subclass_may_change_every_micro_batch_of_its_inputs(tmp_path):
    seen = []

    class Theirs(GRPOTrainer):
        def _prepare_inputs(self, generation_batch):
            return {**super()._prepare_inputs(generation_batch), "marked": True}

        def _compute_loss(self, model, inputs):
            seen.append("marked" in inputs)
            return super()._compute_loss(model, inputs)

    class Mine(GymTraining, Theirs):
        """Subclass of both."""

    trained(tmp_path, Mine)
    assert seen == [True] * 4


def test_what_an_interrupted_training_had_not_logged_is_forgotten(tmp_path):
    trainer = make(tmp_path, failing_trainings.guess())
    pending_metrics(trainer, "train")["reward"].append(1e6)
    trainer.train()
    assert trainer.state.log_history[0]["reward"] <= 1


class Numbers(Part):
    """Part that notes the step and the number of each generation."""

    def __init__(self):
        self.seen = []

    def begin(self, call):
        self.seen.append((call.place.step, call.place.generation))


@pytest.mark.parametrize(
    ("accumulation", "together", "begins"), [(2, 3, [0, 2, 4, 6]), (3, 2, [0, 1, 2, 3]), (1, 3, [0, 3, 6, 9])]
)
def test_generations_are_numbered_wherever_they_begin_in_a_step(tmp_path, accumulation, together, begins):
    """An epoch is one of them; where it is no whole number of steps, its last step is incomplete."""
    grpo = {"gradient_accumulation_steps": accumulation, "steps_per_generation": together, "max_steps": begins[-1] + 1}
    numbers = Numbers()
    spec = failing_trainings.guess(num_tasks=together, parts=[numbers])
    make(tmp_path, spec, grpo={**grpo, "save_strategy": "steps", "save_steps": begins[1]}).train()
    whole, numbers.seen = numbers.seen, []
    assert whole == list(zip(begins, range(4), strict=True))
    make(tmp_path, spec, grpo=grpo).train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{begins[1]}"))
    assert numbers.seen == whole[1:]


def test_a_trainer_without_spec_and_rewards_is_told_what_it_needs(tmp_path):
    with pytest.raises(ConfigError, match=r"a trainer needs spec=GymSpec\(...\), which has the tasks"):
        make(tmp_path)
