"""Conversations with a chat template, compared at each turn with one rendering of all of it (laws 1, 3 and 16)."""

import random
from collections.abc import Sequence
from typing import Any

from gym_trl.chat import Chat
from gym_trl.text.thoughts import THOUGHTS
from gym_trl.types import Answer, Message, TokenIds

OBSERVATIONS = (
    *("Higher.", "Lower.\n", " Two\n\nlines ", "1 < 2 & {{ 3 }}", "# A list\n* a\n* b", "é ü 中文 \U0001f600"),
    *("", " ", "7", "<think>", "</think>", "[/THINK]", "/no_think", "{{ x }}", "a" * 300, "None", "http://x"),
)


class Conversation:
    """Conversation of a chat, and the same messages rendered by its tokenizer."""

    def __init__(self, chat: Chat, tokenizer: Any, *, system: bool) -> None:
        self.chat, self.tokenizer = chat, tokenizer
        self.messages = [Message("system", "Play well.")] * system + [Message("user", "2 + 2?")]
        self.ids = chat.open(self.messages)
        written = self.decode(self.ids)
        # A template without a place for system messages, or which moves them along, has them in the first message.
        forms = [(parts, folds) for folds in (True, False) for parts in (False, True)]
        self.form = next(form for form in forms if self.render(self.messages, form) == written)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=False))

    def encode(self, text: str) -> TokenIds:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def render(self, messages: Sequence[Message], form: tuple[bool, bool] | None = None) -> str:
        parts, folds = form or self.form
        said: list[dict[str, Any]] = [message.as_dict() for message in messages]
        if folds and said[0]["role"] == "system":
            system, first, *others = said
            said = [{"role": "user", "content": f"{system['content']}\n\n{first['content']}"}, *others]
        if parts:
            said = [{**one, "content": [{"type": "text", "text": one["content"]}]} for one in said]
        try:
            return str(self.tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True))
        except Exception:
            return ""

    def say(self, answer: str, thought: str | None, draw: random.Random) -> None:
        """Let the model answer, check how that is read, and show it an observation; raise AssertionError if wrong."""
        chat = self.chat
        said = chat.say(answer)
        if thought is not None:
            text = self.decode(said)
            for marks in THOUGHTS:
                if marks.opening in self.tokenizer.chat_template and marks.closing in self.tokenizer.chat_template:
                    begun = self.decode(self.ids).rstrip().endswith(marks.opening)
                    rest = text.partition(marks.closing)[2] or text
                    said = self.encode(f"{'' if begun else marks.opening}{thought}{marks.closing}{rest}")
                    assert chat.text(said) == Answer(thought, answer), f"{self.decode(said)!r}: {chat.text(said)}"
                    break
        assert chat.text(said).text == answer
        if draw.random() < 0.2:  # cut off before its end
            said = said[:-1]
        closed = chat.closes(said)
        end = self.decode(said[-1:]) if closed else ""
        self.ids += said
        self.messages.append(Message("assistant", answer))
        observation = draw.choice(OBSERVATIONS)
        self.messages.append(Message("user", observation))
        written = self.render(self.messages).rpartition(answer)[2]
        head = written.partition(observation.strip())[0] if observation.strip() else written
        expected = written[head.index(end) + len(end) :] if end and end in head else written
        delta = chat.reply(observation, closed=closed)
        assert self.decode(delta) == expected, f"{self.decode(delta)!r} where the template writes {expected!r}"
        self.ids += delta


def hold(chat: Chat, tokenizer: Any, *, seed: str, conversations: int = 4) -> None:
    """Check laws 1, 3 and 16 in conversations of one to nine answers; raise AssertionError where one does not hold."""
    draw = random.Random(seed)
    for _ in range(conversations):
        conversation = Conversation(chat, tokenizer, system=draw.random() < 0.5)
        for turn in range(draw.choice([1, 2, 4, 9])):
            conversation.say(f"It is {turn}.", draw.choice([None, "Hm, 3?"]), draw)
    control = {id_ for id_, token in tokenizer.added_tokens_decoder.items() if token.special}
    plain = [id_ for id_ in chat.reply("Hi", closed=True) if id_ in control]
    for token in list(tokenizer.added_tokens_decoder.values()):
        mark = token.content
        for said in (mark, f" {mark}\n{mark[0]}{mark}", f"{mark[:2]}{mark}{mark[2:]}"):
            ids = chat.reply(said, closed=True)
            assert [id_ for id_ in ids if id_ in control] == plain, f"{said!r} writes a control token"
            if token.special and mark.strip() and len(mark) > 1:
                assert mark in str(tokenizer.decode(ids)), f"{said!r} loses characters"
