"""Data of a run for its page: a row of columns for each episode, its record and tokens, scores and metrics.

The page uses the names of ``COLUMNS``, of ``Run.index``, and of the fields of a record (``docs/records.md``).
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from gym_trl.errors import ConfigError, MissingDependencyError, needs
from gym_trl.evaluation import Score
from gym_trl.records import ROLLOUTS, Record, env_of, is_number, read_lines, read_records

COLUMNS: Final = (
    *("step", "split", "policy", "env", "task", "same", "seed", "group", "seat"),
    *("ended", "success", "return", "turns", "tokens", "invalid", "response"),
)
"""Columns of the table; ``same`` is not shown: it is a number that episodes of one task share."""
_LARGEST: Final = 2**53  # largest exact integer in JavaScript
_PREVIEW: Final = 72  # characters
_SCORED: Final = ("task", "return", "success", "num_turns")
_OF_TOKENS: Final = ("prompt_ids", "completion_ids", "mask", "logprobs", "token_texts", "prompt_text")


class Run:
    r"""Folder of a run, or one file of records, read as far as it has been written.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "rollouts.jsonl")
    ...     _ = path.write_text('{"version": 1, "task": {}, "turns": [], "return": 1.0, "error": "ox"}\n{"retu')
    ...     run = Run(Path(folder))
    ...     errors = [record["error"] for record, tokens in run.episodes()]
    ...     errors, run.columns["return"], run.broken
    (['ox'], [1.0], [2])

    Args:
        path: Folder written by ``train`` or ``evaluate``, or a file of records.
        tokenizer: Folder with ``tokenizer.json``, or that file. Default: that of the run's model or a checkpoint.

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
        self.broken: list[int] = []
        """Numbers of lines that are no records."""
        self._scored: dict[str, list[int]] = defaultdict(list)  # places of an environment's scored episodes
        self._played: dict[tuple[str, str], list[Record]] = defaultdict(list)  # by policy and environment
        self._tasks: dict[str, int] = {}

    def episodes(self) -> Iterator[tuple[Record, dict[str, Any] | None]]:
        """Read the records into ``columns``, and yield each without its tokens, and the tokens."""
        if self.path.is_file() or (self.path / ROLLOUTS).exists():
            for record in read_records(self.path, broken=self.broken):
                self._add(record)
                tokens = _tokens(record, self._decoder)
                yield {name: value for name, value in record.items() if name not in _OF_TOKENS}, tokens
        # Where an environment declares success, an episode without it has failed.
        success = self.columns["success"]
        for places in self._scored.values():
            if any(success[place] is not None for place in places):
                for place in places:
                    success[place] = success[place] is True

    def _add(self, record: Record) -> None:
        env, task, turns = env_of(record), record["task"], record["turns"]
        if record["return"] is not None:
            self._scored[env].append(len(self.columns["return"]))
        if record["step"] is None:  # the policy of a training changes with each step
            self._played[text(record["policy"] or ""), env].append({name: record[name] for name in _SCORED})
        arguments = {**task["options"], **task["env_kwargs"]}
        response = turns[-1]["answer"] if turns else ""
        row = {
            **{name: record[name] for name in ("step", "group", "seat", "success", "return")},
            **{name: text(record[name] or "") for name in ("split", "policy")},
            "env": task["env_id"],
            "task": " ".join(f"{name}={text(value)}" for name, value in arguments.items())[: 4 * _PREVIEW],
            "same": self._tasks.setdefault(text(task["id"]), len(self._tasks)),
            "seed": task["seed"] if is_exact(task["seed"]) else text(task["seed"] or ""),
            "ended": record["stop_reason"],
            "turns": len(turns),
            "tokens": record["sampled_tokens"] if is_exact(record["sampled_tokens"]) else None,
            "invalid": sum(not turn["action_valid"] for turn in turns),
            "response": " ".join(response[: 4 * _PREVIEW].split())[:_PREVIEW],
        }
        for name, value in row.items():
            self.columns[name].append(value)

    def index(self) -> dict[str, Any]:
        """Return what the page has at once, after the episodes are read."""
        config, summary = (_object_in(self._folder / name) for name in ("config.json", "summary.json"))
        metrics = self._folder / "metrics.jsonl"
        return {
            "name": self._folder.resolve().name if self.path.is_dir() else self.path.name,
            "options": {
                name: one for name, one in mapping(config.get("options")).items() if isinstance(one, str | int)
            },
            "interrupted": summary.get("interrupted") is True,
            "scores": _scores_of_training(summary) or self._scores_of_policies(),
            "metrics": [one for _, one in read_lines(metrics)] if self.path.is_dir() and metrics.exists() else [],
            "broken": len(self.broken),
            "columns": self.columns,
        }

    def _scores_of_policies(self) -> list[dict[str, Any]]:
        scores = []
        for (policy, env), records in self._played.items():
            declares = any(self.columns["success"][place] is not None for place in self._scored[env])
            row = Score(policy, records, declares=declares).as_dict()
            scores.append({**row, "env": records[0]["task"]["env_id"]})
        return scores

    @cached_property
    def _decoder(self) -> "Decoder | None":
        if self._tokenizer is not None:
            file = self._tokenizer / "tokenizer.json" if self._tokenizer.is_dir() else self._tokenizer
            if not file.exists():
                raise ConfigError(f"there is no tokenizer at {self._tokenizer}; give a folder with a tokenizer.json")
            return Decoder(file)
        checkpoints = sorted(self._folder.glob("checkpoints/*/tokenizer.json"))
        found = next((one for one in [self._folder / "model" / "tokenizer.json", *checkpoints] if one.exists()), None)
        try:
            return Decoder(found) if found else None
        except MissingDependencyError:  # ids are shown without text
            return None


