"""Models, templates and ends of turns that few have are trained and estimated as all others."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.fused_game import silent
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from gym_trl.evaluation.evaluation import evaluate
from gym_trl.testing import tiny_tokenizer
from gym_trl.training.configs import grpo_config
from gym_trl.training.model_checks import estimate_memory, model_problems
from gym_trl.training.models import ModelChoice
from gym_trl.training.options import choose, choose_warm_start
from gym_trl.training.run import train
from gym_trl.training.run_folder import trained
from gym_trl.training.supervised import warm_start

pytestmark = pytest.mark.trl
SMALL: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 32}
HEADS: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
KINDS: dict[str, dict[str, Any]] = {
    "mamba": {"state_size": 4, "expand": 2},
    "mixtral": {**HEADS, "num_local_experts": 2, "num_experts_per_tok": 1, "output_router_logits": True},
    "rwkv": {"context_length": 512},  # of which a batch is generated otherwise than each prompt alone
    "gemma4_text": {**HEADS, "global_head_dim": 32, "num_global_key_value_heads": 1},
}
RUN: dict[str, Any] = {
    "env_kwargs": {"high": 8, "turns": 3},
    "steps": 1,
    "episodes_per_step": 8,
    "num_generations": 4,
    "eval_episodes": 2,
    "max_tokens_per_turn": 8,
}


def saved(folder: Path, kind: str = "llama", *, template: str | None = None, ends: Any = None, **sizes: Any) -> Path:
    """Write a model of a kind with random weights, and the tiny tokenizer."""
    tokenizer = tiny_tokenizer()
    if template is not None:
        tokenizer.chat_template = template
    own = AutoConfig.for_model(kind).to_dict()
    given = {name: value for name, value in {**SMALL, **HEADS}.items() if name in own} | sizes
    ids = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, vocab_size=len(tokenizer), **given, **ids))
    model.generation_config = GenerationConfig(eos_token_id=ends or tokenizer.eos_token_id)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_the_memory_of_each_kind_of_model_is_estimated(tmp_path: Path, kind: str) -> None:
    model = saved(tmp_path, kind, **KINDS[kind])
    memory = estimate_memory(ModelChoice(model=str(model)), tokens=100, checkpointing=False)
    assert memory.fixed > 0
    assert memory.row > 0
    assert (memory.cache == 0) == (kind in ("mamba", "rwkv"))


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_model_is_warmed_up_trained_and_evaluated(tmp_path: Path, kind: str) -> None:
    model = saved(tmp_path / "model", kind, **KINDS[kind])
    options = choose_warm_start(
        "TrlEnv/GuessNumber-v0", model=str(model), policy="random", episodes=4, steps=1, batch_size=4, eval_episodes=2
    )
    warm_start(options, out=tmp_path / "warm", console=silent())
    train(choose("TrlEnv/GuessNumber-v0", model=str(model), **RUN), out=tmp_path / "run", console=silent())
    evaluate("TrlEnv/GuessNumber-v0", trained(tmp_path / "run"), env_kwargs=RUN["env_kwargs"], episodes=2)


def test_ends_of_the_generation_config_are_those_of_the_models_checks(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    model = saved(tmp_path, ends=[tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("a")])
    assert not [one for one in model_problems(ModelChoice(model=str(model))) if one.verdict == "problem"]


def test_a_command_trains_without_dropout_unless_it_is_asked_for() -> None:
    assert grpo_config(choose("TrlEnv/Echo-v0")).disable_dropout
    assert not grpo_config(choose("TrlEnv/Echo-v0", grpo={"disable_dropout": False})).disable_dropout
