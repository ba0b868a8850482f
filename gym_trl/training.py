"""Training of a model on an environment, with an evaluation before and after, in a folder that can be resumed."""

import inspect
import json
import math
import os
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple, Unpack

from gym_trl.errors import ConfigError, MissingDependencyError, check_counts, needs, refused
from gym_trl.evaluation import Evaluation
from gym_trl.grpo.spec import GymSpec
from gym_trl.grpo.trainer_engine import check_generation
from gym_trl.grpo.trl_versions import settings_of_trl
from gym_trl.models import PRETRAINED, fast_dtype, find_model, load_model, quiet_transformers, with_adapter
from gym_trl.options import check_options
from gym_trl.setting import Options, Setting
from gym_trl.testing.tiny import save_tiny, tiny_model, tiny_tokenizer
from gym_trl.warm_start import ROWS_AT_ONCE, check_source

CONFIG, METRICS, SUMMARY = "config.json", "metrics.jsonl", "summary.json"
_TELLING = 32  # episodes of an evaluation, from which a constant return says that there is nothing to learn from
_CHECKPOINTED_FROM = 500_000_000  # weights, from which activations are computed again in the backward pass
_MOST_TASKS = 100_000


class TrainingStopped(ConfigError):  # noqa: N818 -- an end of a training, not an error of the library
    """There is nothing to learn from; the message says why, and what helps."""


def train(
    env: str | None = None,
    *,
    model: str = "tiny",
    out: Path | None = None,
    steps: int | None = None,
    groups: int | None = None,
    num_generations: int | None = None,
    learning_rate: float | None = None,
    lora: int | None = None,
    dtype: Literal["float32", "bfloat16", "float16"] | None = None,
    warm_start: str | None = None,
    warm_episodes: int = 256,
    eval_episodes: int | None = None,
    credit: str | None = None,
    curriculum: Sequence[Mapping[str, Any]] = (),
    vllm: Literal["colocate", "server"] | None = None,
    save_steps: int | None = None,
    seed: int = 0,
    resume: Path | None = None,
    grpo: dict[str, Any] | None = None,
    **options: Unpack[Options],
) -> dict[str, Any]:
    """Train a model on an environment with GRPO, evaluate it before and after, and return the summary.

    ::

        train("TrlEnv/GuessNumber-v0")  # the tiny model, in minutes on a CPU
        train("my_game.py:MyGame", model="HuggingFaceTB/SmolLM2-135M-Instruct", warm_start="random")

    The folder of the run has ``config.json``, ``metrics.jsonl``, ``rollouts.jsonl`` (some episodes of each step),
    ``curve.png``, ``summary.json``, ``model`` and ``checkpoints``. Ctrl-C or SIGTERM stops after the step, and the run
    can be resumed; a second one aborts. Where nothing can be learned, the training stops and says why.

    Args:
        env: Environment: registered id, file.py:Class or module:Class. Default: that of the run that is resumed.
        model: tiny, the folder of a run, a model or an adapter, or a hub id.
        out: Folder of the run. Default: a new one in runs.
        steps: Number of steps. Default: 500 of the tiny model, of others 200, and 60 without a GPU.
        groups: Number of tasks of a step.
        num_generations: Number of episodes of each task of a step.
        learning_rate: Learning rate. Default: 2e-3 of the tiny model, 3e-4 of an adapter, 5e-6 of all weights.
        lora: Rank of a new adapter; 0 trains all weights. Default: 16, but none of the tiny model.
        dtype: Type of the weights. Default: under an adapter bfloat16 where it is fast, else float32.
        warm_start: What the model imitates first: random, solver, or a file or folder of records.
        warm_episodes: Number of episodes that it imitates.
        eval_episodes: Number of tasks of the evaluations before and after; 0 for none.
        credit: Advantages of turns: episode, return_to_go, pool, or a function of yours, module:function. Default: pool
            where the environment names its states by Markov keys, else episode.
        curriculum: Arguments of the environment by level of difficulty, from easy to hard.
        vllm: Generate with vLLM, colocate or server. Default: with Transformers.
        save_steps: Number of steps between checkpoints.
        seed: Seed of the tasks, the sampling and new weights.
        resume: Folder of a run that goes on from its last checkpoint, as it was begun; steps may be more.
        grpo: Further fields of TRL's GRPOConfig.
        options: How the environment is played.

    Raises:
        ConfigError: An argument is wrong, or the folder has a run.
        TrainingStopped: There is nothing to learn from.
    """
    given = {name: value for name, value in locals().items() if name not in ("out", "resume", "options")}
    given |= {"grpo": dict(grpo or {}), "curriculum": [dict(one) for one in curriculum], "options": dict(options)}
    if resume is None:
        if env is None:
            raise ConfigError("name an environment, such as TrlEnv/GuessNumber-v0 (gym-trl list shows them)")
        return _train(_new_folder(out, env), Checkpoint(None, 0), given)
    if out is not None:
        raise ConfigError(f"a run is resumed in its own folder: leave out={str(out)!r} away")
    return _train(Path(resume), last_checkpoint(Path(resume)), _begun(Path(resume), given))


