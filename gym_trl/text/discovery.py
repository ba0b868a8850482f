"""Information that an environment gives outside its spaces: names of actions and fields, and its rules."""

import enum
import inspect
import re
from collections.abc import Sequence
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
    space, own = env.action_space, env.unwrapped
    if not isinstance(space, spaces.Discrete):
        return ()
    meanings = getattr(own, "get_action_meanings", None)
    found: list[Any] = [meanings() if callable(meanings) else ()]
    for attribute in _ATTRIBUTES:
        names = getattr(own, attribute, None)
        if isinstance(names, enum.EnumMeta):
            names = sorted(names, key=lambda member: int(member.value))
        if isinstance(names, Sequence) and not isinstance(names, str):
            texts = [name.name if isinstance(name, enum.Enum) else name for name in names]
            found.append(texts if all(isinstance(text, str) for text in texts) else ())
    items = _items(own, "action")
    found.append([items.get(int(space.start) + place, "") for place in range(len(items))])
    for names in found:
        cleaned = tuple(" ".join(str(name).split()) for name in names)
        if len(cleaned) == int(space.n) == len({name.casefold() for name in cleaned}) and all(cleaned):
            return cleaned
    return ()


def field_names(env: gym.Env[Any, Any]) -> tuple[str, ...]:
    """Return the names of the numbers of a one-dimensional ``Box``, from the table in the docstring.

    >>> field_names(gym.make("CartPole-v1"))
    ('Cart Position', 'Cart Velocity', 'Pole Angle', 'Pole Angular Velocity')
    """
    space = env.observation_space
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        return ()
    items = _items(env.unwrapped, "observation")
    names = tuple(items.get(place, "") for place in range(space.shape[0]))
    return names if all(names) and len(items) == len(names) else ()


def _items(env: gym.Env[Any, Any], about: str) -> dict[int, str]:
    """Return names by number, from ``- 0: name`` or ``| 0 | name | ... |`` under the first heading with ``about``."""
    text = _docstring(env)[0]
    headings = list(_HEADING.finditer(text))
    starts = [*(heading.start() for heading in headings), len(text)]
    items: dict[int, str] = {}
    for heading, end in zip(headings, starts[1:], strict=True):
        if about in (heading[1] or heading[2]).casefold():
            for item in _ITEM.finditer(text[heading.end() : end]):
                name = re.split(r"\s*\|\s*|\.\s|\s*:\s", item[2])[0].replace("`", "").strip(" .*")
                items.setdefault(int(item[1]), re.sub(r"\s*\([^)]*\)$", "", name))
            break
    return items


def published_rules(env: gym.Env[Any, Any]) -> str:
    """Return the rules of an environment of Gymnasium or MiniGrid, which its docstring begins with; empty for others.

    >>> published_rules(gym.make("FrozenLake-v1"))[:37], published_rules(gym.make("TrlEnv/Echo-v0"))
    ('Frozen lake involves crossing a froze', '')

    The docstring of any other class may be about its code, so it is never shown to a model.
    """
    text, module = _docstring(env.unwrapped)
    for paragraph in re.split(r"\n\s*\n", text) if module.startswith(_WITH_RULES) else ():
        lines = [line for line in paragraph.splitlines() if not line.lstrip().startswith(("#", ">>>", "..", "|"))]
        if rules := " ".join(" ".join(lines).split()):
            return rules
    return ""


def _docstring(env: gym.Env[Any, Any]) -> tuple[str, str]:
    """Return the docstring of the class, or of its nearest base class with one, and the module of that class."""
    for kind in type(env).__mro__:
        if kind is gym.Env:
            break
        if kind.__doc__:
            return inspect.cleandoc(kind.__doc__), kind.__module__
    return "", ""


def marks(text: str) -> str:
    r"""Return text with terminal colors as words, which may distinguish states, and without other control codes.

    >>> marks("S\x1b[41mF\x1b[0mF\x1b[1;32mG\x1b[0m")
    'S[F|on red]F[G|green]'
    """
    first, *rest = _SGR.split(text)
    parts, ink, ground = [first], "", ""
    for codes, piece in zip(rest[::2], rest[1::2], strict=True):
        for code in (int(code or 0) for code in codes.split(";")):
            if code == 0:
                ink = ground = ""
            elif code == 7:
                ground = "reversed"
            elif code % 10 < 8 and code // 10 in (3, 9):
                ink = _COLOURS[code % 10]
            elif code % 10 < 8 and code // 10 in (4, 10):
                ground = f"on {_COLOURS[code % 10]}"
        style = " ".join(filter(None, (ink, ground)))
        lines = piece.split("\n") if style else [piece]
        shown = [f"[{line}|{style}]" if style and (line if ground else line.strip()) else line for line in lines]
        parts.append("\n".join(shown))
    return _CONTROL.sub("", "".join(parts))
