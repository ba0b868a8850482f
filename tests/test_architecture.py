"""Tests of the declared structure: the picture of the rooms is current, and pages name files that exist."""

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import grimp
import pytest

from gym_trl.leaves import LEAVES

ROOT = Path(__file__).parents[1]
MOST_BRANCHES = 12
BRANCHES = (ast.If, ast.For, ast.While, ast.ExceptHandler, ast.IfExp, ast.comprehension, ast.match_case)
READING = {"getattr", "hasattr", "attribute_of", "has_wrapper_attr", "get_wrapper_attr"}
MOST_OF_OURS = 60
OURS: dict[str, tuple[int, str]] = {
    "envs/countdown.py": (2, "arguments by name"),
    "envs/judge.py": (1, "counters by name"),
    "envs/text_env.py": (3, "arguments by name; policies that a game may define"),
    "gym_trl/_lazy.py": (1, "names of a package"),
    "gym_trl/envspec.py": (1, "options by name"),
    "gym_trl/executors/make.py": (1, "options by name"),
    "gym_trl/executors/worker.py": (2, "methods called from another process"),
    "gym_trl/executors/crews.py": (1, "orders by name"),
    "gym_trl/grpo/credit/columns.py": (1, "columns by name"),
    "gym_trl/grpo/prepare.py": (1, "parts of a rollout function, which may be a user's"),
    "gym_trl/grpo/totals.py": (4, "sums by name"),
    "gym_trl/grpo/trainer.py": (2, "parts of a rollout function, which may be a user's; arguments by name"),
    "gym_trl/kinds.py": (1, "options by name"),
    "gym_trl/options/base.py": (2, "options by name"),
    "gym_trl/options/commands.py": (4, "options by name"),
    "gym_trl/options/groups.py": (1, "options by name"),
    "gym_trl/policies/model.py": (1, "options by name"),
    "gym_trl/rollout/limits.py": (2, "limits by name"),
    "gym_trl/sandbox/__init__.py": (2, "limits by name"),
    "gym_trl/training/options.py": (1, "options by name"),
    "wrappers/traits.py": (10, "the one reader of what environments and wrappers declare, also strangers'"),
}
"""Attributes of objects of this library that are read by name: how many at most, and which."""
OTHERS: dict[str, dict[str, int]] = {
    "environments of others": {
        "gym_trl/env_checker/checks/episodes.py": 1,
        "gym_trl/evaluation/blind_actions.py": 1,
        "gym_trl/text/discovery.py": 2,
        "gym_trl/executors/crews.py": 3,
        "wrappers/inner.py": 1,
        "wrappers/toy_text.py": 1,
    },
    "functions, values and errors of users, and Python's modules": {
        "envs/judge.py": 1,
        "envs/question_answer.py": 2,
        "envs/text_env.py": 1,
        "gym_trl/cli/play.py": 1,
        "gym_trl/cli/terminal.py": 1,
        "gym_trl/errors.py": 2,
        "gym_trl/files.py": 2,
        "gym_trl/grpo/credit/groups.py": 1,
        "gym_trl/grpo/training_tasks.py": 2,
        "gym_trl/kinds.py": 3,
        "gym_trl/policies/functions.py": 1,
        "gym_trl/records/json_lines.py": 2,
        "gym_trl/registration.py": 6,
        "gym_trl/sandbox/driver.py": 1,
        "gym_trl/sandbox/isolation.py": 1,
        "gym_trl/sandbox/shell_driver.py": 1,
        "gym_trl/training/progress.py": 1,
        "gym_trl/training/process.py": 1,
        "gym_trl/trust.py": 1,
        "wrappers/image_observation.py": 2,
        "wrappers/seats.py": 1,
        "wrappers/state_key.py": 3,
        "wrappers/tool.py": 1,
    },
    "other libraries": {
        "envs/external/bfcl.py": 5,
        "envs/external/java.py": 2,
        "envs/external/openspiel.py": 1,
        "envs/external/textarena.py": 3,
        "gym_trl/chat/images.py": 3,
        "gym_trl/chat/rendering.py": 6,
        "gym_trl/chat/template_facts.py": 1,
        "gym_trl/chat/template_text.py": 5,
        "gym_trl/chat/tokenizer_codec.py": 7,
        "gym_trl/engines/admission.py": 4,
        "gym_trl/engines/kv_attention.py": 1,
        "gym_trl/engines/kv_support.py": 7,
        "gym_trl/engines/lockstep.py": 3,
        "gym_trl/engines/sampler.py": 1,
        "gym_trl/engines/vllm.py": 6,
        "gym_trl/grpo/adapters.py": 1,
        "gym_trl/grpo/checkpoints.py": 2,
        "gym_trl/grpo/opponents.py": 1,
        "gym_trl/grpo/parts/league_games.py": 1,
        "gym_trl/grpo/passes.py": 2,
        "gym_trl/grpo/prepare.py": 2,
        "gym_trl/grpo/resume.py": 2,
        "gym_trl/grpo/rollout_worker.py": 1,
        "gym_trl/grpo/sampled_logprobs.py": 4,
        "gym_trl/grpo/trainer_engine.py": 2,
        "gym_trl/grpo/transcripts.py": 1,
        "gym_trl/grpo/trl_versions.py": 16,
        "gym_trl/integrations/code_agent/clients.py": 7,
        "gym_trl/integrations/code_agent/environments.py": 3,
        "gym_trl/integrations/eval_protocol/client_env.py": 4,
        "gym_trl/integrations/eval_protocol/environments.py": 1,
        "gym_trl/integrations/eval_protocol/processor.py": 3,
        "gym_trl/integrations/eval_protocol/rows.py": 3,
        "gym_trl/integrations/eval_protocol/training.py": 1,
        "gym_trl/integrations/openenv/client.py": 2,
        "gym_trl/integrations/openenv/env.py": 4,
        "gym_trl/integrations/openenv/harness.py": 3,
        "gym_trl/integrations/openenv/served.py": 1,
        "gym_trl/integrations/openenv/server.py": 2,
        "gym_trl/integrations/openenv/session.py": 5,
        "gym_trl/integrations/trl_env/environments.py": 1,
        "gym_trl/integrations/trl_env/processors.py": 6,
        "gym_trl/integrations/trl_env/decoders.py": 1,
        "gym_trl/policies/model.py": 1,
        "gym_trl/records/inspect_logs.py": 1,
        "gym_trl/spaces.py": 1,
        "gym_trl/training/doctor.py": 1,
        "gym_trl/training/model_checks.py": 5,
        "gym_trl/training/run_folder.py": 1,
        "gym_trl/training/supervised.py": 1,
        "wrappers/mcp_connection.py": 2,
    },
}
"""Attributes of all other objects that are read by name: how many at most in each file."""
PAGES = ["docs/concepts/architecture.md", "CONTRIBUTING.md"]
CORE_ROW = re.compile(r"^\| `([\w/]+)\.py` \| [\d,]+ \|", re.MULTILINE)


