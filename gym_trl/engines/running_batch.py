"""Batch that requests join and leave at any step, with the keys and values of earlier turns kept."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gym_trl.engines.kv_attention import compute
from gym_trl.engines.kv_cache import Block, KVCache
from gym_trl.engines.sampler import End, Sampler
from gym_trl.errors import MissingDependencyError
from gym_trl.types import Completion, FinishReason, Logprobs, Request, TokenIds

try:
    import torch
except ImportError as error:
    raise MissingDependencyError("TransformersEngine", extra="train") from error

_STEP_TOKENS = 2048
"""Most tokens of a step, so that its memory does not grow with the prompts; a longer prompt takes several steps."""
_ROOM = 32
"""Tokens of a response for which there is room at once; a longer one moves to a larger block."""
_WORTH_WAITING = 16
"""Tokens that a running request is about to compute, for which another with the same beginning waits."""


@dataclass(slots=True)
class EngineStats:
    """Counts of an engine's work, from its first step."""

    steps: int = 0
    """Forward passes."""
    computed: int = 0
    """Tokens that went through the model."""
    reused: int = 0
    """Tokens of prompts whose keys and values were in the cache."""
    sampled: int = 0
    """Tokens of responses."""
    evicted: int = 0
    """Sequences whose keys and values made room for others."""
    most_running: int = 0
    """Largest number of requests in a step."""
    most_bytes: int = 0
    """Largest size of the cache."""


@dataclass(eq=False, slots=True)
class _Row:
    """Request and its response so far."""

    request: Request
    prompt: "np.ndarray[Any, np.dtype[np.int64]]"
    points: Any
    sampled: TokenIds = field(default_factory=list)
    logprobs: Logprobs = field(default_factory=list)
    block: Block | None = None

    @property
    def ids(self) -> "np.ndarray[Any, np.dtype[np.int64]]":
        return np.concatenate([self.prompt, np.array(self.sampled, dtype=np.int64)]) if self.sampled else self.prompt

    @property
    def room(self) -> int:
        return min(_ROOM, self.request.max_tokens - len(self.sampled))


