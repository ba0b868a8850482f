"""TRL's ``rollout_func``: prompts in, whole episodes out, with the exact tokens that the model sampled."""

import warnings
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

from gym_trl.chat import Chat, TemplateChat
from gym_trl.engines.protocol import Engine
from gym_trl.episode import Episode, Limits
from gym_trl.errors import ConfigError
from gym_trl.executors import Executor, make_pool
from gym_trl.grpo.attach import CUT_OFF, OnTotals, Place, attach, end_ids, tokenizer_of
from gym_trl.grpo.dataset import read_prompt
from gym_trl.grpo.totals import outcomes
from gym_trl.pool import EnvFactory, EnvPool
from gym_trl.rollout import WAIT, Cutoff, run_episodes
from gym_trl.seeding import derive_seed
from gym_trl.types import StopReason, Task, Trajectory

RolloutFunc: TypeAlias = Callable[[list[Any], Any], dict[str, list[Any]]]

SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""What TRL's configurations say of how to sample."""
# What cuts nothing off the distribution.
_WHOLE = {"top_p": (None, 1.0), "top_k": (None, 0, -1), "min_p": (None, 0.0)}

# Instances of TRL's VLLMGeneration: one for each trainer.
_CHECKED: weakref.WeakSet[Any] = weakref.WeakSet()
_CONTEXTS: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_WARNED: weakref.WeakSet[Any] = weakref.WeakSet()


class Ends(Protocol):
    """What of a ``Chat`` an engine needs to know."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """The ids that end the model's turn."""
        ...

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """What ends it where no id says so."""
        ...


class _NoEnds:
    stop_ids: frozenset[int] = frozenset()
    stop_strings: tuple[str, ...] = ()


