"""Players: policies that read text, models and servers, all of them samplers of ``gym_trl.play``."""

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from gym_trl.bases import outside_of_the_loop
from gym_trl.chat import Chat, ChatLike
from gym_trl.engines.protocol import AsyncEngine, Engine
from gym_trl.engines.server import AnswerError, HTTPEngine
from gym_trl.episode import Episode
from gym_trl.errors import PolicyError, needs
from gym_trl.executors import Executor, make_pool
from gym_trl.executors.inline import EnvPool, InlinePool, TextEnvironment
from gym_trl.history import chat_for
from gym_trl.models import find_model, load_model
from gym_trl.options import load_function
from gym_trl.play import History, Limits, Sample, play
from gym_trl.random_play import Act, random_play, solve
from gym_trl.rollout import Ask, asking, gather, rare_full_collections, run
from gym_trl.seeding import derive_seed
from gym_trl.setting import Setting
from gym_trl.text.thoughts import split_thinking
from gym_trl.types import (
    Answer,
    Completion,
    EnvFailure,
    FinishReason,
    Message,
    ModelStopped,
    Request,
    StepResult,
    StopReason,
    Task,
    TokenIds,
    UnfinishedResponse,
)
from gym_trl.wrappers.parse_action import action_writer

TextPolicy: TypeAlias = Callable[[Any, int], Act]
"""``policy(env, seed)`` is called after the reset of an episode and returns ``act(observation, info) -> action``."""
_SERVED_AT_ONCE = 16
_FULL = ("context length", "context_length", "maximum context", "too long")
"""Words of servers about a conversation that is longer than the model's context."""


class Trajectory:
    """What the environment of one episode was asked, and what it has returned; it steps the environment, too."""

    def __init__(self, pool: EnvPool, key: str) -> None:
        self.actions: list[str] = []
        self.results: list[StepResult | EnvFailure] = []
        """Results of the reset and of each action."""
        self.seconds: list[float] = []
        self._pool, self._key = pool, key

    @property
    def env(self) -> TextEnvironment:
        """Environment while its episode goes on, if it is stepped in this thread."""
        assert isinstance(self._pool, InlinePool)
        return self._pool.env(self._key)

    async def step(self, work: Task | str) -> StepResult | EnvFailure:
        """Reset the environment for a task, or step it with an action."""
        if not isinstance(work, Task):
            self.actions.append(str(work))
        began = time.perf_counter()
        self.results.append(await self._pool.execute(self._key, work))
        self.seconds.append(time.perf_counter() - began)
        return self.results[-1]


class Player(ABC):
    """Plays a seat of many episodes at once."""

    chat: ChatLike
    engine: Engine | AsyncEngine | None = None
    limits: Limits = Limits()

    @abstractmethod
    def sampler(self, trajectory: Trajectory, name: str, seed: int, ask: Ask | None) -> Sample:
        """Return the sampler of one episode.

        Args:
            trajectory: Environment of the episode.
            name: Name of the episode and the seat, unique among those that are played at once.
            seed: Seed of the sampling.
            ask: Asks the engine, if there is one.
        """

    def texts(self, episode: Episode) -> dict[str, Any]:
        """Return fields of a record with the texts of its ids."""
        return {}


class TextChat:
    """Chat whose ids are the numbers of messages, so that whatever reads text is sampled like a model."""

    stop_ids: frozenset[int] = frozenset()
    stop_strings: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._messages: list[Message] = []

    def write(self, message: Message) -> TokenIds:
        """Return the id of a message."""
        self._messages.append(message)
        return [len(self._messages) - 1]

    def read(self, ids: TokenIds) -> list[Message]:
        """Return the messages of ids."""
        return [self._messages[id_] for id_ in ids]

    def open(self, messages: Sequence[Message]) -> TokenIds:
        """Return the ids of a conversation."""
        return [self.write(message)[0] for message in messages]

    def reply(self, text: str, *, closed: bool) -> TokenIds:
        """Return the id of an observation."""
        return self.write(Message("user", text))

    def closes(self, ids: Sequence[int]) -> bool:
        """Return whether a response is whole."""
        return not isinstance(self._messages[ids[-1]].content, UnfinishedResponse)

    def text(self, ids: TokenIds) -> Answer:
        """Return a response."""
        said = self._messages[ids[-1]]
        return Answer(said.reasoning_content, said.content)


