"""Decoders of trl-env, and the sampling options that its trainings take from them."""

from dataclasses import dataclass
from typing import Any

from gym_trl.engines.sample_all import sample_all
from gym_trl.errors import ConfigError
from gym_trl.types import Logprobs, Request, TokenIds


@dataclass
class TransformerDecoder:
    """Decoder for ``rollout`` that samples one response at a time from a Transformers model.

    Random numbers come from torch's global generator, as in trl-env: ``torch.manual_seed`` makes them repeatable.
    """

    model: Any
    temperature: float
    eos_token_set: set[int]
    max_completion_length: int
    """Maximum tokens of a turn."""

    def generate(self, input_ids: TokenIds) -> tuple[TokenIds, Logprobs]:
        """Generate one response; return its ids and logprobs."""
        import torch

        from gym_trl.engines.transformers import TransformersEngine

        ends = sorted(self.eos_token_set)
        sampling = {"temperature": self.temperature}
        # One request needs no padding, so any id serves.
        engine = TransformersEngine(self.model, pad_id=ends[0] if ends else 0, eos_ids=ends, sampling=sampling)
        seed = int(torch.randint(2**31, ()))
        [completion] = sample_all(engine, [Request("response", list(input_ids), self.max_completion_length, seed)])
        return completion.ids, completion.logprobs


TransformerRolloutDecoder = TransformerDecoder
"""Name of ``TransformerDecoder`` up to trl-env 0.1.19."""


@dataclass
class TransformerDecoderFactory:
    """Sampling options for training; the trainer's own engine samples, including vLLM if the trainer uses it."""

    temperature: float
    eos_token_set: set[int]
    max_completion_length: int
    """Maximum tokens of a turn."""

    def check(self, trainer: Any) -> None:
        """Accept any trainer."""

    def make_decoder(self, trainer: Any) -> TransformerDecoder:
        """Return a decoder of the trainer's model for ``rollout``; training does not need it."""
        return TransformerDecoder(trainer.model, self.temperature, self.eos_token_set, self.max_completion_length)


@dataclass
class VLLMDecoderFactory(TransformerDecoderFactory):
    """Sampling options for the trainer's own vLLM; trl-env would start a second one.

    Raises:
        ConfigError: At the first rollout: the trainer has no vLLM, or its vLLM has other settings.
    """

    gpu_memory_utilization: float | None = None
    enable_sleep_mode: bool | None = None

    def check(self, trainer: Any) -> None:
        """Check that the trainer's vLLM has the requested settings."""
        if not trainer.use_vllm:
            raise ConfigError(
                "VLLMDecoderFactory needs the trainer's vLLM: set GRPOConfig(use_vllm=True, vllm_mode='colocate'); a "
                "second engine beside the trainer would never see its weights"
            )
        for name, wanted in (
            ("vllm_gpu_memory_utilization", self.gpu_memory_utilization),
            ("vllm_enable_sleep_mode", self.enable_sleep_mode),
        ):
            if wanted is not None and wanted != (has := getattr(trainer.args, name)):
                raise ConfigError(f"VLLMDecoderFactory asks for {wanted}, the trainer has GRPOConfig({name}={has})")
