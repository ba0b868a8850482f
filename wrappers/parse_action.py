"""Wrapper that parses the action in a model's response."""

import re
from collections.abc import Callable, Hashable
from typing import Any, ClassVar

import gymnasium as gym

from gym_trl.errors import check_counts
from gym_trl.spaces import AnyText
from gym_trl.text.parsing import CUT, ActionFormat
from gym_trl.text.thoughts import split_thinking
from gym_trl.types import UnfinishedResponse
from gym_trl.wrappers.base import Reset, Step, TextWrapper, check_text, instructions_of, layer_of
from gym_trl.wrappers.turn_limit import loss_return_of

_LONGEST_RESPONSE = 2**20


class ParseAction(TextWrapper):
    """Wrapper that parses the action in a response that may also contain thinking and prose.

    >>> env = ParseAction(gym.make("TrlEnv/GuessNumber-v0"))
    >>> _ = env.reset(seed=0)
    >>> observation, _, _, _, info = env.step("<think>The middle.</think>I say <action>25</action>")
    >>> observation, info["action"]
    ('Higher.', '25')
    >>> observation, _, _, _, info = env.step("I say 26")
    >>> observation
    'No action found. Put your action between <action> and </action>.'
    >>> info["parse_error"], info["action_valid"]
    ('No action found.', False)

    An unreadable response does not reach the environment: the observation explains the format, and ``info`` has
    ``parse_error``. Otherwise ``info["action"]`` is the parsed action. A response that ``max_tokens`` cut off (an
    ``UnfinishedResponse``) is read only if the mark of its action was complete; else ``info`` has ``action_cut``.

    Args:
        env: Environment whose actions are text.
        format: Mark-up of the action: ``"tag"``, ``"boxed"``, ``"json:FIELD"``, ``"plain"``, ``"open"``,
            ``"regex:PATTERN"`` or a compiled pattern, see ``gym_trl.text.parsing.ActionFormat``; ``None`` passes the
            whole response on, thinking included.
        end_after: End the episode after this many consecutive responses that are unreadable or whose action is invalid,
            as a loss (``info["stop_reason"]`` is ``"invalid"``). ``None``: the environment's own limits.

    Raises:
        ConfigError: The format is unknown, or ``end_after`` is below 1.
        NotTextError: The environment's actions are not text.
        ActionTypeError: A response is not a string.
    """

    reads_responses: ClassVar[bool] = True
    """True, because this wrapper handles unfinished and refused responses."""

    def __init__(
        self,
        env: gym.Env[str, str],
        format: str | re.Pattern[str] | None = "tag",  # noqa: A002 -- what users call it
        *,
        end_after: int | None = None,
    ) -> None:
        check_text(env, "ParseAction", env.action_space)
        if end_after is not None:
            check_counts(end_after=end_after)
        super().__init__(env, format=format, end_after=end_after)
        self.action_space = AnyText(_LONGEST_RESPONSE)
        self.end_after = end_after
        self._format = None if format is None else ActionFormat(format)
        self._sentence = "" if self._format is None else self._format.sentence
        self._invalid = 0  # in a row

    @property
    def instructions(self) -> str:
        """The environment's instructions, and a sentence on the format."""
        return f"{instructions_of(self.env)} {self._sentence}".strip() if self._format else instructions_of(self.env)

    def part(self) -> Hashable:
        """Return the number of invalid responses in a row, if they can end the episode."""
        return None if self.end_after is None else self._invalid

    def begin(self, observation: Any, info: dict[str, Any]) -> Reset:
        """Begin to count."""
        self._invalid = 0
        return observation, info

    def act(self, action: str) -> Step:
        """Play the action in a response."""
        cut = isinstance(action, UnfinishedResponse)
        if self._format is None:
            found = None if cut else action
        else:
            found = self._format.find(split_thinking(action).text, cut=cut)
        if found is None:
            problem = CUT if cut else "No action found."
            info = {"action_valid": False, "parse_error": problem, **({"action_cut": True} if cut else {})}
            step: Step = f"{problem} {self._sentence}".strip(), 0.0, False, False, info
        else:
            observation, reward, terminated, truncated, info = self.env.step(found)
            info = {"action_valid": True, **info, **({} if self._format is None else {"action": found})}
            step = observation, reward, terminated, truncated, info
        self._invalid = 0 if info["action_valid"] else self._invalid + 1
        if self._invalid != self.end_after or step[2] or step[3]:
            return step
        charge = min(0.0, loss_return_of(self.env) or 0.0)
        return step[0], float(step[1]) + charge, True, False, {**info, "stop_reason": "invalid"}


def action_writer(env: gym.Env[Any, Any]) -> Callable[[str], str]:
    """Return the function from an action to the shortest response with it, by the outermost ``ParseAction``, if any.

    >>> action_writer(ParseAction(gym.make("TrlEnv/Echo-v0")))("ox"), action_writer(gym.make("TrlEnv/Echo-v0"))("ox")
    ('<action>ox</action>', 'ox')
    """
    reader = layer_of(env, ParseAction)
    return str if reader is None or reader._format is None else reader._format.write
