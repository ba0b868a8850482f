import re
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import pytest
from typer.testing import CliRunner

from gym_trl.cli.app import app
from gym_trl.envs.text_env import TextEnv
from gym_trl.policies.interactive import Hint, InteractiveEpisode, ReplayError
from gym_trl.registration import GAMES

OURS = sorted(GAMES)


def make(env_id: str, **kwargs: Any) -> Callable[[], Any]:
    return partial(gym.make, env_id, **kwargs)


def started(env_id: str, seed: int = 3, **kwargs: Any) -> InteractiveEpisode:
    game = InteractiveEpisode(make(env_id, **kwargs), seed)
    game.start()
    return game


def said(*lines: str, env_id: str = "TrlEnv/GuessNumber-v0", options: tuple[str, ...] = ("--seed", "1")) -> str:
    result = CliRunner().invoke(app, ["play", env_id, *options], input="".join(f"{line}\n" for line in lines))
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("env_id", OURS)
def test_every_game_can_be_undone_to_its_beginning_and_played_again(env_id: str) -> None:
    game = started(env_id)
    assert isinstance(game.env.unwrapped, TextEnv)
    policy = game.env.unwrapped.random_policy(0)
    while not game.over and len(game.actions) < 5:
        game.step(policy(game.observations[-1]))
    actions, turns, observations = game.actions, game.log.turns, game.observations
    for observation in reversed(observations[:-1]):
        assert game.undo() == observation
    assert (game.actions, game.undo()) == ([], observations[0])
    for action in actions:
        game.step(action)
    assert (game.actions, game.log.turns) == (actions, turns)
    game.close()


@pytest.mark.parametrize("env_id", ["TrlEnv/GuessNumber-v0", "TrlEnv/Sokoban-v0", "TrlEnv/Wordle-v0"])
def test_following_the_hints_wins_also_after_a_move_of_ones_own(env_id: str) -> None:
    game = started(env_id, seed=5)
    assert isinstance(game.env.unwrapped, TextEnv)
    game.step(game.env.unwrapped.random_policy(1)(game.observations[0]))
    hint = game.hint()
    assert hint is not None
    assert hint.wins
    for left in range(hint.turns, 0, -1):
        hint = game.hint()
        assert hint is not None
        assert hint.turns <= left
        game.step(hint.action)
        if game.over:
            break
    assert game.success
    assert game.hint() is None
    game.close()


def test_asking_for_a_hint_changes_nothing() -> None:
    game = started("TrlEnv/GuessNumber-v0", high=8, turns=4)
    assert game.hint() == game.hint() == Hint("4", wins=True, turns=game.hint().turns)  # type: ignore[union-attr]
    assert game.actions == []
    game.close()


def test_a_game_without_a_solver_has_no_hint() -> None:
    class Silent(gym.Env[str, str]):
        observation_space = action_space = gym.spaces.Text(10)

        def reset(
            self, *, seed: int | None = None, options: dict[str, Any] | None = None
        ) -> tuple[str, dict[str, Any]]:
            return "go", {}

        def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
            return "went", 0.0, False, False, {}

    game = InteractiveEpisode(lambda: gym.wrappers.TimeLimit(Silent(), 5), 0)
    game.start()
    assert game.hint() is None


def test_a_game_that_changes_by_itself_cannot_be_undone_and_says_so() -> None:
    ticks = iter(range(100))

    class Clock(gym.Env[str, str]):
        observation_space = action_space = gym.spaces.Text(10)

        def reset(
            self, *, seed: int | None = None, options: dict[str, Any] | None = None
        ) -> tuple[str, dict[str, Any]]:
            return "go", {}

        def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
            return f"tick {next(ticks)}", 0.0, False, False, {}

    game = InteractiveEpisode(lambda: gym.wrappers.TimeLimit(Clock(), 5), 0)
    game.start()
    game.step("a")
    game.step("b")
    with pytest.raises(ReplayError, match="cannot be undone"):
        game.undo()


def test_the_command_takes_back_hints_and_tells_the_history() -> None:
    output = said("1", ":undo", ":undo", "2", ":history", "quit", options=("--env-kwargs", "high=8", "--seed", "1"))
    assert "There is nothing to undo." in output
    assert output.count("Guess 1 to 8 in 6 tries.") == 3
    assert output.endswith("> 2\nHigher.\n> quit\n\nLeft after 1 turn, return 0.\n") or "> 2\nHigher." in output
    hints = said(":hint", "quit", options=("--env-kwargs", "high=8", "--seed", "1"))
    assert re.search(r"4 \(wins in [0-9] turns?\)", hints)
