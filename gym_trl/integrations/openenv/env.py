"""Environments on OpenEnv servers."""

import asyncio
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, ClassVar

import gymnasium as gym
from gymnasium.error import ResetNeeded

from gym_trl.errors import ActionTypeError, ConfigError, InfrastructureError, ModelFaultError
from gym_trl.integrations.openenv.client import EnvClient, ServerError
from gym_trl.spaces import AnyText

_OURS = {"text", "instructions", "terminated", "truncated", "info"}
"""Fields of an observation of ``gym-trl serve``."""


class OpenEnv(gym.Env[str, str]):
    """Environment on an OpenEnv server.

    ::

        $ gym-trl serve TrlEnv/GuessNumber-v0 --port 8000       # or any other server of OpenEnv's
        env = gym.make("TrlEnv/OpenEnv-v0", base_url="http://127.0.0.1:8000")
        env.reset(seed=0)
        ('Guess 1 to 50 in 6 tries.', {})
        env.step("25")[0]
        'Higher.'

    Every instance has a client, and so a session, of its own, which the first reset opens. ``reset(seed=, options=)``
    sends ``options`` as the arguments of the server's ``reset``, and a seed that is drawn from ``np_random`` if none is
    given. ``done`` is read as ``terminated``, unless the server tells ``terminated`` from ``truncated``, as ``gym-trl
    serve`` does. A reward of ``None`` is 0.0. ``info`` has ``action_valid``, the server's ``metadata``, and what the
    environment of ``gym-trl serve`` has in it.

    A step is sent once. When it fails, the client is closed, and the next reset makes another one. An exception of the
    environment on the server is a ``ModelFaultError``, as if it had been raised here, or an ``InfrastructureError`` if
    its text says so; every other failure (no answer, a broken connection, a full server) is the infrastructure's. An
    action that the server refuses unplayed is an invalid action (``action_valid`` is false).

    Args:
        base_url: Address of a server.
        client: Alternatively, a function that makes a client, with OpenEnv's ``reset(**kwargs)`` and ``step(action)``:
            for a container, a token or typed actions, such as ``lambda: EchoEnv.from_docker_image("echo-env:latest")``.
            One of OpenEnv's own is used through its ``sync()``; if it loses its session in an episode, its next step
            is played in an environment that was not reset, so prefer those of this package.
        prompt_builder: Function from an observation (whose fields are attributes), the number of the turn from 1 on,
            and a list of lines on the turns before, to the text that the model reads. Default: the value of the only
            field, or ``name: value`` lines.
        action_parser: Function from text to an action. If it raises ``ValueError`` the action is invalid, and the
            message is the observation. Default: ``{"message": text}``, for Echo, TextArena and ``gym-trl serve``.
        instructions: The rules; by default those that ``gym-trl serve`` sends.
        timeout: Seconds for each response, and for a reset with all its attempts to connect, of ``base_url``.

    Raises:
        ConfigError: not exactly one of ``base_url`` and ``client``, or the server refuses the client.
        ActionTypeError: an action that is not a string.
        gymnasium.error.ResetNeeded: a step without a running episode.
        ConnectionError, TimeoutError, ModelFaultError, InfrastructureError: see above.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 -- as gym.Env has it
    preferred_executor: ClassVar[str] = "thread"
    """Default executor of ``GymSpec``: a step waits for the server."""
    loss_return: float | None = None
    """Return of a loss in this episode, as reported by ``gym-trl serve``."""

    def __init__(
        self,
        base_url: str | None = None,
        *,
        client: Callable[[], Any] | None = None,
        prompt_builder: Callable[[Any, int, list[str]], str] | None = None,
        action_parser: Callable[[str], Any] | None = None,
        instructions: str = "",
        timeout: float = 60.0,
    ) -> None:
        if (base_url is None) == (client is None):
            raise ConfigError(
                "TrlEnv/OpenEnv-v0 needs base_url (where a server listens: gym-trl serve ID --port 8000) or client"
            )
        if base_url is not None:
            client = partial(EnvClient, base_url, timeout)
            client()  # refuses what is no address; nothing is opened before a reset
        self._make: Any = client
        self._prompt_builder = prompt_builder
        self._action_parser = action_parser or (lambda text: {"message": text})
        self.instructions = instructions
        self.observation_space: AnyText = AnyText()
        self.action_space: AnyText = AnyText()
        self._client: Any = None
        self._history: list[str] = []
        self._playing = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode; ``options`` are the arguments of the server's ``reset``."""
        super().reset(seed=seed)
        if seed is None:
            seed = int(self.np_random.integers(2**31))
        self._history, self._playing = [], False
        with self._closed_on_failure():
            if self._client is None:
                self._client = _synchronous(self._make())
            parameters = inspect.signature(self._client.reset).parameters
            takes_seed = "seed" in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())
            result = self._client.reset(**({"seed": seed} if takes_seed else {}), **(options or {}))
        self._playing = not result.done
        fields = _fields(result.observation)
        if fields.keys() >= _OURS:
            self.instructions = self.instructions or fields["instructions"]
            self.loss_return = fields.get("loss_return")
        return self._text(result.observation), _info(fields)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play an action."""
        if not isinstance(action, str):
            raise ActionTypeError(f"TrlEnv/OpenEnv-v0 takes text, got {type(action).__name__}: {action!r:.100}")
        if not self._playing:
            raise ResetNeeded("no episode is running on the server: call reset() before step()")
        try:
            parsed = self._action_parser(action)
        except ValueError as error:
            return str(error), 0.0, False, False, {"action_valid": False}
        try:
            with self._closed_on_failure():
                result = self._client.step(parsed)
        except ServerError as error:
            if error.code == "VALIDATION_ERROR":
                return f"Not an action of this environment: {action!r:.200}", 0.0, False, False, {"action_valid": False}
            ours = error.code != "EXECUTION_ERROR" or InfrastructureError.__name__ in str(error)
            raise (InfrastructureError if ours else ModelFaultError)(str(error)) from error

        fields, reward = _fields(result.observation), float(result.reward or 0.0)
        label = getattr(parsed, "action_str", None) or action
        failed = " ERROR" if fields.get("last_action_error") else ""  # the lines are those of Eval Protocol
        self._history.append(f"Step {len(self._history) + 1}: {label} -> reward {reward:+.2f}{failed}")
        terminated, truncated = bool(result.done), False
        if fields.keys() >= _OURS:
            terminated, truncated = bool(fields["terminated"]), bool(fields["truncated"])
        self._playing = not (terminated or truncated)
        return self._text(result.observation), reward, terminated, truncated, {"action_valid": True, **_info(fields)}

    def close(self) -> None:
        """Close the client."""
        client, self._client, self._playing = self._client, None, False
        if hasattr(client, "close"):
            client.close()

    @contextmanager
    def _closed_on_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            if not (isinstance(error, ServerError) and error.code == "VALIDATION_ERROR"):
                with suppress(Exception):
                    self.close()
            raise

    def _text(self, observation: Any) -> str:
        fields = _fields(observation)
        if self._prompt_builder is not None:
            text = self._prompt_builder(observation, len(self._history) + 1, list(self._history))
        elif fields.keys() >= _OURS:
            text = fields["text"]
        else:
            shown = {
                name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
                for name, value in fields.items()
                if name not in ("done", "reward", "metadata") and value not in (None, "", [], {})
            }
            named = [f"{name}: {value}" for name, value in shown.items()]
            text = "\n".join(shown.values() if len(shown) == 1 else named)
        return text.encode("utf-8", "replace").decode("utf-8")  # JSON can contain lone surrogates


def _info(fields: Mapping[str, Any]) -> dict[str, Any]:
    info = dict(fields["info"]) if fields.keys() >= _OURS else {}
    return {**info, "metadata": fields["metadata"]} if fields.get("metadata") else info


def _fields(observation: Any) -> dict[str, Any]:
    """Return an observation, typed or not, as a dictionary."""
    if isinstance(observation, Mapping):
        return dict(observation)
    if hasattr(observation, "model_dump"):
        return dict(observation.model_dump())
    return dict(vars(observation)) if hasattr(observation, "__dict__") else {"observation": observation}


def _synchronous(client: Any) -> Any:
    """Return a client without coroutines; one that OpenEnv's ``from_docker_image`` is to start is awaited."""
    if inspect.isawaitable(client) and not hasattr(client, "sync"):

        async def wait() -> Any:
            return await client

        client = asyncio.run(wait())
    return client.sync() if hasattr(client, "sync") else client
