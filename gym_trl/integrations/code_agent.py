"""TRL's environments of 2025 (its pull request 3367), under their names: code agents, and custom rollouts.

``from trl import CodeAgentEnvironment`` becomes ``from gym_trl.integrations.code_agent import CodeAgentEnvironment``.
TRL concatenated texts and tokenized them again. Here a conversation is one append-only sequence of ids: sampled ids are
kept verbatim, with their logprobs, and the output of programs is masked.
"""

import inspect
import time
import warnings
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import gymnasium as gym

from gym_trl.chat.delimiter import DelimiterChat
from gym_trl.engines.protocol import sample_all
from gym_trl.errors import ConfigError, EngineError, check_counts, needs
from gym_trl.executors.thread import ThreadPool
from gym_trl.grpo import rollout_func as grpo
from gym_trl.grpo.trainer_engine import SAMPLING, trainer_engine
from gym_trl.grpo.trl_versions import end_ids, tokenizer_of
from gym_trl.rollout.episode import Episode
from gym_trl.rollout.limits import Limits
from gym_trl.rollout.loop import run_episodes
from gym_trl.sandbox import Isolation, Sandbox, SandboxLimits
from gym_trl.seeding import derive_seed
from gym_trl.spaces import AnyText
from gym_trl.types import Answer, EpisodeResult, Logprobs, Message, Request, Task, TokenIds

if TYPE_CHECKING:
    from trl import GRPOConfig, GRPOTrainer

__all__ = [
    "CodeAgentEnvironment",
    "DefaultEnvironment",
    "E2BExecuter",
    "Environment",
    "GRPOConfig",
    "GRPOTrainer",
    "LocalExecuter",
    "Localexecuter",
    "VLLMClient",
    "VLLMClientGenerationConfig",
    "prepare_data_for_e2b_agent",
    "prepare_data_for_local_agent",
    "read_script",
]

_CALLS = count()
_ENV_ID = "CodeAgentEnvironment"


@dataclass
class VLLMClientGenerationConfig:
    """Number of responses per prompt, their maximum length, and sampling options.

    >>> config = VLLMClientGenerationConfig(
    ...     n=8, repetition_penalty=1.0, temperature=0.8, top_p=0.9, top_k=10, min_p=0.0, max_tokens=256
    ... )
    >>> vars(config)["guided_decoding_regex"] is None
    True

    ``max_tokens`` limits a whole conversation, including the output of programs.
    """

    n: int
    repetition_penalty: float
    temperature: float
    top_p: float
    top_k: int | None
    min_p: float
    max_tokens: int
    guided_decoding_regex: str | None = None
    stop: list[str] | None = None

    def __post_init__(self) -> None:
        check_counts(n=self.n, max_tokens=self.max_tokens)


# ---------------------------------------------------------------------------------------------------------------------
# Clients
# ---------------------------------------------------------------------------------------------------------------------


class _Client(ABC):
    """Base class of the clients from which environments request responses."""

    @abstractmethod
    def engine(self, config: VLLMClientGenerationConfig, chat: "_Raw") -> Any:
        """Return a context manager with an engine that samples with ``config`` and stops where ``chat`` does."""

    @abstractmethod
    def _encode(self, prompt: str | Sequence[int]) -> TokenIds:
        """Return the ids of a prompt."""

    @abstractmethod
    def _sampled(self, prompt: str | Sequence[int], prompt_ids: TokenIds, ids: TokenIds, logprobs: Logprobs) -> None:
        """Record a sampled response."""

    def generate(
        self,
        prompts: Sequence[str | Sequence[int]],
        n: int = 1,
        repetition_penalty: float = 1.0,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int | None = -1,
        min_p: float = 0.0,
        max_tokens: int = 16,
        guided_decoding_regex: str | None = None,
        stop: list[str] | None = None,
    ) -> list[TokenIds]:
        """Return the ids of ``n`` responses to each prompt, in order; a prompt is text or ids.

        Raises:
            EngineError: A response could not be generated.
        """
        config = VLLMClientGenerationConfig(
            n, repetition_penalty, temperature, top_p, top_k, min_p, max_tokens, guided_decoding_regex, stop
        )
        call = next(_CALLS)
        expanded = [(prompt, ids) for prompt in prompts for ids in [self._encode(prompt)] for _ in range(n)]
        with self.engine(config, _Raw(self._tokenizer, stop or [])) as engine:
            requests = [
                Request(str(place), ids, max_tokens, derive_seed("generate", call, place), turn=1)
                for place, (_, ids) in enumerate(expanded)
            ]
            completions = sample_all(engine, requests)
        for (prompt, ids), completion in zip(expanded, completions, strict=True):
            self._sampled(prompt, ids, completion.ids, completion.logprobs)
        return [completion.ids for completion in completions]

    _tokenizer: Any = None  # a server ends responses itself


