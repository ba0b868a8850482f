"""The real GRPOTrainer with a server, on three processes that finish at different times; and what its hook says.

TRL's own loop gathers prompts at every turn, which hangs or mixes completions up as soon as processes differ in how
many turns they play (trl#6673).
"""

import asyncio
import json
import warnings
from hashlib import blake2b
from pathlib import Path
from types import SimpleNamespace

import pytest
from engines.vllm_double import VLLMDouble
from support import warm

from gym_trl.engines.server import ServerEngine
from gym_trl.errors import EngineError
from gym_trl.grpo.trainer_engine import trainer_engine
from gym_trl.testing import ByteChat, tiny_tokenizer
from gym_trl.types import Request

SCRIPT = Path(__file__).parent / "train_with_server.py"
NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0}
END = tiny_tokenizer().eos_token_id


def answer(body):
    """Depends on the prompt and on nothing else, so that it can be told whose answer one is."""
    digest = blake2b(json.dumps(body["prompt"]).encode(), digest_size=4).digest()
    return [*(10 + byte % 60 for byte in digest), END]


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Four rows each, in two groups of six: the second process has members of both."""
    grpo = {"per_device_train_batch_size": 4, "num_generations": 6}
    with VLLMDouble(answer, delay=lambda body: 0.05 * (body["max_tokens"] - 2)) as vllm:
        folder = tmp_path_factory.mktemp("three")
        return warm.run_ranks(SCRIPT, folder, vllm.url, json.dumps({"grpo": grpo}), processes=3)


class TestThreeProcesses:
    pytestmark = pytest.mark.slow

    def test_each_plays_its_own_number_of_turns_and_takes_its_own_time(self, reports):
        for first, second, third in zip(*(report["rollouts"] for report in reports), strict=True):
            assert (set(first["num_turns"]), set(second["num_turns"]), set(third["num_turns"])) == ({1}, {3}, {5})
            assert third["seconds"] > 0.5

    def test_each_gets_its_own_completions(self, reports):
        for report in reports:
            for rollout in report["rollouts"]:
                names = ("prompt_ids", "completion_ids", "env_mask", "num_turns")
                for prompt, completion, mask, turns in zip(*(rollout[name] for name in names), strict=True):
                    whole, place = prompt + completion, len(prompt)
                    length = 2 + report["rank"]
                    for _ in range(turns):
                        place += mask[place - len(prompt) :].index(1)
                        assert whole[place : place + length] == answer({"prompt": whole[:place]})[:length]
                        place += length
                    assert place == len(whole)

    def test_groups_that_straddle_processes_play_one_game(self, reports):
        for rollouts in zip(*(report["rollouts"] for report in reports), strict=True):
            tasks = [task for rollout in rollouts for task in rollout["task"]]
            assert [len(set(tasks[:6])), len(set(tasks[6:])), len(set(tasks))] == [1, 1, 2]

    def test_nothing_failed(self, reports):
        assert all(set(rollout["error"]) == {None} for report in reports for rollout in report["rollouts"])


class Generation(SimpleNamespace):
    """The part of ``trainer.vllm_generation`` that a rollout reads."""

    __hash__ = object.__hash__  # type: ignore[assignment]


def trainer(url, *, correction=True, **sampling):
    generation = Generation(
        server_base_url=url,
        server_host="0.0.0.0",
        server_port=8000,
        structured_outputs_regex=None,
        **{**NEUTRAL, "generation_kwargs": {}, **sampling},
    )
    args = SimpleNamespace(vllm_mode="server", vllm_importance_sampling_correction=correction)
    alone = SimpleNamespace(wait_for_everyone=lambda: None)
    return SimpleNamespace(use_vllm=True, args=args, vllm_generation=generation, eos_token_ids=[END], accelerator=alone)


def ask(of, changes=None):
    async def sample(engine):
        assert isinstance(engine, ServerEngine)
        async with engine:
            return [await engine.sample(Request("0", [1, 2], 5, 0, number=1))]

    with trainer_engine(of, ByteChat(), changes) as engine:
        return asyncio.run(sample(engine))


@pytest.fixture
def vllm():
    with VLLMDouble(answer) as made:
        yield made


def test_sampling_is_what_trl_would_do(vllm):
    one = trainer(vllm.url, temperature=0.7, repetition_penalty=1.1, generation_kwargs={"frequency_penalty": 0.1})
    ask(one)
    asked = {"temperature": 0.7, "top_p": 1.0, "top_k": 0, "repetition_penalty": 1.1, "frequency_penalty": 0.1}
    assert asked.items() <= vllm.bodies[-1].items()
    assert vllm.bodies[-1]["stop_token_ids"] == sorted({END, *ByteChat.stop_ids})


def test_what_a_rollout_asks_to_be_otherwise_goes_over_the_trainers_own(vllm):
    one = trainer(vllm.url, temperature=0.7, generation_kwargs={"stop": ["old"], "frequency_penalty": 0.1})
    ask(one, {"temperature": 0.5, "stop": "new", "stop_token_ids": [77]})
    asked = vllm.bodies[-1]
    assert (asked["temperature"], asked["frequency_penalty"], asked["stop"]) == (0.5, 0.1, ["new"])
    assert asked["stop_token_ids"] == sorted({END, 77, *ByteChat.stop_ids})
    ask(one, {"ignore_eos": True})
    assert (vllm.bodies[-1]["stop_token_ids"], vllm.bodies[-1]["temperature"]) == ([], 0.7)


def test_the_address_may_be_a_host_and_a_port(vllm):
    one = trainer(None)
    one.vllm_generation.server_host, one.vllm_generation.server_port = "127.0.0.1", vllm.port
    assert ask(one)[0].ids


@pytest.mark.parametrize(
    ("sampling", "named"),
    [({"top_p": 0.9}, "top_p cut"), ({"top_k": 20, "min_p": 0.1}, "top_k and min_p cut")],
)
def test_cutting_the_distribution_is_warned_of(vllm, sampling, named):
    one = trainer(vllm.url, **sampling)
    with pytest.warns(UserWarning, match=named):
        ask(one)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ask(trainer(vllm.url, correction=False, **sampling))
        ask(trainer(vllm.url, top_k=-1, top_p=1, temperature=0.5))


def test_raw_logprobs_matter_to_the_correction_and_to_nothing_else():
    with VLLMDouble(answer, mode="raw_logprobs") as vllm:
        with pytest.raises(EngineError, match="--logprobs-mode processed_logprobs"):
            ask(trainer(vllm.url))
        assert ask(trainer(vllm.url, correction=False, temperature=0.5))[0].ids


def test_a_missing_server_is_an_error_at_first_and_costs_episodes_later(vllm, monkeypatch):
    monkeypatch.setattr("gym_trl.engines.server._FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr("gym_trl.engines.server._LONGEST_PAUSE_S", 0.001)
    late = trainer(vllm.url)
    ask(late)
    vllm.kill()
    assert "no server answers" in ask(late)[0].error
    with pytest.raises(EngineError, match="no server answers"):
        ask(trainer(vllm.url))
