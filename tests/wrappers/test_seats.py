"""Games of several seats: each is paid for its own actions, opponents play the others, and faults are named."""

from typing import Any

import gymnasium as gym
import pytest
from hypothesis import given, strategies as st
from support.games import SEATS
from support.lanes import examples
from support.seat_games import Secrets

from gym_trl.envs.kuhn_poker import KuhnPoker
from gym_trl.errors import ConfigError, SeatError, caused_by_model
from gym_trl.executors.inline import EnvHost
from gym_trl.spaces import AnyText
from gym_trl.testing import play
from gym_trl.types import EnvFailure, Policy, StopReason, Task
from gym_trl.wrappers import Opponent, Seats


class Scripted(gym.Env[str, str]):
    """Game of three seats whose steps are given: what ``info`` says, the reward, and how the step ends."""

    observation_space = action_space = AnyText()
    num_seats = 3
    zero_sum = False

    def __init__(self, *steps: Any, truncates: bool = False) -> None:
        self._steps, self._truncates = steps, truncates

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = iter(self._steps)
        return "begin", {"to_move": 0}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        info, reward, over = next(self._left)
        if isinstance(info, Exception):
            raise info
        return "go on", reward, over and not self._truncates, over and self._truncates, info


class Zero(Scripted):
    zero_sum = True


def pays(*payoffs: float, **info: Any) -> Any:
    """Return a step with payoffs, which ends the game unless somebody is to move."""
    return {"payoffs": payoffs, **info}, 0.0, "to_move" not in info


def played(env: gym.Env[str, str]) -> list[Any]:
    """Return the steps of a game."""
    env.reset(seed=0)
    steps: list[Any] = []
    while not steps or not (steps[-1][2] or steps[-1][3]):
        steps.append(env.step("x"))
    return steps


def script(*actions: str) -> Any:
    """Make opponents that play these."""

    def made(seed: int) -> Policy:
        rest = iter(actions)
        return lambda _: next(rest)

    return made


@pytest.mark.parametrize("env_id", SEATS)
def test_each_seat_of_a_game_is_paid_what_the_game_says(env_id: str) -> None:
    env = Seats(gym.make(env_id))
    for seed in range(20):
        _, info = env.reset(seed=seed)
        seats, over = [info["to_move"]], False
        while not over:
            legal = env.get_wrapper_attr("legal")()
            observation, reward, over, _, info = env.step(legal[seed % len(legal)])
            assert info["player"] == seats[-1]
            assert reward == info["payoffs"][info["player"]]
            if not over:
                seats.append(info["to_move"])
                assert observation.startswith(f"You are {env.get_wrapper_attr('sides')[seats[-1]]}.")
                assert "success" not in info
        assert sum(info["payoffs"]) == 0
        assert info["successes"] == tuple(value > 0 for value in info["payoffs"])
        assert seats == [turn % 2 for turn in range(len(seats))]


@given(
    game=st.builds(Secrets, seats=st.integers(2, 4), turns=st.integers(1, 12), cut=st.booleans()),
    seed=st.integers(0, 2**31),
    agent=st.integers(0, 3),
)
@examples(60)
def test_opponent_and_seats_pay_alike_and_agree_on_success(game: Secrets, seed: int, agent: int) -> None:
    """Laws 13 and 21: the agent's payoffs add up to its return, whoever plays the others."""
    agent %= game.num_seats
    env, over, totals = Seats(game), False, [0.0] * game.num_seats
    _, info = env.reset(seed=seed)
    while not over:
        _, reward, terminated, truncated, info = env.step("go")
        assert reward == info["payoffs"][info["player"]]
        totals, over = [sum(pair) for pair in zip(totals, info["payoffs"], strict=True)], terminated or truncated
    assert info["successes"] == tuple(not game.cut and total > 0 for total in totals)

    steps = play(Opponent(game, lambda seed: lambda seen: "go", seat=agent), lambda seen: "go", seed=seed)
    assert sum(step[2] for step in steps[1:]) == pytest.approx(totals[agent])
    assert steps[-1][5]["success"] is info["successes"][agent]
    assert steps[-1][1] == f"<end-of-{agent}>"
    shown = [secret for seat, secret in game.shown if seat == agent]
    assert [step[0] if step is steps[0] else step[1] for step in steps[:-1]] == shown or not shown


@pytest.mark.parametrize(
    ("steps", "successes"),
    [
        ([pays(0, 0, 0, to_move=1), pays(2, -1, 0, to_move=2), pays(-1, 0, 1)], (True, False, True)),
        ([pays(1, 0, 0, successes=[0, 1, 1])], (False, True, True)),
    ],
)
def test_success_is_declared_or_a_sum_of_payoffs_above_zero(steps: Any, successes: tuple[bool, ...]) -> None:
    info = played(Seats(Scripted(*steps)))[-1][4]
    assert info["successes"] == successes
    assert info["success"] is successes[info["player"]]
    for seat in range(3):
        last = played(Opponent(Scripted(*steps), script(*"xx"), seat=seat))[-1]
        assert last[4]["success"] is successes[seat]
        assert last[0] == ("go on" if last[4]["player"] == seat else "")  # which nobody else is shown