def _train(folder: Path, start: "Checkpoint", config: Mapping[str, Any]) -> dict[str, Any]:
    """Train in a folder, from a checkpoint if it has one."""
    with needs("train", "gym-trl train"):
        from gym_trl.recording import RecordRun, Run  # seconds, which the help of the command does not take
    chosen = choose(**config)
    if chosen.kind == "adapter":
        with needs("lora", "an adapter (lora; 0 trains all weights)"):
            import peft  # noqa: F401
    setting = Setting.beside(chosen.model, env=chosen.env, **chosen.options)
    hardest = _hardest(setting, chosen.curriculum)
    credit = chosen.credit or ("pool" if setting.has_markov_keys else "episode")
    args = _grpo_config(folder, chosen)
    args.chat_template_kwargs = {**(args.chat_template_kwargs or {}), **setting.chat_template_kwargs}
    with ExitStack() as stack:
        stack.enter_context(_quiet(one_thread=chosen.kind == "tiny"))
        network, tokenizer = _load(chosen, start, args, stack)
        setting = setting.for_model(tokenizer, tiny=chosen.kind == "tiny", plain=chosen.warm_start is not None)
        _derive(args, network, chosen, setting)
        hardest = replace(setting, env_kwargs=hardest.env_kwargs)
        run = Run(folder, chosen, hardest, tokenizer)
        run.say(*_choices(network, chosen, args, setting), f"Credit: {credit}")
        record = RecordRun(folder, env_kwargs=dict(hardest.env_kwargs), policy=chosen.model, on_failure=run.say)
        spec = GymSpec(
            setting.env,
            num_tasks=min(chosen.steps * chosen.groups, _MOST_TASKS),
            num_eval_tasks=chosen.eval_episodes,
            seed=chosen.seed,
            credit=credit,
            curriculum=chosen.curriculum,
            on_rollout=record.on_rollout,
            **setting.of_spec,
        )
        run.trainer = _trainer(network, tokenizer, spec, args, [record, run])
        run.begin(config, start)
        try:
            if start.path is None:
                if chosen.warm_start is not None:
                    run.imitate(chosen.warm_start)
                if (before := run.evaluate("before")) is not None:
                    _refuse_constant(before, chosen)
            if start.step < chosen.steps:
                with run.signals():
                    run.trainer.train(resume_from_checkpoint=str(start.path) if start.path else None)
            else:
                run.trainer.state.global_step = start.step
            run.save()
            if not run.summary["interrupted"]:
                run.evaluate("after")
        except KeyboardInterrupt:
            run.say(f"Aborted. From the last checkpoint: gym-trl train --resume {folder}")
            raise
        run.end()
    return run.summary


