"""A recorded step is recomputed, and each way in which a bug could change it is found at its stage."""

import copy
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support import hostile
from support.fused_game import silent
from trl.trainer.utils import nanstd
from typer.testing import CliRunner

from gym_trl.cli.app import app
from gym_trl.errors import ConfigError, UntrustedError
from gym_trl.options import League
from gym_trl.records.files import read_records
from gym_trl.records.schema import task_id
from gym_trl.rollout import History
from gym_trl.spaces import AnyText
from gym_trl.training.checking.rows import TOLERANCE, episode_advantages
from gym_trl.training.checking.run import STAGES, StepReport, check_run
from gym_trl.training.options import choose
from gym_trl.training.run import train
from gym_trl.training.step_file import pack_step, read_step, step_files
from gym_trl.trust import Trust

pytestmark = pytest.mark.trl
SMALL: dict[str, Any] = {
    "episodes_per_step": 8,
    "num_generations": 4,
    "eval_episodes": 2,
    "records_per_step": 8,
    "full_record_every": 1,
}
RUNS: dict[str, dict[str, Any]] = {
    "plain": {"env": "TrlEnv/GuessNumber-v0", "steps": 2},
    "credit": {"env": "FrozenLake-v1", "env_kwargs": {"is_slippery": False}, "credit": "pool", "steps": 1},
    "history": {
        "env": "TrlEnv/GuessNumber-v0",
        "history": History(last=1),
        "steps": 1,
        "seed": 2,
        "grpo": {"loss_type": "grpo"},
    },
    "seats": {"env": "TrlEnv/KuhnPoker-v0", "seats": "self", "turn_limit": 9, "credit": "rae", "steps": 2},
    "league": {
        "env": "TrlEnv/TicTacToe-v0",
        "seats": League(["random"], self_play=0.0),
        "credit": "rae",
        "steps": 1,
    },
}
ROOT = Path(__file__).parents[1]
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
STEPS = {"plain": 2, "seats": 2}
"""Step of each run that is changed; the first of the others."""


class Recorded(NamedTuple):
    """Parts of a file of a step, which a mutant may change."""

    about: Any
    episodes: Any
    records: Any
    rows: Any
    folder: Path

    @property
    def record(self) -> Any:
        """First episode of several turns that has an end."""
        return next(one for one in self.records if len(one["turns"]) > 1)


Change = Callable[[Recorded], object]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {name: tmp_path_factory.mktemp(name) / "run" for name in RUNS}
    for name, options in RUNS.items():
        grpo = {"save_steps": 1, "save_total_limit": 5, **options.get("grpo", {})}
        train(choose(**{**SMALL, **options, "grpo": grpo}), out=folders[name], console=silent())
    return folders


def changed(run: Path, out: Path, change: Change, step: int) -> StepReport:
    """Return the report on a copy of a run whose step was changed before it was written."""
    folder = Path(shutil.copytree(run, out / "run"))
    path = next(path for path, number in step_files(folder).items() if number == step)
    data = read_step(path)
    rows = {name: [values.copy() for values in arrays] for name, arrays in data.rows.items()}
    about, episodes, records = copy.deepcopy((data.about, data.episodes, list(data.records)))
    recorded = Recorded(about, episodes, records, rows, folder)
    change(recorded)
    path.write_bytes(pack_step(recorded.about, recorded.episodes, recorded.records, recorded.rows))
    [report] = check_run(folder, step=step)
    return report


@pytest.mark.parametrize("name", RUNS)
def test_an_unchanged_run_agrees_in_every_stage(runs: dict[str, Path], name: str) -> None:
    reports = list(check_run(runs[name]))
    assert [one.step for one in reports] == [*range(1, RUNS[name]["steps"] + 1)]
    assert all(one.full and one.first is None for one in reports)
    assert [(stage.name, stage.unchecked) for stage in reports[-1].stages] == [(stage, "") for stage in STAGES]


