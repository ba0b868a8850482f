"""Clients that sample for environments: of a vLLM server, and of the model in training."""

import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

from gym_trl.chat import Stops
from gym_trl.errors import ConfigError, EngineError, check_counts
from gym_trl.grpo.trainer_engine import SAMPLING, trainer_engine
from gym_trl.grpo.trl_versions import tokenizer_of
from gym_trl.integrations.sample_all import sample_all
from gym_trl.seeding import derive_seed
from gym_trl.types import Logprobs, Request, TokenIds

CALLS = count()
"""Numbers of the calls of this process, from which seeds are derived."""


@dataclass
class VLLMClientGenerationConfig:
    """Number of responses per prompt, their maximum length, and sampling options.

    >>> config = VLLMClientGenerationConfig(
    ...     n=8, repetition_penalty=1.0, temperature=0.8, top_p=0.9, top_k=10, min_p=0.0, max_tokens=256
    ... )
    >>> vars(config)["guided_decoding_regex"] is None
    True

    ``max_tokens`` limits a whole conversation, including the output of programs.
    """

    n: int = 1
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = -1
    min_p: float = 0.0
    max_tokens: int = 16
    guided_decoding_regex: str | None = None
    stop: list[str] | None = None

    def __post_init__(self) -> None:
        check_counts(n=self.n, max_tokens=self.max_tokens)


class Client(ABC):
    """Base class of the clients from which environments request responses."""

    @abstractmethod
    def engine(self, config: VLLMClientGenerationConfig, chat: Stops) -> Any:
        """Return a context manager with an engine that samples with ``config`` and stops where ``chat`` does."""

    @abstractmethod
    def _encode(self, prompt: str | Sequence[int]) -> TokenIds:
        """Return the ids of a prompt."""

    def _sampled(self, prompt: str | Sequence[int], prompt_ids: TokenIds, ids: TokenIds, logprobs: Logprobs) -> None:
        """Record a sampled response, if the client needs it later."""
        return

    def generate(self, prompts: Sequence[str | Sequence[int]], **options: Any) -> list[TokenIds]:
        """Return the ids of ``n`` responses to each prompt, in order.

        Args:
            prompts: Prompts, each as text or ids.
            options: Fields of ``VLLMClientGenerationConfig``.

        Raises:
            EngineError: A response could not be generated.
        """
        config = VLLMClientGenerationConfig(**options)
        call = next(CALLS)
        expanded = [(prompt, ids) for prompt in prompts for ids in [self._encode(prompt)] for _ in range(config.n)]
        with self.engine(config, stops_of(self._tokenizer, config.stop or [])) as engine:
            requests = [
                Request(str(place), ids, config.max_tokens, derive_seed("generate", call, place), turn=1)
                for place, (_, ids) in enumerate(expanded)
            ]
            completions = sample_all(engine, requests)
        for (prompt, ids), completion in zip(expanded, completions, strict=True):
            self._sampled(prompt, ids, completion.ids, completion.logprobs)
        return [completion.ids for completion in completions]

    _tokenizer: Any = None  # a server ends responses itself


class VLLMClient(Client):
    """Client of ``vllm serve``, like TRL's class of that name but without weight updates.

    ::

        client = VLLMClient()  # of `vllm serve MODEL --logprobs-mode processed_logprobs`, on this machine
        client.generate(["2 + 2 = "], n=4, max_tokens=8)

    Args:
        base_url: Address of the server. Default: ``host`` and ``server_port``.
        host: Host of the server.
        server_port: Port of the server.
        connection_timeout: Maximum seconds to wait until the server is ready.

    Raises:
        ConnectionError: The server did not become ready.
    """

    def __init__(
        self,
        base_url: str | None = None,
        host: str = "0.0.0.0",  # noqa: S104 -- as TRL has it
        server_port: int = 8000,
        connection_timeout: float = 0.0,
    ) -> None:
        self.base_url = (base_url or f"http://{host}:{server_port}").rstrip("/")
        if connection_timeout:
            self._wait(connection_timeout)

    def _wait(self, seconds: float) -> None:
        import httpx

        deadline = time.monotonic() + seconds
        while True:
            with suppress(httpx.HTTPError):
                if httpx.get(f"{self.base_url}/health", timeout=seconds).status_code == 200:
                    return
            if time.monotonic() > deadline:
                raise ConnectionError(f"no vLLM server answers at {self.base_url}: start one with vllm serve MODEL")
            time.sleep(0.1)

    def engine(self, config: VLLMClientGenerationConfig, chat: Stops) -> Any:
        """Provide a ``ServerEngine``."""
        from gym_trl.engines.server import ServerEngine

        sampling: dict[str, Any] = {name: getattr(config, name) for name in SAMPLING}
        if config.guided_decoding_regex is not None:
            sampling["structured_outputs"] = {"regex": config.guided_decoding_regex}
        return nullcontext(
            ServerEngine(self.base_url, eos_ids=chat.stop_ids, sampling=sampling, stop_strings=chat.stop_strings)
        )

    def _encode(self, prompt: str | Sequence[int]) -> TokenIds:
        if not isinstance(prompt, str):
            return list(prompt)
        import httpx

        response = httpx.post(f"{self.base_url}/tokenize", json={"prompt": prompt}, timeout=60)
        if response.status_code != 200:
            raise EngineError(f"{self.base_url} cannot tokenize a prompt: {response.status_code} {response.text:.200}")
        return [int(id_) for id_ in response.json()["tokens"]]