class RunningBatch:
    """Requests that wait or run; a ``step`` samples a token for each running one.

    Args:
        model: A model that ``gym_trl.engines.kv_support`` supports.
        cache: Holds the keys and values.
        sampler: Chooses the tokens.
        end: Says where a response ends.
        max_running: Maximum number of requests in a step. Default: as many as the cache has room for.
        stats: Counts to continue.
    """

    def __init__(
        self, model: Any, cache: KVCache, *, sampler: Sampler, end: End, max_running: int | None, stats: EngineStats
    ) -> None:
        self._model = model
        self._cache = cache
        self._sampler = sampler
        self._end = end
        self._max_running = max_running
        self._stats = stats
        self._waiting: deque[_Row] = deque()
        self._running: list[_Row] = []

    def __len__(self) -> int:
        """Return the number of requests that have not ended."""
        return len(self._waiting) + len(self._running)

    def takes(self, request: Request) -> bool:
        """Return whether the cache has room for a request's prompt and longest response."""
        return self._cache.fits(len(request.prompt_ids) + request.max_tokens)

    def submit(self, request: Request) -> None:
        """Accept a request that it ``takes``."""
        prompt = np.array(request.prompt_ids, dtype=np.int64)
        self._waiting.append(_Row(request, prompt, self._sampler.points(request)))

    def cancel(self, request_id: str) -> None:
        """Drop a request and free its place; unknown ids are ignored."""
        self._waiting = deque(row for row in self._waiting if row.request.id != request_id)
        for row in [row for row in self._running if row.request.id == request_id]:
            self._leave(row)

    def reset_cache(self) -> None:
        """Drop all keys and values; running responses continue after theirs have been computed again."""
        self._cache.reset()

    def step(self) -> list[Completion]:
        """Compute one pass, sample from it, and return the requests that have ended."""
        running, evicted = self._running, self._cache.evicted
        self._admit()
        self._make_room()
        if not running:  # one that filled half of the memory has left to come back with all of it
            self._admit()
        pieces, asking, room = [], [], _STEP_TOKENS
        # Rows that sample come first, so that a long prompt does not hold them up.
        for row in sorted(running, key=_missing):
            number = min(room, _missing(row))
            if not number:
                break
            assert row.block is not None
            pieces.append((row.block, number))
            asking.append(row if number == _missing(row) else None)
            room -= number
        logits = compute(self._model, self._cache, pieces)
        stats = self._stats
        stats.steps += 1
        stats.computed += _STEP_TOKENS - room
        stats.most_running = max(stats.most_running, len(pieces))
        stats.most_bytes = max(stats.most_bytes, self._cache.nbytes)
        stats.evicted += self._cache.evicted - evicted
        sampling = [index for index, row in enumerate(asking) if row is not None]
        if not sampling:
            return []
        return self._sample(
            [row for row in asking if row is not None], logits if None not in asking else logits[sampling]
        )

    def _admit(self) -> None:
        """Let waiting requests join, except those that begin with what a running one is about to compute."""
        waiting, self._waiting = self._waiting, deque()
        while waiting and (self._max_running is None or len(self._running) < self._max_running):
            row = waiting.popleft()
            ids, owner = row.ids, row.request.episode_id
            match = self._cache.find(ids, owner)
            if match.coming - match.length >= _WORTH_WAITING:
                self._waiting.append(row)
                continue
            row.block = self._cache.open(ids, match, row.room, owner)
            if row.block is None:  # the later ones wait too, or a long prompt would never find room
                self._waiting.append(row)
                break
            self._stats.reused += row.block.computed
            self._running.append(row)
        self._waiting.extend(waiting)  # and are not looked at: that takes a time that grows with their prompts

    def _make_room(self) -> None:
        """Add each running request's last id to its block; if that is full and there is no space, the newest waits."""
        for row in list(self._running):
            while row.block is not None and (missing := _unread(row)):
                if row.block.length + len(missing) <= row.block.capacity:
                    self._cache.extend(row.block, missing)
                elif (larger := self._cache.grow(row.block)) is not None:
                    row.block = larger
                else:
                    self._postpone(self._running[-1])

    def _postpone(self, row: _Row) -> None:
        self._leave(row)
        self._waiting.appendleft(row)

    def _leave(self, row: _Row) -> None:
        assert row.block is not None
        self._running.remove(row)
        self._cache.release(row.block, row.request.episode_id)
        row.block = None

    def _sample(self, rows: list[_Row], logits: Any) -> list[Completion]:
        points = None
        if not self._sampler.greedy:
            points = torch.tensor([row.points[len(row.sampled)] for row in rows], dtype=torch.float64)
        earlier = self._earlier(rows).to(logits.device) if self._sampler.reads_earlier_ids else None
        chosen, logprobs = self._sampler.choose(logits, earlier, points)
        self._stats.sampled += len(rows)
        ended = []
        for row, id_, logprob in zip(rows, chosen.tolist(), logprobs.tolist(), strict=True):
            row.sampled.append(id_)
            row.logprobs.append(logprob)
            stopped = self._end.reached(row.sampled)
            if stopped or len(row.sampled) >= row.request.max_tokens:
                self._leave(row)
                finish = FinishReason.STOP if stopped else FinishReason.LENGTH
                ended.append(Completion(row.request.id, row.sampled, row.logprobs, finish))
        return ended

    @staticmethod
    def _earlier(rows: list[_Row]) -> Any:
        """Return each row's ids, continued to one length by its first, which changes no penalty."""
        width = max(row.block.length for row in rows if row.block is not None)
        ids = np.zeros((len(rows), width), dtype=np.int64)
        for into, row in zip(ids, rows, strict=True):
            assert row.block is not None
            into[: row.block.length] = row.block.ids[: row.block.length]
            into[row.block.length :] = into[0]
        return torch.from_numpy(ids)


def _missing(row: _Row) -> int:
    """Return the number of ids to be computed before the next is sampled."""
    assert row.block is not None
    return row.block.length - row.block.computed


def _unread(row: _Row) -> TokenIds:
    """Return sampled ids that are not in the row's block yet."""
    assert row.block is not None
    read = row.block.length - len(row.request.prompt_ids)
    return row.sampled[read:]
