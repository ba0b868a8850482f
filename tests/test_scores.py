"""Laws 13 and 20: success is declared, never guessed; a score counts every scored episode once, with an interval."""

import math
import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium as gym
import pytest
from hypothesis import given, strategies as st
from support.episodes import ended, told
from support.lanes import examples

import gym_trl
from gym_trl import GymSpec
from gym_trl.episode import Episode
from gym_trl.errors import ConfigError
from gym_trl.evaluation.estimates import (
    Estimate,
    difference_estimate,
    mean_estimate,
    pass_at,
    share_estimate,
    share_of,
)
from gym_trl.evaluation.evaluation import evaluate
from gym_trl.evaluation.play import Score, play_tasks
from gym_trl.evaluation.scores import Scoreboard, compare
from gym_trl.integrations.eval_protocol.rows import as_row
from gym_trl.records.export import sft_rows
from gym_trl.records.files import RecordWriter, read_records
from gym_trl.records.schema import Record, as_record
from gym_trl.registration import GAMES
from gym_trl.types import StepResult, StopReason, Task
from gym_trl.viewer.run import Run
from gym_trl.wrappers.as_text import as_text
from gym_trl.wrappers.base import attribute_of
from gym_trl.wrappers.declare_success import DeclareSuccess, declare_success

# An OpenEnv server of somebody else declares what it declares.
OURS = sorted(GAMES)
INFO = st.sampled_from([{}, {"success": None}, {"success": True}, {"success": False}])
assert gym_trl  # registers the environments


ENDINGS = [None, *(one for one in StopReason if one is not StopReason.ENDED)]


@examples(150)
@given(
    infos=st.lists(INFO, min_size=1, max_size=3),
    rewards=st.lists(st.floats(-9, 9), min_size=3, max_size=3),
    declares=st.booleans(),
    ending=st.sampled_from(ENDINGS),
)
def test_success_is_declared_never_guessed(
    infos: list[dict[str, Any]], rewards: list[float], declares: bool, ending: StopReason | None
) -> None:
    """By the last step; an episode without a declaration has failed where success is known to be declared."""
    replies: list[Any] = [StepResult("", reward, info=info) for reward, info in zip(rewards, infos, strict=False)]
    if ending is None:
        replies[-1] = StepResult("", rewards[-1], terminated=True, info=infos[-1])
    one = told(replies, declares=declares, reason=ending)
    last = infos[-1].get("success")
    known = declares or any(info.get("success") is not None for info in infos)
    if ending is not None and not ending.scored:
        assert one.success is None
    elif last is not None:
        assert one.success is last
    else:
        assert one.success is (False if known else None)
    # No reward has any part in it.
    unpaid: list[Any] = [StepResult("", 0.0, reply.terminated, reply.truncated, reply.info) for reply in replies]
    assert told(unpaid, declares=declares, reason=ending).success is one.success


@pytest.mark.parametrize("env_id", OURS)
def test_every_environment_of_the_library_declares_success(env_id: str) -> None:
    env = gym.make(env_id)
    assert attribute_of(env, "declares_success")
    env.close()


def row(env_id: str, policy: Any, **more: Any) -> Any:
    [found] = evaluate(env_id, policy, episodes=2, **more).rows
    return found


def right(env: Any) -> Callable[[str], str]:
    return lambda observation: "1"


def along_the_cliff(env: Any) -> Callable[[str], str]:
    moves = iter(["move up", *["move right"] * 11, "move down"])
    return lambda observation: next(moves)


def test_a_fallen_cart_pole_is_no_success_by_the_registrys_threshold() -> None:
    found = row("CartPole-v1", right)
    assert (found.success.mean, found.stop_reasons) == (0.0, {"ended": 2})
    assert found.mean_return.mean > 0


def test_a_cart_pole_that_the_registered_limit_ends_is_a_success() -> None:
    env = declare_success(gym.make("CartPole-v1"))
    assert (env.get_wrapper_attr("success"), attribute_of(env, "declares_success")) == (475.0, True)
    inner: gym.Env[Any, Any] = DeclareSuccess(gym.make("CartPole-v1", max_episode_steps=5), 5)
    inner.reset(seed=1)
    assert [inner.step(action)[4]["success"] for action in (0, 1, 0, 1, 0)] == [False] * 4 + [True]
    assert not attribute_of(declare_success(gym.make("CartPole-v1", max_episode_steps=50)), "declares_success")


