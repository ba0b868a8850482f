"""Rules of every registered game of two: opponents, seats, mistakes and self-play."""

import pickle
from collections.abc import Callable
from importlib import import_module
from typing import Any

import gymnasium as gym
import pytest

from gym_trl.envs.tic_tac_toe import TicTacToe
from gym_trl.envs.two_player import TwoPlayerEnv
from gym_trl.errors import ActionTypeError
from gym_trl.registration import ENVS
from gym_trl.testing import check_text_env, play


def game_class(entry_point: str) -> Any:
    module, _, name = entry_point.partition(":")
    return getattr(import_module(module), name)


IDS = sorted(env_id for env_id, point in ENVS.items() if issubclass(game_class(point), TwoPlayerEnv))
every_game = pytest.mark.parametrize("env_id", IDS)


def make(env_id: str, **arguments: Any) -> TwoPlayerEnv:
    env = gym.make(env_id, **{"difficulty": "easy", **arguments}).unwrapped
    assert isinstance(env, TwoPlayerEnv)
    return env


class Counting:
    """A policy with a state, which plays the first action that it has not played in this episode."""

    def __init__(self, actions: tuple[str, ...] = ("1", "2", "3", "4", "5", "6", "7", "8", "9")) -> None:
        self.left = list(actions)

    def __call__(self, observation: str) -> str:
        return self.left.pop(0)


@pytest.mark.full
@every_game
@pytest.mark.parametrize("seat", ["first", "second"])
@pytest.mark.parametrize("opponent", ["self", "epsilon", "other", "factory"])
def test_every_opponent_keeps_every_promise(env_id: str, seat: str, opponent: str) -> None:
    env = make(env_id)
    skilled = next(name for name in env.opponents if name not in ("random", "epsilon", "self"))
    chosen: dict[str, Any] = {"self": "self", "epsilon": "epsilon", "other": skilled, "factory": Always}
    check_text_env(lambda: make(env_id, opponent=chosen[opponent], seat=seat), episodes=10)


class Always:
    def __call__(self, observation: str) -> str:
        return "1"


@every_game
def test_the_payoff_is_that_of_the_seat_and_a_success_is_one_of_what_is_paid(env_id: str) -> None:
    for seat in ("first", "second"):
        payoffs: set[float] = set()
        for seed in range(30):
            env = make(env_id, seat=seat)
            steps = play(env, env.random_policy(seed), seed=seed)
            assert all(step[2] == 0 for step in steps[1:-1])
            *_, payoff, _, _, info = steps[-1]
            assert info["success"] is (payoff > 0)
            again = play(make(env_id, seat=seat, reward="success"), _script(steps), seed=seed)
            assert [step[2] for step in again[1:]] == [0.0] * (len(steps) - 2) + [float(payoff > 0)]
            payoffs.add(payoff)
        assert len(payoffs) > 1


@every_game
def test_mistakes_change_nothing_and_the_last_one_loses(env_id: str) -> None:
    for seat in ("first", "second"):
        env = make(env_id, mistakes=3, seat=seat)
        start, info = env.reset(seed=0)
        for _ in range(2):
            observation, *rest = env.step("nonsense")
            assert observation.endswith(f".\n{start}")
            assert rest == [0.0, False, False, {"action_valid": False, "success": False, **info}]
        observation, payoff, terminated, truncated, info = env.step(env.garbage)
        assert (payoff, terminated, truncated) == (-env.stake, True, False)
        assert not info["action_valid"]
        assert not info["success"]
        assert observation.endswith("That was 3 illegal actions. You lost.")


@every_game
def test_mistakes_do_not_need_to_be_in_a_row(env_id: str) -> None:
    """No free thinking: an endless exchange of nonsense and actions does not exist."""
    env = make(env_id, mistakes=2)
    for seed in range(20):
        policy = env.random_policy(seed)
        observation, _ = env.reset(seed=seed)
        env.step("")
        if not env.step(policy(observation))[2]:
            assert env.step("")[1:3] == (-env.stake, True)
            return
    raise AssertionError("no game was long enough")


