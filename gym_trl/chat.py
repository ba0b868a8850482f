"""Conversations as token ids: a prompt, and what the template writes between responses. Ids are only appended.

A trainer must be given the ids that were sampled, and text that is decoded and encoded again has other ids. So only the
beginning of a conversation is rendered as a whole (``Chat.open``). Afterwards each observation becomes ids by itself
(``Chat.reply``): what the template writes between an answer and the next one, found in a rendering of three messages.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import takewhile
from typing import Any, Protocol

from gym_trl.encoder import CUT, Encoder
from gym_trl.errors import ChatTemplateError
from gym_trl.text.thoughts import THOUGHTS, split_thinking
from gym_trl.types import Answer, Message, TokenIds

# Texts of questions, of earlier answers and the last one, and of the observation after it in a rendering from which the
# template's own text is read. Like CUT, Unicode reserves these for internal use, and no message has them.
_ASKED, _EARLIER, _SAID, _SHOWN = "\ufdd1", "\ufdd4", "\ufdd2", "\ufdd3"
_SYSTEM = Message("system", "Be brief.")
_DEPTHS = (*range(1, 17), 40)
_ODD_TEXTS = (
    "<think>\nHm.\n</think>\n\n",
    "Yes! 1 + 2 < 3 'no' \"so\"?\n\n# A\n* http://b.c [e] {f} tool " + "i " * 99,
)
_CACHED = 256


class ChatLike(Protocol):
    """Converter of a conversation to token ids, one turn at a time; ``Chat`` is the one of chat templates."""

    stop_ids: frozenset[int]
    """Ids that end the model's turn."""
    stop_strings: tuple[str, ...]
    """Strings that end the model's turn, where no single id does."""

    def open(self, messages: Sequence[Message]) -> TokenIds:
        """Return the ids of a conversation that the model is to continue."""
        ...

    def reply(self, text: str, *, closed: bool) -> TokenIds:
        """Return the ids between two responses; ``closed`` is the result of ``closes`` for the first one."""
        ...

    def closes(self, ids: Sequence[int]) -> bool:
        """Return whether a response ended its turn."""
        ...

    def text(self, ids: TokenIds) -> Answer:
        """Return the thought and the answer of a response."""
        ...


