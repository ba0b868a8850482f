"""OpenEnv's own bridge to TRL: ``build_harness_rollout_func`` with its ``MCPHarnessAdapter``."""

from typing import Any

from openenv.core.client_types import StepResult
from openenv.core.env_server.mcp_types import Tool
from openenv.core.harness import (
    HarnessRunLimits,
    MCPHarnessAdapter,
    ModelStepResult,
    StepEnvSessionAdapter,
    ToolResult,
    build_harness_rollout_func,
)
from openenv.core.llm_client import LLMResponse, ToolCall

from systems import Game, Run, first_message
from systems.generator import Generator
from systems.trainers import call_rollout_func, seeds_of


def play(game: Game, generator: Generator) -> Run:
    """Play with its sessions, adapter and limits; the model step is the code its interface requires of users."""
    turns: list[int] = []
    rollout_func = build_harness_rollout_func(
        session_factory=_Sessions(game, turns),
        harness_adapter=MCPHarnessAdapter(),
        model_step_builder=_model_step,
        limits=HarnessRunLimits(max_turns=game.most_turns),
    )
    return call_rollout_func(game, generator, rollout_func, rewards="env_reward", turns=turns)


class _Client:
    """Environment with the interface of OpenEnv's clients."""

    def __init__(self, game: Game, turns: list[int]) -> None:
        self._env, self._turns = game.make(), turns
        turns.append(0)

    def reset(self, seed: int) -> Any:
        observation, _ = self._env.reset(seed=seed)
        return StepResult(observation=first_message(self._env, observation), reward=0.0, done=False)

    def step(self, action: str) -> Any:
        observation, reward, terminated, truncated, _ = self._env.step(action)
        self._turns[-1] += 1
        return StepResult(observation=observation, reward=float(reward), done=terminated or truncated)


class _Sessions:
    """OpenEnv's ``ResourceSessionFactory``."""

    def __init__(self, game: Game, turns: list[int]) -> None:
        self._game, self._turns = game, turns

    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> Any:
        schema = {"type": "object", "properties": {"action": {"type": "string"}}}
        return StepEnvSessionAdapter(
            _Client(self._game, self._turns),
            seed=seeds_of([task])[0],
            tool_specs=[Tool(name="act", description="Act in the game.", input_schema=schema)],
            action_builder=lambda name, arguments: arguments["action"],
            initial_messages_builder=lambda result, _: [{"role": "user", "content": result.observation}],
            tool_result_builder=lambda name, arguments, result, state: ToolResult(
                data=result.observation, done=result.done, metadata={"reward": result.reward}
            ),
        )


def _model_step(trainer: Any, session: Any) -> Any:
    tokenizer = trainer.processing_class

    def step(messages: list[dict[str, Any]], tools: list[Any], sampling: dict[str, Any]) -> Any:
        # Tool results become user messages, so that the tokens equal those of the other systems.
        said = [
            {"role": "user" if message["role"] == "tool" else message["role"], "content": message["content"]}
            for message in messages
        ]
        prompt = tokenizer.apply_chat_template(said, add_generation_prompt=True, return_dict=False)
        _, [ids], [nats], _ = trainer.vllm_generation.generate([prompt], images=None, num_generations=1)
        text = tokenizer.decode(ids, skip_special_tokens=True)
        # The whole response is the action, as in all systems: without a call the adapter would end the episode.
        response = LLMResponse(content=text, tool_calls=[ToolCall(id="0", name="act", args={"action": text})])
        return ModelStepResult(response, prompt_ids=prompt, completion_ids=ids, logprobs=[nat[0] for nat in nats])

    return step
