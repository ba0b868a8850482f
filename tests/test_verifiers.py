"""Verifiers accept the answer and nothing that merely contains it."""

import sys
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support.lanes import examples

from gym_trl.envs.question_answer import find_verifier
from gym_trl.errors import ConfigError, MissingDependencyError
from gym_trl.text.verifiers import as_number, exact, numeric

NUMBERS = st.integers(-(10**12), 10**12) | st.decimals(allow_nan=False, allow_infinity=False, places=3).map(str)
WORDS = st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=8)
BY_NAME = ("exact", "numeric", "numeric:0.1")


@examples(100)
@given(NUMBERS)
def test_a_number_is_equal_to_itself_however_it_is_written(number: Any) -> None:
    value = Fraction(str(number))
    written = [str(number), f" {number} ", f"{value.numerator}/{value.denominator}"]
    if isinstance(number, int):
        written += [f"{number:,}", f"{number}.", f"{number}.000", f"{number * 100}%", f"{number}e0"]
    assert [numeric(text, number) for text in written] == [True] * len(written)


@examples(100)
@given(NUMBERS, st.lists(NUMBERS, min_size=1, max_size=4), st.sampled_from([" ", ", ", " or ", "; ", "\n", " = "]))
def test_a_response_with_several_numbers_is_no_number(number: Any, others: list[Any], between: str) -> None:
    assert not numeric(between.join(map(str, [number, *others])), number)
    assert not numeric(between.join(map(str, [*others, number])), number)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " ",
            ".",
            "-",
            "+",
            "%",
            "e5",
            "nan",
            "NaN",
            "inf",
            "-inf",
            "Infinity",
            "0x2A",
            "0b101010",
            "0o52",
            "4_2",
        ),
        *("\u0664\u0662", "\uff14\uff12", "\u00b2", "\u2075", "4 2", "12,34", "1,2345", ",42", "42,", "--42", "+-42"),
        *("42/0", "42/1/1", "1e", "42e1000", "42 units", "$42", "forty-two", "the answer is 42.", "[42]", "42\x00"),
        *("42!", "6*7", "(42)", "42j", "1" * 101, "\u221242", "42..", "4.2.0"),
    ],
)
def test_text_that_is_not_exactly_one_number_is_none(text: str) -> None:
    assert as_number(text) is None
    assert not numeric(text, 42)


def test_a_number_that_a_float_cannot_hold_is_compared_exactly() -> None:
    assert not numeric("1e999", 1e308)
    assert not numeric("1e-999", 0)
    assert not numeric("10000000000000000000001", 10**22)
    assert not numeric("123456789012.0000000001", 123456789012)


def test_rounding_is_allowed_for_fractions_and_not_for_whole_numbers() -> None:
    assert numeric("0.3333333333", "1/3")
    assert not numeric("0.333", "1/3")
    assert not numeric("3.0000000001", 3)
    assert find_verifier("numeric:0.01")("3.02", 3, {})
    assert not find_verifier("numeric:0.01")("3.04", 3, {})


@examples(50)
@given(st.sampled_from(BY_NAME), st.sampled_from(["", " ", "\n\t ", "\u00a0"]), NUMBERS)
def test_an_empty_response_is_never_right(name: str, response: str, answer: Any) -> None:
    assert not find_verifier(name)(response, answer, {})


@examples(50)
@given(st.lists(WORDS, min_size=2, max_size=6, unique=True))
def test_a_list_of_all_candidates_is_not_the_answer(candidates: list[str]) -> None:
    assert not exact(", ".join(candidates), candidates)
    assert not exact(" ".join(candidates), candidates[0])
    assert exact(f" {candidates[-1].upper()}\n", candidates)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        *(("exact", answer) for answer in ("", [], ["a", " "])),
        *(("numeric", answer) for answer in ("nan", True, None)),
    ],
)
def test_an_answer_that_no_response_can_give_is_a_fault_of_the_data(name: str, answer: Any) -> None:
    with pytest.raises(ConfigError):
        find_verifier(name)("x", answer, {})


@pytest.mark.parametrize(
    "name", ["exakt", "exact:1", "numeric:", "numeric:2", "numeric:x", "no_such_module:f", "code:add", 3]
)
def test_an_unknown_verifier_is_refused(name: Any) -> None:
    with pytest.raises(ConfigError):
        find_verifier(name)


def test_a_function_is_a_verifier_by_name() -> None:
    assert find_verifier("gym_trl.text.verifiers:exact") is exact


def test_math_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(MissingDependencyError, match=r"gym-trl\[math\]"):
        find_verifier("math")("42", 42, {})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("response", "answer", "right"),
    [
        (r"\frac{1}{2}", "0.5", True),
        ("$1/2$", "0.5", True),
        (r"\boxed{2\sqrt{3}}", r"\sqrt{12}", True),
        ("x + 1", "1 + x", True),
        (r"\{2, 1\}", r"\{1, 2\}", True),
        *((text, "42", False) for text in ("", "41, 42", "41 or 42", "$41$ $42$", r"\boxed{41}\boxed{42}", "42 41")),
        *((text, "42", False) for text in (r"\{41, 42\}", "[0, 100]", r"41 \pm 1", "x", "nan", "41 = 42", "so 42")),
        ("9^{9^{9^{9}}}", "42", False),
    ],
)
def test_mathematics_is_compared_by_value_and_as_a_whole(response: str, answer: str, right: bool) -> None:
    assert find_verifier("math")(response, answer, {}) is right
