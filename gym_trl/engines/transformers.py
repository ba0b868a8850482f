"""Generation with a Transformers model: each turn computes what is new in it, with one seed per request."""

import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gym_trl.engines.attention_backends import no_cudnn_attention
from gym_trl.engines.kv_cache import Block, Ids, KVCache, NotPlainError, attending, compute, why_not_plain
from gym_trl.engines.protocol import Engine
from gym_trl.engines.sampler import End, Sampler
from gym_trl.errors import ConfigError, EngineError, MissingDependencyError
from gym_trl.types import Completion, FinishReason, Logprobs, Request, TokenIds

try:
    import torch
    from transformers import DynamicCache, GenerationConfig
    from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
except ImportError as error:
    raise MissingDependencyError("TransformersEngine", extra="train") from error

_STEP_TOKENS = 2048
"""Most tokens of a step, so that its memory does not grow with the prompts; a longer prompt takes several steps."""
_ROOM = 32
"""Tokens of a response for which there is room at once; a longer one moves to a larger block."""
_PATIENCE = 16
"""Tokens that a running request is about to compute, for which another with the same beginning waits."""
_log: Any = logging.getLogger(__name__)  # with Transformers' warning_once


@dataclass(eq=False, slots=True)
class _Row:
    """Request and its response so far."""

    request: Request
    prompt: Ids
    most: int
    """Number of tokens that the response may have."""
    chance: np.random.Generator
    """Generator of its random numbers, one for each token."""
    sampled: TokenIds = field(default_factory=list)
    logprobs: Logprobs = field(default_factory=list)
    finish: FinishReason | None = None
    block: Block | None = None

    def completion(self) -> Completion:
        """Return the completion of a request that has ended."""
        assert self.finish is not None
        return Completion(self.request.id, self.sampled, self.logprobs, self.finish)


