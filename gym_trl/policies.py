"""Policies: models, inference servers, an environment's own policies, Python functions, a person."""

import itertools
import re
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from gym_trl.chat import TemplateChat
from gym_trl.engines.protocol import Engine
from gym_trl.episode import Act, EnvReply, Episode, Limits, Sample
from gym_trl.errors import ConfigError, EngineError, GymTRLError, MissingDependencyError
from gym_trl.executors import GuardedPool, OrderedPool
from gym_trl.keys import bearer, hidden, without_password
from gym_trl.loading import did_you_mean
from gym_trl.parsing import split_thinking
from gym_trl.pool import TextEnvironment, read_instructions
from gym_trl.rollout import stream_episodes
from gym_trl.seeding import derive_seed
from gym_trl.types import (
    Completion,
    Message,
    Policy,
    Request,
    StopReason,
    Task,
    TokenIds,
    Trajectory,
    UnfinishedResponse,
)
from gym_trl.wrappers.inner import load_function

PolicyMaker: TypeAlias = Callable[[TextEnvironment, int], Policy]
"""Function that makes the policy of one episode, from the environment after its reset and the episode's seed."""

_RETRIES, _LONGEST_PAUSE_S, _CONNECT_S = 6, 8.0, 10.0
_AGAIN = {408, 425, 429, 500, 502, 503, 504}
_OVERFLOW = ("context length", "context_length", "maximum context", "too long")


class Attempt(NamedTuple):
    """Episode that is to be played: a task, and the index of the attempt at it."""

    task: Task
    group: int
    """Index of the task in the evaluation."""
    number: int
    """Index among the attempts at the task."""

    def seed(self, base: int) -> int:
        """Return a seed for its policy, independent of other episodes and of the order in which they are played."""
        return derive_seed(base, "sampling", self.task.env_id, self.task.seed, self.number)


OnPlayed: TypeAlias = Callable[[Attempt, Trajectory, Callable[[TokenIds], str] | None], None]
"""Callback for every finished episode, with a function that decodes its tokens, if it has any."""


@dataclass(frozen=True, slots=True)
class Words:
    """Text policy: maps observations to actions as text, such as a function, a server or a person."""

    name: str
    make: PolicyMaker
    concurrency: int = 1
    """Number of concurrent episodes, each in a thread; more than 1 suits policies that wait for something else."""
    marks: bool = False
    """It marks its actions as ``action_format`` requires, and reads instructions, as language models do."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further settings that its results depend on."""
    of_environment: bool = False
    """It is one of the environments' own policies, which not every environment has."""

    def check(self, env: TextEnvironment) -> None:
        """Check that it supports an environment.

        Raises:
            ConfigError: the environment has no such policy.
        """
        if not self.of_environment:
            return
        name = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
        known = sorted(env.get_wrapper_attr("baselines")) if env.has_wrapper_attr("baselines") else []
        known += [own for own, method in _OWN.items() if own not in known and env.has_wrapper_attr(method)]
        if self.name not in known:
            raise ConfigError(
                f"{name} has no policy {self.name!r}{did_you_mean(self.name, known)}; "
                f"it has {', '.join(known) or 'none'}, and "
                + (
                    f"would have this one with a method {_OWN[self.name]}()"
                    if self.name in _OWN
                    else "others are given as package.module:function or as the folder of a model"
                )
            )


