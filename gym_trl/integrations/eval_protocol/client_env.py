"""Gymnasium environment with text around an existing OpenEnv client."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import gymnasium as gym
from gymnasium.error import ResetNeeded

from gym_trl.errors import ActionTypeError
from gym_trl.spaces import AnyText


class ClientEnv(gym.Env[str, str]):
    """Environment around a client with OpenEnv's ``reset() -> result`` and ``step(action) -> result``.

    >>> class Result:
    ...     def __init__(self, observation, reward=None, done=False):
    ...         self.observation, self.reward, self.done = observation, reward, done
    >>> class Client:
    ...     def reset(self):
    ...         return Result("Say ox.")
    ...     def step(self, action):
    ...         return Result("Thanks.", float(action == {"message": "ox"}), done=True)
    >>> env = ClientEnv(Client, lambda seen, step, history: f"{step}. {seen}", lambda text: {"message": text})
    >>> env.reset(seed=0)[0]
    '1. Say ox.'
    >>> env.step("ox")[:3]
    ('2. Thanks.', 1.0, True)

    An asynchronous client is used through its ``sync()``. If the client's ``reset`` has an argument ``seed``, it gets
    one, so the members of a group play the same task. Steps are sent only once. Prefer ``TrlEnv/OpenEnv-v0``, which
    does more, if it can open the sessions itself.

    Args:
        make: Function that makes a client; called at the first reset.
        prompt_builder: Function ``(observation, turn, history) -> text``; ``turn`` counts from 1, and ``history`` is a
            list of lines on the previous turns. Default: ``str(observation)``.
        action_parser: Function from text to an action; a ``ValueError`` makes it an invalid action.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 -- as gym.Env has it

    def __init__(
        self,
        make: Callable[[], Any],
        prompt_builder: Callable[[Any, int, list[str]], Any] | None,
        action_parser: Callable[[str], Any],
    ) -> None:
        self.observation_space: AnyText = AnyText()
        self.action_space: AnyText = AnyText()
        self._make, self._prompt_builder, self._action_parser = make, prompt_builder, action_parser
        self._client: Any = None
        self._takes_seed = False
        self._history: list[str] = []
        self._playing = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        if self._client is None:
            self._client = _synchronous(self._make())
            self._takes_seed = _takes(self._client.reset, "seed")
        seeded = {"seed": int(self.np_random.integers(2**31))} if self._takes_seed else {}
        self._history, self._playing = [], True
        return self._say(self._client.reset(**seeded, **(options or {})).observation), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play an action."""
        if not isinstance(action, str):
            raise ActionTypeError(f"ClientEnv takes text, got {type(action).__name__}: {action!r:.100}")
        if not self._playing:
            raise ResetNeeded("the episode is over, or was never begun: call reset()")
        try:
            parsed = self._action_parser(action)
        except ValueError as error:
            return str(error), 0.0, False, False, {"action_valid": False}
        result = self._client.step(parsed)
        reward = float(result.reward or 0.0)
        label = getattr(parsed, "action_str", None) or action
        failed = " ERROR" if getattr(result.observation, "last_action_error", False) else ""
        self._history.append(f"Step {len(self._history) + 1}: {label} -> reward {reward:+.2f}{failed}")
        self._playing = not result.done
        return self._say(result.observation), reward, bool(result.done), False, {"action_valid": True}

    def close(self) -> None:
        """Close the client."""
        client, self._client = self._client, None
        if client is not None and hasattr(client, "close"):
            client.close()

    def _say(self, observation: Any) -> str:
        if self._prompt_builder is None:
            return str(observation)
        prompt = self._prompt_builder(observation, len(self._history) + 1, list(self._history))
        if isinstance(prompt, list | tuple):  # content parts, as in OpenAI's messages
            prompt = "\n".join(part["text"] for part in prompt)
        return prompt if isinstance(prompt, str) else str(prompt)


def _synchronous(client: Any) -> Any:
    if inspect.isawaitable(client):

        async def wait() -> Any:
            return await client

        client = asyncio.run(wait())
    return client.sync() if callable(getattr(client, "sync", None)) else client


def _takes(function: Callable[..., Any], name: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
    return name in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())