# ---------------------------------------------------------------------------------------------------------------------
# What a training does where the user has not said it
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Settings of a training, those that were given and those that follow from the model and the environment."""

    env: str
    model: str
    kind: Literal["tiny", "adapter", "whole"]
    """Weights that are trained: the tiny model's, an adapter's, or all of a model."""
    steps: int
    groups: int
    num_generations: int
    eval_episodes: int
    learning_rate: float
    lora: int
    """Rank of a new adapter; 0 for none."""
    dtype: str
    save_steps: int
    grpo: Mapping[str, Any]
    options: Mapping[str, Any]
    warm_start: str | None = None
    warm_episodes: int = 256
    credit: str | None = None
    curriculum: Sequence[Mapping[str, Any]] = ()
    vllm: str | None = None
    seed: int = 0


_TINY: dict[str, Any] = {
    "steps": 500,
    "groups": 8,
    "num_generations": 16,
    "eval_episodes": 256,
    "learning_rate": 2e-3,
    "options": {"action_format": "open", "instructions": "", "invalid_penalty": 0.2},
    "grpo": {
        "max_completion_length": 1024,
        "lr_scheduler_type": "linear",
        "scale_rewards": "none",
        # Without it the model plays the same in all episodes of a group once it wins most games.
        "entropy_coef": 0.02,
        # A model of 100,000 weights would wait for a GPU longer than it computes on a CPU.
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
    },
}
_TINY_ON: dict[str, dict[str, Any]] = {
    "TrlEnv/GuessNumber-v0": {
        "learning_rate": 3e-3,
        "options": {"env_kwargs": {"high": 8, "turns": 4}, "max_tokens_per_turn": 1},
        "grpo": {"max_completion_length": 128},
    },
    "TrlEnv/Echo-v0": {
        "steps": 250,
        "groups": 32,
        "num_generations": 8,
        "options": {"env_kwargs": {"alphabet": "abcd", "word_length": 3}, "max_tokens_per_turn": 3},
        "grpo": {"max_completion_length": 128},
    },
    "FrozenLake-v1": {
        "steps": 200,
        "options": {"turn_limit": 20, "max_tokens_per_turn": 1},
        "grpo": {"max_completion_length": 640},
    },
}
"""Settings that differ on environments that the tiny model is known to learn."""
_PRETRAINED: dict[str, Any] = {
    "steps": 200,
    "groups": 4,
    "num_generations": 16,
    "eval_episodes": 64,
    "learning_rate": 5e-6,
    "options": {"invalid_penalty": 0.1},
    "grpo": {
        "max_completion_length": 2048,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": 5,
        "max_grad_norm": 0.2,
    },
}
_ADAPTER: dict[str, Any] = {"learning_rate": 3e-4}  # at 1e-4 GuessNumber has not risen after 30 steps (docs/results.md)
_OF_ACTIONS: dict[str, Any] = {
    "use_adaptive_entropy": True,
    "entropy_target": 1.0,
    **dict.fromkeys(("entropy_coef", "entropy_coef_min", "entropy_coef_max"), 0.1),
}
"""Bonus for the entropy of answers that are actions alone, while it is at most 1 nat a token. Otherwise an adapter soon
gives the same in all episodes of a group, and learns no more (docs/results.md)."""
_WITHOUT_GPU: dict[str, Any] = {"steps": 60, "groups": 3}  # about half an hour with a model of 135M weights
_RANK = 16
_DTYPES = ("float32", "bfloat16", "float16")
IMITATION = {"tiny": (2e-3, 64), "adapter": (5e-4, 16), "whole": (2e-5, 16)}
"""Learning rate of a warm start, and its least number of updates."""


def choose(env: str, model: str = "tiny", **given: Any) -> Chosen:
    """Return the settings of a training, before anything is loaded.

    >>> chosen = choose("TrlEnv/GuessNumber-v0", options={"env_kwargs": {"turns": 5}}, steps=10)
    >>> chosen.options["env_kwargs"], chosen.steps, chosen.learning_rate
    ({'high': 8, 'turns': 5}, 10, 0.003)
    >>> choose("TrlEnv/GuessNumber-v0", "Qwen/Qwen3-0.6B").kind
    'adapter'

    Args:
        env: Environment.
        model: Model.
        given: Further arguments of ``train``; ``None`` for a default.

    Raises:
        ConfigError: One of them is wrong, or there is no such model.
    """
    import torch

    source = None if model == "tiny" else find_model(model)
    is_adapter = source is not None and (Path(source) / "adapter_config.json").is_file()
    lora, dtype = given.pop("lora", None), given.pop("dtype", None)
    if lora is None:
        lora = 0 if source is None or is_adapter else _RANK
    check_counts(0, lora=lora)
    if lora and is_adapter:
        raise ConfigError(f"lora={lora}: {model} is an adapter, which is trained further; leave lora out")
    kind: Literal["tiny", "adapter", "whole"] = "adapter" if lora or is_adapter else "whole" if source else "tiny"
    for name, value, words in (("dtype", dtype, _DTYPES), ("vllm", given.get("vllm"), ("colocate", "server"))):
        if value not in (None, *words):
            raise ConfigError(f"{name} must be {' or '.join(words)}, got {value!r}")
    if kind != "adapter" and dtype in ("bfloat16", "float16"):
        raise ConfigError(f"dtype={dtype!r} needs an adapter (lora): small steps vanish in weights of 16 bits")
    dtype = dtype or (fast_dtype() if kind == "adapter" else "float32")
    if kind == "tiny":
        usual = [_TINY, _TINY_ON.get(env, {})]
    else:
        usual = [_PRETRAINED, _ADAPTER if kind == "adapter" else {}]
        usual += [] if torch.accelerator.is_available() else [_WITHOUT_GPU]
    values: dict[str, Any] = {"options": {}, "grpo": {}}
    for one in [*usual, given]:
        values = _merged(values, one)
    values.setdefault("save_steps", max(1, min(50, values["steps"] // 4)))
    chosen = Chosen(env=env, model=model, kind=kind, lora=lora, dtype=dtype, **values)
    counts = ("steps", "groups", "num_generations", "save_steps", "warm_episodes")
    check_counts(**{name: getattr(chosen, name) for name in counts})
    check_counts(0, eval_episodes=chosen.eval_episodes)
    rate = chosen.learning_rate
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < math.inf:
        raise ConfigError(f"learning_rate must be a number above 0, got {rate!r}")
    check_source(chosen.warm_start)
    check_options({"credit": chosen.credit or "episode"})
    return chosen


def _merged(settings: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with other ones in their places; ``None`` takes no place, and mappings are merged."""
    merged = dict(settings)
    for name, value in others.items():
        if isinstance(value, Mapping) and isinstance(settings.get(name), Mapping):
            merged[name] = _merged(settings[name], value)
        elif value is not None:
            merged[name] = value
    return merged


