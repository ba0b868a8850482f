"""Sessions on OpenEnv servers through the ``openenv`` package, and servers started for them."""

import atexit
import inspect
import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from threading import Lock, Thread
from time import monotonic, sleep
from typing import Any, ClassVar
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from gymnasium.envs.registration import load_env_creator

from gym_trl.errors import ConfigError, needs

_CODE = re.compile(r"\(code: (?:WSErrorCode\.)?(\w+)\)")
_FULL = "CAPACITY_REACHED"
_UNINVITED = (
    "the server at {url} refuses whoever does not send its token: name the environment variable that holds it "
    "(token_variable='GYM_TRL_TOKEN')"
)
_CLOSING = 5.0
"""Seconds that a server has to close a session."""


class ServerError(RuntimeError):
    """Error response of a server; ``code`` is OpenEnv's name of it."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        match = _CODE.search(text)
        self.code = match[1] if match else "UNKNOWN"


class Session:
    """Session on an OpenEnv server: a synchronous client with one socket that never reconnects.

    A client that reconnects would continue an episode in an environment that was never reset, and a socket that
    survives a time-out delivers the response to the previous request. So callers drop the session after an exception
    and open another one.

    Args:
        url: Address of the server.
        client: A subclass of OpenEnv's ``EnvClient``.
        settings: Keyword arguments of the client.

    Raises:
        ConfigError: the server requires a token. ConnectionError: there is no such server, or it refuses connections.
    """

    def __init__(self, url: str, client: type[Any], settings: Mapping[str, Any]) -> None:
        self.url = url
        self._client = client(base_url=url, **settings).sync()
        try:
            self._client.connect()
        except Exception as error:
            self.drop()
            if _is_refusal(error):
                raise ConfigError(_UNINVITED.format(url=url)) from error
            raise ConnectionError(f"no OpenEnv server can be reached at {url}: {error}") from error
        self._socket = self._client.async_client._ws

    def reset(self, **kwargs: Any) -> Any:
        """Start an episode."""
        return self._ask(partial(self._client.reset, **kwargs))

    def step(self, action: Any) -> Any:
        """Send an action, once: an action that may have been played is never sent again."""
        if self._socket.state.name != "OPEN":
            raise ConnectionError(f"{self.url} broke the connection")
        return self._ask(partial(self._client.step, action))

    def state(self) -> Any:
        """Return the environment's state."""
        return self._ask(self._client.state)

    def _ask(self, question: Callable[[], Any]) -> Any:
        broken = f"{self.url} broke the connection"
        try:
            answer = question()
        except TimeoutError as error:
            raise TimeoutError(f"{self.url} did not answer in time") from error
        except Exception as error:  # websockets and clients raise many types when a connection breaks
            if isinstance(error, RuntimeError) and (self._is_the_same() or _FULL in str(error)):
                raise ServerError(f"{self.url}: {error}") from error
            raise ConnectionError(f"{broken}: {type(error).__name__}: {error}") from error
        if not self._is_the_same():
            raise ConnectionError(f"{broken}, and another session answered")
        return answer

    def _is_the_same(self) -> bool:
        return self._client.async_client._ws is self._socket

    def drop(self) -> None:
        """Close without waiting for the server, which may hang."""
        self._closing()

    def close(self) -> None:
        """Close, waiting some seconds at most for the server."""
        self._closing().join(_CLOSING)

    def _closing(self) -> Thread:
        thread = Thread(target=self._close, name="gym-trl closes a session", daemon=True)
        thread.start()
        return thread

    def _close(self) -> None:
        with suppress(Exception):
            self._client.close()


def begin(session: Session | None, another: Callable[[], Session], patience_s: float, **kwargs: Any) -> Any:
    """Reset on ``session``, or if it is ``None`` or broken on another one, and wait while the server is full.

    Returns:
        The session, and the server's response.

    Raises:
        ConnectionError, TimeoutError, ServerError: the last error; no session is left open then.
    """
    deadline, pause = monotonic() + patience_s, 0.05
    while True:
        try:
            if session is None:
                session = another()
            return session, session.reset(**kwargs)
        except BaseException as error:
            if session is not None:
                session.drop()
                session = None
            full = isinstance(error, ServerError) and error.code == _FULL
            if not (full or isinstance(error, ConnectionError)) or monotonic() + pause > deadline:
                raise
        sleep(pause)
        pause = min(2 * pause, 2.0)


def client_class(client: type[Any] | str | None) -> type[Any]:
    """Return a client class: OpenEnv's generic one, a given one, or one by its name ``"package.module:Class"``.

    Raises:
        MissingDependencyError: ``openenv`` is not installed.
        ConfigError: there is no such class, or it is not a client.
    """
    with needs("openenv", "TrlEnv/OpenEnv-v0"):
        from openenv.core import EnvClient, GenericEnvClient
    if client is None:
        return GenericEnvClient  # type: ignore[no-any-return]
    if isinstance(client, str):
        try:
            client = load_env_creator(client)  # type: ignore[assignment]
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigError(f"there is no client {client!r}: {error}") from error
    if not (isinstance(client, type) and issubclass(client, EnvClient)):
        raise ConfigError(f"client must be a subclass of openenv.core.EnvClient or its name, got {client!r}")
    # Tool clients bypass the environment's own steps, and so its rewards and its end.
    return GenericEnvClient if any(kind.__name__ == "MCPClientBase" for kind in client.__mro__) else client


