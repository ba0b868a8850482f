"""Break the laws of the design one change at a time, and count the changes that no test notices.

``make mutants`` changes the modules that keep each law in ten ways (a comparison turned, a term dropped, two values
swapped, a condition negated, a number off by one, a statement left out), each in a copy of the tree, and runs the
module's own examples and the tests of the law. ``ARGS="--sample 3"`` tries three a law, ``ARGS="--laws 5 25"`` some
laws. Results are appended to ``runs/mutants.jsonl``; what is there is not tried again.

Mutants are chosen by a hash of their function and text, not by their place: code that moved has the same mutants.

mutmut 3.8 cannot do this: a mutant gets only the tests during which it saw the function entered, and what a module's
fixture, a cache or another process enters counts for one test or none, so that what the others notice is reported as
survivors. Nor can its changes be chosen: one in five here is of a text, and no test may hold a wording.
"""

import argparse
import ast
import hashlib
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]

LAWS = {
    "1 ids": ("gym_trl/play.py gym_trl/history.py", "test_play test_histories test_games_of_seats"),
    "2 mask": ("gym_trl/episode.py", "test_play test_histories test_games_of_seats"),
    "3 template": ("gym_trl/chat.py", "test_chat test_control_tokens test_histories"),
    "4 logprobs": ("gym_trl/engines/sampler.py gym_trl/grpo/speed.py", "engines/test_transformers grpo/test_speed"),
    "5 together": ("gym_trl/rollout.py", "test_rollout"),
    "6 groups": ("gym_trl/grpo/dataset.py gym_trl/grpo/rollout_func.py", "grpo/test_dataset grpo/test_trainings"),
    "7 seeds": ("gym_trl/seeding.py", "test_seeding wrappers/test_every_wrapper"),
    "8 episodes": ("gym_trl/executors/thread.py gym_trl/executors/inline.py", "test_executors test_rollout"),
    "9 blind": ("gym_trl/check/evidence.py", "test_check"),
    "10 vectors": ("gym_trl/vector.py", "test_vector"),
    "12 slots": (
        "gym_trl/engines/transformers.py",
        "engines/test_transformers engines/test_bad_requests",
    ),
    "13 success": (
        "gym_trl/wrappers/declare_success.py gym_trl/types.py gym_trl/evaluation.py",
        "test_types test_evaluation test_play",
    ),
    "14 unscored": ("gym_trl/grpo/rewards.py gym_trl/errors.py", "test_whose_fault grpo/test_trainings"),
    "15 no way out": ("gym_trl/wrappers/turn_limit.py", "test_no_way_out wrappers/test_every_wrapper"),
    "16 control tokens": ("gym_trl/encoder.py gym_trl/chat.py", "test_control_tokens test_chat"),
    "18 metrics": (
        "gym_trl/grpo/rewards.py",
        "grpo/test_environment_factory grpo/test_trainings grpo/test_two_processes",
    ),
    "19 whole actions": (
        "gym_trl/text/parsing.py gym_trl/wrappers/parse_action.py",
        "test_parsing test_whole_actions wrappers/test_parse_action",
    ),
    "20 counted": (
        "gym_trl/evaluation.py gym_trl/intervals.py",
        "test_evaluation",
    ),
    "21 one play": ("gym_trl/executors/inline.py gym_trl/players.py", "test_one_play test_play test_players"),
    "22 options": ("gym_trl/options.py", "test_law_22"),
    "23 checks": ("gym_trl/check/*.py", "test_planted"),
    "25 injective": ("gym_trl/text/spaces.py", "test_text_spaces"),
    "26 data": ("gym_trl/setting.py gym_trl/records.py", "test_law_26 test_setting"),
    "27 silences": ("gym_trl/grpo/alarms.py", "test_silences"),
    "credit": ("gym_trl/grpo/credit.py gym_trl/grpo/turn_values.py", "grpo/test_credit"),
}
"""Laws of the design, by number and name: the modules that keep each, and the tests that hold them to it, fast ones
first. Law 11 is Gymnasium's own check, which has no module here."""

TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}

DECLARATIONS = ("annotation", "returns", "decorator_list", "type_params", "args")
"""Fields of nodes that say something of a function, and do nothing."""


class Mutant(NamedTuple):
    """One change of one expression or statement of a module."""

    key: str
    """Name of the change, which does not depend on where the function stands."""
    module: str
    source: bytes
    """All of the module, with the change."""


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST, ast.AST]]:
    """Yield the changes of one node: the name of the operator, what it replaces, and by what."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=right) if type(op) in TURNED:
            yield "turn a comparison", node, ast.Compare(left, [TURNED[type(op)]()], right)
        case ast.BoolOp(op=op, values=values):
            yield "swap and/or", node, ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
            yield "drop a term", node, values[0]
        case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult(), left=left):
            yield "drop a term", node, left
        case ast.If(test=test) | ast.While(test=test):
            yield "negate a condition", test, ast.UnaryOp(ast.Not(), test)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield "negate a condition", node, ast.IfExp(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.Constant(value=bool() as value):
            yield "turn a truth", node, ast.Constant(not value)
        case ast.Constant(value=int() as value):
            yield "off by one", node, ast.Constant(value + 1)
        case ast.Call(func=ast.Name(id="max" | "min" | "isinstance")):  # of which the order is nothing or all
            return
        case ast.Call(args=[first, second, *rest], func=func, keywords=keywords) if not isinstance(first, ast.Starred):
            yield "swap two values", node, ast.Call(func, [second, first, *rest], keywords)
        case ast.Tuple(elts=[first, second, *rest], ctx=ast.Load()) if not isinstance(first, ast.Slice):
            yield "swap two values", node, ast.Tuple([second, first, *rest], ast.Load())
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            yield "leave out a statement", node, ast.Pass()


def nodes_of(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Yield the nodes of functions, each with its function; no annotations, decorators, messages and assertions."""

    def inside(node: ast.AST, function: str) -> Iterator[tuple[str, ast.AST]]:
        for name, value in ast.iter_fields(node):
            if name in DECLARATIONS and not isinstance(node, ast.Call):
                continue
            for child in value if isinstance(value, list) else [value]:
                if not isinstance(child, ast.AST) or isinstance(child, (ast.Raise, ast.Assert, ast.JoinedStr)):
                    continue
                within = function
                if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    if child.name in ("__repr__", "__str__"):
                        continue
                    within = f"{function}.{child.name}".lstrip(".")
                if function:
                    yield function, child
                yield from inside(child, within)

    return inside(tree, "")


