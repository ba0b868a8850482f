"""``gym-trl warm-start``."""

import os
import shlex
from pathlib import Path
from typing import Any

from gym_trl.cli.environments import make_text_env
from gym_trl.cli.flags import with_options, words_of
from gym_trl.cli.imports import slow_imports
from gym_trl.cli.resumed import check_resumed
from gym_trl.cli.terminal import say
from gym_trl.errors import ConfigError
from gym_trl.grpo.trl_versions import import_trainer_alone
from gym_trl.kinds import option_types
from gym_trl.options import DEFAULT_ENV, NO_FLAG, EpisodeOptions, TrainedOptions, TrainOptions, WarmStartOptions
from gym_trl.training.options import choose_warm_start, preset, read_options
from gym_trl.training.sources import find_source

EXAMPLES = """
gym-trl warm-start TrlEnv/GuessNumber-v0 --model Qwen/Qwen3-0.6B --lora 16 --dtype bfloat16 --out runs/warm
gym-trl warm-start TrlEnv/GuessNumber-v0 --model Qwen/Qwen3-0.6B --policy random --eval-episodes 64
gym-trl warm-start TrlEnv/Wordle-v0 --model Qwen/Qwen3-0.6B --policy evals/larger-model --min-return 1
gym-trl warm-start TrlEnv/Echo-v0 --episodes 64 --steps 20
gym-trl train TrlEnv/GuessNumber-v0 --model runs/warm
"""


@with_options(WarmStartOptions, *NO_FLAG)
def warm_start(
    env: str | None = None,
    *,
    out: Path | None = None,
    resume: Path | None = None,
    **options: Any,
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

    Args:
        env: Environment: a registered id, module:id, package.module:Class, file.py or file.py:Class. Default:
            TrlEnv/GuessNumber-v0.
        out: Folder of the result; must be new. Default: one in runs/.
        resume: Folder of a warm start to continue.
        options: Options of the warm start.
    """
    if resume is not None:
        if others := [*options, *(["out"] if out is not None else [])]:
            raise ConfigError(f"--resume uses the run's own options, got --{others[0]}")
        run: TrainOptions | WarmStartOptions = read_options(resume, allowed=None)
        check_resumed(resume, run.env, env)
    else:
        run = choose_warm_start(env or DEFAULT_ENV, **options)
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
        raise SystemExit(130)
    if os.environ.get("RANK", "0") == "0":
        say(f"To train it further: {train_command(run, done.model)}")


def train_command(run: TrainedOptions, model: Path) -> str:
    """Return the command that trains ``model`` with the environments and limits of ``run``.

    >>> given = {"env_kwargs": {"turns": 2}, "action_format": "plain"}
    >>> run = choose_warm_start("TrlEnv/Echo-v0", model="some/model", **given)
    >>> train_command(run, Path("runs/warm/model"))
    'gym-trl train TrlEnv/Echo-v0 --model runs/warm/model --env_kwargs turns=2 --action_format plain'
    """
    usual = preset(run.env, model=str(model)).as_dict()
    kept = option_types(TrainedOptions).keys() & {*option_types(EpisodeOptions), "max_completion_length"}
    kept -= {"env", "seed", *NO_FLAG}
    own = {name: value for name, value in run.as_dict().items() if name in kept and value != usual[name]}
    return shlex.join(["gym-trl", "train", run.env, "--model", str(model), *words_of(own)])
