"""Evaluations: numbers by hand, the same tasks for all, resuming, games against others, settings of runs."""

import json
import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from support.chat_server import said

from gym_trl.envs.echo import Echo
from gym_trl.errors import ConfigError
from gym_trl.evaluation import Evaluation, Interval, Score, evaluate, interval
from gym_trl.players import play_all, player
from gym_trl.records import ROLLOUTS, read_records
from gym_trl.setting import Setting
from gym_trl.spaces import AnyText
from gym_trl.terminal import Progress
from gym_trl.testing import save_tiny, tiny_model, tiny_tokenizer
from gym_trl.viewer.run import Run

GUESS, KUHN, TIC_TAC_TOE = "TrlEnv/GuessNumber-v0", "TrlEnv/KuhnPoker-v0", "TrlEnv/TicTacToe-v0"
SMALL: dict[str, Any] = {"env_kwargs": {"high": 8}, "action_format": "plain", "max_tokens_per_turn": 2}


class Bag(gym.Env[str, str]):
    """Pays a number that differs from task to task, and more for digging; declares no success."""

    observation_space = action_space = AnyText()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.size = float(self.np_random.integers(100))
        return "Dig or wait.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "", self.size + (action == "dig"), True, False, {}

    def random_policy(self, seed: int) -> Any:
        return lambda observation: "wait"


