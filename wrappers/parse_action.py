"""Wrapper that parses the action in a model's response."""

import math
import re
from collections.abc import Callable
from typing import Any, ClassVar, Literal, SupportsFloat, TypeAlias

import gymnasium as gym

from gym_trl.errors import ConfigError, check_counts
from gym_trl.spaces import AnyText
from gym_trl.text.parsing import CUT, ActionFormat
from gym_trl.text.thoughts import split_thinking
from gym_trl.types import UnfinishedResponse
from gym_trl.wrappers.frozen import FrozenAfterEnd, Step
from gym_trl.wrappers.inner import check_penalty, check_text, instructions_of
from gym_trl.wrappers.settlement import settlement
from gym_trl.wrappers.traits import layer_of

_ANSWER_LENGTH = 2**20
CutActions: TypeAlias = Literal["reject", "accept"]
"""Treatment of an action that ``max_tokens`` cut off."""


class ParseAction(FrozenAfterEnd):
    """Wrapper that parses the action in a response that may also contain thinking and prose.

    >>> import gymnasium as gym
    >>> env = ParseAction(gym.make("TrlEnv/GuessNumber-v0"), penalty=0.1)
    >>> _ = env.reset(seed=0)
    >>> observation, reward, _, _, info = env.step("<think>The middle.</think>I say <action>25</action>")
    >>> observation, info["action"]
    ('Higher.', '25')
    >>> observation, reward, _, _, info = env.step("I say 26")
    >>> observation, reward
    ('No action found. Put your action between <action> and </action>.', -0.1)
    >>> info["parse_error"], info["action_valid"]
    ('No action found.', False)

    Args:
        env: Environment whose actions are text.
        format: Mark-up of the action: ``"tag"``, ``"boxed"``, ``"json:FIELD"``, ``"plain"``, ``"regex:PATTERN"`` or a
            compiled pattern, see ``gym_trl.text.parsing.ActionFormat``; ``None`` passes the whole response on,
            thinking included.
        penalty: Reward subtracted for an unreadable response, and for an action that the environment rejects.
        end_after: End the episode after this many consecutive unreadable responses or invalid actions. ``None``: the
            environment's own limits.
        cut_actions: Treatment of a response that ``max_tokens`` cut off (an ``UnfinishedResponse``) before the mark of
            its action was complete, or that has no marks (``"plain"``, ``None``): ``"reject"`` treats it as unreadable
            and sets ``info["action_cut"]``; ``"accept"`` parses it as if it were complete.

    An unreadable response does not reach the environment: the observation explains the format, and ``info`` has
    ``parse_error``. Otherwise ``info["action"]`` is the parsed action. ``info["invalid_penalty"]`` is the cost of an
    unreadable response or an invalid action. They are counted separately: unreadable responses until one is readable,
    invalid actions until one is valid. An episode ended in this way (``stop_reason`` is ``"invalid"``) is terminated and
    ignores further actions; its reward includes the ``settlement`` of the environment, as for a loss
    (``gym_trl.wrappers.settlement``).

    Raises:
        ConfigError: The format is unknown, the penalty is negative, or ``end_after`` is below 1.
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
        penalty: float = 0.0,
        end_after: int | None = None,
        cut_actions: CutActions = "reject",
    ) -> None:
        check_text(env, "ParseAction", actions=True)
        check_penalty(penalty)
        if end_after is not None:
            check_counts(end_after=end_after)
        if cut_actions not in ("reject", "accept"):
            raise ConfigError(f'cut_actions must be "reject" or "accept", got {cut_actions!r}')
        super().__init__(env, format=format, penalty=penalty, end_after=end_after, cut_actions=cut_actions)
        self.action_space = AnyText(_ANSWER_LENGTH)
        self.penalty = penalty
        self.end_after = end_after
        self.cut_actions = cut_actions
        self._format = None if format is None else ActionFormat(format)
        self._unreadable_row = 0
        self._invalid_row = 0
        self._cut_off = False

    @property
    def owes(self) -> bool:
        """True if ``settle`` may owe something of its own, which depends on the number of actions that can follow."""
        return self.penalty > 0

    settles_turns = owes

    @property
    def instructions(self) -> str:
        """The environment's instructions, and a sentence on the format."""
        rules = instructions_of(self.env)
        return rules if self._format is None else f"{rules} {self._format.sentence}".strip()

    @property
    def state_part(self) -> tuple[int, int] | None:
        """Numbers of unreadable responses and of invalid actions in a row, if they can end the episode."""
        return None if self.end_after is None else (self._unreadable_row, self._invalid_row)

    def _restart(self, observation: str, info: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        self._unreadable_row = self._invalid_row = 0
        self._cut_off = False
        return observation, info

    def _step(self, action: str) -> Step:
        parsed = self.find_action(action)
        if parsed is None:
            return self._unreadable(action)
        observation, reward, terminated, truncated, info = self.env.step(parsed)
        info = {"action_valid": True, **info}
        if self._format is not None:
            info["action"] = parsed
        self._unreadable_row = 0
        if info["action_valid"]:
            self._invalid_row = 0
        else:
            reward, terminated = self._charge(reward, terminated, truncated, info)
        return observation, reward, terminated, truncated, info

    def _charge(
        self, reward: SupportsFloat, terminated: bool, truncated: bool, info: dict[str, Any]
    ) -> tuple[float, bool]:
        """Return the reward of an invalid action, and whether the episode is terminated."""
        self._invalid_row += 1
        reward, info["invalid_penalty"] = float(reward) - self.penalty, self.penalty
        if not (terminated or truncated) and self._is_over(self._invalid_row):
            terminated, info["stop_reason"] = True, "invalid"
            reward += self._cut()
        return reward, terminated

    def find_action(self, response: str) -> str | None:
        """Return the action in a response; ``None`` if there is none."""
        cut = False
        if type(response) is not str:  # only a response of a class of its own can be cut off
            cut = self._is_cut(response)
        if self._format is None:
            return None if cut else response
        return self._format.find(split_thinking(response).text, cut=cut)

    def write_action(self, action: str) -> str:
        """Return the shortest response with this action.

        Raises:
            ConfigError: The format cannot express it.
        """
        return action if self._format is None else self._format.write(action)

    def _is_cut(self, response: str) -> bool:
        return isinstance(response, UnfinishedResponse) and self.cut_actions == "reject"

    def _unreadable(self, response: str) -> Step:
        cut = self._is_cut(response)
        problem = CUT if cut else "No action found."
        self._unreadable_row += 1
        info: dict[str, Any] = {"action_valid": False, "parse_error": problem, "invalid_penalty": self.penalty}
        if cut:
            info["action_cut"] = True
        over, reward = self._is_over(self._unreadable_row), 0.0 - self.penalty
        if over:
            info["stop_reason"] = "invalid"
            reward += self._cut()
        sentence = "" if self._format is None else self._format.sentence
        return f"{problem} {sentence}".strip(), reward, over, False, info

    def _cut(self) -> float:
        """Return the settlement of the episode, which ends now."""
        self._cut_off = True
        return settlement(self.env)

    def settle(self, inside: float, turns: float) -> float:
        """Return the settlement of an episode that is cut off now; see ``gym_trl.wrappers.settlement``."""
        if self._cut_off:
            return 0.0
        if self.end_after is not None and turns == math.inf:
            # As far as is known, the episode ends by end_after of them in a row.
            turns = self.end_after - max(self._unreadable_row, self._invalid_row)
        return inside - self.penalty * turns  # each of the actions that can follow may cost the penalty

    def _is_over(self, row: int) -> bool:
        return self.end_after is not None and row >= self.end_after


def action_writer(env: gym.Env[Any, Any]) -> Callable[[str], str]:
    """Return the function from an action to a response with it: that of the outermost ``ParseAction``, if any.

    >>> action_writer(ParseAction(gym.make("TrlEnv/Echo-v0")))("ox"), action_writer(gym.make("TrlEnv/Echo-v0"))("ox")
    ('<action>ox</action>', 'ox')
    """
    reader = layer_of(env, ParseAction)
    return str if reader is None else reader.write_action


def action_finder(env: gym.Env[Any, Any]) -> Callable[[str], str | None]:
    """Return the function from a response to the action in it: that of the outermost ``ParseAction``, if any.

    >>> action_finder(ParseAction(gym.make("TrlEnv/Echo-v0")))("I say <action>ox</action>")
    'ox'
    """
    reader = layer_of(env, ParseAction)
    return _whole if reader is None else reader.find_action


def _whole(response: str) -> str | None:
    return None if isinstance(response, UnfinishedResponse) else response
