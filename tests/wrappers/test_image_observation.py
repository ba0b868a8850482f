"""Images of observations: what is shown, and that equal observations have equal files."""

import pickle
from io import BytesIO
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image
from support.image_models import BrightSide, Drawn

from gym_trl import GymSpec
from gym_trl.errors import ConfigError, NotTextError
from gym_trl.executors.make import ExecutorConfig, make_pool
from gym_trl.executors.step import take_step
from gym_trl.images import PngImage
from gym_trl.types import EnvFailure, Task
from gym_trl.wrappers import ImageObservation, ParseAction, as_text
from gym_trl.wrappers.image_observation import encode_image

shapes = st.tuples(st.integers(1, 20), st.integers(1, 20), st.sampled_from([1, 3, 4])) | st.tuples(
    st.integers(1, 20), st.integers(1, 20)
)


def pixels(image: PngImage) -> Any:
    return np.asarray(Image.open(BytesIO(image.png)))


@given(shapes.flatmap(lambda shape: arrays(np.uint8, shape)))
def test_an_image_is_kept_pixel_by_pixel_and_equal_ones_have_one_name(array: Any) -> None:
    image = encode_image(array)
    assert (image.height, image.width) == array.shape[:2]
    np.testing.assert_array_equal(pixels(image), array[..., 0] if array.shape[2:] == (1,) else array)
    assert encode_image(array.copy()) == image
    assert pickle.loads(pickle.dumps(image)).name == image.name


@given(st.integers(1, 200), st.integers(1, 200), st.integers(1, 400))
def test_a_large_image_is_scaled_down_to_the_limit_and_keeps_its_sides(height: int, width: int, most: int) -> None:
    image = encode_image(np.full((height, width, 3), 7, np.uint8), most)
    assert image.width * image.height <= max(most, 1)
    assert pixels(image).min() == pixels(image).max() == 7
    if height * width <= most:
        assert (image.height, image.width) == (height, width)


@pytest.mark.parametrize(
    "wrong", [np.zeros((2, 2), np.float32), np.zeros((2, 2, 2), np.uint8), np.zeros((0, 2, 3), np.uint8), [[0]], None]
)
def test_what_is_no_image_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="an image must be uint8 of shape"):
        encode_image(wrong)


def test_bytes_that_are_no_png_file_are_refused() -> None:
    with pytest.raises(ValueError, match="content of a PNG file"):
        PngImage(b"GIF89a")


def test_an_observation_that_is_an_image_is_shown_with_its_own_pixels() -> None:
    env, plain = ImageObservation(BrightSide(turns=2), text=False), BrightSide(turns=2)
    observation, info = env.reset(seed=3)
    assert observation == ""
    assert env.shows_images
    np.testing.assert_array_equal(pixels(info["images"][0]), plain.reset(seed=3)[0])
    np.testing.assert_array_equal(pixels(env.step(0)[4]["images"][0]), plain.step(0)[0])


def test_a_rendering_is_preferred_and_its_texts_are_kept() -> None:
    env = ImageObservation(Drawn(render_mode="rgb_array"), text=False)
    observation, info = env.reset(seed=0)
    assert observation == "reach the end"
    assert (info["images"][0].height, info["images"][0].width) == (20, 30)
    drawn = ImageObservation(Drawn(), text=False)
    assert (drawn.reset(seed=0)[1]["images"][0].height) == 18


def test_the_text_beside_an_image_is_that_of_the_text_conversion() -> None:
    with pytest.raises(NotTextError):
        ImageObservation(BrightSide())
    with pytest.raises(ConfigError, match="shows no images"):
        ImageObservation(Drawn(small=True), text=False)
    shown = ImageObservation(Drawn(), observe=lambda held, info: f"At {held['place']}.")
    assert shown.reset(seed=0)[0] == "At 0."


