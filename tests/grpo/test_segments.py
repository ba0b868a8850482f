# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-any-generics, allow-incomplete-defs
"""Episodes of several segments, each of which is a row of the trainer."""

from pathlib import Path

import oldest_trl
import pytest
import warm

pytest.importorskip("trl")
import for_segments as given

pytestmark = [pytest.mark.trl, pytest.mark.processes]
SCRIPT = Path(given.__file__)


@pytest.fixture(
    scope="module",
    params=[
        "one process",
        pytest.param("two processes", marks=pytest.mark.full),
        pytest.param("the oldest TRL", marks=[pytest.mark.full, oldest_trl.installed]),
    ],
)
def trained(request, tmp_path_factory):
    """On two processes of six rows each, the second group of four straddles them."""
    folder, processes = tmp_path_factory.mktemp("trained"), 1 + (request.param == "two processes")
    if request.param != "the oldest TRL":
        return warm.run_ranks(SCRIPT, folder, processes=processes)
    return [oldest_trl.run(SCRIPT, folder)]


def test_the_gradient_of_segmented_episodes_is_that_of_the_loss_written_out_by_hand(trained):
    for report in trained:
        assert len(report["gradient"]) == 6 * 2 + 2 * 4 + 2
        for name, (difference, largest) in report["gradient"].items():
            assert difference < 1e-5 * max(1.0, largest), name


def test_settings_with_which_a_segment_would_not_count_as_a_part_of_its_episode_are_refused(trained):
    for report in trained:
        assert {name: "history=... is not possible with" in said for name, said in report["refused"].items()} == (
            dict.fromkeys(("bnpo", "vespo", "sequence", "beta", "off_policy"), True)
        )
        assert "loss_type='bnpo': it divides by the tokens of a micro-batch" in report["refused"]["bnpo"]


def test_lengths_and_rewards_are_logged_per_episode(trained):
    for report in trained:
        for log in report["logs"]:
            tokens = [sum(row["env_mask"]) for row, *_ in given.rows()]
            assert log["completions/mean_length"] == sum(tokens) / len(tokens)
            assert log["completions/max_length"] == max(tokens)
            assert log["env/turns"] == pytest.approx(10 / 3)
            assert log["env/unscored"] == 0.25
