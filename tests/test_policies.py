"""Policies of an evaluation: a server over real sockets, models in this process, and what is refused."""

import json
import pickle
import signal
import time
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest
from support import vllm_cpu, vllm_run
from support.chat_server import said

from gym_trl.errors import ConfigError, EngineError
from gym_trl.evaluation.evaluation import evaluate
from gym_trl.policies.functions import person
from gym_trl.policies.model import Model
from gym_trl.policies.server import server
from gym_trl.records.files import read_records
from gym_trl.records.schema import Record, messages_of
from gym_trl.testing import save_tiny

GUESS = "TrlEnv/GuessNumber-v0"


def solve(body: dict[str, Any], times: int) -> tuple[int, Any]:
    """Plays perfectly from nothing but the conversation."""
    time.sleep(0.005)
    low, high = 1, 50
    for message in body["messages"]:
        hint = message["content"].rpartition("\n\n")[2]
        middle = (low + high) // 2
        low, high = (middle + 1, high) if hint == "Higher." else (low, middle - 1) if hint == "Lower." else (low, high)
    return 200, said(f"<think>Half.</think>I say <action>{(low + high) // 2}</action>")


def play(player: Any, episodes: int = 12, **options: Any) -> list[Record]:
    kept: list[Record] = []
    evaluate(GUESS, player, episodes=episodes, on_episode=lambda record, board: kept.append(record), **options)
    return kept


def test_a_server_plays_conversations(serve: Any) -> None:
    home = serve(solve)
    player = server(
        home.url, api_key="secret", sampling={"temperature": 0.5}, system_prompt="Play.", max_tokens_per_turn=9
    )
    records = play(player)
    assert player.name == "the-model"
    assert all(record["success"] for record in records)
    record = records[0]
    assert record["opening"][0] == {"role": "system", "content": "Play."}
    assert "between <action> and </action>" in record["opening"][1]["content"]
    assert record["turns"][0]["thinking"] == "Half."
    assert (record["turns"][0]["answer"], record["turns"][0]["action"]) == ("I say <action>25</action>", "25")
    assert (record["prompt_tokens"], record["sampled_tokens"]) == (40, 5 * record["num_turns"])
    assert {(body["model"], body["temperature"], body["max_tokens"]) for body in home.bodies} == {("the-model", 0.5, 9)}
    assert set(home.headers) == {"Bearer secret"}
    # The last request of an episode is its conversation without the last answer and what came of it.
    last = max((body["messages"] for body in home.bodies), key=len)
    longest = max(records, key=lambda record: record["num_turns"])
    assert [message["role"] for message in last] == [message["role"] for message in messages_of(longest)[:-2]]


def test_many_conversations_go_on_at_once_and_each_is_seeded_apart(serve: Any) -> None:
    home = serve(solve)
    play(server(home.url, concurrency=3), episodes=6)
    assert 1 < home.peak <= 3
    assert len({body["seed"] for body in home.bodies}) == len(home.bodies)
    seeds = sorted(body["seed"] for body in home.bodies)
    home.bodies.clear()
    play(server(home.url, concurrency=1), episodes=6)
    assert sorted(body["seed"] for body in home.bodies) == seeds


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_that_is_busy_is_asked_again(serve: Any, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gym_trl.text.chat_client.PAUSES_S", (0.01, None))
    home = serve(lambda body, times: solve(body, times) if times else (status, {}))
    assert all(record["success"] for record in play(server(home.url), episodes=4))


def test_what_stays_unanswered_is_a_failure_and_the_others_go_on(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gym_trl.text.chat_client.PAUSES_S", (0.0, None))
    doomed: list[int] = []

    def answer(body: dict[str, Any], times: int) -> tuple[int, Any]:
        if len(body["messages"]) == 1 and not doomed:
            doomed.append(body["seed"])
        return (503, {}) if body["seed"] in doomed else solve(body, times)

    records = play(server(serve(answer).url, concurrency=1), episodes=5)
    assert [record["stop_reason"] for record in records] == ["cancelled", *["ended"] * 4]
    assert "returned status 503" in str(records[0]["error"])


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((200, b"not json"), "cancelled"),
        ((200, {"choices": []}), "cancelled"),
        ((400, {"error": {"message": "maximum context length is 512"}}), "token_limit"),
    ],
)
def test_a_strange_answer_is_its_episodes_data(serve: Any, answer: tuple[int, Any], reason: str) -> None:
    [record] = play(server(serve(lambda body, times: answer).url), episodes=1)
    assert (record["stop_reason"], record["return"]) == (reason, None)