def _grpo_config(folder: Path, chosen: Chosen) -> Any:
    """Return the trainer's configuration.

    Raises:
        ConfigError: TRL has no such field or rejects its value, or the processes cannot share the episodes.
    """
    import torch
    from trl import GRPOConfig

    processes = int(os.environ.get("WORLD_SIZE", "1"))
    rows, rest = divmod(chosen.groups * chosen.num_generations, processes)
    if rest:
        raise ConfigError(f"groups x num_generations must be a multiple of the {processes} processes")
    together = rows if chosen.kind == "tiny" else math.gcd(rows, ROWS_AT_ONCE)
    micro = chosen.grpo.get("per_device_train_batch_size") or together
    values = {
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": max(1, rows // micro),
        "beta": 0.0,
        "shuffle_dataset": False,
        "disable_dropout": True,  # otherwise the model that is trained is not the one that sampled
        "logging_steps": 1,
        "save_strategy": "steps",
        "save_total_limit": 2,
        "report_to": "none",
        "disable_tqdm": True,
        **({} if torch.accelerator.is_available() else {"use_cpu": True, "bf16": False}),
        **({} if chosen.vllm is None else {"use_vllm": True, "vllm_mode": chosen.vllm}),
        **chosen.grpo,
    }
    if chosen.vllm is not None and torch.accelerator.is_available():  # the weights that vLLM gets are on its GPU
        values["use_cpu"] = False
    if values.get("use_vllm") and find_spec("vllm") is None:  # TRL needs it here, too, where it generates on a server
        raise MissingDependencyError("generation with vLLM", extra="vllm")
    try:
        with settings_of_trl():
            args = GRPOConfig(
                output_dir=str(folder / "checkpoints"),
                max_steps=chosen.steps,
                num_generations=chosen.num_generations,
                learning_rate=chosen.learning_rate,
                seed=chosen.seed,
                save_steps=chosen.save_steps,
                **values,
            )
    except (TypeError, ValueError, ImportError) as error:
        raise ConfigError(f"GRPOConfig rejects the arguments (grpo): {error}") from error
    check_generation(args)
    return args


def _load(chosen: Chosen, start: "Checkpoint", args: Any, stack: ExitStack) -> tuple[Any, Any]:
    """Return the model to train and its tokenizer.

    Raises:
        ConfigError: There is no such model.
    """
    trained, model = start.path if start.step >= chosen.steps else None, chosen.model  # which is left to evaluate
    source: str | Path = trained or (str(Path(model).resolve()) if Path(model).is_dir() else model)
    if source == "tiny" and not (args.use_vllm or args.beta):
        tokenizer = tiny_tokenizer()
        return tiny_model(tokenizer, seed=chosen.seed), tokenizer
    if source == "tiny":  # vLLM and the reference model are loaded from a folder
        source = stack.enter_context(TemporaryDirectory(prefix="gym-trl-"))
        save_tiny(source, seed=chosen.seed)
    network, tokenizer = load_model(source, dtype=chosen.dtype, trainable=True)
    if chosen.lora and trained is None:
        network = with_adapter(network, chosen.lora, seed=chosen.seed)
    return network, tokenizer


