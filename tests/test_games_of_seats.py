"""Games of several seats: each is an episode, sees what is its own and nothing else, and is paid what it earned."""

import random
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support.lanes import examples
from support.seat_games import CHAT, Secrets, play_game

from gym_trl.engines.scripted import ScriptedEngine
from gym_trl.envspec import EnvSpec
from gym_trl.errors import ConfigError
from gym_trl.executors import InlinePool
from gym_trl.rollout import Episode, Limits, rollout, run
from gym_trl.types import Completion, FinishReason, Request, StopReason, Task
from gym_trl.wrappers import Seats

games = st.builds(Secrets, seats=st.integers(2, 4), turns=st.integers(1, 12), cut=st.booleans())
seeds = st.integers(0, 2**31)


@given(games, seeds)
@examples(60)
def test_a_seat_sees_its_own_observations_and_is_paid_all_that_its_payoffs_say(game: Secrets, seed: int) -> None:
    def answer(request: Request) -> list[int]:
        return CHAT.say(str(random.Random(request.seed).randrange(100)))

    result, engine = play_game(Seats(game), seed, answer=answer)
    moves = [seat for seat, _ in game.shown]
    for seat, episode in enumerate(result):
        assert (episode.seat, len(episode.turns)) == (seat, moves.count(seat))
        ids, written = CHAT.show(episode.row.ids), "\n".join(message.content for message in episode.messages)
        for owner, secret in game.shown:
            assert (secret in ids) == (secret in written) == (owner == seat)
        assert all(f"<end-of-{other}>" not in written for other in range(game.num_seats) if other != seat)
        asked = [request for request in engine.requests if request.episode_id == f"0.{seat}"]
        assert len(asked) == len(episode.turns)
        if not asked:
            assert (episode.stop_reason, episode.scored, ids) == (StopReason.UNPLAYED, False, "")
            continue
        assert episode.messages[-1].content == f"<end-of-{seat}>"
        assert episode.row.ids == [*asked[-1].prompt_ids, *answer(asked[-1])]
        assert all(episode.row.ids[: len(request.prompt_ids)] == request.prompt_ids for request in asked)
        assert sum(episode.row.mask) == sum(len(answer(request)) for request in asked)
        total = game.totals[seat]
        assert episode.episode_return == pytest.approx(min(total, 0.0) if game.cut and seat != moves[-1] else total)
        assert episode.stop_reason is (StopReason.TURN_LIMIT if game.cut else StopReason.ENDED)
        assert bool(episode.success) is (not game.cut and total > 0)


def test_a_failure_of_the_infrastructure_in_one_seat_fails_the_game_for_all() -> None:
    def answer(request: Request) -> Any:
        fails = request.episode_id.endswith("1")
        return Completion(request.id, [], [], FinishReason.ERROR, "no memory") if fails else CHAT.say("go")

    class Silent(Secrets):
        def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
            return *super().step(action)[:4], {}

    unanswered, _ = play_game(Seats(Secrets(turns=12)), 5, answer=answer)
    assert {(one.stop_reason, one.error) for one in unanswered} == {(StopReason.CANCELLED, "no memory")}
    broken, _ = play_game(Seats(Silent(turns=12)), 5)
    assert {one.stop_reason for one in broken} == {StopReason.ENV_ERROR}
    assert all(one.error and one.episode_return is None for one in [*unanswered, *broken])


class Long(Secrets):
    """Two seats that take turns for long; a game cut off is lost, for 2."""

    loss_return = -2.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._next, self._left, self.shown = 0, self.turns, []
        return self._secret(), {"to_move": 0}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if action == self.faulty:
            raise ZeroDivisionError("the game cannot play this")
        self._next, self._left = 1 - self._next, self._left - 1
        paid = {"payoffs": (0.5, -0.5)} if len(self.shown) > 1 else {}
        over = self._left == 0
        return self._secret(), 0.0, over and not self.cut, over and self.cut, {**paid, "to_move": self._next}


def ends(result: list[Episode]) -> list[tuple[Any, float | None]]:
    return [(one.stop_reason, one.episode_return) for one in result]


