# mypy: ignore-errors
"""SkyRL: its own ``SkyRLGymGenerator.generate`` with the game as an environment of SkyRL-gym."""

import asyncio
import sys
import typing
from contextlib import suppress

import typing_extensions

from systems import Played, Run, first_message
from systems.shared_engine import SharedEngine

_ENV = "benchmark-game"


def skyrl():
    """Return SkyRL's generator and its configurations; typed dicts need 3.12 or ``typing_extensions``."""
    made = typing.TypedDict
    if sys.version_info < (3, 12):
        typing.TypedDict = typing_extensions.TypedDict
    try:
        from skyrl.train.config import GeneratorConfig, SkyRLGymConfig
        from skyrl.train.generators.skyrl_gym_generator import SkyRLGymGenerator
    finally:
        typing.TypedDict = made
    return SkyRLGymGenerator, GeneratorConfig, SkyRLGymConfig


def register():
    import skyrl_gym
    from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

    class GameEnv(BaseTextEnv):
        """The game as an environment of SkyRL-gym; its seed is a field of the row."""

        def __init__(self, env_config, extras):
            super().__init__()
            self._env, self._seed = extras["game"].make(), extras["seed"]

        def init(self, prompt):
            observation, _ = self._env.reset(seed=self._seed)
            return [{"role": "user", "content": first_message(self._env, observation)}], {}

        def step(self, action):
            self.turns += 1
            observation, reward, terminated, truncated, _ = self._env.step(action)
            done = terminated or truncated
            said = [] if done else [{"role": "user", "content": observation}]
            return BaseTextEnvStepOutput(observations=said, reward=float(reward), done=done, metadata={})

        def get_metrics(self):
            return {"turns": self.turns}

    if _ENV not in skyrl_gym.registry:
        skyrl_gym.register(id=_ENV, entry_point=GameEnv)


class Client:
    """The part of SkyRL's client of inference engines that its generator uses, on the engine of this process."""

    def __init__(self, game, generator):
        self._shared = SharedEngine(game, generator, logprobs=0)
        self._asked = asyncio.Event()

    async def generate(self, batch, model=None):
        [prompt] = batch["prompt_token_ids"]
        future = asyncio.get_running_loop().create_future()
        self._shared.submit(prompt, future)
        self._asked.set()
        sampled = (await future).outputs[0]
        ids = list(sampled.token_ids)
        return {
            "responses": [sampled.text],
            "response_ids": [ids],
            "stop_reasons": [sampled.finish_reason],
            "response_logprobs": [[entry[id_].logprob for id_, entry in zip(ids, sampled.logprobs, strict=True)]],
        }

    async def finish_session(self, session_id):
        """Do nothing: there are no replicas."""

    async def run(self):
        """Step the engine while there are requests; between steps the episodes go on."""
        while True:
            await self._asked.wait()
            while self._shared.futures:
                self._shared.step()
                await asyncio.sleep(0)
            self._asked.clear()

    async def __aenter__(self):
        self._running = asyncio.create_task(self.run())

    async def __aexit__(self, *_):
        self._running.cancel()
        with suppress(asyncio.CancelledError):
            await self._running


def play(game, generator):
    return asyncio.run(rollout(game, generator, Client(game, generator)))


async def rollout(game, generator, client):
    made, generator_config, gym_config = skyrl()
    register()
    env = game.make()
    opening = [{"role": "user", "content": first_message(env, env.reset(seed=game.seeds[0])[0])}]
    prompt = generator.tokenizer.apply_chat_template(opening, add_generation_prompt=True, return_dict=False)
    config = generator_config(max_turns=game.most_turns, max_input_length=len(prompt) + game.tokens)
    threads = gym_config(max_env_workers=len(game.seeds) if game.latency_s else 0)
    theirs = made(config, threads, client, generator.tokenizer)
    batch = {
        "prompts": [opening] * len(game.seeds),
        "env_classes": [_ENV] * len(game.seeds),
        "env_extras": [{"game": game, "seed": seed} for seed in game.seeds],
        "sampling_params": {"temperature": 1.0, "max_tokens": game.tokens_per_turn, "logprobs": 0},
    }
    async with client:
        with generator.measured() as counts:
            output = await theirs.generate(batch, disable_tqdm=True)
    if theirs.env_executor is not None:
        theirs.env_executor.shutdown()
    rows = zip(
        output["prompt_token_ids"],
        output["response_ids"],
        output["loss_masks"],
        output["rollout_logprobs"],
        map(sum, output["rewards"]),
        [metrics["turns"] for metrics in output["env_metrics"]],
        strict=True,
    )
    return Run([Played(generator.seed_of(prompt), prompt, *rest) for prompt, *rest in rows], counts)
