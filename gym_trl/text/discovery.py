"""Information that an environment gives outside its spaces: names of actions and fields, and its rules."""

import enum
import inspect
import re
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium as gym
from gymnasium import spaces

_ATTRIBUTES = ("action_names", "ACTION_NAMES", "ACTIONS", "actions", "action_meanings")
_HEADING = re.compile(r"^\s*#{1,6}\s*(.+?)\s*$|^(?=\s*\S)(.+)\n\s*[-=~]{3,}\s*$", re.MULTILINE)
_ITEM = re.compile(r"^\s*(?:[-*+]\s+|\|\s*)`?(\d+)`?\s*(?::|=|\||-)\s*(.+?)\s*$", re.MULTILINE)
_SGR = re.compile(r"\x1b\[([0-9;]*)m")
_CONTROL = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-ln-z]|\][^\x07]*\x07|[()][A-Z0-9])|[\x00-\x08\x0b-\x1f\x7f]")
_WITH_RULES = ("gymnasium.envs.", "minigrid.envs.")
"""Modules of environments whose docstrings begin with the rules."""
_COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")


def action_names(env: gym.Env[Any, Any]) -> tuple[str, ...]:
    """Return the names of the actions of a ``Discrete`` space, or an empty tuple if the environment has none.

    >>> action_names(gym.make("FrozenLake-v1"))
    ('Move left', 'Move down', 'Move right', 'Move up')

    Sources are ``get_action_meanings()``, attributes such as ``actions`` (an ``Enum`` or a list of strings), and the
    list or table under the heading about actions in the docstring.
    """
    space = env.action_space
    if not isinstance(space, spaces.Discrete):
        return ()
    first = int(space.start)
    for names in _told(env.unwrapped, first):
        cleaned = tuple(" ".join(str(name).split()) for name in names)
        if len(cleaned) == int(space.n) == len({name.casefold() for name in cleaned}) and all(cleaned):
            return cleaned
    return ()


def field_names(env: gym.Env[Any, Any]) -> tuple[str, ...]:
    """Return the names of the elements of a one-dimensional ``Box``, from the table in the docstring.

    >>> field_names(gym.make("CartPole-v1"))
    ('Cart Position', 'Cart Velocity', 'Pole Angle', 'Pole Angular Velocity')
    """
    space = env.observation_space
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        return ()
    names = _items(_section(_docstring(env.unwrapped), "observation"))
    wanted = [names.get(place, "") for place in range(space.shape[0])]
    return tuple(wanted) if all(wanted) and len(names) == len(wanted) else ()


def description(env: gym.Env[Any, Any]) -> str:
    """Return the first paragraph of the docstring: the rules in a sentence or two.

    >>> description(gym.make("CliffWalking-v1"))
    'Cliff walking involves crossing a gridworld from start to goal while avoiding falling off a cliff.'
    """
    for paragraph in re.split(r"\n\s*\n", _docstring(env.unwrapped)):
        lines = [line for line in paragraph.splitlines() if not line.lstrip().startswith(("#", ">>>", "..", "|"))]
        if text := " ".join(" ".join(lines).split()):
            return text
    return ""


def published_rules(env: gym.Env[Any, Any]) -> str:
    """Return the rules of an environment of Gymnasium or MiniGrid, which its docstring begins with; empty for others.

    >>> published_rules(gym.make("FrozenLake-v1"))[:37]
    'Frozen lake involves crossing a froze'
    >>> published_rules(gym.make("TrlEnv/Echo-v0"))
    ''

    The docstring of any other class may be about its code, so it is never shown to a model.
    """
    kind = _documented(env.unwrapped)
    return description(env) if kind is not None and kind.__module__.startswith(_WITH_RULES) else ""


def marks(text: str) -> str:
    r"""Return text with terminal colors as words, which may distinguish states, and without other control codes.

    >>> marks("S\x1b[41mF\x1b[0mF\x1b[1;32mG\x1b[0m")
    'S[F|on red]F[G|green]'
    """
    parts, style, start = [], "", 0
    for code in _SGR.finditer(text):
        parts.append(_marked(text[start : code.start()], style))
        style, start = _style(code[1], style), code.end()
    parts.append(_marked(text[start:], style))
    return _CONTROL.sub("", "".join(parts))


def _marked(text: str, style: str) -> str:
    if not style or not text.strip():
        return text
    return "\n".join(f"[{line}|{style}]" if line.strip() else line for line in text.split("\n"))


def _style(codes: str, before: str) -> str:
    style = before
    numbers = [int(code or 0) for code in codes.split(";")]
    for number in numbers:
        if number == 0:
            style = ""
        elif number == 7:
            style = "reversed"
        elif number % 10 < 8 and number // 10 in (3, 4, 9, 10):
            ground = "on " if number // 10 in (4, 10) else ""
            style = ground + _COLOURS[number % 10]
    return style


def _told(env: gym.Env[Any, Any], first: int) -> Iterator[Sequence[Any]]:
    if callable(meanings := getattr(env, "get_action_meanings", None)):
        yield list(meanings())
    for attribute in _ATTRIBUTES:
        names = getattr(env, attribute, None)
        if isinstance(names, type) and issubclass(names, enum.Enum):
            yield [member.name for member in sorted(names, key=lambda member: int(member.value))]
        elif isinstance(names, Sequence) and all(isinstance(name, enum.Enum) for name in names):
            yield [name.name for name in names]
        elif (
            isinstance(names, Sequence) and not isinstance(names, str) and all(isinstance(name, str) for name in names)
        ):
            yield names
    items = _items(_section(_docstring(env), "action"))
    yield [items.get(place, "") for place in range(first, first + len(items))]


def _docstring(env: gym.Env[Any, Any]) -> str:
    kind = _documented(env)
    return inspect.cleandoc(kind.__doc__ or "") if kind is not None else ""


def _documented(env: gym.Env[Any, Any]) -> type | None:
    """Return the class with the docstring: the environment's, or its nearest base class before ``gymnasium.Env``."""
    for kind in type(env).__mro__:
        if kind is gym.Env:
            break
        if kind.__doc__:
            return kind
    return None


def _section(text: str, about: str) -> str:
    """Return the text under the first heading that contains ``about``."""
    headings = list(_HEADING.finditer(text))
    for place, heading in enumerate(headings):
        if about in (heading[1] or heading[2]).casefold():
            end = headings[place + 1].start() if place + 1 < len(headings) else len(text)
            return text[heading.end() : end]
    return ""


def _items(text: str) -> dict[int, str]:
    """Return names by number, from ``- 0: name`` or ``| 0 | name | ... |``."""
    items: dict[int, str] = {}
    for item in _ITEM.finditer(text):
        name = re.split(r"\s*\|\s*|\.\s|\s*:\s", item[2])[0].strip(" .`*")
        items.setdefault(int(item[1]), re.sub(r"\s*\([^)]*\)$", "", name))
    return items
