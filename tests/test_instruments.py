"""Law: what prints a number counts each scored episode of the trained task once, and calls chance by its name."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from hypothesis import given, strategies as st
from support import planted_cards
from support.command_line import gym_trl_
from support.episodes import ended, told

from gym_trl.env_checker.card.plays import Plays, References
from gym_trl.env_checker.checks.outcomes import _missed
from gym_trl.env_checker.inspector import Inspector
from gym_trl.env_checker.play import PlayedEpisode
from gym_trl.errors import ConfigError
from gym_trl.evaluation.estimates import Estimate, return_estimate, share_of
from gym_trl.evaluation.evaluation import evaluate
from gym_trl.evaluation.levels import levels_of
from gym_trl.grpo.spec import GymSpec
from gym_trl.records import Record, as_record
from gym_trl.records.files import RecordWriter
from gym_trl.report import SKIPPED, WARNING, Finding
from gym_trl.training.findings import Played, scores
from gym_trl.training.options import choose
from gym_trl.training.references import references
from gym_trl.types import StopReason, Task
from gym_trl.viewer.run import Run
from gym_trl.wrappers import Opponent, TurnLimit

GUESS = "TrlEnv/GuessNumber-v0"


def look(make: Callable[[], gym.Env[Any, Any]], check: str, **options: Any) -> Finding:
    return Inspector(make, episodes=20, search_steps=500, options=options).look_at(check)


# ---------------------------------------------------------------------------------------------------------------------
# The task that is trained
# ---------------------------------------------------------------------------------------------------------------------


def one_guess(env: gym.Env[str, str]) -> gym.Env[str, str]:
    return TurnLimit(env, 1)


@pytest.mark.parametrize("options", [{"turn_limit": 1}, {"wrappers": (one_guess,)}])
def test_references_are_of_the_task_that_is_trained(options: Mapping[str, Any]) -> None:
    levels = references(choose(GUESS, env_kwargs={"high": 8, "turns": 4}, **options))
    for name in ("random", "blind"):
        success = levels[f"success_{name}"]
        assert success is not None
        assert 0.05 < success < 0.25  # one guess of eight numbers
    assert levels["success_optimum"] is levels["return_optimum"] is None  # the declared ones are of four guesses


def test_references_of_numeric_actions_know_the_turn_limit() -> None:
    levels = references(choose("FrozenLake-v1", env_kwargs={"is_slippery": False}, turn_limit=3))
    assert levels["success_random"] == levels["success_blind"] == 0.0  # six steps away


class Says(gym.ActionWrapper[str, str, str]):
    """Wrapper that wants other words than the environment's own."""

    def action(self, action: str) -> str:
        return action.removeprefix("guess ") if action.startswith("guess ") else "nothing"


def without_guess(text: str) -> str:
    return text.removeprefix("guess ")


def test_references_in_words_that_random_play_does_not_know_are_unknown() -> None:
    levels = references(choose(GUESS, wrappers=(Says,)))
    assert [levels["success_random"], levels["success_blind"]] == [None, None]


def test_words_of_the_user_change_no_reference() -> None:
    usual, own = (references(choose(GUESS, act=act)) for act in (None, without_guess))
    assert usual["success_random"] == own["success_random"] == 0.403


def test_references_of_a_curriculum_are_of_its_last_level() -> None:
    levels = references(choose(GUESS, env_kwargs={"turns": 4}, curriculum=[{"high": 4}, {"high": 50}]))
    assert levels["success_optimum"] == 0.3
    assert levels["success_random"] is not None
    assert levels["success_random"] < 0.2


# ---------------------------------------------------------------------------------------------------------------------
# Episodes that the environment does not end, or does not declare
# ---------------------------------------------------------------------------------------------------------------------


def test_random_play_that_does_not_end_has_lost() -> None:
    counted = look(planted_cards.NeverLoses, "success").got
    won, played = (int(number) for number in counted.split(";")[1].split(" solved")[0].split(" of "))
    assert played == 20
    assert won < 20
    paid = look(planted_cards.NeverLoses, "reward")
    assert "20 episodes" in paid.got
    assert "always" not in paid.got


