from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from hypothesis import given, strategies as st
from support import slow_policy
from support.lanes import examples
from support.seat_games import CHAT, Secrets, play_game
from support.viewer_runs import play_games, write_games
from typer.testing import CliRunner

from gym_trl.cli.app import app
from gym_trl.envs.guess_number import GuessNumber
from gym_trl.envspec import EnvSpec
from gym_trl.errors import ConfigError
from gym_trl.evaluation.evaluation import evaluate
from gym_trl.evaluation.replay import replay
from gym_trl.policies.protocol import TextPolicy
from gym_trl.records.files import read_records
from gym_trl.records.schema import Record, as_record
from gym_trl.registration import GAMES
from gym_trl.rollout import Limits
from gym_trl.testing import play
from gym_trl.types import Answer, EpisodeResult, Message, StopReason, Task, Turn
from gym_trl.wrappers import RecordTranscript, Seats, as_text

GUESS = "TrlEnv/GuessNumber-v0"
WIDE = Limits(tokens_per_turn=32)
ELSEWHERE = {"TrlEnv/CodeAgent-v0"}  # it needs a sandbox


def played(env: str = GUESS, policy: Any = "random", episodes: int = 4, **options: Any) -> list[Record]:
    kept: list[Record] = []
    evaluate(env, policy, episodes=episodes, on_episode=lambda record, board: kept.append(record), **options)
    return kept


@pytest.mark.parametrize("env", sorted({*GAMES} - ELSEWHERE))
def test_every_game_answers_as_it_was_recorded(env: str) -> None:
    records = played(env, episodes=3)
    assert [found.differences for found in replay(records)] == [()] * 3
    assert [found.record for found in replay(records)] == records


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("observation", "Higher!", "turn 1: the observation was"),
        ("reward", 0.25, "turn 1: the reward was 0.0, and 0.25 when it was recorded"),
        ("action_valid", False, "turn 1: action_valid was True, and False when it was recorded"),
    ],
)
def test_a_difference_is_said_with_its_turn(field: str, value: object, said: str) -> None:
    [record] = played(episodes=1)
    record["turns"][1][field] = value  # type: ignore[literal-required]
    [found] = replay([record])
    assert len(found.differences) == 1
    assert found.differences[0].startswith(said)


@given(answer=st.text(st.characters(exclude_categories=())) | st.integers(0, 60).map(str), turn=st.integers(0, 5))
@examples(25)
def test_another_answer_is_noticed_where_the_game_goes_otherwise(answer: str, turn: int) -> None:
    [record] = played(policy="constant", episodes=1)
    said = [one["answer"] for one in record["turns"]]
    said[turn] = record["turns"][turn]["answer"] = answer
    rest = iter(said)
    steps = play(GuessNumber(), lambda _: next(rest), seed=record["task"]["seed"])
    seen = [turn["observation"] for turn in record["turns"][1:]] + [record["last_observation"]]
    [found] = replay([record])
    assert bool(found.differences) == ([step[1] for step in steps[1:]] != seen)


def test_an_end_that_comes_earlier_or_not_at_all_is_said() -> None:
    [record] = played(policy="solver", episodes=1)
    longer: Any = {**record, "turns": [*record["turns"], record["turns"][-1]]}
    shorter: Any = {**record, "turns": record["turns"][:-1], "last_observation": "Correct."}
    last = len(record["turns"])
    [early] = replay([longer])
    assert early.differences[0] == f"turn {last}: the episode was over, and went on when it was recorded"
    [open_] = replay([shorter])
    assert open_.differences[-1] == "the end: terminated was False, and True when it was recorded"


def test_what_an_environment_raises_now_is_a_difference() -> None:
    [record] = played(episodes=1)
    record["task"]["options"] = {"instance": 10**9}
    [found] = replay([record])
    assert found.differences[0].startswith("turn 0: it raised ConfigError")


