# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-any-generics, allow-incomplete-defs
"""What the attachment does to a real GRPOTrainer, on one process and on two."""

import json
import os
import socket
from pathlib import Path

import pytest
import warm

SCRIPT = Path(__file__).parent / "train_with_failures.py"

pytestmark = [pytest.mark.trl, pytest.mark.processes]


def run(folder, what, options, processes=1, timeout=200):
    """Run the script in ``processes`` forks of a warm process, and read what each wrote."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = []
    for rank in range(processes):
        group = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
        group |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "ACCELERATE_USE_CPU": "true"}
        env = {**os.environ, "OMP_NUM_THREADS": "1"} | ({k: str(v) for k, v in group.items()} if processes > 1 else {})
        said = folder / f"said-{rank}"
        started.append((warm.start(str(SCRIPT), str(folder), what, json.dumps(options), env=env, said=said), said))
    for process, said in started:
        process.join(timeout)
        if process.is_alive():
            process.kill()
        assert process.exitcode == 0, said.read_text()[-3000:]
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(processes)]


@pytest.mark.parametrize("processes", [1, 2])
def test_an_unscored_episode_moves_no_weight(processes, tmp_path):
    """On two processes of six rows each, the second group of four straddles them."""
    reports = run(tmp_path, "rewards", {"rows": 12 // processes}, processes)
    for report in reports:
        assert sum(example["failed"] for example in report["seen"]) > 5
        assert sum(example["moved"] for example in report["seen"]) > 5


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    """The logs of the same episodes on one process and on two, where all of the second one's failed."""

    def logs(processes):
        rows = 8 // processes
        grpo = {"per_device_train_batch_size": rows, "per_device_eval_batch_size": rows, "num_generations_eval": 4}
        reports = run(tmp_path_factory.mktemp("logs"), "metrics", {"grpo": grpo}, processes)
        return [
            [
                {name: value for name, value in entry.items() if "env/" in name or name.endswith("reward")}
                for entry in report["logs"]
            ]
            for report in reports
        ]

    return logs(1)[0], *logs(2)


def test_metrics_are_sums_and_counts_over_all_processes_also_where_one_has_only_failures(logged):
    alone, *pair = ([entry for entry in logs if "env/unscored" in entry] for logs in logged)
    assert pair == [alone, alone]
    assert [entry["env/unscored"] for entry in alone] == [0.5, 0.5]
    assert all(entry["env/stop/env_error"] == 0.5 and entry["env/turns"] > 0 for entry in alone)


def test_an_evaluation_on_two_processes_counts_every_game_once(logged):
    """Three games of four rows are three batches of four rows, and two processes play four."""
    alone, *pair = ([entry for entry in logs if "eval_env/turns" in entry] for logs in logged)
    assert pair == [alone, alone]
    assert "eval_reward" in alone[0]
