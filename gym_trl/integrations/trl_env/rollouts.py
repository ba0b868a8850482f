"""Rollouts of trl-env, without and with a trainer, run by this library's own loop."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from gym_trl.engines.protocol import Engine
from gym_trl.errors import ConfigError
from gym_trl.executors.inline import InlinePool
from gym_trl.grpo.dataset import read_prompt
from gym_trl.grpo.rollout_func import Rollout, RolloutFunc
from gym_trl.integrations.sample_all import sample_all
from gym_trl.integrations.trl_env.environments import EnvFactory, GymFromEnv, Seed
from gym_trl.integrations.trl_env.processors import Processor, ProcessorChat
from gym_trl.rollout import Episode, Limits, rollout, run
from gym_trl.seeding import derive_seed
from gym_trl.types import Completion, Logprobs, Message, Request, Task, TokenIds

_ENV = "trl-env"  # the only id in the pools below


@dataclass
class RolloutState:
    """Tokens of one episode, under trl-env's names."""

    initial_length: int
    """Number of prompt ids at the beginning of ``conversation``."""
    conversation: TokenIds
    env_mask: list[int]
    """1 for sampled tokens; covers only the completion, as do the logprobs."""
    logprobs: Logprobs
    reward: float | None
    """Return of the episode; ``None`` if the model never acted or the environment failed."""
    error: str | None = None

    @classmethod
    def of(cls, played: Episode) -> Self:
        """Return the state of one of this library's episodes."""
        row = played.row
        return cls(len(row.prompt_ids), row.ids, row.mask, row.logprobs, played.episode_return, played.error)


class TransformerTokenizer:
    """trl-env's tokenizer, without the special tokens that trl-env adds to every turn of Llama, Gemma and DeepSeek."""

    def __init__(self, processing_class: Any) -> None:
        self.processing_class = processing_class

    @property
    def tokenizer(self) -> Any:
        """Alias of ``processing_class``, the name up to trl-env 0.1.19."""
        return self.processing_class

    def encode(self, text: str) -> TokenIds:
        """Return the ids of ``text``, without special tokens."""
        return list(self.processing_class.encode(text, add_special_tokens=False))

    def decode(self, token_list: Sequence[int]) -> str:
        """Return the text of ids, including control tokens."""
        return str(self.processing_class.decode(token_list))


class Model(Protocol):
    """Protocol of the models of ``batch_rollout``."""

    def tokenizer_encode(self, input_text: str) -> TokenIds:
        """Return the ids of a text."""
        ...

    def tokenizer_decode(self, completion_ids: TokenIds) -> str:
        """Return the text of ids."""
        ...

    def model_batch_generate(self, input_ids_list: list[TokenIds]) -> tuple[list[TokenIds], list[Logprobs]]:
        """Generate one response to each prompt; return their ids and logprobs."""
        ...


