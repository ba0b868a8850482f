"""Write what derives from the declaration of the options: the types of arguments by name.

Run it after a change of ``gym_trl/options.py``; a test compares the files with the declaration.
"""

import ast
import sys
from pathlib import Path

from gym_trl import options
from gym_trl.files import replace_text

ROOT = Path(__file__).parent.parent
ARGUMENTS = ROOT / "gym_trl" / "option_args.py"
_HEAD = '''"""Types of arguments that are options, by name; written by docs/make_options.py from gym_trl/options.py."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypedDict

from gym_trl.kinds import Arguments, Count, Penalty, Positive, Range, Seconds, Seed, Share, Whole
from gym_trl.options import (
    CreditName,
    Curriculum,
    CutActions,
    Cutoff,
    DType,
    ExecutorName,
    Function,
    History,
    League,
    PrioritizedTasks,
    VLLMMode,
)
'''
_NESTED = ("Cutoff", "History", "Curriculum", "PrioritizedTasks", "League")


def arguments() -> str:
    """Return the module with the types of the arguments of ``GymSpec`` and others."""
    declared = _annotations()
    text = _HEAD
    played = ("PlayArgs", "TypedDict", options.EpisodeOptions, "of ``EpisodeOptions`` on the play of any tasks")
    spec = ("SpecArgs", "PlayArgs", options.SpecOptions, "of ``SpecOptions``")
    train = ("TrainArgs", "PlayArgs", options.TrainOptions, "of ``TrainOptions``")
    for name, base, kind, sentence in (played, spec, train):
        text += f"\n\nclass {name}({base}, total=False):\n"
        text += f'    """Arguments that are fields {sentence}."""\n'
        for one in options.declared(kind):
            if one == "env" or (one in options.PLAYED) != (name == "PlayArgs"):
                continue
            owner = options.group_of(one, kind).__name__
            text += f"\n    {one}: {_given(declared[owner][one])}"
        text += "\n"
    return text


def _annotations() -> dict[str, dict[str, ast.expr]]:
    tree = ast.parse(Path(options.__file__).read_text(encoding="utf-8"))
    classes = (one for one in tree.body if isinstance(one, ast.ClassDef))
    return {
        one.name: {
            line.target.id: line.annotation
            for line in one.body
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
        }
        for one in classes
    }


def _given(annotation: ast.expr) -> str:
    """Return the type of what a user gives for an option of a type."""
    text = ast.unparse(annotation).replace("'", '"')
    if text.startswith("tuple["):
        text = f"Sequence[{text.removeprefix('tuple[').removesuffix(', ...]')}]"
    text = text.replace("Function", "Function | str")
    parts = text.split(" | ")
    if any(one in _NESTED for one in parts):
        parts.insert(len(parts) - ("None" in parts), "Arguments")
    return " | ".join(parts)


def main() -> None:
    """Write the files, or with ``--check`` fail if one is out of date."""
    made = arguments()
    if "--check" in sys.argv:
        sys.exit(0 if ARGUMENTS.read_text(encoding="utf-8") == made else f"{ARGUMENTS.name} is out of date")
    replace_text(ARGUMENTS, made)


if __name__ == "__main__":
    main()
