"""TRL 1.16's own loop: ``GRPOTrainer(environment_factory=...)``, its real reset, rendering, calls and masks.

It supports tools only: the tokenizer gets a template that renders tool results like user messages (the same tokens as
in the other systems), and a ``response_template`` that reads a box as a call of ``act``. The loop cannot end an
episode: a finished game says so, as TRL's documentation advises, and the model has to stop calling, which costs one
more response per episode.
"""

from typing import Any

from datasets import Dataset

from systems import Game, Played, Run, first_message
from systems.generator import Generator
from systems.tools import TEMPLATE, response_template, tool_environment
from systems.trainers import make_trainer

_CALLS = response_template(r"\\boxed\{", r"\}")


class _RolledOutError(Exception):
    """Carries the result of ``_generate`` past the scoring and the forward passes."""


def play(game: Game, generator: Generator) -> Run:
    """Run the part of a step that resets the environments and generates."""
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
    prompts, completions, masks, _, logprobs, *_ = generated
    episodes = zip(prompts, completions, masks, logprobs, trainer.environments, strict=True)
    played = [
        Played(generator.seed_of(prompt), prompt, ids, mask, nats, env.get_reward(), env._turns)
        for prompt, ids, mask, nats, env in episodes
    ]
    return Run(played, counts)
