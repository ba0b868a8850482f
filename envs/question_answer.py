"""Questions of any data set, one row per episode, with the answers checked by a verifier."""

import csv
import json
import random
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from math import inf
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeAlias

from gym_trl.envs.arguments import check_integers
from gym_trl.envs.puzzle import Puzzle
from gym_trl.envs.text_env import Outcome
from gym_trl.envs.verifiers import (
    Verifier,
    accepts_the_answer,
    check_row,
    executor_for,
    find_verifier,
    score,
    sentence_of,
)
from gym_trl.errors import ConfigError, RowError, apart_from_the_model, needs
from gym_trl.kinds import load_function
from gym_trl.registration import did_you_mean
from gym_trl.text import counted
from gym_trl.types import Policy

Row: TypeAlias = Mapping[str, Any]
Rows: TypeAlias = Sequence[Row]
Column: TypeAlias = str | Callable[[Row], Any]
"""A column's name, a format string such as ``"Q: {question}"``, a function of the row, or its name
``"package.module:function"``."""

_FILES = (".jsonl", ".json", ".csv", ".parquet")
_MOST_COUNTED = 10_000


class QAEnv(Puzzle):
    """Answer the question in a row of a data set; a verifier decides whether the answer is right.

    >>> rows = [{"question": "What is 6 * 7?", "answer": 42}, {"question": "What is 1 / 4?", "answer": "0.25"}]
    >>> env = QAEnv(rows, prompt="question", answer="answer", verify="numeric")
    >>> env.reset(options={"instance": 0})[0]
    'What is 6 * 7?'
    >>> env.step("42")
    ('Right.', 1.0, True, False, {'action_valid': True, 'success': True})
    >>> env.num_instances, env.reset(options={"instance": 1})[0], env.step("1/4 or 1/2")[:3]
    (2, 'What is 1 / 4?', ('Wrong.', 0.0, True))

    With ``turns`` above 1 a wrong answer may be followed by another try, and ``hints`` are shown one by one before the
    next tries:

    >>> env = QAEnv(rows, prompt="question", answer="answer", verify="numeric", turns=2, hints="It is not {question}")
    >>> _ = env.reset(options={"instance": 0})
    >>> print(env.step("41")[0])
    Wrong. It is not What is 6 * 7?
    1 try left.

    The reward modes are ``"score"``, the score of the last answer, less ``retry_cost`` for each further try that a
    wrong answer leads to; ``"success"``, 1 for a right answer in any try, so that guessing pays where answers can be
    guessed; and ``"efficient"``, 1 divided by the tries that it took. An empty answer, or one that is too long, is
    wrong. An episode that is cut off is paid as if all further answers were wrong.

    The default of ``retry_cost`` is 1, what an answer can be paid. Then trying out all possible answers never
    pays more than giving one: if k answers are equally likely, the further tries pay 0, -1, -2 and so on in place of 1,
    and a question that is never answered costs the tries. With n tries, 2 / (2k - n) suffices.

    An answer cannot be seen by the player. The ``solver`` gives the row's answer, the random policy the answer of
    another row, and the constant action is the most frequent answer among the first 10,000 rows.

    Args:
        dataset: A ``datasets.Dataset``, a list of mappings, the path of a ``.jsonl``, ``.json``, ``.csv`` or
            ``.parquet`` file, or the id of a data set on the hub, which ``datasets.load_dataset`` downloads.
        prompt: Column with the question, or another ``Column``.
        answer: Column with the answer, for the verifier and the solver. Default: none; the verifier reads the row.
        verify: Name of a verifier (``find_verifier``), or a function of the response, the answer and the row.
        turns: Number of tries.
        hints: Column with a text, or a list of texts, that is shown after wrong answers.
        retry_cost: Cost of each try after the first one with ``reward="score"``.
        split: Split of a data set on the hub.
        subset: Its subset (configuration), such as ``"main"``.
        reward: ``"score"``, ``"success"`` or ``"efficient"``.
        render_mode: ``"ansi"`` or ``"human"``.

    Raises:
        ConfigError: The data set cannot be read or is empty, a column does not exist, or the verifier does not; at
            reset, a row has no question or no answer, or the verifier cannot use the answer.
    """

    reward_modes = ("score", "success", "efficient")
    optimum_is_shortest = True
    limit_only_ends = False  # hints depend on it, and the last answer is the one that is paid

    def __init__(
        self,
        dataset: Any,
        *,
        prompt: Column,
        answer: Column | None = None,
        verify: Verifier | str = "exact",
        turns: int = 1,
        hints: Column | None = None,
        retry_cost: float = 1.0,
        split: str = "train",
        subset: str | None = None,
        reward: str | None = None,
        render_mode: str | None = None,
    ) -> None:
        check_integers(turns=turns, at_least=1)
        self.turns = turns
        super().__init__(reward=reward, render_mode=render_mode)
        self.difficulty = None
        self._source: Any = (dataset, split, subset)
        self._rows = _load(*self._source)
        self.dataset, self.verify = dataset, verify
        self._verifier = find_verifier(verify)
        if isinstance(retry_cost, bool) or not isinstance(retry_cost, int | float) or not 0 <= retry_cost < inf:
            raise ConfigError(f"retry_cost must be a number of at least 0, got {retry_cost!r}")
        self.retry_cost = retry_cost
        first = self._rows[0]
        self._prompt = _reader("prompt", prompt, first)
        self._answers = None if answer is None else _reader("answer", answer, first)
        self._hints = None if hints is None else _reader("hints", hints, first)
        if answer is None and isinstance(verify, str) and verify.partition(":")[0] in ("exact", "numeric", "math"):
            raise ConfigError(f"verify={verify!r} compares with an answer: give answer=, a column's name")
        self._row: Row = {}
        self._answer: Any = None
        self._question = ""

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the rows of a file or a data set on the hub, which a copy reads again."""
        named = isinstance(self._source[0], str | PathLike)
        return {name: value for name, value in self.__dict__.items() if not (named and name == "_rows")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the state."""
        self.__dict__.update(state)
        if "_rows" not in state:
            self._rows = _load(*self._source)

    @property
    def instructions(self) -> str:
        """Form of an answer, and the number of tries."""
        tries = f" You have {counted(self.turns, 'try')}." if self.turns > 1 else ""
        if tries and self._cost:
            tries = f"{tries[:-1]}; each after the first costs a reward of {self._cost:g}."
        return f"{sentence_of(self.verify)}{tries}"

    @property
    def _cost(self) -> float:
        """Cost of a further try."""
        return self.retry_cost if self.reward == "score" else 0.0

    @property
    def loss_reward(self) -> float:  # type: ignore[override]  # it depends on the tries that are left
        """Reward of wrong answers in all tries that are left."""
        return -self._cost * max(0, self._turns_left - 1)

    @property
    def owes(self) -> bool:
        """True if ``settlement`` can differ from 0."""
        return self._cost > 0 and self.turns > 1

    @property
    def num_instances(self) -> int:
        """Number of rows."""
        return len(self._rows)

    @property
    def optimal_success(self) -> float | None:
        """1 if the row's answer is right by definition, else unknown."""
        return 1.0 if self._answers is not None and accepts_the_answer(self.verify) else None

    @property
    def optimal_return(self) -> float | None:
        """1 if the row's answer is right by definition, else unknown."""
        return self.optimal_success

    @property
    def preferred_executor(self) -> str:  # type: ignore[override]  # it depends on the verifier
        """Default executor of ``GymSpec``: threads where the verifier waits for something, processes for ``math``."""
        return executor_for(self._verifier)

    @property
    def solver(self) -> Callable[[], Policy]:  # type: ignore[override]  # there is none without answers
        """Make a policy that gives the row's answer.

        Raises:
            AttributeError: The environment has no answers.
        """
        if self._answers is None:
            raise AttributeError(f"{self._name} has no solver: it needs answer=")
        return lambda: lambda observation: _text(self._answer)

    @property
    def random_policy(self) -> Callable[[int], Policy]:
        """Make, from a seed, a policy that gives answers of random rows.

        Raises:
            AttributeError: The environment has no answers.
        """
        if self._answers is None:
            raise AttributeError(f"{self._name} has no random policy: it needs answer=")
        return self._other_answers

    def _other_answers(self, seed: int) -> Policy:
        rng, answers = random.Random(seed), self._answers
        assert answers is not None
        return lambda observation: _text(answers(self._rows[rng.randrange(len(self._rows))]))

    @property
    def constant_action(self) -> str | None:
        """Most frequent answer; ``None`` without answers."""
        if self._answers is None:
            return None
        rows = (self._rows[index] for index in range(min(len(self._rows), _MOST_COUNTED)))
        return Counter(map(_text, map(self._answers, rows))).most_common(1)[0][0]

    def _deal(self, instance: int | None) -> None:
        self._row = self._rows[instance or 0]
        with apart_from_the_model("reading the row"):
            self._question = str(_given("prompt", self._prompt(self._row), instance))
            self._answer = None if self._answers is None else _given("answer", self._answers(self._row), instance)
        try:
            check_row(self._verifier, self._answer, self._row)
        except ConfigError as error:
            raise RowError(str(error)) from error

    def _observe(self) -> str:
        tries = counted(self._turns_left, "try")
        if self._turns_left == self.turns:
            return self._question if self.turns == 1 else f"{self._question}\n{tries} left."
        return f"{tries} left." if self._turns_left else ""

    def _act(self, action: str) -> Outcome:
        if not action.strip():
            return self._reject("Empty answers are wrong.")
        return self._after(score(self._verifier, action, self._answer, self._row), "Wrong.")

    def _reject(self, reason: str) -> Outcome:
        return self._after(0.0, reason, valid=False)

    def _after(self, worth: float, message: str, *, valid: bool = True) -> Outcome:
        success = worth >= 1
        done = success or self._turns_left == 1
        if not done and (hint := self._hint()):
            message = f"{message} {hint}"
        self._turns_left = 0 if success else self._turns_left - 1
        shown = "Right." if success else f"{message}\n{self._observe()}".rstrip()
        return Outcome(shown, worth if done else -self._cost, done, success, valid)

    def _hint(self) -> str:
        if self._hints is None:
            return ""
        with apart_from_the_model("reading the hints"):
            hints = self._hints(self._row)
        listed = [hints] if isinstance(hints, str) else list(hints or ())
        place = self.turns - self._turns_left
        return str(listed[place]) if place < len(listed) else ""

    def _fewest_actions(self) -> float:
        """Return one: the first answer may be right."""
        return 1

    def _snapshot(self) -> Hashable:
        return ()


