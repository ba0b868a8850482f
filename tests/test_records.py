import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gym_trl.errors import ConfigError
from gym_trl.records import JsonLinesWriter, as_record, keep_json_lines, read_json_lines, task_id, to_json
from gym_trl.types import Answer, Message, StopReason, Task, Trajectory, Turn

ANY_TEXT = st.text(st.characters(exclude_categories=()))


def trajectory(text: str = "ox", **changes: Any) -> Trajectory:
    fields: dict[str, Any] = {
        "task": Task("TrlEnv/Echo-v0", 3, {"instance": 7}),
        "stop_reason": StopReason.FAILURE,
        "prompt_ids": [1, 2, 3],
        "completion_ids": [4, 5, 6],
        "mask": [1, 0, 1],
        "logprobs": [-0.5, 0.0, -0.25],
        "turns": (
            Turn(text, Answer("hm", text), 0.5, True, 0, 1),
            Turn("go on", Answer("", "no"), -1.0, False, 2, 3, "n"),
        ),
        "messages": (
            Message("user", text),
            Message("assistant", text),
            Message("user", "go on"),
            Message("assistant", "no"),
            Message("user", "Over."),
        ),
        "terminated": True,
        "model_seconds": 0.5,
        "env_seconds": 0.25,
    }
    return Trajectory(**{**fields, **changes})


def written(path: Path, *records: Mapping[str, Any]) -> list[dict[str, Any]]:
    with JsonLinesWriter(path) as writer:
        for record in records:
            writer.write(record)
    return list(read_json_lines(path))


def test_a_record_says_what_was_played() -> None:
    about: dict[str, Any] = {"step": 2, "policy": "tiny", "split": "train", "group": 4, "attempt": 1, "greedy": False}
    assert as_record(trajectory(), env_kwargs={"turns": 3}, spec={"action_format": "tag"}, **about) == {
        **about,
        "version": 1,
        "task": {
            "id": task_id("TrlEnv/Echo-v0", 3, env_kwargs={"turns": 3}, options={"instance": 7}),
            "env_id": "TrlEnv/Echo-v0",
            "env_kwargs": {"turns": 3},
            "seed": 3,
            "options": {"instance": 7},
        },
        "spec": {"action_format": "tag"},
        "opening": [{"role": "user", "content": "ox"}],
        "turns": [
            {
                "observation": "ox",
                "thinking": "hm",
                "answer": "ox",
                "action": None,
                "reward": 0.5,
                "action_valid": True,
                "start": 0,
                "stop": 1,
            },
            {
                "observation": "go on",
                "thinking": "",
                "answer": "no",
                "action": "n",
                "reward": -1.0,
                "action_valid": False,
                "start": 2,
                "stop": 3,
            },
        ],
        "last_observation": "Over.",
        "unanswered": None,
        "return": -0.5,
        "success": False,
        "terminated": True,
        "truncated": False,
        "stop_reason": "failure",
        "error": None,
        "num_turns": 2,
        "invalid_actions": 1,
        "prompt_tokens": 3,
        "completion_tokens": 3,
        "sampled_tokens": 2,
        "model_seconds": 0.5,
        "env_seconds": 0.25,
        "prompt_ids": None,
        "completion_ids": None,
        "mask": None,
        "logprobs": None,
        "token_texts": None,
    }


def test_tokens_are_kept_when_asked_for() -> None:
    record = as_record(trajectory(), tokens=True)
    assert (record["completion_ids"], record["mask"], record["logprobs"]) == ([4, 5, 6], [1, 0, 1], [-0.5, 0.0, -0.25])


def test_a_failed_episode_has_its_error_and_no_return() -> None:
    empty: dict[str, Any] = {"prompt_ids": [], "completion_ids": [], "mask": [], "logprobs": [], "turns": ()}
    failed = trajectory(stop_reason=StopReason.ENV_ERROR, error="reset raised", messages=(), **empty)
    record = as_record(failed)
    assert (record["return"], record["error"], record["last_observation"]) == (None, "reset raised", None)


@given(text=ANY_TEXT)
def test_any_text_survives_the_disk(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("records") / "rollouts.jsonl"
    record = as_record(trajectory(text))
    assert written(path, record) == [record]


def test_numbers_that_json_does_not_have_become_null() -> None:
    values = {"nan": float("nan"), "inf": -np.inf, "count": np.int64(3), "loss": np.float32(0.5), "path": Path("a")}
    assert json.loads(to_json(values)) == {"nan": None, "inf": None, "count": 3, "loss": 0.5, "path": "a"}


def test_writing_again_appends(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    written(path, {"step": 1})
    assert written(path, {"step": 2}) == [{"step": 1}, {"step": 2}]


@pytest.mark.parametrize("torn", [b'{"step": 3, "lo', b'{"step"', b"\xff", b'{"text": "\\ud8'])
def test_a_torn_last_line_is_ignored_and_then_overwritten(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "log.jsonl"
    written(path, {"step": 1}, {"step": 2})
    path.write_bytes(path.read_bytes() + torn)
    assert list(read_json_lines(path)) == [{"step": 1}, {"step": 2}]
    assert written(path, {"step": 3}) == [{"step": 1}, {"step": 2}, {"step": 3}]


def test_a_whole_last_line_without_a_line_break_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1}')
    assert written(path, {"step": 2}) == [{"step": 1}, {"step": 2}]


def test_a_torn_line_in_the_middle_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(ConfigError, match=r"line 2 of .*log\.jsonl is not a JSON object"):
        list(read_json_lines(path))


def test_what_is_not_wanted_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    written(path, *({"step": step} for step in range(5)))
    keep_json_lines(path, lambda record: record["step"] <= 2)
    assert written(path, {"step": 9}) == [{"step": 0}, {"step": 1}, {"step": 2}, {"step": 9}]
    assert [entry.name for entry in tmp_path.iterdir()] == ["log.jsonl"]