@pytest.mark.parametrize("name", ["seats", "league"])
def test_a_full_record_has_the_places_and_games_of_the_records(runs: dict[str, Path], name: str) -> None:
    full = read_step(next(iter(step_files(runs[name])))).records
    some = [one for one in read_records(runs[name]) if one["split"] == "train" and one["step"] == 1]
    places = [[(one["group"], one["attempt"], one["seat"], one["game"]) for one in records] for records in (full, some)]
    assert places[0] == places[1]
    assert [game for *_, game in places[0]] == [0, 0, 1, 1] * 2 if name == "seats" else [0, 1, 2, 3] * 2


@pytest.mark.full
@pytest.mark.parametrize("high", [None, 3.0])
@pytest.mark.parametrize("loss", ["bnpo", "cispo", "dapo", "dr_grpo", "grpo", "luspo", "sapo", "vespo"])
def test_the_loss_of_each_type_agrees(tmp_path: Path, loss: str, high: float | None) -> None:
    grpo = {"loss_type": loss, "epsilon_high": high, "gradient_accumulation_steps": 1, "save_steps": 1}
    options = {**SMALL, "env": "FrozenLake-v1", "credit": "pool", "steps": 1, "seed": 3, "grpo": grpo}
    train(choose(**options, env_kwargs={"is_slippery": False}), out=tmp_path / "run", console=silent())
    [report] = check_run(tmp_path / "run")
    assert report.first is None
    assert [stage.unchecked for stage in report.stages] == [""] * len(STAGES)


def test_an_estimator_of_the_users_is_called_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is not in the folder's reach, or fails, leaves its stages unchecked."""
    source = "def by_place(group):\n    return [[float(place)] * len(one.rewards) for place, one in enumerate(group)]\n"
    (tmp_path / "estimators_of_mine.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    named = "estimators_of_mine:by_place"
    options = {**SMALL, "env": "TrlEnv/GuessNumber-v0", "steps": 1, "credit": named}
    train(choose(**options), out=tmp_path / "run", console=silent())
    with pytest.raises(UntrustedError, match="by_place"):
        next(check_run(tmp_path / "run"))
    trust = Trust(names=[named])
    [report] = check_run(tmp_path / "run", trust=trust)
    assert report.first is None
    assert [stage.unchecked for stage in report.stages] == [""] * len(STAGES)
    monkeypatch.setattr("estimators_of_mine.by_place.__code__", (lambda group: [[1.0] for one in group]).__code__)
    [report] = check_run(tmp_path / "run", trust=trust)
    assert "does not return a number per turn" in _unchecked(report)["advantages"]
    monkeypatch.setattr("estimators_of_mine.by_place.__code__", (lambda group: group.lost).__code__)
    [report] = check_run(tmp_path / "run", trust=trust)
    assert "raises AttributeError" in _unchecked(report)["advantages"]


def _unchecked(report: StepReport) -> dict[str, str]:
    return {stage.name: stage.unchecked for stage in report.stages}


class Failing(gym.Env[str, str]):
    """Game that its infrastructure ends in the second turn of some episodes."""

    observation_space = action_space = AnyText()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._turn, self._fails = 0, bool(seed and seed % 3 == 0)
        return "Say something.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._turn += 1
        if self._turn == 2 and self._fails:
            raise OSError("disk full")
        return f"Turn {self._turn}.", float(len(action) % 3), self._turn == 3, False, {}


def test_episodes_that_failed_in_a_later_turn_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        gym.registry, "Tests/Failing-v0", gym.envs.registration.EnvSpec("Tests/Failing-v0", lambda **_: Failing())
    )
    train(choose("Tests/Failing-v0", **SMALL, steps=3, executor="inline"), out=tmp_path / "run", console=silent())
    reports = list(check_run(tmp_path / "run"))
    assert [one.first for one in reports] == [None] * 3
    records = [one for path in step_files(tmp_path / "run") for one in read_step(path).records]
    failed = [one for one in records if one["stop_reason"] == "env_error"]
    assert 0 < len(failed) < len(records)
    assert all(one["last_observation"] == "Turn 1." and one["unanswered"] is not None for one in failed)


