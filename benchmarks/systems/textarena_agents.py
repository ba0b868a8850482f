# mypy: ignore-errors
"""TextArena: its loop of ``get_observation`` and ``step``, a thread for each game, with an agent on the shared engine.

TextArena hands texts over, not tokens. A trainer that comes from the same authors, Unstable Baselines, has a row per
turn, which it encodes from the text of the prompt and the text of the response; so it is here.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue

import textarena as ta
from textarena.wrappers import LLMObservationWrapper

from systems import Played, Run, first_message
from systems.shared_engine import SharedEngine

_ENV = "BenchmarkGame-v0"


class GameEnv(ta.Env):
    """The game as an environment of TextArena for one player."""

    def __init__(self, game):
        self._env = game.make()

    def reset(self, num_players, seed=None):
        observation, _ = self._env.reset(seed=seed)
        self.earned = 0.0
        self.state = ta.SinglePlayerState(num_players=num_players, seed=seed)
        said = first_message(self._env, observation)
        self.state.reset(game_state={}, player_prompt_function=lambda player_id, game_state: said)

    def step(self, action):
        self.state.add_observation(
            from_id=self.state.current_player_id, message=action, observation_type=ta.ObservationType.PLAYER_ACTION
        )
        observation, reward, terminated, truncated, _ = self._env.step(action)
        self.earned += float(reward)
        if terminated or truncated:
            self.state.set_outcome(reward=self.earned)
        else:
            self.state.add_observation(message=observation, observation_type=ta.ObservationType.GAME_MESSAGE)
        return self.state.step()


class EngineAgent(ta.Agent):
    """Agent that asks for one response and waits for it."""

    def __init__(self, tokenizer, asked):
        self._tokenizer, self._asked = tokenizer, asked
        self.texts = []
        """Prompt and response of each turn."""
        self.first = 0
        """Ids of the first prompt."""
        self.used = 0
        """Ids of all turns so far, without the first prompt."""

    def __call__(self, observation):
        messages = [{"role": "user", "content": observation}]
        prompt = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        ids, future = self._tokenizer(prompt).input_ids, Future()
        self._asked.put((ids, future))
        sampled = future.result().outputs[0]
        self.texts.append((prompt, sampled.text))
        self.first = self.first or len(ids)
        self.used = len(ids) + len(sampled.token_ids) - self.first
        return sampled.text


if _ENV not in ta.envs.registration.ENV_REGISTRY:
    ta.register(_ENV, GameEnv, default_wrappers=[LLMObservationWrapper])


def play(game, generator):
    shared, asked = SharedEngine(game, generator, logprobs=None), SimpleQueue()

    def play_one(seed, agent):
        env = ta.make(_ENV, game=game)
        env.reset(num_players=1, seed=seed)
        done = False
        while not done and agent.used < game.tokens:
            _, observation = env.get_observation()
            done, _ = env.step(action=agent(observation))
        return env.earned

    agents = [EngineAgent(generator.tokenizer, asked) for _ in game.seeds]
    with ThreadPoolExecutor(len(game.seeds)) as threads, generator.measured() as counts:
        games = [threads.submit(play_one, seed, agent) for seed, agent in zip(game.seeds, agents, strict=True)]
        for one in games:
            one.add_done_callback(lambda _: asked.put(None))
        left = len(games)
        while left:
            while not shared.futures or not asked.empty():
                request = asked.get()
                if request is not None:
                    shared.submit(*request)
                elif (left := left - 1) == 0:
                    break
            if shared.futures:
                shared.step()
        rewards = [one.result() for one in games]
    rows = zip(agents, rewards, strict=True)
    return Run([_as_played(generator, agent.texts, reward) for agent, reward in rows], counts)


def _as_played(generator, texts, reward):
    rows = []
    for prompt, response in texts:
        begins = len(generator.tokenizer(prompt).input_ids)
        ids = generator.tokenizer(prompt + response).input_ids
        seed = generator.seed_of(ids[:begins])
        rows.append(Played(seed, ids[:begins], ids[begins:], None, None, reward, 1))
    last = rows[-1]
    return Played(last.seed, last.prompt_ids, last.completion_ids, None, None, reward, len(rows), tuple(rows))
