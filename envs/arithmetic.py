"""Exact arithmetic on texts, for environments whose actions are calculations."""

import ast
import operator
import re
from fractions import Fraction

_CHARACTERS = re.compile(r"[-+*/(). 0-9]+")
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def calculate(text: str) -> Fraction:
    """Return the value of an expression of numbers, + - * / and parentheses.

    >>> calculate("-(1 + 2) * 3 / 4"), calculate("1 / 3 + 1")
    (Fraction(-9, 4), Fraction(4, 3))

    Args:
        text: Expression, with blanks between its parts.

    Raises:
        ValueError: It is not an expression; the message is the reason.
        ZeroDivisionError: It divides by zero.
    """
    if not _CHARACTERS.fullmatch(text):
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
        return value(ast.parse(source := text.strip(), mode="eval").body)
    except ZeroDivisionError:
        raise ZeroDivisionError("it divides by zero") from None
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError("it is no calculation") from None
