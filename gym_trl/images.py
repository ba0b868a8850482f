"""Images of observations."""

import struct
from dataclasses import dataclass
from hashlib import blake2b


@dataclass(frozen=True, slots=True)
class PngImage:
    """Image of an observation, as the content of a PNG file.

    >>> from gym_trl.wrappers.image_observation import encode_image
    >>> import numpy as np
    >>> image = encode_image(np.zeros((2, 3, 3), np.uint8))
    >>> image, image.width, len(image.name)
    (PngImage(2 x 3), 3, 36)

    Raises:
        ValueError: ``png`` does not begin like a PNG file.
    """

    png: bytes

    def __post_init__(self) -> None:
        if self.png[:8] != b"\x89PNG\r\n\x1a\n" or self.png[12:16] != b"IHDR":
            raise ValueError(f"an image must be the content of a PNG file, got {self.png[:8]!r}...")

    @property
    def height(self) -> int:
        """Height in pixels."""
        return int(struct.unpack_from(">I", self.png, 20)[0])

    @property
    def width(self) -> int:
        """Width in pixels."""
        return int(struct.unpack_from(">I", self.png, 16)[0])

    @property
    def name(self) -> str:
        """Name of its file: a hash of the content, so that equal images have equal names."""
        return f"{blake2b(self.png, digest_size=16).hexdigest()}.png"

    def __repr__(self) -> str:
        return f"PngImage({self.height} x {self.width})"


class PicturedText(str):
    """Observation with images, as policies receive it; a policy that does not look at ``images`` reads its text.

    >>> images_with(PicturedText.of("Look.", ())), images_with("Look.")
    ((), ())
    """

    images: tuple[PngImage, ...]

    @classmethod
    def of(cls, text: str, images: tuple[PngImage, ...]) -> str:
        """Return a text with its images, or unchanged if there are none."""
        if not images:
            return text
        made = cls(text)
        made.images = images
        return made


def images_with(observation: str) -> tuple[PngImage, ...]:
    """Return the images of an observation that a policy received."""
    return observation.images if isinstance(observation, PicturedText) else ()
