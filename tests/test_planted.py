# mypy: allow-untyped-defs, allow-untyped-calls, allow-incomplete-defs
"""Law 23: each check finds its planted fault over all kinds of spaces, and is silent about a sound environment."""

import numpy as np
import planted
import pytest
from gymnasium import spaces
from hypothesis import given, strategies as st
from lanes import examples

from gym_trl.env_checker.checks import Inspector
from gym_trl.env_checker.report import OK, WARNING
from gym_trl.spaces import sample_allowed

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
