import numpy as np
from hypothesis import given, strategies as st

from gym_trl.seeding import derive_seed, task_seed

seeds = st.integers(min_value=-(2**70), max_value=2**70)


@given(seeds, st.lists(st.integers(0, 2**30 - 1), unique=True, max_size=50))
def test_no_two_tasks_of_either_split_share_a_seed(base, indices):
    made = [task_seed(base, split, index) for split in ("train", "eval") for index in indices]
    assert len(set(made)) == len(made)
    assert all(0 <= seed < 2**31 for seed in made)


def test_numpys_integers_are_integers():
    assert derive_seed(np.int64(3), "a") == derive_seed(3, "a")


@given(st.lists(st.integers() | st.text()), st.lists(st.integers() | st.text()))
def test_unlike_parts_give_unlike_seeds(one, other):
    assert (derive_seed(*one) == derive_seed(*other)) == (one == other)
    assert 0 <= derive_seed(*one) < 2**63
