"""trl-env's interface, under its own names: environments, processors and rollouts, run by this library's own loop.

trl-env's modules are one module here: ``from trl_env.rollout import make_rollout_func`` becomes
``from gym_trl.integrations.trl_env import make_rollout_func``. Both of its protocols are supported: ``reset`` and
``step`` that return a delta (0.1.8), and those that return an environment and a delta (since 0.1.10).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias

import gymnasium as gym

from gym_trl.chat.codec import Codec as _Codec, tokenizer_codec as _tokenizer_codec
from gym_trl.chat.template import TemplateChat
from gym_trl.engines.protocol import sample_all
from gym_trl.envs.external.adapter import Adapter, Played
from gym_trl.errors import ChatTemplateError, ConfigError, needs
from gym_trl.executors.inline import InlinePool
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.grpo import rollout_func as grpo
from gym_trl.grpo.dataset import read_prompt
from gym_trl.rollout.episode import Episode
from gym_trl.rollout.limits import Limits
from gym_trl.rollout.loop import run_episodes
from gym_trl.seeding import derive_seed
from gym_trl.types import Answer, Completion, EpisodeResult, Logprobs, Message, Request, Task, TokenIds
from gym_trl.wrappers.as_text import as_text
from gym_trl.wrappers.inner import instructions_of

if TYPE_CHECKING:
    from gym_trl.integrations.lazy_dataset import LazyDataset

Action: TypeAlias = str
Delta: TypeAlias = str
Seed: TypeAlias = str
Language: TypeAlias = str

_ENV = "trl-env"  # the only id in the pools below


class Env(Protocol):
    """Protocol of trl-env's environments, with text observations, text actions and a cumulative reward."""

    reward: float
    """Sum of the rewards of the episode so far."""
    alive: bool

    def reset(self, seed: Seed) -> "Delta | tuple[Env, Delta]":
        """Start an episode; return the first text, or the environment and the text if environments are immutable."""
        ...

    def step(self, action: Action) -> "Delta | tuple[Env, Delta]":
        """Step with an action; return like ``reset``."""
        ...


EnvFactory = Callable[[], Any]
"""Function that makes an ``Env``."""


class Processor(Protocol):
    """Protocol of text mark-up for a model, without a chat template."""

    def init_system_input(self, prompt: Language) -> str:
        """Return the beginning of a conversation."""
        ...

    def append_user_input(self, prompt: Language) -> str:
        """Return the environment's text and the beginning of the model's turn."""
        ...

    def parse_agent_output(self, completion: Language) -> tuple[str, str]:
        """Return the model's thinking and its response."""
        ...


# ---------------------------------------------------------------------------------------------------------------------
# Environments, in both directions
# ---------------------------------------------------------------------------------------------------------------------