def test_the_picture_of_the_rooms_is_current() -> None:
    drawn = subprocess.run([sys.executable, "docs/make_rooms.py", "--check"], cwd=ROOT, check=False)
    assert drawn.returncode == 0, "run python docs/make_rooms.py"


def test_the_core_is_within_its_budget_and_listed_with_its_lines() -> None:
    counted = subprocess.run(
        [sys.executable, "docs/make_core.py", "--check"], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert counted.returncode == 0, counted.stderr


def test_the_core_imports_no_leaf() -> None:
    page = (ROOT / "docs" / "concepts" / "architecture.md").read_text(encoding="utf-8")
    core = [name.replace("/", ".") for name in CORE_ROW.findall(page)]
    graph = grimp.build_graph("gym_trl")
    leaves = tuple(f"gym_trl.{name}" for leaf in LEAVES.values() for name in leaf.modules)
    chains = [
        graph.find_shortest_chain(module, leaf)
        for module in core
        for leaf in graph.find_upstream_modules(module)
        if leaf.startswith(leaves)
    ]
    assert core
    assert chains == []


@pytest.mark.parametrize("page", PAGES)
def test_files_that_a_page_names_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:gym_trl|wrappers|envs|tests|docs|benchmarks)/[\w./]*)`", text))
    assert named, f"{page} names no files"
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_only_the_log_of_an_episode_makes_its_result() -> None:
    making = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "gym_trl").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "EpisodeResult"
    ]
    assert {*making} == {"gym_trl/rollout/log.py"}


def test_no_function_has_many_branches() -> None:
    branching = [
        f"{path.relative_to(ROOT)} {function.name}"
        for room in ("gym_trl", "wrappers", "envs")
        for path in sorted((ROOT / room).rglob("*.py"))
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        and sum(isinstance(node, BRANCHES) for node in ast.walk(function)) > MOST_BRANCHES
    ]
    assert branching == [], f"over {MOST_BRANCHES} branches each: look for the noun or table that is missing"


def test_attributes_are_read_by_name_in_the_listed_places_only() -> None:
    reading = Counter(
        str(path.relative_to(ROOT))
        for room in ("gym_trl", "wrappers", "envs")
        for path in sorted((ROOT / room).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[-1] in READING
    )
    listed = Counter({path: count for path, (count, _) in OURS.items()})
    for places in OTHERS.values():
        listed.update(places)
    more = {path: f"{count}, listed {listed[path]}" for path, count in reading.items() if count > listed[path]}
    assert more == {}, "give the class a default, or read what environments declare with gym_trl.wrappers.traits"
    assert sum(count for count, _ in OURS.values()) <= MOST_OF_OURS