class Broken(Bag):
    """Its server is often not there."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self.size % 2:
            raise ConnectionError("no route")
        return super().step(action)


def score(*rows: list[bool | None], returns: float | None = 1.0) -> Score:
    """Return the score of attempts at several tasks, by their successes; ``None`` is not declared."""
    return Score(
        "it",
        [
            {
                "task": {"id": str(task), "options": {}},
                "return": returns,
                "success": success,
                "num_turns": 1,
                "invalid_actions": 0,
            }
            for task, row in enumerate(rows)
            for success in row
        ],
    )


# ---------------------------------------------------------------------------------------------------------------------
# Intervals
# ---------------------------------------------------------------------------------------------------------------------


def test_shares_have_wilsons_interval() -> None:
    """Law 13: 15 of 20, by hand: centre 0.6990, half 0.1803 (Wilson 1927)."""
    found = interval([[1.0]] * 15 + [[0.0]] * 5, share=True)
    assert found == pytest.approx((0.75, 0.5313, 0.8881), abs=1e-4)
    assert interval([[0.0]] * 20, share=True) == pytest.approx((0.0, 0.0, 0.1611), abs=1e-4)


def test_attempts_that_end_alike_say_no_more_than_one() -> None:
    once, often = interval([[1.0]] * 12, share=True), interval([[1.0] * 8] * 12, share=True)
    assert once == often


def test_other_means_have_a_bootstrap_over_tasks() -> None:
    values = [[float(n % 7)] for n in range(400)]
    mean = sum(row[0] for row in values) / 400
    error = math.sqrt(sum((row[0] - mean) ** 2 for row in values) / 400 / 400)
    found = interval(values)
    assert found == pytest.approx((mean, mean - 1.96 * error, mean + 1.96 * error), abs=0.1 * error)
    clustered = interval([[float(n % 7)] * 4 for n in range(400)])
    assert clustered == pytest.approx(found, abs=1e-9)
    assert interval(values) == found


@pytest.mark.parametrize("values", [[], [[1.0]], [[1.0], [2.0], [0.5], [3.0], [1.0]]])
def test_too_few_tasks_have_no_interval(values: list[list[float]]) -> None:
    found = interval(values)
    assert math.isnan(found.low)
    assert math.isnan(found.high)


def test_pass_at_k_is_the_unbiased_estimate() -> None:
    """Chen et al. 2021: 1 - C(n - c, k) / C(n, k)."""
    rows = score([True, False, False, False], [False] * 4, [True] * 4)
    assert [rows.pass_at(k).mean for k in (1, 2, 4)] == pytest.approx([5 / 12, (0.5 + 0 + 1) / 3, 2 / 3])
    assert math.isnan(rows.pass_at(5).mean)


def test_a_scored_episode_without_success_has_failed_where_it_is_declared() -> None:
    """Law 13."""
    assert score([True], [None], [None], [None]).mean().mean == 0.25
    undeclared = score([None], [None])
    assert math.isnan(undeclared.mean().mean)
    assert not undeclared.declares_success
    assert Score("it", undeclared.records, declares=True).mean().mean == 0.0


def test_an_unscored_episode_counts_nowhere() -> None:
    """Law 14."""
    some = Score("it", [*score([True], [False]).records, *score([None], [True], returns=None).records])
    assert some.mean().mean == some.mean("return").mean - 0.5 == 0.5
    assert "2 unscored" in str(Score("it", [{**one, "stop_reason": "env_error", "error": "x"} for one in some.records]))


def test_policies_are_compared_in_pairs_of_tasks() -> None:
    """The games differ by up to 100, and digging pays 1 more in each."""
    found = evaluate(Bag, model=["always:dig", "always:wait"], episodes=30, references=())
    digs, waits = found.scores
    assert digs.less(waits, "return") == Interval(1.0, 1.0, 1.0)
    assert digs.mean("return").low < waits.mean("return").high
    assert "better" in str(found)
    assert "worse" in str(evaluate(Bag, model=["always:wait", "always:dig"], episodes=30, references=()))
    assert "too few tasks" in str(evaluate(Bag, model=["always:dig", "always:wait"], episodes=4, references=()))


# ---------------------------------------------------------------------------------------------------------------------
# Evaluations
# ---------------------------------------------------------------------------------------------------------------------


def test_all_play_the_same_tasks_and_a_shorter_evaluation_the_first_of_them(tmp_path: Path) -> None:
    for episodes in (20, 70):
        evaluate(GUESS, model="solver", episodes=episodes, out=tmp_path / str(episodes))

    def tasks(name: str, policy: str) -> list[str]:
        return [one["task"]["id"] for one in read_records(tmp_path / name) if one["policy"] == policy]

    assert sorted(tasks("70", "solver")) == sorted(tasks("70", "random")) == sorted(tasks("70", "blind"))
    assert set(tasks("20", "solver")) < set(tasks("70", "solver"))
    assert len(set(tasks("70", "solver"))) == 70


def test_the_number_of_a_policy_is_the_same_everywhere() -> None:
    """Law 13."""
    alone = evaluate(GUESS, model="random", episodes=40, references=())
    among = evaluate(GUESS, model="solver", episodes=40, references=("random",))
    assert alone.scores[0].mean() == among.scores[1].mean()
    setting = Setting(GUESS)
    assert alone.scores[0].as_dict()["success"]["mean"] == alone.scores[0].mean().mean
    with player("random", setting) as one:
        games = play_all(setting.make, setting.tasks(40), [one])
    assert 0.0 <= sum(game.episodes[0].success is True for game in games) / 40 <= 0.5


def test_attempts_are_of_the_same_tasks_and_differ() -> None:
    [row] = evaluate(GUESS, model="random", episodes=40, attempts=4, references=(), **SMALL).scores
    tasks = row.values()
    assert {len(values) for values in tasks.values()} == {4}
    assert len(tasks) == 10
    assert [(one["group"], one["attempt"]) for one in row.records] == [(n // 4, n % 4) for n in range(40)]
    assert any(0 < sum(values) < 4 for values in tasks.values())
    assert row.pass_at(4).mean > row.pass_at(1).mean


def test_the_blind_row_plays_without_reading_and_is_a_reference() -> None:
    """Law 13: what is blind is never shown as the model's."""
    found = evaluate(GUESS, model="solver", episodes=40, env_kwargs={"high": 4, "turns": 2})
    assert [row.name for row in found.scores] == ["solver", "random", "blind"]
    blind = found.scores[2]
    assert 0.0 < blind.mean().mean < 1.0


