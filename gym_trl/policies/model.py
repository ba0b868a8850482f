"""Language models that run in this process."""

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache, partial
from json import loads
from pathlib import Path
from typing import Any, Self

from gym_trl.chat import Chat, ChatLike
from gym_trl.engines.admission import context_of
from gym_trl.engines.protocol import Engine
from gym_trl.episode import Episode
from gym_trl.errors import ChatTemplateError, ConfigError, needs
from gym_trl.executors.protocol import EnvPool, TextEnvironment
from gym_trl.history import make_history
from gym_trl.kinds import Arguments, Count, option_types
from gym_trl.options import TOKENS_PER_TURN, Playing, chosen, defaults
from gym_trl.play import Conversation, Limits
from gym_trl.policies.protocol import Attempt, OnPlayed
from gym_trl.policies.weights import (
    bfloat16_is_fast,
    first_line,
    has_model,
    is_run,
    load_config,
    load_tokenizer,
    load_weights,
    read_adapter,
    whole_model,
)
from gym_trl.registration import did_you_mean
from gym_trl.rollout import asking, rollout, run
from gym_trl.seeding import derive_seed
from gym_trl.text.chat_client import ModelStopped
from gym_trl.types import Completion, Message, Policy, Request, StepResult, Task, TokenIds
from gym_trl.wrappers.base import instructions_of

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def is_hub_id(name: str) -> bool:
    """Return whether a model's name is that of a model on the hub, and not of a folder.

    >>> is_hub_id("Qwen/Qwen3-0.6B"), is_hub_id("runs/first/model"), is_hub_id("../model")
    (True, False, False)
    """
    return _HUB_ID.fullmatch(name) is not None and not name.startswith(".") and not Path(name).exists()


def find_model(name: str) -> str:
    """Return the hub id or the folder of a model that is named by either, by the folder of an adapter or by a run's.

    >>> find_model("Qwen/Qwen3-0.6B")
    'Qwen/Qwen3-0.6B'
    >>> find_model("qwen")
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: there is no folder 'qwen', and a model on the hub is called ORG/NAME

    A misspelt path is therefore not looked up on the network.

    Raises:
        ConfigError: it is none of these, the run has not saved its model, or the base of the adapter does not exist.
    """
    path = Path(name).expanduser()
    if path.exists():
        if is_run(path):
            return find_model(f"{name.rstrip('/')}/model")
        if _is_new_run(path):
            raise ConfigError(f"{name} is a run that has not saved a model yet")
        if not has_model(path):
            raise ConfigError(f"there is no model in {name!r}: it has no config.json")
        read_adapter(name)
        return name
    if name.startswith(("/", "./", "../", "~")):
        raise ConfigError(f"there is no folder {name!r}")
    beside = path.parent != Path() and path.parent.is_dir()
    if beside or not _HUB_ID.fullmatch(name):
        near = did_you_mean(path.name, [one.name for one in path.parent.iterdir()]) if beside else ""
        raise ConfigError(f"there is no folder {name!r}, and a model on the hub is called ORG/NAME{near}")
    return name


def _is_new_run(folder: Path) -> bool:
    """Return whether a folder has the options of a run, where a model's configuration would be."""
    try:
        config = loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(config, dict) and "options" in config and "model_type" not in config


