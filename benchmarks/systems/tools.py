"""Games as tools, for TRL's own loop and a model that was not taught a tool's markup.

The template renders calls, and tool results like user messages. A ``response_template`` reads the text between two
marks as a call of the only tool.
"""

from collections.abc import Callable
from typing import Any

import gymnasium as gym

OVER = "The game is over."
TEMPLATE = (
    "{% for message in messages %}{% set role = 'user' if message['role'] == 'tool' else message['role'] %}"
    "{{ '<|' + role + '|>' + message['content'] }}{% for call in message['tool_calls'] or [] %}"
    "{{ call['function']['name'] + (call['function']['arguments'] | string) }}{% endfor %}{{ '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def response_template(opens: str, closes: str) -> dict[str, Any]:
    """Return the template that parses a call between two patterns."""
    return {
        "defaults": {"role": "assistant"},
        "start_anchor": "<|assistant|>",
        "fields": {
            "tool_calls": {
                "open_pattern": opens,
                "close_pattern": closes,
                "repeats": True,
                "content": "text",
                "transform": {"type": "function", "function": {"name": "act", "arguments": {"action": "{content}"}}},
            },
            "content": {"close_pattern": r"<\|end\|>", "content": "text"},
        },
    }


def tool_environment(
    make: Callable[[], gym.Env[str, str]],
    *,
    write: Callable[[str], str],
    begin: Callable[[gym.Env[str, str], str], str],
) -> type:
    """Return the class for ``GRPOTrainer``, from functions that make a game, write its actions and begin it."""

    class Playing:
        """As TRL's documentation writes environments: what is public is what the model can call."""

        def __init__(self) -> None:
            self._env = make()
            self._reward, self._turns, self._over = 0.0, 0, False

        def reset(self, seed: int, **_: Any) -> str:
            observation, _info = self._env.reset(seed=seed)
            self._reward, self._turns, self._over = 0.0, 0, False
            return begin(self._env, observation)

        def act(self, action: str) -> str:
            """Act in the game.

            Args:
                action: What to do.
            """
            if self._over:
                return OVER
            observation, reward, terminated, truncated, _info = self._env.step(write(action))
            self._reward += float(reward)
            self._turns += 1
            self._over = terminated or truncated
            return f"{observation} {OVER}" if self._over else observation

        def get_reward(self) -> float:
            return self._reward

    return Playing
