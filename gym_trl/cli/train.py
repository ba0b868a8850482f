"""``gym-trl train``."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from gym_trl.cli.environments import make_text_env
from gym_trl.cli.errors import clear_errors, refuse_other_options
from gym_trl.cli.flags import with_options
from gym_trl.cli.imports import slow_imports
from gym_trl.cli.options import DebugOption, check_resumed
from gym_trl.cli.run_files import read_given
from gym_trl.cli.terminal import say
from gym_trl.evaluation.play import longest_action
from gym_trl.executors.make import EXECUTORS
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.grpo.generation_check import check_generation
from gym_trl.grpo.trl_versions import import_trainer_alone
from gym_trl.options import DEFAULT_ENV, TrainOptions, grpo_fields
from gym_trl.text import counted
from gym_trl.training.options import TINY, check_grpo, choose, preset_defaults, read_options
from gym_trl.training.process import check_new
from gym_trl.training.run_file import write_run_file
from gym_trl.wrappers.traits import traits

EXAMPLES = """
gym-trl train
gym-trl train TrlEnv/GuessNumber-v0 --env-kwargs high=16 --env-kwargs turns=5 --steps 600 --out runs/sixteen
gym-trl train TrlEnv/Echo-v0 --learning-rate 1e-3 --num-generations 16 --grpo beta=0.01
gym-trl train FrozenLake-v1 --env-kwargs is_slippery=false --credit pool
gym-trl train TrlEnv/KuhnPoker-v0 --seats self
gym-trl train TrlEnv/Minesweeper-v0 --model Qwen/Qwen3-0.6B --history.last 8
gym-trl train TrlEnv/GuessNumber-v0 --model Qwen/Qwen3-0.6B --episodes-per-step 64 --vllm colocate
gym-trl train TrlEnv/Wordle-v0 --model Qwen/Qwen3-0.6B --lora 16 --dtype bfloat16
gym-trl train --model Qwen/Qwen3-0.6B --vllm server --grpo vllm_server_base_url=http://localhost:8000
gym-trl train TrlEnv/CodeAgent-v0 --executor process --workers 8 --step-timeout 30 --reset-timeout 60
RAY_ADDRESS=10.0.0.1:6379 gym-trl train TrlEnv/CodeAgent-v0 --executor ray --workers 256
gym-trl train --resample-dead-groups 2
gym-trl train TrlEnv/Echo-v0 --print-config > run.yaml
gym-trl train run.yaml --steps 400
gym-trl train runs/sixteen/config.json --steps 400
gym-trl train --resume runs/sixteen
"""


@clear_errors
@with_options(TrainOptions, presets=preset_defaults)
def train(
    context: typer.Context,
    *,
    ids: Annotated[
        list[str] | None,
        Argument(
            metavar="ID|FILE",
            help=f"Environment, default {DEFAULT_ENV}; or a file with options.",
            show_default=False,
        ),
    ] = None,
    options: dict[str, Any],
    out: Annotated[Path | None, Option(help="Folder of the run; must be new. Default: one in runs/.")] = None,
    resume: Annotated[Path | None, Option(help="Folder of a run to continue.")] = None,
    print_config: Annotated[
        bool, Option("--print-config", help="Print all options as a file for this command, and exit.")
    ] = False,
    debug: DebugOption = False,
) -> None:
    """Train a model on an environment with TRL's GRPOTrainer.

    The run is recorded in a folder.

    Without --model, a tiny model with 100,000 random weights is trained, whose tokens are characters. It cannot read
    English, so it receives no instructions, responds with the action only, and learns a small environment from nothing;
    by default GuessNumber has numbers from 1 to 8 and 4 turns, and Echo words of 3 out of 4 letters. In environments
    that have no defaults of their own, a turn has as many characters as the longest action of random play. With
    --model, a pretrained model from a path or the hub is trained, which receives the environment's instructions and
    marks actions with <action>...</action>. With --lora, or if --model is the folder of an adapter, an adapter is
    trained instead of all weights: it takes a fraction of the memory, is saved alone, and names its base; gym-trl
    export RUN --to model merges them. The number of rows that are computed at once is chosen for the free memory, and
    is printed.

    A file in YAML, TOML or JSON sets options by the names of the flags, and flags override it; the config.json of a run
    is such a file. --print-config writes one with all defaults.

    The folder contains config.json, metrics.jsonl, rollouts.jsonl, curve.png, tokenizer, model, checkpoints and
    summary.json with the success rate on evaluation tasks before and after; gym-trl view shows them, also during
    training. Ctrl-C stops after the current step and leaves a complete folder; --resume continues it, also after a
    crash. A run that fails before its first step leaves no folder.

    Exit status: 0 after the last step, 130 if interrupted, 2 for an error.
    """
    if resume is not None:
        first_id = ids[0] if ids else None
        refuse_other_options(context, ("resume", "ids", "steps", "debug"))
        chosen = read_options(resume, allowed=None)
        has_room = True
        check_resumed(resume, chosen.env, first_id)
    else:
        given = read_given(ids or (), options, TrainOptions)
        chosen = choose(**given)
        has_room = chosen.model is not None or chosen.act is not None or "max_tokens_per_turn" in given
        if "grpo" in given:
            check_grpo(chosen.grpo)
    if print_config:
        say(write_run_file(chosen).rstrip())
        return
    # Before slow imports:
    first = os.environ.get("RANK", "0") == "0"
    if resume is None and out is not None and first:
        check_new(out)
    env = make_text_env(chosen.env, chosen.env_kwargs, observe=chosen.observe)
    if not has_room:
        chosen = _with_room_for_actions(chosen, env, say if first else lambda text: None)
    env.close()
    check_generation(grpo_fields(chosen))
    if first:
        say("Loading PyTorch and TRL")
    with slow_imports():
        from gym_trl.grpo.processes import leave_process_group
        from gym_trl.training import run as training

        if chosen.vllm is None:
            import_trainer_alone()
    steps = options.get("steps")
    summary = training.train(chosen, out=out) if resume is None else training.resume(resume, steps=steps)
    leave_process_group()
    if summary["interrupted"]:
        raise typer.Exit(130)


def _with_room_for_actions(options: TrainOptions, env: TextEnvironment, tell: Callable[[str], None]) -> TrainOptions:
    """Return a tiny model's options with as many tokens per turn, which are characters, as actions have."""
    executor = options.executor or traits(env).preferred_executor or "inline"
    kind = next((one for name, one in EXECUTORS.items() if name == executor), None)
    watched = options.step_timeout is not None or options.reset_timeout is not None
    # What may hang or end its process is not played in this one.
    if options.env in TINY or watched or kind is None or kind.processes:
        return options
    needed = longest_action(env)
    if needed is None:
        return options
    tell(f"Actions have up to {counted(needed, 'character')}: --max-tokens-per-turn {needed}")
    if needed > _FOUND_BY_CHANCE:
        tell(
            "A tiny model hardly ever finds so long an action by chance: give the environment shorter ones (--act), or "
            "train a pretrained model (--model)"
        )
    return replace(options, max_tokens_per_turn=min(needed, options.max_completion_length))


_FOUND_BY_CHANCE = 4  # characters
