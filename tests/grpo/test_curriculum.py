import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support import warm

from gym_trl.errors import ConfigError
from gym_trl.grpo.attach import Place
from gym_trl.grpo.parts.curriculum import LevelCurriculum
from gym_trl.grpo.parts.part import Rollout
from gym_trl.grpo.planned_rows import read_rows
from gym_trl.grpo.saved_state import SavedState
from gym_trl.grpo.spec import GymSpec
from gym_trl.options import Curriculum
from gym_trl.types import Answer, EpisodeResult, StopReason, Task, Turn

GUESS = "TrlEnv/GuessNumber-v0"
LEVELS: list[dict[str, Any]] = [{"high": 4}, {"high": 8}, {"high": 16}]


def trainer() -> Any:
    state = SimpleNamespace(stateful_callbacks={})
    return SimpleNamespace(num_generations=2, num_generations_eval=1, state=state)


class Follower:
    """Part of a curriculum, driven as by the core."""

    def __init__(self, curriculum: LevelCurriculum) -> None:
        self.part = curriculum
        self._saved = SavedState(self.part, "gym_trl.curriculum")

    def begin(self, of: Any) -> None:
        self._saved.restore(of)

    def end(self, of: Any, episodes: list[EpisodeResult]) -> None:
        self.part.end(Rollout("train", 0, episodes), SimpleNamespace(gather=list, declaring=()))  # type: ignore[arg-type]
        self._saved.save(of)


def assign(split: str, number: int) -> Task:
    return Task(GUESS, 0, {"level": 0})


def played(task: Task, reason: StopReason) -> EpisodeResult:
    return EpisodeResult(task, reason, (Turn("", Answer("", ""), 1.0, True, 0, 1),), ())


@given(st.lists(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=9)))
def test_the_level_moves_by_one_and_stays_among_the_levels(reports: list[list[tuple[int, bool]]]) -> None:
    curriculum = LevelCurriculum(Curriculum(LEVELS, episodes=3))
    for played in reports:
        before = curriculum.level
        curriculum.report(played)
        assert abs(curriculum.level - before) <= 1
        assert 0 <= curriculum.level <= 2


def test_between_the_shares_the_level_stays() -> None:
    curriculum = LevelCurriculum(Curriculum(LEVELS, rise=0.8, fall=0.2, episodes=4, level=1))
    curriculum.report([(1, True), (1, False)] * 2)
    assert curriculum.level == 1


def test_it_is_only_asked_after_enough_episodes() -> None:
    curriculum = LevelCurriculum(Curriculum(LEVELS, episodes=4))
    curriculum.report([(0, True)] * 3)
    assert curriculum.level == 0
    curriculum.report([(0, True)])
    assert curriculum.level == 1


def test_a_negative_share_never_falls() -> None:
    curriculum = LevelCurriculum(Curriculum(LEVELS, fall=-1, episodes=1, level=1))
    curriculum.report([(1, False)])
    assert curriculum.level == 1


def test_a_whole_rollout_is_played_on_the_level_it_began_with() -> None:
    curriculum = LevelCurriculum(Curriculum(LEVELS, episodes=2))
    follower, of = Follower(curriculum), trainer()
    row = [{"role": "user", "content": "", "task": Task(GUESS, 3, {"instance": 1}).to_json()}]

    def options(split: str, *prompts: Any) -> list[Any]:
        rows = read_rows(prompts, Place(split, 0, 0, 0, 0), 2, assign=assign, seed=0)
        if split == "train":
            follower.begin(of)
            rows = follower.part.plan(rows, SimpleNamespace(trainer=of))  # type: ignore[arg-type]
        tasks = [row.task for row in rows]
        if split == "train":
            follower.end(of, [played(task, StopReason.SUCCESS) for task in tasks])
        return [task.options for task in tasks]

    assert options("train", row, row) == [{"instance": 1, "level": 0}] * 2
    assert options("train", row, row, "Play.") == [{"instance": 1, "level": 1}] * 2 + [{"level": 1}]
    assert options("eval", row) == [{"instance": 1}]
    assert curriculum.level == 2
    assert of.state.stateful_callbacks["gym_trl.curriculum"]["level"] == 2


def test_no_count_outlives_a_training_but_in_its_checkpoints() -> None:
    made = LevelCurriculum(Curriculum(LEVELS, episodes=2))
    follower, before = Follower(made), made.state

    def play(of: Any, level: int) -> None:
        follower.begin(of)
        follower.end(of, [played(Task(GUESS, 0, {"level": level}), StopReason.SUCCESS)] * 2)

    first, resumed = trainer(), trainer()
    play(first, 0)
    saved = json.loads(json.dumps(first.state.stateful_callbacks))
    play(first, 1)
    after = made.state
    resumed.state.stateful_callbacks = saved
    play(resumed, 1)
    assert made.state == after
    follower.begin(trainer())
    assert made.state == before
    made.state = after  # by the user
    follower.begin(trainer())
    assert made.state == after


