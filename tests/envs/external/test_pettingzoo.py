import random
from functools import partial
from importlib.util import find_spec
from typing import Any

import gymnasium as gym
import pytest

import gym_trl  # noqa: F401 -- registers the ids
from gym_trl.errors import ConfigError, InfrastructureError, NotTextError
from gym_trl.spaces import AnyText
from gym_trl.wrappers import Seats

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
        pytest.param(
            {"name": "classic/leduc_holdem-v4"},
            "cannot make 'classic/leduc_holdem-v4'",
            marks=pytest.mark.skipif(find_spec("rlcard") is not None, reason="rlcard is installed"),
        ),
        ({"name": "nonesuch"}, "cannot make 'nonesuch'"),
        ({"size": 3}, "cannot make 'classic/tictactoe-v3' with {'size': 3}"),
        ({"seat": 2}, "seat must be an integer from 0 to 1, got 2"),
    ],
)
def test_what_cannot_be_made_says_why(kwargs, words):
    with pytest.raises(ConfigError, match=words):
        game(**kwargs)


class Countdown(pettingzoo.AECEnv):  # type: ignore[name-defined]  # it is imported where it can be
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
    [(1, [-1], True), (0, [0], False), (3, [3], None), (2, [5, 1], False), (-1, [-9, -2], True), (1, [1, -2], True)],
)
def test_a_game_is_won_by_the_highest_return_and_by_nobody_who_is_paid_alike(mine, others, won):
    env = game().unwrapped
    env._paid = {env._me: mine} | {f"other_{place}": paid for place, paid in enumerate(others)}
    winners = env._winners()
    assert (None if winners is None else env._me in winners) is won


# ---------------------------------------------------------------------------------------------------------------------
# Several seats
# ---------------------------------------------------------------------------------------------------------------------

GAMES = [TIC_TAC_TOE, "classic/connect_four-v3", "classic/rps-v2", "classic/leduc_holdem-v4"]


def seats(name=TIC_TAC_TOE, **kwargs):
    return Seats(make("External/PettingZoo-v0", game=name, opponent="self", **kwargs))


def play(env, actions, seed=0):
    """Return the results of a game: first of the reset, without a reward."""
    observation, info = env.reset(seed=seed)
    return [(observation, 0.0, False, False, info), *(env.step(action) for action in actions)]


def play_randomly(env, seed, most=400):
    rng = random.Random(seed)
    observation, info = env.reset(seed=seed)
    steps = [(observation, 0.0, False, False, info)]
    while not (steps[-1][2] or steps[-1][3]) and len(steps) <= most:
        steps.append(env.step(rng.choice(steps[-1][4]["admissible_actions"])))
    return steps


@pytest.mark.parametrize("name", GAMES)
def test_random_games_of_all_players_keep_the_protocol_of_seats(name):
    if "leduc" in name and find_spec("rlcard") is None:
        pytest.skip("rlcard is not installed")
    env = seats(name)
    assert env.num_seats == 2
    for seed in range(30):
        steps = play_randomly(env, seed)
        assert steps[-1][2] or steps[-1][3]
        info = steps[-1][4]
        assert set(info["observations"]) == {0, 1}
        paid = [sum(step[4].get("payoffs", (0, 0))[seat] for step in steps) for seat in (0, 1)]
        assert sum(paid) == 0
        assert info["successes"] == tuple(one > 0 for one in paid)
        for seat in (0, 1):
            assert info["observations"][seat].endswith(f"You got {paid[seat]:g}.")
        for observation, _, _, _, told in steps[:-1]:
            assert observation.startswith(f"You are {env.unwrapped._players[told['to_move']]}.")


def test_each_player_sees_its_own_side_of_the_board():
    steps = play(seats(), "04")
    assert [step[0] for step in steps] == [
        "You are player_1.\n...\n...\n...",
        "You are player_2.\no..\n...\n...",
        "You are player_1.\nx..\n.o.\n...",
    ]
    assert steps[1][4]["admissible_actions"] == list("12345678")


def test_a_move_against_the_rules_keeps_the_turn():
    env = seats()
    play(env, "0")
    observation, reward, terminated, _, info = env.step("0")
    assert (observation, reward, terminated) == ("That is no move that the rules allow now.", 0.0, False)
    assert (info["to_move"], info["player"], info["action_valid"]) == (1, 1, False)
    assert info["admissible_actions"] == list("12345678")


