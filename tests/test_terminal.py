"""Texts of strangers on the terminal: none of their control characters reaches it."""

import contextlib
import io
import json
import re

import pytest
from hypothesis import given, strategies as st
from support.command_line import run_command_line

from gym_trl.cli.terminal import encodable, say_styled
from gym_trl.evaluation.evaluation import evaluate
from gym_trl.records.json_lines import read_json_lines

EVIL = "\x1b]0;title\x07\x1b[2J\x9b2J\rforged\x7f\u202e"
OBEYED = re.compile(r"\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e]")
STYLE = re.compile(r"\x1b\[[0-9;:]*m")


@given(st.text(st.sampled_from("\x1b[]0;31m8J\x07\r\n\t\x9b\u202ea\xe9\U0001f44d")))
def test_a_terminal_gets_only_line_breaks_and_tabs(text):
    shown = encodable(text, io.StringIO())
    assert not OBEYED.search(shown)
    assert json.loads(encodable(json.dumps(text, ensure_ascii=False), io.StringIO())) == text
    assert encodable(shown, io.StringIO()) == shown


def test_texts_of_any_language_stay():
    text = "\n\t\u0642\u0644\u0645\u200c\u0647\u0627 \U0001f469\u200d\U0001f680"
    assert encodable(text, io.StringIO()) == text


@given(st.lists(st.sampled_from(["\x1b[1;31m", "\x1b[38;5;8m", "\x1b[m", "red\n", "\x1b[2J", "\x1b", "[0m", EVIL])))
def test_only_styles_of_an_environments_text_reach_the_terminal(parts):
    text = "".join(parts)
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        say_styled(text)
    assert STYLE.findall(shown.getvalue()) == STYLE.findall(text)
    assert not OBEYED.search(STYLE.sub("", shown.getvalue()))


COMMANDS = [["compare", "a.jsonl", "a.jsonl"], ["view", "a.jsonl", "--text", "0"]]


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_prints_control_characters_of_a_record(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    evaluate("TrlEnv/Echo-v0", "solver", episodes=1, out=tmp_path)
    for name in ("a", "b"):
        record = next(read_json_lines(tmp_path / "rollouts.jsonl"))
        record |= {"policy": f"policy{EVIL}", "error": EVIL}
        record["task"]["id" if name == "a" else "env_id"] = f"TrlEnv/Echo-v0{EVIL}"
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(record) + "\n")
    done = run_command_line(command)
    assert done.output
    assert not OBEYED.search(done.output)
