"""Options are declared once: what is written from them is up to date, and an editor knows their types."""

import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from mypy import api

from gym_trl import options
from gym_trl.options import EvalOptions, SpecOptions, TournamentOptions, TrainOptions, WarmStartOptions, declared
from gym_trl.training.options import PRESETS, changed_by, preset_defaults

ROOT = Path(__file__).parents[1]
GROUPS = (
    *(options.Task, options.Text, options.Rollout, options.Stepping, options.TaskChoice, options.Learning),
    *(options.Model, options.Run),
)
COMMANDS = (SpecOptions, TrainOptions, WarmStartOptions, EvalOptions, TournamentOptions)
NESTED = (options.Cutoff, options.History, options.Curriculum, options.PrioritizedTasks, options.League)


def test_the_page_and_the_types_of_arguments_are_what_the_script_writes():
    made = subprocess.run([sys.executable, "docs/make_options.py", "--check"], cwd=ROOT, check=False)
    assert made.returncode == 0, "run python docs/make_options.py"


def test_the_name_of_an_option_is_unique_over_all_groups():
    names = Counter(name for group in GROUPS for name in declared(group))
    assert [name for name, count in names.items() if count > 1] == []
    assert names.keys() == declared(TrainOptions).keys()
    assert {*names} - {*declared(SpecOptions)} == {*declared(options.Model), *declared(options.Run)}


@pytest.mark.parametrize("group", [*COMMANDS, *NESTED], ids=lambda group: group.__name__)
def test_every_option_has_a_sentence_and_a_meaning_of_none(group):
    for name, one in declared(group).items():
        sentence = one.metadata["sentence"]
        assert sentence.endswith("."), (name, sentence)
        assert sentence[0].isupper(), (name, sentence)
        assert (options.default_of(one) is None) == bool(one.metadata["unset"]), (name, one.metadata["unset"])


def test_the_help_has_the_values_of_the_presets():
    described = preset_defaults()
    for name, preset in PRESETS.items():
        base = changed_by(name)
        assert replace(preset, **{key: vars(base)[key] for key in described}) == base
    assert described["num_generations"] == "8 (tiny: 16; tiny on TrlEnv/Echo-v0: 8)"


RIGHT = """from gym_trl import Cutoff, GymSpec
from gym_trl.training.options import choose

GymSpec("FrozenLake-v1", turn_limit=8, credit="pool", cutoff=Cutoff(episode_s=60), success=0.5)
GymSpec("FrozenLake-v1", cutoff={"episode_s": 60}, observe="render", state_key="pkg.mod:key")
choose("FrozenLake-v1", steps=8, grpo={"beta": 0.1})
"""
WRONG = (
    'GymSpec("FrozenLake-v1", turn_limit="8")',
    'GymSpec("FrozenLake-v1", turn_limt=8)',
    'GymSpec("FrozenLake-v1", cut_actions="refuse")',
    'GymSpec("FrozenLake-v1", history="last=8")',
    'choose("FrozenLake-v1", steps="8")',
    'choose("FrozenLake-v1", num_tasks=8)',
)


@pytest.mark.full
def test_a_wrong_type_or_name_of_an_option_is_refused_by_mypy(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(RIGHT + "\n".join(WRONG) + "\n")
    found, problems, _ = api.run(["--config-file", str(ROOT / "pyproject.toml"), str(program)])
    assert not problems
    # mypy's cache may have the errors of the same program in the folder of another run.
    lines = {int(number) for number in re.findall(rf"/{program.name}:(\d+): error:", found)}
    first = len(RIGHT.splitlines()) + 1
    assert lines == {*range(first, first + len(WRONG))}, found
