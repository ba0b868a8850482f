"""Blind baselines: the best scores of policies that never look at an observation, found by search."""

import math
import random
import statistics
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from time import monotonic
from typing import Any, NamedTuple

import gymnasium as gym

from gym_trl.errors import ConfigError, check_counts, refused
from gym_trl.evaluation.blind_play import LONGEST, Actions, Arena, Outcome, Spent
from gym_trl.evaluation.blind_search import Objective, Search
from gym_trl.evaluation.estimates import Estimate, Reference
from gym_trl.seeding import derive_seed, task_seed
from gym_trl.text import counted

STEPS = 200_000
SECONDS = 60.0
"""Limit for slow environments; a search that it cuts off says so."""
EPISODES = 500
NEAR = 0.8
"""Share of the way from random play to the best known score from which on a blind baseline is near the optimum."""


@dataclass(frozen=True, slots=True)
class BlindBaseline:
    """Best open-loop sequence of actions that a search found, and its score on held-out episodes."""

    objective: Objective
    """``"success"`` if the environment declares it, else ``"return"``."""
    actions: Actions
    """The sequence, which is repeated at its end."""
    success: Estimate
    """Share of held-out episodes that it solves; its mean is ``None`` if success is not declared."""
    mean_return: Estimate
    deviation: float
    """Standard deviation of the return over the held-out episodes."""
    turns: float
    """Mean number of turns of the held-out episodes."""
    episodes: int
    """Number of held-out episodes that were played and scored."""
    steps: int
    """Number of environment steps of the search, including resets; held-out episodes are not counted."""
    sequences: int
    """Number of sequences that the search tried."""
    seconds: float
    budget: int
    """Maximum number of steps of the search."""
    cut: bool
    """The search ran out of time before it ran out of steps: another run may find another sequence."""

    @property
    def score(self) -> Estimate:
        """Held-out estimate of the objective."""
        return self.success if self.objective == "success" else self.mean_return

    def as_dict(self) -> dict[str, Any]:
        """Return the result as plain JSON values."""
        return {**asdict(self), "actions": list(self.actions)}


def describe(baseline: BlindBaseline) -> str:
    """Return a description of a blind baseline: its score, its actions, and the effort of the search."""
    paid = f"returns {baseline.mean_return}"
    if baseline.objective == "success":
        paid = f" and {paid}" if baseline.mean_return.mean != baseline.success.mean else ""
        paid = f"solves {baseline.success}{paid}"
    effort = f"{counted(baseline.sequences, 'sequence')}, {baseline.steps:,} steps"
    cut = f" of {baseline.budget:,}: cut off by time" if baseline.cut else ""
    return f"{paid} with {named(baseline.actions)} ({effort}{cut})"


def named(actions: Sequence[str], most: int = 6) -> str:
    """Return a description of a sequence of actions.

    >>> named(["hit"]), named(["left", "up"]), named(list("abcdefgh"))
    ("always 'hit'", "'left' 'up', repeated", "'a' 'b' 'c' 'd' 'e' 'f' ... (8 actions)")
    """
    if len(actions) == 1:
        return f"always {actions[0]!r:.40}"
    shown = " ".join(f"{action!r:.40}" for action in actions[:most])
    return f"{shown} ... ({len(actions)} actions)" if len(actions) > most else f"{shown}, repeated"


def blind_reference(make: Callable[[], gym.Env[Any, Any]], *, seed: int = 0) -> Reference | None:
    """Return the score of the best blind policy that a search of 5,000 steps finds.

    >>> import gymnasium as gym
    >>> print(blind_reference(lambda: gym.make("TrlEnv/GuessNumber-v0")))
    success 0.120 [0.082, 0.173], return 0.120 [0.082, 0.173] (200 episodes)

    ``None`` if the environment is too slow to play 200 held-out episodes in four seconds. The score is a sample: it may
    lie above an exact optimum.
    """
    searched = search_blind(make, steps=5_000, seconds=4.0, episodes=_LEAST, seed=seed)
    enough = searched.episodes >= _LEAST
    return Reference(searched.success, searched.mean_return, searched.episodes) if enough else None


_LEAST = 200
"""Minimum number of held-out episodes of a blind baseline that other scores are compared with."""


