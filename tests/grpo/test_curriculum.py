import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import warm
from hypothesis import given, strategies as st

from gym_trl.errors import ConfigError
from gym_trl.grpo.attach import Place
from gym_trl.grpo.curriculum import Curriculum, Follower, PrioritizedTasks
from gym_trl.grpo.planned_rows import Planner
from gym_trl.grpo.spec import GymSpec
from gym_trl.types import Answer, EpisodeResult, StopReason, Task, Turn

GUESS = "TrlEnv/GuessNumber-v0"
LEVELS: list[dict[str, Any]] = [{"high": 4}, {"high": 8}, {"high": 16}]


def trainer() -> Any:
    state = SimpleNamespace(stateful_callbacks={})
    return SimpleNamespace(num_generations=2, num_generations_eval=1, state=state)


def played(task: Task, reason: StopReason) -> EpisodeResult:
    return EpisodeResult(task, reason, (Turn("", Answer("", ""), 1.0, True, 0, 1),), ())


@given(st.lists(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=9)))
def test_the_level_moves_by_one_and_stays_among_the_levels(reports: list[list[tuple[int, bool]]]) -> None:
    curriculum = Curriculum(LEVELS, episodes=3)
    for played in reports:
        before = curriculum.level
        curriculum.report(played)
        assert abs(curriculum.level - before) <= 1
        assert 0 <= curriculum.level <= 2


def test_between_the_shares_the_level_stays() -> None:
    curriculum = Curriculum(LEVELS, rise=0.8, fall=0.2, episodes=4, level=1)
    curriculum.report([(1, True), (1, False)] * 2)
    assert curriculum.level == 1


def test_it_is_only_asked_after_enough_episodes() -> None:
    curriculum = Curriculum(LEVELS, episodes=4)
    curriculum.report([(0, True)] * 3)
    assert curriculum.level == 0
    curriculum.report([(0, True)])
    assert curriculum.level == 1


def test_a_negative_share_never_falls() -> None:
    curriculum = Curriculum(LEVELS, fall=-1, episodes=1, level=1)
    curriculum.report([(1, False)])
    assert curriculum.level == 1


def test_every_prompt_of_a_rollout_is_played_on_the_level_of_its_beginning_and_reported() -> None:
    curriculum = Curriculum(LEVELS, episodes=2)
    follower, of = Follower(curriculum), trainer()
    planner = Planner(lambda split, number: Task(GUESS, 0, {"level": 0}), 0, follower)
    row = [{"role": "user", "content": "", "task": Task(GUESS, 3, {"instance": 1}).to_json()}]

    def options(split: str, *prompts: Any) -> list[Any]:
        tasks = [planned.task for planned in planner.rows(prompts, of, Place(split, 0, 0, 0, 0))]
        if split == "train":
            follower.begin(of)
            follower.end(of, [played(task, StopReason.SUCCESS) for task in tasks])
        return [task.options for task in tasks]

    assert options("train", row, row) == [{"instance": 1, "level": 0}] * 2
    assert options("train", row, row, "Play.") == [{"instance": 1, "level": 1}] * 2 + [{"level": 0}]
    assert options("eval", row) == [{"instance": 1}]
    assert curriculum.level == 2
    assert of.state.stateful_callbacks["gym_trl.curriculum"]["level"] == 2


@pytest.mark.parametrize("made", [Curriculum(LEVELS, episodes=2), PrioritizedTasks(LEVELS)])
def test_no_count_outlives_a_training_but_in_its_checkpoints(made: Curriculum | PrioritizedTasks) -> None:
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
    curriculum = Curriculum(LEVELS, episodes=1, level=1)
    Follower(curriculum).end(trainer(), [played(Task(GUESS, 0, {"level": 1}), StopReason.ENV_ERROR)] * 3)
    assert curriculum.level == 1


def test_a_spec_plays_the_levels_and_evaluates_on_the_last() -> None:
    curriculum = Curriculum(LEVELS)
    spec = GymSpec(GUESS, curriculum=curriculum, env_kwargs={"turns": 3}, num_tasks=4, num_eval_tasks=2, turn_limit=9)
    assert [task.options for task in spec.tasks("train")] == [{"level": 0}] * 4
    assert [task.options for task in spec.tasks("eval")] == [{"level": 2}] * 2
    curriculum.level = 1
    assert spec.assign("train", 0).options == {"level": 1}
    assert spec.assign("eval", 0).options == {"level": 2}
    env = spec.make(GUESS)
    assert env.reset(seed=0, options={"level": 2})[0] == "Guess 1 to 16 in 3 tries."
    assert "from 1 to 16" in env.get_wrapper_attr("instructions")
    assert env.step("<action>1</action>")[0] in ("Higher.", "Correct.")
    env.close()


@pytest.mark.parametrize(
    "arguments",
    [
        {"levels": []},
        {"levels": LEVELS, "level": 3},
        {"levels": LEVELS, "rise": 0.1, "fall": 0.2},
        {"levels": LEVELS, "rise": 1.1},
        {"levels": LEVELS, "episodes": 0},
    ],
)
def test_numbers_that_cannot_work_are_refused(arguments: Any) -> None:
    with pytest.raises(ConfigError):
        Curriculum(**arguments)


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
    reports: list[Any] = warm.run_ranks(script, tmp_path, json.dumps(options), processes=2)  # type: ignore[no-untyped-call]
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
