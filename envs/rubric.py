"""Scoring of responses: verifiers by name, the verifier of programs, and rubrics of several weighted criteria."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from gym_trl.envs.code_agent import grade_calls, unfenced
from gym_trl.envs.judge import Judge, judge_at
from gym_trl.errors import ConfigError
from gym_trl.kinds import load_function
from gym_trl.registration import did_you_mean
from gym_trl.sandbox import Isolation
from gym_trl.text import verifiers

Verifier: TypeAlias = Callable[[str, Any, Mapping[str, Any]], bool | float | Mapping[str, float]]
"""Function of the response, the answer and the row: right or wrong, a score from 0 to 1, or such scores by name."""


class Scores(NamedTuple):
    """Scores of a response."""

    reward: float
    success: bool
    criteria: Mapping[str, float]
    """Score of each criterion from 0 to 1, before its weight; empty where there is one criterion without a name."""


class Code:
    r"""Verifier of programs: a function in the response must be right for all tests of the row.

    >>> row = {"tests": [[[2, 3], 5], [[1, 1], 2]]}
    >>> right = Code("add")("def add(a, b):\n    return a + b", None, row)
    >>> wrong = Code("add")("def add(a, b):\n    return 5", None, row)
    >>> right, wrong
    (True, False)

    The response is Python code, which may stand between code fences. It runs in a ``Sandbox`` of its own; the expected
    results never enter it, and values are compared in this process, with their types, as JSON has them.

    Args:
        function: Name of the function that the response must define.
        isolation: See ``Sandbox``.
        tests: Column with the tests: a list of pairs of the arguments, which are a list, and the result, or this list
            as a JSON string.
    """

    def __init__(self, function: str = "solve", *, isolation: Isolation = "bubblewrap", tests: str = "tests") -> None:
        self.function, self.isolation, self.tests = function, isolation, tests

    def __call__(self, response: str, answer: Any, row: Mapping[str, Any]) -> bool:
        """Return whether the program passes all tests.

        Raises:
            ConfigError: The row has no tests, or they cannot be read.
        """
        tests = self._read(row.get(self.tests))
        return grade_calls(unfenced(response), self.function, tests, isolation=self.isolation)[0] == len(tests)

    def _read(self, tests: Any) -> list[tuple[Sequence[Any], Any]]:
        try:
            pairs = json.loads(tests) if isinstance(tests, str) else tests
            read: list[tuple[Sequence[Any], Any]] = [(list(arguments), result) for arguments, result in pairs]
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"code needs the column {self.tests!r} with a list of [[ARGUMENT, ...], RESULT], got {tests!r:.100}"
            ) from error
        if not read:
            raise ConfigError(f"code needs at least one test in the column {self.tests!r}, got none")
        return read


class _Named(NamedTuple):
    verifier: Callable[[str], Verifier]
    """Makes the verifier from what follows the name and a colon, or from nothing."""
    sentence: str
    takes: bool = False
    """True if something may follow the name."""


def _tolerant(text: str) -> Verifier:
    if not text:
        return verifiers.numeric
    try:
        tolerance = float(text)
    except ValueError:
        tolerance = -1.0
    if not 0 <= tolerance < 1:
        raise ConfigError(f"numeric:TOLERANCE needs a relative error from 0 to 1, got {text!r}")
    return partial(verifiers.numeric, tolerance=tolerance)


_ANSWER_ONLY = "Answer with the final answer and nothing else."
_VERIFIERS: Mapping[str, _Named] = {
    "exact": _Named(lambda _: verifiers.exact, _ANSWER_ONLY),
    "numeric": _Named(_tolerant, "Answer with one number and nothing else.", takes=True),
    "set": _Named(lambda _: verifiers.same_items, "Answer with all items, separated by commas, and nothing else."),
    "regex": _Named(lambda text: partial(verifiers.matches, pattern=text), _ANSWER_ONLY, takes=True),
    "math": _Named(
        lambda _: verifiers.same_value, "Answer with one mathematical expression in LaTeX and nothing else."
    ),
    "code": _Named(
        lambda text: Code(text or "solve"),
        "Answer with Python code that defines the function, and nothing else.",
        takes=True,
    ),
    "judge": _Named(judge_at, "Answer the question.", takes=True),
}


_OURS: Sequence[Any] = (
    verifiers.exact,
    verifiers.numeric,
    verifiers.same_items,
    verifiers.matches,
    verifiers.same_value,
)


def find_verifier(verify: Verifier | str) -> Verifier:
    """Return a verifier by name, or a function given directly.

    >>> find_verifier("numeric:0.01")("3.14", 3.1416, {}), find_verifier("regex:[a-d]")("e", "", {})
    (True, False)

    The names are ``exact``, ``numeric``, ``numeric:TOLERANCE`` (relative), ``set``, ``regex`` (the answer is the
    pattern), ``regex:PATTERN`` (``{answer}`` in it is the answer), ``math``, ``code``, ``code:FUNCTION``,
    ``judge:URL``, ``judge:URL#MODEL`` (``Judge``), and ``package.module:function``.

    Raises:
        ConfigError: There is none of this name.
    """
    if not isinstance(verify, str):
        if not callable(verify):
            raise ConfigError(f"verify must be a verifier's name or a function, got {verify!r}")
        return verify
    name, colon, rest = verify.partition(":")
    if (named := _VERIFIERS.get(name)) is not None and (not colon or (named.takes and rest)):
        return named.verifier(rest)
    if not colon or named is not None:
        raise ConfigError(
            f"verify must be one of {', '.join(_VERIFIERS)} or package.module:function, got {verify!r}"
            f"{did_you_mean(name, _VERIFIERS) if named is None else ''}"
        )
    return load_function(verify)


class Rubric:
    """Verifier with several criteria, each a verifier and its weight; the reward is the weighted sum.

    >>> def short(response, answer, row):
    ...     return len(response) <= 5
    >>> rubric = Rubric({"correct": ("numeric", 1.0), "short": (short, 0.2)})
    >>> rubric.score("42", 42, {})
    Scores(reward=1.2, success=True, criteria={'correct': 1.0, 'short': 1.0})
    >>> rubric.score("42.0000", 42, {}).reward
    1.0

    The first criterion decides success, which it declares with a score of 1. A negative weight is a cost.

    Args:
        criteria: Verifier (or its name) and weight of each criterion, by name.

    Raises:
        ConfigError: There is no criterion, a name is not an identifier, or a weight is not a finite number.
    """

    def __init__(self, criteria: Mapping[str, tuple[Verifier | str, float]]) -> None:
        if not criteria:
            raise ConfigError("a Rubric needs at least one criterion, got none")
        self.weights: dict[str, float] = {}
        """Weight of each criterion, by name."""
        self._verifiers: dict[str, Verifier] = {}
        for name, criterion in criteria.items():
            if not isinstance(criterion, tuple | list) or len(criterion) != 2:
                raise ConfigError(f"criterion {name!r} must be a pair of a verifier and a weight, got {criterion!r}")
            verify, weight = criterion
            if not str(name).isidentifier():
                raise ConfigError(f"a criterion's name must be letters, digits and underscores, got {name!r}")
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
                raise ConfigError(f"the weight of {name!r} must be a finite number, got {weight!r}")
            self._verifiers[name], self.weights[name] = find_verifier(verify), float(weight)
        self.first: Verifier | str = next(iter(criteria.values()))[0]
        """The criterion that decides success, as it was given."""

    def __call__(self, response: str, answer: Any, row: Mapping[str, Any]) -> dict[str, float]:
        """Return the score of each criterion, from 0 to 1."""
        return {name: _score(verify(response, answer, row), name) for name, verify in self._verifiers.items()}

    def score(self, response: str, answer: Any, row: Mapping[str, Any]) -> Scores:
        """Return the scores of a response, with the weighted sum as the reward."""
        scores = self(response, answer, row)
        reward = math.fsum(self.weights[name] * score for name, score in scores.items())
        return Scores(reward, next(iter(scores.values())) >= 1, scores)


def score(verify: Verifier, response: str, answer: Any, row: Mapping[str, Any]) -> Scores:
    """Return the scores that a verifier gives a response.

    >>> score(lambda response, answer, row: {"right": response == answer, "polite": 0.5}, "42", "42", {})
    Scores(reward=1.5, success=True, criteria={'right': 1.0, 'polite': 0.5})

    Raises:
        ConfigError: A score is not true, false or a number from 0 to 1.
    """
    if isinstance(verify, Rubric):
        return verify.score(response, answer, row)
    scores = verify(response, answer, row)
    if not isinstance(scores, Mapping):
        worth = _score(scores, "verify")
        return Scores(worth, worth >= 1, {})
    if not scores:
        raise ConfigError("verify returned no scores: return true, false, a number, or at least one score by name")
    named = {str(name): _score(one, str(name)) for name, one in scores.items()}
    return Scores(math.fsum(named.values()), next(iter(named.values())) >= 1, named)


def sentence_of(verify: Verifier | str) -> str:
    """Return the sentence that tells a model how to answer for a verifier.

    >>> sentence_of("numeric:0.01")
    'Answer with one number and nothing else.'
    """
    if isinstance(verify, Rubric):
        return sentence_of(verify.first)
    named = _VERIFIERS.get(verify.partition(":")[0]) if isinstance(verify, str) else None
    if named is not None:
        return named.sentence
    kinds = {Code: "code", Judge: "judge"}
    return next((_VERIFIERS[name].sentence for kind, name in kinds.items() if isinstance(verify, kind)), _ANSWER_ONLY)


def accepts_the_answer(verify: Verifier | str) -> bool:
    """Return whether the answer itself is a right response: true for a verifier by name that compares with it."""
    name = verify.partition(":")[0] if isinstance(verify, str) else ""
    return name in ("exact", "numeric", "set", "math", "code")


def check_row(verify: Verifier, answer: Any, row: Mapping[str, Any]) -> None:
    """Check that a verifier by name can use the answer of a row, before there is a response.

    >>> check_row(find_verifier("numeric"), "n/a", {})
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: numeric needs a number as the answer, got 'n/a'

    A fault of the row must not depend on the response: otherwise only some members of a group would be scored.

    Raises:
        ConfigError: It cannot.
    """
    if isinstance(verify, Rubric):
        for one in verify._verifiers.values():
            check_row(one, answer, row)
    elif isinstance(verify, Code):
        verify._read(row.get(verify.tests))
    elif (verify.func if isinstance(verify, partial) else verify) in _OURS:
        verify("", answer, row)


def executor_for(verify: Verifier) -> str:
    """Return the executor that a verifier needs.

    >>> executor_for(find_verifier("exact")), executor_for(find_verifier("code")), executor_for(find_verifier("math"))
    ('inline', 'thread', 'process')
    """
    if isinstance(verify, Rubric):
        needed = {executor_for(one) for one in verify._verifiers.values()}
        return next((one for one in ("process", "thread") if one in needed), "inline")
    if verify is verifiers.same_value:
        return "process"
    return "thread" if isinstance(verify, Code | Judge) else "inline"


def longest_wait_s(verify: Verifier) -> float:
    """Return the seconds that a verifier may wait for its judges, which a time limit of steps must exceed.

    >>> longest_wait_s(Rubric({"right": ("numeric", 1), "polite": (Judge(str, timeout_s=90), 0.2)}))
    90
    """
    if isinstance(verify, Rubric):
        return sum(map(longest_wait_s, verify._verifiers.values()))
    return verify.timeout_s if isinstance(verify, Judge) else 0


def _score(value: Any, name: str) -> float:
    try:
        worth = float(value)
    except (TypeError, ValueError):
        worth = math.nan
    if isinstance(value, str) or not 0 <= worth <= 1:
        raise ConfigError(f"{name} must return true, false or a number from 0 to 1, got {value!r:.100}")
    return worth
