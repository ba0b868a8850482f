"""Losses with the head at sampled positions only, and without common padding, are those of TRL."""

from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import peft
import pytest
import torch
from datasets import Dataset
from transformers import BloomConfig, BloomForCausalLM, Gemma2Config, Gemma2ForCausalLM, GPT2Config, GPT2LMHeadModel
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import add_fused_lm_head

from gym_trl.grpo import speed
from gym_trl.testing import tiny_model, tiny_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore:You are using 'rollout_func'")
TOKENIZER = tiny_tokenizer()
SMALL = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}


class Fast(GRPOTrainer):
    """Trainer with the computation of ``speed``."""

    fast = True
    losses: list[Any]

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int, **named: Any
    ) -> Any:
        compute = super()._get_per_token_logps_and_entropies
        if not self.fast:
            return compute(model, input_ids, attention_mask, logits_to_keep, **named)
        return speed.logprobs_and_entropies(
            self, compute, model, input_ids, attention_mask, length=logits_to_keep, **named
        )


class Beside(Fast):
    """Trainer that computes each loss with ``speed`` and by TRL alone, and notes how many tokens a pass has."""

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        found = []
        embed = self.accelerator.unwrap_model(model).get_input_embeddings()
        for self.fast in (True, False):
            tokens: list[int] = []
            noted = embed.register_forward_pre_hook(partial(note, tokens))
            before = {name: len(values) for name, values in self._metrics["train"].items()}
            loss = super()._compute_loss(model, inputs)
            noted.remove()
            trained = [weight for weight in model.parameters() if weight.requires_grad]
            gradients = torch.autograd.grad(loss, trained, allow_unused=True)
            flat = torch.cat([part.float().flatten() for part in gradients if part is not None])
            names = [name for name, values in self._metrics["train"].items() if len(values) > before.get(name, 0)]
            logged = {name: self._metrics["train"][name][before.get(name, 0)] for name in names}
            found.append({"loss": loss.item(), "gradient": flat, "logged": logged, "tokens": sum(tokens)})
        self.losses.append(found)
        self.fast = True
        return super()._compute_loss(model, inputs)


def note(tokens: list[int], _: Any, given: Any) -> None:
    tokens.append(given[0].numel())


def rows_of(prompts: Any, trainer: Any, *, masked: bool, rules: int) -> dict[str, list[Any]]:
    """Return rows of very different lengths, of which half of the tokens were sampled, and some that all begin with."""
    random = np.random.default_rng(trainer.state.global_step)
    columns: dict[str, list[Any]] = {"prompt_ids": [], "completion_ids": [], "logprobs": [], "env_mask": []}
    for _ in prompts:
        length = min(24, 3 + int(random.pareto(1.0) * 2))
        mask = (random.random(length) < (0.0 if masked else 0.5)).astype(int)
        prompt = random.integers(3, 90, random.integers(1, 8)).tolist()
        columns["prompt_ids"].append([*range(3, 3 + rules), *prompt])
        columns["completion_ids"].append(random.integers(3, 90, length).tolist())
        columns["env_mask"].append(mask.tolist())
        columns["logprobs"].append((-3.0 * mask).tolist())
    return columns


