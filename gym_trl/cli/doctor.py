"""``gym-trl doctor``."""

import shlex
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from gym_trl.cli.environments import make_text_env
from gym_trl.cli.errors import clear_errors
from gym_trl.cli.flags import with_options, write_flags
from gym_trl.cli.options import DebugOption, JsonOption
from gym_trl.cli.terminal import coloured, say, say_styled
from gym_trl.cli.warm_start import SHARED
from gym_trl.grpo.trl_versions import import_trainer_alone
from gym_trl.options import TrainOptions
from gym_trl.records.json_lines import to_json
from gym_trl.training.options import choose, preset_defaults

if TYPE_CHECKING:
    from gym_trl.training.doctor import Diagnosis, NextStep
    from gym_trl.training.findings import Finding
    from gym_trl.types import EpisodeResult

EXAMPLES = r"""
gym-trl doctor TrlEnv/GuessNumber-v0 --model Qwen/Qwen3-0.6B
gym-trl doctor TrlEnv/GuessNumber-v0 --model Qwen/Qwen3-0.6B --action-format 'regex:(\d+)' --max-tokens-per-turn 16
gym-trl doctor TrlEnv/Wordle-v0 --model Qwen/Qwen3-0.6B --dtype bfloat16 --lora 16 --groups 4 --json
"""
_GROUPS = 8
_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}


@clear_errors
@with_options(TrainOptions, presets=preset_defaults())
def doctor(
    *,
    env_id: Annotated[str, Argument(metavar="ID", help="Environment.", show_default=False)],
    model: Annotated[str, Option(help="Path, hub id or run of the model to train.", show_default=False)],
    groups: Annotated[
        int, Option(min=1, help="Groups to play, each of --num-generations episodes of one task.")
    ] = _GROUPS,
    as_json: JsonOption = False,
    debug: DebugOption = False,
    options: dict[str, Any],
) -> None:
    """Find what stands in the way of a training, before it starts.

    It plays a few groups as the training would. The options are those of gym-trl train. The report says how many
    responses contain a readable action, and which other action format would have read more from the same responses; how
    many groups have different returns, without which GRPO learns nothing; if turns and episodes fit their limits, and
    if the model ends its turns; what prompt the model really sees; success beside random play, the blind baseline and
    the optimum; and an estimate of memory and time. It ends with the command to run next. Nothing is trained or
    written.

    Exit status: 0 if a training can start, 1 if a finding would make it pointless, 2 for an error, 130 if interrupted.
    """
    chosen = choose(env_id, model=model, **options)
    # Before slow imports:
    make_text_env(chosen.env, chosen.env_kwargs, observe=chosen.observe).close()
    found = _diagnose(chosen, groups)
    commands = _commands(found, options, groups)
    if as_json:
        say(to_json({**found.as_dict(), "commands": list(commands.values())}, indent=2))
    else:
        _show(found, commands)
    if not found.ready:
        raise typer.Exit(1)


def _diagnose(options: TrainOptions, groups: int) -> "Diagnosis":
    from gym_trl.training.progress import display_on, lasting_console

    display = display_on(lasting_console(sys.stderr), groups * options.num_generations, "episode")
    display.note("Loading PyTorch and TRL")
    from gym_trl.training.doctor import diagnose
    from gym_trl.training.session import quiet_libraries

    import_trainer_alone()

    finished = 0

    def on_load() -> None:
        display.note(f"Loading {options.model}")
        display.begin(0)

    def on_episode(one: "EpisodeResult") -> None:
        nonlocal finished
        finished += 1
        display.log(finished, _metrics(one))

    try:
        with quiet_libraries():
            return diagnose(options, groups=groups, on_load=on_load, on_episode=on_episode)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    finally:
        display.end()


def _metrics(one: "EpisodeResult") -> dict[str, Any]:
    success = None if one.success is None else float(one.success)
    return {"env/return": one.episode_return, "env/success": success, "env/turns": len(one.turns)}


def _show(found: "Diagnosis", commands: Mapping[str, str]) -> None:
    for one in found.findings:
        say_styled(f"{coloured(f'{one.verdict:<8}', fg=_COLOURS[one.verdict])} {one.name}: {one.got}")
        if one.fix:
            say(f"         {_arrow(one)} {one.fix}")
        for example in one.examples:
            say(f"         e.g. {example!r}")
    if found.prompt:
        say(f"\nThe prompt that the model sees:\n{_indented(found.prompt)}")
    if found.reply:
        say(f"\nBetween its first two responses:\n{_indented(found.reply)}")
    if not found.ready:
        verdict = f"Not ready: {_names(found.problems)}."
    elif found.warnings:
        verdict = f"Ready to train, with warnings: {_names(found.warnings)}."
    else:
        verdict = "Ready to train."
    say(f"\n{verdict}")
    for when, command in commands.items():
        say(f"{when}:\n  {command}")


def _names(findings: "list[Finding]") -> str:
    return ", ".join(one.name for one in findings)


def _arrow(one: "Finding") -> str:
    return "->" if one.verdict != "ok" else "  "


def _indented(text: str) -> str:
    return "\n".join(f"  | {line}" for line in text.splitlines())


def _commands(found: "Diagnosis", given: Mapping[str, Any], groups: int) -> dict[str, str]:
    """Return the command to run next, and for warnings that a warm start would remove also that of a warm start."""
    from gym_trl.training.doctor import NextStep

    commands = {}
    if found.next_step is not NextStep.NONE:
        commands["Next"] = _command(found, found.next_step, given, groups)
    if found.ready and any(one.warm_start for one in found.warnings):
        commands["Better after a warm start"] = _command(found, NextStep.WARM_START, given, groups)
    return commands


def _command(found: "Diagnosis", step: "NextStep", given: Mapping[str, Any], groups: int) -> str:
    """Return a command with the options that were given and, for the doctor, those that a finding changes."""
    words = ["gym-trl", str(step), found.env, "--model", found.model]
    if step == "warm-start":
        shared = {name: value for name, value in given.items() if name in SHARED}
        return shlex.join(
            [*words, "--policy", "random", *write_flags({**shared, "lora": shared.get("lora", 16)}, TrainOptions)]
        )
    words += write_flags({**given, **found.changes}, TrainOptions)
    if step == "doctor" and groups != _GROUPS:
        words += ["--groups", str(groups)]
    return shlex.join(words)
