"""Games of a policy against another one: both seats, the same tasks, wins with their intervals."""

import json
from typing import Any

import gymnasium as gym
import pytest
from support.command_line import run_command_line

from gym_trl.errors import ConfigError
from gym_trl.evaluation.against import play_against
from gym_trl.evaluation.estimates import share_estimate
from gym_trl.policies import Model
from gym_trl.policies.protocol import TextPolicy
from gym_trl.spaces import AnyText
from gym_trl.testing import save_tiny

TIC_TAC_TOE, KUHN = "TrlEnv/TicTacToe-v0", "TrlEnv/KuhnPoker-v0"


class Higher(gym.Env):
    """Each of three seats says a number once; the highest takes one from each of the others."""

    observation_space = action_space = AnyText()
    num_seats, zero_sum, declares_success = 3, True, True

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.said: list[int] = []
        return f"Task {seed}, seat 0", {"to_move": 0}

    def step(self, action: str) -> Any:
        self.said.append(int(action))
        if len(self.said) < 3:
            return f"seat {len(self.said)}", 0.0, False, False, {"to_move": len(self.said)}
        best = max(self.said)
        alone = self.said.count(best) == 1
        payoffs = [(2.0 if one == best else -1.0) if alone else 0.0 for one in self.said]
        return "over", 0.0, True, False, {"payoffs": payoffs}


def says(number: int, seen: list[str] | None = None) -> TextPolicy:
    def act(observation: str) -> str:
        if seen is not None:
            seen.append(observation)
        return str(number)

    return TextPolicy(f"says {number}", lambda env, seed: act)


def test_the_solver_loses_from_no_seat() -> None:
    first, second, both = play_against(TIC_TAC_TOE, "solver", "random", episodes=60)
    assert [one["seat"] for one in (first, second, both)] == [0, 1, None]
    assert [one["losses"] for one in (first, second, both)] == [0, 0, 0]
    assert [one["games"] for one in (first, second, both)] == [30, 30, 60]
    for name in ("games", "unscored", "wins", "draws", "losses"):
        assert both[name] == first[name] + second[name]
    other = play_against(TIC_TAC_TOE, "random", "solver", episodes=60)
    assert [one["wins"] for one in other] == [0, 0, 0]
    assert all(one["draws"] == 60 for one in play_against(TIC_TAC_TOE, "solver", "solver", episodes=60)[2:])


def test_every_seat_plays_the_same_tasks_against_the_other_policy_in_all_others() -> None:
    mine: list[str] = []
    scores = play_against(Higher, says(5, mine), says(3), episodes=7)
    assert [(one["games"], one["wins"], one["payoff"].mean) for one in scores] == [(3, 3, 2.0)] * 3 + [(9, 9, 2.0)]
    assert mine[3:] == ["seat 1"] * 3 + ["seat 2"] * 3
    theirs: list[str] = []
    play_against(Higher, says(5), says(3, theirs), episodes=9)
    assert theirs[6::2] == mine[:3] * 2
    assert [one["draws"] for one in play_against(Higher, says(5), says(5), episodes=3)] == [1, 1, 1, 3]


def test_the_interval_is_that_of_the_wins_by_task() -> None:
    bets = TextPolicy("bets", lambda env, seed: lambda observation: "bet")
    first, _, both = play_against(KUHN, "random", bets, episodes=40)
    assert first["win_rate"] == share_estimate([[True]] * first["wins"] + [[False]] * (20 - first["wins"]))
    assert both["win_rate"].low < both["wins"] / 40 < both["win_rate"].high


def test_the_same_seed_gives_the_same_numbers_and_another_one_others() -> None:
    def played(seed: int) -> Any:
        return play_against(KUHN, "random", "random", episodes=40, seed=seed)

    assert played(3) == played(3)
    assert played(3) != played(4)


@pytest.mark.parametrize(
    ("env", "options", "told"),
    [
        ("TrlEnv/Echo-v0", {}, "has one seat, and games against 'random' need two"),
        (KUHN, {"out": "folder"}, "out cannot be combined with against"),
        (KUHN, {"episodes": 0}, "episodes must be"),
    ],
)
def test_what_cannot_be_played_against_another_policy_is_refused(env: str, options: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        play_against(env, "random", "random", **options)


@pytest.mark.trl
def test_models_play_either_side(tmp_path: Any) -> None:
    save_tiny(tmp_path / "model", width=32, layers=1)
    model = Model(str(tmp_path / "model"), max_tokens_per_turn=2)
    for players in ((model, "random"), ("random", model)):
        assert play_against(KUHN, *players, episodes=4)[2]["games"] == 4


def test_the_command_prints_the_win_rates_of_both_seats() -> None:
    words = ["eval", TIC_TAC_TOE, "--policy", "random", "--against", "solver", "--episodes", "20"]
    shown = run_command_line(words)
    assert [line.split()[:3] for line in shown.stdout.splitlines()[1:]] == [
        ["random", "0", "10"], ["random", "1", "10"], ["random", "all", "20"],
    ]  # fmt: skip
    assert json.loads(run_command_line([*words, "--json"]).stdout)[2]["wins"] == 0
