import random
from itertools import permutations

import pytest
from hypothesis import assume, given, settings, strategies as st

from gym_trl.grpo.totals import Row, StepTotals
from gym_trl.input_dependence import Act, Dependence, acts_of, dependence_of
from gym_trl.types import Answer, EpisodeResult, StopReason, Task, Turn

ACTS = st.lists(st.builds(Act, st.integers(0, 3), st.integers(0, 3)), max_size=4)
EPISODES = st.lists(ACTS, min_size=12, max_size=40)


def played(policy, *, tasks=8, group=8, turns=3, seed=0):
    """Return the acts of a policy in an environment that shows the task's number, in groups of one task."""
    drawn = random.Random(seed)
    return [[Act(task, policy(task, drawn)) for _ in range(turns)] for task in range(tasks) for _ in range(group)]


@pytest.mark.parametrize(
    ("policy", "low", "high"),
    [
        (lambda shown, drawn: shown, 1.0, 1.0),
        (lambda shown, drawn: shown if drawn.random() < 0.5 else drawn.randrange(8), 0.2, 0.5),
        (lambda shown, drawn: drawn.randrange(4), -0.1, 0.1),
        (lambda shown, drawn: int(drawn.random() < 0.1), -0.1, 0.1),
    ],
    ids=["reads", "reads half of the time", "draws evenly", "nearly always the same"],
)
def test_a_policy_that_reads_is_told_from_one_that_does_not(policy, low, high):
    value = dependence_of(played(policy)).value
    assert value is not None
    assert low <= value <= high


def test_a_policy_that_always_does_the_same_is_not_measured_but_repeats():
    dependence = dependence_of(played(lambda shown, drawn: 7))
    assert (dependence.value, dependence.repeated) == (None, 1.0)


def test_a_turn_in_which_all_see_the_same_tells_nothing():
    episodes = [[Act(0, number % 3), Act(number % 2, number % 2)] for number in range(40)]
    assert dependence_of(episodes) == dependence_of([[Act(0, 0), second] for _, second in episodes])


def test_turns_are_not_compared_with_each_other():
    """A fixed sequence of actions depends on the turn alone, though observations name the turn, too."""
    episodes = [[Act(10 * turn + number % 2, turn) for turn in range(3)] for number in range(40)]
    dependence = dependence_of(episodes)
    assert (dependence.value, dependence.repeated) == (None, 1.0)


@settings(max_examples=20)
@given(st.lists(st.integers(0, 2), min_size=5, max_size=5), st.lists(st.integers(0, 2), min_size=5, max_size=5))
def test_chance_adds_nothing_on_average_over_all_orders_of_the_actions(shown, actions):
    """The turn is played twelve times, because fewer than 30 pairs are no measurement."""
    sums = [
        dependence_of([[Act(one, action)] * 12 for one, action in zip(shown, order, strict=True)])
        for order in permutations(actions)
    ]
    assume(all(one.possible for one in sums))
    same = sum(one == other for place, one in enumerate(shown) for other in shown[:place])
    assert sum(one.excess / (12 * same) for one in sums) == pytest.approx(0.0, abs=1e-9)


@given(EPISODES, st.randoms(use_true_random=False))
def test_order_and_names_do_not_matter_and_the_value_is_at_most_one(episodes, drawn):
    dependence = dependence_of(episodes)
    renamed = [[Act(act.observation * 7 + 1, 90 - act.action) for act in acts] for acts in episodes]
    drawn.shuffle(renamed)
    assert dependence_of(renamed) == dependence
    assert dependence.value is None or dependence.value <= 1.0
    assert dependence.repeated is None or 0.0 <= dependence.repeated <= 1.0


@given(EPISODES, EPISODES)
def test_generations_between_two_logs_are_added_up(first, second):
    rows = [[Row(1.0, None, "success", {}, acts=acts) for acts in episodes] for episodes in (first, second)]
    totals = StepTotals.of(rows[0]) + StepTotals.of(rows[1])
    assert totals.dependence == dependence_of(first) + dependence_of(second)
    assert totals.metrics().get("env/input_dependence") == totals.dependence.value
    assert totals.metrics().get("env/repeated_actions") == totals.dependence.repeated


def test_unscored_episodes_are_left_out():
    rows = [Row(None, None, "env_error", {}, acts=acts) for acts in played(lambda shown, drawn: shown)]
    assert StepTotals.of(rows).dependence == Dependence()


def test_an_action_is_what_a_wrapper_read_or_else_the_whole_response():
    def turn(text, action):
        return Turn("Go on.", Answer("a", text), 0.0, action is not None, 0, 0, action=action)

    turns = turn("<a>up</a>", "up"), turn("well, <a>up</a>", "up"), turn("\ud800", None), turn("up", None)
    acts = acts_of(EpisodeResult(Task("TrlEnv/Echo-v0", 0), StopReason.SUCCESS, turns, ()))
    assert acts[0] == acts[1] == acts[3] != acts[2]
