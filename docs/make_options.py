"""Write what derives from the declaration of the options: the types of arguments by name, and the page of the docs.

Run it after a change of ``gym_trl/options/``; a test compares the files with the declaration.
"""

import ast
import re
import sys
from collections.abc import Collection
from pathlib import Path

from gym_trl import options
from gym_trl.cli.errors import option_name
from gym_trl.cli.flags import flags_of
from gym_trl.files import replace_text
from gym_trl.kinds import expected, option_types
from gym_trl.training.options import PRESETS, PRETRAINED, changed_by

ROOT = Path(__file__).parent.parent
ARGUMENTS = ROOT / "gym_trl" / "option_args.py"
PAGE = ROOT / "docs" / "api" / "options.md"
_HEAD = '''"""Types of arguments that are options, by name; written by docs/make_options.py from gym_trl/options/."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, TypedDict

from gym_trl.kinds import Arguments, Count, Penalty, Positive, Range, Seconds, Seed, Share, Whole
from gym_trl.options import (
    CreditName,
    CutActions,
    DType,
    ExecutorName,
    Function,
    Keep,
    VLLMMode,
)
'''


def arguments() -> str:
    """Return the module with the types of the arguments of ``GymSpec`` and others."""
    declared, text = _annotations(), _HEAD
    played, weights = options.PLAYED, options.declared(options.Model)
    planned = [*played, *options.declared(options.Task), *options.declared(options.TaskChoice)]
    episodes = options.declared(options.EpisodeOptions)
    rows: tuple[tuple[str, str, type[options.Options], Collection[str], Collection[str]], ...] = (
        ("PlayArgs", "TypedDict", options.EpisodeOptions, played, ()),
        ("PlannedArgs", "PlayArgs", options.EpisodeOptions, planned, played),
        ("EpisodeArgs", "PlannedArgs", options.EpisodeOptions, episodes, planned),
        ("SpecArgs", "EpisodeArgs", options.SpecOptions, options.declared(options.SpecOptions), episodes),
        ("WeightArgs", "TypedDict", options.Model, weights, ()),
        ("TrainArgs", "EpisodeArgs, WeightArgs", options.TrainOptions, options.declared(options.Run), ()),
        (
            *("WarmStartArgs", "PlannedArgs, WeightArgs", options.WarmStartOptions),
            *(options.declared(options.WarmStartOptions), {*planned, *weights}),
        ),
        ("ModelArgs", "PlayArgs", options.Playing, options.declared(options.Playing), ()),
        ("EvaluateArgs", "PlayArgs", options.EvalOptions, options.OF_EVALUATE, played),
    )
    for name, base, kind, names, inherited in rows:
        text += f'\n\nclass {name}({base}, total=False):\n    """Arguments that are fields of ``{kind.__name__}``."""\n'
        for one in options.declared(kind):
            if one in names and one not in inherited and one != "env":
                owner = next(group for group in kind.__mro__ if one in declared.get(group.__name__, {})).__name__
                text += f"\n    {one}: {_given(declared[owner][one])}"
        text += "\n"
    return text


def _annotations() -> dict[str, dict[str, ast.expr]]:
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in Path(options.__file__).parent.glob("*.py")]
    classes = (one for tree in trees for one in tree.body if isinstance(one, ast.ClassDef))
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
    return re.sub("(Function|Path)", r"\1 | str", text)


_INTRODUCTION = """<!-- Written by docs/make_options.py from gym_trl/options/. -->
# Options

An option has one name in Python (`GymSpec(ID, turn_limit=8)`), on the command line (`gym-trl train ID --turn-limit 8`)
and in a run file (`turn_limit: 8`). [`GymSpec`][gym_trl.grpo.spec.GymSpec] takes the groups Task, Text, Rollout,
Stepping, TaskChoice and Learning, and `gym-trl train` Model and Run as well. Defaults are those of `GymSpec`; `gym-trl
train` starts from a [preset](#presets).

A function is an object in Python
and `"module:function"` elsewhere. `none` on the command line and `null` in a file are `None`.
"""
_GROUPS: tuple[type[options.Options], ...] = (
    options.Task,
    options.Text,
    options.Rollout,
    options.Stepping,
    options.TaskChoice,
    options.Learning,
    options.Model,
    options.Run,
)
_ELSEWHERE = """
## Where nothing is trained

`gym-trl eval`, [`evaluate`][gym_trl.evaluation.evaluation.evaluate] and [`Model`][gym_trl.policies.model.Model] take
Task, Text, Rollout and Stepping, with `max_tokens_per_turn=256` and `end_after_invalid=3` unless a model was trained
otherwise, and the next options.
"""
_OWN: dict[type[options.Options], str] = {
    options.WarmStartOptions: "gym-trl warm-start",
    options.EvalOptions: "gym-trl eval",
}


