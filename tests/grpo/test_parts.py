import json
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from support import tiny_trainer

from gym_trl import GymSpec, Part
from gym_trl.errors import ConfigError
from gym_trl.grpo.parts.part import ReplacedEpisode
from gym_trl.grpo.saved_state import SavedState
from gym_trl.options import SpecOptions, TrainOptions
from gym_trl.types import Task

ECHO: dict[str, Any] = {"num_tasks": 8, "num_eval_tasks": 4, "max_tokens_per_turn": 2}
GRPO = {"per_device_train_batch_size": 8, "num_generations": 4, "max_steps": 2, "learning_rate": 1e-3}
HOOKS = ["begin", "plan", "engine", "play", "again", "play", "columns", "end"]  # where one plays some rows again


class Noted(Part):
    """Part that notes its hooks, and plays one group again."""

    def __init__(self):
        self.called = []
        self.rollouts = []
        self.state = {"episodes": 0}

    def begin(self, call):
        self.called.append("begin")

    def plan(self, rows, call):
        self.called.append("plan")
        return rows

    @contextmanager
    def engine(self, engine, call):
        self.called.append("engine")
        yield engine

    def play(self, rows, play, call):
        self.called.append("play")
        return play(rows)

    def again(self, rows, episodes, play, call):
        self.called.append("again")
        return []

    def columns(self, rows, episodes, call):
        self.called.append("columns")
        return {"place": [row.number for row in rows]}

    def end(self, rollout, call):
        self.called.append("end")
        self.rollouts.append(rollout)
        self.state["episodes"] += len(call.gather(rollout.episodes))


class Other(Noted):
    in_evaluations = True
    replaces = True

    def plan(self, rows, call):
        super().plan(rows, call)
        return [replace(row, task=Task("TrlEnv/Echo-v0", 1000 + row.group)) for row in rows]

    def again(self, rows, episodes, play, call):
        super().again(rows, episodes, play, call)
        places = [place for place, row in enumerate(rows) if row.group == 0 and call.training]
        replaced = [ReplacedEpisode(place, rows[place].attempt, episodes[place]) for place in places]
        others = [replace(rows[place], task=Task("TrlEnv/Echo-v0", 7), attempt=1) for place in places]
        for place, row, episode in zip(places, others, play(others), strict=True):
            rows[place], episodes[place] = row, episode
        return replaced

    def columns(self, rows, episodes, call):
        super().columns(rows, episodes, call)
        return {}  # those of Noted are there already


def note(place=None, **columns):
    return [0.0 if place is None else float(place[row]) for row in range(len(columns["prompts"]))]


@pytest.mark.trl
def test_every_hook_is_called_in_the_order_of_the_parts(tmp_path):
    first, second = Noted(), Other()
    spec = GymSpec("TrlEnv/Echo-v0", parts=[first, second], **ECHO)
    trainer = tiny_trainer.make(tmp_path, spec, grpo=GRPO, reward_funcs=[*spec.reward_funcs, note])
    trainer.train()
    assert first.called == second.called == HOOKS * 2
    assert [one.task.seed for one in first.rollouts[0].episodes] == [7] * 4 + [1001] * 4
    assert [one.place for one in first.rollouts[0].replaced] == [0, 1, 2, 3]
    assert trainer.state.log_history[0]["rewards/note/mean"] == 3.5
    assert trainer.state.log_history[0]["env/replaced_groups"] == 1
    assert trainer.state.stateful_callbacks["gym_trl.Noted"] == {"episodes": 16}
    trainer.evaluate()
    assert first.called == HOOKS * 2
    assert second.called == HOOKS * 4  # the rows of four tasks are two batches


@pytest.mark.trl
def test_a_state_begins_anew_in_each_training_that_is_not_resumed(tmp_path):
    part = Noted()
    spec = GymSpec("TrlEnv/Echo-v0", parts=[part], **ECHO)
    grpo = {**GRPO, "save_strategy": "steps", "save_steps": 1}
    tiny_trainer.make(tmp_path / "a", spec, grpo=grpo).train()
    assert part.state == {"episodes": 16}
    saved = json.loads((tmp_path / "a" / "checkpoint-1" / "trainer_state.json").read_text())
    assert saved["stateful_callbacks"]["gym_trl.Noted"] == {"episodes": 8}
    tiny_trainer.make(tmp_path / "b", spec, grpo={**grpo, "max_steps": 1}).train()
    assert part.state == {"episodes": 8}
    part.state["episodes"] = 100
    trainer = tiny_trainer.make(tmp_path / "a", spec, grpo=grpo)
    trainer.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-1"))
    assert part.state == {"episodes": 16}


class Failing(Noted):
    """Part that counts a rollout when it begins, of which the second of a training raises."""

    def begin(self, call):
        super().begin(call)
        self.state["episodes"] += 1
        if self.state["episodes"] == 2:
            raise KeyboardInterrupt

    def end(self, rollout, call):
        pass


@pytest.mark.trl
def test_a_rollout_that_is_interrupted_leaves_the_state_of_the_one_before(tmp_path):
    part = Failing()
    spec = GymSpec("TrlEnv/Echo-v0", parts=[part], **ECHO)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            tiny_trainer.make(tmp_path, spec, grpo=GRPO).train()
        assert part.state == {"episodes": 1}