def test_another_reward_of_the_environment_is_paid() -> None:
    records = played(policy="solver", episodes=10)
    again = list(replay(records, env_kwargs={"reward": "efficient"}))
    assert not any(found.differences for found in again)
    assert {found.record["return"] for found in again} == {1.0}
    garbage = list(replay(played(policy="constant", episodes=4), env_kwargs={"reward": "shaped"}))
    assert any(turn["reward"] for found in garbage for turn in found.record["turns"])


def test_a_function_says_what_an_episode_is_worth() -> None:
    records = played(policy="random", episodes=10)
    again = [found.record for found in replay(records, reward=lambda record: -float(record["num_turns"]))]
    assert [record["return"] for record in again] == [-record["num_turns"] for record in records]
    assert all(record["turns"][-1]["reward"] == record["return"] for record in again)
    with pytest.raises(ConfigError, match="reward must return a finite number, got nan"):
        list(replay(records, reward=lambda record: float("nan")))


def test_what_a_language_model_said_is_parsed_again(tmp_path: Path) -> None:
    def make(env: Any, seed: int) -> Any:
        policy = slow_policy.solver(env)
        return lambda observation: f"<action>{policy(observation)}</action>" if seed % 3 else "25"

    records = played(policy=TextPolicy("marks", make, marks=True), episodes=9, end_after_invalid=2)
    assert {record["stop_reason"] for record in records} == {"success", "parse_error"}
    assert [found.differences for found in replay(records)] == [()] * 9


def test_what_a_wrapper_recorded_is_played_again(tmp_path: Path) -> None:
    env = RecordTranscript(gym.make(GUESS, turns=3), str(tmp_path / "played.jsonl"))
    for seed in range(3):
        play(env, lambda _: "25", seed=seed)
    records = list(read_records(tmp_path / "played.jsonl"))
    assert [found.differences for found in replay(records)] == [()] * 3
    for record in records:
        record["task"]["env_kwargs"] = {}  # as the wrapper wrote it once
    assert any(found.differences for found in replay(records))
    again = replay(records, make=lambda record: gym.make(GUESS, turns=3))
    assert [found.differences for found in again] == [()] * 3


def test_a_record_that_names_no_environment_needs_one(tmp_path: Path) -> None:
    env = RecordTranscript(GuessNumber(), str(tmp_path / "played.jsonl"))
    play(env, lambda _: "25", seed=0)
    with pytest.raises(ConfigError, match="does not say which environment"):
        list(replay(read_records(tmp_path / "played.jsonl")))


def test_an_observation_that_was_cut_is_compared_as_it_was_shown() -> None:
    records = played(max_observation=8)
    assert "characters left out" in records[0]["turns"][0]["observation"]
    assert [found.differences for found in replay(records)] == [()] * 4


def test_an_action_that_was_refused_for_its_length_is_not_played_again() -> None:
    refused = "An action has at most 5 characters."
    record = as_record(
        EpisodeResult(
            *(Task(GUESS, 0), StopReason.TOKEN_LIMIT),
            turns=(Turn("Guess 1 to 50 in 6 tries.", Answer("", "  25  "), 0.0, False, 0, 0),),
            messages=(
                Message("user", "Guess"),
                Message("assistant", ""),
                Message("user", refused),
            ),
        ),
        spec={"action_format": None, "max_action": 5},
    )
    [found] = replay([record])
    assert found.differences == ()


# ---------------------------------------------------------------------------------------------------------------------
# Games of several seats
# ---------------------------------------------------------------------------------------------------------------------

SEATED = {
    "TrlEnv/KuhnPoker-v0": ("bet", "pass"),
    "TrlEnv/TicTacToe-v0": tuple("123456789"),
    "TrlEnv/Nim-v0": ("1 1", "1 2", "2 1", "nonsense"),
}


def records_of(*games: Sequence[EpisodeResult]) -> list[Record]:
    return [as_record(seat, group=0, game=number) for number, game in enumerate(games) for seat in game]