class TextPlayer(Player):
    """Plays a policy that reads text, such as random play, a solver or a person.

    Args:
        policy: Makes the policy of an episode; see ``TextPolicy``.
        raw: Its texts are whole responses, with the marks of the action format. Default: they are bare actions.
    """

    chat: TextChat

    def __init__(self, policy: TextPolicy, *, raw: bool = False) -> None:
        self.chat = TextChat()
        self._policy, self._raw = policy, raw

    def sampler(self, trajectory: Trajectory, name: str, seed: int, ask: Ask | None) -> Sample:
        """Return the sampler of one episode, which makes the policy at its first turn."""
        act: Act | None = None

        async def sample(ids: TokenIds, max_tokens: int, seat: int) -> Completion:
            nonlocal act
            shown = trajectory.results[-1]
            assert isinstance(shown, StepResult)
            with outside_of_the_loop():
                act = act or self._policy(trajectory.env, seed)
                action = act(shown.observation, shown.info)
            if not isinstance(action, str):
                raise PolicyError(f"a policy must return an action as text, got {action!r:.80}")
            text = action if self._raw else action_writer(trajectory.env)(action)
            return Completion("", self.chat.write(Message("assistant", text)), [0.0])

        return sample


class ModelPlayer(Player):
    """Plays a language model, whose engine samples ids.

    Args:
        chat: Conversations of its tokenizer, or as texts.
        engine: Samples.
        limits: Limits on its tokens.
    """

    def __init__(self, chat: ChatLike, engine: Engine | AsyncEngine, limits: Limits) -> None:
        self.chat, self.engine, self.limits = chat, engine, limits

    def sampler(self, trajectory: Trajectory, name: str, seed: int, ask: Ask | None) -> Sample:
        """Return the sampler of one episode, which has the seeds of a rollout."""
        assert ask is not None
        count, most = 0, self.limits.tokens_per_turn

        def sample(ids: TokenIds, max_tokens: int, seat: int) -> Awaitable[Completion]:
            nonlocal count
            count += 1
            own = max_tokens if most is None else min(most, max_tokens)
            return ask(Request(name, ids, own, derive_seed(seed, seat, count), count))

        return sample

    def texts(self, episode: Episode) -> dict[str, Any]:
        """Return fields of a record with the texts of its ids, so that its page needs no tokenizer."""
        if not isinstance(self.chat, Chat):
            return {}
        encoder, row = self.chat.encoder, episode.row
        return {"prompt_text": encoder.decode(row.prompt_ids), "token_texts": encoder.pieces(row.completion_ids)}


class ChatEngine(HTTPEngine):
    """Engine of a server with OpenAI's HTTP interface (``POST {base_url}/chat/completions``).

    If a request fails each time, or if the server rejects a conversation, the episode is unscored.

    Args:
        chat: Chat whose ids it continues.
        base_url: Address, with ``/v1``. The key is that of the environment variable ``OPENAI_API_KEY``, if any.
        model: Name on the server. Default: its first.
        max_tokens: Maximum tokens of an answer.
        temperature: Temperature.

    Raises:
        ConfigError: The address is invalid.
        EngineError: No name is given, and the server is missing or has no model.
    """

    def __init__(
        self, chat: TextChat, base_url: str, *, model: str | None, max_tokens: int, temperature: float
    ) -> None:
        super().__init__(base_url, concurrency=_SERVED_AT_ONCE, api_key=os.environ.get("OPENAI_API_KEY"))
        self._chat = chat
        name = run(self._first_model()) if model is None else model
        self._body = {"model": name, "max_tokens": max_tokens, "temperature": temperature}

    async def _first_model(self) -> str:
        async with self:
            return next(iter(await self.served("/models")))

    async def ask(self, request: Request) -> Completion:
        """Send a conversation once, and return the response.

        Raises:
            ModelStopped: The context is full.
            AnswerError: The server returned no response.
        """
        messages = [{"role": one.role, "content": one.content} for one in self._chat.read(request.prompt_ids)]
        # Some servers accept seeds of 32 bits only.
        body = {**self._body, "messages": messages, "seed": request.seed % 2**31}
        try:
            content = await self.fetch("POST", "/chat/completions", body)
        except AnswerError as failure:
            if not failure.passes and any(words in str(failure).lower() for words in _FULL):
                raise ModelStopped(StopReason.TOKEN_LIMIT, str(failure)) from failure
            raise
        try:
            choice = content["choices"][0]
            message, cut = choice["message"], choice.get("finish_reason") == "length"
            thinking, text = message.get("reasoning_content") or message.get("reasoning"), message.get("content") or ""
            answer = Answer(str(thinking), text.strip()) if thinking else split_thinking(text)
        except (LookupError, TypeError, AttributeError) as error:
            raise self.no_completion(content) from error
        text = UnfinishedResponse(answer.text) if cut else answer.text
        ids = self._chat.write(Message("assistant", text, reasoning_content=answer.thinking))
        return Completion(request.id, ids, [0.0], FinishReason.LENGTH if cut else FinishReason.STOP)


