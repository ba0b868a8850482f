"""ASGI middleware that lets only well-formed messages of invited clients through to OpenEnv."""

import json
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from math import isfinite
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from gym_trl.records.json_lines import is_deep

_Message: TypeAlias = MutableMapping[str, Any]
_Receive: TypeAlias = Callable[[], Awaitable[_Message]]
_Send: TypeAlias = Callable[[_Message], Awaitable[None]]

MAX_MESSAGE = 2**20
"""Maximum bytes of a message: the longest action, at twelve bytes per character in JSON, and its surroundings."""
_MAX_DEPTH = 64  # OpenEnv's answers, which repeat parts of messages, cannot hold more than about 200
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_OF_RESET = ("seed", "episode_id", "options")


class Guard:
    """Middleware that rejects missing tokens, other sites, and messages that are not for OpenEnv.

    Args:
        app: The application.
        authorization: Value of the ``Authorization`` header that is required.
        hosts: Names that a request's ``Host`` must be one of. Default: any.
        status_of: Function that returns the status and the detail of the response for an exception of the application.
    """

    def __init__(
        self,
        app: Callable[[_Message, _Receive, _Send], Awaitable[None]],
        *,
        authorization: bytes | None = None,
        hosts: frozenset[str] | None = None,
        status_of: Callable[[Exception], tuple[int, str]],
    ) -> None:
        self._app = app
        self._authorization = authorization
        self._hosts = hosts
        self._status_of = status_of

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        """Answer a request or a socket, or pass it on."""
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
            socket = _Socket(receive, send)
            await self._app(scope, socket.receive, socket.send)

    def _is_allowed(self, headers: Mapping[bytes, bytes]) -> bool:
        authorization = headers.get(b"authorization", b"")
        return self._authorization is None or secrets.compare_digest(authorization, self._authorization)

    def _is_meant(self, headers: Mapping[bytes, bytes]) -> bool:
        named = headers.get(b"host")  # every browser sends it
        return self._hosts is None or named is None or _host_name(named) in self._hosts

    async def _request(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        body = bytearray()
        try:
            more = True
            while more:
                part = await receive()
                if part["type"] == "http.disconnect":
                    return
                body += part.get("body", b"")
                more = part.get("more_body", False)
                if len(body) > MAX_MESSAGE:
                    await _answer(send, 413, f"a request can have {MAX_MESSAGE} bytes")
                    return
            if body:
                body[:] = _checked(bytes(body).decode(), is_reset=scope["path"] == "/reset").encode()
        except (ValueError, RecursionError) as error:
            await _answer(send, 422, f"the body is not accepted: {error}")
            return
        parts: list[_Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]
        started = False

        async def again() -> _Message:
            return parts.pop() if parts else await receive()

        async def sent(message: _Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(_with_length(scope, len(body)), again, sent)
        except Exception as error:
            if started:
                raise
            await _answer(send, *self._status_of(error))


class _Socket:
    """WebSocket whose messages are JSON objects."""

    def __init__(self, receive: _Receive, send: _Send) -> None:
        self._receive, self._send = receive, send

    async def receive(self) -> _Message:
        """Return the next message that the application can read."""
        while True:
            message = await self._receive()
            if message["type"] != "websocket.receive":
                return message
            text = message.get("text")
            try:
                if text is None:
                    raise ValueError("a message must be text")
                return {**message, "text": _checked(text)}
            except (ValueError, RecursionError) as error:
                error_message = {"type": "error", "data": {"message": str(error), "code": "INVALID_JSON"}}
            await self.send({"type": "websocket.send", "text": json.dumps(error_message)})

    async def send(self, message: _Message) -> None:
        """Send a message."""
        text = message.get("text") or ""
        if text.startswith('{"type":"error"') and '"VALIDATION_ERROR"' in text[:200]:
            message = {**message, "text": _explained(text)}
        await self._send(message)


def _checked(text: str, *, is_reset: bool | None = None) -> str:
    """Return a message that OpenEnv can read and repeat.

    >>> _checked('{"type": "reset", "data": {"seed": 1, "level": 2}}')
    '{"type": "reset", "data": {"seed": 1, "options": {"level": 2}}}'
    >>> _checked('{"seed": NaN}')
    Traceback (most recent call last):
        ...
    ValueError: NaN is not a number of JSON

    Args:
        text: JSON.
        is_reset: Whether the object has the arguments of a reset itself, as over HTTP. Default: its ``type`` says so.

    Raises:
        ValueError: It is not accepted.
        RecursionError: It is nested too deeply.
    """
    content = json.loads(text, parse_constant=_no_number, parse_float=_finite)
    if not isinstance(content, dict):
        raise ValueError("a message must be a JSON object")
    if is_deep(content, _MAX_DEPTH):
        raise ValueError(f"a message can be nested {_MAX_DEPTH} deep")
    changed = _SURROGATE.search(text) is not None  # OpenEnv could not encode them in its answer
    if is_reset:
        content, folded = _with_options(content)
    elif is_reset is None and content.get("type") == "reset" and isinstance(content.get("data"), dict):
        data, folded = _with_options(content["data"])
        content = {**content, "data": data}
    else:
        folded = False
    return encodable(json.dumps(content, ensure_ascii=False)) if changed or folded else text


def _with_options(arguments: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return the arguments of a reset with those that are the environment's own as its options, if there are any.

    OpenEnv would pass them on by name through functions of its own, whose parameters have names, too.
    """
    own = {name: value for name, value in arguments.items() if name not in _OF_RESET}
    options = arguments.get("options")
    if not own or not (options is None or isinstance(options, dict)):
        return arguments, False
    kept = {name: arguments[name] for name in _OF_RESET if name in arguments}
    return {**kept, "options": {**(options or {}), **own}}, True


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not a number of JSON")


def _finite(text: str) -> float:
    if not isfinite(value := float(text)):
        raise ValueError(f"the number {text:.20} is out of range")
    return value


def _explained(text: str) -> str:
    """Return a validation error of OpenEnv with its reasons in the message, which clients show, without the input."""
    answer = json.loads(text)
    errors = [{"loc": one.get("loc", ()), "msg": one.get("msg", "")} for one in answer["data"].get("errors", ())[:8]]
    reasons = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in errors)
    answer["data"] |= {"message": f"{answer['data'].get('message')}: {reasons}", "errors": errors}
    return json.dumps(answer)


def encodable(text: str) -> str:
    r"""Return ``text`` with lone surrogates replaced by question marks, because they cannot be encoded.

    >>> encodable("a\ud800b")
    'a?b'
    """
    return text.encode("utf-8", "replace").decode("utf-8")


def _with_length(scope: _Message, length: int) -> _Message:
    headers = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
    return {**scope, "headers": [*headers, (b"content-length", str(length).encode())] if length else headers}


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
    await receive()  # of a body the first part alone, without which some clients would lose the answer
    if scope["type"] == "http":
        await _answer(send, status, detail)
    else:
        await send({"type": "websocket.close", "code": 1008})


async def _answer(send: _Send, status: int, detail: str) -> None:
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    headers += [(b"www-authenticate", b"Bearer")] if status == 401 else []
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"detail": detail}).encode()})
