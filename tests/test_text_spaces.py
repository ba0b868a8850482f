"""Law 25: values of any space have different texts, and what is written is read as it was; and samples of actions."""

import string
from contextlib import suppress
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, strategies as st
from support.lanes import examples

from gym_trl.errors import NotTextError
from gym_trl.random_play import random_play
from gym_trl.spaces import MAX_LENGTH, AnyText
from gym_trl.text.samples import holds_numbers, named_range, sampler
from gym_trl.text.spaces import UnreadableActionError, check, explain, parse, render, write
from gym_trl.wrappers import TextAction, as_text

DIGITS = "0123456789"


class Words(spaces.Space[str]):
    """A text space of somebody's own."""

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        return "".join(self.np_random.choice(list(string.ascii_letters), 3))


LEAVES = [
    spaces.Discrete(5, start=-2),
    spaces.MultiDiscrete([2, 3, 4], start=[1, -1, 0]),
    spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
    spaces.MultiBinary(4),
    spaces.Box(-1, 2, (3,)),
    spaces.Box(1.00001, 1.00002, (2,), dtype=np.float64),
    spaces.Box(-np.inf, np.inf, (2, 1), dtype=np.float64),
    spaces.Box(-4, np.inf, (2,), dtype=np.float16),
    spaces.Box(0, 255, (2, 2), dtype=np.uint8),
    spaces.Box(0, 2**64 - 1, (2,), dtype=np.uint64),
    spaces.Box(0, 1, (2,), dtype=np.bool_),  # type: ignore[arg-type]  # which it takes
    spaces.Box(-3, 3, (), dtype=np.int64),
    spaces.Box(0, 1, (0,)),
    spaces.Text(8),
    spaces.Text(2, min_length=0),
    AnyText(5),
    Words(),
]
CONFUSING = [  # few values, of the characters that also separate values
    spaces.Discrete(2),
    spaces.Discrete(2, start=10),
    spaces.MultiDiscrete([2, 2]),
    spaces.MultiBinary((2, 2)),
    spaces.Box(0, 1, (1,), dtype=np.int8),
    spaces.Box(1, 1.00001, (2,)),
    spaces.Text(2, min_length=0, charset=", ("),
    spaces.Text(3, min_length=0, charset='")\n'),
    spaces.Text(3, min_length=0, charset="\n- "),
    spaces.Text(8, min_length=0, charset="a:\n "),
]


def composed(leaves: list[Any], names: Any) -> Any:
    numbers = st.sampled_from([spaces.Discrete(3), spaces.Box(0, 1, (2,))])
    stacked = numbers | st.sampled_from([spaces.Tuple([PARTS[0], PARTS[1]]), spaces.Dict(a=PARTS[0], b=PARTS[1])])
    return st.recursive(
        st.sampled_from(leaves),
        lambda inner: st.one_of(
            st.dictionaries(names, inner, max_size=3).map(spaces.Dict),
            st.lists(inner, max_size=3).map(spaces.Tuple),
            st.lists(inner, min_size=1, max_size=3).map(spaces.OneOf),
            inner.map(spaces.Sequence),
            stacked.map(lambda space: spaces.Sequence(space, stack=True)),
            st.builds(spaces.Graph, numbers, st.none() | numbers),
        ),
        max_leaves=5,
    )


PARTS = [spaces.Discrete(3), spaces.Box(0, 1, (2,))]
some_space = composed(LEAVES, st.text("abc", min_size=1, max_size=3))
confusing_space = composed(CONFUSING, st.text("a: \n-", max_size=3))
some_seed = st.integers(0, 2**32 - 1)


def seeded(space: Any, seed: int) -> Any:
    space = deepcopy(space)
    space.seed(seed)
    return space


