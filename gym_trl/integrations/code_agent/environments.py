"""Environments that control the rollout: custom ones, and one in which the model writes programs."""

import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym

from gym_trl.encoder import Encoder
from gym_trl.episode import Episode
from gym_trl.errors import ConfigError, apart_from_the_model
from gym_trl.executors.thread import ThreadPool
from gym_trl.grpo.rollout_func import RolloutFunc
from gym_trl.grpo.trainer_engine import SAMPLING, Stops
from gym_trl.grpo.trl_versions import render, tokenizer_of
from gym_trl.integrations.code_agent.clients import (
    CALLS,
    Client,
    TrainerClient,
    VLLMClientGenerationConfig,
    encode_prompt,
)
from gym_trl.integrations.code_agent.executers import Session, SessionExecuter
from gym_trl.rollout import Limits, rollout, run
from gym_trl.seeding import derive_seed
from gym_trl.spaces import AnyText
from gym_trl.types import Answer, Message, Task, TokenIds

_ENV_ID = "CodeAgentEnvironment"


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
    ) -> list[TokenIds]:
        """Return the ids of ``n`` completions per prompt, in the order of the prompts."""

    @property
    def rollout_func(self) -> Callable[[list[Any], Any], dict[str, Any]]:
        """Function for ``GRPOTrainer(rollout_func=...)``."""
        return self._rollout

    def _rollout(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        tokenizer, client = tokenizer_of(trainer), TrainerClient(trainer)
        sampling = {name: getattr(trainer.args, name) for name in SAMPLING}
        # The trainer has repeated each prompt, so n is 1.
        config = VLLMClientGenerationConfig(n=1, max_tokens=trainer.args.max_completion_length, **sampling)
        texts = [render(trainer, prompt) for prompt in prompts]
        completions = self.generate(client, config, list(texts))
        if len(completions) != len(prompts):
            name = type(self).__name__
            raise ConfigError(f"{name}.generate was given {len(prompts)} prompts and returned {len(completions)} rows")
        rows = [
            client.row(encode_prompt(tokenizer, text), list(ids)) for text, ids in zip(texts, completions, strict=True)
        ]
        for row in rows:
            if not row.completion_ids:
                row.add(trainer.eos_token_ids[:1])
        return {
            "prompt_ids": [row.prompt_ids for row in rows],
            "completion_ids": [row.completion_ids for row in rows],
            "logprobs": [row.logprobs for row in rows],
            "env_mask": [row.mask for row in rows],
        }


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
        code_executer: ``LocalExecuter``, ``E2BExecuter``, or any object with ``execute(codes) -> outputs``, which is
            called by one thread at a time unless it has the attribute ``max_concurrent``.
        tokenizer: The model's tokenizer.
        parsing_string: Tag that starts a program.
        stop_string: Tag that ends a program.
        tools_script: Python code that is put before every program.
        output_string_start: Tag before the output of a program.
        output_string_end: Tag after the output of a program.

    Raises:
        ConfigError: The executer has no ``execute``.
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
        self.code_executer, self.tokenizer, self.tools_script = code_executer, tokenizer, tools_script
        self.parsing_string, self.stop_string = parsing_string, stop_string
        self.output_string_start, self.output_string_end = output_string_start, output_string_end

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
        self, vllm_client: Client, generation_config: VLLMClientGenerationConfig, prompts: Sequence[str]
    ) -> list[Episode]:
        """Return the conversations with their ids, masks and logprobs, ``n`` per prompt and in order."""
        call, expanded = next(CALLS), [prompt for prompt in prompts for _ in range(generation_config.n)]
        chat = _CodeChat(self, generation_config.stop or ())
        stops = Stops(frozenset({self.tokenizer.eos_token_id} - {None}), chat.stop_strings)
        with vllm_client.engine(generation_config, stops) as engine, self._pool() as pool:
            played = run(
                rollout(
                    [Task(_ENV_ID, place) for place in range(len(expanded))],
                    pool=pool,
                    engine=engine,
                    chat=chat,
                    seeds=[derive_seed("run_agent", call, place) for place in range(len(expanded))],
                    preambles=[[Message("user", prompt)] for prompt in expanded],
                    limits=Limits(tokens=generation_config.max_tokens),
                )
            )
        return [episode for [episode] in played]

    def run_agent(
        self, vllm_client: Client, generation_config: VLLMClientGenerationConfig, prompts: Sequence[str]
    ) -> list[str]:
        """Return the whole texts including the prompts, ``n`` per prompt and in order."""
        texts = []
        for place, episode in enumerate(self.play(vllm_client, generation_config, prompts)):
            if episode.error is not None:
                warnings.warn(f"a conversation ended early: {episode.error}", stacklevel=2)
            said = self.tokenizer.decode(episode.row.completion_ids, skip_special_tokens=True)
            texts.append(f"{prompts[place // generation_config.n]}{said}")
        return texts

    def generate(
        self, vllm_client: Client, generation_config: VLLMClientGenerationConfig, prompts: list[str]
    ) -> list[TokenIds]:
        """Return the ids of the completions, ``n`` per prompt and in order."""
        return [episode.row.completion_ids for episode in self.play(vllm_client, generation_config, prompts)]

    @property
    def rollout_func(self) -> Callable[[list[Any], Any], dict[str, Any]]:
        """Function for ``GRPOTrainer(rollout_func=...)`` that plays conversations with the trainer's model."""
        pool = self._pool()
        play = RolloutFunc(pool, assign=lambda split, number: Task(_ENV_ID, number % 2**31), chat=_CodeChat(self))
        weakref.finalize(play, pool.close)
        return lambda prompts, trainer: play([render(trainer, prompt) for prompt in prompts], trainer)

    def _pool(self) -> ThreadPool:
        executer = self.code_executer

        def execute(code: str) -> str:
            [output] = executer.execute([code])
            return str(output)

        session = executer.session if isinstance(executer, SessionExecuter) else lambda: Session(execute, lambda: None)
        workers = max(1, int(getattr(executer, "max_concurrent", 1)))
        return ThreadPool(lambda _: _Conversation(self.extract_code, session), workers=workers)