def test_what_is_saved_does_not_change_with_the_state():
    part = Noted()
    saved, trainer = SavedState(part, "a"), SimpleNamespace(state=SimpleNamespace(stateful_callbacks={}))
    saved.restore(trainer)
    saved.save(trainer)
    part.state["episodes"] = 5
    assert trainer.state.stateful_callbacks == {"a": {"episodes": 0}}


def test_a_part_is_given_as_an_object_a_class_or_a_name():
    assert [part.name for part in GymSpec("TrlEnv/Echo-v0", parts=[Noted(), Other]).parts] == ["Noted", "Other"]
    name = f"{__name__}:Noted"
    options = SpecOptions.of({"env": "TrlEnv/Echo-v0", "parts": [name]})
    assert [part.name for part in GymSpec(config=options).parts] == ["Noted"]
    assert options.as_dict()["parts"] == [name]
    assert TrainOptions.of({"parts": [name]}).as_dict()["parts"] == [name]
    with pytest.raises(ConfigError, match=r"parts\[0\] must be a Part, .* got 'nowhere:Noted'"):
        GymSpec("TrlEnv/Echo-v0", parts=["nowhere:Noted"])
    with pytest.raises(ConfigError, match=r"parts must be a list, each element a Part, .*, got \[3\]"):
        GymSpec("TrlEnv/Echo-v0", parts=[3])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match=r"parts must be Part objects, or functions that return one, got 3 from"):
        GymSpec("TrlEnv/Echo-v0", parts=[lambda: 3])
    with pytest.raises(ConfigError, match="two parts are called 'Noted'"):
        GymSpec("TrlEnv/Echo-v0", parts=[Noted(), Noted()])


def test_a_part_of_whole_rollouts_is_refused_elsewhere():
    spec = GymSpec("TrlEnv/Echo-v0", parts=[Noted()])
    with pytest.raises(ConfigError, match="Noted needs rollout_func, not environment_factory"):
        _ = spec.environment_factory


@pytest.mark.trl
@pytest.mark.parametrize(
    ("hook", "method", "told"),
    [
        ("plan", lambda self, rows, call: rows[1:], "plan of the part 'Wrong' must return a list of 8 Planned objects"),
        ("play", lambda self, rows, play, call: None, "play .* list of 8 EpisodeResult objects, got None"),
        ("again", lambda self, rows, episodes, play, call: [0], "must return a list of ReplacedEpisode objects"),
        ("columns", lambda self, rows, episodes, call: None, "columns .* must return a dict from names to lists"),
        ("columns", lambda self, rows, episodes, call: {"x": [1]}, "'x' must be a list of 8 values, .* got 1 values"),
        ("columns", lambda self, rows, episodes, call: {"env_mask": [[0]] * 8}, "there is a column 'env_mask' already"),
        ("trainer_part", lambda self: 3, "trainer_part of the part 'Wrong' must return a TrainerPart or None, got 3"),
        ("end", lambda self, rollout, call: setattr(self, "state", {1}), "checkpoint cannot hold the state {1}"),
        ("end", lambda self, rollout, call: setattr(self, "state", {1: 2}), "would change the state {1: 2}"),
    ],
)
def test_a_wrong_result_of_a_hook_is_refused_by_the_names_of_part_and_hook(tmp_path, hook, method, told):
    wrong = type("Wrong", (Part,), {hook: method, "state": 0})
    with pytest.raises(ConfigError, match=told):
        tiny_trainer.make(tmp_path, GymSpec("TrlEnv/Echo-v0", **ECHO, parts=[wrong]), grpo=GRPO).train()


def test_a_part_without_a_name_is_refused():
    with pytest.raises(ConfigError, match=r"Wrong.name must be a text that is not empty, got None"):
        GymSpec("TrlEnv/Echo-v0", parts=[type("Wrong", (Part,), {"name": None})])


def test_a_class_that_is_no_part_and_a_hook_with_nearly_its_name_are_told():
    with pytest.raises(ConfigError, match=r"the part <class .*Task.*TypeError: .*missing 2 required"):
        GymSpec("TrlEnv/Echo-v0", parts=[Task])
    with pytest.warns(UserWarning, match="Wrong has the method 'column', which nothing calls: did you mean 'columns'"):
        GymSpec("TrlEnv/Echo-v0", parts=[type("Wrong", (Part,), {"column": lambda self, rows, episodes, call: {}})])


@pytest.mark.trl
def test_what_a_part_logs_in_an_evaluation_is_the_evaluations(tmp_path):
    class Logs(Part):
        in_evaluations = True

        def end(self, rollout, call):
            call.log({"mine/training": float(call.training)})

    trainer = tiny_trainer.make(tmp_path, GymSpec("TrlEnv/Echo-v0", **ECHO, parts=[Logs]), grpo=GRPO)
    assert trainer.evaluate()["eval_mine/training"] == 0.0
    trainer.train()
    assert trainer.state.log_history[-2]["mine/training"] == 1.0
