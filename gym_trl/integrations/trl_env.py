"""trl-env's interface, under its own names: environments, processors and rollouts, run by this library's own loop.

trl-env's modules are one module here: ``from trl_env.rollout import make_rollout_func`` becomes
``from gym_trl.integrations.trl_env import make_rollout_func``. ``reset`` and ``step`` return an environment and a
delta, or, as before 0.1.10, a delta alone.
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from gym_trl.encoder import Encoder
from gym_trl.engines.protocol import Engine
from gym_trl.envs.external.adapter import Adapter
from gym_trl.envs.text_game import Step
from gym_trl.errors import ChatTemplateError
from gym_trl.executors.inline import InlinePool
from gym_trl.grpo.dataset import read_prompt
from gym_trl.grpo.rollout_func import RolloutFunc
from gym_trl.rollout import Limits, rollout, run
from gym_trl.seeding import derive_seed
from gym_trl.types import Answer, Logprobs, Message, Task, TokenIds

Action: TypeAlias = str
Delta: TypeAlias = str
Seed: TypeAlias = str
Language: TypeAlias = str

# ---------------------------------------------------------------------------------------------------------------------
# Environments
# ---------------------------------------------------------------------------------------------------------------------


class Env(Protocol):
    """Protocol of trl-env's environments, with text observations, text actions and a cumulative reward."""

    reward: float
    """Sum of the rewards of the episode so far."""
    alive: bool

    def reset(self, seed: Seed) -> "Delta | tuple[Env, Delta]":
        """Start an episode; return the first text, or the environment and the text if environments are immutable."""

    def step(self, action: Action) -> "Delta | tuple[Env, Delta]":
        """Step with an action; return like ``reset``."""


EnvFactory: TypeAlias = Callable[[], Any]
"""Function that makes an ``Env``."""


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

    def __init__(self, make: EnvFactory) -> None:
        super().__init__()
        self.make = make

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode with ``options["seed"]``."""
        others = dict(options or {})
        self._seed = others.pop("seed", None)
        return super().reset(seed=seed, options=others)

    def begin(self, seed: int) -> tuple[str, dict[str, Any]]:
        """Reset the environment, which is made once."""
        self._game = self._game or self.make()
        self._paid = 0.0
        return self._delta(self._game.reset(str(seed if self._seed is None else self._seed))), {}

    def play(self, action: str) -> Step:
        """Step the environment."""
        delta = self._delta(self._game.step(action))
        before, self._paid = self._paid, float(self._game.reward or 0.0)
        return Step(delta, done=not self._game.alive, success=None, reward=self._paid - before)

    def _delta(self, result: Any) -> str:
        if isinstance(result, tuple):
            self._game, result = result
        return str(result)


# ---------------------------------------------------------------------------------------------------------------------
# Processors
# ---------------------------------------------------------------------------------------------------------------------


class Processor(Protocol):
    """Protocol of text mark-up for a model, without a chat template."""

    def init_system_input(self, prompt: Language) -> str:
        """Return the beginning of a conversation."""

    def append_user_input(self, prompt: Language) -> str:
        """Return the environment's text and the beginning of the model's turn."""

    def parse_agent_output(self, completion: Language) -> tuple[str, str]:
        """Return the model's thinking and its response."""


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

    >>> qwen3_instruct_processor.append_user_input("Guess.")
    '<|im_start|>user\nGuess.<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n'
    >>> qwen3_instruct_processor.parse_agent_output("Half of 8.</think>4<|im_end|>")
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
        response = completion.partition(self.config.end_answer)[0]
        thinking, _, answer = response.rpartition(self.config.begin_answer)
        return thinking, answer


qwen3_instruct_processor = Type1Processor(
    Type1ProcessorConfig(
        prefix_system="<|im_start|>system\n",
        suffix_system="<|im_end|>\n",
        prefix_user="<|im_start|>user\n",
        suffix_user="<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        begin_answer="</think>",
        end_answer="<|im_end|>",
        after_answer="\n",
    )
)
"""Marks of Qwen3, which does not think."""