class TransformerModel:
    """Transformers model with its tokenizer.

    Args:
        tokenizer: The model's tokenizer.
        model: Decoder-only model.
        generation_kwargs: Options of ``GenerationConfig``; ``max_new_tokens`` (default 256) limits a turn, and
            ``eos_token_id`` ends it in addition to the tokenizer's own.

    Raises:
        ConfigError: ``generation_kwargs`` has an argument that the rollout sets.
    """

    def __init__(self, tokenizer: Any, model: Any, generation_kwargs: Mapping[str, Any] | None = None) -> None:
        options = dict(generation_kwargs or {})
        for name in ("input_ids", "attention_mask", "output_logits", "return_dict_in_generate"):
            if name in options:
                raise ConfigError(f"generation_kwargs has {name!r}, which the rollout itself gives to generate")
        self.tokenizer, self.model = tokenizer, model
        self.device = model.device
        self.max_new_tokens: int = options.pop("max_new_tokens", 256)
        ends = options.pop("eos_token_id", None) or []
        self.eos_token_ids = {int(tokenizer.eos_token_id), *([ends] if isinstance(ends, int) else ends)}
        self.sampling = options

    def tokenizer_encode(self, input_text: str) -> TokenIds:
        """Return the ids of a text, without special tokens."""
        return TransformerTokenizer(self.tokenizer).encode(input_text)

    def tokenizer_decode(self, completion_ids: TokenIds) -> str:
        """Return the text of ids."""
        return TransformerTokenizer(self.tokenizer).decode(completion_ids)

    def model_batch_generate(self, input_ids_list: list[TokenIds]) -> tuple[list[TokenIds], list[Logprobs]]:
        """Sample one response to each prompt; return their ids, and their logprobs under the sampling distribution."""
        requests = [
            Request(str(index), ids, self.max_new_tokens, derive_seed("trl-env", index, len(ids)))
            for index, ids in enumerate(input_ids_list)
        ]
        completions = sample_all(self.engine(), requests)
        return [completion.ids for completion in completions], [completion.logprobs for completion in completions]

    def engine(self, chat: ProcessorChat | None = None) -> Any:
        """Return an engine that samples from the model, for as long as its weights stay as they are."""
        from gym_trl.engines.transformers import TransformersEngine

        pad = self.tokenizer.pad_token_id
        return TransformersEngine(
            self.model,
            pad_id=self.tokenizer.eos_token_id if pad is None else pad,
            eos_ids={*self.eos_token_ids, *(chat.stop_ids if chat else ())},
            sampling=self.sampling,
            stop_strings=chat.stop_strings if chat else (),
            decode=self.tokenizer.decode,
            constant_weights=True,
        )


class _CallEngine(Engine):
    """Engine that generates with a function of whole prompts, which decides itself when to stop."""

    def __init__(self, generate: Callable[[list[TokenIds]], tuple[list[TokenIds], list[Logprobs]]]) -> None:
        self._generate = generate
        self._pending: list[Request] = []

    def submit(self, request: Request) -> None:
        self._pending.append(request)

    def collect(self, *, block: bool) -> list[Completion]:
        requests, self._pending = self._pending, []
        if not requests:
            return []
        sampled = self._generate([request.prompt_ids for request in requests])
        return [
            Completion(request.id, list(ids)[: request.max_tokens], list(logprobs)[: request.max_tokens])
            for request, ids, logprobs in zip(requests, *sampled, strict=True)
        ]

    def cancel(self, request_id: str) -> None:
        self._pending = [request for request in self._pending if request.id != request_id]


def batch_rollout(
    model: Model,
    processor: Processor,
    env_factory: EnvFactory,
    system_prompt: str,
    max_conversation_length: int,
    seed_list: Sequence[Seed],
    log: Callable[[str], Any] | None = None,
) -> list[RolloutState]:
    """Play one episode for each seed, and return their tokens in the order of the seeds.

    ::

        states = batch_rollout(TransformerModel(tokenizer, model), qwen3_processor, GuessEnv, "Be brief.", 512, ["36"])
        states[0].reward

    Finished episodes generate nothing more, and episodes do not wait for each other. If an episode fails, its
    ``reward`` is ``None``, its ``error`` holds the cause, and the others continue. A conversation ends with a response
    of the model and never exceeds ``max_conversation_length`` tokens.

    Args:
        model: ``TransformerModel``, or any object with its three methods.
        processor: Processor that marks up text.
        env_factory: Function that makes environments, which are reused.
        system_prompt: First message.
        max_conversation_length: Maximum tokens of prompt and completion together.
        seed_list: One seed per episode.
        log: Called with lines of text.
    """
    engine: Engine
    if isinstance(model, TransformerModel):
        chat = ProcessorChat(processor, model.tokenizer)
        engine, most = model.engine(chat), model.max_new_tokens
    else:
        chat = ProcessorChat(processor, _TokenizerOf(model))
        engine, most = _CallEngine(model.model_batch_generate), None

    def finished(index: int, played: Episode) -> None:
        names = {"assistant": f"agent_{index}", "user": f"user_{index}", "system": "system"}
        lines = [f"{names[message.role]}>\t{message.content}\n" for message in played.messages]
        for line in (*lines, f"log_{index}>\t{played.stop_reason}, reward: {played.episode_return}\n"):
            if log is not None:
                log(line)

    limits = Limits(most, None, max_conversation_length)
    return _play(chat, engine, env_factory, system_prompt, limits, seed_list, finished)