class ModelStopped(Exception):  # noqa: N818 -- it is data, and never reaches the caller
    """Failure of a model to respond; the episode ends with ``reason``."""

    def __init__(self, reason: StopReason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


_OWN = {"solver": "solver", "random": "random_policy"}
"""Policies that are methods of any environment, with the methods' names."""


def environment_policy(name: str) -> Words:
    """Return a policy that environments provide: ``"solver"``, ``"random"``, and those in their ``baselines``.

    >>> import gymnasium as gym
    >>> env = gym.make("TrlEnv/GuessNumber-v0")
    >>> environment_policy("solver").make(env, 0)("Guess 1 to 50 in 6 tries.")
    '25'
    """

    def make(env: TextEnvironment, seed: int) -> Policy:
        known = env.get_wrapper_attr("baselines") if env.has_wrapper_attr("baselines") else {}
        if name in known:
            policy: Policy = known[name].policy(seed)
        else:
            policy = env.get_wrapper_attr(_OWN[name])(*([seed] if name == "random" else []))
        return policy

    return Words(name, make, of_environment=True)


def function_policy(name: str) -> Words:
    """Return the policy that a function named ``"package.module:function"`` makes from an environment.

    The function is called after each reset, and returns a function from observation to action.

    Raises:
        ConfigError: there is no function of this name.
    """
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    function = load_function(name)
    return Words(name, lambda env, seed: function(env))


def person(ask: Callable[[str], str | None], say: Callable[[str], None]) -> Words:
    """Return the policy of a person at a terminal.

    Args:
        ask: Prompts for an action; ``None`` stops the evaluation, which can be resumed.
        say: Prints a text.
    """

    def make(env: TextEnvironment, seed: int) -> Policy:
        say(f"\n{read_instructions(env)}\n")

        def policy(observation: str) -> str:
            say(observation)
            if (action := ask("> ")) is None:
                raise KeyboardInterrupt
            return action

        return policy

    return Words("person", make)


# ---------------------------------------------------------------------------------------------------------------------
# Servers
# ---------------------------------------------------------------------------------------------------------------------


def server(
    base_url: str,
    *,
    model: str | None = None,
    api_key: str | None = None,
    sampling: Mapping[str, Any] | None = None,
    max_tokens: int = 256,
    system_prompt: str | None = None,
    concurrency: int = 16,
    timeout_s: float = 600.0,
) -> Words:
    """Return the policy of a model on an OpenAI-compatible server (``POST {base_url}/chat/completions``).

    ::

        evaluate("TrlEnv/GuessNumber-v0", server("http://localhost:8000/v1", model="Qwen/Qwen3-0.6B"))

    Failed requests (no connection, status 429 or 5xx) are repeated with growing pauses. If a request still fails, or if
    the server rejects the conversation, the episode is unscored and others continue. If the server also rejects a
    minimal conversation, which is then sent as a test, ``EngineError`` is raised.

    Args:
        base_url: Address, including ``/v1``.
        model: Name of a model on the server. Default: its first.
        api_key: Sent as a bearer token.
        sampling: Sent with every request, such as ``{"temperature": 0.7}``.
        max_tokens: Maximum number of tokens per turn.
        system_prompt: Text of a system message at the start of every conversation.
        concurrency: Number of concurrent episodes.
        timeout_s: Maximum seconds for a response.

    Raises:
        ConfigError: the address is invalid, or ``concurrency`` is below 1.
        EngineError: the server is missing, or rejects requests.
        MissingDependencyError: httpx is not installed.
    """
    try:
        import httpx
    except ImportError as error:
        raise MissingDependencyError("asking a server", extra="server") from error
    if not base_url.startswith(("http://", "https://")):
        raise ConfigError(f"the address of a server begins with http:// or https://, got {base_url!r}")
    if concurrency < 1:
        raise ConfigError(f"concurrency must be at least 1, got {concurrency}")
    headers = bearer(api_key)
    client = httpx.Client(
        base_url=base_url.rstrip("/"),
        headers=headers,
        timeout=httpx.Timeout(timeout_s, connect=_CONNECT_S),
        limits=httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency),
    )
    try:
        name = model or _first_model(client)
    except Exception:
        client.close()
        raise
    body = {**(sampling or {}), "model": name, "max_tokens": max_tokens}

    def make(env: TextEnvironment, seed: int) -> Policy:
        return Conversation(client, body, seed, read_instructions(env), system_prompt)

    weakref.finalize(make, client.close)  # the last episode keeps make alive
    settings = {"base_url": without_password(base_url), "sampling": dict(sampling or {}), "max_tokens": max_tokens}
    return Words(name, make, concurrency, marks=True, settings=settings | {"system_prompt": system_prompt})


def _first_model(client: Any) -> str:
    try:
        answer = _answer(lambda: client.get("/models"), client)
    except ModelStopped as error:
        raise EngineError(str(error)) from error
    try:
        return str(answer["data"][0]["id"])
    except (LookupError, TypeError) as error:
        raise EngineError(f"{_address(client)} names no models: say which with --model") from error


