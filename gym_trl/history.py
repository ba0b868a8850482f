"""Histories: functions of what the model is shown, called before each turn of an episode but the first.

Without one, a conversation only grows, and an episode ends with ``token_limit`` when its tokens are used up. Where a
history returns other messages, these are rendered anew. If the result does not begin with the ids so far, a further
segment begins, which is trained as the model saw it: each segment is a row of the trainer.
"""

from collections.abc import Sequence
from typing import Any

from gym_trl.chat import Chat
from gym_trl.errors import ChatTemplateError, check_counts
from gym_trl.play import Conversation, History
from gym_trl.types import Message

ASK = (
    "The conversation has become too long. Write down everything that you need to go on: the goal, what you have found "
    "out, and what you planned. You will see only these notes and the latest observation."
)
"""Message that asks the model for notes."""
_NOTES, _LEFT_OUT = "Your notes:\n", "[Earlier turns are left out.]"


def rendered(shown: Conversation) -> Sequence[Message]:
    """Render the whole conversation anew before each turn, as inference servers do.

    ``GymSpec(env, history=rendered)``: a template that drops earlier thoughts (Qwen3, DeepSeek) drops them here, too.
    """
    return shown.messages


def last_turns(count: int) -> History:
    """Show the opening and the last ``count`` turns when more than twice as many are shown, or there is no room.

    ``GymSpec(env, history=last_turns(8), max_tokens_per_turn=64)``: a segment then begins with eight turns and grows by
    nine, which makes episodes cheaper than a prompt of their own for each turn.
    """
    check_counts(count=count)

    def shorten(shown: Conversation) -> Sequence[Message] | None:
        opening, turns = _parts(shown)
        played = len(turns) // 2
        if played <= 2 * count and shown.room >= shown.tokens_per_turn:
            return None
        keep = count if played > 2 * count else min(count, played // 2)
        while keep and not shown.fits(_shortened(opening, turns, keep)):
            keep -= 1
        return _shortened(opening, turns, keep)

    return shorten


def notes(after: int | None = None, ask: str = ASK) -> History:
    """Let the model replace its turns by notes of its own when there is no room, or ``after`` so many turns.

    ``GymSpec(env, history=notes(), max_tokens_per_turn=256)``: the notes are sampled and trained like a response.
    """
    if after is not None:
        check_counts(after=after)

    async def shorten(shown: Conversation) -> Sequence[Message] | None:
        opening, turns = _parts(shown)
        asked = 0 if shown.renders_anew else len(shown.chat.reply(ask, closed=False))
        if shown.room >= 2 * shown.tokens_per_turn + asked and (after is None or len(turns) < 2 * after):
            return None
        return _begun(opening, _NOTES + await shown.ask(ask), shown.messages[-1])

    return shorten


def make_history(value: "History | str | int | None") -> History | None:
    """Return the history that an option names, which has been checked (``check_options``)."""
    if isinstance(value, int):
        return last_turns(value)
    if isinstance(value, str):
        return notes() if value == "notes" else rendered
    return value


def chat_for(tokenizer: Any, history: "History | str | int | None", **options: Any) -> Chat:
    """Return the chat of a tokenizer for episodes with a history; ``options`` are those of ``Chat``.

    Raises:
        ChatTemplateError: The template does not continue turn by turn, and no history renders it anew.
    """
    chat = Chat(tokenizer, **options)
    if chat.refusal and history is None:
        raise ChatTemplateError(chat.refusal)
    return chat


def _parts(shown: Conversation) -> tuple[list[Message], list[Message]]:
    """Return the messages before the first response of the episode, and what is shown of the later ones."""
    first = shown.episode.opening
    return shown.episode.messages[:first], shown.messages[first:]


def _shortened(opening: Sequence[Message], turns: Sequence[Message], keep: int) -> list[Message]:
    first, *rest = turns[len(turns) - 2 * keep - 1 :]
    return [*_begun(opening, _LEFT_OUT, first), *rest]


def _begun(opening: Sequence[Message], note: str, observation: Message) -> list[Message]:
    """Return an opening with a note in place of turns."""
    return [*opening[:-1], Message("user", f"{opening[-1].content}\n\n{note}\n\n{observation.content}")]