@dataclass(frozen=True, init=False)
class Model(Playing):
    """Model from a folder or the hub, run in this process; its transcripts have tokens and logprobs.

    >>> model = Model("Qwen/Qwen3-0.6B", temperature=0, turn_limit=8, history=4)
    >>> model.greedy, model.options["turn_limit"], model.changed(turn_limit=2).options["turn_limit"]
    (True, 8, 2)

    Args:
        path: A folder or hub id; an adapter in a folder is merged into its base.
        label: Name in tables and records. Default: the path.
        options: Options of the generation (``Playing``), and of its episodes, such as ``turn_limit=8``, which
            ``evaluate`` can override: those of ``GymSpec`` on the text, the rollout and the stepping, and
            ``system_prompt``. ``max_tokens_per_turn`` is 256 by default.

    Raises:
        ConfigError: there is no such folder, and the name is not a hub id; or an option is unknown, or has a wrong
            value.
    """

    path: str
    label: str | None
    concurrency: Count
    max_tokens_per_turn: Count | None
    system_prompt: str | None
    options: Arguments
    """Other options of its episodes that were given."""
    marks = True

    def __init__(self, path: str, *, label: str | None = None, **options: Any) -> None:
        own = {name: one for name, one in options.items() if name in option_types(Playing)}
        episode_options = chosen({name: one for name, one in options.items() if name not in own}, by="a model")
        values = {"path": path, "label": label, **defaults(Playing), **own}
        values["concurrency"] = 64 if values["concurrency"] is None else values["concurrency"]
        values["max_tokens_per_turn"] = episode_options.pop("max_tokens_per_turn", TOKENS_PER_TURN)
        values["system_prompt"] = episode_options.pop("system_prompt", None)
        for name, value in {**values, "options": episode_options}.items():
            object.__setattr__(self, name, value)
        self.__post_init__()
        # A run's folder is refused, because its model is played with the settings of its training.
        if (folder := find_model(self.path)) != self.path:
            raise ConfigError(
                f"{self.path} is the folder of a run: its model alone is {folder}, and gym_trl.training.run_folder."
                "trained has its settings, too"
            )

    def changed(self, *, path: str | None = None, label: str | None = None, **changes: Any) -> Self:
        """Return the model with other arguments."""
        own = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in ("path", "label")}
        options = {**own.pop("options"), **own, **changes}
        return type(self)(path or self.path, label=label or self.label, **options)

    @property
    def name(self) -> str:
        """Name in tables and records."""
        return self.label or self.path

    def chat(self, tokenizer: Any) -> Chat:
        """Return the chat of its tokenizer.

        Raises:
            ChatTemplateError: The template does not continue turn by turn, and no history renders it anew.
        """
        chat = Chat(tokenizer, **(self.options.get("chat_template_kwargs") or {}))
        if chat.refusal and self.options.get("history") is None:
            raise ChatTemplateError(chat.refusal)
        return chat

    @property
    def greedy(self) -> bool:
        """True if the most probable token is selected instead of sampling."""
        return self.sampling.get("temperature") == 0 or self.sampling.get("do_sample") is False

    @property
    def settings(self) -> dict[str, Any]:
        """Further settings that its results depend on."""
        return {
            "model": self.path,
            "vllm": self.vllm is not None,
            "sampling": dict(self.sampling),
            "max_tokens_per_turn": self.max_tokens_per_turn,
            "max_completion_length": self.max_completion_length,
            "system_prompt": self.system_prompt,
        }

    def load(self) -> "LoadedModel":
        """Load the model.

        Raises:
            ConfigError: there is no such model.
            MissingDependencyError: a package that is needed to run it is not installed.
        """
        return _with_transformers(self) if self.vllm is None else _with_vllm(self)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Model in memory, ready to play."""

    model: Model
    engine: Engine
    chat: Chat
    context: int | None
    decode: Callable[[TokenIds], str]

    def play(self, pool: EnvPool, attempts: Iterable[Attempt], seed: int, on_played: OnPlayed) -> None:
        """Play ``attempts`` in a pool's environments, report each as soon as it is finished, and close the pool."""
        planned, options = list(attempts), self.model.options
        with pool:
            run(
                rollout(
                    [one.task for one in planned],
                    pool=pool,
                    engine=self.engine,
                    chat=self.chat,
                    seeds=[one.seed(seed) for one in planned],
                    preambles=[self._preamble] * len(planned),
                    max_alive=self.model.concurrency,
                    on_finish=lambda index, episodes: on_played(planned[index], episodes[0], self.decode),
                    limits=self._limits,
                    history=make_history(options.get("history")),
                    timeout=options.get("episode_timeout"),
                )
            )

    def policy(self, env: TextEnvironment, seed: int) -> Policy:
        """Return a policy for one episode; like the model's responses, its actions contain marks.

        It raises ``ModelStopped`` if the model's limits leave no room for another turn.
        """
        episode, rules, count = Episode(Task("", seed), messages=list(self._preamble)), instructions_of(env), 0

        async def sample(ids: TokenIds, max_tokens: int, seen: int, seat: int) -> Completion:
            nonlocal count
            count += 1
            async with asking(self.engine) as ask:
                return await ask(Request(str(seed), ids, max_tokens, derive_seed(seed, 0, count), count, seen))

        history = make_history(self.model.options.get("history"))
        talk = Conversation(episode, self.chat, sample, self._limits, history)

        def act(observation: str) -> str:
            shown = StepResult(observation, instructions=rules)
            if episode.stop_reason is None:
                if episode.turns:
                    episode.show(shown)
                else:
                    episode.begin(shown)
                if (action := run(talk.answer())) is not None:
                    return action
            assert episode.stop_reason is not None
            raise ModelStopped(episode.stop_reason, episode.error or "")

        return act

    @property
    def _limits(self) -> Limits:
        return Limits(self.model.max_tokens_per_turn, self.model.max_completion_length, self.context)

    @property
    def _preamble(self) -> list[Message]:
        return [] if self.model.system_prompt is None else [Message("system", self.model.system_prompt)]


