"""Token ids that the model is given before each turn of an episode.

The ids before a turn are those before the last one, what was sampled, and the chat's ids of the new observation.
"""

from gym_trl.chat import ChatLike
from gym_trl.rollout.log import EpisodeLog
from gym_trl.rollout.transcript import Transcript
from gym_trl.types import Completion, Message, TokenIds


class Context:
    """Context of one episode that is only appended to: ``open`` once, then ``commit`` and ``reply`` in turn.

    >>> from gym_trl.testing import ByteChat
    >>> from gym_trl.types import StepResult, Task
    >>> chat, log = ByteChat(), EpisodeLog(Task("TrlEnv/Echo-v0", seed=1))
    >>> context = Context(log, chat)
    >>> log.begin(StepResult("Say ox."))
    >>> context.open()
    >>> context.commit(Completion("0", chat.say("cow"), [-0.1] * 4))
    True
    >>> log.answer("cow")
    >>> log.step(StepResult("No."))
    >>> context.reply()
    >>> chat.show(context.ids)
    '<user>Say ox.<end><assistant>cow<end><user>No.<end><assistant>'

    Args:
        log: Log of the episode, which is read, and stopped where the conversation cannot be shortened.
        chat: Converts messages to ids.
    """

    asking = False
    """True if the next completion is a summary, not a turn."""

    def __init__(self, log: EpisodeLog, chat: ChatLike) -> None:
        self.transcript = Transcript([])
        self._log, self._chat = log, chat
        self._delta: TokenIds = []  # environment tokens, not yet part of the transcript
        self.closed = False
        """True if the last completion ended the model's turn."""

    def open(self) -> None:
        """Begin with the messages of the log, after the reset or after the turns that are given."""
        self.transcript = Transcript(self._chat.open(self._log.messages))

    def commit(self, completion: Completion) -> bool:
        """Append what was sampled after ``ids``, and return True if it is the response of a turn."""
        self.transcript.commit(self._delta, completion.ids, completion.logprobs)
        self.closed = self._chat.closes(completion.ids)
        return True

    def reply(self) -> None:
        """Add the observation of the last step."""
        self._delta = self._chat.reply(self._log.last.observation, closed=self.closed)

    @property
    def messages(self) -> list[Message]:
        """Conversation that the model is shown."""
        return self._log.messages

    @property
    def ids(self) -> TokenIds:
        """Prompt of the next request."""
        return self.transcript.prompt(self._delta)

    @property
    def seen(self) -> int:
        """Number of the first of ``ids`` that the request before and its completion had."""
        return len(self.transcript) if self.transcript.segment_completion else 0

    @property
    def lengths(self) -> tuple[int, int]:
        """Number of ids before the next turn, in the segment's completion and in all of the segment."""
        return self.transcript.segment_completion + len(self._delta), len(self.transcript) + len(self._delta)