@every_game
@pytest.mark.parametrize("opponent", ["random", "epsilon"])
def test_a_random_seat_is_each_half_of_the_time_and_shown(env_id: str, opponent: str) -> None:
    env = make(env_id, seat="random", opponent=opponent)
    shown = [env.reset(seed=seed)[0].split(".")[0] for seed in range(200)]
    assert set(shown) == {f"You are {side}" for side in env.sides}
    assert 70 < shown.count(shown[0]) < 130


@every_game
def test_in_self_play_the_turns_alternate_and_both_payoffs_are_told(env_id: str) -> None:
    seen: set[float] = set()
    for seed in range(30):
        env = make(env_id, opponent="self", seat="second")
        steps = play(env, env.random_policy(seed), seed=seed)[1:]
        players = [step[-1]["player"] for step in steps]
        assert players == [turn % 2 for turn in range(len(steps))]
        for player, step in zip(players[1:], steps, strict=False):
            assert step[1].startswith(f"You are {env.sides[player]}.\n")
            assert "payoffs" not in step[-1]
        one, other = steps[-1][-1]["payoffs"]
        assert one == -other
        assert steps[-1][2] == other
        seen.add(other)
    assert len(seen) > 1


@every_game
def test_mistakes_of_one_side_win_nothing_in_self_play(env_id: str) -> None:
    for seat in ("first", "second"):
        env = make(env_id, opponent="self", seat=seat, mistakes=1)
        env.reset(seed=0)
        env.step(str(env.constant_action))
        _, payoff, terminated, _, info = env.step("nonsense")
        assert (payoff, terminated, info["success"]) == (-env.stake, True, False)
        assert info["payoffs"] == (env.stake, -env.stake)


@every_game
def test_a_game_against_a_policy_has_no_known_optimum(env_id: str) -> None:
    env = make(env_id, opponent=Always())
    assert env.optimal_success is None
    assert env.optimal_return is None


@every_game
def test_an_opponent_sees_the_game_from_its_own_seat(env_id: str) -> None:
    """An opponent is shown what the agent would be shown in its place."""
    heard: list[str] = []

    def spy(observation: str) -> str:
        heard.append(observation)
        return expert(observation)

    alone = make(env_id, opponent="self", seat="first")
    expert = alone.solver()
    for seed in range(10):
        heard.clear()
        env = make(env_id, opponent=spy, seat="first")
        steps = play(env, env.random_policy(seed), seed=seed)
        assert all(observation.startswith(f"You are {env.sides[1]}.\n") for observation in heard)
        assert not any(step[1].startswith(f"You are {env.sides[1]}.") for step in steps[1:])


@every_game
def test_a_policy_that_answers_nonsense_plays_at_random_and_the_game_goes_on(env_id: str) -> None:
    """Nobody wins because the opponent cannot speak."""
    for said in ("", "x" * 10**6, "\ud800", "xyzzy"):
        env = make(env_id, opponent=lambda observation, said=said: said, seat="second")
        random_one = make(env_id, opponent="random", seat="second")
        for seed in range(5):
            played = play(env, env.random_policy(seed), seed=seed)
            assert played == play(random_one, random_one.random_policy(seed), seed=seed)


@every_game
def test_an_opponent_that_answers_with_no_text_is_named(env_id: str) -> None:
    env = make(env_id, opponent=lambda observation: 5, seat="second")
    with pytest.raises(ActionTypeError, match="an opponent answers with text, got int: 5"):
        env.reset(seed=0)


def test_a_factory_makes_an_opponent_for_each_episode() -> None:
    for opponent, fresh in ((Counting, True), (Counting(), False)):
        env = TicTacToe(opponent=opponent, seat="second")
        assert env.reset(seed=0)[0].splitlines()[1] == "X 2 3"
        assert env.step("9")[0].splitlines()[1] == "X X 3"
        assert (env.reset(seed=0)[0].splitlines()[1] == "X 2 3") is fresh


def test_an_environment_with_a_policy_that_pickles_does_so_in_mid_episode() -> None:
    env = TicTacToe(opponent=Counting, seat="second")
    env.reset(seed=0)
    env.step("9")
    again = pickle.loads(pickle.dumps(env))
    assert again.step("8") == env.step("8")
    assert again.step("")[0].startswith("X X X")


def _script(steps: list[tuple[Any, ...]]) -> Callable[[str], str]:
    actions = iter([step[0] for step in steps[1:]])
    return lambda observation: next(actions)
