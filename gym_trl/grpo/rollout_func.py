"""TRL's ``rollout_func``: from prompts to whole episodes, with the exact tokens that the model sampled."""

import warnings
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

from gym_trl.chat.protocol import Chat
from gym_trl.chat.template import TemplateChat
from gym_trl.engines.protocol import Engine
from gym_trl.errors import ConfigError
from gym_trl.executors.make import Executor, make_pool
from gym_trl.executors.protocol import EnvFactory, EnvPool
from gym_trl.grpo.attach import CUT_OFF, OnTotals, Place, attach, end_ids, tokenizer_of
from gym_trl.grpo.dataset import read_prompt
from gym_trl.grpo.totals import outcomes
from gym_trl.rollout.cutoff import Cutoff
from gym_trl.rollout.episode import Episode
from gym_trl.rollout.limits import Limits
from gym_trl.rollout.loop import WAIT, run_episodes
from gym_trl.seeding import derive_seed
from gym_trl.types import StopReason, Task, Trajectory

RolloutFunc: TypeAlias = Callable[[list[Any], Any], dict[str, list[Any]]]

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Sampling options of TRL's configurations."""
# Values with which an option leaves the distribution as it is.
_WHOLE = {"top_p": (None, 1.0), "top_k": (None, 0, -1), "min_p": (None, 0.0)}

# Keys are instances of TRL's VLLMGeneration, one per trainer.
_CHECKED: weakref.WeakSet[Any] = weakref.WeakSet()
_CONTEXTS: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_WARNED: weakref.WeakSet[Any] = weakref.WeakSet()


class Ends(Protocol):
    """Part of a ``Chat`` that an engine needs."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """Token ids that end the model's turn."""
        ...

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Strings that end the model's turn where no token id does."""
        ...


class _NoEnds:
    stop_ids: frozenset[int] = frozenset()
    stop_strings: tuple[str, ...] = ()


class Rollout(NamedTuple):
    """Episodes of one call of a ``rollout_func`` on this process."""

    split: str
    """``"train"`` or ``"eval"``."""
    step: int
    """The trainer's global step."""
    trajectories: list[Trajectory]


