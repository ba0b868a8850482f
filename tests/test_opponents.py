"""Playing against somebody, as a person does: typed into the command, on a terminal and in a pipe."""

import json
import re
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import pytest
from support.chat_server import ChatServer, said
from support.command_line import run_command_line
from support.games import SEATS

from gym_trl.cli.play import Against, prepare
from gym_trl.policies.functions import as_policy
from gym_trl.policies.interactive import InteractiveEpisode, ParallelEpisode, compare_episodes
from gym_trl.policies.protocol import TextPolicy
from gym_trl.testing import save_tiny
from gym_trl.training.options import choose
from gym_trl.types import Policy


def played(*lines: str, env_id: str, against: str, options: tuple[str, ...] = (), status: int = 0) -> str:
    command = ["play", env_id, "--against", against, "--seed", "5", *options]
    result = run_command_line(command, said="".join(f"{line}\n" for line in lines))
    assert result.exit_code == status, result.output
    return result.output


def against(env_id: str, who: Any, seed: int = 3, **kwargs: Any) -> tuple[InteractiveEpisode, Against]:
    policy = prepare(who, env_id, kwargs, seed)
    return InteractiveEpisode(lambda: policy.seat(gym.make(env_id, **kwargs)), seed), policy


def beside(env_id: str, who: Any, seed: int = 3, **kwargs: Any) -> ParallelEpisode:
    other = prepare(who, env_id, kwargs, seed).other
    assert other is not None
    return other


# ---------------------------------------------------------------------------------------------------------------------
# Games of several seats
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", SEATS)
@pytest.mark.parametrize("who", ["solver", "random"])
def test_every_game_of_several_seats_is_played_to_its_end_with_undo_and_hint(env_id: str, who: str) -> None:
    game, _ = against(env_id, as_policy(who))
    game.start()
    while not game.over:
        before = list(game.actions)
        action = game.env.get_wrapper_attr("random_policy")(len(before))(game.observations[-1])
        reply = game.step(action)
        game.undo()
        assert game.actions == before
        assert game.step(action) == reply
    game.close()


def test_the_solver_is_not_beaten_at_tic_tac_toe() -> None:
    for seed in range(20):
        game, _ = against("TrlEnv/TicTacToe-v0", as_policy("solver"), seed)
        game.start()
        while not game.over:
            game.step(game.env.get_wrapper_attr("random_policy")(seed)(game.observations[-1]))
        assert game.total <= 0


def test_an_opponent_is_asked_again_only_where_the_game_took_another_way() -> None:
    asked: list[tuple[int, str]] = []
    games = iter(range(100))

    def make(env: Any, seed: int) -> Policy:
        number = next(games)

        def policy(observation: str) -> str:
            asked.append((number, observation))
            # The first free cell, and another one whenever it is asked again.
            free: list[str] = re.findall("[1-9]", observation)
            return free[len(asked) % 2]

        return policy

    game, policy = against("TrlEnv/TicTacToe-v0", TextPolicy("fickle", make), seed=3)
    game.start()
    first = game.step("9").observation
    game.step("8" if "8" in first else "7")
    before = list(asked)
    game.undo()
    game.undo()
    assert game.step("9").observation == first
    assert asked == before
    game.undo()
    game.step("5")
    assert len(asked) == len(before) + 1
    assert policy.responses[-1].text == policy.responses[-1].action
    assert len({number for number, _ in asked}) == 2
    game.close()


def test_the_command_shows_what_the_opponent_plays_and_takes_it_back() -> None:
    output = played(
        *("1", ":undo", "5", ":hint", ":history", "3", "quit"), env_id="TrlEnv/TicTacToe-v0", against="solver"
    )
    assert output.count("solver: 7\nYou are O.") == 1  # X begins, once
    assert "solver: 9\nYou are O.\n1 2 3\n4 O 6\nX 8 X" in output
    assert "8 (the solver does not win from here)" in output
    assert "> 5\nYou are O.\n1 2 3\n4 O 6\nX 8 X" in output  # the history
    assert "solver: 4\nYou are O.\n1 2 O\nX O 6\nX 8 X" in output


def test_a_draw_against_a_perfect_player_is_no_win_of_its() -> None:
    output = played("5", "8", "4", "3", env_id="TrlEnv/TicTacToe-v0", against="solver")
    assert "Draw." in output
    assert "return 0." in output
    assert "the same task" not in output


# ---------------------------------------------------------------------------------------------------------------------
# Games for one
# ---------------------------------------------------------------------------------------------------------------------


def test_a_game_for_one_is_a_race_whose_ends_are_compared() -> None:
    options = ("--env-kwargs", "high=8")
    output = played(
        "4", ":undo", "4", "2", "1", "3", "6", env_id="TrlEnv/GuessNumber-v0", against="solver", options=options
    )
    assert output.count("(solver has played 1 turn)") == 2
    assert output.count("(solver: solved in 2 turns, return 1)") == 1
    # What the solver found out is shown at the end, and not before.
    assert output.index("Solved in 5 turns") < output.index("solver, the same task:\n> 4\nHigher.\n> 6\nCorrect.")
    assert output.endswith("solver: solved in 2 turns, return 1.\nsolver wins.\n")
    output = played("6", env_id="TrlEnv/GuessNumber-v0", against="random", options=options)
    assert output.endswith("You win.\n")


