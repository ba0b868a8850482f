"""Reader of a run's files for the page: one row of numbers per episode, and messages on demand.

Only this module uses the field names of the records; the page uses the names in ``COLUMNS`` and of ``body``.
"""

import json
import math
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from gym_trl.errors import ConfigError, MissingDependencyError, needs
from gym_trl.files import open_to_read, read_bytes, read_lines
from gym_trl.records.fields import as_number
from gym_trl.records.files import read_records
from gym_trl.records.json_lines import as_object
from gym_trl.records.schema import CREDIT, FAILURES, ROLLOUTS, VERSION, Record, env_of
from gym_trl.types import counted_successes, declaring_envs

COLUMNS: Final = (
    "step",
    "split",
    "env",
    "seed",
    "task",
    "return",
    "success",
    "turns",
    "tokens",
    "stop",
    "invalid",
    "group",
    "game",
    "seat",
    "policy",
    "said",
)
_PREVIEW: Final = 72  # characters
_LARGEST: Final = 2**53  # largest exact integer in JavaScript


class Place(NamedTuple):
    """Position of a record."""

    file: int
    offset: int
    length: int


class Run:
    r"""Folder of a run, or one file of records, read as far as it has been written.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "rollouts.jsonl")
    ...     _ = path.write_text('{"return": 1.0, "turns": [{"answer": "ox"}]}\n{"retu')
    ...     run = Run(Path(folder))
    ...     said = [body["turns"][0]["answer"] for body in run.read()]
    ...     said, run.columns["return"], run.broken
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
        found = [path] if path.is_file() else [path / ROLLOUTS, path / FAILURES]
        if path.is_dir() and not any(file.exists() for file in (*found, path / "metrics.jsonl", path / "config.json")):
            raise ConfigError(f"{path} is not a run: it has neither {ROLLOUTS} nor metrics.jsonl")
        self.columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        self.metrics: list[dict[str, float]] = []
        self.broken = 0
        self.recounted = 0
        """Number of times that an episode was the first of its environment to declare success, so that those read
        earlier have failed (``counted_successes``)."""
        self._undeclared: dict[str, list[int]] = {}  # scored episodes by environment, of those without any declaration
        self._declaring: set[Hashable] = set()
        self._episodes = [Table(file) if file.suffix == ".parquet" else Tail(file) for file in found]
        self._metrics = Tail(path / "metrics.jsonl", records=False) if path.is_dir() else None
        folder = path if path.is_dir() else path.parent
        self._credit = Credit(folder / CREDIT) if path.is_dir() or path.name == ROLLOUTS else None
        self._places: list[Place] = []
        self._tasks: dict[str, int] = {}
        self._games = _Games()
        self._tokenizer = tokenizer

    def __len__(self) -> int:
        """Return the number of episodes read."""
        return len(self._places)

    @property
    def replaced(self) -> bool:
        """True if a file was replaced, for example by a resumed run; then the run must be read again from the start."""
        tails = [*self._episodes, self._metrics, self._credit]
        return any(tail.replaced for tail in tails if tail)

    def read(self) -> Iterator[dict[str, Any]]:
        """Read the appended records and generate the messages of each new episode."""
        return (self._body(record) for record in self._records())

    def refresh(self) -> None:
        """Read the appended records into ``columns`` and ``metrics``."""
        for _ in self._records():
            pass

    def _records(self) -> Iterator[dict[str, Any]]:
        if self._metrics:
            for _, record in self._metrics.read():
                self.metrics.append(
                    {str(name): value for name, value in record.items() if as_number(value) is not None}
                )
        if self._credit:
            self._credit.read()
        before = len(self)
        for number, tail in enumerate(self._episodes):
            for (offset, length), record in tail.read():
                self._places.append(Place(number, offset, length))
                for name, value in self._row(record).items():
                    self.columns[name].append(value)
                self._count_success(record, before)
                yield record
        self.broken = sum(tail.broken for tail in self._episodes)

    def _count_success(self, record: Mapping[str, Any], before: int) -> None:
        """Count the success of the last episode, and of earlier ones of its environment if it is the first to declare.

        The number of episodes ``before`` this reading tells if somebody may have seen the earlier ones.
        """
        place, (successes, returns) = len(self) - 1, (self.columns[name] for name in ("success", "return"))
        if returns[place] is None:
            return
        task = {"env_id": None, "env_kwargs": {}, **_mapping(record.get("task"))}
        env = env_of({"task": task, "spec": _mapping(record.get("spec"))})
        undeclared = self._undeclared.setdefault(env, [])
        undeclared.append(place)
        self._declaring |= declaring_envs([(env, successes[place])])
        if env not in self._declaring:
            return
        counted = counted_successes([(env, successes[one]) for one in undeclared], self._declaring)
        for one, success in zip(undeclared, counted, strict=True):
            successes[one] = success
        self.recounted += any(one < before for one in undeclared)
        undeclared.clear()

    def bodies(self, first: int, count: int) -> list[dict[str, Any]]:
        """Return the messages of episodes that have been read before."""
        places = self._places[first : first + count]
        return [self._body(self._episodes[place.file].at(place)) for place in places]

    def _body(self, record: Mapping[str, Any]) -> dict[str, Any]:
        return body(record, self._decoder, self._credit.of(record) if self._credit else None)

    def about(self) -> dict[str, Any]:
        """Return the name, options, versions and summary of the run."""
        folder = self.path if self.path.is_dir() else self.path.parent
        config, summary = _object_in(folder / "config.json"), _object_in(folder / "summary.json")
        return {
            "name": folder.resolve().name if self.path.is_dir() else self.path.name,
            "options": _shown(config.get("options") or {}),
            "versions": _shown(config.get("versions") or {}),
            "summary": _shown(summary),
            "broken": self.broken,
            "credit": self._credit.about() if self._credit else None,
        }

    def _row(self, record: Mapping[str, Any]) -> dict[str, Any]:
        task, turns = _mapping(record.get("task")), _listed(record.get("turns"))
        # Records from before the schema was introduced have no id.
        key = task.get("id") or [task.get(name) for name in ("env_id", "seed", "options")]
        sampled = record.get("sampled_tokens")
        rewards = [as_number(_mapping(turn).get("reward")) or 0.0 for turn in turns]
        split = _text(record.get("split") or "")
        number = self._tasks.setdefault(json.dumps(key, sort_keys=True), len(self._tasks))
        seed: Any = task.get("seed")
        return {
            "step": as_number(record.get("step")),
            "split": f"{split} greedy".strip() if record.get("greedy") else split,
            "env": _text(task.get("env_id") or ""),
            "seed": seed if _is_exact(seed) else _text(seed or ""),
            "task": number,
            "return": as_number(record["return"]) if "return" in record else math.fsum(rewards),
            "success": said if isinstance(said := record.get("success"), bool) else None,
            "turns": len(turns),
            "tokens": as_number(sum(_mask(record)) if sampled is None and record.get("mask") else sampled),
            "stop": _text(record.get("stop_reason") or ""),
            "invalid": sum(_mapping(turn).get("action_valid") is False for turn in turns),
            "group": as_number(record.get("group")),
            "game": self._games.of(record, number),
            "seat": as_number(record.get("seat")),
            "policy": _text(record.get("policy") or ""),
            "said": _preview(turns),
        }

    @cached_property
    def _decoder(self) -> "Decoder | None":
        if self._tokenizer is not None:
            file = self._tokenizer / "tokenizer.json" if self._tokenizer.is_dir() else self._tokenizer
            if not file.exists():
                raise ConfigError(f"there is no tokenizer at {self._tokenizer}; give a folder with a tokenizer.json")
            return Decoder(file)
        folder = self.path if self.path.is_dir() else self.path.parent
        beside = [folder / name / "tokenizer.json" for name in ("tokenizer", "model")]
        file_ = next((file for file in beside if file.exists()), None)
        try:
            return Decoder(file_) if file_ else None
        except MissingDependencyError:  # ids are shown without text
            return None


class Tail:
    """Reader of the complete lines of a file that may still grow."""

    def __init__(self, path: Path, *, records: bool = True) -> None:
        self.path = path
        self.broken = 0
        self._are_records = records
        self._offset = 0
        self._inode: int | None = None

    @property
    def replaced(self) -> bool:
        """True if the file was replaced or truncated since it was read."""
        if self._inode is None:
            return False
        try:
            now = self.path.stat()
        except FileNotFoundError:
            return True
        return now.st_ino != self._inode or now.st_size < self._offset

    def read(self) -> Iterator[tuple[tuple[int, int], dict[str, Any]]]:
        """Generate the objects of new lines, each with its offset and length in bytes."""
        try:
            file = open_to_read(self.path)
        except FileNotFoundError:
            return
        with file:
            self._inode = self._inode or self.path.stat().st_ino
            file.seek(self._offset)
            for line in read_lines(self.path, file):
                if not line.endswith(b"\n"):
                    break
                offset, self._offset = self._offset, self._offset + len(line)
                record = as_object(line)
                if record is not None and (not self._are_records or _is_episode(record)):
                    if record.get("version", VERSION) != VERSION:
                        raise ConfigError(
                            f"{self.path} has a record of version {record['version']!r:.20}, not {VERSION}"
                        )
                    yield (offset, len(line)), record
                elif line.strip():
                    self.broken += 1

    def at(self, place: Place) -> dict[str, Any]:
        """Return the object at this position."""
        with open_to_read(self.path) as file:
            file.seek(place.offset)
            return as_object(file.read(place.length)) or {}


def _is_episode(record: Mapping[str, Any]) -> bool:
    """Return whether an object is a record of an episode, whose numbers have a sum."""
    turns = record.get("turns")
    if not isinstance(turns, list):
        return False
    paid = [record.get("return"), *(turn.get("reward") for turn in turns if isinstance(turn, dict))]
    return all(as_number(value) is not None for value in paid if type(value) in (int, float))


class _Games:
    """Numbers of the games of several seats, by the records of their seats."""

    def __init__(self) -> None:
        self._count = 0
        self._begun: dict[tuple[Any, ...], tuple[int, set[float]]] = {}  # the last game of each name

    def of(self, record: Mapping[str, Any], task: int) -> int | None:
        """Return the number of a record's game, the same for all of its seats; ``None`` for a record without a seat."""
        if (seat := as_number(record.get("seat"))) is None:
            return None
        names = ("step", "group", "game")
        name = (task, _text(record.get("split")), *(as_number(record.get(one)) for one in names))
        number, seats = self._begun.get(name, (0, {seat}))
        if seat in seats:  # a file with several evaluations has several games of one name
            number, seats = self._count, set()
            self._count += 1
            self._begun[name] = number, seats
        seats.add(seat)
        return number