def make_rollout_func(
    make: EnvFactory,
    *,
    assign: Callable[[str, int], Task],
    seed: int = 0,
    max_tokens_per_turn: int | None = None,
    chat: Chat | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    sampling: Mapping[str, Any] | None = None,
    max_context: int | None = None,
    executor: Executor = "inline",
    workers: int | None = None,
    reset_timeout: float | None = None,
    step_timeout: float | None = None,
    deterministic: bool = False,
    max_alive: int | None = None,
    max_observation: int | None = None,
    max_action: int | None = None,
    cutoff: Cutoff | None = None,
    on_rollout: Callable[[Rollout], None] | None = None,
    on_totals: OnTotals | None = None,
) -> RolloutFunc:
    """Return a function for ``GRPOTrainer(rollout_func=...)`` that plays one episode per prompt.

    The function has TRL's signature ``(prompts, trainer)`` and returns one row per prompt, in order: ``prompt_ids``,
    ``completion_ids``, ``logprobs``, ``env_mask``, and for reward functions ``episode_return``, ``success``,
    ``stop_reason``, ``num_turns``, ``invalid_actions``, ``cut_actions``, ``cut_observations``, ``step_rewards``,
    ``messages``, ``task`` and ``error``. ``success`` is ``None`` if it is not declared.

    If a prompt has a task, that task is played. For any other prompt ``assign`` makes a task, which is the same for all
    members of a GRPO group, on every process. An unscored episode has no return and no trained token.

    Args:
        make: Function that makes an environment from its id.
        assign: Function that makes a task from a split and the number of a group, for prompts without a task.
        seed: Seed of the sampling and of the assigned tasks.
        max_tokens_per_turn: Maximum number of tokens sampled in a turn; the trainer's ``max_completion_length`` bounds
            the whole episode.
        chat: Converts messages to tokens. Default: the tokenizer's own chat template.
        chat_template_kwargs: Arguments for the chat template, such as ``{"enable_thinking": False}``; they override the
            trainer's.
        sampling: Sampling options that override the trainer's, by vLLM's names (``temperature``, ``stop``,
            ``stop_token_ids``, ...). The trainer still trains with its own temperature; change both together.
        max_context: Maximum tokens of prompt and completion together. Default: the model's limit.
        executor: Where environments are stepped, see ``GymSpec``.
        workers: Number of threads or processes.
        reset_timeout: Maximum seconds for making and resetting an environment there.
        step_timeout: Maximum seconds for a step there.
        deterministic: Return environments' results in the order of the requests, see ``GymSpec``.
        max_alive: Maximum number of concurrent environments per process. Default: no limit.
        max_observation: Maximum characters of an observation that the model sees, see ``GymSpec``.
        max_action: Maximum characters of an action, see ``GymSpec``.
        cutoff: When to stop waiting for the slowest episodes. Default: never.
        on_rollout: Callback that receives every finished rollout.
        on_totals: Called on every process with the ``StepTotals`` of all processes, once per batch that the trainer
            scores; an exception that it raises ends the training on all processes.

    Raises:
        ConfigError: An argument is invalid, or ``deterministic`` is combined with a cutoff by the clock.
    """
    if deterministic and cutoff is not None and cutoff.timed:
        raise ConfigError(
            "deterministic=True waits for every environment, and what a clock cuts off is never the same twice: "
            "leave out the cutoff's episode_s and rollout_s, or use step_timeout"
        )
    return _RolloutFunc(
        make_pool(
            make,
            executor=executor,
            workers=workers,
            reset_timeout=reset_timeout,
            step_timeout=step_timeout,
            deterministic=deterministic,
        ),
        assign=assign,
        seed=seed,
        max_tokens_per_turn=max_tokens_per_turn,
        chat=chat,
        chat_template_kwargs=dict(chat_template_kwargs or {}),
        sampling=dict(sampling or {}),
        max_context=max_context,
        max_alive=max_alive,
        max_observation=max_observation,
        max_action=max_action,
        cutoff=cutoff or WAIT,
        on_rollout=on_rollout,
        on_totals=on_totals,
    )


