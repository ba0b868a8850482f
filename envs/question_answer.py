"""Questions of any data set, one row per episode, with the answers checked by a verifier."""

import csv
import json
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from gym_trl.envs.text_game import Step, TextGame
from gym_trl.errors import ConfigError, RowError, apart_from_the_model, refused
from gym_trl.options import load_function
from gym_trl.registration import did_you_mean
from gym_trl.text import counted, verifiers
from gym_trl.types import Policy

Row: TypeAlias = Mapping[str, Any]
Verifier: TypeAlias = Callable[[str, Any, Row], bool | float]
"""Function of the response, the answer and the row: right or wrong, or a score from 0 to 1."""
Column: TypeAlias = str | Callable[[Row], Any]
"""A column's name, a format string such as ``"Q: {question}"``, a function of the row, or its name
``"package.module:function"``."""

_VERIFIERS: Mapping[str, tuple[Verifier, str]] = {
    "exact": (verifiers.exact, "Answer with the final answer and nothing else."),
    "numeric": (verifiers.numeric, "Answer with one number and nothing else."),
    "math": (verifiers.same_value, "Answer with one mathematical expression in LaTeX and nothing else."),
}


class QAEnv(TextGame):
    r"""Answer the question in a row of a data set; a verifier decides whether the answer is right.

    >>> rows = [{"question": "What is 6 * 7?", "answer": 42}, {"question": "What is 1 / 4?", "answer": "0.25"}]
    >>> env = QAEnv(rows, prompt="question", answer="answer", verify="numeric", turns=2)
    >>> print(env.reset(options={"instance": 0})[0])
    What is 6 * 7?
    2 tries left.
    >>> env.step("41")[:3], env.step("42")[:3]
    (('Wrong.\n1 try left.', -1.0, False), ('Right.', 1.0, True))

    The last answer is paid its score, and each further try costs 1, what an answer can be paid: so trying out all
    possible answers never pays more than giving one. An empty answer, or one that is too long, is wrong.

    The solver gives the row's answer, which the player cannot see, and random play the answer of another row.

    Args:
        dataset: Rows: a ``datasets.Dataset``, a list of mappings, or the path of a ``.jsonl``, ``.json`` or ``.csv``
            file.
        prompt: Column with the question, or another ``Column``.
        answer: Column with the answer, for the verifier and the solver. Default: none; the verifier reads the row.
        verify: Name of a verifier (``find_verifier``), or a function of the response, the answer and the row.
        turns: Number of tries.

    Raises:
        ConfigError: The data set cannot be read or is empty, a column does not exist, or the verifier does not; at
            reset, a row has no question or no answer, or the verifier cannot use the answer.
    """

    presets: ClassVar = {"medium": {"turns": 1}}
    loss_return: float

    def __init__(
        self,
        dataset: Any,
        *,
        prompt: Column,
        answer: Column | None = None,
        verify: Verifier | str = "exact",
        turns: int = 1,
    ) -> None:
        super().__init__(turns=turns)
        self.loss_return = 1.0 - turns  # of wrong answers in all tries
        self.rows: Sequence[Row] = _rows_of(dataset)
        self.num_instances = len(self.rows)
        self._verifier = find_verifier(verify)
        if self._verifier is verifiers.same_value:
            self.preferred_executor = "process"  # it needs a main thread
        name = verify.partition(":")[0] if isinstance(verify, str) else ""
        self._compares = name in _VERIFIERS  # with the row's answer, which is right by definition
        self.optimal_success = 1.0 if self._compares else None
        _, self.instructions = _VERIFIERS.get(name, _VERIFIERS["exact"])
        if turns > 1:
            self.instructions += f" You have {turns} tries; each after the first costs a reward of 1."
        self._prompt = _reader("prompt", prompt, self.rows[0])
        self._answers = None if answer is None else _reader("answer", answer, self.rows[0])
        if self._answers is not None:
            self.solve = lambda: _text(self._answer)
        elif self._compares:
            raise ConfigError(f"verify={verify!r} compares with an answer: give answer=, a column's name")

    def deal(self) -> None:
        """Read the question and the answer, and check that a verifier by name can use it."""
        self._row = self.rows[self.instance or 0]
        with apart_from_the_model("reading the row"):
            self._question = self._read("prompt", self._prompt)
            self._answer = None if self._answers is None else self._read("answer", self._answers)
        if self._compares:  # otherwise only some members of a group would be scored
            try:
                self._verifier("", self._answer, self._row)
            except ConfigError as error:
                raise RowError(str(error)) from error

    def _read(self, name: str, column: Callable[[Row], Any]) -> Any:
        value = column(self._row)
        if value is None or (isinstance(value, str) and not value.strip()):
            raise RowError(f"row {self.instance} has no {name}: leave it out of the data set, got {value!r}")
        return value

    def show(self) -> str:
        """Return the question, and the tries if there are several."""
        return f"{self._question}\n{counted(self.turns, 'try')} left." if self.turns > 1 else str(self._question)

    def play(self, action: str) -> Step:
        """Judge an answer."""
        if not action.strip():
            return self.reject("Empty answers are wrong.")
        worth: Any = self._verifier(action, self._answer, self._row)
        if not isinstance(worth, bool | int | float) or not 0 <= worth <= 1:
            raise ConfigError(f"verify must return true, false or a number from 0 to 1, got {worth!r:.100}")
        if worth == 1:
            return Step("Right.", done=True, success=True)
        return self.turn("Wrong.", reward=float(worth) if self.turns_left == 1 else -1.0)

    def reject(self, reason: str) -> Step:
        """Return the step of a wrong answer."""
        return self.turn(reason, valid=False, reward=0.0 if self.turns_left == 1 else -1.0)

    def tell(self, message: str) -> str:
        """Return the message and the tries that are left."""
        return f"{message}\n{counted(self.turns_left, 'try')} left." if self.turns_left else message

    @property
    def random_policy(self) -> Callable[[int], Policy]:
        """Make, from a seed, a policy that gives answers of random rows; there is none without ``answer``."""
        if self._answers is None:
            raise AttributeError("there is no random policy without answer=")
        return super().random_policy

    def guess(self, rng: random.Random) -> str:
        """Return the answer of a random row."""
        assert self._answers is not None
        return _text(self._answers(rng.choice(self.rows)))

    def state(self) -> tuple[()]:
        """Return nothing: only the tries change."""
        return ()