def _text(answer: Any) -> str:
    """Return the response that gives an answer, or the first of a list of answers."""
    return str(answer[0] if isinstance(answer, list | tuple) and answer else answer)


def _given(name: str, value: Any, instance: int | None) -> Any:
    if value is None or (isinstance(value, str) and not value.strip()):
        raise RowError(f"row {instance} has no {name}: leave it out of the data set, got {value!r}")
    return value


def _reader(name: str, column: Column, first: Row) -> Callable[[Row], Any]:
    """Return a function that reads a column, checked with the first row."""
    if not isinstance(column, str):
        if not callable(column):
            raise ConfigError(f"{name} must be a column's name, a format string or a function, got {column!r}")
        return column
    if column in first:
        return _Value(column)
    if "{" in column:
        try:
            column.format_map(first)
        except (KeyError, IndexError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"{name}={column!r} does not fit the columns {list(first)}: {type(error).__name__}: {error}"
            ) from error
        return column.format_map
    if ":" in column:
        return load_function(column)
    raise ConfigError(
        f"{name} must be a column, a format string such as 'Q: {{question}}', or package.module:function, got "
        f"{column!r}{did_you_mean(column, first)}; the columns are {', '.join(map(str, first))}"
    )


class _Value:
    """Function that returns a row's value in a column."""

    def __init__(self, column: str) -> None:
        self._column = column

    def __call__(self, row: Row) -> Any:
        return row.get(self._column)


