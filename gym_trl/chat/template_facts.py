"""Facts about a chat template, found by rendering short conversations before the first one that is played.

A template can be extended turn by turn if it writes each message in the same way wherever it stands. So its text around
a message is compared at several depths, with placeholder texts, with and without a system message, after other texts,
and beside the numbers that occur in it, which may be thresholds. What ends a turn and what marks a thought is read from
a message that has both. The facts are kept by all that a rendering depends on, because thousands of episodes begin
alike and no turn may cost more than its own length.
"""

import re
import time
import warnings
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import takewhile
from typing import Any, NamedTuple

from gym_trl.chat.codec import Codec
from gym_trl.chat.continuation import Continuation, DiffersError
from gym_trl.chat.find_thoughts import check_thoughts, find_thoughts
from gym_trl.chat.template_text import ANSWERED, ASKED, TemplateText, fold_system
from gym_trl.errors import ChatTemplateError
from gym_trl.text.thoughts import Thoughts
from gym_trl.types import Message

_OBSERVED = "\ufdd3"
_SPOKEN = [Message("user", "Say it\ufdd1"), Message("assistant", "It."), Message("user", "Again.")]

# Numbers of answers for which a template is checked: fewer than _AT_FIRST before the first conversation, then doubled
# as long as one check takes less than _SECONDS.
_AT_FIRST, _SECONDS = 7, 0.005
# Up to _NUMBERS numbers in a template are tried as thresholds, up to _NEAR answers.
_NUMBERS, _NEAR = 8, 300
_MOST_FACTS = 16
_FACTS: "dict[Hashable, TemplateFacts]" = {}


class TurnEnds(NamedTuple):
    """Tokens that end the model's turn."""

    own: str = ""
    """Token that ends a response; empty if neither the template nor the tokenizer has one."""
    closing: str = ""
    """Text after an answer up to and including ``own``."""
    marks: Sequence[str] = ()
    """Control tokens after an answer, as far as they end it: what a response may end with instead of the template."""


@dataclass(eq=False)
class TemplateFacts:
    """Properties of a template."""

    lists_parts: bool = False
    """The content of a message is a list of its parts."""
    folds_system: bool = True
    """It has no place for system messages, so they are put in front of the first user message."""
    roles: set[str] = field(default_factory=set)
    """Roles of messages that it appends after an answer, as far as they have been checked."""
    continuations: dict[tuple[str, ...], Continuation] = field(default_factory=dict)
    """Text between messages by the beginning of a conversation: the system message's text, and the roles."""
    ends: TurnEnds = field(default_factory=TurnEnds)
    thoughts: Thoughts = field(default_factory=Thoughts)


