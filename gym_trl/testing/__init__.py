"""Test support: checks of environments, test doubles, fault injection, and a tiny model."""

from typing import TYPE_CHECKING

from gym_trl._lazy import exports

if TYPE_CHECKING:
    from gym_trl.engines.scripted import ScriptedEngine as ScriptedEngine
    from gym_trl.testing.checks import check_text_env as check_text_env
    from gym_trl.testing.doubles import ByteChat as ByteChat, play as play
    from gym_trl.testing.faults import (
        FaultyEngine as FaultyEngine,
        FaultyEnv as FaultyEnv,
    )
    from gym_trl.testing.pretrained import pretrained_folder as pretrained_folder
    from gym_trl.testing.tiny import (
        save_tiny as save_tiny,
        tiny_model as tiny_model,
        tiny_tokenizer as tiny_tokenizer,
    )

__getattr__, __dir__ = exports(__name__)