def test_what_a_server_refuses_for_every_episode_ends_the_evaluation(serve: Any) -> None:
    home = serve(lambda body, times: (401, {"error": {"message": "no such key"}}))
    with pytest.raises(EngineError, match=r"returned status 401.*no such key"):
        play(server(home.url))


def asks_to_find_out(body: dict[str, Any]) -> bool:
    """Return True unless this is a turn of a game, whose first one ends with the first observation."""
    said = [message["content"] for message in body["messages"] if message["role"] == "user"]
    return len(said) == 1 and not said[0].endswith("tries.")


@pytest.mark.parametrize("status", [400, 403, 422])
def test_a_conversation_that_a_server_refuses_is_a_failure_and_the_others_go_on(serve: Any, status: int) -> None:
    """Also the first one, before the server has answered anything."""
    doomed: list[int] = []

    def answer(body: dict[str, Any], times: int) -> tuple[int, Any]:
        if asks_to_find_out(body):
            return 200, said("Hi.")
        doomed.append(body["seed"]) if not doomed else None
        return (status, {"error": "filtered"}) if body["seed"] in doomed else solve(body, times)

    records = play(server(serve(answer).url, concurrency=1), episodes=5)
    assert [record["stop_reason"] for record in records] == ["cancelled", *["ended"] * 4]
    assert f"returned status {status}" in str(records[0]["error"])


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"system_prompt": "Play."}, lambda body: body["messages"][0]["role"] == "system"),
        ({"max_tokens_per_turn": 10**6}, lambda body: body["max_tokens"] > 4096),
        ({"sampling": {"temprature": 1}}, lambda body: "temprature" in body),
    ],
)
def test_what_is_refused_whatever_is_said_is_the_first_refusal(serve: Any, options: Any, refused: Any) -> None:
    def answer(body: dict[str, Any], times: int) -> tuple[int, Any]:
        said = "of what was asked to find out" if asks_to_find_out(body) else "of the first turn"
        return (400, {"error": {"message": f"refused because {said}"}}) if refused(body) else solve(body, times)

    with pytest.raises(EngineError, match="refused because of the first turn"):
        play(server(serve(answer).url, **options))


