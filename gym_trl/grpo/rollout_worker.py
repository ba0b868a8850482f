"""TRL's ``RolloutWorkerProtocol``: episodes for ``AsyncGRPOTrainer``, played while it trains."""

import math
import time
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from queue import Empty, Queue
from statistics import fmean, pstdev
from threading import Event, Thread
from typing import Any

import numpy as np

from gym_trl.engines.protocol import Engine, checked_engine
from gym_trl.errors import ConfigError, EngineError
from gym_trl.executors.make import ExecutorConfig, make_pool
from gym_trl.executors.protocol import EnvFactory, EnvPool
from gym_trl.grpo import trl_versions
from gym_trl.grpo.attach import Place
from gym_trl.grpo.checkpoints import DECLARING
from gym_trl.grpo.credit.columns import turn_row
from gym_trl.grpo.parts.part import Call, Part, Rollout
from gym_trl.grpo.planned_rows import Planned
from gym_trl.grpo.totals import StepTotals, outcomes, rows_of
from gym_trl.grpo.trainer_engine import SAMPLING, warn_of_bias
from gym_trl.rollout.config import RolloutConfig
from gym_trl.rollout.episode import Episode
from gym_trl.rollout.limits import Limits
from gym_trl.rollout.stream import stream_episodes
from gym_trl.seeding import derive_seed
from gym_trl.types import EpisodeResult, Message, Task

_PATIENCE_S = 15.0
"""Seconds that ``stop`` waits for the current step of an environment or the engine."""
_REMEMBERED = 4096
"""Maximum number of measurements kept until the trainer's next log."""


@dataclass
class _Group:
    """Members of one GRPO group, which play the same task."""

    call: Call
    version: int
    """Model version when the first member began; no token of the group is older."""
    played: dict[int, EpisodeResult] = field(default_factory=dict)


