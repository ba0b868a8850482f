"""``gym-trl play``."""

import os
import random
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gym_trl import wrappers
from gym_trl.cli.environments import make_text_env
from gym_trl.cli.policies import find_policy
from gym_trl.cli.terminal import ask, coloured, say_aside, say_styled
from gym_trl.envspec import END_AFTER_INVALID, EnvSpec
from gym_trl.errors import ConfigError, described, raise_interrupt
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.executors.step import close_env
from gym_trl.kinds import Arguments, Whole
from gym_trl.policies.functions import NamedPolicy
from gym_trl.policies.interactive import InteractiveEpisode, ParallelEpisode, compare_episodes
from gym_trl.policies.model import Model
from gym_trl.policies.opponents import Opponent, Response
from gym_trl.policies.protocol import PolicyMaker
from gym_trl.policies.server import server
from gym_trl.seeding import derive_seed
from gym_trl.text import counted
from gym_trl.types import Policy
from gym_trl.wrappers.base import attribute_of, instructions_of
from gym_trl.wrappers.seats import plays_all_seats

EXAMPLES = """
gym-trl play TrlEnv/GuessNumber-v0 --env-kwargs high=8 --seed 3
gym-trl play TrlEnv/TicTacToe-v0 --against solver
gym-trl play TrlEnv/GuessNumber-v0 --against runs/first --env-kwargs high=8 --env-kwargs turns=4
gym-trl play TrlEnv/KuhnPoker-v0 --against http://localhost:8000/v1
"""
_SOLVED = {True: "Solved", False: "Not solved", None: "Over"}
"""Labels by ``info["success"]``, which an environment need not declare."""
_COMMANDS_HELP = (
    ":undo takes back your last action, :hint asks the solver, :history shows the episode so far, quit ends the "
    "session. None of them costs a turn. Begin an action with :: if its first character is a colon."
)


def play(
    env: str,
    *,
    env_kwargs: Arguments | None = None,
    seed: Whole | None = None,
    against: str | None = None,
    debug: bool = False,
) -> None:
    """Play an environment in the terminal.

    "quit", Ctrl-C or Ctrl-D ends the session. ":undo" takes back your last action, ":hint" asks the environment's
    solver, ":history" shows the episode so far, and ":help" lists these commands. None of them costs a turn. Arrow keys
    recall earlier input.

    --against POLICY adds an opponent: solver, random or another of the environment's own policies; the path, hub id or
    run of a model; the address of an OpenAI-compatible server (with the key $OPENAI_API_KEY); or
    package.module:function. In a game of several seats it takes the other ones. In any other environment it plays the
    same task beside you, one turn for each of yours; the higher return wins, then the lower number of turns.

    Args:
        env: Environment: a registered id, module:id, package.module:Class, file.py or file.py:Class.
        env_kwargs: Arguments of the environment, such as high=8; a text that looks like a number is '"12"'.
        seed: Seed of the episode. Default: a random one.
        against: Opponent, see above. Default: none.
        debug: Show the traceback of an error.
    """
    env_id = env
    kwargs = dict(env_kwargs or {})
    seed = random.randrange(2**31) if seed is None else seed
    policy = Against() if against is None else prepare(_read_policy(against, [env_id]), env_id, kwargs, seed)
    episode = InteractiveEpisode(lambda: policy.seat(make_text_env(env_id, kwargs)), seed)
    if hasattr(sys.stdin, "reconfigure"):  # invalid bytes become lone surrogates
        sys.stdin.reconfigure(errors="surrogateescape")
    with suppress(ImportError):
        import readline  # noqa: F401 -- arrow keys, on systems that have it
    try:
        if instructions := instructions_of(episode.env):
            say_styled(f"{coloured(instructions, dim=True)}\n")
        with _errors_in("reset", debug=debug):
            alone = plays_all_seats(episode.env)
            first = episode.start()
        if alone:
            say_styled(coloured("You play all seats; the reward and the return are those of none.\n", dim=True))
        policy.show(episode)
        say_styled(first)
        while not episode.over:
            if (action := ask()) is None:
                say_styled(f"\nLeft after {counted(len(episode.actions), 'turn')}, return {episode.total:g}.")
                return
            if (command := action.strip()).startswith(":") and not command.startswith("::"):
                say_styled(_COMMANDS.get(command, _help)(episode))
                policy.forget()
                continue
            if command.startswith("::"):
                action = action.replace("::", ":", 1)
            with _errors_in("step", debug=debug):
                result = episode.step(action)
            policy.show(episode)
            say_styled(result.observation)
            if result.reward:
                say_styled(coloured(f"(reward {result.reward:g})", fg="green" if result.reward > 0 else "red"))
        colour = {True: "green", False: "red", None: None}[episode.success]
        verdict = coloured(_SOLVED[episode.success], fg=colour, bold=True)
        say_styled(f"\n{verdict} in {counted(len(episode.actions), 'turn')}, return {episode.total:g}.")
        policy.finish(episode)
    finally:
        if policy.other:
            policy.other.close()
        episode.close()