class ProcessorChat:
    """Chat that uses a ``Processor``'s mark-up.

    >>> from gym_trl.testing import tiny_tokenizer
    >>> marks = Type1ProcessorConfig("<|system|>", "", "<|user|>", "<|assistant|>", "</think>", "<|end|>")
    >>> tokenizer = tiny_tokenizer()
    >>> chat = ProcessorChat(Type1Processor(marks), tokenizer)
    >>> tokenizer.decode(chat.open([Message("system", "Play."), Message("user", "1 to 8?")]))
    '<|system|>Play.<|user|>1 to 8?<|assistant|>'
    >>> tokenizer.decode(chat.reply("Higher.", closed=False))
    '<|end|><|user|>Higher.<|assistant|>'

    Every text is encoded once, without the tokenizer's beginning-of-text token in every turn, and no message can write
    a control token. The turns of a custom processor end with ``config.end_answer`` if it exists, otherwise with the
    tokenizer's end-of-sequence token. If it raises while parsing a response, the whole text is the response.

    Args:
        processor: Processor that marks up text.
        tokenizer: Hugging Face tokenizer.

    Raises:
        ChatTemplateError: Nothing ends the model's turn.
    """

    def __init__(self, processor: Processor, tokenizer: Any) -> None:
        tokenizer, config = getattr(tokenizer, "processing_class", tokenizer), getattr(processor, "config", None)
        self._processor, self._encoder = processor, Encoder(tokenizer)
        self._end: str = getattr(config, "end_answer", None) or tokenizer.eos_token or ""
        self._after: str = getattr(config, "after_answer", "")
        if not self._end:
            raise ChatTemplateError(
                f"nothing ends the turns of {type(processor).__name__}: give it a config with end_answer, or the "
                "tokenizer an eos_token"
            )
        end_ids = self._encoder.encode(self._end)
        self.stop_ids: frozenset[int] = frozenset(end_ids if len(end_ids) == 1 else ())
        self.stop_strings: tuple[str, ...] = () if self.stop_ids else (self._end,)

    def open(self, messages: Sequence[Message]) -> TokenIds:
        """Return the ids that start an episode, up to the beginning of the model's turn."""
        system = "\n\n".join(message.content for message in messages if message.role == "system")
        others = "\n\n".join(message.content for message in messages if message.role != "system")
        begun = self._processor.init_system_input(self._encoder.inert(system))
        return self._encoder.encode(begun + self._shown(others), begins=True)

    def reply(self, text: str, *, closed: bool) -> TokenIds:
        """Return the ids between two sampled turns."""
        return self._encoder.encode(("" if closed else self._end) + self._after + self._shown(text))

    def closes(self, ids: Sequence[int]) -> bool:
        """Return True if these sampled ids end the model's turn."""
        if self.stop_ids:
            return bool(ids) and ids[-1] in self.stop_ids
        return self._encoder.decode(ids[-len(self._end.encode()) :]).endswith(self._end)

    def text(self, ids: TokenIds) -> Answer:
        """Return the model's thinking and its response."""
        response = self._encoder.decode(ids)
        try:
            thinking, answer = self._processor.parse_agent_output(response)
        except Exception:  # of a custom processor: pass the whole text on to the environment
            thinking, answer = "", response.removesuffix(self._end)
        return Answer(thinking.strip(), answer.strip())

    def _shown(self, text: str) -> str:
        return self._processor.append_user_input(self._encoder.inert(text))


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


class TransformerModel:
    """Transformers model with its tokenizer, for ``batch_rollout``.

    Args:
        tokenizer: The model's tokenizer.
        model: Decoder-only model.
        generation_kwargs: Options of ``GenerationConfig``; ``max_new_tokens`` (default 256) limits a turn.
    """

    def __init__(self, tokenizer: Any, model: Any, generation_kwargs: Mapping[str, Any] | None = None) -> None:
        self.tokenizer, self.model = tokenizer, model
        self.sampling = dict(generation_kwargs or {})
        self.max_new_tokens: int = self.sampling.pop("max_new_tokens", 256)

    def engine(self, chat: ProcessorChat) -> Engine:
        """Return an engine that samples from the model, for as long as its weights stay as they are."""
        from gym_trl.engines.transformers import TransformersEngine

        pad, eos = self.tokenizer.pad_token_id, self.tokenizer.eos_token_id
        return TransformersEngine(
            self.model,
            pad_id=eos if pad is None else pad,
            eos_ids={eos, *chat.stop_ids},
            sampling=self.sampling,
            stop_strings=chat.stop_strings,
            decode=self.tokenizer.decode,
        )


