import pickle
from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.vector.utils import (
    batch_differing_spaces,
    batch_space,
    concatenate,
    create_empty_array,
    create_shared_memory,
    iterate,
    read_from_shared_memory,
    write_to_shared_memory,
)
from gymnasium.wrappers import (
    DelayObservation,
    FrameStackObservation,
    TimeAwareObservation,
    TimeLimit,
)
from hypothesis import given, strategies as st
from support.lanes import examples

from gym_trl.errors import ConfigError
from gym_trl.spaces import AnyText, holds_text

# Every code point, lone surrogates included, which Hypothesis leaves out of its own default.
any_text = st.text(st.characters(codec=None, exclude_categories=()), max_size=40)


class Mirror(gym.Env[str, str]):
    """Shows the action as the observation."""

    def __init__(self, max_length: int = 50, nested: bool = False) -> None:
        self.nested = nested
        self.observation_space: Any = AnyText(max_length)
        if nested:
            self.observation_space = gym.spaces.Dict(text=AnyText(max_length), number=gym.spaces.Discrete(3))
        self.action_space = AnyText()

    def _show(self, text: str) -> Any:
        return {"text": text, "number": np.int64(1)} if self.nested else text

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self._show("¡olé!"), {}

    def step(self, action: str) -> Any:
        return self._show(action), 0.0, False, False, {}


@given(any_text)
def test_any_text_of_its_length_is_in_the_space_and_nothing_else(text: str) -> None:
    assert text in AnyText(max_length=max(1, len(text)))
    assert not any(value in AnyText(max_length=6) for value in (None, 5, b"text", ["text"], "toolong"))


@pytest.mark.parametrize("max_length", [0, -1, 1.5, "5", True, None])
def test_a_length_that_cannot_be_is_refused(max_length: Any) -> None:
    with pytest.raises(ConfigError, match="max_length"):
        AnyText(max_length)


def test_samples_are_varied_reproducible_and_in_the_space() -> None:
    space, same = AnyText(max_length=8, seed=3), AnyText(max_length=8, seed=3)
    samples = [space.sample() for _ in range(2_000)]
    assert samples == [same.sample() for _ in range(2_000)]
    assert all(sample in space and sample.isascii() and sample.isprintable() for sample in samples)
    assert {len(sample) for sample in samples} == set(range(9))
    assert len(set("".join(samples))) > 90


def test_spaces_of_one_length_are_equal_and_others_are_not() -> None:
    assert AnyText(5) == AnyText(5, seed=1)
    assert hash(AnyText(5)) == hash(AnyText(5))
    assert AnyText(5) != AnyText(6)
    assert AnyText(5) != gym.spaces.Text(5)


def test_pickles_and_copies_go_on_sampling_alike() -> None:
    space = AnyText(seed=1)
    space.sample()
    copies = [pickle.loads(pickle.dumps(space)), deepcopy(space)]
    expected = [space.sample() for _ in range(5)]
    for copy in copies:
        assert copy == space
        assert [copy.sample() for _ in range(5)] == expected


def test_gymnasiums_space_functions_know_the_space() -> None:
    space = AnyText(5, seed=0)
    batched = batch_space(space, 2)
    texts = ("a", "\ud800")
    assert texts in batched
    assert batched.sample() in batched
    assert tuple(iterate(batched, texts)) == texts
    empty: Any = create_empty_array(space, 2)
    assert empty == ("", "")
    assert concatenate(space, texts, empty) == texts
    assert ("abc", "abcdefg") in batch_differing_spaces([AnyText(3), AnyText(7)])


def test_only_spaces_of_gymnasium_that_hold_no_text_are_told_apart() -> None:
    assert holds_text(AnyText())
    assert holds_text(gym.spaces.Text(3))
    assert not holds_text(gym.spaces.Discrete(3))
    assert not holds_text(gym.spaces.Dict(text=AnyText()))