def find_verifier(verify: Verifier | str) -> Verifier:
    """Return a verifier by name, or a function given directly.

    >>> find_verifier("numeric:0.01")("3.14", 3.1416, {}), find_verifier("exact")("e", "a", {})
    (True, False)

    The names are ``exact``, ``numeric``, ``numeric:TOLERANCE`` (relative), ``math`` and ``package.module:function``.

    Raises:
        ConfigError: There is none of this name.
    """
    if callable(verify):
        return verify
    name, colon, rest = str(verify).partition(":")
    if name in _VERIFIERS and not colon:
        return _VERIFIERS[name][0]
    if name == "numeric":
        with suppress(ValueError):
            if 0 <= (tolerance := float(rest)) < 1:
                return partial(verifiers.numeric, tolerance=tolerance)
        raise ConfigError(f"numeric:TOLERANCE needs a relative error from 0 to 1, got {rest!r}")
    if not colon:
        raise ConfigError(
            f"verify must be one of {', '.join(_VERIFIERS)} or package.module:function, got {verify!r}"
            f"{did_you_mean(name, _VERIFIERS)}"
        )
    return load_function(verify)


def _text(answer: Any) -> str:
    """Return the response that gives an answer, or the first of a list of answers."""
    return str(answer[0] if isinstance(answer, list | tuple) and answer else answer)


def _reader(name: str, column: Column, first: Row) -> Callable[[Row], Any]:
    """Return a function that reads a column, checked with the first row."""
    if callable(column):
        return column
    if isinstance(column, str) and column in first:
        return lambda row: row.get(column)
    if "{" in str(column):
        with refused(f"{name}={column!r}"):
            column.format_map(first)
        return column.format_map
    if ":" in str(column):
        return load_function(column)
    raise ConfigError(
        f"{name} must be a column, a format string such as 'Q: {{question}}', or package.module:function, got "
        f"{column!r}{did_you_mean(str(column), first)}; the columns are {', '.join(map(str, first))}"
    )


def _rows_of(dataset: Any) -> Sequence[Row]:
    if isinstance(dataset, str | Path):
        with refused(f"the dataset {dataset}"):
            dataset = _read_file(Path(dataset), Path(dataset).stat().st_mtime_ns)
    is_list = not isinstance(dataset, Mapping) and hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if not is_list or not len(dataset) or not isinstance(dataset[0], Mapping):
        raise ConfigError(
            "dataset must be a file, or a sequence of rows that are mappings, such as a list, a datasets.Dataset or "
            f"one split of a datasets.DatasetDict, and not be empty; got {dataset!r:.100}"
        )
    rows: Sequence[Row] = dataset
    return rows


@lru_cache(maxsize=8)
def _read_file(path: Path, changed: int) -> Any:
    """Return the rows of a file, which is read again when it has changed."""
    text = path.read_text(encoding="utf-8-sig")
    match path.suffix.lower():
        case ".csv":
            return list(csv.DictReader(text.splitlines(keepends=True)))
        case ".jsonl":
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        case ".json":
            return json.loads(text)
    raise ConfigError(f"a dataset's name must end with .jsonl, .json or .csv, got {str(path)!r}")
