"""With less padding a step has TRL's losses and gradients; rows that cannot be sorted stay where they are."""

import importlib.util
import json
import logging
import math
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from support import warm
from transformers import GPT2Config, GPT2LMHeadModel

from gym_trl.grpo.padding import Padding, by_length, in_parts
from gym_trl.grpo.passes import without_padding
from gym_trl.grpo.sampled_logprobs import ignores_left_padding
from gym_trl.testing import tiny_model, tiny_tokenizer

SCRIPT = Path(__file__).parent / "train_padded.py"
pytestmark = [pytest.mark.trl, pytest.mark.processes]

TWICE = {"num_iterations": 2, "steps_per_generation": 8}
SORTED: dict[str, dict] = {
    "plain": {},
    "by trl": {"scored_by_trl": True},
    "adapter": {"lora": True, "grpo": {**TWICE, "beta": 0.1}},
    "reference by trl": {"scored_by_trl": True, "lora": True, "grpo": {**TWICE, "beta": 0.1}},
    "unaligned": {"grpo": {"steps_per_generation": 6}},
    "multiple": {"grpo": {"pad_to_multiple_of": 8}},
    "positions": {"absolute": True},
    "positions by trl": {"absolute": True, "scored_by_trl": True},
}
UNSORTED: dict[str, dict] = {
    "bnpo": {"grpo": {"loss_type": "bnpo", "num_iterations": 2}},
    "entropy": {"grpo": {"entropy_coef": 0.1}},
    "quantile": {"grpo": {"top_entropy_quantile": 0.5}},
    "subclass": {"subclass": True},
    "one micro-batch": {"grpo": {"gradient_accumulation_steps": 1, "steps_per_generation": 4}},
    "none in common": {"grpo": {"gradient_accumulation_steps": 4, "steps_per_generation": 3, "num_iterations": 2}},
}
CASES = {**SORTED, **UNSORTED}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return warm.run_ranks(SCRIPT, tmp_path_factory.mktemp("padded"), json.dumps(CASES))[0]


def equal(ours, theirs):
    assert len(ours["gradients"]) == len(theirs["gradients"]) == 2
    assert ours["losses"] == pytest.approx(theirs["losses"], rel=1e-4, abs=1e-5)
    for one, other in zip(ours["gradients"], theirs["gradients"], strict=True):
        assert math.dist(one, other) <= 1e-4 * math.hypot(*other)
    assert max(math.hypot(*one) for one in theirs["gradients"]) > 1e-3  # a second one may be clipped


@pytest.mark.parametrize("case", CASES)
def test_losses_and_gradients_of_each_optimizer_step_are_those_of_trl(report, case):
    equal(**report[case])


@pytest.mark.parametrize("case", [*SORTED, *UNSORTED])
def test_passes_are_narrower_and_rows_sorted_where_the_loss_is_a_sum(report, case):
    ours, theirs = (report[case][who]["widths"] for who in ("ours", "theirs"))
    assert len(ours) == len(theirs)
    assert sum(ours) < (0.8 if case in SORTED else 1.0) * sum(theirs)


def test_the_first_generation_is_sorted_already(report):
    widths = report["plain"]["ours"]["widths"]
    assert widths == [*sorted(widths[:4], reverse=True), *sorted(widths[4:], reverse=True)]


def test_widths_are_multiples_where_trls_are(report):
    assert not any(width % 8 for width in report["multiple"]["ours"]["widths"])


SOME = ("plain", "adapter", "unaligned", "bnpo")


@pytest.mark.full
def test_two_processes_have_the_same_gradients_each_with_its_own_rows_sorted(tmp_path):
    cases = {name: CASES[name] for name in SOME}
    for rank in warm.run_ranks(SCRIPT, tmp_path, json.dumps(cases), processes=2):
        for name in SOME:
            equal(**rank[name])
            assert sum(rank[name]["ours"]["widths"]) < sum(rank[name]["theirs"]["widths"])


def script():
    """Return the module of the script."""
    made = importlib.util.spec_from_file_location(SCRIPT.stem, SCRIPT)
    assert made is not None
    assert made.loader is not None
    module = importlib.util.module_from_spec(made)
    made.loader.exec_module(module)
    return module


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 10**6),
    grpo=st.fixed_dictionaries(
        {
            "loss_type": st.sampled_from(["bnpo", "cispo", "dapo", "dr_grpo", "grpo", "luspo", "sapo", "vespo"]),
            "gradient_accumulation_steps": st.integers(1, 4),
            "steps_per_generation": st.sampled_from([1, 2, 3, 4, 6]),
            "num_iterations": st.integers(1, 2),
        }
    ),
    by_trl=st.booleans(),
)
def test_any_rows_and_settings_have_the_gradients_of_trl(tmp_path_factory, seed, grpo, by_trl):
    case = {"seed": seed, "grpo": grpo, "scored_by_trl": by_trl}
    found = {who: script().train(tmp_path_factory.mktemp(who), who, **case) for who in ("ours", "theirs")}
    for one, other in zip(*(found[who]["gradients"] for who in ("ours", "theirs")), strict=True):
        assert math.dist(one, other) <= 1e-4 * max(math.hypot(*other), 1e-3)
    assert sum(found["ours"]["widths"]) <= sum(found["theirs"]["widths"])


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40), st.integers(1, 10))
def test_rows_are_sorted_within_their_optimizer_step_only_and_only_once(lengths, rows):
    order = by_length(torch.tensor(lengths), rows).tolist()
    whole = len(lengths) // rows * rows
    for start in range(0, whole, rows):
        part = order[start : start + rows]
        assert sorted(part) == list(range(start, start + rows))
        assert part == sorted(part, key=lambda place: (-lengths[place], place))
    assert order[whole:] == list(range(whole, len(lengths)))
    again = by_length(torch.tensor([lengths[place] for place in order]), rows).tolist()
    assert again == list(range(len(lengths)))


