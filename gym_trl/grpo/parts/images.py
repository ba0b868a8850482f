"""Images of episodes in the forward passes of a trainer."""

from collections.abc import Sequence
from typing import Any, ClassVar

from gym_trl.chat.images import ImageProcessor
from gym_trl.errors import ConfigError, TranscriptError
from gym_trl.grpo.parts.history import SegmentRows
from gym_trl.grpo.parts.part import Call, Part
from gym_trl.grpo.planned_rows import Planned
from gym_trl.grpo.trainer_parts import Batch, Generated, TrainerPart
from gym_trl.images import PngImage
from gym_trl.types import EpisodeResult
from gym_trl.wrappers.image_observation import IMAGES


class ImageRows(TrainerPart):
    """Part that gives the forward passes of a trainer the images of a rollout's rows.

    TRL takes images from the dataset (``image``, ``images``) and from the results of its own tool calls, and its
    ``_generate`` drops those of a ``rollout_func`` (1.14 to 1.16): ``images = None``. The inputs that it would compute
    from the dataset's prompts would not fit the ids that were returned, so they are computed here, from the ids.
    """

    name: ClassVar[str] = "images"

    def __init__(self) -> None:
        self._processor: ImageProcessor | None = None

    def check(self, trainer: Any) -> None:
        """Check that the trainer has a multimodal processor and generates with something that takes images.

        Raises:
            ConfigError: It does not, or another option does not go with images.
        """
        reason = "use_vllm=True: its engines here take token ids only" if trainer.use_vllm else ""
        if any(isinstance(part, SegmentRows) for part in trainer.gym_trl.parts):
            reason = reason or "history, whose segments would divide them"
        if reason:
            raise ConfigError(f"images are not possible with {reason}; leave out one of the two")
        self._processor = ImageProcessor(trainer.processing_class)

    def generated(self, batch: Batch, out: Generated) -> Generated:
        """Keep the images of the rows."""
        if (images := out.columns.get(IMAGES)) is None:
            raise ConfigError(
                f"with images the column {IMAGES} is needed: a rollout_func around spec.rollout_func must return it"
            )
        batch.notes[self] = images
        return out

    def model_inputs(self, batch: Batch, ids: Any) -> dict[str, Any]:
        """Return the images as inputs of the model, among them ``num_images``, by which TRL divides them."""
        rows: Sequence[Sequence[PngImage]] = batch.notes.get(self, ())
        if not any(rows):
            return {}
        assert self._processor is not None
        images = self._processor
        expected = [sum(images.features(image) for image in row) for row in rows]
        if (places := (ids == images.feature_id).sum(1).tolist()) != expected:
            raise TranscriptError(f"rows have {places} ids for {expected} features of images")
        inputs = {name: value.to(ids.device) for name, value in images.all_inputs(rows, ids).items()}
        return {**inputs, "num_images": images.counts(inputs, rows)}

    def scored(self, batch: Batch, columns: dict[str, Any]) -> dict[str, Any]:
        """Return the batch with its images."""
        import torch

        ids = torch.cat([columns["prompt_ids"], columns["completion_ids"]], dim=1)
        return {**columns, **self.model_inputs(batch, ids)}


class Images(Part):
    """Part for observations with images, which a trainer's forward passes get with the ids of their rows."""

    name = "images"
    needs_rollouts = "a vLLM server takes token ids only"
    in_evaluations = True
    no_dry_run = "prepare makes up completions without images: prepare a spec without images"

    def trainer_part(self) -> ImageRows:
        """Return the part that gives the trainer's forward passes the images."""
        return ImageRows()

    def columns(self, rows: Sequence[Planned], episodes: Sequence[EpisodeResult], call: Call) -> dict[str, list[Any]]:
        """Return the images of each row."""
        return {IMAGES: [list(one.trace.images) if one.scored else [] for one in episodes]}