@dataclass
class Game:
    """One play of a task: an episode of each seat, and what the environment has returned."""

    task: Task
    episodes: list[Episode]
    trajectory: Trajectory = field(repr=False)
    number: int = 0
    """Index of the task among those that were played."""


def play_all(
    make: Callable[[], TextEnvironment],
    tasks: Sequence[Task],
    players: Sequence[Player],
    *,
    seed: int = 0,
    seeds: Sequence[int] | None = None,
    most_alive: int = 64,
    preamble: Sequence[Message] = (),
    history: History | None = None,
    executor: Executor | None = None,
    on_game: Callable[[Game], None] = lambda game: None,
    most_steps: int | None = None,
) -> list[Game]:
    """Play each task once, with one player for each seat, and return what was played, in the order of the tasks.

    >>> from gym_trl.setting import Setting
    >>> setting = Setting("TrlEnv/GuessNumber-v0", action_format="plain")
    >>> games = play_all(setting.make, setting.tasks(2), [TextPlayer(solve)])
    >>> [(game.trajectory.actions, game.episodes[0].success) for game in games]
    [(['25', '12', '18', '21', '23', '24'], True), (['25', '38', '44', '47', '49'], True)]

    Args:
        make: Makes an environment; instances are used again.
        tasks: Tasks; the same one may be there several times.
        players: Players by seat.
        seed: Seed of the sampling, from which each task has its own.
        seeds: Seeds of the sampling of each task, in place of ``seed``.
        most_alive: Maximum number of episodes at once.
        preamble: Messages before the first observation.
        history: Changes what is shown of a long conversation.
        executor: Steps the environments, if all players are models; others need them in this thread.
        on_game: Called when a game is over.
        most_steps: Number of steps in all games after which no further one begins.

    Raises:
        ConfigError: The environment raised it.
    """
    of_text = any(isinstance(player, TextPlayer) for player in players)
    source = partial(_make, make)
    pool: Any = InlinePool(source) if of_text or executor is None else make_pool(source, executor)
    limits, steps = _common(players), 0

    async def everyone() -> list[Game | None]:
        async with AsyncExitStack() as stack:
            engines = {id(player.engine): player.engine for player in players if player.engine is not None}
            asks = {key: await stack.enter_async_context(asking(engine)) for key, engine in engines.items()}

            async def one(number: int) -> Game | None:
                nonlocal steps
                if most_steps is not None and steps >= max(1, most_steps):
                    return None
                task, trajectory = tasks[number], Trajectory(pool, str(number))
                own = derive_seed(seed, "sampling", task.seed) if seeds is None else seeds[number]
                samples = [
                    player.sampler(trajectory, f"{number}.{seat}", derive_seed(own, seat), asks.get(id(player.engine)))
                    for seat, player in enumerate(players)
                ]

                def sample(ids: TokenIds, max_tokens: int, seat: int) -> Awaitable[Completion]:
                    return samples[seat](ids, max_tokens, seat)

                chats = [player.chat for player in players]
                options: dict[str, Any] = {"limits": limits, "preamble": preamble, "history": history}
                try:
                    episodes = await play(task, trajectory.step, chats, sample, seats=len(players), **options)
                finally:
                    pool.release(str(number))
                steps += len(trajectory.actions)
                episodes = [_without_numbers(episode, chat) for episode, chat in zip(episodes, chats, strict=True)]
                on_game(game := Game(task, episodes, trajectory, number))
                return game

            return await gather(one, len(tasks), max_alive=most_alive)

    with pool, rare_full_collections():
        return [game for game in run(everyone()) if game is not None]


def _make(make: Callable[[], TextEnvironment], env_id: str) -> TextEnvironment:
    return make()


def _common(players: Sequence[Player]) -> Limits:
    """Return limits that all players meet; the tokens of a turn are limited by each player itself."""
    turns = [player.limits.tokens_per_turn for player in players if player.limits.tokens_per_turn is not None]
    contexts = [player.limits.context for player in players if player.limits.context is not None]
    return Limits(max(turns, default=None), context=min(contexts, default=None))