def test_a_step_that_was_written_again_agrees(runs: dict[str, Path], tmp_path: Path) -> None:
    assert changed(runs["plain"], tmp_path, lambda step: None, 2).first is None


# ---------------------------------------------------------------------------------------------------------------------
# Mutants
# ---------------------------------------------------------------------------------------------------------------------


def _task(**changes: Any) -> Change:
    return lambda step: step.record["task"].update(changes)


def _put(what: str, **changes: Any) -> Change:
    """Return a change of the fields of an episode's record or row, or of the settings."""

    def change(step: Recorded) -> None:
        place = {"record": step.record, "row": step.episodes[0], "about": step.about}[what]
        for name, value in changes.items():
            assert place[name] != value
            place[name] = value

    return change


def _setting(**changes: Any) -> Change:
    return lambda step: step.about["settings"].update(changes)


def _turn(index: int = 0, **changes: Any) -> Change:
    return lambda step: step.record["turns"][index].update(changes)


def _shift(what: str, field: str, by: Any, index: int | None = None) -> Change:
    """Return an addition to a number of the first episode's record or row, or to one of a list of numbers in it."""

    def change(step: Recorded) -> None:
        place = {"record": step.record, "row": step.episodes[0], "about": step.about}[what]
        if index is None:
            place[field] += by
        else:
            place[field][index] += by

    return change


def _flip(place: Any, name: str) -> None:
    place[name] = not place[name]


def _env_token(step: Recorded) -> int:
    return [*step.record["mask"]].index(0)


def _to(field: str, value: Any, at: Callable[[Recorded], int] = lambda step: 0) -> Change:
    def change(step: Recorded) -> None:
        step.record[field][at(step)] = value

    return change


def _row(name: str, change: Callable[[Any], None], number: int = 0) -> Change:
    return lambda step: change(step.rows[name][number])


def _add(values: Any, by: Any, at: int | str = 0) -> None:
    values[at] += by


def _swap(values: Any, one: int = 0, other: int = -1) -> None:
    values[one], values[other] = values[other], values[one]


def _other_task(step: Recorded) -> None:
    """Have an episode of a group play another task, correctly named."""
    task = step.record["task"]
    task["options"] = {**task["options"], "instance": (task["options"]["instance"] + 1) % 8}
    task["id"] = task_id(task["env_id"], task["seed"], env_kwargs=task["env_kwargs"], options=task["options"])


def _everywhere(step: Recorded) -> None:
    """Change a log-probability in the episode and in the row."""
    step.records[0]["logprobs"][0] -= 0.5
    step.rows["row_sampled"][0][0] -= 0.5


def _swapped_weights(step: Recorded) -> None:
    checkpoints = step.folder / "checkpoints"
    shutil.rmtree(checkpoints / "checkpoint-1")
    shutil.copytree(checkpoints / "checkpoint-2", checkpoints / "checkpoint-1")


def _logged(by: float, name: str = "policy_loss") -> Change:
    def change(step: Recorded) -> None:
        path = step.folder / "metrics.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line in lines:
            line[name] = line.get(name, 0.0) + by
        path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    return change


def _template(step: Recorded) -> None:
    path = step.folder / "tokenizer" / "chat_template.jinja"
    path.write_text(path.read_text() + " ")


def _unscored_and_paid(step: Recorded) -> None:
    step.record.update({"return": None, "success": None, "stop_reason": "env_error", "truncated": False})


def _not_centred(step: Recorded) -> None:
    for values in step.rows["row_advantages"]:
        values[:] = values + 0.25


def _cut(step: Recorded) -> None:
    """Mask an episode, as if a limit of tokens had ended it."""
    step.about["masks_cut_off"] = True
    step.rows["row_mask"][0].fill(0)


def _apart(step: Recorded) -> tuple[int, int]:
    """Return two rows with different advantages."""
    values = [float(one[0]) for one in step.rows["row_advantages"]]
    return 0, next(place for place, value in enumerate(values) if abs(value - values[0]) > 0.01)


