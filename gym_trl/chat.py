"""The tokens of one episode, appended to and never re-rendered."""

import math
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
from gym_trl.types import Answer, Logprobs, Message, TokenIds

# Unicode keeps these code points out of all text ("noncharacters, for internal use"), so no message can hold one
# once `_Codec.plain` has been over it.
_BREAK = "\ufdd0"
_ASKED = Message("user", "\ufdd1")
_ANSWERED = Message("assistant", "\ufdd2")
_TOLD = "\ufdd3"
_UNWANTED = re.compile("[\ud800-\udfff\ufdd0-\ufdd3]")


_SAID = [Message("user", "Say it\ufdd1"), Message("assistant", "It."), Message("user", "Again.")]

# Lengths of conversations are checked with so many answers at once, one by one as they come up to so many, and further
# ahead; as long as a check takes less than these seconds that is done before the first conversation.
_AT_FIRST, _EACH_LENGTH, _SECONDS = 7, 32, 0.005
# Of the numbers in a template so many are tried as thresholds, up to so many answers.
_NUMBERS, _NEAR = 8, 300
# Openings are told apart by the texts of their system messages as long as there are fewer than this.
_KINDS = 16
# Conversations are compared with what they really say as long as this pays: so many messages at first, and so many of
# a message more for each turn.
_FIRST_CREDIT, _CREDIT = 24.0, 0.05
_MOST_FACTS = 16
_FACTS: "dict[Hashable, _Facts]" = {}


class _Facts(NamedTuple):
    """What a template does, found out by rendering short conversations."""

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
    """How the text of a conversation becomes token ids, one turn at a time.

    An episode asks for ``open`` once, then for one ``reply`` per turn, and appends what it gets to what was sampled.
    """

    @property
    def stop_ids(self) -> frozenset[int]:
        """The ids that end the model's turn; engines stop on them as on the tokenizer's end of sequence."""
        ...

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """What ends the model's turn where no id says so; engines keep it in what they return."""
        ...

    def open(self, messages: Sequence[Message]) -> TokenIds:
        """The ids that start an episode, up to where the model begins to write."""
        ...

    def reply(self, text: str, *, role: str = "user", closed: bool) -> TokenIds:
        """The ids between two sampled turns; ``closed`` says that the first one had ended, see ``closes``."""
        ...

    def closes(self, ids: Sequence[int]) -> bool:
        """Whether these sampled ids end the model's turn, so that ``reply`` need not."""
        ...

    def text(self, ids: TokenIds) -> Answer:
        """What the model said, its thinking apart from its answer."""
        ...