class TurnCredit(NamedTuple):
    """Advantages and states of an episode's turns."""

    advantages: list[float | None]
    """One per turn."""
    states: list[int]
    """State before each turn, and the last one: equal numbers within a group are equal states; empty if not known."""


class Credit:
    r"""Reader of a run's advantages; the keys of states, which may be long, become small numbers within each group.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path, episode = Path(folder, "credit.jsonl"), {"step": 1, "split": "train", "group": 0, "attempt": 0}
    ...     _ = path.write_text(json.dumps({**episode, "advantages": [0.5], "state_keys": ["start", "end"]}) + "\n")
    ...     credit = Credit(path)
    ...     credit.read()
    ...     credit.of({**episode, "turns": [{"answer": "ox"}]})
    TurnCredit(advantages=[0.5], states=[0, 1])
    """

    def __init__(self, path: Path) -> None:
        self._tail = Tail(path, records=False)
        self._episodes: dict[_Member, TurnCredit] = {}
        self._states: dict[tuple[Any, ...], dict[str, int]] = {}
        self._known = 0  # advantages that are not 0
        self._squares = 0.0

    @property
    def replaced(self) -> bool:
        """True if the file was replaced since it was read."""
        return self._tail.replaced

    def read(self) -> None:
        """Read the appended lines."""
        for _, line in self._tail.read():
            if (member := _member(line)) is None:
                continue
            advantages = [_short(value) for value in _listed(line.get("advantages"))]
            keys = _listed(line.get("state_keys"))
            numbers = self._states.setdefault(member[:-1], {})
            states = [numbers.setdefault(_text(key), len(numbers)) for key in keys]
            self._episodes[member] = TurnCredit(advantages, states if len(states) == len(advantages) + 1 else [])
            told = [value for value in advantages if value]
            self._known += len(told)
            self._squares += math.fsum(value * value for value in told)

    def of(self, record: Mapping[str, Any]) -> TurnCredit | None:
        """Return the credit of a recorded episode, if it is known for all of its turns."""
        credit = self._episodes.get(member) if (member := _member(record)) else None
        return credit if credit and len(credit.advantages) == len(_listed(record.get("turns"))) else None

    def about(self) -> dict[str, float | None]:
        """Return the number of episodes with advantages, and the root mean square of those that are not 0."""
        typical = math.sqrt(self._squares / self._known) if self._known else None
        return {"episodes": len(self._episodes), "typical": typical}


