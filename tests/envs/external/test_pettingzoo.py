# mypy: allow-untyped-defs, allow-untyped-calls, allow-any-generics
import random
from typing import Any

import gymnasium as gym
import pytest

import gym_trl  # noqa: F401 -- registers the ids
from gym_trl.errors import ConfigError, InfrastructureError, NotTextError

pettingzoo = pytest.importorskip("pettingzoo", reason="PettingZoo is not installed")
pytestmark = pytest.mark.external

make: Any = gym.make  # whose type knows only its own arguments

TIC_TAC_TOE = "classic/tictactoe-v3"


def game(name=TIC_TAC_TOE, **kwargs):
    return make("External/PettingZoo-v0", game=name, **kwargs)


def scripted(moves):
    def opponent(seed):
        left = iter(moves)
        return lambda observation: next(left)

    return opponent


@pytest.mark.parametrize(
    ("mine", "theirs", "reward"), [("012", "34", 1.0), ("018", "345", -1.0), ("01658", "4237", 0.0)]
)
def test_the_opponent_is_a_function_and_the_game_pays(mine, theirs, reward):
    env = game(opponent=scripted(theirs))
    env.reset(seed=0)
    results = [env.step(move) for move in mine]
    assert [result[1] for result in results] == [0.0] * (len(mine) - 1) + [reward]
    assert [result[2] for result in results] == [False] * (len(mine) - 1) + [True]
    assert results[-1][4]["success"] is (reward > 0)
    assert "admissible_actions" not in results[-1][4]


def test_the_second_player_sees_the_board_from_its_own_side():
    env = game(opponent=scripted("4"), seat=1)
    observation, info = env.reset(seed=0)
    assert observation == "...\n.o.\n..."
    assert info["admissible_actions"] == list("01235678")
    assert "You are player_2. Answer with an integer from 0 to 8." in env.get_wrapper_attr("instructions")


def test_the_opponent_sees_its_own_side_and_what_it_may_play():
    seen: list[str] = []

    def opponent(seed):
        def play(observation):
            seen.append(observation)
            return "8"

        return play

    env = game(opponent=opponent)
    env.reset(seed=0)
    env.step("0")
    assert seen == ["o..\n...\n...\nPossible actions: 1, 2, 3, 4, 5, 6, 7, 8"]


def test_a_move_against_the_rules_is_data_and_may_be_made_again():
    env = game(opponent=scripted("4"))
    env.reset(seed=0)
    after, _, _, _, info = env.step("0")
    for move in ("0", "4", "9", "-1", "middle", "", "1.0"):
        observation, reward, terminated, truncated, said = env.step(move)
        assert observation == "That is no move that the rules allow now."
        assert (reward, terminated, truncated, said["action_valid"]) == (0.0, False, False, False)
        assert said["admissible_actions"] == info["admissible_actions"] == list("1235678")
    assert after == "x..\n.o.\n..."


def test_the_mask_is_shown_where_it_is_wanted():
    from gym_trl.wrappers import AdmissibleActions

    env = AdmissibleActions(game(opponent=scripted("4"), seat=1))
    assert env.reset(seed=0)[0].splitlines()[-1] == "Possible actions: 0, 1, 2, 3, 5, 6, 7, 8"


def test_an_opponent_that_breaks_the_rules_is_named():
    env = game(opponent=scripted("0"))
    env.reset(seed=0)
    with pytest.raises(ConfigError, match=r"the opponent of classic/tictactoe-v3 played '0'; it could play 1, 2, 3"):
        env.step("0")


