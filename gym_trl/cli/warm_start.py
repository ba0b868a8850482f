"""``gym-trl warm-start``."""

import os
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from gym_trl.cli.environments import make_text_env
from gym_trl.cli.errors import clear_errors, refuse_other_options
from gym_trl.cli.flags import with_options, write_flags
from gym_trl.cli.imports import slow_imports
from gym_trl.cli.options import DebugOption, check_resumed
from gym_trl.cli.terminal import say
from gym_trl.grpo.trl_versions import import_trainer_alone
from gym_trl.kinds import option_types
from gym_trl.options import DEFAULT_ENV, EpisodeOptions, TrainedOptions, TrainOptions, WarmStartOptions
from gym_trl.training.options import choose_warm_start, preset, preset_defaults, read_options
from gym_trl.training.sources import find_source

EXAMPLES = """
gym-trl warm-start TrlEnv/GuessNumber-v0 --model Qwen/Qwen3-0.6B --lora 16 --dtype bfloat16 --out runs/warm
gym-trl warm-start TrlEnv/GuessNumber-v0 --model Qwen/Qwen3-0.6B --policy random --eval-episodes 64
gym-trl warm-start TrlEnv/Wordle-v0 --model Qwen/Qwen3-0.6B --policy evals/larger-model --min-return 1
gym-trl warm-start TrlEnv/Echo-v0 --episodes 64 --steps 20
gym-trl train TrlEnv/GuessNumber-v0 --model runs/warm
"""


def _usual() -> dict[str, str]:
    return {name: words for name, words in preset_defaults().items() if name in option_types(TrainedOptions)}


@clear_errors
@with_options(WarmStartOptions, presets=_usual)
def warm_start(
    context: typer.Context,
    *,
    env_id: Annotated[str | None, Argument(metavar="ID", help=f"Environment. Default: {DEFAULT_ENV}.")] = None,
    out: Annotated[Path | None, Option(help="Folder of the result; must be new. Default: one in runs/.")] = None,
    resume: Annotated[Path | None, Option(help="Folder of a warm start to continue.")] = None,
    debug: DebugOption = False,
    options: dict[str, Any],
) -> None:
    """Train a model on episodes of a solver, before gym-trl train.

    Other sources of episodes are random legal play and recorded ones.

    A small pretrained model often knows neither the action format nor the game, and GRPO learns nothing from episodes
    that all fail. Episodes of a solver teach both; those of random play teach the format and leave the game to GRPO.
    Episodes with an invalid action are never trained on.

    The episodes have the prompts, limits and environments of gym-trl train with the same options, and the model is
    trained on its own responses in them only. The folder contains model (an adapter with --lora), config.json,
    metrics.jsonl, rollouts.jsonl, summary.json and tokenizer; gym-trl view shows them, and gym-trl eval accepts the
    folder as --model. Ctrl-C stops after the current step and leaves a complete folder; --resume continues it.

    Exit status: 0 after the last step, 130 if interrupted, 2 for an error.
    """
    if resume is not None:
        refuse_other_options(context, ("resume", "env_id", "debug"))
        run: TrainOptions | WarmStartOptions = read_options(resume, allowed=None)
        check_resumed(resume, run.env, env_id)
    else:
        run = choose_warm_start(env_id or DEFAULT_ENV, **options)
        find_source(run.policy)
    # Before slow imports:
    make_text_env(run.env, run.env_kwargs, observe=run.observe).close()
    if os.environ.get("RANK", "0") == "0":
        say("Loading PyTorch and TRL")
    with slow_imports():
        from gym_trl.grpo.processes import leave_process_group
        from gym_trl.training import supervised

        import_trainer_alone()

    if isinstance(run, WarmStartOptions):
        done = supervised.warm_start(run, out=out)
    else:
        assert resume is not None
        done = supervised.resume_warm_start(resume)
    leave_process_group()
    if done.interrupted:
        raise typer.Exit(130)
    if os.environ.get("RANK", "0") == "0":
        say(f"To train it further: {train_command(run, done.model)}")


def train_command(run: TrainedOptions, model: Path) -> str:
    """Return the command that trains ``model`` with the environments and limits of ``run``.

    >>> given = {"env_kwargs": {"turns": 2}, "action_format": "plain"}
    >>> run = choose_warm_start("TrlEnv/Echo-v0", model="some/model", **given)
    >>> train_command(run, Path("runs/warm/model"))
    'gym-trl train TrlEnv/Echo-v0 --model runs/warm/model --env-kwargs turns=2 --action-format plain'
    """
    usual = preset(run.env, model=str(model)).as_dict()
    kept = option_types(TrainedOptions).keys() & {*option_types(EpisodeOptions), "max_completion_length"}
    kept -= {"env", "seed"}
    own = {name: value for name, value in run.as_dict().items() if name in kept and value != usual[name]}
    return shlex.join(["gym-trl", "train", run.env, "--model", str(model), *write_flags(own, TrainOptions)])