def test_others_play_between_the_agents_actions_and_see_what_is_their_own() -> None:
    env = Opponent(KuhnPoker(), script("raise", "bet"))
    env.reset(seed=0)
    info = env.step("raise")[4]
    assert (info["action_valid"], info["opponent_actions"], "to_move" in info) == (False, [], False)
    info = env.step("pass")[4]
    assert (info["action_valid"], info["opponent_actions"]) == (True, ["raise", "bet"])
    second = Opponent(KuhnPoker(), script("bet"), seat=1)
    observation, info = second.reset(seed=1)
    assert observation.endswith("Played: bet.")
    assert info["opponent_actions"] == ["bet"]
    assert second.step("bet")[1:3] == (2.0, True)


def test_a_game_that_an_opponent_ends_pays_and_tells_the_agent_also_before_its_first_action() -> None:
    env = Opponent(KuhnPoker(mistakes=1), script("raise"))
    env.reset(seed=0)
    observation, reward, terminated, _, info = env.step("bet")
    assert (observation, reward, terminated) == ("player 2 played 1 illegal action. You won.", 2.0, True)
    assert (info["success"], info["action_valid"]) == (True, True)
    env = Opponent(KuhnPoker(mistakes=1), script("raise"), seat=1)
    assert env.reset(seed=0)[0].endswith("You won.")
    assert env.step("bet")[1:4] == (2.0, True, False)


@pytest.mark.parametrize("policy", ["random", "solver"])
def test_the_same_seed_is_the_same_opponent_and_the_same_seat(policy: str) -> None:
    """Law 7."""

    def games(seed: int) -> list[Any]:
        env = Opponent(KuhnPoker(), policy, seat=None)
        return [*play(env, lambda _: "pass", seed=seed), *(env.reset()[0] for _ in range(9))]

    assert [games(seed) for seed in range(20)] == [games(seed) for seed in range(20)]
    assert len({one[0][0].split(".")[0] for one in map(games, range(20))}) == 2  # seats
    assert len(set(games(3)[-9:])) > 1  # resets without a seed go on


def failure_of(env: gym.Env[str, str], action: str) -> EnvFailure:
    host = EnvHost(lambda _: env)
    host.execute("game", Task("game", 0))
    failure = host.execute("game", action)
    assert isinstance(failure, EnvFailure)
    return failure


def raises(error: Exception) -> Any:
    def policy(observation: str) -> str:
        raise error

    return lambda seed: policy


@pytest.mark.parametrize(
    "env",
    [
        Opponent(Scripted(({"to_move": 1}, 0.0, False)), raises(KeyError("no idea"))),
        Opponent(Scripted(({"to_move": 1}, 0.0, False)), raises(FileNotFoundError("no idea"))),
        Opponent(Scripted(({"to_move": 1}, 0.0, False), (ValueError("no such move"), 0.0, False)), script("e9")),
        Opponent(
            Scripted(({"to_move": 1}, 0.0, False), *[({"action_valid": False}, 0.0, False)] * 2000), script(*"x" * 2000)
        ),
    ],
    ids=["policy", "file", "illegal move", "never a legal move"],
)
def test_what_fails_while_an_opponent_acts_is_not_scored(env: gym.Env[str, str]) -> None:
    """Law 14: the agent's action has no part in it."""
    assert failure_of(env, "a").reason is StopReason.ENV_ERROR


def test_what_fails_while_the_agent_acts_is_scored() -> None:
    env = Opponent(Scripted((ValueError("no such move"), 0.0, False)), script("x"))
    failure = failure_of(env, "e9")
    assert failure.reason is StopReason.CRASHED


@pytest.mark.parametrize("arguments", [{"seat": 3}, {"seat": -1}, {"policy": "nobody"}, {"policy": "solver"}])
def test_a_seat_or_a_policy_that_does_not_exist_is_refused(arguments: dict[str, Any]) -> None:
    """Law 22."""
    with pytest.raises(ConfigError):
        Opponent(Scripted(), **arguments)
    unlisted = Opponent(Scripted(({"to_move": 1}, 0.0, False)), "random")
    unlisted.reset()
    with pytest.raises(ConfigError):
        unlisted.step("x")


@pytest.mark.parametrize(
    "game",
    [
        Scripted(({"to_move": 3}, 0.0, False)),
        Scripted(({}, 0.0, False)),
        Scripted(({"to_move": 1}, 0.0, False), ({}, 1.0, True)),
        Scripted(({"to_move": 1}, 0.5, False)),
        Scripted(pays(1, 2)),
        Scripted(pays(1, 2, float("nan"))),
        Scripted(({"payoffs": "all"}, 0.0, True)),
        Scripted(pays(0, 0, 1, successes=(True,))),
        Zero(pays(1, 0, 0)),
    ],
)
def test_an_environment_that_breaks_the_protocol_is_at_fault(game: Scripted) -> None:
    """Laws 14 and 23."""
    with pytest.raises(SeatError) as raised:
        played(Seats(game))
    assert not caused_by_model(raised.value)


def test_what_looks_like_a_fault_and_is_none() -> None:
    refused = Scripted(({"to_move": 2}, 0.0, False), ({"action_valid": False}, 0.0, False), pays(0, 0, 0))
    assert [step[4].get("to_move") for step in played(Seats(refused))] == [2, 2, None]
    unasked = played(Seats(Scripted(pays(0, 0, 1), truncates=True)))[-1]
    assert (unasked[1:4], unasked[4]["payoffs"], unasked[4]["success"]) == ((0.0, False, True), (0.0, 0.0, 1.0), False)
    assert played(Seats(Zero(pays(0.1, 0.2, -0.3))))[-1][2]