_Member: TypeAlias = tuple[float, str, float, float]


def _member(record: Mapping[str, Any]) -> _Member | None:
    """Return the key by which the credit of a record is found."""
    step, group, attempt = (as_number(record.get(name)) for name in ("step", "group", "attempt"))
    if step is None or group is None or attempt is None:
        return None
    return step, _text(record.get("split") or ""), group, attempt


def _short(value: Any) -> float | None:
    """Return a number with four digits, which are more than are shown."""
    return float(f"{value:.4g}") + 0.0 if _is_exact(value) else None  # no -0.0


class Table:
    """Reader of records in Parquet, which are not appended to."""

    broken = 0
    replaced = False

    def __init__(self, path: Path) -> None:
        self.path = path
        self._records: list[dict[str, Any]] | None = None

    def read(self) -> Iterator[tuple[tuple[int, int], dict[str, Any]]]:
        """Generate the records, each with its number."""
        if self._records is None:
            self._records = [dict(record) for record in read_records(self.path)]
            yield from (((number, 1), record) for number, record in enumerate(self._records))

    def at(self, place: Place) -> dict[str, Any]:
        """Return the record at this position."""
        return (self._records or [])[place.offset]


class Decoder:
    """Decoder of ids one by one; a character made of several ids belongs to the last of them."""

    def __init__(self, file: Path) -> None:
        with needs("train", "the text of token ids"):
            from tokenizers import Tokenizer
        try:
            self._tokenizer = Tokenizer.from_buffer(read_bytes(file))
        except OSError:
            raise
        except Exception as error:  # tokenizers raises no specific exception
            raise ConfigError(f"{file} is not a tokenizer: {error}") from error

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return the text that each id adds."""
        from tokenizers.decoders import DecodeStream

        stream = DecodeStream(skip_special_tokens=False)
        pieces = []
        for index in ids:
            try:
                pieces.append(stream.step(self._tokenizer, index) or "")
            except Exception:  # an id that is not in the vocabulary
                pieces.append(f"<{index}>")
        return pieces


def body(record: Mapping[str, Any], decoder: Decoder | None = None, credit: TurnCredit | None = None) -> dict[str, Any]:
    """Return the messages of an episode, with the names and types that the page expects.

    >>> body({"turns": [{"observation": "Say ox.", "answer": "ox", "reward": 1}], "note": "by hand"})["turns"][0]
    {'observation': 'Say ox.', 'thinking': '', 'answer': 'ox', 'reward': 1, 'valid': True, 'action': None}
    """
    turns = [_turn(_mapping(turn)) for turn in _listed(record.get("turns"))]
    task = _mapping(record.get("task"))
    scores = {f"score of {name}": score for name, score in _mapping(record.get("scores")).items()}
    others = {key: record[key] for key in record if key not in _KNOWN}
    images = [_base64(one) for one in _listed(record.get("images"))]
    for turn, shown in zip(turns, images, strict=False):
        if shown:
            turn["images"] = shown
    return {
        "turns": turns,
        "opening": _opening(record, turns),
        "last": _optional(record.get("last_observation")),
        "last_images": images[len(turns)] if len(images) > len(turns) else [],
        "unanswered": _optional(record.get("unanswered")),
        "error": _optional(record.get("error")),
        "options": _shown({**_mapping(task.get("env_kwargs")), **_mapping(task.get("options"))}),
        "counts": {name: as_number(record.get(f"{name}_tokens")) for name in ("prompt", "completion")},
        "more": _shown({**scores, **_mapping(record.get("spec")), **others}),
        "credit": credit._asdict() if credit else None,
        "order": order if len(order := _ids(record.get("order"))) == len(turns) else None,
        "tokens": _tokens(record, decoder),
        "segments": [_segment(_mapping(one)) for one in _listed(record.get("segments"))],
    }


# All other fields are shown as details of an episode.
_KNOWN: Final = Record.__annotations__.keys() - {"attempt", "cut_actions", "model_seconds", "env_seconds"}


def _base64(codes: Any) -> list[str]:
    """Return the texts that are base64, so that the page can show them as images and nothing else."""
    return [code for code in _listed(codes) if isinstance(code, str) and re.fullmatch(r"[A-Za-z0-9+/]+={0,2}", code)]


def _segment(border: Mapping[str, Any]) -> dict[str, Any]:
    """Return where a further segment of an episode begins, and what its prompt no longer shows."""
    counts = {name: int(as_number(border.get(name)) or 0) for name in ("start", "stop", "turn", "left_out")}
    return {**counts, "summary": _text(border.get("summary") or "")}


def _turn(turn: Mapping[str, Any]) -> dict[str, Any]:
    told = {
        "observation": _text(turn.get("observation") or ""),
        "thinking": _text(turn.get("thinking") or ""),
        "answer": _text(turn.get("answer") or ""),
        "reward": as_number(turn.get("reward")),
        "valid": turn.get("action_valid") is not False,
        "action": _optional(turn.get("action")),
    }
    if isinstance(start := turn.get("start"), int) and isinstance(stop := turn.get("stop"), int):
        told |= {"start": start, "stop": stop}
    return told


def _preview(turns: Sequence[Any]) -> str:
    """Return the beginning of the last response, in one line."""
    said = _text(_mapping(turns[-1]).get("answer") or "") if turns else ""
    return " ".join(said[: 4 * _PREVIEW].split())[:_PREVIEW]


def _opening(record: Mapping[str, Any], turns: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return the messages before the first observation."""
    opening = [
        {"role": _text(message.get("role") or ""), "text": _text(message.get("content") or "")}
        for message in map(_mapping, _listed(record.get("opening")))
    ]
    if opening and turns:
        opening[-1]["text"] = opening[-1]["text"].removesuffix(turns[0]["observation"]).rstrip()
    return [message for message in opening if message["text"]]


