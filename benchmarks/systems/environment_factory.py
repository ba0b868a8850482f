# mypy: allow-untyped-calls
"""TRL 1.16's own loop: ``GRPOTrainer(environment_factory=...)``, its real reset, rendering, calls and masks.

It plays with tools only. So the tokenizer is given a template that renders calls and says what a tool answers as
others say what a user says (the same tokens as in the other systems), and a ``response_template`` that reads what the
model writes in a box as a call of ``act``. The loop has no way to end an episode: a game that is over says so, as TRL's
documentation advises, and the model has to stop calling, which this one has learnt: one answer more for each episode.
"""

from typing import Any

from systems import Game, Played, Run, first_message
from systems.generator import Generator
from systems.tools import TEMPLATE, response_template, tool_environment
from systems.trainers import make_trainer

NOTES = (
    "the model's boxes are read as calls of a tool, by a response template of ours",
    "an answer more for each episode: only a model that calls nothing ends it",
)
_CALLS = response_template(r"\\boxed\{", r"\}")


class _RolledOutError(Exception):
    """Exception that carries the result of ``_generate`` past the scoring and the forward passes."""


def play(game: Game, generator: Generator) -> Run:
    """Run the part of a step that resets the environments and generates."""
    from datasets import Dataset

    tokenizer = generator.new_tokenizer()
    if "<|im_start|>" not in tokenizer.get_vocab():  # Qwen's own calls are known to TRL
        tokenizer.chat_template, tokenizer.response_template = TEMPLATE, _CALLS
    rows = [{"prompt": [{"role": "user", "content": ""}], "seed": seed} for seed in game.seeds]
    trainer = make_trainer(
        game,
        generator,
        Dataset.from_list(rows),
        processing_class=tokenizer,
        environment_factory=tool_environment(
            game.make, write=lambda action: rf"\boxed{{{action}}}", begin=first_message
        ),
    )
    generate = trainer._generate

    def stop_here(prompts: list[Any]) -> None:
        raise _RolledOutError(generate(prompts))

    trainer._generate = stop_here
    with generator.measured() as counts:
        try:
            trainer._generate_and_score_completions(rows)
        except _RolledOutError as done:
            [generated] = done.args
    return Run(_as_played(generator, trainer, generated), counts)


def _as_played(generator: Generator, trainer: Any, generated: tuple[Any, ...]) -> list[Played]:
    prompts, completions, masks, _, logprobs, *_ = generated
    rows = zip(prompts, completions, masks, logprobs, trainer.environments, strict=True)
    return [
        Played(generator.seed_of(prompt), prompt, ids, mask, nats, env.get_reward(), env._turns)
        for prompt, ids, mask, nats, env in rows
    ]