class TemplateChat:
    """Speak any chat template, of any Hugging Face tokenizer or of a processor that has one.

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

    A reply is found by rendering three short messages and keeping what follows the second, so its cost does not
    depend on the episode's length, and templates that rewrite what was said earlier do no harm. Where the model's turn
    ends without the template's end-of-turn mark, because its tokens ran out or it chose another end, the reply begins
    with that mark. A template that refuses system messages gets them in front of the first user message.

    Only the template and the model write control tokens: ``<|im_end|>`` in an observation becomes the ids of its
    characters, not the id that ends a turn. Control tokens are those that the tokenizer calls special, and other added
    tokens that stand in the template, such as ``<think>`` and ``<tool_response>`` in Qwen3's, with what closes them,
    unless they are plain words. The unknown token is none of them, unless it also begins or ends sequences. As
    normalisers and templates edit texts, the ids of each message are checked: where they hold other control tokens
    than those of a harmless text, the text is encoded apart from what the template writes around a harmless one. In an
    assistant message of the prompt, which shows what the model might write, added tokens that are not special keep
    their meaning.

    Args:
        tokenizer: Renders and encodes; its ``chat_template`` is used where none is given.
        chat_template: A Jinja template, or the name of one of the tokenizer's templates.
        chat_template_kwargs: Given to every rendering, such as ``enable_thinking=False``.

    Raises:
        ChatTemplateError: there is no template, or it cannot be extended turn by turn.
    """

    stop_strings: tuple[str, ...] = ()

    def __init__(self, tokenizer: Any, *, chat_template: str | None = None, **chat_template_kwargs: Any) -> None:
        self._tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
        self._name = _either("name_or_path", self._tokenizer, tokenizer) or type(tokenizer).__name__
        own = _either("chat_template", self._tokenizer, tokenizer)
        # Kept as it is now: trainers are known to change their tokenizer's template later on.
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
        """The ids that start an episode, up to and including the generation prompt."""
        spoken = _fold_system(messages) if self._folds_system else messages
        roles = tuple(message.role for message in spoken)
        return self._codec.write(
            lambda texts: self._render(*map(Message, roles, texts)),
            spoken,
            # What the template writes may depend on what an answer says, on whether it holds thinking for instance.
            key=None if "assistant" in roles else roles,
        )

    def reply(self, text: str, *, role: str = "user", closed: bool) -> TokenIds:
        """The ids between two sampled turns: the end of the first unless ``closed``, the message, the prompt.

        Raises:
            ChatTemplateError: the template has no place for a message of this ``role`` after an answer.
        """
        self._check(role)

        def render(texts: Sequence[str]) -> str:
            tail = self._framed(Message(role, texts[0]))
            # A turn may end on what heads the next user message (GLM); one of another role keeps its own head.
            return tail.removeprefix(self._closing) if closed else tail

        return self._codec.write(render, [Message(role, text)], after=self._anchor, key=(role, closed))

    def closes(self, ids: Sequence[int]) -> bool:
        """Whether these sampled ids end with the template's own end of turn."""
        return bool(ids) and ids[-1] in self._closers

    def text(self, ids: TokenIds) -> Answer:
        """What the model said, without control tokens, its thinking apart from its answer."""
        thinking, answer = split_thinking(self._opened + self._codec.decode(ids))
        if self._header:
            answer = answer.rpartition(self._header)[2]
        return Answer(self._codec.strip(thinking), self._codec.strip(answer))

    def follow(self, messages: Sequence[Message], answers: int) -> None:
        """Check that the template writes a conversation as ``open`` and ``reply`` have written its messages.

        Each length is checked once, with other texts. What the conversation really says is checked for the first
        conversations, and then as often as that costs little.

        Args:
            messages: The whole conversation, which ends with a message that is about to be answered.
            answers: How many of the model's answers it holds, each followed by a user message.

        Raises:
            ChatTemplateError: it does not; says in what and after how many answers.
        """
        self._credit += _CREDIT
        spoken = _fold_system(messages) if self._folds_system else messages
        first, begun = spoken[0], len(spoken) - 2 * answers
        # Few templates look at what a system message says, and every row of a dataset may have its own.
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
        """Look for all that was said to this model in one rendering of the conversation."""
        texts = [Message(message.role, self._codec.plain(message.content)) for message in spoken]
        try:
            rendered, *framed = (
                self._render(*texts),
                *(self._framed(message) for message in texts[-2 * answers + 1 :: 2]),
            )
        except ChatTemplateError:  # it refuses one of these texts; see ``_Codec.write``
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
        """What is to be known of the template, found out once in a process."""
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
        """All that decides what the template writes; ``None`` where that is not known."""
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
        except Exception as error:  # templates are programs and raise what they like
            raise self._refusal(f"raises {error!r} on {', '.join(message.role for message in messages)}") from error
        return str(rendered)

    def _render_all(self, messages: Sequence[Message]) -> str:
        return self._render(*messages)

    def _content(self, text: str) -> str | list[dict[str, str]]:
        return [{"type": "text", "text": text}] if self._parts else text

    def _tail(self, message: Message) -> str:
        return self._render(_ASKED, _ANSWERED, message).partition(_ANSWERED.content)[2]

    def _framed(self, message: Message) -> str:
        """The same, without rendering where it is known what the template writes around such a message."""
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
        """Find out whether messages are strings, or lists of parts as some templates of models with eyes want them."""
        refusals = []
        for parts in (False, True):  # given a string, such a template raises or silently drops it
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
        if role != "user":  # for which it is done when all else is known
            self._establish(role)
        self._roles.add(role)

    def _establish(self, role: str) -> None:
        """Check that the template writes a message of this role alike wherever it stands, with and without a system."""
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
            # Mistral writes it into the last user message, wherever that is.
            self._folds_system = True
        if role == "user":
            self._continuations["", "user"] = plain
            if told and not self._folds_system:
                self._continuations["", "system", "user"] = told

    def _continuation(self, opening: Sequence[Message], role: str = "user", *, deep: bool = True) -> Continuation:
        """What the template writes between messages, checked for as many answers as take little time."""
        found = Continuation(self._render_all, opening, role)
        plain = self._continuations.get(("", "user"))
        if plain and role == "user" and found.differs_from(plain):
            raise DiffersError(f"writes a user message otherwise in a conversation that begins {_shown(opening)}")
        if not deep:
            return found
        # A threshold stands in the template, most likely, and counts messages or answers.
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
        """Refuse templates that write the same conversation in two ways."""
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
        """Whether a system message in front of the first user message is what the template makes of it anyway."""
        openings = [
            [Message("system", system), Message("user", said)] for system, said in (("A b.", "C"), ("D", "e\nf"))
        ]
        return all(self._render(*opening) == self._render(*_fold_system(opening)) for opening in openings)

    def _prompts_alike(self, history: str) -> bool:
        """Whether a later message is followed by what asks for an answer after the first one."""
        asked = self._render(_ASKED).partition(_ASKED.content)[2]
        unasked = self._render(_ASKED, prompt=False).partition(_ASKED.content)[2]
        prompt = asked.removeprefix(unasked)
        header = history.partition(_ASKED.content)[2].partition(_ANSWERED.content)[0]
        # Without a prompt of its own ("[INST] ... [/INST]") the template must head an answer with nothing more.
        return history.endswith(prompt) if prompt else header.strip() == asked.strip()

    def _keeps_system(self) -> bool:
        try:
            return _TOLD in self._render(Message("system", _TOLD), _ASKED)
        except ChatTemplateError:
            return False

    def _find_end(self) -> tuple[str, list[str], list[str]]:
        """What the template writes after an answer, the mark that ends a turn, and all that may have ended one."""
        ended = self._tail(Message("user", _TOLD)).partition(_TOLD)[0]
        last = self._render(_ASKED, _ANSWERED, prompt=False).partition(_ANSWERED.content)[2]
        if last == self._render(_ASKED, _ANSWERED).partition(_ANSWERED.content)[2]:
            last = ""  # the template prompts whether asked to or not: its marks may head the next turn
        after, final = self._codec.added.findall(ended), self._codec.added.findall(last)
        shared = [mark for mark, _ in takewhile(lambda pair: pair[0] == pair[1], zip(after, final, strict=False))]
        # Cohere ends a response, then the turn: the end is the last mark that both have.
        marks = shared or after[:1]
        closing = "".join(re.split(f"({self._codec.added.pattern})", ended)[: 2 * len(marks)])
        # gpt-oss ends the last turn otherwise than earlier ones, and what ends those also ends its thinking.
        stop = final[:1] if final and not shared else marks[-1:]
        return closing, stop, list(dict.fromkeys(marks[-1:] + stop))

    def _find_header(self) -> tuple[str, str]:
        """What heads an answer besides the generation prompt, and the opening of thinking that ends the prompt."""
        prompt = self._render(_ASKED).partition(_ASKED.content)[2]
        history = self._render(_ASKED, _ANSWERED, _ASKED).partition(_ASKED.content)[2].partition(_ANSWERED.content)[0]
        header = split_thinking(history.removeprefix(prompt)).text if history.startswith(prompt) else ""
        opened = (prompt[start:] for start in reversed(range(len(prompt))))
        thinks = (end for end in opened if _TOLD in split_thinking(end + _TOLD).thinking)
        return header if self._codec.added.search(header) else "", next(thinks, "")