def page() -> str:
    """Return the page of all options."""
    names = {one.option: one.name for one in flags_of(options.TrainOptions)}
    text = _INTRODUCTION
    for group in _GROUPS:
        text += _section(group, {name: names.get(name, "") for name in options.declared(group)})
    only = [
        name for name in options.declared(options.SpecOptions) if name not in options.declared(options.EpisodeOptions)
    ]
    text += "\n## Only in GymSpec\n\nRows of the datasets, and objects that only Python has.\n\n"
    text += _table(options.SpecOptions, dict.fromkeys(only, ""))
    text += _ELSEWHERE
    for group in (options.Playing, options.Recording):
        text += _section(group, {name: option_name(name) for name in options.declared(group)})
    for group, command in _OWN.items():
        text += f"\n## Only in {command}\n\n"
        own = (name for name in options.declared(group) if options.group_of(name, group) is group and name != "env")
        text += _table(group, {name: option_name(name) for name in own})
    return text + _presets()


def _section(group: type[options.Options], flags: dict[str, str]) -> str:
    first = (group.__doc__ or "").partition("\n")[0]
    return f"\n## {group.__name__}\n\n{first}\n\n{_table(group, flags)}"


def _table(group: type[options.Options], flags: dict[str, str]) -> str:
    rows: list[tuple[str, ...]] = [("option", "flag", "value", "default", "meaning"), ("---",) * 5]
    for name, flag in flags.items():
        one = options.declared(group)[name]
        rows.append(
            (
                f"`{name}`",
                f"`{flag}`" if flag else "",
                expected(option_types(group)[name]),
                _value(name, options.default_of(one), group),
                _plain(one.metadata["sentence"]),
            )
        )
    if not any(flags.values()):
        rows = [(row[0], *row[2:]) for row in rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |\n" for row in rows)


def _value(name: str, value: object, group: type[options.Options]) -> str:
    words = options.described(options.declared(group)[name], value)
    return _plain(words) if value is None or words in ("", "none") else f"`{words}`"


def _plain(sentence: str) -> str:
    """Return text in which nothing is markup."""
    return re.sub(r"([*_\[#])", r"\\\1", sentence.replace("<", "&lt;").replace(">", "&gt;"))


def _presets() -> str:
    """Return the section with what each preset changes."""
    text = """
## Presets

`gym-trl train` starts from the preset of the model and the environment, and
[`choose`][gym_trl.training.options.choose] returns it with the options that are given. A pretrained model has
*pretrained*, with *adapter* if an adapter is trained, and a training without a model has *tiny*, with further changes
on environments that the tiny model is known to learn. `gym-trl train --print-config` writes all values.

| preset | changes of | values |
|---|---|---|
"""
    for name, preset in {"pretrained": PRETRAINED, **PRESETS}.items():
        whole = name in ("pretrained", "tiny")
        base = options.TrainOptions() if whole else changed_by(name)
        over = "the defaults" if whole else "tiny" if name.startswith("tiny") else "pretrained"
        values = {
            key: vars(preset)[key] for key in options.declared(options.TrainOptions) if key not in ("env", "grpo")
        }
        changed = {key: value for key, value in values.items() if value != vars(base)[key]}
        changed |= {f"grpo.{key}": value for key, value in preset.grpo.items() if value != base.grpo.get(key)}
        text += f"| {name} | {over} | {', '.join(f'`{key}={value!r}`' for key, value in changed.items())} |\n"
    return text


def main() -> None:
    """Write the files, or with ``--check`` fail if one is out of date."""
    for path, made in ((ARGUMENTS, arguments()), (PAGE, page())):
        if "--check" not in sys.argv:
            replace_text(path, made)
        elif path.read_text(encoding="utf-8") != made:
            sys.exit(f"{path.name} is out of date: run python docs/make_options.py")


if __name__ == "__main__":
    main()
