"""Wrapper for several actions in one response."""

from typing import Any

import gymnasium as gym

from gym_trl.errors import ConfigError, check_counts
from gym_trl.spaces import AnyText
from gym_trl.text.textify import counted
from gym_trl.wrappers.frozen import FrozenAfterEnd, Step
from gym_trl.wrappers.inner import check_text, instructions_of, longest_observation

_SHOWN = 100


class MultiAction(FrozenAfterEnd):
    r"""Wrapper that plays several actions of one response in order.

    >>> import gymnasium as gym
    >>> env = MultiAction(gym.make("TrlEnv/GuessNumber-v0"), limit=3)
    >>> _ = env.reset(options={"instance": 30})
    >>> observation, reward, terminated, truncated, info = env.step("25\n37\n31")
    >>> print(observation)
    > 25
    Higher.
    > 37
    Lower.
    > 31
    Correct.
    >>> reward, terminated, [step["action"] for step in info["steps"]]
    (1.0, True, ['25', '37', '31'])

    Actions are played until one ends the episode or is invalid (``info["action_valid"]`` is false); the observation
    states the number of the remaining ones. Rewards are summed. ``info`` is that of the last action played, and
    ``info["steps"]`` has ``action``, ``reward`` and ``info`` of each. A response with one action gives the same result
    as without this wrapper.

    Put it inside of ``ParseAction``, which reads all actions of a response together. ``TurnLimit`` counts responses
    outside of this wrapper and actions inside of it.

    Args:
        env: Environment whose observations and actions are text.
        limit: Maximum number of actions played per response.
        separator: Text between two actions.

    Raises:
        ConfigError: ``limit`` is not a positive integer, or ``separator`` is empty.
        NotTextError: Observations or actions are not text.
    """

    def __init__(self, env: gym.Env[str, str], limit: int = 5, separator: str = "\n") -> None:
        check_counts(limit=limit)
        if not isinstance(separator, str) or not separator:
            raise ConfigError(f"separator must be text that is not empty, got {separator!r}")
        check_text(env, "MultiAction", observations=True, actions=True)
        super().__init__(env, limit=limit, separator=separator)
        self.limit = self.actions_per_turn = limit
        self.separator = separator
        line = len("\n> \n") + _SHOWN
        self.observation_space = AnyText(limit * (longest_observation(env) + line) + len(_left_out(10**9)))

    @property
    def instructions(self) -> str:
        """The environment's instructions, and a sentence on several actions."""
        how = "one a line" if self.separator == "\n" else f"with {self.separator!r} between them"
        return (
            f"{instructions_of(self.env)} You may give up to {self.limit} actions at once, {how}; "
            "they are played in order until one is invalid."
        ).strip()

    def _step(self, action: str) -> Step:
        # A single empty action is still an action.
        actions = [part.strip() for part in action.split(self.separator) if part.strip()] or [""]
        shown: list[str] = []
        steps: list[dict[str, Any]] = []
        total = 0.0
        for part in actions[: self.limit]:
            observation, reward, terminated, truncated, info = self.env.step(part)
            total += float(reward)
            steps.append({"action": part, "reward": float(reward), "info": info})
            shown += [f"> {part[:_SHOWN]}", observation]
            if terminated or truncated or not info.get("action_valid", True):
                break
        if len(steps) < len(actions):
            shown.append(_left_out(len(actions) - len(steps)))
        observation_shown = observation if len(actions) == 1 else "\n".join(shown)
        return observation_shown, total, terminated, truncated, {**info, "steps": steps}


def _left_out(count: int) -> str:
    return f"{counted(count, 'action')} {'was' if count == 1 else 'were'} not played."
