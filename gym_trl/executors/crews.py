"""Executors of a vector's environments: stepped in this thread, in threads, or in processes, several at a time."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any, TypeAlias

import gymnasium as gym
from gymnasium.vector import AutoresetMode as AutoresetMode  # noqa: PLC0414 -- exported

from gym_trl.bases import Closing
from gym_trl.errors import described, raise_interrupt
from gym_trl.executors.step import close_env
from gym_trl.executors.worker import Worker, WorkerEnded, WorkerError, question

Maker: TypeAlias = Callable[[], gym.Env[Any, Any]]
EnvStep: TypeAlias = tuple[Any, Any, bool, bool, dict[str, Any]]
"""Result of ``Env.step``; with autoreset in the same step, ``info`` has ``final_obs``."""
Order: TypeAlias = tuple[int, str, tuple[Any, ...]]
"""Index of an environment, name of a method of ``_Inline``, and its arguments."""
_EPISODES = ("begun", "stepped")
"""Methods whose results are those of ``Env.step``: what fails there is a failed episode."""
_PROPERTIES = ("observation_space", "action_space", "metadata", "render_mode")


class Crew(Closing):
    """Place where the environments are stepped."""

    @abstractmethod
    def run(self, orders: list[Order]) -> list[Any]:
        """Return the results of these methods of ``_Inline``."""

    def step(self, indexes: Sequence[int], actions: Sequence[Any], over: list[bool]) -> list[EnvStep]:
        """Step environments, or reset those at the end of an episode."""
        pairs = zip(indexes, actions, strict=True)
        return self.run(
            [(index, "begun", ()) if over[index] else (index, "stepped", (action,)) for index, action in pairs]
        )


class _Inline(Crew):
    """Environments in this thread."""

    def __init__(self, makers: list[Maker], mode: AutoresetMode, workers: int = 1) -> None:
        self._makers = makers
        self._same_step = mode is AutoresetMode.SAME_STEP
        self._envs: list[gym.Env[Any, Any] | None] = [make() for make in makers]

    def step(self, indexes: Sequence[int], actions: Sequence[Any], over: list[bool]) -> list[EnvStep]:
        envs, results = self._envs, []
        for index, action in zip(indexes, actions, strict=True):
            if over[index] or envs[index] is None:
                results.append(self._begun(index))
                continue
            try:
                result = envs[index].step(action)  # type: ignore[union-attr]  # checked above
                if self._same_step and (result[2] or result[3]):
                    result = self._begun_anew(index, result)
            except BaseException as error:
                result = self._failed(index, error)
            results.append(result)
        return results

    def run(self, orders: list[Order]) -> list[Any]:
        return [getattr(self, f"_{what}")(index, *with_) for index, what, with_ in orders]

    def close(self) -> None:
        for index in range(len(self._envs)):
            self._drop(index)

    def _env(self, index: int) -> gym.Env[Any, Any]:
        env = self._envs[index]
        if env is None:
            env = self._envs[index] = self._makers[index]()
        return env

    def _begun(self, index: int, seed: int | None = None, options: dict[str, Any] | None = None) -> EnvStep:
        try:
            observation, info = self._env(index).reset(seed=seed, options=options)
        except BaseException as error:
            return self._failed(index, error)
        return observation, 0.0, False, False, info

    def _begun_anew(self, index: int, result: EnvStep) -> EnvStep:
        observation, reward, terminated, truncated, info = result
        try:
            began, begun = self._env(index).reset()
        except BaseException as error:  # of the next episode; the next step starts another
            began, begun = "", {"error": self._failed(index, error)[4]["error"]}
        return began, reward, terminated, truncated, {"final_obs": observation, "final_info": info, **begun}

    def _stepped(self, index: int, action: Any) -> EnvStep:
        return self.step([index], [action], [False] * (index + 1))[0]

    def _properties(self, index: int) -> dict[str, Any]:
        env = self._env(index)
        return {name: getattr(env, name) for name in _PROPERTIES}

    def _called(self, index: int, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        env = self._env(index)
        attribute = getattr(env, name) if name in ("render", "reset", "step") else env.get_wrapper_attr(name)
        return attribute(*args, **kwargs) if callable(attribute) else attribute

    def _set(self, index: int, name: str, value: Any) -> None:
        self._env(index).set_wrapper_attr(name, value)

    def _failed(self, index: int, error: BaseException) -> EnvStep:
        """Drop an environment that raised and return its episode's result; an interrupt of the program is raised."""
        self._drop(index)
        raise_interrupt(error)
        return _failed(error)

    def _drop(self, index: int) -> None:
        env, self._envs[index] = self._envs[index], None
        if env is not None:
            close_env(env, broken=True)


class _Threads(Crew):
    """Environments in threads; each is used by one thread at a time."""

    def __init__(self, makers: list[Maker], mode: AutoresetMode, workers: int) -> None:
        self._inline = _Inline(makers, mode)
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="gym-trl vector")

    def run(self, orders: list[Order]) -> list[Any]:
        return list(chain.from_iterable(self._pool.map(self._inline.run, [[order] for order in orders])))

    def close(self) -> None:
        self._pool.shutdown()
        self._inline.close()


class _Processes(Crew):
    """Environments in processes, several in each."""

    def __init__(self, makers: list[Maker], mode: AutoresetMode, workers: int) -> None:
        self._builds = [partial(_Inline, makers[first::workers], mode) for first in range(workers)]
        self._workers = [Worker(build) for build in self._builds]

    def run(self, orders: list[Order]) -> list[Any]:
        count = len(self._workers)
        shares: dict[int, list[int]] = {}
        for place, (index, _, _) in enumerate(orders):
            shares.setdefault(index % count, []).append(place)
        asked = {  # all are pickled before one is sent: pickling may raise
            number: question("run", [(orders[place][0] // count, *orders[place][1:]) for place in places])
            for number, places in shares.items()
        }
        for number, message in asked.items():
            with suppress(WorkerError):  # reading its answer raises
                self._workers[number].send(message)
        results: dict[int, Any] = {}
        raised: WorkerError | None = None
        try:
            for number, places in shares.items():
                try:
                    results |= zip(places, self._answer(number), strict=True)
                except WorkerError as error:  # the process has ended, or a result cannot be pickled
                    if all(orders[place][1] in _EPISODES for place in places):
                        results |= dict.fromkeys(places, _failed(error))
                    else:
                        raised = error
                del asked[number]
        except BaseException:  # interrupted: pending results would be taken for later ones
            for number in asked:
                self._renew(number)
            raise
        if raised is not None:
            raise raised
        return [results[place] for place in range(len(orders))]

    def close(self) -> None:
        for worker in self._workers:
            worker.close()

    def _answer(self, number: int) -> list[Any]:
        try:
            answer: list[Any] = self._workers[number].answer()
        except WorkerEnded:  # with its environments
            self._renew(number)
            raise
        return answer

    def _renew(self, number: int) -> None:
        self._workers[number].kill()
        self._workers[number] = Worker(self._builds[number])


def _failed(error: BaseException) -> EnvStep:
    info = {"error": described(error), "action_valid": False}
    return "", 0.0, False, True, info


CREWS: dict[str, Callable[[list[Maker], AutoresetMode, int], Crew]] = {
    "inline": _Inline,
    "thread": _Threads,
    "process": _Processes,
}
