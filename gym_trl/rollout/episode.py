"""One episode as a state machine without I/O: it receives events and returns the next thing to do."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gym_trl.chat import ChatLike
from gym_trl.options import History
from gym_trl.rollout.context import Context
from gym_trl.rollout.history import HistoryContext
from gym_trl.rollout.limits import Limits
from gym_trl.rollout.log import EpisodeLog, as_response
from gym_trl.seeding import derive_seed
from gym_trl.types import (
    Completion,
    EnvFailure,
    EpisodeResult,
    FinishReason,
    Message,
    StepResult,
    StopReason,
    Task,
    TokenIds,
)


@dataclass(frozen=True, slots=True)
class Sample:
    """Next thing to do: sample a continuation of ``prompt_ids``."""

    prompt_ids: TokenIds
    max_tokens: int
    seed: int
    seat: int | None = None
    """Seat that samples, in a game of several."""
    seen: int = 0
    """Number of the first ids that are the prompt and the response of the sample before; 0: none is."""


@dataclass(frozen=True, slots=True)
class Act:
    """Next thing to do: step the environment."""

    action: str
    """May be an ``UnfinishedResponse``, which is no action; ``take_step`` handles it."""


class Episode:
    r"""State of one episode: ``started`` once, then ``sampled`` and ``stepped`` in turn until one returns its result.

    ``preamble`` is the conversation in a dataset's prompt: the environment's instructions and its first observation are
    added to its last user message. ``seed`` seeds the sampling; each turn gets a seed derived from it. With ``history``
    the model sees a part of the conversation, and limits on tokens are those of a segment.

    >>> from gym_trl.testing import ByteChat
    >>> chat = ByteChat()
    >>> episode = Episode(Task("TrlEnv/Echo-v0", seed=1), chat=chat, limits=Limits(tokens_per_turn=9))
    >>> chat.show(episode.started(StepResult("Say ox.", instructions="Repeat words.")).prompt_ids)
    '<user>Repeat words.\n\nSay ox.<end><assistant>'
    >>> episode.sampled(Completion("0", chat.say("ox"), [-0.1] * 3))
    Act(action='ox')
    >>> ended = episode.stepped(StepResult("", reward=1.0, terminated=True, info={"success": True}))
    >>> ended.stop_reason, chat.show(ended.trace.completion_ids), ended.trace.mask
    (<StopReason.SUCCESS: 'success'>, 'ox<end>', [1, 1, 1])
    """

    def __init__(
        self,
        task: Task,
        *,
        chat: ChatLike,
        limits: Limits,
        preamble: Sequence[Message] = (),
        seed: int = 0,
        history: History | None = None,
    ) -> None:
        self.task = task
        self._log = log = EpisodeLog(task, preamble=preamble)
        self._context = Context(log, chat) if history is None else HistoryContext(log, chat, limits, history)
        self._chat = chat
        self._limits = limits
        self._seed = seed

    def started(self, result: StepResult | EnvFailure) -> Act | Sample | EpisodeResult:
        """Process the result of the environment's reset and return what to do next."""
        if self._log.begin(result) is None:
            self._context.open()
        return self._next_turn()

    def sampled(self, completion: Completion) -> Act | Sample | EpisodeResult:
        """Process the engine's completion and return what to do next."""
        if completion.finish is FinishReason.TIMEOUT:
            return self.stopped(StopReason.TIMEOUT, completion.error or "the engine did not answer in time")
        if completion.finish not in (FinishReason.STOP, FinishReason.LENGTH):
            return self.stopped(StopReason.CANCELLED, completion.error or "the engine gave the request up")
        if not completion.ids:
            return self.stopped(StopReason.CANCELLED, "the engine returned no tokens")
        if not self._context.commit(completion):
            return self._next_turn()
        answer, length = self._chat.text(completion.ids), self._context.transcript.completion_length
        self._log.answer(answer, length - len(completion.ids), length)
        cut = completion.finish is FinishReason.LENGTH and not self._context.closed
        return Act(as_response(answer.text, cut=cut))

    def stepped(self, result: StepResult | EnvFailure) -> Act | Sample | EpisodeResult:
        """Process the result of the environment's step and return what to do next."""
        if self._log.step(result) is None:
            self._context.reply()
        return self._next_turn()

    def stopped(self, reason: StopReason, error: str | None = None) -> EpisodeResult:
        """End the episode now and return its result."""
        self._log.stop(reason, error)
        return self._log.result(self._context.transcript.trace)

    def _next_turn(self) -> Sample | EpisodeResult:
        """Return the request for the next response, if the episode goes on and the limits leave room for it."""
        if self._log.reason is not None:
            return self.stopped(self._log.reason)
        limits, context, (used, total) = self._limits, self._context, self._context.lengths
        left = math.inf if limits.tokens is None else limits.tokens - used
        room = math.inf if limits.context is None else limits.context - total
        if left < 1:
            return self.stopped(StopReason.TOKEN_LIMIT)
        if room < 1:
            what = "the next turn" if self._log.turns else "the first observation"
            what = "the request for a summary (history)" if context.asking else what
            error = f"{what} needs {total} tokens and one for the answer, the context holds {limits.context}"
            return self.stopped(StopReason.CONTEXT_OVERFLOW, error)
        most = min(left, room, math.inf if limits.tokens_per_turn is None else limits.tokens_per_turn)
        seed = derive_seed(self._seed, len(self._log.turns), *(("summary",) if context.asking else ()))
        return Sample(context.ids, int(most), seed, None, context.seen)
