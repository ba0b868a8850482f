"""Conversations as token ids that are appended to and never re-rendered."""

from typing import TYPE_CHECKING

from gym_trl._lazy import exports

if TYPE_CHECKING:
    from gym_trl.chat.delimiter import DelimiterChat as DelimiterChat
    from gym_trl.chat.protocol import Chat as Chat
    from gym_trl.chat.template import TemplateChat as TemplateChat
    from gym_trl.chat.transcript import Transcript as Transcript

__getattr__, __dir__ = exports(__name__)