def test_cliff_walking_declares_nothing_so_only_its_return_is_reported() -> None:
    found = row("CliffWalking-v1", along_the_cliff)
    assert (found.success.mean, found.mean_return.mean, found.stop_reasons) == (None, -13.0, {"ended": 2})
    assert dict(found.pass_at) == {}
    assert str(found.success) == "-"


@pytest.mark.parametrize(
    ("success", "expected"),
    [
        (-13, 1.0),
        (-12.5, 0.0),
        (lambda info, total: total == -13, 1.0),
        (lambda info, total: None, 0.0),  # declared by the spec, so each episode counts
    ],
)
def test_a_spec_says_what_counts_as_solved(success: Any, expected: float | None) -> None:
    assert row("CliffWalking-v1", along_the_cliff, success=success).success.mean == expected


@pytest.mark.parametrize("success", [True, float("nan"), "no.such:function", [1]])
def test_what_cannot_be_a_success_is_refused_at_once(success: Any) -> None:
    with pytest.raises(ConfigError):
        GymSpec("CliffWalking-v1", success=success)


def test_a_threshold_is_of_the_environments_own_rewards() -> None:
    """Not of what penalties or the user's wrappers make of them."""

    def ten_more(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        return gym.wrappers.TransformReward(env, lambda reward: float(reward) + 10)

    spec = GymSpec("CliffWalking-v1", success=-13, wrappers=[ten_more], invalid_penalty=100, action_format="plain")
    env = spec.make("CliffWalking-v1")
    env.reset(seed=0)
    env.step("nonsense")
    act = along_the_cliff(env)
    *_, info = [env.step(act("")) for _ in range(13)][-1]
    assert info["success"] is True


def episodes(successes: Iterable[bool | None], env_id: str = "Any-v0") -> list[Episode]:
    return [ended(1.0, success=success, task=Task(env_id, seed)) for seed, success in enumerate(successes)]


def records(successes: Iterable[bool | None]) -> list[Any]:
    return [as_record(one, policy="p") for one in episodes(successes)]


SUCCESSES = st.lists(st.sampled_from([True, False, None]), min_size=1, max_size=8)


@examples(40)
@given(SUCCESSES)
def test_every_statistic_counts_every_scored_episode_once_one_declares(successes: list[bool | None]) -> None:
    declared = any(one is not None for one in successes)
    share = sum(one is True for one in successes) / len(successes) if declared else None
    board = Scoreboard(records(successes))
    [found] = board.rows()
    assert found.success.mean == share
    assert (found.episodes, found.mean_return.mean) == (len(successes), 1.0)
    assert board.means("p").get("success") == share
    assert bool(found.pass_at) is declared
    [same] = compare(records(successes), records(successes))
    assert (same.success.mean, same.mean_return.mean) == (None if share is None else 0.0, 0.0)
    assert len(list(sft_rows(records(successes), successes=True))) == sum(one is True for one in successes)
    played = episodes(successes)
    assert Score.of(played).success == share
    failed = told([], reason=StopReason.ENV_ERROR)
    assert Score.of([*played, failed], declaring={"Any-v0"}).success == (share or 0.0)
    assert Score.of([*played, *episodes([None], "Other-v0")]).success == share


@examples(20)
@given(SUCCESSES)
def test_what_shows_records_counts_those_before_the_first_declaration(successes: list[bool | None]) -> None:
    declared = any(one is not None for one in successes)
    expected = [one if one is not None or not declared else False for one in successes]
    with TemporaryDirectory() as folder, RecordWriter(Path(folder)) as writer:
        for record in records(successes):
            writer.write(record)
        (Path(folder) / "metrics.jsonl").touch()
        run = Run(Path(folder))
        list(run.read())
        assert run.columns["success"] == expected
        assert [record["success"] for record in read_records(Path(folder))] == expected


def test_what_shows_records_shows_no_undeclared_success() -> None:
    row = as_row(ended(1.0))
    assert "success" not in row["evaluation_result"]["metrics"]


def test_a_crash_at_the_first_action_is_no_success_where_success_is_declared() -> None:
    class Breaks(gym.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            raise KeyError(action)

    for env_id, success in (("TrlEnv/Echo-v0", False), ("CliffWalking-v1", None)):
        [result] = play_tasks(
            lambda env_id: Breaks(as_text(gym.make(env_id))), [Task(env_id, 0)], lambda env: lambda observation: "x"
        )
        assert (result.success, len(result.turns)) == (success, 1)


def test_what_the_registry_says_of_success_holds_in_play_and_validate_too() -> None:
    from gym_trl.cli.environments import make_text_env as make_for_play
    from gym_trl.env_checker.inspector import Inspector

    assert attribute_of(make_for_play("FrozenLake-v1", {}), "declares_success")
    found = Inspector(lambda: gym.make("FrozenLake-v1", is_slippery=False), episodes=3).look_at("success")
    assert "never" not in found.got


@pytest.mark.parametrize(("over_info", "success"), [(True, False), (False, True)])
def test_an_own_declaration_counts_unless_it_is_replaced(over_info: bool, success: bool) -> None:
    env = DeclareSuccess(gym.make("TrlEnv/Echo-v0"), 5.0, over_info)
    word = env.reset(seed=0)[0]
    assert env.step(word.split()[-1])[4]["success"] is success


# ---------------------------------------------------------------------------------------------------------------------
# Means, shares and differences, with their intervals
# ---------------------------------------------------------------------------------------------------------------------


def episode(
    seed: int, *rewards: float, policy: str = "p", env: str = "Bag-v0", won: bool = True, **about: Any
) -> Record:
    task = Task(env, seed)
    played = ended(*rewards, success=won, task=task) if rewards else told([], task=task, reason=StopReason.ENV_ERROR)
    return as_record(played, policy=policy, **about)


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.data())
def test_pass_at_k_is_the_share_of_all_choices_of_k_attempts_with_a_success(
    attempts: list[bool], data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, len(attempts)))
    chosen = [any(attempts[i] for i in places) for places in combinations(range(len(attempts)), k)]
    assert pass_at(k, len(attempts), sum(attempts)) == pytest.approx(statistics.fmean(chosen))


