"""An episode of a run in the terminal: ``gym-trl view --text``."""

import json
from pathlib import Path

import pytest
from support.command_line import error, gym_trl_
from support.viewer_runs import played

from gym_trl.records import RecordWriter, as_record


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Five episodes with the returns 1, -2, 3, -2 and 0.5."""
    with RecordWriter(tmp_path) as records:
        for number, reward in enumerate((1.0, -2.0, 3.0, -2.0, 0.5)):
            one = played(seed=number, turns=1, answer=f"answer {number}", observation="[red]seen[/red]", reward=reward)
            records.write(as_record(one, step=number, split="train", group=0))
    return tmp_path


@pytest.mark.parametrize(("asked", "number"), [(0, 0), (3, 3), (-1, 4), (-5, 0)])
def test_the_episode_that_was_chosen_is_printed(run: Path, asked: int, number: int) -> None:
    ran = gym_trl_("view", str(run), "--text", str(asked))
    assert ran.exit_code == 0
    assert ran.stdout.startswith(f"Episode {number} of 5 episodes\n")
    assert f"> answer {number}\n" in ran.stdout
    assert f"step {number}" in ran.stdout


def test_texts_of_a_record_are_no_markup(run: Path) -> None:
    assert "\n[red]seen[/red]\n" in gym_trl_("view", str(run), "--text", "0").stdout


def test_a_turn_has_the_advantage_that_it_was_trained_with(run: Path) -> None:
    line = {"step": 2, "split": "train", "group": 0, "attempt": 0, "advantages": [0.25]}
    (run / "credit.jsonl").write_text(json.dumps(line) + "\n")
    assert "Turn 1 \u00b7 reward 3 \u00b7 advantage +0.25" in gym_trl_("view", str(run), "--text", "2").stdout


def test_a_number_of_no_episode_is_refused(run: Path) -> None:
    assert "--text must be a number from -5 to 4 in" in error(gym_trl_("view", str(run), "--text", "5"))
    assert "remove --out" in error(gym_trl_("view", str(run), "--text", "1", "--out", "x.html"))
    (run / "rollouts.jsonl").write_text("")
    assert "there is none" in error(gym_trl_("view", str(run), "--text", "-1"))
