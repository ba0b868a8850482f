# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-any-generics, allow-incomplete-defs
import pickle
from collections import Counter
from itertools import permutations, product
from math import log

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gym_trl.envs.mastermind import Mastermind, _answers_to, _CodeBook, _compare
from gym_trl.errors import ConfigError
from gym_trl.testing import check_text_env, play

CODES = ["".join(code) for code in product("123456", repeat=4)]
codes = st.text("123456", min_size=4, max_size=4)


def answer(guess, secret):
    """Black and white as the rules tell them: pair what is in place, then whatever else can be paired."""
    black = [g == s for g, s in zip(guess, secret, strict=True)]
    left = [s for s, hit in zip(secret, black, strict=True) if not hit]
    white = 0
    for g, hit in zip(guess, black, strict=True):
        if not hit and g in left:
            left.remove(g)
            white += 1
    return sum(black), white


def said(guess, secret, **arguments):
    env = Mastermind(**arguments)
    env.reset(seed=0)
    env._secret = secret
    return env.step(guess)[0]


def lengths(*arguments):
    """Return the number of codes that take 1, 2, 3... guesses."""
    book = _CodeBook(*arguments)
    taken = list(book.lengths())
    assert sorted(guess for _, guess in taken) == list(range(len(book.codes)))
    return [count for _, count in sorted(Counter(number for number, _ in taken).items())]


def mean(histogram):
    return sum(number * count for number, count in enumerate(histogram, 1)) / sum(histogram)


def test_knuths_strategy_needs_5801_guesses_for_1296_codes():
    histogram = lengths(4, 6, True)
    assert histogram == [1, 6, 62, 533, 694]
    assert mean(histogram) == 5801 / 1296


@pytest.mark.full
@pytest.mark.parametrize(
    ("arguments", "histogram", "expected"),
    [
        ((2, 4, True), [1, 4, 8, 3], 2.8125),
        ((2, 4, False), [1, 4, 7], 2.5),
        ((4, 6, False), [1, 3, 53, 191, 112], 4.1389),
        ((4, 8, False), [1, 2, 56, 463, 931, 227], 4.7869),
        ((5, 8, True), [1, 19, 244, 2255, 11852, 15961, 2366, 70], 5.5523),
    ],
)
def test_the_solver_needs_the_number_of_guesses_of_the_table(arguments, histogram, expected):
    assert lengths(*arguments) == histogram
    assert mean(histogram) == pytest.approx(expected, abs=5e-5)


@pytest.fixture(scope="module")
def table():
    """Return the answer of every code to every code."""
    digits = np.array([[int(digit) for digit in code] for code in CODES])
    counts = (digits[:, :, None] == range(1, 7)).sum(1)
    black = (digits[:, None] == digits).sum(2)
    told = 5 * black + np.minimum(counts[:, None], counts).sum(2)
    for guess, secret in np.random.default_rng(0).integers(1296, size=(1000, 2)):
        assert divmod(told[guess, secret] - black[guess, secret], 5) == answer(CODES[guess], CODES[secret])
    return told


def total_guesses(table, price):
    """Return the guesses for all codes if a strategy minimises ``price``; ties go to possible ones, then the first."""
    open_, total = [(np.arange(len(table)), 1)], 0
    while open_:
        possible, number = open_.pop()
        rows = table[:, possible] + np.arange(len(table))[:, None] * 25
        prices = np.round(price(np.bincount(rows.ravel(), minlength=rows.shape[0] * 25).reshape(-1, 25)), 6)
        best = np.flatnonzero(prices == prices.min())
        both = best[np.isin(best, possible)]
        told = table[both[0] if both.size else best[0], possible]
        total += number * int(np.count_nonzero(told == 24))
        open_ += [(possible[told == kind], number + 1) for kind in np.unique(told) if kind != 24]
    return total


def bits_left(sizes):
    return (sizes * np.log2(np.maximum(sizes, 1))).sum(1)


@pytest.mark.full
@pytest.mark.parametrize(
    ("price", "total"),
    [
        pytest.param(lambda sizes: sizes.max(1), 5801, id="most left (Knuth)"),
        pytest.param(lambda sizes: (sizes * sizes).sum(1), 5696, id="expected size (Irving)"),
        pytest.param(bits_left, 5722, id="entropy"),
        pytest.param(lambda sizes: -(sizes > 0).sum(1), 5668, id="most parts (Kooi)"),
    ],
)
def test_other_strategies_need_the_known_number_of_guesses(table, price, total):
    """Written without the solver: feedback, weighing and walking are all different code."""
    assert total_guesses(table, price) == total