@dataclass(eq=False)
class _RolloutFunc:
    pool: EnvPool
    _: KW_ONLY
    assign: Callable[[str, int], Task]
    seed: int
    max_tokens_per_turn: int | None
    chat: Chat | None
    chat_template_kwargs: dict[str, Any]
    sampling: dict[str, Any]
    max_context: int | None
    max_alive: int | None
    max_observation: int | None
    max_action: int | None
    cutoff: Cutoff
    on_rollout: Callable[[Rollout], None] | None
    on_totals: OnTotals | None
    chats: list[tuple[Any, str | None, Chat]] = field(default_factory=list)  # by tokenizer and template

    def __post_init__(self) -> None:
        weakref.finalize(self, self.pool.close)

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        attachment = attach(trainer)
        chat = self.chat or self._trainer_chat(trainer)
        place = attachment.place(len(prompts))
        episodes = self._episodes(prompts, trainer, chat, place)
        with trainer_engine(trainer, chat, self.sampling) as engine:
            trajectories = run_episodes(
                episodes, pool=self.pool, engine=engine, max_alive=self.max_alive, cutoff=self.cutoff
            )
        if self.on_rollout:
            self.on_rollout(Rollout(place.split, place.step, trajectories))
        columns = _columns(trajectories, end_ids(trainer)[0], CUT_OFF if attachment.masks_cut_off else ())
        attachment.note(columns, self.on_totals)
        return columns

    def _trainer_chat(self, trainer: Any) -> Chat:
        """Return the chat of this trainer's tokenizer, which is made once."""
        tokenizer, template = tokenizer_of(trainer), getattr(trainer, "chat_template", None)
        for known, known_template, chat in self.chats:
            if known is tokenizer and known_template == template:
                return chat
        options = {**(getattr(trainer, "chat_template_kwargs", None) or {}), **self.chat_template_kwargs}
        chat = TemplateChat(tokenizer, chat_template=template, **options)
        self.chats.append((tokenizer, template, chat))
        return chat

    def _episodes(self, prompts: list[Any], trainer: Any, chat: Chat, place: Place) -> list[Episode]:
        context = min((length for length in (self.max_context, _context(trainer)) if length), default=None)
        limits = Limits(
            self.max_tokens_per_turn,
            trainer.args.max_completion_length,
            context,
            observation=self.max_observation,
            action=self.max_action,
        )
        split, step, call, first, _ = place
        group_size = trainer.num_generations if split == "train" else trainer.num_generations_eval
        episodes = []
        for row, prompt in enumerate(prompts, start=first):
            preamble, task = read_prompt(prompt)
            if task is None:
                # The group's index among all processes, because a group may be split between two. Evaluations play the
                # same tasks at every step, so that their numbers are comparable.
                when = step if split == "train" else 0
                task = self.assign(split, derive_seed(self.seed, when, call, row // group_size))
            sampling = derive_seed(self.seed, "sampling", split, step, call, row)
            episodes.append(Episode(task, chat=chat, limits=limits, preamble=preamble, seed=sampling))
        return episodes


@contextmanager
def trainer_engine(trainer: Any, chat: Ends | None, sampling: Mapping[str, Any] | None = None) -> Iterator[Engine]:
    """Provide an engine that samples from the model that ``trainer`` is training, with the trainer's own options.

    ``chat`` defines what ends a response besides the end-of-sequence token; ``sampling`` overrides options, by vLLM's
    names.

    Raises:
        ConfigError: The trainer's way of generating is not supported.
    """
    if not trainer.use_vllm:
        engine = _transformers_engine
    elif trainer.args.vllm_mode == "colocate":
        engine = _colocated_engine
    else:
        engine = _server_engine
    with engine(trainer, chat or _NoEnds(), dict(sampling or {})) as made:
        yield made


@contextmanager
def _transformers_engine(trainer: Any, chat: Ends, changes: dict[str, Any]) -> Iterator[Engine]:
    from torch import no_grad
    from trl.models import unwrap_model_for_generation

    from gym_trl.engines.transformers import TransformersEngine

    args, tokenizer = trainer.args, tokenizer_of(trainer)
    if trainer.accelerator.num_processes > 1 and (spread := _spread(trainer)):
        raise ConfigError(
            f"with {spread} the processes compute every token together, and each has episodes of its own: "
            "generate with vLLM (use_vllm=True), or use DeepSpeed with ds3_gather_for_generation"
        )
    sampling = {name: getattr(args, name) for name in (*SAMPLING, "cache_implementation")}
    sampling |= (args.generation_kwargs or {}) | changes
    strings = [*chat.stop_strings, *_strings(sampling.pop("stop_strings", None)), *_strings(sampling.pop("stop", None))]
    eos_ids = {*end_ids(trainer), *chat.stop_ids, *(sampling.pop("stop_token_ids", None) or ())}
    if sampling.pop("ignore_eos", False):
        strings, eos_ids = [], set()
    with ExitStack() as stack:
        # As in GRPOTrainer._generate_single_turn, but once for all turns: all processes must gather sharded weights
        # together, and each has its own number of turns.
        model = stack.enter_context(
            unwrap_model_for_generation(
                trainer.model_wrapped, trainer.accelerator, gather_deepspeed3_params=args.ds3_gather_for_generation
            )
        )
        stack.enter_context(no_grad())
        if (distributed := getattr(trainer, "_dist", None)) is not None:
            stack.enter_context(distributed.summon_full_params(trainer.model_wrapped, recurse=False))
        if trainer.use_transformers_continuous_batching:
            from gym_trl.engines.continuous import ContinuousBatchingEngine

            if (cache := sampling.pop("cache_implementation", None)) not in (None, "paged"):
                raise ConfigError(
                    f"cache_implementation={cache!r} cannot be used: continuous batching has a paged cache of its own; "
                    "leave one of the two out"
                )
            batching = trainer.continuous_batching_config
            yield stack.enter_context(
                ContinuousBatchingEngine(
                    model, eos_ids=eos_ids, sampling=sampling, stop_strings=strings, batching=batching
                )
            )
            return
        yield TransformersEngine(
            model,
            pad_id=tokenizer.pad_token_id,
            eos_ids=eos_ids,
            sampling=sampling,
            stop_strings=strings,
            decode=tokenizer.decode,
        )


def _spread(trainer: Any) -> str | None:
    """Return the name of what shards the weights over processes during generation, or ``None``."""
    deepspeed = getattr(trainer.accelerator.state, "deepspeed_plugin", None)
    if deepspeed is not None and deepspeed.zero_stage == 3 and not trainer.args.ds3_gather_for_generation:
        return "DeepSpeed ZeRO-3 without ds3_gather_for_generation"
    return "FSDP" if getattr(trainer, "is_fsdp_enabled", False) else None


@contextmanager
def _colocated_engine(trainer: Any, chat: Ends, changes: dict[str, Any]) -> Iterator[Engine]:
    """Provide the trainer's own vLLM, with the weights of this step."""
    from gym_trl.engines.collective import CollectiveEngine, TorchExchange
    from gym_trl.engines.vllm import VLLMEngine, cache_awake, tensor_parallel_group

    generation = trainer.vllm_generation
    with ExitStack() as stack:
        if generation.enable_sleep_mode:
            # As in VLLMGeneration.generate (trl 1.16), but once for all turns. TRL syncs weights only in a new step;
            # before a second rollout of the same step the sleeping engine has discarded them.
            if generation._llm_weights_sleeping:
                generation.sync_weights()
            stack.callback(setattr, generation, "_llm_weights_sleeping", True)
            stack.enter_context(cache_awake(generation.llm))
        engine = VLLMEngine(
            generation.llm,
            eos_ids={*end_ids(trainer), *chat.stop_ids},
            sampling=_vllm_sampling(trainer, changes),
            stop_strings=() if changes.get("ignore_eos") else chat.stop_strings,
        )
        if generation.tensor_parallel_size == 1:
            yield engine
            return
        # As TRL does for adapters: the training's communication must end before vLLM's begins (trl#3671).
        trainer.accelerator.wait_for_everyone()
        yield stack.enter_context(CollectiveEngine(engine, TorchExchange(tensor_parallel_group())))


@contextmanager
def _server_engine(trainer: Any, chat: Ends, changes: dict[str, Any]) -> Iterator[Engine]:
    """Provide the trainer's vLLM server with a client per process, because TRL's is on the main process only."""
    from gym_trl.engines.server import ServerEngine

    generation = trainer.vllm_generation
    # Only the main process sends the weights, and TRL lets the others continue: they would sample from old ones.
    trainer.accelerator.wait_for_everyone()
    engine = ServerEngine(
        _server_url(generation),
        eos_ids={*end_ids(trainer), *chat.stop_ids},
        sampling=_vllm_sampling(trainer, changes),
        stop_strings=() if changes.get("ignore_eos") else chat.stop_strings,
        check=False,
    )
    with engine:
        # Check only once: a misconfigured server fails at the start; a later outage costs episodes, not the training.
        if generation not in _CHECKED:
            engine.check(logprobs=_corrects(trainer))
            _CHECKED.add(generation)
        yield engine


def _server_url(generation: Any) -> str:
    # As VLLMGeneration does (trl 1.16).
    return generation.server_base_url or f"http://{generation.server_host}:{generation.server_port}"


def _vllm_sampling(trainer: Any, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampling options of ``trainer.vllm_generation``, updated with ``changes``."""
    generation = trainer.vllm_generation
    own: dict[str, Any] = {name: getattr(generation, name) for name in SAMPLING} | generation.generation_kwargs
    sampling = {**own, **changes}
    if generation.structured_outputs_regex is not None:
        sampling["structured_outputs"] = {"regex": generation.structured_outputs_regex}
    if _corrects(trainer) and generation not in _WARNED:
        warn_of_bias(sampling)
        _WARNED.add(generation)
    return sampling


def _strings(value: str | Sequence[str] | None) -> Sequence[str]:
    return [value] if isinstance(value, str) else value or ()


def _corrects(trainer: Any) -> bool:
    """Return True if the trainer corrects importance weights with vLLM's logprobs."""
    return bool(getattr(trainer.args, "vllm_importance_sampling_correction", True))


def warn_of_bias(sampling: Mapping[str, Any]) -> None:
    """Warn about options with which an engine's logprobs differ from those of the training model."""
    cutting = [name for name, whole in _WHOLE.items() if sampling.get(name) not in whole]
    if cutting:
        # vLLM's logprobs refer to the truncated distribution, the trainer's to the whole vocabulary (trl#6789).
        warnings.warn(
            f"{' and '.join(cutting)} cut the distribution, which biases TRL's importance sampling correction: each "
            "token's ratio is multiplied by the probability that was left. Use the defaults, or "
            "vllm_importance_sampling_correction=False",
            stacklevel=2,
        )


def _columns(trajectories: Sequence[Trajectory], filler: int, masked: Collection[StopReason]) -> dict[str, list[Any]]:
    """Return the columns that TRL expects; an unscored episode is one masked ``filler`` token.

    An episode with a stop reason in ``masked`` keeps its ids and its score, and all its tokens are masked.

    If nothing was sampled, the prompt is one ``filler`` token too: a first observation that exceeds the context would
    otherwise pad the whole batch to its length.
    """
    kept = [trajectory.scored for trajectory in trajectories]
    rows = list(zip(kept, trajectories, strict=True))
    return {
        "prompt_ids": [episode.prompt_ids if episode.completion_ids else [filler] for episode in trajectories],
        "completion_ids": [episode.completion_ids if scored else [filler] for scored, episode in rows],
        "logprobs": [episode.logprobs if scored else [0.0] for scored, episode in rows],
        "env_mask": [
            [0] if not scored else [0] * len(episode.mask) if episode.stop_reason in masked else episode.mask
            for scored, episode in rows
        ],
        **outcomes(trajectories),
        "step_rewards": [[turn.reward for turn in episode.turns] for episode in trajectories],
        "messages": [[message.as_dict() for message in episode.messages] for episode in trajectories],
        "task": [episode.task.to_json() for episode in trajectories],
        "error": [episode.error for episode in trajectories],
    }


def _context(trainer: Any) -> int | None:
    """Return the maximum tokens of an episode, limited by the model and by the engine."""
    lengths = [getattr(trainer.model.config.get_text_config(), "max_position_embeddings", None)]
    if trainer.use_vllm:
        lengths.append(_vllm_context(trainer))
    return min((int(length) for length in lengths if length), default=None)


def _vllm_context(trainer: Any) -> int | None:
    if trainer.args.vllm_mode == "colocate":
        from gym_trl.engines import vllm

        return vllm.context_length(trainer.vllm_generation.llm)
    from gym_trl.engines import server

    generation = trainer.vllm_generation
    if generation not in _CONTEXTS and (length := server.context_length(_server_url(generation))) is not None:
        _CONTEXTS[generation] = length  # for rollouts in which the server is too busy to respond
    return _CONTEXTS.get(generation)
