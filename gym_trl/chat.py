"""Conversations as token ids that are appended to and never re-rendered."""

import re
import sys
import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from datetime import datetime
from itertools import takewhile
from typing import Any, NamedTuple, Protocol

from gym_trl.continuation import FIRST_PLACE, PLACE, Continuation, DiffersError
from gym_trl.errors import ChatTemplateError, TranscriptError
from gym_trl.parsing import split_thinking
from gym_trl.rendering import Frame, find_frame
from gym_trl.types import Answer, Logprobs, Message, TokenIds, without_nan

# Unicode reserves these code points for internal use ("noncharacters"), so `_Codec.plain` can remove them from messages
# and they are free as marks here.
_BREAK = "\ufdd0"
_ASKED = Message("user", "\ufdd1")
_ANSWERED = Message("assistant", "\ufdd2")
_TOLD = "\ufdd3"
_UNWANTED = re.compile("[\ud800-\udfff\ufdd0-\ufdd3]")


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
_FACTS: "dict[Hashable, _Facts]" = {}


class _Facts(NamedTuple):
    """Properties of a template, determined by rendering short conversations."""

    parts: bool
    folds_system: bool
    roles: set[str]
    frames: dict[str, Frame | None]
    continuations: dict[tuple[str, ...], Continuation]
    closing: str
    stop: list[str]
    closers: list[str]
    header: str
    opened: str


