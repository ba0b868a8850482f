import pickle
import random
from typing import Any

import gymnasium as gym
import pytest

from gym_trl.errors import ActionTypeError, ConfigError, InfrastructureError
from gym_trl.wrappers import Seats

pyspiel = pytest.importorskip("pyspiel", reason="OpenSpiel is not installed")
pytestmark = pytest.mark.external

make: Any = gym.make  # whose type knows only its own arguments

GAMES: dict[str, tuple[str, dict[str, Any]]] = {
    "Kuhn poker": ("kuhn_poker", {}),
    "Kuhn poker for three": ("kuhn_poker", {"players": 3}),
    "Leduc poker": ("leduc_poker", {}),
    "tic-tac-toe": ("tic_tac_toe", {}),
    "Connect Four": ("connect_four", {}),
    "liar's dice": ("liars_dice", {}),
    "rock, paper, scissors": ("matrix_rps", {}),
    "a dilemma": ("matrix_pd", {}),
    "goofspiel": ("goofspiel", {}),
    "goofspiel, bids hidden": ("goofspiel", {"imp_info": True, "num_cards": 4, "returns_type": "total_points"}),
    "paid in every round": ("markov_soccer", {"horizon": 30}),
    "with dice": ("backgammon", {}),
    "with others in turn": ("pig", {"winscore": 20}),
    "cooperation": ("tiny_hanabi", {}),
}


@pytest.fixture(params=list(GAMES.values()), ids=list(GAMES))
def played(request):
    return request.param


def game(name="tic_tac_toe", **kwargs):
    return make("External/OpenSpiel-v0", game=name, **kwargs)


def scripted(moves):
    def opponent(seed):
        left = iter(moves)
        return lambda observation: next(left)

    return opponent


def told(observation):
    """Possible actions in an observation."""
    listed = observation.rpartition("Possible actions: ")[2]
    return listed.split("; " if "; " in listed else ", ")


def play_out(env, seed):
    """Play a game with random moves; return who was asked, what it saw, and the last ``info``."""
    rng, asked, paid = random.Random(seed), list[tuple[int, str]](), [0.0] * env.num_seats
    observation, info = env.reset(seed=seed)
    while True:
        asked.append((info["to_move"], observation))
        assert observation.startswith(f"You are player {info['to_move']}.")
        assert told(observation) == info["admissible_actions"]
        action = rng.choice(info["admissible_actions"])
        observation, reward, terminated, _, info = env.step(f" {action.upper()} ")
        assert info["action_valid"]
        assert reward == info["payoffs"][info["player"]]
        paid = [sum(pair) for pair in zip(paid, info["payoffs"], strict=True)]
        if terminated:
            return asked, paid, info


def test_random_moves_of_all_seats_are_paid_the_games_payoffs(played):
    name, settings = played
    env: Any = Seats(game(name, opponent="self", **settings))
    for seed in range(5):
        asked, paid, info = play_out(env, seed)
        state = env.unwrapped._state
        assert state.is_terminal()
        assert paid == pytest.approx(state.returns())
        assert (asked, paid, info) == play_out(env, seed)
        for seat in range(env.num_seats):
            assert info["observations"][seat].startswith(f"You are player {seat}.")
            assert info["observations"][seat].endswith(f"The game is over. You got {paid[seat]:g}.")
        if env.get_wrapper_attr("zero_sum"):
            assert sum(paid) == pytest.approx(0)


