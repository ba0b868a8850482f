"""Trees of tokens: each beginning once, each token after its own path, scores and gradients those of plain rows."""

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoConfig, AutoModelForCausalLM

from gym_trl.grpo import sampled_logprobs, shared_prefix
from gym_trl.grpo.joint_pass import JointPass
from gym_trl.grpo.sampled_logprobs import ScoredRows, prefix_sharing, score_sampled
from gym_trl.grpo.shared_prefix import Sharing, tree_of
from gym_trl.testing import tiny_model, tiny_tokenizer

pytestmark = pytest.mark.trl
ROWS = st.lists(st.lists(st.integers(1, 3), min_size=2, max_size=8), min_size=1, max_size=6)
SMALL = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "head_dim": 8}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1}


def arrays(rows):
    return [np.array(row) for row in rows]


@given(ROWS)
def test_a_tree_has_each_beginning_of_its_rows_once(rows):
    tree = tree_of(arrays(rows))
    beginnings = {tuple(row[: length + 1]) for row in rows for length in range(len(row))}
    assert len(tree.ids) == len(beginnings)
    for row, places in zip(rows, tree.places, strict=True):
        assert tree.ids[places].tolist() == row
        assert tree.depths[places].tolist() == list(range(len(row)))


@given(ROWS)
def test_a_token_attends_to_its_own_path_and_to_nothing_else(rows):
    tree = tree_of(arrays(rows))
    for places in tree.places:
        for depth, place in enumerate(places.tolist()):
            assert tree.attended[0, 0, place].nonzero()[:, 0].tolist() == sorted(places[: depth + 1].tolist())


@given(ROWS, st.booleans(), st.integers(0, 99))
def test_attention_of_a_tree_is_that_of_its_mask(rows, shared_heads, seed):
    torch.manual_seed(seed)
    tree = tree_of(arrays(rows))
    states = [torch.randn(1, heads, len(tree.ids), 4) for heads in (4, *([2, 2] if shared_heads else [4, 4]))]
    weights = torch.randn_like(states[0])
    computed = []
    for mask in (tree.attended, torch.tensor(tree.attended.tolist())):
        copies = [one.clone().requires_grad_() for one in states]
        query, key, value = copies
        attended = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=0.3, enable_gqa=shared_heads)
        (attended * weights).sum().backward()
        computed.append([attended, *(one.grad for one in copies)])
    for one, other in zip(*computed, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@settings(max_examples=25, deadline=None)
@given(st.lists(ROWS, min_size=2, max_size=3), st.integers(0, 99))
def test_a_joint_pass_has_the_scores_and_the_gradient_of_its_batches(batches, seed):
    """A batch without a sampled token is among them, also as the last one."""
    scored = [batch(rows, seed + number) for number, rows in enumerate(batches)]
    scored += [scored[0]._replace(sampled=torch.zeros_like(scored[0].sampled))] * (seed % 2)
    joint = JointPass([sampled_logprobs.token_rows(rows) for rows in scored])
    computed = []
    for joins in (False, True):
        MODEL.zero_grad()
        logprobs = []
        for number, rows in enumerate(scored):
            if joins and number == len(scored) - 1:  # the last pass is computed again after an error
                score_sampled(MODEL, rows._replace(joint=(joint, number)), temperature=0.7)
            scores = score_sampled(MODEL, rows._replace(joint=(joint, number) if joins else None), temperature=0.7)
            (scores.logprobs.sum() + 0.3 * scores.entropies.sum()).backward()
            logprobs.append(scores.logprobs.detach())
        computed.append((logprobs, torch.cat([w.grad.flatten() for w in MODEL.parameters()])))
    (alone, gradient), (together, its) = computed
    for one, other in zip(alone, together, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)
    assert (its - gradient).norm() <= 1e-5 * max(1.0, float(gradient.norm()))


def test_a_model_is_checked_again_when_it_has_got_dropout():
    model = tiny_model(tiny_tokenizer(), width=32)
    assert isinstance(prefix_sharing(model), Sharing)
    model.base_model.layers[0].register_module("adapter", torch.nn.Dropout(0.1))
    assert prefix_sharing(model) == "the model has dropout, which would be shared, too"


@given(st.lists(ROWS, min_size=1, max_size=5), st.floats(1.0, 1e4))
def test_batches_are_joined_in_their_order_and_within_the_tokens_of_one(batches, half):
    ids = [arrays(rows) for rows in batches]
    passes = Sharing(window=None, half=half).joined(ids)
    assert [number for numbers in passes for number in numbers] == list(range(len(batches)))
    most = max(len(rows) * max(map(len, rows)) for rows in batches)
    for numbers in passes:
        if len(numbers) > 1:
            assert len(tree_of([row for number in numbers for row in ids[number]]).ids) <= most


@given(ROWS, st.floats(1.0, 1e4), st.floats(0.0, 50.0), st.booleans())
def test_rows_are_packed_whole_and_only_where_that_saves_a_tenth(rows, half, start, all_pairs):
    tree = Sharing(window=None, half=half, start=start, all_pairs=all_pairs).tree(arrays(rows))
    if tree is not None:
        assert [tree.ids[places].tolist() for places in tree.places] == rows
        tokens, longest = len(tree.ids), max(map(len, rows))
        scores = tokens**2 if all_pairs else int(tree.attended.sum())  # at least
        assert start + tokens + scores / half <= 0.9001 * (start + len(rows) * (longest + longest**2 / half))


@given(ROWS, st.integers(1, 4))
def test_an_order_has_each_row_once_and_leaves_the_rest_behind(rows, at_once):
    order = Sharing(window=None, half=100.0).order(arrays(rows), at_once)
    if order is not None:
        assert sorted(order) == list(range(len(rows)))
        whole = len(rows) // at_once * at_once
        assert order[whole:] == list(range(whole, len(rows)))


def test_a_window_shorter_than_the_longest_row_is_not_packed():
    rows = arrays([[1] * 20, [1] * 20, [1] * 20])
    assert Sharing(window=20, half=1e6).tree(rows) is not None
    assert Sharing(window=19, half=1e6).tree(rows) is None


def batch(rows, seed=0):
    """Return rows of a prompt and a completion each, padded on both sides, with some tokens sampled."""
    random = np.random.default_rng(seed)
    cuts = [int(random.integers(1, len(row))) for row in rows]
    before, after = max(cuts), max(len(row) - cut for row, cut in zip(rows, cuts, strict=True))
    ids = torch.zeros(len(rows), before + after, dtype=torch.long)
    attended, sampled = torch.zeros_like(ids), torch.zeros(len(rows), after, dtype=torch.bool)
    for index, (row, cut) in enumerate(zip(rows, cuts, strict=True)):
        place = slice(before - cut, before - cut + len(row))
        ids[index, place], attended[index, place] = torch.tensor(row), 1
        sampled[index, : len(row) - cut] = torch.from_numpy(random.random(len(row) - cut) < 0.7)
    return ScoredRows(ids, attended, sampled, entropy=True, entropy_gradient=True, top=True)


def both_ways(model, rows, monkeypatch):
    """Return scores and gradient of plain rows, and those of trees however little they save."""
    found = []
    for least in (2.0, -100.0):
        monkeypatch.setattr(shared_prefix, "_LEAST_SAVED", least)
        model.zero_grad()
        scores = score_sampled(model, rows, temperature=0.7)
        (scores.logprobs.sum() + 0.3 * scores.entropies.sum()).backward()
        found.append((scores, torch.cat([w.grad.flatten() for w in model.parameters() if w.grad is not None])))
    return found


def assert_equal_both_ways(model, rows, monkeypatch):
    (plain, gradient), (packed, its) = both_ways(model, rows, monkeypatch)
    for one, other in zip(plain, packed, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)
    assert (its - gradient).norm() <= 1e-5 * max(1.0, float(gradient.norm()))


@settings(max_examples=25, deadline=None)
@given(ROWS, st.integers(0, 99))
def test_scores_and_gradient_of_any_rows_are_those_of_plain_rows(rows, seed):
    with pytest.MonkeyPatch.context() as patch:
        assert_equal_both_ways(MODEL, batch(rows, seed), patch)


FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text", "olmo2", "phi3", "cohere")
MODEL = tiny_model(tiny_tokenizer(), width=16)
ALIKE = [[1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 8, 9], [1, 2, 3, 4, 5, 6, 7], [1, 2, 9, 9]]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(
    "kind", ["llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text", "olmo2", "phi3", "cohere"]
)
def test_a_family_of_models_is_exact_or_is_left_as_it_is(kind, attention, monkeypatch):
    torch.manual_seed(0)
    sizes = {**SMALL, **HEADS, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
    known = AutoConfig.for_model(kind)
    config = AutoConfig.for_model(kind, **{name: size for name, size in sizes.items() if hasattr(known, name)})
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    assert isinstance(prefix_sharing(model), Sharing), prefix_sharing(model)
    assert_equal_both_ways(model, batch(ALIKE), monkeypatch)


@pytest.mark.parametrize(
    ("kind", "sizes", "reason"),
    [
        ("gpt2", {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 32}, "positions count from the first column"),
        ("bloom", {"hidden_size": 16, "n_layer": 1, "n_head": 2, "vocab_size": 32}, ""),
        ("mamba", {"hidden_size": 16, "num_hidden_layers": 1, "state_size": 4, "vocab_size": 32}, ""),
        ("recurrent_gemma", {**SMALL, **HEADS, "num_hidden_layers": 3}, ""),
    ],
)
def test_a_family_that_computes_packed_rows_differently_says_so(kind, sizes, reason):
    torch.manual_seed(0)
    ids = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes, **ids))
    found = prefix_sharing(model)
    assert isinstance(found, str)
    assert reason in found


