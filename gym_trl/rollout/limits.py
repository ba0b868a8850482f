"""Limits on an episode's tokens."""

from dataclasses import dataclass

from gym_trl.errors import ConfigError, check_counts


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on an episode's tokens; ``None`` is no limit.

    At least one limit on tokens is required.

    >>> Limits(tokens_per_turn=0)
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: tokens_per_turn must be an integer of at least 1, got 0
    """

    tokens_per_turn: int | None = None
    """Maximum number of tokens that the model may sample in one turn."""
    tokens: int | None = None
    """Maximum length of the completion: the tokens of all turns, environment tokens included."""
    context: int | None = None
    """Maximum length of prompt and completion together: the model's context."""

    def __post_init__(self) -> None:
        tokens = ("tokens_per_turn", "tokens", "context")
        if all(getattr(self, name) is None for name in tokens):
            raise ConfigError(f"an episode needs a limit: set {', '.join(tokens)}")
        check_counts(**{name: value for name in self.__slots__ if (value := getattr(self, name)) is not None})