PLAIN: dict[str, tuple[str | set[str], Change]] = {
    "a seed of a task": ("seeds", lambda step: _add(step.record["task"], 2, "seed")),
    "the name of a task": ("seeds", _task(id="TrlEnv/GuessNumber-v0#1")),
    "an option of the reset": ("seeds", _task(options={"instance": 99})),
    "an argument of the environment": ("seeds", _task(env_kwargs={"high": 9, "turns": 4})),
    "the environment": ("seeds", _task(env_id="TrlEnv/Echo-v0")),
    "the seed of a sampling": ("seeds", _shift("row", "sampling_seed", 1)),
    "one seed for two episodes": (
        "seeds",
        lambda step: step.episodes[1].update(sampling_seed=step.episodes[0]["sampling_seed"]),
    ),
    "the seed of the run": ("seeds", _shift("about", "seed", 1)),
    "the number of the call": ("seeds", _shift("about", "call", 1)),
    "the step": ("seeds", _shift("about", "step", 1)),
    "the size of a group": ("seeds", _put("about", group_size=2)),
    "the place of an episode": ("seeds", _shift("row", "number", 1)),
    "the attempt of a group": ("seeds", _shift("row", "attempt", 1)),
    "the order of the episodes": ("seeds", lambda step: _swap(step.records)),
    "the group of an episode": ("seeds", _shift("record", "group", 1)),
    "the place in a group": ("seeds", _shift("record", "attempt", 1)),
    "the step of an episode": ("seeds", _shift("record", "step", 1)),
    "an observation": ("environment", _turn(1, observation="too low, or so")),
    "a reward": ("environment", lambda step: _add(step.record["turns"][0], 0.5, "reward")),
    "the validity of an action": ("environment", lambda step: _flip(step.record["turns"][0], "action_valid")),
    "the end by the environment": ("environment", lambda step: _flip(step.record, "terminated")),
    "the stop reason": ("environment", _put("record", stop_reason="terminated")),
    "the last observation": ("environment", _put("record", last_observation="over")),
    "a response": ({"environment", "tokens"}, _turn(0, answer="#")),
    "a turn that is left out": ("environment", lambda step: step.record["turns"].pop(0)),
    "a turn that is there twice": (
        "environment",
        lambda step: step.record["turns"].append(dict(step.record["turns"][-1])),
    ),
    "the cost of an invalid action": ("environment", lambda step: step.record["spec"].update(invalid_penalty=0.5)),
    "the action format": ("environment", lambda step: step.record["spec"].update(action_format="boxed")),
    "a task of another group": ({"environment", "groups"}, _other_task),
    "a sampled id": ("tokens", _to("completion_ids", 60)),
    "an id of the environment": ("tokens", _to("completion_ids", 60, _env_token)),
    "an id of the prompt": ("tokens", _to("prompt_ids", 60)),
    "a prompt that is too short": ("tokens", lambda step: step.record["prompt_ids"].pop()),
    "an id after the end": ("tokens", lambda step: step.record["completion_ids"].append(1)),
    "an end that is lost": (
        "tokens",
        lambda step: [step.record[name].pop() for name in ("completion_ids", "mask", "logprobs")],
    ),
    "a bit that masks a sampled id": ("tokens", _to("mask", 0)),
    "a bit that trains an id of the environment": ("tokens", _to("mask", 1, _env_token)),
    "a mask of ones": ("tokens", lambda step: step.record.update(mask=[1] * len(step.record["mask"]))),
    "a log-probability of an id that was not sampled": ("tokens", _to("logprobs", -0.5, _env_token)),
    "a log-probability above 0": ("tokens", _to("logprobs", 0.5)),
    "the first token of a turn": ("tokens", lambda step: _add(step.record["turns"][1], 1, "start")),
    "the last token of a turn": ("tokens", lambda step: _add(step.record["turns"][0], 1, "stop")),
    "a thought": ("tokens", _turn(0, thinking="Hm.")),
    "the opening": ("tokens", lambda step: step.record["opening"][-1].update(content="Guess. " + "x")),
    "the version of the template": ("tokens", lambda step: step.about.update(template=step.about["template"] + " ")),
    "the template of the tokenizer": ("tokens", _template),
    "a return": ("returns", _shift("record", "return", 0.5)),
    "a success": ("returns", lambda step: step.record.update(success=not step.record["success"])),
    "the number of turns": ("returns", _shift("record", "num_turns", 1)),
    "the number of invalid actions": ("returns", _shift("record", "invalid_actions", 1)),
    "the number of actions cut off": ("returns", _shift("record", "cut_actions", 1)),
    "truncation": ("returns", lambda step: _flip(step.record, "truncated")),
    "the number of sampled tokens": ("returns", _shift("record", "sampled_tokens", 1)),
    "the length of the prompt": ("returns", _shift("record", "prompt_tokens", 1)),
    "the length of the completion": ("returns", _shift("record", "completion_tokens", 1)),
    "what a function has paid": ("returns", _shift("row", "rewards", 0.5, 0)),
    "a reward that is lost": ("returns", _put("row", rewards=[None])),
    "a reward of a turn for credit": ("returns", _shift("row", "turn_rewards", 0.5, 0)),
    "an unscored episode that is paid": ({"environment", "returns"}, _unscored_and_paid),
    "an id of a row": ("rows", _row("row_completion_ids", lambda values: _add(values, 1))),
    "an id of a row's prompt": ("rows", _row("row_prompt_ids", lambda values: _add(values, 1))),
    "a bit of a row's mask": ("rows", _row("row_mask", lambda values: values.__setitem__(0, 0))),
    "a bit of the environment in a row's mask": ("rows", _row("row_mask", lambda values: values.fill(1))),
    "a log-probability of a row": ("rows", _row("row_sampled", lambda values: _add(values, 0.01))),
    "the order of the rows": ("rows", lambda step: [values.reverse() for values in step.rows.values()]),
    "a row that is left out": ("rows", lambda step: [values.pop() for values in step.rows.values()]),
    "the number of trained tokens": ("rows", _shift("about", "items", 1.0)),
    "masks of episodes that were cut off": ("rows", _cut),
    "an advantage": ("advantages", _row("row_advantages", lambda values: _add(values, 0.01))),
    "the sign of an advantage": (
        "advantages",
        lambda step: [values.__imul__(-1) for values in step.rows["row_advantages"]],
    ),
    "advantages that are not centred": ("advantages", _not_centred),
    "the order of the advantages": ("advantages", lambda step: _swap(step.rows["row_advantages"], *_apart(step))),
    "the scale of the advantages": ("advantages", _setting(scale_rewards="group")),
    "the weight of a reward": ("advantages", _put("about", weights=[2.0])),
    "a log-probability everywhere": ("log-probabilities", _everywhere),
    "the temperature": ("log-probabilities", _setting(temperature=2.0)),
    "the weights": ("log-probabilities", _swapped_weights),
    "the logged loss": ("loss", _logged(0.01)),
}
"""Changes of a run with one advantage per episode, and the stage that finds each."""


