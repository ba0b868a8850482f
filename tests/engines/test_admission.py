"""A request that cannot be answered comes back with the reason, and no other request notices, in every engine."""

from contextlib import ExitStack

import pytest
from hypothesis import given, strategies as st
from support.lanes import examples

from gym_trl.engines.admission import Admission, context_of
from gym_trl.engines.scripted import ScriptedEngine
from gym_trl.engines.transformers import TransformersEngine
from gym_trl.testing import tiny_model, tiny_tokenizer
from gym_trl.types import Completion, FinishReason, Request

TOKENIZER = tiny_tokenizer()
MODEL = tiny_model(TOKENIZER, width=32, layers=1).eval()
SIZE, POSITIONS = MODEL.config.vocab_size, 48
MODEL.config.max_position_embeddings = POSITIONS
BAD = {
    "no ids": ([], 5, "at least one id"),
    "no tokens": ([7], 0, "max_tokens must be at least 1, got 0"),
    "fewer than no tokens": ([7], -3, "max_tokens must be at least 1, got -3"),
    "negative": ([7, -1], 5, "must not be negative, got -1"),
}
BAD_FOR_A_MODEL = {
    "no such id": ([7, SIZE], 5, f"has the id {SIZE}"),
    "far from any id": ([10**12], 5, "has the id"),
    "too long": ([7] * POSITIONS, 5, f"leaves no room in the model's {POSITIONS} positions"),
    "much too long": ([7] * 500, 5, "has 500 ids"),
}


def transformers(stack):
    return TransformersEngine(MODEL, pad_id=0, eos_ids=[])


def lockstep(stack):
    made = transformers(stack)
    made.lockstep = "the test asks for it"
    return made


def scripted(stack):
    return ScriptedEngine(lambda request: [7] * (request.max_tokens + 1), delay=lambda request: request.max_tokens)


OF_MODELS = [transformers, lockstep]
ENGINES = [*OF_MODELS, scripted]


def answers(engine, number):
    found: list[Completion] = []
    while len(found) < number:
        found += engine.collect(block=True)
    return {one.request_id: one for one in found}


@pytest.mark.parametrize("make", ENGINES, ids=lambda make: make.__name__)
def test_a_bad_request_fails_alone(make):
    bad = BAD | BAD_FOR_A_MODEL if make in OF_MODELS else BAD
    with ExitStack() as stack:
        engine = make(stack)
        for index, (name, (ids, tokens, _)) in enumerate(bad.items()):
            engine.submit(Request(f"good {index}", [7 + index] * 9, 3 + index, index))
            engine.submit(Request(name, ids, tokens, 0))
        found = answers(engine, 2 * len(bad))
        for index, (name, (_, _, why)) in enumerate(bad.items()):
            assert (found[name].finish, found[name].ids, found[name].logprobs) == (FinishReason.ERROR, [], [])
            assert why in (found[name].error or "")
            assert (found[f"good {index}"].finish, len(found[f"good {index}"].ids)) == (FinishReason.LENGTH, 3 + index)
        assert engine.collect(block=True) == []
        engine.submit(Request("afterwards", [7], 2, 0))
        assert len(answers(engine, 1)["afterwards"].ids) == 2


@pytest.mark.parametrize("make", ENGINES, ids=lambda make: make.__name__)
def test_a_second_request_of_the_same_name_is_refused_where_it_is_made(make):
    """Its completion could not be told from that of the first."""
    with ExitStack() as stack:
        engine = make(stack)
        for name, ids in (("a", [7]), ("empty", [])):
            engine.submit(Request(name, ids, 4, 0))
            with pytest.raises(ValueError, match=f"request '{name}' is already running"):
                engine.submit(Request(name, [8], 2, 0))
        found = answers(engine, 2)
        assert (len(found["a"].ids), found["empty"].finish) == (4, FinishReason.ERROR)
        for name in ("a", "empty"):  # a name is free again
            engine.submit(Request(name, [7], 3, 0))
        assert [len(one.ids) for one in answers(engine, 2).values()] == [3, 3]


@pytest.mark.parametrize("make", ENGINES, ids=lambda make: make.__name__)
def test_a_bad_request_that_is_cancelled_does_not_come_back(make):
    with ExitStack() as stack:
        engine = make(stack)
        engine.submit(Request("bad", [], 4, 0))
        engine.cancel("bad")
        engine.submit(Request("good", [7], 4, 0))
        assert list(answers(engine, 1)) == ["good"]


@examples(40)
@given(st.lists(st.sampled_from([*BAD | BAD_FOR_A_MODEL, None, None]), max_size=8), st.booleans(), st.booleans())
def test_others_are_sampled_as_if_bad_requests_were_not_there(names, whole, block):
    """Law 5."""
    make = lockstep if whole else transformers
    bad = BAD | BAD_FOR_A_MODEL
    engine = make(None)
    asked = [
        Request(f"{index}", ids, tokens, index)
        for index, name in enumerate(names)
        for ids, tokens, _ in [([7 + index] * 5, 6, "") if name is None else bad[name]]
    ]
    for request in asked:
        engine.submit(request)
    found: list[Completion] = []
    while len(found) < len(asked):
        found += engine.collect(block=block)
    for completion in found:
        request = asked[int(completion.request_id)]
        if names[int(request.id)] is None:
            alone = make(None)
            alone.submit(request)
            assert answers(alone, 1)[request.id].ids == completion.ids
        else:
            assert completion.finish is FinishReason.ERROR


class Unread(int):
    """Id that must not be looked at."""

    def __lt__(self, other):
        raise AssertionError("an id was looked at again")

    __gt__ = __lt__


@given(st.lists(st.integers(-2, 11), max_size=4), st.integers(1, 9))
def test_a_turn_looks_only_at_the_ids_that_are_new(new, turns):
    """Or a turn would cost more the longer its episode is."""
    admission = Admission(vocabulary=10)
    admitted = admission.admit(Request("a", [Unread(7)] * turns + new, 4, 0, turn=2, seen=turns), ())
    assert (admitted is not None) == all(0 <= one < 10 for one in new)


@pytest.mark.parametrize("make", OF_MODELS, ids=lambda make: make.__name__)
def test_a_response_ends_where_the_models_positions_end(make):
    """As those of vLLM do."""
    with ExitStack() as stack:
        engine = make(stack)
        for left in (1, 5):
            engine.submit(Request(f"{left}", [7] * (POSITIONS - left), 9, 0))
        found = answers(engine, 2)
        assert {name: (len(one.ids), one.finish) for name, one in found.items()} == {
            "1": (1, FinishReason.LENGTH),
            "5": (5, FinishReason.LENGTH),
        }


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
    from transformers import AutoConfig

    options: dict[str, object] = {"max_position_embeddings": 512} if kind != "mamba" else {}
    options |= {"rope_parameters": {"rope_theta": 1e4, **rotary}} if rotary else {}
    assert context_of(AutoConfig.for_model(kind, **options)) == limit