class DelimiterChat:
    r"""Speak with hand-written markers, for tokenizers without a chat template.

    >>> chat = DelimiterChat(lambda text: text.encode(), lambda ids: bytes(ids).decode(), assistant=("Model: ", "\n"))
    >>> bytes(chat.open([Message("user", "2 + 2?")]))
    b'User: 2 + 2?\nModel: '
    >>> chat.text([*b"4\n"])
    Answer(thinking='', text='4')
    >>> bytes(chat.reply("Right.", closed=chat.closes([*b"4\n"])))
    b'User: Right.\nModel: '

    Each role has what comes before and after its messages; the model's turn ends with what comes after
    ``assistant``. Where that is a single id in any surroundings, ``stop_ids`` has it; where it is not, give the
    engine ``stop_strings``. Messages can write these markers: unlike control tokens, they are plain text.

    Args:
        encode: Turns text to ids without adding any, or is a Hugging Face tokenizer.
        decode: Turns ids to text, control tokens included; a tokenizer brings its own.
        bos: Starts every conversation.
        system: Before and after a system message.
        user: Before and after what the environment says.
        assistant: Before and after what the model says.
        roles: Before and after messages of other roles, such as ``tool=("Tool: ", "\n")``.

    Raises:
        ChatTemplateError: nothing ends the model's turn.
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
        """The ids that start an episode, up to and including what heads the model's turn."""
        marks = [self._marks_of(message.role) for message in messages]

        def render(texts: Sequence[str]) -> str:
            said = "".join(before + text + after for (before, after), text in zip(marks, texts, strict=True))
            return self._bos + said + self._head

        return self._codec.write(render, messages, key=tuple(message.role for message in messages))

    def reply(self, text: str, *, role: str = "user", closed: bool) -> TokenIds:
        """The ids between two sampled turns: the end of the first unless ``closed``, the message, the next head.

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
        """Whether these sampled ids end with the end of turn, also where it is merged into their last id."""
        # No id stands for less than a byte, so no more of them than this can hold the end.
        return self._codec.decode(ids[-len(self._end.encode()) :]).endswith(self._end)

    def text(self, ids: TokenIds) -> Answer:
        """What the model said, without the end of turn, its thinking apart from its answer."""
        thinking, answer = split_thinking(self._codec.decode(ids).removesuffix(self._end))
        return Answer(self._codec.strip(thinking), self._codec.strip(answer))

    def _marks_of(self, role: str) -> tuple[str, str]:
        if role not in self._marks:
            raise ChatTemplateError(f"DelimiterChat has no markers for the role {role!r}; pass {role}=('...', '...')")
        return self._marks[role]

    def _stands_alone(self, end_ids: TokenIds) -> bool:
        """Whether the end is one id whatever it follows; some tokenizers have one for a full stop and a line end."""
        return len(end_ids) == 1 and all(self._codec.encode(mark + self._end)[-1:] == end_ids for mark in "a1.!?)]>\"'")


class Transcript:
    """Ids, mask and logprobs of one episode, which grow together and never change.

    >>> transcript = Transcript([1, 2])
    >>> transcript.prompt([])
    [1, 2]
    >>> transcript.commit([], [3], [-0.5])
    >>> transcript.prompt([8, 9])  # asking commits to nothing
    [1, 2, 3, 8, 9]
    >>> transcript.commit([8, 9], [4, 5], [-0.25, -1.0])
    >>> transcript.completion_ids, transcript.mask, transcript.logprobs
    ([3, 8, 9, 4, 5], [1, 0, 0, 1, 1], [-0.5, 0.0, 0.0, -0.25, -1.0])

    The engine's prompts are prefixes of ``prompt_ids + completion_ids``, which always ends on a sampled id. Each
    request copies the ids once; nothing else takes time that depends on their number. The properties are copies.
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
        """How many ids follow the prompt."""
        return len(self._mask)

    @property
    def prompt_ids(self) -> TokenIds:
        """What the episode was opened with."""
        return self._ids[: self._start]

    @property
    def completion_ids(self) -> TokenIds:
        """What was sampled, and what the environment said in between."""
        return self._ids[self._start :]

    @property
    def mask(self) -> list[int]:
        """One entry per completion id: 1 where it was sampled, else 0."""
        return self._mask.copy()

    @property
    def logprobs(self) -> Logprobs:
        """One entry per completion id, in nats; 0.0 where it was not sampled."""
        return self._logprobs.copy()

    def prompt(self, delta: TokenIds) -> TokenIds:
        """All ids so far, then ``delta``, as a fresh list; the transcript stays as it was."""
        return self._ids + delta

    def commit(self, delta: TokenIds, ids: TokenIds, logprobs: Logprobs) -> None:
        """Append ``delta``, which the environment said, and the ``ids`` that were sampled after it.

        A logprob that is not a number is kept as ``None``.

        Raises:
            TranscriptError: nothing was sampled, or not as many logprobs as ids were given.
        """
        if not ids:
            raise TranscriptError("a turn needs at least one sampled id, got none")
        if len(ids) != len(logprobs):
            raise TranscriptError(f"every sampled id needs a logprob, got {len(ids)} ids and {len(logprobs)} logprobs")
        self._ids += [*delta, *ids]
        self._mask += [0] * len(delta) + [1] * len(ids)
        self._logprobs += [0.0] * len(delta) + [
            None if logprob is None or math.isnan(logprob) else logprob for logprob in logprobs
        ]