def test_failed_episodes_are_not_counted() -> None:
    curriculum = LevelCurriculum(Curriculum(LEVELS, episodes=1, level=1))
    Follower(curriculum).end(trainer(), [played(Task(GUESS, 0, {"level": 1}), StopReason.ENV_ERROR)] * 3)
    assert curriculum.level == 1


def test_a_spec_plays_the_levels_and_evaluates_on_the_last() -> None:
    spec = GymSpec(
        GUESS, curriculum=Curriculum(LEVELS), env_kwargs={"turns": 3}, num_tasks=4, num_eval_tasks=2, turn_limit=9
    )
    assert [task.options for task in spec.tasks("train")] == [{"level": 0}] * 4
    assert [task.options for task in spec.tasks("eval")] == [{"level": 2}] * 2
    assert isinstance(spec.curriculum, LevelCurriculum)
    spec.curriculum.level = 1
    assert spec.assign("train", 0).options == {"level": 1}
    assert spec.assign("eval", 0).options == {"level": 2}
    env = spec.make(GUESS)
    assert env.reset(seed=0, options={"level": 2})[0] == "Guess 1 to 16 in 3 tries."
    assert "from 1 to 16" in env.get_wrapper_attr("instructions")
    assert env.step("<action>1</action>")[0] in ("Higher.", "Correct.")
    env.close()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"levels": []}, "levels must be a list of at least one level, got none"),
        ({"level": 3}, "level must be the index of one of the levels, got 3 of 3 levels"),
        ({"rise": 0.1, "fall": 0.2}, "fall must be below rise, and rise at most 1; got fall=0.2 and rise=0.1"),
        ({"rise": 1.1}, "fall must be below rise, and rise at most 1; got fall=0.1 and rise=1.1"),
        ({"episodes": 0}, "episodes must be an integer of at least 1, got 0"),
        ({"levels": 3}, "levels must be a list, each element a mapping with names as keys, got 3"),
        ({"levels": "ab"}, "levels must be a list, each element a mapping with names as keys, got 'ab'"),
    ],
)
def test_numbers_that_cannot_work_are_refused(arguments: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=f"^{said}"):
        Curriculum(**{"levels": LEVELS, **arguments})


def test_one_curriculum_can_be_that_of_several_trainings() -> None:
    settings = Curriculum(LEVELS, episodes=1)
    first, second = (GymSpec(GUESS, curriculum=settings, num_tasks=4) for _ in range(2))
    assert isinstance(first.curriculum, LevelCurriculum)
    first.curriculum.report([(0, True)])
    assert [task.options for task in first.tasks("train")] == [{"level": 1}] * 4
    assert [task.options for task in second.tasks("train")] == [{"level": 0}] * 4


def test_a_curriculum_is_of_one_environment() -> None:
    with pytest.raises(ConfigError, match="a curriculum has the levels of one environment"):
        GymSpec([GUESS, "TrlEnv/Echo-v0"], curriculum=Curriculum(LEVELS))


@pytest.mark.full
@pytest.mark.trl
@pytest.mark.processes
def test_two_processes_climb_together_also_where_a_group_straddles_them(tmp_path: Path) -> None:
    options = {
        # Twelve episodes are those of both processes; whatever they won, the next level comes.
        "curriculum": {"levels": LEVELS, "rise": 0.0, "fall": -1.0, "episodes": 12},
        "grpo": {"per_device_train_batch_size": 6, "per_device_eval_batch_size": 6, "num_generations": 4},
    }
    script = Path(__file__).parent / "train_some_steps.py"
    reports: list[Any] = warm.run_ranks(script, tmp_path, json.dumps(options), processes=2)
    ranks = [report["rollouts"] for report in reports]
    assert len(ranks) == 2
    for rollouts in ranks:
        trained = [rollout for rollout in rollouts if rollout["split"] == "train"]
        assert [{Task.from_json(task).options["level"] for task in rollout["tasks"]} for rollout in trained] == [
            {0},
            {1},
            {2},
        ]
        assert all("to 16 in" in said for said in trained[2]["first_observations"])
    for step in zip(*ranks, strict=True):
        tasks = [task for rollout in step for task in rollout["tasks"]]
        if step[0]["split"] == "train":
            assert all(len(set(tasks[start : start + 4])) == 1 for start in range(0, 12, 4))
