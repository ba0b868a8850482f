"""Any space that Gymnasium can build is put into words, or refused when the environment is wrapped."""

import string
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from hypothesis import given, strategies as st
from support.lanes import examples

from gym_trl.errors import NotTextError
from gym_trl.spaces import MAX_LENGTH, AnyText
from gym_trl.text.textify import write
from gym_trl.wrappers import as_text

PICTURE = spaces.Box(0, 255, (24, 24, 3), dtype=np.uint8)


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
    spaces.MultiBinary((2, 1, 2)),
    spaces.Box(-1, 2, (3,)),
    spaces.Box(1.00001, 1.00002, (2,), dtype=np.float64),
    spaces.Box(-np.inf, np.inf, (2, 1), dtype=np.float64),
    spaces.Box(-4, np.inf, (2,), dtype=np.float16),
    spaces.Box(0, 2**64 - 1, (2,), dtype=np.uint64),
    spaces.Box(0, 1, (2,), dtype=np.bool_),  # type: ignore[arg-type]  # which it takes
    spaces.Box(-3, 3, (), dtype=np.int64),
    spaces.Box(0, 1, (0,)),
    spaces.Text(8),
    spaces.Text(2, min_length=0),
    AnyText(5),
    Words(),
    PICTURE,
]


def composed(inner: Any) -> Any:
    numbers = st.sampled_from([spaces.Box(-1, 1, (2,)), spaces.Discrete(3)])
    return st.one_of(
        st.dictionaries(st.text("abc", min_size=1, max_size=3), inner, max_size=3).map(spaces.Dict),
        st.lists(inner, max_size=3).map(spaces.Tuple),
        st.lists(inner, min_size=1, max_size=3).map(spaces.OneOf),
        st.builds(lambda space, stack: spaces.Sequence(space, stack=stack), inner, st.booleans()),
        st.builds(spaces.Graph, numbers, st.none() | numbers),
    )


# Gymnasium cannot build some, such as a stacked Sequence of what it cannot batch.
some_space = st.recursive(st.sampled_from(LEAVES), composed, max_leaves=5)


class Between(gym.Env[Any, Any]):
    """Shows what its observation space draws, and keeps the actions that reached it."""

    def __init__(self, shown: spaces.Space[Any], taken: spaces.Space[Any], seed: int) -> None:
        self.observation_space, self.action_space = shown, taken
        shown.seed(seed)
        self.got: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        self.got.append(action)
        return self.observation_space.sample(), 0.0, False, False, {}


def pictured(space: Any) -> bool:
    """Return True if a picture, or another array of more than two dimensions, is somewhere in it."""
    inner = [getattr(space, name, None) for name in ("feature_space", "node_space", "edge_space")]
    nested = getattr(space, "spaces", ())
    inner += nested.values() if isinstance(nested, dict) else nested
    return len(space.shape or ()) > 2 or any(pictured(one) for one in inner if one is not None)


def wrapped(env: Between) -> tuple[Any, str]:
    try:
        return as_text(env), ""
    except NotTextError as error:
        return None, str(error)


def can_sample(space: Any) -> bool:
    try:
        return space.sample() is not None or True
    except Exception:  # a space that Gymnasium itself cannot draw from
        return False


@given(some_space, some_space, st.integers(0, 2**32 - 1), st.text(max_size=8))
@examples(100)
def test_a_space_is_refused_at_construction_or_survives_conversion_to_text(shown, taken, seed, words):
    env = Between(deepcopy(shown), deepcopy(taken), seed)
    if not can_sample(shown) or not can_sample(taken):
        return
    text, refusal = wrapped(env)
    if text is None:
        assert "observe=" in refusal or "act=" in refusal
        assert pictured(shown) or pictured(taken) or not buildable(taken)
        return
    observation, _ = text.reset(seed=0)
    assert isinstance(observation, str)
    policy = text.get_wrapper_attr("random_policy")(seed) if text.has_wrapper_attr("random_policy") else None
    for _ in range(3):
        if policy is None:
            break
        written = policy(observation)
        observation, _, _, _, info = text.step(written)
        assert isinstance(observation, str)
        assert info["action_valid"] == (len(written) <= MAX_LENGTH)  # no more of an action is looked at
        if len(written) <= MAX_LENGTH:
            assert holds(taken, env.got[-1])
            assert write(taken, env.got[-1]) == written
    assert isinstance(text.step(words)[0], str)  # whatever a model says is an action, or told to be none


def holds(space: Any, value: Any) -> bool:
    """Return True if the value is in the space, or if Gymnasium fails to look, as for some stacked Sequences."""
    try:
        return bool(space.contains(value))
    except Exception:
        return True


def buildable(space: Any) -> bool:
    """Return True if Gymnasium can stack the elements of the stacked Sequences in it."""
    try:
        return all(space.contains(space.sample()) for _ in range(5))
    except Exception:
        return False