def test_simultaneous_choices_are_seen_by_nobody_before_all_are_made():
    after = []
    for mine in "012":
        steps = play(seats("classic/rps-v2", max_cycles=2), [mine, "0"])
        after.append(steps[1][0])
        assert steps[2][0] == "You are player_0.\n0"  # what the other has chosen, and it has paid
        assert steps[2][4]["payoffs"] == {"0": (0, 0), "1": (1, -1), "2": (-1, 1)}[mine]
    assert after == ["You are player_1.\n3"] * 3


def test_random_games_of_three_players_of_whom_some_are_out_keep_the_protocol(countdown):
    env = seats(countdown)
    assert env.num_seats == 3
    for seed in range(50):
        steps = play_randomly(env, seed)
        assert steps[-1][2]
        left = [k for k, step in enumerate(steps) if step[0].endswith("\n5")]
        if left and left[0] < len(steps) - 1:  # the player who left five is out
            out = steps[left[0]][4]["player"]
            assert out not in [step[4].get("to_move") for step in steps[left[0] :]]
        assert sum(steps[-1][4]["payoffs"]) in (0, -1, -2)


class Auction(pettingzoo.ParallelEnv):  # type: ignore[name-defined]
    """Three players write sums at the same time, for some rounds; the highest is paid at once."""

    metadata = {"name": "auction_v0", "render_modes": []}  # noqa: RUF012
    possible_agents = ["a", "b", "c"]  # noqa: RUF012
    render_mode = None

    def __init__(self, rounds=2):
        self.rounds = rounds

    def observation_space(self, agent):
        return AnyText()

    def action_space(self, agent):
        return AnyText()

    def reset(self, seed=None, options=None):
        self.agents, self.round = list(self.possible_agents), 0
        worth = random.Random(seed).sample(range(10, 99), 3)
        self.worth = dict(zip(self.agents, worth, strict=True))
        return self._seen("nothing"), {agent: {} for agent in self.agents}

    def _seen(self, before):
        return {agent: f"Your worth: {self.worth[agent]}. Last bids: {before}." for agent in self.possible_agents}

    def step(self, actions):
        self.round += 1
        best = max(self.agents, key=lambda agent: len(actions[agent]))
        paid = {agent: float(agent == best) for agent in self.agents}
        over = dict.fromkeys(self.agents, self.round == self.rounds)
        going = dict.fromkeys(self.agents, False)
        seen = self._seen(" ".join(actions.values()))
        if self.round == self.rounds:
            self.agents = []
        return seen, paid, over, going, {agent: {} for agent in self.possible_agents}


@pytest.mark.parametrize(
    "made", [Auction, Auction(), partial(Auction, rounds=2), lambda: pettingzoo.utils.parallel_to_aec(Auction())]
)
def test_a_parallel_game_with_text_is_played_in_turn_however_it_is_given(made):
    env = seats(made)
    steps = play(env, ["1", "333", "22", "1", "22", "333"], seed=5)
    assert [step[4].get("to_move") for step in steps] == [0, 1, 2, 0, 1, 2, None]
    assert [step[4].get("payoffs") for step in steps[1:]] == [(0,) * 3] * 2 + [(0, 1, 0)] + [(0,) * 3] * 2 + [(0, 0, 1)]
    assert all("Last bids: nothing." in step[0] for step in steps[:3])  # nobody sees what the others chose
    assert all("Last bids: 1 333 22." in step[0] for step in steps[3:6])
    worth = [step[0].split("Your worth: ")[1][:2] for step in steps[:3]]
    assert len(set(worth)) == 3
    assert "admissible_actions" not in steps[0][4]
    assert play(env, ["1"], seed=5)[:2] == steps[:2]


class Late(Countdown):
    """The first move pays the last player, who is not asked before its own turn."""

    def step(self, action):
        first = self.left == 10
        super().step(action)
        if first:
            self.rewards["c"] += 5


def test_all_that_a_game_pays_arrives():
    env = seats(Late)
    for seed in range(30):
        steps = play_randomly(env, seed)
        total = [sum(step[4]["payoffs"][seat] for step in steps[1:]) for seat in range(3)]
        assert total == list(env.unwrapped._paid.values())
        assert [steps[-1][4]["observations"][seat].endswith(f"You got {paid:g}.") for seat, paid in enumerate(total)]


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"name": int}, "gives int"),
        ({"name": 5}, "5 gives int"),
        ({"name": "pettingzoo:nonesuch"}, "'pettingzoo:nonesuch' names no function"),
        ({"name": Auction(), "rounds": 3}, "is made already"),
        ({"name": Auction}, "give opponent="),
        ({"opponent": "other"}, "or \"self\", got 'other'"),
    ],
)
def test_a_game_or_an_opponent_that_cannot_be_used_is_said(kwargs, words):
    with pytest.raises(ConfigError, match=words):
        game(**kwargs)
