"""Conversations as token ids that are appended to and never re-rendered."""

import re
import sys
import time
import warnings
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from itertools import takewhile
from typing import Any, NamedTuple

from gym_trl.chat.codec import either, encodable, tokenizer_codec
from gym_trl.chat.continuation import FIRST_PLACE, PLACE, Continuation, DiffersError
from gym_trl.chat.images import ImageProcessor, image_mark
from gym_trl.chat.rendering import Frame, find_frame
from gym_trl.chat.thoughts import Thoughts, find_thoughts
from gym_trl.errors import ChatTemplateError
from gym_trl.types import Answer, Message, PngImage, TokenIds

_ASKED = Message("user", "\ufdd1")
_ANSWERED = Message("assistant", "\ufdd2")
_TOLD = "\ufdd3"


_SAID = [Message("user", "Say it\ufdd1"), Message("assistant", "It."), Message("user", "Again.")]

# Numbers of answers for which a template is checked: fewer than _AT_FIRST before the first conversation, doubled as
# long as one check takes less than _SECONDS; up to _EACH_LENGTH every number when a conversation reaches it, then
# ahead.
_AT_FIRST, _EACH_LENGTH, _SECONDS = 7, 32, 0.005
# Up to _NUMBERS numbers in a template are tried as thresholds, up to _NEAR answers.
_NUMBERS, _NEAR = 8, 300
# Openings with different system messages are checked separately as long as fewer than this many are known.
_KINDS = 16
# Credit for comparing whole conversations, in messages: this much at first, and this much more for each turn.
_FIRST_CREDIT, _CREDIT = 24.0, 0.05
_MOST_FACTS = 16
_MOST_OPENINGS = 16
_FACTS: "dict[Hashable, _Facts]" = {}


class _Facts(NamedTuple):
    """Properties of a template, determined by rendering short conversations."""

    parts: bool
    folds_system: bool
    roles: set[str]
    frames: dict[str, Frame | None]
    continuations: dict[tuple[str, ...], Continuation]
    ends: "_Ends"
    thoughts: Thoughts


class _Ends(NamedTuple):
    """Tokens that end the model's turn."""

    own: str
    """Token that ends a response; empty if neither the template nor the tokenizer has one."""
    closing: str
    """Text after an answer up to and including ``own``."""
    marks: list[str]
    """Control tokens after an answer, as far as they end it: what a response may end with instead of the template."""


