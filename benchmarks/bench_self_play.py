"""Compare self-play with training against a random and a perfect opponent, by how well the tiny model then plays.

    python benchmarks/bench_self_play.py                      # all games, opponents and seeds: a night on two cores
    python benchmarks/bench_self_play.py KuhnPoker/self       # only these; or KuhnPoker, or KuhnPoker/self/0
    python benchmarks/bench_self_play.py --report             # publish what is complete, and train nothing
    python benchmarks/bench_self_play.py --quick

Every run starts from random weights and has the same number of rows per step: in self-play they are the seats of half
as many games. Complete runs are kept in ``runs/self-play``; the same command trains what is missing.
"""

import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import one_character
from report import HERE, QUICK, Table, in_process, named_runs, publish, published_runs, require, run

ROOT = HERE.parent / "runs" / ("self-play-quick" if QUICK else "self-play")
OPPONENTS = ("self", "rae", "random", "perfect")
"""Ways to train: ``rae`` is self-play with SPIRAL's and prime-rl's baselines instead of ``pool``."""
TITLES = {
    "self": "itself",
    "rae": "itself, with SPIRAL's baselines",
    "random": "a random player",
    "perfect": "a perfect player",
}
SEEDS = range(1 if QUICK else 3)


@dataclass(frozen=True)
class Game:
    """Environment, what is measured, and the settings that all of its runs share."""

    env_id: str
    measure: str
    goal: float
    steps: int
    rows: int = 256
    group: int = 32
    perfect: str = "minimax"
    learning_rate: float = 5e-4
    entropy: tuple[float, float] = (0.3, 0.02)
    """Weight of the entropy at the first and at the last step; it falls exponentially."""
    invalid_penalty: float = 1.0
    env: Mapping[str, Any] = field(default_factory=dict)


GAMES = {
    "KuhnPoker": Game(
        "OneCharacter/KuhnPoker-v0",
        "exploitability",
        0.05,
        steps=1500,
        perfect="nash",
        learning_rate=1e-3,
        entropy=(1.0, 0.1),
        invalid_penalty=8.0,
    ),
    "TicTacToe": Game(
        "OneCharacter/TicTacToe-v0",
        "draws with the perfect player",
        0.9,
        steps=1500,
        learning_rate=2e-3,
        entropy=(0.4, 0.15),
        invalid_penalty=4.0,
    ),
}


@dataclass(frozen=True)
class Learnt:
    """Measurements of one run: at which steps, and what was measured there."""

    game: str
    opponent: str
    seed: int
    steps: list[int]
    values: list[float]
    seconds: float
    averaged: list[float] = field(default_factory=list)
    """The same of the moving average of the weights, whose decay is 0.995 a step; for Kuhn poker."""


