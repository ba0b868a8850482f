from importlib.util import find_spec
from typing import Any

import gymnasium as gym
import pytest

import gym_trl  # noqa: F401 -- registers the ids
from gym_trl.errors import ConfigError

pytestmark = [
    pytest.mark.external,
    # Importing it registers its environments, so that it is not looked for that way.
    pytest.mark.skipif(find_spec("nle") is None, reason="the NetHack Learning Environment is not installed"),
]

make: Any = gym.make  # whose type knows only its own arguments


@pytest.fixture
def env():
    env = make("External/NetHack-v0")
    yield env
    env.close()


def test_the_screen_is_text_and_stays_as_it_was(env):
    observation, info = env.reset(seed=0)
    assert observation.startswith("Hello Agent, welcome to NetHack!")  # the seed has a day without a moon
    assert observation.count("@") >= 1
    assert "Dlvl:1" in observation.splitlines()[-1]
    assert "\n\n" not in observation
    kept = str(observation)
    for _ in range(5):
        env.step("search")
    assert observation == kept
    assert "far north" in info["admissible_actions"]


def test_moves_move_the_player_and_words_of_its_own_do_not_reach_the_game(env):
    first, _ = env.reset(seed=1)
    said, reward, terminated, truncated, info = env.step("fly away")
    assert (said, reward, terminated, truncated) == ("That is no action.", 0.0, False, False)
    assert not info["action_valid"]
    seen = {env.step(f"far {way}")[0].partition("\n")[2] for way in ("north", "east", "south", "west")}
    assert len(seen | {first.partition("\n")[2]}) > 2
    assert env.step("  Far   WEST ")[4]["action_valid"]


def test_a_seed_is_one_game_again_and_again_though_nethack_ignores_gymnasiums(env):
    actions = ["far north", "far east", "search", "far south", "far west"] * 8
    games = []
    for seed in (5, 5, 6):
        shown = [env.reset(seed=seed)[0]]
        shown += [env.step(action)[0] for action in actions]
        games.append(shown)
    assert games[0] == games[1] != games[2]


def test_the_moon_follows_from_the_seed_and_not_from_the_date(env):
    seen = [env.reset(seed=seed)[0] for seed in range(20)]
    assert {"New", "Full"} <= {screen.partition(" moon tonight.")[0].split()[-1] for screen in seen}


def test_a_long_game_ends_and_says_so():
    env = make("External/NetHack-v0", max_episode_steps=20)
    env.reset(seed=0)
    ended = truncated = False
    for _ in range(25):
        observation, _, ended, truncated, info = env.step("search")
        if ended or truncated:
            break
    assert truncated
    assert observation
    assert not info["success"]


def test_other_tasks_have_actions_of_their_own_and_the_challenge_is_refused():
    with pytest.raises(ConfigError, match=r"NetHackChallenge-v0 cannot be trained on: .*seed"):
        make("External/NetHack-v0", task="NetHackChallenge-v0")
    with pytest.raises(ConfigError, match=r"NetHack has no task 'Zork'; it has \['NetHack-v0'"):
        make("External/NetHack-v0", task="Zork")
    env = make("External/NetHack-v0", task="NetHackStaircase-v0")
    assert "kick" in env.get_wrapper_attr("instructions")
    env.close()
