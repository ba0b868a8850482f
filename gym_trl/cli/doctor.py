"""``gym-trl doctor``."""

import shlex
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gym_trl.cli.environments import make_text_env
from gym_trl.cli.flags import with_options, words_of
from gym_trl.cli.terminal import coloured, say, say_styled
from gym_trl.grpo.trl_versions import import_trainer_alone
from gym_trl.kinds import Count, option_types
from gym_trl.options import NO_FLAG, TrainOptions, WarmStartOptions
from gym_trl.records.json_lines import to_json
from gym_trl.training.options import choose

if TYPE_CHECKING:
    from gym_trl.episode import Episode
    from gym_trl.report import Finding
    from gym_trl.training.doctor import Diagnosis, NextStep

EXAMPLES = r"""
gym-trl doctor TrlEnv/GuessNumber-v0 --model Qwen/Qwen3-0.6B
gym-trl doctor TrlEnv/GuessNumber-v0 --model Qwen/Qwen3-0.6B --action-format 'regex:(\d+)' --max-tokens-per-turn 16
gym-trl doctor TrlEnv/Wordle-v0 --model Qwen/Qwen3-0.6B --dtype bfloat16 --lora 16 --groups 4 --json
"""
_GROUPS = 8
_WITHOUT_EFFECT = (
    *("lora_alpha", "lora_targets", "steps", "learning_rate", "eval_episodes", "curriculum", "vllm", "episode_timeout"),
    *("max_alive", "executor", "workers", "step_timeout", "seats", "credit"),
)
"""Options of a training on which nothing depends that is measured before it."""
_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}


@with_options(TrainOptions, *NO_FLAG, *_WITHOUT_EFFECT)
def doctor(
    env: str,
    *,
    model: str,
    groups: Count = _GROUPS,
    json_: bool = False,
    **options: Any,
) -> None:
    """Find what stands in the way of a training, before it starts.

    It plays a few groups as the training would. The options are those of gym-trl train on which it depends. The report
    says how many responses contain a readable action, and which other action format would have read more from the same
    responses; how many groups have different returns, without which GRPO learns nothing; if turns and episodes fit
    their limits, and if the model ends its turns; what prompt the model really sees; success beside random play, the
    blind baseline and the optimum; and an estimate of memory and time. It ends with the command to run next. Nothing is
    trained or written.

    Exit status: 0 if a training can start, 1 if a finding would make it pointless, 2 for an error, 130 if interrupted.

    Args:
        env: Environment.
        model: Path, hub id or run of the model to train.
        groups: Groups to play, each of num_generations episodes of one task.
        json_: Print JSON instead of text.
        options: Options of the training.
    """
    chosen = choose(env, model=model, **options)
    # Before slow imports:
    make_text_env(chosen.env, chosen.env_kwargs, observe=chosen.observe).close()
    diagnosis = _diagnose(chosen, groups)
    commands = _commands(diagnosis, options, groups)
    if json_:
        say(to_json({**diagnosis.as_dict(), "commands": list(commands.values())}, indent=2))
    else:
        _show(diagnosis, commands)
    if not diagnosis.ready:
        raise SystemExit(1)


def _diagnose(options: TrainOptions, groups: int) -> "Diagnosis":
    from gym_trl.training.progress import Display, lasting_console

    display = Display(lasting_console(sys.stderr), "episode")
    display.note("Loading PyTorch and TRL")
    from gym_trl.training.doctor import diagnose
    from gym_trl.training.process import quiet_libraries

    import_trainer_alone()

    finished = 0

    def on_load() -> None:
        display.note(f"Loading {options.model}")
        display.begin(0, groups * options.num_generations)

    def on_episode(one: "Episode") -> None:
        nonlocal finished
        finished += 1
        display.log(finished, _metrics(one))

    try:
        with quiet_libraries():
            return diagnose(options, groups=groups, on_load=on_load, on_episode=on_episode)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    finally:
        display.end()


def _metrics(one: "Episode") -> dict[str, Any]:
    success = None if one.success is None else float(one.success)
    return {"env/return": one.episode_return, "env/success": success, "env/turns": len(one.turns)}


def _show(diagnosis: "Diagnosis", commands: Mapping[str, str]) -> None:
    for one in diagnosis.findings:
        say_styled(f"{coloured(f'{one.verdict:<8}', fg=_COLOURS[one.verdict])} {one.name}: {one.got}")
        if one.fix:
            say(f"         {'  ' if one.verdict == 'ok' else '->'} {one.fix}")
        for example in one.examples:
            say(f"         e.g. {example!r}")
    if diagnosis.prompt:
        say(f"\nThe prompt that the model sees:\n{_indented(diagnosis.prompt)}")
    if diagnosis.reply:
        say(f"\nBetween its first two responses:\n{_indented(diagnosis.reply)}")
    if not diagnosis.ready:
        verdict = f"Not ready: {_names(diagnosis.problems)}."
    elif diagnosis.warnings:
        verdict = f"Ready to train, with warnings: {_names(diagnosis.warnings)}."
    else:
        verdict = "Ready to train."
    say(f"\n{verdict}")
    for when, command in commands.items():
        say(f"{when}:\n  {command}")


def _names(findings: "list[Finding]") -> str:
    return ", ".join(one.name for one in findings)


def _indented(text: str) -> str:
    return "\n".join(f"  | {line}" for line in text.splitlines())


def _commands(diagnosis: "Diagnosis", given: Mapping[str, Any], groups: int) -> dict[str, str]:
    """Return the command to run next, and for warnings that a warm start would remove also that of a warm start."""
    from gym_trl.training.doctor import NextStep

    commands = {}
    if diagnosis.next_step is not NextStep.NONE:
        commands["Next"] = _command(diagnosis, diagnosis.next_step, given, groups)
    if diagnosis.ready and any(one.warm_start for one in diagnosis.warnings):
        commands["Better after a warm start"] = _command(diagnosis, NextStep.WARM_START, given, groups)
    return commands


def _command(diagnosis: "Diagnosis", step: "NextStep", given: Mapping[str, Any], groups: int) -> str:
    """Return a command with the options that were given and, for the doctor, those that a finding changes."""
    words = ["gym-trl", str(step), diagnosis.env, "--model", diagnosis.model]
    if step == "warm-start":
        shared = {name: value for name, value in given.items() if name in option_types(WarmStartOptions)}
        return shlex.join([*words, "--policy", "random", *words_of({**shared, "lora": shared.get("lora", 16)})])
    words += words_of({**given, **diagnosis.changes})
    if step == "doctor" and groups != _GROUPS:
        words += ["--groups", str(groups)]
    return shlex.join(words)
