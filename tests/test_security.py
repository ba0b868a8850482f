"""A key is sent where it belongs, and written and shown nowhere."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support.chat_server import said

from gym_trl.errors import ConfigError
from gym_trl.evaluation import evaluate
from gym_trl.text.keys import bearer, redact, without_password

KEY = "sk-planted-5f2c7e9a41d8"
GUESS = "TrlEnv/GuessNumber-v0"


def clean(folder: Path, *texts: str) -> bool:
    """Check that the planted key is in no file of a folder, not in their names, and in no text."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert files or texts
    for file in files:
        assert KEY.encode() not in file.read_bytes(), file
        assert KEY not in file.name
    return not any(KEY in text for text in texts)


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (200, said("<action>50</action>")),
        (400, f"what is {KEY} {'x' * 400}".encode()),
        (200, {"no": {"message": f"You are {KEY}"}}),
    ],
)
def test_an_evaluation_sends_the_key_and_writes_it_nowhere(
    serve: Callable[..., Any], tmp_path: Path, status: int, answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", f"{KEY}\n")
    monkeypatch.setattr("gym_trl.engines.server._FIRST_PAUSE_S", 0.0)
    home = serve(lambda body, times: (status, answer))
    found = evaluate(GUESS, base_url=home.url, episodes=2, references=(), out=tmp_path / "out")
    assert home.headers[0] == f"Bearer {KEY}"
    assert clean(tmp_path, str(found))


def test_neither_does_its_command_where_the_server_repeats_the_key(serve: Callable[..., Any], tmp_path: Path) -> None:
    home = serve(lambda body, times: (401, {"error": {"message": f"Incorrect API key provided: {KEY}."}}))
    ran = subprocess.run(
        [sys.executable, "-m", "gym_trl", "eval", GUESS, "--base-url", home.url, "--episodes", "2", "--out", "out"],
        cwd=tmp_path,
        env={**os.environ, "OPENAI_API_KEY": KEY},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert home.headers[0] == f"Bearer {KEY}"
    assert "Incorrect API key provided: ***." in ran.stdout + ran.stderr
    assert clean(tmp_path, ran.stdout, ran.stderr)


@pytest.mark.parametrize("key", [f"{KEY} {KEY}", f"{KEY}\r\nX-More: 1", f"{KEY}é"])
def test_a_key_that_no_header_can_carry_is_refused_without_being_shown(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(ConfigError) as refused:
        evaluate(GUESS, model="any", base_url="http://127.0.0.1:9/v1", episodes=1)
    assert KEY not in str(refused.value)


def test_the_password_in_an_address_is_not_shown(serve: Callable[..., Any], tmp_path: Path) -> None:
    home = serve(lambda body, times: (404, b"no"))
    address = home.url.replace("http://", f"http://me:{KEY}@")
    found = evaluate(GUESS, base_url=address, model="any", episodes=1, references=(), out=tmp_path / "out")
    assert clean(tmp_path, str(found))


@given(st.text(), st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=4), st.text())
def test_what_is_hidden_is_not_in_the_text_any_more(before: str, key: str, after: str) -> None:
    text = redact(f"{before}{key}{after}", bearer(key)["Authorization"])
    assert key not in text.replace("***", "\0") or set(key) <= {"*"}
    assert isinstance(without_password(before), str)