@pytest.mark.parametrize("context", ["fork", "spawn"])
@given(st.lists(any_text, min_size=3, max_size=3))
@examples(30)
def test_shared_memory_holds_any_text(context: str, texts: list[str]) -> None:
    import multiprocessing

    space = AnyText(40)
    memory = create_shared_memory(space, 3, multiprocessing.get_context(context))  # type: ignore[arg-type]
    view: Any = read_from_shared_memory(space, memory, 3)
    assert deepcopy(view) == ("", "", "")
    for round_ in (texts, texts[::-1]):
        for index, text in enumerate(round_):
            write_to_shared_memory(space, index, text, memory)  # type: ignore[arg-type]
        assert list(view) == round_
        assert deepcopy(view) == tuple(round_)
        assert view[-1] == round_[-1]
        assert view[:2] == tuple(round_[:2])


def test_a_text_that_does_not_fit_shared_memory_is_an_error_and_leaves_its_neighbours_alone() -> None:
    space = AnyText(2)
    memory = create_shared_memory(space, n=3)
    for index in range(3):
        write_to_shared_memory(space, index, "ab", memory)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="9 characters does not fit"):
        write_to_shared_memory(space, 1, "x" * 9, memory)  # type: ignore[arg-type]
    assert deepcopy(read_from_shared_memory(space, memory, 3)) == ("ab", "ab", "ab")


TEXTS = ("", "plain", "\x00", "\ud800 and 🎲", "日本語" * 16)


@pytest.mark.parametrize("nested", [False, True])
def test_a_vector_environment_hands_texts_through(nested: bool) -> None:
    envs = SyncVectorEnv([lambda: Mirror(nested=nested)] * 2)
    envs.reset(seed=0)
    for text in TEXTS:
        observations, *_ = envs.step((text, text[::-1]))
        assert (observations["text"] if nested else observations) == (text, text[::-1])


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(("shared", "context"), [(True, "fork"), (True, "spawn"), (False, "fork")])
def test_an_asynchronous_vector_environment_hands_texts_through(shared: bool, context: str, nested: bool) -> None:
    envs = AsyncVectorEnv([lambda: Mirror(nested=nested)] * 2, shared_memory=shared, context=context)
    kept = []
    try:
        envs.reset(seed=0)
        for text in TEXTS:
            observations, *_ = envs.step((text, text[::-1]))
            kept.append((text, observations["text"] if nested else observations))
    finally:
        envs.close()
    # Looked at only now: what was handed out must not change with later steps.
    assert all(seen == (text, text[::-1]) for text, seen in kept)


def test_environments_of_different_lengths_share_memory_without_mixing() -> None:
    envs = AsyncVectorEnv(
        [lambda: Mirror(50), lambda: Mirror(20), lambda: Mirror(30)], observation_mode="different", context="fork"
    )
    try:
        assert envs.reset(seed=0)[0] == ("¡olé!",) * 3
        assert envs.step(("a" * 50, "b" * 20, "c" * 30))[0] == ("a" * 50, "b" * 20, "c" * 30)
    finally:
        envs.close()


def played(env: Any, texts: tuple[str, ...]) -> list[Any]:
    shown = [env.reset(seed=0)[0], *(env.step(text)[0] for text in texts)]
    assert all(one in env.observation_space for one in shown)
    return shown


@pytest.mark.parametrize("nested", [False, True])
def test_gymnasiums_observation_wrappers_take_text(nested: bool) -> None:
    texts = ("a", "\ud800", "")
    inner = Mirror(nested=nested)
    if not nested:
        assert played(FrameStackObservation(inner, 2), texts) == [
            ("¡olé!", "¡olé!"),
            ("¡olé!", "a"),
            ("a", "\ud800"),
            ("\ud800", ""),
        ]
        assert played(DelayObservation(inner, 2), texts) == ["", "", "¡olé!", "a"]
    played(FrameStackObservation(inner, 3, padding_type="zero"), texts)
    played(DelayObservation(inner, 1), texts)
    limited = TimeLimit(Mirror(nested=nested), 5)
    timed = played(TimeAwareObservation(limited, flatten=False), texts)
    assert [int(one["time"][0]) for one in timed] == [0, 1, 2, 3]
    assert [one["text" if nested else "obs"] for one in timed] == ["¡olé!", *texts]