def _key(step: Recorded) -> None:
    for one in step.episodes:
        one["turn_keys"] = [f"{key}-{place}-{one['number']}" for place, key in enumerate(one["turn_keys"])]
        one["turn_places"] = [f"{key}-{place}-{one['number']}" for place, key in enumerate(one["turn_places"])]


def _paid_late(step: Recorded) -> None:
    for one in step.episodes:
        one["turn_penalties"] = [0.0] * len(one["turn_penalties"])
        one["unplayed_costs"] = 0.0


def _sampled(step: Recorded) -> int:
    """Return a row with a trained token that has an advantage."""
    rows = zip(step.rows["row_advantages"], step.rows["row_mask"], strict=True)
    return next(number for number, (values, mask) in enumerate(rows) if (np.abs(values) * mask).max() > 1e-3)


def _flat(step: Recorded) -> None:
    """Give all turns of an episode the advantage of its first, as without credit per turn."""
    for values, mask in zip(step.rows["row_advantages"], step.rows["row_mask"], strict=True):
        values[mask == 1] = values[np.flatnonzero(mask)[0]] if mask.any() else 0.0


CREDIT: dict[str, tuple[str | set[str], Change]] = {
    "the states of the turns": ("advantages", _key),
    "the costs of invalid actions": ("advantages", _paid_late),
    "the type of the loss": ("loss", _setting(loss_type="dr_grpo")),
    "the estimator": ("advantages", _put("about", credit="return_to_go")),
    "no credit per turn": ("advantages", _put("about", credit=None)),
    "the tokens of a turn": (
        "advantages",
        lambda step: step.episodes[_sampled(step)]["turn_spans"].__setitem__(0, [0, 2]),
    ),
    "an advantage of a token": (
        "advantages",
        lambda step: _add(
            step.rows["row_advantages"][_sampled(step)],
            0.01,
            int(np.flatnonzero(step.rows["row_mask"][_sampled(step)])[0]),
        ),
    ),
    "one advantage for all turns": ("advantages", _flat),
    "an advantage of the environment's token": (
        "advantages",
        lambda step: _add(step.rows["row_advantages"][0], 0.01, int(np.flatnonzero(step.rows["row_mask"][0] == 0)[0])),
    ),
    "the reward of a turn": ("returns", _shift("row", "turn_rewards", 0.5, -1)),
    "an observation": ("environment", _turn(1, observation="S")),
}
"""The same of a run with credit per turn."""


