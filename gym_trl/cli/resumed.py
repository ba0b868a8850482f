"""The run that ``--resume`` continues."""

from pathlib import Path

from gym_trl.errors import ConfigError


def check_resumed(folder: Path, env: str, named: str | None) -> None:
    """Check that the environment named beside ``--resume`` is that of the run.

    Raises:
        ConfigError: it is another.
    """
    if named not in (None, env):
        raise ConfigError(f"--resume continues the run in {folder} on {env}, not on {named}: leave it out")