class VLLMClient(_Client):
    """Client of ``vllm serve``, like TRL's class of that name but without weight updates.

    ::

        client = VLLMClient()  # of `vllm serve MODEL --logprobs-mode processed_logprobs`, on this machine
        client.generate(["2 + 2 = "], n=4, max_tokens=8)

    Args:
        base_url: Address of the server. Default: ``host`` and ``server_port``.
        host: Host of the server.
        server_port: Port of the server.
        group_port: Accepted and not used, because the client does not update weights.
        connection_timeout: Maximum seconds to wait until the server is ready.

    Raises:
        ConnectionError: The server did not become ready.
    """

    def __init__(
        self,
        base_url: str | None = None,
        host: str = "0.0.0.0",  # noqa: S104 -- as TRL has it
        server_port: int = 8000,
        group_port: int = 51216,
        connection_timeout: float = 0.0,
    ) -> None:
        self.base_url = (base_url or f"http://{host}:{server_port}").rstrip("/")
        if connection_timeout:
            self._wait(connection_timeout)

    def _wait(self, seconds: float) -> None:
        import httpx

        deadline = time.monotonic() + seconds
        while True:
            with suppress(httpx.HTTPError):
                if httpx.get(f"{self.base_url}/health", timeout=seconds).status_code == 200:
                    return
            if time.monotonic() > deadline:
                raise ConnectionError(f"no vLLM server answers at {self.base_url}: start one with vllm serve MODEL")
            time.sleep(0.1)

    def engine(self, config: VLLMClientGenerationConfig, chat: "_Raw") -> Any:
        """Return a ``ServerEngine``."""
        from gym_trl.engines.server import ServerEngine

        sampling: dict[str, Any] = {name: getattr(config, name) for name in SAMPLING}
        if config.guided_decoding_regex is not None:
            sampling["structured_outputs"] = {"regex": config.guided_decoding_regex}
        return ServerEngine(self.base_url, eos_ids=chat.stop_ids, sampling=sampling, stop_strings=chat.stop_strings)

    def _encode(self, prompt: str | Sequence[int]) -> TokenIds:
        if not isinstance(prompt, str):
            return list(prompt)
        import httpx

        answer = httpx.post(f"{self.base_url}/tokenize", json={"prompt": prompt}, timeout=60)
        if answer.status_code != 200:
            raise EngineError(f"{self.base_url} cannot tokenize a prompt: {answer.status_code} {answer.text:.200}")
        return [int(id_) for id_ in answer.json()["tokens"]]

    def _sampled(self, prompt: str | Sequence[int], prompt_ids: TokenIds, ids: TokenIds, logprobs: Logprobs) -> None:
        pass


class _Sample(NamedTuple):
    ids: TokenIds
    logprobs: Logprobs