def _without_numbers(episode: Episode, chat: ChatLike) -> Episode:
    """Return an episode without the ids of a chat of texts, which are no tokens."""
    if isinstance(chat, TextChat):
        episode.segments = []
        episode.turns = [replace(turn, spans=()) for turn in episode.turns]
    return episode


def text_policy(who: Any) -> TextPolicy | None:
    """Return the policy that is named ``random``, ``solver``, ``always:ACTION`` or ``module:function``, if it is one.

    >>> text_policy("always:7")(None, 0)("What now?", {})
    '7'
    >>> text_policy("HuggingFaceTB/SmolLM2-135M-Instruct")

    Raises:
        ConfigError: There is no such function.
    """
    if not isinstance(who, str):
        return who if callable(who) else None
    if who.startswith("always:"):
        action = who.removeprefix("always:")
        return lambda env, seed: lambda observation, info: action
    if who in ("random", "solver"):
        return random_play if who == "random" else solve
    module, colon, function = who.partition(":")
    is_named = colon and module.replace(".", "").isidentifier() and function.isidentifier()
    policy: TextPolicy | None = load_function(who) if is_named else None
    return policy


@contextmanager
def player(
    who: Any,
    setting: Setting,
    *,
    temperature: float = 1.0,
    base_url: str | None = None,
    vllm: bool = False,
) -> Iterator[Player]:
    """Provide a player, whose model is loaded for the ``with`` block.

    Args:
        who: ``random``, ``solver``, ``always:ACTION``, ``module:function``, a policy (``TextPolicy``), the folder of a
            run, a model or an adapter, a hub id, ``tiny``, or a model with its tokenizer.
        setting: How it plays.
        temperature: Temperature of the sampling; 0 takes the most probable token.
        base_url: Address of the server that has the model.
        vllm: Run the model with vLLM.

    Raises:
        ConfigError: There is no such player.
    """
    if base_url is not None:
        longest = setting.for_model(None).max_tokens_per_turn
        assert longest is not None
        chat = TextChat()
        engine = ChatEngine(chat, base_url, model=who, max_tokens=longest, temperature=temperature)
        yield ModelPlayer(chat, engine, Limits())
    elif (policy := None if isinstance(who, tuple) else text_policy(who)) is not None:
        yield TextPlayer(policy)
    elif vllm:
        yield _of_vllm(who, setting, temperature)
    else:
        model, tokenizer = who if isinstance(who, tuple) else load_model(who)
        yield model_player(model, tokenizer, setting.for_model(tokenizer), temperature)


def model_player(model: Any, tokenizer: Any, setting: Setting, temperature: float = 1.0) -> ModelPlayer:
    """Return the player of a Transformers model, whose weights may not change as long as it plays.

    Raises:
        ChatTemplateError: The template does not continue turn by turn, and no history renders it anew.
    """
    from gym_trl.engines.transformers import TransformersEngine, context_of

    chat = chat_for(tokenizer, setting.history, **setting.chat_template_kwargs)
    ends = getattr(model.generation_config, "eos_token_id", None)
    ends = {*(ends if isinstance(ends, list) else [ends]), tokenizer.eos_token_id, *chat.stop_ids} - {None}
    engine = TransformersEngine(
        model,
        pad_id=next((one for one in (tokenizer.pad_token_id, tokenizer.eos_token_id) if one is not None), 0),
        eos_ids=ends,
        sampling={"temperature": temperature},
        stop_strings=chat.stop_strings,
        decode=tokenizer.decode,
    )
    return ModelPlayer(chat, engine, Limits(setting.max_tokens_per_turn, context=context_of(model.config)))


def _of_vllm(who: Any, setting: Setting, temperature: float) -> ModelPlayer:
    with needs("vllm", "a model on vLLM"):
        from vllm import LLM
    from gym_trl.engines.vllm import VLLMEngine, context_length

    found = find_model(who)
    with TemporaryDirectory(prefix="gym-trl-") as whole:
        if (Path(found) / "adapter_config.json").is_file():
            for part in load_model(found):
                part.save_pretrained(whole)
            found = whole
        llm = LLM(str(found), logprobs_mode="processed_logprobs")
    tokenizer = llm.get_tokenizer()
    setting = setting.for_model(tokenizer)
    chat = chat_for(tokenizer, setting.history, **setting.chat_template_kwargs)
    eos = {tokenizer.eos_token_id, *chat.stop_ids} - {None}
    engine = VLLMEngine(llm, eos_ids=eos, sampling={"temperature": temperature}, stop_strings=chat.stop_strings)
    return ModelPlayer(chat, engine, Limits(setting.max_tokens_per_turn, context=context_length(llm)))
