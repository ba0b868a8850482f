"""Break the laws of the design one change at a time, and count the changes that no test notices.

``make mutants`` changes the modules that keep each law in ten ways (a comparison turned, a term dropped, two values
swapped, a condition negated, a number off by one, a statement left out), each in a copy of the tree, and runs the
module's own examples and the tests of the law. ``ARGS="--sample 3"`` tries three a law, ``ARGS="--laws 5 25"`` some
laws, and ``ARGS="--tree FOLDER"`` another checkout; with ``--same-as FILE`` the mutants of an earlier run are tried, as
far as their code still exists. Results are appended to ``runs/mutants.jsonl``; what is there is not tried again.

Mutants are chosen by a hash of their function and text, not by their place: code that moved has the same mutants.
"""

import argparse
import ast
import copy
import hashlib
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]


class Law(NamedTuple):
    """Modules that keep a law, and the tests that hold them to it, fast ones first."""

    modules: str
    tests: str


LAWS = {
    "1 ids": Law("gym_trl/play.py gym_trl/history.py", "test_play test_histories test_games_of_seats"),
    "2 mask": Law("gym_trl/episode.py", "test_play test_histories test_games_of_seats"),
    "3 template": Law("gym_trl/chat.py", "test_chat test_control_tokens test_histories"),
    "4 logprobs": Law("gym_trl/engines/sampler.py gym_trl/grpo/speed.py", "engines/test_transformers grpo/test_speed"),
    "5 together": Law("gym_trl/rollout.py", "test_rollout"),
    "6 groups": Law("gym_trl/grpo/dataset.py gym_trl/grpo/rollout_func.py", "grpo/test_dataset grpo/test_trainings"),
    "7 seeds": Law("gym_trl/seeding.py", "test_seeding wrappers/test_every_wrapper"),
    "8 episodes": Law("gym_trl/executors/thread.py gym_trl/executors/inline.py", "test_executors test_rollout"),
    "9 blind": Law("gym_trl/check/evidence.py", "test_check"),
    "10 vectors": Law("gym_trl/vector.py", "test_vector"),
    "12 slots": Law(
        "gym_trl/engines/transformers.py",
        "engines/test_transformers engines/test_bad_requests",
    ),
    "13 success": Law(
        "wrappers/declare_success.py gym_trl/types.py gym_trl/evaluation.py", "test_types test_evaluation test_play"
    ),
    "14 unscored": Law("gym_trl/grpo/rewards.py gym_trl/errors.py", "test_whose_fault grpo/test_trainings"),
    "15 no way out": Law("wrappers/turn_limit.py", "test_no_way_out wrappers/test_every_wrapper"),
    "16 control tokens": Law("gym_trl/encoder.py gym_trl/chat.py", "test_control_tokens test_chat"),
    "18 metrics": Law("gym_trl/grpo/rewards.py", "grpo/test_trainings grpo/test_two_processes"),
    "19 whole actions": Law(
        "gym_trl/text/parsing.py wrappers/parse_action.py",
        "test_parsing test_whole_actions wrappers/test_parse_action",
    ),
    "20 counted": Law(
        "gym_trl/evaluation.py gym_trl/intervals.py",
        "test_evaluation",
    ),
    "21 one play": Law("gym_trl/executors/step.py gym_trl/players.py", "test_one_play test_play"),
    "22 options": Law("gym_trl/options.py", "test_law_22"),
    "23 checks": Law("gym_trl/check/*.py", "test_planted"),
    "25 injective": Law("gym_trl/text/spaces.py", "test_text_spaces"),
    "26 data": Law("gym_trl/setting.py gym_trl/records.py", "test_law_26 test_setting"),
    "27 silences": Law("gym_trl/grpo/alarms.py", "test_silences"),
    "credit": Law("gym_trl/grpo/credit.py gym_trl/grpo/turn_values.py", "grpo/test_credit"),
}
"""Laws of the design, by number and name. Law 11 is Gymnasium's own check, which has no module here."""

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