def _derive(args: Any, network: Any, chosen: Chosen, setting: Setting) -> None:
    """Set what follows from the model and from the format of its answers, where the user has not set it."""
    if not {"gradient_checkpointing", "activation_checkpointing"} & chosen.grpo.keys():
        args.gradient_checkpointing = network.num_parameters() >= _CHECKPOINTED_FROM
        if hasattr(args, "activation_checkpointing"):  # its name from Transformers 5.24 on
            args.activation_checkpointing = args.gradient_checkpointing
    of_actions = chosen.kind == "adapter" and setting.action_format in ("open", "plain")
    if of_actions and not _OF_ACTIONS.keys() & chosen.grpo.keys():
        for name, value in _OF_ACTIONS.items():
            setattr(args, name, value)


def _hardest(setting: Setting, curriculum: Sequence[Mapping[str, Any]]) -> Setting:
    """Return the setting of the last level of a curriculum, after making the environment of each, or say why not."""
    setting.probed  # noqa: B018
    hardest = setting
    for level in curriculum:
        hardest = replace(setting, env_kwargs={**setting.env_kwargs, **level})
        try:
            hardest.probed  # noqa: B018
        except ConfigError as error:
            raise ConfigError(f"curriculum: {error}") from error
    return hardest


def _choices(network: Any, chosen: Chosen, args: Any, setting: Setting) -> Iterator[str]:
    """Yield lines that say what is trained and how, before the first step."""
    size, trained = network.num_parameters(), network.num_parameters(only_trainable=True)
    what = f"an adapter of {trained / 1e6:.2g}M weights" if chosen.kind == "adapter" else "all weights"
    slow = " (bfloat16 is slow on this processor)" if chosen.kind == "adapter" and fast_dtype() == "float32" else ""
    warm_up = f" after {args.warmup_steps:g} steps of warm-up" if args.warmup_steps else ""
    below = f" below {args.entropy_target:g}" if args.use_adaptive_entropy else ""
    bonus = f", entropy bonus {args.entropy_coef:g}{below}" if args.entropy_coef else ""
    yield (
        f"Model: {chosen.model}, {size / 1e6:.3g}M weights in {chosen.dtype}{slow}; trained: {what}, "
        f"learning rate {chosen.learning_rate:g}{warm_up}, gradients clipped at {args.max_grad_norm:g}{bonus}"
    )
    longest = setting.max_tokens_per_turn
    yield (
        f"Answers: {setting.action_format}, at most {longest} tokens a turn and {args.max_completion_length} an "
        f"episode; {chosen.steps} steps of {chosen.groups} tasks with {chosen.num_generations} episodes each"
    )
    if chosen.kind == "tiny" and longest is not None and longest > 1:
        yield (
            f"The tiny model begins with random weights: actions of up to {longest} tokens, one a character, may be "
            f"more than it finds. A pretrained model: --model {PRETRAINED} --warm-start random"
        )


def _trainer(network: Any, tokenizer: Any, spec: GymSpec, args: Any, callbacks: list[Any]) -> Any:
    from transformers import PrinterCallback

    from gym_trl.grpo.trainer import GymGRPOTrainer

    with refused("the trainer"):
        trainer = GymGRPOTrainer(network, args=args, spec=spec, processing_class=tokenizer, callbacks=callbacks)
    trainer.remove_callback(PrinterCallback)
    return trainer


@contextmanager
def _quiet(*, one_thread: bool) -> Iterator[None]:
    """Suppress what libraries print, and compute with one thread, which suits a tiny model; restore both afterwards."""
    import torch

    threads = torch.get_num_threads()
    if one_thread and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    try:
        with quiet_transformers(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "You are using 'rollout_func'")
            warnings.filterwarnings("ignore", category=FutureWarning, module="transformers|trl|torch")
            yield
    finally:
        torch.set_num_threads(threads)


# ---------------------------------------------------------------------------------------------------------------------
# The folder of a run
# ---------------------------------------------------------------------------------------------------------------------


class Checkpoint(NamedTuple):
    """Checkpoint from which a run goes on; without a path it begins."""

    path: Path | None
    step: int


