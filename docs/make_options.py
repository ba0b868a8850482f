"""Write what derives from the declaration of the options: the types of arguments by name, and the page of the docs.

Run it after a change of ``gym_trl/options.py``; a test compares the files with the declaration.
"""

import ast
import re
import sys
from pathlib import Path

from gym_trl import options
from gym_trl.cli.flags import flags_of
from gym_trl.files import replace_text
from gym_trl.kinds import expected, option_types
from gym_trl.training.options import PRESETS, PRETRAINED, changed_by

ROOT = Path(__file__).parent.parent
ARGUMENTS = ROOT / "gym_trl" / "option_args.py"
PAGE = ROOT / "docs" / "api" / "options.md"
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
    episodes = options.declared(options.EpisodeOptions).keys() - {"env"}
    played = ("PlayArgs", "TypedDict", options.EpisodeOptions, "of ``EpisodeOptions`` on the play of any tasks")
    others = ("EpisodeArgs", "PlayArgs", options.EpisodeOptions, "of ``EpisodeOptions``")
    spec = ("SpecArgs", "EpisodeArgs", options.SpecOptions, "of ``SpecOptions``")
    train = ("TrainArgs", "EpisodeArgs", options.TrainOptions, "of ``TrainOptions``")
    inherited = {"TypedDict": episodes - {*options.PLAYED}, "PlayArgs": {*options.PLAYED}, "EpisodeArgs": episodes}
    for name, base, kind, sentence in (played, others, spec, train):
        text += f"\n\nclass {name}({base}, total=False):\n"
        text += f'    """Arguments that are fields {sentence}."""\n'
        for one in options.declared(kind):
            if one == "env" or one in inherited[base]:
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


_INTRODUCTION = """<!-- Written by docs/make_options.py from gym_trl/options.py. -->
# Options

An option has one name in Python (`GymSpec(ID, turn_limit=8)`), on the command line (`gym-trl train ID --turn-limit 8`)
and in a run file (`turn_limit: 8`). [`GymSpec`][gym_trl.grpo.spec.GymSpec] takes the groups Task, Text, Rollout,
Stepping and Learning, and `gym-trl train` all groups. Defaults are those of `GymSpec`; `gym-trl train` starts from a
[preset](#presets).

A nested option, such as `cutoff`, is an object or a mapping in Python, a mapping in a file, and has a flag for each of
its own options: `Cutoff(episode_s=60)`, `{"episode_s": 60}`, `--cutoff.episode-s 60`. A function is an object in Python
and `"module:function"` elsewhere. `none` on the command line and `null` in a file are `None`.
"""
_GROUPS: tuple[type[options.Options], ...] = (
    options.Task,
    options.Text,
    options.Rollout,
    options.Stepping,
    options.Learning,
    options.Model,
    options.Run,
)
_NESTED_IN = {
    options.Cutoff: "cutoff",
    options.History: "history",
    options.Curriculum: "curriculum",
    options.PrioritizedTasks: "curriculum",
    options.League: "seats",
}


def page() -> str:
    """Return the page of all options."""
    names = {one.path: one.name for one in flags_of(options.TrainOptions)}
    text = _INTRODUCTION
    for group in _GROUPS:
        text += _section(group, {name: names.get((name,), "") for name in options.declared(group)})
    only = [
        name for name in options.declared(options.SpecOptions) if name not in options.declared(options.EpisodeOptions)
    ]
    text += "\n## Only in GymSpec\n\nRows of the datasets, and objects that only Python has.\n\n"
    text += _table(options.SpecOptions, dict.fromkeys(only, ""))
    for group, outer in _NESTED_IN.items():
        text += _section(
            group, {name: names.get((outer, name), "") for name in options.declared(group)}, f" (`{outer}`)"
        )
    return text + _presets()


def _section(group: type[options.Options], flags: dict[str, str], of: str = "") -> str:
    first = (group.__doc__ or "").partition("\n")[0]
    return f"\n## {group.__name__}{of}\n\n{first}\n\n{_table(group, flags)}"


def _table(group: type[options.Options], flags: dict[str, str]) -> str:
    rows = [("option", "flag", "value", "default", "meaning"), ("---",) * 5]
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
