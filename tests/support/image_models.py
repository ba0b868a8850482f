"""Environments whose observations are images, and models that see them, for tests."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from gym_trl.testing import tiny_model, tiny_processor, tiny_tokenizer, tiny_vision_model


class BrightSide(gym.Env[Any, int]):
    """Say where the bright half is, for some turns; the observation is an image and nothing else."""

    metadata = {"render_modes": []}  # noqa: RUF012 -- Gymnasium's
    instructions = "Which half is bright?"
    action_meanings = ("l", "r")

    def __init__(self, turns: int = 1) -> None:
        self.observation_space = gym.spaces.Box(0, 255, (16, 16, 3), np.uint8)
        self.action_space: Any = gym.spaces.Discrete(2)
        self.turns, self.played, self.side = turns, 0, 0

    def _image(self) -> Any:
        image = np.zeros((16, 16, 3), np.uint8)
        self.side = int(self.np_random.integers(2))
        image[:, 8 * self.side : 8 * self.side + 8] = 255
        image[0, 0] = self.np_random.integers(256, size=3)  # so that no two images of an episode are equal
        return image

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.played = 0
        return self._image(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward, self.played = float(action == self.side), self.played + 1
        ended = self.played >= self.turns
        return self._image(), reward, ended, False, {"success": bool(reward)} if ended else {}


class Drawn(gym.Env[Any, int]):
    """Walk to the end of a row, with a mission, a symbolic code and a picture in the observation."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 -- Gymnasium's

    def __init__(self, render_mode: str | None = None, *, small: bool = False) -> None:
        self.render_mode = render_mode
        held: dict[str, gym.Space[Any]] = {
            "code": gym.spaces.Box(0, 255, (7, 7, 3), np.uint8),
            "mission": gym.spaces.Text(20),
            "place": gym.spaces.Discrete(5),
        }
        side = () if small else ({"screen": gym.spaces.Box(0, 255, (18, 24, 3), np.uint8)},)
        self.observation_space = gym.spaces.Dict({key: it for part in (held, *side) for key, it in part.items()})
        self.action_space: Any = gym.spaces.Discrete(2)
        self.place = 0

    def _seen(self) -> dict[str, Any]:
        screen = np.full((18, 24, 3), 40 * self.place, np.uint8)
        code = np.zeros((7, 7, 3), np.uint8)
        return {"code": code, "mission": "reach the end", "place": self.place, "screen": screen}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = 0
        return self._seen(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place = min(4, max(0, self.place + 2 * action - 1))
        return self._seen(), float(self.place == 4), self.place == 4, False, {}

    def render(self) -> Any:
        return np.full((20, 30, 3), 50 * self.place, np.uint8)


def parity(text: str) -> int:
    """Return the action of a text: the parity of its first character."""
    return ord(text[:1] or "a") % 2


# ---------------------------------------------------------------------------------------------------------------------
# Families of vision-language models, by what divides their inputs
# ---------------------------------------------------------------------------------------------------------------------

_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ 'IMAGE' }}{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}{{ '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def _qwen_processor() -> Any:
    """Return a processor of Qwen2.5-VL, without its videos, which need torchvision; pixels are divided by patches."""
    from transformers import ProcessorMixin, Qwen2_5_VLProcessor
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    class WithoutVideos(Qwen2_5_VLProcessor):
        def __init__(self, image_processor: Any = None, tokenizer: Any = None, chat_template: Any = None) -> None:
            self.image_token, self.video_token = "<|image_pad|>", "<|video_pad|>"
            ids = map(tokenizer.convert_tokens_to_ids, (self.image_token, self.video_token))
            self.image_token_id, self.video_token_id = ids
            ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)

    tokenizer = tiny_tokenizer()
    marks = ["<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>"]
    tokenizer.add_special_tokens({"additional_special_tokens": marks})
    images = Qwen2VLImageProcessorPil(patch_size=8, merge_size=2, min_pixels=16 * 16, max_pixels=32 * 32)
    template = _TEMPLATE.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>")
    return WithoutVideos(images, tokenizer, chat_template=template)


def _idefics_processor() -> Any:
    """Return a processor of Idefics3 and SmolVLM; pixels are divided by rows."""
    from transformers import Idefics3Processor
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    size = {"longest_edge": 16}
    images = Idefics3ImageProcessorPil(size=size, max_image_size=size, do_image_splitting=False)
    template = _TEMPLATE.replace("IMAGE", "<image>")
    return Idefics3Processor(images, tiny_tokenizer(), image_seq_len=4, chat_template=template)


PROCESSORS: dict[str, Callable[[], Any]] = {
    "llava": tiny_processor,
    "qwen": _qwen_processor,
    "idefics": _idefics_processor,
}
"""Functions that make a processor: pixels divided by images, by patches, by rows."""


def model_of(family: str, processor: Any) -> Any:
    """Return a tiny model of a family, with random weights that are always the same."""
    import torch
    from transformers import (
        Idefics3Config,
        Idefics3ForConditionalGeneration,
        Qwen2_5_VLConfig,
        Qwen2_5_VLForConditionalGeneration,
    )

    if family == "llava":
        return tiny_vision_model(processor, width=32)
    tokenizer = processor.tokenizer
    language = tiny_model(tokenizer, width=32).config.to_dict()
    encode = tokenizer.convert_tokens_to_ids
    kind, config = {
        "qwen": lambda: (
            Qwen2_5_VLForConditionalGeneration,
            Qwen2_5_VLConfig(
                text_config={
                    **language,
                    "model_type": "qwen2_5_vl_text",
                    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]},
                },
                vision_config={
                    "depth": 1,
                    "hidden_size": 32,
                    "intermediate_size": 32,
                    "num_heads": 2,
                    "out_hidden_size": 32,
                    "patch_size": 8,
                    "window_size": 32,
                    "fullatt_block_indexes": [0],
                },
                image_token_id=processor.image_token_id,
                video_token_id=processor.video_token_id,
                vision_start_token_id=encode("<|vision_start|>"),
                vision_end_token_id=encode("<|vision_end|>"),
                tie_word_embeddings=True,
            ),
        ),
        "idefics": lambda: (
            Idefics3ForConditionalGeneration,
            Idefics3Config(
                text_config={**language, "model_type": "qwen2"},
                vision_config={
                    "hidden_size": 32,
                    "intermediate_size": 32,
                    "num_hidden_layers": 1,
                    "num_attention_heads": 2,
                    "image_size": 16,
                    "patch_size": 4,
                },
                scale_factor=2,
                image_token_id=processor.image_token_id,
                pad_token_id=0,
                tie_word_embeddings=True,
            ),
        ),
    }[family]()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return kind(config)
