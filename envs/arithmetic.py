"""Exact arithmetic on texts, for environments whose actions are calculations."""

import re
from fractions import Fraction

_TOKEN = re.compile(r" ?([0-9]+(?:\.[0-9]+)?|[-+*/()])")


def calculate(text: str, *, signs: bool = True) -> Fraction:
    """Return the value of an expression of numbers, + - * / and parentheses.

    >>> calculate("-(1 + 2) * 3 / 4"), calculate("1 / 3 + 1")
    (Fraction(-9, 4), Fraction(4, 3))

    Args:
        text: Expression, with at most one blank between its parts.
        signs: Allow signs before numbers and parentheses.

    Raises:
        ValueError: It is not an expression; the message is the reason.
        ZeroDivisionError: It divides by zero.
    """
    if _TOKEN.sub("", text).strip():
        raise ValueError("write numbers, + - * / and parentheses")
    calculation = _Calculation(_TOKEN.findall(text)[::-1], signs)
    value = calculation.sum()
    if calculation.tokens:
        raise ValueError(f"{calculation.tokens[-1]} is out of place")
    return value


class _Calculation:
    """Sums of products of factors; the tokens are in reverse order."""

    def __init__(self, tokens: list[str], signs: bool) -> None:
        self.tokens, self._signs = tokens, ("+", "-") if signs else ()

    def _take(self, *wanted: str) -> str | None:
        return self.tokens.pop() if self.tokens and self.tokens[-1] in wanted else None

    def sum(self) -> Fraction:
        value = self._product()
        while sign := self._take("+", "-"):
            value = value + self._product() if sign == "+" else value - self._product()
        return value

    def _product(self) -> Fraction:
        value = self._factor()
        while sign := self._take("*", "/"):
            factor = self._factor()
            if sign == "/" and not factor:
                raise ZeroDivisionError("it divides by zero")
            value = value * factor if sign == "*" else value / factor
        return value

    def _factor(self) -> Fraction:
        sign = 1
        while taken := self._take(*self._signs):
            sign = -sign if taken == "-" else sign
        if self._take("("):
            value = self.sum()
            if not self._take(")"):
                raise ValueError("a parenthesis is not closed")
            return sign * value
        if not self.tokens or not self.tokens[-1][0].isdigit():
            raise ValueError("a number is missing")
        return sign * Fraction(self.tokens.pop())