def same(one: Any, other: Any) -> bool:
    if one is None or other is None:  # the edges of a graph
        return one is other or np.size(one if other is None else other) == 0
    if isinstance(one, dict):
        return bool(one.keys() == other.keys()) and all(same(one[name], other[name]) for name in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return np.shape(one) == np.shape(other) and bool(np.all(one == other))


@given(confusing_space, some_seed)
@examples(300)
def test_different_observations_have_different_texts(space: Any, seed: int) -> None:
    space, by_text = seeded(space, seed), dict[str, Any]()
    for _ in range(60):
        value = space.sample()
        assert same(value, by_text.setdefault(render(space, value), value))


@given(some_space, some_seed)
@examples(300)
def test_what_is_written_is_read_as_it_was(space: Any, seed: int) -> None:
    space = seeded(space, seed)
    for _ in range(3):
        action = space.sample()
        again = parse(space, write(space, action))
        assert same(action, again)
        assert write(space, again) == write(space, action)
        assert isinstance(render(space, action), str)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@given(data=st.data())
@examples(300)
def test_a_number_is_read_back_as_itself_and_no_longer_than_pythons(dtype: Any, data: Any) -> None:
    number = np.array([data.draw(st.floats(width=np.dtype(dtype).itemsize * 8, allow_nan=False))], dtype)
    space = spaces.Box(-np.inf, np.inf, (1,), dtype)
    text = render(space, number)
    assert dtype(text) == number[0]
    assert len(text) <= len(str(number[0]))
    assert not np.isfinite(number[0]) or parse(space, write(space, number)) == number


@given(some_space)
@examples(300)
def test_the_action_that_is_given_as_an_example_is_one(space: Any) -> None:
    words = explain(space).rpartition("such as ")[2] if "such as" in explain(space) else "1"
    with suppress(UnreadableActionError):
        action = parse(space, words)
        assert same(parse(space, write(space, action)), action)
        return
    assert isinstance(space, spaces.Text)  # which is too short, or explained by its length alone


@given(some_space, st.text() | st.sampled_from(["0", "1 2", "[]", "{}", "null", '{"nodes": []}', "[[0, 1], [1, 0]]"]))
@examples(300)
def test_any_words_are_an_action_of_the_space_or_unreadable(space: Any, words: str) -> None:
    with suppress(UnreadableActionError):
        action = parse(space, words)
        assert same(parse(space, write(space, action)), action)


@pytest.mark.parametrize(
    ("space", "words"),
    [
        *((spaces.Discrete(3), words) for words in ("3", "-1", "1.0", "\u0661", "9" * 5000, "")),
        *((spaces.MultiDiscrete([2, 2]), words) for words in ("1", "1 2", "one 1", "1 1 1", "1.5 1", "0 -1")),
        *((spaces.Box(-1, 1, (2,)), words) for words in ("0.5 1.5", "0.5 nan", "0.5", "0.5 0.5 x", "0.5 1e999")),
        (spaces.Box(-np.inf, np.inf, (1,), np.float32), "1e39"),
        (spaces.Box(0, 1, (2,), np.bool_), "0 2"),  # type: ignore[arg-type]
        (spaces.Box(0, 9, (2, 1), np.int64), "[[true], [1]]"),
        *((spaces.Dict(a=spaces.Discrete(2)), words) for words in ('{"a": 0, "b": 1}', "[0]", '{"a": true}', "{}")),
        *((spaces.Tuple([spaces.Discrete(2)]), words) for words in ("[" * 100_000, "[0, 0]", '{"0": 0}', '["0"]')),
        *((spaces.OneOf([spaces.Discrete(2)]), words) for words in ("[-1, 0]", "[1, 0]", "[0]", "[0, 0, 0]")),
        *((spaces.Sequence(spaces.Discrete(2)), words) for words in ('{"a": 0}', '"01"', "[2]")),
        *((spaces.Graph(spaces.Discrete(2), None), words) for words in ("[]", "{}", '{"nodes": [2]}')),
        (spaces.Text(3), "four"),
        (spaces.Text(10**6), "x" * 65_537),  # whose beginning would be another action
        (AnyText(3), "four"),
    ],
)
def test_what_is_no_action_is_refused_with_what_would_be_one(space: Any, words: str) -> None:
    with pytest.raises(UnreadableActionError, match="Answer with "):
        parse(space, words)


@pytest.mark.parametrize("words", ["move LEFT", "  Move   left ", "0", "+0"])
def test_names_are_read_in_any_case_and_numbers_work_as_well(words: str) -> None:
    assert parse(spaces.Discrete(2, start=0), words, ["Move left", "Move right"]) == 0
    assert parse(spaces.Discrete(2, start=5), "go", ["Go", "go"]) == 6


@pytest.mark.parametrize(
    ("words", "numbers"), [("(1, .5)", [1, 0.5]), ("[1.;5e-1]", [1, 0.5]), ("+1\n-0.5", [1, -0.5])]
)
def test_numbers_in_a_row_need_no_json(words: str, numbers: list[float]) -> None:
    assert parse(spaces.Box(-1, 1, (2,)), words).tolist() == numbers


@pytest.mark.parametrize(
    ("space", "value", "text"),
    [
        (spaces.Box(-np.inf, np.inf, (2,)), np.array([12345.67, 12345.68], np.float32), "12345.67 12345.68"),
        (spaces.Box(-np.inf, np.inf, (2,)), np.array([3, -0.0], np.float32), "3 0"),
        (
            spaces.Dict(hand=spaces.Tuple([spaces.Discrete(9)] * 2), map=spaces.MultiBinary((2, 2))),
            {"hand": (3, 4), "map": np.eye(2)},
            "hand: [3, 4]\nmap:\n  1 0\n  0 1",
        ),
        (spaces.Dict(a=spaces.Text(9), b=spaces.Text(9)), {"a": "x\ny", "b": None}, "a:\n  x\n  y"),
        (spaces.Dict({"": spaces.Discrete(2), " b\n": spaces.Discrete(2)}), {"": 0, " b\n": 1}, '"": 0\n" b\\n": 1'),
        (
            spaces.Graph(spaces.Discrete(9), spaces.Discrete(9)),
            spaces.GraphInstance(np.array([4, 5]), np.array([7]), np.array([[0, 1]], dtype=np.int32)),
            '{"nodes": [4, 5], "edges": [7], "edge_links": [[0, 1]]}',
        ),
        (spaces.OneOf([spaces.Discrete(2), spaces.Text(5)]), (np.int64(1), "“go”"), '[1, "“go”"]'),
        (AnyText(), None, ""),
    ],
)
def test_values_as_they_are_shown(space: Any, value: Any, text: str) -> None:
    assert render(space, value) == text


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (spaces.Box(-1, 2, (3,)), "3 numbers from -1 to 2 such as 0.5 0.5 0.5"),
        (
            spaces.Box(np.array([0, 10]), np.array([1, 20]), dtype=np.int64),
            "2 integers (from 0 to 1, from 10 to 20) such as 0 15",
        ),
        (spaces.Box(1.00101, 1.00102, (1,), np.float64), "a number from 1.00101 to 1.00102 such as 1.00101"),
        (spaces.Box(0, 0.2, (1,)), "a number from 0 to 0.2 such as 0.1"),
        (spaces.Box(-np.inf, np.inf, (2,)), "2 numbers such as 0 0"),
        (spaces.Box(0, np.inf, (1,)), "a number of at least 0 such as 0"),
        (spaces.Box(-np.inf, -3, (1,)), "a number of at most -3 such as -3"),
        (spaces.MultiDiscrete([8, 8], start=[1, 1]), "2 integers from 1 to 8 such as 8 8"),
        (spaces.MultiBinary(3), "3 integers from 0 to 1 such as 1 1 1"),
        (
            spaces.Tuple([spaces.Discrete(6), spaces.Box(0, 1, (2,))]),
            "a JSON list of an integer from 0 to 5 and 2 numbers from 0 to 1 such as [0, [0.5, 0.5]]",
        ),
        (
            spaces.Dict(left=spaces.Discrete(2), say=spaces.Text(5)),
            "a JSON object with left (an integer from 0 to 1) and say (text of at most 5 characters) such as "
            '{"left": 0, "say": "text"}',
        ),
        (spaces.Sequence(spaces.Discrete(2)), "a JSON list such as [0]"),
        (spaces.Box(0, 1, (2, 2)), "a JSON list such as [[0.5, 0.5], [0.5, 0.5]]"),
        (spaces.Dict(), "a JSON object such as {}"),
    ],
)
def test_the_bounds_of_each_number_are_told(space: Any, words: str) -> None:
    assert explain(space) == words