def losses(
    folder: Any, *, model: Any = None, lora: bool = False, masked: bool = False, rules: int = 0, **grpo: Any
) -> Any:
    """Train for two steps and return the losses of both ways."""
    torch.manual_seed(0)
    model = model or tiny_model(TOKENIZER, width=16)
    if lora:
        config = peft.LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
        model = peft.get_peft_model(model, config)
    settings: dict[str, Any] = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "max_steps": 2}
    settings |= {"num_generations": 2, "learning_rate": 0.1, "use_cpu": True, "bf16": False, "report_to": []}
    settings |= {"save_strategy": "no", "disable_tqdm": True, "gradient_checkpointing": False}
    trainer = Beside(
        model=model,
        processing_class=TOKENIZER,
        args=GRPOConfig(output_dir=str(folder), **settings | grpo),
        train_dataset=Dataset.from_list(
            [{"prompt": [{"role": "user", "content": str(number)}]} for number in range(40)]
        ),
        rollout_func=lambda prompts, trainer: rows_of(prompts, trainer, masked=masked, rules=rules),
        reward_funcs=[lambda completion_ids, **_: [sum(ids) % 7 / 7 for ids in completion_ids]],
    )
    trainer.losses = []
    trainer.train()
    return trainer.losses


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "adapter": {"lora": True},
    "shared rules": {"rules": 12},
    "shared rules, adapter": {
        "rules": 12,
        "lora": True,
        "beta": 0.1,
        "model": tiny_model(TOKENIZER, width=16).double(),  # random adapters enlarge what rounding differs by
    },
    "shared rules, checkpointing": {"rules": 12, "gradient_checkpointing": True},
    "temperature": {"temperature": 0.7},
    "reference": {"beta": 0.1, "num_iterations": 2, "steps_per_generation": 8, "lora": True},
    "entropy": {"entropy_coef": 0.1},
    "quantile": {"top_entropy_quantile": 0.5},
    "checkpointing": {"gradient_checkpointing": True},
    "nothing sampled": {"masked": True},
    "softcapped": {
        "model": Gemma2ForCausalLM(
            Gemma2Config(
                vocab_size=len(TOKENIZER), hidden_size=16, intermediate_size=16, final_logit_softcapping=0.1, **SMALL
            )
        )
    },
}


@pytest.mark.parametrize("case", CASES)
def test_losses_gradients_and_metrics_are_those_of_trl_with_fewer_tokens(tmp_path: Any, case: str) -> None:
    found = losses(tmp_path, **CASES[case])
    assert len(found) >= 8
    for ours, theirs in found:
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5, abs=1e-6)
        # Rotary positions are rounded to 32 bits, and a row's begin at another number.
        assert (ours["gradient"] - theirs["gradient"]).norm() <= 5e-5 * max(1e-3, theirs["gradient"].norm())
        assert ours["logged"] == pytest.approx(theirs["logged"], rel=1e-4, abs=1e-6, nan_ok=True)
    shares = CASES[case].get("rules") and not CASES[case].get("gradient_checkpointing")
    most = 0.55 if shares else 0.85 if CASES[case].get("rules") else 0.7
    assert sum(ours["tokens"] for ours, _ in found) < most * sum(theirs["tokens"] for _, theirs in found)
    largest = max(float(theirs["gradient"].abs().max()) for _, theirs in found)
    assert (largest > 1e-3) == (case != "nothing sampled")


def padded_rows(*, alike: bool = False) -> tuple[Any, Any, Any]:
    """Return ids, attention and labels of rows with padding on both sides, in which the last tokens are scored."""
    ids = torch.arange(3, 51).reshape(4, 12)
    attended, labels = torch.ones_like(ids), torch.full_like(ids, -100)
    for row in range(4):
        if alike:
            ids[row, row + 1 : row + 3] = torch.tensor([7, 9])
        attended[row, : row + 1], attended[row, 9 + row % 2 :] = 0, 0
        labels[row, 6:8] = ids[row, 6:8]
    return ids, attended, labels


def with_fused_head(model: Any, temperature: float = 1.0) -> Any:
    add_fused_lm_head(model, temperature=temperature, outputs=("log_probs", "entropy"))
    return model.eval()


def small_gpt2() -> Any:
    ids = {"bos_token_id": 0, "eos_token_id": 0, "vocab_size": 64}
    return GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=16, **ids))


