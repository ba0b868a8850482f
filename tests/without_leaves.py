"""Script that deletes leaves from copies of the library, and uses what is left.

    python tests/without_leaves.py FOLDER

It copies the library into FOLDER once for each of some sets of rows of ``gym_trl/leaves.py``, so that of any two rows
each is missing where the other is not, and once for all rows together. It deletes the modules of the rows and the rows
themselves, imports every module and every public name that is left, and lists commands and environments. In the copy
without any leaf it trains a step as well. Leaves without which something fails are printed with the error; the exit
status is then 1.

A copy is used in a fork of this process, which has imported the heavy libraries and nothing of this one.
"""

import ast
import compileall
import os
import pkgutil
import shutil
import sys
import traceback
from collections.abc import Callable, Collection, Sequence
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[1]
ALL = "all_leaves"
HEAVY = ("torch", "datasets", "gymnasium", "rich.console", "rich.table", "transformers", "trl", "typer.testing")


def rows() -> dict[str, tuple[str, ...]]:
    """Return the modules of each leaf, read from the source, without an import."""
    return {
        ast.literal_eval(name): ast.literal_eval(leaf.args[0])
        for name, leaf in _table(ROOT / "gym_trl" / "leaves.py")
        if isinstance(leaf, ast.Call)
    }


def copy_without(names: Collection[str], folder: Path, source: Path = ROOT) -> Path:
    """Copy the library without some leaves, and return the folder to import it from."""
    # The links to wrappers and envs become folders. Times stay, so that compiled files stay valid.
    shutil.copytree(source / "gym_trl", folder / "gym_trl")
    table = folder / "gym_trl" / "leaves.py"
    lines = table.read_text(encoding="utf-8").splitlines(keepends=True)
    for name, leaf in reversed(_table(table)):
        if ast.literal_eval(name) in names:
            del lines[name.lineno - 1 : leaf.end_lineno]
    table.write_text("".join(lines), encoding="utf-8")
    for module in (module for name in names for module in rows()[name]):
        path = folder / "gym_trl" / module.replace(".", "/")
        shutil.rmtree(path) if path.is_dir() else path.with_suffix(".py").unlink()
    return folder


def _table(path: Path) -> list[tuple[ast.expr, ast.expr]]:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if (
            isinstance(node, ast.AnnAssign)
            and ast.unparse(node.target) == "LEAVES"
            and isinstance(node.value, ast.Dict)
        ):
            return [(name, leaf) for name, leaf in zip(node.value.keys, node.value.values, strict=True) if name]
    raise AssertionError(f"{path} has no LEAVES")


def use() -> None:
    """Import every module and public name, and list the commands and environments."""
    package = import_module("gym_trl")
    for module in pkgutil.walk_packages(package.__path__, "gym_trl."):
        if not module.name.endswith("__main__"):
            imported = import_module(module.name)
            for name in imported.__all__ if module.ispkg and "__getattr__" in vars(imported) else ():
                getattr(imported, name)
    from gymnasium import registry
    from typer.testing import CliRunner

    from gym_trl.cli import main as _  # noqa: F401
    from gym_trl.cli.app import app

    leaves = import_module("gym_trl.leaves")
    help_ = CliRunner().invoke(app, ["--help"], catch_exceptions=False).output
    assert all(f" {command} " in help_ for command in leaves.offered("commands")), help_
    if "list" in leaves.LEAVES:
        listed = CliRunner().invoke(app, ["list"], catch_exceptions=False).output
        assert all(env_id in listed for env_id in package.GAMES), listed
    places = [str(spec.entry_point) for name, spec in registry.items() if name.startswith(("TrlEnv/", "External/"))]
    for place in places:
        pkgutil.resolve_name(place)


def train(folder: Path) -> None:
    """Train a tiny model for a step."""
    from trl import GRPOConfig

    from gym_trl import GymGRPOTrainer, GymSpec
    from gym_trl.testing import tiny_model, tiny_tokenizer

    tokenizer = tiny_tokenizer()
    options = {"use_cpu": True, "bf16": False, "report_to": [], "disable_tqdm": True, "save_strategy": "no"}
    sizes = {"num_generations": 2, "per_device_train_batch_size": 2, "max_completion_length": 32, "max_steps": 1}
    trainer = GymGRPOTrainer(
        model=tiny_model(tokenizer),
        processing_class=tokenizer,
        args=GRPOConfig(output_dir=str(folder / "trained"), **options, **sizes),
        spec=GymSpec("TrlEnv/GuessNumber-v0", num_tasks=2),
    )
    trainer.train()
    assert trainer.state.global_step == 1


def in_fork(function: Callable[[], None]) -> str:
    """Return the error of a function that runs in a fork of this process; empty if it has none."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.close(reading)
        try:
            function()
        except BaseException:
            os.write(writing, traceback.format_exc()[-4_000:].encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        error = file.read()
    os.waitpid(child, 0)
    return error


def sets_of(names: Sequence[str]) -> dict[str, list[str]]:
    """Return sets of leaves, of which one has the first and not the second of any two; and all leaves."""
    sets = {
        f"leaves_{bit}_{side}": [name for number, name in enumerate(names) if number >> bit & 1 == side]
        for bit in range((len(names) - 1).bit_length())
        for side in (0, 1)
    }
    return {**sets, ALL: [*names]}


def main(folder: Path) -> int:
    """Delete sets of leaves; return the exit status."""
    for module in HEAVY:
        import_module(module)
    from trl import GRPOTrainer as _  # noqa: F401 -- TRL imports its parts when they are used

    compiled = copy_without((), folder / "compiled")
    compileall.compile_dir(compiled, quiet=1)
    failed = False
    for name, names in sets_of([*rows()]).items():
        copy = copy_without(names, folder / name, compiled)

        def check(copy: Path = copy, *, everything: bool = name == ALL) -> None:
            sys.path.insert(0, str(copy))
            use()
            if everything:
                train(copy)
            strangers = {place for place in map(_file, list(sys.modules)) if place and not place.startswith(str(copy))}
            assert not strangers, f"imported from elsewhere: {sorted(strangers)[:3]}"

        if error := in_fork(check):
            failed = True
            print(f"Without {', '.join(names)}:\n{error}", flush=True)  # noqa: T201
        if name != ALL:
            shutil.rmtree(copy)
    return int(failed)


def _file(module: str) -> str | None:
    return getattr(sys.modules[module], "__file__", None) if module.startswith("gym_trl") else None


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
