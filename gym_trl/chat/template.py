"""Conversations as token ids that are appended to and never re-rendered.

A trainer must be given the ids that were sampled, and text that is decoded and encoded again has other ids. Therefore
only the beginning of a conversation is rendered as a whole (``open``), and afterwards each observation becomes ids by
itself (``reply``): what the template writes between an answer and the next one, found in a rendering of three short
messages and put after the sampled ids. That this is what the template would write of the whole conversation does not
follow: templates move system messages, drop earlier thoughts, count turns. So it is established before the first
conversation (``template_facts``), and checked again as conversations become longer than any so far (``following``); a
template that writes something else is refused, or needs ``History(template=True)``. Each text is encoded on its own
where its ids would otherwise hold control tokens, which are for the template and the model alone.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from gym_trl.chat.following import Following
from gym_trl.chat.protocol import Chat
from gym_trl.chat.template_facts import TemplateChecks, up_to
from gym_trl.chat.template_text import TemplateText, fold_system
from gym_trl.chat.tokenizer_codec import tokenizer_codec
from gym_trl.errors import ChatTemplateError
from gym_trl.types import Answer, Message, TokenIds

_OBSERVED = "\ufdd3"
_MOST_OPENINGS = 16


class TemplateChat(Chat):
    """Chat for any chat template of a Hugging Face tokenizer, or of a processor that has a tokenizer.

    >>> class Letters:  # stands in for AutoTokenizer.from_pretrained(...)
    ...     name_or_path, chat_template, all_special_tokens, added_tokens_decoder = "letters", "chat", ["$"], {}
    ...     def apply_chat_template(self, messages, *, add_generation_prompt, **options):
    ...         said = "".join(f"{message['role']}: {message['content']}$" for message in messages)
    ...         return said + "assistant: " if add_generation_prompt else said
    ...     def encode(self, text, **options):
    ...         return [ord(letter) for letter in text]
    ...     def decode(self, ids, **options):
    ...         return "".join(chr(id) for id in ids)
    >>> chat, letters = TemplateChat(Letters()), Letters()
    >>> letters.decode(chat.open([Message("user", "2 + 2?")]))
    'user: 2 + 2?$assistant: '
    >>> chat.text(letters.encode("4$"))
    Answer(thinking='', text='4')
    >>> letters.decode(chat.reply("Right.", closed=chat.closes(letters.encode("4$"))))
    'user: Right.$assistant: '
    >>> letters.decode(chat.reply("Too long.", closed=chat.closes(letters.encode("fou"))))
    '$user: Too long.$assistant: '
    >>> letters.decode(chat.say("4"))
    '4$'

    A reply is found by rendering three short messages and taking the text after the second, so its cost does not depend
    on the episode's length, and templates that rewrite earlier messages are supported. If the model's turn did not end
    with the template's end-of-turn token, because ``max_tokens`` was reached or another end was sampled, the reply
    begins with that token. If a template rejects system messages, they are put in front of the first user message.

    Only the template and the model can write control tokens: ``<|im_end|>`` in an observation is encoded as the ids of
    its characters, not as the id that ends a turn. Control tokens are the tokenizer's special tokens, and other added
    tokens that occur in the template, such as ``<think>`` and ``<tool_response>`` in Qwen3's, with their closing
    tokens, unless they are plain words. The unknown token is not a control token, unless it also begins or ends
    sequences or has another name, as SmolLM2's ``<|endoftext|>``. Because normalizers and templates can change texts,
    the ids of each message are checked: if they contain other control tokens than those of a harmless text, the text is
    encoded separately from the template's text around it. In assistant messages of the prompt, which are examples of
    the model's output, added tokens that are not special are kept.

    Args:
        tokenizer: Renders and encodes. Its ``chat_template`` is the default template.
        chat_template: A Jinja template, or the name of one of the tokenizer's templates.
        appends: Replies must be all that the template adds to a conversation. False where they are compared with a
            rendering of the whole conversation (``History(template=True)``), for templates that change earlier text.
        end_ids: Ids at which the model ends a response, beside the tokenizer's ``eos_token``: those of its generation
            config.
        chat_template_kwargs: Passed to every rendering, such as ``enable_thinking=False``.

    Raises:
        ChatTemplateError: there is no template, or it cannot be extended turn by turn.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        chat_template: str | None = None,
        appends: bool = True,
        end_ids: Collection[int] = (),
        **chat_template_kwargs: Any,
    ) -> None:
        self._text = text = TemplateText(tokenizer, chat_template, appends=appends, options=chat_template_kwargs)
        self._codec = codec = tokenizer_codec(text.tokenizer, written=text.source)
        self._checks = TemplateChecks(text, codec, end_ids)
        self._facts = self._checks.facts
        self._following = Following(text, self._checks, codec.plain)
        self._openings: dict[tuple[Message, ...], TokenIds] = {}
        self._sampled_texts: dict[tuple[str, str], str] = {}
        own, _, marks = self._facts.ends
        self.stop_ids = frozenset([codec.id(own)] if marks else [])
        self._closers = {codec.id(mark): mark for mark in [*marks, own] if mark}

    def open(self, messages: Sequence[Message]) -> TokenIds:
        """Return the ids that start an episode, up to and including the generation prompt."""
        key = tuple(messages)
        ids = self._openings.get(key)  # the members of a group begin alike
        if ids is None:
            ids = self._written(key)
            if "strftime_now" not in self._text.source:
                if len(self._openings) >= _MOST_OPENINGS:
                    self._openings.clear()
                self._openings[key] = ids
        return ids.copy()

    def _written(self, messages: Sequence[Message]) -> TokenIds:
        spoken = fold_system(messages) if self._facts.folds_system else messages
        roles = tuple(message.role for message in spoken)
        thoughtful = [index for index, message in enumerate(spoken) if message.reasoning_content]

        def render(texts: Sequence[str]) -> str:
            thoughts = dict(zip(thoughtful, texts[len(spoken) :], strict=True))
            return self._text.render(
                *(
                    replace(message, content=texts[index], reasoning_content=thoughts.get(index, ""))
                    for index, message in enumerate(spoken)
                )
            )

        return self._codec.write(
            render,
            [*spoken, *(Message("assistant", spoken[index].reasoning_content) for index in thoughtful)],
            # The template's text may depend on the content of an assistant message, for example on thinking in it.
            key=None if "assistant" in roles else (roles,),
        )

    def reply(self, text: str, *, role: str = "user", closed: bool | str) -> TokenIds:
        """Return the ids between two sampled turns: the end of the first unless ``closed``, the message, the prompt.

        Of the text that the template writes between an answer and a message, the part up to and including ``closed``
        is left out, if the token is in it; ``True`` is the template's own end of turn.

        Raises:
            ChatTemplateError: the template does not support a message of this ``role`` after an assistant message.
        """
        self._checks.check(role)

        def render(texts: Sequence[str]) -> str:
            return self._text.after_answer(Message(role, texts[0])).removeprefix(dropped)

        end = self._facts.ends.marks[-1:] if closed is True else [closed or ""]
        dropped = self._sampled(role, *end)
        return self._codec.write(render, [Message(role, text)], after=self._facts.ends.own, key=(role, closed))

    def _sampled(self, role: str, end: str = "") -> str:
        """Return the template's text between an answer and a message that a response has if it ends with ``end``."""
        if (role, end) not in self._sampled_texts:
            # In some templates (GLM) the head of the next user message ends the turn; another role has its own head.
            tail = self._text.tail(Message(role, _OBSERVED))
            self._sampled_texts[role, end] = up_to(end, tail.partition(_OBSERVED)[0])
        return self._sampled_texts[role, end]

    def closes(self, ids: Sequence[int]) -> str:
        """Return the token with which these sampled ids end the turn as the template does; empty if they do not."""
        return self._closers.get(ids[-1], "") if ids else ""

    def text(self, ids: TokenIds) -> Answer:
        """Return the text of a response without control tokens, split into thinking and answer."""
        thinking, answer = self._facts.thoughts.split(self._codec.decode(ids[:-1] if self.closes(ids) else ids))
        return Answer(self._codec.strip(thinking), self._codec.strip(answer))

    def renders(self, messages: Sequence[Message], ids: TokenIds) -> bool:
        """Return whether the template renders a conversation to the text of ``ids``."""
        text, rendered = self.decode(ids), self._following.rendered(messages)
        return rendered == text or self.decode(self.encode(rendered)) == text

    def encode(self, text: str) -> TokenIds:
        """Return the ids of a text that the template wrote."""
        return self._codec.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, control tokens included."""
        return self._codec.decode(ids)

    def say(self, text: str) -> TokenIds:
        """Return the ids of a whole response with this text and without thinking, as a model would sample it.

        They are what the template writes for an answer after the generation prompt, up to the token that ends the
        model's turn. If the prompt has opened thinking, the response begins by ending it.

        Raises:
            ChatTemplateError: nothing ends the model's turn, or the ids do not decode to the text: it contains control
                tokens, or characters that the tokenizer does not have.
        """
        thoughts, ends = self._facts.thoughts, self._facts.ends
        if not ends.own:
            raise ChatTemplateError(f"{self._text.name} has no eos_token, and no token that ends the model's turn")
        ids = self._codec.write(
            lambda texts: f"{thoughts.before}{texts[0]}{ends.closing}",
            [Message("user", text)],
            after=self._text.prompt,
            key="say",
        )
        if (answer := self.text(ids).text) != text.strip():
            raise ChatTemplateError(
                f"{self._text.name} cannot write the response {text!r:.80}: its tokens are read as {answer!r:.80}"
            )
        return ids

    def follow(self, messages: Sequence[Message], answers: int) -> bool:
        """Return whether the template renders a conversation to the text that ``open`` and ``reply`` wrote for it.

        Raises:
            ChatTemplateError: The texts differ whatever is said; the message names the difference and the number of
                answers.
        """
        return self._following.follow(messages, answers)
