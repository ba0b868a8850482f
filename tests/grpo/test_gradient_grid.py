"""The gradient of each loss with each feature is that of the loss written out by hand, or the two are refused."""

import json
import re
from pathlib import Path

import pytest
from support import warm
from trl import GRPOConfig

from grpo import gradient_grid as grid, losses_by_hand

pytestmark = pytest.mark.timeout(600)
SCRIPT = Path(grid.__file__)

HISTORIES = ("segments", "summaries", "all at once")
CREDITS = ("credit", "summaries", "seats", "all at once")
REFUSED = [
    (("bnpo", "vespo", "vespo token_truncate", "grpo kl", "dapo off-policy"), HISTORIES),
    (("grpo sequence", "luspo sequence"), (*HISTORIES, *CREDITS)),
]
"""Losses, and the features that they are refused with."""
USUAL = tuple(grid.LOSSES)[:10]
"""All loss types, and those that are meant for ratios of sequences with these."""
TWICE = [(loss, feature, "twice") for loss in USUAL for feature in grid.FEATURES]
# A quarter of them, with each loss and each feature several times.
EVERYWHERE = [
    (loss, feature, "twice")
    for row, loss in enumerate(USUAL)
    for column, feature in enumerate(grid.FEATURES)
    if (row + column) % 4 == 0
]
ALONE = [
    *TWICE,
    *((loss, feature, "twice") for loss in tuple(grid.LOSSES)[10:] for feature in ("plain", "segments", "all at once")),
    *(("bnpo", "plain", run) for run in ("whole", "in parts")),
    *(
        (loss, feature, run)
        for loss in ("dapo", "grpo")
        for feature in ("unscored", "credit", "segments", "all at once")
        for run in ("whole", "in parts")
    ),
    *(("dapo", feature, "stock") for feature in grid.FEATURES if feature != "unscored"),
]
"""Cells of a process alone; two processes have those of ``EVERYWHERE``."""
# Each loss and each feature once.
SPREAD = [
    ("bnpo", "plain", "twice"),
    ("cispo", "segments", "twice"),
    ("dapo", "all at once", "twice"),
    ("dr_grpo", "unscored", "in parts"),
    ("grpo", "summaries", "in parts"),
    ("luspo", "resampled", "twice"),
    ("sapo", "seats", "twice"),
    ("vespo", "credit", "twice"),
    ("dapo", "adapter", "twice"),
    ("grpo sequence", "plain", "twice"),
    ("dapo sequence_mask", "segments", "whole"),
    ("dapo kl", "segments", "twice"),
    ("vespo", "segments", "twice"),
    ("dapo", "failing", "stock"),
    ("dapo", "credit", "stock"),
]
SOME, ALL, TWO = "one process, some cells", "one process", "two processes"


@pytest.fixture(scope="module", params=[SOME, *(pytest.param(way, marks=pytest.mark.slow) for way in (ALL, TWO))])
def found(request, tmp_path_factory):
    """Return each cell with what each process has found; on two processes of six rows, a group straddles them."""
    cells, processes = {SOME: (SPREAD, 1), ALL: (ALONE, 1), TWO: (EVERYWHERE, 2)}[request.param]
    folder = tmp_path_factory.mktemp("grid")
    reports = warm.run_ranks(SCRIPT, folder, json.dumps(cells), processes=processes, timeout=500)
    return {cell: [report["cells"][", ".join(cell)] for report in reports] for cell in cells}


def is_refused(loss, feature, run):
    """Return True if a cell cannot be exact."""
    if run == "stock" and feature in (*HISTORIES, *CREDITS):
        return True
    return any(loss in losses and feature in features for losses, features in REFUSED)


def test_the_grid_has_all_loss_types_that_trl_documents():
    said = GRPOConfig.__doc__.split("loss_type (`str`")[1].split("mask_truncated_completions (`bool`")[0]
    documented = re.findall(r'- `"(\w+)"`', said)
    assert len(documented) == 8
    for cells in (TWICE, EVERYWHERE):
        assert set(documented) <= {loss for loss, *_ in cells}


def test_each_gradient_is_that_of_the_loss_by_hand(found):
    wrong = {
        (*cell, number): step
        for cell, [one, *_] in found.items()
        for number, step in enumerate(one.get("steps", ()))
        if not step["error"] < 1e-5
    }
    assert not wrong


def test_what_cannot_be_exact_is_refused(found):
    refused = {cell for cell, reports in found.items() for one in reports if "refused" in one}
    assert refused == {cell for cell in found if is_refused(*cell)}


def test_every_feature_is_at_work_and_the_second_step_is_clipped(found):
    for (loss, feature, run), reports in found.items():
        for one in reports:
            if "refused" in one:
                continue
            name = f"{loss}, {feature}, {run}"
            assert (one["rows"] > grid.GROUPS * grid.SIZE) or feature not in ("segments", "summaries"), name
            assert one["stops"].get("env_error") or feature not in ("failing", "unscored", "all at once"), name
            assert one["replaced"] or feature not in ("resampled", "all at once"), name
            clips = loss.split()[0] in ("cispo", *losses_by_hand.CLIPPED)
            for number, step in enumerate(one["steps"]):
                assert (0.02 < step["clipped"] < 0.98) == (clips and number > 0), name
                assert step["norm"] > 1e-3, name


def test_lengths_turns_and_unscored_episodes_are_logged_of_all_episodes(found):
    for cell, reports in found.items():
        for one in reports:
            for logged, counted in one.get("logs", ()):
                if not one["replaced"]:  # those count, too
                    assert logged == pytest.approx(counted), cell