def train_one(name: str, opponent: str, seed: int) -> dict[str, Any]:
    """Train, and return the measurements as JSON."""
    import time

    import torch
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
    from transformers import PrinterCallback, TrainerCallback
    from trl import GRPOConfig

    from gym_trl import GymGRPOTrainer, GymSpec
    from gym_trl.testing import tiny_model, tiny_tokenizer

    torch.set_num_threads(1)
    game = GAMES[name]
    steps = 4 if QUICK else game.steps
    rows, group = (16, 4) if QUICK else (game.rows, game.group)
    alone = opponent in ("self", "rae")
    others = {} if alone else {"opponent": game.perfect if opponent == "perfect" else opponent, "seat": "random"}
    wrapping: dict[str, Any] = {
        "action_format": "plain",
        "instructions": "",
        "max_tokens_per_turn": 1,
        "cut_actions": "accept",
        "executor": "inline",
    }
    spec = GymSpec(
        game.env_id,
        seats="self" if alone else None,
        env_kwargs={"mistakes": 1, **game.env, **others},
        invalid_penalty=game.invalid_penalty,
        num_tasks=rows // group * min(steps, 200),
        num_eval_tasks=0,
        seed=seed,
        credit="rae" if opponent == "rae" else "pool",
        **wrapping,
    )
    tokenizer = tiny_tokenizer()
    begin = time.perf_counter()
    learnt = Learnt(name, opponent, seed, [], [], 0.0)

    class Measure(TrainerCallback):
        """Lower the entropy's weight, and measure now and then."""

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            first, last = game.entropy
            trainer.entropy_coef = first * (last / first) ** (state.global_step / steps)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            average.update_parameters(trainer.model)
            if state.global_step % max(1, steps // 20) == 0:
                learnt.steps.append(state.global_step)
                learnt.values.append(round(MEASURES[name](trainer, game, wrapping), 4))
                if name == "KuhnPoker":
                    learnt.averaged.append(round(exploitability_of(trainer, game, wrapping, average.module), 4))
                told = [learnt.steps[-1], learnt.values[-1], *learnt.averaged[-1:]]
                print(name, opponent, seed, *told, file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as folder:
        trainer = GymGRPOTrainer(
            model=tiny_model(tokenizer, seed=seed),
            processing_class=tokenizer,
            args=GRPOConfig(
                output_dir=folder,
                max_steps=steps,
                per_device_train_batch_size=rows,
                num_generations=group,
                learning_rate=game.learning_rate,
                lr_scheduler_type="linear",
                scale_rewards="none",
                beta=0.0,
                entropy_coef=game.entropy[0],
                max_completion_length=192,
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                report_to=[],
                save_strategy="no",
                logging_steps=50,
                disable_tqdm=True,
                seed=seed,
            ),
            spec=spec,
            callbacks=[Measure()],
        )
        trainer.remove_callback(PrinterCallback)
        # Of a model of its own: a copy of the trainer's would call the forward method of the trainer's.
        average = AveragedModel(tiny_model(tokenizer, seed=seed), multi_avg_fn=get_ema_multi_avg_fn(0.995))
        trainer.train()
    return {**asdict(learnt), "seconds": round(time.perf_counter() - begin)}


def exploitability_of(trainer: Any, game: Game, wrapping: Mapping[str, Any], model: Any = None) -> float:
    """Return the exploitability of the model's own probabilities in Kuhn poker, in chips per game and seat."""
    import torch

    from gym_trl.chat.template import TemplateChat
    from gym_trl.envspec import EnvSpec
    from gym_trl.evaluation.exploitability import decisions, exploitability
    from gym_trl.types import Message

    env_id = "TrlEnv/KuhnPoker-v0"
    env = EnvSpec(env_id, seats="self", action_format="plain", instructions="").make(env_id)
    letters = {action: letter for letter, action in one_character.ACTIONS["KuhnPoker"].items()}
    chat, tokenizer = TemplateChat(trainer.processing_class), trainer.processing_class
    strategy = {}
    for one in decisions(env):
        messages = [Message(said.role, letters.get(said.content, said.content)) for said in one.messages()]
        with torch.no_grad():
            logits = (model or trainer.model)(torch.tensor([chat.open(messages)])).logits[0, -1]
        worth = {
            action: float(logits.softmax(-1)[tokenizer.convert_tokens_to_ids(letters[action.lower()])])
            for action in one.actions
        }
        strategy[one.information_state] = {action: value / sum(worth.values()) for action, value in worth.items()}
    return exploitability("kuhn_poker", strategy).exploitability


def share(
    trainer: Any, game: Game, wrapping: Mapping[str, Any], tasks: Sequence[Mapping[str, Any]], *, won: float
) -> float:
    """Return the share of games, each made with these arguments, in which the greedy model gets ``won`` or more."""
    from gym_trl import GymSpec
    from gym_trl.training.run import playing

    found: list[float] = []
    for arguments in tasks:
        kwargs = {"mistakes": 1, **game.env, "opponent": game.perfect, **arguments}
        spec = GymSpec(
            game.env_id, env_kwargs=kwargs, num_tasks=1, num_eval_tasks=8 if QUICK else 64, seed=1, **wrapping
        )
        with playing(trainer, 0.0):
            found += spec.rollout_func(list(spec.eval_dataset["prompt"]), trainer)["episode_return"]
    return statistics.fmean(value >= won for value in found)


def draws(trainer: Any, game: Game, wrapping: Mapping[str, Any]) -> float:
    """Return the share of games that are not lost to the perfect player, in either seat."""
    return share(trainer, game, wrapping, [{"seat": "first"}, {"seat": "second"}], won=0.0)


MEASURES = {"KuhnPoker": exploitability_of, "TicTacToe": draws}


def read(name: str, opponent: str, seed: int) -> Learnt | None:
    """Return a complete run, or what was published of it."""
    file = ROOT / f"{name}-{opponent}-{seed}.json"
    if file.exists():
        return Learnt(**json.loads(file.read_text(encoding="utf-8")))
    for one in published_runs("self_play"):
        if (one["game"], one["opponent"], one["seed"]) == (name, opponent, seed):
            return Learnt(**one)
    return None


def table(runs: Sequence[Learnt]) -> Table:
    """Return a table with a row for each game and opponent."""

    def rows() -> Iterator[dict[str, Any]]:
        for name, game in GAMES.items():
            for opponent in OPPONENTS:
                if mine := [one for one in runs if (one.game, one.opponent) == (name, opponent)]:
                    last = ", ".join(f"{one.values[-1]:.3g}" for one in mine)
                    best = ", ".join(f"{(min if name == 'KuhnPoker' else max)(one.values):.3g}" for one in mine)
                    minutes = statistics.median(one.seconds for one in mine) / 60
                    yield {
                        "game": name,
                        "trained against": TITLES[opponent],
                        "measured": game.measure,
                        "after the last step, by seed": last,
                        "best, by seed": best,
                        "of the averaged weights": ", ".join(f"{one.averaged[-1]:.3g}" for one in mine if one.averaged),
                        "steps": game.steps,
                        "minutes": f"{minutes:.0f}",
                    }

    return Table.of_rows("self_play", list(rows()))


def picture(runs: Sequence[Learnt], figure: Any) -> None:
    """Draw what was measured by step, a panel for each game."""
    names = [name for name in GAMES if any(one.game == name for one in runs)]
    figure.set_size_inches(4.5 * len(names) + 1, 3.6)
    panels = figure.subplots(1, len(names), squeeze=False).ravel()
    colours = dict(zip(OPPONENTS, ("tab:blue", "tab:green", "tab:gray", "tab:orange"), strict=True))
    for panel, name in zip(panels, names, strict=True):
        labelled = set()
        for one in (one for one in runs if one.game == name):
            label = None if one.opponent in labelled else TITLES[one.opponent]
            labelled.add(one.opponent)
            panel.plot(one.steps, one.values, color=colours[one.opponent], label=label, linewidth=1)
        panel.axhline(GAMES[name].goal, color="black", linewidth=0.8, linestyle=":")
        panel.set(title=name, xlabel="steps", ylabel=GAMES[name].measure, ylim=(0, None))
        panel.legend(title="trained against", fontsize=7)


def main() -> None:
    """Train what is missing, and publish after each run what is complete."""
    require(packages=["pyspiel"])
    trainings = [(name, opponent, seed) for seed in SEEDS for opponent in OPPONENTS for name in GAMES]
    for name, opponent, seed in named_runs(trainings):
        if "--report" not in sys.argv and read(name, opponent, seed) is None:
            found = in_process(train_one, name, opponent, seed, timeout_s=4 * 3600)
            ROOT.mkdir(parents=True, exist_ok=True)
            (ROOT / f"{name}-{opponent}-{seed}.json").write_text(json.dumps(found), encoding="utf-8")
            report()
    report()


def report() -> None:
    """Publish the complete runs of all games, whichever the command line asks for."""
    found = [read(name, opponent, seed) for name in GAMES for opponent in OPPONENTS for seed in SEEDS]
    if runs := [one for one in found if one is not None]:
        publish(
            "self_play", {"runs": [asdict(one) for one in runs]}, tables=[table(runs)], picture=partial(picture, runs)
        )


if __name__ == "__main__":
    run(main)
