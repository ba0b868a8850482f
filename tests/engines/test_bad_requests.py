"""A request that cannot be answered fails alone, and a response ends where the model's positions end."""

import asyncio

import pytest
from hypothesis import given, strategies as st
from support.lanes import examples
from transformers import AutoConfig

from gym_trl.engines.transformers import TransformersEngine, context_of
from gym_trl.errors import EngineError
from gym_trl.rollout import asking
from gym_trl.testing import tiny_model, tiny_tokenizer
from gym_trl.types import FinishReason, Request

MODEL = tiny_model(tiny_tokenizer(), width=32, layers=1).eval()
SIZE, POSITIONS = MODEL.config.vocab_size, 48
MODEL.config.max_position_embeddings = POSITIONS
BAD = {
    "no ids": ([], 5),
    "no tokens": ([7], 0),
    "negative": ([7, -1], 5),
    "no such id": ([7, SIZE], 5),
    "far from any id": ([10**12], 5),
    "too long": ([7] * POSITIONS, 5),
}
"""Ids and tokens of requests that the model cannot answer."""


def engine(whole):
    made = TransformersEngine(MODEL, pad_id=0, eos_ids=[])
    made.lockstep = "the test asks for it" if whole else None
    return made


def answers(made, requests):
    async def ask():
        async with asking(made) as sample:
            return await asyncio.gather(*map(sample, requests))

    return asyncio.run(ask())


@examples(40)
@given(st.lists(st.sampled_from([*BAD, None, None]), max_size=8), st.booleans())
def test_others_are_sampled_as_if_bad_requests_were_not_there(names, whole):
    """Law 5 and law 8."""
    kinds = [([7 + index] * 5, 6) if name is None else BAD[name] for index, name in enumerate(names)]
    asked = [Request(f"{index}", ids, tokens, index) for index, (ids, tokens) in enumerate(kinds)]
    for name, request, completion in zip(names, asked, answers(engine(whole), asked), strict=True):
        if name is None:
            assert completion.ids == answers(engine(whole), [request])[0].ids
        else:
            assert (completion.request_id, completion.finish, completion.ids) == (request.id, FinishReason.ERROR, [])
            with pytest.raises(EngineError):
                engine(whole).submit(request)


@pytest.mark.parametrize("whole", [False, True])
def test_a_response_ends_where_the_models_positions_end(whole):
    """As those of vLLM do."""
    asked = [Request(f"{left}", [7] * (POSITIONS - left), 9, 0) for left in (1, 5)]
    found = [(len(one.ids), one.finish) for one in answers(engine(whole), asked)]
    assert found == [(1, FinishReason.LENGTH), (5, FinishReason.LENGTH)]


@pytest.mark.parametrize(
    ("kind", "rotary", "limit"),
    [
        ("llama", {"rope_type": "default"}, 512),
        ("llama", {"rope_type": "linear", "factor": 4.0}, 512),
        ("llama", {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}, 512),
        ("llama", {"rope_type": "dynamic", "factor": 4.0}, 512),
        ("llama", {"rope_type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 128}, 128),
        ("mamba", {}, None),
        ("gpt2", {}, 512),
    ],
)
def test_positions_end_where_rotary_embeddings_change_for_all_of_them(kind, rotary, limit):
    options: dict[str, object] = {"max_position_embeddings": 512} if kind != "mamba" else {}
    options |= {"rope_parameters": {"rope_theta": 1e4, **rotary}} if rotary else {}
    assert context_of(AutoConfig.for_model(kind, **options)) == limit