def _with_transformers(model: Model) -> LoadedModel:
    with needs("train", "a model"):
        import torch
    tokenizer = load_tokenizer(model.path)
    shorter = getattr(load_config(model.path), "dtype", None) in (torch.bfloat16, torch.float16)
    slow = shorter and not bfloat16_is_fast(partial(print, file=sys.stderr))
    weights = load_weights(model.path, dtype="float32" if slow else "auto")
    if torch.accelerator.is_available():
        weights = weights.to(torch.accelerator.current_accelerator())
    chat = model.chat(tokenizer)
    engine = transformers_engine(weights, tokenizer, chat, sampling=model.sampling, max_batch=model.concurrency)
    return LoadedModel(model, engine, chat, context_of(weights.config), _with_cache(tokenizer.decode))


def transformers_engine(
    weights: Any, tokenizer: Any, chat: Chat, *, sampling: Mapping[str, Any], max_batch: int | None = None
) -> Engine:
    """Return the engine of a Transformers model that is in memory, for as long as its weights stay as they are.

    Args:
        weights: The model.
        tokenizer: Its tokenizer.
        chat: Chat of the tokenizer, for the end of a response.
        sampling: Sampling options, such as ``{"temperature": 0.7}``.
        max_batch: Maximum number of concurrent requests. Default: no limit.
    """
    from gym_trl.engines.transformers import TransformersEngine

    return TransformersEngine(
        weights,
        pad_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id,
        eos_ids=end_ids(weights.generation_config, tokenizer, chat),
        sampling=sampling,
        stop_strings=chat.stop_strings,
        decode=tokenizer.decode,
        max_batch=max_batch,
        constant_weights=True,
    )


def end_ids(generation_config: Any, tokenizer: Any, chat: ChatLike) -> set[int]:
    """Return the ids that end a response: the model's, the tokenizer's and the chat template's."""
    return {*declared_ends(generation_config), tokenizer.eos_token_id, *chat.stop_ids} - {None}


def declared_ends(generation_config: Any) -> set[int]:
    """Return the ids that end a response by the model's generation config, which the template may not know."""
    own = getattr(generation_config, "eos_token_id", None)
    return {*(own if isinstance(own, list | tuple) else [own])} - {None}


def _with_vllm(model: Model) -> LoadedModel:
    with needs("vllm", "a model on vLLM"):
        from vllm import LLM
    from gym_trl.engines.vllm import VLLMEngine, context_length

    with whole_model(model.path) as path:
        try:
            llm = LLM(path, **{"logprobs_mode": "processed_logprobs", **model.llm})
        except (OSError, ValueError) as error:
            raise ConfigError(f"vLLM cannot load {model.path!r}: {first_line(error)}") from error
    tokenizer = llm.get_tokenizer()
    chat = model.chat(tokenizer)
    eos = {tokenizer.eos_token_id, *chat.stop_ids} - {None}
    engine = VLLMEngine(llm, eos_ids=eos, sampling=model.sampling, stop_strings=chat.stop_strings)
    return LoadedModel(model, engine, chat, context_length(llm), _with_cache(tokenizer.decode))


def _with_cache(decode: Callable[[TokenIds], str]) -> Callable[[TokenIds], str]:
    """Return ``decode`` with a cache for single ids, which are as slow to decode as a whole record."""
    decode_one = cache(lambda id_: decode([id_]))
    return lambda ids: decode_one(ids[0]) if len(ids) == 1 else decode(ids)