class _TrainerClient(_Client):
    """Client that samples from the model in training, and records every response to recognize it in a row."""

    def __init__(self, trainer: Any, codec: "_Codec") -> None:
        self._trainer = trainer
        self._tokenizer = tokenizer_of(trainer)
        self._codec = codec
        self._texts: dict[str, list[TokenIds]] = defaultdict(list)
        self._samples: dict[tuple[int, ...], list[_Sample]] = defaultdict(list)

    def engine(self, config: VLLMClientGenerationConfig, chat: "_Raw") -> Any:
        """Return the trainer's own engine.

        Raises:
            ConfigError: ``config`` has other sampling options than the trainer.
        """
        for name in SAMPLING:
            if getattr(config, name) != (value := getattr(self._trainer.args, name)):
                raise ConfigError(
                    f"the trainer samples with {name}={value!r}, and an environment asked for "
                    f"{getattr(config, name)!r}: set GRPOConfig({name}=...) instead, or what is trained is not what "
                    "was sampled"
                )
        return trainer_engine(self._trainer, chat)

    def _encode(self, prompt: str | Sequence[int]) -> TokenIds:
        """Return the ids of a prompt; a text that continues a sampled response keeps its ids and encodes the rest."""
        if not isinstance(prompt, str):
            return list(prompt)
        known = max((text for text in self._texts if prompt.startswith(text)), key=len, default=None)
        if known is None:
            return self._codec.prompt(prompt)
        alike = self._texts[known]
        ids = alike.pop(0)  # several responses may have the same text: each is continued in turn
        alike.append(ids)
        return ids + self._codec.more(prompt[len(known) :])

    def _sampled(self, prompt: str | Sequence[int], prompt_ids: TokenIds, ids: TokenIds, logprobs: Logprobs) -> None:
        self._samples[tuple(prompt_ids)].append(_Sample(ids, logprobs))
        if isinstance(prompt, str):
            for skipped in (True, False):
                self._texts[prompt + self._tokenizer.decode(ids, skip_special_tokens=skipped)].append(prompt_ids + ids)

    def row(self, prompt: TokenIds, ids: TokenIds) -> tuple[TokenIds, list[int], Logprobs]:
        """Return the ids up to the last sampled one, with their mask and logprobs.

        Raises:
            ConfigError: No part of ``ids`` was sampled after the ids before it.
        """
        lengths = {len(known) for known in self._samples}
        mask, logprobs, place = [0] * len(ids), [0.0] * len(ids), 0
        found: Logprobs = list(logprobs)
        while place < len(ids):
            sample = None
            if len(prompt) + place in lengths:
                sample = self._find(prompt + ids[:place], ids[place:])
            if sample is None:
                place += 1
                continue
            end = min(len(ids), place + len(sample.ids))
            mask[place:end] = [1] * (end - place)
            found[place:end] = sample.logprobs[: end - place]
            place = end
        last = max((place for place, sampled in enumerate(mask) if sampled), default=-1)
        if ids and last < 0:
            raise ConfigError(
                "an environment returned tokens that the model did not sample from this prompt: return what "
                "vllm_client.generate returned, unchanged, and never decode and encode it again"
            )
        return ids[: last + 1], mask[: last + 1], found[: last + 1]

    def _find(self, before: TokenIds, after: TokenIds) -> _Sample | None:
        fitting = [
            sample
            for sample in self._samples.get(tuple(before), ())
            if sample.ids[: len(after)] == after[: len(sample.ids)]
        ]
        return max(fitting, key=lambda sample: len(sample.ids), default=None)