class Sample(NamedTuple):
    """Sampled response."""

    ids: TokenIds
    logprobs: Logprobs


class TrainerClient(Client):
    """Client that samples from the model in training, and records every response to recognize it in a row."""

    def __init__(self, trainer: Any, codec: "PromptCodec") -> None:
        self._trainer = trainer
        self._tokenizer = tokenizer_of(trainer)
        self._codec = codec
        self._texts: dict[str, list[TokenIds]] = defaultdict(list)
        self._samples: dict[tuple[int, ...], list[Sample]] = defaultdict(list)

    def engine(self, config: VLLMClientGenerationConfig, chat: Stops) -> Any:
        """Return the trainer's own engine.

        Raises:
            ConfigError: ``config`` has other sampling options than the trainer.
        """
        for name in SAMPLING:
            if getattr(config, name) != (value := getattr(self._trainer.args, name)):
                raise ConfigError(
                    f"the trainer samples with {name}={value!r}, and an environment asked for "
                    f"{getattr(config, name)!r}: set GRPOConfig({name}=...) instead, or what is trained is not what "
                    "was sampled"
                )
        return trainer_engine(self._trainer, chat)

    def _encode(self, prompt: str | Sequence[int]) -> TokenIds:
        """Return the ids of a prompt; a text that continues a sampled response keeps its ids and encodes the rest."""
        if not isinstance(prompt, str):
            return list(prompt)
        continued = max((text for text in self._texts if prompt.startswith(text)), key=len, default=None)
        if continued is None:
            return self._codec.prompt(prompt)
        alike = self._texts[continued]
        ids = alike.pop(0)  # several responses may have the same text: each is continued in turn
        alike.append(ids)
        return ids + self._codec.more(prompt[len(continued) :])

    def _sampled(self, prompt: str | Sequence[int], prompt_ids: TokenIds, ids: TokenIds, logprobs: Logprobs) -> None:
        self._samples[tuple(prompt_ids)].append(Sample(ids, logprobs))
        if isinstance(prompt, str):
            for skipped in (True, False):
                self._texts[prompt + self._tokenizer.decode(ids, skip_special_tokens=skipped)].append(prompt_ids + ids)

    def row(self, prompt: TokenIds, ids: TokenIds) -> tuple[TokenIds, list[int], Logprobs]:
        """Return the ids up to the last sampled one, with their mask and logprobs.

        Raises:
            ConfigError: No part of ``ids`` was sampled after the ids before it.
        """
        lengths = {len(before) for before in self._samples}
        mask, place = [0] * len(ids), 0
        logprobs: Logprobs = [0.0] * len(ids)
        while place < len(ids):
            sample = None
            if len(prompt) + place in lengths:
                sample = self._find(prompt + ids[:place], ids[place:])
            if sample is None:
                place += 1
                continue
            end = min(len(ids), place + len(sample.ids))
            mask[place:end] = [1] * (end - place)
            logprobs[place:end] = sample.logprobs[: end - place]
            place = end
        last = max((place for place, sampled in enumerate(mask) if sampled), default=-1)
        if ids and last < 0:
            raise ConfigError(
                "an environment returned tokens that the model did not sample from this prompt: return what "
                "vllm_client.generate returned, unchanged, and never decode and encode it again"
            )
        return ids[: last + 1], mask[: last + 1], logprobs[: last + 1]

    def _find(self, before: TokenIds, after: TokenIds) -> Sample | None:
        fitting = [
            sample
            for sample in self._samples.get(tuple(before), ())
            if sample.ids[: len(after)] == after[: len(sample.ids)]
        ]
        return max(fitting, key=lambda sample: len(sample.ids), default=None)


class PromptCodec:
    """Encoder of prompts that are text."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def prompt(self, text: str) -> TokenIds:
        """Return the ids of a prompt with its control tokens and at most one beginning-of-sequence token."""
        bos = getattr(self._tokenizer, "bos_token", None)
        has_bos = bool(bos) and text.startswith(str(bos))
        return list(self._tokenizer.encode(text, add_special_tokens=not has_bos))

    def more(self, text: str) -> TokenIds:
        """Return the ids of text within a sequence."""
        return list(self._tokenizer.encode(text, add_special_tokens=False)) if text else []

    def render(self, prompt: Any) -> str:
        """Return a prompt as text; a list of messages is rendered with the chat template."""
        if isinstance(prompt, str):
            return prompt
        messages = [{"role": message["role"], "content": message["content"]} for message in prompt]
        return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def stops_of(tokenizer: Any, stop: Sequence[str]) -> Stops:
    """Return the stop tokens and stop strings of a conversation without a chat template."""
    eos = getattr(tokenizer, "eos_token_id", None)
    return Stops(frozenset(() if eos is None else (eos,)), tuple(stop))


def client_of(vllm_client: Any) -> Client:
    """Return a client itself, and one with the address of TRL's own client."""
    if isinstance(vllm_client, Client):
        return vllm_client
    if isinstance(url := getattr(vllm_client, "base_url", None), str):  # TRL's client
        return VLLMClient(base_url=url)
    raise ConfigError(f"vllm_client must be a VLLMClient, got {vllm_client!r:.80}")