@dataclass
class Against:
    """Policy that plays against a person, if any: in the other seats, or the same task."""

    name: str = ""
    other: ParallelEpisode | None = None
    make_policy: Callable[[TextEnvironment, int], Policy] | None = None
    """Makes the policy of an episode in one of the other seats; ``None`` in an environment of one seat."""
    responses: list[Response] = field(default_factory=list)
    """Its responses since its turns were last shown."""

    def seat(self, env: TextEnvironment) -> TextEnvironment:
        """Return the person's environment."""
        return env if self.make_policy is None else wrappers.Opponent(env, partial(self.make_policy, env), seat=None)

    def show(self, episode: InteractiveEpisode) -> None:
        """Print its turns since the last call."""
        for text, action in self.responses:
            read = " (no action found)" if action is None else "" if action == text else f" (read as {action!r})"
            say_styled(coloured(f"{self.name}: {text}{read}", fg="magenta"))
        self.forget()
        turns = len(episode.actions)
        if self.other and turns and (self.other.play(turns) or len(self.other.actions) == turns):
            say_styled(coloured(f"({self._standing(self.other)})", dim=True))

    def forget(self) -> None:
        """Discard its turns in the replay of a hint or an undo, which are not shown."""
        self.responses.clear()

    def finish(self, episode: InteractiveEpisode) -> None:
        """Print its episode and the winner, if it played the same task."""
        if self.other is None:
            return
        self.other.play()
        say_styled(f"\n{self.name}, the same task:")
        for action, observation in zip(self.other.actions, self.other.observations[1:], strict=True):
            say_styled(f"{coloured(f'> {action}', fg='magenta')}\n{observation}")
        say_styled(f"\n{self._standing(self.other)}.")
        if self.other.error is None:
            winner = {1: "You win.", 0: "Nobody wins.", -1: f"{self.name} wins."}
            say_styled(coloured(winner[compare_episodes(episode, self.other)], bold=True))

    def _standing(self, other: ParallelEpisode) -> str:
        turns = counted(len(other.log.turns), "turn")
        if other.error is not None:
            return f"{self.name} could not continue after {turns}: {other.error}"
        if not other.over:
            return f"{self.name} has played {turns}"
        crashed = "" if other.log.error is None else f" ({other.log.error})"
        return f"{self.name}: {_SOLVED[other.success].lower()} in {turns}, return {other.total:g}{crashed}"


def _read_policy(against: str, allowed: Collection[str]) -> NamedPolicy:
    if against == "person":
        raise ConfigError("--against must name a policy, a model, a server or package.module:function, got 'person'")
    if against.startswith(("http://", "https://")):
        return server(against, api_key=os.environ.get("OPENAI_API_KEY"))
    return find_policy(against, allowed=allowed)


def prepare(policy: NamedPolicy, env_id: str, kwargs: Mapping[str, Any], seed: int) -> Against:
    """Return a policy that plays against a person; a model is loaded and plays as in its training.

    Raises:
        ConfigError: the environment has no such policy.
    """
    made = make_text_env(env_id, kwargs)
    close_env(made)
    seats = attribute_of(made, "num_seats", 1)
    if isinstance(policy, Model):
        say_aside(f"Loading {policy.name}")
    make_policy = policy.load().policy if isinstance(policy, Model) else policy.make

    def make() -> TextEnvironment:
        """Make the environment as the policy sees it: models get instructions and an action format."""
        if not policy.marks:
            return make_text_env(env_id, kwargs)
        usual = {"action_format": "tag", "end_after_invalid": END_AFTER_INVALID}
        options = {**usual, **(policy.options if isinstance(policy, Model) else {}), "invalid_penalty": 0.0}
        if seats > 1:
            options["seats"] = "self"
        spec = EnvSpec.of_options(lambda: make_text_env(env_id, kwargs), options)
        return spec.make(next(iter(spec.weights)))

    def begin(env: TextEnvironment) -> Policy:
        if not isinstance(policy, Model):
            policy.check(env)
        return make_policy(env, derive_seed(seed, "opponent" if seats > 1 else "race"))

    if seats == 1:
        return Against(policy.name, other=ParallelEpisode(make, seed, begin))
    if not isinstance(policy, Model) and policy.of_environment:  # which reads the game that it plays
        policy.check(made)
        responses: list[Response] = []
        return Against(policy.name, make_policy=partial(_recorded, make_policy, responses), responses=responses)
    seen = make()
    seen.reset(seed=seed)
    opponent = Opponent(lambda: begin(seen), seen)
    return Against(policy.name, make_policy=lambda env, seed: opponent.begin(), responses=opponent.responses)


def _recorded(make_policy: PolicyMaker, responses: list[Response], env: TextEnvironment, seed: int) -> Policy:
    policy = make_policy(env, seed)

    def act(observation: str) -> str:
        action = policy(observation)
        responses.append(Response(action, action))
        return action

    return act


def _undo(episode: InteractiveEpisode) -> str:
    return episode.undo() if episode.actions else coloured("There is nothing to undo.", dim=True)


def _hint(episode: InteractiveEpisode) -> str:
    hint = episode.hint()
    if hint is None:
        return coloured("The game has no solver, or it cannot continue from here.", dim=True)
    result = f"wins in {counted(hint.turns, 'turn')}" if hint.wins else "the solver does not win from here"
    return f"{coloured(hint.action, fg='cyan', bold=True)} {coloured(f'({result})', dim=True)}"


def _history(episode: InteractiveEpisode) -> str:
    first, *after = episode.observations
    lines = [first]
    for turn, observation in zip(episode.log.turns, after, strict=True):
        lines += [coloured(f"> {turn.answer.text}", fg="cyan"), observation]
        if turn.reward:
            lines.append(coloured(f"(reward {turn.reward:g})", dim=True))
    return "\n".join(lines)


def _help(episode: InteractiveEpisode) -> str:
    return coloured(_COMMANDS_HELP, dim=True)


_COMMANDS: dict[str, Callable[[InteractiveEpisode], str]] = {":undo": _undo, ":hint": _hint, ":history": _history}


@contextmanager
def _errors_in(function: str, *, debug: bool) -> Iterator[None]:
    """Print any exception of the environment as one line."""
    try:
        yield
    except BaseException as error:
        raise_interrupt(error)
        if debug:
            raise
        # A malformed result has a message of its own.
        text = described(error).removeprefix(f"InfrastructureError: {function} raised ")
        raise ConfigError(f"{function} raised {' '.join(text.split())}") from error
