"""Episodes that begin where a good episode was after its first turns."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from gym_trl.errors import ConfigError
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.grpo.parts.part import Call, Part, Rollout
from gym_trl.grpo.planned_rows import Planned
from gym_trl.kinds import Share, check_option
from gym_trl.policies.functions import as_policy
from gym_trl.policies.protocol import TextPolicy
from gym_trl.records.files import read_records
from gym_trl.rollout.text_player import play
from gym_trl.seeding import derive_seed
from gym_trl.types import EpisodeResult, Policy, Task
from gym_trl.wrappers.parse_action import action_finder, action_writer

Source: TypeAlias = str | Path | Callable[[TextEnvironment], Policy] | TextPolicy
_SEEDS = 2**63
_KEPT = 4096
"""Number of tasks whose responses are kept."""
_WITHOUT = 32
"""Number of tasks without a successful episode after which there is a warning."""


class StartFrom(Part):
    """Part that starts a share of the groups after the first turns of a successful episode of their task.

    ::

        spec = GymSpec("TrlEnv/Sokoban-v0", parts=[StartFrom("solver", share=0.5)])

    Members of a chosen group are given the same first responses: their steps are taken in each environment, and the
    conversation with them is the episode's prompt, so none of their tokens is trained on. The number of turns that are
    left to the model grows while more than ``target`` of these episodes succeed, and falls otherwise; at first it is
    one. (Prefix Sampling, arXiv:2605.05112; a demonstration walked backwards: Salimans and Chen 2018,
    arXiv:1812.03381.) ``EpisodeResult.given_turns``, and a column of this name, have the number of given turns.

    Args:
        source: Where the responses are from: the name of a policy that the environments have, such as ``"solver"``, a
            function from an environment after its reset to a policy, or the path of recorded episodes.
        share: Share of the groups that are chosen.
        target: Success rate of the episodes in them.

    Raises:
        ConfigError: An argument is invalid.
    """

    name = "start_from"
    in_streams = True

    def __init__(self, source: Source = "solver", *, share: float = 0.5, target: float = 0.5) -> None:
        check_option("share", share, Share)
        check_option("target", target, Share)
        self.share, self.target = share, target
        self.state = {"left": 1.0}
        self._responses: dict[str, tuple[str, ...]] = {}
        recorded = isinstance(source, str | Path) and Path(source).exists()
        self._recorded = recorded_episodes(Path(str(source))) if recorded else {}
        self._policy = None if recorded else _text_policy(source)

    def begin(self, call: Call) -> None:
        """Check that turns can be given.

        Raises:
            ConfigError: Episodes have a history, or the model plays several seats.
        """
        for option, used in (("history", call.config.history is not None), ("seats", bool(call.seats))):
            if used:
                raise ConfigError(f"start_from cannot be combined with {option}: leave out one of the two")

    def plan(self, rows: list[Planned], call: Call) -> list[Planned]:
        """Return the rows, those of chosen groups with the responses that they are given."""
        openings = {row.group: self._opening(row, call) for row in {row.group: row for row in rows}.values()}
        return [replace(row, opening=openings[row.group]) for row in rows]

    def columns(self, rows: Sequence[Planned], episodes: Sequence[EpisodeResult], call: Call) -> dict[str, list[Any]]:
        """Return the number of turns that each episode was given."""
        return {"given_turns": [episode.given_turns for episode in episodes]}

    def end(self, rollout: Rollout, call: Call) -> None:
        """Let the turns that are left to the model follow the success of all processes."""
        played = [*rollout.episodes, *(one.episode for one in rollout.replaced)]
        helped = [one for one in played if one.given_turns and one.scored]
        everywhere = call.gather([(one.success is True, len(self._of(one.task, call))) for one in helped])
        if everywhere:
            success = sum(won for won, _ in everywhere) / len(everywhere)
            most = max(length for _, length in everywhere) - 1  # at least one turn is given
            left = self.state["left"]  # shorter tasks do not lower it, only failures do
            self.state = {"left": max(1.0, min(left * 2 ** (success - self.target), max(left, float(most))))}
            call.log({"start_from/success": success, "start_from/left": self.state["left"]})

    def _opening(self, row: Planned, call: Call) -> tuple[str, ...]:
        seed = derive_seed(call.seed, self.name, call.place.step, call.place.call, row.group)
        if derive_seed(seed, "chosen") >= self.share * _SEEDS:
            return ()
        responses, (whole, rest) = self._of(row.task, call), divmod(self.state["left"], 1)
        left = int(whole) + (derive_seed(seed, "left") < rest * _SEEDS)
        return responses[: max(1, len(responses) - left)] if len(responses) > 1 else ()

    def _of(self, task: Task, call: Call) -> tuple[str, ...]:
        """Return the responses of a successful episode of a task; none if there is none."""
        name = task.to_json()
        if name not in self._responses:
            if len(self._responses) >= _KEPT:
                self._responses.clear()
            self._responses[name] = self._found(task, call)
            if len(self._responses) == _WITHOUT and not any(self._responses.values()):
                warnings.warn(
                    f"start_from gives no turns: its source has no successful episode of the first {_WITHOUT} tasks",
                    RuntimeWarning,
                    stacklevel=2,
                )
        return self._responses[name]

    def _found(self, task: Task, call: Call) -> tuple[str, ...]:
        recorded = self._recorded.get(task.to_json(), ())
        if self._policy is None and not recorded:
            return ()
        env = call.make(task.env_id)
        try:
            if self._policy is not None:
                return _played(self._policy, env, task)
            find, write = action_finder(env), action_writer(env)
            return tuple(text if find(text) is not None else write(action or text) for text, action in recorded)
        finally:
            env.close()


def recorded_episodes(path: Path) -> dict[str, list[tuple[str, str | None]]]:
    """Return answers and actions of the successful episode of each task with the fewest turns, by the task as JSON.

    Raises:
        ConfigError: There are no records, or none of a successful episode.
    """
    shortest: dict[str, list[tuple[str, str | None]]] = {}
    for record in read_records(path):
        task = record["task"]
        if record["success"] and task["env_id"] is not None and task["seed"] is not None:
            name = Task(task["env_id"], task["seed"], task["options"]).to_json()
            turns = [(turn["answer"], turn["action"]) for turn in record["turns"]]
            if name not in shortest or len(turns) < len(shortest[name]):
                shortest[name] = turns
    if not shortest:
        raise ConfigError(f"source must have a successful episode, and {path} has none")
    return shortest


def _played(policy: TextPolicy, env: TextEnvironment, task: Task) -> tuple[str, ...]:
    policy.check(env)
    write = action_writer(env)

    def made(env: TextEnvironment) -> Policy:
        act = policy.make(env, derive_seed(task.seed, "start_from"))
        return lambda observation: write(act(observation))

    result = play(env, task, made)
    if result.error is not None:
        warnings.warn(f"start_from: an episode of its source failed: {result.error}", RuntimeWarning, stacklevel=2)
    return tuple(turn.answer.text for turn in result.turns) if result.success else ()


def _text_policy(source: Source) -> TextPolicy:
    policy = as_policy(str(source) if isinstance(source, Path) else source)
    if not isinstance(policy, TextPolicy):
        raise ConfigError(
            "source must be a policy of the environments, a function that makes one or the path of recorded episodes, "
            f"got {source!r}"
        )
    return policy