def _segmented(step: Recorded) -> Any:
    return next(one for one in step.records if one["segments"])


HISTORY: dict[str, tuple[str | set[str], Change]] = {
    "the beginning of a segment": ("tokens", lambda step: _add(_segmented(step)["segments"][0], 1, "start")),
    "the end of a segment's prompt": ("tokens", lambda step: _add(_segmented(step)["segments"][0], 1, "stop")),
    "the turns that are left out": ("tokens", lambda step: _add(_segmented(step)["segments"][0], 1, "left_out")),
    "a segment that is lost": ("tokens", lambda step: _segmented(step).update(segments=None)),
    "an id of a segment's prompt": (
        "tokens",
        lambda step: _add(_segmented(step)["completion_ids"], 1, _segmented(step)["segments"][0]["start"] + 3),
    ),
    "segments that are one row": ("rows", _put("about", segments=False)),
    "the weight of a segment": ("advantages", _setting(loss_type="dapo")),
    "an advantage of a segment": (
        "advantages",
        lambda step: _add(step.rows["row_advantages"][_row_of_segment(step)], 0.01),
    ),
    "the number of invalid actions that end an episode": (
        "environment",
        lambda step: [one["spec"].update(end_after_invalid=1) for one in step.records],
    ),
}
"""The same of a run with a history."""


def _row_of_segment(step: Recorded) -> int:
    return [*step.records].index(_segmented(step)) + 1


def _judged_by(by: float, name: str = "before") -> Change:
    return lambda step: _add(step.about["role_means"][0], by, name)


def _roles(step: Recorded) -> None:
    """Let the episodes of the two seats change their roles."""
    for one, other in zip(step.episodes[::2], step.episodes[1::2], strict=True):
        one["role"], other["role"] = other["role"], one["role"]


def _opponents_answer(step: Recorded) -> None:
    step.records[_against(step)]["opponent_turns"][0]["answer"] = "nowhere"


def _against(step: Recorded) -> int:
    """Return the place of an episode in which the opponent had a valid turn after the model's first."""
    return next(
        place
        for place, one in enumerate(step.records)
        if one["opponent_turns"] and one["turns"] and one["order"][-1] > one["opponent_turns"][0]["place"]
    )


LEAGUE: dict[str, tuple[str | set[str], Change]] = {
    "an answer of the opponent": ("environment", _opponents_answer),
    "a turn of the opponent": ("environment", lambda step: step.records[_against(step)]["opponent_turns"].pop(0)),
    "the seat of an opponent": (
        "environment",
        lambda step: _add(step.records[_against(step)]["opponent_turns"][0], 1, "seat"),
    ),
}
"""The same of a run with a league."""

