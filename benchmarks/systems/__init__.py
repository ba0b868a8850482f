"""Systems compared on whole rollouts: the same games, the same tiny model, the same engine.

A system is a line in ``SYSTEMS`` and a module of this package with a function::

    def play(game: Game, generator: Generator) -> Run: ...

To add one:

1. Play one episode for each of ``game.seeds``, in order, on ``game.make()``: a Gymnasium environment with text
   observations and actions, whose steps are delayed and whose number of turns is fixed by the seed. The first user
   message is ``first_message(env, observation)``; each later observation is a user message (a tool's, if the system
   supports tools only); the whole response is the action. Reset with the episode's seed, if the system can be told one.
2. Sample with ``generator.llm``, a ``vllm.LLM`` of this process. Temperature 1, no top-p or top-k, at most
   ``game.tokens_per_turn`` tokens per turn and ``game.tokens`` per episode. A turn ends with the eos token of
   ``generator.tokenizer``.
3. Put ``with generator.measured() as counts: ...`` around the rollout and nothing else. A recorder at
   the engine writes the requests, steps, tokens and times into ``counts``, for every system in the same way.
4. Return ``Run(played, counts)`` with the data that the system would hand to the trainer, unchanged, right or wrong:
   ``None`` for a mask or logprobs that it does not return; the rows of single turns in ``rows``. A system with a
   ``rollout_func`` uses ``trainers.call_rollout_func``.

Packages that conflict with ours are in a folder of their own, ``.venv/.bench/NAME`` or ``.venv/.peers/NAME``, which the
Makefile fills, and ``System.folder`` is that NAME. Systems of one folder share a process and an engine, see
``worker.py``. A system that raises has a row with the reason.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gymnasium as gym

from gym_trl.wrappers.base import instructions_of


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
        from systems.game import make

        return make(self.env_id, dict(self.kwargs), self.latency_s, self.turns)

    @property
    def most_turns(self) -> int:
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
    steps: int = 0
    sampled: int = 0
    calls: list[Call] = field(default_factory=list)


@dataclass
class Run:
    """One rollout of one system."""

    played: list[Played]
    counts: Counts


@dataclass(frozen=True)
class System:
    """Row of the tables."""

    title: str
    module: str
    """Module of this package."""
    notes: str = ""
    """Patches that it needs to start, and what we add."""
    function: str = "play"
    folder: str | None = None
    """Folder of its packages below ``.venv/.bench`` or ``.venv/.peers``; ``None`` if installed with ours."""
    one_by_one: bool = False
    """True if it plays one episode after the other."""
    steps_in_sequence: bool = False
    """True if it steps one environment after the other, so that all waits add up."""
    slow: bool = False
    """True if it takes more than three times as long as ours even without waits, and so plays the first game only."""
    for_waits: bool = False
    """True if it differs from another row only where environments wait."""
    compared: bool = True
    """False for a second way to run the same code, which the benchmarks of tokens and of overhead leave out."""


_TUTORIAL = (
    "its environments get their seeds from the prompts, which is our addition: tutorials reset without one; "
    "generate_rollout_completions, which TRL no longer has, is trainer.vllm_generation.generate"
)
SYSTEMS: dict[str, System] = {
    "gym_trl": System("gym-trl", "ours"),
    "environment_factory": System(
        "TRL 1.16, environment_factory",
        "environment_factory",
        "the model's boxes are read as calls of a tool, by a response template of ours; "
        "an answer more for each episode: only a model that calls nothing ends it",
        steps_in_sequence=True,
    ),
    "lockstep": System("rollout_func, turn by turn", "lockstep", _TUTORIAL, steps_in_sequence=True),
    "lockstep_threads": System(
        "rollout_func, turn by turn, environments in threads",
        "lockstep",
        _TUTORIAL,
        function="play_in_threads",
        for_waits=True,
        compared=False,
    ),
    "openenv_harness": System(
        "OpenEnv 0.10, build_harness_rollout_func",
        "openenv_harness",
        "the session factory takes the seed from the prompt, which is our addition: the bridge passes none; "
        "environments are in this process; through an OpenEnv server each step would cost a round trip more",
        one_by_one=True,
        slow=True,
    ),
    "trl_env": System(
        "trl-env 0.1.20",
        "trl_env",
        "it is for Python 3.12 alone: its `type` statements are read as assignments; "
        "its decoder makes a second engine from the trainer's model: it is given the one that all systems have",
        folder="trl-env",
        one_by_one=True,
        slow=True,
    ),
    "eval_protocol": System(
        "Eval Protocol 0.3.33",
        "eval_protocol_rollout",
        "`trainer.llm`, which TRL has not had since 0.28, is set to the engine; the environment is made by "
        "`env_factory`: its own ways to make one call names that OpenEnv's client does not have; prompts are plain "
        "text: a conversation is refused; "
        "it can tell its environments no seed, so that it plays other games than all the others",
        folder="eval-protocol",
        one_by_one=True,
        slow=True,
    ),
    "skyrl": System(
        "SkyRL 0.3.0, engine in this process",
        "skyrl_generator",
        "its own SkyRLGymGenerator; its client of inference engines, which sends requests to servers of vLLM, is ours: "
        "the same interface on the engine of this process, stepped between the episodes' tasks; the seed is a field of "
        "the row, as its data allows; environments that wait are stepped in as many threads as there are episodes, by "
        "its own setting",
        folder="skyrl",
    ),
    "textarena": System(
        "TextArena 0.7.4, agents",
        "textarena_agents",
        "its loop plays one game: here each has a thread, and an agent of ours that waits for the shared engine; each "
        "turn's prompt is the whole history in one message, by its LLMObservationWrapper; it hands texts over, which "
        "are encoded as Unstable Baselines does, a row per turn; it asks for no logprobs, which spares the engine work",
    ),
}
"""Systems by the name in commands and results, including peers of other folders."""


def first_message(env: gym.Env[str, str], observation: str) -> str:
    return "\n\n".join(part for part in (instructions_of(env), observation) if part)