class _Written(NamedTuple):
    """The control tokens that a template writes around harmless texts."""

    head: TokenIds
    """All ids up to the last control token before the first text."""
    tail: TokenIds
    """All ids from the first control token after the last text."""
    control: TokenIds
    """All control tokens in their order."""

    def around(self, ids: TokenIds, control_ids: frozenset[int], *, alone: bool) -> bool:
        """Whether these ids hold the same control tokens; ``alone`` says that they stand around one text."""
        head, tail, control = self
        start, stop = len(head), len(ids) - len(tail)
        if start > stop or ids[:start] != head or ids[stop:] != tail:
            return False
        if alone:
            return control_ids.isdisjoint(ids[start:stop])
        return list(filter(control_ids.__contains__, ids)) == control


class _Codec:
    """Text to ids and back, where messages can be kept from writing control tokens.

    Args:
        encode: Text to ids.
        decode: Ids to text.
        special: Tokens that are no part of what a model says.
        added: Tokens that a template may end a turn with.
        control: Tokens that messages must not write: ``special`` and what a template marks its messages with.
        control_ids: Their ids, and those of control tokens that no text stands for.
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
        """Return the ids of what ``render`` makes of the messages' texts, with no control token of theirs.

        Args:
            render: Writes texts, one for each message, with what stands around them.
            messages: What is said.
            after: What the ids follow.
            key: Names a rendering that writes the same control tokens around all harmless texts.
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
            # The template may write other ones around an empty text, or a long one.
            masked = [self._harmless.sub("x", message.content) for message in messages]
            if self._controls(ids) == self._controls(self.encode(render(masked), after=after)):
                return ids
        except ChatTemplateError:  # it refuses this text, not this kind of message
            pass
        pieces = PLACE.split(render([chr(FIRST_PLACE + index) for index in range(len(messages))]))
        for index in range(1, len(pieces), 2):
            text = _UNWANTED.sub("\ufffd", messages[ord(pieces[index]) - FIRST_PLACE].content)
            pieces[index] = self._inert(text, after)
        return self.encode(_BREAK.join(pieces), after=after)

    def plain(self, text: str) -> str:
        """Return a message as it may be rendered: without what tokenizers choke on, its control tokens broken up."""
        if not text.isascii():
            text = _UNWANTED.sub("\ufffd", text)
        return self._breakable.sub(rf"\1{_BREAK}", text) if self._control.search(text) else text

    def encode(self, text: str, *, after: str = "") -> TokenIds:
        """Return the ids of ``text`` as they follow those of ``after``."""
        first, *others = text.split(_BREAK)
        ids = self._continue(after, first)
        for piece in others:
            ids += self._continue(after, piece)
        return ids

    def id(self, mark: str) -> int:
        """Return the id of an added token."""
        return self._encode(mark)[-1]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids``, control tokens included; ids that stand for nothing are left out."""
        try:
            return self._decode(ids)
        except Exception:  # each tokenizer has its own error for an id that it does not know
            return "".join(map(self._decode_one, ids)) if len(ids) != 1 else ""

    def strip(self, text: str) -> str:
        """Return ``text`` without special tokens and the blanks around it."""
        return self._special.sub("", text).strip()

    def _plain(self, message: Message) -> str:
        if message.role != "assistant":
            return self.plain(message.content)
        return self._breakable_special.sub(rf"\1{_BREAK}", _UNWANTED.sub("\ufffd", message.content))

    def _find_written(
        self, render: Callable[[Sequence[str]], str], messages: Sequence[Message], after: str
    ) -> _Written:
        # An answer of the prompt keeps its marks: a template that drops thinking finds it by them.
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
            # Where no text is left between them, the head is all there is.
            first[:head],
            last[tail:] if len(pieces) > 1 else [],
            self._controls(self.encode(_BREAK.join(pieces), after=after)),
        )

    def _controls(self, ids: TokenIds) -> TokenIds:
        return list(filter(self._control_ids.__contains__, ids))

    def _inert(self, text: str, after: str) -> str:
        """A text broken up until its ids hold no control token; a character that is one is replaced."""
        if self._control_ids.isdisjoint(self.encode(text, after=after)):
            return text
        if len(text) == 1:
            return self._inert("\ufffd", after) if text < "\ufffd" else ""
        middle = len(text) // 2
        return f"{self._inert(text[:middle], after)}{_BREAK}{self._inert(text[middle:], after)}"

    def _decode_one(self, token_id: int) -> str:
        return self.decode([token_id])

    def _continue(self, before: str, text: str) -> TokenIds:
        # Tokenizers of the sentencepiece kind put a blank in front of whatever they are given first.
        if before not in self._heads:
            self._heads[before] = list(self._encode(before)) if before else []
        head, ids = self._heads[before], list(self._encode(before + text))
        return ids[len(head) :] if ids[: len(head)] == head else list(self._encode(text))


class _FastTokenizer:
    """What a tokenizer of Transformers does to a text, without what Transformers does around it."""

    @classmethod
    def of(cls, tokenizer: Any) -> "_FastTokenizer | None":
        """For tokenizers that are a library's Rust code and add nothing of their own to it."""
        if "transformers" not in sys.modules:  # then it is nobody's tokenizer
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
        # Whoever cut or filled batches before has left that switched on; Transformers switches it off.
        switched = backend.truncation or backend.padding or backend.encode_special_tokens
        if switched or getattr(self._tokenizer, "split_special_tokens", False):
            return list(self._tokenizer.encode(text, add_special_tokens=False))
        # Of its ways to encode, the one that does not count where in the text each id stands.
        return list(backend.encode_batch_fast([text], add_special_tokens=False)[0].ids)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.backend_tokenizer.decode(list(ids), skip_special_tokens=False))