class RolloutWorker:
    """Background thread that plays episodes for ``AsyncGRPOTrainer(rollout_worker=...)`` while it trains.

    ::

        args = AsyncGRPOConfig(vllm_server_base_url="http://localhost:8000")
        tokenizer = AutoTokenizer.from_pretrained(model)
        AsyncGRPOTrainer(
            model=model, args=args, processing_class=tokenizer,
            train_dataset=spec.train_dataset, rollout_worker=spec.rollout_worker(args, tokenizer),
        ).train()

    It plays the spec's training tasks in order, repeatedly, with ``num_generations`` episodes each, and keeps
    ``max_inflight_tasks`` episodes running. A complete group is scored with the environment's returns and put into
    ``rollout_buffer`` as one ``RolloutSample`` per episode, or with credit per turn as one for each of its advantages:
    the ids that the engine received and returned, the mask of the sampled ids, and their logprobs. No episode begins
    while the buffer is full. Unscored episodes are left out and counted; a sampled token without a logprob is not
    trained on. The trainer's ``reward_funcs`` are never called.

    Args:
        make: Function that makes an environment from its id.
        tasks: Function that returns the tasks of one pass.
        args: The trainer's own configuration. It is read when the worker starts.
        processing_class: The model's tokenizer.
        engine: Function that makes the engine, which the worker's thread uses and closes. Default: the vLLM server of
            ``args``.
        seed: Seed of the sampling.
        system_prompt: First message of every prompt.
        parts: Features, in the order in which their hooks are called; each group is a call of its own.
        config: Options of the rollout; ``cutoff`` may have ``episode_s`` and ``on_cutoff`` only, because there is no
            rollout to cut off.
        stepping: Executor and its options. Default: inline.
        on_rollout: Callback that receives every group, on the worker's thread; its ``step`` is the model version.
        on_totals: Called on the worker's thread with the ``StepTotals`` of as many episodes as a training step has; an
            exception that it raises ends the training.
    """

    def __init__(
        self,
        make: EnvFactory,
        tasks: Callable[[], Iterator[Task]],
        args: Any,
        processing_class: Any,
        *,
        engine: Callable[[], Engine] | None = None,
        seed: int = 0,
        system_prompt: str | None = None,
        parts: Sequence[Part] = (),
        config: RolloutConfig | None = None,
        stepping: ExecutorConfig | None = None,
        on_rollout: Callable[[Rollout], None] | None = None,
        on_totals: Callable[[StepTotals], None] | None = None,
    ) -> None:
        for part in parts:
            if not part.in_streams:
                raise ConfigError(
                    f"{part.name} needs rollout_func, not rollout_worker: {part.needs_rollouts}; leave it out"
                )
        config = config or RolloutConfig()
        if config.deterministic:
            raise ConfigError("asynchronous training cannot be deterministic: leave out deterministic=True")
        if (config.cutoff.rollout_s, config.cutoff.stragglers) != (None, None):
            raise ConfigError(
                "asynchronous training has no rollouts to cut off: a Cutoff can have episode_s and on_cutoff only"
            )
        self._config = config
        self._tasks = tasks
        self._args = args
        self._tokenizer = trl_versions.tokenizer_in(processing_class)
        self._make_engine = engine
        self._seed = seed
        self._preamble = [] if system_prompt is None else [Message("system", system_prompt)]
        self._parts = parts
        self._chat = config.chat or config.template_chat(self._tokenizer, args.chat_template_kwargs or {})
        self._make = make
        self._make_pool = partial(make_pool, make, stepping)
        self._on_rollout = on_rollout
        self._on_totals = on_totals
        self._played: list[EpisodeResult] = []  # since ``on_totals`` was called last
        self._declaring: frozenset[str] = frozenset()  # environments that are known to declare success
        self.rollout_buffer: Queue[Any] = Queue(args.queue_maxsize)
        """Queue of ``RolloutSample`` objects for the trainer."""
        self.metrics_queue: Queue[dict[str, Any]] = Queue(_REMEMBERED)
        """Queue of measurements for the trainer's next log."""
        self._sample: Any = None
        self._version = 0
        self._numbers = count()  # of groups, over all starts
        self._left_out: Collection[int] = ()
        self._thread: Thread | None = None
        self._stopping = Event()
        self._failure: BaseException | None = None
        self._seen_at = self._scored_at = 0.0
        self._unscored_since = 0
        self._groups: dict[int, _Group] = {}
        self._playing = 0
        self._waiting: deque[Any] = deque()  # samples that did not fit into the buffer yet
        self._blocked_at: float | None = None

    @property
    def state(self) -> dict[str, Any]:
        """States of the parts by name, and which environments declare success; can be assigned to restore them."""
        states = {part.name: deepcopy(part.state) for part in self._parts if part.state is not None}
        return {**states, DECLARING: sorted(self._declaring)} if self._declaring else states

    @state.setter
    def state(self, state: Mapping[str, Any]) -> None:
        for part in self._parts:
            if part.state is not None and part.name in state:
                part.state = deepcopy(state[part.name])
        self._declaring = frozenset(state.get(DECLARING, ()))

    def begin_after(self, trained: Collection[int]) -> None:
        """Restart at the first group, and skip the groups with the numbers in ``trained``.

        All other groups have the same tasks and sampling seeds as without an interruption.
        """
        self._numbers, self._left_out = count(), trained

    def start(self) -> None:
        """Start the worker's thread.

        Raises:
            EngineError: The vLLM server is missing, or was started without a flag that the logprobs need.
            ConfigError: A sampling option is invalid, or TRL syncs a LoRA adapter to the server.
            MissingDependencyError: TRL is not installed, or has no AsyncGRPOTrainer.
        """
        if self._thread is not None:
            return
        self._sample = trl_versions.rollout_sample()
        engine = checked_engine(self._make_engine()) if self._make_engine else self._server()
        self._stopping.clear()
        self._failure = None
        self._seen_at = self._scored_at = time.monotonic()
        self._unscored_since = 0
        self._played = []
        self._thread = Thread(target=self._run, args=[engine], name="gym-trl rollout worker", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End every episode, and close the environments and the engine."""
        if self._thread is None:
            return
        self._stopping.set()
        self._thread.join(_PATIENCE_S)
        if self._thread.is_alive():
            message = f"an environment or the engine has not returned for {_PATIENCE_S:.0f} s: its thread is abandoned"
            warnings.warn(message, RuntimeWarning, stacklevel=2)
        self._thread = None

    def update_model_version(self, model_version: int) -> None:
        """Set the model version of groups that begin from now on."""
        self._version = model_version

    def check_health(self, stale_after_s: float) -> None:
        """Check that the worker is running and produces scored episodes.

        Raises:
            EngineError: The worker has failed, has been stuck for ``stale_after_s`` seconds, or all episodes that ended
                within this time are unscored.
        """
        if self._failure is not None:
            raise EngineError(f"the rollout worker has failed: {self._failure!r}") from self._failure
        if self._thread is None:
            raise EngineError("the rollout worker is not running")
        now = time.monotonic()
        if now - self._seen_at > stale_after_s:
            raise EngineError(f"the rollout worker has made no progress for {now - self._seen_at:.0f} s")
        if self._unscored_since and now - self._scored_at > stale_after_s and self.rollout_buffer.empty():
            raise EngineError(
                f"no episode could be scored for {now - self._scored_at:.0f} s, and {self._unscored_since} have failed"
            )

    # The following methods run on the worker's thread.

    def _run(self, engine: Engine) -> None:
        pool: EnvPool | None = None
        try:
            pool = self._make_pool()
            stream_episodes(
                self._episodes(pool),
                pool=pool,
                engine=engine,
                max_alive=min(self._inflight(), self._config.max_alive or self._inflight()),
                cutoff=self._config.cutoff,
                go_on=self._go_on,
                on_finish=self._finished,
            )
        except BaseException as error:  # ``check_health`` raises it in the trainer
            self._failure = error
        finally:
            self._groups.clear()
            try:
                if pool is not None:
                    pool.close()
            finally:
                engine.close()

    def _episodes(self, pool: EnvPool) -> Iterator[tuple[tuple[int, int], Episode] | None]:
        """Generate episodes endlessly, group by group; ``None`` while the buffer is full."""
        limits = self._config.limits(self._args.max_completion_length, context=self._context())
        while True:
            for task in self._tasks():
                number = next(self._numbers)
                if number in self._left_out:
                    continue
                call, rows = self._begin(number, task, limits, pool)
                for row in rows:
                    while self._waiting:
                        yield None
                    self._groups.setdefault(number, _Group(call, self._version))
                    seed = derive_seed(self._seed, "sampling", "async", number, row.member)
                    self._playing += 1
                    yield (number, row.member), call.episode(row, seed=seed)

    def _begin(self, number: int, task: Task, limits: Limits, pool: EnvPool) -> tuple[Call, list[Planned]]:
        """Return the call and the rows of a group."""
        size = self._args.num_generations
        call = Call(
            trainer=None,
            place=Place("train", self._version, number, number * size, number),
            seed=self._seed,
            chat=self._chat,
            limits=limits,
            config=self._config,
            pool=pool,
            make=self._make,
            rows=size,
            group_size=size,
            seats={},
        )
        rows = [Planned(number * size + member, number, member, self._preamble, task) for member in range(size)]
        for part in self._parts:
            part.begin(call)
        for part in self._parts:
            rows = part.plan(rows, call)
        return call, rows

    def _go_on(self) -> bool:
        self._seen_at = time.monotonic()
        self._push()
        return not self._stopping.is_set()

    def _push(self) -> None:
        """Move scored samples into the buffer, as far as there is room; no other thread adds any."""
        while self._waiting and not self.rollout_buffer.full():
            sample = self._waiting.popleft()
            sample.enqueued_at = time.time()
            self.rollout_buffer.put_nowait(sample)
        if self._waiting:
            self._blocked_at = self._blocked_at or time.monotonic()
        elif self._blocked_at is not None:
            self._measure({"rollout/backpressure_s": time.monotonic() - self._blocked_at})
            self._blocked_at = None

    def _finished(self, key: tuple[int, int], episode: EpisodeResult) -> None:
        number, member = key
        self._playing -= 1
        group = self._groups[number]
        group.played[member] = episode
        if len(group.played) == self._args.num_generations:
            del self._groups[number]
            self._score(number, group)
            self._push()

    def _score(self, number: int, group: _Group) -> None:
        members = [group.played[member] for member in sorted(group.played)]
        scored = [one for one in members if one.scored]
        returns = [one.episode_return or 0.0 for one in scored]
        mean, deviation = (fmean(returns), pstdev(returns)) if returns else (math.nan, math.nan)
        by_episode = [(value - mean) / (deviation + 1e-8) for value in returns]  # as in TRL's own worker
        advantages = self._of_tokens(scored, by_episode, group.call)
        for one, value, of_tokens in zip(scored, returns, advantages, strict=True):
            metrics = {"reward": value, "reward_std": deviation, "rewards/env_reward": value}
            self._waiting += self._samples(one, of_tokens, metrics, model_version=group.version, group_id=number)
        if returns:
            self._scored_at, self._unscored_since = time.monotonic(), 0
        self._unscored_since += len(members) - len(returns)
        self._report(members)
        rollout, call = Rollout("train", group.version, members), replace(group.call, declaring=self._declaring)
        for part in self._parts:
            part.end(rollout, call)
        if self._on_rollout:
            self._on_rollout(rollout)
        self._played += members
        if self._on_totals and len(self._played) >= self._step():
            played, self._played = self._played, []
            totals = StepTotals.of(rows_of(outcomes(played)), step=group.version, declaring=self._declaring)
            self._on_totals(replace(totals, training=self._thread))

    def _of_tokens(self, scored: Sequence[EpisodeResult], by_episode: Sequence[float], call: Call) -> list[np.ndarray]:
        """Return the advantages of the tokens of a group's scored episodes: a part's, or those of the episodes."""
        for part in self._parts:
            if (by_turn := part.advantages(scored, call)) is not None:
                return [_placed(one, values) for one, values in zip(scored, by_turn, strict=True)]
        return [np.full(len(one.trace.mask), value) for one, value in zip(scored, by_episode, strict=True)]

    def _samples(
        self, episode: EpisodeResult, advantages: np.ndarray, metrics: dict[str, float], **fields: Any
    ) -> Iterator[Any]:
        """Yield the samples of an episode, of which the first has the metrics: they are logged once.

        A sample has one advantage: a segment is as many samples as its tokens have different ones, each with its tokens
        alone in the mask. The loss is a mean over tokens, whatever sample they are in, and TRL 1.16 computes what the
        samples of a group begin with alike once.
        """
        messages = [message.as_dict() for message in episode.messages]
        responses = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
        first = responses[episode.given_turns] if len(responses) > episode.given_turns else len(messages)
        starts = [0, *(border.stop for border in episode.trace.borders)]
        for segment, start in zip(episode.trace.segments, starts, strict=True):
            before, ids = len(segment.prompt_ids), segment.prompt_ids + segment.completion_ids
            logprobs = np.array([0.0] * before + [logprob or 0.0 for logprob in segment.logprobs], np.float32)
            pairs = zip(segment.mask, segment.logprobs, strict=True)
            trained = np.array([bool(sampled) and logprob is not None for sampled, logprob in pairs], dtype=bool)
            own = advantages[start : start + len(trained)]
            for advantage in dict.fromkeys(own[trained].tolist()):
                mask = np.zeros(len(ids), dtype=np.int64)
                mask[before:] = trained & (own == advantage)
                stop = int(mask.nonzero()[0][-1]) + 1
                yield self._sample(
                    prompt=messages[:first],
                    completion=messages[first:],
                    input_ids=np.array(ids[:stop], dtype=np.int64),
                    completion_mask=mask[:stop],
                    old_log_probs=logprobs[:stop],
                    advantage=advantage,
                    metrics=metrics,
                    **fields,
                )
                metrics = {}

    def _report(self, members: Sequence[EpisodeResult]) -> None:
        """Report the measurements of TRL's own worker, by its names, and the episodes' metrics as sum and count."""
        sampled = [sum(one.trace.mask) for one in members if one.episode_return is not None]
        totals = StepTotals.of(rows_of(outcomes(members)), declaring=self._declaring)
        self._declaring, rates = totals.declared, totals.rates()
        rates["completions/mean_length"] = (sum(sampled), len(sampled))
        self._measure({**rates, "rollout/inflight": float(self._playing)})

    def _measure(self, values: dict[str, Any]) -> None:
        if self.metrics_queue.full():  # the trainer has not logged for long: drop the oldest measurement
            with suppress(Empty):
                self.metrics_queue.get_nowait()
        self.metrics_queue.put_nowait(values)

    # The following methods read the trainer's configuration.

    def _inflight(self) -> int:
        """Return the number of concurrent episodes; an unset one is computed as TRL does."""
        args = self._args
        if args.max_inflight_tasks > 0:
            return int(args.max_inflight_tasks)
        return int(max(args.max_staleness, 1) * self._step())

    def _step(self) -> int:
        """Return the number of episodes of one training step."""
        args = self._args
        return int(args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size)

    def _context(self) -> int | None:
        """Return the maximum tokens of an episode, limited by the engine and by the trainer's token budget."""
        lengths = [self._args.token_budget if (self._args.token_budget or 0) > 0 else None]
        if self._make_engine is None:
            from gym_trl.engines import server

            lengths.append(server.context_length(self._args.vllm_server_base_url))
        return min((length for length in lengths if length is not None), default=None)

    def _server(self) -> Engine:
        from gym_trl.engines.server import ServerEngine

        url = self._args.vllm_server_base_url
        sampling = {name: getattr(self._args, name) for name in SAMPLING} | dict(self._config.sampling)
        engine = ServerEngine(
            url,
            eos_ids={self._tokenizer.eos_token_id, *self._chat.stop_ids},
            sampling=sampling,
            stop_strings=self._chat.stop_strings,
            concurrency=self._inflight(),
            deadline_s=self._args.request_timeout,
            check=False,
            seeded=False,
        )
        try:
            engine.check()
            _refuse_adapter(url, trl_versions.ADAPTER.format(self._version))
        except BaseException:
            engine.close()
            raise
        warn_of_bias(sampling)
        return engine


def _placed(episode: EpisodeResult, by_turn: Sequence[float]) -> np.ndarray:
    """Return an advantage for each completion id; tokens outside of all turns have 0."""
    advantages = np.zeros(len(episode.trace.mask))
    for (start, stop), value in zip(turn_row(episode).turn_spans, by_turn, strict=True):
        advantages[start:stop] = value
    return advantages


def _refuse_adapter(url: str, name: str) -> None:
    """Check that the trainer does not sync an adapter instead of weights; the protocol does not tell a worker.

    Raises:
        ConfigError: It does. Sampling would continue with the model as it was before the training.
    """
    import httpx

    served = [card["id"] for card in httpx.get(f"{url.rstrip('/')}/v1/models", timeout=10.0).json()["data"]]
    if name in served:
        raise ConfigError(
            f"TRL has loaded the LoRA adapter {name!r} into {url}, which a custom rollout worker cannot use: start the "
            "server without --enable-lora, so that TRL merges the adapter into the weights that it sends"
        )