class GymFromEnv(Adapter):
    """Gymnasium environment around a trl-env environment.

    >>> class Twice:
    ...     def reset(self, seed):
    ...         self.reward, self.alive, self.word = 0.0, True, seed
    ...         return self, f"Say {seed} twice."
    ...     def step(self, action):
    ...         self.reward, self.alive = float(action == self.word * 2), False
    ...         return self, "Thanks."
    >>> env = GymFromEnv(Twice)
    >>> env.reset(seed=0, options={"seed": "ox"})[0]
    'Say ox twice.'
    >>> env.step("oxox")[:3]
    ('Thanks.', 1.0, True)

    trl-env's seeds are strings: pass one as the reset option ``seed``. Default: a number derived from Gymnasium's seed.
    trl-env's ``reward`` is cumulative; a step's reward is its change, so the return equals the ``reward`` that trl-env
    would report. trl-env does not define success, so success is undeclared. A missing ``reward`` counts as 0. During
    an episode the global random generators are replaced by the episode's own.

    Args:
        make: Function that makes the trl-env environment.
    """

    declares_success = False

    option_names = frozenset({"seed"})

    def __init__(self, make: EnvFactory) -> None:
        super().__init__()
        self.make = make
        self._env: Any = None
        self._paid = 0.0

    def close(self) -> None:
        """Close the environment if it has ``close``."""
        close, self._env = getattr(self._env, "close", None), None
        if close is not None:
            close()

    def _begin(self, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        self._env = self._env or self.make()
        delta = self._said(self._env.reset(str(options.get("seed", seed))))
        self._paid = 0.0
        return delta, {}

    def _play(self, action: str) -> Played:
        delta = self._said(self._env.step(action))
        total = float(self._env.reward or 0.0)
        paid, self._paid = total - self._paid, total
        over = not self._env.alive
        return Played(delta, paid, terminated=over, success=None)

    def _said(self, answer: Any) -> str:
        if isinstance(answer, tuple):
            self._env, answer = answer
        return str(answer)


class EnvFromGym:
    """trl-env environment around any Gymnasium environment.

    >>> env = EnvFromGym("TrlEnv/GuessNumber-v0", high=8, turns=4)
    >>> env, delta = env.reset("7")
    >>> print(delta.splitlines()[-1])
    Guess 1 to 8 in 4 tries.
    >>> env, delta = env.step("4")
    >>> delta, env.reward, env.alive
    ('Higher.', 0.0, True)
    >>> EnvFromGym("TrlEnv/Echo-v0", functional=False).reset("a word")[-5:]  # as trl-env 0.1.8 wants it
    'ltsbz'

    The instructions precede the first observation. A seed of digits is used as the environment's seed; any other text
    is hashed to a seed. The reward is the return so far. After the end every action returns the last observation again.

    Args:
        env: Environment id, or a function that makes an environment.
        functional: Return the environment with each delta, as trl-env does since 0.1.10.
        env_kwargs: Arguments for ``gym.make``.
    """

    def __init__(
        self, env: str | Callable[[], gym.Env[Any, Any]], *, functional: bool = True, **env_kwargs: Any
    ) -> None:
        self._env: TextEnvironment = as_text(gym.make(env, **env_kwargs) if isinstance(env, str) else env(**env_kwargs))
        self._functional = functional
        self._last = ""
        self.reward = 0.0
        self.alive = False

    def reset(self, seed: Seed) -> Any:
        """Start an episode."""
        number = int(seed) if seed.isdecimal() and int(seed) < 2**63 else derive_seed("trl-env", seed)
        observation, _ = self._env.reset(seed=number)
        self.reward, self.alive = 0.0, True
        return self._say("\n\n".join(part for part in (instructions_of(self._env), observation) if part))

    def step(self, action: Action) -> Any:
        """Step with an action."""
        if not self.alive:
            return self._say(self._last)
        observation, reward, terminated, truncated, _ = self._env.step(action)
        self.reward += float(reward)
        self.alive = not (terminated or truncated)
        return self._say(observation)

    def close(self) -> None:
        """Close the Gymnasium environment."""
        self._env.close()

    def _say(self, delta: str) -> "str | tuple[Self, str]":
        self._last = delta
        return (self, delta) if self._functional else delta


# ---------------------------------------------------------------------------------------------------------------------
# Processors, in both directions
# ---------------------------------------------------------------------------------------------------------------------


@dataclass
class Type1ProcessorConfig:
    """Marks around the texts of a conversation."""

    prefix_system: str
    suffix_system: str
    prefix_user: str
    suffix_user: str
    begin_answer: str
    end_answer: str
    after_answer: str = ""
    """Text of the model's template between the end of a response and the next message; trl-env leaves it out."""


class Type1Processor:
    r"""Processor that marks up text by a configuration, and splits responses at its marks.

    >>> qwen3_processor.append_user_input("Guess.")
    '<|im_start|>user\nGuess.<|im_end|>\n<|im_start|>assistant\n<think>\n'
    >>> qwen3_processor.parse_agent_output("Half of 8.</think>4<|im_end|>")
    ('Half of 8.', '4')
    """

    def __init__(self, config: Type1ProcessorConfig) -> None:
        self.config = config

    def init_system_input(self, prompt: Language) -> str:
        """Return the beginning of a conversation."""
        return self.config.prefix_system + prompt + self.config.suffix_system

    def append_user_input(self, prompt: Language) -> str:
        """Return the environment's text and the beginning of the model's turn."""
        return self.config.prefix_user + prompt + self.config.suffix_user

    def parse_agent_output(self, completion: Language) -> tuple[str, str]:
        """Return the model's thinking and its response."""
        said = completion.partition(self.config.end_answer)[0]
        thought, _, answer = said.rpartition(self.config.begin_answer)
        return thought, answer


def _qwen(prompt: str) -> Type1Processor:
    return Type1Processor(
        Type1ProcessorConfig(
            prefix_system="<|im_start|>system\n",
            suffix_system="<|im_end|>\n",
            prefix_user="<|im_start|>user\n",
            suffix_user=f"<|im_end|>\n<|im_start|>assistant\n{prompt}",
            begin_answer="</think>",
            end_answer="<|im_end|>",
            after_answer="\n",
        )
    )


def _gemma(system: str) -> Type1Processor:
    return Type1Processor(
        Type1ProcessorConfig(
            prefix_system=f"<bos><|turn>system\n{system}",
            suffix_system="<turn|>\n",
            prefix_user="<|turn>user\n",
            suffix_user="<turn|>\n<|turn>model\n",
            begin_answer="<channel|>",
            end_answer="<turn|>",
            after_answer="\n",
        )
    )


qwen3_processor = _qwen("<think>\n")
qwen3_instruct_processor = _qwen("<think>\n\n</think>\n\n")
gemma4_processor = _gemma("<|think|>\n")
gemma4_instruct_processor = _gemma("")
deepseekr1_processor = Type1Processor(
    Type1ProcessorConfig(
        prefix_system="<\uff5cbegin\u2581of\u2581sentence\uff5c>",
        suffix_system="",
        prefix_user="<\uff5cUser\uff5c>",
        suffix_user="<\uff5cAssistant\uff5c><think>\n",
        begin_answer="</think>",
        end_answer="<\uff5cend\u2581of\u2581sentence\uff5c>",
    )
)


class ProcessorChat:
    """``Chat`` that uses a ``Processor``'s mark-up.

    >>> class Letters:  # stands in for AutoTokenizer.from_pretrained(...)
    ...     eos_token, all_special_tokens, added_tokens_decoder = "$", ["$"], {}
    ...     def encode(self, text, **options):
    ...         return [ord(letter) for letter in text]
    ...     def decode(self, ids, **options):
    ...         return "".join(chr(id) for id in ids)
    >>> marks = Type1ProcessorConfig("S:", "|", "U:", "|A:", "</think>", "$", after_answer="|")
    >>> letters, chat = Letters(), ProcessorChat(Type1Processor(marks), Letters())
    >>> letters.decode(chat.open([Message("system", "Play."), Message("user", "1 to 8?")]))
    'S:Play.|U:1 to 8?|A:'
    >>> chat.text(letters.encode("Half.</think>4$"))
    Answer(thinking='Half.', text='4')
    >>> letters.decode(chat.reply("Higher.", closed=chat.closes(letters.encode("4$"))))
    '|U:Higher.|A:'

    Every text is encoded once, without the tokenizer's beginning-of-text token in every turn; sampled ids are never
    encoded again; and no message can write a control token. The turns of a custom processor end with
    ``config.end_answer`` if it exists, otherwise with the tokenizer's end-of-sequence token. If a processor raises an
    exception while parsing a response, the whole text is the response.

    Args:
        processor: Processor that marks up text.
        tokenizer: Hugging Face tokenizer, or any object with ``encode`` and ``decode``.

    Raises:
        ChatTemplateError: Nothing ends the model's turn.
    """

    def __init__(self, processor: Processor, tokenizer: Any) -> None:
        config = getattr(processor, "config", None)
        self._processor = processor
        tokenizer = getattr(tokenizer, "processing_class", tokenizer)
        known = hasattr(tokenizer, "added_tokens_decoder")
        self._codec = _tokenizer_codec(tokenizer) if known else _Codec(tokenizer.encode, tokenizer.decode)
        self._end: str = getattr(config, "end_answer", None) or getattr(tokenizer, "eos_token", None) or ""
        self._after: str = getattr(config, "after_answer", "")
        if not self._end:
            raise ChatTemplateError(
                f"nothing ends the turns of {type(processor).__name__}: give it a config with end_answer, or the "
                "tokenizer an eos_token"
            )
        end_ids = self._codec.encode(self._end)
        self.stop_ids: frozenset[int] = frozenset(end_ids if len(end_ids) == 1 else ())
        self.stop_strings: tuple[str, ...] = () if self.stop_ids else (self._end,)

    def open(self, messages: Sequence[Message]) -> TokenIds:
        """Return the ids that start an episode, up to the beginning of the model's turn."""
        system = "\n\n".join(message.content for message in messages if message.role == "system")
        said = "\n\n".join(message.content for message in messages if message.role != "system")

        def render(texts: Sequence[str]) -> str:
            return self._processor.init_system_input(texts[0]) + self._processor.append_user_input(texts[1])

        return self._codec.write(render, [Message("system", system), Message("user", said)], key="open")

    def reply(self, text: str, *, role: str = "user", closed: bool | str) -> TokenIds:
        """Return the ids between two sampled turns.

        Raises:
            ChatTemplateError: ``role`` is not ``"user"``; a processor has no other.
        """
        if role != "user":
            raise ChatTemplateError(f"a processor writes what the user says, it has no {role!r}")
        before = self._after if closed else self._end + self._after
        return self._codec.write(
            lambda texts: before + self._processor.append_user_input(texts[0]),
            [Message("user", text)],
            after=self._end if closed else "",
            key=closed,
        )

    def closes(self, ids: Sequence[int]) -> bool:
        """Return True if these sampled ids end the model's turn."""
        if self.stop_ids:
            return bool(ids) and ids[-1] in self.stop_ids
        return self._codec.decode(ids[-len(self._end.encode()) :]).endswith(self._end)

    def text(self, ids: TokenIds) -> Answer:
        """Return the model's thinking and its response."""
        said = self._codec.decode(ids)
        try:
            thought, answer = self._processor.parse_agent_output(said)
        except Exception:  # of a custom processor: pass the whole text on to the environment
            thought, answer = "", said.removesuffix(self._end)
        return Answer(thought.strip(), answer.strip())


class TemplateProcessor:
    """``Processor`` made from a tokenizer's chat template.

    >>> from gym_trl.testing import tiny_tokenizer
    >>> processor = TemplateProcessor(tiny_tokenizer())
    >>> processor.init_system_input("Play.") + processor.append_user_input("1 to 8?")
    '<|system|>Play.<|end|><|user|>1 to 8?<|end|><|assistant|>'
    >>> processor.parse_agent_output("<think>Half.</think>4<|end|>")
    Answer(thinking='Half.', text='4')

    Args:
        tokenizer: Tokenizer with a chat template.
        chat_template_kwargs: Arguments for the template, such as ``enable_thinking=False``.

    Raises:
        ChatTemplateError: The template cannot be extended turn by turn, or has no separate system message.
    """

    def __init__(self, tokenizer: Any, **chat_template_kwargs: Any) -> None:
        self._tokenizer = tokenizer
        self._chat = TemplateChat(tokenizer, **chat_template_kwargs)

    def init_system_input(self, prompt: Language) -> str:
        """Return the beginning of a conversation."""
        opened = self._decode(self._chat.open([Message("system", prompt), Message("user", "?")]))
        asked = self.append_user_input("?")
        if not opened.endswith(asked):
            raise ChatTemplateError(
                "the template writes the first user message otherwise than later ones, which a Processor cannot: use "
                "the template itself, GymSpec(...) does"
            )
        return opened.removesuffix(asked)

    def append_user_input(self, prompt: Language) -> str:
        """Return the environment's text and the beginning of the model's turn."""
        return self._decode(self._chat.reply(prompt, closed=True))

    def parse_agent_output(self, completion: Language) -> tuple[str, str]:
        """Return the model's thinking and its response."""
        return self._chat.text(self._tokenizer.encode(completion, add_special_tokens=False))

    def _decode(self, ids: TokenIds) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))


