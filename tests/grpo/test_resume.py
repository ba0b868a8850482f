"""A training that was killed plays, when it is resumed, what an uninterrupted one would have played."""

import json
import signal
from pathlib import Path

import pytest
from support import warm

from gym_trl.grpo.parts.curriculum import LevelCurriculum
from gym_trl.options import Curriculum

pytestmark = pytest.mark.trl

SCRIPT = Path(__file__).parent / "train_and_die.py"


def run(folder, options, *what, processes=1):
    return warm.end_ranks(SCRIPT, folder, json.dumps(options), *what, processes=processes)


def lines(folder, rank, split="train"):
    read = [json.loads(line) for line in (folder / f"played-{rank}.jsonl").read_text().splitlines()]
    return [line for line in read if line["split"] == split]


def went_on_as_if_nothing_had_happened(folder, processes):
    for rank in range(processes):
        results = [json.loads((folder / name / f"result-{rank}.json").read_text()) for name in ("whole", "killed")]
        whole, resumed = results
        after = resumed["start"]
        assert 0 < after < 12
        for split in ("train", "eval"):
            expected = [line for line in lines(folder / "whole", rank, split) if line["step"] >= after]
            played = [line for line in lines(folder / "killed", rank, split) if line["resumed"]]
            if split == "eval":  # that of the checkpoint's own step was played before it was written
                expected = [line for line in expected if line["step"] > after]
            assert [line["tasks"] for line in played] == [line["tasks"] for line in expected]
            assert [line["texts"] for line in played] == [line["texts"] for line in expected]
        for step, loss in resumed["losses"].items():
            assert loss == whole["losses"][step], step
        assert resumed["weights"] == whole["weights"]
        assert resumed["evaluated"].items() >= {"10": whole["evaluated"]["10"]}.items()
    return after


# Eight tasks are two rollouts of four, each trained on by four steps of two pieces: an epoch is eight steps long.
REUSE = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "steps_per_generation": 4,
    "num_iterations": 2,
    "num_generations": 4,
}


@pytest.mark.full
@pytest.mark.parametrize(
    ("processes", "grpo", "dies_at"),  # checkpoints are at 3, 6 and 9, and rollouts at 0, 4 and 8
    [
        pytest.param(1, REUSE, 4, id="one process, in the last step of a rollout"),
        pytest.param(1, REUSE, 7, id="one process, in the middle of a rollout"),
        pytest.param(1, REUSE, 11, id="one process, in the last rollout"),
        # Groups straddle the processes.
        pytest.param(
            2, {**REUSE, "per_device_train_batch_size": 2}, 11, id="two processes", marks=pytest.mark.processes
        ),
    ],
)
def test_a_killed_training_goes_on_with_the_same_tasks_and_weights(processes, grpo, dies_at, tmp_path):
    options = {"grpo": grpo, "dies_at": dies_at, "moves": processes == 1}
    for status, said in run(tmp_path, options, "whole", "killed", processes=processes):
        assert status == -signal.SIGKILL, said[-3000:]
    assert not list((tmp_path / "killed").glob("result-*"))
    for status, said in run(tmp_path, options, "resumed", processes=processes):
        assert status == 0, said[-3000:]
    assert went_on_as_if_nothing_had_happened(tmp_path, processes) == dies_at // 3 * 3


def test_a_curriculum_goes_on_where_it_was_saved_also_with_fewer_levels():
    settings = Curriculum([{"high": 4}, {"high": 8}, {"high": 16}], episodes=4)
    curriculum = LevelCurriculum(settings)
    curriculum.report([(0, True)] * 4)
    curriculum.report([(1, True)] * 3)
    again = LevelCurriculum(settings)
    again.state = json.loads(json.dumps(curriculum.state))
    again.report([(1, True)])
    assert again.level == 2
    shorter = LevelCurriculum(Curriculum([{"high": 4}], episodes=4))
    shorter.state = again.state
    assert shorter.level == 0
