"""OpenEnv server for any environment with text observations and actions."""

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
from gym_trl.spaces import MAX_LENGTH
from gym_trl.text.chat_client import bearer


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
    app.add_middleware(Guard, authorization=_authorization(token), hosts=hosts, status_of=_status_of)
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
        host: Address to listen at. Any address but this machine's loopback requires a ``token``.
        port: Port to listen at; 0 selects a free one.
        sessions: Maximum number of open sessions. Twice as many requests and 64 more are answered at the same time;
            further ones get status 503.
        token: Token that clients must send. Without one, requests must name the loopback as their ``Host``.
        say: Called with the address of the server.

    Raises:
        MissingDependencyError: the ``openenv`` extra is not installed.
        ConfigError: a number is out of range, the address is not available or needs a token, or a header cannot contain
            the token.
    """
    if token is None and not is_loopback(host):
        raise ConfigError(f"host={host!r} can be reached by others: give a token that clients must send")
    # Otherwise a web page whose name resolves to this machine (DNS rebinding) would count as this server's own.
    hosts = frozenset({"localhost", "127.0.0.1", "::1", host}) if token is None else None
    app = make_app(env_id, env_kwargs=env_kwargs, sessions=sessions, token=token, hosts=hosts)
    import uvicorn

    config = uvicorn.Config(
        app,
        log_level="warning",
        http="h11",  # httptools does not limit the size of headers
        ws_max_size=MAX_MESSAGE,
        ws_per_message_deflate=False,  # a compressed message could expand beyond the limit
        access_log=False,
        limit_concurrency=2 * sessions + 64,
        timeout_keep_alive=20,
        timeout_graceful_shutdown=5,
    )
    with _listening(host, port) as listening:
        port = listening.getsockname()[1]
        shown = f"[{host}]" if ":" in host else host
        say(f"{env_id} for up to {sessions} OpenEnv sessions at http://{shown}:{port}; Ctrl-C stops it.")
        sys.stdout.flush()
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listening])


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen at {host}:{port}: {getattr(error, 'strerror', None) or error}") from error


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