class _CodeChat:
    """Chat in which prompt, sampled text and program output form one long response."""

    stop_ids: frozenset[int] = frozenset()

    def __init__(self, environment: CodeAgentEnvironment, stop: Sequence[str] = ()) -> None:
        self._tokenizer, self._encoder = environment.tokenizer, Encoder(environment.tokenizer)
        self._tags = environment.output_string_start, environment.output_string_end
        self.stop_strings = (environment.stop_string, *stop)

    def open(self, messages: Sequence[Message]) -> TokenIds:
        """Return the ids of the prompt, which is text with its mark-up."""
        return encode_prompt(self._tokenizer, "".join(message.content for message in messages))

    def reply(self, text: str, *, closed: bool) -> TokenIds:
        """Return the ids of a program's output between its tags."""
        begin, end = self._tags
        return self._encoder.encode(f"{begin}{self._encoder.inert(text)}{end}")

    def closes(self, ids: Sequence[int]) -> bool:
        """Return True, because a response is continued only after the end of a program."""
        return True

    def text(self, ids: TokenIds) -> Answer:
        """Return the sampled text, including the end mark of a program."""
        return Answer("", self._encoder.bare(self._encoder.decode(ids)))


class _Conversation(gym.Env[str, str]):
    """Environment that executes the program at the end of a response; a response without one ends the episode."""

    reads_responses = True  # a program is complete once its end tag is written

    def __init__(self, extract: Callable[[str], str | None], session: Callable[[], Session]) -> None:
        self.observation_space = self.action_space = AnyText()
        self._extract, self._make = extract, session
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
        with apart_from_the_model("the executer"):  # what its program raises is output
            self._session = self._session or self._make()
            return self._session.run(code), 0.0, False, False, {}

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()
