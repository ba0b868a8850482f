"""Text environments as the commands make and describe them."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from gym_trl.errors import GymTRLError, refused
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.executors.step import close_env
from gym_trl.records.json_lines import to_json
from gym_trl.registration import creator_of, find_maker, make_env
from gym_trl.wrappers.as_text import Observe, as_text
from gym_trl.wrappers.declare_success import declare_success


def make_text_env(env_id: str, kwargs: Mapping[str, Any], *, observe: Observe | None = None) -> TextEnvironment:
    """Make an environment with text observations and actions; ``observe`` is as for ``GymSpec``.

    Raises:
        ConfigError: there is no such environment, or it cannot be made with these arguments.
        NotTextError: its observations or actions cannot be converted to text.
    """
    env = make_env(env_id, **kwargs)
    try:
        with refused(f"{env_id} cannot be used: it"):
            text_env = as_text(declare_success(env), observe=observe)
    except GymTRLError:
        close_env(env)
        raise
    return text_env


def describe(env_id: str) -> str:
    """Return the first sentence of an environment's own docstring; empty if it has none."""
    creator = creator_of(find_maker(env_id))
    own = creator.__doc__ if inspect.isclass(creator) or inspect.isroutine(creator) else None  # not of a base class
    text = inspect.cleandoc(own or "")
    paragraph = " ".join(text.split("\n\n")[0].split()).replace("``", "")
    return paragraph.split(". ")[0].rstrip(".") + "." if paragraph else ""


def format_arguments(arguments: Mapping[str, Any]) -> str:
    """Return arguments as they are written in a call.

    >>> format_arguments({"high": 8, "reward": "shaped"})
    "high=8, reward='shaped'"
    """
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())


class _OnEnvironment(Protocol):
    @property
    def env_id(self) -> str: ...
    @property
    def env_kwargs(self) -> Mapping[str, Any]: ...


def named_environments(rows: Sequence[_OnEnvironment]) -> list[str]:
    """Return the rows' environments, with their arguments if one id occurs with different arguments.

    >>> from gym_trl.evaluation.evaluation import evaluate
    >>> named_environments(evaluate("TrlEnv/Echo-v0", "solver", episodes=2).rows)
    ['TrlEnv/Echo-v0']
    """
    played = {(row.env_id, to_json(row.env_kwargs)) for row in rows}
    ids = [env_id for env_id, _ in played]
    return [
        f"{row.env_id} {format_arguments(row.env_kwargs)}".strip() if ids.count(row.env_id) > 1 else row.env_id
        for row in rows
    ]
