"""Games of several seats: each is an episode, sees what is its own and nothing else, and is paid what it earned."""

import random
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support.lanes import examples
from support.seat_games import CHAT, LIMITS, Secrets, play_game
from support.wrapper_arguments import Rewrites

from gym_trl.engines.scripted import ScriptedEngine
from gym_trl.envspec import EnvSpec
from gym_trl.errors import ConfigError
from gym_trl.executors.inline import InlinePool
from gym_trl.options import Cutoff
from gym_trl.rollout.episode import Episode
from gym_trl.rollout.game import Game, run_games
from gym_trl.rollout.limits import Limits
from gym_trl.rollout.loop import GameResult
from gym_trl.rollout.text_player import SeatPolicy
from gym_trl.seeding import derive_seed
from gym_trl.types import ENDED, Completion, EpisodeResult, FinishReason, Request, StopReason, Task
from gym_trl.wrappers import Seats

games = st.builds(Secrets, seats=st.integers(2, 4), turns=st.integers(1, 12), cut=st.booleans())
seeds = st.integers(0, 2**31)


@given(games, seeds)
@examples(60)
def test_a_seats_ids_contain_its_own_observations_and_never_those_of_another(game: Secrets, seed: int) -> None:
    result, _ = play_game(Seats(game), seed)
    for seat, episode in enumerate(result):
        assert episode.seat == seat
        ids = CHAT.show([*episode.prompt_ids, *episode.completion_ids])
        written = "\n".join(message.content for message in episode.messages)
        for owner, secret in game.shown:
            assert (secret in ids) == (secret in written) == (owner == seat)
        assert all(f"<end-of-{other}>" not in written for other in range(game.num_seats) if other != seat)
        assert episode.order == tuple(place for place, (owner, _) in enumerate(game.shown) if owner == seat)
        if episode.turns:
            assert episode.messages[-1].content == f"<end-of-{seat}>"


@given(games, seeds)
@examples(60)
def test_each_seat_is_paid_all_that_its_payoffs_say(game: Secrets, seed: int) -> None:
    result, _ = play_game(Seats(game), seed)
    moves = [seat for seat, _ in game.shown]
    for seat, episode in enumerate(result):
        assert len(episode.turns) == moves.count(seat)
        if seat in moves:
            assert episode.episode_return == pytest.approx(game.totals[seat])
            expected = (
                StopReason.TURN_LIMIT if game.cut else (StopReason.FAILURE, StopReason.SUCCESS)[game.totals[seat] > 0]
            )
            assert episode.stop_reason is expected
        else:
            assert (episode.stop_reason, episode.scored, episode.trace.completion_ids) == (
                StopReason.UNPLAYED,
                False,
                [],
            )


@given(games, seeds)
@examples(40)
def test_the_ids_of_a_seat_are_what_the_engine_was_given_and_returned(game: Secrets, seed: int) -> None:
    def answer(request: Request) -> list[int]:
        return CHAT.say(str(random.Random(request.seed).randrange(100)))

    result, engine = play_game(Seats(game), seed, answer=answer)
    for seat, episode in enumerate(result):
        asked = [request for request in engine.requests if request.episode_id == f"0.{seat}"]
        assert len(asked) == len(episode.turns)
        if asked:
            whole = [*episode.prompt_ids, *episode.completion_ids]
            assert whole == [*asked[-1].prompt_ids, *answer(asked[-1])]
            assert all(whole[: len(request.prompt_ids)] == list(request.prompt_ids) for request in asked)
            assert sum(episode.mask) == sum(len(answer(request)) for request in asked)


def test_a_failure_of_the_engine_in_one_seat_fails_the_game_for_all() -> None:
    def answer(request: Request) -> Any:
        fails = request.episode_id.endswith("1")
        return Completion(request.id, [], [], FinishReason.ERROR, "no memory") if fails else CHAT.say("go")

    result, _ = play_game(Seats(Secrets(turns=12)), 5, answer=answer)
    assert {(one.stop_reason, one.error) for one in result} == {(StopReason.CANCELLED, "no memory")}
    assert all(one.episode_return is None for one in result)


