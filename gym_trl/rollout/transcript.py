"""Append-only record of an episode's token ids, in one segment or several."""

from collections.abc import Sequence

from gym_trl.errors import TranscriptError
from gym_trl.types import Border, Logprobs, TokenIds, TokenTrace, without_nan


class Transcript:
    """Ids, mask and logprobs of one episode, which are only appended to.

    >>> transcript = Transcript([1, 2])
    >>> transcript.prompt([])
    [1, 2]
    >>> transcript.commit([], [3], [-0.5])
    >>> transcript.prompt([8, 9])  # asking commits to nothing
    [1, 2, 3, 8, 9]
    >>> transcript.commit([8, 9], [4, 5], [-0.25, -1.0])
    >>> transcript.completion_ids, transcript.mask, transcript.logprobs
    ([3, 8, 9, 4, 5], [1, 0, 0, 1, 1], [-0.5, 0.0, 0.0, -0.25, -1.0])

    The engine's prompts are prefixes of ``prompt_ids + completion_ids``, which always ends on a sampled id. Each call
    of ``prompt`` copies the ids once; no other operation depends on their number. The properties return copies.

    Where the history changes, ``restart`` begins a new segment:

    >>> transcript.restart([1, 6], turn=2)
    >>> transcript.commit([], [7], [-0.5])
    >>> [segment.prompt_ids + segment.completion_ids for segment in transcript.trace.segments]
    [[1, 2, 3, 8, 9, 4, 5], [1, 6, 7]]
    """

    def __init__(self, prompt_ids: Sequence[int]) -> None:
        self._ids: TokenIds = list(prompt_ids)
        self._start = len(self._ids)
        self._mask: list[int] = []
        self._logprobs: Logprobs = []
        self._segment = 0  # index in _ids of the present segment
        self._borders: list[Border] = []

    def __len__(self) -> int:
        return len(self._ids) - self._segment

    @property
    def segment_completion(self) -> int:
        """Number of ids after the prompt of the present segment."""
        return len(self._mask) - (self._borders[-1].stop if self._borders else 0)

    @property
    def completion_length(self) -> int:
        """Number of ids after the prompt."""
        return len(self._mask)

    @property
    def prompt_ids(self) -> TokenIds:
        """Ids that the episode was opened with."""
        return self._ids[: self._start]

    @property
    def completion_ids(self) -> TokenIds:
        """Ids after the prompt: sampled ids and the environment's ids between them."""
        return self._ids[self._start :]

    @property
    def mask(self) -> list[int]:
        """Mask with one entry per completion id: 1 if it was sampled, else 0."""
        return self._mask.copy()

    @property
    def logprobs(self) -> Logprobs:
        """Logprobs in nats with one entry per completion id; 0.0 if it was not sampled."""
        return self._logprobs.copy()

    @property
    def trace(self) -> TokenTrace:
        """Prompt, completion, mask and logprobs so far."""
        return TokenTrace(self.prompt_ids, self.completion_ids, self.mask, self.logprobs, tuple(self._borders))

    def prompt(self, delta: TokenIds) -> TokenIds:
        """Return the present segment followed by ``delta``, as a new list; the transcript is not changed."""
        ids = self._ids[self._segment :] if self._segment else self._ids  # one copy, not two
        return ids + delta

    def restart(self, prompt: TokenIds, *, turn: int, left_out: int = 0, summary: str = "") -> None:
        """Begin a segment with ``prompt``; see ``Border`` for the other arguments. ``commit`` must follow."""
        start = len(self._mask)
        self._segment = len(self._ids)
        self._borders.append(Border(start, start + len(prompt), turn, left_out, summary))
        self._ids += prompt
        self._mask += [0] * len(prompt)
        self._logprobs += [0.0] * len(prompt)

    def commit(self, delta: TokenIds, ids: TokenIds, logprobs: Logprobs) -> None:
        """Append the environment's ids ``delta`` and the ``ids`` that were sampled after them.

        A logprob that is NaN is stored as ``None``.

        Raises:
            TranscriptError: ``ids`` is empty, or the numbers of ids and logprobs differ.
        """
        if not ids:
            raise TranscriptError("a turn needs at least one sampled id, got none")
        if len(ids) != len(logprobs):
            raise TranscriptError(f"every sampled id needs a logprob, got {len(ids)} ids and {len(logprobs)} logprobs")
        self._ids += delta
        self._ids += ids
        self._mask += [0] * len(delta) + [1] * len(ids)
        self._logprobs += [0.0] * len(delta) + without_nan(logprobs)