def is_near(blind: float, chance: float, best: float) -> bool:
    """Return whether ``blind`` is near ``best``: at least 80% of the way from random play to it.

    >>> is_near(0.75, 0.5, 1.0), is_near(0.95, 0.5, 1.0), is_near(0.8, 1.0, 1.0)
    (False, True, False)
    """
    return blind >= best or (best > chance and blind - chance >= NEAR * (best - chance))


def search_blind(
    make: Callable[[], gym.Env[Any, Any]],
    *,
    steps: int = STEPS,
    seconds: float = SECONDS,
    episodes: int = EPISODES,
    seed: int = 0,
    longest: int = LONGEST,
) -> BlindBaseline:
    """Search for the best policy that never looks at an observation, and measure it on held-out episodes.

    >>> import gymnasium as gym
    >>> found = search_blind(lambda: gym.make("TrlEnv/GuessNumber-v0", high=8, turns=4), steps=20_000, episodes=200)
    >>> found.objective, len(set(found.actions)) >= 4, 0.4 < found.success.mean < 0.6
    ('success', True, True)

    Such a policy is a sequence of actions that is repeated at its end. Candidates are single actions, short cycles, and
    the actions of the environment's solver and of random play in training episodes. The best ones are improved by
    exchanging, inserting, moving and removing actions, and by the actions of the solver or of random play in episodes
    in which a sequence has failed. The best of all, the best single actions and short cycles meet in a final on other
    training episodes. Actions are taken from the action space (all of a small one; of a large one, those near the best
    of many that are spread over it), the lists in ``info``, the instructions, the numbers of ranges that texts name,
    and these episodes; texts that are not in the action space are not tried. Success is maximized if the environment
    declares it, else the return. The search uses training seeds; the result is measured on seeds of the ``"eval"``
    split. If only ``steps`` limits it, the search is reproducible.

    Args:
        make: Makes the environment; ``as_text`` must support its spaces.
        steps: Maximum number of environment steps of the search; a reset counts as one.
        seconds: Maximum seconds: half for the search, a quarter for its final, a quarter for the held-out episodes.
        episodes: Number of held-out episodes, at least two; fewer, or none, are played if the time is over.
        seed: Seed of the episodes and of the search.
        longest: Maximum length of the sequence; 1 searches for the best single action, played in every turn.

    Raises:
        ConfigError: a limit is out of range.
        NotTextError: the environment cannot be converted to text.
    """
    check_counts(steps=steps, longest=longest)
    check_counts(2, episodes=episodes)
    if not seconds > 0:
        raise ConfigError(f"seconds must be above 0, got {seconds}")
    began = monotonic()
    with refused("the environment"), Arena(make, steps, began + seconds / 2, seed) as arena:
        search = Search(arena, random.Random(derive_seed(seed, "blind")), longest)
        actions = search.run(began + seconds * 3 / 4)
        used, cut = arena.used, arena.cut
        arena.limit, arena.deadline = math.inf, began + seconds
        held_out = _held_out(arena, actions, episodes, seed)
    return BlindBaseline(
        objective=search.objective,
        actions=actions,
        **held_out._asdict(),
        steps=used,
        sequences=search.tried,
        seconds=monotonic() - began,
        budget=steps,
        cut=cut,
    )


class HeldOut(NamedTuple):
    """Results of a sequence on held-out episodes; the fields are those of ``BlindBaseline``."""

    success: Estimate
    mean_return: Estimate
    deviation: float
    turns: float
    episodes: int


def _held_out(arena: Arena, actions: Actions, episodes: int, seed: int) -> HeldOut:
    outcomes: list[Outcome] = []
    with suppress(Spent):
        seeds = (task_seed(seed, "eval", number) for number in range(episodes))
        outcomes.extend(outcome for each in seeds if (outcome := arena.play(actions, each)) is not None)
    score = Reference.of([(one.total, one.success) for one in outcomes], declares=arena.declares)
    return HeldOut(
        success=score.success,
        mean_return=score.mean_return,
        deviation=statistics.pstdev([one.total for one in outcomes]) if outcomes else 0.0,
        turns=statistics.fmean(one.turns for one in outcomes) if outcomes else 0.0,
        episodes=len(outcomes),
    )