def test_an_environment_that_breaks_the_protocol_fails_the_game_for_all_and_names_seat_and_turn() -> None:
    class Silent(Secrets):
        def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
            observation, reward, over, cut, _ = super().step(action)
            return observation, reward, over, cut, {}

    result, _ = play_game(Seats(Silent(turns=12)), 5)
    assert {one.stop_reason for one in result} == {StopReason.ENV_ERROR}
    assert all("in turn 1, of seat" in str(one.error) for one in result)


class Long(Secrets):
    """Two seats that take turns for long; a game cut off is lost, for 2."""

    settlement = -2.0

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


def ends(result: GameResult) -> list[tuple[str, float | None]]:
    return [(one.stop_reason.value, one.episode_return) for one in result]


def test_a_seat_that_runs_out_of_tokens_is_settled_and_the_other_keeps_what_it_was_paid() -> None:
    limits = Limits(tokens_per_turn=8, tokens=80)
    result, _ = play_game(Seats(Long(turns=100)), limits=limits)
    turns = sum(len(one.turns) for one in result)
    assert ends(result) == [("token_limit", 0.5 * (turns - 1) - 2), ("forfeit", -0.5 * (turns - 1))]


def test_a_seat_whose_game_another_one_ends_still_has_the_keys_of_its_states() -> None:
    env = EnvSpec("TrlEnv/TicTacToe-v0", seats="self", action_format="plain", state_key="auto")
    moves = iter("1524")
    result, _ = play_game(
        env.make("TrlEnv/TicTacToe-v0"),
        answer=lambda request: CHAT.say(next(moves)),
        limits=Limits(tokens_per_turn=8, tokens=60),
    )
    assert [one.stop_reason for one in result] == [StopReason.TOKEN_LIMIT, StopReason.FORFEIT]
    assert [len(one.state_keys) for one in result] == [len(one.turns) + 1 for one in result]


def test_an_action_that_crashes_the_game_costs_only_the_seat_that_played_it() -> None:
    def answer(request: Request) -> list[int]:
        return CHAT.say("crash" if request.episode_id == "0.1" else "go")

    result, _ = play_game(Seats(Long(turns=9, faulty="crash")), answer=answer)
    assert ends(result) == [("forfeit", 0.0), ("crashed", -2.0)]
    assert "ZeroDivisionError" in str(result[1].error)


def test_a_limit_of_the_whole_game_settles_all_seats() -> None:
    env = EnvSpec(lambda: Long(turns=50), seats="self", action_format="plain", turn_limit=4)
    [env_id] = env.weights
    result, _ = play_game(env.make(env_id))
    assert ends(result) == [("turn_limit", 1.5 - 2), ("turn_limit", -1.5 - 2)]


def test_responses_that_cannot_be_read_end_the_game_as_the_readers_fault() -> None:
    env = EnvSpec(lambda: Long(turns=50), seats="self", action_format="tag", end_after_invalid=2)
    [env_id] = env.weights

    def answer(request: Request) -> list[int]:
        return CHAT.say("what?" if request.episode_id == "0.1" else "<action>go</action>")

    result, _ = play_game(env.make(env_id), answer=answer, limits=Limits(tokens_per_turn=30))
    assert ends(result) == [("forfeit", 0.0), ("parse_error", -2.0)]
    assert [len(one.turns) for one in result] == [1, 2]


def test_a_clock_that_truncates_settles_all_seats() -> None:
    result, _ = play_game(
        Seats(Long(turns=10**6)), limits=Limits(tokens_per_turn=8), cutoff=Cutoff(rollout_s=0.05, on_cutoff="truncated")
    )
    assert {one.stop_reason for one in result} == {StopReason.TIME_LIMIT}
    assert sum(one.episode_return or 0.0 for one in result) == -4.0