def last_checkpoint(folder: Path) -> Checkpoint:
    """Return the last checkpoint of a run that was written to its end."""
    found = [Checkpoint(None, 0)]
    for path in (folder / "checkpoints").glob("checkpoint-*"):
        with suppress(OSError, ValueError, KeyError, TypeError):  # the trainer writes its state last
            found.append(Checkpoint(path, int(json.loads((path / "trainer_state.json").read_text())["global_step"])))
    return max(found, key=lambda one: one.step)


def _new_folder(out: Path | None, env: str) -> Path:
    """Return the folder of a new run; what a run has left that never came to a checkpoint may be in it.

    Raises:
        ConfigError: There is a run, or something else; or several processes would each have one.
    """
    if out is None:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ConfigError("give out, the folder of the run, where there are several processes")
        name = str(env).rpartition("/")[2].rpartition(":")[2].removesuffix(".py")
        return Path("runs", f"{name}-{datetime.now():%Y%m%d-%H%M%S}")
    folder = Path(out)
    if not folder.exists() or os.environ.get("RANK", "0") != "0":
        return folder
    if not folder.is_dir() or (any(folder.iterdir()) and not (folder / CONFIG).is_file()):
        raise ConfigError(f"out={str(folder)!r} is not the folder of a run: choose another")
    if (folder / "model").exists() or last_checkpoint(folder).path is not None:
        raise ConfigError(f"{folder} has a run: go on with --resume {folder}, or choose another --out")
    return folder


def _begun(folder: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with which the run in a folder was begun, perhaps with a later end.

    Raises:
        ConfigError: There is no run, it is finished, or other arguments are given.
    """
    try:
        begun: dict[str, Any] = json.loads((folder / CONFIG).read_text("utf-8"))["options"]
        begun["model"], begun["options"], begun["steps"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{folder} has no run to resume: {CONFIG} is missing or of another version") from error
    usual = {name: one.default for name, one in inspect.signature(train).parameters.items()}
    usual |= {"grpo": {}, "curriculum": [], "options": {}}
    for name, value in given.items():
        if name != "steps" and value not in (usual[name], begun.get(name)):
            raise ConfigError(f"{name}={value!r}: the run in {folder} has {begun.get(name)!r}, and goes on so")
    steps, done, summary = given["steps"] or begun["steps"], last_checkpoint(folder).step, summary_of(folder)
    if steps is not None and steps < done:
        raise ConfigError(f"steps={steps}: the run in {folder} is at step {done} already")
    if given["steps"] is None and "after" in summary and not summary.get("interrupted", True):
        raise ConfigError(f"the run in {folder} is finished at step {done}: give more --steps to go on")
    return {**begun, "steps": steps}


def summary_of(folder: Path) -> dict[str, Any]:
    """Return the summary of a run, as far as there is one."""
    with suppress(OSError, ValueError):
        read: dict[str, Any] = json.loads((folder / SUMMARY).read_text("utf-8"))
        return read
    return {}


def _refuse_constant(before: Evaluation, chosen: Chosen) -> None:
    """Refuse to train a model whose episodes all return the same, because no group would have an advantage.

    Raises:
        TrainingStopped: They do, in an evaluation that is large enough to tell.
    """
    records = before.scores[0].records
    returns = {one["return"] and round(one["return"], 9) for one in records}
    errors = Counter(one["error"] for one in records if one["error"])
    if errors.total() == len(records):
        raise TrainingStopped(
            f"every episode of the evaluation has ended with an exception, most often {errors.most_common(1)[0][0]}. "
            f"Try it: gym-trl check {chosen.env}"
        )
    if len(returns) > 1 or len(records) < _TELLING:
        return
    if all(one["success"] for one in records):
        raise TrainingStopped(f"all {len(records)} episodes of the evaluation succeed: there is nothing to learn")
    turns = [turn for one in records for turn in one["turns"]]
    invalid = sum(not turn["action_valid"] for turn in turns) / max(1, len(turns))
    said = next((turn["answer"] for turn in turns), "")
    helps = "an easier variant (env_kwargs)" if chosen.warm_start else "a warm start (--warm-start random, or solver)"
    if chosen.kind == "tiny":
        helps = f"a pretrained model with a warm start: --model {PRETRAINED} --warm-start random"
    raise TrainingStopped(
        f"all {len(records)} episodes of the evaluation return {returns.pop()}, and {invalid:.0%} of the actions are "
        f"invalid, such as {said[:60]!r}: GRPO learns from tasks whose episodes have different returns. What helps: "
        f"{helps}"
    )