class TransformersEngine(Engine):
    """Engine that samples with a Transformers model in this process.

    Requests join the running batch and leave it at any step, of which ``collect`` runs one. The keys and values of a
    prompt stay in memory: the next turn of an episode, the other episodes of its group and all that begin alike compute
    only the tokens that are new. That takes at most a quarter of the memory that is free at the first request, on a GPU
    half of it; requests wait when it is full, and one that cannot fit at all is generated alone with memory of its own.

    That is for models of full causal attention. Others, with sliding windows, sinks, linear attention or a state, are
    generated in lockstep: ``collect`` then runs one batch of all pending requests, with their whole prompts padded on
    the left, to its end, which takes several times as long. The attribute ``lockstep`` says why, and a warning is
    logged once. Where layers have a state, which padding would change, each request is generated alone.

    Every request is sampled from its own seed, so a completion does not depend on the other requests of its batch (up
    to the rounding of batched arithmetic), and the global generators are not used. Logprobs are those of the
    distribution that was sampled from, after temperature, top-k and so on. A model in training mode is switched to
    evaluation mode for the call, and has its own attention function again afterwards.

    The weights must not change as long as the engine is used: make another one afterwards.

    Args:
        model: A decoder-only Transformers model.
        pad_id: Id for padding on the left; never attended to.
        eos_ids: Ids that end a response; they are kept in it.
        sampling: Sampling options by their names in ``GenerationConfig``: ``temperature``, ``top_p``, ``top_k``,
            ``min_p``, ``repetition_penalty``; ``{"temperature": 0}`` or ``{"do_sample": False}`` selects the most
            probable token.
        stop_strings: Strings that end a response; their ids are kept in it. Needs ``decode``.
        decode: Function from ids to text, for ``stop_strings``.

    Raises:
        ConfigError: an unsupported option, such as one that changes the sampling in a way that cannot be measured.
    """

    def __init__(
        self,
        model: Any,
        *,
        pad_id: int,
        eos_ids: Collection[int],
        sampling: Mapping[str, Any] | None = None,
        stop_strings: Sequence[str] = (),
        decode: Callable[[TokenIds], str] | None = None,
    ) -> None:
        causal = any(getattr(part, "is_causal", False) for part in model.modules())  # GPT-NeoX says no in its config
        if model.config.is_encoder_decoder or (getattr(model.config, "is_decoder", None) is False and not causal):
            raise ConfigError(f"the model must be a decoder that reads from left to right, got {type(model).__name__}")
        self.model = model
        self.lockstep = why_not_plain(model)
        """Reason for which whole prompts are generated in lockstep, or ``None``; some models show it in a pass only."""
        self._sampler, self._end = Sampler(sampling or {}), End(eos_ids, stop_strings, decode)
        self._pad_id, self._positions = pad_id, context_of(model.config)
        embedding = model.get_input_embeddings()
        self._vocabulary = getattr(embedding, "num_embeddings", None) or model.config.get_text_config().vocab_size
        self._waiting: list[_Row] = []
        self._running: list[_Row] = []
        self._cache: KVCache | None = None

    def submit(self, request: Request) -> None:
        """Accept a request; its response ends where the model's positions end.

        Raises:
            EngineError: The model cannot continue it: it has no ids, unknown ones, or too many.
        """
        prompt = np.array(request.prompt_ids, dtype=np.int64)
        most = min(request.max_tokens, (self._positions or math.inf) - len(prompt))
        if not len(prompt) or most < 1:
            raise EngineError(f"{len(prompt)} ids cannot be continued in the model's {self._positions} positions")
        if prompt.min() < 0 or prompt.max() >= self._vocabulary:
            raise EngineError(f"prompt_ids has {prompt.max()}, and the vocabulary ends at {self._vocabulary - 1}")
        self._waiting.append(_Row(request, prompt, int(most), np.random.default_rng(request.seed)))

    def cancel(self, request_id: str) -> None:
        """Drop a request and free its place."""
        self._waiting = [row for row in self._waiting if row.request.id != request_id]
        for row in [row for row in self._running if row.request.id == request_id]:
            self._leave(row)

    def collect(self) -> list[Completion]:
        """Run one step, or in lockstep a whole batch."""
        if not self._waiting and not self._running:
            return []
        with _undisturbed(self.model), no_cudnn_attention():
            if self.lockstep is None:
                try:
                    return self._run()
                except NotPlainError as error:  # in the first pass
                    self.lockstep = str(error)
                    self._waiting = [*self._running, *self._waiting]
                    self._running, self._cache = [], None
            name = type(self.model).__name__
            _log.warning_once(f"{name} is generated in lockstep, which takes several times as long: {self.lockstep}")
            batch, self._waiting = self._waiting, []
            return self._generate(batch)

    def _sample(self, rows: list[_Row], logits: Any) -> None:
        """Sample the next token of each row, and note which rows have ended with it."""
        earlier = None
        if self._sampler.reads_earlier_ids:  # continued to one length by their first, which changes no penalty
            known = [[*row.request.prompt_ids, *row.sampled] for row in rows]
            width = max(map(len, known))
            earlier = torch.tensor([ids + ids[:1] * (width - len(ids)) for ids in known], device=logits.device)
        chosen, logprobs = self._sampler.choose(logits, earlier, [row.chance.random() for row in rows])
        for row, id_, logprob in zip(rows, chosen.tolist(), logprobs.tolist(), strict=True):
            row.sampled.append(id_)
            row.logprobs.append(logprob)
            if self._end.reached(row.sampled):
                row.finish = FinishReason.STOP
            elif len(row.sampled) >= row.most:
                row.finish = FinishReason.LENGTH

    # -----------------------------------------------------------------------------------------------------------------
    # With keys and values kept
    # -----------------------------------------------------------------------------------------------------------------

    def _run(self) -> list[Completion]:
        if self._cache is None:
            self._cache = KVCache(_free_bytes(self.model.device) // _token_bytes(self.model))
        for row in self._waiting:
            if not self._cache.fits(len(row.prompt) + row.most):
                self._waiting.remove(row)
                return self._generate([row])
        with attending(self.model):
            return self._step(self._cache)

    def _step(self, cache: KVCache) -> list[Completion]:
        """Compute one pass, sample from it, and return the requests that have ended."""
        for row in self._running[::-1]:  # the id that was sampled last joins the sequence
            if row.block and not row.block.append(row.sampled[row.block.length - len(row.prompt) :]):
                self._leave(row)
                self._waiting.insert(0, row)  # it comes back with a larger block, when there is space
        self._admit(cache)
        pieces, asking, room = [], [], _STEP_TOKENS
        # Rows that sample come first, so that a long prompt does not hold them up.
        by_missing = sorted(((row, row.block) for row in self._running if row.block), key=lambda pair: pair[1].missing)
        for row, row_block in by_missing:
            if not (number := min(room, row_block.missing)):
                break
            if number == row_block.missing:
                asking.append(row)
            pieces.append((row_block, number))
            room -= number
        logits = compute(self.model, cache, pieces)[: len(asking)]
        if asking:
            self._sample(asking, logits)
        ended = [row for row in asking if row.finish is not None]
        for row in ended:
            self._leave(row)
        return [row.completion() for row in ended]

    def _admit(self, cache: KVCache) -> None:
        """Let waiting requests join, except those that begin with what a running one is about to compute."""
        left: list[_Row] = []
        for number, row in enumerate(self._waiting):
            ids = np.concatenate([row.prompt, np.array(row.sampled, dtype=np.int64)])
            match = cache.find(ids, row.request.episode_id)
            if match.coming - match.length >= _PATIENCE:
                left.append(row)
                continue
            room = min(_ROOM, row.most - len(row.sampled))
            row.block = cache.open(ids, match, room=room, owner=row.request.episode_id)
            if row.block is None:  # the later ones wait too, or a long prompt would never find room
                left += self._waiting[number:]
                break
            self._running.append(row)
        self._waiting = left

    def _leave(self, row: _Row) -> None:
        assert row.block is not None
        assert self._cache is not None
        self._running.remove(row)
        self._cache.release(row.block, row.request.episode_id)
        row.block = None

    # -----------------------------------------------------------------------------------------------------------------
    # In lockstep
    # -----------------------------------------------------------------------------------------------------------------

    def _generate(self, rows: list[_Row]) -> list[Completion]:
        """Return the completions of whole prompts, padded on the left, when all have ended."""
        width, longest = max(len(row.prompt) for row in rows), max(row.most for row in rows)
        # A row that has ended is computed until the last one ends, maybe after the model's positions.
        end = width + longest
        if len(rows) > 1 and (not _ignores_padding(self.model) or end > (self._positions or end)):
            return [completion for row in rows for completion in self._generate([row])]
        config = GenerationConfig(
            max_new_tokens=longest, do_sample=False, pad_token_id=self._pad_id, disable_compile=True
        )
        prompts = torch.full((len(rows), width), self._pad_id)
        mask = torch.zeros_like(prompts)
        for index, row in enumerate(rows):
            prompts[index, width - len(row.prompt) :] = torch.from_numpy(row.prompt)
            mask[index, width - len(row.prompt) :] = 1

        def choose(_: Any, scores: Any) -> Any:
            """Sample the next token of the rows that go on, and leave only it possible."""
            going = [index for index, row in enumerate(rows) if row.finish is None]
            self._sample([rows[index] for index in going], scores[going])
            chosen = torch.tensor([row.sampled[-1:] for row in rows], device=scores.device)
            return torch.full_like(scores, -torch.inf).scatter_(1, chosen, 0.0)

        def ended(ids: Any, scores: Any, **_: Any) -> Any:
            return torch.tensor([row.finish is not None for row in rows], device=ids.device)

        # Of the scores of its routers a mixture of experts computes a loss, which fails where keys are cached.
        routed = hasattr(self.model.config.get_text_config(), "output_router_logits")
        with torch.no_grad(), _configured(self.model, config):
            self.model.generate(
                prompts.to(self.model.device),
                attention_mask=mask.to(self.model.device),
                **({"output_router_logits": False} if routed else {}),
                generation_config=config,
                logits_processor=[choose],
                stopping_criteria=[ended],
                synced_gpus=False,  # processes play different episodes and must not wait for each other
            )
        return [row.completion() for row in rows]


def context_of(config: Any) -> int | None:
    """Return the number of tokens for which a model with this configuration works; ``None`` if it has no limit.

    >>> from transformers import LlamaConfig
    >>> context_of(LlamaConfig(max_position_embeddings=512))
    512

    Rotary embeddings that change for all positions at some length (``dynamic``, ``longrope``) end there: keys that were
    computed before are not those with which a training recomputes the log probabilities.
    """
    text = config.get_text_config()
    rotary = getattr(text, "rope_parameters", None) or {}
    lengths = [getattr(text, "max_position_embeddings", None)]
    if rotary.get("rope_type") in ("dynamic", "longrope"):
        lengths.append(rotary.get("original_max_position_embeddings"))
        lengths.append(getattr(text, "original_max_position_embeddings", None))
    return min((int(length) for length in lengths if length), default=None)


def _ignores_padding(model: Any) -> bool:
    """Return whether padding on the left changes no scores: the layers have attention only, and no state."""
    layers = DynamicCache(config=model.config.get_text_config(decoder=True)).layers
    plain = all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers)
    return plain and not getattr(model, "_is_stateful", False)


