"""Scoring of responses: verifiers by name, and the verifier of programs."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from gym_trl.envs.code_agent import grade_calls, unfenced
from gym_trl.errors import ConfigError
from gym_trl.kinds import load_function
from gym_trl.registration import did_you_mean
from gym_trl.text import verifiers

Verifier: TypeAlias = Callable[[str, Any, Mapping[str, Any]], bool | float]
"""Function of the response, the answer and the row: right or wrong, or a score from 0 to 1."""


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
        tests: Column with the tests: a list of pairs of the arguments, which are a list, and the result, or this list
            as a JSON string.
    """

    def __init__(self, function: str = "solve", *, tests: str = "tests") -> None:
        self.function, self.tests = function, tests

    def __call__(self, response: str, answer: Any, row: Mapping[str, Any]) -> bool:
        """Return whether the program passes all tests.

        Raises:
            ConfigError: The row has no tests, or they cannot be read.
        """
        tests = self._read(row.get(self.tests))
        return grade_calls(unfenced(response), self.function, tests)[0] == len(tests)

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
    "regex": _Named(lambda text: partial(verifiers.matches, pattern=text), _ANSWER_ONLY, takes=True),
    "math": _Named(
        lambda _: verifiers.same_value, "Answer with one mathematical expression in LaTeX and nothing else."
    ),
    "code": _Named(
        lambda text: Code(text or "solve"),
        "Answer with Python code that defines the function, and nothing else.",
        takes=True,
    ),
}


_OURS: Sequence[Any] = (verifiers.exact, verifiers.numeric, verifiers.matches, verifiers.same_value)


def find_verifier(verify: Verifier | str) -> Verifier:
    """Return a verifier by name, or a function given directly.

    >>> find_verifier("numeric:0.01")("3.14", 3.1416, {}), find_verifier("regex:[a-d]")("e", "", {})
    (True, False)

    The names are ``exact``, ``numeric``, ``numeric:TOLERANCE`` (relative), ``regex`` (the answer is the
    pattern), ``regex:PATTERN`` (``{answer}`` in it is the answer), ``math``, ``code``, ``code:FUNCTION``
    and ``package.module:function``.

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


def score(verify: Verifier, response: str, answer: Any, row: Mapping[str, Any]) -> float:
    """Return the score that a verifier gives a response; 1 is right.

    >>> score(find_verifier("numeric"), "42", 42, {}), score(lambda response, answer, row: 0.5, "", None, {})
    (1.0, 0.5)

    Raises:
        ConfigError: The score is not true, false or a number from 0 to 1.
    """
    value: Any = verify(response, answer, row)
    try:
        worth = float(value)
    except (TypeError, ValueError):
        worth = math.nan
    if isinstance(value, str) or not 0 <= worth <= 1:
        raise ConfigError(f"verify must return true, false or a number from 0 to 1, got {value!r:.100}")
    return worth


def sentence_of(verify: Verifier | str) -> str:
    """Return the sentence that tells a model how to answer for a verifier.

    >>> sentence_of("numeric:0.01")
    'Answer with one number and nothing else.'
    """
    named = _VERIFIERS["code"] if isinstance(verify, Code) else None
    if isinstance(verify, str):
        named = _VERIFIERS.get(verify.partition(":")[0])
    return _ANSWER_ONLY if named is None else named.sentence


def accepts_the_answer(verify: Verifier | str) -> bool:
    """Return whether the answer itself is a right response: true for a verifier by name that compares with it."""
    name = verify.partition(":")[0] if isinstance(verify, str) else ""
    return name in ("exact", "numeric", "math", "code")


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
    if isinstance(verify, Code):
        verify._read(row.get(verify.tests))
    elif (verify.func if isinstance(verify, partial) else verify) in _OURS:
        verify("", answer, row)


def executor_for(verify: Verifier) -> str:
    """Return the executor that a verifier needs.

    >>> executor_for(find_verifier("exact")), executor_for(find_verifier("code")), executor_for(find_verifier("math"))
    ('inline', 'thread', 'process')
    """
    if verify is verifiers.same_value:
        return "process"
    return "thread" if isinstance(verify, Code) else "inline"
