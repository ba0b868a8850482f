"""Processors of trl-env as chats, and chat templates as processors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from gym_trl.chat.codec import Codec
from gym_trl.chat.protocol import Chat
from gym_trl.chat.tokenizer_codec import tokenizer_codec
from gym_trl.errors import ChatTemplateError
from gym_trl.types import Answer, Message, TokenIds

Language: TypeAlias = str


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


class ProcessorChat(Chat):
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
        is_huggingface = hasattr(tokenizer, "added_tokens_decoder")
        self._codec = tokenizer_codec(tokenizer) if is_huggingface else Codec(tokenizer.encode, tokenizer.decode)
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
        others = "\n\n".join(message.content for message in messages if message.role != "system")

        def render(texts: Sequence[str]) -> str:
            return self._processor.init_system_input(texts[0]) + self._processor.append_user_input(texts[1])

        return self._codec.write(render, [Message("system", system), Message("user", others)], key="open")

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
        response = self._codec.decode(ids)
        try:
            thinking, answer = self._processor.parse_agent_output(response)
        except Exception:  # of a custom processor: pass the whole text on to the environment
            thinking, answer = "", response.removesuffix(self._end)
        return Answer(thinking.strip(), answer.strip())
