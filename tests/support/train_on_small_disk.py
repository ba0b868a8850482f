"""Run the command line on a disk that fills up, cannot be written, and then has room: run by the tests.

It is started in a mount namespace of its own (``unshare -rm``), so that it may mount; the argument is an empty folder,
and what a command said and left there is printed as JSON.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from typer.testing import CliRunner

from gym_trl.cli.app import app
from gym_trl.records.json_lines import read_json_lines
from gym_trl.viewer.live import LiveServer

TRAIN = [
    "train",
    "TrlEnv/Echo-v0",
    "--steps",
    "4",
    "--episodes-per-step",
    "8",
    "--num-generations",
    "4",
    "--eval-episodes",
    "8",
]


def mount(*words):
    subprocess.run(["mount", *words], check=True, timeout=30)


def command(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    return {"status": done.exit_code, "said": done.stderr, "raised": repr(done.exception)}


def left(run):
    """Return the recorded steps and episodes, each line whole, and the checkpoint that a resumption would use."""
    from gym_trl.training.run_folder import last_checkpoint

    checkpoint = last_checkpoint(run)
    return {
        "steps": [line["step"] for line in read_json_lines(run / "metrics.jsonl")],
        "episodes": sum(1 for _ in read_json_lines(run / "rollouts.jsonl")),
        "checkpoint": checkpoint.step if checkpoint else None,
    }


def main(disk):
    found: dict[str, Any] = {}
    mount("-t", "tmpfs", "-o", "size=2500k", "tmpfs", str(disk))
    finished = ("eval", "TrlEnv/Echo-v0", "--policy", "random", "--episodes", 2, "--out", disk / "finished")
    found["finished"] = command(*finished)
    run = disk / "run"
    found["full"] = {**command(*TRAIN, "--grpo", "save_steps=1", "--out", run), **left(run)}
    found["eval full"] = command(
        "eval", "TrlEnv/Echo-v0", "--policy", "random", "--episodes", 2000, "--out", disk / "e"
    )
    mount("-o", "remount,ro,size=64m", str(disk))
    found["finished read-only"] = command(*finished)
    found["read-only"] = {**command("train", "--resume", run), **left(run)}
    found["eval read-only"] = command("eval", "TrlEnv/Echo-v0", "--policy", "random", "--out", disk / "other")
    found["view read-only"] = command("view", run)
    with LiveServer(run) as server, urlopen(f"{server.url}updates?episodes=0", timeout=30) as shown:
        found["live"] = len(json.load(shown)["columns"]["return"])
    mount("-o", "remount,rw", str(disk))
    found["room"] = {**command("train", "--resume", run), **left(run)}
    again = command("eval", "TrlEnv/Echo-v0", "--policy", "random", "--episodes", 2000, "--out", disk / "e")
    records = [(one["task"]["id"], one["attempt"]) for one in read_json_lines(disk / "e" / "rollouts.jsonl")]
    found["eval room"] = {**again, "episodes": len(records), "different": len(set(records))}
    sys.stdout.write(f"{json.dumps(found)}\n")


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    main(Path(sys.argv[1]))
