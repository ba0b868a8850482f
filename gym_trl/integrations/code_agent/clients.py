"""Clients that sample for environments: of a vLLM server, and of the model in training."""

from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import count
from typing import Any

from gym_trl.episode import Segment
from gym_trl.errors import ConfigError, EngineError, check_counts
from gym_trl.grpo.trainer_engine import SAMPLING, Stops, trainer_engine
from gym_trl.grpo.trl_versions import tokenizer_of
from gym_trl.integrations.sample_all import sample_all
from gym_trl.types import Completion, TokenIds

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

    stop_ids: frozenset[int] = frozenset()
    """Ids that end a response; a server has its own."""

    @abstractmethod
    def engine(self, config: VLLMClientGenerationConfig, stops: Stops) -> AbstractContextManager[Any]:
        """Provide an engine that samples with ``config``."""

    @abstractmethod
    def encode(self, prompt: str) -> TokenIds:
        """Return the ids of a prompt."""

    def generate(self, prompts: Sequence[str | Sequence[int]], **options: Any) -> list[TokenIds]:
        """Return the ids of ``n`` responses to each prompt, in order.

        Args:
            prompts: Prompts, each as text or ids.
            options: Fields of ``VLLMClientGenerationConfig``.

        Raises:
            EngineError: A response could not be generated.
        """
        config, call = VLLMClientGenerationConfig(**options), next(CALLS)
        begun = [self.encode(prompt) if isinstance(prompt, str) else list(prompt) for prompt in prompts]
        with self.engine(config, Stops(self.stop_ids, tuple(config.stop or ()))) as engine:
            completions = sample_all(engine, begun, config.n, config.max_tokens, "generate", call)
        for place, completion in enumerate(completions):
            self.note(prompts[place // config.n], begun[place // config.n], completion)
        return [completion.ids for completion in completions]

    def note(self, prompt: str | Sequence[int], ids: TokenIds, completion: Completion) -> None:  # noqa: B027
        """Note a response to a prompt with these ids."""


class VLLMClient(Client):
    """Client of ``vllm serve``, like TRL's class of that name but without weight updates.

    ::

        client = VLLMClient()  # of `vllm serve MODEL --logprobs-mode processed_logprobs`, on this machine
        client.generate(["2 + 2 = "], n=4, max_tokens=8)

    Args:
        base_url: Address of the server. Default: ``host`` and ``server_port``.
        host: Host of the server.
        server_port: Port of the server.
    """

    def __init__(
        self,
        base_url: str | None = None,
        host: str = "0.0.0.0",  # noqa: S104 -- as TRL has it
        server_port: int = 8000,
    ) -> None:
        self.base_url = (base_url or f"http://{host}:{server_port}").rstrip("/")

    def engine(self, config: VLLMClientGenerationConfig, stops: Stops) -> AbstractContextManager[Any]:
        """Provide a ``ServerEngine``."""
        from gym_trl.engines.server import ServerEngine

        sampling: dict[str, Any] = {name: getattr(config, name) for name in SAMPLING}
        if config.guided_decoding_regex is not None:
            sampling["structured_outputs"] = {"regex": config.guided_decoding_regex}
        return nullcontext(
            ServerEngine(self.base_url, eos_ids=stops.stop_ids, sampling=sampling, stop_strings=stops.stop_strings)
        )

    def encode(self, prompt: str) -> TokenIds:
        """Return the ids of a prompt, as the server encodes it."""
        import httpx

        response = httpx.post(f"{self.base_url}/tokenize", json={"prompt": prompt}, timeout=60)
        if response.status_code != 200:
            raise EngineError(f"{self.base_url} cannot tokenize a prompt: {response.status_code} {response.text:.200}")
        return [int(id_) for id_ in response.json()["tokens"]]


class TrainerClient(Client):
    """Client that samples from the model in training, and knows every response again that a row contains."""

    def __init__(self, trainer: Any) -> None:
        self._trainer, self._tokenizer = trainer, tokenizer_of(trainer)
        self.stop_ids = frozenset({self._tokenizer.eos_token_id} - {None})
        self._sampled: defaultdict[tuple[int, ...], list[Completion]] = defaultdict(list)  # by the ids before
        self._texts: defaultdict[str, deque[TokenIds]] = defaultdict(deque)  # ids of prompts with their responses

    def engine(self, config: VLLMClientGenerationConfig, stops: Stops) -> AbstractContextManager[Any]:
        """Provide the trainer's own engine.

        Raises:
            ConfigError: ``config`` has other sampling options than the trainer.
        """
        for name in SAMPLING:
            if (asked := getattr(config, name)) != (value := getattr(self._trainer.args, name)):
                raise ConfigError(
                    f"the trainer samples with {name}={value!r}, and an environment asked for {asked!r}: set "
                    f"GRPOConfig({name}=...) instead, or what is trained is not what was sampled"
                )
        return trainer_engine(self._trainer, stops)

    def encode(self, prompt: str) -> TokenIds:
        """Return the ids of a prompt; one that continues a response keeps its ids, and the rest is encoded."""
        begun = max((text for text in self._texts if prompt.startswith(text)), key=len, default=None)
        if begun is None:
            return encode_prompt(self._tokenizer, prompt)
        alike = self._texts[begun]
        alike.rotate(-1)  # several responses may have the same text: each is continued in turn
        rest = prompt[len(begun) :]
        return alike[-1] + (list(self._tokenizer.encode(rest, add_special_tokens=False)) if rest else [])

    def note(self, prompt: str | Sequence[int], ids: TokenIds, completion: Completion) -> None:
        """Note a response by the ids before it, and by its text with that of its prompt."""
        self._sampled[tuple(ids)].append(completion)
        if isinstance(prompt, str):
            for skipped in (True, False):
                text = prompt + self._tokenizer.decode(completion.ids, skip_special_tokens=skipped)
                self._texts[text].append(ids + completion.ids)

    def row(self, prompt: TokenIds, ids: TokenIds) -> Segment:
        """Return ids up to the last sampled one as a row: the responses that they contain, and what is between them.

        Raises:
            ConfigError: No part of ``ids`` was sampled after the ids before it.
        """
        row, lengths = Segment(prompt), {len(before) for before in self._sampled}
        place = end = 0
        while place < len(ids):
            rest, fitting = ids[place:], []
            if len(prompt) + place in lengths:
                known = self._sampled.get((*prompt, *ids[:place]), ())
                fitting = [one for one in known if one.ids and one.ids[: len(rest)] == rest[: len(one.ids)]]
            if not fitting:
                place += 1
                continue
            longest = max(fitting, key=lambda one: len(one.ids))
            row.add(ids[end:place])
            row.add(longest.ids[: len(rest)], longest.logprobs[: len(rest)])
            place = end = len(row.completion_ids)
        if ids and not end:
            raise ConfigError(
                "an environment returned tokens that the model did not sample from this prompt: return what "
                "vllm_client.generate returned, unchanged, and never decode and encode it again"
            )
        return row


def encode_prompt(tokenizer: Any, text: str) -> TokenIds:
    """Return the ids of a prompt with its control tokens and at most one beginning-of-sequence token."""
    has_bos = bool(tokenizer.bos_token) and text.startswith(str(tokenizer.bos_token))
    return list(tokenizer.encode(text, add_special_tokens=not has_bos))