@pytest.mark.parametrize(("k", "attempts", "successes"), [(0, 4, 1), (5, 4, 1), (1, 4, 5), (1, 4, -1)])
def test_pass_at_k_of_fewer_attempts_is_refused(k: int, attempts: int, successes: int) -> None:
    with pytest.raises(ConfigError, match=r"needs at least"):
        pass_at(k, attempts, successes)


@pytest.mark.parametrize(("tasks", "attempts", "spread"), [(30, 1, 0.0), (30, 8, 3.0), (8, 4, 1.0)])
def test_intervals_of_means_hold_the_truth_as_often_as_they_say(tasks: int, attempts: int, spread: float) -> None:
    """Also where the attempts at a game are alike, for which an interval of independent episodes is far too narrow."""
    rng, held = random.Random(0), 0
    for _ in range(400):
        games = [rng.gauss(0.0, spread) for _ in range(tasks)]
        found = mean_estimate([[game + rng.gauss(0.0, 1.0) for _ in range(attempts)] for game in games])
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 0.0 <= found.high
    assert held / 400 == pytest.approx(0.95, abs=4 * math.sqrt(0.95 * 0.05 / 400))


@pytest.mark.parametrize(("share", "tasks", "attempts"), [(0.5, 40, 4), (0.9, 40, 4), (0.98, 100, 4), (0.02, 200, 1)])
def test_intervals_of_shares_hold_the_truth_as_often_as_they_say(share: float, tasks: int, attempts: int) -> None:
    rng, held = random.Random(0), 0
    for _ in range(400):
        # Half of the games are won or lost as one.
        games = [[rng.random() < share] * attempts if rng.random() < 0.5 else None for _ in range(tasks)]
        found = share_estimate([game or [rng.random() < share for _ in range(attempts)] for game in games])
        assert found.low is not None
        assert found.high is not None
        held += found.low <= share <= found.high
    assert 0.91 < held / 400 <= 0.995


