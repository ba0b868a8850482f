"""Folder that an evaluation is played into, by one process at a time."""

import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from gym_trl.bases import Closing
from gym_trl.errors import ConfigError
from gym_trl.files import is_unwritable, open_to_append, replace_text
from gym_trl.records.files import RecordWriter
from gym_trl.records.json_lines import JsonLinesWriter, read_object, to_json


class OutputFolder(Closing):
    """Folder with a lock and settings; without a path, nothing is written.

    A folder that this user may not write is opened all the same, so that what is finished can be shown.

    Args:
        path: The folder, which is made if it does not exist.
    """

    noun: ClassVar[str]
    """Name of what is played, with its article."""
    key: ClassVar[str]
    """Name of its settings in ``config.json``."""
    unit: ClassVar[str]
    """Name of what is played in it, in the plural."""
    doing: ClassVar[str]
    """Beginning of a sentence on a process that plays, to be ended by a folder."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._writer: RecordWriter | JsonLinesWriter | None = None
        self._lock: Any = None
        self._unwritable: OSError | None = None

    def __enter__(self) -> Self:
        """Make the folder, and lock it."""
        if self.path is not None:
            if self.path.exists() and not self.path.is_dir():
                raise ConfigError(f"{self.path} is a file; {self.noun} needs a folder")
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                self._lock = self._locked(self.path / ".lock")
            except OSError as error:
                if not is_unwritable(error):
                    raise
                self._unwritable = error
        return self

    def close(self) -> None:
        """Close the file that is written, and release the lock."""
        if self._writer is not None:
            self._writer.close()
        if self._lock is not None:
            self._lock.close()

    def begin(self, missing: int, open_writer: Callable[[Path], RecordWriter | JsonLinesWriter]) -> None:
        """Prepare for so many episodes or games, before the first is played.

        Raises:
            OSError: the folder cannot be written.
        """
        if self.path is not None and missing:
            self.check_writable()
            self._writer = open_writer(self.path)

    def write(self, record: Any) -> None:
        """Append what was played, if it is recorded."""
        if self._writer is not None:
            self._writer.write(record)

    def check_writable(self) -> None:
        """Check that something can be written; to be called before it is played.

        Raises:
            OSError: the folder is read-only.
        """
        if self._unwritable is not None:
            raise self._unwritable

    def read_settings(self) -> dict[str, Any] | None:
        """Return the settings in ``config.json``; ``None`` in a folder without records.

        Raises:
            ConfigError: they are those of something else.
        """
        assert self.path is not None
        path = self.path / "config.json"
        try:
            settings = read_object(path)[self.key]
        except FileNotFoundError:
            if any(self.path.glob("*.jsonl")):
                raise ConfigError(f"{self.path} contains records but no {self.key}; choose another folder") from None
            return None
        except (ConfigError, KeyError) as error:
            raise self.not_ours() from error
        if not isinstance(settings, dict):
            raise self.not_ours()
        return settings

    def joined(
        self, before: Mapping[str, Any] | None, key: str, now: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, Mapping[str, Any]]:
        """Return the settings of each player or policy in the folder, by name, with those that play now.

        Args:
            before: Settings of the folder; ``None`` if it has none.
            key: Their entry with the settings by name.
            now: Settings by name.

        Raises:
            ConfigError: Somebody's settings differ, or the folder has none by name.
        """
        stored, now = {} if before is None else before.get(key), json.loads(to_json(now))
        if not isinstance(stored, dict) or not all(isinstance(one, dict) for one in stored.values()):
            raise self.not_ours()
        for name in now.keys() & stored.keys():
            for option in {**now[name], **stored[name]}:
                new, old = now[name].get(option), stored[name].get(option)
                if new != old:
                    differs = f"{option:.40}={old!r:.200}, not {new!r:.200}"
                    raise ConfigError(f"{self.path} has {self.unit} of {name!r} with {differs}")
        return {**stored, **now}

    def not_ours(self) -> ConfigError:
        """Return the error for a folder whose settings are those of something else."""
        assert self.path is not None
        path = self.path / "config.json"
        return ConfigError(f"{path} is not the configuration of {self.noun}; choose another folder")

    def save_settings(self, settings: Mapping[str, Any], before: Mapping[str, Any] | None) -> None:
        """Write the settings, unless they are those ``before``."""
        assert self.path is not None
        if settings != before:
            replace_text(self.path / "config.json", to_json({"version": 1, self.key: settings}, indent=2))

    def _locked(self, path: Path) -> Any:
        """Return a file with a lock that is held until it is closed or the process ends, even if it is killed.

        Raises:
            ConfigError: another process has the lock.
        """
        file = open_to_append(path)
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # not on Windows
            pass
        except BlockingIOError as error:
            file.close()
            raise ConfigError(f"another process is {self.doing} {path.parent}") from error
        except OSError as error:  # some file systems have no locks
            warnings.warn(f"{path} cannot be locked ({error}); no other process must use this folder", stacklevel=4)
        return file
