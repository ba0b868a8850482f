"""The recipes run for a step with the tiny model, and leave folders that the viewer opens."""

import json
from pathlib import Path

import pytest
from support import warm

from gym_trl.viewer.page import write_page

ROOT = Path(__file__).parent.parent
RECIPES = sorted((ROOT / "recipes").glob("*.py"))
SMALL = {"wordle": ["--model=tiny"], "tools": ["--episodes=64"]}
"""Further arguments."""
RUNS = {"tools": ["run"]}
"""Folders of the runs in that of the output."""


def steps_of(run):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_a_recipe_leaves_runs_that_the_viewer_opens(recipe, tmp_path):
    done = warm.run(recipe, "--steps=1", f"--output={tmp_path}", *SMALL.get(recipe.stem, []))
    assert done.returncode == 0, done.stderr[-3000:]
    assert "gym-trl view" in done.stdout
    for run in (tmp_path / name for name in RUNS.get(recipe.stem, [""])):
        assert steps_of(run) == [1]
        page = tmp_path / "page.html"
        assert write_page(run, page)["episodes"] > 0
        assert page.stat().st_size > 10_000


@pytest.mark.slow
def test_a_resumed_training_appends_to_its_records(tmp_path):
    for steps in (2, 3):
        done = warm.run(ROOT / "recipes" / "own_environment.py", f"--steps={steps}", f"--output={tmp_path}")
        assert done.returncode == 0, done.stderr[-3000:]
    assert steps_of(tmp_path) == [1, 2, 3]
    records = map(json.loads, (tmp_path / "rollouts.jsonl").read_text().splitlines())
    places = [(record["step"], record["group"], record["attempt"]) for record in records]
    assert sorted({step for step, _, _ in places}) == [1, 2, 3]
    assert len(set(places)) == len(places)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.stem)
def test_a_recipe_is_short_and_on_the_page(recipe):
    source = recipe.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 150
    assert f"$ python recipes/{recipe.name}" in source.split('"""')[1]
    assert f"recipes/{recipe.name}" in (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
