"""Images between the texts of a conversation: their placeholder ids, and a model's inputs."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache
from io import BytesIO
from itertools import product
from typing import Any, TypeAlias

from gym_trl.chat.codec import FIRST_PLACE, PLACE
from gym_trl.errors import ChatTemplateError, ConfigError, needs
from gym_trl.images import PngImage
from gym_trl.types import Message, TokenIds

ModelInputs: TypeAlias = dict[str, Any]
"""Tensors of a batch of rows, by the names of a model's arguments."""

_PER_TOKEN = ("mm_token_type_ids", "token_type_ids")
"""Inputs with one number per id, 1 for an image's: computed from the ids, because later turns have images, too."""
_PER_ROW = ("pixel_values", "pixel_attention_mask")
"""Inputs that have all images of a row in one row, in models such as Idefics3 and SmolVLM."""
_OF_IMAGES = {*_PER_ROW, "image_grid_thw", "image_sizes", "image_position_ids"}
_OF_TEXT = {"input_ids", "attention_mask"}
_MOST_EXPANSIONS, _BLANK = 1024, 64


class ImageProcessor:
    """Part of a multimodal processor that a rollout needs: an image's ids, and a model's inputs.

    ::

        images = ImageProcessor(AutoProcessor.from_pretrained("Qwen/Qwen2.5-VL-3B-Instruct"))
        images.ids(image)               # [151655, 151655, ...], one id per feature of the image
        images.inputs([[image], []])    # pixel_values, image_grid_thw of two rows, the second one without images

    Works with models whose inputs are divided by images (Qwen2-VL and later, LLaVA, Gemma 3) or by rows (Idefics3,
    SmolVLM), and not with those that are divided by tiles (LFM2-VL, InternVL).

    Args:
        processor: A processor of Transformers with an image processor and a tokenizer.

    Raises:
        ConfigError: It has no image processor, or no image token.
    """

    def __init__(self, processor: Any) -> None:
        name = type(processor).__name__
        if getattr(processor, "image_processor", None) is None:
            raise ConfigError(
                f"images need the processor of a vision-language model (AutoProcessor), got {name}, which has no image "
                "processor: give it as processing_class"
            )
        marks = [getattr(processor, it, None) for it in ("boi_token", "image_token")]
        self.marks = [mark for mark in marks if isinstance(mark, str) and mark]
        """Tokens that a chat template may write in place of an image; each becomes the ids of one."""
        if not self.marks:
            raise ConfigError(f"{name} has no image_token, so the place of an image is not known")
        self._processor = processor
        encode = processor.tokenizer.convert_tokens_to_ids
        self.feature_id: int = getattr(processor, "image_token_id", None) or encode(processor.image_token)
        """Id in whose place a model puts one feature of an image."""
        self.mark_ids: TokenIds = sorted({self.feature_id, *map(encode, self.marks)})
        """Ids that stand for images, which a model must not sample."""
        self._ids: Callable[[PngImage, str], tuple[int, ...]] = lru_cache(_MOST_EXPANSIONS)(self._expand)

    def ids(self, image: PngImage, mark: str | None = None) -> TokenIds:
        """Return the ids in place of an image: a ``feature_id`` per feature, and what the model has around them."""
        return list(self._ids(image, mark or self.marks[-1]))

    def in_place(self, ids: TokenIds, images: Sequence[PngImage], mark: str, mark_id: int) -> TokenIds:
        """Return ids with those of each image in place of the id of the template's mark for it.

        Raises:
            ChatTemplateError: The template has written another number of marks.
        """
        if (count := ids.count(mark_id)) != len(images):
            raise ChatTemplateError(f"the chat template writes {count} places for {len(images)} images")
        rest = iter(images)
        return [part for id_ in ids for part in (self.ids(next(rest), mark) if id_ == mark_id else (id_,))]

    def features(self, image: PngImage) -> int:
        """Return the number of features of an image, which is the number of ``feature_id`` among its ids."""
        return self.ids(image).count(self.feature_id)

    def all_inputs(self, rows: Sequence[Sequence[PngImage]], ids: Any) -> ModelInputs:
        """Return all inputs for a batch of rows with ``ids`` of shape (rows, length); empty without images."""
        return self.inputs(rows) | self.types(ids) if any(rows) else {}

    def inputs(self, rows: Sequence[Sequence[PngImage]]) -> ModelInputs:
        """Return a model's inputs for the images of a batch of rows, without those that depend on ids; empty if none.

        Raises:
            ConfigError: The model's inputs are divided in a way that is not supported.
        """
        if not any(rows):
            return {}
        full = [place for place, row in enumerate(rows) if row]
        mark = self.marks[-1]
        made = self._processor(
            text=[mark * len(rows[place]) for place in full],
            images=[[_decoded(image) for image in rows[place]] for place in full],
            add_special_tokens=False,
            padding=True,
            return_tensors="pt",
        )
        inputs = {name: value for name, value in made.items() if name not in {*_OF_TEXT, *_PER_TOKEN}}
        if unknown := sorted(inputs.keys() - _OF_IMAGES):
            raise ConfigError(f"{self._name} makes {unknown[0]}, which TRL's trainer cannot divide by rows")
        pixels, count = inputs["pixel_values"], sum(map(len, rows))
        if self.by_row(inputs):
            return {name: _spread(inputs[name], full, len(rows)) for name in inputs}
        if "image_grid_thw" not in inputs and len(pixels) != count:
            raise ConfigError(f"{self._name} makes {len(pixels)} tiles of {count} images; switch off tiles or patches")
        return inputs

    def counts(self, inputs: Mapping[str, Any], rows: Sequence[Sequence[PngImage]]) -> list[int]:
        """Return ``num_images``, by which TRL's trainer divides ``inputs``: of each row, or 1 if divided by rows."""
        return [1] * len(rows) if self.by_row(inputs) else [len(row) for row in rows]

    def types(self, ids: Any) -> ModelInputs:
        """Return the inputs with one number per id that the model needs, for ids of shape (rows, length)."""
        return {name: (ids == self.feature_id).to(ids.dtype) for name in self._types}

    def by_row(self, inputs: Mapping[str, Any]) -> bool:
        """Return whether ``inputs`` have all images of a row in one row: (rows, images, channels, height, width)."""
        return len(inputs["pixel_values"].shape) == 5

    @property
    def _name(self) -> str:
        return type(self._processor).__name__

    @cached_property
    def _types(self) -> list[str]:
        from PIL import Image

        blank = Image.new("RGB", (_BLANK, _BLANK))
        made = self._processor(text=[self.marks[-1]], images=[[blank]], add_special_tokens=False)
        return [name for name in _PER_TOKEN if name in made]

    def _expand(self, image: PngImage, mark: str) -> tuple[int, ...]:
        made = self._processor(text=[mark], images=[[_decoded(image)]], add_special_tokens=False)
        return tuple(map(int, made["input_ids"][0]))


