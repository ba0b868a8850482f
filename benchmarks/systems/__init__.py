"""Systems compared on whole rollouts: the same games, the same tiny model, the same engine.

A system is a module of this package with a function::

    def play(game: Game, generator: Generator) -> Run: ...

and a line in ``SYSTEMS``. To add one:

1. ``play`` plays ``game.seeds``, one episode for each, in order, on ``game.make()``: a Gymnasium environment whose
   observations and actions are text, which waits as long as its real counterpart would and ends after as many turns as
   its seed says. Its rules are ``read_instructions(env)`` (``gym_trl.executors.step``). The first user message is
   rules, an empty line, first observation (``first_message``); each later observation is a user message (or a tool's,
   where there are only tools); an answer is the action, whole. Reset with the episode's seed if the system can be told
   one. If it cannot, let it draw its own: the seed that was played is read from the prompt (``seed_of``), never taken
   from the system.
2. Sample with ``generator.llm``, a ``vllm.LLM`` of this process, or with ``generator.serving(...)``, the real ``vllm
   serve`` with a recorder at its engine. Temperature 1, nothing cut off, at most ``game.tokens_per_turn`` a turn and
   ``game.tokens`` an episode. The end of a turn is ``generator.tokenizer``'s eos.
3. Time nothing but the rollout: ``with generator.measured() as counts: ...`` (or the server's) around it. What engine
   calls were made, how many steps and tokens they took and how long it all was is recorded at the engine, for every
   system in the same way, and is in ``counts`` afterwards.
4. Return ``Run(played, counts)``: what the system would hand to the trainer, as it is, right or wrong. ``None`` for
   what it does not return (no mask, no logprobs); what it returns per turn and not per episode stays as it is too,
   concatenated as the trainer would see it.

Packages that conflict with ours go to ``benchmarks/peers/NAME.txt`` (or are in ``tests/compat/peers/NAME.txt``
already); ``make bench`` installs each list into ``.venv/.bench/NAME`` (or ``.venv/.peers/NAME``), and the system's
``folder`` is that NAME: systems of one folder share a process and an engine, see ``worker.py``. What a reader must know
(patches that it needs to start, what we add) is in ``NOTES`` of its module, a tuple of sentences. A system that raises
has a row that says why.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gymnasium as gym

from gym_trl.executors.step import read_instructions


@dataclass(frozen=True)
class Game:
    """Workload: real games with delayed environments and numbers of turns that are heavy-tailed by seed."""

    env_id: str
    kwargs: Mapping[str, Any]
    seeds: tuple[int, ...]
    """Seed of each episode; the members of a group are adjacent and share theirs."""
    group_size: int
    latency_s: float
    """Mean seconds of a step; each step draws its own from (seed, turn)."""
    tokens_per_turn: int = 64
    tokens: int = 1400
    """Most tokens of a completion: all turns and the environment's text between them."""
    turns: int | None = None
    """Turns of every game; by default drawn from its seed."""

    def make(self) -> gym.Env[str, str]:
        """Return a new instance, for consecutive episodes."""
        from systems.game import make

        return make(self.env_id, dict(self.kwargs), self.latency_s, self.turns)

    @property
    def most_turns(self) -> int:
        """Return the largest number of turns of a game."""
        from systems.game import MOST_TURNS

        return self.turns or MOST_TURNS


@dataclass(frozen=True)
class Played:
    """Data that a system hands to the trainer for one episode."""

    seed: int | None
    """Seed of the game actually played, from the prompt: ``seed_of``."""
    prompt_ids: list[int]
    completion_ids: list[int]
    mask: list[int] | None
    """1 for sampled tokens; ``None`` for a system without a mask, which trains on everything."""
    logprobs: list[float | None] | None
    reward: float | None
    turns: int
    rows: tuple["Played", ...] = ()
    """All rows, if the trainer gets several for one episode, one per turn for example; the last as above."""


class Call(NamedTuple):
    """Tokens that the engine saw and sampled for one request."""

    prompt_ids: list[int]
    ids: list[int]
    logprobs: list[float] | None
    """Logprobs of the sampled ids; ``None`` if the system did not request them."""


@dataclass
class Counts:
    """Cost of a rollout, as recorded at the engine."""

    seconds: float = 0.0
    processor_seconds: float = 0.0
    """Processor seconds of this process; more reliable than ``seconds`` on a shared machine."""
    steps: int = 0
    sampled: int = 0
    prefilled: int = 0
    """Prompt tokens that were computed, without those from the prefix cache."""
    calls: list[Call] = field(default_factory=list)


@dataclass
class Run:
    """One rollout of one system."""

    played: list[Played]
    counts: Counts


@dataclass(frozen=True)
class System:
    """Line of the tables."""

    title: str
    module: str
    """Module of this package."""
    folder: str | None = None
    """Folder of its packages below ``.venv/.bench`` or ``.venv/.peers``; ``None`` if installed with ours."""
    one_by_one: bool = False
    """True if it plays one episode after the other, which is slow and so measured once."""


SYSTEMS: dict[str, System] = {
    "gym_trl": System("gym-trl", "ours"),
    "gym_trl_served": System("gym-trl, over HTTP", "ours_served"),
    "environment_factory": System("TRL 1.16, environment_factory", "environment_factory"),
    "lockstep": System("rollout_func, turn by turn", "lockstep"),
    "lockstep_threads": System("rollout_func, turn by turn, environments in threads", "lockstep_threads"),
    "one_by_one": System("rollout_func, episode by episode", "one_by_one", one_by_one=True),
    "openenv_harness": System("OpenEnv 0.10, build_harness_rollout_func", "openenv_harness", one_by_one=True),
    "trl_env": System("trl-env 0.1.20", "trl_env", "trl-env", one_by_one=True),
    "eval_protocol": System("Eval Protocol 0.3.33", "eval_protocol_rollout", "eval-protocol", one_by_one=True),
    "verifiers": System("verifiers 0.4.0", "verifiers_env", "verifiers"),
    "gem": System("GEM 0.1.0, vector", "gem_vector"),
}
"""Systems by the name in commands and results, including peers of other folders."""


def first_message(env: gym.Env[str, str], observation: str) -> str:
    """Return the text of the first user message."""
    return "\n\n".join(part for part in (read_instructions(env), observation) if part)