def client_settings(client: type[Any], **options: Any) -> dict[str, Any]:
    """Return the given settings that are not ``None``, after checking that this client version takes them.

    Raises:
        ConfigError: it does not take one of them.
    """
    wanted = {name: value for name, value in options.items() if value is not None}
    parameters = inspect.signature(client).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return wanted
    if unknown := sorted(set(wanted) - set(parameters)):
        raise ConfigError(f"{client.__name__} of the installed openenv takes no {unknown[0]}")
    return wanted


def action_class(client: type[Any]) -> type[Any] | None:
    """Return the class of a typed client's actions, from its bases: ``EnvClient[Action, ...]``."""
    for kind in client.__mro__:
        for base in getattr(kind, "__orig_bases__", ()):
            first = (getattr(base, "__args__", None) or (None,))[0]
            if isinstance(first, type) and hasattr(first, "model_validate"):
                return first
    return None


def look_up(url: str, path: str, *, timeout: float, headers: Mapping[str, str] | None = None) -> Mapping[str, Any]:
    """Return a server's response at ``/schema`` or ``/metadata``; empty if it has no such page.

    Raises:
        ConfigError: the server requires a token. ConnectionError: no server responds.
    """
    parts = urlsplit(url if "://" in url else f"http://{url}")
    scheme = {"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme)
    if scheme not in ("http", "https"):
        raise ConfigError(f"base_url must begin with http, https, ws or wss, got {url!r}")
    address = parts._replace(scheme=scheme, path=f"{parts.path.rstrip('/')}/{path}").geturl()
    opener = build_opener(ProxyHandler({})) if is_loopback(parts.hostname) else build_opener()
    try:
        with opener.open(Request(address, headers=dict(headers or {})), timeout=timeout) as answer:  # noqa: S310 -- checked
            content = json.loads(answer.read(2**20))
    except HTTPError as error:
        if error.code == 401:
            raise ConfigError(_UNINVITED.format(url=url)) from error
        return {}  # the server runs, but has no such page
    except URLError as error:
        raise ConnectionError(
            f"no OpenEnv server answers at {url}: {error.reason}; start one, as with gym-trl serve ID --port 8000"
        ) from error
    except OSError as error:
        raise ConnectionError(f"no OpenEnv server answers at {url}: {error}") from error
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _is_refusal(error: BaseException | None) -> bool:
    """Return whether a server has refused the handshake of a socket, as without the token that it requires."""
    while error is not None:
        if getattr(getattr(error, "response", None), "status_code", None) in (401, 403):
            return True
        error = error.__cause__ or error.__context__
    return False


def is_loopback(host: str | None) -> bool:
    """Return whether a host is this machine's loopback.

    >>> is_loopback("localhost"), is_loopback("::1"), is_loopback("example.org")
    (True, True, False)
    """
    try:
        return host == "localhost" or ip_address(host or "").is_loopback
    except ValueError:
        return False


class StartedServer:
    """Server started for the sessions of this process, shared by all with the same arguments.

    ::

        server = StartedServer.share("echo-env:latest", env_vars={"LEVEL": "2"})
        server.url
        server.release()  # the last one stops it, and so does the end of the interpreter

    Args of ``share``: a docker image, its port and environment variables, and a provider, or a function that makes one;
    by default OpenEnv's ``LocalDockerProvider``.
    """

    _all: ClassVar[dict[str, "StartedServer"]] = {}
    _lock: ClassVar[Any] = Lock()

    def __init__(self, key: str, provider: Any, url: str) -> None:
        self.url = url
        self._key, self._provider, self._users, self._process = key, provider, 0, os.getpid()

    @classmethod
    def share(
        cls, image: str, *, port: int | None = None, env_vars: Mapping[str, str] | None = None, provider: Any = None
    ) -> "StartedServer":
        """Return the server of this image and these variables, started if it is not running."""
        key = repr((image, port, sorted((env_vars or {}).items()), id(provider)))
        with cls._lock:
            server = cls._all.get(key)
            if server is None or server._process != os.getpid():
                server = cls._all[key] = cls(key, *_start(image, port, env_vars, provider))
            server._users += 1
            return server

    def release(self) -> None:
        """Release one session's claim; the last release stops the server."""
        with StartedServer._lock:
            self._users -= 1
            if self._users == 0 and self._process == os.getpid():
                StartedServer._all.pop(self._key, None)
                self._provider.stop_container()


def _start(image: str, port: int | None, env_vars: Mapping[str, str] | None, provider: Any) -> tuple[Any, str]:
    if provider is None:
        from openenv.core.containers.runtime import LocalDockerProvider

        provider = LocalDockerProvider
    made = provider() if callable(provider) else provider
    try:
        url = made.start_container(image, port=port, env_vars=dict(env_vars or {}) or None)
        made.wait_for_ready(url)
    except BaseException:
        with suppress(Exception):
            made.stop_container()
        raise
    return made, url


@atexit.register
def _stop_all() -> None:
    for server in list(StartedServer._all.values()):
        if server._process == os.getpid():
            with suppress(Exception):
                server._provider.stop_container()


def image_of_space(repo_id: str) -> str:
    """Return the docker image of a Space on the Hub.

    >>> image_of_space("openenv/echo_env")
    'registry.hf.space/openenv-echo-env:latest'
    """
    return f"registry.hf.space/{re.sub('[^a-z0-9]+', '-', repo_id.lower()).strip('-')}:latest"