class Chat(Protocol):
    """Converter of a conversation's text to token ids, one turn at a time.

    An episode calls ``open`` once, then ``reply`` once per turn, and appends the result to the sampled ids.
    """

    @property
    def stop_ids(self) -> frozenset[int]:
        """Ids that end the model's turn; engines stop at them and at the tokenizer's end-of-sequence id."""
        ...

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Strings that end the model's turn if no single id does; engines include them in what they return."""
        ...

    def open(self, messages: Sequence[Message]) -> TokenIds:
        """Return the ids that start an episode, up to the point where the model's response begins."""
        ...

    def reply(self, text: str, *, role: str = "user", closed: bool) -> TokenIds:
        """Return the ids between two sampled turns; ``closed`` is the result of ``closes`` for the first one."""
        ...

    def closes(self, ids: Sequence[int]) -> bool:
        """Return whether these sampled ids end the model's turn, so that ``reply`` need not."""
        ...

    def text(self, ids: TokenIds) -> Answer:
        """Return the text of a response, split into thinking and answer."""
        ...


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

    A reply is found by rendering three short messages and taking the text after the second, so its cost does not depend
    on the episode's length, and templates that rewrite earlier messages are supported. If the model's turn did not end
    with the template's end-of-turn token, because ``max_tokens`` was reached or another end was sampled, the reply
    begins with that token. If a template rejects system messages, they are put in front of the first user message.

    Only the template and the model can write control tokens: ``<|im_end|>`` in an observation is encoded as the ids of
    its characters, not as the id that ends a turn. Control tokens are the tokenizer's special tokens, and other added
    tokens that occur in the template, such as ``<think>`` and ``<tool_response>`` in Qwen3's, with their closing
    tokens, unless they are plain words. The unknown token is not a control token, unless it also begins or ends
    sequences. Because normalizers and templates can change texts, the ids of each message are checked: if they contain
    other control tokens than those of a harmless text, the text is encoded separately from the template's text around
    it. In assistant messages of the prompt, which are examples of the model's output, added tokens that are not special
    are kept.

    Args:
        tokenizer: Renders and encodes. Its ``chat_template`` is the default template.
        chat_template: A Jinja template, or the name of one of the tokenizer's templates.
        chat_template_kwargs: Passed to every rendering, such as ``enable_thinking=False``.

    Raises:
        ChatTemplateError: there is no template, or it cannot be extended turn by turn.
    """

    stop_strings: tuple[str, ...] = ()

    def __init__(self, tokenizer: Any, *, chat_template: str | None = None, **chat_template_kwargs: Any) -> None:
        self._tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
        self._name = _either("name_or_path", self._tokenizer, tokenizer) or type(tokenizer).__name__
        own = _either("chat_template", self._tokenizer, tokenizer)
        # A copy: trainers may change the template of their tokenizer later.
        self._template = chat_template or (own.get("default") if isinstance(own, dict) else own)
        if not self._template:
            raise ChatTemplateError(
                f"{self._name} has no chat template; set tokenizer.chat_template, pass chat_template=..., "
                "or write the markers by hand with DelimiterChat"
            )
        self._kwargs = chat_template_kwargs
        self._source = _source(self._tokenizer, self._template)
        self._codec = _tokenizer_codec(self._tokenizer, written=self._source)
        self._credit = _FIRST_CREDIT
        facts = self._facts()
        self._parts, self._folds_system = facts.parts, facts.folds_system
        self._roles, self._frames, self._continuations = facts.roles, dict(facts.frames), facts.continuations
        self._closing, self._header, self._opened = facts.closing, facts.header, facts.opened
        self.stop_ids = frozenset(self._codec.id(mark) for mark in facts.stop)
        self._closers = frozenset(self._codec.id(mark) for mark in facts.closers)
        self._anchor = next(iter(facts.closers), getattr(self._tokenizer, "eos_token", None) or "")

    def open(self, messages: Sequence[Message]) -> TokenIds:
        """Return the ids that start an episode, up to and including the generation prompt."""
        spoken = _fold_system(messages) if self._folds_system else messages
        roles = tuple(message.role for message in spoken)
        return self._codec.write(
            lambda texts: self._render(*map(Message, roles, texts)),
            spoken,
            # The template's text may depend on the content of an assistant message, for example on thinking in it.
            key=None if "assistant" in roles else roles,
        )

    def reply(self, text: str, *, role: str = "user", closed: bool) -> TokenIds:
        """Return the ids between two sampled turns: the end of the first unless ``closed``, the message, the prompt.

        Raises:
            ChatTemplateError: the template does not support a message of this ``role`` after an assistant message.
        """
        self._check(role)

        def render(texts: Sequence[str]) -> str:
            tail = self._framed(Message(role, texts[0]))
            # In some templates (GLM) the head of the next user message ends the turn; another role keeps its own head.
            return tail.removeprefix(self._closing) if closed else tail

        return self._codec.write(render, [Message(role, text)], after=self._anchor, key=(role, closed))

    def closes(self, ids: Sequence[int]) -> bool:
        """Return whether these sampled ids end with the template's own end of turn."""
        return bool(ids) and ids[-1] in self._closers

    def text(self, ids: TokenIds) -> Answer:
        """Return the text of a response without control tokens, split into thinking and answer."""
        thinking, answer = split_thinking(self._opened + self._codec.decode(ids))
        if self._header:
            answer = answer.rpartition(self._header)[2]
        return Answer(self._codec.strip(thinking), self._codec.strip(answer))

    def follow(self, messages: Sequence[Message], answers: int) -> None:
        """Check that the template renders a conversation to the text that ``open`` and ``reply`` produced for it.

        Each number of answers is checked once, with placeholder texts. The actual texts are checked for the first
        conversations, and later as often as the cost stays small.

        Args:
            messages: The whole conversation, which ends with a user message.
            answers: Number of the model's answers in it, each followed by a user message.

        Raises:
            ChatTemplateError: the texts differ; the message names the difference and the number of answers.
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
            if self._credit >= len(spoken):
                self._credit -= len(spoken)
                self._compare(known, spoken, answers)
        except DiffersError as error:
            raise self._refusal(str(error)) from None

    def _compare(self, known: Continuation, spoken: Sequence[Message], answers: int) -> None:
        """Check that one rendering of the conversation contains all messages in order, as the model received them."""
        texts = [Message(message.role, self._codec.plain(message.content)) for message in spoken]
        try:
            rendered, *framed = (
                self._render(*texts),
                *(self._framed(message) for message in texts[-2 * answers + 1 :: 2]),
            )
        except ChatTemplateError:  # the template rejects one of these texts; see ``_Codec.write``
            return
        if not rendered.endswith(framed[-1]):
            raise DiffersError(f"writes the user message after answer {answers} otherwise after what was said before")
        position = 0
        for turn, tail in enumerate(framed[:-1], start=1):
            position = rendered.find(said := tail.removesuffix(known.after), position)
            if position < 0:
                raise DiffersError(f"writes the user message after answer {turn} otherwise after {answers} answers")
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
            self._establish("user")
            ends, heads = self._find_end(), self._find_header()
            facts = _Facts(
                self._parts, self._folds_system, self._roles, self._frames, self._continuations, *ends, *heads
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
            tuple(sorted((name, repr(value)) for name, value in self._kwargs.items())),
            repr(self._tokenizer.special_tokens_map),
            self._codec.added.pattern,
        )

    def _render(self, *messages: Message, prompt: bool = True, **kwargs: Any) -> str:
        try:
            rendered = self._tokenizer.apply_chat_template(
                [{"role": message.role, "content": self._content(message.content)} for message in messages],
                **{"chat_template": self._template, **self._kwargs, **kwargs},
                tokenize=False,
                add_generation_prompt=prompt,
            )
        except Exception as error:  # templates are programs and can raise anything
            raise self._refusal(f"raises {error!r} on {', '.join(message.role for message in messages)}") from error
        return str(rendered)

    def _render_all(self, messages: Sequence[Message]) -> str:
        return self._render(*messages)

    def _content(self, text: str) -> str | list[dict[str, str]]:
        return [{"type": "text", "text": text}] if self._parts else text

    def _tail(self, message: Message) -> str:
        return self._render(_ASKED, _ANSWERED, message).partition(_ANSWERED.content)[2]

    def _framed(self, message: Message) -> str:
        """Return the same text, without rendering if the template's text around such a message is known."""
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

    def _refusal(self, why: str) -> ChatTemplateError:
        return ChatTemplateError(
            f"{self._name}'s chat template cannot be extended turn by turn: it {why}; "
            "pass another with chat_template=..., or write the markers by hand with DelimiterChat"
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
        if any(history.count(mark) != 1 for mark in marks):
            raise self._refusal(f"drops or repeats a message of user, assistant, {role}")
        if [mark for mark in history if mark in marks] != marks:
            raise self._refusal(f"changes the order of user, assistant, {role}")
        if not self._prompts_alike(history):
            raise self._refusal(f"writes no generation prompt, or another one, after a {role} message")
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
                raise DiffersError(f"writes a {role} message otherwise where there is a system message")
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
            raise DiffersError(f"writes a user message otherwise in a conversation that begins {_shown(opening)}")
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
            raise self._refusal("writes the same conversation in different ways, by chance or by the time")
        if "strftime_now" not in self._source or "strftime_now" in self._kwargs or not _renders_jinja(self._tokenizer):
            return
        clocks = [datetime(2001, 2, 3, 4, 5, 6), datetime(2001, 2, 3, 17, 18, 19), datetime(2012, 11, 10, 4, 5, 6)]
        morning, evening, later = (
            self._render(*said, chat_template=_CLOCK + self._source, the_clock=_clock(time)) for time in clocks
        )
        if morning != evening:
            raise self._refusal("writes the time of day, which is another one at each turn")
        if morning.partition(_SAID[0].content)[2] != later.partition(_SAID[0].content)[2]:
            raise self._refusal("writes the date after messages, which may be another one at a later turn")

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

    def _find_end(self) -> tuple[str, list[str], list[str]]:
        """Return the text after an answer, the tokens that end a turn, and all tokens that may have ended one."""
        ended = self._tail(Message("user", _TOLD)).partition(_TOLD)[0]
        last = self._render(_ASKED, _ANSWERED, prompt=False).partition(_ANSWERED.content)[2]
        if last == self._render(_ASKED, _ANSWERED).partition(_ANSWERED.content)[2]:
            last = ""  # it always writes the prompt: these tokens may belong to the next turn
        after, final = self._codec.added.findall(ended), self._codec.added.findall(last)
        shared = [mark for mark, _ in takewhile(lambda pair: pair[0] == pair[1], zip(after, final, strict=False))]
        # Cohere's template ends a response, then the turn: the end is the last token that both have.
        marks = shared or after[:1]
        closing = "".join(re.split(f"({self._codec.added.pattern})", ended)[: 2 * len(marks)])
        # gpt-oss ends the last turn differently from earlier ones, and the token that ends those also ends its
        # thinking.
        stop = final[:1] if final and not shared else marks[-1:]
        return closing, stop, list(dict.fromkeys(marks[-1:] + stop))

    def _find_header(self) -> tuple[str, str]:
        """Return the text between prompt and answer, and the opening of thinking at the end of the prompt."""
        prompt = self._render(_ASKED).partition(_ASKED.content)[2]
        history = self._render(_ASKED, _ANSWERED, _ASKED).partition(_ASKED.content)[2].partition(_ANSWERED.content)[0]
        header = split_thinking(history.removeprefix(prompt)).text if history.startswith(prompt) else ""
        opened = (prompt[start:] for start in reversed(range(len(prompt))))
        thinks = (end for end in opened if _TOLD in split_thinking(end + _TOLD).thinking)
        return header if self._codec.added.search(header) else "", next(thinks, "")


class DelimiterChat:
    r"""Chat with hand-written markers, for tokenizers without a chat template.

    >>> chat = DelimiterChat(lambda text: text.encode(), lambda ids: bytes(ids).decode(), assistant=("Model: ", "\n"))
    >>> bytes(chat.open([Message("user", "2 + 2?")]))
    b'User: 2 + 2?\nModel: '
    >>> chat.text([*b"4\n"])
    Answer(thinking='', text='4')
    >>> bytes(chat.reply("Right.", closed=chat.closes([*b"4\n"])))
    b'User: Right.\nModel: '

    Each role has a marker before and after its messages; the model's turn ends with the second marker of ``assistant``.
    If that is always a single id, ``stop_ids`` has it; otherwise give ``stop_strings`` to the engine. Unlike control
    tokens, these markers are plain text, so messages can contain them.

    Args:
        encode: Converts text to ids without adding any, or is a Hugging Face tokenizer.
        decode: Converts ids to text, control tokens included. Not needed with a tokenizer.
        bos: Text at the start of every conversation.
        system: Markers before and after a system message.
        user: Markers before and after a message of the environment.
        assistant: Markers before and after a message of the model.
        roles: Markers before and after messages of other roles, such as ``tool=("Tool: ", "\n")``.

    Raises:
        ChatTemplateError: the second marker of ``assistant`` is empty, so nothing ends the model's turn.
    """

    def __init__(
        self,
        encode: Any,
        decode: Callable[[Any], str] | None = None,
        *,
        bos: str = "",
        system: tuple[str, str] = ("", "\n\n"),
        user: tuple[str, str] = ("User: ", "\n"),
        assistant: tuple[str, str] = ("Assistant: ", "\n"),
        **roles: tuple[str, str],
    ) -> None:
        self._bos, self._head, self._end = bos, *assistant
        self._marks = {"system": system, "user": user, "assistant": assistant, **roles}
        written = "".join([bos, *(mark for pair in self._marks.values() for mark in pair)])
        self._codec = _tokenizer_codec(encode, written=written) if decode is None else _Codec(encode, decode)
        if not self._end:
            raise ChatTemplateError("DelimiterChat needs an end of turn: the second marker of assistant=(..., ...)")
        end_ids = self._codec.encode(self._end, after="x")
        self.stop_ids: frozenset[int] = frozenset(end_ids if len(end_ids) == 1 else ())
        self.stop_strings: tuple[str, ...] = () if self._stands_alone(end_ids) else (self._end,)

    def open(self, messages: Sequence[Message]) -> TokenIds:
        """Return the ids that start an episode, up to and including the marker before the model's turn."""
        marks = [self._marks_of(message.role) for message in messages]

        def render(texts: Sequence[str]) -> str:
            said = "".join(before + text + after for (before, after), text in zip(marks, texts, strict=True))
            return self._bos + said + self._head

        return self._codec.write(render, messages, key=tuple(message.role for message in messages))

    def reply(self, text: str, *, role: str = "user", closed: bool) -> TokenIds:
        """Return the ids between two sampled turns: the first one's end unless ``closed``, the message, the marker.

        Raises:
            ChatTemplateError: there are no markers for this ``role``.
        """
        before, after = self._marks_of(role)
        before = before if closed else self._end + before
        return self._codec.write(
            lambda texts: before + texts[0] + after + self._head,
            [Message(role, text)],
            after=self._end if closed else "x",
            key=(role, closed),
        )

    def closes(self, ids: Sequence[int]) -> bool:
        """Return whether these sampled ids end with the end of turn, also if it is merged into their last id."""
        # Each id decodes to at least one byte, so this many ids are enough to hold the end.
        return self._codec.decode(ids[-len(self._end.encode()) :]).endswith(self._end)

    def text(self, ids: TokenIds) -> Answer:
        """Return the text of a response without the end of turn, split into thinking and answer."""
        thinking, answer = split_thinking(self._codec.decode(ids).removesuffix(self._end))
        return Answer(self._codec.strip(thinking), self._codec.strip(answer))

    def _marks_of(self, role: str) -> tuple[str, str]:
        if role not in self._marks:
            raise ChatTemplateError(f"DelimiterChat has no markers for the role {role!r}; pass {role}=('...', '...')")
        return self._marks[role]

    def _stands_alone(self, end_ids: TokenIds) -> bool:
        """Return whether the end is one id after any text; some tokenizers merge a full stop with a line end."""
        return len(end_ids) == 1 and all(self._codec.encode(mark + self._end)[-1:] == end_ids for mark in "a1.!?)]>\"'")


class Transcript:
    """Ids, mask and logprobs of one episode, which are only appended to.

    >>> transcript = Transcript([1, 2])
    >>> transcript.prompt([])
    [1, 2]
    >>> transcript.commit([], [3], [-0.5])
    >>> transcript.prompt([8, 9])  # asking commits to nothing
    [1, 2, 3, 8, 9]
    >>> transcript.commit([8, 9], [4, 5], [-0.25, -1.0])
    >>> transcript.completion_ids, transcript.mask, transcript.logprobs
    ([3, 8, 9, 4, 5], [1, 0, 0, 1, 1], [-0.5, 0.0, 0.0, -0.25, -1.0])

    The engine's prompts are prefixes of ``prompt_ids + completion_ids``, which always ends on a sampled id. Each call
    of ``prompt`` copies the ids once; no other operation depends on their number. The properties return copies.
    """

    def __init__(self, prompt_ids: Sequence[int]) -> None:
        self._ids: TokenIds = list(prompt_ids)
        self._start = len(self._ids)
        self._mask: list[int] = []
        self._logprobs: Logprobs = []

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def completion_length(self) -> int:
        """Number of ids after the prompt."""
        return len(self._mask)

    @property
    def prompt_ids(self) -> TokenIds:
        """Ids that the episode was opened with."""
        return self._ids[: self._start]

    @property
    def completion_ids(self) -> TokenIds:
        """Ids after the prompt: sampled ids and the environment's ids between them."""
        return self._ids[self._start :]

    @property
    def mask(self) -> list[int]:
        """Mask with one entry per completion id: 1 if it was sampled, else 0."""
        return self._mask.copy()

    @property
    def logprobs(self) -> Logprobs:
        """Logprobs in nats with one entry per completion id; 0.0 if it was not sampled."""
        return self._logprobs.copy()

    def prompt(self, delta: TokenIds) -> TokenIds:
        """Return all ids so far followed by ``delta``, as a new list; the transcript is not changed."""
        return self._ids + delta

    def commit(self, delta: TokenIds, ids: TokenIds, logprobs: Logprobs) -> None:
        """Append the environment's ids ``delta`` and the ``ids`` that were sampled after them.

        A logprob that is NaN is stored as ``None``.

        Raises:
            TranscriptError: ``ids`` is empty, or the numbers of ids and logprobs differ.
        """
        if not ids:
            raise TranscriptError("a turn needs at least one sampled id, got none")
        if len(ids) != len(logprobs):
            raise TranscriptError(f"every sampled id needs a logprob, got {len(ids)} ids and {len(logprobs)} logprobs")
        self._ids += [*delta, *ids]
        self._mask += [0] * len(delta) + [1] * len(ids)
        self._logprobs += [0.0] * len(delta) + without_nan(logprobs)


class _Written(NamedTuple):
    """Control tokens that a template writes around harmless texts."""

    head: TokenIds
    """All ids up to the last control token before the first text."""
    tail: TokenIds
    """All ids from the first control token after the last text."""
    control: TokenIds
    """All control tokens in their order."""

    def around(self, ids: TokenIds, control_ids: frozenset[int], *, alone: bool) -> bool:
        """Return whether ``ids`` contain the same control tokens; ``alone`` means that they surround a single text."""
        head, tail, control = self
        start, stop = len(head), len(ids) - len(tail)
        if start > stop or ids[:start] != head or ids[stop:] != tail:
            return False
        if alone:
            return control_ids.isdisjoint(ids[start:stop])
        return list(filter(control_ids.__contains__, ids)) == control


class _Codec:
    """Converter of text to ids and back that can keep messages from writing control tokens.

    Args:
        encode: Text to ids.
        decode: Ids to text.
        special: Tokens that are removed from a model's response.
        added: Tokens that a template may end a turn with.
        control: Tokens that messages must not write: ``special`` and the tokens that a template marks messages with.
        control_ids: Ids of ``control``, and of control tokens without a text.
    """

    def __init__(
        self,
        encode: Callable[[str], Sequence[int]],
        decode: Callable[[Any], str],
        *,
        special: Collection[str] = (),
        added: Collection[str] = (),
        control: Collection[str] = (),
        control_ids: Collection[int] = (),
    ) -> None:
        self._encode, self._decode = encode, decode
        self._special = _any_of(special)
        self._breakable_special = _breakable(special)
        self._control = _any_of({*special, *control})
        self._breakable = _breakable({*special, *control})
        self._harmless = re.compile(f"({_any_of({*control} - {*special}).pattern})|\\S")
        self._control_ids = frozenset(control_ids)
        self.added = _any_of({*special, *added})
        self._heads: dict[str, TokenIds] = {}
        self._written: dict[Hashable, _Written] = {}

    def write(
        self,
        render: Callable[[Sequence[str]], str],
        messages: Sequence[Message],
        *,
        after: str = "",
        key: Hashable = None,
    ) -> TokenIds:
        """Return the ids of ``render`` applied to the messages' texts, without control tokens from these texts.

        Args:
            render: Returns the template's text around the given texts, one for each message.
            messages: Messages to write.
            after: Text that precedes the ids.
            key: Identifies renderings with the same control tokens around all harmless texts.
        """
        written = self._written.get(key)
        if written is None:
            written = self._find_written(render, messages, after)
            if key is not None:
                self._written[key] = written
        try:
            texts = [self._plain(message) for message in messages]
            ids = self.encode(render(texts), after=after)
            if written.around(ids, self._control_ids, alone=len(messages) == 1):
                return ids
            # The template may write different control tokens around an empty or a long text.
            masked = [self._harmless.sub("x", message.content) for message in messages]
            if self._controls(ids) == self._controls(self.encode(render(masked), after=after)):
                return ids
        except ChatTemplateError:  # the template rejects this text, not this kind of message
            pass
        pieces = PLACE.split(render([chr(FIRST_PLACE + index) for index in range(len(messages))]))
        for index in range(1, len(pieces), 2):
            text = _UNWANTED.sub("\ufffd", messages[ord(pieces[index]) - FIRST_PLACE].content)
            pieces[index] = self._inert(text, after)
        return self.encode(_BREAK.join(pieces), after=after)

    def plain(self, text: str) -> str:
        """Return a message that is safe to render: no reserved code points, and its control tokens broken up."""
        if not text.isascii():
            text = _UNWANTED.sub("\ufffd", text)
        return self._breakable.sub(rf"\1{_BREAK}", text) if self._control.search(text) else text

    def encode(self, text: str, *, after: str = "") -> TokenIds:
        """Return the ids of ``text`` in the position after ``after``."""
        first, *others = text.split(_BREAK)
        ids = self._continue(after, first)
        for piece in others:
            ids += self._continue(after, piece)
        return ids

    def id(self, mark: str) -> int:
        """Return the id of an added token."""
        return self._encode(mark)[-1]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids``, control tokens included; unknown ids are left out."""
        try:
            return self._decode(ids)
        except Exception:  # each tokenizer has its own error for an unknown id
            return "".join(map(self._decode_one, ids)) if len(ids) != 1 else ""

    def strip(self, text: str) -> str:
        """Return ``text`` without special tokens and surrounding whitespace."""
        return self._special.sub("", text).strip()

    def _plain(self, message: Message) -> str:
        if message.role != "assistant":
            return self.plain(message.content)
        return self._breakable_special.sub(rf"\1{_BREAK}", _UNWANTED.sub("\ufffd", message.content))

    def _find_written(
        self, render: Callable[[Sequence[str]], str], messages: Sequence[Message], after: str
    ) -> _Written:
        # An assistant message of the prompt keeps its marks: a template that drops thinking finds it by them.
        places = [
            self._harmless.sub(lambda found: found[1] or "x", message.content)
            if message.role == "assistant"
            else chr(FIRST_PLACE + index)
            for index, message in enumerate(messages)
        ]
        pieces = PLACE.split(render(places))[::2]
        first, last = (self.encode(piece, after=after) for piece in (pieces[0], pieces[-1]))
        head = max((index for index, id_ in enumerate(first) if id_ in self._control_ids), default=-1) + 1
        tail = next((index for index, id_ in enumerate(last) if id_ in self._control_ids), len(last))
        return _Written(
            # Without text between them, the head contains all ids.
            first[:head],
            last[tail:] if len(pieces) > 1 else [],
            self._controls(self.encode(_BREAK.join(pieces), after=after)),
        )

    def _controls(self, ids: TokenIds) -> TokenIds:
        return list(filter(self._control_ids.__contains__, ids))

    def _inert(self, text: str, after: str) -> str:
        """Return a text broken up until its ids contain no control token; a character that is one is replaced."""
        if self._control_ids.isdisjoint(self.encode(text, after=after)):
            return text
        if len(text) == 1:
            return self._inert("\ufffd", after) if text < "\ufffd" else ""
        middle = len(text) // 2
        return f"{self._inert(text[:middle], after)}{_BREAK}{self._inert(text[middle:], after)}"

    def _decode_one(self, token_id: int) -> str:
        return self.decode([token_id])

    def _continue(self, before: str, text: str) -> TokenIds:
        # Sentencepiece tokenizers put a space in front of the first text that they are given.
        if before not in self._heads:
            self._heads[before] = list(self._encode(before)) if before else []
        head, ids = self._heads[before], list(self._encode(before + text))
        return ids[len(head) :] if ids[: len(head)] == head else list(self._encode(text))


class _FastTokenizer:
    """Fast path to a Transformers tokenizer's Rust backend, without the Python code around it."""

    @classmethod
    def of(cls, tokenizer: Any) -> "_FastTokenizer | None":
        """Return the fast path if the tokenizer's class does not override encoding or decoding."""
        if "transformers" not in sys.modules:  # then it is no Transformers tokenizer
            return None
        from transformers import PreTrainedTokenizerFast

        plain = isinstance(tokenizer, PreTrainedTokenizerFast) and all(
            getattr(type(tokenizer), name, None) is getattr(PreTrainedTokenizerFast, name, None)
            for name in ("encode", "_encode_plus", "_batch_encode_plus", "decode", "_decode")
        )
        return cls(tokenizer) if plain else None

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> Sequence[int]:
        backend = self._tokenizer.backend_tokenizer
        # Truncation and padding of an earlier batch stay switched on in the backend; Transformers switches them off.
        switched = backend.truncation or backend.padding or backend.encode_special_tokens
        if switched or getattr(self._tokenizer, "split_special_tokens", False):
            return list(self._tokenizer.encode(text, add_special_tokens=False))
        # The variant that does not compute the offsets of the ids.
        return list(backend.encode_batch_fast([text], add_special_tokens=False)[0].ids)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.backend_tokenizer.decode(list(ids), skip_special_tokens=False))


