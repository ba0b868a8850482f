"""Processors of trl-env as chats, and chat templates as processors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from gym_trl.chat import Encoder
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

    Every text is encoded once, without the tokenizer's beginning-of-text token in every turn; sampled ids are never
    encoded again; and no message can write a control token. The turns of a custom processor end with
    ``config.end_answer`` if it exists, otherwise with the tokenizer's end-of-sequence token. If a processor raises an
    exception while parsing a response, the whole text is the response.

    Args:
        processor: Processor that marks up text.
        tokenizer: Hugging Face tokenizer.

    Raises:
        ChatTemplateError: Nothing ends the model's turn.
    """

    def __init__(self, processor: Processor, tokenizer: Any) -> None:
        config, tokenizer = getattr(processor, "config", None), getattr(tokenizer, "processing_class", tokenizer)
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
        said = self._processor.append_user_input(self._encoder.inert(others))
        return self._encoder.encode(begun + said, begins=True)

    def reply(self, text: str, *, closed: bool) -> TokenIds:
        """Return the ids between two sampled turns."""
        before = self._after if closed else self._end + self._after
        return self._encoder.encode(before + self._processor.append_user_input(self._encoder.inert(text)))

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
