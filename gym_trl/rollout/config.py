"""Options of a rollout."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from gym_trl.chat.protocol import Chat
from gym_trl.chat.template import TemplateChat
from gym_trl.errors import ConfigError
from gym_trl.kinds import Arguments, Count
from gym_trl.options import WAIT, Cutoff, History, Options
from gym_trl.rollout.history import appends
from gym_trl.rollout.limits import Limits


@dataclass(frozen=True, kw_only=True)
class RolloutConfig(Options):
    """Options of a rollout other than its tasks and environments.

    >>> RolloutConfig(max_tokens_per_turn=64).limits(512, context=2048)
    Limits(tokens_per_turn=64, tokens=512, context=2048, observation=None, action=None)
    >>> RolloutConfig(max_alive=0)
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: max_alive must be an integer of at least 1, got 0

    Raises:
        ConfigError: A number is out of range, or ``deterministic`` is combined with a cutoff by the clock.
    """

    max_tokens_per_turn: Count | None = None
    """Maximum number of tokens sampled in a turn; the trainer's ``max_completion_length`` bounds the episode."""
    max_context: Count | None = None
    """Maximum tokens of prompt and completion together. Default: the model's limit."""
    max_observation: Count | None = None
    """Maximum characters of an observation that the model sees."""
    max_action: Count | None = None
    """Maximum characters of a response; a longer one is an invalid action."""
    max_alive: Count | None = None
    """Maximum number of concurrent environments per process. Default: no limit."""
    cutoff: Cutoff = WAIT
    """Rule by which the slowest episodes are ended. Default: none is."""
    deterministic: bool = False
    """Return results of environments in the order of the requests, so that threads and processes reproduce inline."""
    history: History | None = None
    """Part of the conversation that the model sees. Default: all of it."""
    chat: Chat | None = None
    """Converts messages to tokens. Default: the tokenizer's own chat template."""
    chat_template_kwargs: Arguments = field(default_factory=dict)
    """Arguments for the chat template, such as ``{"enable_thinking": False}``; they override the trainer's."""
    sampling: Arguments = field(default_factory=dict)
    """Sampling options that override the trainer's, by vLLM's names (``temperature``, ``stop_token_ids``, ...).

    The trainer still trains with its own temperature; change both together.
    """

    def __post_init__(self) -> None:
        """Check the options together."""
        super().__post_init__()
        if self.history is not None:
            if self.history.cuts and self.max_tokens_per_turn is None:
                raise ConfigError("history needs max_tokens_per_turn, for which room is kept; got None")
            if self.history.template and self.chat is not None:
                raise ConfigError("history=History(template=True) needs the tokenizer's chat template: leave out chat")
        if self.deterministic and self.cutoff.timed:
            raise ConfigError(
                "deterministic=True cannot be combined with a cutoff by the clock, which is not reproducible: "
                "leave out the cutoff's episode_s and rollout_s, or use step_timeout"
            )

    def template_chat(
        self,
        tokenizer: Any,
        options: Mapping[str, Any],
        *,
        chat_template: str | None = None,
        end_ids: Collection[int] = (),
    ) -> TemplateChat:
        """Return the chat of a tokenizer; ``chat_template_kwargs`` override ``options``."""
        given = {**options, **self.chat_template_kwargs}
        adds = appends(self.history)
        return TemplateChat(tokenizer, chat_template=chat_template, appends=adds, end_ids=end_ids, **given)

    def limits(self, completion: int | None, *, context: int | None) -> Limits:
        """Return an episode's limits under the trainer's limits on the completion and the context."""
        contexts = [length for length in (self.max_context, context) if length]
        return Limits(
            self.max_tokens_per_turn,
            completion,
            min(contexts, default=None),
            observation=self.max_observation,
            action=self.max_action,
        )