def _tokenizer_codec(tokenizer: Any, *, written: str = "") -> _Codec:
    """The codec of a Hugging Face tokenizer, where ``written`` holds the marks that messages are written with."""
    tokens: Mapping[int, Any] = tokenizer.added_tokens_decoder
    special = {*tokenizer.all_special_tokens, *(token.content for token in tokens.values() if token.special)}
    # Some tokenizers add runs of blanks, which end no turn, and users add words.
    added = {token.content for token in tokens.values() if token.content.strip()}
    # With what opens something, a template uses what closes it.
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
    else:  # it has texts only
        for encoded in (tokenizer.encode(mark, add_special_tokens=False) for mark in marks):
            ids.update(encoded if len(encoded) == 1 else ())
    unknown = getattr(tokenizer, "unk_token_id", None)
    ends = {getattr(tokenizer, name, None) for name in ("bos_token_id", "eos_token_id")}
    return ids if unknown in ends else ids - {unknown}


def _source(tokenizer: Any, template: str) -> str:
    """The template itself, which may have been given by its name."""
    own = getattr(tokenizer, "chat_template", None)
    return str(own.get(template, template) if isinstance(own, dict) else template)


# Transformers 5.23 hands plain data to templates and no functions, so a clock of ours is a macro of the template's.
_CLOCK = (
    "{% macro strftime_now(format) %}{% set told = namespace(text=format) %}{% for sign, value in the_clock.items() %}"
    "{% set told.text = told.text | replace(sign, value) %}{% endfor %}{{ told.text }}{% endmacro %}"
)


def _clock(time: datetime) -> dict[str, str]:
    return {f"%{sign}": time.strftime(f"%{sign}") for sign in "aAbBcdHIjmMpSUwWxXyY"}


def _renders_jinja(tokenizer: Any) -> bool:
    """Whether chats are rendered by Transformers itself."""
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
    """The first character of each text, where it can be cut off."""
    return re.compile(f"(?={_any_of([text for text in texts if len(text) > 1]).pattern})(.)", re.DOTALL)


def _shown(opening: Sequence[Message]) -> str:
    told = f" and the system message {opening[0].content[:40]!r}" if opening[0].role == "system" else ""
    return f"with the roles {', '.join(message.role for message in opening)}{told}"


def _fold_system(messages: Sequence[Message]) -> Sequence[Message]:
    """The system message put in front of the first user message, separated by a blank line."""
    if not messages or messages[0].role != "system":
        return messages
    system, *others = messages
    if not others or others[0].role != "user":
        return [Message("user", system.content), *others]
    return [Message("user", f"{system.content}\n\n{others[0].content}"), *others[1:]]
