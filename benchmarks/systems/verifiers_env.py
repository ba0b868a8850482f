# mypy: ignore-errors
"""verifiers 0.4: an ``Env`` around the game, its interception server, its renderer, and ``vllm serve``."""

import asyncio
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import aiohttp
import verifiers.v1 as vf
from renderers import CustomRendererConfig, DefaultRendererConfig, Qwen3RendererConfig, RenderedTokens
from renderers.base import trim_to_turn_close
from renderers.default import DefaultRenderer
from verifiers.v1.clients import ModelContext
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.runtimes import ProgramResult

from systems import Played, Run, first_message

__all__ = ["ChatHarness", "Games", "Play"]  # classes that verifiers finds

_PLUGIN = "gym_trl_benchmark_plugin"  # verifiers looks plugins up by the names of top-level modules
sys.modules[_PLUGIN] = sys.modules[__name__]
_PLAYING = {}
"""The game and the HTTP session of this process: plugins are made from settings and cannot hold environments."""


class ChatHarnessConfig(vf.HarnessConfig):
    """Configuration without settings."""


class ChatHarness(vf.Harness[ChatHarnessConfig]):
    """Harness of one response, through the interception server.

    It posts the request itself: OpenAI's client, which verifiers' own harness uses, takes most of the time of a long
    conversation to look at its messages.
    """

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, tool_interception_url=None):  # noqa: PLR0917
        said = data.prompt
        messages = [{"role": "user", "content": said}] if isinstance(said, str) else list(map(message_to_wire, said))
        body = {"model": ctx.model, "messages": messages}
        headers = {"Authorization": f"Bearer {secret}"}
        async with _PLAYING["session"].post(f"{endpoint}/chat/completions", json=body, headers=headers) as response:
            response.raise_for_status()
            await response.read()
        return ProgramResult(exit_code=0, stdout="", stderr="")


class MarkedRenderer(DefaultRenderer):
    """Renderer of the tiny model's template: each message is a mark of its role, the content and the end of a turn.

    verifiers has renderers of its own for well-known models, and lets others bring one. Without it each turn renders
    every beginning of the conversation.
    """

    config_class = DefaultRendererConfig

    @property
    def is_prefix_stable(self):
        return True

    def render(self, messages, *, tools=None, add_generation_prompt=False):
        return self._rendered([], messages, add_generation_prompt=add_generation_prompt)

    def bridge_to_next_turn(self, previous_prompt_ids, previous_completion_ids, new_messages, *, tools=None):
        end = self._tokenizer.eos_token_id
        before = trim_to_turn_close(previous_prompt_ids, previous_completion_ids, {end}, synthesize_close=end)
        return self._rendered(before, new_messages, add_generation_prompt=True)

    def _rendered(self, before, messages, *, add_generation_prompt):
        ids, owners = list(before), [-1] * len(before)
        texts = [f"<|{message['role']}|>{message['content']}<|end|>" for message in messages]
        texts += ["<|assistant|>"] * add_generation_prompt
        for index, text in enumerate(texts):
            more = self._tokenizer.encode(text, add_special_tokens=False)
            ids += more
            owners += [index if index < len(messages) else -1] * len(more)
        roles = [message["role"] for message in messages]
        return RenderedTokens(token_ids=ids, message_indices=owners, message_roles=roles)


class GameData(vf.TaskData):
    seed: int = 0


class GameTask(vf.Task[GameData, vf.State, vf.TaskConfig]):
    pass


class GamesConfig(vf.TasksetConfig):
    pass


class Games(vf.Taskset[GameTask, GamesConfig]):
    """Taskset with a task per group."""

    def load(self):
        game = _PLAYING["game"]
        for seed in game.seeds[:: game.group_size]:
            env = game.make()
            observation, _ = env.reset(seed=seed)
            yield GameTask(GameData(prompt=first_message(env, observation), seed=seed), self.config.task)


class PlayConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())


class Play(vf.Env[PlayConfig]):
    """Environment like verifiers' own TextArena environment, with the game's steps in threads."""

    async def run(self, task, agents):
        env = _PLAYING["game"].make()
        env.reset(seed=task.data.seed)
        earned = 0.0
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            while not segment.terminated:
                observation, reward, *over, _ = await asyncio.to_thread(env.step, segment.last_reply)
                earned += float(reward)
                if any(over):
                    break
                segment = await interaction.turn(observation)
        interaction.trace.record_reward("game", earned, 1.0)


def play(game, generator):
    os.environ["HF_HUB_OFFLINE"] = "1"
    with generator.serving("--enable-scale-out") as server:
        asyncio.run(rollout(game, generator, server.url))
        counts, episodes = asyncio.run(rollout(game, generator, server.url, measured=server.measured))
    return Run([_as_played(generator, episode) for episode in episodes], counts)


async def rollout(game, generator, url, *, measured=None):
    """Return verifiers' episodes in the order of the seeds, and their counts; one as a warm-up if not measured."""
    well_known = "<|im_start|>" in generator.tokenizer.get_vocab()
    renderer = (
        # Otherwise every turn is rendered again, and begins a row of its own.
        Qwen3RendererConfig(thinking_retention="all")
        if well_known
        else CustomRendererConfig(import_path=f"{_PLUGIN}.MarkedRenderer")
    )
    _PLAYING["game"] = game
    config = PlayConfig(taskset={"id": _PLUGIN}, player={"harness": {"id": _PLUGIN}, "runtime": {"type": "subprocess"}})
    client = vf.TrainClientConfig(
        base_url=f"{url}/v1",
        api_key_var="NO_KEY",
        renderer=renderer,
        renderer_model_name=str(generator.folder),
    )
    sampling = vf.SamplingConfig(max_completion_tokens=game.tokens_per_turn, temperature=1.0)
    context = ModelContext(model="tiny", client=client, sampling=sampling)
    env = Play(config)
    # For steps and rendering: asyncio's own executor has only four threads more than there are cores.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(len(game.seeds) + 8))
    async with env.serving(), aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as _PLAYING["session"]:
        slots = [slot for task in env.taskset for slot in env.slots(task, game.group_size)]
        slots = slots[: len(game.seeds)] if measured else slots[:1]
        with measured() if measured else nullcontext() as counts:
            episodes = await asyncio.gather(*(env.run_slot(slot, context) for slot in slots))
        return counts, episodes


def _as_played(generator, episode):
    """Return a row for each branch of the trace; a prompt that does not continue the last one begins a branch."""
    if not episode.traces or not episode.traces[0].branches:
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        raise RuntimeError(f"verifiers: {[error.message for error in errors]}")
    trace = episode.traces[0]
    rows = []
    for branch in trace.branches:
        mask = list(map(int, branch.sampled_mask))
        begins = mask.index(1) if 1 in mask else len(mask)
        ids, nats = branch.token_ids, branch.logprobs
        seed = generator.seed_of(ids)
        reward = sum(reward.value for reward in trace.rewards.values())
        rows.append(Played(seed, ids[:begins], ids[begins:], mask[begins:], nats[begins:], reward, 0))
    last = rows[-1]
    turns = sum(node.sampled for node in trace.nodes)
    fields = (last.seed, last.prompt_ids, last.completion_ids, last.mask, last.logprobs, last.reward, turns)
    return Played(*fields, tuple(rows))
