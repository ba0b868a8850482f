"""A model that cannot be trained, or may not learn, is named in one line before its weights are loaded."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from gym_trl.errors import ConfigError
from gym_trl.policies.weights import free_memory, load_weights
from gym_trl.testing.tiny import save_tiny
from gym_trl.training.model_checks import choose_micro_batch, estimate_memory, model_problems, refuse
from gym_trl.training.models import ModelChoice, load_model


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a tiny model whose weights must not be loaded."""
    save_tiny(tmp_path, width=32, layers=1)
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", None)
    return tmp_path


def edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_a_model_that_is_as_it_should_be_has_no_problem(folder: Path) -> None:
    assert model_problems(ModelChoice(model=str(folder))) == []


def test_a_model_without_a_chat_template_is_refused(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    problems = model_problems(ModelChoice(model=str(folder)))
    with pytest.raises(ConfigError, match=rf"^{folder}: .* has no chat template"):
        refuse(problems)


def test_a_tokenizer_with_more_ids_than_the_model_is_refused(folder: Path) -> None:
    edit(folder / "config.json", vocab_size=50)
    with pytest.raises(ConfigError, match=r"has ids up to 101, but the model has 50 tokens only"):
        refuse(model_problems(ModelChoice(model=str(folder))))


def test_a_tokenizer_whose_end_token_is_not_the_models_is_named_with_both(folder: Path) -> None:
    edit(folder / "generation_config.json", eos_token_id=[0, 3])
    (line,) = refuse(model_problems(ModelChoice(model=str(folder))))
    assert "end token of the tokenizer" in line
    assert "'<|end|>' (1), that of the model '<|endoftext|>' (0) and '<|system|>' (3)" in line


def test_a_model_without_a_generation_config_has_the_end_token_of_its_config(folder: Path) -> None:
    (folder / "generation_config.json").unlink()
    assert model_problems(ModelChoice(model=str(folder))) == []
    edit(folder / "config.json", eos_token_id=0)
    assert len(model_problems(ModelChoice(model=str(folder)))) == 1


def test_a_base_model_whose_end_tokens_do_not_end_a_turn_is_named(folder: Path) -> None:
    edit(folder / "generation_config.json", eos_token_id=0)
    edit(folder / "tokenizer_config.json", eos_token="<|endoftext|>")
    (line,) = refuse(model_problems(ModelChoice(model=str(folder))))
    assert "ends a turn with '<|end|>' (1), but its end tokens are '<|endoftext|>' (0)" in line
    assert "gym-trl doctor" in line


def test_an_adapter_is_checked_through_its_base(tmp_path: Path) -> None:
    save_tiny(tmp_path / "base", width=32, layers=1)
    model, _ = load_model(ModelChoice(model=str(tmp_path / "base"), lora=2))
    model.save_pretrained(tmp_path / "adapter")
    assert model_problems(ModelChoice(model=str(tmp_path / "adapter"))) == []
    edit(tmp_path / "base" / "generation_config.json", eos_token_id=0)
    assert len(model_problems(ModelChoice(model=str(tmp_path / "adapter")))) == 1


def test_the_weights_and_the_optimizer_are_counted_exactly(tmp_path: Path) -> None:
    save_tiny(tmp_path, width=32, layers=2)
    count = sum(weight.numel() for weight in load_weights(str(tmp_path)).parameters())

    def fixed(**options: Any) -> int:
        return estimate_memory(ModelChoice(model=str(tmp_path), **options), tokens=8, checkpointing=False).fixed

    assert fixed() == count * (4 + 4 + 8)  # AdamW in float32: a gradient and two moments
    adapter, _ = load_model(ModelChoice(model=str(tmp_path), lora=2))
    added = sum(weight.numel() for weight in adapter.parameters() if weight.requires_grad)
    assert fixed(lora=2) == count * 4 + added * 16
    assert fixed(lora=2, dtype="bfloat16") == count * 2 + added * 16


def test_more_rows_and_longer_rows_need_more_and_checkpointing_less(tmp_path: Path) -> None:
    save_tiny(tmp_path, width=32, layers=2)

    def needed(rows: int, tokens: int, *, checkpointing: bool) -> int:
        choice = ModelChoice(model=str(tmp_path))
        return estimate_memory(choice, tokens=tokens, checkpointing=checkpointing).needed(rows)

    usual = needed(2, 64, checkpointing=False)
    assert needed(2, 64, checkpointing=True) < usual < needed(4, 64, checkpointing=False)
    assert usual < needed(2, 128, checkpointing=False)


def test_too_little_memory_is_refused_with_what_to_do(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs about 0.0 GiB .* 0.0 GiB are free; train an adapter"):
        choose_micro_batch(ModelChoice(model=str(folder)), rows=8, tokens=8, free=1)


def test_free_memory_is_that_of_this_machine() -> None:
    assert 0 < free_memory(cpu=True) < 1 << 50