def test_a_seat_alone_plays_against_random_moves(played):
    name, settings = played
    env, rng = game(name, seat=1, **settings), random.Random(0)
    for seed in range(5):
        observation, info = env.reset(seed=seed)
        total, terminated = 0.0, False
        while not terminated:
            assert observation.startswith("You are player 1.")
            assert "to_move" not in info
            observation, reward, terminated, _, info = env.step(rng.choice(info["admissible_actions"]))
            total += reward
        state = env.unwrapped._state
        assert total == pytest.approx(state.returns()[1])
        others = [paid for seat, paid in enumerate(state.returns()) if seat != 1]
        assert info.get("success") is (None if name == "tiny_hanabi" else total > max(others))
        assert env.unwrapped.settlement == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "matrix_rps"},
        {"name": "matrix_pd"},
        {"name": "goofspiel", "num_cards": 4},
        {"name": "goofspiel", "num_cards": 4, "imp_info": True},
        {"name": "goofspiel", "num_cards": 4, "players": 3},
        {"name": "markov_soccer"},
        {"name": "oshi_zumo"},
        {"name": "blotto"},
        {"name": "laser_tag"},
    ],
    ids=str,
)
def test_who_moves_at_the_same_time_does_not_see_what_the_others_chose(settings):
    env = game(opponent="self", **settings)
    for depth in range(3):
        seen = set()
        for choice in range(4):
            rng = random.Random(0)
            observation, info = env.reset(seed=2)
            for _ in range(depth * env.unwrapped.num_seats):
                observation, *_, info = env.step(rng.choice(info["admissible_actions"]))
                if "to_move" not in info:
                    return  # a game of few rounds
            for seat in range(env.unwrapped.num_seats):
                assert info["to_move"] == seat
                if seat:
                    seen.add((seat, observation, *info["admissible_actions"]))
                moves = info["admissible_actions"]
                observation, *_, info = env.step(moves[choice % len(moves)])
        assert len(seen) == env.unwrapped.num_seats - 1


@pytest.mark.parametrize("name", ["kuhn_poker", "leduc_poker", "kuhn_poker(players=3)", "liars_dice(dice_sides=3)"])
def test_an_observation_says_no_more_than_the_information_state(name):
    """And no less: one follows from the other, whatever the others hold."""
    env = game(name, opponent="self")
    shown: dict[str, tuple[int, str]] = {}
    for seed in range(300):
        rng = random.Random(seed)
        observation, info = env.reset(seed=seed)
        while "to_move" in info:
            state = env.unwrapped._state
            view = info["to_move"], observation
            assert shown.setdefault(state.information_state_string(), view) == view
            observation, *_, info = env.step(rng.choice(info["admissible_actions"]))
    assert len(set(shown.values())) == len(shown)


def test_the_opponent_is_a_function_and_the_game_pays():
    env = game(opponent=scripted(["o(0,0)", "o(0,1)"]))
    env.reset(seed=0)
    results = [env.step(move) for move in ("x(1,1)", "x(2,0)", "x(0,2)")]
    assert [result[1] for result in results] == [0.0, 0.0, 1.0]
    assert results[-1][4] == {"action_valid": True, "success": True}
    assert results[-1][0] == "You are player 0.\noox\n.x.\nx..\nThe game is over. You got 1."


def test_the_opponent_sees_what_the_agent_would_see_in_its_seat():
    seen: list[str] = []

    def opponent(seed):
        def play(observation):
            seen.append(observation)
            return " BET"

        return play

    env = game("kuhn_poker", opponent=opponent, seat=1)
    observation, _ = env.reset(seed=0, options={"chance": [2, 0]})
    assert seen == ["You are player 0.\n2\nPossible actions: Pass, Bet"]
    assert observation == "You are player 1.\n0b\nPossible actions: Pass, Bet"
    assert env.step("bet")[:3] == ("You are player 1.\n0bb\nThe game is over. You got -2.", -2.0, True)


def test_three_players_have_a_policy_each():
    seeds = []

    def opponent(seed):
        seeds.append(seed)
        return lambda observation: "pass"

    env = game("kuhn_poker", players=3, opponent=opponent, seat=1)
    env.reset(seed=0)
    assert env.step("bet")[1] == 2.0  # both others give up one chip
    assert len(set(seeds)) == 2


def test_a_move_against_the_rules_is_data_and_may_be_made_again():
    env = Seats(game("kuhn_poker", opponent="self"))
    env.reset(seed=0)
    for move in ("raise", "", "1", "pass bet", "x" * 10_000):
        observation, reward, terminated, _, info = env.step(move)
        assert observation == "That is no move that the rules allow now.\nPossible actions: Pass, Bet"
        assert (reward, terminated, info["action_valid"], info["to_move"]) == (0.0, False, False, 0)
    assert env.step("\tbet\n")[4]["to_move"] == 1


def test_moves_that_are_called_alike_are_told_apart():
    from gym_trl.envs.external.openspiel import move_names

    class State:
        def current_player(self):
            return 0

        def legal_actions(self):
            return [3, 5, 8]

        def action_to_string(self, player, move):
            return {3: "up", 5: "Up ", 8: "down"}[move]

    assert move_names(State()) == {3: "up (3)", 5: "Up (5)", 8: "down"}


