"""OpenEnv's clients as its documentation for TRL shows them: synchronous, whatever version is installed.

::

    from gym_trl.compat.openenv import EchoAction, EchoEnv      # was: from envs.echo_env import EchoAction, EchoEnv

    client = EchoEnv.from_docker_image("echo-env:latest")       # or EchoEnv(base_url="http://127.0.0.1:8000")
    client.reset()
    client.step(EchoAction(message="hello")).reward
    client.close()

The environments' own packages are not needed. New code has no need of these names: ``GymSpec("TrlEnv/OpenEnv-v0",
env_kwargs={"base_url": ...})`` plays, masks and scores by itself.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from types import TracebackType
from typing import Any, Self

from gym_trl.compat.openenv_harness import build_harness_rollout_func
from gym_trl.envs.openenv import Fields
from gym_trl.envs.openenv_session import Session, StartedServer, begin, client_class, client_settings, image_of_space
from gym_trl.errors import ConfigError

__all__ = [
    "BrowserGymAction",
    "BrowserGymEnv",
    "EchoAction",
    "EchoEnv",
    "EnvClient",
    "GenericAction",
    "GenericEnvClient",
    "OpenSpielAction",
    "OpenSpielEnv",
    "StepResult",
    "TextArenaAction",
    "TextArenaEnv",
    "build_harness_rollout_func",
]


@dataclass
class StepResult:
    """What a reset or a step led to.

    >>> result = StepResult(Fields(echoed_message="hello"), reward=0.5)
    >>> result.observation.echoed_message, result.reward, result.done
    ('hello', 0.5, False)
    """

    observation: Any
    """The fields of the observation, as entries and as attributes; ``done``, ``reward`` and ``metadata`` among them."""
    reward: float | None = None
    done: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass
class EchoAction:
    """What Echo shall say.

    >>> EchoAction(message="hello")
    EchoAction(message='hello')
    """

    message: str


@dataclass
class TextArenaAction:
    """A move of a game of TextArena.

    >>> TextArenaAction(message="[crane]").message
    '[crane]'
    """

    message: str


@dataclass
class OpenSpielAction:
    """A move of a game of OpenSpiel.

    >>> OpenSpielAction(action_id=2)
    OpenSpielAction(action_id=2, game_name='catch', game_params={})
    """

    action_id: int
    game_name: str = "catch"
    game_params: dict[str, Any] = field(default_factory=dict)


@dataclass
class BrowserGymAction:
    """What to do in a browser.

    >>> BrowserGymAction(action_str="noop()").action_str
    'noop()'
    """

    action_str: str


class GenericAction(dict[str, Any]):
    """An action of any environment.

    >>> GenericAction(code="print(1)")
    {'code': 'print(1)'}
    """

    def __init__(self, **fields: Any) -> None:
        super().__init__(fields)


class EnvClient:
    """A client of an OpenEnv server, with one session.

    ::

        with EnvClient(base_url="http://127.0.0.1:8000") as client:
            result = client.reset(seed=0)
            result = client.step({"message": "hello"})

    A session is opened by the first call. A full server is waited for at reset, a step is sent once, and after a
    time-out, a broken connection or an error of the environment the next call must be ``reset``, which opens another
    session: an old answer is never taken for a new one, as OpenEnv's own client of 0.3.0 does.

    Args:
        base_url: Where the server listens.
        connect_timeout_s: Seconds for opening a session.
        message_timeout_s: Seconds for each answer.
        max_message_size_mb: The longest answer that is read.
        headers: Sent when the session is opened; needs openenv 0.10.
        request_timeout_s: An older name of ``message_timeout_s``.
        default_headers: An older name of ``headers``.
        patience_s: Seconds for which a reset waits for a free session.

    Raises:
        MissingDependencyError: OpenEnv is not installed.
        ConfigError: no ``base_url``, or an argument that the installed version does not take.
    """

    def __init__(
        self,
        base_url: str | None = None,
        connect_timeout_s: float = 10.0,
        message_timeout_s: float = 60.0,
        *,
        max_message_size_mb: float | None = None,
        headers: Mapping[str, str] | None = None,
        request_timeout_s: float | None = None,
        default_headers: Mapping[str, str] | None = None,
        patience_s: float = 60.0,
    ) -> None:
        if not base_url:
            raise ConfigError(f"{type(self).__name__} needs base_url, or is made with from_docker_image or from_hub")
        self.base_url = base_url
        self.patience_s = patience_s
        self._client = client_class(None)
        self._settings = client_settings(
            self._client,
            {
                "connect_timeout_s": connect_timeout_s,
                "message_timeout_s": message_timeout_s if request_timeout_s is None else request_timeout_s,
                "max_message_size_mb": max_message_size_mb,
                "headers": dict(headers or default_headers or {}) or None,
            },
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
        """A client of a container, which is started; clients of this process that ask for the same share it."""
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
        """A client of a container with the image of a Space, ``"owner/name"``."""
        return cls.from_docker_image(image_of_space(repo_id), provider, **settings)

    from_env = from_hub

    def connect(self) -> Self:
        """Open the session now."""
        if self._session is None:
            self._session, self._lost = self._open(), False
        return self

    def reset(self, **kwargs: Any) -> StepResult:
        """Begin an episode; the arguments are the environment's."""
        session, self._session, self._lost = self._session, None, False
        self._session, result = begin(session, self._open, self.patience_s, **kwargs)
        return _result(result)

    def step(self, action: Any, **kwargs: Any) -> StepResult:
        """Act, once."""
        return _result(self._call(lambda session: session.step(_payload(action))))

    def state(self) -> Any:
        """The state of the environment, such as ``step_count``."""
        return Fields.of(self._call(lambda session: session.state()))

    def close(self) -> None:
        """End the session, and stop the container if it was started for this client and no other needs it."""
        session, self._session = self._session, None
        server, self._server = self._server, None
        if session is not None:
            session.close()
        if server is not None:
            server.release()

    def sync(self) -> Self:
        """Itself."""
        return self

    def __enter__(self) -> Self:
        """Open the session."""
        return self.connect()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End it."""
        self.close()

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
    """A client of any environment; actions are dictionaries."""


class EchoEnv(EnvClient):
    """A client of Echo; its actions are ``EchoAction``s."""


class TextArenaEnv(EnvClient):
    """A client of the games of TextArena, such as Wordle and Sudoku; its actions are ``TextArenaAction``s."""


class OpenSpielEnv(EnvClient):
    """A client of the games of OpenSpiel, such as Catch; its actions are ``OpenSpielAction``s."""


class BrowserGymEnv(EnvClient):
    """A client of BrowserGym; its actions are ``BrowserGymAction``s."""


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
