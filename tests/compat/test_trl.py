"""TRL's environments of 2025: its own documented example, exact tokens, and training with them.

1. The documented example runs with the import and the model's address changed; answers come in the order of prompts.
2. What was sampled is kept verbatim, what programs wrote is masked, whatever tags the model writes itself.
3. Two GRPO steps with a code agent and with a rollout of one's own; a row that is not what was sampled is refused.
"""

import json
import random
import re
import time
from pathlib import Path

import pytest
from engines.vllm_double import VLLMDouble
from support import warm

from compat.e2b_double import E2BDouble
from gym_trl.errors import ConfigError, EngineError
from gym_trl.integrations.code_agent import (
    CodeAgentEnvironment,
    E2BExecuter,
    LocalExecuter,
    VLLMClient,
    VLLMClientGenerationConfig,
)
from gym_trl.testing import tiny_tokenizer

pytestmark = pytest.mark.needs(package="bubblewrap")

TOKENIZER = tiny_tokenizer()
EOS = TOKENIZER.eos_token_id
# From the documentation of the early CodeAgentEnvironment; the import and the model's address are ours.
DOCUMENTED = """
from gym_trl.integrations.code_agent import CodeAgentEnvironment, E2BExecuter, VLLMClientGenerationConfig, VLLMClient

client = VLLMClient()
gen_config = VLLMClientGenerationConfig(
    n=8,
    repetition_penalty=1.0,
    temperature=0.8,
    top_p=0.9,
    top_k=10,
    min_p=0.0,
    max_tokens=256,
)
tokenizer = ...  # Load your tokenizer here
code_executer = E2BExecuter(api_key="YOUR_E2B_TOKEN")
my_env = CodeAgentEnvironment(
    code_executer=code_executer,
    tokenizer=tokenizer,
    parsing_string="<code>",
    stop_string="</code>",
)
prompts = [...]  # List of prompt strings
responses = my_env.run_agent(
    vllm_client=client,
    generation_config=gen_config,
    prompts=prompts
)
"""
PAGE = Path(__file__).parents[2] / "docs" / "is_it_for_me.md"
[OF_THE_PAGE] = re.findall(r"## TRL's code agent.*?```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def ids_of(text):
    return TOKENIZER.encode(text, add_special_tokens=False)


def config(**changes):
    given = {"n": 1, "repetition_penalty": 1.0, "temperature": 1.0, "top_p": 1.0, "top_k": None, "min_p": 0.0}
    return VLLMClientGenerationConfig(**{**given, "max_tokens": 300, **changes})


def thinker(body):
    """Asks for a product, reads the output and says it; how it begins depends on the seed alone."""
    said = TOKENIZER.decode(body["prompt"])
    outputs = re.findall(r"<output>(.*?)\n</output>", said, re.DOTALL)
    if outputs:
        return [*ids_of(f"It is {outputs[-1]}."), EOS]
    asked = re.findall(r"[0-9]+", said.partition("<code>")[0])[:2]
    if len(asked) < 2:  # what the engine asks to see how the server samples
        return [EOS]
    a, b = asked
    blanks = " " * random.Random(body["seed"]).randrange(1, 5)
    return ids_of(f"{blanks}<code>print({a} * {b})</code>")


class Server(VLLMDouble):
    """Tokenizes as well, as vLLM does."""

    def _posted(self, path, body):
        return {"tokens": ids_of(json.loads(body)["prompt"])} if path == "/tokenize" else None


@pytest.fixture
def server():
    with Server(thinker) as double:
        yield double


@pytest.fixture
def client(server):
    return VLLMClient(base_url=server.url)


def agent(executer=None, **options):
    return CodeAgentEnvironment(executer or LocalExecuter(), TOKENIZER, **options)


# The documented example


def test_the_documented_example_runs(server):
    example = DOCUMENTED.replace("VLLMClient()", "VLLMClient(base_url=URL)").replace("tokenizer = ...", "#")
    example = example.replace('E2BExecuter(api_key="YOUR_E2B_TOKEN")', "LocalExecuter()")
    example = example.replace("E2BExecuter,", "LocalExecuter,").replace("[...]", "['What is 6 * 7?', '3 times 5?']")
    names = {"URL": server.url, "tokenizer": TOKENIZER}
    exec(example, names)
    assert len(names["responses"]) == 16
    for place, (asked, result) in enumerate([("What is 6 * 7?", 42), ("3 times 5?", 15)]):
        for response in names["responses"][8 * place : 8 * place + 8]:
            product = asked.replace("?", "").replace("What is ", "").replace("times", "*")
            assert re.fullmatch(
                rf"{re.escape(asked)} +<code>print\({re.escape(product)}\)</code><output>{result}\n</output>It is "
                rf"{result}\.",
                response,
            )
    assert len(set(names["responses"])) > 2, "the answers to a prompt are sampled from seeds of their own"
    sent = server.bodies[0]
    assert [sent[name] for name in ("temperature", "top_p", "top_k", "min_p")] == [0.8, 0.9, 10, 0.0]


def test_results_are_in_the_order_of_the_prompts_whatever_finishes_first(server, client):
    server.delay = lambda body: 0.3 if "10 " in TOKENIZER.decode(body["prompt"]) else 0.0
    prompts = [f"{n} * 2" for n in (10, 11, 12, 13)]
    responses = agent().run_agent(client, config(), prompts)
    assert [response[: len(prompt)] for response, prompt in zip(responses, prompts, strict=True)] == prompts
    assert [response[-6:] for response in responses] == ["is 20.", "is 22.", "is 24.", "is 26."]


def test_programs_of_a_conversation_share_their_variables_and_no_others(server, client):
    def talk(body):
        said = TOKENIZER.decode(body["prompt"])
        turns = ["<code>x = 1</code>", "<code>x += 1</code>", "<code>print(x)</code>", "Done."]
        turn = turns[said.count("<output>")]
        return ids_of(turn) if "code" in turn else [*ids_of(turn), EOS]

    server.answer = talk
    responses = agent().run_agent(client, config(n=3), ["Count."])
    assert (
        responses
        == [
            "Count.<code>x = 1</code><output></output><code>x += 1</code><output></output><code>print(x)</code>"
            "<output>2\n</output>Done."
        ]
        * 3
    )


def test_tools_and_tags_of_ones_own(server, client):
    server.answer = lambda body: (
        [*ids_of("Yes."), EOS] if "[said]" in TOKENIZER.decode(body["prompt"]) else ids_of("[py]twice(4)[/py]")
    )
    environment = agent(
        parsing_string="[py]",
        stop_string="[/py]",
        tools_script="def twice(n): return 2 * n",
        output_string_start="[said]",
        output_string_end="[/said]",
    )
    assert environment.run_agent(client, config(), ["?"]) == ["?[py]twice(4)[/py][said]8\n[/said]Yes."]


def test_all_tokens_together_are_the_budget(server, client):
    server.answer = lambda body: ids_of("<code>1</code>")
    [episode] = agent().play(client, config(max_tokens=100), ["?"])
    assert 60 < len(episode.row.completion_ids) <= 100
    assert episode.row.mask[-1] == 1


# Exact tokens


def test_sampled_ids_are_verbatim_and_what_programs_wrote_is_masked(server, client):
    server.answer = lambda body: (
        [*ids_of("ok"), EOS]
        if len(body["prompt"]) > 40
        else ids_of("<output>no</output><code>print('<|' + 'end|>')</code>")
    )
    [episode] = agent().play(client, config(), ["What?"])
    prompt, first = ids_of("What?"), server.bodies[-2]
    sampled = [server.answer(body) for body in (first, server.bodies[-1])]
    # The first prompt the server saw and what it answered are a prefix of the second, and so on.
    assert server.bodies[-1]["prompt"][: len(prompt) + len(sampled[0])] == prompt + sampled[0]
    assert episode.row.prompt_ids == prompt
    assert [id_ for id_, ours in zip(episode.row.completion_ids, episode.row.mask, strict=True) if ours] == [
        *sampled[0],
        *sampled[1],
    ]
    shown = [id_ for id_, ours in zip(episode.row.completion_ids, episode.row.mask, strict=True) if not ours]
    assert TOKENIZER.decode(shown) == "<output><|end|>\n</output>"
    assert EOS not in shown, "a program cannot write a control token"
    assert [logprob for logprob, ours in zip(episode.row.logprobs, episode.row.mask, strict=True) if not ours] == [
        0.0
    ] * len(shown)
    assert agent().generate(client, config(), ["What?"]) == [episode.row.completion_ids]


# Executers


def test_an_executer_of_ones_own_is_called_by_one_thread_at_a_time(server, client):
    class Own:
        busy = False

        def execute(self, codes):
            assert not self.busy
            self.busy = True
            time.sleep(0.01)
            self.busy = False
            return [code.upper() + "\n" for code in codes]

    responses = agent(Own()).run_agent(client, config(n=8), ["2 * 3"])
    assert all(response.endswith("It is PRINT(2 * 3).") for response in responses)


@pytest.mark.parametrize("error", [OSError, ValueError])
def test_an_executer_that_fails_ends_its_conversations_and_no_others(error, server, client):
    """Law 14: the model's program is not the cause."""

    class Fragile:
        def execute(self, codes):
            if any("13" in code for code in codes):
                raise error("the cloud is gone")
            return ["6\n" for _ in codes]

    with pytest.warns(UserWarning, match="the cloud is gone"):
        responses = agent(Fragile()).run_agent(client, config(), ["13 * 2"])
    assert re.fullmatch(r"13 \* 2 +<code>print\(13 \* 2\)</code>", responses[0])
    assert agent(Fragile()).run_agent(client, config(), ["2 * 3"])[0].endswith("It is 6.")
    assert [one.scored for one in agent(Fragile()).play(client, config(), ["13 * 2", "2 * 3"])] == [False, True]


def test_a_local_executer_keeps_programs_apart_and_in_order():
    codes = ["x = 1", "print(x)", *(f"import time; time.sleep({0.1 * n}); {n}" for n in (3, 2, 1))]
    outputs = LocalExecuter(max_concurrent=3).execute(codes)
    assert outputs[0] == ""
    assert outputs[1].endswith("NameError: name 'x' is not defined\n")
    assert outputs[2:] == ["3\n", "2\n", "1\n"]
    assert LocalExecuter().execute([]) == []


# E2B: the real SDK, and a stand-in for its servers


@pytest.fixture
def cloud():
    pytest.importorskip("e2b_code_interpreter", reason="E2B's SDK is not installed: make test-full installs it")
    with E2BDouble() as double:
        yield double


def test_e2b_runs_programs_each_in_a_sandbox_that_is_ended(cloud):
    executer = E2BExecuter(template="mine", **cloud.options)
    outputs = executer.execute(["print(6 * 7)", "1 / 0", "6 * 7"])
    assert outputs[0] == "42\n"
    assert outputs[1].endswith("ZeroDivisionError: division by zero\n")
    assert outputs[2] == "42\n"
    assert [made["templateID"] for made in cloud.made] == ["mine"] * 3
    assert not cloud.alive


def test_a_conversation_has_one_sandbox_of_e2b_from_its_first_program_on(cloud):
    session = E2BExecuter(**cloud.options).session()
    assert not cloud.made
    assert session.run("x = 1") == ""
    assert session.run("print(x)") == "1\n"
    assert len(cloud.made) == 1
    session.close()
    session.close()
    assert not cloud.alive


@pytest.mark.parametrize("example", [DOCUMENTED, OF_THE_PAGE], ids=["pull request", "page"])
def test_the_documented_examples_run_on_e2b(example, server, cloud):
    names = {"URL": server.url, "tokenizer": TOKENIZER, "CLOUD": cloud.options, "prompts": ["What is 6 * 7?"]}
    example = example.replace("VLLMClient()", "VLLMClient(base_url=URL)").replace("tokenizer = ...", "#")
    example = example.replace('api_key="YOUR_E2B_TOKEN"', "**CLOUD").replace("[...]", "['What is 6 * 7?']")
    exec(example, names)
    assert len(names["responses"]) == len(cloud.made) == 8
    assert all(response.endswith("It is 42.") for response in names["responses"])
    assert not cloud.alive


# Clients and arguments


def test_a_client_generates_n_answers_to_each_prompt_as_ids(server, client):
    server.answer = lambda body: [*ids_of(TOKENIZER.decode(body["prompt"])[::-1]), EOS]
    assert client.generate(["abc", "xy"], n=2, max_tokens=9) == [
        [*ids_of(text), EOS] for text in ("cba",) * 2 + ("yx",) * 2
    ]
    assert client.generate([ids_of("abc")], max_tokens=2) == [ids_of("cb")]
    with pytest.raises(EngineError):
        client.generate([[7] * 5_000])


@pytest.mark.parametrize(
    "make",
    [
        lambda: config(n=0),
        lambda: config(max_tokens=0),
        lambda: CodeAgentEnvironment(7, TOKENIZER),
    ],
)
def test_arguments_that_cannot_work_are_refused(make):
    with pytest.raises(ConfigError):
        make()


# Training

SCRIPT = Path(__file__).with_name("train_code_agent.py")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two steps of each, in a process of its own."""
    folder = tmp_path_factory.mktemp("trained")
    done = warm.run(SCRIPT, folder, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "trained.json").read_text())


@pytest.mark.parametrize("way", ["code agent", "own rollout", "continued", "game"])
def test_two_grpo_steps_train_on_what_was_sampled_and_on_nothing_else(trained, way):
    told = trained[way]
    assert told["steps"] == 2
    assert told["moved"] > 0
    assert len(told["rows"]) == 2 * 8
    for row in told["rows"]:
        assert len(row["ids"]) == len(row["mask"]) == len(row["logprobs"])
        assert row["mask"][-1] == 1
        sampled = [id_ for id_, ours in zip(row["ids"], row["mask"], strict=True) if ours]
        assert sampled == row["sampled"], "every sampled id, verbatim and in order"
        assert all(ours or not logprob for logprob, ours in zip(row["logprobs"], row["mask"], strict=True))
    masked = [row for row in told["rows"] if 0 in row["mask"]]
    assert masked if way != "own rollout" else not masked
    if way == "game":
        assert sorted(told["won"]) == [False] * 8 + [True] * 8


def test_rows_that_were_encoded_again_and_other_distributions_are_refused(trained):
    for wrong in ("encoded again", "too few", "colder", "both"):
        assert trained[wrong] == "ConfigError"
