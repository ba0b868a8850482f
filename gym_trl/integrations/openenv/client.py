"""Clients of OpenEnv servers, under the names of TRL's page on OpenEnv.

::

    from gym_trl.integrations.openenv import EchoAction, EchoEnv  # was: from envs.echo_env import EchoAction, EchoEnv

    client = EchoEnv.from_docker_image("echo-env:latest")       # or EchoEnv("http://127.0.0.1:8000")
    client.reset()
    client.step(EchoAction(message="hello")).reward
    client.close()

The environments' own packages are not needed. ``TrlEnv/OpenEnv-v0`` plays, masks and scores whole episodes.
"""

import json
import re
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, is_dataclass
from ipaddress import ip_address
from time import monotonic, sleep
from typing import Any, Self
from urllib.parse import urlsplit

from gym_trl.bases import Closing
from gym_trl.errors import ConfigError, needs

_LARGEST_MESSAGE = 100 * 2**20  # as in OpenEnv's own client: observations can contain screenshots
_CLOSE_S = 1.0


@dataclass
class EchoAction:
    """Message for Echo to repeat."""

    message: str


@dataclass
class TextArenaAction:
    """Move in a game of TextArena."""

    message: str


@dataclass
class BrowserGymAction:
    """Action in a browser."""

    action_str: str


class Fields(dict[str, Any]):
    """Dictionary whose entries are also attributes, as those of typed observations.

    >>> fields = json.loads('{"goal": "click", "messages": [{"content": "hello"}]}', object_hook=Fields)
    >>> fields.goal, fields["goal"], fields.messages[0].content, getattr(fields, "url", None)
    ('click', 'click', 'hello', None)
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


@dataclass
class StepResult:
    """Result of a reset or a step; the ``observation`` has its fields, the reward, ``done`` and ``metadata``."""

    observation: Fields
    reward: float | None
    done: bool


class ServerError(RuntimeError):
    """Error that a server answered; ``code`` is OpenEnv's name of it."""

    def __init__(self, text: str, code: str) -> None:
        super().__init__(f"{text} ({code})")
        self.code = code


