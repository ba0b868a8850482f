"""Arguments of a function of TRL's first signature, and the use of what it returns; see test_each_way.py."""

import socket
import urllib.error
import urllib.request
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st
from support.warm import free_port

from gym_trl.errors import ConfigError
from gym_trl.integrations.legacy_rollout import legacy_rollout_func
from gym_trl.testing import tiny_tokenizer

TOKENIZER = tiny_tokenizer()


def stand_in(*, rank=0, size=4, training=True):
    return SimpleNamespace(
        accelerator=SimpleNamespace(process_index=rank),
        chat_template=None,
        chat_template_kwargs={},
        model=SimpleNamespace(training=training),
        num_generations=size,
        num_generations_eval=2,
        args=SimpleNamespace(num_generations=size),
        processing_class=TOKENIZER,
    )


def answers(prompts, args, processing_class):
    """As many completions for each prompt as the arguments ask for, which say whose they are."""
    names = [f"{prompt}/{member}" for prompt in prompts for member in range(args.num_generations)]
    return {
        "prompt_ids": [[ord(prompt[0])] for prompt in prompts],
        "completion_ids": [[1, 2] for _ in names],
        "logprobs": [[-1.0, -1.0] for _ in names],
        "name": names,
        "note": "one for all",
    }


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 4))
def test_a_row_gets_its_groups_completion_even_across_processes(ranks, size, groups):
    rows = -(-size * groups // ranks)
    prompts = [f"{'abcdefghij'[row // size % 10]}" for row in range(ranks * rows)]
    names = []
    for rank in range(ranks):
        mine = prompts[rank * rows : (rank + 1) * rows]
        returned = legacy_rollout_func(answers)(mine, stand_in(rank=rank, size=size))
        assert [ids[0] for ids in returned["prompt_ids"]] == [ord(prompt) for prompt in mine]
        assert str(returned["note"]) == "one for all"
        names += returned["name"]
    assert names == [f"{prompt}/{row % size}" for row, prompt in enumerate(prompts)]


def test_prompts_come_rendered_one_for_each_group():
    seen = []

    def rollout_func(prompts, args, processing_class):
        seen.extend(prompts)
        return answers(prompts, args, processing_class)

    legacy_rollout_func(rollout_func)([[{"role": "user", "content": "Hi"}]] * 8, stand_in())
    assert seen == ["<|user|>Hi<|end|><|assistant|>"] * 2


def test_an_evaluation_has_its_own_number_of_generations():
    trainer = stand_in(training=False)
    returned = legacy_rollout_func(answers)(["a", "a", "b", "b"], trainer)
    assert returned["name"] == ["a/0", "a/1", "b/0", "b/1"]
    assert trainer.args.num_generations == 4


@pytest.mark.parametrize(
    "change",
    [
        {"completion_ids": [[1]]},
        {"reward": [1.0] * 3},
    ],
)
def test_what_cannot_be_given_to_rows_is_refused(change):
    def rollout_func(*given):
        return {**answers(*given), **change}

    with pytest.raises(ConfigError):
        legacy_rollout_func(rollout_func)(list("aaaabbbb"), stand_in())


def test_a_url_that_is_taken_is_refused():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}/generate/"
        probe.listen()
        with pytest.raises(ConfigError):
            legacy_rollout_func(answers, generate_url=url)(["a"] * 4, stand_in())


def test_web_pages_and_other_paths_generate_nothing():
    port = free_port()
    answered = []

    def rollout_func(prompts, args, processing_class):
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        for path, headers in (("generate", {"Origin": "https://example.org"}), ("other", {})):
            request = urllib.request.Request(f"http://127.0.0.1:{port}/{path}/", data=b"{}", headers=headers)
            with pytest.raises(urllib.error.HTTPError) as refused:
                opener.open(request, timeout=10)
            with refused.value:
                answered.append(refused.value.code)
        return answers(prompts, args, processing_class)

    legacy_rollout_func(rollout_func, generate_url=f"http://0.0.0.0:{port}/generate/")(["a"] * 4, stand_in())
    assert answered == [403, 404]