def _load(dataset: Any, split: str, subset: str | None) -> Rows:
    """Return the rows of a data set.

    Raises:
        ConfigError: It cannot be read, or has no rows.
    """
    if isinstance(dataset, str | PathLike):
        rows = _named(fspath(dataset), split, subset)
    elif isinstance(dataset, Mapping):
        splits = ", ".join(map(str, dataset))
        raise ConfigError(f"dataset must be one split, such as dataset['train'], got a mapping with {splits}")
    elif not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise ConfigError(
            f"dataset must have a length and rows by number, as a list or a datasets.Dataset, got "
            f"{type(dataset).__name__}"
        )
    else:
        rows = dataset
    if not len(rows):
        raise ConfigError(f"dataset must have at least one row, got none in {dataset!r:.100}")
    if not isinstance(rows[0], Mapping):
        raise ConfigError(f"each row of the dataset must be a mapping by column, got {rows[0]!r:.100}")
    return rows


def _named(name: str, split: str, subset: str | None) -> Rows:
    path = Path(name)
    if path.suffix.lower() in _FILES:
        try:
            changed = path.stat()
        except OSError as error:
            raise ConfigError(f"there is no file {name} to read the dataset from") from error
        return _read(str(path.resolve()), changed.st_mtime_ns, changed.st_size)
    return _download(name, split, subset)


@lru_cache(maxsize=8)
def _read(name: str, changed: int, size: int) -> Rows:
    """Return the rows of a file, which is read again when it has changed."""
    path = Path(name)
    kind = path.suffix.lower()
    try:
        if kind == ".parquet":
            with needs("train", "a Parquet file"):
                table = import_module("pyarrow.parquet").read_table(name)
            return list(table.to_pylist())
        text = path.read_text(encoding="utf-8-sig")
        if kind == ".csv":
            return list(csv.DictReader(text.splitlines(keepends=True)))
        if kind == ".jsonl":
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        rows = json.loads(text)
    except (ValueError, csv.Error) as error:  # UnicodeDecodeError and pyarrow's errors among them
        raise ConfigError(f"{name} cannot be read as {kind[1:]}: {error}") from error
    if not isinstance(rows, list):
        raise ConfigError(f"{name} must hold a JSON list of rows, got {type(rows).__name__}")
    return rows


@lru_cache(maxsize=8)
def _download(name: str, split: str, subset: str | None) -> Rows:
    """Return the rows of a data set on the hub."""
    with needs("train", "a data set on the hub"):
        load_dataset = import_module("datasets").load_dataset
    try:
        rows: Rows = load_dataset(name, subset, split=split)
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"{name!r} is neither a file ({', '.join(_FILES)}) nor a data set that can be loaded: {error}"
        ) from error
    return rows
