"""Executors that make, reset, step, reuse and close environments, and turn their failures into data."""

import math
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self, TypeAlias

import gymnasium as gym

from gym_trl.episode import EnvFailure, EnvReply, add_reward
from gym_trl.errors import ConfigError, caused_by_model, ends_an_episode
from gym_trl.parsing import CUT
from gym_trl.settlement import settlement
from gym_trl.types import Policy, RefusedResponse, StopReason, Task, UnfinishedResponse

TextEnvironment: TypeAlias = gym.Env[str, str]
EnvFactory: TypeAlias = Callable[[str], TextEnvironment]
"""Function that makes an environment from its id."""


class EnvPool(Protocol):
    """Interface of pools, which step the environments of many episodes; ``key`` identifies the episode.

    ``collect`` returns exactly one result, a reply or a failure, for every ``reset`` and ``step``.
    """

    def reset(self, key: str, task: Task) -> None:
        """Start the episode ``key`` in an idle or a new instance."""
        ...

    def step(self, key: str, action: str) -> None:
        """Step the environment of the episode ``key``."""
        ...

    def collect(self, *, block: bool) -> list[tuple[str, EnvReply | EnvFailure]]:
        """Return the results since the last call; if ``block``, wait for at least one."""
        ...

    def release(self, key: str) -> None:
        """End the episode ``key``; its instance may be reused."""
        ...

    def close(self) -> None:
        """Close every instance."""
        ...


