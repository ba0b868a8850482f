# mypy: allow-untyped-defs, allow-untyped-calls, allow-incomplete-defs
"""Law 23: each check finds its planted fault over all kinds of spaces, and is silent about a sound environment."""

from functools import partial

import gymnasium as gym
import numpy as np
import planted
import pytest
from gymnasium import spaces
from hypothesis import given, strategies as st
from lanes import examples

from gym_trl.env_checker.checks import Inspector
from gym_trl.env_checker.report import OK, PROBLEM, WARNING
from gym_trl.envspec import EnvSpec
from gym_trl.evaluation.play import play_task
from gym_trl.executors.step import begin, take_step
from gym_trl.spaces import AnyText, sample_allowed
from gym_trl.types import EnvFailure, Task
from gym_trl.wrappers import AdmissibleActions, History, TurnLimit

KINDS = [np.int8, np.uint8, np.int64, np.float32, bool, list]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_mask_of_any_type_is_no_fault_of_the_environment(kind) -> None:
    inspector = Inspector(planted.masked(kind), episodes=5, blind_steps=0)
    for promise in ("reset", "step", "spaces", "success", "info", "invalid actions", "end"):
        found = inspector.look_at(promise)
        assert found.verdict == OK, found


@examples(100)
@given(
    space=st.one_of(
        st.builds(spaces.Discrete, st.integers(1, 6), start=st.integers(-3, 3)),
        st.lists(st.integers(1, 4), min_size=1, max_size=3).map(spaces.MultiDiscrete),
    ),
    kind=st.sampled_from(KINDS),
    data=st.data(),
)
def test_a_sample_is_allowed_by_a_mask_of_any_type(space, kind, data) -> None:
    sizes = [int(space.n)] if isinstance(space, spaces.Discrete) else space.nvec.tolist()
    some = [data.draw(st.lists(st.booleans(), min_size=n, max_size=n).filter(any)) for n in sizes]
    flat = np.array([value for part in some for value in part])
    sample = sample_allowed(space, flat.tolist() if kind is list else flat.astype(kind))
    start = int(space.start) if isinstance(space, spaces.Discrete) else 0
    assert all(part[int(place) - start] for part, place in zip(some, np.atleast_1d(sample), strict=True))


class Says(gym.Env):
    """Returns what it is given as its observations."""

    action_space = AnyText()
    instructions = "Say anything."

    def __init__(self, space, first, then):
        self.observation_space, self.first, self.then = space, first, then

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.first, {"admissible_actions": ["yes", "no"]}

    def step(self, action):
        return self.then, 1.0, False, False, {"admissible_actions": ["yes", "no"]}


NO_TEXT = st.one_of(st.none(), st.integers(), st.floats(), st.binary(max_size=3), st.lists(st.text(), max_size=2))
SHOWN_BY = [
    {},
    {"turn_limit": 3},
    {"wrappers": [AdmissibleActions]},
    {"wrappers": [partial(TurnLimit, turns=3, announce=True)]},
    {"wrappers": [partial(History, show="full"), AdmissibleActions]},
]


@examples(60)
@given(space=st.sampled_from([AnyText(), spaces.Text(5)]), wrong=NO_TEXT, shown_by=st.sampled_from(SHOWN_BY))
def test_an_observation_that_is_no_text_is_refused_however_it_is_wrapped(space, wrong, shown_by) -> None:
    task = Task("says", 0)
    for first, then in ((wrong, "b"), ("a", wrong)):
        spec = EnvSpec(partial(Says, space, first, then), action_format=None, **shown_by)
        env = spec.make(next(iter(spec.weights)))
        [failure] = play_task(env, task, lambda env: lambda observation: "yes")[-1:]
        assert "the observation must be text, got" in str(failure)
        if first is wrong:
            with pytest.raises(TypeError, match="the observation must be text, got"):
                begin(env, task)
        else:
            begin(env, task)
            failed = take_step(env, "yes")
            assert isinstance(failed, EnvFailure)
            assert "the observation must be text, got" in failed.error
        found = Inspector(partial(Says, space, first, then), episodes=2).look_at("spaces")
        assert found.verdict == PROBLEM


def test_a_hidden_price_makes_different_tasks() -> None:
    for hidden in (planted.Price, planted.Dark, planted.Coin):
        assert Inspector(hidden, episodes=20).look_at("variety").verdict == OK


def test_tasks_are_the_same_only_if_no_action_tells_them_apart() -> None:
    class Fixed(planted.Price):
        def draw(self, rng):
            super().draw(rng)
            self.price = 5

    found = Inspector(Fixed, episodes=20).look_at("variety")
    assert found.verdict == WARNING
    assert "10 seeds gave the same task: the same episode after each of " in found.got