# ---------------------------------------------------------------------------------------------------------------------
# Environments
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(64, 64, 3), (1000,), (40, 40)])
@pytest.mark.parametrize("inside", [spaces.Sequence, lambda space: spaces.OneOf([spaces.Discrete(2), space])])
def test_pictures_have_no_words(shape: tuple[int, ...], inside: Any) -> None:
    with pytest.raises(NotTextError, match="observe="):
        check(inside(spaces.Box(0, 255, shape, dtype=np.uint8)))
    with pytest.raises(NotTextError, match="array of shape"):
        check(spaces.Graph(PARTS[0], spaces.Box(0, 255, shape)))


class Between(gym.Env[Any, Any]):
    """Shows what its observation space draws, and keeps the actions that reached it."""

    def __init__(self, shown: spaces.Space[Any], taken: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space, self.got = shown, taken, list[Any]()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        self.got.append(action)
        return self.observation_space.sample(), 0.0, False, False, {}


@given(some_space, some_space, some_seed, st.text(max_size=8))
@examples(100)
def test_an_environment_over_any_spaces_is_played_in_text(shown: Any, taken: Any, seed: int, words: str) -> None:
    env = Between(seeded(shown, seed), deepcopy(taken))
    text: Any = as_text(env)
    observation, info = text.reset(seed=0)
    act = random_play(text, seed)
    for _ in range(3 if isinstance(text, TextAction) else 0):
        written = act(observation, info)
        observation, _, _, _, info = text.step(written)
        assert isinstance(observation, str)
        assert info["action_valid"] == (len(written) <= MAX_LENGTH)  # no more of an action is looked at
        assert not info["action_valid"] or write(taken, env.got[-1]) == written
    assert isinstance(text.step(words)[0], str)  # whatever a model says is an action, or told to be none


@pytest.mark.parametrize("number", [1e-05, 1e16, 1e300, 0.1, -2.5, 3.0, float(2**53)])
def test_numbers_in_json_are_read_as_they_were(number: float) -> None:
    """Law 25."""
    space = spaces.Dict(a=spaces.Box(-np.inf, np.inf, (1,), np.float64))
    assert parse(space, write(space, {"a": [number]}))["a"].tolist() == [number]


# ---------------------------------------------------------------------------------------------------------------------
# Samples of actions
# ---------------------------------------------------------------------------------------------------------------------

NUMBERS = [spaces.Text(5, min_length=5, charset=DIGITS), spaces.Text(3, charset=DIGITS), spaces.Text(300)]


@given(some_space | st.sampled_from(NUMBERS), st.integers(0, 2**63 - 1))
@examples(150)
def test_what_is_drawn_is_in_the_space_and_can_be_read(space: Any, seed: int) -> None:
    draw, again = sampler(space, seed), sampler(space, seed)
    for action in (draw() for _ in range(5)):
        written = write(space, action)
        assert len(written) > MAX_LENGTH or write(space, parse(space, written)) == written
    assert write(space, draw()) == write(space, [again() for _ in range(6)][-1])


@pytest.mark.parametrize("text", ["on 2024-11-05", "v1.2 and 3.4", "5 and 5", "from b2 to b7", "no number"])
def test_what_is_no_range_is_not_read_as_one_that_allows_nothing(text: str) -> None:
    assert named_range(AnyText(), [text]) is None


def test_texts_of_one_length_are_codes_and_no_numbers() -> None:
    code = spaces.Text(4, min_length=4, charset=DIGITS)
    assert not holds_numbers(code)
    assert {len(sampler(code, seed)()) for seed in range(20)} == {4}
    assert {int(sampler(spaces.Text(2, charset=DIGITS), seed)(["From 3 to 500"])) for seed in range(400)} == {
        *range(3, 100)
    }
