r"""Verifiers: pure functions that compare a response with the answer of a question.

>>> exact("  Paris ", "paris"), numeric("1,200.0", 1200), same_items("b, a", ["a", "b"]), matches("4 2", "4 ?2")
(True, True, True, True)

Each is called with the whole response and the row's answer. The whole response must be the answer: a response that
also contains other text, further numbers or further items is wrong, so that listing candidates never pays. An empty
response is always wrong. An answer that cannot be right for any response is a ``ConfigError``: it is a fault of the
data set, not of the model.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from fractions import Fraction
from importlib import import_module
from threading import current_thread, main_thread
from typing import Any

from gym_trl.errors import ConfigError, needs

_LONGEST_NUMBER = 100
_NUMBER = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]{1,3}(?:,[0-9]{3})+|[0-9]*)(?:\.(?P<part>[0-9]*))?"
    r"(?:[eE](?P<power>[+-]?[0-9]{1,3}))?(?P<percent> ?%)?"
)
_FRACTION = re.compile(r"([+-]?[0-9]+) ?/ ?([0-9]+)")
_ROUNDING = 1e-9
_MARKED = re.compile(r"\$\$?([^$]*)\$\$?|\\\((.*)\\\)|\\\[(.*)\\\]|\\boxed\{(.*)\}", re.DOTALL)
_NOT_ONE = re.compile(
    r"\$|\\[()\[\]]|\\boxed|\\text|\\mathrm|[\n;]|\b(?:or|and)\b|\\(?:lor|land|vee|wedge|quad|qquad)\b"
)
_LONGEST_EXPRESSION = 500
_SECONDS = 5
_MATCH_SECONDS = 1


def exact(response: str, answer: Any, row: Mapping[str, Any] | None = None) -> bool:
    """Return whether the response is the answer, apart from case and white space.

    >>> exact("New  York", "new york"), exact("New York or Rome", "New York")
    (True, False)
    >>> exact("NYC", ["New York", "NYC"])
    True

    Args:
        response: The whole response.
        answer: A value that is compared as text, or a list of values, one of which must be given.
        row: Not used.

    Raises:
        ConfigError: The answer, or one of those in the list, is empty.
    """
    accepted = [_plain(one) for one in (answer if isinstance(answer, list | tuple) else [answer])]
    if not accepted or not all(accepted):
        raise ConfigError(f"exact needs an answer that is not empty, got {answer!r:.100}")
    return _plain(response) in accepted


def numeric(
    response: str, answer: Any, row: Mapping[str, Any] | None = None, *, tolerance: float | None = None
) -> bool:
    """Return whether the response is a number equal to the answer.

    >>> numeric("1,234.50", 1234.5), numeric("50%", "1/2"), numeric("-2e3", -2000), numeric("42.", "42")
    (True, True, True, True)
    >>> numeric("41 or 42", 42), numeric("0x2A", 42), numeric("12,34", 1234), numeric("4.20001", 4.2)
    (False, False, False, False)
    >>> numeric("4.21", 4.2, tolerance=0.01)
    True

    The whole response is one number: digits 0 to 9, with correct thousands separators or none, a decimal point, an
    exponent of at most three digits, a percent sign or a fraction bar. Numbers are compared as exact fractions.

    Args:
        response: The whole response.
        answer: A number, or its text.
        row: Not used.
        tolerance: Largest relative error. Default: 0 for a whole number as the answer, otherwise 1e-9, for rounding.

    Raises:
        ConfigError: The answer is not a number.
    """
    wanted, number = as_number(str(answer)), as_number(response)
    if wanted is None:
        raise ConfigError(f"numeric needs a number as the answer, got {answer!r:.100}")
    if number is None:
        return False
    if tolerance is None:
        tolerance = 0.0 if wanted.denominator == 1 else _ROUNDING
    return abs(number - wanted) <= Fraction(tolerance) * abs(wanted)


def as_number(text: str) -> Fraction | None:
    """Return the number that a text is, or ``None`` if it is anything else.

    >>> as_number(" 12.5% "), as_number("1/3"), as_number("nan"), as_number("1 2"), as_number("1/0")
    (Fraction(1, 8), Fraction(1, 3), None, None, None)
    """
    text = text.strip()
    if len(text) > _LONGEST_NUMBER:
        return None
    if fraction := _FRACTION.fullmatch(text):
        return Fraction(int(fraction[1]), int(fraction[2])) if int(fraction[2]) else None
    number = _NUMBER.fullmatch(text)
    if number is None or not (number["whole"] or number["part"]):
        return None
    value = Fraction(f"{number['whole'].replace(',', '') or 0}.{number['part'] or 0}")
    value *= Fraction(10) ** int(number["power"] or 0) / (100 if number["percent"] else 1)
    return -value if number["sign"] == "-" else value


def same_items(response: str, answer: Any, row: Mapping[str, Any] | None = None) -> bool:
    """Return whether the response lists exactly the items of the answer, separated by commas, in any order.

    >>> same_items("Mars,  earth", "Earth, Mars"), same_items("Earth, Mars, Venus", "Earth, Mars")
    (True, False)
    >>> same_items("Earth, Earth, Mars", "Earth, Mars")  # each as often as in the answer
    False

    Args:
        response: The whole response.
        answer: A list, or a text with commas; case and white space do not count.
        row: Not used.

    Raises:
        ConfigError: The answer has no items, an empty one, or one with a comma in it.
    """
    wanted = [_plain(item) for item in (answer.split(",") if isinstance(answer, str) else _list(answer))]
    if not wanted or not all(wanted) or any("," in item for item in wanted):
        raise ConfigError(f"set needs an answer of items without commas, none of them empty, got {answer!r:.100}")
    return Counter(map(_plain, response.split(","))) == Counter(wanted)


def matches(response: str, answer: Any, row: Mapping[str, Any] | None = None, *, pattern: str = "") -> bool:
    """Return whether a regular expression matches the whole response, without the white space around it.

    >>> matches("It is 42.", 42, pattern="(It is )?{answer}[.]?"), matches("It is 42.", 42, pattern="{answer}[.]?")
    (True, False)
    >>> matches("41 42", 42, pattern="{answer}"), matches("", "", pattern=".*")
    (False, False)

    Patterns are those of the package regex, which has the syntax of ``re`` and more. Some take time that doubles with
    each character of a response: after a second of computing, it does not match.

    Args:
        response: The whole response.
        answer: Text that is meant by ``{answer}`` in the pattern, or, without a pattern, the pattern.
        row: Not used.
        pattern: Pattern for all rows.

    Raises:
        ConfigError: There is no pattern, or it does not compile.
        MissingDependencyError: regex is not installed (extra ``regex``).
    """
    with needs("regex", "the verifier 'regex'"):
        regex = import_module("regex")
    text = pattern.replace("{answer}", re.escape(str(answer))) if pattern else str(answer)
    try:
        compiled = regex.compile(text)
    except regex.error as error:
        raise ConfigError(f"regex needs a regular expression, got {text!r:.100}: {error}") from error
    if not text:
        raise ConfigError("regex needs a pattern that is not empty: regex:PATTERN, or the pattern as the answer")
    try:
        return bool(response.strip()) and compiled.fullmatch(response.strip(), timeout=_MATCH_SECONDS) is not None
    except TimeoutError:
        return False


def same_value(response: str, answer: Any, row: Mapping[str, Any] | None = None) -> bool:
    r"""Return whether the response is a mathematical expression equal to the answer, as math-verify compares them.

    ::

        same_value(r"\\frac{1}{2}", "0.5")                # True
        same_value(r"\\frac{1}{2} or 2", "0.5")           # False: the whole response is one expression

    Both are LaTeX, alone or within ``$...$``, ``\\(...\\)``, ``\\[...\\]`` or ``\\boxed{...}``. A response with words,
    several marked expressions, or an equation where the answer is none is wrong. Neither is evaluated as Python.
    Comparing may take long, so it is given up as wrong after 5 seconds. This needs the main thread, as the executors
    ``"inline"`` and ``"process"`` have it.

    Args:
        response: The whole response, of at most 500 characters.
        answer: An expression, or a number.
        row: Not used.

    Raises:
        MissingDependencyError: math-verify is not installed (extra ``math``).
        ConfigError: The answer is not an expression, or this is not the main thread.
    """
    with needs("math", "the verifier 'math'"):
        math_verify = import_module("math_verify")
    if current_thread() is not main_thread():
        raise ConfigError("the verifier 'math' needs the main thread: choose the executor 'process' or 'inline'")
    wanted = _expression(math_verify, str(answer))
    if not wanted:
        raise ConfigError(f"math needs a LaTeX expression as the answer, got {answer!r:.100}")
    if len(response) > _LONGEST_EXPRESSION or ("=" in response and "=" not in str(answer)):
        return False
    expressions = _expression(math_verify, response)
    return bool(expressions) and bool(math_verify.verify(wanted, expressions, timeout_seconds=_SECONDS))


def _expression(math_verify: Any, text: str) -> list[Any]:
    """Return the expression that a text is, as math-verify reads it; nothing if it is anything else."""
    text = text.strip()
    if marked := _MARKED.fullmatch(text):
        text = next(group for group in marked.groups() if group is not None).strip()
    if not text or _NOT_ONE.search(text):
        return []
    expressions = math_verify.parse(
        f"${text}$",
        extraction_config=[math_verify.LatexExtractionConfig()],
        fallback_mode="no_fallback",
        parsing_timeout=_SECONDS,
    )
    return list(expressions)


def _plain(value: Any) -> str:
    return " ".join(str(value).casefold().split())


def _list(value: Any) -> list[Any]:
    if isinstance(value, Iterable) and not isinstance(value, Mapping):
        return list(value)
    return [value]
