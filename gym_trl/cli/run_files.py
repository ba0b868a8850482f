"""Files with options as arguments of the commands, overridden by flags."""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gym_trl.cli.flags import write_flags
from gym_trl.cli.options import Place, read_trust
from gym_trl.errors import ConfigError
from gym_trl.options import Options
from gym_trl.registration import is_registered
from gym_trl.training.run_file import is_run_file, merged, read_run_file
from gym_trl.trust import Named, Trust


def read_given(
    command: str,
    words: Sequence[str],
    flags: Mapping[str, Any],
    options: type[Options],
    names: Callable[[Mapping[str, Any]], Iterable[Named]],
    *,
    trust: bool,
    places: Sequence[Place] = (),
) -> tuple[dict[str, Any], Trust]:
    """Return the options that a command line gives, and its trust in files.

    Args:
        command: Name of the command.
        words: Its arguments: a file and names in it that are trusted, or environments.
        flags: Options that its flags give, which override those of the file.
        options: Their type.
        names: Function that yields what options name that is not registered.
        trust: The option ``--trust``.
        places: Places in other files, such as the ``config.json`` of a run, for ``read_trust``.

    Raises:
        ConfigError: There are a file and an environment, or the file cannot be read.
        UntrustedError: The file names code that is neither registered nor trusted.
    """
    files = [one for one in words if is_run_file(one)]
    shown = shlex.join(["gym-trl", command, *(files[:1] or words), *write_flags(flags, options)])
    if not files:
        env = {"env": words[0] if len(words) == 1 else words} if words else {}
        return {**flags, **env}, read_trust(trust, [words, flags], shown, places)
    first, *others = words
    if other := [one for one in others if first not in files or one in files or is_registered(one)]:
        raise ConfigError(f"expected one file, or environments, got {first} {other[0]}")
    trusted = read_trust(trust, [others, flags], shown, [(".*", "")])
    return merged(read_run_file(Path(first), trusted, options, names), flags), trusted