def test_success_that_only_the_solver_declares_is_declared() -> None:
    found = look(planted_cards.OnlyWins, "success")
    assert found.verdict is WARNING
    assert "did not declare it in their last step" in found.got


def test_what_fails_at_times_is_judged_by_its_scored_episodes() -> None:
    with Plays(planted_cards.LosesTheLine, episodes=40) as plays:
        assert any(not game.episode.scored for game in plays.of("random", lambda env, seed: lambda text, info: "x"))
        assert References.of(plays).chance.episodes < 40


# ---------------------------------------------------------------------------------------------------------------------
# Chance
# ---------------------------------------------------------------------------------------------------------------------


def test_equal_returns_have_no_interval_however_rounded() -> None:
    assert return_estimate([[0.1]] * 6, []).low is None
    assert return_estimate([[0.1 + 0.2], [0.3], [0.3]], []).low is None


def test_a_perfect_blind_policy_is_found_though_its_returns_are_all_alike() -> None:
    found = look(planted_cards.FirstIsRight, "blind baseline")
    assert found.verdict is WARNING, found


def test_a_few_equal_returns_of_a_solver_miss_no_optimum() -> None:
    assert _missed([_game(2.0)] * 2, (None, 1.5)) is None
    assert _missed([_game(2.0)] * 40, (None, 1.5)) == 1.5
    assert _missed([_game(0.0)] * 40, (None, 0.5)) == 0.5


def _game(reward: float) -> PlayedEpisode:
    return PlayedEpisode(ended(reward))


def test_a_single_scored_episode_says_nothing_of_rewards() -> None:
    class Seldom(planted_cards.Digits):
        def step(self, action: str) -> Any:
            if self.np_random_seed:
                raise ConnectionError("the line was cut")
            return super().step(action)

    assert look(Seldom, "reward").verdict is SKIPPED
    assert "±" not in look(planted_cards.AlwaysTenth, "reward").got


@pytest.mark.parametrize(("trained", "size"), [(8, 256), (0, 8)])
def test_repeats_of_held_out_games_are_not_taken_for_different_games(trained: int, size: int) -> None:
    summary = {"success_after": 0.5, "episodes_after": 256, "eval_games": 8, "eval_games_trained": trained}
    assert levels_of(summary)["after"].success == share_of(0.5, size)


# ---------------------------------------------------------------------------------------------------------------------
# A gate, and the page of a run
# ---------------------------------------------------------------------------------------------------------------------


def record(seed: int, reward: float | None, **about: Any) -> Record:
    task = Task(GUESS, seed)
    failed = told([], task=task, reason=StopReason.ENV_ERROR)
    return as_record(failed if reward is None else ended(reward, success=bool(reward), task=task), **about)


def test_a_gate_judges_the_arguments_that_were_asked_for(tmp_path: Path) -> None:
    common = ["eval", GUESS, "--policy", "random", "--episodes", "20", "--out", str(tmp_path), "--fail-under", "0.5"]
    assert gym_trl_(*common, "--env-kwargs", "high=64", "--env-kwargs", "turns=2").exit_code == 1
    # The folder has these episodes still.
    assert gym_trl_(*common, "--env-kwargs", "high=2", "--env-kwargs", "turns=9").exit_code == 0


def test_a_gate_does_not_pass_on_a_few_scored_episodes(tmp_path: Path) -> None:
    file = tmp_path / "seldom.py"
    file.write_text(
        "from gym_trl.envs.echo import Echo\n\n"
        "class Seldom(Echo):\n"
        "    steps = 0\n"
        "    def step(self, action):\n"
        "        Seldom.steps += 1\n"
        "        if Seldom.steps % 4:\n"
        "            raise ConnectionError('the line was cut')\n"
        "        return super().step(action)\n",
        encoding="utf-8",
    )
    ran = gym_trl_("eval", f"{file}:Seldom", "--policy", "solver", "--episodes", "20", "--fail-under", "0.5")
    assert ran.exit_code == 1
    assert "of 20 episodes could be scored" in ran.stderr