SEATS: dict[str, tuple[str | set[str], Change]] = {
    "the baseline of a role": ("advantages", _judged_by(0.1)),
    "the baseline after the step": ("advantages", _judged_by(0.1, "after")),
    "the weight of earlier returns": ("advantages", _put("about", role_decay=0.5)),
    "a baseline that is lost": ("advantages", lambda step: step.about["role_means"].pop()),
    "the roles of the seats": ("advantages", _roles),
    "advantages without baselines": ("advantages", _put("about", credit="episode")),
}
"""The same of a run with a baseline of each seat."""

MUTANTS = [
    pytest.param(run, change, stage, id=f"{run}: {name}", marks=[] if number % 5 == 0 else [pytest.mark.full])
    for run, changes in (
        ("plain", PLAIN),
        ("credit", CREDIT),
        ("history", HISTORY),
        ("seats", SEATS),
        ("league", LEAGUE),
    )
    for number, (name, (stage, change)) in enumerate(changes.items())
]


@pytest.mark.parametrize(("run", "change", "stage"), MUTANTS)
def test_a_changed_field_is_found_at_its_stage(
    runs: dict[str, Path], tmp_path: Path, run: str, change: Change, stage: str | set[str]
) -> None:
    report = changed(runs[run], tmp_path, change, STEPS.get(run, 1))
    assert report.first is not None, [(one.name, one.unchecked) for one in report.stages]
    assert report.first.name in ({stage} if isinstance(stage, str) else stage), report.first.differences


@given(
    st.lists(st.sampled_from([-0.3, 0.1, 0.7, 1.0, 1e3, None]) | st.floats(-9, 9, width=32), min_size=8, max_size=8),
    st.sampled_from(["group", "batch", "none"]),
)
def test_what_32_bits_change_in_an_advantage_is_no_difference(rewards: list[float | None], scale: str) -> None:
    about: Any = {"group_size": 4, "functions": ["env_reward"], "weights": [1.0]}
    about["settings"] = {"multi_objective_aggregation": "sum_then_normalize", "scale_rewards": scale}
    now, rounding = episode_advantages(about, [{"rewards": [one]} for one in rewards])  # type: ignore[typeddict-item]
    paid = torch.tensor([math.nan if one is None else one for one in rewards])
    groups = paid.view(-1, 4)
    spread = nanstd(groups, dim=1).repeat_interleave(4) if scale == "group" else nanstd(paid)
    centred = paid - groups.nanmean(1).repeat_interleave(4)
    trained = torch.nan_to_num(centred if scale == "none" else centred / (spread + 1e-4), nan=0.0)
    assert (np.abs(now - trained.double().numpy()) <= TOLERANCE * np.maximum(1, np.abs(now)) + rounding).all()


@pytest.mark.full
@pytest.mark.processes
def test_a_run_of_two_processes_is_checked_as_one(tmp_path: Path) -> None:
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m", "gym_trl", "train"]
    words += [
        "TrlEnv/GuessNumber-v0",
        "--steps=1",
        "--episodes-per-step=16",
        "--num-generations=16",
        "--eval-episodes=2",
    ]
    command = [sys.executable, *words, "--out", str(tmp_path / "run")]
    subprocess.run(command, cwd=ROOT, check=True, timeout=300, capture_output=True, env={**os.environ, **ONE_THREAD})
    [report] = check_run(tmp_path / "run")
    assert (report.first, report.episodes, report.stages[-1].unchecked) == (None, 16, "")

    def change(step: Recorded) -> None:  # of the other process, whose group is also that of the first
        assert step.about["rows_by_process"] == [8, 8]
        step.rows["row_advantages"][12][0] += 0.01

    found = changed(tmp_path / "run", tmp_path / "again", change, 1).first
    assert found is not None
    assert (found.name, [one.episode for one in found.differences]) == ("advantages", [12])


# ---------------------------------------------------------------------------------------------------------------------
# Recording
# ---------------------------------------------------------------------------------------------------------------------


