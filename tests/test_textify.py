from contextlib import suppress
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, strategies as st
from support.lanes import examples

from gym_trl.errors import NotTextError
from gym_trl.text.action_description import explain
from gym_trl.text.textify import UnreadableActionError, parse, render, write

LEAVES = [
    spaces.Discrete(5, start=-2),
    spaces.MultiDiscrete([2, 3, 4]),
    spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
    spaces.MultiBinary(4),
    spaces.Box(-1, 2, (3,)),
    spaces.Box(-np.inf, np.inf, (2,), dtype=np.float64),
    spaces.Box(0, 255, (2, 2), dtype=np.uint8),
    spaces.Box(-3, 3, (), dtype=np.int64),
    spaces.Text(8),
]
CONFUSING = [  # few values, of the characters that also separate values
    spaces.Discrete(2),
    spaces.Discrete(2, start=10),
    spaces.MultiDiscrete([2, 2]),
    spaces.MultiBinary((2, 2)),
    spaces.Box(0, 1, (1,), dtype=np.int8),
    spaces.Box(1, 1.00001, (2,)),
    spaces.Box(-(2**40), 2**40, (), dtype=np.float64),
    spaces.Text(2, min_length=0, charset=", ("),
    spaces.Text(3, min_length=0, charset='")\n'),
    spaces.Text(3, min_length=0, charset="\n- "),
    spaces.Text(8, min_length=0, charset="a:\n "),
]


def composed(leaves, names):
    numbers = st.sampled_from([spaces.Discrete(3), spaces.Box(0, 1, (2,))])
    return st.recursive(
        st.sampled_from(leaves),
        lambda inner: st.one_of(
            st.dictionaries(names, inner, min_size=1, max_size=3).map(spaces.Dict),
            st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
            st.lists(inner, min_size=1, max_size=3).map(spaces.OneOf),
            inner.map(spaces.Sequence),
            numbers.map(lambda space: spaces.Sequence(space, stack=True)),
            st.builds(spaces.Graph, numbers, st.none() | numbers),
        ),
        max_leaves=5,
    )


some_space = composed(LEAVES, st.text("abc", min_size=1, max_size=3))
confusing_space = composed(CONFUSING, st.text("a: \n-", max_size=3))


def same(one, other):
    if one is None or other is None:  # the edges of a graph
        return one is other or np.size(one if other is None else other) == 0
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return np.shape(one) == np.shape(other) and bool(np.all(one == other))


@given(confusing_space, st.integers(0, 2**32 - 1))
@examples(300)
def test_different_observations_have_different_texts(space, seed):
    space = deepcopy(space)
    space.seed(seed)
    by_text: dict[str, Any] = {}
    for _ in range(60):
        value = space.sample()
        assert same(value, by_text.setdefault(render(space, value), value))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@given(data=st.data())
@examples(300)
def test_a_number_is_read_back_as_itself_and_no_longer_than_pythons(dtype, data):
    width = np.dtype(dtype).itemsize * 8
    number = np.array([data.draw(st.floats(width=width, allow_nan=False))], dtype)
    text = render(spaces.Box(-np.inf, np.inf, (1,), dtype), number)
    assert dtype(text) == number[0]
    assert len(text) <= len(str(number[0]))
    finite = spaces.Box(-np.inf, np.inf, (1,), dtype)
    assert not np.isfinite(number[0]) or parse(finite, write(finite, number)) == number


def test_numbers_that_differ_in_their_last_digit_read_differently():
    space = spaces.Box(-np.inf, np.inf, (2,))
    assert render(space, np.array([12345.67, 12345.68], np.float32)) == "12345.67 12345.68"
    assert render(space, np.array([3, -0.0], np.float32)) == "3 0"


@given(some_space, st.integers(0, 2**32 - 1))
def test_what_is_written_is_read_as_it_was(space, seed):
    space = deepcopy(space)
    space.seed(seed)
    action = space.sample()
    again = parse(space, write(space, action))
    assert again in space
    assert same(action, again)


PARTS = [spaces.Discrete(3), spaces.Box(0, 1, (2,))]


@pytest.mark.parametrize("inner", [spaces.Tuple(PARTS), spaces.Dict(a=PARTS[0], b=spaces.Tuple(PARTS))])
def test_stacked_parts_are_written_one_by_one_and_read_as_they_were(inner):
    space = spaces.Sequence(inner, stack=True, seed=3)
    lengths = set()
    for _ in range(20):
        action = space.sample()
        again = parse(space, write(space, action))
        assert same(action, again)
        lengths.add(len(write(space, action)))
    assert len(lengths) > 3


@given(some_space, st.integers(0, 2**32 - 1))
def test_every_value_can_be_shown_and_every_space_explained(space, seed):
    space.seed(seed)
    assert isinstance(render(space, space.sample()), str)
    assert explain(space)


@given(some_space, st.text())
def test_any_words_are_an_action_of_the_space_or_unreadable(space, words):
    with suppress(UnreadableActionError):
        # A Text is not held to the alphabet that it declares.
        assert parse(space, words) in space or "Text" in str(space)


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.Discrete(3), "3"),
        (spaces.Discrete(3), "-1"),
        (spaces.Discrete(3), "1.0"),
        (spaces.Discrete(3), "\u0661"),
        (spaces.Discrete(3), "9" * 5000),
        (spaces.MultiDiscrete([2, 2]), "1"),
        (spaces.MultiDiscrete([2, 2]), "1 2"),
        (spaces.MultiDiscrete([2, 2]), "one 1"),
        (spaces.Box(-1, 1, (2,)), "0.5 1.5"),
        (spaces.Box(-1, 1, (2,)), "0.5 nan"),
        (spaces.Box(-1, 1, (1,)), "1e999"),
        (spaces.MultiBinary(2), "1 -1"),
        (spaces.Dict(a=spaces.Discrete(2)), '{"a": 0, "b": 1}'),
        (spaces.Dict(a=spaces.Discrete(2)), "[0]"),
        (spaces.Dict(a=spaces.Discrete(2)), '{"a": true}'),
        (spaces.Tuple([spaces.Discrete(2)]), "[" * 100_000),
        (spaces.OneOf([spaces.Discrete(2)]), "[-1, 0]"),
        (spaces.Text(3), "four"),
    ],
)
def test_what_is_no_action_is_refused_with_what_would_be_one(space, words):
    with pytest.raises(UnreadableActionError, match="Answer with "):
        parse(space, words)