def test_the_page_pools_no_arguments_unscored_episodes_or_steps(tmp_path: Path) -> None:
    with RecordWriter(tmp_path) as writer:
        for seed in range(4):
            writer.write(record(seed, 1.0, policy="p", env_kwargs={"high": 2}))
            writer.write(record(seed, 0.0, policy="p", env_kwargs={"high": 64}))
        writer.write(record(4, None, policy="p", env_kwargs={"high": 64}))
    run = Run(tmp_path)
    list(run.read())
    players = {one["arguments"]: one for one in run.about()["players"]}
    assert {name: (one["scored"], one["episodes"], one["success"][0]) for name, one in players.items()} == {
        "high=2": (4, 4, 1.0),
        "high=64": (4, 5, 0.0),
    }
    (tmp_path / "training").mkdir()
    with RecordWriter(tmp_path / "training") as writer:
        for step in range(1, 4):
            writer.write(record(step, 1.0, step=step))
    training = Run(tmp_path / "training" / "rollouts.jsonl")
    list(training.read())
    assert training.about()["players"] == []


def test_rows_of_a_comparison_have_their_arguments(tmp_path: Path) -> None:
    with RecordWriter(tmp_path) as writer:
        for seed, high, policy in product(range(4), (2, 64), ("a", "b")):
            writer.write(record(seed, float(high == 2), policy=policy, env_kwargs={"high": high}))
    shown = gym_trl_("compare", str(tmp_path)).stdout
    assert f"{GUESS} high=2" in shown
    assert f"{GUESS} high=64" in shown


# ---------------------------------------------------------------------------------------------------------------------
# Games whose seats nobody plays
# ---------------------------------------------------------------------------------------------------------------------


def test_seats_that_nothing_plays_are_not_played_as_one(tmp_path: Path) -> None:
    """The reward of a step is that of no seat, so its sum would be a false return."""
    with pytest.raises(ConfigError, match=r"has 2 seats, and its reward is that of none of them: .*seats='self'"):
        GymSpec("TrlEnv/KuhnPoker-v0")
    with pytest.raises(ConfigError, match="gym-trl eval --against"):
        evaluate("TrlEnv/KuhnPoker-v0", "random", episodes=2)
    GymSpec("TrlEnv/KuhnPoker-v0", seats="self")
    GymSpec("TrlEnv/KuhnPoker-v0", wrappers=[partial(Opponent, policy="random")])
    played = gym_trl_("play", "TrlEnv/KuhnPoker-v0", said="bet\nbet\n")
    assert "You play all seats; the reward and the return are those of none." in played.output


# ---------------------------------------------------------------------------------------------------------------------
# Returns that are all alike, large or small
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("returns", [[0.0] * 20, [1.0] * 20, [-100.0] * 20])
def test_returns_without_a_success_have_no_interval_of_a_share(returns: list[float]) -> None:
    """Rewards of failures alone do not show what a success would pay."""
    estimate = return_estimate([[one] for one in returns], [[False]] * 20)
    assert (estimate.low, estimate.high) == (None, None)


@given(mean=st.floats(-1e38, 1e38), reach=st.floats(0, 1e3))
def test_a_score_is_printed_as_a_number_of_its_size(mean: float, reach: float) -> None:
    text = str(Estimate(mean, mean - reach, mean + reach))
    values = [float(one) for one in re.findall(r"[-+.e0-9]+", text)]
    assert len(text) < 45
    for shown, exact in zip(values, (mean, mean - reach, mean + reach), strict=True):
        assert shown == pytest.approx(exact, rel=0.006, abs=0.00051)


def test_success_that_the_references_show_is_a_failure_of_episodes_without_it() -> None:
    played = Played([ended(0.0) for _ in range(4)], group_size=2, ends=())
    assert scores(played, {"success_random": None}).numbers["success"] is None
    assert scores(played, {"success_random": 0.3}).numbers["success"] == 0.0
