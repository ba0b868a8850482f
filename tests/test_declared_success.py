"""Laws 13 and 20: success is declared, never guessed, and every scored episode is counted where it is."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium as gym
import pytest
from hypothesis import given, strategies as st
from support.lanes import examples

import gym_trl  # registers the environments
from gym_trl import GymSpec
from gym_trl.errors import ConfigError
from gym_trl.evaluation.evaluation import evaluate
from gym_trl.evaluation.play import Score, play_tasks
from gym_trl.evaluation.scores import Scoreboard, compare
from gym_trl.grpo.parts.curriculum import LevelCurriculum
from gym_trl.integrations.eval_protocol.rows import as_row
from gym_trl.options import Curriculum
from gym_trl.records.export import sft_rows
from gym_trl.records.files import RecordWriter, read_records
from gym_trl.records.schema import as_record
from gym_trl.registration import GAMES
from gym_trl.rollout.episode import Act, Episode, Sample
from gym_trl.rollout.limits import Limits
from gym_trl.seeding import derive_seed
from gym_trl.testing import ByteChat
from gym_trl.types import Completion, EnvFailure, EpisodeResult, StepResult, StopReason, Task
from gym_trl.viewer.run import Run
from gym_trl.wrappers.as_text import as_text
from gym_trl.wrappers.declare_success import DeclareSuccess, declare_success
from gym_trl.wrappers.traits import traits

CHAT = ByteChat()
# An OpenEnv server of somebody else declares what it declares.
OURS = sorted(GAMES)
INFO = st.sampled_from([{}, {"success": None}, {"success": True}, {"success": False}])
assert gym_trl


def ended(replies: list[StepResult | EnvFailure], *, declares: bool, reason: StopReason | None = None) -> EpisodeResult:
    """An episode of these replies, stopped for ``reason`` after them."""
    episode = Episode(Task("Any-v0", 0), chat=CHAT, limits=Limits(tokens_per_turn=99))
    todo: Sample | Act | EpisodeResult = episode.started(StepResult("go", declares_success=declares))
    for reply in replies:
        assert isinstance(todo, Sample)
        ids = CHAT.say("x")
        assert isinstance(episode.sampled(Completion("0", ids, [-1.0] * len(ids))), Act)
        todo = episode.stepped(reply)
    if isinstance(todo, EpisodeResult):
        return todo
    assert reason is not None
    return episode.stopped(reason)


ENDINGS = [None, *(one for one in StopReason if one not in ("success", "failure", "terminated"))]


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
    one = ended(replies, declares=declares, reason=ending)
    last = infos[-1].get("success")
    known = declares or any(info.get("success") is not None for info in infos)
    if ending is None:
        by = {True: StopReason.SUCCESS, False: StopReason.FAILURE, None: StopReason.TERMINATED}
        assert one.stop_reason is by[last]
    if ending is not None and not ending.scored:
        assert one.success is None
    elif last is not None:
        assert one.success is last
    else:
        assert one.success is (False if known else None)
    # No reward has any part in it.
    unpaid: list[Any] = [StepResult("", 0.0, reply.terminated, reply.truncated, reply.info) for reply in replies]
    assert ended(unpaid, declares=declares, reason=ending).success is one.success


@pytest.mark.parametrize("env_id", OURS)
def test_every_environment_of_the_library_declares_success(env_id: str) -> None:
    env = gym.make(env_id)
    assert traits(env).declares_success
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
    assert (found.success.mean, found.stop_reasons) == (0.0, {"failure": 2})
    assert found.mean_return.mean > 0


def test_a_cart_pole_that_the_registered_limit_ends_is_a_success() -> None:
    env = declare_success(gym.make("CartPole-v1"))
    assert (env.get_wrapper_attr("success"), traits(env).declares_success) == (475.0, True)
    inner: gym.Env[Any, Any] = DeclareSuccess(gym.make("CartPole-v1", max_episode_steps=5), 5)
    inner.reset(seed=1)
    assert [inner.step(action)[4]["success"] for action in (0, 1, 0, 1, 0)] == [False] * 4 + [True]
    assert not traits(declare_success(gym.make("CartPole-v1", max_episode_steps=50))).declares_success


def test_cliff_walking_declares_nothing_so_only_its_return_is_reported() -> None:
    found = row("CliffWalking-v1", along_the_cliff)
    assert (found.success.mean, found.mean_return.mean, found.stop_reasons) == (None, -13.0, {"terminated": 2})
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


def episodes(successes: Iterable[bool | None], env_id: str = "Any-v0") -> list[EpisodeResult]:
    made = []
    for seed, success in enumerate(successes):
        info = {} if success is None else {"success": success}
        one = ended([StepResult("", 1.0, terminated=True, info=info)], declares=False)
        made.append(replace(one, task=Task(env_id, seed)))
    return made


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
    failed = EpisodeResult(Task("Any-v0", 9), StopReason.ENV_ERROR, (), ())
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
    row = as_row(ended([StepResult("", 1.0, terminated=True)], declares=False))
    assert "success" not in row["evaluation_result"]["metrics"]


def test_a_curriculum_refuses_to_climb_by_what_nothing_declares() -> None:
    curriculum = LevelCurriculum(Curriculum([{}, {}], episodes=4))
    curriculum.report([(0, None), (0, None), (0, True)])
    curriculum.report([(0, None)] * 3)
    assert curriculum.level == 0
    with pytest.raises(ConfigError, match="the last 4 episodes declared none"):
        curriculum.report([(0, None)])


def test_random_play_of_an_undeclared_environment_scores_returns() -> None:
    def policy(env: Any) -> Callable[[str], str]:
        return along_the_cliff(env)

    task = Task("c", derive_seed("s"))
    score = Score.of(play_tasks(lambda _: as_text(gym.make("CliffWalking-v1")), [task], policy))
    assert (score.success, score.mean_return) == (None, -13.0)


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

    assert traits(make_for_play("FrozenLake-v1", {})).declares_success
    found = Inspector(lambda: gym.make("FrozenLake-v1", is_slippery=False), episodes=3).look_at("success")
    assert "never" not in found.got


@pytest.mark.parametrize(("over_info", "success"), [(True, False), (False, True)])
def test_an_own_declaration_counts_unless_it_is_replaced(over_info: bool, success: bool) -> None:
    env = DeclareSuccess(gym.make("TrlEnv/Echo-v0"), 5.0, over_info)
    word = env.reset(seed=0)[0]
    assert env.step(word.split()[-1])[4]["success"] is success
