r"""Verifiers: pure functions that compare a response with the answer of a question.

>>> exact("  Paris ", "paris"), numeric("1,200.0", 1200)
(True, True)

Each is called with the whole response, the row's answer and the row, which none of these uses. The whole response must
be the answer: one that also contains other text or further numbers is wrong, so that listing candidates never pays. An
empty response is always wrong. An answer that cannot be right for any response is a ``ConfigError``: it is a fault of
the data set, not of the model.
"""

import re
from fractions import Fraction
from importlib import import_module
from threading import current_thread, main_thread
from typing import Any

from gym_trl.errors import ConfigError, needs

_NUMBER = re.compile(
    r"(?P<number>[+-]?(?=\.?[0-9])(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]*)(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,3})?)"
    r"(?P<percent> ?%)?|(?P<over>[+-]?[0-9]+) ?/ ?(?P<under>[0-9]+)"
)
_MARKED = re.compile(r"\$\$?([^$]*)\$\$?|\\\((.*)\\\)|\\\[(.*)\\\]|\\boxed\{(.*)\}", re.DOTALL)
_NOT_ONE = re.compile(
    r"\$|\\[()\[\]]|\\boxed|\\text|\\mathrm|[\n;]|\b(?:or|and)\b|\\(?:lor|land|vee|wedge|quad|qquad)\b"
)


def exact(response: str, answer: Any, row: Any = None) -> bool:
    """Return whether the response is the answer, or one of a list of answers, apart from case and white space.

    >>> exact("New  York", "new york"), exact("New York or Rome", "New York"), exact("NYC", ["New York", "NYC"])
    (True, False, True)
    """
    answers = answer if isinstance(answer, list | tuple) else [answer]
    accepted = [" ".join(str(one).casefold().split()) for one in answers]
    if not accepted or not all(accepted):
        raise ConfigError(f"exact needs an answer that is not empty, got {answer!r:.100}")
    return " ".join(response.casefold().split()) in accepted


def numeric(response: str, answer: Any, row: Any = None, *, tolerance: float | None = None) -> bool:
    """Return whether the response is a number equal to the answer, with at most this relative error.

    >>> numeric("1,234.50", 1234.5), numeric("50%", "1/2"), numeric("-2e3", -2000), numeric("4.21", 4.2, tolerance=0.01)
    (True, True, True, True)
    >>> numeric("41 or 42", 42), numeric("0x2A", 42), numeric("12,34", 1234), numeric("4.20001", 4.2)
    (False, False, False, False)

    The whole response is one number: digits 0 to 9, with correct thousands separators or none, a decimal point, an
    exponent of at most three digits, a percent sign or a fraction bar. Numbers are compared as exact fractions. By
    default the error is 0 for a whole number as the answer, otherwise 1e-9, for rounding.
    """
    wanted, number = as_number(str(answer)), as_number(response)
    if wanted is None:
        raise ConfigError(f"numeric needs a number as the answer, got {answer!r:.100}")
    if tolerance is None:
        tolerance = 0.0 if wanted.denominator == 1 else 1e-9
    return number is not None and abs(number - wanted) <= Fraction(tolerance) * abs(wanted)


def as_number(text: str) -> Fraction | None:
    """Return the number that a text of at most 100 characters is, or ``None`` if it is anything else.

    >>> as_number(" 12.5% "), as_number("1/3"), as_number("nan"), as_number("1 2"), as_number("1/0")
    (Fraction(1, 8), Fraction(1, 3), None, None, None)
    """
    found = _NUMBER.fullmatch(text.strip()) if len(text.strip()) <= 100 else None
    if found is None:
        return None
    if found["over"]:
        return Fraction(int(found["over"]), int(found["under"])) if int(found["under"]) else None
    return Fraction(found["number"].replace(",", "")) / (100 if found["percent"] else 1)


def same_value(response: str, answer: Any, row: Any = None) -> bool:
    r"""Return whether the response is a mathematical expression equal to the answer, as math-verify compares them.

    ::

        same_value(r"\\frac{1}{2}", "0.5")                # True
        same_value(r"\\frac{1}{2} or 2", "0.5")           # False: the whole response is one expression

    Both are LaTeX, alone or within ``$...$``, ``\\(...\\)``, ``\\[...\\]`` or ``\\boxed{...}``. A response of more than
    500 characters, with words, several marked expressions, or an equation where the answer is none is wrong. Comparing
    is given up as wrong after 5 seconds. This needs the main thread, as the executors ``"inline"`` and ``"process"``
    have it.
    """
    with needs("math", "the verifier 'math'"):
        math_verify = import_module("math_verify")
    if current_thread() is not main_thread():
        raise ConfigError("the verifier 'math' needs the main thread: choose the executor 'process' or 'inline'")

    def read(text: str) -> list[Any]:
        if marked := _MARKED.fullmatch(text.strip()):
            text = next(group for group in marked.groups() if group is not None)
        if not text.strip() or _NOT_ONE.search(text.strip()):
            return []
        latex = [math_verify.LatexExtractionConfig()]
        return list(
            math_verify.parse(
                f"${text.strip()}$", extraction_config=latex, fallback_mode="no_fallback", parsing_timeout=5
            )
        )

    wanted = read(str(answer))
    if not wanted:
        raise ConfigError(f"math needs a LaTeX expression as the answer, got {answer!r:.100}")
    if len(response) > 500 or ("=" in response and "=" not in str(answer)):
        return False
    found = read(response)
    return bool(found) and bool(math_verify.verify(wanted, found, timeout_seconds=5))
