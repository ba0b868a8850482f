"""Tests of tournaments: fair plans, games between policies of any kind, folders that resume, and the command."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import gymnasium as gym
import matplotlib
import pytest
from hypothesis import given, strategies as st
from support.chat_server import said
from support.command_line import error, gym_trl_, text

from gym_trl.envspec import EnvSpec
from gym_trl.errors import ConfigError, EngineError
from gym_trl.evaluation.ratings import Tally
from gym_trl.evaluation.seated import GameRecord, Seating, play_seated
from gym_trl.evaluation.tournament import GAMES, Tournament, plan_games, seatings_of, tournament
from gym_trl.evaluation.tournament_picture import draw_standings
from gym_trl.policies import Model
from gym_trl.policies.functions import NamedPolicy
from gym_trl.policies.protocol import TextPolicy
from gym_trl.policies.server import server
from gym_trl.rollout.loop import GameResult
from gym_trl.spaces import AnyText
from gym_trl.training.run_folder import draw_curve
from gym_trl.types import Policy

TIC_TAC_TOE, NIM, KUHN = "TrlEnv/TicTacToe-v0", "TrlEnv/Nim-v0", "TrlEnv/KuhnPoker-v0"


def tally(found: Tournament, one: str, other: str) -> Tally:
    return found.standings.pairs[one, other]


def always(name: str, answer: str) -> TextPolicy:
    return TextPolicy(name, lambda env, seed: lambda observation: answer)


class Auction(gym.Env[str, str]):
    """Three bid once each, from 0 to 9; the highest bid wins, and what is no bid has to be said again."""

    observation_space, action_space = AnyText(100), AnyText(100)
    num_seats = 3
    zero_sum = True
    instructions = "Bid a digit."

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.bids: list[int] = []
        return "Bid 1.", {"to_move": 0}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if len(action) != 1 or not action.isdecimal():
            return "A digit, please.", 0.0, False, False, {"to_move": len(self.bids), "action_valid": False}
        self.bids.append(int(action))
        if len(self.bids) < 3:
            return f"Bid {len(self.bids) + 1}.", 0.0, False, False, {"to_move": len(self.bids)}
        payoffs = [2.0 if bid == max(self.bids) else -1.0 for bid in self.bids]
        mean = sum(payoffs) / 3
        return "Over.", 0.0, True, False, {"payoffs": tuple(paid - mean for paid in payoffs)}


# ---------------------------------------------------------------------------------------------------------------------
# Plans
# ---------------------------------------------------------------------------------------------------------------------

PLANS = st.tuples(st.integers(2, 6), st.integers(2, 5), st.integers(1, 3), st.integers(0, 9))


@given(PLANS)
def test_every_player_has_every_seat_equally_often_on_every_deal(plan: tuple[int, int, int, int]) -> None:
    count, seats, deals, seed = plan
    players = [f"p{number}" for number in range(count)]
    games = deals * len(seatings_of(players[: min(seats, count)], seats))
    for pairing in plan_games(players, seats, games=games, seed=seed):
        assert len(pairing) == len(set(pairing)) == games
        for deal in {seating.seed for seating in pairing}:
            played = [seating.players for seating in pairing if seating.seed == deal]
            for seat in range(seats):
                assert len(set(Counter(one[seat] for one in played).values())) == 1


@given(PLANS)
def test_all_pairings_play_the_same_deals(plan: tuple[int, int, int, int]) -> None:
    count, seats, deals, seed = plan
    players = [f"p{number}" for number in range(count)]
    games = deals * len(seatings_of(players[: min(seats, count)], seats))
    planned = plan_games(players, seats, games=games, seed=seed)
    assert len({frozenset(seating.seed for seating in pairing) for pairing in planned}) == 1
    assert len({frozenset(seating.players[0] for seating in pairing) for pairing in planned}) == len(planned)


def test_a_longer_tournament_begins_with_the_games_of_a_shorter_one() -> None:
    short, long = (plan_games("ab", 2, games=games, seed=3)[0] for games in (10, 20))
    assert long[:10] == short


@pytest.mark.parametrize(
    ("players", "games", "said_"),
    [
        ("a", 2, "a tournament needs two players or more, got a"),
        ("", 2, "a tournament needs two players or more, got none"),
        ("aba", 2, "players must have different names, got a twice"),
        ("ab", 3, "games must be a multiple of 2, the seatings of 2 seats, got 3"),
        ("ab", 0, "games must be an integer of at least 1, got 0"),
    ],
)
def test_a_plan_that_is_not_fair_is_refused(players: str, games: int, said_: str) -> None:
    with pytest.raises(ConfigError, match=said_):
        plan_games(players, 2, games=games, seed=0)


# ---------------------------------------------------------------------------------------------------------------------
# Games
# ---------------------------------------------------------------------------------------------------------------------


def test_two_perfect_players_of_tic_tac_toe_draw_every_game() -> None:
    other = TextPolicy("also", lambda env, seed: env.get_wrapper_attr("solver")())
    found = tournament(TIC_TAC_TOE, ["solver", other], games=10)
    assert tally(found, "solver", "also") == Tally(0, 10, 0)
    assert found.repeated == [("also", "solver")]


def test_the_perfect_player_of_tic_tac_toe_never_loses_to_random_play() -> None:
    found = tournament(TIC_TAC_TOE, ["solver", "random"], games=60)
    assert tally(found, "solver", "random").losses == 0
    assert tally(found, "solver", "random").wins > 40
    assert found.repeated == []
    assert [row.player for row in found.standings.rows] == ["solver", "random"]


def test_in_nim_the_position_decides_between_perfect_players() -> None:
    other = TextPolicy("also", lambda env, seed: env.get_wrapper_attr("solver")())
    found = tournament(NIM, ["solver", other], games=20)
    assert tally(found, "solver", "also") == Tally(10, 0, 10)
    for one, swapped in zip(found.games[::2], found.games[1::2], strict=True):
        assert one.seed == swapped.seed
        assert one.payoffs == swapped.payoffs


def test_both_seatings_of_a_deal_have_the_same_cards() -> None:
    found = tournament(KUHN, [always("a", "bet"), always("b", "bet")], games=40)
    assert {
        one.payoffs == swapped.payoffs for one, swapped in zip(found.games[::2], found.games[1::2], strict=True)
    } == {True}
    assert tally(found, "a", "b").score == 0.5
    assert not found.stakes
    assert {game.payoffs for game in found.games} == {(2.0, -2.0), (-2.0, 2.0)}


def test_the_same_tournament_again_has_the_same_games_in_any_order_of_players() -> None:
    first = tournament(KUHN, ["random", "solver", "constant"], games=10, seed=5)
    again = tournament(KUHN, ["constant", "random", "solver"], games=10, seed=5)
    assert set(first.games) == set(again.games)
    assert [row.player for row in first.standings.rows] == [row.player for row in again.standings.rows]
    assert set(tournament(KUHN, ["random", "solver", "constant"], games=10, seed=6).games) != set(first.games)


def test_three_play_in_every_seat() -> None:
    found = tournament(Auction, [always("low", "1"), always("high", "9"), always("middle", "5")], games=6)
    assert [(row.player, row.games) for row in found.standings.rows] == [("high", 6), ("low", 6), ("middle", 6)]
    assert tally(found, "high", "middle") == Tally(6, 0, 0)
    assert tally(found, "middle", "low") == Tally(0, 6, 0)
    assert len({game.players for game in found.games}) >= 3
    assert [row.payoff for row in found.standings.rows] == pytest.approx([2.0, -1.0, -1.0])


def test_two_share_three_seats() -> None:
    found = tournament(Auction, [always("low", "1"), always("high", "9")], games=6)
    assert tally(found, "high", "low") == Tally(12, 0, 0)  # 2 comparisons in each game, none with itself
    assert Counter(game.players.count("high") for game in found.games) == {1: 3, 2: 3}


def test_who_cannot_say_anything_valid_forfeits_and_is_behind_all_others() -> None:
    players = [always("mute", "I pass."), always("low", "1"), always("high", "9")]
    found = tournament(Auction, players, games=3)
    assert {row.player: row.forfeits for row in found.standings.rows} == {"mute": 3, "low": 0, "high": 0}
    assert tally(found, "mute", "low") == tally(found, "mute", "high") == Tally(0, 0, 3)
    for game in found.games:
        assert game.forfeit == game.players.index("mute")
        assert [move for move in game.moves if move[0] == game.forfeit] == [(game.forfeit, "I pass.")] * 3


def test_illegal_moves_lose_by_the_rules_of_the_game() -> None:
    found = tournament(TIC_TAC_TOE, ["garbage", "random"], games=4)
    assert tally(found, "garbage", "random") == Tally(0, 0, 4)
    assert sum(game.payoffs[game.players.index("garbage")] for game in found.games if game.payoffs) == -4


def test_a_policy_that_breaks_leaves_its_games_unscored_and_others_go_on(tmp_path: Path) -> None:
    broken = True

    def sometimes(env: Any, seed: int) -> Policy:
        if broken:
            raise RuntimeError("no luck")
        return lambda observation: "1"

    players: list[str | TextPolicy] = ["random", "solver", TextPolicy("sometimes", sometimes)]
    found = tournament(KUHN, players, games=2, out=tmp_path)
    assert found.unscored == 4
    assert {game.error for game in found.games if game.payoffs is None} == {"the policy raised RuntimeError: no luck"}
    assert {row.player: row.games for row in found.standings.rows} == {"random": 2, "solver": 2, "sometimes": 0}
    broken = False
    again = tournament(KUHN, players, games=2, out=tmp_path)
    assert (again.played, again.unscored) == (0, 4)
    fixed = tournament(KUHN, players, games=2, out=tmp_path, retry=True)
    assert (fixed.played, fixed.unscored) == (4, 0)


def test_an_environment_of_one_seat_and_an_opponent_in_it_are_refused() -> None:
    with pytest.raises(ConfigError, match="has one seat"):
        tournament("TrlEnv/Wordle-v0", ["solver", "random"])
    with pytest.raises(
        ConfigError, match="the players of a tournament have all seats: leave out the argument opponent"
    ):
        tournament(NIM, ["solver", "random"], env_kwargs={"opponent": "minimax"})
    with pytest.raises(ConfigError, match="has no policy 'solvr'; did you mean 'solver'"):
        tournament(NIM, ["solvr", "random"])


# ---------------------------------------------------------------------------------------------------------------------
# Servers
# ---------------------------------------------------------------------------------------------------------------------


def test_a_server_plays_many_games_at_a_time_with_its_own_prompt(serve: Any) -> None:
    def answer(body: dict[str, Any], times: int) -> tuple[int, Any]:
        time.sleep(0.02)
        return 200, said("<action>bet</action>")

    asked = serve(answer)
    found = tournament(KUHN, [server(asked.url, concurrency=8), "constant"], games=32)
    assert found.unscored == 0
    assert asked.peak > 2
    first = asked.bodies[0]["messages"][0]["content"]
    assert "Put your action between <action> and </action>." in first
    assert "Your card" in first
    assert all(response in ("<action>bet</action>", "pass") for game in found.games for _, response in game.moves)
    alone = tournament(KUHN, [always("the-model", "bet"), "constant"], games=32)
    assert [game.payoffs for game in found.games] == [game.payoffs for game in alone.games]


def test_a_server_that_marks_no_action_forfeits(serve: Any) -> None:
    asked = serve(lambda body, times: (200, said("bet")))
    found = tournament(KUHN, [server(asked.url), "constant"], games=4)
    assert tally(found, "the-model", "constant") == Tally(0, 0, 4)
    assert [row.forfeits for row in found.standings.rows] == [0, 4]
    assert found.standings.rows[1].payoff == -2.0


def test_a_server_that_rejects_everything_ends_the_tournament(serve: Any) -> None:
    asked = serve(lambda body, times: (400, {"error": "no such model"}))
    with pytest.raises(EngineError, match="status 400"):
        tournament(KUHN, [server(asked.url), "constant"], games=4)


# ---------------------------------------------------------------------------------------------------------------------
# Folders
# ---------------------------------------------------------------------------------------------------------------------


def test_players_and_games_are_added_to_a_folder(tmp_path: Path) -> None:
    assert tournament(NIM, ["solver", "random"], games=4, out=tmp_path).played == 4
    assert tournament(NIM, ["random", "solver"], games=4, out=tmp_path).played == 0
    assert tournament(NIM, ["solver", "random"], games=10, out=tmp_path).played == 6
    more = tournament(NIM, ["solver", "constant", "random"], games=10, out=tmp_path)
    assert more.played == 20
    assert [row.games for row in more.standings.rows] == [20, 20, 20]
    shorter = tournament(NIM, ["solver", "random"], games=4, out=tmp_path)
    assert (shorter.played, len(shorter.games)) == (0, 4)


@pytest.mark.parametrize(
    ("changes", "said_"),
    [
        ({"seed": 1}, "is a tournament with seed=0, not 1"),
        ({"env": KUHN}, "is a tournament with env_id='TrlEnv/Nim-v0', not 'TrlEnv/KuhnPoker-v0'"),
        ({"env_kwargs": {"mistakes": 2}}, r"is a tournament with env_kwargs={}, not {'mistakes': 2}"),
    ],
)
def test_a_folder_is_one_tournament(tmp_path: Path, changes: dict[str, Any], said_: str) -> None:
    tournament(NIM, ["solver", "random"], games=2, out=tmp_path)
    with pytest.raises(ConfigError, match=said_):
        tournament(**{"env": NIM, "players": ["solver", "random"], "games": 2, "out": tmp_path, **changes})


def test_games_of_a_server_with_other_settings_are_not_counted_together(tmp_path: Path, serve: Any) -> None:
    asked = serve(lambda body, times: (200, said("<action>bet</action>")))
    tournament(KUHN, [server(asked.url, max_tokens_per_turn=8), "constant"], games=2, out=tmp_path)
    with pytest.raises(ConfigError, match="has games of 'the-model' with max_tokens_per_turn=8, not 9"):
        tournament(KUHN, [server(asked.url, max_tokens_per_turn=9), "constant"], games=2, out=tmp_path)


def test_a_folder_of_an_evaluation_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rollouts.jsonl").touch()
    with pytest.raises(ConfigError, match="contains records but no tournament"):
        tournament(NIM, ["solver", "random"], games=2, out=tmp_path)


@pytest.mark.processes
def test_a_tournament_that_is_killed_goes_on_with_the_same_games(tmp_path: Path) -> None:
    players = ["support.slow_policy:solver", "random", "constant"]
    folder = tmp_path / "killed"
    command = [sys.executable, "-m", "gym_trl", "tournament", KUHN, *players, "--games", "200", "--out", str(folder)]
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    for lines in (30, 90, 300):
        process = subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while not (folder / GAMES).exists() or (folder / GAMES).read_bytes().count(b"\n") < lines:
            assert process.poll() is None, "it ended before it was killed"
            time.sleep(0.002)
        process.kill()
        assert process.wait(timeout=10) == -signal.SIGKILL
        with (folder / GAMES).open("ab") as file:  # a machine that dies with the process tears a line
            file.write(b'{"players": ["ran')
    killed = tournament(KUHN, players, games=200, out=folder)
    assert 0 < killed.played < 400
    assert len((folder / GAMES).read_text().splitlines()) == 600
    undisturbed = tournament(KUHN, players, games=200)
    assert killed.games == undisturbed.games
    assert killed.standings == undisturbed.standings


# ---------------------------------------------------------------------------------------------------------------------
# The command, and its picture
# ---------------------------------------------------------------------------------------------------------------------


def test_the_command_prints_ratings_results_and_the_seat(tmp_path: Path) -> None:
    ran = gym_trl_("tournament", TIC_TAC_TOE, "random", "solver", "constant", "--games", "20", "--out", str(tmp_path))
    assert ran.exit_code == 0, ran.output
    shown = text(ran.stdout)
    assert shown.startswith("player rating score win/draw/loss games forfeits payoff 1 solver +")
    assert "player against 1 against 2 against 3 1 solver - " in shown
    assert "The first seat is worth " in shown
    assert "game 60/60" in ran.stderr
    assert len((tmp_path / GAMES).read_text().splitlines()) == 60
    told = json.loads((tmp_path / "standings.json").read_text())
    assert told["rows"][0]["player"] == "solver"


def test_the_command_prints_json_and_anchors() -> None:
    ran = gym_trl_("tournament", NIM, "random", "solver", "--games", "10", "--anchor", "random", "--json")
    told = json.loads(ran.stdout)
    assert told["anchor"] == "random"
    assert [(row["player"], row["games"]) for row in told["rows"]] == [("solver", 10), ("random", 10)]
    assert told["rows"][1]["rating"] == 0.0
    assert [pair["players"] for pair in told["pairs"]] == [["random", "solver"], ["solver", "random"]]


@pytest.mark.parametrize(
    ("arguments", "said_"),
    [
        ([NIM, "solver"], "a tournament needs two players or more, got solver"),
        ([NIM, "solver", "solver"], "players must have different names, got solver twice"),
        ([NIM, "solver", "person"], "a person plays with gym-trl play --against POLICY, not in a tournament"),
        ([NIM, "solver", "solvr"], "has no policy 'solvr'; did you mean 'solver'?"),
        ([NIM, "solver", "./nowhere"], "there is no folder './nowhere'"),
        ([NIM, "solver", "tests"], "there is no model in 'tests': it has no config.json"),
        ([NIM, "solver", "random", "--games", "7"], "games must be a multiple of 2"),
        ([NIM, "solver", "random", "--games", "0"], "--games must be an integer of at least 1, got 0"),
        ([NIM, "solver", "random", "--temperature", "0"], "--temperature requires a language model among the players"),
        ([NIM, "solver", "random", "--anchor", "solve"], "did you mean 'solver'?"),
        ([NIM, "solver", "random", "--picture", "nim.gif"], "a picture must be called .png, .svg or .pdf, got nim.gif"),
        ([NIM, "solver", "random", "--env-kwargs", "opponent=random"], "leave out the argument opponent='random'"),
        (["TrlEnv/Wordle-v0", "solver", "random"], "has one seat"),
        (["TrlEnv/Nimm-v0", "solver", "random"], "did you mean TrlEnv/Nim-v0?"),
    ],
)
def test_what_a_tournament_cannot_do_is_one_line(arguments: list[str], said_: str) -> None:
    assert said_ in error(gym_trl_("tournament", *arguments))


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_the_picture_is_drawn(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"nim.{kind}"
    names = [f"{tmp_path}/runs/x/checkpoint-{step}" for step in (10, 20)]
    found = tournament(NIM, [*(always(name, "1 1") for name in names), "solver"], games=4)
    draw_standings(found.standings, path, title=NIM)
    draw_standings(tournament(NIM, ["random", "solver"], games=4).standings, tmp_path / "levels.png")
    assert path.stat().st_size > 5000


@pytest.mark.parametrize(
    "draw", [lambda path, found: draw_standings(found, path), lambda path, _: draw_curve(path.parent)]
)
def test_pictures_do_not_take_the_style_of_the_working_directory(tmp_path: Path, draw: Any) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "env/return": 1.0}\n')
    with matplotlib.rc_context({"text.usetex": True}):  # as a stranger's matplotlibrc has it, which starts LaTeX
        draw(tmp_path / "curve.png", tournament(NIM, ["random", "solver"], games=4).standings)
    assert (tmp_path / "curve.png").stat().st_size > 5000


# ---------------------------------------------------------------------------------------------------------------------
# Models
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    from gym_trl.testing import save_tiny

    folders = [tmp_path_factory.mktemp("models") / f"tiny{seed}" for seed in range(3)]
    for seed, folder in enumerate(folders):
        save_tiny(folder, seed=seed, width=32, layers=1)
    return folders


@pytest.mark.full
def test_models_play_each_other_in_batches_and_again_the_same(tiny: list[Path]) -> None:
    players = [Model(str(folder), label=folder.name, max_tokens_per_turn=4) for folder in tiny]
    notes: list[str] = []
    found = tournament(NIM, [*players, "random"], games=6, action_format="plain", note=notes.append)
    assert found.unscored == 0
    assert [row.games for row in found.standings.rows] == [18] * 4
    assert notes[0].startswith("Keeping 3 of 3 models in memory")
    assert sorted(notes[1:]) == [f"Loading {folder.name}" for folder in tiny]
    again = tournament(NIM, [*players, "random"], games=6, action_format="plain")
    assert again.games == found.games


@pytest.mark.full
def test_models_that_do_not_fit_are_loaded_again(tiny: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gym_trl.evaluation.tournament.free_memory", lambda: 1)
    players = [Model(str(folder), label=folder.name, max_tokens_per_turn=4) for folder in tiny]
    notes: list[str] = []
    tournament(NIM, players, games=2, action_format="plain", note=notes.append)
    assert notes == ["Keeping 2 of 3 models in memory", *(f"Loading tiny{number}" for number in (0, 1, 2, 1))]


@pytest.mark.full
def test_each_seat_is_prompted_in_its_own_format(tiny: list[Path]) -> None:
    tagged = Model(str(tiny[0]), label="tagged", max_tokens_per_turn=4, action_format="tag")
    plain = Model(str(tiny[1]), label="plain", max_tokens_per_turn=4, action_format="plain", instructions="Bid.")
    players: dict[str, NamedPolicy] = {"tagged": tagged, "plain": plain, "high": always("high", "9")}
    played: list[tuple[GameRecord, GameResult]] = []
    play_seated(
        EnvSpec(Auction, seats="self", action_format=None),
        [Seating(("high", "plain", "tagged"), 0), Seating(("high", "tagged", "plain"), 0)],
        players,
        loaded={name: one.load() for name, one in players.items() if isinstance(one, Model)},
        on_game=lambda game, episodes: played.append((game, episodes)),
    )
    prompts = {
        name: episode.messages[0].content
        for game, episodes in played
        for name, episode in zip(game.players, episodes, strict=True)
        if episode.messages
    }
    assert prompts["tagged"] == "Bid a digit. Put your action between <action> and </action>.\n\nBid 2."
    assert prompts["plain"] == "Bid. Answer with your action alone.\n\nBid 2."


@pytest.mark.full
@pytest.mark.trl
def test_a_run_is_all_of_its_checkpoints_each_prompted_as_it_was_trained(tmp_path: Path) -> None:
    run = tmp_path / "kuhn"
    sizes = ["--episodes-per-step", "8", "--num-generations", "4", "--eval-episodes", "2", "--grpo", "save_steps=2"]
    sizes += ["--grpo", "save_total_limit=none"]  # keep all checkpoints
    trained = gym_trl_("train", KUHN, "--seats", "self", "--steps", "5", "--out", str(run), *sizes)
    assert trained.exit_code == 0, trained.output
    out = tmp_path / "out"
    ran = gym_trl_("tournament", KUHN, str(run), "random", "--games", "4", "--out", str(out), "--json")
    assert ran.exit_code == 0, ran.output
    names = {f"{run}/checkpoint-{step}" for step in (2, 4, 5)}
    assert {row["player"] for row in json.loads(ran.stdout)["rows"]} == {*names, "random"}
    told = json.loads((out / "config.json").read_text())["tournament"]
    for name in names:
        settings = told["players"][name]
        assert (settings["max_tokens_per_turn"], settings["spec"]["action_format"]) == (4, "plain")
        assert settings["sampling"] == {"temperature": 1.0}
    assert (out / "tournament.png").stat().st_size > 5000
    one = gym_trl_("tournament", KUHN, f"{run}/checkpoint-5", "random", "--games", "4", "--out", str(out))
    assert one.exit_code == 0, one.output
    assert len((out / GAMES).read_text().splitlines()) == 6 * 4  # nothing was played again