def test_an_environment_without_success_is_compared_by_its_return() -> None:
    found = evaluate(Bag, model="always:dig", episodes=12, references=("random",))
    assert [key for _, key, _ in found.compared()] == ["return"]
    assert found.scores[0].as_dict()["success"] is None


def test_failures_of_the_infrastructure_are_said_and_not_counted() -> None:
    """Laws 8 and 14."""
    found = evaluate(Broken, model="always:dig", episodes=40, references=())
    row = found.scores[0].as_dict()
    assert row["episodes"] + row["unscored"] == 40
    assert row["unscored"] > 5
    assert "no route" in str(found)


class Breaks(Bag):
    """Raises whatever is done."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        raise KeyError("API_KEY")


def test_an_environment_that_breaks_is_evaluated_without_the_blind_row() -> None:
    found = evaluate(Breaks, model="random", episodes=4)
    assert [row.name for row in found.scores] == ["random"]
    assert {one["stop_reason"] for one in found.scores[0].records} == {"crashed"}


@pytest.mark.parametrize("executor", ["inline", "thread", "process"])
def test_a_model_plays_in_any_executor(executor: str) -> None:
    """Law 7."""
    [row] = evaluate(GUESS, model="tiny", episodes=8, references=(), executor=executor, **SMALL).scores
    [same] = evaluate(GUESS, model="tiny", episodes=8, references=(), **SMALL).scores
    said = [[[turn["answer"] for turn in one["turns"]] for one in rows.records] for rows in (row, same)]
    assert said[0] == said[1]


@pytest.mark.parametrize(
    ("env", "options"),
    [
        (None, {}),
        (GUESS, {"episodes": 0}),
        (GUESS, {"attempts": 0}),
        (GUESS, {"model": ["solver", "solver"]}),
        (GUESS, {"against": "solver"}),
        (GUESS, {"turn_limit": 0}),
        (KUHN, {}),
    ],
)
def test_what_cannot_be_played_is_refused(env: str | None, options: dict[str, Any]) -> None:
    """Law 22."""
    with pytest.raises(ConfigError):
        evaluate(env, **options)


# ---------------------------------------------------------------------------------------------------------------------
# Records
# ---------------------------------------------------------------------------------------------------------------------


class Counted(Bag):
    """Counts its episodes."""

    episodes = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        Counted.episodes += 1
        return super().reset(seed=seed, options=options)


def played(out: Path, episodes: int = 10, **options: Any) -> tuple[int, Evaluation]:
    Counted.episodes = 0
    found = evaluate(Counted, model="always:dig", episodes=episodes, references=("always:wait",), out=out, **options)
    return Counted.episodes, found


def test_what_was_played_is_not_played_again(tmp_path: Path) -> None:
    assert played(tmp_path)[0] == 20
    count, again = played(tmp_path)
    assert count == 0
    assert played(tmp_path, 25)[0] == 30
    assert str(played(tmp_path, 10)[1]) == str(again)
    assert str(played(tmp_path, 25)[1]) == str(played(tmp_path / "other", 25)[1])


def test_an_interrupted_evaluation_goes_on_where_it_stopped(tmp_path: Path) -> None:
    whole = played(tmp_path / "whole")[1]
    played(tmp_path / "cut")
    file = tmp_path / "cut" / ROLLOUTS
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:7]) + lines[7][:40])  # killed while it wrote
    count, resumed = played(tmp_path / "cut")
    assert count == 13
    assert str(resumed) == str(whole)
    assert len(list(read_records(file))) == 20


def test_what_could_not_be_scored_is_played_again(tmp_path: Path) -> None:
    played(tmp_path)
    file = tmp_path / ROLLOUTS
    records = [json.loads(line) for line in file.read_text().splitlines()]
    for one in records[:3]:
        one |= {"return": None, "success": None, "stop_reason": "cancelled"}
    file.write_text("".join(f"{json.dumps(one)}\n" for one in records))
    count, found = played(tmp_path)
    assert count == 3
    assert [sum(one["return"] is None for one in row.records) for row in found.scores] == [0, 0]


@pytest.mark.parametrize("changes", [{"seed": 1}, {"turn_limit": 3}, {"action_format": "boxed"}, {"temperature": 0.0}])
def test_a_folder_has_episodes_of_one_setting(changes: dict[str, Any], tmp_path: Path) -> None:
    played(tmp_path)
    with pytest.raises(ConfigError, match=next(iter(changes))):
        played(tmp_path, **changes)


# ---------------------------------------------------------------------------------------------------------------------
# Models
# ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run's folder, with the settings of its training."""
    folder = tmp_path_factory.mktemp("evaluation") / "run"
    save_tiny(folder / "model")
    Setting(GUESS, turn_limit=3, system_prompt="Play.", **SMALL).save(folder / "model")
    return folder


