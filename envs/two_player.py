"""Base classes of games for two players: seats, opponents, illegal actions, and exhaustive search."""

import inspect
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

from gym_trl.envs.text_env import Outcome, TextEnv
from gym_trl.errors import ActionTypeError, ConfigError, apart_from_the_model
from gym_trl.text import counted
from gym_trl.types import Policy

Seat: TypeAlias = Literal["first", "second", "random"]
Opponent: TypeAlias = str | Policy | Callable[[], Policy]

_SEATS = ("first", "second", "random")
VIEW = re.compile(r"^You are .*\.$", re.MULTILINE)


class Worth(NamedTuple):
    """Expected worth of a position: the payoff, and the probability of success."""

    payoff: float
    success: float

    def rank(self, for_success: bool) -> tuple[float, float]:
        """Return a key for comparisons; the number that is not maximised breaks ties."""
        # Round, so that equal worths stay equal after many additions.
        payoff, success = round(self.payoff, 12), round(self.success, 12)
        return (success, payoff) if for_success else (payoff, success)


class TwoPlayerEnv(TextEnv):
    """Base class of games for two, in which the environment plays one side, or the agent both.

    >>> import gymnasium as gym
    >>> env = gym.make("TrlEnv/TicTacToe-v0", opponent=lambda observation: "1", seat="second")
    >>> print(env.reset(seed=0)[0])
    You are O.
    X 2 3
    4 5 6
    7 8 9

    Args shared by all these games:
        opponent: ``"random"``: uniformly random legal actions. ``"minimax"``: perfect play (games document exceptions),
            with ties broken at random. ``"epsilon"``: a random action with probability ``epsilon``, and minimax
            otherwise. A policy: it receives the observation that the agent would receive in that seat, and an illegal
            action of it is replaced by a random legal one. A callable without arguments: it makes the policy of each
            episode. ``"self"``: the agent plays both sides in turn, and the observation names the side to move.
        epsilon: Probability for ``"epsilon"``; ignored with other opponents.
        seat: Seat of the agent: ``"first"`` begins, ``"second"`` does not, ``"random"`` is drawn at each reset.
        mistakes: Number of illegal actions that lose the game. Each leaves the position unchanged.

    A win pays 1.0, a draw 0.0 and a loss -1.0; with ``reward="success"`` a success pays 1.0 and all else nothing. A win
    is a success; against a perfect opponent, where perfect play leads to a draw, a draw is one as well.

    With ``opponent="self"`` the game has two seats (``gym_trl.wrappers.seats``): ``info["to_move"]`` is the seat whose
    turn it is, ``info["player"]`` the one that acted, and ``info["payoffs"]`` after the last step has a payoff for
    each; ``GymSpec(seats="self")`` trains both. Each side may make its own ``mistakes``; the one that makes too many
    loses. The reward of ``step`` and ``info["success"]`` are those of ``seat``, for one agent that plays both sides;
    for it, a game that ends by mistakes is lost whoever made them. The "perfect play" of ``optimal_return`` is that of
    two sides that both play to win.

    Randomness, also of built-in opponents, comes from ``np_random``; a policy uses its own.

    Raises:
        ConfigError: an unknown opponent or seat, an ``epsilon`` that is not a number from 0 to 1, or ``mistakes`` that
            is not an integer of at least 1.
        ActionTypeError: an opponent returns an action that is not text.
    """

    reward_modes = ("payoff", "success")
    ranges: ClassVar = {"epsilon": (0, 1), "seat": _SEATS, "mistakes": (1, None)}
    opponents: ClassVar[tuple[str, ...]] = ("random", "minimax", "epsilon", "self")
    """Names of the built-in opponents."""
    sides: ClassVar[tuple[str, str]] = ("player 1", "player 2")
    """Names of the side that begins and of the other."""
    stake: ClassVar[float] = 1.0
    """Largest possible loss, which is also the loss by mistakes."""
    _refusal: ClassVar[str]
    """Observation after an illegal action."""

    opponent: Opponent
    epsilon: float
    seat: Seat
    mistakes: int

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._policy: Policy | None = None
        self._alone = self.opponent == "self"
        self.num_seats = 2 if self._alone else 1
        self.zero_sum = self.reward == "payoff"
        self._mistakes_left = [self.mistakes, self.mistakes]
        self._to_move = 0
        self._seat = 0
        self.draws = not self._alone
        if callable(self.opponent):  # its state is unknown
            self.metadata = {**self.metadata, "markov_state_key": False}

    def _check_arguments(self) -> None:
        super()._check_arguments()
        if not callable(self.opponent) and self.opponent not in self.opponents:
            raise ConfigError(f"opponent must be one of {list(self.opponents)} or a policy, got {self.opponent!r}")
        self.epsilon = float(self.epsilon)

    @property
    def loss_reward(self) -> float:  # type: ignore[override]
        """Reward of a lost game."""
        return -self.stake

    @property
    def turns_left(self) -> float:
        """Most actions that can follow: a whole game of both sides, and the mistakes left."""
        if self._last is not None and self._last.done:
            return 0
        return self._longest_game + (sum(self._mistakes_left) if self._alone else self._mistakes_left[self._seat])

    @property
    def _longest_game(self) -> float:
        """Most moves of a game."""
        return inf

    @property
    def optimal_success(self) -> float | None:
        """Probability of success of the best response to the opponent, or ``None`` if unknown."""
        optimum = self._optimum
        return None if optimum is None else optimum.success

    @property
    def optimal_return(self) -> float | None:
        """Mean reward of the best response to the opponent, or ``None`` if unknown."""
        optimum = self._optimum
        if optimum is None:
            return None
        return optimum.success if self.reward == "success" else optimum.payoff

    @property
    def _optimum(self) -> Worth | None:
        return None

    @property
    def _seats(self) -> tuple[int, ...]:
        """Seats that the agent can have."""
        return (0, 1) if self.seat == "random" else (_SEATS.index(self.seat),)

    @property
    def _chance(self) -> float:
        """The probability that the opponent's next action is a random one."""
        if self.opponent == "random":
            return 1.0
        return self.epsilon if self.opponent == "epsilon" else 0.0

    @abstractmethod
    def _deal(self) -> None:
        """Set up the game."""

    @abstractmethod
    def _see(self) -> str:
        """Return the observation of the player to move, without the line that names the side."""

    @abstractmethod
    def _read(self, action: str) -> Any:
        """Return the legal move that ``action`` stands for, or ``None``."""

    @abstractmethod
    def _move(self, move: Any) -> None:
        """Play ``move`` for the player to move, and pass the turn to the other."""

    @abstractmethod
    def _payoff(self) -> float | None:
        """Return the first player's payoff, or ``None`` while the game is not over."""

    @abstractmethod
    def _legal_moves(self) -> Sequence[Any]:
        """Return all moves of the player to move."""

    @abstractmethod
    def _skilled_move(self) -> Any:
        """Return the move of a perfect player."""

    @abstractmethod
    def _show_end(self) -> str:
        """Return the final state that is shown to both players, without the winner."""

    @property
    def _draw_is_success(self) -> bool:
        return False

    def _about(self) -> str:
        """Return the part of the instructions shared by all games for two."""
        mistakes = counted(self.mistakes, "illegal action")
        return f"You are told who you are; {self.sides[0]} begins. The game is lost with {mistakes}."

    def _start(self, instance: int | None, options: Mapping[str, Any]) -> str:
        self._seat = int(self.np_random.integers(2)) if self.seat == "random" else _SEATS.index(self.seat)
        self._mistakes_left, self._to_move = [self.mistakes, self.mistakes], 0
        if callable(self.opponent):
            self._policy = _policy_of(self.opponent)
        self._deal()
        if self._seat == 1 and not self._alone:
            self._move(self._answer())
        return self._view()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start a game: a random one, or number ``options["instance"]`` of ``num_instances``."""
        observation, info = super().reset(seed=seed, options=options)
        return observation, {**info, "to_move": self._to_move} if self._alone else info

    def _view(self) -> str:
        return f"You are {self.sides[self._to_move]}.\n{self._see()}"

    def _act(self, action: str) -> Outcome:
        move = self._read(action)
        if move is None:
            return self._reject(self._refusal)
        player = self._to_move
        self._move(move)
        payoff = self._payoff()
        if payoff is None and not self._alone:
            self._move(self._answer())
            payoff = self._payoff()
        info = self._told(player, payoff)
        if payoff is None:
            return Outcome(self._view(), info=info)
        mine = -payoff if self._seat else payoff
        success = mine > 0 or (mine == 0 and self._draw_is_success)
        ending = f"{self._show_end()}\n{self._verdict(mine)}"
        if self._alone:
            info["observations"] = {0: ending, 1: ending}
        return Outcome(ending, mine, done=True, success=success, info=info)

    def _told(self, player: int, payoff: float | None) -> dict[str, Any]:
        """Return what ``info`` says of the seats after an action of ``player``; ``payoff`` is the first seat's."""
        if not self._alone:
            return {}
        if payoff is None:
            return {"player": player, "to_move": self._to_move}
        payoffs = (payoff, 0.0 - payoff)
        if self.reward == "success":
            payoffs = (float(payoff > 0), float(payoff < 0))
        return {"player": player, "payoffs": payoffs}

    def _answer(self) -> Any:
        """Return the opponent's move."""
        if self._policy is not None:
            with apart_from_the_model("the opponent"):
                answer = self._policy(self._view())
            if not isinstance(answer, str):
                raise ActionTypeError(f"an opponent answers with text, got {type(answer).__name__}: {answer!r:.100}")
            move = self._read(answer) if len(answer) <= self.action_space.max_length else None
            return self._random_move() if move is None else move
        chance = self._chance
        if chance == 1 or (chance and self.np_random.random() < chance):
            return self._random_move()
        return self._skilled_move()

    def _random_move(self) -> Any:
        return self._one_of(self._legal_moves())

    def _one_of(self, moves: Sequence[Any]) -> Any:
        return moves[int(self.np_random.random() * len(moves))] if len(moves) > 1 else moves[0]

    def _verdict(self, mine: float) -> str:
        if mine == 0:
            return "Draw."
        if self._alone:
            return f"{self.sides[self._seat if mine > 0 else 1 - self._seat].capitalize()} won."
        return "You won." if mine > 0 else "You lost."

    def _reject(self, reason: str) -> Outcome:
        player = self._to_move
        self._mistakes_left[player] -= 1
        if self._mistakes_left[player]:
            return Outcome(f"{reason}\n{self._view()}", valid=False, info=self._told(player, None))
        info = self._told(player, self.stake if player else -self.stake)
        mistakes = counted(self.mistakes, "illegal action")
        lost = f"{reason}\nThat was {mistakes}. You lost."
        if self._alone:
            info["observations"] = {player: lost, 1 - player: f"{self.sides[player]} played {mistakes}. You won."}
        return Outcome(lost, -self.stake, done=True, valid=False, info=info)


def against(opponent: str, seat: Seat, *, epsilon: float = 0.5) -> dict[str, Any]:
    """Return the arguments of a preset that all games for two share."""
    return {"opponent": opponent, "epsilon": epsilon, "seat": seat, "mistakes": 3}


def _policy_of(opponent: Callable[..., Any]) -> Policy:
    """Return the policy of an episode; a callable without arguments is a factory of policies."""
    try:
        inspect.signature(opponent).bind()
    except (TypeError, ValueError):  # a built-in without a signature is a policy
        return opponent
    made: Policy = opponent()
    return made