class EnvClient(Closing):
    """Client of an OpenEnv server, with one session, which is one socket.

    ::

        with EnvClient("http://127.0.0.1:8000") as client:
            result = client.reset(seed=0)
            result = client.step({"message": "hello"})

    ``reset`` opens the session, and connects again for ``timeout`` seconds while the server is full or does not run. A
    step is sent once: after a time-out, a broken connection or an error of the environment the session is closed, and
    the next call must be ``reset``, so that no episode goes on in an environment that was not reset.

    Args:
        base_url: Address of the server (http, https, ws or wss).
        timeout: Seconds for a response, and for a reset with all its attempts to connect.
        headers: Headers that are sent when the session is opened, such as ``Authorization``.

    Raises:
        MissingDependencyError: The ``openenv`` extra is not installed.
        ConfigError: The address is none, or the server refuses the client (status 401 or 403).
        ConnectionError, TimeoutError: The server is not there, or does not answer.
        ServerError: The server answered with an error.
    """

    def __init__(self, base_url: str, timeout: float = 60.0, *, headers: Mapping[str, str] | None = None) -> None:
        if not re.match("(http|ws)s?://", str(base_url)):
            raise ConfigError(f"base_url must begin with http, https, ws or wss, got {base_url!r}")
        self.base_url, self.timeout, self.headers = base_url, timeout, headers
        self._session, self._container = ExitStack(), ExitStack()
        self._socket: Any = None

    @classmethod
    def from_docker_image(cls, image: str, provider: Any = None, **how: Any) -> Self:
        """Start a container and return a client of it, which stops it when it is closed.

        Args:
            image: Name of the image.
            provider: OpenEnv's provider of containers; by default its ``LocalDockerProvider``.
            how: Arguments for the provider, such as ``env_vars``.
        """
        if provider is None:
            with needs("openenv", cls.__name__):
                from openenv.core.containers.runtime import LocalDockerProvider
            provider = LocalDockerProvider()
        with ExitStack() as container:
            container.callback(provider.stop_container)
            base_url = provider.start_container(image, **how)
            provider.wait_for_ready(base_url)
            client = cls(base_url)
            client._container = container.pop_all()
        return client

    @classmethod
    def from_hub(cls, repo_id: str, provider: Any = None, **how: Any) -> Self:
        """Start a container with the image of a Space on the Hub, ``"owner/name"``."""
        name = re.sub("[^a-z0-9]", "-", repo_id.lower())
        return cls.from_docker_image(f"registry.hf.space/{name}:latest", provider, **how)

    def reset(self, **kwargs: Any) -> StepResult:
        """Start an episode; the arguments are those of the environment's ``reset``."""
        deadline, pause = monotonic() + self.timeout, 0.05
        while True:
            try:
                if self._socket is None:
                    self._connect(deadline - monotonic())
                return self._ask("reset", kwargs, deadline - monotonic())
            except (ConnectionError, ServerError) as error:
                passes = isinstance(error, ConnectionError) or error.code == "CAPACITY_REACHED"
                if not passes or monotonic() + pause > deadline:
                    raise
            sleep(pause)
            pause = min(2 * pause, 2.0)

    def step(self, action: Any) -> StepResult:
        """Play an action: a mapping, or an object with the fields of the server's action."""
        if is_dataclass(action) and not isinstance(action, type):
            action = asdict(action)
        elif hasattr(action, "model_dump"):
            action = action.model_dump()
        if not isinstance(action, Mapping):
            raise ConfigError(f"an action must be a mapping or one of OpenEnv's actions, got {type(action).__name__}")
        return self._ask("step", dict(action), self.timeout)

    def close(self) -> None:
        """End the session, and stop the container if the client has started it."""
        self._disconnect()
        self._container.close()

    def _connect(self, timeout: float) -> None:
        with needs("openenv", type(self).__name__):
            from websockets.exceptions import InvalidStatus, WebSocketException
            from websockets.sync.client import connect
        url = re.sub("^http", "ws", self.base_url.rstrip("/")) + "/ws"
        try:
            connecting = connect(
                url,
                open_timeout=max(timeout, 0.01),
                close_timeout=_CLOSE_S,
                max_size=_LARGEST_MESSAGE,
                proxy=None if is_loopback(urlsplit(url).hostname) else True,
                additional_headers=self.headers,
            )
            self._socket = self._session.enter_context(connecting)
        except (OSError, WebSocketException, EOFError) as error:
            if isinstance(error, InvalidStatus) and error.response.status_code in (401, 403):
                raise ConfigError(
                    f"the server at {self.base_url} refuses the client: send the token that it asks for, "
                    "headers={'Authorization': 'Bearer ...'}"
                ) from error
            raise ConnectionError(
                f"no OpenEnv server can be reached at {self.base_url}: {error}; "
                "start one, such as gym-trl serve ID --port 8000"
            ) from error

    def _ask(self, kind: str, data: dict[str, Any], timeout: float) -> StepResult:
        """Send a message and return the response to it."""
        if self._socket is None:
            raise ConnectionError(f"there is no session at {self.base_url}: call reset()")
        from websockets.exceptions import WebSocketException

        try:
            self._socket.send(json.dumps({"type": kind, "data": data}))
            answer = json.loads(self._socket.recv(timeout=max(timeout, 0.01)), object_hook=Fields)
            content = answer["data"]
            if answer["type"] == "error":
                raise ServerError(f"{self.base_url}: {content.get('message')}", content.get("code", ""))
            reward, done, seen = content.get("reward"), content.get("done"), content["observation"]
            about = content.get("metadata") or seen.get("metadata") or {}
            return StepResult(Fields(seen, reward=reward, done=done, metadata=about), reward, bool(done))
        except BaseException as error:
            if not (isinstance(error, ServerError) and error.code == "VALIDATION_ERROR"):  # then it was not played
                self._disconnect()
            if isinstance(error, TimeoutError):
                raise TimeoutError(f"{self.base_url} did not answer in {self.timeout:g} seconds") from error
            if isinstance(error, WebSocketException | OSError | LookupError | TypeError | ValueError | AttributeError):
                raise ConnectionError(f"{self.base_url} broke the connection: {error!r}") from error
            raise

    def _disconnect(self) -> None:
        self._socket = None
        with suppress(Exception):
            self._session.close()


class EchoEnv(EnvClient):
    """Client of Echo; its actions are ``EchoAction``s."""


class TextArenaEnv(EnvClient):
    """Client of the games of TextArena, such as Wordle and Sudoku; its actions are ``TextArenaAction``s."""


class BrowserGymEnv(EnvClient):
    """Client of BrowserGym; its actions are ``BrowserGymAction``s."""


def is_loopback(host: str | None) -> bool:
    """Return whether a host is this machine's loopback.

    >>> is_loopback("localhost"), is_loopback("::1"), is_loopback("example.org")
    (True, True, False)
    """
    with suppress(ValueError):
        return host == "localhost" or ip_address(host or "").is_loopback
    return False