@pytest.mark.parametrize("place", ["", "model"])
def test_a_run_is_evaluated_as_it_was_trained(run: Path, place: str) -> None:
    """Case 14: settings travel with the model, whichever folder is named."""
    found = evaluate(model=str(run / place), episodes=6)
    for record in found.scores[0].records:
        assert record["opening"][0] == {"role": "system", "content": "Play."}
        assert record["task"]["env_kwargs"] == {"high": 8}
        assert record["num_turns"] <= 3
        assert record["sampled_tokens"] <= 2 * record["num_turns"]
    assert {record["task"]["env_id"] for row in found.scores for record in row.records} == {GUESS}
    other = evaluate(model=run, episodes=2, references=(), turn_limit=1)
    assert {record["num_turns"] for record in other.scores[0].records} == {1}


def test_a_run_of_code_is_evaluated_if_the_user_names_it(run: Path, tmp_path: Path) -> None:
    """Law 26, and case 15: a class of one's own has one name and one set of tasks."""
    (tmp_path / "model").symlink_to(run / "model")
    setting = Setting(Bag, action_format="plain", max_tokens_per_turn=2)
    setting.save(tmp_path)
    (tmp_path / "model").unlink()
    save_tiny(tmp_path / "model")
    with pytest.raises(ConfigError):
        evaluate(model=tmp_path, episodes=2)
    found = evaluate(Bag, model=tmp_path, episodes=2, references=("random",))
    assert len({record["task"]["id"] for row in found.scores for record in row.records}) == 2


def test_models_beside_each_other_play_the_first_ones_game_each_in_its_own_words(run: Path) -> None:
    who = tiny_model(tiny_tokenizer()), tiny_tokenizer()
    found = evaluate(model=[run, who], episodes=4, references=())
    first, second = found.scores
    assert {one["task"]["id"] for one in first.records} == {one["task"]["id"] for one in second.records}
    assert all(one["num_turns"] <= 3 for one in second.records)
    assert second.records[0]["opening"][0]["role"] == "user"
    assert len(found.compared()) == 1


def test_a_long_evaluation_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Progress, "seconds", -1.0)  # there is always time for a line
    with caplog.at_level("INFO", "gym_trl"):
        evaluate(GUESS, model="solver", episodes=3, references=())
    assert len(caplog.messages) == 3


def test_an_evaluation_leaves_no_trace() -> None:
    """Law 24."""
    who = tiny_model(tiny_tokenizer()).train(), tiny_tokenizer()
    before = dict(vars(who[0]))
    evaluate(GUESS, model=who, episodes=4, references=(), **SMALL)
    assert who[0].training
    assert dict(vars(who[0])) == before


