"""Compare games of two whose seats a model plays: turn by turn, as TextArena's loop does, and many at a time.

    python benchmarks/bench_self_play_loop.py           # about 3 minutes
    python benchmarks/bench_self_play_loop.py --quick

TextArena's loop (its README) plays one game at a time: it asks the agent of the seat to move with all that this seat
has seen, and the agent renders and computes the whole conversation for every turn. Both ways have the same environment,
tiny model, chat template and limits, and sample at temperature 1 on one thread, in interleaved rounds.
"""

import statistics
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
from report import QUICK, Column, Table, publish, run

from gym_trl.chat.template import TemplateChat
from gym_trl.envspec import EnvSpec
from gym_trl.executors import InlinePool
from gym_trl.policies.model import transformers_engine
from gym_trl.rollout import Episode, Game, Limits, run_games
from gym_trl.testing import tiny_model, tiny_tokenizer
from gym_trl.types import Message, Task

GAMES = ("TicTacToe", "Nim", "KuhnPoker")
COUNT = 8 if QUICK else 48
ROUNDS = 1 if QUICK else 3
TOKENS = 4


@dataclass(frozen=True)
class Cost:
    """Costs of playing the games of one environment in one way."""

    game: str
    way: str
    games: int
    turns: int
    sampled: int
    computed: int
    """Tokens whose hidden states were computed, sampled ones among them."""
    seconds: list[float]


def env_of(game: str) -> EnvSpec:
    """Return the specification of a game whose actions are read as they are."""
    return EnvSpec(
        f"TrlEnv/{game}-v0", seats="self", action_format="plain", cut_actions="accept", env_kwargs={"mistakes": 10}
    )


def one_by_one(game: str, model: Any, tokenizer: Any) -> tuple[dict[str, int], float]:
    """Play the games as TextArena's loop does."""
    env = env_of(game).make(f"TrlEnv/{game}-v0")
    turns = sampled = computed = 0
    began = time.perf_counter()
    for seed in range(COUNT):
        observation, info = env.reset(seed=seed)
        seen: list[list[Message]] = [[], []]
        done = False
        while not done:
            talk = seen[info.get("to_move", 0)]
            talk.append(Message("user", observation))
            ids = tokenizer.apply_chat_template(
                [message.as_dict() for message in talk],
                add_generation_prompt=True,
                return_tensors="pt",
                return_dict=True,
            )
            said = model.generate(**ids, max_new_tokens=TOKENS, do_sample=True, pad_token_id=tokenizer.pad_token_id)
            new = said[0, ids["input_ids"].shape[1] :]
            action = tokenizer.decode(new, skip_special_tokens=True)
            talk.append(Message("assistant", action))
            turns, sampled = turns + 1, sampled + len(new)
            computed += said.shape[1] - 1  # the last token is not computed
            mover = info.get("to_move", 0)
            observation, _, terminated, truncated, info = env.step(action)
            info.setdefault("to_move", mover)
            done = terminated or truncated
    return {"turns": turns, "sampled": sampled, "computed": computed}, time.perf_counter() - began


def together(game: str, model: Any, tokenizer: Any) -> tuple[dict[str, int], float]:
    """Play the games with ``run_games``."""
    chat = TemplateChat(tokenizer)
    limits = Limits(tokens_per_turn=TOKENS)
    engine: Any = transformers_engine(model, tokenizer, chat, sampling={"temperature": 1.0})
    began = time.perf_counter()
    games = []
    for number in range(COUNT):
        task = Task(f"TrlEnv/{game}-v0", number)
        games.append(Game([Episode(task, chat=chat, limits=limits, seed=2 * number + seat) for seat in range(2)]))
    with InlinePool(env_of(game).make) as pool:
        played = run_games(games, pool=pool, engine=engine)
    seconds = time.perf_counter() - began
    turns = sum(len(one.turns) for seats in played for one in seats)
    return {"turns": turns, "sampled": engine.stats.sampled, "computed": engine.stats.computed}, seconds


WAYS = {"TextArena's loop": one_by_one, "gym-trl": together}


def measure() -> list[Cost]:
    """Play all games in both ways, in interleaved rounds."""
    torch.set_num_threads(1)
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer).eval()
    seconds: dict[tuple[str, str], list[float]] = {}
    counts: dict[tuple[str, str], dict[str, Any]] = {}
    for _ in range(ROUNDS):
        for game in GAMES:
            for way, play in WAYS.items():
                torch.manual_seed(0)
                counts[game, way], took = play(game, model, tokenizer)
                seconds.setdefault((game, way), []).append(took)
                print(f"{game} {way}: {took:.1f} s", file=sys.stderr, flush=True)
    return [Cost(*key, COUNT, **counts[key], seconds=took) for key, took in seconds.items()]


def main() -> None:
    """Measure and publish."""
    costs = measure()

    def faster(one: Cost) -> str:
        other = next(cost for cost in costs if cost.game == one.game and cost.way != one.way)
        return f"{statistics.median(other.seconds) / statistics.median(one.seconds):.2f}"

    columns: list[Column] = [
        ("game", lambda one: one.game),
        ("way", lambda one: one.way),
        ("games per second", lambda one: one.games / statistics.median(one.seconds)),
        (
            "slowest and fastest round",
            lambda one: f"{one.games / max(one.seconds):.1f} to {one.games / min(one.seconds):.1f}",
        ),
        ("turns", lambda one: str(one.turns)),
        ("computed tokens per sampled one", lambda one: one.computed / one.sampled),
        ("times the other's rate", faster),
    ]
    publish(
        "self_play_loop", {"costs": [asdict(one) for one in costs]}, tables=[Table.of("self_play_loop", columns, costs)]
    )


if __name__ == "__main__":
    run(main)
