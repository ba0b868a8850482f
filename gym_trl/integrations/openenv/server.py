"""OpenEnv server for any environment with text observations and actions."""

import json
import re
import secrets
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import gymnasium as gym

from gym_trl.errors import ConfigError, InfrastructureError, ModelFaultError, check_counts, needs
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.executors.step import take_step
from gym_trl.integrations.openenv.session import is_loopback
from gym_trl.registration import make_env
from gym_trl.spaces import MAX_LENGTH
from gym_trl.text.credentials import bearer
from gym_trl.types import EnvFailure
from gym_trl.wrappers.as_text import as_text
from gym_trl.wrappers.inner import instructions_of
from gym_trl.wrappers.settlement import settlement

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_Message: TypeAlias = MutableMapping[str, Any]
_Receive: TypeAlias = Callable[[], Awaitable[_Message]]
_Send: TypeAlias = Callable[[_Message], Awaitable[None]]

MAX_MESSAGE = 2**20
"""Maximum bytes of a message: the longest action, at twelve bytes per character in JSON, and its surroundings."""


def make_app(
    env_id: str,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    sessions: int = 64,
    token: str | None = None,
    hosts: frozenset[str] | None = None,
) -> Any:
    """Return an OpenEnv application (``create_app``) that serves an environment, with an instance per session.

    ::

        $ gym-trl serve TrlEnv/GuessNumber-v0 --port 8000
        from openenv.core import GenericEnvClient
        with GenericEnvClient(base_url="http://127.0.0.1:8000").sync() as client:
            client.reset(seed=0, instance=6).observation["text"]
            client.step({"message": "25"}).observation["text"]

    An action is a ``message``, as in OpenEnv's own text environments. An observation has the ``text``, in the first one
    the ``instructions``, ``terminated`` and ``truncated`` (either of which sets ``done``), and the environment's
    ``info``. ``reset`` takes ``seed``, ``episode_id`` and the environment's own options, by name or as ``options``. A
    step before the first reset, or one in which the environment raises, returns an error.

    A message that is not a JSON object gets an error before OpenEnv receives it. Messages longer than a mebibyte are
    rejected: a request with status 413, a socket's message by closing the socket with code 1009 (by the server that
    runs the app; see ``serve``). Requests from web pages of other sites are rejected, because they could otherwise play
    on a local server. With a ``token``, requests without it are rejected with status 401, and sockets before they are
    opened. OpenEnv's routes for tools are removed, because there are no tools.

    Args:
        env_id: An id of Gymnasium, or a place such as ``"my_game.py:MyGame"``; converted to text with ``as_text``.
        env_kwargs: Arguments for ``gym.make``.
        sessions: Maximum number of open sessions; a further one gets an error, and its socket is closed.
        token: Token that clients must send as ``Authorization: Bearer TOKEN``.
        hosts: Names that a request's ``Host`` must be one of. Default: any.

    Returns:
        An ASGI application.

    Raises:
        MissingDependencyError: the ``openenv`` extra is not installed.
        ConfigError: an invalid number or token.
    """
    with needs("openenv", "gym-trl serve"):
        from openenv.core.env_server import create_app
    check_counts(sessions=sessions)
    environment, action, observation = _classes(env_id, partial(make_env, env_id, **(env_kwargs or {})))
    app = create_app(environment, action, observation, env_name=env_id, max_concurrent_envs=sessions)
    app.router.routes[:] = [route for route in app.router.routes if getattr(route, "path", "") != "/mcp"]
    app.add_middleware(_Guard, authorization=_authorization(token), hosts=hosts)
    return app


