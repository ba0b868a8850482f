"""OpenEnv server for any environment with text observations and actions."""

import json
import math
import secrets
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from gym_trl.errors import (
    ConfigError,
    InfrastructureError,
    ModelFaultError,
    caused_by_model,
    described,
    needs,
)
from gym_trl.integrations.openenv.client import is_loopback
from gym_trl.registration import make_env
from gym_trl.spaces import MAX_LENGTH
from gym_trl.text.keys import bearer
from gym_trl.wrappers.as_text import as_text
from gym_trl.wrappers.base import instructions_of
from gym_trl.wrappers.turn_limit import loss_return_of

T = TypeVar("T")

_LARGEST_MESSAGE = 2**20  # bytes: the longest action, and its surroundings


def make_app(
    env_id: str, *, env_kwargs: Mapping[str, Any] | None = None, sessions: int = 64, token: str | None = None
) -> Any:
    """Return an OpenEnv application (``create_app``) that serves an environment, with an instance per session.

    ::

        $ gym-trl serve TrlEnv/GuessNumber-v0 --port 8000
        from openenv.core import GenericEnvClient
        with GenericEnvClient(base_url="http://127.0.0.1:8000").sync() as client:
            client.reset(seed=0, instance=6).observation["text"]
            client.step({"message": "25"}).observation["text"]

    An action is a ``message``. An observation has the ``text``, ``terminated`` and ``truncated`` (either of which sets
    ``done``), the environment's ``info``, and after a reset the ``instructions`` and the ``loss_return``. ``reset``
    takes ``seed`` and the environment's own options by name. What an environment raises is answered as an execution
    error that begins with ``ModelFaultError`` or ``InfrastructureError``. Environments are threads of one process: one
    that ends the process ends all of them.

    Requests of web pages are refused (status 403), because any page could otherwise play on a server of its visitor's,
    and so are those without the ``token``, if there is one (status 401).

    Args:
        env_id: An id of Gymnasium, or a place such as ``"my_game.py:MyGame"``; converted to text with ``as_text``.
        env_kwargs: Arguments for ``gym.make``.
        sessions: Maximum number of open sessions.
        token: Token that clients must send as ``Authorization: Bearer TOKEN``.

    Raises:
        MissingDependencyError: The ``openenv`` extra is not installed.
        ConfigError: The environment cannot be made, or a header cannot contain the token.
    """
    with needs("openenv", "gym-trl serve"):
        from openenv.core.env_server import create_app
    kwargs = dict(env_kwargs or {})
    as_text(make_env(env_id, **kwargs)).close()
    app = create_app(*_classes(env_id, kwargs), env_name=env_id, max_concurrent_envs=sessions)
    app.add_middleware(_Door, token=token)
    return app


def serve(env_id: str, *, host: str = "127.0.0.1", port: int = 8000, token: str | None = None, **options: Any) -> None:
    """Serve an environment until the process is interrupted.

    Args:
        env_id: An id of Gymnasium.
        host: Address to listen at. Any address but this machine's loopback requires a ``token``.
        port: Port to listen at; 0 selects a free one.
        token: Token that clients must send.
        options: Further arguments of ``make_app``.

    Raises:
        ConfigError: The address needs a token, or as in ``make_app``.
    """
    if token is None and not is_loopback(host):
        raise ConfigError(f"host={host!r} can be reached by others: give a token that clients must send")
    app = make_app(env_id, token=token, **options)
    import uvicorn

    uvicorn.run(app, host=host, port=port, access_log=False, ws_max_size=_LARGEST_MESSAGE, timeout_graceful_shutdown=5)


class _Door:
    """ASGI middleware that refuses web pages, which browsers mark with an ``Origin``, and clients without the token."""

    def __init__(self, app: Any, token: str | None) -> None:
        self._app, self._authorization = app, b""
        if token is not None:
            if not (header := bearer(token)):
                raise ConfigError("token must not be empty")
            self._authorization = header["Authorization"].encode("ascii")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        from starlette.responses import PlainTextResponse

        headers, app = dict(scope.get("headers", ())), self._app
        given = headers.get(b"authorization", b"") if self._authorization else b""
        if b"origin" in headers:
            app = PlainTextResponse("web pages cannot play here", 403)
        elif scope["type"] != "lifespan" and not secrets.compare_digest(given, self._authorization):
            app = PlainTextResponse("send the token of this server: Authorization: Bearer TOKEN", 401)
        await app(scope, receive, send)


def _classes(env_id: str, kwargs: dict[str, Any]) -> tuple[type[Any], type[Any], type[Any]]:
    """Return the classes of a session's environment, of its actions and of its observations, for OpenEnv."""
    from openenv.core.env_server import Action, Environment, Observation, State
    from pydantic import Field

    class TextAction(Action):  # type: ignore[misc]  # of a package without types
        message: str = Field(description="The action, in words", max_length=MAX_LENGTH)

    class TextObservation(Observation):  # type: ignore[misc]
        text: str = Field(description="What the environment says")
        instructions: str = Field(default="", description="The rules, with the first observation")
        loss_return: float | None = Field(default=None, description="The return of a loss, with the first observation")
        terminated: bool = Field(default=False, description="The game is over by its own rules")
        truncated: bool = Field(default=False, description="The game was cut off")
        info: dict[str, Any] = Field(default_factory=dict, description="What else the environment says")

    class GymEnvironment(Environment):  # type: ignore[misc]
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            super().__init__()
            self._env = as_text(make_env(env_id, **kwargs))
            self._state = State()

        def reset(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> TextObservation:
            text, info = _contained("reset", lambda: self._env.reset(seed=seed, options=options or None))
            self._state = State(episode_id=episode_id, step_count=0)
            return TextObservation(
                text=_encodable(text),
                instructions=_encodable(instructions_of(self._env)),
                loss_return=loss_return_of(self._env),
                info=_as_json(info),
            )

        def step(self, action: TextAction, timeout_s: float | None = None, **kwargs: Any) -> TextObservation:
            text, reward, terminated, truncated, info = _contained("step", lambda: self._env.step(action.message))
            if not math.isfinite(reward := float(reward)):  # JSON would make it no reward at all
                raise InfrastructureError(f"InfrastructureError: the reward must be a finite number, got {reward}")
            self._state.step_count += 1
            ends = {"terminated": bool(terminated), "truncated": bool(truncated)}
            return TextObservation(
                text=_encodable(text), reward=reward, done=any(ends.values()), info=_as_json(info), **ends
            )

        @property
        def state(self) -> State:
            return self._state

        def close(self) -> None:
            _contained("close", self._env.close)

    return GymEnvironment, TextAction, TextObservation


def _contained(call: str, function: Callable[[], T]) -> T:
    """Return what a function returns; what it raises becomes an error that says whose fault it is, as text for clients.

    A ``SystemExit`` would end the server, and a ``StopIteration`` its session without an answer.
    """
    try:
        return function()
    except BaseException as error:
        kind = ModelFaultError if caused_by_model(error) else InfrastructureError
        raise kind(_encodable(f"{kind.__name__}: {call} raised {described(error)}")) from error


def _encodable(text: str) -> str:
    """Return ``text`` with lone surrogates replaced by question marks, because they cannot be sent."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _as_json(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``info`` as plain JSON values: NumPy's numbers as numbers, other objects as strings, and no NaN."""

    def plain(value: Any) -> Any:
        return value.tolist() if hasattr(value, "tolist") else str(value)

    text = json.dumps(dict(info), default=plain, skipkeys=True, ensure_ascii=False)
    values: dict[str, Any] = json.loads(_encodable(text), parse_constant=lambda _: None)
    return values
