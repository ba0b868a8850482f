"""Wrapper that shows an environment's observations as images."""

import math
from io import BytesIO
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np

from gym_trl.errors import ConfigError, check_counts, needs
from gym_trl.images import PngImage
from gym_trl.wrappers.as_text import Observe, TextObservation

IMAGES = "images"
"""Entry of ``info`` with the images of an observation, a tuple of ``PngImage``."""
MAX_PIXELS = 65_536
"""Default maximum number of pixels of an image, 256 x 256."""
_LEAST_SIDE = 16
"""Least height and width of an image in an observation; smaller arrays are codes, such as MiniGrid's 7 x 7 x 3."""


class ImageObservation(TextObservation):
    """Wrapper that shows observations as images, beside their text or in its place.

    ::

        env = ImageObservation(gym.make("CartPole-v1", render_mode="rgb_array"), text=False)
        observation, info = env.reset(seed=0)
        info["images"]        # (PngImage(209 x 313),)

    The image is what ``render`` returns if the render mode is ``"rgb_array"``; otherwise the image in the observation:
    a ``Box`` of ``uint8`` of shape (height, width), or (height, width, channels), with at least 16 rows and columns,
    alone or in a ``Dict`` (the largest one). The observations become text, as in ``TextObservation``, and
    ``info["images"]`` has the image, which rollouts, evaluations and records show in front of the text. A step of a
    wrapper around this one that does not reach the environment, such as an unreadable action, has no image.

    Args:
        env: Any environment with images.
        text: Convert the observation to text, too. Otherwise the text consists of the texts in the observation (such as
            a mission), and is empty if there are none.
        observe: Function ``(observation, info) -> str`` in place of these.
        max_pixels: Maximum number of pixels of an image; a larger one is scaled down.

    Raises:
        ConfigError: The environment shows no images.
        MissingDependencyError: Pillow is not installed.
        NotTextError: The observations cannot be converted to text, and neither ``text=False`` nor ``observe`` is given.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        *,
        text: bool = True,
        observe: Observe | None = None,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        check_counts(max_pixels=max_pixels)
        with needs("images", "ImageObservation"):
            import PIL.Image  # noqa: F401 -- reported now, not in the first episode
        self._path = None if env.render_mode == "rgb_array" else _image_path(env)
        self.max_pixels = max_pixels
        gym.utils.RecordConstructorArgs.__init__(self, text=text, observe=observe, max_pixels=max_pixels)
        super().__init__(env, observe or (None if text else _texts))

    @property
    def shows_images(self) -> bool:
        """True: observations have images."""
        return True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._meet()
        return self._observe(observation, info), {**info, IMAGES: (self._image(observation),)}

    def step(self, action: Any) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        """Play an action."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        text = self._observe(observation, info)
        return text, reward, terminated, truncated, {**info, IMAGES: (self._image(observation),)}

    def _image(self, observation: Any) -> PngImage:
        if self._path is None:
            return encode_image(self.env.render(), self.max_pixels)
        for key in self._path:
            observation = observation[key]
        return encode_image(observation, self.max_pixels)


def encode_image(pixels: Any, max_pixels: int = MAX_PIXELS) -> PngImage:
    """Return an array of pixels as a PNG file, scaled down to at most ``max_pixels``.

    >>> encode_image(np.zeros((400, 600, 3), np.uint8))
    PngImage(209 x 313)

    Equal arrays have equal files.

    Args:
        pixels: Array of ``uint8`` of shape (height, width), or (height, width, channels) with 1, 3 or 4 channels.
        max_pixels: Maximum number of pixels.

    Raises:
        TypeError: ``pixels`` is not such an array.
        MissingDependencyError: Pillow is not installed.
    """
    with needs("images", "encode_image"):
        from PIL import Image

    if not _are_pixels(pixels) or not pixels.size:
        got = f"{pixels.dtype} of shape {pixels.shape}" if isinstance(pixels, np.ndarray) else type(pixels).__name__
        raise TypeError(f"an image must be uint8 of shape (height, width[, 1, 3 or 4]), got {got}")
    image = Image.fromarray(np.ascontiguousarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels))
    scale = math.sqrt(max_pixels / (image.width * image.height))
    if scale < 1:
        width, height = (max(1, int(side * scale)) for side in image.size)
        image = image.resize((min(width, max_pixels), min(height, max_pixels)), Image.Resampling.BOX)
    file = BytesIO()
    image.save(file, format="PNG", compress_level=6)
    return PngImage(file.getvalue())


def _are_pixels(array: Any) -> bool:
    """Return whether an array, or a space, has the type and the shape of an image."""
    shape: tuple[int, ...] = getattr(array, "shape", None) or ()
    return getattr(array, "dtype", None) == np.uint8 and (
        len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3, 4))
    )


def _image_path(env: gym.Env[Any, Any]) -> tuple[str, ...]:
    """Return the keys of the image in an observation; none if the observation itself is one.

    Raises:
        ConfigError: There is none.
    """
    space = env.observation_space
    if _is_image(space):
        return ()
    parts = space.spaces if isinstance(space, gym.spaces.Dict) else {}
    images = {key: part for key, part in parts.items() if _is_image(part)}
    if images:
        return (max(images, key=lambda key: math.prod(images[key].shape or ())),)
    raise ConfigError(
        f"{env} shows no images: its render mode is {env.render_mode!r} (of {env.metadata.get('render_modes')}), not "
        f"'rgb_array', and {space!r:.200} has no uint8 Box of at least {_LEAST_SIDE} x {_LEAST_SIDE}"
    )


def _is_image(space: gym.Space[Any]) -> bool:
    sides: tuple[int, ...] = space.shape or ()
    return isinstance(space, gym.spaces.Box) and _are_pixels(space) and min(sides[:2]) >= _LEAST_SIDE


def _texts(observation: Any, info: dict[str, Any]) -> str:
    """Return the texts in an observation."""
    if isinstance(observation, str):
        return observation
    parts = observation.values() if isinstance(observation, dict) else ()
    return "\n".join(text for text in parts if isinstance(text, str) and text)
