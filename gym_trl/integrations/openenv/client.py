"""Synchronous OpenEnv clients, as in its documentation for TRL, for every version of OpenEnv.

::

    from gym_trl.integrations.openenv import EchoAction, EchoEnv  # was: from envs.echo_env import EchoAction, EchoEnv

    client = EchoEnv.from_docker_image("echo-env:latest")       # or EchoEnv(base_url="http://127.0.0.1:8000")
    client.reset()
    client.step(EchoAction(message="hello")).reward
    client.close()

The environments' own packages are not needed. New code should use ``GymSpec("TrlEnv/OpenEnv-v0",
env_kwargs={"base_url": ...})`` instead, which plays, masks and scores episodes.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Any, Self

from gym_trl.bases import Closing
from gym_trl.errors import ConfigError
from gym_trl.integrations.openenv.env import Fields
from gym_trl.integrations.openenv.session import (
    Session,
    StartedServer,
    begin,
    client_class,
    client_settings,
    image_of_space,
)


@dataclass
class StepResult:
    """Result of a reset or a step.

    >>> result = StepResult(Fields(echoed_message="hello"), reward=0.5)
    >>> result.observation.echoed_message, result.reward, result.done
    ('hello', 0.5, False)
    """

    observation: Any
    """Fields of the observation, as items and as attributes, including ``done``, ``reward`` and ``metadata``."""
    reward: float | None = None
    done: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass
class EchoAction:
    """Message for Echo to repeat.

    >>> EchoAction(message="hello")
    EchoAction(message='hello')
    """

    message: str


@dataclass
class TextArenaAction:
    """Move in a game of TextArena.

    >>> TextArenaAction(message="[crane]").message
    '[crane]'
    """

    message: str


@dataclass
class OpenSpielAction:
    """Move in a game of OpenSpiel.

    >>> OpenSpielAction(action_id=2)
    OpenSpielAction(action_id=2, game_name='catch', game_params={})
    """

    action_id: int
    game_name: str = "catch"
    game_params: dict[str, Any] = field(default_factory=dict)


@dataclass
class BrowserGymAction:
    """Action in a browser.

    >>> BrowserGymAction(action_str="noop()").action_str
    'noop()'
    """

    action_str: str


class EnvClient(Closing):
    """Client of an OpenEnv server, with one session.

    ::

        with EnvClient(base_url="http://127.0.0.1:8000") as client:
            result = client.reset(seed=0)
            result = client.step({"message": "hello"})

    The first call opens the session. ``reset`` waits if the server is full. A step is sent only once. After a timeout,
    a broken connection or an error in the environment the next call must be ``reset``, which opens a new session.
    OpenEnv's own client of 0.3.0 may instead return a late response to an earlier request.

    Args:
        base_url: Address of the server.
        connect_timeout_s: Maximum seconds for opening a session.
        message_timeout_s: Maximum seconds for each response.
        headers: Headers sent when the session is opened; needs openenv 0.10.
        patience_s: Maximum seconds for which a reset waits for a free session.

    Raises:
        MissingDependencyError: OpenEnv is not installed.
        ConfigError: ``base_url`` is missing, or the installed version does not support an argument.
    """

    def __init__(
        self,
        base_url: str | None = None,
        connect_timeout_s: float = 10.0,
        message_timeout_s: float = 60.0,
        *,
        headers: Mapping[str, str] | None = None,
        patience_s: float = 60.0,
    ) -> None:
        if not base_url:
            raise ConfigError(f"{type(self).__name__} needs base_url, or is made with from_docker_image or from_hub")
        self.base_url = base_url
        self.patience_s = patience_s
        self._client = client_class(None)
        self._settings = client_settings(
            self._client, connect_timeout_s=connect_timeout_s, message_timeout_s=message_timeout_s, headers=headers
        )
        self._server: StartedServer | None = None
        self._session: Session | None = None
        self._lost = False

    @classmethod
    def from_docker_image(
        cls,
        image: str,
        provider: Any = None,
        *,
        port: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> Self:
        """Start a container and return a client of it; clients of this process with the same arguments share it."""
        server = StartedServer.share(image, port=port, env_vars=env_vars, provider=provider)
        try:
            client = cls(server.url, **settings)
        except BaseException:
            server.release()
            raise
        client._server = server
        return client

    @classmethod
    def from_hub(cls, repo_id: str, provider: Any = None, **settings: Any) -> Self:
        """Start a container with the image of a Space, ``"owner/name"``, and return a client of it."""
        return cls.from_docker_image(image_of_space(repo_id), provider, **settings)

    def connect(self) -> Self:
        """Open the session now."""
        if self._session is None:
            self._session, self._lost = self._open(), False
        return self

    def reset(self, **kwargs: Any) -> StepResult:
        """Start an episode; the arguments are passed to the environment."""
        session, self._session, self._lost = self._session, None, False
        self._session, result = begin(session, self._open, self.patience_s, **kwargs)
        return _result(result)

    def step(self, action: Any, **kwargs: Any) -> StepResult:
        """Step with an action, which is sent only once."""
        return _result(self._call(lambda session: session.step(_payload(action))))

    def state(self) -> Any:
        """Return the state of the environment, such as ``step_count``."""
        return Fields.of(self._call(lambda session: session.state()))

    def close(self) -> None:
        """End the session, and stop the container if it was started here and no other client uses it."""
        session, self._session = self._session, None
        server, self._server = self._server, None
        if session is not None:
            session.close()
        if server is not None:
            server.release()

    def sync(self) -> Self:
        """Return the client itself, which is synchronous."""
        return self

    def __enter__(self) -> Self:
        """Open the session."""
        return self.connect()

    def _open(self) -> Session:
        return Session(self.base_url, self._client, self._settings)

    def _call(self, ask: Callable[[Session], Any]) -> Any:
        if self._lost:
            raise ConnectionError(f"the session on {self.base_url} was lost: call reset()")
        session = self.connect()._session
        assert session is not None
        try:
            return ask(session)
        except BaseException:
            session.drop()
            self._session, self._lost = None, True
            raise


class GenericEnvClient(EnvClient):
    """Client of any environment; actions are dictionaries."""


class EchoEnv(EnvClient):
    """Client of Echo; its actions are ``EchoAction``s."""


class TextArenaEnv(EnvClient):
    """Client of the games of TextArena, such as Wordle and Sudoku; its actions are ``TextArenaAction``s."""


class OpenSpielEnv(EnvClient):
    """Client of the games of OpenSpiel, such as Catch; its actions are ``OpenSpielAction``s."""


class BrowserGymEnv(EnvClient):
    """Client of BrowserGym; its actions are ``BrowserGymAction``s."""


def _payload(action: Any) -> dict[str, Any]:
    if isinstance(action, Mapping):
        return dict(action)
    if is_dataclass(action) and not isinstance(action, type):
        return asdict(action)
    if hasattr(action, "model_dump"):
        return dict(action.model_dump())
    raise ConfigError(f"an action must be a mapping or an action of OpenEnv's, got {type(action).__name__}")


def _result(result: Any) -> StepResult:
    metadata = result.metadata if getattr(result, "metadata", None) else result.observation.get("metadata") or {}
    done, reward = bool(result.done), result.reward
    seen = Fields.of({**result.observation, "done": done, "reward": reward, "metadata": metadata})
    return StepResult(seen, reward, done, metadata)