# ---------------------------------------------------------------------------------------------------------------------
# Rollouts without a trainer
# ---------------------------------------------------------------------------------------------------------------------


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
    def of(cls, played: EpisodeResult) -> Self:
        """Return the state of one of this library's episodes."""
        ids = played.trace.prompt_ids + played.trace.completion_ids
        return cls(
            len(played.trace.prompt_ids),
            ids,
            played.trace.mask,
            played.trace.logprobs,
            played.episode_return,
            played.error,
        )


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
        answers = sample_all(self.engine(), requests)
        return [answer.ids for answer in answers], [answer.logprobs for answer in answers]

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


class _CallEngine:
    """Engine that generates with a function of whole prompts, which decides itself when to stop."""

    def __init__(self, generate: Callable[[list[TokenIds]], tuple[list[TokenIds], list[Logprobs]]]) -> None:
        self._generate = generate
        self._pending: list[Request] = []

    def submit(self, request: Request) -> None:
        self._pending.append(request)

    def collect(self, *, block: bool) -> list[Completion]:
        asked, self._pending = self._pending, []
        answers = zip(asked, *self._generate([request.prompt_ids for request in asked]), strict=True) if asked else ()
        return [
            Completion(request.id, list(ids)[: request.max_tokens], list(logprobs)[: request.max_tokens])
            for request, ids, logprobs in answers
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
    if isinstance(model, TransformerModel):
        chat = ProcessorChat(processor, model.tokenizer)
        engine = model.engine(chat)
        limits = Limits(model.max_new_tokens, None, max_conversation_length)
    else:
        chat = ProcessorChat(processor, _Words(model.tokenizer_encode, model.tokenizer_decode))
        engine = _CallEngine(model.model_batch_generate)
        limits = Limits(context=max_conversation_length)
    return _play(chat, engine, env_factory, system_prompt, limits, seed_list, log)


def rollout(
    processor: Processor,
    tokenizer: Any,
    decoder: Any,
    env: Any,
    system_prompt: str,
    max_conversation_length: int,
    seed: Seed,
    conversation_logger: Callable[[str, str], Any] | None = None,
) -> RolloutState:
    """Play one episode on ``env`` with a decoder that has ``generate(ids) -> (ids, logprobs)``."""

    def generate(prompts: list[TokenIds]) -> tuple[list[TokenIds], list[Logprobs]]:
        sampled, logprobs = zip(*(decoder.generate(prompt) for prompt in prompts), strict=True)
        return list(sampled), list(logprobs)

    limits = Limits(context=max_conversation_length)
    chat = ProcessorChat(processor, tokenizer)
    [state] = _play(chat, _CallEngine(generate), lambda: env, system_prompt, limits, [seed], None, conversation_logger)
    return state


@dataclass
class _Words:
    encode: Callable[[str], TokenIds]
    decode: Callable[[TokenIds], str]


def _play(
    chat: ProcessorChat,
    engine: Any,
    env_factory: EnvFactory,
    system_prompt: str,
    limits: Limits,
    seeds: Sequence[Seed],
    log: Callable[[str], Any] | None,
    logger: Callable[[str, str], Any] | None = None,
) -> list[RolloutState]:
    said = [Message("system", system_prompt)]
    episodes = [
        Episode(_task(seed), chat=chat, limits=limits, preamble=said, seed=derive_seed("trl-env", seed, index))
        for index, seed in enumerate(seeds)
    ]

    def finished(index: int, played: EpisodeResult) -> None:
        names = {"assistant": f"agent_{index}", "user": f"user_{index}", "system": "system"}
        for message in played.messages:
            if log is not None:
                log(f"{names[message.role]}>\t{message.content}\n")
            if logger is not None:
                logger(message.role, message.content)
        if log is not None:
            log(f"log_{index}>\t{played.stop_reason}, reward: {played.episode_return}\n")

    with InlinePool(lambda _: GymFromEnv(env_factory)) as pool:
        played = run_episodes(episodes, pool=pool, engine=engine, on_finish=finished)
    return [RolloutState.of(trajectory) for trajectory in played]


def _task(seed: str) -> Task:
    return Task(_ENV, derive_seed("trl-env", seed) % 2**31, {"seed": seed})


# ---------------------------------------------------------------------------------------------------------------------
# Rollouts of a trainer
# ---------------------------------------------------------------------------------------------------------------------


@dataclass
class TransformerDecoder:
    """Decoder for ``rollout`` that samples one response at a time from a Transformers model.

    Random numbers come from torch's global generator, as in trl-env: ``torch.manual_seed`` makes them repeatable.
    """

    model: Any
    temperature: float
    eos_token_set: set[int]
    max_completion_length: int
    """Maximum tokens of a turn."""

    def generate(self, input_ids: TokenIds) -> tuple[TokenIds, Logprobs]:
        """Generate one response; return its ids and logprobs."""
        import torch

        from gym_trl.engines.transformers import TransformersEngine

        ends = sorted(self.eos_token_set)
        sampling = {"temperature": self.temperature}
        # One request needs no padding, so any id serves.
        engine = TransformersEngine(self.model, pad_id=ends[0] if ends else 0, eos_ids=ends, sampling=sampling)
        seed = int(torch.randint(2**31, ()))
        [answer] = sample_all(engine, [Request("answer", list(input_ids), self.max_completion_length, seed)])
        return answer.ids, answer.logprobs


TransformerRolloutDecoder = TransformerDecoder
"""Name of ``TransformerDecoder`` up to trl-env 0.1.19."""


@dataclass
class TransformerDecoderFactory:
    """Sampling options for training; the trainer's own engine samples, including vLLM if the trainer uses it."""

    temperature: float
    eos_token_set: set[int]
    max_completion_length: int
    """Maximum tokens of a turn."""

    def check(self, trainer: Any) -> None:
        """Accept any trainer."""

    def make_decoder(self, trainer: Any) -> TransformerDecoder:
        """Return a decoder of the trainer's model for ``rollout``; training does not need it."""
        return TransformerDecoder(trainer.model, self.temperature, self.eos_token_set, self.max_completion_length)


@dataclass
class VLLMDecoderFactory:
    """Sampling options for the trainer's own vLLM; trl-env would start a second one.

    Raises:
        ConfigError: At the first rollout: the trainer has no vLLM, or its vLLM has other settings.
    """

    temperature: float
    eos_token_set: set[int]
    max_completion_length: int
    """Maximum tokens of a turn."""
    gpu_memory_utilization: float | None = None
    enable_sleep_mode: bool | None = None

    def check(self, trainer: Any) -> None:
        """Check that the trainer's vLLM has the requested settings."""
        if not trainer.use_vllm:
            raise ConfigError(
                "VLLMDecoderFactory needs the trainer's vLLM: set GRPOConfig(use_vllm=True, vllm_mode='colocate'); a "
                "second engine beside the trainer would never see its weights"
            )
        for name, wanted in (
            ("vllm_gpu_memory_utilization", self.gpu_memory_utilization),
            ("vllm_enable_sleep_mode", self.enable_sleep_mode),
        ):
            if wanted is not None and wanted != (has := getattr(trainer.args, name)):
                raise ConfigError(f"VLLMDecoderFactory asks for {wanted}, the trainer has GRPOConfig({name}={has})")


_DecoderMaker: TypeAlias = Callable[[Any], TransformerDecoder]


def make_rollout_func(
    processor: Processor,
    tokenizer: Any,
    decoder_factory: TransformerDecoderFactory | VLLMDecoderFactory | _DecoderMaker | None = None,
    env_factory: EnvFactory | None = None,
    system_prompt: str = "",
    max_conversation_length: int | None = None,
    *,
    make_decoder: _DecoderMaker | None = None,
    on_rollout: Callable[[grpo.Rollout], None] | None = None,
) -> grpo.RolloutFunc:
    """Return a ``rollout_func`` for ``GRPOTrainer`` that plays each prompt as the seed of an episode.

    Rows are in order, with trl-env's column ``reward`` for ``make_reward_func`` in addition to this library's columns.
    An unscored episode has the reward ``None``, which TRL excludes from its group. All episodes are played
    concurrently.

    Args:
        processor: Processor that marks up text.
        tokenizer: ``TransformerTokenizer``, or a Hugging Face tokenizer.
        decoder_factory: Sampling options: temperature, end tokens and maximum tokens of a turn.
        env_factory: Function that makes environments, which are reused.
        system_prompt: First message.
        max_conversation_length: Maximum tokens of prompt and completion together; the trainer's
            ``max_completion_length`` bounds the completion.
        make_decoder: Replacement of ``decoder_factory`` up to trl-env 0.1.19: a function from the model to a
            ``TransformerRolloutDecoder``, of which only the options are used; the trainer's own engine samples.
        on_rollout: Callback that receives every finished rollout.

    Raises:
        ConfigError: ``env_factory`` is missing, or not exactly one of ``decoder_factory`` and ``make_decoder`` is
            given, or it has another type; a decoder of another type is reported at the first rollout.
    """
    if env_factory is None or (decoder_factory is None) == (make_decoder is None):
        raise ConfigError("make_rollout_func needs an env_factory, and either a decoder_factory or a make_decoder")
    chosen = decoder_factory or make_decoder
    if not callable(chosen) and not isinstance(chosen, TransformerDecoderFactory | VLLMDecoderFactory):
        raise ConfigError(
            "decoder_factory must be a TransformerDecoderFactory or a VLLMDecoderFactory, got "
            f"{type(chosen).__name__}: the trainer's own engine samples, so that its weights are the newest"
        )

    def made(numbers: Any, check: Callable[[Any], None]) -> grpo.RolloutFunc:
        return _trainer_rollout(
            ProcessorChat(processor, tokenizer),
            env_factory,
            system_prompt,
            check=check,
            sampling={"temperature": numbers.temperature, "stop_token_ids": sorted(numbers.eos_token_set)},
            max_tokens_per_turn=numbers.max_completion_length,
            max_context=max_conversation_length,
            on_rollout=on_rollout,
        )

    if isinstance(chosen, TransformerDecoderFactory | VLLMDecoderFactory):
        return made(chosen, chosen.check)
    make = chosen
    play: grpo.RolloutFunc | None = None

    def rollout_func(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        nonlocal play
        if play is None:
            decoder = make(trainer.model)
            if not isinstance(decoder, TransformerDecoder):
                raise ConfigError(
                    f"make_decoder must make a TransformerRolloutDecoder, got {type(decoder).__name__}: the trainer's "
                    "own engine samples, so that its weights are the newest"
                )
            play = made(decoder, lambda trainer: None)
        return play(prompts, trainer)

    return rollout_func


make_rollout_func_mp = make_rollout_func
"""Alias: trl-env starts a process per row, which is unnecessary here because episodes run concurrently."""


def _trainer_rollout(
    chat: ProcessorChat,
    env_factory: EnvFactory,
    system_prompt: str,
    *,
    check: Callable[[Any], None] = lambda trainer: None,
    **options: Any,
) -> grpo.RolloutFunc:
    play = grpo.make_rollout_func(
        lambda _: GymFromEnv(env_factory),
        assign=lambda split, number: _task(str(number)),  # never called: every prompt has a task
        chat=chat,
        **options,
    )

    def rollout_func(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        check(trainer)
        columns = play([_with_task(prompt, system_prompt) for prompt in prompts], trainer)
        return {**columns, "reward": columns["episode_return"]}

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


class RolloutWithLog:
    """trl-env 0.1.8's rollout for a trainer, with the attributes ``rollout_func`` and ``reward_func``.

    The model in training samples with ``model.generation_kwargs``.
    """

    def __init__(
        self,
        model: TransformerModel,
        processor: Processor,
        env_factory: EnvFactory,
        system_prompt: str,
        max_conversation_length: int,
        log: Callable[[str], Any],
        *,
        max_turn_length: int | None = None,
        sampling: Mapping[str, Any] | None = None,
    ) -> None:
        self.count = 0
        self.log = log
        turn = model.max_new_tokens if max_turn_length is None else max_turn_length
        self.rollout_func = _trainer_rollout(
            ProcessorChat(processor, model.tokenizer),
            env_factory,
            system_prompt,
            sampling={**model.sampling, "stop_token_ids": sorted(model.eos_token_ids), **(sampling or {})},
            max_tokens_per_turn=turn,
            max_context=max_conversation_length,
            on_rollout=self._write,
        )
        self.reward_func = make_reward_func()

    def _write(self, played: grpo.Rollout) -> None:
        self.count += 1
        for index, trajectory in enumerate(played.episodes):
            for message in trajectory.messages:
                self.log(f"[experiment_{self.count}] {message.role}_{index}>\t{message.content}\n")
            self.log(f"[experiment_{self.count}] log_{index}>\treward: {trajectory.episode_return}\n")


@dataclass
class TrainConfig:
    """trl-env 0.1.8's configuration of ``train``."""

    mode: str
    """``"prepare"`` measures the peak memory, ``"train"`` trains."""
    output_dir: str
    env_factory: EnvFactory
    system_prompt: str
    processor: Processor
    model: TransformerModel
    data: "LazyDataset | Sequence[Seed]"
    """Seeds of the episodes."""
    per_device_batch_size: int
    num_generations: int
    max_turn_length: int
    max_conversation_length: int
    gradient_accumulation_steps: int
    deepspeed: str | None = None
    generation_kwargs: dict[str, Any] | None = None
    train_config_kwargs: dict[str, Any] | None = None
    """Arguments for ``GRPOConfig``, which override all settings here."""
    push_to_hub: bool = False
    save_every_seconds: float = 3600
    log_every_seconds: float = 0
    logger: Callable[[str], None] | None = None
    callbacks: Iterable[Any] = field(default_factory=tuple)


def train(config: TrainConfig) -> Any:
    """Train with ``config``, resuming from the newest checkpoint in its folder if there is one.

    With ``mode="prepare"`` nothing is trained: two steps with completions of full length measure the memory that a
    training needs (``gym_trl.grpo.prepare``).

    Returns:
        The trainer; with ``mode="prepare"`` a ``PeakMemory``.

    Raises:
        ConfigError: ``mode`` is unknown.
    """
    if config.mode not in ("prepare", "train"):
        raise ConfigError(f"mode must be 'prepare' or 'train', got {config.mode!r}")
    with needs("train", "train"):
        from transformers.trainer_utils import get_last_checkpoint
        from trl import GRPOTrainer

    from gym_trl.grpo.prepare import prepare
    from gym_trl.integrations.lazy_dataset import LazyDataset
    from gym_trl.integrations.timed_callback import timed_callback

    seeds = config.data
    if not isinstance(seeds, LazyDataset):
        seeds = LazyDataset(len(seeds), list(seeds).__getitem__)
    model = config.model
    rollouts = RolloutWithLog(
        model,
        config.processor,
        config.env_factory,
        config.system_prompt,
        config.max_conversation_length,
        config.logger or (lambda line: None),
        max_turn_length=min(config.max_turn_length, model.max_new_tokens),
        sampling=config.generation_kwargs,
    )
    if model.tokenizer.pad_token_id is None:
        model.tokenizer.pad_token_id = model.tokenizer.eos_token_id
    trainer = GRPOTrainer(
        model=model.model,
        processing_class=model.tokenizer,
        args=_grpo_config(config),
        train_dataset=seeds.map(lambda seed: {"prompt": seed}),
        rollout_func=rollouts.rollout_func,
        reward_funcs=rollouts.reward_func,
        callbacks=[timed_callback(config.save_every_seconds, config.log_every_seconds), *config.callbacks],
    )
    if config.mode == "prepare":
        return prepare(trainer)
    trainer.train(resume_from_checkpoint=get_last_checkpoint(config.output_dir))
    return trainer


def _grpo_config(config: TrainConfig) -> Any:
    from importlib.util import find_spec
    from pathlib import Path

    import torch
    from trl import GRPOConfig

    Path(config.output_dir).mkdir(parents=True, exist_ok=True)
    cuda = torch.cuda.is_available()
    sampling = {**config.model.sampling, **(config.generation_kwargs or {})}
    settings = {
        "output_dir": config.output_dir,
        "num_train_epochs": 1,
        "deepspeed": config.deepspeed,
        "per_device_train_batch_size": config.per_device_batch_size,
        "gradient_accumulation_steps": config.gradient_accumulation_steps,
        "num_generations": config.num_generations,
        "max_completion_length": config.max_conversation_length,
        "temperature": sampling.get("temperature", 1.0),  # train with the sampling temperature
        "bf16": cuda,
        "use_cpu": not cuda and not torch.backends.mps.is_available(),
        "gradient_checkpointing": True,
        "eval_strategy": "no",
        "save_strategy": "epoch",
        "logging_strategy": "epoch",
        "push_to_hub": config.push_to_hub,
        "report_to": "tensorboard" if find_spec("tensorboard") else "none",
        **(config.train_config_kwargs or {}),
    }
    return GRPOConfig(**settings)


def __getattr__(name: str) -> Any:
    if name == "LazyDataset":  # lazy, because importing datasets takes a second
        from gym_trl.integrations.lazy_dataset import LazyDataset

        return LazyDataset
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
