from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.vector import AsyncVectorEnv

from gym_trl.envs.guess_number import GuessNumber
from gym_trl.records.json_lines import read_json_lines
from gym_trl.records.schema import as_record
from gym_trl.testing import play
from gym_trl.types import Answer, EpisodeResult, StopReason, Task, TokenTrace, Turn
from gym_trl.wrappers import ParseAction, RecordTranscript, TurnLimit


def answers(*said: str) -> Any:
    rest = iter(said)
    return lambda _: next(rest)


def test_every_episode_becomes_a_line(tmp_path: Path) -> None:
    env = RecordTranscript(ParseAction(gym.make("TrlEnv/GuessNumber-v0")), str(tmp_path / "played.jsonl"))
    play(env, answers("<think>Half.</think><action>25</action>", "?", "<action>31</action>"), options={"instance": 30})
    play(env, answers(*["<action>1</action>"] * 6), seed=4)
    won, lost = read_json_lines(tmp_path / "played.jsonl")
    assert won["task"] == {
        "env_id": "TrlEnv/GuessNumber-v0",
        "seed": None,
        "env_kwargs": {},
        "options": {"instance": 30},
    }
    assert won["turns"][0] == {
        "observation": "Guess 1 to 50 in 6 tries.",
        "thinking": "Half.",
        "answer": "<action>25</action>",
        "action": "25",
        "reward": 0.0,
        "action_valid": True,
        "action_cut": False,
    }
    assert [turn["action_valid"] for turn in won["turns"]] == [True, False, True]
    assert (won["return"], won["success"], won["stop_reason"], won["last_observation"]) == (
        1.0,
        True,
        "success",
        "Correct.",
    )
    assert won["instructions"] == env.get_wrapper_attr("instructions")
    assert (lost["task"]["seed"], lost["return"], lost["stop_reason"]) == (4, 0.0, "failure")


def test_a_line_that_a_full_disk_cuts_off_is_an_error_and_is_taken_back(tmp_path: Path) -> None:
    import resource

    path = tmp_path / "played.jsonl"
    env = RecordTranscript(gym.make("TrlEnv/GuessNumber-v0"), str(path))
    play(env, answers(*["1"] * 6), seed=4)
    written = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(written) + 100, limits[1]))
    try:
        with pytest.raises(OSError, match=r"only 100 of \d+ bytes could be written"):
            play(env, answers(*["1"] * 6), seed=4)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == written


def test_the_fields_are_those_of_the_records_that_training_writes() -> None:
    env = RecordTranscript(GuessNumber())
    env.reset(seed=0)
    env.step("25")
    turn = Turn("", Answer("", ""), 0.0, True, 0, 1)
    trajectory = EpisodeResult(Task("", 0), StopReason.FAILURE, (turn,), (), TokenTrace([1], [2], [1], [0.0]))
    assert env.transcript is not None
    written = as_record(trajectory)
    assert env.transcript.keys() - written.keys() == {"instructions"}
    assert env.transcript["turns"][0].keys() == written["turns"][0].keys() - {"start", "stop"}
    assert env.transcript["version"] == written["version"]


def test_what_was_recorded_can_be_played_again() -> None:
    env = RecordTranscript(gym.make("TrlEnv/GuessNumber-v0"))
    steps = play(env, answers(*"123456"), seed=5, options={"instance": 7})
    assert env.transcript is not None
    task, said = env.transcript["task"], [turn["answer"] for turn in env.transcript["turns"]]
    again = play(gym.make(task["env_id"]), answers(*said), seed=task["seed"], options=task["options"])
    assert again == steps


def test_episodes_that_are_given_up_are_written_too(tmp_path: Path) -> None:
    env = RecordTranscript(GuessNumber(), str(tmp_path / "played.jsonl"))
    env.reset(seed=0)
    env.reset(seed=1)
    env.step("1")
    env.reset(seed=2)
    env.step("2")
    env.close()
    env.close()
    written = list(read_json_lines(tmp_path / "played.jsonl"))
    assert [(record["task"]["seed"], record["stop_reason"]) for record in written] == [
        (1, "cancelled"),
        (2, "cancelled"),
    ]


def test_a_limit_inside_is_named_as_the_reason() -> None:
    env = RecordTranscript(TurnLimit(GuessNumber(), turns=1))
    play(env, answers("1"), options={"instance": 30})
    assert env.transcript is not None
    assert (env.transcript["stop_reason"], env.transcript["success"]) == ("turn_limit", False)


def test_an_episode_is_written_once(tmp_path: Path) -> None:
    env = RecordTranscript(GuessNumber(), str(tmp_path / "played.jsonl"))
    play(env, answers("31"), options={"instance": 30})
    env.step("31")
    env.close()
    assert len(list(read_json_lines(tmp_path / "played.jsonl"))) == 1


def test_strange_characters_survive(tmp_path: Path) -> None:
    env = RecordTranscript(GuessNumber(turns=1), str(tmp_path / "played.jsonl"))
    play(env, answers("\ud800\x00é\n"), seed=0)
    [record] = read_json_lines(tmp_path / "played.jsonl")
    assert record["turns"][0]["answer"] == "\ud800\x00é"


def test_many_environments_can_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "played.jsonl"

    def played(seed: int) -> None:
        for _ in range(20):
            play(RecordTranscript(GuessNumber(), str(path)), answers(*"123456"), seed=seed)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(played, range(8)))
    seeds = [record["task"]["seed"] for record in read_json_lines(path)]
    assert sorted(seeds) == sorted([*range(8)] * 20)


@pytest.mark.processes
def test_many_processes_can_share_a_file(tmp_path: Path) -> None:
    path = str(tmp_path / "played.jsonl")
    envs = AsyncVectorEnv([lambda: RecordTranscript(GuessNumber(turns=1), path)] * 3, context="fork")
    envs.reset(seed=0)
    envs.step(("1", "1", "1"))
    envs.close()
    assert sorted(record["task"]["seed"] for record in read_json_lines(Path(path))) == [0, 1, 2]
