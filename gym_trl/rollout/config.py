"""Options of a rollout."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gym_trl.chat import Chat, ChatLike
from gym_trl.errors import ConfigError
from gym_trl.kinds import Arguments, Count
from gym_trl.options import Rollout
from gym_trl.rollout.history import chat_for
from gym_trl.rollout.limits import Limits


@dataclass(frozen=True, kw_only=True)
class RolloutConfig(Rollout):
    """Options of a rollout, with what a specification adds to them.

    >>> RolloutConfig(max_tokens_per_turn=64).limits(512, context=2048)
    Limits(tokens_per_turn=64, tokens=512, context=2048)
    >>> RolloutConfig(max_alive=0)
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: max_alive must be an integer of at least 1, got 0

    Raises:
        ConfigError: A number is out of range.
    """

    max_context: Count | None = None
    """Maximum tokens of prompt and completion together. Default: the model's limit."""
    chat: ChatLike | None = None
    """Converts messages to tokens. Default: the tokenizer's own chat template."""
    sampling: Arguments = field(default_factory=dict)
    """Sampling options that override the trainer's, by vLLM's names (``temperature``, ``stop_token_ids``, ...).

    The trainer still trains with its own temperature; change both together.
    """

    def __post_init__(self) -> None:
        """Check the options together."""
        super().__post_init__()
        if self.history is not None and self.history.template and self.chat is not None:
            raise ConfigError("history.template needs the tokenizer's chat template: leave out chat")

    def template_chat(
        self,
        tokenizer: Any,
        options: Mapping[str, Any],
        *,
        chat_template: str | None = None,
    ) -> Chat:
        """Return the chat of a tokenizer; ``chat_template_kwargs`` override ``options``.

        Raises:
            ChatTemplateError: The template does not continue turn by turn, and the history does not render it anew.
        """
        template_options = {**options, **self.chat_template_kwargs}
        return chat_for(tokenizer, self.history, chat_template=chat_template, **template_options)

    def limits(self, completion: int | None, *, context: int | None) -> Limits:
        """Return an episode's limits under the trainer's limits on the completion and the context."""
        contexts = [length for length in (self.max_context, context) if length]
        return Limits(
            self.max_tokens_per_turn,
            completion,
            min(contexts, default=None),
        )