@given(st.lists(st.lists(st.booleans(), max_size=5), max_size=12))
def test_intervals_of_shares_are_within_0_and_1_and_hold_the_share(tasks: list[list[bool]]) -> None:
    found = share_estimate(tasks)
    if not any(tasks):
        assert found == Estimate(None, None, None)
    elif found.low is None or found.high is None or found.mean is None:
        assert sum(map(bool, tasks)) == 1
    else:
        assert 0.0 <= found.low <= found.mean <= found.high <= 1.0


@given(st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=4), min_size=2, max_size=8), st.randoms())
def test_scores_do_not_depend_on_the_order_of_the_episodes(tasks: list[list[float]], chance: random.Random) -> None:
    records = [
        episode(seed, value, won=value > 0, attempt=number)
        for seed, values in enumerate(tasks)
        for number, value in enumerate(values)
    ]
    shuffled = records.copy()
    chance.shuffle(shuffled)
    [row], [other] = Scoreboard(records).rows(), Scoreboard(shuffled).rows()
    assert row.success == other.success
    assert row.mean_return.mean == pytest.approx(other.mean_return.mean, abs=1e-12)
    assert (row.pass_at, row.stop_reasons, row.turns) == (other.pass_at, other.stop_reasons, other.turns)


def test_what_could_not_be_scored_is_counted_and_in_no_mean() -> None:
    [row] = Scoreboard([episode(0, 1.0), episode(1, -0.5, 1.0), episode(2)]).rows()
    assert (row.tasks, row.episodes, row.unscored, row.success.mean, row.mean_return.mean) == (2, 2, 1, 1.0, 0.75)
    assert (row.turns, row.invalid, row.stop_reasons) == (1.5, 1 / 3, {"ended": 2, "env_error": 1})


def test_pass_at_is_of_powers_of_two_and_of_the_most_that_every_task_has() -> None:
    records = [episode(seed, 1.0, won=number == seed, attempt=number) for seed in range(4) for number in range(6)]
    [row] = Scoreboard(records).rows()
    assert row.pass_at == {1: pytest.approx(1 / 6), 2: pytest.approx(1 / 3), 4: pytest.approx(2 / 3), 6: 1.0}


def test_every_policy_on_every_environment_has_a_row() -> None:
    records = [episode(0, 1.0, policy=policy, env=env) for policy in "ba" for env in ("X-v0", "A-v0")]
    records.append(episode(0, 1.0, policy="a", env="A-v0", env_kwargs={"turns": 3}))
    found = [(row.env_id, row.env_kwargs, row.policy) for row in Scoreboard(records).rows()]
    assert found == [
        ("A-v0", {"turns": 3}, "a"),
        ("A-v0", {}, "a"),
        ("A-v0", {}, "b"),
        ("X-v0", {}, "a"),
        ("X-v0", {}, "b"),
    ]


def run(paid: Sequence[float], policy: str = "p") -> list[Record]:
    return [episode(seed, value, policy=policy, won=value > 0.5) for seed, value in enumerate(paid)]


def test_pairing_sees_a_small_difference_between_games_that_differ_greatly() -> None:
    rng = random.Random(0)
    hard = [rng.uniform(-10, 10) for _ in range(50)]
    [found] = compare(run(hard), run([value + 0.1 + rng.gauss(0, 0.05) for value in hard]))
    assert found.mean_return.low is not None
    assert found.mean_return.low > 0
    unpaired = mean_estimate([[value] for value in hard])
    assert unpaired.high is not None
    assert unpaired.mean is not None
    assert unpaired.high - unpaired.mean > 1


