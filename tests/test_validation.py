import json
import math
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import gym_trl
from gym_trl.env_checker.validation import MEASURED, Game, games, measure, on_all, validate, write_measurements
from gym_trl.envs.baselines import Measured
from gym_trl.envs.guess_number import GuessNumber
from gym_trl.envs.text_env import Outcome, TextEnv
from gym_trl.errors import ConfigError

IDS = sorted(gym_trl.GAMES)
ROOT = Path(__file__).parents[1]


class Hinting(GuessNumber):
    """Says the secret to those who say nothing."""

    def _act(self, action: str) -> Outcome:
        return super()._act(action if action.strip() else str(self._secret))


class Generous(GuessNumber):
    """Easier than it was when it was measured."""

    def _start(self, instance: int | None, options: Any) -> str:
        shown = super()._start(instance, options)
        self._turns_left = 30
        return shown


class Proud(GuessNumber):
    """Can be played better than it says."""

    optimal_success = 0.5


class Timeless(GuessNumber):
    """Leaves the turns left out of its state key, which is declared Markov."""

    turns_left = math.inf


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        (Hinting, "noop wins 1, more than random play's"),
        (Generous, "random wins 0."),
        (Timeless, "state key: seed 0: "),
        (Proud, "solver wins 1 and its optimum is 0.5"),
    ],
)
def test_a_game_that_breaks_a_promise_is_found_out(
    broken: type[GuessNumber], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = json.loads(MEASURED.read_text(encoding="utf-8"))
    monkeypatch.setattr("gym_trl.envs.text_env.measurements", lambda: {broken.__name__: table["GuessNumber"]})
    made: Any = broken
    monkeypatch.setitem(gym.registry, "Broken-v0", gym.envs.registration.EnvSpec("Broken-v0", made))
    problems = validate(Game("Broken-v0", "medium"), episodes=200, search_steps=0).problems
    assert any(said.startswith(problem) for said in problems), problems


def test_a_game_that_keeps_them_has_no_problems() -> None:
    assert validate(Game("TrlEnv/GuessNumber-v0", "easy"), episodes=50, seed=7, search_steps=0).problems == ()


def test_every_preset_was_measured_with_every_baseline() -> None:
    for game in games(IDS):
        env = game.make().unwrapped
        assert isinstance(env, TextEnv)
        assert [name for name, baseline in env.baselines.items() if baseline.measured is None] == []


def test_what_was_not_measured_counts_as_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gym_trl.envs.text_env.measurements", dict)
    problems = validate(Game("TrlEnv/GuessNumber-v0", "easy"), episodes=2, search_steps=0).problems
    assert "solver was never measured: gym-trl validate --measure" in problems


def test_baselines_with_other_arguments_have_no_reference() -> None:
    env = gym.make("TrlEnv/GuessNumber-v0", high=7).unwrapped
    assert isinstance(env, TextEnv)
    assert env.difficulty is None
    assert env.baselines["solver"].measured is None


def test_measuring_is_repeatable_and_leaves_other_games_alone(tmp_path: Path) -> None:
    game, path = Game("TrlEnv/GuessNumber-v0", "easy"), tmp_path / "baselines.json"
    path.write_text('{"Other": {"easy": {}}}', encoding="utf-8")
    first, again = (measure(game, episodes=20, seed=0, split="train") for _ in range(2))
    assert first == again
    write_measurements(path, game, first)
    table = json.loads(path.read_text(encoding="utf-8"))
    assert table["Other"] == {"easy": {}}
    assert Measured(**table["GuessNumber"]["easy"]["solver"]).success == 1.0


def test_games_in_other_processes_are_validated_in_order() -> None:
    chosen = games(["TrlEnv/GuessNumber-v0"])
    one = partial(validate, episodes=5, search_steps=0)
    found = list(on_all(one, chosen, jobs=2))
    assert [one.game for one in found] == chosen
    assert found == list(on_all(one, chosen))


def test_what_is_no_game_of_this_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="FrozenLake-v1 is no TextEnv"):
        games(["FrozenLake-v1"])


@pytest.mark.full
def test_the_page_of_games_is_current() -> None:
    ran = subprocess.run([sys.executable, "docs/make_games.py", "--check"], cwd=ROOT, check=False)
    assert ran.returncode == 0, "run python docs/make_games.py"