def serve(
    env_id: str,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    sessions: int = 64,
    token: str | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Serve an environment until the process is interrupted; see ``make_app``.

    Args:
        env_id: An id of Gymnasium.
        env_kwargs: Arguments for ``gym.make``.
        host: Address to listen at. The ``token`` is required for any address but this machine's loopback.
        port: Port to listen at; 0 selects a free one.
        sessions: Maximum number of open sessions.
        token: Token that clients must send. By default one is made and printed for any ``host`` but the loopback; on
            the loopback, requests must name it as their ``Host``.
        say: Called with the address of the server.

    Raises:
        MissingDependencyError: the ``openenv`` extra is not installed.
        ConfigError: the address is not available, or a header cannot contain the token.
    """
    made = None
    if token is None and not is_loopback(host):
        token = made = secrets.token_urlsafe(24)
    # Otherwise a web page whose name resolves to this machine (DNS rebinding) would count as this server's own.
    hosts = frozenset({"localhost", "127.0.0.1", "::1", host}) if token is None else None
    app = make_app(env_id, env_kwargs=env_kwargs, sessions=sessions, token=token, hosts=hosts)
    import uvicorn

    config = uvicorn.Config(
        app,
        log_level="warning",
        ws_max_size=MAX_MESSAGE,
        ws_per_message_deflate=False,  # a compressed message could expand beyond the limit
        timeout_graceful_shutdown=5,
    )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=max(128, sessions))
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen at {host}:{port}: {getattr(error, 'strerror', None) or error}") from error
    with listening:
        port = listening.getsockname()[1]
        shown = f"[{host}]" if family == socket.AF_INET6 else host
        say(f"{env_id} for up to {sessions} OpenEnv sessions at http://{shown}:{port}; Ctrl-C stops it.")
        if token is not None:
            shown = made or "TOKEN, with the token that was given"
            say(f"Clients must send the header Authorization: Bearer {shown}")
        sys.stdout.flush()
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listening])


def _classes(env_id: str, make: Callable[[], gym.Env[Any, Any]]) -> tuple[type[Any], type[Any], type[Any]]:
    """Return the classes of a session's environment, of its actions and of its observations, for OpenEnv."""
    from openenv.core.env_server import Action, Environment, Observation, State
    from openenv.core.env_server.types import EnvironmentMetadata
    from pydantic import Field

    class TextAction(Action):  # type: ignore[misc]  # of a package without types
        message: str = Field(description="The action, in words", max_length=MAX_LENGTH)

    class TextObservation(Observation):  # type: ignore[misc]
        text: str = Field(description="What the environment says")
        instructions: str = Field(default="", description="The rules, with the first observation")
        terminated: bool = Field(default=False, description="The game is over by its own rules")
        truncated: bool = Field(default=False, description="The game was cut off")
        info: dict[str, Any] = Field(default_factory=dict, description="What else the environment says")
        settlement: float = Field(default=0.0, description="What the rest of the episode pays if it is cut off here")

    class GymEnvironment(Environment):  # type: ignore[misc]
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            super().__init__()
            self._env: TextEnvironment = as_text(make())
            self._state = State()

        def reset(
            self,
            seed: int | None = None,
            episode_id: str | None = None,
            options: dict[str, Any] | None = None,
            **more: Any,
        ) -> TextObservation:
            text, info = self._env.reset(seed=seed, options={**(options or {}), **more} or None)
            self._state = State(episode_id=episode_id, step_count=0)
            return TextObservation(
                text=_encodable(text),
                instructions=_encodable(instructions_of(self._env)),
                info=_as_json(info),
                settlement=settlement(self._env),
            )

        def step(self, action: TextAction, timeout_s: float | None = None, **kwargs: Any) -> TextObservation:
            result = take_step(self._env, action.message)
            if isinstance(result, EnvFailure):  # clients receive the text only
                kind = ModelFaultError if result.reason.scored else InfrastructureError
                raise kind(f"{kind.__name__}: {result.error}")
            self._state.step_count += 1
            return TextObservation(
                text=_encodable(result.observation),
                reward=result.reward,
                done=result.terminated or result.truncated,
                terminated=result.terminated,
                truncated=result.truncated,
                info=_as_json(result.info),
                settlement=result.settlement,
            )

        @property
        def state(self) -> State:
            return self._state

        def get_metadata(self) -> EnvironmentMetadata:
            return EnvironmentMetadata(name=env_id, description=_encodable(instructions_of(self._env)))

        def close(self) -> None:
            self._env.close()

    return GymEnvironment, TextAction, TextObservation


def _encodable(text: str) -> str:
    """Return ``text`` with lone surrogates replaced by question marks, because they cannot be encoded."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _as_json(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``info`` as plain JSON values: NumPy's numbers as numbers, and other objects as strings."""
    plain: dict[str, Any] = json.loads(
        _encodable(json.dumps(dict(info), default=_plain, skipkeys=True, ensure_ascii=False))
    )
    return plain


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


class _Guard:
    """Middleware that rejects messages that are too long or not JSON objects, other sites, and missing tokens."""

    def __init__(
        self,
        app: Callable[[_Message, _Receive, _Send], Awaitable[None]],
        authorization: bytes | None = None,
        hosts: frozenset[str] | None = None,
    ) -> None:
        self._app = app
        self._authorization = authorization
        self._hosts = hosts

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        headers = dict(scope.get("headers", ()))
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif not self._is_allowed(headers):
            await _refuse(scope, receive, send, 401, "send the token of this server: Authorization: Bearer TOKEN")
        elif _is_of_another_site(headers) or not self._is_meant(headers):
            await _refuse(scope, receive, send, 403, "pages of other sites cannot play here")
        elif scope["type"] == "http":
            await self._request(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._app(scope, partial(self._next_object, receive, send), send)

    def _is_allowed(self, headers: Mapping[bytes, bytes]) -> bool:
        given = headers.get(b"authorization", b"")
        return self._authorization is None or secrets.compare_digest(given, self._authorization)

    def _is_meant(self, headers: Mapping[bytes, bytes]) -> bool:
        named = headers.get(b"host")  # every browser sends it
        return self._hosts is None or named is None or _host_name(named) in self._hosts

    async def _request(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        parts: list[_Message] = []
        size = 0
        while not parts or parts[-1].get("more_body", False):
            parts.append(await receive())
            size += len(parts[-1].get("body", b""))
            if size > MAX_MESSAGE:
                await _answer(send, 413, f"a request can have {MAX_MESSAGE} bytes")
                return
        parts.reverse()

        async def again() -> _Message:
            return parts.pop() if parts else await receive()

        await self._app(scope, again, send)

    async def _next_object(self, receive: _Receive, send: _Send) -> _Message:
        while True:
            message = await receive()
            if message["type"] != "websocket.receive":
                return message
            text = message.get("text")
            try:
                found = json.loads(text) if text is not None else None
                if isinstance(found, dict):
                    if _SURROGATE.search(str(text)):  # OpenEnv could not encode it in its answer
                        return {**message, "text": _encodable(json.dumps(found, ensure_ascii=False))}
                    return message
                problem = "a message must be a JSON object" if text is not None else "a message must be text"
            except (ValueError, RecursionError) as error:
                problem = f"{type(error).__name__}: {error}"
            said = {"type": "error", "data": {"message": problem, "code": "INVALID_JSON"}}
            await send({"type": "websocket.send", "text": json.dumps(said)})


def _authorization(token: str | None) -> bytes | None:
    """Return the header that a client must send."""
    if token is None:
        return None
    if not (header := bearer(token)):
        raise ConfigError("token must not be empty")
    return header["Authorization"].encode("ascii")


def _host_name(host: bytes) -> str:
    """Return the name in a ``Host`` header, without its port.

    >>> _host_name(b"[::1]:8000"), _host_name(b"LOCALHOST")
    ('::1', 'localhost')
    """
    try:
        return urlsplit(f"//{host.decode('latin-1')}").hostname or ""
    except ValueError:
        return ""


def _is_of_another_site(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a browser sends the request for a page of another site; other programs send no origin."""
    origin = headers.get(b"origin")
    return origin is not None and origin.partition(b"://")[2] != headers.get(b"host")


async def _refuse(scope: _Message, receive: _Receive, send: _Send, status: int, detail: str) -> None:
    if scope["type"] == "http":
        await _answer(send, status, detail)
        return
    await receive()
    await send({"type": "websocket.close", "code": 1008})


async def _answer(send: _Send, status: int, detail: str) -> None:
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    headers += [(b"www-authenticate", b"Bearer")] if status == 401 else []
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"detail": detail}).encode()})