class Rollout(NamedTuple):
    """What one call of a ``rollout_func`` played on this process."""

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
    """A function for ``GRPOTrainer(rollout_func=...)`` that plays one episode per prompt.

    It has TRL's signature ``(prompts, trainer)`` and returns a row per prompt, in order: ``prompt_ids``,
    ``completion_ids``, ``logprobs``, ``env_mask``, and for reward functions ``episode_return``, ``success``,
    ``stop_reason``, ``num_turns``, ``invalid_actions``, ``cut_actions``, ``cut_observations``, ``step_rewards``,
    ``messages``, ``task`` and ``error``. ``success`` is ``None`` where nothing declares it.

    A prompt that carries a task plays it. For any other prompt ``assign`` makes a task, which is the same
    for all members of a GRPO group, on every process. An episode that failed has no return and no trained token.

    Args:
        make: Makes an environment from its id.
        assign: Makes a task from a split and the number of a group, for prompts without one.
        seed: Of the sampling and of the tasks that are assigned.
        max_tokens_per_turn: What the model may sample in a turn; the trainer's ``max_completion_length`` bounds the
            whole episode.
        chat: Turns conversations into tokens; by default the tokenizer's own chat template does.
        chat_template_kwargs: For the template, such as ``{"enable_thinking": False}``; over the trainer's own.
        sampling: Instead of the trainer's own, by vLLM's names (``temperature``, ``stop``, ``stop_token_ids``, ...). It
            goes on to train under its own temperature: whoever changes that should change both.
        max_context: What prompt and completion together may use, where it is less than what the model can.
        executor: Where environments are stepped, see ``GymSpec``.
        workers: How many threads or processes.
        reset_timeout: Seconds that making and resetting an environment may take there.
        step_timeout: Seconds that a step may take there.
        deterministic: Environments answer in the order in which they were asked, see ``GymSpec``.
        max_alive: How many environments are open at once on a process; all by default.
        max_observation: Characters of an observation that the model is shown, see ``GymSpec``.
        max_action: Characters of an action that the environment is given, see ``GymSpec``.
        cutoff: When the slowest episodes are no longer waited for; by default all are.
        on_rollout: Is called with everything that was played, for records.
        on_totals: Is called on every process with the ``StepTotals`` of all of them, once for each batch that the
            trainer scores; what it raises ends the training on all processes at once.

    Raises:
        ConfigError: an argument that cannot work; ``deterministic`` with a cutoff by the clock.
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
        """The chat of this trainer's tokenizer, made once."""
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
                # The group's index among all processes: a group may straddle two of them. An evaluation plays the
                # same games at every step, so that its numbers can be compared.
                when = step if split == "train" else 0
                task = self.assign(split, derive_seed(self.seed, when, call, row // group_size))
            sampling = derive_seed(self.seed, "sampling", split, step, call, row)
            episodes.append(Episode(task, chat=chat, limits=limits, preamble=preamble, seed=sampling))
        return episodes


@contextmanager
def trainer_engine(trainer: Any, chat: Ends | None, sampling: Mapping[str, Any] | None = None) -> Iterator[Engine]:
    """An engine that samples from the model that ``trainer`` is training, as ``trainer`` itself would.

    ``chat`` says what ends an answer besides the end of sequence; ``sampling`` is what is to be otherwise, by vLLM's
    names.

    Raises:
        ConfigError: the trainer generates in a way that is not supported yet.
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
        # As in GRPOTrainer._generate_single_turn, but once for all turns: weights that are spread over processes are
        # gathered together, while each process has its own number of turns.
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
    """What spreads the weights over the processes while they generate, if anything does."""
    deepspeed = getattr(trainer.accelerator.state, "deepspeed_plugin", None)
    if deepspeed is not None and deepspeed.zero_stage == 3 and not trainer.args.ds3_gather_for_generation:
        return "DeepSpeed ZeRO-3 without ds3_gather_for_generation"
    return "FSDP" if getattr(trainer, "is_fsdp_enabled", False) else None


@contextmanager
def _colocated_engine(trainer: Any, chat: Ends, changes: dict[str, Any]) -> Iterator[Engine]:
    """The trainer's own vLLM, with the weights that it has been given for this step."""
    from gym_trl.engines.collective import CollectiveEngine, TorchExchange
    from gym_trl.engines.vllm import VLLMEngine, cache_awake, tensor_parallel_group

    generation = trainer.vllm_generation
    with ExitStack() as stack:
        if generation.enable_sleep_mode:
            # As in VLLMGeneration.generate (trl 1.16), but once for all turns. TRL has pushed the weights if the step
            # is a new one; a second rollout of it finds an engine that has forgotten them.
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
        # As TRL does for adapters: the training's own communication must be over before vLLM's begins (trl#3671).
        trainer.accelerator.wait_for_everyone()
        yield stack.enter_context(CollectiveEngine(engine, TorchExchange(tensor_parallel_group())))


@contextmanager
def _server_engine(trainer: Any, chat: Ends, changes: dict[str, Any]) -> Iterator[Engine]:
    """The trainer's vLLM server, asked by every process for itself: TRL's own client exists on the main one only."""
    from gym_trl.engines.server import ServerEngine

    generation = trainer.vllm_generation
    # The main process alone sends the weights, and TRL lets the others go on: they would sample from the old ones.
    trainer.accelerator.wait_for_everyone()
    engine = ServerEngine(
        _server_url(generation),
        eos_ids={*end_ids(trainer), *chat.stop_ids},
        sampling=_vllm_sampling(trainer, changes),
        stop_strings=() if changes.get("ignore_eos") else chat.stop_strings,
        check=False,
    )
    with engine:
        # A server that is wrong is wrong from the beginning; one that is down later costs episodes, not the training.
        if generation not in _CHECKED:
            engine.check(logprobs=_corrects(trainer))
            _CHECKED.add(generation)
        yield engine


def _server_url(generation: Any) -> str:
    # As VLLMGeneration does (trl 1.16).
    return generation.server_base_url or f"http://{generation.server_host}:{generation.server_port}"


def _vllm_sampling(trainer: Any, changes: Mapping[str, Any]) -> dict[str, Any]:
    """How ``trainer.vllm_generation`` would sample, but for ``changes``."""
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
    """Whether the trainer weighs tokens by vLLM's logprobs of them."""
    return bool(getattr(trainer.args, "vllm_importance_sampling_correction", True))


def warn_of_bias(sampling: Mapping[str, Any]) -> None:
    """Warn of options with which an engine's logprobs are not those of the training model."""
    cutting = [name for name, whole in _WHOLE.items() if sampling.get(name) not in whole]
    if cutting:
        # vLLM's logprobs are of what is left after cutting, the trainer's of the whole vocabulary (trl#6789).
        warnings.warn(
            f"{' and '.join(cutting)} cut the distribution, which biases TRL's importance sampling correction: each "
            "token's ratio is multiplied by the probability that was left. Use the defaults, or "
            "vllm_importance_sampling_correction=False",
            stacklevel=2,
        )


def _columns(trajectories: Sequence[Trajectory], filler: int, masked: Collection[StopReason]) -> dict[str, list[Any]]:
    """Rows as TRL wants them; an episode without a score is one ``filler`` token that is not trained on.

    Nor is one that ended in one of the ways that are ``masked``, which keeps its ids and its score.

    So is the prompt where nothing was sampled: a first observation that is too long for the model would make the whole
    batch as long.
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
    """How many tokens an episode may have, for the model and for what generates."""
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
        _CONTEXTS[generation] = length  # for the rollouts in which it is too busy to say
    return _CONTEXTS.get(generation)
