"""Reader of a run's files for the page: one row of numbers per episode, its messages and tokens, and the scores.

Only this module and ``episode`` use the field names of the records; the page uses the names in ``COLUMNS`` and of
``body``. Values that a file can have in any type, such as those of fields that are not known, become text.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from gym_trl.errors import ConfigError, MissingDependencyError
from gym_trl.evaluation import Score
from gym_trl.intervals import interval
from gym_trl.records import ROLLOUTS, Record, env_of, is_number, read_lines, read_records
from gym_trl.viewer.episode import Decoder, body, is_exact, mapping, shown, text

COLUMNS: Final = (
    *("step", "split", "env", "seed", "task", "same", "return", "success"),
    *("turns", "tokens", "ended", "invalid", "group", "seat", "policy", "response"),
)
"""Values of each episode, and the page's columns; but ``same`` is a number that episodes of one task share."""
_PREVIEW: Final = 72  # characters
_COUNTS: Final = {"turns": "num_turns", "tokens": "sampled_tokens"}


class Run:
    r"""Folder of a run, or one file of records, read as far as it has been written.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "rollouts.jsonl")
    ...     _ = path.write_text('{"version": 1, "task": {}, "turns": [], "return": 1.0, "error": "ox"}\n{"retu')
    ...     run = Run(Path(folder))
    ...     errors = [body["error"] for body in run.read()]
    ...     errors, run.columns["return"], run.broken
    (['ox'], [1.0], [2])

    Args:
        path: Folder written by ``train`` or ``evaluate``, or a file of records.
        tokenizer: Folder with ``tokenizer.json``, or that file. Default: the tokenizer in the run's folder.

    Raises:
        ConfigError: There is no run.
    """

    def __init__(self, path: Path, *, tokenizer: Path | None = None) -> None:
        if not path.exists():
            raise ConfigError(f"there is no {path}; give the folder of a run, or a file of its episodes")
        self.path, self._tokenizer = path, tokenizer
        self._folder = path if path.is_dir() else path.parent
        if path.is_dir() and not any((path / name).exists() for name in (ROLLOUTS, "metrics.jsonl", "config.json")):
            raise ConfigError(f"{path} is not a run: it has neither {ROLLOUTS} nor metrics.jsonl")
        self.columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        self.metrics: list[dict[str, float]] = []
        """Metrics of each step, and the interval of ``env/success`` as ``success/low`` and ``success/high``."""
        self.broken: list[int] = []
        """Numbers of lines that are no records."""
        self._envs: dict[str, list[int]] = defaultdict(list)  # scored episodes
        self._players: dict[tuple[str, str], list[Record]] = defaultdict(list)  # by policy and environment
        self._tasks: dict[str, int] = {}
        self._squares: list[float] = []  # of advantages that are not 0

    def __len__(self) -> int:
        """Return the number of episodes read."""
        return len(self.columns["return"])

    def read(self) -> Iterator[dict[str, Any]]:
        """Read the records into ``columns`` and ``metrics``, and generate the messages of each episode."""
        if self.path.is_dir() and (self.path / "metrics.jsonl").exists():
            self.metrics = [self._step(logs) for _, logs in read_lines(self.path / "metrics.jsonl")]
        if self.path.is_file() or (self.path / ROLLOUTS).exists():
            for record in read_records(self.path, broken=self.broken):
                self._add(record)
                yield body(record, self._decoder)
        # Where an environment declares success, an episode without it has failed.
        for episodes in self._envs.values():
            if any(self.columns["success"][place] is not None for place in episodes):
                for place in episodes:
                    self.columns["success"][place] = self.columns["success"][place] is True

    def _add(self, record: Record) -> None:
        place, env = len(self), env_of(record)
        for name, value in self._row(record).items():
            self.columns[name].append(value)
        if record["return"] is not None:
            self._envs[env].append(place)
        if record["step"] is None:  # the policy of a training changes with each step
            kept = ("task", "return", "success", "num_turns", "sampled_tokens")
            self._players[text(record["policy"] or ""), env].append({name: record[name] for name in kept})
        self._squares += [value * value for value in record["advantages"] or () if is_exact(value) and value]

    def _row(self, record: Record) -> dict[str, Any]:
        task, turns, split = record["task"], record["turns"], text(record["split"] or "")
        response = turns[-1]["answer"] if turns else ""
        pairs = {**task["options"], **task["env_kwargs"]}
        return {
            "step": record["step"],
            "split": split,
            "env": task["env_id"],
            "seed": task["seed"] if is_exact(task["seed"]) else text(task["seed"] or ""),
            "task": " ".join(f"{name}={text(value)}" for name, value in pairs.items())[: 4 * _PREVIEW],
            "same": self._tasks.setdefault(text(task["id"]), len(self._tasks)),
            "return": record["return"],
            "success": record["success"],
            "turns": len(turns),
            "tokens": record["sampled_tokens"] if is_exact(record["sampled_tokens"]) else None,
            "ended": record["stop_reason"],
            "invalid": sum(not turn["action_valid"] for turn in turns),
            "group": record["group"],
            "seat": record["seat"],
            "policy": text(record["policy"] or ""),
            "response": " ".join(response[: 4 * _PREVIEW].split())[:_PREVIEW],
        }

    def _step(self, logs: Mapping[str, Any]) -> dict[str, float]:
        """Return the numbers of a step, with the interval of its success as that of episodes that are independent."""
        numbers = {str(name): value for name, value in logs.items() if is_number(value)}
        success, size = numbers.get("env/success"), self._episodes_per_step
        if success is not None and size is not None and 0 <= success <= 1:
            scored = round(size * (1 - numbers.get("env/unscored", 0.0)))
            solved = round(success * scored)
            estimate = interval([[1.0]] * solved + [[0.0]] * (scored - solved), share=True)
            numbers |= {"success/low": estimate.low, "success/high": estimate.high} if scored > 0 else {}
        return numbers

    @cached_property
    def _options(self) -> Mapping[str, Any]:
        return mapping(_object_in(self._folder / "config.json").get("options"))

    @property
    def _episodes_per_step(self) -> int | None:
        groups, size = (self._options.get(name) or 0 for name in ("groups", "num_generations"))
        return int(groups * size) if is_exact(groups) and is_exact(size) and 0 < groups * size < 10**6 else None

    def about(self) -> dict[str, Any]:
        """Return the name, options, versions, scores and summary of the run."""
        summary = _object_in(self._folder / "summary.json")
        return {
            "name": self._folder.resolve().name if self.path.is_dir() else self.path.name,
            "options": shown(self._options),
            "versions": shown(mapping(_object_in(self._folder / "config.json").get("versions"))),
            "summary": shown(summary),
            "episodes_per_step": self._episodes_per_step,
            "levels": _levels(summary),
            "players": [self._player(*names, records) for names, records in self._players.items()],
            "broken": len(self.broken),
            "typical_advantage": math.sqrt(math.fsum(self._squares) / len(self._squares)) if self._squares else None,
        }

    def _player(self, policy: str, env: str, records: Sequence[Record]) -> dict[str, Any]:
        """Return the scores of a policy on an environment, over its scored episodes."""
        declares = any(self.columns["success"][place] is not None for place in self._envs[env])
        score, task = Score(policy, records, declares=declares), records[0]["task"]
        scored = [one for one in records if one["return"] is not None]
        return {
            "policy": policy,
            "env": task["env_id"],
            "arguments": ", ".join(f"{name}={value!r}" for name, value in task["env_kwargs"].items())[: 4 * _PREVIEW],
            "episodes": len(records),
            "scored": len(scored),
            **{name: _estimate([*score.mean(name)]) for name in ("success", "return")},
            **{name: _mean(one[field] for one in scored) for name, field in _COUNTS.items()},
        }

    @cached_property
    def _decoder(self) -> Decoder | None:
        if self._tokenizer is not None:
            file = self._tokenizer / "tokenizer.json" if self._tokenizer.is_dir() else self._tokenizer
            if not file.exists():
                raise ConfigError(f"there is no tokenizer at {self._tokenizer}; give a folder with a tokenizer.json")
            return Decoder(file)
        beside = [self._folder / name / "tokenizer.json" for name in ("tokenizer", "model")]
        found = next((file for file in beside if file.exists()), None)
        try:
            return Decoder(found) if found else None
        except MissingDependencyError:  # ids are shown without text
            return None


def _mean(values: Iterable[Any]) -> float | None:
    numbers = [value for value in values if is_number(value)]
    return math.fsum(numbers) / len(numbers) if numbers else None


def _levels(summary: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the scores in a run's summary: of the model before and after, and of those it is compared with.

    >>> score = {"success": [0.5, 0.2, 0.8], "return": [1.0, 0.5, 1.5], "episodes": 8}
    >>> list(_levels({"before": {"tiny": score, "random": score}, "after": {"tiny": score}}))
    ['before', 'random', 'after']
    """
    levels: dict[str, dict[str, Any]] = {}
    for when in ("before", "after"):
        for place, (name, score) in enumerate(mapping(summary.get(when)).items()):
            means = {key: _estimate(mapping(score).get(key)) for key in ("success", "return")}
            episodes = mapping(score).get("episodes")
            level = {**means, "episodes": episodes if is_exact(episodes) else None}
            levels[name if place else when] = level
    return levels


def _estimate(value: Any) -> list[float | None]:
    """Return a mean and the ends of its interval."""
    values = [*mapping(value).values()] if isinstance(value, Mapping) else value if isinstance(value, list) else []
    return [one if is_number(one) else None for one in [*values, None, None, None][:3]]


def _object_in(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
