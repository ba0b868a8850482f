"""Text that the chat template of a tokenizer writes of messages, before it becomes token ids."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from gym_trl.chat.rendering import Frame, find_tail
from gym_trl.errors import ChatTemplateError
from gym_trl.types import Message

ASKED = Message("user", "\ufdd1")
ANSWERED = Message("assistant", "\ufdd2")
"""First messages of the short conversations from which the text around a later message is taken."""


class TemplateText:
    """Chat template of a tokenizer, or of a processor that has a tokenizer, as a function from messages to text.

    Args:
        owner: The tokenizer or the processor.
        chat_template: A Jinja template, or the name of one of the tokenizer's templates. Default: the owner's.
        appends: Replies must be all that the template adds to a conversation; see ``TemplateChat``.
        options: Passed to every rendering, such as ``enable_thinking=False``.

    Raises:
        ChatTemplateError: There is no template.
    """

    def __init__(self, owner: Any, chat_template: str | None, *, appends: bool, options: Mapping[str, Any]) -> None:
        self.tokenizer = getattr(owner, "tokenizer", owner)
        owners = self.tokenizer, owner
        self.name = _either("name_or_path", *owners) or type(owner).__name__
        own = _either("chat_template", *owners)
        # A copy: trainers may change the template of their tokenizer later.
        self._template = chat_template or (own.get("default") if isinstance(own, dict) else own)
        if not self._template:
            raise ChatTemplateError(
                f"{self.name} has no chat template; set tokenizer.chat_template, pass chat_template=..., "
                "or write the markers by hand with DelimiterChat"
            )
        named = getattr(self.tokenizer, "chat_template", None)
        self.source = str(named.get(self._template, self._template) if isinstance(named, dict) else self._template)
        """The template itself, which may have been given by its name."""
        self.appends, self.options = appends, dict(options)
        self.lists_parts = False
        """The content of a message is a list of its parts, as some vision models' templates expect it."""
        self.thought_field = "reasoning_content"
        """Field of an assistant message from which the template takes a thought."""
        self._frames: dict[str, Frame | None] = {}

    def render(self, *messages: Message, prompt: bool = True, **options: Any) -> str:
        """Return the text of messages, with ``prompt`` up to the point where the model's response begins.

        Raises:
            ChatTemplateError: The template raised an error.
        """
        return self.write([self._fields(message) for message in messages], prompt=prompt, **options)

    def render_all(self, messages: Sequence[Message]) -> str:
        """Return the text of messages up to the point where the model's response begins."""
        return self.render(*messages)

    def write(self, messages: Sequence[Mapping[str, Any]], *, prompt: bool, **options: Any) -> str:
        """Return the text of messages in the template's own form."""
        try:
            rendered = self.tokenizer.apply_chat_template(
                messages,
                **{"chat_template": self._template, **self.options, **options},
                tokenize=False,
                add_generation_prompt=prompt,
            )
        except Exception as error:  # templates are programs and can raise anything
            roles = ", ".join(message["role"] for message in messages)
            raise self.refusal(f"raises {error!r} on {roles}", raises=True) from error
        return str(rendered)

    def content(self, message: Message) -> str | list[dict[str, str]]:
        """Return the content of a message in the template's own form."""
        return [{"type": "text", "text": message.content}] if self.lists_parts else message.content

    def after_answer(self, message: Message) -> str:
        """Return the text between an answer and the next one, with ``message`` between them.

        It is not rendered if the template's text around such a message is known.
        """
        if message.role not in self._frames:
            self._frames[message.role] = self._find_frame(message.role)
        frame = self._frames[message.role]
        framed = frame.around(message.content) if frame else None
        return self.tail(message) if framed is None else framed

    def tail(self, message: Message) -> str:
        """Return the same text from a rendering of three messages."""
        return self.render(ASKED, ANSWERED, message).partition(ANSWERED.content)[2]

    @cached_property
    def prompt(self) -> str:
        """Text after a user message's content, up to the point where the model's response begins."""
        return self.render(ASKED).partition(ASKED.content)[2]

    @property
    def is_jinja(self) -> bool:
        """True if Transformers itself renders the template."""
        if "transformers" not in sys.modules:
            return False
        from transformers import PreTrainedTokenizerBase

        own = getattr(type(self.tokenizer), "apply_chat_template", None)
        return own is PreTrainedTokenizerBase.apply_chat_template

    def refusal(self, why: str, *, raises: bool = False) -> ChatTemplateError:
        """Return the error of a template that cannot be extended turn by turn, because it ``why``."""
        anew = "" if raises or not self.appends else "render it anew at each turn with history=History(template=True), "
        return ChatTemplateError(
            f"{self.name}'s chat template cannot be extended turn by turn: it {why}; "
            f"{anew}pass another with chat_template=..., or define the markers with DelimiterChat"
        )

    def _fields(self, message: Message) -> dict[str, Any]:
        fields: dict[str, Any] = {"role": message.role, "content": self.content(message)}
        if message.reasoning_content:
            fields[self.thought_field] = message.reasoning_content
        return fields

    def _find_frame(self, role: str) -> Frame | None:
        if self.lists_parts or not self.is_jinja:
            return None
        variables = {"tools": None, "documents": None, **self.tokenizer.special_tokens_map, **self.options}
        history = [ASKED.as_dict(), ANSWERED.as_dict()]
        return find_tail(str(self._template), history, role, variables, lambda text: self.tail(Message(role, text)))


def fold_system(messages: Sequence[Message]) -> Sequence[Message]:
    r"""Return messages with the system message in front of the first user message, separated by a blank line.

    >>> fold_system([Message("system", "Be brief."), Message("user", "Hello")])
    [Message(role='user', content='Be brief.\n\nHello')]
    """
    if not messages or messages[0].role != "system":
        return messages
    system, *others = messages
    if not others or others[0].role != "user":
        return [Message("user", system.content), *others]
    return [replace(others[0], content=f"{system.content}\n\n{others[0].content}"), *others[1:]]


def _either(attribute: str, *owners: Any) -> Any:
    """Return the attribute of the first owner for which it is not empty."""
    return next(filter(None, (getattr(owner, attribute, None) for owner in owners)), None)
