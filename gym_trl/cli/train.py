"""``gym-trl train``."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from gym_trl.cli.environments import make_text_env
from gym_trl.cli.flags import with_options, yaml_of
from gym_trl.cli.imports import slow_imports
from gym_trl.cli.resumed import check_resumed
from gym_trl.cli.terminal import say
from gym_trl.errors import ConfigError
from gym_trl.evaluation.play import longest_action
from gym_trl.executors.make import EXECUTORS
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.grpo.generation_check import check_generation
from gym_trl.grpo.trl_versions import import_trainer_alone
from gym_trl.options import DEFAULT_ENV, NO_FLAG, TrainOptions, grpo_fields
from gym_trl.text import counted
from gym_trl.training.options import TINY, check_grpo, choose, read_options
from gym_trl.training.process import check_new
from gym_trl.wrappers.base import attribute_of

EXAMPLES = """
gym-trl train
gym-trl train TrlEnv/GuessNumber-v0 --env-kwargs high=16 --env-kwargs turns=5 --steps 600 --out runs/sixteen
gym-trl train TrlEnv/Echo-v0 --learning-rate 1e-3 --num-generations 16 --grpo beta=0.01
gym-trl train FrozenLake-v1 --env-kwargs is_slippery=false --credit pool
gym-trl train TrlEnv/KuhnPoker-v0 --seats self
gym-trl train TrlEnv/Wordle-v0 --model Qwen/Qwen3-0.6B --lora 16 --dtype bfloat16
gym-trl train TrlEnv/CodeAgent-v0 --executor process --workers 8 --step-timeout 30
gym-trl train TrlEnv/Echo-v0 --print_config > run.yaml
gym-trl train --config run.yaml --steps 400
gym-trl train --resume runs/sixteen
"""


@with_options(TrainOptions, *NO_FLAG)
def train(
    env: str | None = None,
    *,
    out: Path | None = None,
    resume: Path | None = None,
    print_config: bool = False,
    **options: Any,
) -> None:
    """Train a model on an environment with TRL's GRPOTrainer.

    Without --model, a tiny model with 100,000 random weights is trained, whose tokens are characters; it cannot read
    English, and learns a small environment from nothing. Defaults depend on the model and the environment, and
    --print_config shows them. Ctrl-C stops after the current step, and --resume continues.

    Exit status: 0 after the last step, 130 if interrupted, 2 for an error.

    Args:
        env: Environment: a registered id, module:id, package.module:Class, file.py or file.py:Class. Default:
            TrlEnv/GuessNumber-v0.
        out: Folder of the run; must be new. Default: one in runs/.
        resume: Folder of a run to continue.
        print_config: Print all flags as a file for --config, and exit.
        options: Options of the training.
    """
    if resume is not None:
        if others := [*(options.keys() - {"steps"}), *(["out"] if out is not None else [])]:
            raise ConfigError(f"--resume uses the run's own options and accepts --steps only, got --{others[0]}")
        chosen = read_options(resume, allowed=None)
        has_room = True
        check_resumed(resume, chosen.env, env)
    else:
        chosen = choose(env or DEFAULT_ENV, **options)
        has_room = chosen.model is not None or chosen.act is not None or "max_tokens_per_turn" in options
        if "grpo" in options:
            check_grpo(chosen.grpo)
    if print_config:
        shown = {name: value for name, value in chosen.as_dict().items() if name not in NO_FLAG}
        say(yaml_of(shown))
        return
    # Before slow imports:
    first = os.environ.get("RANK", "0") == "0"
    if resume is None and out is not None and first:
        check_new(out)
    made = make_text_env(chosen.env, chosen.env_kwargs, observe=chosen.observe)
    if not has_room:
        chosen = _with_room_for_actions(chosen, made, say if first else lambda text: None)
    made.close()
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
        raise SystemExit(130)


def _with_room_for_actions(options: TrainOptions, env: TextEnvironment, tell: Callable[[str], None]) -> TrainOptions:
    """Return a tiny model's options with as many tokens per turn, which are characters, as actions have."""
    executor = options.executor or attribute_of(env, "preferred_executor") or "inline"
    kind = next((one for name, one in EXECUTORS.items() if name == executor), None)
    watched = options.step_timeout is not None or options.reset_timeout is not None
    # What may hang or end its process is not played in this one.
    if options.env in TINY or watched or kind is None or kind.processes:
        return options
    needed = longest_action(env)
    if needed is None:
        return options
    tell(f"Actions have up to {counted(needed, 'character')}: --max_tokens_per_turn {needed}")
    if needed > _FOUND_BY_CHANCE:
        tell(
            "A tiny model hardly ever finds so long an action by chance: give the environment shorter ones (--act), or "
            "train a pretrained model (--model)"
        )
    return replace(options, max_tokens_per_turn=min(needed, options.max_completion_length))


_FOUND_BY_CHANCE = 4  # characters