def _tokenizer_codec(tokenizer: Any, *, written: str = "") -> _Codec:
    """Return the codec of a Hugging Face tokenizer; ``written`` contains the marks that messages are written with."""
    tokens: Mapping[int, Any] = tokenizer.added_tokens_decoder
    special = {*tokenizer.all_special_tokens, *(token.content for token in tokens.values() if token.special)}
    # Some tokenizers add runs of whitespace, which end no turn, and users add words.
    added = {token.content for token in tokens.values() if token.content.strip()}
    # A template that uses an opening token also uses the closing one.
    plain, written = {mark: mark.replace("/", "") for mark in added}, written.replace("/", "")
    control = {mark for mark in added if plain[mark] in written and not plain[mark].replace("_", "").isalnum()}
    fast = _FastTokenizer.of(tokenizer)
    return _Codec(
        fast.encode if fast else lambda text: tokenizer.encode(text, add_special_tokens=False),
        fast.decode
        if fast
        else lambda ids: str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)),
        special=special,
        added=added,
        control=control,
        control_ids=_control_ids(tokenizer, special | control),
    )


def _control_ids(tokenizer: Any, marks: Collection[str]) -> set[int]:
    ids = {id_ for id_, token in tokenizer.added_tokens_decoder.items() if token.content in marks}
    if hasattr(tokenizer, "all_special_ids"):
        ids.update(tokenizer.all_special_ids)
    else:  # it lists its special tokens as text only
        for encoded in (tokenizer.encode(mark, add_special_tokens=False) for mark in marks):
            ids.update(encoded if len(encoded) == 1 else ())
    unknown = getattr(tokenizer, "unk_token_id", None)
    ends = {getattr(tokenizer, name, None) for name in ("bos_token_id", "eos_token_id")}
    return ids if unknown in ends else ids - {unknown}


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


def _either(attribute: str, *owners: Any) -> Any:
    return next(filter(None, (getattr(owner, attribute, None) for owner in owners)), None)


def _any_of(texts: Collection[str]) -> re.Pattern[str]:
    longest_first = sorted((text for text in texts if text), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


def _breakable(texts: Collection[str]) -> re.Pattern[str]:
    """Return a pattern of the first character of each text that has more than one."""
    return re.compile(f"(?={_any_of([text for text in texts if len(text) > 1]).pattern})(.)", re.DOTALL)


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
    return [Message("user", f"{system.content}\n\n{others[0].content}"), *others[1:]]