def test_a_policy_can_play_a_seat() -> None:
    env = EnvSpec("TrlEnv/TicTacToe-v0", seats="self", action_format="plain").make("TrlEnv/TicTacToe-v0")
    task = Task("game", 0)
    moves = iter("19")
    learner = Episode(task, chat=CHAT, limits=LIMITS)
    seen: list[Any] = []

    def policy(result: Any) -> str:
        seen.append(result)
        return "5" if len(seen) == 1 else "3"

    game = Game([policy, learner])
    with InlinePool(lambda _: env) as pool:
        [result] = run_games([game], pool=pool, engine=ScriptedEngine(lambda request: CHAT.say(next(moves, "7"))))
    assert [one.seat for one in result] == [0, 1]
    assert not result[0].trace.completion_ids
    assert result[1].trace.completion_ids
    assert seen[0].observation.startswith("You are X.")
    assert seen[0].info["admissible_actions"] == list("123456789")
    assert [turn.answer.text for turn in result[0].turns][:2] == ["5", "3"]
    assert result[0].episode_return == -(result[1].episode_return or 0.0)


def test_a_policy_that_raises_leaves_the_game_unscored() -> None:
    task = Task("game", 0)

    def policy(result: Any) -> str:
        raise KeyError("no plan")

    with InlinePool(lambda _: Seats(Long())) as pool:
        [result] = run_games(
            [Game([policy, Episode(task, chat=CHAT, limits=LIMITS)])],
            pool=pool,
            engine=ScriptedEngine(lambda request: CHAT.say("go")),
        )
    assert {one.stop_reason for one in result} == {StopReason.ENV_ERROR}
    assert "the policy raised" in str(result[0].error)


def test_a_game_needs_two_seats_and_a_task() -> None:
    alone = [Episode(Task("game", 0), chat=CHAT, limits=LIMITS)]
    policies: list[SeatPolicy] = [lambda result: "go"] * 2
    for seats in ([], alone, policies):
        with pytest.raises(ConfigError, match="two seats or more, and a task or an episode"):
            Game(seats)
    assert Game(policies, Task("game", 0)).task == Task("game", 0)


@given(st.integers(2, 5), st.integers(1, 4), seeds)
@examples(20)
def test_games_that_run_together_end_as_if_each_were_alone(count: int, alive: int, seed: int) -> None:
    def answer(request: Request) -> list[int]:
        return CHAT.say(str(random.Random(request.seed).randrange(1, 10)))

    def of(number: int) -> Game:
        task = Task("TrlEnv/TicTacToe-v0", number)
        return Game(
            [Episode(task, chat=CHAT, limits=LIMITS, seed=derive_seed(seed, number, seat)) for seat in range(2)]
        )

    make = EnvSpec("TrlEnv/TicTacToe-v0", seats="self", action_format="plain").make
    with InlinePool(make) as pool:
        together = run_games([of(k) for k in range(count)], pool=pool, engine=ScriptedEngine(answer), max_alive=alive)
        alone = [run_games([of(k)], pool=pool, engine=ScriptedEngine(answer))[0] for k in range(count)]
    assert together == alone
    assert all(isinstance(one, EpisodeResult) for game in together for one in game)


def test_wrappers_that_would_show_one_seat_the_past_of_another_are_refused() -> None:
    spec = EnvSpec("TrlEnv/TicTacToe-v0", seats="self", wrappers=(Rewrites,))
    with pytest.raises(ConfigError, match="shows the past of all seats"), spec.checked("TrlEnv/TicTacToe-v0"):
        pass


@pytest.mark.parametrize("option", [{"success": 1.0}, {"seats": "both"}])
def test_options_that_assume_one_agent_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(option))):
        EnvSpec("TrlEnv/TicTacToe-v0", **{"seats": "self", **option})


def test_a_seat_that_forfeits_has_the_keys_of_its_states() -> None:
    env = EnvSpec("TrlEnv/KuhnPoker-v0", seats="self", action_format="plain", state_key="auto", end_after_invalid=2)
    says = iter(["pass", "bet", "hm", "hm"])
    result, _ = play_game(env.make("TrlEnv/KuhnPoker-v0"), 1, answer=lambda request: CHAT.say(next(says)))
    assert [one.stop_reason.value for one in result] == ["invalid_action", "forfeit"]
    assert [len(one.state_keys) for one in result] == [4, 2]
    assert [key != ENDED for one in result for key in one.state_keys] == [True, True, True, False, True, False]
