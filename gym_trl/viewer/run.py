"""Reader of a run's files for the page: one row of numbers per episode, and messages on demand.

Only this module and ``episode`` use the field names of the records; the page uses the names in ``COLUMNS`` and of
``body``.
"""

import hashlib
import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, cast

from gym_trl.errors import ConfigError, MissingDependencyError
from gym_trl.evaluation.estimates import Estimate
from gym_trl.evaluation.levels import levels_of, step_success
from gym_trl.evaluation.scores import Scoreboard, arguments_key
from gym_trl.records.fields import as_number
from gym_trl.records.json_lines import as_object
from gym_trl.records.schema import CREDIT, FAILURES, ROLLOUTS, Record, TaskRecord, TurnRecord, env_of
from gym_trl.success import counted_successes, declaring_envs
from gym_trl.viewer.credit import Credit
from gym_trl.viewer.episode import Decoder, body, mask_of
from gym_trl.viewer.tails import Place, Tail
from gym_trl.viewer.values import is_exact, mapping, shown, text

COLUMNS: Final = (
    "step",
    "split",
    "env",
    "seed",
    "task",
    "same",
    "return",
    "success",
    "turns",
    "tokens",
    "ended",
    "invalid",
    "group",
    "seat",
    "policy",
    "response",
)
"""Values of each episode, and the page's columns; but ``same`` is a number that episodes of one task share."""
_PREVIEW: Final = 72  # characters


class Run:
    r"""Folder of a run, or one file of records, read as far as it has been written.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "rollouts.jsonl")
    ...     _ = path.write_text('{"version": 1, "task": {}, "turns": [], "return": 1.0, "unanswered": "ox"}\n{"retu')
    ...     run = Run(Path(folder))
    ...     answers = [body["unanswered"] for body in run.read()]
    ...     answers, run.columns["return"], run.broken
    (['ox'], [1.0], 0)

    Args:
        path: Folder written by ``gym-trl train`` or ``gym-trl eval``, or a file of records.
        tokenizer: Folder with ``tokenizer.json``, or that file. Default: the tokenizer in the run's folder.

    Raises:
        ConfigError: There are no records, or their version is not supported.
    """

    def __init__(self, path: Path, *, tokenizer: Path | None = None) -> None:
        self.path = path
        if not path.exists():
            raise ConfigError(f"there is no {path}; give the folder of a run, or a file of its episodes")
        files = [path] if path.is_file() else [path / ROLLOUTS, path / FAILURES]
        if path.is_dir() and not any(file.exists() for file in (*files, path / "metrics.jsonl", path / "config.json")):
            raise ConfigError(f"{path} is not a run: it has neither {ROLLOUTS} nor metrics.jsonl")
        self.columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        self.metrics: list[dict[str, float]] = []
        """Metrics of each step, and the interval of ``env/success`` as ``success/low`` and ``success/high``."""
        self.broken = 0
        self._undeclared: dict[str, list[int]] = {}  # scored episodes by environment, of those without any declaration
        self._declaring: set[Hashable] = set()
        self._episodes = [Tail(file) for file in files]
        self._metrics = Tail(path / "metrics.jsonl", records=False) if path.is_dir() else None
        self._folder = folder = path if path.is_dir() else path.parent
        self._credit = Credit(folder / CREDIT) if path.is_dir() or path.name == ROLLOUTS else None
        self._places: list[Place] = []
        self._tasks: dict[str, int] = {}
        self._board = Scoreboard()
        self._tokenizer = tokenizer

    def __len__(self) -> int:
        """Return the number of episodes read."""
        return len(self._places)

    def read(self) -> Iterator[dict[str, Any]]:
        """Read the records into ``columns`` and ``metrics``, and generate the messages of each episode."""
        return (self._body(record) for record in self._records())

    def _records(self) -> Iterator[Record]:
        if self._metrics:
            options = mapping(_object_in(self._folder / "config.json").get("options"))
            for _, logs in self._metrics.read():
                numbers = {str(name): value for name, value in logs.items() if as_number(value) is not None}
                success = step_success(numbers, options)
                if success.low is not None and success.high is not None:
                    numbers |= {"success/low": success.low, "success/high": success.high}
                self.metrics.append(numbers)
        if self._credit:
            self._credit.read()
        for number, tail in enumerate(self._episodes):
            for (offset, length), value in tail.read():
                record = cast(Record, value)
                self._places.append(Place(number, offset, length))
                for name, cell in self._row(record).items():
                    self.columns[name].append(cell)
                self._count_success(record)
                if record["step"] is None:  # the policy of a training changes with each step
                    self._board.add(record)
                yield record
        self.broken = sum(tail.broken for tail in self._episodes)

    def _count_success(self, record: Record) -> None:
        """Count the success of the last episode, and of earlier ones of its environment if it is the first to declare.

        Those read earlier have then failed (``counted_successes``).
        """
        place, (successes, returns) = len(self) - 1, (self.columns[name] for name in ("success", "return"))
        if returns[place] is None:
            return
        env = env_of(record)
        undeclared = self._undeclared.setdefault(env, [])
        undeclared.append(place)
        self._declaring |= declaring_envs([(env, successes[place])])
        if env not in self._declaring:
            return
        counted = counted_successes([(env, successes[one]) for one in undeclared], self._declaring)
        for one, success in zip(undeclared, counted, strict=True):
            successes[one] = success
        undeclared.clear()

    def bodies(self, first: int, count: int) -> list[dict[str, Any]]:
        """Return the messages of episodes that have been read before."""
        places = self._places[first : first + count]
        return [self._body(cast(Record, self._episodes[place.file].at(place))) for place in places]

    def _body(self, record: Record) -> dict[str, Any]:
        return body(record, self._decoder, self._credit.of(record) if self._credit else None)

    def about(self) -> dict[str, Any]:
        """Return the name, options, versions and summary of the run."""
        config, summary = _object_in(self._folder / "config.json"), _object_in(self._folder / "summary.json")
        return {
            "name": self._folder.resolve().name if self.path.is_dir() else self.path.name,
            "options": shown(config.get("options") or {}),
            "versions": shown(config.get("versions") or {}),
            "summary": shown(summary),
            "levels": {
                name: {"success": _listed(one.success), "return": one.mean_return, "episodes": one.episodes}
                for name, one in levels_of(summary).items()
            },
            "players": self._players(),
            "broken": self.broken,
            "credit": self._credit.about() if self._credit else None,
        }

    def _players(self) -> list[dict[str, Any]]:
        """Return the scores of each policy on each environment with some arguments, over its scored episodes."""
        return [
            {
                "policy": row.policy,
                "env": row.env_id,
                "arguments": _arguments(row.env_kwargs),
                "episodes": row.episodes + row.unscored,
                "scored": row.episodes,
                "success": _listed(row.success),
                "return": _listed(row.mean_return),
                "turns": row.turns,
                "tokens": row.tokens,
            }
            for row in self._board.rows()
        ]

    def _row(self, record: Record) -> dict[str, Any]:
        task, turns, sampled = record["task"], record["turns"], record["sampled_tokens"]
        split, seed = record["split"] or "", task["seed"]
        number = self._tasks.setdefault(task["id"], len(self._tasks))
        return {
            "step": record["step"],
            "split": f"{split} greedy".strip() if record["greedy"] else split,
            "env": task["env_id"] or "",
            "seed": seed if is_exact(seed) else text(seed or ""),
            "task": _pairs(task),
            "same": number,
            "return": record["return"],
            "success": record["success"],
            "turns": len(turns),
            "tokens": sum(mask_of(record)) if sampled is None and record["mask"] else sampled,
            "ended": record["stop_reason"] or "",
            "invalid": sum(not turn["action_valid"] for turn in turns),
            "group": record["group"],
            "seat": record["seat"],
            "policy": record["policy"] or "",
            "response": _preview(turns),
        }

    @cached_property
    def _decoder(self) -> "Decoder | None":
        if self._tokenizer is not None:
            file = self._tokenizer / "tokenizer.json" if self._tokenizer.is_dir() else self._tokenizer
            if not file.exists():
                raise ConfigError(f"there is no tokenizer at {self._tokenizer}; give a folder with a tokenizer.json")
            return Decoder(file)
        beside = [self._folder / name / "tokenizer.json" for name in ("tokenizer", "model")]
        file_ = next((file for file in beside if file.exists()), None)
        try:
            return Decoder(file_) if file_ else None
        except MissingDependencyError:  # ids are shown without text
            return None