def test_the_first_code_that_is_possible_needs_7471_guesses(table):
    """Played in the environment itself, against every secret."""
    env = Mastermind()
    total = 0
    for instance in range(1296):
        observation, _ = env.reset(options={"instance": instance})
        possible, over = np.arange(1296), False
        while not over:
            observation, _, over, _, _ = env.step(CODES[possible[0]])
            total += 1
            if not over:
                black, white = (int(word) for word in observation.partition(":")[2].split()[:4:2])
                possible = possible[table[possible[0], possible] == 6 * black + white]
    assert total == 7471


@pytest.mark.parametrize(("pegs", "colors", "repeats"), [(1, 1, True), (1, 9, True), (3, 3, True), (3, 4, False)])
def test_the_solver_wins_from_the_observations_alone_what_the_book_says(pegs, colors, repeats):
    most = _CodeBook(pegs, colors, repeats).most_guesses
    env = Mastermind(pegs=pegs, colors=colors, repeats=repeats, turns=most)
    episodes = [play(env, env.solver(), options={"instance": i})[1:] for i in range(env.num_instances)]
    assert all(steps[-1][-1]["success"] for steps in episodes)
    assert max(len(steps) for steps in episodes) == most
    assert env.optimal_success == 1.0
    assert Mastermind(pegs=pegs, colors=colors, repeats=repeats, turns=1).optimal_success == 1 / env.num_instances


def test_the_solver_plays_5801_guesses_in_the_environment():
    env = Mastermind(turns=5, reward="efficient")
    episodes = [play(env, env.solver(), options={"instance": i})[1:] for i in range(1296)]
    assert sum(map(len, episodes)) == 5801
    assert {steps[-1][2] for steps in episodes} == {1.0} == {env.optimal_return}
    assert Mastermind(turns=4).optimal_success is None


@given(codes, codes)
def test_feedback_is_what_the_rules_say_and_symmetric(guess, secret):
    black, paired = _compare(guess, secret)
    assert (black, paired - black) == answer(guess, secret)
    assert _compare(secret, guess) == (black, paired)
    book = _CodeBook(2, 3, True)
    shorter = "".join(str(int(digit) % 3 + 1) for digit in guess[:2])
    assert [divmod(told, 3) for told in _answers_to(book, shorter).tolist()] == [
        _compare(shorter, code) for code in book.codes
    ]


@pytest.mark.parametrize(
    ("guess", "secret", "told"),
    [
        ("1122", "1111", "2 black, 0 white"),
        ("1111", "1122", "2 black, 0 white"),
        ("2211", "1122", "0 black, 4 white"),
        ("1234", "4321", "0 black, 4 white"),
        ("1112", "2221", "0 black, 2 white"),
        ("1213", "1124", "1 black, 2 white"),
        ("3333", "4444", "0 black, 0 white"),
    ],
)
def test_a_number_that_repeats_is_paired_once(guess, secret, told):
    assert said(guess, secret) == f"{' '.join(guess)}: {told}. 9 guesses left."


def test_codes_are_numbered_in_lexicographic_order():
    assert _CodeBook(4, 6, True).codes == CODES
    assert _CodeBook(3, 5, False).codes == ["".join(code) for code in permutations("12345", 3)]


def test_seeds_reach_every_code():
    env = Mastermind(difficulty="easy")
    assert len({play(env, env.solver(), seed=seed)[-1][0] for seed in range(300)}) == 16


@pytest.mark.parametrize("guess", ["1 1 2 2", "1122", " 11 22\n", "1\t1 2\u00a02"])
def test_spaces_between_the_numbers_are_free(guess):
    assert said(guess, "1122") == "Correct."