def _tokens(record: Mapping[str, Any], decoder: Decoder | None) -> dict[str, Any] | None:
    ids, mask = _ids(record.get("completion_ids")), _mask(record)
    if not ids or len(mask) != len(ids):
        return None
    logprobs, texts = _listed(record.get("logprobs")), _listed(record.get("token_texts"))
    prompt = _ids(record.get("prompt_ids"))
    told = [_text(text) for text in texts] if len(texts) == len(ids) else None
    return {
        "ids": ids,
        "texts": decoder.pieces(ids) if decoder else told,
        "mask": mask,
        "logprobs": _rounded(logprobs) if len(logprobs) == len(ids) else None,
        "prompt": "".join(decoder.pieces(prompt)) if decoder else None,
        "prompt_ids": None if decoder else prompt,
    }


def _ids(value: Any) -> list[int]:
    ids = _listed(value)
    return ids if all(type(one) is int for one in ids) else []


def _mask(record: Mapping[str, Any]) -> list[int]:
    return [1 if one else 0 for one in _listed(record.get("mask"))]


def _rounded(values: Sequence[Any]) -> list[float | None]:
    # There may be millions of values, so check the common case first.
    return [round(value, 4) if type(value) is float and -1e9 < value < 1e9 else as_number(value) for value in values]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _optional(value: Any) -> str | None:
    return None if value is None else _text(value)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _shown(values: Any) -> dict[str, str | float | bool | None]:
    """Return a mapping's values in a form that can be shown in one line."""
    return {str(name): value if _simple(value) else _text(value) for name, value in _mapping(values).items()}


def _simple(value: Any) -> bool:
    return value is None or isinstance(value, str | bool) or _is_exact(value)


def _is_exact(value: Any) -> bool:
    """Return whether a value is a number that JavaScript shows as it is."""
    return (number := as_number(value)) is not None and abs(number) < _LARGEST


def _object_in(path: Path) -> dict[str, Any]:
    try:
        return as_object(read_bytes(path)) or {}
    except OSError:
        return {}