def test_chance_can_be_chosen():
    env = game("leduc_poker", opponent="self")
    observation, _ = env.reset(seed=0, options={"chance": [5, 1, 4]})
    assert "[Private: 5]" in observation
    assert "[Private: 1]" in env.step("call")[0]
    assert "[Public: 4]" in env.step("call")[0]
    for moves in ("call", "call"):
        *_, info = env.step(moves)
    assert info["payoffs"] == (1.0, -1.0)  # a pair, as the instructions explain
    env.reset(seed=0, options={"chance": [0, 1, 4]})
    for _ in range(4):
        *_, info = env.step("call")
    assert info["payoffs"] == (0.0, 0.0)  # one rank


def test_a_state_key_is_the_whole_history():
    env = game("kuhn_poker", opponent="self")
    assert env.unwrapped.metadata["markov_state_key"]
    env.reset(seed=0, options={"chance": [2, 0]})
    env.step("pass")
    assert env.unwrapped.state_key[0] == "2, 0, 0"
    assert not game("kuhn_poker", opponent=scripted("")).unwrapped.metadata["markov_state_key"]


def test_a_game_that_is_cut_off_is_a_lost_one():
    env = game("leduc_poker")
    env.reset(seed=0)
    assert env.unwrapped.settlement == -13.0  # the most that can be lost
    soccer = game("markov_soccer", opponent="self")
    soccer.reset(seed=0)
    assert soccer.unwrapped.settlement == -1.0


def test_an_environment_survives_being_pickled_in_mid_game():
    env = game("leduc_poker", opponent="self").unwrapped
    env.reset(seed=4)
    env.step("raise")
    again = pickle.loads(pickle.dumps(env))
    for action in ("call", "call", "call"):
        assert again.step(action) == env.step(action)


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"name": "tictactoe"}, "OpenSpiel has no game 'tictactoe'.*tic_tac_toe"),
        ({"size": 3}, "cannot load 'tic_tac_toe' with {'size': 3}"),
        ({"name": "kuhn_poker", "players": "x"}, "cannot load 'kuhn_poker'"),
        ({"name": "negotiation"}, "draws random numbers of its own"),
        ({"name": "mfg_crowd_modelling"}, "no players who take turns"),
        ({"seat": 2}, "seat must be an integer from 0 to 1, got 2"),
        ({"seat": True}, "seat must be an integer"),
        ({"opponent": "minimax"}, "opponent must be a function from a seed to a policy or \"self\", got 'minimax'"),
        ({"name": "blackjack", "opponent": "self"}, "has one player"),
    ],
)
def test_what_cannot_be_made_says_why(kwargs, words):
    with pytest.raises(ConfigError, match=words):
        game(**kwargs)


@pytest.mark.parametrize(
    ("chance", "words"),
    [([7], "7 is none of"), ([1, 1], "1 is none of"), ("01", "must be a list of outcomes"), (3, "must be a list")],
)
def test_impossible_chance_is_refused(chance, words):
    with pytest.raises(ConfigError, match=words):
        game("kuhn_poker").reset(options={"chance": chance})


def test_an_opponent_that_fails_is_named():
    with pytest.raises(InfrastructureError, match="the opponent raised ZeroDivisionError"):
        game(opponent=lambda seed: lambda observation: str(1 // 0), seat=1).reset(seed=0)
    with pytest.raises(ConfigError, match=r"the opponent of tic_tac_toe played 'nine'; it could play x\(0,0\)"):
        game(opponent=scripted(["nine"]), seat=1).reset(seed=0)
    with pytest.raises(ActionTypeError, match="an opponent answers with text, got int"):
        game(opponent=scripted([3]), seat=1).reset(seed=0)


def test_both_ways_to_kuhn_poker_are_one_game():
    ours, theirs = make("TrlEnv/KuhnPoker-v0", opponent="self"), game("kuhn_poker", opponent="self")
    for chance in ([0, 1], [1, 2], [2, 0]):
        for moves in (
            ["bet", "bet"],
            ["bet", "pass"],
            ["pass", "pass"],
            ["pass", "bet", "pass"],
            ["pass", "bet", "bet"],
        ):
            ends = []
            for env in (ours, theirs):
                env.reset(options={"chance": chance})
                ends.append([env.step(move)[4] for move in moves][-1]["payoffs"])
            assert ends[0] == ends[1]
