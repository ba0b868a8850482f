"""Games of several seats: one with hidden cards, right and with faults, and one of random length."""

import random
from collections.abc import Callable
from typing import Any

import gymnasium as gym

from gym_trl.engines.scripted import ScriptedEngine
from gym_trl.executors.inline import InlinePool
from gym_trl.rollout import Episode, Limits, rollout, run
from gym_trl.spaces import AnyText
from gym_trl.testing import ByteChat
from gym_trl.types import Request, Task

CHAT = ByteChat()
LIMITS = Limits(tokens_per_turn=8, tokens=4000)


class HighCard(gym.Env[str, str]):
    """Each player gets a card, all bet or pass in turn, and the highest card wins.

    Args:
        fault: Kind of a fault, or an empty string.
        seats: Number of seats.
        rate: Probability of faults that happen once in a while, per turn.
        turns: Fewest and most turns of a game.
        cards: Number of cards; all different unless ``alike``.
        alike: Cards are drawn with replacement.
    """

    observation_space = action_space = AnyText()
    instructions = "Bet or pass. The highest card wins. Answer with bet or pass."
    zero_sum = True

    def __init__(
        self,
        fault: str = "",
        *,
        seats: int = 2,
        rate: float = 0.05,
        turns: tuple[int, int] = (4, 8),
        cards: int = 9,
        alike: bool = False,
    ) -> None:
        self.fault, self.num_seats = fault, seats
        self.rate, self.turns, self.cards, self.alike = rate, turns, cards, alike

    def view(self, seat: int) -> str:
        """Return what a seat sees."""
        played = " ".join(self.played) or "nothing"
        return f"You are player {seat + 1}.\nYour card: {self.hands[seat]:02}. Played: {played}."

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        drawn = self.np_random.choice(self.cards, self.num_seats, replace=self.alike)
        self.hands, self.played = drawn.tolist(), list[str]()
        self.left = int(self.np_random.integers(self.turns[0], self.turns[1] + 1))
        self.to_move, self.over = 0, False
        return self.view(0), {"to_move": 0}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self.over:
            return "Over.", 0.0, True, False, {"action_valid": True, "payoffs": (0.0,) * self.num_seats}
        if action not in ("bet", "pass"):
            return "Bet or pass?", 0.0, False, False, {"action_valid": False}
        player, info = self.to_move, {"action_valid": True}
        self.played.append(action)
        self.left -= 1
        if self.fault != "never passes":
            self.to_move = (player + 1) % self.num_seats
        elif self.left == 0:
            self.left = 1
        if self.left == 0:
            self.over = True
            winner = max(range(self.num_seats), key=self.hands.__getitem__)
            payoffs = [-1.0] * self.num_seats
            payoffs[winner] += self.num_seats
            return "Over.", 0.0, True, False, {**info, "payoffs": payoffs}
        seen = self.view(self.to_move)
        once = self.np_random.random() < self.rate
        if self.fault == "of the seat that acted" or (self.fault == "sometimes of the seat that acted" and once):
            seen = self.view(player)
        elif self.fault == "sometimes a line" and once:
            seen += f"\n{self.view(player).splitlines()[1]}"
        told = {**info, "to_move": self.to_move}
        if self.fault == "pays nobody in particular":
            return seen, 1.0, False, False, told
        return seen, 0.0, False, False, told

    def random_policy(self, seed: int) -> Callable[[str], str]:
        """Return a policy that bets or passes at random."""
        rng = random.Random(seed)
        return lambda observation: rng.choice(("bet", "pass"))


class Observed(HighCard):
    """The same with a method that says what a seat sees."""

    def observe(self, seat: int) -> str:
        return self.view(seat)


class Secrets(gym.Env[str, str]):
    """Game of random length whose seats move in a random order; each observation is a secret of its seat."""

    observation_space = action_space = AnyText()

    def __init__(self, seats: int = 2, turns: int = 6, faulty: str = "", cut: bool = False) -> None:
        self.num_seats, self.turns, self.faulty, self.cut = seats, turns, faulty, cut
        self.shown: list[tuple[int, str]] = []
        self.totals = [0.0] * seats

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.shown, self.totals = [], [0.0] * self.num_seats
        self._next = int(self.np_random.integers(self.num_seats))
        self._left = int(self.np_random.integers(1, self.turns + 1))
        return self._secret(), {"to_move": self._next}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if action == self.faulty:
            raise ZeroDivisionError("the game cannot play this")
        self._left -= 1
        over = self._left == 0
        payoffs = [float(paid) for paid in self.np_random.integers(-2, 3, self.num_seats)]
        self.totals = [sum(pair) for pair in zip(self.totals, payoffs, strict=True)]
        info: dict[str, Any] = {"payoffs": payoffs}
        if over:
            ends = {seat: f"<end-of-{seat}>" for seat in range(self.num_seats)}
            return "over", 0.0, not self.cut, self.cut, {**info, "observations": ends}
        self._next = int(self.np_random.integers(self.num_seats))
        return self._secret(), 0.0, False, False, {**info, "to_move": self._next}

    def _secret(self) -> str:
        self.shown.append((self._next, f"<secret-{len(self.shown)}-of-{self._next}>"))
        return self.shown[-1][1]


def play_game(
    env: gym.Env[str, str],
    seed: int = 0,
    *,
    answer: Callable[[Request], Any] = lambda request: CHAT.say("go"),
    limits: Limits = LIMITS,
    **options: Any,
) -> tuple[list[Episode], ScriptedEngine]:
    """Play one game, with every seat sampled by a scripted engine."""
    engine = ScriptedEngine(answer)
    options |= {"engine": engine, "chat": CHAT, "limits": limits, "seats": env.get_wrapper_attr("num_seats")}
    with InlinePool(lambda _: env) as pool:
        [episodes] = run(rollout([Task("game", seed)], pool=pool, seeds=[seed], **options))
    return episodes, engine