@pytest.mark.parametrize("env", SEATED)
def test_a_game_answers_all_of_its_seats_as_it_was_recorded(env: str) -> None:
    games = play_games(env, env, lambda rng: rng.choice(SEATED[env]), seeds=range(8))
    records = records_of(*games)
    assert {record["seat"] for record in records} == {0, 1}
    assert [found.differences for found in replay(records)] == [()] * 16
    assert [found.record for found in replay(records)] == records


@given(
    seats=st.integers(2, 4),
    turns=st.integers(1, 12),
    cut=st.booleans(),
    most=st.none() | st.integers(60, 400),
    seed=st.integers(0, 2**31),
)
@examples(60)
def test_a_game_of_any_order_and_any_end_is_paid_again_as_it_was(
    seats: int, turns: int, cut: bool, most: int | None, seed: int
) -> None:
    limits = Limits(tokens_per_turn=8, tokens=most)  # which may end the game of one seat, and so of all
    game, _ = play_game(Seats(Secrets(seats=seats, turns=turns, cut=cut)), seed, limits=limits)
    records = records_of(game)
    found = list(replay(records, make=lambda record: as_text(Seats(Secrets(seats=seats, turns=turns, cut=cut)))))
    assert [one.differences for one in found] == [()] * seats
    assert [one.record for one in found] == records


def test_a_game_that_one_seat_has_ended_is_replayed_for_the_others_too() -> None:
    spec = EnvSpec("TrlEnv/TicTacToe-v0", seats="self", action_format="tag", end_after_invalid=2)
    said = iter(["<action>5</action>", "hm", "hm"])
    game, _ = play_game(spec.make("TrlEnv/TicTacToe-v0"), answer=lambda request: CHAT.say(next(said)), limits=WIDE)
    assert [one.stop_reason.value for one in game] == ["forfeit", "parse_error"]
    options = {"action_format": "tag", "end_after_invalid": 2}
    records = [as_record(replace(one, task=Task("TrlEnv/TicTacToe-v0", 0)), spec=options) for one in game]
    assert [found.differences for found in replay(records)] == [()] * 2
    records[0]["turns"][0]["reward"] = 9.0
    [first, second] = replay(records)
    assert first.differences == ("turn 0: the reward was 0.0, and 9.0 when it was recorded",)
    assert second.differences == ()


def test_a_seat_cannot_be_replayed_alone(tmp_path: Path) -> None:
    env = "TrlEnv/KuhnPoker-v0"
    games = play_games(env, env, lambda rng: "bet", seeds=[0])
    first, second = records_of(*games)
    for alone in (first, second):
        with pytest.raises(ConfigError, match=f"only those of seat {alone['seat']} are there: a seat cannot"):
            list(replay([alone]))
    folder = write_games(tmp_path / "run", games)
    assert CliRunner().invoke(app, ["replay", str(folder)]).output == "Replayed 2 episodes; 0 with differences.\n"
    lines = (folder / "rollouts.jsonl").read_text().splitlines()
    (folder / "rollouts.jsonl").write_text(lines[1] + "\n")
    failed = CliRunner().invoke(app, ["replay", str(folder)])
    assert failed.exit_code == 2
    assert "a seat cannot be replayed alone" in " ".join(failed.output.split())


def test_episodes_of_one_seat_and_games_of_all_seats_may_share_a_file() -> None:
    env = "TrlEnv/KuhnPoker-v0"
    kept: list[Record] = []
    _ = evaluate(env, "constant", episodes=2, on_episode=lambda record, board: kept.append(record))
    records = records_of(*play_games(env, env, lambda rng: "bet", seeds=range(2)))
    for mixed in ([*kept, *records], [*records, *kept]):
        assert [found.differences for found in replay(mixed)] == [()] * 6


def in_league(game: Sequence[EpisodeResult]) -> list[Record]:
    """Return the record of each seat of a game as if an opponent had played all others."""
    seats = [one.against("step-25", [*game[:place], *game[place + 1 :]]) for place, one in enumerate(game)]
    return records_of(seats)