def test_a_step_in_fifty_is_recorded_as_a_whole_beginning_with_the_first(tmp_path: Path) -> None:
    options = choose(**{**SMALL, "env": "TrlEnv/GuessNumber-v0", "steps": 3, "full_record_every": 2})
    train(options, out=tmp_path / "run", console=silent())
    assert list(step_files(tmp_path / "run").values()) == [1, 3]
    train(replace(options, full_record_every=0), out=tmp_path / "without", console=silent())
    assert not step_files(tmp_path / "without")


def test_without_a_full_record_the_episodes_are_checked(runs: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(runs["plain"], tmp_path / "run"))
    shutil.rmtree(folder / "steps")
    reports = list(check_run(folder))
    assert [(one.step, one.full, one.first) for one in reports] == [(1, False, None), (2, False, None)]
    assert [stage.name for stage in reports[0].stages if stage.unchecked] == [*STAGES][5:]


def test_the_command_names_the_episode_the_turn_and_both_values(runs: dict[str, Path], tmp_path: Path) -> None:
    changed(runs["plain"], tmp_path, PLAIN["an observation"][1], 2)
    ran = CliRunner().invoke(app, ["check", str(tmp_path / "run")])
    assert ran.exit_code == 1
    said = " ".join(ran.output.split())
    assert "turn 1: the observation was" in said
    assert "'too low, or so' when it was recorded" in said
    assert "The first stage that differs: environment of step 2." in said
    assert CliRunner().invoke(app, ["check", str(runs["plain"]), "--step", "1"]).exit_code == 0
    found = json.loads(CliRunner().invoke(app, ["check", str(tmp_path / "run"), "--json"]).output)
    assert [one["differs"] for one in found["steps"]] == [None, "environment"]


def test_a_step_that_is_not_recorded_is_an_error(runs: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no step 7"):
        list(check_run(runs["plain"], step=7))
    ran = CliRunner().invoke(app, ["check", str(tmp_path)])
    assert ran.exit_code == 2


def test_a_file_of_anybody_is_checked_or_refused_in_one_line(runs: dict[str, Path]) -> None:
    folders = {name: runs[name] for name in ("plain", "credit", "history")}
    archives = {name: dict(np.load(folder / "steps" / "step-1.npz")) for name, folder in folders.items()}
    valid = {name: json.loads(archive["about"].tobytes()) for name, archive in archives.items()}
    # The same run with its weights would be loaded for each example.
    for whole in valid.values():
        whole["records"], whole["episodes"] = whole["records"][:4], whole["episodes"][:4]
        whole["about"]["rows_by_process"] = [4]

    @given(st.data(), st.sampled_from(sorted(valid)))
    def check(data: st.DataObject, name: str) -> None:
        spoilt = hostile.written(data.draw(hostile.spoilt(valid[name]))).encode()
        arrays = {**archives[name], "about": np.frombuffer(spoilt, dtype=np.uint8)}
        for array in ("prompt_ids", "completion_ids", "mask", "logprobs"):
            lengths = archives[name][f"{array}.lengths"][:4]
            arrays |= {f"{array}.lengths": lengths, array: archives[name][array][: lengths.sum()]}
        with TemporaryDirectory() as place:
            folder = Path(place, "run")
            (folder / "steps").mkdir(parents=True)
            shutil.copytree(folders[name] / "tokenizer", folder / "tokenizer")
            for file in ("config.json", "metrics.jsonl"):
                shutil.copy(folders[name] / file, folder)
            np.savez(folder / "steps" / "step-1.npz", allow_pickle=False, **arrays)
            ran = CliRunner().invoke(app, ["check", str(folder), "--json"])
            if ran.exception is not None and not isinstance(ran.exception, SystemExit):
                raise ran.exception
            assert ran.exit_code in (0, 1, 2)

    check()


@pytest.mark.parametrize("spoil", [b"", b"PK", b"\x00" * 99])
def test_a_damaged_file_is_an_error(runs: dict[str, Path], tmp_path: Path, spoil: bytes) -> None:
    folder = Path(shutil.copytree(runs["plain"], tmp_path / "run"))
    (folder / "steps" / "step-1.npz").write_bytes(spoil)
    with pytest.raises(ConfigError, match="is not a recorded step"):
        list(check_run(folder))
