"""OpenEnv server for any environment with text observations and actions."""

import secrets
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from functools import cache, partial
from typing import Any

import gymnasium as gym
from gymnasium.error import ResetNeeded

from gym_trl.errors import ConfigError, InfrastructureError, ModelFaultError, check_counts, described, needs
from gym_trl.integrations.openenv.guard import MAX_MESSAGE, Guard
from gym_trl.integrations.openenv.served import ServedEnv, can_be_of_a_client
from gym_trl.integrations.openenv.session import is_loopback
from gym_trl.registration import make_env
from gym_trl.serving.connections import Connections, check_seconds, descriptors
from gym_trl.serving.protocols import bounded
from gym_trl.spaces import MAX_LENGTH
from gym_trl.text.credentials import bearer

REQUEST_TIMEOUT = 20.0
"""Default seconds in which a request, or the first message of a session, must arrive."""
IDLE_TIMEOUT = 3600.0
"""Default seconds after which a session without a message ends."""


def make_app(
    env_id: str,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    sessions: int = 64,
    token: str | None = None,
    hosts: frozenset[str] | None = None,
    request_timeout: float = REQUEST_TIMEOUT,
    idle_timeout: float = IDLE_TIMEOUT,
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
    reset with a seed or options that the environment refuses returns a validation error (status 422), a step before the
    first reset, or one in which the environment raises, an execution error; the session continues. Whatever an
    environment raises ends its own call only. Environments are threads of one process, however: one that ends the
    process ends all of them.

    A message that is not a JSON object, has a number beyond a float's range, or is nested deeply, gets an error before
    OpenEnv receives it. Messages longer than a mebibyte are rejected: a request with status 413, a socket's message by
    closing the socket with code 1009 (by the server that runs the app; see ``serve``). Requests from web pages of other
    sites are rejected, because they could otherwise play on a local server. With a ``token``, requests without it are
    rejected with status 401, their body unused, and sockets before they are opened. An environment is made by a
    session's first reset. OpenEnv's routes for tools are removed, because there are no tools.

    The time-outs here are those of bodies and messages. Those of headers, and the bound on connections, belong to the
    server that runs the app: ``serve`` has them, ``uvicorn`` alone does not.

    Args:
        env_id: An id of Gymnasium, or a place such as ``"my_game.py:MyGame"``; converted to text with ``as_text``.
        env_kwargs: Arguments for ``gym.make``.
        sessions: Maximum number of open sessions; a further one gets an error, and its socket is closed.
        token: Token that clients must send as ``Authorization: Bearer TOKEN``.
        hosts: Names that a request's ``Host`` must be one of. Default: any.
        request_timeout: Seconds in which a request's body, or a session's first message, must arrive (else status 408,
            or closing code 1008).
        idle_timeout: Seconds that a session may wait for its next message; the time of steps does not count.

    Returns:
        An ASGI application.

    Raises:
        MissingDependencyError: the ``openenv`` extra is not installed.
        ConfigError: an invalid number or token.
    """
    with needs("openenv", "gym-trl serve"):
        from openenv.core.env_server import create_app
    check_counts(sessions=sessions)
    check_seconds(request_timeout=request_timeout, idle_timeout=idle_timeout)
    environment, action, observation = _classes(env_id, partial(make_env, env_id, **(env_kwargs or {})))
    app = create_app(environment, action, observation, env_name=env_id, max_concurrent_envs=sessions)
    app.router.routes[:] = [route for route in app.router.routes if getattr(route, "path", "") != "/mcp"]
    app.add_middleware(
        Guard,
        authorization=_authorization(token),
        hosts=hosts,
        status_of=_status_of,
        request_timeout=request_timeout,
        idle_timeout=idle_timeout,
    )
    return app


def serve(
    env_id: str,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    sessions: int = 64,
    token: str | None = None,
    connections: int | None = None,
    request_timeout: float = REQUEST_TIMEOUT,
    idle_timeout: float = IDLE_TIMEOUT,
    say: Callable[[str], None] = print,
) -> None:
    """Serve an environment until the process is interrupted; see ``make_app``.

    Connections are bounded (``gym_trl.serving.connections``): at the bound, the one that has waited longest for its
    request gives way to a new one, and if all are in use, the new one gets status 503. Half of the process's file
    descriptors remain for environments.

    Args:
        env_id: An id of Gymnasium.
        env_kwargs: Arguments for ``gym.make``.
        host: Address to listen at. The ``token`` is required for any address but this machine's loopback.
        port: Port to listen at; 0 selects a free one.
        sessions: Maximum number of open sessions.
        token: Token that clients must send. By default one is made and printed for any ``host`` but the loopback; on
            the loopback, requests must name it as their ``Host``.
        connections: Maximum number of open connections. Default: twice the sessions and 64 more, or half of the file
            descriptors (``ulimit -n``) if that is less.
        request_timeout: Seconds in which a request (its headers, its body) or the first message of a session must
            arrive, and in which a client must read a response.
        idle_timeout: Seconds that a session may wait for its next message, as while a policy computes an action.
        say: Called with the address of the server.

    Raises:
        MissingDependencyError: the ``openenv`` extra is not installed.
        ConfigError: a number is out of range, the address is not available, or a header cannot contain the token.
    """
    bound = _bound(sessions, connections)
    made = None
    if token is None and not is_loopback(host):
        token = made = secrets.token_urlsafe(24)
    # Otherwise a web page whose name resolves to this machine (DNS rebinding) would count as this server's own.
    hosts = frozenset({"localhost", "127.0.0.1", "::1", host}) if token is None else None
    app = make_app(
        env_id,
        env_kwargs=env_kwargs,
        sessions=sessions,
        token=token,
        hosts=hosts,
        request_timeout=request_timeout,
        idle_timeout=idle_timeout,
    )
    import uvicorn

    backlog = min(128, descriptors() // 8)  # so many are accepted at once, before the first is counted
    config = _settings(app, Connections(bound, request_timeout=request_timeout), backlog)
    with _listening(host, port, backlog) as listening:
        port = listening.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        say(f"{env_id} for up to {sessions} OpenEnv sessions at http://{shown}:{port}; Ctrl-C stops it.")
        if token is not None:
            shown = made or "TOKEN, with the token that was given"
            say(f"Clients must send the header Authorization: Bearer {shown}")
        sys.stdout.flush()
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listening])


def _settings(app: Any, opened: Connections, backlog: int) -> Any:
    """Return uvicorn's settings."""
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol
    from uvicorn.protocols.websockets.auto import AutoWebSocketsProtocol

    async def close_late() -> None:
        opened.close_late()

    return uvicorn.Config(
        app,
        log_level="warning",
        http=bounded(H11Protocol, opened),  # httptools does not limit the size of headers
        ws=bounded(AutoWebSocketsProtocol, opened),
        ws_max_size=MAX_MESSAGE,
        ws_per_message_deflate=False,  # a compressed message could expand beyond the limit
        access_log=False,
        backlog=backlog,
        callback_notify=close_late,
        timeout_notify=0,  # called every second
        timeout_graceful_shutdown=5,
    )


def _listening(host: str, port: int, backlog: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=backlog)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen at {host}:{port}: {getattr(error, 'strerror', None) or error}") from error


def _bound(sessions: int, connections: int | None) -> int:
    """Return the maximum number of connections, after checking what was given."""
    check_counts(sessions=sessions)
    most = descriptors() // 2
    limit = f"half of the {descriptors()} file descriptors of this process (ulimit -n)"
    if sessions > most:
        raise ConfigError(f"sessions must be at most {most}, {limit}, got {sessions}")
    if connections is None:
        return min(2 * sessions + 64, most)
    check_counts(connections=connections)
    if connections > most:
        raise ConfigError(f"connections must be at most {most}, {limit}, got {connections}")
    if connections < sessions:
        raise ConfigError(f"connections must be at least sessions ({sessions}), got {connections}")
    return connections


def _classes(env_id: str, make: Callable[[], gym.Env[Any, Any]]) -> tuple[type[Any], type[Any], type[Any]]:
    """Return the classes of a session's environment, of its actions and of its observations, for OpenEnv."""
    from openenv.core.env_server import Action, Environment, Observation, State
    from openenv.core.env_server.types import EnvironmentMetadata
    from pydantic import BaseModel, ConfigDict, Field

    class TextAction(Action):  # type: ignore[misc]  # of a package without types
        message: str = Field(description="The action, in words", max_length=MAX_LENGTH)

    class TextObservation(Observation):  # type: ignore[misc]
        text: str = Field(description="What the environment says")
        instructions: str = Field(default="", description="The rules, with the first observation")
        terminated: bool = Field(default=False, description="The game is over by its own rules")
        truncated: bool = Field(default=False, description="The game was cut off")
        info: dict[str, Any] = Field(default_factory=dict, description="What else the environment says")
        settlement: float = Field(default=0.0, description="What the rest of the episode pays if it is cut off here")

    class ResetArguments(BaseModel):
        model_config = ConfigDict(strict=True)
        seed: int | None = Field(default=None, ge=0)
        episode_id: str | None = Field(default=None, max_length=255)
        options: dict[str, Any] | None = None

    @cache
    def rules() -> str:
        with closing(ServedEnv(make)) as served:
            return served.instructions()

    class GymEnvironment(Environment):  # type: ignore[misc]
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            super().__init__()
            self._served = ServedEnv(make)
            self._state = State()

        def reset(
            self, seed: int | None = None, episode_id: str | None = None, options: dict[str, Any] | None = None
        ) -> TextObservation:
            ResetArguments.model_validate({"seed": seed, "episode_id": episode_id, "options": options})
            try:
                fields = self._served.reset(seed, options)
            except (ModelFaultError, InfrastructureError) as error:
                _refuse_arguments(error, seed, options)
                raise
            self._state = State(episode_id=episode_id, step_count=0)
            return TextObservation(**fields)

        def step(self, action: TextAction, timeout_s: float | None = None) -> TextObservation:
            fields = self._served.step(action.message)
            self._state.step_count += 1
            return TextObservation(**fields)

        @property
        def state(self) -> State:
            return self._state

        def get_metadata(self) -> EnvironmentMetadata:
            return EnvironmentMetadata(name=env_id, description=rules())

        def close(self) -> None:
            self._served.close()

    return GymEnvironment, TextAction, TextObservation


def _refuse_arguments(error: Exception, seed: int | None, options: dict[str, Any] | None) -> None:
    """Raise a validation error if a reset has failed because of what the client sent."""
    from pydantic import ValidationError
    from pydantic_core import PydanticCustomError

    cause = error.__cause__ or error
    if (seed is not None or options) and can_be_of_a_client(cause):
        reason = PydanticCustomError("refused", "{reason}", {"reason": described(cause)})
        where = ("options" if options else "seed",)
        raise ValidationError.from_exception_data("reset", [{"type": reason, "loc": where, "input": None}]) from error


def _status_of(error: Exception) -> tuple[int, str]:
    """Return the HTTP status of an exception and what is said of it."""
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        return 422, "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
    if isinstance(error, ModelFaultError | ResetNeeded):
        return 422, str(error)
    return 500, str(error) if isinstance(error, InfrastructureError) else described(error)


def _authorization(token: str | None) -> bytes | None:
    """Return the header that a client must send."""
    if token is None:
        return None
    if not (header := bearer(token)):
        raise ConfigError("token must not be empty")
    return header["Authorization"].encode("ascii")
