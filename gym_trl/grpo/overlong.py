"""DAPO's penalty of overlong completions as a reward function."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gym_trl.errors import ConfigError, check_counts
from gym_trl.grpo.environment_factory import outcomes
from gym_trl.grpo.totals import UNFINISHED
from gym_trl.types import StopReason

_GIVEN_UP = frozenset(
    {
        UNFINISHED,
        StopReason.PARSE_ERROR,
        StopReason.INVALID_ACTION,
        StopReason.CRASHED,
        *(reason for reason in StopReason if reason.cut_off),
    }
)
"""Stop reasons of scored episodes that ended before the environment's own end."""


@dataclass(frozen=True)
class SoftOverlong:
    """Reward function that penalises completions in the last tokens of their budget, as DAPO does.

    >>> penalty = SoftOverlong(longest=100, cache=20)
    >>> completions = [[0] * 80, [0] * 90, [0] * 100, [0] * 12, [0]]
    >>> reasons = ["success", "failure", "success", "token_limit", "env_error"]
    >>> penalty(completion_ids=completions, stop_reason=reasons, episode_return=[1.0, 0.0, 1.0, 0.0, None])
    [0.0, -0.5, -1.0, -1.0, None]

    ``reward_funcs=[*spec.reward_funcs, SoftOverlong(args.max_completion_length, 256)]`` adds it to the environment's
    return; ``reward_weights`` scales it. With L the ``longest`` completion and C the ``cache``, a
    completion of n tokens gets (Yu et al. 2025, "DAPO", arXiv:2503.14476, equation 13)

    * 0 for n <= L - C,
    * ((L - C) - n) / C for L - C < n <= L,
    * -1 for n > L.

    Tokens are those of the whole episode, observations included. An episode that a budget cut off, or that ended early
    because its actions could not be read, were invalid, or crashed the environment, gets -1, however short it is. An
    unscored episode gets ``None``.

    Args:
        longest: Longest completion, in tokens: the trainer's ``max_completion_length``.
        cache: Number of tokens before it in which the penalty grows.

    Raises:
        ConfigError: A number is below 1, or ``cache`` exceeds ``longest``; in training, the trainer has no
            ``rollout_func`` of this library.
    """

    longest: int
    cache: int

    def __post_init__(self) -> None:
        check_counts(longest=self.longest, cache=self.cache)
        if self.cache > self.longest:
            raise ConfigError(f"cache must be at most longest={self.longest}, got {self.cache}")

    @property
    def __name__(self) -> str:
        """Name of the reward in the trainer's logs."""
        return "soft_overlong"

    def __call__(
        self,
        *,
        completion_ids: Sequence[Sequence[int]],
        stop_reason: Sequence[str] | None = None,
        episode_return: Sequence[float | None] | None = None,
        environments: Sequence[Any] | None = None,
        segments: Sequence[Sequence[Sequence[int]]] | None = None,
        **_: Any,
    ) -> list[float | None]:
        """Return the penalty of each completion; with a history, that of its last segment."""
        if segments is not None:
            starts = (borders[-1][1] if borders else 0 for borders in segments)
            completion_ids = [ids[start:] for ids, start in zip(completion_ids, starts, strict=True)]
        if environments is not None:
            played = outcomes(environments)
            stop_reason, episode_return = played["stop_reason"], played["episode_return"]
        if stop_reason is None or episode_return is None:
            raise ConfigError(
                "SoftOverlong found no stop_reason and episode_return: give the trainer "
                "rollout_func=spec.rollout_func as well, or environment_factory=spec.environment_factory"
            )
        rows = zip(completion_ids, stop_reason, episode_return, strict=True)
        return [None if worth is None else self.penalty(len(ids), reason) for ids, reason, worth in rows]

    def penalty(self, tokens: int, stop_reason: str) -> float:
        """Return the penalty of a scored episode by its number of tokens and its stop reason.

        >>> SoftOverlong(100, 20).penalty(85, "failure")
        -0.25
        """
        if stop_reason in _GIVEN_UP:
            return -1.0
        return max(-1.0, min(0, self.longest - self.cache - tokens) / self.cache)
