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
from systems.trainers import make_trainer

OVER = "The game is over."
TEMPLATE = (
    "{% for message in messages %}{% set role = 'user' if message['role'] == 'tool' else message['role'] %}"
    "{{ '<|' + role + '|>' + message['content'] }}{% for call in message['tool_calls'] or [] %}"
    "{{ call['function']['name'] + (call['function']['arguments'] | string) }}{% endfor %}{{ '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
"""Template that renders calls, and tool results like user messages."""
CALLS = {
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
"""Response template that reads the content of a box as a call of the only tool."""


class Playing:
    """The game as TRL's documentation writes environments: what is public is what the model can call."""

    def __init__(self, game: Game) -> None:
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
            return OVER
        observation, reward, terminated, truncated, _info = self._env.step(rf"\boxed{{{action}}}")
        self._reward += float(reward)
        self._turns += 1
        self._over = terminated or truncated
        return f"{observation} {OVER}" if self._over else observation

    def get_reward(self) -> float:
        return self._reward


class _RolledOutError(Exception):
    """Carries the result of ``_generate`` past the scoring and the forward passes."""


def play(game: Game, generator: Generator) -> Run:
    """Run the part of a step that resets the environments and generates."""
    tokenizer = generator.new_tokenizer()
    if "<|im_start|>" not in tokenizer.get_vocab():  # Qwen's own calls are known to TRL
        tokenizer.chat_template, tokenizer.response_template = TEMPLATE, CALLS
    rows = [{"prompt": [{"role": "user", "content": ""}], "seed": seed} for seed in game.seeds]
    trainer = make_trainer(
        game, generator, Dataset.from_list(rows), processing_class=tokenizer, environment_factory=lambda: Playing(game)
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
