# mypy: ignore-errors
"""GEM: its vector of environments in threads, its history as a chat, and the loop of its own examples.

GEM's training loop is not in its package. This one follows ``examples/train_oat/train_oat_grpo.py``: one call of
``LLM.generate`` for all environments, one step of the vector, and a training row per turn. Unlike the example it steps
only environments whose episode has not ended, which GEM's vectors support.
"""

from gem.core import Env
from gem.vector.async_vector_env import AsyncVectorEnv
from gem.wrappers.observation_wrapper import ObservationWrapper
from vllm import SamplingParams

from systems import Played, Run, first_message

_INVALID = "<｜INVALID_ACTION｜>"  # noqa: RUF001 -- GEM's own


class GameEnv(Env):
    """The game as an environment of GEM."""

    def __init__(self, game):
        self._env = game.make()

    def reset(self, seed=None):
        super().reset(seed)  # seeds the global generators, as every environment of GEM's does
        observation, info = self._env.reset(seed=seed)
        return first_message(self._env, observation), dict(info)

    def step(self, action):
        observation, reward, terminated, truncated, info = self._env.step(action)
        return observation, float(reward), terminated, truncated, dict(info)


def play(game, generator):
    def make():
        return ObservationWrapper(GameEnv(game), include_chat_template=True, tokenizer=generator.tokenizer)

    vector = AsyncVectorEnv(["game"] * len(game.seeds), [make] * len(game.seeds))
    params = SamplingParams(temperature=1.0, top_p=1.0, top_k=-1, max_tokens=game.tokens_per_turn, n=1, logprobs=True)
    llm, tokenizer = generator.llm, generator.tokenizer
    episodes = [[] for _ in game.seeds]
    rewards = [0.0] * len(game.seeds)
    used = [0] * len(game.seeds)
    with generator.measured() as counts:
        observations, _ = vector.reset(seed=list(game.seeds))
        seen = dict(enumerate(observations))
        while seen:
            lengths = [len(ids) for ids in tokenizer(list(seen.values())).input_ids]
            outputs = llm.generate(list(seen.values()), params, use_tqdm=False)
            actions = {}
            for row, output, length in zip(seen, outputs, lengths, strict=True):
                sampled = output.outputs[0]
                nats = [entry[id_].logprob for id_, entry in zip(sampled.token_ids, sampled.logprobs, strict=True)]
                episodes[row].append((list(output.prompt_token_ids), list(sampled.token_ids), nats))
                used[row] = length + len(sampled.token_ids) - len(episodes[row][0][0])
                actions[row] = _INVALID if sampled.finish_reason == "length" else sampled.text
            following, gains, terminated, truncated, _ = vector.step(actions)
            seen = {}
            for place, row in enumerate(actions):
                rewards[row] += float(gains[place])
                if not (terminated[place] or truncated[place]) and used[row] < game.tokens:
                    seen[row] = following[place]
    vector.thread_pool_executer.shutdown()
    played = [_as_played(generator, turns, reward) for turns, reward in zip(episodes, rewards, strict=True)]
    return Run(played, counts)


def _as_played(generator, turns, reward):
    rows = tuple(
        Played(generator.seed_of(prompt), prompt, ids, [1] * len(ids), nats, reward, 1) for prompt, ids, nats in turns
    )
    prompt, completion, nats = turns[-1]
    seed = generator.seed_of(turns[0][0])
    return Played(seed, prompt, completion, [1] * len(completion), nats, reward, len(turns), rows)