class ClosingPool(ABC):
    """Base class of pools that a ``with`` block closes."""

    def __enter__(self) -> Self:
        """Return the pool, which the ``with`` block closes."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close every instance."""
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Close every instance."""


class InlinePool(ClosingPool):
    """Pool that steps environments in the calling thread, for environments whose steps take microseconds.

    >>> with InlinePool(gym.make) as pool:
    ...     pool.reset("a", Task("TrlEnv/Echo-v0", seed=0))
    ...     [(key, reply)] = pool.collect(block=True)
    >>> key, type(reply).__name__
    ('a', 'EnvReply')

    An instance whose ``reset`` or ``step`` raised is closed and not reused.
    """

    def __init__(self, make: EnvFactory) -> None:
        self._make = make
        self._free: defaultdict[str, list[TextEnvironment]] = defaultdict(list)
        self._playing: dict[str, tuple[str, TextEnvironment]] = {}
        self._work: deque[tuple[str, Task | str]] = deque()

    def reset(self, key: str, task: Task) -> None:
        """Start the episode ``key``."""
        self._work.append((key, task))

    def step(self, key: str, action: str) -> None:
        """Step the environment of the episode ``key``."""
        self._work.append((key, action))

    def collect(self, *, block: bool) -> list[tuple[str, EnvReply | EnvFailure]]:
        """Execute all waiting resets and steps, and return their results."""
        replies = []
        while self._work:
            key, work = self._work.popleft()
            replies.append((key, self._do(key, work)))
        return replies

    def release(self, key: str) -> None:
        """End the episode ``key``; its instance is reused."""
        if self._work:  # the next rollout uses the same keys
            self._work = deque(item for item in self._work if item[0] != key)
        if key in self._playing:
            env_id, env = self._playing.pop(key)
            self._free[env_id].append(env)

    def close(self) -> None:
        """Close every instance; the pool can be used again afterwards."""
        self._work.clear()
        instances = [env for envs in self._free.values() for env in envs]
        instances += [env for _, env in self._playing.values()]
        self._free.clear()
        self._playing.clear()
        for env in instances:
            close_env(env)

    def _do(self, key: str, work: Task | str) -> EnvReply | EnvFailure:
        try:
            if isinstance(work, Task):
                return self._begin(key, work)
            reply = take_step(self._playing[key][1], work)
            if isinstance(reply, EnvFailure):
                close_env(self._playing.pop(key)[1])
            return reply
        except BaseException as error:
            if key in self._playing:
                close_env(self._playing.pop(key)[1])
            if not ends_an_episode(error):  # interrupted in the middle of a call: its state is unknown
                raise
            return failed(work, error)

    def _begin(self, key: str, task: Task) -> EnvReply:
        free = self._free[task.env_id]
        env = free.pop() if free else self._make(task.env_id)
        self._playing[key] = (task.env_id, env)
        observation, _ = env.reset(seed=task.seed, options=dict(task.options) or None)
        return EnvReply(
            _text(observation),
            instructions=read_instructions(env),
            declares_success=read_declares_success(env),
            settlement=settlement(env),
        )


GIVEN_UP_S = 10.0
"""Seconds that an environment without a time limit may continue after a ``Cutoff`` has stopped its episode."""


class ThreadPool(ClosingPool):
    """Pool that steps environments in threads, for environments that wait for something outside Python.

    >>> with ThreadPool(gym.make, workers=2) as pool:
    ...     pool.reset("a", Task("TrlEnv/Echo-v0", seed=0))
    ...     [(key, reply)] = pool.collect(block=True)
    >>> key, type(reply).__name__
    ('a', 'EnvReply')

    All calls of an instance are made in one thread, as browsers and some simulators require. A new episode goes to the
    thread with the fewest episodes. Threads are started on demand. Environments that compute in Python gain nothing
    from threads.

    Python cannot end a thread that exceeds its time limit: it is abandoned and replaced. The episode whose call it was
    executing ends with ``crashed`` in a step and with ``timeout`` in a reset; the thread's other episodes end with
    ``env_error``. Use a ``ProcessPool`` for environments that often do not return in time.

    Args:
        make: Makes an environment from its id.
        workers: Maximum number of threads, and so of environments that can wait at once.
        reset_timeout: Maximum seconds for making and resetting an environment.
        step_timeout: Maximum seconds for a step.
    """

    def __init__(
        self,
        make: EnvFactory,
        *,
        workers: int = 64,
        reset_timeout: float | None = None,
        step_timeout: float | None = None,
    ) -> None:
        if workers < 1:
            raise ConfigError(f"workers must be at least 1, got {workers}")
        check_timeouts(reset_timeout=reset_timeout, step_timeout=step_timeout)
        self._make = make
        self._limits = {"reset": reset_timeout, "step": step_timeout}
        self._lost: dict[str, EnvFailure] = {}  # episodes whose thread was abandoned between their steps
        self._size = workers
        self._workers: list[_Worker] = []
        self._places: dict[str, _Worker] = {}
        self._tickets: dict[str, int] = {}  # id of each episode's current call; results of other calls are stale
        self._counter = count()
        self._replies: SimpleQueue[_Reply] = SimpleQueue()

    def reset(self, key: str, task: Task) -> None:
        """Start the episode ``key``."""
        self._lost.pop(key, None)
        if key not in self._places:
            self._places[key] = self._least_busy()
            self._places[key].episodes += 1
        self._ask(key, task)

    def step(self, key: str, action: str) -> None:
        """Step the environment of the episode ``key``."""
        if (failure := self._lost.pop(key, None)) is not None:
            self._tickets[key] = ticket = next(self._counter)
            self._replies.put((ticket, key, failure))
        else:
            self._ask(key, action)

    def collect(self, *, block: bool) -> list[tuple[str, EnvReply | EnvFailure]]:
        """Return the results since the last call; if ``block``, wait for at least one."""
        replies: list[tuple[str, EnvReply | EnvFailure]] = []
        while self._tickets:
            wait = block and not replies
            try:
                ticket, key, reply = self._replies.get(block=wait, timeout=self._patience() if wait else None)
            except Empty:
                replies += self._give_up()
                if wait and not replies:
                    continue
                break
            if self._tickets.get(key) == ticket:
                del self._tickets[key]
                replies.append((key, reply))
        return replies

    def release(self, key: str) -> None:
        """End the episode ``key``; its instance is reused by other episodes of its thread."""
        self._tickets.pop(key, None)
        self._lost.pop(key, None)
        if (worker := self._places.pop(key, None)) is not None:
            worker.episodes -= 1
            worker.given_up.add(key)
            worker.work.put((0, key, None))

    def close(self) -> None:
        """Close every instance and end the threads; a thread that is still busy after five seconds is abandoned."""
        workers, self._workers = self._workers, []
        self._places.clear()
        self._tickets.clear()
        self._lost.clear()
        for worker in workers:
            worker.work.put(None)
        deadline = monotonic() + 5
        for worker in workers:
            worker.thread.join(max(0.0, deadline - monotonic()))

    def _ask(self, key: str, work: Task | str) -> None:
        self._tickets[key] = ticket = next(self._counter)
        self._places[key].work.put((ticket, key, work))

    def _due(self, worker: "_Worker") -> float:
        """Return the time by which the thread's current call must have returned."""
        if (doing := worker.doing) is None or (limit := self._limits[doing.what]) is None:
            return math.inf
        return doing.since + limit

    def _patience(self) -> float | None:
        if not any(self._limits.values()):
            return None
        # The times of calls that start meanwhile are unknown: check again after the shortest limit.
        shortest = min(limit for limit in self._limits.values() if limit is not None)
        due = min((self._due(worker) for worker in self._workers), default=math.inf)
        return max(0.0, min(due - monotonic(), shortest))

    def _give_up(self) -> list[tuple[str, EnvReply | EnvFailure]]:
        """Abandon threads whose current call exceeded its limit, and return the failures of their waiting episodes."""
        failed: list[tuple[str, EnvReply | EnvFailure]] = []
        for worker in [worker for worker in self._workers if self._due(worker) <= monotonic()]:
            doing = worker.doing
            limit = None if doing is None else self._limits[doing.what]
            if doing is None or limit is None or doing.since + limit > monotonic():  # it has returned meanwhile
                continue
            reason = StopReason.CRASHED if doing.what == "step" else StopReason.TIMEOUT
            failed += self._leave(worker, doing.key, f"{doing.what} did not answer within {limit:g} s", reason)
        return failed

    def _leave(
        self, worker: "_Worker", guilty: str | None, late: str, reason: StopReason = StopReason.TIMEOUT
    ) -> list[tuple[str, EnvReply | EnvFailure]]:
        """Abandon a thread and return the failures of its waiting episodes."""
        failed: list[tuple[str, EnvReply | EnvFailure]] = []
        self._workers.remove(worker)
        worker.left = True
        worker.work.put(None)  # ends the thread if its call returns after all
        for key in [key for key, place in self._places.items() if place is worker]:
            del self._places[key]
            if key == guilty:
                failure = EnvFailure(late, reason)
            else:
                failure = EnvFailure(f"its thread was left behind with another episode's environment: {late}")
            if self._tickets.pop(key, None) is None:
                self._lost[key] = failure
            else:
                failed.append((key, failure))
        return failed

    def _leave_what_hangs(self) -> None:
        """Abandon threads that are still busy with episodes that were released ``GIVEN_UP_S`` seconds ago or more."""
        for worker in self._workers[:]:
            doing = worker.doing
            if doing is None or doing.key not in worker.given_up or monotonic() - doing.since < GIVEN_UP_S:
                continue
            late = f"{doing.what} did not end within {GIVEN_UP_S:g} s after its episode was given up"
            for key, failure in self._leave(worker, None, late):
                self._tickets[key] = ticket = next(self._counter)
                self._replies.put((ticket, key, failure))

    def _least_busy(self) -> "_Worker":
        self._leave_what_hangs()
        idle = min(self._workers, key=lambda worker: worker.episodes, default=None)
        if idle is None or (idle.episodes and len(self._workers) < self._size):
            idle = _Worker(InlinePool(self._make), self._replies)
            self._workers.append(idle)
        return idle