@dataclass(frozen=True)
class Mutant:
    """One change of one expression or statement."""

    law: str
    module: str
    function: str
    operator: str
    line: int
    start: int
    end: int
    before: str
    after: str

    @property
    def key(self) -> str:
        """Name of the change, which does not depend on where the function stands."""
        return f"{self.law}: {self.function}: {self.operator}: {self.before} -> {self.after}"


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield the changes of one node, each with the name of its operator."""

    def changed(**fields: Any) -> ast.AST:
        other = copy.copy(node)
        for name, value in fields.items():
            setattr(other, name, value)
        return other

    match node:
        case ast.Compare(ops=[op]) if type(op) in TURNED:
            yield "turn a comparison", changed(ops=[TURNED[type(op)]()])
        case ast.BoolOp(op=op, values=values):
            yield "swap and/or", changed(op=ast.Or() if isinstance(op, ast.And) else ast.And())
            yield "drop a term", values[0]
        case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult(), left=left):
            yield "drop a term", left
        case ast.If(test=test) | ast.While(test=test):  # in the place of the condition alone
            yield "negate a condition", ast.UnaryOp(ast.Not(), test)
        case ast.IfExp(test=test):
            yield "negate a condition", changed(test=ast.UnaryOp(ast.Not(), test))
        case ast.Constant(value=bool() as value):
            yield "turn a truth", changed(value=not value)
        case ast.Constant(value=int() as value):
            yield "off by one", changed(value=value + 1)
        case ast.Call(func=ast.Name(id="max" | "min" | "isinstance")):  # of which the order is nothing or all
            return
        case ast.Call(args=[first, second, *rest]) if not isinstance(first, ast.Starred):
            yield "swap two values", changed(args=[second, first, *rest])
        case ast.Tuple(elts=[first, second, *rest], ctx=ast.Load()):
            yield "swap two values", changed(elts=[second, first, *rest])
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            yield "leave out a statement", ast.Pass()


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


def mutants_of(law: str, tree: Path) -> list[Mutant]:
    """Return all mutants of a law's modules, in the order of their hashes."""
    found: dict[str, Mutant] = {}
    for path in sorted(path for pattern in LAWS[law].modules.split() for path in tree.glob(pattern)):
        source = path.read_text(encoding="utf-8")
        starts = [0]
        for row in source.encode().splitlines(keepends=True):
            starts.append(starts[-1] + len(row))
        for function, whole in nodes_of(ast.parse(source)):
            for operator, changed in changes(whole):
                node = whole.test if isinstance(whole, ast.If | ast.While) else whole
                assert isinstance(node, (ast.expr, ast.stmt))
                assert node.end_lineno is not None
                assert node.end_col_offset is not None
                after = ast.unparse(ast.fix_missing_locations(changed))
                one = Mutant(
                    law=law,
                    module=str(path.relative_to(tree)),
                    function=function,
                    operator=operator,
                    line=node.lineno,
                    start=starts[node.lineno - 1] + node.col_offset,
                    end=starts[node.end_lineno - 1] + node.end_col_offset,
                    before=ast.unparse(node),
                    after=after if isinstance(changed, (ast.stmt, ast.Tuple)) else f"({after})",
                )
                found.setdefault(one.key, one)
    return sorted(found.values(), key=lambda one: hashlib.sha256(one.key.encode()).digest())


def tests_of(law: str, tree: Path) -> list[str]:
    """Return the test files of a law that a tree has, in their order."""
    paths = [f"tests/{name}.py" for name in LAWS[law].tests.split()]
    return [path for path in paths if (tree / path).exists()]


def examples_of(mutant: Mutant) -> str:
    """Return the file whose docstrings have the examples of a mutant's module, as ``make test`` finds it."""
    return mutant.module if mutant.module.startswith("gym_trl/") else f"gym_trl/{mutant.module}"