def test_a_server_that_is_not_there_is_said_before_anything_is_played(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gym_trl.text.chat_client.PAUSES_S", (None,))
    with pytest.raises(EngineError, match=r"127\.0\.0\.1:9"):
        server("http://127.0.0.1:9/v1")


def test_a_person_can_leave_in_the_middle() -> None:
    asked = iter(["25", None])
    shown: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        play(person(lambda _: next(asked), shown.append))
    assert any("Find the secret" in text for text in shown)


def test_an_interrupt_ends_a_policy_in_the_middle_of_a_response() -> None:
    def ask(prompt: str) -> str:
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("it was not interrupted")

    with pytest.raises(KeyboardInterrupt):
        play(person(ask, lambda text: None))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policies") / "tiny"
    save_tiny(folder)
    return folder


PLAIN: dict[str, Any] = {"action_format": "plain", "env_kwargs": {"high": 8, "turns": 3}}


def test_a_greedy_model_says_the_same_in_every_attempt(tiny: Path) -> None:
    options = {"max_tokens_per_turn": 3, "sampling": {"temperature": 0}, "system_prompt": "Play.", "label": "tiny"}
    records = play(Model(str(tiny), **options), episodes=6, attempts=3, tokens=True, **PLAIN)  # type: ignore[arg-type]
    assert {record["greedy"] for record in records} == {True}
    assert {record["policy"] for record in records} == {"tiny"}
    assert records[0]["opening"][0] == {"role": "system", "content": "Play."}
    said = {(record["group"], tuple(turn["answer"] for turn in record["turns"])) for record in records}
    assert len(said) == 2
    for record in records:
        assert record["token_texts"] is not None
        assert record["logprobs"] is not None
        assert len(record["token_texts"]) == len(record["logprobs"]) == record["completion_tokens"]


@pytest.mark.full
def test_an_episode_is_sampled_alike_whatever_is_played_beside_it(tiny: Path) -> None:
    def said(concurrency: int) -> dict[Any, list[str]]:
        records = play(
            Model(str(tiny), max_tokens_per_turn=2, concurrency=concurrency), episodes=24, attempts=2, **PLAIN
        )
        return {
            (record["task"]["id"], record["attempt"]): [turn["answer"] for turn in record["turns"]]
            for record in records
        }

    alone = said(1)
    assert alone == said(24)
    assert len({str(answers) for answers in alone.values()}) > 12


def test_a_model_is_frozen_and_pickled_with_its_options() -> None:
    model = Model("Qwen/Qwen3-0.6B", turn_limit=8, history=4, max_tokens_per_turn=16, system_prompt="Be brief.")
    assert pickle.loads(pickle.dumps(model)) == model
    assert dict(model.options) == {"turn_limit": 8, "history": 4}
    changed = model.changed(turn_limit=2, label="short")
    assert (changed.name, changed.options["turn_limit"], changed.options["history"]) == ("short", 2, 4)
    assert (changed.max_tokens_per_turn, changed.system_prompt) == (16, "Be brief.")
    with pytest.raises(FrozenInstanceError):
        model.label = "mine"  # type: ignore[misc]
    with pytest.raises(ConfigError, match="there is no option options"):
        replace(model, label="mine")


def test_an_option_of_an_evaluation_overrides_the_models_own(tiny: Path) -> None:
    model = Model(str(tiny), max_tokens_per_turn=3, turn_limit=2, system_prompt="Be brief.")
    own = play(model, episodes=1, **PLAIN)
    given = play(model, episodes=1, max_tokens_per_turn=2, turn_limit=1, system_prompt="Be long.", **PLAIN)
    for [record], system, tokens, turns in ((own, "Be brief.", 3, 2), (given, "Be long.", 2, 1)):
        assert record["opening"][0] == {"role": "system", "content": system}
        assert record["num_turns"] == turns
        assert 0 < (record["sampled_tokens"] or 0) <= tokens * turns
        assert record["spec"] == {"action_format": "plain", "end_after_invalid": 3, "turn_limit": turns}


@pytest.mark.vllm
@pytest.mark.processes
def test_a_model_plays_on_the_real_vllm(tiny: Path, tmp_path: Path) -> None:
    engine = {**vllm_cpu.ENGINE, "max_model_len": 512, "max_num_batched_tokens": 4096}
    llm = [f"--llm={name}={value}" for name, value in engine.items()]
    options = [
        "--env-kwargs=high=8",
        "--env-kwargs=turns=3",
        "--max-tokens-per-turn=2",
        "--action-format=plain",
        "--tokens",
    ]
    games = ["--episodes=24", "--attempts=2", f"--out={tmp_path}", "--json"]
    told = vllm_run.run("gym_trl", "eval", GUESS, f"--model={tiny}", "--vllm=colocate", *llm, *options, *games)
    [row] = json.loads(told[told.index("{\n") :])["rows"]
    assert (row["episodes"], row["unscored"], row["tasks"]) == (24, 0, 12)
    for record in read_records(tmp_path):
        assert record["mask"] is not None
        assert record["logprobs"] is not None
        assert sum(record["mask"]) == record["sampled_tokens"] != 0
        assert all(number is not None and number <= 0.0 for number in record["logprobs"])