def mutants_of(law: str) -> list[Mutant]:
    """Return all mutants of a law's modules, in the order of their hashes."""
    found: dict[str, Mutant] = {}
    for path in sorted(path for pattern in LAWS[law][0].split() for path in ROOT.glob(pattern)):
        source = path.read_bytes()
        starts = [0, *accumulate(len(row) for row in source.splitlines(keepends=True))]
        for function, node in nodes_of(ast.parse(source)):
            for operator, old, new in changes(node):
                assert isinstance(old, (ast.expr, ast.stmt))
                assert old.end_lineno is not None
                assert old.end_col_offset is not None
                after = ast.unparse(new)
                if not isinstance(new, (ast.stmt, ast.Tuple)):
                    after = f"({after})"
                key = f"{law}: {function}: {operator}: {ast.unparse(old)} -> {after}"
                before = source[: starts[old.lineno - 1] + old.col_offset]
                behind = source[starts[old.end_lineno - 1] + old.end_col_offset :]
                module = str(path.relative_to(ROOT))
                found.setdefault(key, Mutant(key, module, before + after.encode() + behind))
    return sorted(found.values(), key=lambda one: hashlib.sha256(one.key.encode()).digest())


def run_tests(tests: list[str], tree: Path, *, cpu_s: float) -> tuple[bool, float]:
    """Run tests in a fork of this process, to the first failure; return whether all passed, and their CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    child = os.fork()
    if child == 0:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_s), int(cpu_s) + 1))
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        os.chdir(tree)
        os.environ["PYTHONPATH"] = str(tree)
        sys.path.insert(0, str(tree))
        import pytest

        options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-seed=0", "-W", "ignore"]
        os._exit(pytest.main([*options, "-m", "not slow", *tests]))
    _, status = os.waitpid(child, 0)
    with suppress(ProcessLookupError):  # what it started, and left behind
        os.killpg(child, signal.SIGKILL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return status == 0, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def tries(law: str, mutants: list[Mutant], tree: Path) -> Iterator[tuple[Mutant, bool]]:
    """Try some mutants of a law; yield each with whether it survived."""
    tests = [f"tests/{name}.py" for name in LAWS[law][1].split()]
    passed, seconds = run_tests(tests, tree, cpu_s=600)
    if not passed:
        raise SystemExit(f"without a mutant, these fail: {' '.join(tests)}")
    for one in mutants:
        path = tree / one.module
        original = path.read_bytes()
        path.write_bytes(one.source)
        survived, _ = run_tests([one.module, *tests], tree, cpu_s=3 * seconds + 20)
        path.write_bytes(original)
        yield one, survived


def main() -> None:
    """Try the mutants that the arguments choose, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=10, help="mutants of each law; 10 by default")
    parser.add_argument("--laws", nargs="*", help="numbers of laws; all by default")
    arguments = parser.parse_args()
    laws = [law for law in LAWS if not arguments.laws or law.partition(" ")[0] in arguments.laws]
    results = ROOT / "runs" / "mutants.jsonl"
    results.parent.mkdir(exist_ok=True)
    results.touch()
    survived = {row["key"]: row["survived"] for row in map(json.loads, results.read_text().splitlines())}

    for module in ("hypothesis", "numpy", "gymnasium", "datasets", "torch", "trl.trainer.grpo_trainer"):
        importlib.import_module(module)  # once, and not in each of the forks
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        left_out = shutil.ignore_patterns(".git", ".venv", "runs", "site", "__pycache__", ".hypothesis")
        shutil.copytree(ROOT, tree, symlinks=True, ignore=left_out)
        for law in laws:
            chosen = mutants_of(law)[: arguments.sample]
            if untried := [one for one in chosen if one.key not in survived]:
                for one, lived in tries(law, untried, tree):
                    survived[one.key] = lived
                    with results.open("a", encoding="utf-8") as file:
                        file.write(json.dumps({"key": one.key, "survived": lived}) + "\n")
                    print(one.key, "SURVIVED" if lived else "", flush=True)
    for law in LAWS:
        tried = [lived for key, lived in survived.items() if key.startswith(f"{law}: ")]
        print(f"{law:20} {sum(tried):3} of {len(tried):3} survived")


if __name__ == "__main__":
    main()