def test_who_races_plays_the_same_game_whatever_the_person_does() -> None:
    seen = set()
    for actions in (["1"], ["8", "8", "2"]):
        other = beside("TrlEnv/GuessNumber-v0", as_policy("random"), 5, high=8)
        for turn in range(len(actions)):
            other.play(turn + 1)
        other.play()
        seen.add(tuple(other.actions))
        assert other.over
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("mine", "other", "better"),
    [
        ((1.0, True, 3), (1.0, True, 3), 0),
        ((1.0, True, 3), (1.0, True, 4), 1),
        ((0.5, False, 3), (0.5, False, 4), 0),
        ((-1.0, False, 1), (0.0, False, 9), -1),
        ((0.1 + 0.2, True, 2), (0.3, True, 2), 0),
    ],
)
def test_the_higher_return_wins_and_then_the_shorter_way(mine: Any, other: Any, better: int) -> None:
    first, second = (
        SimpleNamespace(total=total, success=success, actions=["?"] * turns) for total, success, turns in (mine, other)
    )
    assert compare_episodes(first, second) == better == -compare_episodes(second, first)  # type: ignore[arg-type]


def test_an_opponent_that_raises_stops_and_the_person_plays_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_policy.py").write_text(
        "def make(env):\n    def policy(observation):\n        raise ValueError('no idea')\n    return policy\n"
    )
    monkeypatch.chdir(tmp_path)
    output = played("woadw", env_id="TrlEnv/Echo-v0", against="broken_policy:make", options=("--seed", "0"))
    assert "(broken_policy:make could not continue after 0 turns: ValueError: no idea)" in output
    assert output.endswith("could not continue after 0 turns: ValueError: no idea.\n")
    output = played("5", env_id="TrlEnv/TicTacToe-v0", against="broken_policy:make", status=2)
    assert "Error: reset raised InfrastructureError: the opponent raised ValueError: no idea" in output


# ---------------------------------------------------------------------------------------------------------------------
# Models
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def server(serve: Any) -> ChatServer:
    def first_free(body: dict[str, Any], times: int) -> tuple[int, Any]:
        board = body["messages"][-1]["content"].rpartition("You are")[2]
        return 200, said(f"<think>Hm.</think>I take <action>{re.findall('[1-9]', board)[0]}</action>.")

    return serve(first_free)  # type: ignore[no-any-return]


def test_a_server_is_told_the_rules_and_its_action_is_read(server: ChatServer) -> None:
    output = played("5", ":undo", "5", "3", "quit", env_id="TrlEnv/TicTacToe-v0", against=server.url)
    assert "the-model: I take <action>1</action>. (read as '1')\nYou are O.\nX 2 3\n" in output
    assert "the-model: I take <action>2</action>. (read as '2')\nYou are O.\nX X 3\n4 O 6\n" in output
    assert [len(body["messages"]) for body in server.bodies] == [1, 3, 5]  # undoing asks nothing
    rules = server.bodies[0]["messages"][0]["content"]
    assert rules.startswith("Tic-tac-toe: ")
    assert "Put your action between <action> and </action>." in rules
    assert rules.endswith("You are X.\n1 2 3\n4 5 6\n7 8 9")
    assert "You play both sides" not in rules


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run, as far as playing needs it."""
    folder = tmp_path_factory.mktemp("opponents") / "run"
    save_tiny(folder / "model")
    options = choose("TrlEnv/TicTacToe-v0")
    (folder / "config.json").write_text(json.dumps({"options": asdict(options)}), encoding="utf-8")
    return folder


@pytest.mark.trl
def test_a_model_races_as_its_run_was_trained(run: Path) -> None:
    output = played("1", "2", "3", "4", "5", "6", "7", "8", env_id="TrlEnv/GuessNumber-v0", against=str(run))
    assert "the same task:\n> " in output
    assert re.search(
        r"run(: (not )?solved in [0-9]+ turns?, return [01]( \(.*\))?| could not continue after [0-9]+ turns: .*)\.\n",
        output,
    )


# ---------------------------------------------------------------------------------------------------------------------
# What cannot be
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env_id", "who", "options", "said_"),
    [
        (
            "FrozenLake-v1",
            "solver",
            (),
            "has no policy 'solver'; it has random, and would have this one with a method solver()",
        ),
        ("TrlEnv/TicTacToe-v0", "person", (), "got 'person'"),
        ("TrlEnv/TicTacToe-v0", "math:nothing", (), "'math:nothing' names no function"),
        ("TrlEnv/TicTacToe-v0", "./no/such/folder", (), "there is no folder './no/such/folder'"),
    ],
)
def test_what_cannot_play_is_named(env_id: str, who: str, options: tuple[str, ...], said_: str) -> None:
    assert said_ in " ".join(played(env_id=env_id, against=who, options=options, status=2).split())


# ---------------------------------------------------------------------------------------------------------------------
# On a terminal
# ---------------------------------------------------------------------------------------------------------------------