def test_dropout_is_not_shared():
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **SMALL, **HEADS, attention_dropout=0.1))
    assert "dropout" in str(prefix_sharing(model))


def test_a_check_leaves_the_model_and_the_generator_as_they_are():
    model = tiny_model(tiny_tokenizer(), width=16).train()
    state = torch.get_rng_state()
    prefix_sharing(model)
    assert all(part.training for part in model.modules())
    assert torch.equal(state, torch.get_rng_state())


def test_an_adapter_and_gradient_checkpointing_are_exact(monkeypatch):
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    model = get_peft_model(tiny_model(tiny_tokenizer(), width=16), LoraConfig(r=2, target_modules="all-linear"))
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight)
    model.gradient_checkpointing_enable()
    model.enable_input_require_grads()
    assert isinstance(prefix_sharing(model), Sharing)
    assert_equal_both_ways(model.train(), batch(ALIKE), monkeypatch)


def test_a_pass_over_rows_of_one_task_computes_fewer_tokens(monkeypatch):
    model = tiny_model(tiny_tokenizer(), width=16)
    tokens = []
    model.get_input_embeddings().register_forward_pre_hook(lambda module, given: tokens.append(given[0].numel()))
    rows = batch([[*range(1, 40), last, 3] for last in (41, 42, 43, 44)])
    monkeypatch.setattr(shared_prefix, "_WEIGHTS_OF_A_LAYERS_START", 0)  # as in a model of many weights
    prefix_sharing(model)
    tokens.clear()
    score_sampled(model, rows, temperature=1.0)
    assert tokens == [len(tree_of(sampled_logprobs.token_rows(rows)).ids)]
