"""Exact arithmetic on texts."""

import ast
import operator
import re
from fractions import Fraction

_CHARACTERS = re.compile(r"[-+*/(). 0-9]+")
_THOUSANDS = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
_MOST_PARENTHESES, _MOST_PLACES = 30, 9


def calculate(text: str) -> str:
    """Return the value of an expression: an integer or a decimal where that is exact and short, else a fraction.

    >>> calculate("-(1 + 2) * 3 / 4"), calculate("1 / 3 + 1"), calculate("1,200 * 3")
    ('-2.25', '4/3', '3600')

    Args:
        text: Numbers, + - * / and parentheses.

    Raises:
        ValueError: It is not an expression, or it divides by zero; the message is the reason.
    """
    source = _THOUSANDS.sub("", text).strip()
    if not _CHARACTERS.fullmatch(source) or source.count("(") > _MOST_PARENTHESES:
        raise ValueError("write numbers, + - * / and parentheses")

    def value(node: ast.expr) -> Fraction:
        match node:
            case ast.BinOp(left, sign, right) if type(sign) in _OPERATORS:
                result: Fraction = _OPERATORS[type(sign)](value(left), value(right))
                return result
            case ast.UnaryOp(ast.USub(), operand):
                return -value(operand)
            case ast.UnaryOp(ast.UAdd(), operand):
                return value(operand)
            case ast.Constant():
                return Fraction(ast.get_source_segment(source, node) or "")
        raise ValueError("it is no calculation")

    try:
        result = value(ast.parse(source, mode="eval").body)
    except ZeroDivisionError:
        raise ValueError("it divides by zero") from None
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError("it is no calculation") from None
    scaled = result * 10**_MOST_PLACES
    if scaled.denominator != 1:
        return str(result)
    whole, places = divmod(abs(scaled.numerator), 10**_MOST_PLACES)
    return f"{'-' if result < 0 else ''}{whole}.{places:0{_MOST_PLACES}}".rstrip("0").rstrip(".")