class Conversation:
    """Conversation of one episode with a server: a policy that keeps the messages and counts tokens."""

    def __init__(
        self, client: Any, body: Mapping[str, Any], seed: int, instructions: str, system_prompt: str | None
    ) -> None:
        self.messages = [] if system_prompt is None else [{"role": "system", "content": system_prompt}]
        self.system_prompt = system_prompt
        self.thinking: list[str] = []
        self.prompt_tokens: int | None = None
        self.sampled_tokens: int | None = None
        self._client, self._body, self._seed, self._instructions = client, body, seed, instructions

    def __call__(self, observation: str) -> str:
        """Send the observation, and return the response without its thinking."""
        text = observation if self.thinking else "\n\n".join(part for part in (self._instructions, observation) if part)
        # Lone surrogates are valid in JSON, but servers reject them.
        self.messages.append(
            {"role": "user", "content": text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")}
        )
        # Some servers accept seeds of 32 bits only.
        body = {**self._body, "messages": self.messages, "seed": derive_seed(self._seed, len(self.thinking)) % 2**31}
        try:
            answer = self._ask(body)
        except EngineError as refusal:
            # Find out if the server rejects this conversation (by a content filter, for example) or any: send the same
            # request with a minimal conversation.
            system = [message for message in self.messages if message["role"] == "system"]
            try:
                self._ask({**body, "messages": [*system, {"role": "user", "content": self._instructions or "Hello"}]})
            except EngineError:
                raise refusal from None
            raise ModelStopped(StopReason.CANCELLED, str(refusal)) from refusal
        try:
            message, finish = answer["choices"][0]["message"], answer["choices"][0].get("finish_reason")
            thinking, said = split_thinking(message.get("content") or "")
            thinking = message.get("reasoning_content") or message.get("reasoning") or thinking
        except (LookupError, TypeError, AttributeError) as error:
            shown = hidden(repr(answer), self._client.headers.get("Authorization"))
            raise ModelStopped(StopReason.CANCELLED, f"the server's answer has no message: {shown:.200}") from error
        self.thinking.append(str(thinking))
        self.messages.append({"role": "assistant", "content": said})
        self._count(answer.get("usage"))
        return UnfinishedResponse(said) if finish == "length" else said

    def _ask(self, body: Mapping[str, Any]) -> Any:
        return _answer(lambda: self._client.post("/chat/completions", json=body), self._client)

    def _count(self, usage: Any) -> None:
        if isinstance(usage, Mapping) and isinstance(usage.get("completion_tokens"), int):
            self.sampled_tokens = (self.sampled_tokens or 0) + usage["completion_tokens"]
            if self.prompt_tokens is None and isinstance(usage.get("prompt_tokens"), int):
                self.prompt_tokens = usage["prompt_tokens"]


def _answer(ask: Callable[[], Any], client: Any) -> Any:
    """Return a server's response as JSON, repeating the request as long as that may help."""
    import httpx

    pause, reason = 0.25, StopReason.CANCELLED
    for attempt in range(_RETRIES + 1):
        try:
            response = ask()
        except httpx.TimeoutException as error:
            reason, problem = StopReason.TIMEOUT, f"{_address(client)} did not answer in time: {type(error).__name__}"
        except httpx.HTTPError as error:
            reason, problem = StopReason.CANCELLED, f"{_address(client)}: {type(error).__name__}: {error}"
        else:
            if response.status_code not in _AGAIN:
                return _read(response, client)
            reason, problem = StopReason.CANCELLED, f"{_address(client)} answered {response.status_code}"
        if attempt < _RETRIES:
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
    raise ModelStopped(reason, problem)


def _read(response: Any, client: Any) -> Any:
    if response.is_success:
        try:
            return response.json()
        except ValueError as error:
            raise ModelStopped(StopReason.CANCELLED, f"{_address(client)} did not answer in JSON") from error
    said = hidden(" ".join(response.text.split()), client.headers.get("Authorization"))[:300]
    if any(words in said.lower() for words in _OVERFLOW):
        raise ModelStopped(StopReason.CONTEXT_OVERFLOW, said)
    raise EngineError(f"{_address(client)} answered {response.status_code}: {said}")


def _address(client: Any) -> str:
    return without_password(str(client.base_url))


# ---------------------------------------------------------------------------------------------------------------------
# Models in this process
# ---------------------------------------------------------------------------------------------------------------------


_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def check_model(name: str) -> None:
    """Check that a model is an existing folder or a hub id, so that a misspelt path is not looked up on the network.

    >>> check_model("Qwen/Qwen3-0.6B")
    >>> check_model("qwen")
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: there is no folder 'qwen', and a model on the hub is called ORG/NAME

    Raises:
        ConfigError: it is neither, or it is the folder of a run and not of the run's model.
    """
    path = Path(name).expanduser()
    if path.exists():
        if (path / "model" / "config.json").is_file():
            raise ConfigError(f"{name} is the folder of a run: its model is {path / 'model'}")
        if not any((path / file).is_file() for file in ("config.json", "adapter_config.json")):
            raise ConfigError(f"there is no model in {name!r}: it has no config.json")
        return
    if name.startswith(("/", "./", "../", "~")):
        raise ConfigError(f"there is no folder {name!r}")
    beside = path.parent != Path() and path.parent.is_dir()
    if beside or not _HUB_ID.fullmatch(name):
        near = did_you_mean(path.name, [one.name for one in path.parent.iterdir()]) if beside else ""
        raise ConfigError(f"there is no folder {name!r}, and a model on the hub is called ORG/NAME{near}")


@dataclass(frozen=True, slots=True)
class Model:
    """Model from a folder or the hub, run in this process; its transcripts have tokens and logprobs.

    Args:
        path: A folder or hub id.
        label: Name in tables and records. Default: the path.
        vllm: Generate with vLLM instead of Transformers.
        sampling: Sampling options, such as ``{"temperature": 0.7}``; ``{"temperature": 0}`` is greedy.
        max_tokens: Maximum number of tokens per turn.
        max_completion: Maximum number of tokens of an episode, including the environment's. Default: the model's
            context.
        system_prompt: Text of a system message at the start of every conversation.
        concurrency: Number of concurrent episodes.
        llm: Arguments for ``vllm.LLM``.
        spec: Arguments of ``GymSpec`` for this model, instead of those of all models of the evaluation.

    Raises:
        ConfigError: there is no such folder, and the name is not a hub id.
    """

    path: str
    label: str | None = None
    vllm: bool = False
    sampling: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int = 256
    max_completion: int | None = None
    system_prompt: str | None = None
    concurrency: int = 64
    llm: Mapping[str, Any] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    marks = True

    def __post_init__(self) -> None:
        """Check that the path may be a model."""
        check_model(self.path)

    @property
    def name(self) -> str:
        """Name in tables and records."""
        return self.label or self.path

    @property
    def greedy(self) -> bool:
        """True if the most probable token is selected instead of sampling."""
        return self.sampling.get("temperature") == 0 or self.sampling.get("do_sample") is False

    @property
    def settings(self) -> dict[str, Any]:
        """Further settings that its results depend on."""
        return {
            "model": self.path,
            "vllm": self.vllm,
            "sampling": dict(self.sampling),
            "max_tokens": self.max_tokens,
            "max_completion": self.max_completion,
            "system_prompt": self.system_prompt,
        }

    def load(self) -> "LoadedModel":
        """Load the model.

        Raises:
            ConfigError: there is no such model.
            MissingDependencyError: a package that is needed to run it is not installed.
        """
        return _with_vllm(self) if self.vllm else _with_transformers(self)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Model in memory, ready to play."""

    model: Model
    engine: Engine
    chat: TemplateChat
    context: int | None
    decode: Callable[[TokenIds], str]

    def play(
        self, pool: GuardedPool | OrderedPool, attempts: Iterable[Attempt], seed: int, on_played: OnPlayed
    ) -> None:
        """Play ``attempts`` in a pool's environments, report each as soon as it is finished, and close the pool."""
        episodes = ((one, self._episode(one.task, one.seed(seed))) for one in attempts)
        with pool:
            stream_episodes(
                episodes,
                pool=pool,
                engine=self.engine,
                max_alive=self.model.concurrency,
                go_on=lambda: True,
                on_finish=lambda one, played: on_played(one, played, self.decode),
            )

    def policy(self, env: TextEnvironment, seed: int) -> Policy:
        """Return a policy for one episode; like the model's responses, its actions contain marks.

        It raises ``ModelStopped`` if the model's limits leave no room for another turn.
        """
        episode, rules = self._episode(Task("a conversation", seed), seed), read_instructions(env)
        turns = itertools.count()
        stopped: ModelStopped | None = None

        def answer(observation: str) -> str:
            nonlocal stopped
            todo: Sample | Act | Trajectory
            if stopped is not None:  # an episode that is over has no further turns
                raise stopped
            if (turn := next(turns)) == 0:
                todo = episode.started(EnvReply(observation, instructions=rules))
            else:
                todo = episode.stepped(EnvReply(observation))
            if isinstance(todo, Sample):
                self.engine.submit(Request(f"{seed}-{turn}", todo.prompt_ids, todo.max_tokens, todo.seed))
                todo = episode.sampled(self._completion(f"{seed}-{turn}"))
            if isinstance(todo, Act):
                return todo.action
            assert isinstance(todo, Trajectory)
            stopped = ModelStopped(todo.stop_reason, todo.error or "there is no room for another turn")
            raise stopped

        return answer

    def _completion(self, request: str) -> Completion:
        while True:
            for completion in self.engine.collect(block=True):
                if completion.request_id == request:
                    return completion

    def _episode(self, task: Task, seed: int) -> Episode:
        model = self.model
        limits = Limits(
            model.max_tokens,
            model.max_completion,
            self.context,
            observation=model.spec.get("max_observation"),
            action=model.spec.get("max_action"),
        )
        preamble = [] if model.system_prompt is None else [Message("system", model.system_prompt)]
        return Episode(task, chat=self.chat, limits=limits, preamble=preamble, seed=seed)


def _with_transformers(model: Model) -> LoadedModel:
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from gym_trl.engines.transformers import TransformersEngine
    except GymTRLError:
        raise
    except ImportError as error:
        raise MissingDependencyError("a model", extra="train") from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(model.path)
        weights = AutoModelForCausalLM.from_pretrained(model.path, dtype="auto")
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot load {model.path!r}: {str(error).strip().splitlines()[0]}") from error
    if torch.accelerator.is_available():
        weights = weights.to(torch.accelerator.current_accelerator())
    chat = TemplateChat(tokenizer, **(model.spec.get("chat_template_kwargs") or {}))
    engine = TransformersEngine(
        weights,
        pad_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id,
        eos_ids={*_eos_ids(weights, tokenizer), *chat.stop_ids},
        sampling=model.sampling,
        stop_strings=chat.stop_strings,
        decode=tokenizer.decode,
        max_batch=model.concurrency,
    )
    context = getattr(weights.config.get_text_config(), "max_position_embeddings", None)
    return LoadedModel(model, engine, chat, context, _remembering(tokenizer.decode))


def _eos_ids(weights: Any, tokenizer: Any) -> list[int]:
    ids = getattr(weights.generation_config, "eos_token_id", None)
    listed = ids if isinstance(ids, list) else [ids]
    return [id_ for id_ in (*listed, tokenizer.eos_token_id) if id_ is not None]


def _with_vllm(model: Model) -> LoadedModel:
    try:
        from vllm import LLM
    except ImportError as error:
        raise MissingDependencyError("a model on vLLM", extra="vllm") from error
    from gym_trl.engines.vllm import VLLMEngine, context_length

    try:
        llm = LLM(model.path, **{"logprobs_mode": "processed_logprobs", **model.llm})
    except (OSError, ValueError) as error:
        raise ConfigError(f"vLLM cannot load {model.path!r}: {str(error).strip().splitlines()[0]}") from error
    tokenizer = llm.get_tokenizer()
    chat = TemplateChat(tokenizer, **(model.spec.get("chat_template_kwargs") or {}))
    eos = {tokenizer.eos_token_id, *chat.stop_ids} - {None}
    engine = VLLMEngine(llm, eos_ids=eos, sampling=model.sampling, stop_strings=chat.stop_strings)
    return LoadedModel(model, engine, chat, context_length(llm), _remembering(tokenizer.decode))


def _remembering(decode: Callable[[TokenIds], str]) -> Callable[[TokenIds], str]:
    """Return ``decode`` with a cache for single ids, which are as slow to decode as a whole record."""
    texts: dict[int, str] = {}

    def text(ids: TokenIds) -> str:
        if len(ids) != 1:
            return decode(ids)
        if ids[0] not in texts:
            texts[ids[0]] = decode(ids)
        return texts[ids[0]]

    return text