class TemplateChat:
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

    stop_strings: tuple[str, ...] = ()

    def __init__(
        self,
        tokenizer: Any,
        *,
        chat_template: str | None = None,
        appends: bool = True,
        end_ids: Collection[int] = (),
        **chat_template_kwargs: Any,
    ) -> None:
        self._appends, self._end_ids = appends, sorted({*end_ids} - {None})
        self.images = ImageProcessor(tokenizer) if getattr(tokenizer, "image_processor", None) is not None else None
        """Part of the multimodal processor that images need; ``None`` for a tokenizer."""
        self._tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
        owners = self._tokenizer, tokenizer
        self._name = either("name_or_path", *owners) or type(tokenizer).__name__
        # A multimodal processor's own template is the one that writes images.
        own = either("chat_template", *(owners if self.images is None else reversed(owners)))
        # A copy: trainers may change the template of their tokenizer later.
        self._template = chat_template or (own.get("default") if isinstance(own, dict) else own)
        if not self._template:
            raise ChatTemplateError(
                f"{self._name} has no chat template; set tokenizer.chat_template, pass chat_template=..., "
                "or write the markers by hand with DelimiterChat"
            )
        self._kwargs = chat_template_kwargs
        self._source = _source(self._tokenizer, self._template)
        self._codec = tokenizer_codec(self._tokenizer, written=self._source)
        self._openings: dict[tuple[Message, ...], TokenIds] = {}
        self._credit, self._warned = _FIRST_CREDIT, False
        facts = self._facts()
        self._parts, self._folds_system = facts.parts, facts.folds_system
        self._roles, self._frames, self._continuations = facts.roles, dict(facts.frames), facts.continuations
        self._ends, self._thoughts = facts.ends, facts.thoughts
        self._dropped: dict[tuple[str, str], str] = {}
        self.stop_ids = frozenset(self._codec.id(mark) for mark in [self._ends.own] if self._ends.marks)
        self._closers = {self._codec.id(mark): mark for mark in [*self._ends.marks, self._ends.own] if mark}

    def open(self, messages: Sequence[Message]) -> TokenIds:
        """Return the ids that start an episode, up to and including the generation prompt."""
        key = tuple(messages)
        ids = self._openings.get(key)  # the members of a group begin alike
        if ids is None:
            ids = self._written(key)
            if "strftime_now" not in self._source:
                if len(self._openings) >= _MOST_OPENINGS:
                    self._openings.clear()
                self._openings[key] = ids
        return ids.copy()

    def _written(self, messages: Sequence[Message]) -> TokenIds:
        spoken = _fold_system(messages) if self._folds_system else messages
        roles = tuple(message.role for message in spoken)
        images = [message.images for message in spoken]
        thoughtful = [index for index, message in enumerate(spoken) if message.reasoning_content]

        def render(texts: Sequence[str]) -> str:
            thoughts = dict(zip(thoughtful, texts[len(spoken) :], strict=True))
            return self._render(
                *(
                    replace(message, content=texts[index], reasoning_content=thoughts.get(index, ""))
                    for index, message in enumerate(spoken)
                )
            )

        ids = self._codec.write(
            render,
            [*spoken, *(Message("assistant", spoken[index].reasoning_content) for index in thoughtful)],
            # The template's text may depend on the content of an assistant message, for example on thinking in it.
            key=None if "assistant" in roles else (roles, tuple(map(len, images))),
        )
        return self._with_images(ids, [image for shown in images for image in shown])

    def reply(
        self, text: str, *, role: str = "user", closed: bool | str, images: tuple[PngImage, ...] = ()
    ) -> TokenIds:
        """Return the ids between two sampled turns: the end of the first unless ``closed``, the message, the prompt.

        Of the text that the template writes between an answer and a message, the part up to and including ``closed``
        is left out, if the token is in it; ``True`` is the template's own end of turn.

        Raises:
            ChatTemplateError: the template does not support a message of this ``role`` after an assistant message, or
                none with images.
        """
        self._check(role)

        def render(texts: Sequence[str]) -> str:
            return self._framed(Message(role, texts[0], images)).removeprefix(dropped)

        end = self._ends.marks[-1:] if closed is True else [closed or ""]
        dropped = self._sampled(role, *end)
        key = (role, closed, len(images))
        ids = self._codec.write(render, [Message(role, text)], after=self._ends.own, key=key)
        return self._with_images(ids, images)

    def _sampled(self, role: str, end: str = "") -> str:
        """Return the template's text between an answer and a message that a response has if it ends with ``end``."""
        if (role, end) not in self._dropped:
            # In some templates (GLM) the head of the next user message ends the turn; another role has its own head.
            self._dropped[role, end] = _up_to(end, self._tail(Message(role, _TOLD)).partition(_TOLD)[0])
        return self._dropped[role, end]

    @property
    def takes_images(self) -> bool:
        """True if messages may have images: the tokenizer was given as a part of a multimodal processor."""
        return self.images is not None

    def _with_images(self, ids: TokenIds, images: Sequence[PngImage]) -> TokenIds:
        """Return ids with those of each image in place of the template's mark for it."""
        if not images:
            return ids
        assert self.images is not None
        mark = self._image_mark
        mark_id, left = self._codec.id(mark), iter(images)
        if (count := ids.count(mark_id)) != len(images):
            raise ChatTemplateError(f"{self._name}'s chat template writes {count} places for {len(images)} images")
        return [part for id_ in ids for part in (self.images.ids(next(left), mark) if id_ == mark_id else (id_,))]

    @cached_property
    def _image_mark(self) -> str:
        """Token that the template writes in place of an image, after checking that it appends such messages."""
        assert self.images is not None
        return image_mark(self._render_all, self.images.marks)

    def closes(self, ids: Sequence[int]) -> str:
        """Return the token with which these sampled ids end the turn as the template does; empty if they do not."""
        return self._closers.get(ids[-1], "") if ids else ""

    def text(self, ids: TokenIds) -> Answer:
        """Return the text of a response without control tokens, split into thinking and answer."""
        thinking, answer = self._thoughts.split(self._codec.decode(ids[:-1] if self.closes(ids) else ids))
        return Answer(self._codec.strip(thinking), self._codec.strip(answer))

    def rendered(self, messages: Sequence[Message]) -> str:
        """Return the template's text of a conversation, up to the point where the next response begins.

        Texts that the template rejects stand where other texts would, as in ``open``.
        """
        spoken = [
            replace(message, content=encodable(message.content), reasoning_content=encodable(message.reasoning_content))
            for message in (_fold_system(messages) if self._folds_system else messages)
        ]
        try:
            return self._render(*spoken)
        except ChatTemplateError:
            places = [replace(message, content=chr(FIRST_PLACE + index)) for index, message in enumerate(spoken)]
            return PLACE.sub(lambda found: spoken[ord(found[1]) - FIRST_PLACE].content, self._render(*places))

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
        before, after = self._spoken
        ids = self._codec.write(
            lambda texts: f"{before}{texts[0]}{after}", [Message("user", text)], after=self._prompt, key="say"
        )
        if (read := self.text(ids).text) != text.strip():
            raise ChatTemplateError(
                f"{self._name} cannot write the response {text!r:.80}: its tokens are read as {read!r:.80}"
            )
        return ids

    @cached_property
    def _prompt(self) -> str:
        """Text after a user message's content, up to the point where the model's response begins."""
        return self._render(_ASKED).partition(_ASKED.content)[2]

    @cached_property
    def _spoken(self) -> tuple[str, str]:
        """Text before and after the answer in a response."""
        if not self._ends.own:
            raise ChatTemplateError(f"{self._name} has neither a token that ends the model's turn nor an eos_token")
        return self._thoughts.before, self._ends.closing

    def follow(self, messages: Sequence[Message], answers: int) -> bool:
        """Return whether the template renders a conversation to the text that ``open`` and ``reply`` wrote for it.

        Each number of answers is checked once, with placeholder texts. The actual texts are checked for the first
        conversations, and later as often as the cost stays small; the first difference is a warning.

        Args:
            messages: The whole conversation, which ends with a user message.
            answers: Number of the model's answers in it, each followed by a user message.

        Raises:
            ChatTemplateError: the texts differ whatever is said; the message names the difference and the number of
                answers.
        """
        self._credit += _CREDIT
        spoken = _fold_system(messages) if self._folds_system else messages
        first, begun = spoken[0], len(spoken) - 2 * answers
        # Few templates depend on the text of a system message, and every row of a dataset may have its own.
        system = first.content if first.role == "system" and len(self._continuations) < _KINDS else ""
        kind = (system, first.role, *[message.role for message in spoken[1:begun]]) if begun > 1 else ("", first.role)
        try:
            known = self._continuations.get(kind)
            if known is None:
                known = self._continuations[kind] = self._continuation(spoken[:begun], deep=False)
            if known.checked < answers <= _EACH_LENGTH:
                known.check(self._render_all, answers)
                known.checked = answers
            elif answers > max(known.ahead, _EACH_LENGTH):
                known.check(self._render_all, answers)
                known.check(self._render_all, 2 * answers)
                known.ahead = 2 * answers
        except DiffersError as error:
            raise self._refusal(str(error)) from None
        if self._credit < len(spoken):
            return True
        self._credit -= len(spoken)
        try:
            self._compare(known, spoken, answers)
        except DiffersError as error:
            if not self._warned:
                self._warned = True
                message = (
                    f"{self._name}'s chat template depends on what is said: it {error}. The model is shown what it "
                    "writes after other texts; env/template_differences counts such turns, and "
                    "history=History(template=True) shows the whole conversation as the template writes it"
                )
                warnings.warn(message, stacklevel=2)
            return False
        return True

    def _compare(self, known: Continuation, spoken: Sequence[Message], answers: int) -> None:
        """Check that one rendering of the conversation contains all messages in order, as the model received them."""
        plain = self._codec.plain
        texts = [
            replace(message, content=plain(message.content), reasoning_content=plain(message.reasoning_content))
            for message in spoken
        ]
        try:
            rendered, *framed = (
                self._render(*texts),
                *(self._framed(message) for message in texts[-2 * answers + 1 :: 2]),
            )
        except ChatTemplateError:  # the template rejects one of these texts; see ``Codec.write``
            return
        if not rendered.endswith(framed[-1]):
            raise DiffersError(
                f"writes the user message after answer {answers} differently after the present conversation"
            )
        position = 0
        for turn, tail in enumerate(framed[:-1], start=1):
            position = rendered.find(said := tail.removesuffix(known.after), position)
            if position < 0:
                raise DiffersError(f"writes the user message after answer {turn} differently after {answers} answers")
            position += len(said)

    def _facts(self) -> "_Facts":
        """Return the properties of the template, determined once per process."""
        key = self._key()
        if key is None or key not in _FACTS:
            self._roles, self._frames, self._parts = set(), {}, False
            self._continuations, self._folds_system = {}, True
            self._check_content()
            self._check_chance()
            self._folds_system = not self._keeps_system()
            if self._appends:
                self._establish("user")
            ends = self._find_ends()
            facts = _Facts(
                self._parts,
                self._folds_system,
                self._roles,
                self._frames,
                self._continuations,
                ends,
                self._find_thoughts(ends.closing.removesuffix(ends.own)),
            )
            if key is None:
                return facts
            if len(_FACTS) >= _MOST_FACTS:
                _FACTS.clear()
            _FACTS[key] = facts
        return _FACTS[key]

    def _key(self) -> Hashable:
        """Return a key of everything that the template's output depends on; ``None`` if that is unknown."""
        if not _renders_jinja(self._tokenizer) or any(
            type(value) not in {bool, int, str, type(None)} for value in self._kwargs.values()
        ):
            return None
        return (
            self._source,
            self._appends,
            tuple(self._end_ids),
            tuple(sorted((name, repr(value)) for name, value in self._kwargs.items())),
            repr(self._tokenizer.special_tokens_map),
            self._codec.added.pattern,
        )

    def _render(self, *messages: Message, prompt: bool = True, **kwargs: Any) -> str:
        if self.images is None and any(message.images for message in messages):
            raise ChatTemplateError(f"{self._name} is a tokenizer; messages with images need the model's processor")
        return self._write([self._fields(message) for message in messages], prompt=prompt, **kwargs)

    def _write(self, messages: Sequence[dict[str, Any]], *, prompt: bool, **kwargs: Any) -> str:
        try:
            rendered = self._tokenizer.apply_chat_template(
                messages,
                **{"chat_template": self._template, **self._kwargs, **kwargs},
                tokenize=False,
                add_generation_prompt=prompt,
            )
        except Exception as error:  # templates are programs and can raise anything
            roles = ", ".join(message["role"] for message in messages)
            raise self._refusal(f"raises {error!r} on {roles}", raises=True) from error
        return str(rendered)

    def _fields(self, message: Message) -> dict[str, Any]:
        fields: dict[str, Any] = {"role": message.role, "content": self._content(message)}
        if message.reasoning_content:
            fields[self._thoughts.field] = message.reasoning_content
        return fields

    def _render_all(self, messages: Sequence[Message]) -> str:
        return self._render(*messages)

    def _content(self, message: Message) -> str | list[dict[str, str]]:
        if not self._parts and not message.images:
            return message.content
        return [{"type": "image"}] * len(message.images) + [{"type": "text", "text": message.content}]

    def _tail(self, message: Message) -> str:
        return self._render(_ASKED, _ANSWERED, message).partition(_ANSWERED.content)[2]

    def _framed(self, message: Message) -> str:
        """Return the same text, without rendering if the template's text around such a message is known."""
        if message.images:
            return self._tail(message)
        if message.role not in self._frames:
            self._frames[message.role] = self._find_frame(message.role)
        frame = self._frames[message.role]
        framed = frame.around(message.content) if frame else None
        return self._tail(message) if framed is None else framed

    def _find_frame(self, role: str) -> Frame | None:
        if self._parts or not _renders_jinja(self._tokenizer):
            return None
        history = [_ASKED.as_dict(), _ANSWERED.as_dict()]
        variables = {"tools": None, "documents": None, **self._tokenizer.special_tokens_map, **self._kwargs}
        frame = find_frame(
            str(self._template),
            lambda text: [*history, {"role": role, "content": text}],
            {**variables, "add_generation_prompt": True},
        )
        if frame is None:
            return None
        frame = frame._replace(before=frame.before.partition(_ANSWERED.content)[2])
        samples = (Message(role, text) for text in ("", "Yes.", " 1\n", "<tool_response>\n{}\n</tool_response>"))
        known = all(frame.around(sample.content) in {None, self._tail(sample)} for sample in samples)
        return frame if known else None

    def _refusal(self, why: str, *, raises: bool = False) -> ChatTemplateError:
        anew = (
            "" if raises or not self._appends else "render it anew at each turn with history=History(template=True), "
        )
        return ChatTemplateError(
            f"{self._name}'s chat template cannot be extended turn by turn: it {why}; "
            f"{anew}pass another with chat_template=..., or define the markers with DelimiterChat"
        )

    def _check_content(self) -> None:
        """Find out if the template expects strings as contents, or lists of parts as for some vision models."""
        refusals = []
        for parts in (False, True):  # such a template raises on a string, or drops it
            self._parts = parts
            try:
                return self._check("user")
            except ChatTemplateError as refusal:
                refusals.append(refusal)
        raise refusals[0]

    def _check(self, role: str) -> None:
        if role in self._roles:
            return
        told = Message(role, _TOLD)
        history = self._render(_ASKED, _ANSWERED, told)
        marks = [_ASKED.content, _ANSWERED.content, _TOLD]
        if not self._appends and history.count(_TOLD) == 1:
            self._roles.add(role)
            return
        if any(history.count(mark) != 1 for mark in marks):
            raise self._refusal(f"drops or repeats a message of user, assistant, {role}")
        if [mark for mark in history if mark in marks] != marks:
            raise self._refusal(f"changes the order of user, assistant, {role}")
        if not self._prompts_alike(history):
            raise self._refusal(f"writes no generation prompt, or a different one, after a {role} message")
        if role != "user":  # _facts does it later for this role
            self._establish(role)
        self._roles.add(role)

    def _establish(self, role: str) -> None:
        """Check that the template writes this role's messages the same way everywhere, with or without a system one."""
        told = None
        try:
            plain = self._continuation([Message("user", "")], role)
        except DiffersError as error:
            raise self._refusal(str(error)) from None
        try:
            told = (
                None if self._folds_system else self._continuation([Message("system", ""), Message("user", "")], role)
            )
            if told and told.differs_from(plain):
                raise DiffersError(f"writes a {role} message differently where there is a system message")
        except DiffersError as error:
            if role != "user" or not self._folds_alike():
                raise self._refusal(str(error)) from None
            # Mistral's template writes the system message into the last user message, wherever that is.
            self._folds_system = True
        if role == "user":
            self._continuations["", "user"] = plain
            if told and not self._folds_system:
                self._continuations["", "system", "user"] = told

    def _continuation(self, opening: Sequence[Message], role: str = "user", *, deep: bool = True) -> Continuation:
        """Return the template's text between messages, checked for as many answers as take little time."""
        found = Continuation(self._render_all, opening, role)
        plain = self._continuations.get(("", "user"))
        if plain and role == "user" and found.differs_from(plain):
            raise DiffersError(f"writes a user message differently in a conversation that begins {_shown(opening)}")
        if not deep:
            return found
        # A threshold is probably a number in the template that counts messages or answers.
        numbers = sorted({int(digits) for digits in re.findall(r"(?<!\d)\d{1,3}(?!\d)", self._source)})[-_NUMBERS:]
        near = {count for number in numbers for count in (*range(number // 2 - 2, number // 2 + 2), number, number + 1)}
        for answers in [*range(2, _AT_FIRST), *sorted(count for count in near if _AT_FIRST <= count <= _NEAR)]:
            found.check(self._render_all, answers)
        found.checked = answers = _AT_FIRST - 1
        began = spent = time.process_time()
        while spent - began < _SECONDS and answers < _NEAR:
            answers *= 2
            began = time.process_time()
            found.check(self._render_all, answers)
            spent = time.process_time()
        found.check_texts(self._render_all)
        found.ahead = answers
        return found

    def _check_chance(self) -> None:
        """Refuse templates that render the same conversation in different ways."""
        said = [Message("system", "A"), *_SAID] if self._keeps_system() else _SAID
        if re.search(r"\|\s*random\b|\blipsum\b", self._source) or len({self._render(*said) for _ in range(4)}) > 1:
            raise self._refusal("renders the same conversation differently each time (random numbers or the clock)")
        if "strftime_now" not in self._source or "strftime_now" in self._kwargs or not _renders_jinja(self._tokenizer):
            return
        clocks = [datetime(2001, 2, 3, 4, 5, 6), datetime(2001, 2, 3, 17, 18, 19), datetime(2012, 11, 10, 4, 5, 6)]
        morning, evening, later = (
            self._render(*said, chat_template=_CLOCK + self._source, the_clock=_clock(time)) for time in clocks
        )
        if morning != evening:
            raise self._refusal("writes the time of day, which changes between turns")
        if morning.partition(_SAID[0].content)[2] != later.partition(_SAID[0].content)[2]:
            raise self._refusal("writes the date after messages, which may change between turns")

    def _folds_alike(self) -> bool:
        """Return whether the template renders a system message as ``_fold_system`` writes it."""
        openings = [
            [Message("system", system), Message("user", said)] for system, said in (("A b.", "C"), ("D", "e\nf"))
        ]
        return all(self._render(*opening) == self._render(*_fold_system(opening)) for opening in openings)

    def _prompts_alike(self, history: str) -> bool:
        """Return whether a later message is followed by the same generation prompt as the first one."""
        asked = self._render(_ASKED).partition(_ASKED.content)[2]
        unasked = self._render(_ASKED, prompt=False).partition(_ASKED.content)[2]
        prompt = asked.removeprefix(unasked)
        header = history.partition(_ASKED.content)[2].partition(_ANSWERED.content)[0]
        # Without a prompt of its own ("[INST] ... [/INST]") the template must write nothing else before an answer.
        return history.endswith(prompt) if prompt else header.strip() == asked.strip()

    def _keeps_system(self) -> bool:
        try:
            return _TOLD in self._render(Message("system", _TOLD), _ASKED)
        except ChatTemplateError:
            return False

    def _find_ends(self) -> _Ends:
        """Return the tokens that end a turn: the declared ones that the template writes there, else its own."""
        between = self._tail(Message("user", _TOLD)).partition(_TOLD)[0]
        last = self._render(_ASKED, _ANSWERED, prompt=False).partition(_ANSWERED.content)[2]
        if last == self._render(_ASKED, _ANSWERED).partition(_ANSWERED.content)[2]:
            last = ""  # it always writes the prompt: these tokens may belong to the next turn
        marks, final = self._codec.added.findall(between), self._codec.added.findall(last)
        eos = getattr(self._tokenizer, "eos_token", None) or ""
        ends = (eos, *(self._codec.decode([id_]) for id_ in self._end_ids))
        # A tokenizer may call another token its end, such as the one that begins the next message.
        declared = [end for end in ends if end in marks and (end in final or not final)]
        # Cohere's template ends a response, then the turn: the end is the last token that both have. gpt-oss ends the
        # last turn differently from earlier ones.
        shared = [mark for mark, _ in takewhile(lambda pair: pair[0] == pair[1], zip(marks, final, strict=False))]
        own = next(iter(declared or shared[-1:] or final[:1] or marks[:1]), "")
        marks = marks[: marks.index(own) + 1] if own in marks else marks[:1] if own else []
        own = own or eos
        return _Ends(own, _up_to(own, between) or _up_to(own, last) or own, [*declared[1:], *marks])

    def _find_thoughts(self, ended: str) -> Thoughts:
        """Return how the template marks thoughts, after checking that its own responses are read as they are meant.

        Args:
            ended: Text after an answer, up to the token that ends a response.

        Raises:
            ChatTemplateError: they are not, so that a response could be taken for another action.
        """

        def write(fields: Mapping[str, Any], *, later: bool, **kwargs: Any) -> str:
            messages = [{"role": "user", "content": self._content(_ASKED)}, {"role": "assistant", **fields}]
            if isinstance(fields["content"], str):
                messages[1]["content"] = self._content(Message("assistant", fields["content"]))
            if later:
                messages.append({"role": "user", "content": self._content(_ASKED)})
            return self._write(messages, prompt=later, **kwargs).partition(_ASKED.content)[2]

        thoughts, unknown = find_thoughts(write, self._prompt, self._codec.added, self._source)
        if misread := thoughts.check(ended, self._codec.strip):
            raise ChatTemplateError(
                f"{self._name}'s chat template marks thoughts or answers in an unknown way: {misread}; "
                "pass another with chat_template=..., or define the markers with DelimiterChat"
            )
        if unknown:
            ends = f"a thought up to {thoughts.families[0].closing!r}" if thoughts.inside else "an answer"
            warnings.warn(
                f"{self._name}'s chat template begins responses with {unknown!r}, which is no known mark of a thought; "
                f"what follows is read as {ends}",
                stacklevel=5,
            )
        return thoughts


def _source(tokenizer: Any, template: str) -> str:
    """Return the template itself, which may have been given by its name."""
    own = getattr(tokenizer, "chat_template", None)
    return str(own.get(template, template) if isinstance(own, dict) else template)


# Transformers 5.23 passes no functions to templates, so this clock is a macro in the template.
_CLOCK = (
    "{% macro strftime_now(format) %}{% set told = namespace(text=format) %}{% for sign, value in the_clock.items() %}"
    "{% set told.text = told.text | replace(sign, value) %}{% endfor %}{{ told.text }}{% endmacro %}"
)


def _clock(time: datetime) -> dict[str, str]:
    return {f"%{sign}": time.strftime(f"%{sign}") for sign in "aAbBcdHIjmMpSUwWxXyY"}


def _renders_jinja(tokenizer: Any) -> bool:
    """Return whether chats are rendered by Transformers itself."""
    if "transformers" not in sys.modules:
        return False
    from transformers import PreTrainedTokenizerBase

    return getattr(type(tokenizer), "apply_chat_template", None) is PreTrainedTokenizerBase.apply_chat_template


def _up_to(mark: str, text: str) -> str:
    """Return the beginning of ``text`` up to and including ``mark``; empty if it is not in it."""
    before, found, _ = text.partition(mark) if mark else ("", "", "")
    return before + found if found else ""


def _shown(opening: Sequence[Message]) -> str:
    told = f" and the system message {opening[0].content[:40]!r}" if opening[0].role == "system" else ""
    return f"with the roles {', '.join(message.role for message in opening)}{told}"


def _fold_system(messages: Sequence[Message]) -> Sequence[Message]:
    """Return messages with the system message in front of the first user message, separated by a blank line."""
    if not messages or messages[0].role != "system":
        return messages
    system, *others = messages
    if not others or others[0].role != "user":
        return [Message("user", system.content), *others]
    first = replace(others[0], content=f"{system.content}\n\n{others[0].content}")
    return [first, *others[1:]]
