import shutil
from typing import Any

import gymnasium as gym
import pytest

import gym_trl  # noqa: F401 -- registers the ids
from gym_trl.errors import ConfigError
from gym_trl.wrappers import StateKey

pytest.importorskip("textworld", reason="TextWorld is not installed")
pytestmark = pytest.mark.external

make: Any = gym.make  # whose type knows only its own arguments


@pytest.fixture
def folder(textworld_games):
    """Two games of tw-make's."""
    return textworld_games


def walkthrough(path):
    import textworld

    env = textworld.start(str(path), textworld.EnvInfos(policy_commands=True))
    commands = list(env.reset().policy_commands)
    env.close()
    return commands


def test_its_own_walkthrough_wins_and_returns_one(folder):
    for path in sorted(folder.glob("*.z8")):
        env = make("External/TextWorld-v0", path=path)
        env.reset(seed=0)
        results = [env.step(command) for command in walkthrough(path)]
        assert sum(result[1] for result in results) == pytest.approx(1.0)
        assert results[-1][2]
        assert results[-1][4]["success"]
        assert all(result[4]["action_valid"] for result in results)


def test_the_score_is_paid_once(folder):
    env = make("External/TextWorld-v0", path=folder / "1.z8")
    env.reset(seed=0)
    commands = walkthrough(folder / "1.z8")
    total = 0.0
    for command in commands:
        total += env.step("look")[1] + env.step(command)[1] + env.step("inventory")[1]
    assert total == pytest.approx(1.0)


def test_neither_the_banner_nor_the_status_line_is_shown(folder):
    env = make("External/TextWorld-v0", path=folder / "1.z8")
    shown = env.reset(seed=0)[0] + env.step("look")[0]
    assert "$$" not in shown
    assert not any(line.lstrip().startswith(">") for line in shown.splitlines())


def test_one_action_is_one_command_and_none_goes_to_the_interpreter(folder):
    env = make("External/TextWorld-v0", path=folder / "1.z8")
    env.reset(seed=0)
    looked = env.step("look\ninventory")
    assert looked[0] == env.step("look")[0]
    for command in ("quit", "RESTART", "save", "", "  ", "a" * 500, "\x00", "\\p,I", "look \\q"):
        assert not env.step(command)[4]["action_valid"], command
    assert env.step("look")[0] == looked[0]


def test_a_folder_is_as_many_games_as_it_holds(folder):
    env = make("External/TextWorld-v0", path=folder)
    assert env.unwrapped.num_instances == 2
    shown = {number: env.reset(options={"instance": number})[0] for number in (0, 1)}
    assert shown[0] != shown[1]
    assert {env.reset(seed=seed)[0] for seed in range(10)} == set(shown.values())


def test_a_listed_command_is_valid_in_any_case(folder):
    env = make("External/TextWorld-v0", path=folder / "1.z8")
    env.reset(seed=0)
    for command in walkthrough(folder / "1.z8"):
        # Names have capitals in games that were not made with the default theme.
        env.unwrapped._state.admissible_commands = [command.title()]
        assert env.step(command)[4]["action_valid"]
    env.reset(seed=0)
    env.unwrapped._state.admissible_commands = ["go North"]
    assert not env.step("look")[4]["action_valid"]


@pytest.fixture
def alone(folder, tmp_path):
    """A game without what tw-make writes beside it."""
    return shutil.copy(folder / "1.z8", tmp_path / "foreign.z8")


def test_a_game_that_nobody_knows_is_played_by_its_own_words(folder, alone):
    env = make("External/TextWorld-v0", path=alone)
    env.reset(seed=0)
    results = [env.step(command) for command in walkthrough(folder / "1.z8")]
    assert [result[1] for result in results] == [0.0] * (len(results) - 1) + [1.0]
    assert [result[2] for result in results] == [False] * (len(results) - 1) + [True]
    assert results[-1][4] == {"action_valid": True, "success": True}


@pytest.mark.parametrize(
    ("ending", "reward", "success"),
    [("*** You have won ***", 1.0, True), ("*** You lost! ***", 0.0, False), ("***  Your story ends  ***", 0.0, None)],
)
def test_an_ending_that_declares_nothing_leaves_success_open(alone, ending, reward, success, monkeypatch):
    env = make("External/TextWorld-v0", path=alone)
    env.reset(seed=0)
    last = env.unwrapped._state
    monkeypatch.setattr(env.unwrapped._game, "step", lambda _: (last, None, False))
    last.feedback = f"It is over.\n\n{ending}\n"
    *step, info = env.step("look")
    assert step[1:] == [reward, True, False]
    assert info.get("success") is success


@pytest.mark.parametrize(("name", "said"), [("game.ulx", r"from \.z1 to \.z8"), ("game.z8", "not whole")])
def test_a_file_that_cannot_be_played_is_refused_when_it_is_named(tmp_path, name, said):
    (tmp_path / name).write_bytes(b"no game")
    with pytest.raises(ConfigError, match=said):
        make("External/TextWorld-v0", path=tmp_path / name)


def test_the_facts_are_its_state_key_and_serve_baselines(folder):
    env = StateKey(make("External/TextWorld-v0", path=folder / "1.z8"))
    first = env.reset(seed=0)[1]["state_key"]
    assert (env.declared, env.markov_state_key) == (True, False)
    assert env.step("look")[4]["state_key"] == first
    changed = [env.step(command)[4]["state_key"] for command in walkthrough(folder / "1.z8")]
    assert changed[-1] != first
    assert env.reset(seed=0)[1]["state_key"] == first


def test_a_game_that_nobody_knows_is_named_by_its_history(alone):
    env = StateKey(make("External/TextWorld-v0", path=alone))
    first = env.reset(seed=0)[1]["state_key"]
    assert not env.declared
    assert env.step("look")[4]["state_key"] != first