@pytest.mark.parametrize("tasks", [2, 6, 30])
def test_a_run_that_loses_every_task_is_worse_unless_they_are_few(tasks: int) -> None:
    won = [1.0] * tasks
    [paid] = compare(run(won), run([value - 2.0 for value in won]))
    [twice] = compare([episode(seed, 2.0, won=True) for seed in range(tasks)], [*run([0.0] * tasks)])
    assert paid.is_worse is twice.is_worse is (tasks >= 6)
    [undeclared] = compare([bare(seed, 1.0) for seed in range(tasks)], [bare(seed, 0.0) for seed in range(tasks)])
    assert (undeclared.mean_return.mean, undeclared.mean_return.low, undeclared.success.mean) == (-1.0, None, None)
    assert undeclared.is_worse is (tasks >= 6)


def bare(seed: int, paid: float) -> Record:
    """Return the record of an episode without declared success."""
    return as_record(ended(paid, task=Task("Bag-v0", seed)), policy="p")


@pytest.mark.parametrize(("before", "after"), [(0.5, 0.5), (0.9, 0.95), (0.05, 0.5), (1.0, 0.7), (0.02, 0.02)])
@pytest.mark.parametrize("tasks", [5, 30])
def test_intervals_of_differences_of_shares_hold_the_truth(before: float, after: float, tasks: int) -> None:
    rng, held, repeats = random.Random(tasks), 0, 1_000
    for _ in range(repeats):
        deltas = [float(rng.random() < after) - float(rng.random() < before) for _ in range(tasks)]
        found = difference_estimate(deltas, of_shares=True)
        assert found.low is not None
        assert found.high is not None
        held += found.low - 1e-9 <= after - before <= found.high + 1e-9
    assert held >= 0.93 * repeats


def test_equal_returns_but_for_rounding_are_neither_better_nor_worse() -> None:
    [found] = compare([bare(seed, 0.1 + 0.2) for seed in range(8)], [bare(seed, 0.3) for seed in range(8)])
    assert (found.better, found.worse, found.is_worse) == (0, 0, False)


def test_returns_that_are_not_successes_have_no_interval_of_shares() -> None:
    paid = [episode(seed, 100.0 * seed + 100.0) for seed in range(10)]
    [found] = compare(paid, paid)
    assert (found.mean_return.mean, found.mean_return.low) == (0.0, None)
    assert found.success.low is not None


@pytest.mark.parametrize(("tasks", "attempts", "before", "after"), [(10, 32, 0.8, 0.6), (8, 100, 0.9, 0.8)])
def test_many_attempts_show_what_one_cannot(tasks: int, attempts: int, before: float, after: float) -> None:
    rng = random.Random(0)

    def run_of(rate: float) -> list[Record]:
        return [
            episode(seed, float(won), won=won, attempt=attempt)
            for seed in range(tasks)
            for attempt in range(attempts)
            for won in [rng.random() < rate]
        ]

    [found] = compare(run_of(before), run_of(after))
    assert found.is_worse


def test_only_games_that_both_played_are_compared() -> None:
    [found] = compare(run([0.0, 1.0, 0.0, 1.0]), run([1.0, 1.0, 0.0])[1:] + run([0.0] * 9)[7:])
    assert (found.tasks, found.better, found.worse, found.success.mean) == (2, 0, 0, 0.0)


def test_namesakes_are_compared_and_the_others_with_each_other() -> None:
    first = run([0.0, 1.0], "old") + run([0.0, 0.0], "random")
    second = run([1.0, 1.0], "new") + run([0.0, 0.0], "random")
    assert [found.policies for found in compare(first, second)] == [("old", "new"), ("random", "random")]
    assert [found.policies for found in compare(first)] == [("old", "random")]


def test_runs_without_a_common_game_are_refused() -> None:
    with pytest.raises(ConfigError, match="nothing to compare"):
        compare(run([0.0]), run([0.0, 0.0])[1:])


def test_two_episodes_have_an_interval_and_one_has_none() -> None:
    assert (share_of(1.0, 1).low, share_of(1.0, 2).low is None) == (None, False)


def test_means_are_of_the_policy_that_is_asked_for() -> None:
    board = Scoreboard([episode(0, 1.0, policy="a"), episode(1, 0.0, policy="b", won=False), episode(2, policy="a")])
    assert board.means("a") == {"episodes": 2.0, "return": 1.0, "success": 1.0}
    assert board.means("b") == {"episodes": 1.0, "return": 0.0, "success": 0.0}
