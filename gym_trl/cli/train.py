"""``gym-trl train``."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from gym_trl.cli.environments import make_text_env
from gym_trl.cli.errors import clear_errors, refuse_other_options
from gym_trl.cli.imports import slow_imports
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
    LoRAAlphaOption,
    LoRAOption,
    LoRATargetsOption,
    MaxCompletionOption,
    MaxTokensOption,
    OverlongCacheOption,
    ResampleOption,
    SpecOption,
    SuccessOption,
    SystemPromptOption,
    TrustOption,
    check_resumed,
    read_pairs,
    read_success,
    trust_to_resume,
)
from gym_trl.cli.terminal import say
from gym_trl.envspec import SELF_PLAY
from gym_trl.errors import ConfigError
from gym_trl.executors.make import EXECUTORS
from gym_trl.grpo.credit.estimators import CREDITS, EPISODE
from gym_trl.grpo.trl_versions import import_trainer_alone
from gym_trl.grpo.vllm_check import check_vllm
from gym_trl.training.options import DEFAULT_ENV, TrainOptions, VLLMMode, read_options
from gym_trl.training.session import check_new

EXAMPLES = """
gym-trl train
gym-trl train TrlEnv/GuessNumber-v0 --env-kwargs high=16 --env-kwargs turns=5 --steps 600 --out runs/sixteen
gym-trl train TrlEnv/Echo-v0 --grpo learning_rate=1e-3 --grpo num_generations=16
gym-trl train FrozenLake-v1 --env-kwargs is_slippery=false --credit pool
gym-trl train TrlEnv/KuhnPoker-v0 --seats self
gym-trl train TrlEnv/TicTacToe-v0 --league "random every=25 schedule=prioritized"
gym-trl train TrlEnv/Minesweeper-v0 --model Qwen/Qwen3-0.6B --history last=8
gym-trl train TrlEnv/GuessNumber-v0 --model Qwen/Qwen3-0.6B --episodes 64 --vllm colocate
gym-trl train TrlEnv/Wordle-v0 --model Qwen/Qwen3-0.6B --lora 16 --dtype bfloat16
gym-trl train --model Qwen/Qwen3-0.6B --vllm server --grpo vllm_server_base_url=http://localhost:8000
gym-trl train TrlEnv/CodeAgent-v0 --executor process --workers 8 --step-timeout 30 --reset-timeout 60
RAY_ADDRESS=10.0.0.1:6379 gym-trl train TrlEnv/CodeAgent-v0 --executor ray --workers 256
gym-trl train --resample-dead-groups 2 --spec curriculum=prioritized
gym-trl train --resume runs/sixteen
gym-trl train --resume runs/mine my_game.py:MyGame
"""
_EXECUTOR_HELP = (
    f"Where environments are stepped: {', '.join(EXECUTORS)}. Default: the environment's own choice, or the result of "
    "a short measurement."
)


@clear_errors
def train(
    context: typer.Context,
    *,
    env_id: Annotated[str | None, Argument(metavar="ID", help=f"Environment. Default: {DEFAULT_ENV}.")] = None,
    env_kwargs: EnvKwargsOption = None,
    model: Annotated[str | None, Option(help="Path, hub id or run. Default: a tiny model with random weights.")] = None,
    lora: LoRAOption = None,
    lora_alpha: LoRAAlphaOption = None,
    lora_targets: LoRATargetsOption = None,
    dtype: DTypeOption = None,
    steps: Annotated[
        int | None, Option(min=1, help="Total steps, also with --resume. Default: 200, up to 500 (tiny).")
    ] = None,
    episodes: EpisodesOption = None,
    group_size: GroupSizeOption = None,
    learning_rate: Annotated[
        float | None, Option(min=0.0, help="Learning rate. Default: 1e-6, 1e-5 of an adapter, at least 2e-3 (tiny).")
    ] = None,
    max_tokens: MaxTokensOption = None,
    max_completion: MaxCompletionOption = None,
    overlong_cache: OverlongCacheOption = None,
    resample_dead_groups: ResampleOption = None,
    action_format: ActionFormatOption = None,
    invalid_penalty: InvalidPenaltyOption = None,
    success: SuccessOption = None,
    system_prompt: SystemPromptOption = None,
    credit: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help=f"Advantages of turns: {', '.join(CREDITS)}. Default: {EPISODE}, one for all turns of an episode.",
        ),
    ] = None,
    seats: Annotated[
        str | None,
        Option(metavar="self", help="Let the model play all seats of a game of several. Default: one, against others."),
    ] = None,
    league: Annotated[
        str | None,
        Option(
            metavar="WORDS",
            help='With all seats, opponents in half of the groups: "random solver every=25" are two policies and a '
            'snapshot of the model every 25 steps; further words are arguments of League, such as "self_play=0.2".',
        ),
    ] = None,
    history: Annotated[
        str | None,
        Option(
            metavar="WORDS",
            help='Part of the conversation that the model sees: "last=8" turns, "summary" when its context is full, '
            '"template" to render it anew before every turn. Default: all of it.',
        ),
    ] = None,
    spec: SpecOption = None,
    eval_episodes: Annotated[
        int | None, Option(min=1, help="Evaluation episodes before and after. Default: 64, 256 (tiny).")
    ] = None,
    records: Annotated[int, Option(min=0, help="Episodes per step that are recorded in rollouts.jsonl.")] = 16,
    seed: Annotated[int, Option(min=0, max=LARGEST_SEED, help="Seed of tasks, sampling and the tiny model.")] = 0,
    executor: Annotated[str | None, Option(help=_EXECUTOR_HELP)] = None,
    workers: Annotated[int | None, Option(min=1, help="Threads or processes. Default: the executor's own.")] = None,
    step_timeout: Annotated[
        float | None,
        Option(
            metavar="SECONDS",
            help="Maximum time of a step. A longer one ends the episode as crashed, which is scored. Default: none.",
        ),
    ] = None,
    reset_timeout: Annotated[
        float | None,
        Option(metavar="SECONDS", help="Maximum time for making and resetting an environment. Default: none."),
    ] = None,
    vllm: Annotated[
        VLLMMode | None, Option(help="Generate with vLLM in this process or on a server of the same --model.")
    ] = None,
    grpo: GRPOOption = None,
    out: Annotated[Path | None, Option(help="Folder of the run; must be new. Default: one in runs/.")] = None,
    resume: Annotated[Path | None, Option(help="Folder of a run to continue.")] = None,
    trust: TrustOption = False,
    debug: DebugOption = False,
) -> None:
    """Train a model on an environment with TRL's GRPOTrainer.

    The run is recorded in a folder.

    Without --model, a tiny model with 100,000 random weights is trained, whose tokens are characters. It cannot read
    English, so it receives no instructions, responds with the action only, and learns a small environment from nothing;
    by default GuessNumber has numbers from 1 to 8 and 4 turns, and Echo words of 3 out of 4 letters. With --model, a
    pretrained model from a path or the hub is trained, which receives the environment's instructions and marks actions
    with <action>...</action>. With --lora, or if --model is the folder of an adapter, an adapter is trained instead of
    all weights: it takes a fraction of the memory, is saved alone, and names its base; gym-trl export RUN --to model
    merges them. The number of rows that are computed at once is chosen for the free memory, and is printed.

    The folder contains config.json, metrics.jsonl, rollouts.jsonl, curve.png, tokenizer, model, checkpoints and
    summary.json with the success rate on evaluation tasks before and after; gym-trl view shows them, also during
    training. Ctrl-C stops after the current step and leaves a complete folder; --resume continues it, also after a
    crash. A run that fails before its first step leaves no folder.

    Exit status: 0 after the last step, 130 if interrupted, 2 for an error.
    """
    trusted = trust_to_resume("train", resume, env_id, everything=trust, steps=steps)
    chosen: dict[str, Any] = {"learning_rate": learning_rate, "max_completion_length": max_completion}
    if vllm is not None:
        chosen |= {"use_vllm": True, "vllm_mode": vllm.value}
    fields = {**read_pairs(grpo), **{name: value for name, value in chosen.items() if value is not None}}
    further = read_pairs(spec)
    if resample_dead_groups is not None:
        further["resample_dead_groups"] = resample_dead_groups
    if league is not None and seats not in (None, SELF_PLAY):
        raise ConfigError(f"--league plays all seats: leave out --seats {seats}")
    given = {
        "credit": credit,
        "history": None if history is None else _history(history),
        "seats": seats if league is None else _league(league),
    }
    further |= {name: value for name, value in given.items() if value is not None}
    if resume is not None:
        refuse_other_options(context, ("resume", "env_id", "steps", "trust", "debug"))
        options = read_options(resume, trust=trusted)
        check_resumed(resume, options.env, env_id)
    else:
        options = TrainOptions.choose(
            env_id or DEFAULT_ENV,
            model=model,
            lora=lora,
            lora_alpha=lora_alpha,
            lora_targets=lora_targets,
            dtype=dtype,
            env_kwargs=read_pairs(env_kwargs),
            seed=seed,
            records_per_step=records,
            grpo=fields,
            steps=steps,
            episodes=episodes,
            group_size=group_size,
            max_tokens_per_turn=max_tokens,
            overlong_cache=overlong_cache,
            action_format=action_format,
            invalid_penalty=invalid_penalty,
            success=read_success(success),
            system_prompt=system_prompt,
            spec=further,
            eval_episodes=eval_episodes,
            executor=executor,
            workers=workers,
            reset_timeout=reset_timeout,
            step_timeout=step_timeout,
        )
    # Before slow imports:
    first = os.environ.get("RANK", "0") == "0"
    if resume is None:
        options.check_groups()
        if out is not None and first:
            check_new(out)
    make_text_env(options.env, options.env_kwargs, observe=options.spec.get("observe")).close()
    check_vllm(options.grpo)
    if first:
        say("Loading PyTorch and TRL")
    with slow_imports():
        from gym_trl.grpo.processes import leave_process_group
        from gym_trl.training import run as training

        if not options.grpo.get("use_vllm"):
            import_trainer_alone()
    summary = (
        training.train(options, out=out) if resume is None else training.resume(resume, steps=steps, trust=trusted)
    )
    leave_process_group()
    if summary["interrupted"]:
        raise typer.Exit(130)


def _history(words: str) -> dict[str, Any]:
    """Return the arguments of a ``History`` in words, ``NAME=VALUE`` or a name that is switched on."""
    alone = {"summary": "summary=model", "template": "template=true"}
    return read_pairs([alone.get(word.strip(), word) for word in words.split(",")])


def _league(words: str) -> dict[str, Any]:
    """Return the arguments of a ``League`` in words: ``NAME=VALUE``, and any other word is an opponent."""
    given = words.split()
    pairs = [word for word in given if "=" in word and word.partition("=")[0].isidentifier()]
    return {"opponents": [word for word in given if word not in pairs], **read_pairs(pairs)}