def run_tests(tests: list[str], tree: Path, *, cpu_s: float) -> tuple[bool, float]:
    """Run tests in a fork of this process, to the first failure; return whether all passed, and the seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    child = os.fork()
    if child == 0:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_s) + 1, int(cpu_s) + 2))
        silent = os.open(os.environ.get("MUTANTS_OUTPUT", os.devnull), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        os.chdir(tree)
        os.environ["PYTHONPATH"] = str(tree)
        sys.path.insert(0, str(tree))
        import pytest

        options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout=0"]
        os._exit(pytest.main([*options, "--hypothesis-seed=0", "-W", "ignore", "-m", "not slow", *tests]))
    deadline, status = time.monotonic() + 20 * cpu_s, None
    while status is None and time.monotonic() < deadline:
        ended, code = os.waitpid(child, os.WNOHANG)
        status = code if ended else None
        time.sleep(0.05)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if status is None:
        os.waitpid(child, 0)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return status == 0, seconds


def try_law(law: str, tree: Path, chosen: list[Mutant], write: Callable[[dict[str, Any]], None]) -> None:
    """Try some mutants of a law."""
    tests = tests_of(law, tree)
    if not chosen:
        return
    passed, seconds = run_tests(tests, tree, cpu_s=600)
    if not passed:
        write({"law": law, "broken": f"the tests fail without a mutant: {' '.join(tests)}"})
        return
    for one in chosen:
        path = tree / one.module
        original = path.read_bytes()
        try:
            path.write_bytes(original[: one.start] + one.after.encode() + original[one.end :])
            survived, took = run_tests([examples_of(one), *tests], tree, cpu_s=3 * seconds + 20)
        finally:
            path.write_bytes(original)
        write({**asdict(one), "key": one.key, "survived": survived, "seconds": round(took, 1)})


def read(file: Path) -> list[dict[str, Any]]:
    """Return the results in a file."""
    return [json.loads(row) for row in file.read_text(encoding="utf-8").splitlines()]


def report(rows: list[dict[str, Any]]) -> str:
    """Return how many mutants survived, by law."""
    lines = []
    for law in LAWS:
        tried = [row for row in rows if row["law"] == law and "survived" in row]
        broken = [row["broken"] for row in rows if row["law"] == law and "broken" in row]
        lived = sum(row["survived"] for row in tried)
        lines.append(f"{law:20} {lived:3} of {len(tried):3} survived {'' if tried else ''.join(broken[:1])}".rstrip())
    tried = [row for row in rows if "survived" in row]
    lines.append(f"{'all':20} {sum(row['survived'] for row in tried):3} of {len(tried):3} survived")
    return "\n".join(lines)


def main() -> None:
    """Try the mutants that the arguments choose, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=10, help="mutants of each law; 10 by default")
    parser.add_argument("--laws", nargs="*", help="numbers of laws; all by default")
    parser.add_argument("--tree", type=Path, default=ROOT, help="checkout to break; this one by default")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "mutants.jsonl", help="file of results")
    parser.add_argument(
        "--same-as", type=Path, metavar="FILE", help="the mutants of this file of results, as far as there are"
    )
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    arguments = parser.parse_args()
    laws = [law for law in LAWS if not arguments.laws or law.partition(" ")[0] in arguments.laws]
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    rows = read(arguments.out) if arguments.out.exists() else []
    if arguments.list:
        for law in laws:
            every = mutants_of(law, arguments.tree)
            print(f"{law}: {len(every)} mutants, {' '.join(tests_of(law, arguments.tree))}")
            for one in every[: arguments.sample]:
                print(f"  {one.module}:{one.line} {one.key.partition(': ')[2]}")
        return

    def write(row: dict[str, Any]) -> None:
        rows.append(row)
        with arguments.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(row.get("key") or row["broken"], "SURVIVED" if row.get("survived") else "", flush=True)

    for module in ("hypothesis", "numpy", "gymnasium", "datasets", "torch", "trl.trainer.grpo_trainer"):
        importlib.import_module(module)  # once, and not in each of the forks
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        left_out = shutil.ignore_patterns(".git", ".venv", "runs", "site", "__pycache__", ".hypothesis", "*.pyc")
        shutil.copytree(arguments.tree, tree, symlinks=True, ignore=left_out)
        (tree / ".venv").symlink_to(Path(sys.prefix))
        sys.dont_write_bytecode = True
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        known = {row["key"] for row in rows if "key" in row}
        wanted = {row.get("key") for row in read(arguments.same_as)} if arguments.same_as else None
        for law in laws:
            mutants = mutants_of(law, tree)
            chosen = mutants[: arguments.sample] if wanted is None else [one for one in mutants if one.key in wanted]
            try_law(law, tree, [one for one in chosen if one.key not in known], write)
    print(report(rows))


if __name__ == "__main__":
    main()