class TemplateChecks:
    """Checks of one template, with the facts that they find.

    Args:
        text: The template.
        codec: Codec of its tokenizer.
        end_ids: Ids at which the model ends a response, beside the tokenizer's ``eos_token``.

    Raises:
        ChatTemplateError: It cannot be extended turn by turn.
    """

    def __init__(self, text: TemplateText, codec: Codec, end_ids: Collection[int]) -> None:
        self._text, self._codec, self._end_ids = text, codec, sorted({*end_ids} - {None})
        key = self._key()
        facts = None if key is None else _FACTS.get(key)
        if facts is None:
            facts = self.facts = TemplateFacts()
            self._find()
            if key is not None:
                if len(_FACTS) >= _MOST_FACTS:
                    _FACTS.clear()
                _FACTS[key] = facts
        self.facts = facts
        text.lists_parts, text.thought_field = facts.lists_parts, facts.thoughts.field

    def _find(self) -> None:
        """Find all facts, and refuse a template that cannot be extended."""
        facts = self.facts
        self._check_content()
        self._check_chance()
        facts.folds_system = not self._keeps_system()
        if self._text.appends:
            self._establish("user")
        facts.ends = self._find_ends()
        facts.thoughts = self._find_thoughts(facts.ends.closing.removesuffix(facts.ends.own))

    def _check_content(self) -> None:
        """Find out if the template expects strings as contents, or lists of parts as for some vision models."""
        refusals = []
        for parts in (False, True):  # such a template raises on a string, or drops it
            self._text.lists_parts = self.facts.lists_parts = parts
            try:
                return self.check("user")
            except ChatTemplateError as refusal:
                refusals.append(refusal)
        raise refusals[0]

    def check(self, role: str) -> None:
        """Check that the template appends messages of a role after an answer.

        Raises:
            ChatTemplateError: It does not.
        """
        if role in self.facts.roles:
            return
        observed = Message(role, _OBSERVED)
        history = self._text.render(ASKED, ANSWERED, observed)
        marks = [ASKED.content, ANSWERED.content, _OBSERVED]
        if not self._text.appends and history.count(_OBSERVED) == 1:
            self.facts.roles.add(role)
            return
        if any(history.count(mark) != 1 for mark in marks):
            raise self._text.refusal(f"drops or repeats a message of user, assistant, {role}")
        if [mark for mark in history if mark in marks] != marks:
            raise self._text.refusal(f"changes the order of user, assistant, {role}")
        if not self._prompts_alike(history):
            raise self._text.refusal(f"writes no generation prompt, or a different one, after a {role} message")
        if role != "user":  # for this role it is done later
            self._establish(role)
        self.facts.roles.add(role)

    def _establish(self, role: str) -> None:
        """Check that the template writes this role's messages the same way everywhere, with or without a system one."""
        with_system = None
        try:
            plain = self.continuation([Message("user", "")], role)
        except DiffersError as error:
            raise self._text.refusal(str(error)) from None
        try:
            if not self.facts.folds_system:
                with_system = self.continuation([Message("system", ""), Message("user", "")], role)
            if with_system and with_system.differs_from(plain):
                raise DiffersError(f"writes a {role} message differently where there is a system message")
        except DiffersError as error:
            if role != "user" or not self._folds_alike():
                raise self._text.refusal(str(error)) from None
            # Mistral's template writes the system message into the last user message, wherever that is.
            self.facts.folds_system = True
        if role == "user":
            self.facts.continuations["", "user"] = plain
            if with_system and not self.facts.folds_system:
                self.facts.continuations["", "system", "user"] = with_system

    def continuation(self, opening: Sequence[Message], role: str = "user", *, deep: bool = True) -> Continuation:
        """Return the template's text between messages, checked for as many answers as take little time."""
        continuation = Continuation(self._text.render_all, opening, role)
        plain = self.facts.continuations.get(("", "user"))
        if plain and role == "user" and continuation.differs_from(plain):
            raise DiffersError(f"writes a user message differently in a conversation that begins {_shown(opening)}")
        if not deep:
            return continuation
        # A threshold is probably a number in the template that counts messages or answers.
        numbers = sorted({int(digits) for digits in re.findall(r"(?<!\d)\d{1,3}(?!\d)", self._text.source)})[-_NUMBERS:]
        near = {count for number in numbers for count in (*range(number // 2 - 2, number // 2 + 2), number, number + 1)}
        for answers in [*range(2, _AT_FIRST), *sorted(count for count in near if _AT_FIRST <= count <= _NEAR)]:
            continuation.check(self._text.render_all, answers)
        continuation.checked = answers = _AT_FIRST - 1
        began = spent = time.process_time()
        while spent - began < _SECONDS and answers < _NEAR:
            answers *= 2
            began = time.process_time()
            continuation.check(self._text.render_all, answers)
            spent = time.process_time()
        continuation.check_texts(self._text.render_all)
        continuation.ahead = answers
        return continuation

    def _check_chance(self) -> None:
        """Refuse templates that render the same conversation in different ways."""
        self._check_chance_of(_SPOKEN)  # also a default system message
        if self._keeps_system():
            self._check_chance_of([Message("system", "A"), *_SPOKEN])

    def _check_chance_of(self, spoken: Sequence[Message]) -> None:
        text = self._text
        draws = re.search(r"\|\s*random\b|\blipsum\b", text.source)
        if draws or len({text.render(*spoken) for _ in range(4)}) > 1:
            raise text.refusal("renders the same conversation differently each time (random numbers or the clock)")
        if "strftime_now" not in text.source or "strftime_now" in text.options or not text.is_jinja:
            return
        clocks = [datetime(2001, 2, 3, 4, 5, 6), datetime(2001, 2, 3, 17, 18, 19), datetime(2012, 11, 10, 4, 5, 6)]
        morning, evening, later = (
            text.render(*spoken, chat_template=_CLOCK + text.source, the_clock=_clock(time)) for time in clocks
        )
        if morning != evening:
            raise self._text.refusal("writes the time of day, which changes between turns")
        if morning.partition(_SPOKEN[0].content)[2] != later.partition(_SPOKEN[0].content)[2]:
            raise self._text.refusal("writes the date after messages, which may change between turns")

    def _folds_alike(self) -> bool:
        """Return whether the template renders a system message as ``fold_system`` writes it."""
        openings = [
            [Message("system", system), Message("user", text)] for system, text in (("A b.", "C"), ("D", "e\nf"))
        ]
        return all(self._text.render(*opening) == self._text.render(*fold_system(opening)) for opening in openings)

    def _prompts_alike(self, history: str) -> bool:
        """Return whether a later message is followed by the same generation prompt as the first one."""
        if prompt := self._generation_prompt():
            return history.endswith(prompt)
        # Without a prompt of its own ("[INST] ... [/INST]") the template must write nothing else before an answer.
        asked = self._text.render(ASKED).partition(ASKED.content)[2]
        return history.partition(ASKED.content)[2].partition(ANSWERED.content)[0].strip() == asked.strip()

    def _generation_prompt(self) -> str:
        """Return the text that the template adds for a response; empty if it writes the same without a response."""
        asked, unasked = (
            self._text.render(ASKED, prompt=prompt).partition(ASKED.content)[2] for prompt in (True, False)
        )
        return asked.removeprefix(unasked)

    def _keeps_system(self) -> bool:
        try:
            return _OBSERVED in self._text.render(Message("system", _OBSERVED), ASKED)
        except ChatTemplateError:
            return False

    def _find_ends(self) -> TurnEnds:
        """Return the tokens that end a turn: the declared ones that the template writes there, else its own."""
        between = self._text.tail(Message("user", _OBSERVED)).partition(_OBSERVED)[0]
        last = self._text.render(ASKED, ANSWERED, prompt=False).partition(ANSWERED.content)[2]
        if last == self._text.render(ASKED, ANSWERED).partition(ANSWERED.content)[2]:
            last = ""  # it always writes the prompt: these tokens may belong to the next turn
        marks, final = self._codec.added.findall(between), self._codec.added.findall(last)
        eos = getattr(self._text.tokenizer, "eos_token", None) or ""
        ends = (eos, *(self._codec.decode([id_]) for id_ in self._end_ids))
        # A tokenizer may call another token its end, such as the one that begins the next message.
        declared = [end for end in ends if end in marks and (end in final or not final)]
        # Cohere's template ends a response, then the turn: the end is the last token that both have. gpt-oss ends the
        # last turn differently from earlier ones.
        shared = [mark for mark, _ in takewhile(lambda pair: pair[0] == pair[1], zip(marks, final, strict=False))]
        own = next(iter(declared or shared[-1:] or final[:1] or marks[:1]), "")
        marks = marks[: marks.index(own) + 1] if own in marks else marks[:1] if own else []
        own = own or eos
        return TurnEnds(own, up_to(own, between) or up_to(own, last) or own, [*declared[1:], *marks])

    def _find_thoughts(self, ended: str) -> Thoughts:
        """Return how the template marks thoughts, after checking that its own responses are read as they are meant.

        Args:
            ended: Text after an answer, up to the token that ends a response.

        Raises:
            ChatTemplateError: they are not, so that a response could be taken for another action.
        """

        def write(fields: Mapping[str, Any], *, later: bool, **kwargs: Any) -> str:
            messages = [{"role": "user", "content": self._text.content(ASKED)}, {"role": "assistant", **fields}]
            if isinstance(fields["content"], str):
                messages[1]["content"] = self._text.content(Message("assistant", fields["content"]))
            if later:
                messages.append({"role": "user", "content": self._text.content(ASKED)})
            return self._text.write(messages, prompt=later, **kwargs).partition(ASKED.content)[2]

        prompt = self._text.prompt
        generated = self._generation_prompt() or prompt
        thoughts, unknown = find_thoughts(write, prompt, generated, self._codec.added, self._text.source)
        if misread := check_thoughts(thoughts, ended, self._codec.strip):
            raise ChatTemplateError(
                f"{self._text.name}'s chat template marks thoughts or answers in an unknown way: {misread}; "
                "pass another with chat_template=..., or define the markers with DelimiterChat"
            )
        if unknown:
            ends = f"a thought up to {thoughts.families[0].closing!r}" if thoughts.inside else "an answer"
            warnings.warn(
                f"{self._text.name}'s chat template begins responses with {unknown!r}, which is no known mark of a "
                f"thought; what follows is read as {ends}",
                stacklevel=6,
            )
        return thoughts

    def _key(self) -> Hashable:
        """Return a key of everything that the template's output depends on; ``None`` if that is unknown."""
        if not self._text.is_jinja or any(
            type(value) not in {bool, int, str, type(None)} for value in self._text.options.values()
        ):
            return None
        return (
            self._text.source,
            self._text.appends,
            tuple(self._end_ids),
            tuple(sorted((name, repr(value)) for name, value in self._text.options.items())),
            repr(self._text.tokenizer.special_tokens_map),
            self._codec.added.pattern,
        )


def up_to(mark: str, text: str) -> str:
    """Return the beginning of ``text`` up to and including ``mark``; empty if it is not in it."""
    return text[: text.index(mark) + len(mark)] if mark and mark in text else ""


def _shown(opening: Sequence[Message]) -> str:
    system = f" and the system message {opening[0].content[:40]!r}" if opening[0].role == "system" else ""
    return f"with the roles {', '.join(message.role for message in opening)}{system}"


# Transformers 5.23 passes no functions to templates, so this clock is a macro in the template.
_CLOCK = (
    "{% macro strftime_now(format) %}{% set told = namespace(text=format) %}{% for sign, value in the_clock.items() %}"
    "{% set told.text = told.text | replace(sign, value) %}{% endfor %}{{ told.text }}{% endmacro %}"
)


def _clock(time: datetime) -> dict[str, str]:
    return {f"%{sign}": time.strftime(f"%{sign}") for sign in "aAbBcdHIjmMpSUwWxXyY"}