@pytest.mark.parametrize(
    "guess",
    ["", "1", "112", "11223", "1 1 2 7", "1 1 2 0", "0000", "-1122", "1,1,2,2", "١١٢٢", "¹122", "1" * 10**6, "red"],
)
def test_what_is_no_code_costs_a_guess_and_tells_nothing(guess):
    env = Mastermind(turns=2)
    env.reset(options={"instance": 0})
    step = env.step(guess)
    assert step[1:] == (0.0, False, False, {"action_valid": False, "success": False})
    assert step[0].endswith(" 1 guess left.")
    assert env.step("1111")[1:3] == (1.0, True)


def test_without_repeats_a_guess_that_repeats_is_no_code():
    env = Mastermind(pegs=2, colors=4, repeats=False)
    env.reset(seed=0)
    assert env.step("1 1") == (
        "Not 2 different numbers from 1 to 4. 9 guesses left.",
        0.0,
        False,
        False,
        {"action_valid": False, "success": False},
    )


def test_a_game_that_is_lost_is_terminated_and_does_not_tell_the_code():
    env = Mastermind(turns=1)
    env.reset(options={"instance": 1295})
    lost = ("1 1 1 1: 0 black, 0 white. 0 guesses left.", 0.0, True, False, {"action_valid": True, "success": False})
    assert env.step("1111") == lost


def test_the_example_in_the_instructions_is_no_code():
    """A peer's example was drawn from the secrets."""
    env = Mastermind()
    assert "written like 0 0 0 0 (which is none" in env.instructions
    env.reset(seed=0)
    assert env.step("0 0 0 0")[-1]["action_valid"] is False


def success(env, make_policy, episodes):
    return sum(play(env, make_policy(seed), seed=seed)[-1][-1]["success"] for seed in range(episodes)) / episodes


def test_random_codes_win_what_they_must_and_constant_ones_win_less():
    env = Mastermind(difficulty="easy")
    exact = 1 - (15 / 16) ** 6
    assert success(env, env.random_policy, 3_000) == pytest.approx(exact, abs=0.03)
    won = [
        play(env, lambda _: env.constant_action, options={"instance": i})[-1][-1]["success"]
        for i in range(env.num_instances)
    ]
    assert sum(won) == 1


def test_random_codes_are_codes_of_the_game():
    env = Mastermind(pegs=2, colors=3, repeats=False)
    policy = env.random_policy(0)
    assert {policy("") for _ in range(200)} == {" ".join(code) for code in permutations("123", 2)}


def test_the_potential_is_the_share_of_bits_that_are_known_and_needs_no_order():
    env = Mastermind(reward="shaped")
    env.reset(options={"instance": CODES.index("1234")})
    assert env.step("1122")[1] == pytest.approx(
        1 - log(sum(answer("1122", code) == (1, 1) for code in CODES)) / log(1296)
    )
    assert env.step("1122")[1] == 0.0  # nothing new
    assert env.step("banana")[1] == 0.0


def test_a_game_of_5_of_8_is_small_and_its_potential_known():
    env = Mastermind(difficulty="hard", reward="shaped")
    env.reset(seed=0)
    for guess in ("11234", "11234", "55678"):
        env.step(guess)
    assert len(pickle.dumps(env)) < 2**14
    assert pickle.loads(pickle.dumps(env)).step("11111") == env.step("11111")


@pytest.mark.full
@pytest.mark.parametrize(
    "arguments",
    [{"pegs": 1, "colors": 1}, {"pegs": 4, "colors": 4, "repeats": False}, {"turns": 1}, {"reward": "shaped"}],
)
def test_variants_keep_every_promise(arguments):
    check_text_env(lambda: Mastermind(**arguments), episodes=10)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"pegs": 0}, "pegs must be at least 1, got 0"),
        ({"pegs": 10}, "pegs must be at most 9, got 10"),
        ({"colors": 10}, "colors must be at most 9, got 10"),
        ({"colors": "6"}, "colors must be an integer, got '6'"),
        ({"turns": 0}, "turns must be at least 1, got 0"),
        ({"turns": 1.5}, "turns must be an integer"),
        ({"repeats": "no"}, "repeats must be True or False, got 'no'"),
        ({"repeats": 1}, "repeats must be True or False, got 1"),
        ({"pegs": 7, "repeats": False}, "pegs=7 and colors=6"),
        ({"pegs": 7, "colors": 9}, "at most 100000 codes, and pegs=7 and colors=9 make 4782969"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments, error):
    with pytest.raises(ConfigError, match=error):
        Mastermind(**arguments)