class _TokenizerOf:
    """Tokenizer of a model with methods of its own, of whose control tokens nothing is known."""

    eos_token = bos_token = unk_token = unk_token_id = None

    def __init__(self, model: Any) -> None:
        self.added_tokens_decoder: dict[int, Any] = {}
        self.all_special_tokens: list[str] = []
        self.encode = lambda text, **_: model.tokenizer_encode(text)
        self.decode = lambda ids, **_: model.tokenizer_decode(ids)


def _play(
    chat: ProcessorChat,
    engine: Any,
    env_factory: EnvFactory,
    system_prompt: str,
    limits: Limits,
    seeds: Sequence[Seed],
    on_finish: Callable[[int, Episode], None],
) -> list[RolloutState]:
    with InlinePool(lambda _: GymFromEnv(env_factory)) as pool:
        played = run(
            rollout(
                [_task(seed) for seed in seeds],
                pool=pool,
                engine=engine,
                chat=chat,
                seeds=[derive_seed("trl-env", seed, index) for index, seed in enumerate(seeds)],
                preambles=[[Message("system", system_prompt)] for _ in seeds],
                limits=limits,
                on_finish=lambda index, seats: on_finish(index, seats[0]),
            )
        )
    return [RolloutState.of(episode) for [episode] in played]


def _task(seed: str) -> Task:
    return Task(_ENV, derive_seed("trl-env", seed) % 2**31, {"seed": seed})


def make_rollout_func(
    processor: Processor,
    tokenizer: Any,
    env_factory: EnvFactory,
    system_prompt: str = "",
    max_conversation_length: int | None = None,
    *,
    max_tokens_per_turn: int | None = None,
    on_rollout: Callable[[Rollout], None] | None = None,
) -> Callable[[list[Any], Any], dict[str, Any]]:
    """Return a ``rollout_func`` for ``GRPOTrainer`` that plays each prompt as the seed of an episode.

    Rows are in order, with trl-env's column ``reward`` for ``make_reward_func`` in addition to this library's columns.
    An unscored episode has the reward ``None``, which TRL excludes from its group. All episodes are played
    concurrently, and the trainer's own engine samples as ``GRPOConfig`` says.

    Args:
        processor: Processor that marks up text.
        tokenizer: ``TransformerTokenizer``, or a Hugging Face tokenizer.
        env_factory: Function that makes environments, which are reused.
        system_prompt: First message.
        max_conversation_length: Maximum tokens of prompt and completion together; the trainer's
            ``max_completion_length`` bounds the completion.
        max_tokens_per_turn: Maximum tokens of a response.
        on_rollout: Callback that receives every finished rollout.
    """
    pool = InlinePool(lambda _: GymFromEnv(env_factory))
    play = RolloutFunc(
        pool,
        chat=ProcessorChat(processor, tokenizer),
        max_tokens_per_turn=max_tokens_per_turn,
        max_context=max_conversation_length,
        on_rollout=on_rollout,
    )
    weakref.finalize(play, pool.close)

    def rollout_func(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        columns = play([_with_task(prompt, system_prompt) for prompt in prompts], trainer)
        return {**columns, "reward": [episode.episode_return for episode in columns["episode"]]}

    return rollout_func


def _with_task(prompt: Any, system_prompt: str) -> list[dict[str, str | None]]:
    messages, _ = read_prompt(prompt)
    seed = messages[-1].content if messages else ""
    return [
        {"role": "system", "content": system_prompt, "task": None},
        {"role": "user", "content": seed, "task": _task(seed).to_json()},
    ]


def make_reward_func() -> Callable[..., list[float | None]]:
    """Return a reward function that returns the environment's own reward.

    >>> make_reward_func()(prompts=["7"], completions=["4"], reward=[0.5])
    [0.5]
    """

    def reward_func(*, reward: Sequence[float | None], **columns: Any) -> list[float | None]:
        return list(reward)

    return reward_func