def test_a_recorded_model_has_its_tokens_and_their_texts(run: Path, tmp_path: Path) -> None:
    """Law 2; and the page of the records needs no tokenizer."""
    evaluate(model=run, episodes=4, references=("random",), out=tmp_path)
    for record in read_records(tmp_path):
        if record["policy"] != "random":
            assert len(record["token_texts"]) == len(record["completion_ids"])
            assert len(record["mask"]) == len(record["logprobs"]) == len(record["completion_ids"])
            assert sum(record["mask"]) == record["sampled_tokens"] > 0
    page = Run(tmp_path)
    shown = [(record, tokens) for record, tokens in page.episodes() if tokens]
    assert len(shown) == 4
    for record, tokens in shown:
        assert record["turns"][0]["answer"] in "".join(tokens["texts"])
        assert record["opening"][0]["content"] in tokens["prompt"]


def test_a_server_is_evaluated(serve: Any) -> None:
    home = serve(lambda body, times: (200, said("<action>4</action>")))
    found = evaluate(GUESS, base_url=home.url, episodes=16, references=("always:4",), env_kwargs={"high": 8})
    served, same = found.scores
    assert served.name == home.url
    assert served.less(same) == Interval(0.0, 0.0, 0.0)
    assert {body["model"] for body in home.bodies} == {"the-model"}


# ---------------------------------------------------------------------------------------------------------------------
# Against others
# ---------------------------------------------------------------------------------------------------------------------


def test_each_task_is_played_once_in_each_seat(tmp_path: Path) -> None:
    found = evaluate(TIC_TAC_TOE, model="solver", against="random", episodes=20, out=tmp_path)
    [row] = found.scores
    assert [sum(one["seat"] == seat for one in row.records) for seat in (0, 1)] == [20, 20]
    assert len(row.values()) == 20
    assert all(one["return"] >= 0.0 for one in row.records)
    assert row.mean("return").low > 0.0
    again = evaluate(TIC_TAC_TOE, model="solver", against="random", episodes=20, out=tmp_path)
    assert str(again) == str(found)
    assert len(list(read_records(tmp_path))) == 40
    assert {one["spec"]["against"] for one in read_records(tmp_path)} == {"random"}


def test_two_that_are_alike_win_nothing_from_each_other() -> None:
    """Law 13: the payoffs of a zero-sum game, over both seats."""
    [row] = evaluate(KUHN, model="random", against="random", episodes=400).scores
    assert row.mean("return").mean == 0.0  # each game is played twice with the same chance, the seats exchanged
    assert any(one["return"] for one in row.records)
    [worse] = evaluate(KUHN, model="random", against="solver", episodes=400).scores
    assert worse.mean("return").high < 0.0


def test_a_model_plays_against_a_policy(run: Path) -> None:
    found = evaluate(KUHN, model=run, against="random", episodes=4)
    assert [one["seat"] for one in found.scores[0].records] == [0, 1] * 4
    assert found.against == "random"


def test_one_model_plays_all_seats() -> None:
    found = evaluate(KUHN, model="random", seats="self", episodes=10)
    assert [len(row.records) for row in found.scores] == [20]
    assert found.scores[0].mean("return").mean == 0.0


def test_a_class_of_ones_own_is_called_by_its_name() -> None:
    [row] = evaluate(Echo, model="solver", episodes=2, references=()).scores
    assert {one["task"]["env_id"] for one in row.records} == {"gym_trl.envs.echo:Echo"}


@pytest.mark.parametrize("wrong", [{"references": ("none",)}, {"model": ["random", "nobody"]}], ids=str)
def test_a_player_that_there_is_none_of_is_refused_before_anything_is_played(
    wrong: dict[str, Any], tmp_path: Path
) -> None:
    """Law 22."""
    with pytest.raises(ConfigError, match=r"none|nobody"):
        evaluate("TrlEnv/Echo-v0", **{"model": "random", "episodes": 8, "out": tmp_path, **wrong})
    assert not any(tmp_path.iterdir())
