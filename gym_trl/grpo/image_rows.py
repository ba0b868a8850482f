"""Images of episodes in the forward passes of a trainer."""

from collections.abc import Sequence
from typing import Any

from gym_trl.chat.images import ImageProcessor
from gym_trl.errors import ConfigError, TranscriptError
from gym_trl.grpo import trl_versions
from gym_trl.types import PngImage
from gym_trl.wrappers.image_observation import IMAGES


def attach_images(trainer: Any) -> None:
    """Give the forward passes of ``trainer`` the images of its ``rollout_func``'s rows; once for each trainer.

    Raises:
        ConfigError: The trainer has no multimodal processor, or generates with something that takes no images.
    """
    if trl_versions.has_images(trainer):
        return
    trl_versions.check_trl()
    for holds, reason in (
        (trainer.use_vllm, "use_vllm=True: its engines here take token ids only"),
        (
            getattr(trainer, "use_transformers_continuous_batching", False),
            "use_transformers_continuous_batching=True, which takes token ids only",
        ),
        (getattr(trainer, "environments", None) is not None, "environment_factory: use rollout_func"),
        (trl_versions.may_have_segments(trainer), "history, whose segments would divide them"),
    ):
        if holds:
            raise ConfigError(f"images are not possible with {reason}; leave out one of the two")
    images = ImageProcessor(trainer.processing_class)

    def inputs(rows: Sequence[Sequence[PngImage]], ids: Any) -> dict[str, Any]:
        if not any(rows):
            return {}
        expected = [sum(images.features(image) for image in row) for row in rows]
        if (places := (ids == images.feature_id).sum(1).tolist()) != expected:
            raise TranscriptError(f"rows have {places} ids for {expected} features of images")
        found = {name: value.to(ids.device) for name, value in images.all_inputs(rows, ids).items()}
        return {**found, "num_images": images.counts(found, rows)}

    trl_versions.intercept_images(trainer, IMAGES, inputs)