@pytest.mark.parametrize("env", SEATED)
def test_a_game_of_a_league_is_replayed_with_the_turns_of_the_opponent(env: str) -> None:
    games = play_games(env, env, lambda rng: rng.choice(SEATED[env]), seeds=range(8))
    records = [record for game in games for record in in_league(game)]
    assert any(record["opponent_turns"] for record in records)
    for mixed in (records, [*records_of(games[0]), *records, *records_of(games[1])]):
        assert [found.differences for found in replay(mixed)] == [()] * len(mixed)
        assert [found.record for found in replay(mixed)] == mixed


@given(seats=st.integers(2, 4), turns=st.integers(1, 12), seed=st.integers(0, 99), tokens=st.integers(30, 300))
@examples(50)
def test_a_game_of_a_league_ends_as_it_was_ended(seats: int, turns: int, seed: int, tokens: int) -> None:
    """Also where a seat's limit on tokens has ended it, that of the model or of the opponent."""

    def make() -> Seats:
        return Seats(Secrets(seats=seats, turns=turns))

    game, _ = play_game(make(), seed, limits=Limits(tokens_per_turn=8, tokens=tokens))
    found = list(replay(in_league(game), make=lambda record: as_text(make())))
    assert [one.differences for one in found] == [()] * seats


@pytest.mark.parametrize("change", ["its seat", "its place", "its answer", "a turn that is lost"])
def test_a_changed_turn_of_an_opponent_is_noticed(change: str) -> None:
    env = "TrlEnv/TicTacToe-v0"
    rng = iter("9513724")
    [game] = play_games(env, env, lambda _: next(rng), seeds=[0])
    for record in in_league(game):
        for index in range(len(record["opponent_turns"] or [])):
            changed = deepcopy(record)
            turns = changed["opponent_turns"] or []
            if change == "its seat":
                turns[index]["seat"] = 1 - turns[index]["seat"]
            elif change == "its place":
                turns[index]["place"] += 100
            elif change == "its answer":
                turns[index]["answer"] = "nowhere"
            else:
                del turns[index]
            [found] = replay([changed])
            assert found.differences


def test_games_whose_opponents_turns_are_not_recorded_are_left_out() -> None:
    env = "TrlEnv/KuhnPoker-v0"
    [game, other] = play_games(env, env, lambda rng: "bet", seeds=range(2))
    league: list[Any] = [{**record, "opponent_turns": None} for record in in_league(other)]
    assert len(list(replay([*records_of(game), *league]))) == 2


def test_a_seat_without_a_turn_has_nothing_to_replay() -> None:
    game, _ = play_game(Seats(Secrets(seats=4, turns=1)))
    records = records_of(game)
    assert sorted(record["stop_reason"] for record in records).count("unplayed") == 3
    found = list(replay(records, make=lambda record: as_text(Seats(Secrets(seats=4, turns=1)))))
    assert [one.differences for one in found] == [()] * 4


def test_a_game_that_failed_is_replayed_as_far_as_it_was_recorded() -> None:
    def make() -> Seats:
        return Seats(Secrets(seats=2, turns=12))

    game, _ = play_game(make(), 4)
    assert [one.order for one in game] == [(3, 4, 8, 9, 11), (0, 1, 2, 5, 6, 7, 10)]
    records = records_of(game)
    for record in records:  # the last step of each seat is lost with the game
        record["turns"], record["order"] = record["turns"][:-1], (record["order"] or [])[:-1]
        record["return"], record["last_observation"], record["stop_reason"] = None, None, "env_error"
    assert [one.differences for one in replay(records, make=lambda record: as_text(make()))] == [(), ()]
    records[0]["turns"][0]["observation"] = "another"
    [first, _] = replay(records, make=lambda record: as_text(make()))
    assert first.differences[0].startswith("turn 0: the observation was")