@pytest.mark.parametrize("max_pixels", [0, -1, 2.5])
def test_a_limit_must_be_a_positive_integer(max_pixels: Any) -> None:
    with pytest.raises(ConfigError, match="max_pixels must be an integer of at least 1"):
        ImageObservation(BrightSide(), text=False, max_pixels=max_pixels)


def test_a_spec_rebuilds_it_and_an_episode_pickles() -> None:
    gym.register("ForTests/BrightSide-v0", entry_point="support.image_models:BrightSide", kwargs={"turns": 3})
    try:
        env = ImageObservation(gym.make("ForTests/BrightSide-v0"), text=False, max_pixels=100)
        assert env.spec is not None
        again = gym.make(EnvSpec.from_json(env.spec.to_json()))
        assert again.reset(seed=1)[1] == env.reset(seed=1)[1]
        copied = pickle.loads(pickle.dumps(env))
        assert copied.step(1)[4] == env.step(1)[4]
    finally:
        del gym.registry["ForTests/BrightSide-v0"]


def test_an_action_that_does_not_reach_the_environment_has_no_image() -> None:
    env = ParseAction(as_text(ImageObservation(BrightSide(turns=2), text=False)))
    env.reset(seed=0)
    unread, read = take_step(env, "no mark"), take_step(env, "<action>0</action>")
    assert not isinstance(unread, EnvFailure)
    assert not isinstance(read, EnvFailure)
    assert unread.images == ()
    assert len(read.images) == 1
    assert "images" not in read.info


def make_bright_side(env_id: str) -> gym.Env[str, str]:
    return as_text(ImageObservation(BrightSide(turns=2), text=False))


@pytest.mark.processes
@pytest.mark.parametrize("executor", ["inline", "thread", "process"])
def test_every_executor_carries_images(executor: Any) -> None:
    with make_pool(
        make_bright_side, ExecutorConfig(executor, **({} if executor == "inline" else {"workers": 1}))
    ) as pool:
        pool.reset("a", Task("BrightSide", 5))
        [(_, began)] = pool.collect(block=True)
        pool.step("a", "0")
        [(_, stepped)] = pool.collect(block=True)
    assert not isinstance(began, EnvFailure)
    assert not isinstance(stepped, EnvFailure)
    env = make_bright_side("")
    assert began.images == env.reset(seed=5)[1]["images"]
    assert stepped.images == env.step("0")[4]["images"]


def test_a_spec_renders_environments_that_can_and_takes_the_images_of_others() -> None:
    for env, height in ((Drawn, 20), (BrightSide, 16)):
        spec = GymSpec(env, images="only", num_tasks=2)
        made = spec.make(next(iter(spec.weights)))
        assert made.reset(seed=0)[1]["images"][0].height == height
        made.close()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"env": "TrlEnv/Echo-v0", "images": True}, "shows no images"),
        ({"env": BrightSide, "images": "beside"}, "images must be True, False or 'only', got 'beside'"),
        ({"env": "TrlEnv/TicTacToe-v0", "images": True, "seats": "self"}, "shows no images"),
    ],
)
def test_a_spec_that_cannot_show_images_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GymSpec(**wrong, num_tasks=2)


@pytest.mark.full
def test_environments_of_gymnasium_and_minigrid_are_rendered() -> None:
    pytest.importorskip("pygame", reason="needs pygame, of requirements-external.txt")
    pytest.importorskip("minigrid", reason="needs minigrid, of requirements-external.txt")
    for env_id, text in (
        ("CartPole-v1", ""),
        ("FrozenLake-v1", ""),
        ("MiniGrid-Empty-5x5-v0", "get to the green goal square"),
    ):
        spec = GymSpec(env_id, images="only", num_tasks=2, executor="inline")
        made = spec.make(env_id)
        observation, info = made.reset(seed=0)
        assert observation == text
        assert 64 <= info["images"][0].height <= 256
        again = spec.make(env_id)
        assert again.reset(seed=0)[1]["images"] == info["images"]
        made.close()
        again.close()