@pytest.mark.parametrize("alike", [False, True])
def test_scores_and_their_gradients_are_those_of_the_fused_head_at_all_positions(alike: bool) -> None:
    model = with_fused_head(tiny_model(TOKENIZER, width=32), temperature=0.5)
    ids, attended, labels = padded_rows(alike=alike)
    found = []
    whole = model(input_ids=ids, attention_mask=attended, labels=labels, fused_lm_head=True)
    for outputs in ((whole.log_probs, whole.entropy), speed.score(model, ids, attended, labels)):
        model.zero_grad()
        (outputs[0].sum() + outputs[1].sum()).backward()
        found.append((outputs, torch.cat([weight.grad.flatten() for weight in model.parameters()])))
    (theirs, gradient), (ours, its) = found
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(its, gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("make", [lambda: tiny_model(TOKENIZER, width=32), small_gpt2])
def test_a_row_has_the_scores_that_it_has_alone(make: Any, alike: bool) -> None:
    """Law 4: models that count positions from the first column have sampled without padding."""
    model = with_fused_head(make())
    ids, attended, labels = padded_rows(alike=alike)
    together, _ = speed.score(model, ids, attended, labels)
    for row in range(len(ids)):
        own = attended[row] == 1
        alone = model(input_ids=ids[row : row + 1, own]).logits.log_softmax(-1)[0]
        wanted = alone.gather(-1, ids[row, own].roll(-1)[:, None])[:-1, 0]
        scored = labels[row, own][1:] != -100
        torch.testing.assert_close(together[row][labels[row, 1:] != -100], wanted[scored], rtol=1e-5, atol=1e-5)


def test_a_model_keeps_no_trace_also_if_a_pass_fails() -> None:
    """Law 24."""
    model = with_fused_head(tiny_model(TOKENIZER, width=32))
    ids, attended, labels = padded_rows()
    speed.score(model, ids, attended, labels)
    with pytest.raises(IndexError):
        speed.score(model, ids * 10_000, attended, labels)
    assert not any(part._forward_hooks for part in model.modules())


def double(**changes: Any) -> Any:
    """Return what is read of a trainer."""
    accelerator = SimpleNamespace(distributed_type="NO", autocast=nullcontext)
    args = SimpleNamespace(n_gpu=1, torch_compile=False)
    about = {"accelerator": accelerator, "args": args, "_buffered_inputs": None, "_step": 0}
    return SimpleNamespace(**about | changes)


def test_where_nothing_was_sampled_ratios_are_one() -> None:
    model = with_fused_head(tiny_model(TOKENIZER, width=32))
    never: Any = None
    ids, attended, labels = padded_rows()
    old = torch.full((4, 7), -1e4)
    batch = {"prompt_ids": ids[:, :5], "completion_ids": ids[:, 5:], "completion_mask": attended[:, 5:]}
    batch |= {"tool_mask": (labels[:, 5:] != -100).long(), "old_per_token_logps": old}
    trainer = double(_buffered_inputs=[{}, batch], _step=3)
    logprobs, *_ = speed.logprobs_and_entropies(trainer, never, model, ids, attended, length=7)
    sampled = batch["tool_mask"] == 1
    assert torch.equal(logprobs == old, ~sampled)
    every, *_ = speed.logprobs_and_entropies(double(), never, model, ids, attended, length=7, batch_size=3)
    torch.testing.assert_close(logprobs[sampled], every[sampled])
    assert torch.equal(every != 0, attended[:, 5:] == 1)


def prompt_tuned() -> Any:
    return peft.get_peft_model(
        tiny_model(TOKENIZER, width=32), peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    )


@pytest.mark.parametrize(
    ("changes", "make", "named"),
    [
        ({"accelerator": SimpleNamespace(distributed_type="MULTI_GPU")}, small_gpt2, {}),
        ({"args": SimpleNamespace(n_gpu=2, torch_compile=False)}, small_gpt2, {}),
        ({}, small_gpt2, {"pixel_values": torch.ones(1)}),
        ({}, small_gpt2, {"compute_aux_loss": True}),
        ({}, lambda: BloomForCausalLM(BloomConfig(vocab_size=64, hidden_size=16, n_layer=1, n_head=2)), {}),
        ({}, prompt_tuned, {}),
    ],
)
def test_what_is_not_plainly_supported_is_left_to_trl(changes: Any, make: Any, named: Any) -> None:
    calls = []

    def compute(*given: Any, **others: Any) -> Any:
        calls.append((given, others))
        return 1, 2, 3

    given = (make(), *padded_rows()[:2])
    assert speed.logprobs_and_entropies(double(**changes), compute, *given, length=7, **named) == (1, 2, 3)
    assert calls == [((*given, 7), {"batch_size": None, "compute_entropy": False, **named})]
