"""Environments on OpenEnv servers."""

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import gymnasium as gym
from gymnasium.error import ResetNeeded

from gym_trl.errors import ActionTypeError, ConfigError, InfrastructureError, ModelFaultError
from gym_trl.integrations.openenv.session import (
    ServerError,
    Session,
    StartedServer,
    action_class,
    begin,
    client_class,
    client_settings,
    image_of_space,
    look_up,
)
from gym_trl.spaces import MAX_LENGTH, AnyText
from gym_trl.text.chat_client import bearer
from gym_trl.text.spaces import UnreadableActionError

_CALL = re.compile(r"<(tool|tool_call)>(.*?)(?:</\1>|\Z)", re.DOTALL)
_FORM = '<tool>{"name": ..., "arguments": {...}}</tool>'
_LARGEST_SEED = 2**32 - 1
"""Largest seed of NumPy, which many environments use."""
_OURS = {"text", "instructions", "terminated", "truncated", "info"}
"""Fields of an observation of ``gym-trl serve``."""
_OF_THE_RESULT = ("done", "reward", "metadata")
_READ: dict[str, Callable[[str], Any]] = {"string": str, "integer": int, "number": float}


class Fields(dict[str, Any]):
    """Dictionary whose entries are also attributes, as those of typed observations.

    >>> fields = Fields.of({"goal": "click", "messages": [{"content": "hello"}]})
    >>> fields.goal, fields["goal"], fields.messages[0].content, getattr(fields, "url", None)
    ('click', 'click', 'hello', None)
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    @classmethod
    def of(cls, value: Any) -> Any:
        """Return ``value`` with every dictionary in it converted to this class."""
        if isinstance(value, dict):
            return cls({name: cls.of(part) for name, part in value.items()})
        return [cls.of(part) for part in value] if isinstance(value, list) else value


class OpenEnv(gym.Env[str, str]):
    r"""Environment on an OpenEnv server.

    ::

        $ gym-trl serve TrlEnv/GuessNumber-v0 --port 8000       # or any other server of OpenEnv's
        env = gym.make("TrlEnv/OpenEnv-v0", base_url="http://127.0.0.1:8000")
        env.reset(seed=0)
        ('Guess 1 to 50 in 6 tries.', {})
        env.step("25")[0]
        'Higher. 1 to 50, 5 tries left.'

    Every instance has one session, which is one socket, opened by the first reset. ``reset(seed=, options=)`` sends
    ``options`` as the keyword arguments of the server's own ``reset``, and a seed that is drawn from ``np_random`` if
    none is given, or if it exceeds 32 bits. ``done`` is read as ``terminated``, unless the server reports
    ``terminated`` and ``truncated``, as ``gym-trl serve`` does. A reward of ``None`` is 0.0. ``info`` has
    ``action_valid``, the server's ``metadata``, and for ``gym-trl serve`` the environment's own ``info``.

    Errors: a reset retries for ``patience_s`` seconds while the server is full or not running yet. A step is sent once.
    After a time-out, a broken connection or an error of the environment, the session is dropped, ``step`` raises, and
    the next reset opens another one, so a late response to an earlier request is never read. An exception of the
    environment is raised as ``ModelFaultError`` unless its text names an ``InfrastructureError``; all other failures
    count as the infrastructure's. An action that the server rejects before playing it is an invalid action
    (``action_valid`` is false) and not an error.

    Observations are converted to text by ``prompt_builder``; by default, a single text field is used as it is and
    several fields become ``name: value`` lines. Actions are parsed by ``action_parser``; by default, from the server's
    schema: if one field is required, the text is its value; otherwise it is a JSON object. If the actions are tools
    (MCP), they are listed in ``instructions``, and an action is ``<tool>{"name": ..., "arguments": {...}}</tool>``.

    Args:
        base_url: Address of a server (http, https, ws or wss).
        docker_image: Alternatively, an image to start; one container serves all instances of a process.
        hub: Alternatively, a Space on the Hub, ``"owner/name"``, whose image is started.
        client: A subclass of OpenEnv's ``EnvClient``, or its name as ``"package.module:Class"``; by default its generic
            client, which does not need the environment's package.
        prompt_builder: Function that converts an observation to text: gets the observation (typed, or a dictionary
            whose entries are attributes too), the number of the turn from 1 on, and lines on the turns before.
        action_parser: Function from text to an action: a dictionary, or a typed action for a typed client. If it raises
            ``ValueError`` the action is invalid, and the message is the observation.
        instructions: The rules; by default the server's description and the action format.
        connect_timeout_s: Seconds for opening a session.
        message_timeout_s: Seconds for each response of the server.
        patience_s: Seconds that a reset waits for a free session.
        headers: Sent when the session is opened, such as an ``Authorization``; needs openenv 0.10.
        token_variable: The environment variable that holds the server's token, which is sent as ``Authorization: Bearer
            TOKEN``, so that records do not contain it. ``gym-trl serve`` requires one on any address but the loopback.
        env_vars: Environment variables of the container.
        port: Port of the container; any free one by default.
        provider: Provider that starts containers, or a function that makes one; by default OpenEnv's
            ``LocalDockerProvider``.
        render_mode: None; only the observations are available.

    Raises:
        MissingDependencyError: OpenEnv is not installed.
        ConfigError: not exactly one of ``base_url``, ``docker_image`` and ``hub``, a client that does not fit, or no
            token, or a wrong one, for a server that requires it.
        ActionTypeError: an action that is not a string.
        gymnasium.error.ResetNeeded: a step without a session.
        ConnectionError, TimeoutError, ModelFaultError, InfrastructureError: a failure of the session, the server or the
            environment.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 -- as gym.Env has it
    settlement: float = 0.0
    """Reward for the rest of the episode if it is cut off here, as reported by ``gym-trl serve``."""
    preferred_executor: ClassVar[str] = "thread"
    """Default executor of ``GymSpec``: a step waits for the server."""

    def __init__(
        self,
        base_url: str | None = None,
        *,
        docker_image: str | None = None,
        hub: str | None = None,
        client: type[Any] | str | None = None,
        prompt_builder: Callable[[Any, int, list[str]], str] | None = None,
        action_parser: Callable[[str], Any] | None = None,
        instructions: str | None = None,
        connect_timeout_s: float = 10.0,
        message_timeout_s: float = 60.0,
        patience_s: float = 60.0,
        headers: Mapping[str, str] | None = None,
        token_variable: str | None = None,
        env_vars: Mapping[str, str] | None = None,
        port: int | None = None,
        provider: Any = None,
        render_mode: None = None,
    ) -> None:
        places = [one for one in (base_url, docker_image, hub) if one is not None]
        if len(places) != 1 or not isinstance(places[0], str):
            raise ConfigError(
                "TrlEnv/OpenEnv-v0 needs one of base_url (where a server listens: gym-trl serve ID --port 8000), "
                f"docker_image and hub, got {places or 'none of them'}"
            )
        if base_url is not None and (env_vars or port or provider):
            raise ConfigError("env_vars, port and provider are for a server that is started, and base_url names one")
        if token_variable is not None:
            headers = {**(headers or {}), **_authorization(token_variable)}
        self.base_url = base_url
        self.patience_s = patience_s
        self._client = client_class(client)
        self._settings = client_settings(
            self._client, connect_timeout_s=connect_timeout_s, message_timeout_s=message_timeout_s, headers=headers
        )
        self._timeout, self._headers = connect_timeout_s, headers
        self._image = image_of_space(hub) if hub is not None else docker_image
        self._how_to_start = {"port": port, "env_vars": env_vars, "provider": provider}
        self._prompt_builder, self._action_parser = prompt_builder, action_parser
        self._instructions = instructions
        self.observation_space: AnyText = AnyText()
        self.action_space: AnyText = AnyText()
        self._server: StartedServer | None = None
        self._session: Session | None = None
        self._process = os.getpid()
        self._form: _Form | None = None
        self._end: tuple[str, bool, bool, dict[str, Any]] | None = None
        self._history: list[str] = []
        self._turn = 0

    # -----------------------------------------------------------------------------------------------------------------
    # Gymnasium's interface
    # -----------------------------------------------------------------------------------------------------------------

    @property
    def instructions(self) -> str:
        """The server's description and the action format; fetched once.

        Raises:
            ConfigError: no server responds.
        """
        if self._instructions is None:
            try:
                self._instructions = self._describe()
            except ConnectionError as error:
                raise ConfigError(str(error)) from error
        return self._instructions

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode; ``options`` are the keyword arguments of the server's ``reset``."""
        super().reset(seed=seed)
        if seed is None or seed > _LARGEST_SEED:
            seed = int(self.np_random.integers(1, 2**31))
        self._end, self._history, self._turn = None, [], 1
        result = self._begin({**(options or {}), "seed": seed})
        observation, info = self._read(result)
        if bool(result.done):
            self._end = (observation, True, False, info)
        return observation, info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play an action."""
        if not isinstance(action, str):
            raise ActionTypeError(f"TrlEnv/OpenEnv-v0 takes text, got {type(action).__name__}: {action!r:.100}")
        if self._end is not None:
            observation, terminated, truncated, info = self._end
            return observation, 0.0, terminated, truncated, dict(info)
        if self._session is None or self._process != os.getpid():
            raise ResetNeeded("TrlEnv/OpenEnv-v0 has no session: call reset() before step()")
        try:
            parsed = self._action_parser(action) if self._action_parser else self._how_to_act().parse(action)
        except ValueError as error:
            return str(error), 0.0, False, False, {"action_valid": False}
        try:
            result = self._session.step(parsed)
        except ServerError as error:
            if error.code == "VALIDATION_ERROR":  # it was not played, and the session continues
                return f"Not an action of this environment: {action!r:.200}", 0.0, False, False, {"action_valid": False}
            self._drop()
            infrastructure = error.code != "EXECUTION_ERROR" or InfrastructureError.__name__ in str(error)
            raise (InfrastructureError if infrastructure else ModelFaultError)(str(error)) from error
        except BaseException:
            self._drop()
            raise
        return self._played(action, parsed, result)

    def close(self) -> None:
        """End the session, and stop the server if it was started for this instance."""
        session, self._session = self._session, None
        server, self._server = self._server, None
        if session is not None and self._process == os.getpid():
            session.close()
        if server is not None:
            server.release()

    def __getstate__(self) -> dict[str, Any]:
        # A session is not copied; the copy opens its own.
        return {**self.__dict__, "_session": None, "_server": None}

    # -----------------------------------------------------------------------------------------------------------------
    # Sessions
    # -----------------------------------------------------------------------------------------------------------------

    def _url(self) -> str:
        if self.base_url is not None:
            return self.base_url
        if self._server is None:
            assert self._image is not None
            self._server = StartedServer.share(self._image, **self._how_to_start)
        return self._server.url

    def _begin(self, kwargs: dict[str, Any]) -> Any:
        """Reset on the open session or on a new one."""
        if self._process != os.getpid():
            self._session, self._server, self._process = None, None, os.getpid()
        session, self._session = self._session, None
        self._session, result = begin(session, self._open, self.patience_s, **kwargs)
        return result

    def _open(self) -> Session:
        return Session(self._url(), self._client, self._settings)

    def _drop(self) -> None:
        if self._session is not None:
            self._session.drop()
            self._session = None

    def _describe(self) -> str:
        parts = []
        if self._prompt_builder is None:
            metadata = look_up(self._url(), "metadata", timeout=self._timeout, headers=self._headers)
            said = str(metadata.get("description") or "")
            if said != f"{metadata.get('name')} environment":  # OpenEnv's text for a missing description
                parts.append(said)
        if self._action_parser is None:
            parts.append(self._how_to_act().explanation)
        return "\n".join(part for part in parts if part)

    def _how_to_act(self) -> "_Form":
        if self._form is None:
            typed = action_class(self._client)
            if typed is not None:
                schema: Any = typed.model_json_schema()
            else:
                schema = look_up(self._url(), "schema", timeout=self._timeout, headers=self._headers).get("action", {})
            if _is_tool_call(schema):
                self._form = tool_form(self._tools())
            else:
                self._form = _schema_form(schema, typed)
        return self._form

    def _tools(self) -> list[Any]:
        """Return the server's tools, fetched on a session of their own without an episode."""
        session = self._open()
        try:
            return list(_fields(session.step({"type": "list_tools"}).observation).get("tools") or [])
        finally:
            session.close()

    # -----------------------------------------------------------------------------------------------------------------
    # Text
    # -----------------------------------------------------------------------------------------------------------------

    def _played(self, action: str, parsed: Any, result: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        fields = _fields(result.observation)
        reward = float(result.reward or 0.0)
        label = getattr(parsed, "action_str", None) or action
        failed = " ERROR" if fields.get("last_action_error") else ""
        self._history.append(f"Step {self._turn}: {label} -> reward {reward:+.2f}{failed}")
        self._turn += 1
        observation, info = self._read(result)
        terminated, truncated = bool(result.done), False
        if fields.keys() >= _OURS:
            terminated, truncated = bool(fields["terminated"]), bool(fields["truncated"])
        info = {"action_valid": True, **info}
        if terminated or truncated:
            self._end = (observation, terminated, truncated, info)
        return observation, reward, terminated, truncated, dict(info)

    def _read(self, result: Any) -> tuple[str, dict[str, Any]]:
        """Return a result as text, and its other contents."""
        fields = _fields(result.observation)
        metadata = getattr(result, "metadata", None) or fields.get("metadata") or {}
        if fields.keys() >= _OURS:
            text, info = fields["text"], dict(fields["info"])
            self.settlement = float(fields.get("settlement", 0.0))
        elif fields.keys() >= {"tool_name", "result", "error"}:
            text, info = _tool_result(fields)
        else:
            text, info = _words(fields) or _words(metadata), {}
        if metadata:
            info["metadata"] = metadata
        if self._prompt_builder is not None:
            seen = Fields.of(result.observation)
            text = self._prompt_builder(seen, self._turn, list(self._history))
            if not isinstance(text, str):
                raise ConfigError(f"prompt_builder must return text, got {type(text).__name__}: {text!r:.80}")
        text = text.encode("utf-8", "replace").decode("utf-8")  # JSON can contain lone surrogates
        if len(text) > MAX_LENGTH:
            left_out = f"\n({len(text) - MAX_LENGTH + 40} more characters)"
            text = text[: MAX_LENGTH - len(left_out)] + left_out
        return text, info


class _Form(NamedTuple):
    """Format of actions."""

    explanation: str
    parse: Callable[[str], Any]


def _schema_form(schema: Mapping[str, Any], typed: type[Any] | None) -> _Form:
    """Return the format for a JSON schema: the value of the only required field, or an object."""
    fields = {name: part for name, part in (schema.get("properties") or {}).items() if name != "metadata"}
    needed = [name for name in schema.get("required") or fields if name in fields]
    make: Callable[[Any], Any] = dict if typed is None else typed.model_validate
    kind = fields[needed[0]].get("type") if len(needed) == 1 else None
    if kind in _READ:
        name = needed[0]

        def value(text: str) -> Any:
            try:
                return make({name: _READ[kind](text)})
            except ValueError as error:
                raise UnreadableActionError(f"{name} must be of type {kind}, got {text!r:.100}") from error

        return _Form("" if kind == "string" else f"Answer with the {name} alone ({kind}).", value)

    shown = json.dumps({"properties": fields, "required": needed}, ensure_ascii=False)

    def whole(text: str) -> Any:
        try:
            values = json.loads(text)
            if isinstance(values, dict):
                return make(values)
        except (ValueError, RecursionError):
            pass
        raise UnreadableActionError(f"Answer with a JSON object of this schema: {shown}")

    return _Form(f"Answer with a JSON object of this schema: {shown}", whole)


def tool_form(tools: Sequence[Any]) -> _Form:
    """Return the format of tool calls written as JSON; the explanation lists the tools' arguments."""
    listed = [
        json.dumps(
            {"name": tool["name"], "description": tool["description"], "parameters": tool["input_schema"]},
            ensure_ascii=False,
        )
        for tool in map(_fields, tools)
    ]

    def call(text: str) -> dict[str, Any]:
        marked = _CALL.findall(text)
        try:
            tool_call = json.loads(marked[-1][1] if marked else text)
            name, arguments = tool_call["name"], tool_call.get("arguments", {})
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            name, arguments = None, None
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise UnreadableActionError(f"This is no call. Write {_FORM}.")
        return {"type": "call_tool", "tool_name": name, "arguments": arguments}

    return _Form("\n".join([f"Act by calling a tool. For that write {_FORM}.", *listed]), call)


def _authorization(variable: str) -> dict[str, str]:
    """Return the header with the token of an environment variable."""
    if not (header := bearer(os.environ.get(variable))):
        raise ConfigError(f"token_variable must name an environment variable that holds a token, got {variable!r}")
    return header


def _is_tool_call(schema: Mapping[str, Any]) -> bool:
    kind = (schema.get("properties") or {}).get("type") or {}
    return bool(kind.get("const") == "call_tool" or kind.get("default") == "call_tool")


def _fields(observation: Any) -> dict[str, Any]:
    """Return an observation, typed or not, as a dictionary."""
    if isinstance(observation, Mapping):
        return dict(observation)
    if hasattr(observation, "model_dump"):
        return dict(observation.model_dump())
    return dict(vars(observation)) if hasattr(observation, "__dict__") else {"observation": observation}


def _words(fields: Mapping[str, Any]) -> str:
    shown = {
        name: value for name, value in fields.items() if name not in _OF_THE_RESULT and value not in (None, "", [], {})
    }
    if len(shown) == 1:
        return as_words(*shown.values())
    return "\n".join(f"{name}: {as_words(value)}" for name, value in shown.items())


def as_words(value: Any) -> str:
    """Return text unchanged, and anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _tool_result(fields: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return a tool's result, or the error of the call."""
    info: dict[str, Any] = {"tool": fields["tool_name"]}
    if error := fields["error"]:
        kind, message = error.get("error_type"), error.get("message", "")
        return f"Error: {message}", {**info, "action_valid": kind not in ("invalid_args", "tool_not_found")}
    result = fields["result"]
    if isinstance(result, Mapping) and {"content", "data"} <= result.keys():  # FastMCP's wrapping of any value
        if result["data"] is None:
            texts = [str(part.get("text")) for part in result["content"] or () if isinstance(part, Mapping)]
            result = "\n".join(texts)
        else:
            result = result["data"]
    return "" if result is None else as_words(result), info
