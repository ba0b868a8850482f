"""A file is data: a record or a run's ``config.json`` names registered environments and no functions.

What it names beyond that is used only if the user has repeated the environment's id, on the command line or in the
argument ``allowed``. A run file that is given to a command, and a run that is resumed, are programs of the user.
"""

from collections.abc import Collection, Iterator, Mapping
from os import PathLike
from typing import Any

from gym_trl.errors import UntrustedError
from gym_trl.registration import GAMES, is_registered

_REACH_OUTSIDE = frozenset({"TrlEnv/CodeAgent-v0", "TrlEnv/OpenEnv-v0", "TrlEnv/QA-v0"})
"""Games of this library whose arguments can name code, files or servers; those of the others are data."""
_TEXTS = frozenset(
    {"action_format", "chat_template_kwargs", "grpo", "instructions", "lora_targets", "model", "system_prompt"}
)
"""Options with texts that name no functions. A new option is searched for functions by default."""


def refuse_code(source: str | PathLike[str], options: Mapping[str, Any], allowed: Collection[str] = ()) -> None:
    """Refuse the options of a file that name more than registered environments; nothing of them is imported.

    >>> refuse_code("config.json", {"env": "TrlEnv/Echo-v0", "env_kwargs": {"turns": 2}})
    >>> refuse_code("config.json", {"env": "my_game.py:Game"}, allowed=["my_game.py:Game"])
    >>> refuse_code("config.json", {"env": "my_game.py:Game"})
    Traceback (most recent call last):
        ...
    gym_trl.errors.UntrustedError: 'config.json' names the environment 'my_game.py:Game', which is not registered...

    Texts in the arguments of an environment are data only in this library's own games.

    Args:
        source: The file, for the message.
        options: ``env``, ``env_kwargs`` and arguments of ``GymSpec``, as the file has them.
        allowed: Ids of environments that the user has repeated.

    Raises:
        UntrustedError: they name an id that is not registered, a function, or texts in arguments.
    """
    ids = {*texts_in(options.get("env"))}
    if ids and ids <= {*allowed}:
        return
    others = {name: value for name, value in options.items() if name not in {"env", "env_kwargs", *_TEXTS}}
    arguments = options.get("env_kwargs")
    values = [*arguments.values()] if isinstance(arguments, Mapping) else arguments
    are_data = all(one in GAMES and one not in _REACH_OUTSIDE for one in ids)
    named = [
        *(f"the environment {one!a:.200}, which is not registered" for one in sorted(ids) if not is_registered(one)),
        *(f"{one!a:.200}, which can be a function" for one in texts_in(others) if ":" in one or ".py" in one),
        *(f"{one!a:.200} for its environment" for one in texts_in(values) if not are_data),
    ]
    if named:
        raise UntrustedError(
            f"{str(source)!a} names {named[0]}; nothing of it has been used. If you trust the file, repeat the id of "
            f"its environment, {' and '.join(map(ascii, sorted(ids))):.300}, on the command line or in allowed="
        )


def texts_in(value: Any) -> Iterator[str]:
    """Yield all texts in a value from a file, the keys of mappings among them.

    >>> sorted(texts_in({"env": ["a", {"b": 1}]}))
    ['a', 'b', 'env']
    """
    waiting = [value]
    while waiting:  # a file can nest deeper than functions
        one = waiting.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, Mapping):
            waiting += [*one, *one.values()]
        elif isinstance(one, list | tuple):
            waiting += one
