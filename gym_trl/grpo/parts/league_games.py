"""Games of a league in a ``rollout_func``: the pairings, and the opponents that play."""

import random
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gym_trl.engines.protocol import Engine
from gym_trl.engines.routed import RoutedEngine
from gym_trl.executors.protocol import EnvFactory, TextEnvironment
from gym_trl.grpo.attach import Place
from gym_trl.grpo.league import LeagueState, outcome_of
from gym_trl.grpo.opponents import LoadedOpponent, check_snapshots, load_model, load_snapshot, save_snapshot
from gym_trl.grpo.parts.games import Games
from gym_trl.grpo.parts.part import Call, Rollout
from gym_trl.grpo.planned_rows import Planned
from gym_trl.policies.model import Model
from gym_trl.policies.protocol import TextPolicy
from gym_trl.rollout.episode import Episode
from gym_trl.rollout.text_player import InThread, SeatPolicy
from gym_trl.seeding import derive_seed
from gym_trl.types import EpisodeResult, Policy, StepResult, Task


class LeagueGames(Games):
    """Part for ``seats=League(...)``: in a part of the training's groups the other seats have opponents.

    Args:
        league: The league.
        make: Function that makes an environment from its id, for the policies that environments provide.
        env_ids: Environments that must have these policies.
        write: Function that marks an action as responses have to.
        seed: Seed of the draws.

    Raises:
        ConfigError: An environment does not have one of the opponents' policies.
    """

    name = "league"

    def __init__(
        self,
        league: LeagueState,
        *,
        make: EnvFactory,
        env_ids: Collection[str] = (),
        write: Callable[[str], str] = str,
        seed: int = 0,
    ) -> None:
        self.league = league
        self._make, self._write, self._seed = make, write, seed
        self._outcomes: list[tuple[str, int]] = []  # of this rollout, on this process
        self._loaded: dict[str, LoadedOpponent] = {}
        self._free: defaultdict[str, list[TextEnvironment]] = defaultdict(list)
        self._lent: list[tuple[str, TextEnvironment]] = []
        own = [
            policy for policy in league.policies.values() if isinstance(policy, TextPolicy) and policy.of_environment
        ]
        for env_id in env_ids if own else ():
            env = make(env_id)
            self._free[env_id].append(env)
            for policy in own:
                policy.check(env)

    @property
    def state(self) -> Any:
        """State of the league."""
        return self.league.state

    @state.setter
    def state(self, state: Any) -> None:
        self.league.state = state

    def begin(self, call: Call) -> None:
        """Let a snapshot join if it is time.

        Raises:
            ConfigError: A snapshot is missing, or the trainer saves no whole model.
            OSError: The folder of the snapshots is a link, or has links in it.
        """
        super().begin(call)
        if not call.training:
            return
        step = call.trainer.state.global_step
        self._outcomes.clear()
        if self.league.is_due(step):
            self.league.join(step)
            save_snapshot(self.league.past[-1], call.trainer, state=self.name, others=self.league.past)
        check_snapshots(self.league.past, call.trainer)

    def opponent(self, row: Planned, call: Call) -> str:
        """Return the opponent of a row's group; empty if the model plays all seats of its games."""
        if not call.training:
            return ""
        rollout = self._rollout(call.place)
        return self.league.opponent(rollout, derive_seed(rollout, row.group, row.attempt))

    def plan(self, rows: list[Planned], call: Call) -> list[Planned]:
        """Load the opponents of the rows, before the trainer's engine is made.

        They are those of any group, where groups may be replaced: any of them may then play on this process.
        """
        if call.training:
            names = {self.opponent(row, call) for row in rows} - {""}
            self._load_models(set(self.league.drawn(self._rollout(call.place))) if call.replaces else names, call)
        return rows

    def _load_models(self, names: Collection[str], call: Call) -> None:
        """Load the models among these opponents, and drop all others."""
        wanted = sorted(name for name in names if not isinstance(self.league.policies.get(name), TextPolicy))
        self._loaded = {name: one for name, one in self._loaded.items() if name in wanted}
        for name in wanted:
            if name not in self._loaded:
                self._loaded[name] = self._load(name, call)

    def against(self, opponent: str, row: Planned, seed: int, call: Call) -> Episode | SeatPolicy | InThread:
        """Return the player of an opponent's seat: an episode of its model, or its text policy."""
        if (model := self._loaded.get(opponent)) is None:
            return self.policy(opponent, row.task, seed)
        return call.episode(row, chat=model.chat, limits=model.limits, seed=seed, model=opponent)

    def policy(self, name: str, task: Task, seed: int) -> SeatPolicy | InThread:
        """Return the text policy of an opponent for one seat of a game."""
        policy = self.league.policies[name]
        assert isinstance(policy, TextPolicy)
        slow = policy.concurrency > 1
        made: list[Policy] = [policy.make(self._env(task), seed)] if slow else []
        rng = random.Random(seed)

        def act(result: StepResult) -> str:
            listed = result.info.get("admissible_actions")
            if policy.of_environment and name == "random" and listed:  # the environment itself is elsewhere
                return self._write(rng.choice(list(listed)))
            if not made:
                made.append(policy.make(self._env(task), seed))
            action = made[0](result.observation)
            return action if policy.marks else self._write(action)

        return InThread(act) if slow else act

    @contextmanager
    def engine(self, engine: Engine, call: Call) -> Iterator[Engine]:
        """Provide an engine that also samples the opponents' responses; their weights leave a GPU at its end."""
        if not self._loaded or not call.training:
            yield engine
            return
        import torch

        from gym_trl.engines.transformers import TransformersEngine, free_bytes

        device = call.trainer.accelerator.device
        share = free_bytes(device) // (2 * self.league.settings.at_once)

        def make(name: str) -> Engine:
            one = self._loaded[name]
            one.weights.to(device)
            return TransformersEngine(one.weights, **one.options, cache_bytes=share, constant_weights=True)

        try:
            with torch.no_grad():
                yield RoutedEngine(engine, make)
        finally:
            for one in self._loaded.values():
                if not hasattr(one.weights, "peft_config"):  # whose base is the trainer's
                    one.weights.to("cpu")

    def note(self, opponent: str, mine: EpisodeResult, others: Sequence[EpisodeResult]) -> None:
        """Note a scored game of this process."""
        if (outcome := outcome_of(mine, others)) is not None:
            self._outcomes.append((opponent, outcome))

    def end(self, rollout: Rollout, call: Call) -> None:
        """Count the games of all processes, and log."""
        if not call.training:
            return
        self.league.count(call.gather(self._outcomes))
        for env_id, env in self._lent:
            self._free[env_id].append(env)
        self._lent.clear()
        call.log(self.league.metrics())

    def _rollout(self, place: Place) -> int:
        return derive_seed(self._seed, "league", place.step, place.call)

    def _env(self, task: Task) -> TextEnvironment:
        """Return an environment after the reset of a task, which nobody steps in this rollout."""
        free = self._free[task.env_id]
        env = free.pop() if free else self._make(task.env_id)
        self._lent.append((task.env_id, env))
        env.reset(seed=task.seed, options=dict(task.options) or None)
        return env

    def _load(self, name: str, call: Call) -> LoadedOpponent:
        policy = self.league.policies.get(name)
        if policy is None:
            return load_snapshot(name, call.trainer, call.chat, call.config)
        assert isinstance(policy, Model)
        return load_model(policy, call.trainer, call.config)