_Reply: TypeAlias = tuple[int, str, EnvReply | EnvFailure]


class _Doing(NamedTuple):
    what: str
    key: str
    since: float


class _Worker:
    """Thread that steps its own environments."""

    def __init__(self, pool: InlinePool, replies: "SimpleQueue[_Reply]") -> None:
        self.episodes = 0
        self.given_up: set[str] = set()
        self.doing: _Doing | None = None
        self.left = False
        self.work: SimpleQueue[tuple[int, str, Task | str | None] | None] = SimpleQueue()
        self._pool = pool
        self._replies = replies
        self.thread = Thread(target=self._run, name="gym-trl environments", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while (item := self.work.get()) is not None:
            ticket, key, work = item
            if work is None:
                self._pool.release(key)
                self.given_up.discard(key)
            if key in self.given_up or work is None:
                continue
            self.doing = _Doing(name_of(work), key, monotonic())
            if isinstance(work, Task):
                self._pool.reset(key, work)
            else:
                self._pool.step(key, work)
            try:
                answers = self._pool.collect(block=True)
            except BaseException as error:  # exit() must not end this thread without a result
                answers = [(key, failed(work, error))]
            self.doing = None
            if self.left:
                break
            for _, reply in answers:
                self._replies.put((ticket, key, reply))
        self._pool.close()


def name_of(work: Task | str) -> str:
    """Return the name of the call for a piece of work: a task is a reset, a string is a step.

    >>> name_of("go north")
    'step'
    """
    return "reset" if isinstance(work, Task) else "step"


def failed(work: Task | str, error: BaseException) -> EnvFailure:
    """Return the failure of a reset or step that raised; the rule of ``gym_trl.errors`` decides its reason.

    >>> failed("go north", KeyError("north")).reason, failed("go north", OSError("no route")).reason
    (<StopReason.CRASHED: 'crashed'>, <StopReason.ENV_ERROR: 'env_error'>)
    """
    by_model = not isinstance(work, Task) and caused_by_model(error)
    reason = StopReason.CRASHED if by_model else StopReason.ENV_ERROR
    return EnvFailure(f"{name_of(work)} raised {type(error).__name__}: {error}", reason)


def take_step(env: TextEnvironment, action: str) -> EnvReply | EnvFailure:
    """Step an environment and check the result; an exception or a malformed result becomes a failure.

    If the step truncates the episode, its reward includes the settlement (``gym_trl.settlement``).

    >>> env = gym.make("TrlEnv/Echo-v0")
    >>> _ = env.reset(seed=0)
    >>> take_step(env, "woadw").reward
    1.0

    An unfinished or refused response is not an action. If no wrapper of ``env`` reads responses (as ``ParseAction``
    does), it is rejected here without a step.
    """
    if isinstance(action, UnfinishedResponse | RefusedResponse) and not env.has_wrapper_attr("reads_responses"):
        cut = isinstance(action, UnfinishedResponse)
        said, info = CUT if cut else str(action), {"action_valid": False, "action_cut": cut}
        return EnvReply(said, info=info, settlement=settlement(env))
    try:
        returned = env.step(action)
    except BaseException as error:
        if not ends_an_episode(error):
            raise
        return failed(action, error)
    try:
        reply = read_step(*returned)
        if reply.terminated or not (owed := settlement(env)):
            return reply
        return replace(reply, reward=reply.reward + owed) if reply.truncated else replace(reply, settlement=owed)
    except Exception as error:  # a malformed result is the environment's own fault
        return EnvFailure(f"step raised {type(error).__name__}: {error}")


def check_timeouts(**arguments: float | None) -> None:
    """Check that each argument is ``None`` or above 0.

    >>> check_timeouts(step_timeout=0)
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: step_timeout must be above 0, got 0
    """
    for name, value in arguments.items():
        if value is not None and not value > 0:
            raise ConfigError(f"{name} must be above 0, got {value}")


def read_instructions(env: gym.Env[Any, Any]) -> str:
    """Return the ``instructions`` of an environment or one of its wrappers, or the empty string."""
    try:
        return str(env.get_wrapper_attr("instructions"))
    except AttributeError:
        return ""


def read_declares_success(env: gym.Env[Any, Any]) -> bool:
    """Return whether an environment or one of its wrappers declares success (its attribute ``declares_success``).

    >>> read_declares_success(gym.make("TrlEnv/Echo-v0")), read_declares_success(gym.make("CliffWalking-v1"))
    (True, False)
    """
    try:
        return bool(env.get_wrapper_attr("declares_success"))
    except AttributeError:
        return False


MAX_TURNS = 10_000
"""Number of turns after which an episode is taken to have no end."""


def play_on(env: TextEnvironment, policy: Policy, observation: str) -> Iterator[tuple[Any, ...]]:
    """Play from an observation with ``policy``, yielding each action and its step's result, for ``MAX_TURNS`` at most.

    >>> env = gym.make("TrlEnv/Echo-v0")
    >>> observation, _ = env.reset(seed=0)
    >>> [step[:3] for step in play_on(env, lambda observation: observation, observation)]
    [('woadw', '5 of 5 right.', 1.0)]
    """
    for _ in range(MAX_TURNS):
        action = policy(observation)
        step = env.step(action)
        yield (action, *step)
        observation, _, terminated, truncated, _ = step
        if terminated or truncated:
            return


def read_step(observation: object, reward: object, terminated: object, truncated: object, info: Any) -> EnvReply:
    """Return the checked result of ``step``.

    >>> read_step("go on", float("nan"), False, False, {})
    Traceback (most recent call last):
        ...
    ValueError: the reward must be a finite number, got nan

    Raises:
        TypeError: the observation is not text, the reward is not a number, or ``info`` is not a mapping.
        ValueError: the reward is not finite, or ``info["action_valid"]`` or ``info["success"]`` has no truth value.
    """
    if not isinstance(info, Mapping):
        raise TypeError(f"info must be a mapping, got {type(info).__name__}: {info!r:.80}")
    said = {name: bool(info[name]) for name in ("action_valid", "success") if info.get(name) is not None}
    info = {**info, **said}
    value = float(reward)  # type: ignore[arg-type]  # raises if it is not a number
    if not math.isfinite(value):
        raise ValueError(f"the reward must be a finite number, got {value}")
    add_reward(0.0, value)
    return EnvReply(_text(observation), value, bool(terminated), bool(truncated), info)


def _text(observation: object) -> str:
    if not isinstance(observation, str):
        raise TypeError(f"the observation must be text, got {type(observation).__name__}: {observation!r:.80}")
    return observation


def close_env(env: gym.Env[Any, Any]) -> None:
    """Close an environment; an exception becomes a warning.

    >>> close_env(gym.make("TrlEnv/Echo-v0"))
    """
    try:
        env.close()
    except Exception as error:  # closing must not lose the episodes that were played
        gym.logger.warn(f"closing {env} raised {type(error).__name__}: {error}")
