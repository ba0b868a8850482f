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
from systems.trainers import make_trainer

NOTES = (
    "the model's boxes are read as calls of a tool, by a response template of ours",
    "an answer more for each episode: only a model that calls nothing ends it",
)
_TEMPLATE = (
    "{% for message in messages %}{% set role = 'user' if message['role'] == 'tool' else message['role'] %}"
    "{{ '<|' + role + '|>' + message['content'] }}{% for call in message['tool_calls'] or [] %}"
    "{{ call['function']['name'] + (call['function']['arguments'] | string) }}{% endfor %}{{ '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
_CALLS = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|assistant|>",
    "fields": {
        "tool_calls": {
            "open_pattern": r"\\boxed\{",
            "close_pattern": r"\}",
            "repeats": True,
            "content": "text",
            "transform": {"type": "function", "function": {"name": "act", "arguments": {"action": "{content}"}}},
        },
        "content": {"close_pattern": r"<\|end\|>", "content": "text"},
    },
}


class _RolledOutError(Exception):
    """Carries what ``_generate`` returned past the scoring and the forward passes."""


def play(game: Game, generator: Generator) -> Run:
    """The part of a step that resets the environments and generates."""
    from datasets import Dataset

    tokenizer = generator.new_tokenizer()
    if "<|im_start|>" not in tokenizer.get_vocab():  # Qwen's own calls are known to TRL
        tokenizer.chat_template, tokenizer.response_template = _TEMPLATE, _CALLS
    rows = [{"prompt": [{"role": "user", "content": ""}], "seed": seed} for seed in game.seeds]
    trainer = make_trainer(
        game,
        generator,
        Dataset.from_list(rows),
        processing_class=tokenizer,
        environment_factory=_tool_environment(game),
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


def _tool_environment(game: Game) -> type:
    class Playing:
        """As TRL's documentation writes environments: what is public is what the model can call."""

        def __init__(self) -> None:
            self._env = game.make()
            self._reward, self._turns, self._over = 0.0, 0, False

        def reset(self, seed: int, **_: Any) -> str:
            observation, _info = self._env.reset(seed=seed)
            self._reward, self._turns, self._over = 0.0, 0, False
            return first_message(self._env, observation)

        def act(self, action: str) -> str:
            """Act in the game.

            Args:
                action: What to do.
            """
            if self._over:
                return "The game is over."
            observation, reward, terminated, truncated, _info = self._env.step(rf"\boxed{{{action}}}")
            self._reward += float(reward)
            self._turns += 1
            self._over = terminated or truncated
            return f"{observation} The game is over." if self._over else observation

        def get_reward(self) -> float:
            return self._reward

    return Playing
