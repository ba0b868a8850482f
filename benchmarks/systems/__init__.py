"""The systems that are compared on whole rollouts: the same games, the same tiny model, the same engine.

A system is a module of this package with a function::

    def play(game: Game, generator: Generator) -> Run: ...

and a line in ``SYSTEMS``. To add one:

1. ``play`` plays ``game.seeds``, one episode for each, in order, on ``game.make()``: a Gymnasium environment whose
   observations and actions are text, which waits as long as its real counterpart would and ends after as many turns as
   its seed says. Its rules are ``gym_trl.pool.read_instructions(env)``. The first user message is rules, an empty line,
   first observation (``first_message``); each later observation is a user message (or a tool's, where there are only
   tools); an answer is the action, whole. Reset with the episode's seed if the system can be told one. If it cannot,
   let it draw its own: the seed that was played is read from the prompt (``seed_of``), never taken from the system.
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

from gym_trl.pool import read_instructions


@dataclass(frozen=True)
class Game:
    """What is played: real games whose environments answer late and whose number of turns is heavy-tailed by seed."""

    env_id: str
    kwargs: Mapping[str, Any]
    seeds: tuple[int, ...]
    """One for each episode; the members of a group follow each other and share theirs."""
    group_size: int
    latency_s: float
    """The mean of what a step takes; each step draws its own from (seed, turn)."""
    tokens_per_turn: int = 64
    tokens: int = 1400
    """Of a completion: all turns and what the environment said between them."""
    turns: int | None = None
    """How many every game has; by default its seed says."""

    def make(self) -> gym.Env[str, str]:
        """A new instance, for one episode after the other."""
        from systems.game import make

        return make(self.env_id, dict(self.kwargs), self.latency_s, self.turns)

    @property
    def most_turns(self) -> int:
        """No game has more."""
        from systems.game import MOST_TURNS

        return self.turns or MOST_TURNS


@dataclass(frozen=True)
class Played:
    """What a system hands to the trainer of one episode."""

    seed: int | None
    """Of the game that was really played, from the prompt: ``seed_of``."""
    prompt_ids: list[int]
    completion_ids: list[int]
    mask: list[int] | None
    """1 where the model sampled; ``None`` where the system has no mask, which trains on everything."""
    logprobs: list[float | None] | None
    reward: float | None
    turns: int
    rows: tuple["Played", ...] = ()
    """Where the trainer gets several rows of one episode, one per turn for example: all of them, the last as above."""


class Call(NamedTuple):
    """What the engine really saw and sampled for one request."""

    prompt_ids: list[int]
    ids: list[int]
    logprobs: list[float] | None
    """Of the sampled ids; ``None`` where the system did not ask for them."""


@dataclass
class Counts:
    """What a rollout took, as the engine saw it."""

    seconds: float = 0.0
    processor_seconds: float = 0.0
    """Of this process; on a machine that others use it says more than ``seconds``."""
    steps: int = 0
    sampled: int = 0
    prefilled: int = 0
    """Prompt tokens that were computed; those from the prefix cache are not among them."""
    calls: list[Call] = field(default_factory=list)


@dataclass
class Run:
    """One rollout of one system."""

    played: list[Played]
    counts: Counts


@dataclass(frozen=True)
class System:
    """A line of the tables."""

    title: str
    module: str
    """Of this package."""
    folder: str | None = None
    """Of its packages below ``.venv/.bench`` or ``.venv/.peers``; ``None`` for those that live with ours."""
    one_by_one: bool = False
    """It plays one episode after the other, which takes so long that it is measured once."""


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
"""By the name that commands and results use. Peers of other folders are added here."""


def first_message(env: gym.Env[str, str], observation: str) -> str:
    """What the first user message says."""
    return "\n\n".join(part for part in (read_instructions(env), observation) if part)
