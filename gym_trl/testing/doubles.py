"""Test doubles: a chat with bytes as tokens, and an episode of given actions."""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, SupportsFloat

import gymnasium as gym

from gym_trl.episode import MAX_TURNS
from gym_trl.text.thoughts import split_thinking
from gym_trl.types import Answer, Message, Policy, TokenIds


class PlayedStep(NamedTuple):
    """Action, and the result of its ``step``."""

    action: str
    observation: str
    reward: SupportsFloat
    terminated: bool
    truncated: bool
    info: dict[str, Any]


def play(env: gym.Env[str, str], policy: Policy, **reset: Any) -> list[Any]:
    """Play one episode, and return the result of ``reset``, then each action with the result of ``step``.

    >>> env = gym.make("TrlEnv/Echo-v0")
    >>> tuple(play(env, lambda observation: observation, seed=0)[-1])
    ('woadw', '5 of 5 right.', 1.0, True, False, {'action_valid': True, 'success': True})
    """
    observation, info = env.reset(**reset)
    steps: list[Any] = [(observation, info)]
    for _ in range(MAX_TURNS):
        action = policy(observation)
        steps.append(PlayedStep(action, *env.step(action)))
        observation = steps[-1].observation
        if steps[-1].terminated or steps[-1].truncated:
            return steps
    raise AssertionError(f"an episode must end, and {env} did not in {MAX_TURNS} turns")


class ByteChat:
    """ChatLike with bytes and four marks as tokens, for tests and benchmarks without a tokenizer.

    >>> chat = ByteChat()
    >>> prompt = chat.open([Message("user", "hi")])
    >>> chat.show(prompt + chat.say("hello") + chat.reply("bye", closed=True))
    '<user>hi<end><assistant>hello<end><user>bye<end><assistant>'
    """

    _MARKS: ClassVar[dict[str, int]] = {"end": 256, "system": 257, "user": 258, "assistant": 259}
    stop_ids: frozenset[int] = frozenset({256})
    stop_strings: tuple[str, ...] = ()

    def open(self, messages: Sequence[Message]) -> TokenIds:
        """Return the ids of a conversation that the model is to continue."""
        return [*(id_ for message in messages for id_ in self._message(message)), self._MARKS["assistant"]]

    def reply(self, text: str, *, closed: bool) -> TokenIds:
        """Return the ids between two responses."""
        end = [] if closed else [self._MARKS["end"]]
        return [*end, *self._message(Message("user", text)), self._MARKS["assistant"]]

    def closes(self, ids: Sequence[int]) -> bool:
        """Return whether a response ended its turn."""
        return bool(ids) and ids[-1] in self.stop_ids

    def text(self, ids: TokenIds) -> Answer:
        """Return the text of a response, without marks."""
        return split_thinking(bytes(id_ for id_ in ids if id_ < 256).decode("utf-8", "replace"))

    def say(self, text: str) -> TokenIds:
        """Return the ids of a whole response, for scripts."""
        return [*text.encode("utf-8", "surrogatepass"), self._MARKS["end"]]

    def show(self, ids: TokenIds) -> str:
        """Return all ids as text, with the marks in angle brackets."""
        marks = {id_: f"<{name}>" for name, id_ in self._MARKS.items()}
        return "".join(marks.get(id_) or chr(id_) for id_ in ids)

    def heard(self, ids: TokenIds) -> str:
        """Return the last message before the model's turn, for scripts that play."""
        last = len(ids) - ids[::-1].index(self._MARKS["user"])
        return bytes(ids[last:-2]).decode("utf-8", "replace")

    def _message(self, message: Message) -> TokenIds:
        return [self._MARKS[message.role], *message.content.encode("utf-8", "surrogatepass"), self._MARKS["end"]]