def batch_rollout(
    model: TransformerModel,
    processor: Processor,
    env_factory: EnvFactory,
    system_prompt: str,
    max_conversation_length: int,
    seed_list: Sequence[Seed],
) -> list[RolloutState]:
    """Play one episode for each seed, and return their tokens in the order of the seeds.

    ::

        states = batch_rollout(TransformerModel(tokenizer, model), qwen3_processor, GuessEnv, "Be brief.", 512, ["36"])
        states[0].reward

    Finished episodes generate nothing more, and episodes do not wait for each other. If an episode fails, its
    ``reward`` is ``None``, its ``error`` holds the cause, and the others continue. A conversation ends with a response
    of the model and never exceeds ``max_conversation_length`` tokens.

    Args:
        model: Model with its tokenizer; a subclass may have another ``engine``.
        processor: Processor that marks up text.
        env_factory: Function that makes environments, which are reused.
        system_prompt: First message.
        max_conversation_length: Maximum tokens of prompt and completion together.
        seed_list: One seed per episode.
    """
    chat = ProcessorChat(processor, model.tokenizer)
    with InlinePool(lambda _: GymFromEnv(env_factory)) as pool:
        played = run(
            rollout(
                [_task(seed) for seed in seed_list],
                pool=pool,
                engine=model.engine(chat),
                chat=chat,
                seeds=[derive_seed("trl-env", seed, index) for index, seed in enumerate(seed_list)],
                preambles=[[Message("system", system_prompt)] for _ in seed_list],
                limits=Limits(model.max_new_tokens, None, max_conversation_length),
            )
        )
    rows = [(episode.row, episode) for [episode] in played]
    return [
        RolloutState(len(row.prompt_ids), row.ids, row.mask, row.logprobs, one.episode_return, one.error)
        for row, one in rows
    ]


def _task(seed: Seed) -> Task:
    return Task("trl-env", derive_seed("trl-env", seed) % 2**31, {"seed": seed})


# ---------------------------------------------------------------------------------------------------------------------
# Training
# ---------------------------------------------------------------------------------------------------------------------


@dataclass
class TransformerTokenizer:
    """trl-env's tokenizer, without the special tokens that trl-env adds to every turn of Llama, Gemma and DeepSeek."""

    processing_class: Any

    def encode(self, text: str) -> TokenIds:
        """Return the ids of ``text``, without special tokens."""
        return list(self.processing_class.encode(text, add_special_tokens=False))

    def decode(self, token_list: Sequence[int]) -> str:
        """Return the text of ids, including control tokens."""
        return str(self.processing_class.decode(token_list))


def make_rollout_func(
    processor: Processor,
    tokenizer: Any,
    env_factory: EnvFactory,
    system_prompt: str = "",
    max_conversation_length: int | None = None,
    *,
    max_tokens_per_turn: int | None = None,
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
    """
    pool = InlinePool(lambda _: GymFromEnv(env_factory))
    play = RolloutFunc(
        pool,
        chat=ProcessorChat(processor, tokenizer),
        max_tokens_per_turn=max_tokens_per_turn,
        max_context=max_conversation_length,
    )
    weakref.finalize(play, pool.close)

    def with_task(prompt: Any) -> list[dict[str, str | None]]:
        messages, _ = read_prompt(prompt)
        seed = messages[-1].content if messages else ""
        return [
            {"role": "system", "content": system_prompt, "task": None},
            {"role": "user", "content": seed, "task": _task(seed).to_json()},
        ]

    def rollout_func(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        columns = play([with_task(prompt) for prompt in prompts], trainer)
        return {**columns, "reward": [episode.episode_return for episode in columns["episode"]]}

    return rollout_func


def make_reward_func() -> Callable[..., list[float | None]]:
    """Return a reward function that returns the environment's own reward.

    >>> make_reward_func()(prompts=["7"], completions=["4"], reward=[0.5])
    [0.5]
    """

    def reward_func(*, reward: Sequence[float | None], **columns: Any) -> list[float | None]:
        return list(reward)

    return reward_func
