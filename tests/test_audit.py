"""An audit's verdicts are those of planted environments, and follow from intervals."""

import json

import pytest
from hypothesis import given, strategies as st
from support.audited import VERDICTS
from typer.testing import CliRunner

from gym_trl.cli.app import app
from gym_trl.env_checker.audit import judge
from gym_trl.env_checker.audit.audits import rows_in
from gym_trl.env_checker.audit.subjects import envs_of, newest
from gym_trl.errors import ConfigError
from gym_trl.evaluation.estimates import share_of


def level(policy, won, episodes):
    estimate = share_of(won / episodes, episodes)
    numbers = {"mean": estimate.mean, "low": estimate.low, "high": estimate.high}
    return {"policy": policy, "success": numbers, "mean_return": numbers}


def card(random, blind, episodes, **more):
    return {"id": "Any-v0", "levels": [level("random", random, episodes), level("blind", blind, episodes)], **more}


counts = st.integers(2, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.integers(0, n), st.just(n)))


@given(counts, st.sampled_from([None, 0.5, 1.0]))
def test_a_verdict_says_no_more_than_the_intervals(numbers, optimum):
    random, blind, episodes = numbers
    row = judge(card(random, blind, episodes, optimal_success=optimum))
    best, chance = optimum or 1.0, random / episodes
    low, high = row.blind.low or 0.0, row.blind.high or 0.0
    if row.verdict == "blind":
        assert low >= chance + 0.8 * (best - chance) - 1e-9
    elif row.verdict == "partly blind":
        assert low > (row.random.high or 0.0)
    elif row.verdict == "reads":
        assert high - (row.random.low or 0.0) <= 0.2 * (best - chance) + 1e-9
    else:
        assert row.reason


@given(counts)
def test_more_success_without_observations_is_never_a_better_verdict(numbers):
    order = ["reads", "not measured", "partly blind", "blind"]
    random, blind, episodes = numbers
    ranks = [order.index(judge(card(random, won, episodes)).verdict) for won in (blind, min(episodes, blind + 5))]
    assert ranks == sorted(ranks)


@given(counts, st.sampled_from(["reset", "step", "determinism"]))
def test_what_is_broken_has_no_other_verdict(numbers, check):
    finding = {"name": check, "verdict": "problem", "got": "differs", "fix": ""}
    assert judge(card(*numbers, findings=[finding])).verdict == "broken"


def test_what_is_better_than_random_play_is_partly_blind_also_where_no_best_score_is_known():
    def returns(policy, low, high):
        numbers = {"mean": (low + high) / 2, "low": low, "high": high}
        return {"policy": policy, "success": {"mean": None, "low": None, "high": None}, "mean_return": numbers}

    rows = [
        judge({"id": "Any-v0", "levels": [returns("random", -3, -2), returns("blind", *of)]})
        for of in ((-1, 0), (-3, 0))
    ]
    assert [row.verdict for row in rows] == ["partly blind", "not measured"]
    assert all(row.reason.startswith("no best score is known") for row in rows)


def test_slow_resets_are_not_called_broken_and_hanging_steps_are():
    def of(name):
        return judge(
            card(0, 0, 9, findings=[{"name": name, "verdict": "problem", "got": "no answer within 40 s", "fix": ""}])
        )

    assert (of("reset").verdict, of("step").verdict) == ("not measured", "broken")


@pytest.mark.parametrize(
    "got",
    [
        "step((2, 3)) gave the reward list [0.0, 0.0] (and 49 more)",
        "raised URLError: <urlopen error [Errno -2] Name or service not known> (wget.py:526)",
        "raised LookupError: ***** Resource 'words' not found.",
    ],
)
def test_what_is_missing_here_or_of_another_interface_is_not_called_broken(got):
    finding = {"name": "step", "verdict": "problem", "got": got, "fix": ""}
    assert judge(card(0, 0, 100, findings=[finding])).verdict == "not measured"