def _spread(values: Any, full: Sequence[int], rows: int) -> Any:
    """Return the values of all rows, 0 in rows without images, which the models leave out."""
    if len(full) == rows:
        return values
    spread = values.new_zeros((rows, *values.shape[1:]))
    spread[list(full)] = values
    return spread


def _decoded(image: PngImage) -> Any:
    with needs("images", "an image"):
        from PIL import Image

    return Image.open(BytesIO(image.png)).convert("RGB")


# ---------------------------------------------------------------------------------------------------------------------
# Templates
# ---------------------------------------------------------------------------------------------------------------------

SAMPLE = PngImage(b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x02\x00\x00\x00\x90wS\xde")
"""Beginning of an image, for renderings of a template, which does not look at it."""


def image_mark(render: Callable[[Sequence[Message]], str], marks: Sequence[str]) -> str:
    """Return the token that a template writes in place of an image, after checking that it appends such messages.

    Args:
        render: Renders messages, up to the point where the next answer begins.
        marks: Tokens that it may be.

    Raises:
        ChatTemplateError: The template writes none of them, or writes a message with an image differently in a longer
            conversation; the message says which.
    """
    uniform: dict[bool, list[str]] = {}
    for shown in (True, False):  # uniform conversations: what is around each message
        uniform[shown] = _pieces(render, [shown] * 2)
    written = uniform[True][0]
    mark = next((mark for mark in marks if written.count(mark) == 1), None)
    if mark is None or mark in uniform[False][0]:
        raise ChatTemplateError(f"the chat template writes none of {', '.join(marks)} for an image: {written!r:.200}")
    for pattern in product((False, True), repeat=3):
        pieces = _pieces(render, pattern)
        expected = [uniform[pattern[0]][0]]
        for shown in pattern[1:]:
            expected += [uniform[True][1], uniform[shown][2]]
        expected.append(uniform[True][3])
        if pieces != expected:
            order = ", ".join("image" if shown else "text" for shown in pattern)
            raise ChatTemplateError(
                f"the chat template writes messages differently where others have images ({order}): "
                f"{next(had for had, wants in zip(pieces, expected, strict=True) if had != wants)!r:.200}"
            )
    return mark


def _pieces(render: Callable[[Sequence[Message]], str], pattern: Sequence[bool]) -> list[str]:
    """Return the texts around the messages of a conversation; ``pattern`` says which user messages have an image."""
    messages: list[Message] = []
    for shown in pattern:
        if messages:
            messages.append(Message("assistant", chr(FIRST_PLACE + len(messages))))
        messages.append(Message("user", chr(FIRST_PLACE + len(messages)), (SAMPLE,) if shown else ()))
    pieces = PLACE.split(render(messages))
    if [ord(place) - FIRST_PLACE for place in pieces[1::2]] != list(range(len(messages))):
        raise ChatTemplateError(f"the chat template drops, repeats or moves a message of {len(messages)} with images")
    return pieces[::2]
