"""Demonstrations of a warm start, by the tiny tokenizer or foreign templates."""

from collections.abc import Callable
from typing import Any

from gym_trl.chat import Chat
from gym_trl.grpo.spec import GymSpec
from gym_trl.policies.protocol import TextPolicy
from gym_trl.rollout import Limits
from gym_trl.testing.tiny import tiny_tokenizer
from gym_trl.training.sources import Demonstrations, collect, find_source
from support.templates import TEMPLATES, make_tokenizer

GUESS = "TrlEnv/GuessNumber-v0"
SMALL = {"high": 8, "turns": 4}
LIMITS = Limits(tokens_per_turn=64, tokens=4096)
CHATS: dict[str, Callable[[], Chat]] = {
    "tiny": lambda: Chat(tiny_tokenizer()),
    **{
        name: lambda name=name: Chat(make_tokenizer(TEMPLATES[name]))  # type: ignore[misc]
        for name in sorted({"qwen3", "gptoss", "deepseekv3", "glm4moe", "gemma3"} & TEMPLATES.keys())
    },
}


def spec_of(env: str = GUESS, env_kwargs: dict[str, Any] | None = None, **options: Any) -> GymSpec:
    kwargs = SMALL if env == GUESS and env_kwargs is None else env_kwargs
    return GymSpec(env, env_kwargs=kwargs or {}, executor="inline", **{"num_tasks": 6, **options})


def play(source: str | TextPolicy, spec: GymSpec, chat: Chat | None = None, **options: Any) -> Demonstrations:
    options = {"limits": LIMITS, "episodes": 6, **options}
    found = find_source(source) if isinstance(source, str) else source
    return collect(found, spec, chat or CHATS["tiny"](), **options)
