"""Environments that control the rollout: custom ones, and one in which the model writes programs."""

import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym

from gym_trl.chat import Encoder
from gym_trl.errors import ConfigError
from gym_trl.executors.thread import ThreadPool
from gym_trl.grpo.rollout_func import RolloutFunc
from gym_trl.grpo.trainer_engine import SAMPLING
from gym_trl.grpo.trl_versions import end_ids, tokenizer_of
from gym_trl.integrations.code_agent.clients import (
    CALLS,
    PromptCodec,
    TrainerClient,
    VLLMClientGenerationConfig,
    client_of,
    stops_of,
)
from gym_trl.integrations.code_agent.executers import Batches, Session, SessionExecuter
from gym_trl.rollout import Episode, Limits, rollout, run
from gym_trl.seeding import derive_seed
from gym_trl.spaces import AnyText
from gym_trl.types import Answer, Message, Task, TokenIds

_ENV_ID = "CodeAgentEnvironment"


class _CodeChat:
    """Chat in which prompt, sampled text and program output form one long response."""

    stop_ids: frozenset[int] = frozenset()

    def __init__(self, tokenizer: Any, *, stop: Sequence[str], output: tuple[str, str]) -> None:
        self._encoder, self._raw, self._output = Encoder(tokenizer), PromptCodec(tokenizer), output
        self.stop_strings = tuple(stop)

    def open(self, messages: Sequence[Message]) -> TokenIds:
        """Return the ids of the prompt, which is text with its mark-up."""
        return self._raw.prompt("".join(message.content for message in messages))

    def reply(self, text: str, *, closed: bool) -> TokenIds:
        """Return the ids of a program's output between its tags."""
        begin, end = self._output
        return self._encoder.encode(f"{begin}{self._encoder.inert(text)}{end}")

    def closes(self, ids: Sequence[int]) -> bool:
        """Return True, because a response is continued only after the end of a program."""
        return True

    def text(self, ids: TokenIds) -> Answer:
        """Return the sampled text, including the end mark of a program."""
        return Answer("", self._encoder.bare(self._encoder.decode(ids)))


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
    def rollout_func(self) -> Callable[[list[Any], Any], dict[str, Any]]:
        """Function for ``GRPOTrainer(rollout_func=...)``."""
        return self._rollout

    def _rollout(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        codec = PromptCodec(tokenizer_of(trainer))
        client = TrainerClient(trainer, codec)
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
        self._batches = Batches(code_executer)

    def extract_code(self, text: str) -> str | None:
        r"""Return the last program in a text, preceded by ``tools_script``; ``None`` if there is no program.

        >>> from gym_trl.integrations.code_agent import LocalExecuter
        >>> env = CodeAgentEnvironment(LocalExecuter(), tokenizer=None, tools_script="import math")
        >>> env.extract_code("First <code>1</code> and then <code>math.pi</code>")
        'import math\nmath.pi'
        """
        _, begin, rest = text.rpartition(self.parsing_string)
        code, end, _ = rest.partition(self.stop_string)
        if not begin or not end:
            return None
        return f"{self.tools_script}\n{code}" if self.tools_script else code

    def play(
        self, vllm_client: Any, generation_config: VLLMClientGenerationConfig, prompts: Sequence[str]
    ) -> list[Episode]:
        """Return the conversations with their ids, masks and logprobs, ``n`` per prompt and in order."""
        config = generation_config
        chat = self._chat(config.stop or ())
        call = next(CALLS)
        expanded = [prompt for prompt in prompts for _ in range(config.n)]
        raw = stops_of(self.tokenizer, chat.stop_strings)
        with (
            client_of(vllm_client).engine(config, raw) as engine,
            ThreadPool(self._make, workers=self._workers) as pool,
        ):
            played = run(
                rollout(
                    [Task(_ENV_ID, place) for place in range(len(expanded))],
                    pool=pool,
                    engine=engine,
                    chat=chat,
                    seeds=[derive_seed("run_agent", call, place) for place in range(len(expanded))],
                    preambles=[[Message("user", prompt)] for prompt in expanded],
                    limits=Limits(tokens=config.max_tokens),
                )
            )
        return [episode for [episode] in played]

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
            + str(self.tokenizer.decode(episode.row.completion_ids, skip_special_tokens=True))
            for place, episode in enumerate(played)
        ]

    def generate(
        self, vllm_client: Any, generation_config: VLLMClientGenerationConfig, prompts: list[str]
    ) -> list[TokenIds]:
        """Return the ids of the completions, ``n`` per prompt and in order."""
        return [episode.row.completion_ids for episode in self.play(vllm_client, generation_config, prompts)]

    @property
    def rollout_func(self) -> Callable[[list[Any], Any], dict[str, Any]]:
        """Function for ``GRPOTrainer(rollout_func=...)`` that plays conversations with the trainer's model."""
        codec, pool = PromptCodec(self.tokenizer), ThreadPool(self._make, workers=self._workers)
        play = RolloutFunc(pool, assign=lambda split, number: Task(_ENV_ID, number % 2**31), chat=self._chat(()))
        weakref.finalize(play, pool.close)
        return lambda prompts, trainer: play([codec.render(prompt) for prompt in prompts], trainer)

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


def _trainer_config(trainer: Any) -> VLLMClientGenerationConfig:
    """Return the trainer's sampling options with ``n=1``, because the trainer repeats each prompt itself."""
    sampling = {name: getattr(trainer.args, name) for name in SAMPLING}
    return VLLMClientGenerationConfig(n=1, max_tokens=trainer.args.max_completion_length, **sampling)
