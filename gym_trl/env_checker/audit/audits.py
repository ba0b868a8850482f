"""Measuring of environments one by one, each in a process with a limit of time, into a folder that can be resumed."""

import json
import subprocess
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, ClassVar

from gym_trl.env_checker.audit.subjects import AuditedEnv
from gym_trl.env_checker.audit.verdicts import NOT_MEASURED, AuditRow, judge
from gym_trl.errors import ConfigError
from gym_trl.evaluation.output_folder import OutputFolder
from gym_trl.executors.process_tree import end_descendants
from gym_trl.executors.worker import start_python
from gym_trl.files import make_folder, replace_text
from gym_trl.records.json_lines import read_object, to_json

_START_S = 60.0
"""Seconds for the start of a process and its imports."""


@dataclass(frozen=True)
class Budget:
    """Work that is done for each environment."""

    seconds: float = 30.0
    """Seconds of the measurements, about; a process that takes four times as long and a minute is ended."""
    episodes: int = 100
    """Maximum number of episodes of each policy."""
    search_steps: int = 3_000
    """Maximum number of steps of each search for a blind policy."""
    seed: int = 0


def audit(
    envs: Sequence[AuditedEnv],
    out: Path,
    budget: Budget | None = None,
    *,
    processes: int = 1,
    on_row: Callable[[AuditRow, float], None] | None = None,
) -> list[AuditRow]:
    """Measure and judge environments; return their rows in the given order.

    ::

        audit(envs_of("textarena"), Path("audits/textarena"))

    An environment that fails, hangs or ends its process has a row with the reason. The card of each is written into
    ``out``, and those that are there already are not measured again.

    Args:
        envs: The environments.
        out: Folder of the cards.
        budget: Work for each environment. Default: ``Budget()``.
        processes: Number of environments that are measured at the same time; speeds are those of a shared machine then.
        on_row: Called with each row when it is known, and the seconds that it took; 0 if it was there.

    Raises:
        ConfigError: the folder has an audit with another budget, or of something else.
    """
    budget = budget or Budget()
    with _Folder(out) as folder:
        folder.check_budget(budget)

        def measured(env: AuditedEnv) -> AuditRow:
            path, began = folder.file_of(env), perf_counter()
            if (earlier := _read(path, env)) is not None:
                row, took = earlier, 0.0
            else:
                written = {"version": 1, **asdict(env), **_measure(env, budget)}
                replace_text(path, to_json(written, indent=1) + "\n")
                row, took = _row(env, written), perf_counter() - began
            if on_row is not None:
                on_row(row, took)
            return row

        with ThreadPoolExecutor(processes) as threads:
            return list(_results(threads, measured, envs))


def rows_in(folder: Path) -> list[AuditRow]:
    """Return the rows of all cards in the folder of an audit, also of one that was stopped, by name.

    Raises:
        ConfigError: a file is no card of an audit.
    """
    rows = []
    for path in sorted((folder / "envs").glob("*.json")):
        written = read_object(path)
        try:
            rows.append(_row(_env_of(written), written))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ConfigError(f"{path} is no card of an audit") from error
    return sorted(rows, key=lambda row: row.name)


def _results(
    threads: ThreadPoolExecutor, measured: Callable[[AuditedEnv], AuditRow], envs: Sequence[AuditedEnv]
) -> Iterator[AuditRow]:
    waiting = [threads.submit(measured, env) for env in envs]
    try:
        yield from (one.result() for one in waiting)
    finally:  # after Ctrl-C, those that have begun are finished
        for one in waiting:
            one.cancel()


class _Folder(OutputFolder):
    noun: ClassVar[str] = "an audit"
    key: ClassVar[str] = "audit"
    unit: ClassVar[str] = "environments"
    doing: ClassVar[str] = "writing an audit into"

    def check_budget(self, budget: Budget) -> None:
        """Write the budget, or check that it is that of the cards in the folder."""
        assert self.path is not None
        make_folder(self.path / "envs")
        before = self.read_settings()
        if before is not None and before != asdict(budget):
            described = ", ".join(f"{name}={value}" for name, value in before.items())
            raise ConfigError(f"{self.path} has an audit with {described}; give the same, or another folder")
        self.check_writable()
        self.save_settings(asdict(budget), before)

    def file_of(self, env: AuditedEnv) -> Path:
        """Return the file of an environment's card."""
        assert self.path is not None
        text = to_json({name: value for name, value in asdict(env).items() if value or name != "flags"})
        name = AuditRow(env.env_id, env.env_kwargs, env.flags).name
        readable = "".join(letter if letter.isalnum() else "-" for letter in name)
        return self.path / "envs" / f"{readable[:80]}-{zlib.crc32(text.encode()):08x}.json"


def _read(path: Path, env: AuditedEnv) -> AuditRow | None:
    """Return the row of a card that was written; ``None`` if there is none, or it is of something else."""
    try:
        written = read_object(path)
        return _row(env, written) if _env_of(written) == env else None
    except (FileNotFoundError, ConfigError, KeyError, TypeError, AttributeError, ValueError):
        return None


def _env_of(written: Mapping[str, Any]) -> AuditedEnv:
    return AuditedEnv(written["env_id"], written["env_kwargs"], tuple(written.get("flags", ())))


def _row(env: AuditedEnv, written: Mapping[str, Any]) -> AuditRow:
    if written["card"] is None:
        return AuditRow(env.env_id, env.env_kwargs, env.flags, NOT_MEASURED, written["failure"])
    return replace(judge(written["card"]), env_id=env.env_id, env_kwargs=env.env_kwargs, flags=env.flags)


def _measure(env: AuditedEnv, budget: Budget) -> dict[str, Any]:
    """Return the card of an environment that ``gym-trl card`` makes in another process, or why there is none."""
    limit = 4 * budget.seconds + _START_S
    with TemporaryDirectory(prefix="gym-trl-") as folder:
        path = Path(folder, "card.json")
        words = ["-m", "gym_trl", "card", env.env_id, "--out", str(path), *env.flags]
        for name, value in asdict(budget).items():
            words += [f"--{name.replace('_', '-')}", str(value)]
        for name, value in env.env_kwargs.items():
            words += ["--env-kwargs", f"{name}={json.dumps(value)}"]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        process = start_python(*words, variables={}, start_new_session=True, **pipes)
        try:
            _, errors = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            return {"card": None, "failure": f"no card after {limit:g} s"}
        finally:
            end_descendants(process.pid)
            process.kill()
            process.wait()
        if path.exists():
            return {"card": read_object(path), "failure": ""}
    return {"card": None, "failure": _failure(process.returncode, errors.decode("utf-8", "replace"))}


def _failure(status: int, errors: str) -> str:
    """Return the reason that a process gave for its end."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    message = next((line for line in reversed(lines) if line.startswith("Error: ")), lines[-1] if lines else "")
    ended = f"exit status {status}" if status >= 0 else f"the process was ended by signal {-status}"
    return message.removeprefix("Error: ")[:300] or ended