def _listed(estimate: Estimate) -> list[float | None]:
    return [estimate.mean, estimate.low, estimate.high]


def _pairs(task: TaskRecord) -> str:
    """Return the options and arguments of a task in one line, the instance first."""
    pairs = {**task["options"], **task["env_kwargs"]}
    return " ".join("".join(f"{name}={text(value)}".split()) for name, value in pairs.items())[: 4 * _PREVIEW]


def _arguments(env_kwargs: Mapping[str, Any]) -> str:
    """Return the name of an environment's arguments, which other arguments do not have.

    >>> _arguments({"order": "a b", "high": 8}), _arguments({"rules": "x" * 1_000})[-20:]
    ("high=8, order='a b'", 'xxxxxxx ... ed5da24e')
    """
    values = json.loads(arguments_key(env_kwargs))
    label = ", ".join(f"{name}={json.dumps(value)}" for name, value in values.items()).replace('"', "'")
    if len(label) <= _PREVIEW:
        return label
    return f"{label[: _PREVIEW - 13]} ... {hashlib.sha256(label.encode()).hexdigest()[:8]}"


def _preview(turns: Sequence[TurnRecord]) -> str:
    """Return the beginning of the last response, in one line."""
    response = turns[-1]["answer"] if turns else ""
    return " ".join(response[: 4 * _PREVIEW].split())[:_PREVIEW]


def _object_in(path: Path) -> dict[str, Any]:
    try:
        return as_object(path.read_bytes()) or {}
    except OSError:
        return {}
