"""Files with options as arguments of the commands, overridden by flags."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gym_trl.errors import ConfigError
from gym_trl.options import Options
from gym_trl.training.run_file import is_run_file, merged, read_run_file


def read_given(words: Sequence[str], flags: Mapping[str, Any], options: type[Options]) -> dict[str, Any]:
    """Return the options that a command line gives.

    Args:
        words: Its arguments: a file, or environments.
        flags: Options that its flags give, which override those of the file.
        options: Their type.

    Raises:
        ConfigError: There are a file and an environment, or the file cannot be read.
    """
    if not any(map(is_run_file, words)):
        env = {"env": words[0] if len(words) == 1 else words} if words else {}
        return {**flags, **env}
    if len(words) > 1:
        raise ConfigError(f"expected one file, or environments, got {' '.join(words)}")
    return merged(read_run_file(Path(words[0]), options), flags)