class _Codec:
    """Encoder of prompts that are text."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def prompt(self, text: str) -> TokenIds:
        """Return the ids of a prompt with its control tokens and at most one beginning-of-sequence token."""
        bos = getattr(self._tokenizer, "bos_token", None)
        begun = bool(bos) and text.startswith(str(bos))
        return list(self._tokenizer.encode(text, add_special_tokens=not begun))

    def more(self, text: str) -> TokenIds:
        """Return the ids of text within a sequence."""
        return list(self._tokenizer.encode(text, add_special_tokens=False)) if text else []

    def render(self, prompt: Any) -> str:
        """Return a prompt as text; a list of messages is rendered with the chat template."""
        if isinstance(prompt, str):
            return prompt
        messages = [{"role": message["role"], "content": message["content"]} for message in prompt]
        return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


class _Raw:
    """Stop tokens and stop strings of a conversation without a chat template."""

    def __init__(self, tokenizer: Any, stop: Sequence[str]) -> None:
        eos = getattr(tokenizer, "eos_token_id", None)
        self.stop_ids: frozenset[int] = frozenset(() if eos is None else (eos,))
        self.stop_strings: tuple[str, ...] = tuple(stop)


class _CodeChat(DelimiterChat):
    """Chat in which prompt, sampled text and program output form one long response."""

    def __init__(self, tokenizer: Any, *, stop: Sequence[str], output: tuple[str, str]) -> None:
        super().__init__(tokenizer, user=output, assistant=("", stop[0]))
        self._raw = _Codec(tokenizer)
        self.stop_ids = frozenset()
        self.stop_strings = tuple(stop)

    def open(self, messages: Sequence[Message]) -> TokenIds:
        """Return the ids of the prompt, which is text with its mark-up."""
        return self._raw.prompt("".join(message.content for message in messages))

    def closes(self, ids: Sequence[int]) -> bool:
        """Return True, because a response is continued only after the end of a program."""
        return True

    def text(self, ids: TokenIds) -> Answer:
        """Return the sampled text, including the end mark of a program."""
        return Answer("", self._codec.strip(self._codec.decode(ids)))


# ---------------------------------------------------------------------------------------------------------------------
# Executers
# ---------------------------------------------------------------------------------------------------------------------


class Session(Protocol):
    """Protocol of sessions that run the programs of one conversation one after another."""

    def run(self, code: str) -> str:
        """Run a program and return its output."""
        ...

    def close(self) -> None:
        """End the session."""
        ...


class SessionExecuter(ABC):
    """Base class of executers whose programs share their variables within a conversation."""

    max_concurrent: int

    @abstractmethod
    def session(self) -> Session:
        """Return a new session."""

    def execute(self, codes: Sequence[str]) -> list[str]:
        """Run independent programs and return their outputs, in order."""

        def run(code: str) -> str:
            with closing(self.session()) as session:
                return session.run(code)

        with ThreadPoolExecutor(max(1, min(self.max_concurrent, len(codes)))) as threads:
            return list(threads.map(run, codes))


class LocalExecuter(SessionExecuter):
    r"""Executer that runs programs on this machine, with one ``Sandbox`` per conversation.

    >>> LocalExecuter().execute(["print(6 * 7)", "x = 1", "print(x)"])[:2]
    ['42\n', '']

    Programs of one conversation share their variables; programs of different conversations, and programs in one call of
    ``execute``, do not.

    Args:
        limits: Limits of each conversation's sandbox.
        max_concurrent: Maximum number of programs that run concurrently.
        isolation: Isolation of each sandbox, see ``Sandbox``.

    Raises:
        ConfigError: The ``isolation`` is unknown or does not work on this machine.
    """

    def __init__(
        self, limits: SandboxLimits | None = None, *, max_concurrent: int = 8, isolation: Isolation = "bubblewrap"
    ) -> None:
        self.limits = limits or SandboxLimits()
        self.max_concurrent = max_concurrent
        self.isolation: Isolation = isolation
        self.session().close()  # report an invalid isolation now

    def session(self) -> Session:
        """Return a new session with its own sandbox."""
        return _LocalSession(Sandbox(self.limits, isolation=self.isolation))


Localexecuter = LocalExecuter
"""Alias with the spelling of the pull request's last revision."""


class _LocalSession:
    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def run(self, code: str) -> str:
        return self._sandbox.run(code).output

    def close(self) -> None:
        self._sandbox.close()


class E2BExecuter(SessionExecuter):
    """Executer that runs programs in E2B's sandboxes (``pip install 'gym-trl[e2b]'``), one per conversation.

    ::

        E2BExecuter(api_key="...").execute(["print(6 * 7)"])

    Args:
        api_key: API key of E2B. Default: ``E2B_API_KEY``.
        template: E2B template of the sandboxes.
        max_concurrent: Maximum number of programs that run concurrently.
        timeout_s: Maximum seconds for one program.
        sandbox_s: Seconds after which E2B ends a sandbox that was not closed.
        **options: Arguments for the SDK's ``Sandbox.create``, such as ``allow_internet_access=False`` or ``domain``.

    Raises:
        MissingDependencyError: The SDK is not installed.
    """

    def __init__(
        self,
        api_key: str | None = None,
        template: str | None = None,
        max_concurrent: int = 20,
        *,
        timeout_s: float = 30.0,
        sandbox_s: int = 600,
        **options: Any,
    ) -> None:
        with needs("e2b", "E2BExecuter"):
            from e2b_code_interpreter import Sandbox as Remote
        self._remote = Remote
        self._options = {"api_key": api_key, "template": template, "timeout": sandbox_s, **options}
        self._timeout_s = timeout_s
        self.max_concurrent = max_concurrent

    def session(self) -> Session:
        """Return a new session, whose E2B sandbox is made for its first program."""
        return _E2BSession(self._remote, self._options, self._timeout_s)