class Chat:
    """Conversations of a Transformers tokenizer with a chat template.

    >>> from gym_trl.testing import tiny_tokenizer
    >>> tokenizer = tiny_tokenizer()
    >>> chat = Chat(tokenizer)
    >>> tokenizer.decode(chat.open([Message("user", "2 + 2?")]))
    '<|user|>2 + 2?<|end|><|assistant|>'
    >>> tokenizer.decode(chat.reply("Right.", closed=True))
    '<|user|>Right.<|end|><|assistant|>'
    >>> tokenizer.decode(chat.reply("Too long.", closed=False))
    '<|end|><|user|>Too long.<|end|><|assistant|>'

    A template can be continued turn by turn if it writes each message in the same way wherever it stands. This is
    checked when the chat is made: with 1 to 16 and with 40 answers, with a system message and after odd texts. Where it
    does not hold, ``refusal`` says why, and ``reply`` raises. ``open`` still renders whole conversations, which a
    history that renders every prompt anew needs.

    Args:
        tokenizer: Renders and encodes.
        chat_template: Template in place of the tokenizer's.
        options: Arguments of the template, such as ``enable_thinking=False``.

    Raises:
        ChatTemplateError: There is no template, or it cannot render a conversation.
    """

    stop_strings: tuple[str, ...] = ()

    def __init__(self, tokenizer: Any, *, chat_template: str | None = None, **options: Any) -> None:
        self._tokenizer, self._options = tokenizer, options
        self._name = getattr(tokenizer, "name_or_path", "") or "the tokenizer"
        if chat_template is not None:
            options["chat_template"] = chat_template
        elif not tokenizer.chat_template:
            raise ChatTemplateError(f"{self._name} has no chat template: pass one with chat_template=...")
        self.encoder = Encoder(tokenizer)
        # The members of a group begin alike, and many environments say the same.
        self._opening_of, self._reply_to = lru_cache(_CACHED)(self._opening), lru_cache(_CACHED)(self._reply)
        # How the template takes messages: as parts, and the system message as a part of the user's first one.
        asked = Message("user", _ASKED)
        self._wants_parts = self._folds_system = False
        self._wants_parts = _ASKED not in self._tried([asked])
        self._folds_system = _SHOWN not in self._tried([Message("system", _SHOWN), asked])
        # What it writes from an answer to the next one, around an observation.
        self._tail = self._tail_after()
        # Mistral's writes the system message into the last user message; it belongs to the first.
        self._folds_system |= self._tail_after(_SYSTEM) != self._tail
        self.refusal = self._why_not()
        """Reason for which a conversation cannot be continued by ``reply``; empty if it can."""
        # What ends a response, and all up to there in a conversation that goes on.
        written = self._tried(_exchanges(1), prompt=False).rpartition(_ASKED)[2]
        before, _, after = written.partition(_SAID)
        if self._tried(_exchanges(1)).rpartition(_SAID)[2] == after:
            after = ""  # it always writes the prompt, so that these tokens may belong to the next turn
        self._end, self._closing = self._end_of_turn(before, self._tail.partition(_SHOWN)[0], after)
        self.stop_ids = frozenset([tokenizer.convert_tokens_to_ids(self._end)] if self._end else [])
        # The control tokens of a reply, without and with such an end before it; what a text adds is an intruder.
        tails = self._tail, self._tail.removeprefix(self._closing)
        self._controls = [self.encoder.control(self.encoder.encode(tail.replace(_SHOWN, "x"))) for tail in tails]
        # What begins a response: a thought that the prompt has opened, and what is written in place of a thought.
        self._prompt = prompt = self._render([asked]).rpartition(_ASKED)[2]
        opened = [marks for marks in THOUGHTS if prompt.rfind(marks.opening) > prompt.rfind(marks.closing)]
        self._opened = opened[0].opening if opened else ""
        self._begins = before.removeprefix(prompt) if before.startswith(prompt) else ""
        if opened and opened[0].closing not in self._begins:
            thought = [Message("user", _ASKED), Message("assistant", _SAID, reasoning_content=_SHOWN)]
            between = self._tried(thought, prompt=False).partition(_SHOWN)[2].partition(_SAID)[0]
            self._begins = between if opened[0].closing in between else f"\n{opened[0].closing}\n\n{opened[0].answer}"
        self._heading = self.encoder.bare(split_thinking(self._begins, self._opened).text)  # functionary's "all"

    def open(self, messages: Sequence[Message]) -> TokenIds:
        """Return the ids of a conversation that the model is to continue, as the template writes it.

        Raises:
            ChatTemplateError: The system message changes what the template writes before later answers.
        """
        return self._opening_of(tuple(messages)).copy()

    def _opening(self, messages: Sequence[Message]) -> TokenIds:
        system = self._plain(messages[0])
        if not self.refusal and system.role == "system" and self._tail_after(system) not in (self._tail, ""):
            raise ChatTemplateError(
                f"{system.content!r:.80} changes what the chat template of {self._name} writes in later turns: say it "
                "by an option of the template, such as chat_template_kwargs={'enable_thinking': False}"
            )
        try:
            ids = self.encoder.encode(self._render([self._plain(message) for message in messages]), begins=True)
            harmless = [replace(one, content="x") if one.role != "assistant" else self._plain(one) for one in messages]
            written = self.encoder.encode(self._render(harmless), begins=True)
            if self.encoder.control(ids) == self.encoder.control(written):
                return ids
        except ChatTemplateError:  # it rejects this text, or this kind of message
            pass
        places = {0xF0000 + n: f"{CUT}{self.encoder.inert(one.content)}{CUT}" for n, one in enumerate(messages)}
        text = self._render([Message(one.role, chr(place)) for one, place in zip(messages, places, strict=True)])
        return self.encoder.encode(text.translate(places), begins=True)

    def reply(self, text: str, *, closed: bool) -> TokenIds:
        """Return the ids between two responses: the rest of the turn unless it is ``closed``, a message, a prompt.

        Raises:
            ChatTemplateError: The template does not continue turn by turn.
        """
        if self.refusal:
            raise ChatTemplateError(self.refusal)
        return self._reply_to(text, closed=closed).copy()

    def _reply(self, text: str, *, closed: bool) -> TokenIds:
        done, after = (self._closing, self._end) if closed else ("", "x")
        try:
            tail = self._render([*_exchanges(1), self._plain(Message("user", text))]).rpartition(_SAID)[2]
            ids = self.encoder.encode(tail.removeprefix(done), after=after)
            if self.encoder.control(ids) == self._controls[closed]:
                return ids
        except ChatTemplateError:  # it rejects this text
            pass
        # The template makes a control token of the text, or writes others around it: put it where another would be.
        inert = f"{CUT}{self.encoder.inert(text)}{CUT}"
        return self.encoder.encode(self._tail.removeprefix(done).replace(_SHOWN, inert), after=after)

    def closes(self, ids: Sequence[int]) -> bool:
        """Return whether a response ended its turn."""
        return bool(ids) and ids[-1] in self.stop_ids

    def text(self, ids: TokenIds) -> Answer:
        """Return the thought and the answer of a response, without control tokens."""
        text = self.encoder.decode(ids)
        if self.closes(ids):
            text = self.encoder.decode(ids[:-1]).removesuffix(self._closing.removesuffix(self._end))
        thinking, answer = split_thinking(text, self._opened)
        return Answer(self.encoder.bare(thinking), self.encoder.bare(answer).removeprefix(self._heading).lstrip())

    def say(self, text: str) -> TokenIds:
        """Return the ids of a whole response with this text and without a thought, as a model would sample it.

        Raises:
            ChatTemplateError: Nothing ends the model's turn, or the ids would be read as another text.
        """
        if not self.stop_ids:
            raise ChatTemplateError(f"{self._name} has no eos_token, and no token that ends the model's turn")
        response = self._begins + self.encoder.plain(text) + (self._closing or self._end)
        ids = self.encoder.encode(response, after=self._prompt)
        if (read := self.text(ids).text) != text.strip():
            raise ChatTemplateError(f"{self._name} cannot write the response {text!r:.80}: it is read as {read!r:.80}")
        return ids

    def _why_not(self) -> str:
        """Return why a conversation cannot be continued turn by turn, after rendering a few; empty if it can be."""
        last = Message("user", _SHOWN)
        if self._tail.count(_SHOWN) != 1:
            return self._refusal("leaves out messages or writes them twice")
        between = self._tail.partition(_SHOWN)[0]
        for opening in ([], [_SYSTEM]):
            begun = self._render([*opening, Message("user", _ASKED)]).partition(_ASKED)[0]
            for count in _DEPTHS:
                text = self._tried([*opening, *_exchanges(count), last])
                if text.count(_SAID) != 1 or text.rpartition(_SAID)[2] != self._tail:
                    return self._refusal(f"writes a message differently after {count} answers")
                before, *parts = text.replace(_SAID, _EARLIER).split(_EARLIER)[:-1]  # before the first, between two
                alike = {f"{between}{_ASKED}{before.partition(_ASKED)[2]}", *parts}
                if before.partition(_ASKED)[0] != begun or len(parts) != count - 1 or len(alike) > 1:
                    return self._refusal("rewrites or leaves out messages when others follow")
        for odd in _ODD_TEXTS:
            said = [replace(one, content=odd + one.content) for one in _exchanges(2)]
            if self._tried([*said, last]).rpartition(_SAID)[2] != self._tail:
                return self._refusal(f"writes a message differently after others, such as {odd!r:.40}")
        return ""

    def _refusal(self, what: str) -> str:
        return (
            f"the chat template of {self._name} {what}, so that a conversation cannot be continued turn by turn: pass "
            "another with chat_template=..., such as trl.get_training_chat_template(tokenizer), or render every prompt "
            "anew with history="
        )

    def _end_of_turn(self, begun: str, before: str, last: str) -> tuple[str, str]:
        """Return the token that ends a response, and the text up to it in a conversation that goes on.

        The declared end of the tokenizer counts if the template writes it. Cohere's template ends a response and then
        the turn: it is the last token that both a last and an earlier answer have. gpt-oss ends its last answer by
        another token than earlier ones: it is that one. A token that ends the thoughts before such answers ends none.

        Args:
            begun: Text before the answer.
            before: Text between an answer and the next message.
            last: Text after an answer that nothing follows.
        """
        marks = self.encoder.marks
        between, final, eos = marks.findall(before), marks.findall(last), self._tokenizer.eos_token
        shared = [mark for mark, _ in takewhile(lambda pair: pair[0] == pair[1], zip(between, final, strict=False))]
        declared = [eos] if eos in between and (eos in final or not final) else []
        end = next(iter(declared or shared[-1:] or final[:1] or between[:1]), eos)
        if any(marks.closing == end and marks.answer and marks.answer in begun for marks in THOUGHTS):
            end = eos or end
        return end, before[: before.index(end) + len(end)] if end in between else ""

    def _plain(self, message: Message) -> Message:
        texts = {"content": message.content, "reasoning_content": message.reasoning_content}
        own = message.role == "assistant"
        return replace(message, **{name: self.encoder.plain(text, own=own) for name, text in texts.items()})

    def _render(self, messages: Sequence[Message], *, prompt: bool = True) -> str:
        if self._folds_system and messages[0].role == "system":
            system, first, *rest = messages
            messages = [Message("user", f"{system.content}\n\n{first.content}"), *rest]
        said: list[dict[str, Any]] = [dict(message.as_dict()) for message in messages]
        if self._wants_parts:
            said = [{**one, "content": [{"type": "text", "text": one["content"]}]} for one in said]
        try:
            return str(
                self._tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=prompt, **self._options)
            )
        except Exception as error:  # a template may raise anything
            roles = ", ".join(message.role for message in messages)
            raise ChatTemplateError(f"the chat template of {self._name} cannot render {roles}: {error}") from error

    def _tail_after(self, *system: Message) -> str:
        return self._tried([*system, *_exchanges(1), Message("user", _SHOWN)]).rpartition(_SAID)[2]

    def _tried(self, messages: Sequence[Message], *, prompt: bool = True) -> str:
        try:
            return self._render(messages, prompt=prompt)
        except ChatTemplateError:
            return ""


def _exchanges(count: int) -> list[Message]:
    """Return questions and answers, the last of which is ``_SAID``."""
    answers = [_EARLIER] * (count - 1) + [_SAID]
    return [message for answer in answers for message in (Message("user", _ASKED), Message("assistant", answer))]
