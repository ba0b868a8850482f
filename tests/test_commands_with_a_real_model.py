"""The commands with the pretrained model: ``train``, ``eval``, ``play``, and the viewer with its tokens."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import transformers
from support import warm
from support.command_line import run_command_line
from support.viewer_runs import Look, needs_chromium

import gym_trl
from gym_trl.records.json_lines import read_json_lines
from gym_trl.viewer.page import write_page

pytestmark = [pytest.mark.lm, pytest.mark.trl]
GUESS = ["TrlEnv/GuessNumber-v0", "--env-kwargs", "high=8", "--env-kwargs", "turns=2"]
OWN_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
"""Part of the system message that the template writes by itself."""


def command(*arguments: str | Path, said: str | None = None) -> str:
    """Run a command to its end, and return what it printed."""
    result = run_command_line([str(argument) for argument in arguments], said=said)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="session")
def tokenizer(pretrained: Path) -> Any:
    """Return the tokenizer of the pretrained model."""
    return transformers.AutoTokenizer.from_pretrained(pretrained)


@pytest.fixture(scope="session")
def run(pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a training of one step."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    size = ["--steps=1", "--groups=2", "--num_generations=2", "--eval_episodes=2", "--max_tokens_per_turn=6"]
    grpo = ["--grpo=save_strategy=no"]
    program = Path(gym_trl.__file__).with_name("__main__.py")
    done = warm.run(program, "train", *GUESS, f"--model={pretrained}", *size, *grpo, f"--out={folder}", timeout=280)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    return folder


@pytest.fixture(scope="session")
def records(run: Path) -> list[dict[str, Any]]:
    """Return the records of the training."""
    return list(read_json_lines(run / "rollouts.jsonl"))


def test_a_step_of_training_is_recorded_with_its_tokens(records: list[dict[str, Any]], tokenizer: Any) -> None:
    assert [record["split"] for record in records] == ["eval"] * 2 + ["train"] * 4 + ["eval"] * 4
    for record in records:
        assert tokenizer.decode(record["prompt_ids"]).startswith(f"<|im_start|>system\n{OWN_SYSTEM}<|im_end|>\n")
        for turn in record["turns"]:
            place = slice(turn["start"], turn["stop"])
            assert record["mask"][place] == [1] * (turn["stop"] - turn["start"])
            said = tokenizer.decode(record["completion_ids"][place], skip_special_tokens=True)
            assert said.strip() == turn["answer"]


@needs_chromium
@pytest.mark.browser
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
    few = ["--episodes=8", "--max-tokens-per-turn=6", "--json", f"--out={tmp_path / 'eval'}"]
    told = json.loads(command("eval", *GUESS, "--model", pretrained, *few, "--system-prompt", "One number."))
    [row] = told["rows"]
    assert (row["episodes"], row["unscored"], row["policy"]) == (8, 0, str(pretrained))
    assert 0 < row["tokens"] <= 6 * row["turns"]
    [file] = (tmp_path / "eval").glob("*.jsonl")
    for record in read_json_lines(file):
        assert record["opening"][0] == {"role": "system", "content": "One number."}
        assert record["sampled_tokens"] > 0


def test_the_trained_model_plays_the_same_task_beside_a_person(run: Path) -> None:
    told = command("play", *GUESS, "--against", run, "--seed", "3", said="8\n1\n")
    assert f"{run} has played 1 turn" in told or f"{run}: " in told
    assert f"{run}, the same task:" in told
    assert re.search(r"^(You win|Nobody wins|.* wins)\.$", told, re.MULTILINE), told


def test_a_model_is_the_opponent_in_a_game_for_two(run: Path) -> None:
    told = command("play", "TrlEnv/TicTacToe-v0", "--against", run, "--seed", "3", said="5\nquit\n")
    assert re.search(rf"^{re.escape(str(run))}: .+", told, re.MULTILINE), told
    assert "Left after 1 turn" in told or "illegal actions. You won." in told