class _E2BSession:
    def __init__(self, remote: Any, options: Mapping[str, Any], timeout_s: float) -> None:
        self._remote = remote
        self._options = {name: value for name, value in options.items() if value is not None}
        self._timeout_s = timeout_s
        self._sandbox: Any = None

    def run(self, code: str) -> str:
        if self._sandbox is None:
            self._sandbox = self._remote.create(**self._options)
        try:
            ran = self._sandbox.run_code(code, timeout=self._timeout_s)
        except Exception as error:
            if type(error).__name__ != "TimeoutException":  # a subclass means that the sandbox is gone
                raise
            self.close()  # otherwise the program would continue to run
            return f"[It was ended after {self._timeout_s:g} seconds. All variables are lost.]\n"
        said = "".join([*ran.logs.stdout, *ran.logs.stderr])
        said += f"{ran.text}\n" if ran.text is not None else ""
        return said + (f"{ran.error.traceback}\n" if ran.error is not None else "")

    def close(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            sandbox.kill()


class _Batches:
    """Session for an executer with ``execute`` only; programs that arrive while it is busy form its next batch."""

    def __init__(self, executer: Any) -> None:
        self._executer = executer
        self._busy, self._guard = Lock(), Lock()
        self._waiting: list[tuple[str, Future[str]]] = []

    def run(self, code: str) -> str:
        future: Future[str] = Future()
        with self._guard:
            self._waiting.append((code, future))
        with self._busy:
            if not future.done():
                self._execute()
        return future.result()

    def close(self) -> None:
        """Do nothing, because programs share no state."""

    def _execute(self) -> None:
        with self._guard:
            batch, self._waiting = self._waiting, []
        try:
            outputs = list(self._executer.execute([code for code, _ in batch]))
            if len(outputs) != len(batch):
                raise ValueError(f"the executer was given {len(batch)} programs and returned {len(outputs)} outputs")
        except Exception as error:
            for _, future in batch:
                future.set_exception(error)
        else:
            for (_, future), output in zip(batch, outputs, strict=True):
                future.set_result(str(output))


# ---------------------------------------------------------------------------------------------------------------------
# Environments
# ---------------------------------------------------------------------------------------------------------------------


class Environment(ABC):
    """Base class of custom rollouts: a subclass defines ``generate``, and ``rollout_func`` trains with it.

    >>> class MyCustomEnv(Environment):
    ...     def generate(self, vllm_client, generation_config, prompts):
    ...         return vllm_client.generate(prompts=prompts, **vars(generation_config))

    Pass it as ``GRPOTrainer(..., environment=MyCustomEnv())`` of this module, or as
    ``rollout_func=MyCustomEnv().rollout_func`` to TRL's own. In training every returned row is compared with the
    sampled responses: ids that the client returned are trained on with their logprobs, ids between them are masked, and
    rows that were decoded and encoded again are rejected. Text prompts that continue a response keep its ids.
    """

    @abstractmethod
    def generate(
        self, vllm_client: Any, generation_config: VLLMClientGenerationConfig, prompts: list[str]
    ) -> "list[TokenIds] | tuple[list[TokenIds], list[list[int]]]":
        """Return the ids of ``n`` completions per prompt in the order of the prompts, or a tuple of these and masks."""

    @property
    def rollout_func(self) -> grpo.RolloutFunc:
        """Function for ``GRPOTrainer(rollout_func=...)``."""
        return self._rollout

    def _rollout(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        codec = _Codec(tokenizer_of(trainer))
        client = _TrainerClient(trainer, codec)
        config = _trainer_config(trainer)
        texts = [codec.render(prompt) for prompt in prompts]
        returned = self.generate(client, config, list(texts))
        completions, masks = returned if isinstance(returned, tuple) else (returned, None)
        if len(completions) != len(prompts):
            name = type(self).__name__
            raise ConfigError(f"{name}.generate was given {len(prompts)} prompts and returned {len(completions)} rows")
        columns: dict[str, list[Any]] = {"prompt_ids": [], "completion_ids": [], "logprobs": [], "env_mask": []}
        for place, text in enumerate(texts):
            prompt_ids = codec.prompt(text)
            ids, mask, logprobs = client.row(prompt_ids, list(completions[place]))
            if masks is not None:  # the environment may mask more tokens
                mask = [ours and int(bool(theirs)) for ours, theirs in zip(mask, masks[place], strict=False)]
            if not ids:
                ids, mask, logprobs = [end_ids(trainer)[0]], [0], [0.0]
            for name, value in zip(columns, (prompt_ids, ids, logprobs, mask), strict=True):
                columns[name].append(value)
        return columns


class DefaultEnvironment(Environment):
    """Environment that generates one response to each prompt."""

    def generate(
        self, vllm_client: Any, generation_config: VLLMClientGenerationConfig, prompts: list[str]
    ) -> list[TokenIds]:
        """Return the ids of the responses."""
        ids: list[TokenIds] = vllm_client.generate(prompts=prompts, **vars(generation_config))
        return ids


class CodeAgentEnvironment(Environment):
    """Environment in which the model writes programs in its response and reads their output.

    ::

        my_env = CodeAgentEnvironment(LocalExecuter(), tokenizer, parsing_string="<code>", stop_string="</code>")
        responses = my_env.run_agent(vllm_client=VLLMClient(), generation_config=gen_config, prompts=prompts)

    When the model writes ``stop_string``, the last block between ``parsing_string`` and it is executed, and the output
    is appended between the output tags; then the model continues, until it ends its response or has used up its tokens.
    Conversations do not wait for each other. Programs of a conversation share their variables if the executer has
    sessions. Results are in the order of the prompts. An exception in the executer ends only its conversation: the text
    ends there, and in training the episode is unscored.

    Args:
        code_executer: ``LocalExecuter``, ``E2BExecuter``, or any object with ``execute(codes) -> outputs``.
        tokenizer: The model's tokenizer.
        parsing_string: Tag that starts a program.
        stop_string: Tag that ends a program.
        tools_script: Python code that is put before every program.
        output_string_start: Tag before the output of a program.
        output_string_end: Tag after the output of a program.

    Raises:
        ConfigError: The executer has no ``execute``, or a tag is empty.
    """

    def __init__(
        self,
        code_executer: Any,
        tokenizer: Any,
        parsing_string: str = "<code>",
        stop_string: str = "</code>",
        tools_script: str | None = None,
        output_string_start: str = "<output>",
        output_string_end: str = "</output>",
    ) -> None:
        if not callable(getattr(code_executer, "execute", None)):
            raise ConfigError(f"code_executer needs execute(codes) -> outputs, and {code_executer!r:.80} has none")
        for name, tag in (("parsing_string", parsing_string), ("stop_string", stop_string)):
            if not tag:
                raise ConfigError(f"{name} must not be empty")
        self.code_executer = code_executer
        self.tokenizer = tokenizer
        self.parsing_string = parsing_string
        self.stop_string = stop_string
        self.tools_script = tools_script
        self.output_string_start = output_string_start
        self.output_string_end = output_string_end
        self._batches = _Batches(code_executer)

    def extract_code(self, text: str) -> str | None:
        r"""Return the last program in a text, preceded by ``tools_script``; ``None`` if there is no program.

        >>> env = CodeAgentEnvironment(LocalExecuter(), tokenizer=None, tools_script="import math")
        >>> env.extract_code("First <code>1</code> and then <code>math.pi</code>")
        'import math\nmath.pi'
        """
        _, begun, rest = text.rpartition(self.parsing_string)
        code, ended, _ = rest.partition(self.stop_string)
        if not begun or not ended:
            return None
        return f"{self.tools_script}\n{code}" if self.tools_script else code

    def play(
        self, vllm_client: Any, generation_config: VLLMClientGenerationConfig, prompts: Sequence[str]
    ) -> list[EpisodeResult]:
        """Return the conversations with their ids, masks and logprobs, ``n`` per prompt and in order."""
        config = generation_config
        chat = self._chat(config.stop or ())
        limits = Limits(tokens=config.max_tokens)
        call = next(_CALLS)
        expanded = [prompt for prompt in prompts for _ in range(config.n)]
        episodes = [
            Episode(
                Task(_ENV_ID, place),
                chat=chat,
                limits=limits,
                preamble=[Message("user", prompt)],
                seed=derive_seed("run_agent", call, place),
            )
            for place, prompt in enumerate(expanded)
        ]
        raw = _Raw(self.tokenizer, chat.stop_strings)
        with _client(vllm_client).engine(config, raw) as engine, ThreadPool(self._make, workers=self._workers) as pool:
            return run_episodes(episodes, pool=pool, engine=engine)

    def run_agent(
        self, vllm_client: Any, generation_config: VLLMClientGenerationConfig, prompts: Sequence[str]
    ) -> list[str]:
        """Return the whole texts including the prompts, ``n`` per prompt and in order."""
        played = self.play(vllm_client, generation_config, prompts)
        for episode in played:
            if episode.error is not None:
                warnings.warn(f"a conversation ended early: {episode.error}", stacklevel=2)
        return [
            prompts[place // generation_config.n]
            + str(self.tokenizer.decode(episode.trace.completion_ids, skip_special_tokens=True))
            for place, episode in enumerate(played)
        ]

    def generate(
        self, vllm_client: Any, generation_config: VLLMClientGenerationConfig, prompts: list[str]
    ) -> list[TokenIds]:
        """Return the ids of the completions, ``n`` per prompt and in order."""
        return [episode.trace.completion_ids for episode in self.play(vllm_client, generation_config, prompts)]

    def mask_tool_output(self, completion_ids_list: Sequence[TokenIds], **_: Any) -> list[list[int]]:
        """Raise ``ConfigError``: the model can write tags itself, so a mask derived from tags can be forged."""
        raise ConfigError(
            "masks come from what was sampled, not from tags in the text: read EpisodeResult.mask of play(...), and in "
            "training use rollout_func, which has them"
        )

    @property
    def rollout_func(self) -> grpo.RolloutFunc:
        """Function for ``GRPOTrainer(rollout_func=...)`` that plays conversations with the trainer's model."""
        codec = _Codec(self.tokenizer)
        rollout = grpo.make_rollout_func(
            self._make,
            assign=lambda split, number: Task(_ENV_ID, number),
            chat=self._chat(()),
            executor="thread",
            workers=self._workers,
        )
        return lambda prompts, trainer: rollout([codec.render(prompt) for prompt in prompts], trainer)

    @property
    def _workers(self) -> int:
        # An executer with only execute is called by one thread at a time, with the waiting programs of all threads.
        return max(1, int(getattr(self.code_executer, "max_concurrent", 32)))

    def _chat(self, stop: Sequence[str]) -> _CodeChat:
        output = (self.output_string_start, self.output_string_end)
        return _CodeChat(self.tokenizer, stop=(self.stop_string, *stop), output=output)

    def _make(self, env_id: str) -> gym.Env[str, str]:
        executer = self.code_executer
        session = executer.session if isinstance(executer, SessionExecuter) else lambda: self._batches
        return _Conversation(self.extract_code, session)


class _Conversation(gym.Env[str, str]):
    """Environment that executes the program at the end of a response; a response without one ends the episode."""

    reads_responses = True  # a program is complete once its end tag is written

    def __init__(self, extract: Callable[[str], str | None], session: Callable[[], Session]) -> None:
        self.observation_space = self.action_space = AnyText()
        self._extract = extract
        self._make = session
        self._session: Session | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.close()
        return "", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        code = self._extract(action)
        if code is None:
            self.close()
            return "", 0.0, True, False, {}
        if self._session is None:
            self._session = self._make()
        return self._session.run(code), 0.0, False, False, {}

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()


def _client(vllm_client: Any) -> _Client:
    if isinstance(vllm_client, _Client):
        return vllm_client
    if isinstance(url := getattr(vllm_client, "base_url", None), str):  # TRL's client
        return VLLMClient(base_url=url)
    raise ConfigError(f"vllm_client must be a VLLMClient, got {vllm_client!r:.80}")


def _trainer_config(trainer: Any) -> VLLMClientGenerationConfig:
    """Return the trainer's sampling options with ``n=1``, because the trainer repeats each prompt itself."""
    sampling = {name: getattr(trainer.args, name) for name in SAMPLING}
    return VLLMClientGenerationConfig(n=1, max_tokens=trainer.args.max_completion_length, **sampling)


# ---------------------------------------------------------------------------------------------------------------------
# Data and trainers
# ---------------------------------------------------------------------------------------------------------------------

_SYSTEM = "You are a helpful assistant that can run Python."
_HOW = (
    "Write a program between <code> and </code>; what it writes then stands between <output> and </output>, and you go "
    "on. Variables stay. End with your answer."
)


def read_script(path: str) -> str:
    """Return the text of a script of tools."""
    return Path(path).read_text(encoding="utf-8")


def prepare_data_for_e2b_agent(
    dataset: Any,
    tokenizer: Any,
    prompt_column: str = "prompt",
    system_prompt: str = _SYSTEM,
    environment_prompt: str = _HOW,
    tools_script_path: str | None = None,
) -> Any:
    """Return a dataset whose prompts explain how to run programs, rendered with the tokenizer's chat template."""
    tools = read_script(tools_script_path) if tools_script_path else ""
    return _prepare(dataset, tokenizer, prompt_column, system_prompt, environment_prompt, tools)


def prepare_data_for_local_agent(
    dataset: Any,
    tokenizer: Any,
    prompt_column: str = "prompt",
    system_prompt: str = f"{_SYSTEM} {_HOW}",
    tools: Sequence[Callable[..., Any]] | None = None,
    include_source_code: bool = True,
) -> Any:
    """Return a dataset like ``prepare_data_for_e2b_agent``, with the source or the signature and docstring of tools."""
    shown = [inspect.getsource(tool) if include_source_code else _signature(tool) for tool in tools or ()]
    return _prepare(dataset, tokenizer, prompt_column, system_prompt, "", "\n".join(shown))


def _signature(tool: Callable[..., Any]) -> str:
    return f"def {tool.__name__}{inspect.signature(tool)}:\n    {(inspect.getdoc(tool) or '')!r}\n"


def _prepare(dataset: Any, tokenizer: Any, column: str, system: str, environment: str, tools: str) -> Any:
    told = "\n\n".join(part for part in (system, environment, tools and f"These can be called:\n{tools}") if part)

    def render(row: dict[str, Any]) -> dict[str, Any]:
        prompt = row[column]
        asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        messages = [{"role": "system", "content": told}, *asked]
        return {"prompt": tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)}

    return dataset.map(render)


def __getattr__(name: str) -> Any:
    if name == "GRPOConfig":
        from trl import GRPOConfig

        return GRPOConfig
    if name == "GRPOTrainer":
        return _trainer_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _trainer_class() -> type:
    """Return TRL's ``GRPOTrainer`` with an argument ``environment``."""
    from trl import GRPOTrainer as Trainer

    class GRPOTrainer(Trainer):  # type: ignore[misc]  # TRL is untyped
        """TRL's ``GRPOTrainer`` with an argument ``environment``, whose ``rollout_func`` it uses."""

        def __init__(self, *args: Any, environment: Environment | None = None, **options: Any) -> None:
            if environment is not None:
                if options.get("rollout_func") is not None:
                    raise ConfigError("give environment or rollout_func: an environment brings its own")
                options["rollout_func"] = environment.rollout_func
            super().__init__(*args, **options)

    return GRPOTrainer