def test_what_one_seat_does_wrong_costs_this_seat_and_the_other_keeps_what_it_was_paid() -> None:
    result, _ = play_game(Seats(Long(turns=100)), limits=Limits(tokens_per_turn=8, tokens=80))
    turns = sum(len(one.turns) for one in result)
    assert ends(result) == [(StopReason.TOKEN_LIMIT, -2.0), (StopReason.FORFEIT, -0.5 * (turns - 1))]

    def crash(request: Request) -> list[int]:
        return CHAT.say("crash" if request.episode_id == "0.1" else "go")

    result, _ = play_game(Seats(Long(turns=9, faulty="crash")), answer=crash)
    assert ends(result) == [(StopReason.FORFEIT, 0.0), (StopReason.CRASHED, -2.0)]

    def mumble(request: Request) -> list[int]:
        return CHAT.say("what?" if request.episode_id == "0.1" else "<action>go</action>")

    env = EnvSpec(lambda: Long(turns=50), seats="self", action_format="tag", end_after_invalid=2)
    result, _ = play_game(env.make(*env.weights), answer=mumble, limits=Limits(tokens_per_turn=30))
    assert ends(result) == [(StopReason.FORFEIT, 0.0), (StopReason.INVALID, -2.0)]
    assert [len(one.turns) for one in result] == [1, 2]


def test_a_limit_of_the_whole_game_is_a_loss_for_all_seats() -> None:
    env = EnvSpec(lambda: Long(turns=50), seats="self", action_format="plain", turn_limit=4)
    result, _ = play_game(env.make(*env.weights))
    assert {one.stop_reason for one in result} == {StopReason.TURN_LIMIT}
    assert all((one.episode_return or 0.0) <= -0.5 for one in result)


def test_a_game_without_an_end_has_one() -> None:
    result, _ = play_game(
        Seats(Long(turns=10**6)), limits=Limits(tokens_per_turn=8), history=lambda shown: shown.messages[-1:]
    )
    assert {one.stop_reason for one in result} == {StopReason.TURN_LIMIT}
    assert max(len(one.turns) for one in result) == 10_000


@given(st.integers(2, 5), st.integers(1, 4), seeds)
@examples(20)
def test_games_that_run_together_end_as_if_each_were_alone(count: int, alive: int, seed: int) -> None:
    def answer(request: Request) -> list[int]:
        return CHAT.say(str(random.Random(request.seed).randrange(1, 10)))

    def play(numbers: Any) -> list[Any]:
        env = EnvSpec("TrlEnv/TicTacToe-v0", seats="self", action_format="plain")
        tasks = [Task("TrlEnv/TicTacToe-v0", number) for number in numbers]
        limits, drawn = Limits(tokens_per_turn=8), [seed + number for number in numbers]
        with InlinePool(env.make) as pool:
            options: dict[str, Any] = {"limits": limits, "seats": 2, "seeds": drawn, "max_alive": alive}
            games = run(rollout(tasks, pool=pool, engine=ScriptedEngine(answer), chat=CHAT, **options))
        return [[(one.segments, one.turns, one.stop_reason, one.messages) for one in game] for game in games]

    assert play(range(count)) == [play([number])[0] for number in range(count)]


def test_a_seat_has_the_keys_of_the_states_before_its_turns() -> None:
    env = EnvSpec("TrlEnv/KuhnPoker-v0", seats="self", action_format="plain", state_keys=True, end_after_invalid=2)
    says = iter(["pass", "bet", "hm", "hm"])
    result, _ = play_game(env.make("TrlEnv/KuhnPoker-v0"), 1, answer=lambda request: CHAT.say(next(says)))
    assert [one.stop_reason for one in result] == [StopReason.INVALID, StopReason.FORFEIT]
    keys = [[turn.state.key for turn in one.turns] for one in result]
    assert [len(set(of_seat)) for of_seat in keys] == [3, 1]
    assert all(key for of_seat in keys for key in of_seat)


@pytest.mark.parametrize("option", [{"success": 1.0}, {"seats": "both"}])
def test_options_that_assume_one_agent_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(option))):
        EnvSpec("TrlEnv/TicTacToe-v0", **{"seats": "self", **option})
