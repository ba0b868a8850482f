"""Measure the time and memory of recording every episode, as a share of playing it.

$ python benchmarks/bench_records.py
"""

import random
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium as gym
from report import QUICK, Column, Table, publish, run

from gym_trl.chat.protocol import Chat
from gym_trl.chat.template import TemplateChat
from gym_trl.engines.protocol import Engine
from gym_trl.engines.scripted import ScriptedEngine
from gym_trl.executors.inline import InlinePool
from gym_trl.records.files import RecordWriter, read_records
from gym_trl.records.schema import as_record
from gym_trl.rollout.episode import Episode
from gym_trl.rollout.limits import Limits
from gym_trl.rollout.loop import run_episodes
from gym_trl.testing import ByteChat, tiny_model, tiny_tokenizer
from gym_trl.types import EpisodeResult, Task, TokenIds

MANY = 64 if QUICK else 512


class Recorder:
    """Recorder that sums up its processor time."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.seconds = 0.0
        self._writer, self._options = RecordWriter(folder), options
        self.close = self._writer.close

    def __call__(self, index: int, played: EpisodeResult) -> None:
        began = time.process_time()
        self._writer.write(as_record(played, policy="tiny", split="eval", group=index, **self._options))
        self.seconds += time.process_time() - began


def share(
    engine: Callable[[], Engine], chat: Chat, *, episodes: int, tokens_per_turn: int, **options: Any
) -> dict[str, float]:
    """Return the processor time of recording, per episode and as a share of the rollout."""
    games = [
        Episode(
            Task("TrlEnv/GuessNumber-v0", seed),
            chat=chat,
            # A model that never ends its turn would never finish: an action that is cut off is rejected.
            limits=Limits(tokens_per_turn=tokens_per_turn, tokens=400),
            seed=seed,
        )
        for seed in range(episodes)
    ]
    with TemporaryDirectory() as folder, InlinePool(gym.make) as pool:
        recorder = Recorder(Path(folder), **options)
        began = time.process_time()
        run_episodes(games, pool=pool, engine=engine(), max_alive=128, on_finish=recorder)
        seconds = time.process_time() - began
        recorder.close()
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
        assert sum(1 for _ in read_records(Path(folder))) == episodes
    return {
        "recording_us_per_episode": round(1e6 * recorder.seconds / episodes, 1),
        "rollout_us_per_episode": round(1e6 * seconds / episodes, 1),
        "share": round(recorder.seconds / seconds, 5),
        "bytes_per_record": round(size / episodes),
    }


def tiny() -> tuple[Callable[[], Engine], Chat, Callable[[TokenIds], str]]:
    import torch

    from gym_trl.engines.transformers import TransformersEngine

    torch.set_num_threads(1)
    tokenizer = tiny_tokenizer()
    model, chat = tiny_model(tokenizer), TemplateChat(tokenizer)

    def engine() -> Engine:
        return TransformersEngine(model, pad_id=tokenizer.pad_token_id, eos_ids=[tokenizer.eos_token_id])

    texts = {id_: tokenizer.decode([id_]) for id_ in range(len(tokenizer))}
    return engine, chat, lambda ids: texts[ids[0]]


def memory(episodes: int) -> dict[str, float]:
    """Return the peak memory of recording beside the episode itself, early and late."""
    chat, peaks = ByteChat(), {}
    engine = ScriptedEngine(lambda request: chat.say("25"))
    with InlinePool(gym.make) as pool, TemporaryDirectory() as folder:
        task = Task("TrlEnv/GuessNumber-v0", 0)
        [played] = run_episodes([Episode(task, chat=chat, limits=Limits(tokens_per_turn=8))], pool=pool, engine=engine)
        recorder = Recorder(Path(folder), tokens=True)
        tracemalloc.start()
        for index in range(episodes):
            recorder(index, played)
            if index in (99, episodes - 1):
                peaks[index + 1] = tracemalloc.get_traced_memory()[1]
                tracemalloc.reset_peak()
        tracemalloc.stop()
        recorder.close()
    return {f"peak_bytes_of_{count}": peak for count, peak in peaks.items()}


def main() -> None:
    engine, chat, decode = tiny()
    letters = ByteChat()

    def scripted() -> Engine:
        return ScriptedEngine(lambda request: letters.say(str(random.Random(request.seed).randint(1, 50))))

    share(engine, chat, episodes=128, tokens_per_turn=4)  # warm up imports and caches
    found = {
        "tiny model": share(engine, chat, episodes=MANY, tokens_per_turn=4),
        "tiny model, with tokens": share(engine, chat, episodes=MANY, tokens_per_turn=4, tokens=True, decode=decode),
        "no model at all": share(scripted, letters, episodes=8 * MANY, tokens_per_turn=4),
    }
    columns: list[Column] = [
        ("", "name"),
        ("recording, µs an episode", "recording_us_per_episode"),
        ("the rollout, µs an episode", "rollout_us_per_episode"),
        ("share, %", lambda row: 100 * row["share"]),
        ("bytes a record", "bytes_per_record"),
    ]
    publish(
        "records",
        {"records": found, "memory": memory(2_000 if QUICK else 20_000)},
        tables=[Table.of("records", columns, [{"name": name, **row} for name, row in found.items()])],
    )


if __name__ == "__main__":
    run(main)