@pytest.mark.parametrize("words", ["move LEFT", "  Move   left ", "0"])
def test_names_are_read_in_any_case_and_numbers_work_as_well(words):
    assert parse(spaces.Discrete(2), words, ["Move left", "Move right"]) == 0


def test_a_number_that_its_type_cannot_hold_is_no_action():
    assert parse(spaces.Box(-np.inf, np.inf, (1,), np.float32), "1e38") == pytest.approx(1e38)
    with pytest.raises(UnreadableActionError):
        parse(spaces.Box(-np.inf, np.inf, (1,), np.float32), "1e39")


@given(some_space)
@examples(300)
def test_the_action_that_is_given_as_an_example_is_one(space):
    told = explain(space)
    words = told.rpartition("such as ")[2] if "such as" in told else "0"
    action = parse(space, words)
    assert action in space or "Text" in str(space)
    assert same(parse(space, write(space, action)), action)


def test_fields_and_nested_values_are_shown_by_name():
    space = spaces.Dict(hand=spaces.Tuple([spaces.Discrete(9), spaces.Discrete(9)]), map=spaces.MultiBinary((2, 2)))
    shown = render(space, {"hand": (3, 4), "map": np.eye(2, dtype=np.int8)})
    assert shown == "hand: 3, 4\nmap:\n  1 0\n  0 1"


def test_graphs_are_shown_by_nodes_and_edges():
    space = spaces.Graph(spaces.Discrete(9), spaces.Discrete(9))
    graph = spaces.GraphInstance(np.array([4, 5]), np.array([7]), np.array([[0, 1]], dtype=np.int32))
    assert render(space, graph) == "node 0: 4\nnode 1: 5\nedge 0 to 1: 7"
    assert same(tuple(parse(space, write(space, graph))), tuple(graph))


def test_parts_of_a_tuple_keep_their_nesting():
    two = spaces.Tuple([spaces.Discrete(9), spaces.Discrete(9)])
    assert render(spaces.Tuple([two, spaces.Text(9)]), ((1, 2), "a, b")) == '(1, 2), "a, b"'
    assert render(spaces.Tuple([two, spaces.Text(9)]), ((1, 2), "a\nb")) == "- 1, 2\n- a\n  b"


def test_an_action_that_is_too_long_is_not_cut_to_another():
    with pytest.raises(UnreadableActionError, match="at most 65536 characters"):
        parse(spaces.Text(10**6), "x" * 65_537)


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.Box(-1, 2, (3,)), "3 numbers from -1 to 2 such as 0.5 0.5 0.5"),
        (
            spaces.Box(np.array([0, 10]), np.array([1, 20]), dtype=np.int64),
            "2 integers (from 0 to 1, from 10 to 20) such as 0 15",
        ),
        (spaces.Box(1.001, 1.00102, (1,), np.float64), "a number from 1.001 to 1.00102 such as 1.001"),
        (spaces.Box(0, 0.2, (1,)), "a number from 0 to 0.2 such as 0.1"),
        (spaces.Box(-np.inf, np.inf, (2,)), "2 numbers such as 0 0"),
        (spaces.Box(np.float32(0), np.finfo(np.float32).max, (1,)), "a number of at least 0 such as 1"),
        (spaces.Box(-np.inf, 3, (1,)), "a number of at most 3 such as 2.5"),
        (spaces.MultiDiscrete([8, 8], start=[1, 1]), "2 integers from 1 to 8 such as 8 8"),
        (spaces.MultiDiscrete([2, 5]), "2 integers (from 0 to 1, from 0 to 4) such as 1 4"),
        (spaces.MultiBinary(3), "3 integers from 0 to 1 such as 1 1 1"),
        (
            spaces.Tuple([spaces.Discrete(6), spaces.Discrete(6)]),
            "a JSON list of 2 parts, each an integer from 0 to 5, such as [0, 0]",
        ),
        (
            spaces.Tuple([spaces.Discrete(6), spaces.Box(0, 1, (2,))]),
            "a JSON list of an integer from 0 to 5 and 2 numbers from 0 to 1, such as [0, [0.5, 0.5]]",
        ),
        (
            spaces.Dict(left=spaces.Discrete(2), say=spaces.Text(5)),
            "a JSON object with left (an integer from 0 to 1) and say (text of at most 5 characters), such as "
            '{"left": 0, "say": "text"}',
        ),
        (spaces.Tuple([spaces.Sequence(spaces.Discrete(2))]), "a JSON list such as [[0]]"),
    ],
)
def test_the_bounds_of_each_number_are_told(space, words):
    assert explain(space) == words


def test_one_of_several_kinds_says_which():
    assert render(spaces.OneOf([spaces.Discrete(2), spaces.Text(5)]), (np.int64(1), "go")) == "kind 1: go"


@pytest.mark.parametrize("shape", [(64, 64, 3), (1000,), (40, 40)])
def test_pictures_have_no_words(shape):
    space = spaces.Box(0, 255, shape, dtype=np.uint8)
    with pytest.raises(NotTextError, match="observe="):
        render(space, space.sample())
