"""``gym-trl doctor``."""

import shlex
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from gym_trl.cli.environments import make_text_env
from gym_trl.cli.errors import clear_errors
from gym_trl.cli.options import (
    LARGEST_SEED,
    ActionFormatOption,
    DebugOption,
    DTypeOption,
    EnvKwargsOption,
    EpisodesOption,
    GroupSizeOption,
    GRPOOption,
    InvalidPenaltyOption,
    JsonOption,
    LoRAOption,
    MaxCompletionOption,
    MaxTokensOption,
    SpecOption,
    SuccessOption,
    SystemPromptOption,
    read_pairs,
    read_success,
)
from gym_trl.cli.terminal import coloured, say, say_styled
from gym_trl.grpo.trl_versions import import_trainer_alone
from gym_trl.options import TrainOptions
from gym_trl.records.json_lines import to_json
from gym_trl.training.options import choose

if TYPE_CHECKING:
    from gym_trl.training.doctor import Diagnosis, NextStep
    from gym_trl.training.findings import Finding
    from gym_trl.types import EpisodeResult

EXAMPLES = r"""
gym-trl doctor TrlEnv/GuessNumber-v0 --model Qwen/Qwen3-0.6B
gym-trl doctor TrlEnv/GuessNumber-v0 --model Qwen/Qwen3-0.6B --action-format 'regex:(\d+)' --max-tokens 16
gym-trl doctor TrlEnv/Wordle-v0 --model Qwen/Qwen3-0.6B --dtype bfloat16 --lora 16 --groups 4 --json
"""
_OWN = ("model", "groups", "as_json", "debug", "env_id")
"""Parameters that the next command does not take over, or that stand at its beginning."""
_OF_WARM_START = (
    *(
        "env_kwargs",
        "action_format",
        "max_tokens",
        "max_completion",
        "success",
        "system_prompt",
        "spec",
        "lora",
        "dtype",
    ),
)
"""Parameters that a warm start has, too."""
_REPEATED = ("--env-kwargs", "--spec", "--grpo")
_GROUPS = 8
_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}


@clear_errors
def doctor(
    context: typer.Context,
    *,
    env_id: Annotated[str, Argument(metavar="ID", help="Environment.", show_default=False)],
    model: Annotated[str, Option(help="Path, hub id or run of the model to train.", show_default=False)],
    env_kwargs: EnvKwargsOption = None,
    groups: Annotated[int, Option(min=1, help="Groups to play, each of --group-size episodes of one task.")] = _GROUPS,
    group_size: GroupSizeOption = None,
    episodes: EpisodesOption = None,
    max_tokens: MaxTokensOption = None,
    max_completion: MaxCompletionOption = None,
    action_format: ActionFormatOption = None,
    invalid_penalty: InvalidPenaltyOption = None,
    success: SuccessOption = None,
    system_prompt: SystemPromptOption = None,
    spec: SpecOption = None,
    lora: LoRAOption = None,
    dtype: DTypeOption = None,
    seed: Annotated[int, Option(min=0, max=LARGEST_SEED, help="Seed of tasks and sampling.")] = 0,
    grpo: GRPOOption = None,
    as_json: JsonOption = False,
    debug: DebugOption = False,
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
    given: dict[str, Any] = {
        "max_completion_length": max_completion,
        "episodes_per_step": episodes,
        "num_generations": group_size,
        "max_tokens_per_turn": max_tokens,
        "action_format": action_format,
        "invalid_penalty": invalid_penalty,
        "success": read_success(success),
        "system_prompt": system_prompt,
        "lora": lora,
        "dtype": dtype,
    }
    given = {name: value for name, value in given.items() if value is not None} | read_pairs(spec)
    options = choose(env_id, model=model, env_kwargs=read_pairs(env_kwargs), seed=seed, grpo=read_pairs(grpo), **given)
    # Before slow imports:
    make_text_env(options.env, options.env_kwargs, observe=options.observe).close()
    found = _diagnose(options, groups)
    commands = _commands(context, found)
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


def _commands(context: typer.Context, found: "Diagnosis") -> dict[str, str]:
    """Return the command to run next, and for warnings that a warm start would remove also that of a warm start."""
    from gym_trl.training.doctor import NextStep

    commands = {}
    if found.next_step is not NextStep.NONE:
        commands["Next"] = _command(context, found, found.next_step)
    if found.ready and any(one.warm_start for one in found.warnings):
        commands["Better after a warm start"] = _command(context, found, NextStep.WARM_START)
    return commands


def _command(context: typer.Context, found: "Diagnosis", step: "NextStep") -> str:
    """Return a command with the options that were given and, for the doctor, those that a finding changes."""
    words = ["gym-trl", str(step), found.env, "--model", found.model]
    if step == "warm-start":
        adapter = [] if context.params["lora"] else ["--lora", "16"]
        return shlex.join([*words, "--policy", "random", *_given(context, {}, only=_OF_WARM_START), *adapter])
    words += _given(context, found.changes)
    if step == "doctor" and context.params["groups"] != _GROUPS:
        words += ["--groups", str(context.params["groups"])]
    return shlex.join(words)


def _given(context: typer.Context, changes: Mapping[str, str], *, only: tuple[str, ...] | None = None) -> list[str]:
    """Return the options of the command line with some values replaced or, of repeated options, added."""
    words: list[str] = []
    for parameter in context.command.params:
        name, source = parameter.name or "", context.get_parameter_source(parameter.name or "")
        if name in _OWN or (only is not None and name not in only) or source is None or source.name != "COMMANDLINE":
            continue
        option, value = parameter.opts[0], context.params[name]
        if option in changes and option not in _REPEATED:
            continue
        for one in value if isinstance(value, list | tuple) else [value]:
            words += [option, str(one)]
    return words + [word for pair in changes.items() for word in pair]