def _token_bytes(model: Any) -> int:
    """Return the memory of the keys and values of a token, in all layers."""
    config = model.config.get_text_config(decoder=True)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    sizes = [getattr(config, name, None) or 0 for name in ("head_dim", "qk_head_dim", "v_head_dim")]
    size = max(sizes) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * size * model.dtype.itemsize)


def _free_bytes(device: Any) -> int:
    """Return the default memory of keys and values on a device."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0] + unused) // 2
    if device.type == "cpu":
        from psutil import virtual_memory  # accelerate needs it, so [train] installs it

        return int(virtual_memory().available) // 4
    return 2 * 2**30


@contextmanager
def _undisturbed(model: Any) -> Iterator[None]:
    """Switch modules in training mode to evaluation mode, and back at the end, and run a compiled model as it is.

    Nearly every pass has other lengths, for which it would be compiled again.
    """
    modules = list(model.modules())
    training = [module for module in modules if module.training]
    model.eval()
    # Without a compiled part, the compiler may not even be imported, which takes a second.
    compiled = any("_orig_mod" in part._modules or part._compiled_call_impl is not None for part in modules)
    try:
        with torch.compiler.set_stance("force_eager") if compiled else nullcontext():
            yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def _configured(model: Any, config: Any) -> Iterator[None]:
    """Replace the model's generation config, from which Transformers takes options that a config leaves open."""
    if hasattr(model, "get_base_model"):  # PEFT generates with the wrapped model's
        model = model.get_base_model()
    previous, model.generation_config = model.generation_config, config
    try:
        yield
    finally:
        model.generation_config = previous