def test_an_opponent_that_raises_is_the_infrastructures_failure():
    env = game(opponent=lambda seed: lambda observation: str(1 // 0))
    env.reset(seed=0)
    with pytest.raises(InfrastructureError, match="the opponent raised ZeroDivisionError"):
        env.step("0")


@pytest.mark.parametrize("name", [TIC_TAC_TOE, "classic/connect_four-v3", "classic/rps-v2", "classic/chess-v6"])
def test_random_players_come_to_the_end_of_a_game(name):
    env, rng = game(name), random.Random(1)
    _, info = env.reset(seed=1)
    total = 0.0
    for _ in range(300):
        observation, reward, terminated, truncated, info = env.step(rng.choice(info["admissible_actions"]))
        total += reward
        if terminated or truncated:
            break
    assert terminated or truncated
    assert f"You got {total:g}." in observation
    assert info["success"] is (total > 0)
    assert env.step("0")[1] == 0.0


def test_simultaneous_moves_are_paid_when_both_are_made():
    env = game("classic/rps-v2", opponent=lambda seed: lambda observation: "2", max_cycles=3)
    env.reset(seed=0)
    results = [env.step(move) for move in "012"]  # rock, paper, scissors against scissors
    assert [result[1] for result in results] == [1.0, -1.0, 0.0]
    assert [(result[2], result[3]) for result in results] == [(False, False), (False, False), (False, True)]


def test_chess_is_played_in_moves_that_people_write():
    env = game("classic/chess-v6", opponent=scripted(["e7e5", "b8c6", "g8f6"]))
    env.reset(seed=0)
    for move in ("e2e4", "D1H5", "f1c4", "h5f7"):  # scholar's mate
        observation, reward, terminated, _, info = env.step(move)
    assert (reward, terminated, info["success"]) == (1.0, True, True)
    assert observation.startswith("r . b q k b . r\np p p p . Q p p\n")
    black = game("classic/chess-v6", opponent=scripted(["f2f3", "g2g4"]), seat=1)
    black.reset(seed=0)
    black.step("e7e5")
    assert black.step("d8h4")[1] == 1.0


def test_what_has_no_words_is_said_with_the_users_own():
    with pytest.raises(NotTextError, match="observe="):
        game("classic/go-v5", board_size=5)

    def observe(observation):
        return f"{int(observation['observation'][..., :2].sum())} stones"

    def named(going, action):
        return "pass" if action == 25 else f"{'abcde'[action % 5]}{1 + action // 5}"

    env = game("classic/go-v5", board_size=5, observe=observe, named=named, opponent=scripted(["pass"] * 2))
    assert env.reset(seed=0) == ("0 stones", {"admissible_actions": [named(None, action) for action in range(26)]})
    assert env.step("c3")[0] == "1 stones"
    assert env.step("pass")[2]


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"name": "classic/leduc_holdem-v4"}, "cannot make 'classic/leduc_holdem-v4'"),
        ({"name": "nonesuch"}, "cannot make 'nonesuch'"),
        ({"size": 3}, "cannot make 'classic/tictactoe-v3' with {'size': 3}"),
        ({"seat": 2}, "seat must be an integer from 0 to 1, got 2"),
    ],
)
def test_what_cannot_be_made_says_why(kwargs, words):
    with pytest.raises(ConfigError, match=words):
        game(**kwargs)


class Countdown(pettingzoo.AECEnv):  # type: ignore[misc, name-defined]  # it is imported where it can be
    """Three players take one to two from ten; who takes the last pays the others, and who leaves five is out."""

    metadata = {"name": "countdown_v0", "render_modes": []}  # noqa: RUF012
    possible_agents = ["a", "b", "c"]  # noqa: RUF012

    def observation_space(self, agent):
        return gym.spaces.Discrete(11)

    def action_space(self, agent):
        return gym.spaces.Discrete(2, start=1)

    def observe(self, agent):
        return self.left

    def reset(self, seed=None, options=None):
        self.agents, self.left = list(self.possible_agents), 10
        self.rewards, self._cumulative_rewards = dict.fromkeys(self.agents, 0), dict.fromkeys(self.agents, 0)
        self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}
        self.agent_selection = "a"

    def step(self, action):
        player = self.agent_selection
        if self.terminations[player]:
            self._was_dead_step(action)
            return
        self._clear_rewards()
        self.left = max(0, self.left - action)
        if self.left == 0:
            self.rewards = {one: 1 if one != player else -2 for one in self.agents}
            self.terminations = dict.fromkeys(self.agents, True)
        elif self.left == 5:
            self.terminations[player] = True  # out
        self._accumulate_rewards()
        self.agent_selection = self.agents[(self.agents.index(player) + 1) % len(self.agents)]
        self._deads_step_first()


@pytest.fixture
def countdown(monkeypatch):
    monkeypatch.setitem(
        pettingzoo.aec_registry, "countdown-v0", pettingzoo.EnvSpec("countdown-v0", entry_point=Countdown)
    )
    return "countdown-v0"


def test_a_users_own_game_for_three_is_played_to_its_end(countdown):
    env = game(countdown, opponent=lambda seed: lambda observation: "2")
    env.reset(seed=0)
    assert env.step("2")[0] == "4"
    assert env.step("2")[:3] == ("0\nThe game is over. You got 1.", 1.0, True)


def test_a_player_who_is_out_is_not_asked_again(countdown):
    asked: list[tuple[int, str]] = []

    def opponent(seed):
        def play(observation):
            asked.append((seed, observation.partition("\n")[0]))
            return "1"

        return play

    env = game(countdown, opponent=opponent)
    env.reset(seed=0)
    assert [env.step("1")[0] for _ in range(3)] == ["7", "4", "2"]
    assert [left for _, left in asked] == ["9", "8", "6", "5", "3"]
    assert asked[0][0] == asked[2][0] != asked[1][0] == asked[3][0]  # two players with a policy each


def test_an_agent_who_is_out_is_at_its_end(countdown):
    env = game(countdown, opponent=lambda seed: lambda observation: "1", seat=1)
    assert env.reset(seed=0)[0] == "9"
    assert env.step("1")[:3] == ("6", 0.0, False)
    assert env.step("1")[:3] == ("5\nThe game is over. You got 0.", 0.0, True)


@pytest.mark.parametrize(
    ("mine", "others", "won"),
    [(1, [-1], True), (0, [0], False), (3, [3], None), (2, [5, 1], False), (-1, [-9, -2], True)],
)
def test_a_game_is_won_by_more_than_all_others_were_paid_and_by_nobody_who_is_paid_alike(mine, others, won):
    env = game().unwrapped
    env._total, env._paid = mine, {env._me: mine} | {f"other_{place}": paid for place, paid in enumerate(others)}
    assert env._won() is won