def test_a_search_that_was_cut_off_shows_no_reading():
    numbers: dict[str, float] = {"cut": False, "steps": 564}
    finding = {"name": "blind baseline", "verdict": "ok", "got": "", "fix": "", "numbers": numbers}
    assert judge(card(0, 0, 100, findings=[finding])).verdict == "reads"
    numbers |= {"sequences": 19, "turns": 8.0}
    row = judge(card(0, 0, 100, findings=[finding]))
    assert (row.verdict, row.reason[:34]) == ("not measured", "the search tried only 19 sequences")
    numbers |= {"sequences": 19, "turns": 1.0, "cut": True}
    row = judge(card(0, 0, 100, findings=[finding]))
    assert (row.verdict, row.reason[:40]) == ("not measured", "the search was cut off by time after 564")
    assert judge(card(0, 99, 100, findings=[finding])).verdict == "blind"


def test_what_has_one_task_does_not_read_however_little_was_found():
    finding = {"name": "variety", "verdict": "warning", "got": "10 seeds gave the same task", "fix": ""}
    row = judge(card(0, 0, 100, findings=[finding]))
    assert (row.verdict, row.reason[:38]) == ("not measured", "every seed seems to give the same task")
    assert judge(card(0, 99, 100, findings=[finding])).verdict == "blind"


def test_only_the_newest_version_of_an_id_is_measured():
    assert newest(["A-v2", "A-v10", "B-v0"]) == ["A-v10", "B-v0"]
    ids = [one.env_id for one in envs_of("gymnasium")]
    assert "FrozenLake-v1" in ids
    assert len(ids) == len({one.rpartition("-v")[0] for one in ids})


@pytest.mark.parametrize("word", ["no-such-thing", "json", "TrlEnv/Nothing-v0", ""])
def test_a_name_of_nothing_is_refused(word):
    with pytest.raises(ConfigError, match=r"no environment|registers no"):
        envs_of(word)


def test_an_audit_goes_on_where_it_was_stopped(tmp_path):
    run = [
        "audit",
        "TrlEnv/Echo-v0",
        "--out",
        str(tmp_path),
        "--seconds",
        "1",
        "--episodes",
        "20",
        "--search-steps",
        "99",
    ]
    first = CliRunner().invoke(app, run)
    assert first.exit_code == 0, first.output
    again = CliRunner().invoke(app, run)
    assert "measured before" in again.stderr
    assert again.stdout == first.stdout
    other = CliRunner().invoke(app, [*run, "--seed", "1"])
    assert other.exit_code == 2
    assert "seed=0" in other.stderr
    assert all((tmp_path / f"audit.{kind}").stat().st_size for kind in ("md", "html", "json", "png"))


@pytest.mark.full
def test_options_of_the_text_are_those_of_the_card(tmp_path):
    budget = ["--seconds", "1", "--episodes", "20", "--search-steps", "200"]
    run = ["audit", "CliffWalking-v1", "--out", str(tmp_path), *budget]
    flags = ["--turn-limit", "20", "--success", "-40"]
    for more in (flags, [*flags[:3], "-30"]):
        ran = CliRunner().invoke(app, [*run, *more])
        assert ran.exit_code == 0, ran.output
        [row] = json.loads((tmp_path / "audit.json").read_text(encoding="utf-8"))["rows"]
        assert (row["flags"], row["objective"], row["best"]) == (more, "success", 1.0)
    rows = rows_in(tmp_path)
    assert [row.name for row in rows] == [f"CliffWalking-v1 --turn-limit 20 --success {one}" for one in (-30, -40)]
    refused = CliRunner().invoke(app, [*run, "--turn-limit", "0"])
    assert refused.exit_code == 2
    assert "--turn-limit" in refused.stderr


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.timeout(600)
def test_every_planted_environment_has_its_verdict(tmp_path):
    names = {f"support.audited:{one.__name__}": verdict for one, verdict in VERDICTS.items()}
    assert len(names) == 26
    budget = ["--seconds", "10", "--episodes", "40", "--search-steps", "1500", "--processes", "2"]
    ran = CliRunner().invoke(app, ["audit", *names, "--out", str(tmp_path), *budget])
    assert ran.exit_code == 0, ran.output
    rows = json.loads((tmp_path / "audit.json").read_text(encoding="utf-8"))["rows"]
    assert {row["env_id"]: row["verdict"] for row in rows} == names, ran.stderr