@st.composite
def rows_of_tokens(draw):
    """Draw prompts padded on the left, completions padded on the right, and which tokens were sampled."""
    number = draw(st.integers(1, 6))
    prompts = draw(st.lists(st.integers(1, 5), min_size=number, max_size=number))
    masks = draw(st.lists(st.lists(st.booleans(), min_size=1, max_size=7), min_size=number, max_size=number))
    longest, end = max(prompts), max(map(len, masks))
    attended = torch.zeros(number, longest + end, dtype=torch.long)
    sampled = torch.zeros(number, end, dtype=torch.bool)
    for row, (prompt, mask) in enumerate(zip(prompts, masks, strict=True)):
        attended[row, longest - prompt : longest + len(mask)] = 1
        sampled[row, : len(mask)] = torch.tensor(mask)
    ids = torch.arange(attended.numel()).view_as(attended) * attended
    return ids, attended, sampled


@given(rows_of_tokens(), st.integers(1, 4), st.sampled_from([1, 4]), st.booleans(), st.booleans())
def test_each_sampled_token_is_computed_with_all_tokens_before_it(rows, at_once, multiple, left, right):
    ids, attended, sampled = rows
    seen = []

    def compute(ids, attended, sampled):
        assert len(ids) <= at_once
        seen.append(ids.shape[1])
        sums = ids.cumsum(1)[:, -sampled.shape[1] :]
        return torch.where(sampled, sums, 0), None

    padding = Padding(prompts=left, completions=right, multiple=multiple)
    found, entropies = in_parts(compute, ids, attended, sampled, at_once=at_once, padding=padding)
    assert entropies is None
    assert torch.equal(found, torch.where(sampled, ids.cumsum(1)[:, -sampled.shape[1] :], 0))
    assert max(seen) <= ids.shape[1]
    if not (left or right):
        assert set(seen) == {ids.shape[1]}


def test_advantages_are_cut_with_their_tokens():
    batch = {
        "prompt_ids": torch.ones(2, 3),
        "prompt_mask": torch.tensor([[0, 1, 1], [0, 0, 1]]),
        "completion_ids": torch.ones(2, 6),
        "completion_mask": torch.ones(2, 6, dtype=torch.long),
        "tool_mask": torch.tensor([[1, 1, 0, 0, 0, 0], [0, 1, 1, 0, 0, 0]]),
        "advantages": torch.arange(12).view(2, 6),
        "importance_sampling_ratio": torch.ones(2, 1),
        "num_items_in_batch": torch.tensor(4),
    }
    cut = without_padding(batch, Padding(prompts=True, completions=True))
    assert cut["prompt_ids"].shape == (2, 2)
    assert all(cut[name].shape == (2, 3) for name in ("completion_ids", "completion_mask", "tool_mask"))
    assert cut["advantages"].tolist() == [[0, 1, 2], [6, 7, 8]]
    assert cut["importance_sampling_ratio"].shape == (2, 1)


def test_padding_before_a_prompt_is_left_out_unless_positions_count_it():
    assert ignores_left_padding(tiny_model(tiny_tokenizer(), width=32))
    assert ignores_left_padding(tiny_model(tiny_tokenizer(), width=32).bfloat16())
    sized = {"vocab_size": 32, "n_layer": 1, "n_head": 2, "n_embd": 16, "bos_token_id": 0, "eos_token_id": 0}
    for dtype in (torch.float32, torch.bfloat16):
        assert not ignores_left_padding(GPT2LMHeadModel(GPT2Config(**sized)).to(dtype))


def test_nothing_is_left_out_of_passes_to_which_noise_is_added(tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="gym_trl.grpo.passes"):
        script().train(tmp_path, "ours", grpo={"neftune_noise_alpha": 5})
    said = [record.getMessage() for record in caplog.records if record.name == "gym_trl.grpo.passes"]
    assert said[0].startswith("scores at all positions; ")
    assert "padding stays: neftune_noise_alpha" in said[0]