class Decoder:
    """Decoder of ids one by one; a character made of several ids belongs to the last of them."""

    def __init__(self, file: Path) -> None:
        with needs("train", "the text of token ids"):
            from tokenizers import Tokenizer
        try:
            self._tokenizer = Tokenizer.from_buffer(file.read_bytes())
        except OSError:
            raise
        except Exception as error:  # tokenizers raises no specific exception
            raise ConfigError(f"{file} is not a tokenizer: {error}") from error

    def pieces(self, ids: Sequence[Any]) -> list[str]:
        """Return the text that each id adds."""
        from tokenizers.decoders import DecodeStream

        stream, pieces = DecodeStream(skip_special_tokens=False), []
        for one in ids:
            try:
                pieces.append(stream.step(self._tokenizer, one) or "")
            except Exception:  # an id that is not in the vocabulary
                pieces.append(f"<{text(one)}>")
        return pieces


def _tokens(record: Record, decoder: Decoder | None) -> dict[str, Any] | None:
    """Return the tokens of a completion; of a prompt only the text."""
    ids, mask, logprobs, texts = (record[name] or [] for name in _OF_TOKENS[1:-1])
    if not ids or len(mask) != len(ids):
        return None
    given = [text(one) for one in texts] if isinstance(texts, list) and len(texts) == len(ids) else None
    prompt = record["prompt_ids"] or []
    unread = text(record["prompt_text"] or " ".join(map(str, prompt)))
    return {
        "ids": ids,
        "texts": decoder.pieces(ids) if decoder else given,
        "mask": [1 if one else 0 for one in mask],
        "logprobs": [round(one, 4) if is_exact(one) else None for one in logprobs]
        if len(logprobs) == len(ids)
        else None,
        "prompt": "".join(decoder.pieces(prompt)) if decoder else unread,
    }


def _scores_of_training(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the scores in a summary: of the model before and after, and of those it is compared with.

    >>> half = {"success": {"mean": 0.5, "low": 0.2, "high": 0.8}, "episodes": 8}
    >>> summary = {"before": {"model": half, "random": half}, "after": {"model": half}}
    >>> [one["policy"] for one in _scores_of_training(summary)]
    ['before', 'after', 'random']
    """
    scores: dict[str, dict[str, Any]] = {}
    for when in ("before", "after"):
        for name, row in mapping(summary.get(when)).items():
            label = when if name == "model" else name
            scores[label] = {**mapping(row), "policy": label}
    first = [name for name in ("before", "after") if name in scores]
    return [scores[name] for name in (*first, *(name for name in scores if name not in first))]


def text(value: Any) -> str:
    """Return a text itself, and anything else as JSON."""
    try:
        return value if isinstance(value, str) else json.dumps(value, default=str)
    except RecursionError:  # a file can nest deeper than it can be written
        return "..."


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a mapping itself, and an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def is_exact(value: Any) -> bool:
    """Return whether a value is a number that JavaScript shows as it is."""
    return is_number(value) and abs(value) < _LARGEST


def _object_in(path: Path) -> Mapping[str, Any]:
    try:
        return mapping(json.loads(path.read_bytes()))
    except (OSError, ValueError, RecursionError):
        return {}
