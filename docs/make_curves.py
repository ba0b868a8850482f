"""Generator of docs/curves_*.png, the curves of real runs.

    python docs/make_curves.py
    python docs/make_curves.py healthy  # only this one; "reading" is the picture of two kinds of runs

It trains the runs that do not exist yet; those without arguments are runs of ``benchmarks/bench_learning_lm.py`` and
``benchmarks/bench_credit_learning.py``.
``guides/grpo_in_practice.md`` shows the pictures.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from gym_trl.cli.app import app
from gym_trl.records.json_lines import read_json_lines
from gym_trl.testing import pretrained_folder

DOCS = Path(__file__).parent
RUNS = DOCS.parent / "runs"
CURVES = {
    "env/invalid_actions": "invalid actions",
    "env/success": "success",
    "env/return": "return",
    "env/turns": "turns",
    "frac_reward_zero_std": "groups without spread",
    "entropy": "entropy",
    "grad_norm": "gradient norm",
}


@dataclass(frozen=True)
class Example:
    """A run, and the arguments of ``gym-trl train`` that make it."""

    kind: str
    folder: Path
    arguments: tuple[str, ...] = ()
    pretrained: bool = True


EXAMPLES = (
    Example("healthy", RUNS / "learning-lm" / "guess_number-random-0" / "grpo"),
    Example(
        "stuck",
        RUNS / "curves-stuck",
        (
            *(
                "TrlEnv/GuessNumber-v0",
                "--env-kwargs=high=8",
                "--env-kwargs=turns=4",
                "--action-format=plain",
                "--max-tokens-per-turn=6",
            ),
            *("--max-completion-length=128", "--lora=16", "--dtype=bfloat16", "--learning-rate=3e-4", "--steps=10"),
            *("--episodes-per-step=64", "--num-generations=16", "--eval-episodes=16"),
        ),
    ),
    Example("hacked", RUNS / "credit-learning" / "FrozenLake-episode-1"),
)

SHOWN = {"env/success": "success", "entropy": "entropy", "env/input_dependence": "dependence on observations"}
OF_TINY = {
    "the defaults": ("reads", ()),
    "ten times their learning rate, no entropy bonus": ("blind", ("--learning-rate=0.03", "--grpo=entropy_coef=0")),
}
"""Runs of the tiny model on GuessNumber by what is unusual in them, with the beginning of their folders' names."""
BLIND_BASELINE = 0.455
"""That of the environment, which each of the runs prints."""


def metrics(example: Example) -> list[dict[str, float]]:
    """Return the logs of a run's steps; train it first if it does not exist."""
    if not (example.folder / "summary.json").exists():
        model = [f"--model={pretrained_folder()}"] if example.pretrained else []
        app(["train", *example.arguments, *model, f"--out={example.folder}"], standalone_mode=False)
    return [log for log in read_json_lines(example.folder / "metrics.jsonl") if "env/return" in log]


def draw(example: Example) -> None:
    """Draw the curves of a run beside each other."""
    logs = metrics(example)
    figure = Figure(figsize=(2.1 * len(CURVES), 2.0), layout="constrained")
    for axis, (name, title) in zip(figure.subplots(1, len(CURVES)), CURVES.items(), strict=True):
        points = [(log["step"], log[name]) for log in logs if log.get(name) is not None]
        if points:
            axis.plot(*zip(*points, strict=True))
        axis.set_title(title, fontsize=9)
        axis.tick_params(labelsize=7)
        low, high = axis.get_ylim()
        axis.set_ylim(min(0.0, low), max(high, 0.0 if name == "env/return" else 1.0))
    figure.supxlabel("step", fontsize=8)
    figure.savefig(DOCS / f"curves_{example.kind}.png", dpi=120)


def draw_reading() -> None:
    """Draw three seeds of each kind of run, of which one learns to read and one does not."""
    figure = Figure(figsize=(10, 3.0), layout="constrained")
    axes = figure.subplots(1, len(SHOWN))
    for color, (kind, (prefix, arguments)) in zip(("tab:green", "tab:red"), OF_TINY.items(), strict=True):
        for seed in range(3):
            words = ("--steps=150", f"--seed={seed}", *arguments)
            logs = metrics(Example(kind, RUNS / f"curves-{prefix}-{seed}", words, pretrained=False))
            for axis, name in zip(axes, SHOWN, strict=True):
                points = [(log["step"], log[name]) for log in logs if log.get(name) is not None]
                label = kind if seed == 0 and axis is axes[0] else None
                axis.plot(*zip(*points, strict=True), color=color, linewidth=1, alpha=0.7, label=label)
    for axis, (name, title) in zip(axes, SHOWN.items(), strict=True):
        axis.set(title=title, xlabel="step", xlim=(0, 150))
        axis.set_ylim(*((-0.1, 0.3) if name == "env/input_dependence" else (0.0, 4.6 if name == "entropy" else 1.0)))
    axes[0].axhline(BLIND_BASELINE, color="tab:orange", linestyle="--", label="blind baseline")
    figure.legend(loc="outside upper center", ncols=3, fontsize=8)
    figure.savefig(DOCS / "curves_reading.png", dpi=120)


if __name__ == "__main__":
    for one in EXAMPLES:
        if one.kind in sys.argv[1:] or not sys.argv[1:]:
            draw(one)
    if "reading" in sys.argv[1:] or not sys.argv[1:]:
        draw_reading()
