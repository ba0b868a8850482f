"""Example runs for the viewer."""

import json
import math
import random
from pathlib import Path
from typing import Any

from gym_trl.episode import Episode, Segment, Span, Turn
from gym_trl.records import ROLLOUTS, Record, append, record_of
from gym_trl.types import Answer, Message, StopReason, Task


def played(
    seed: int = 0,
    *,
    turns: int = 2,
    reward: float = 1.0,
    thinking: str = "",
    answer: str = "ox",
    observation: str = "Say ox.",
    stop_reason: StopReason = StopReason.ENDED,
    error: str | None = None,
) -> Episode:
    """Return an episode with a token for each character, the environment's included."""
    segment, said, rng = Segment([*map(ord, observation)]), list[Turn](), random.Random(seed)
    for turn in range(turns):
        if turn:
            segment.add([*map(ord, observation)])
        spoken = f"<think>{thinking}</think>{answer}" if thinking else answer
        place = segment.add([*map(ord, spoken)], [math.log(rng.uniform(0.01, 1.0)) for _ in spoken])
        worth = reward if turn == turns - 1 else 0.0
        said.append(Turn(observation, Answer(thinking, answer), worth, spans=[Span(0, *place)]))
    messages = [Message("system", "Repeat words."), Message("user", observation)]
    for _ in said:
        messages += [Message("assistant", answer), Message("user", "Over.")]
    return Episode(
        Task("TrlEnv/Echo-v0", seed, {"instance": seed % 7}),
        segments=[segment],
        turns=said,
        messages=messages if said else [],
        opening=2 if said else 0,
        stop_reason=stop_reason,
        error=error,
        success=stop_reason is StopReason.ENDED if stop_reason.scored else None,
    )


def recorded(episode: Episode, **about: Any) -> Record:
    """Return a record with the text of each token, which is a character."""
    texts = [chr(one) for one in episode.row.completion_ids]
    return record_of(episode, tokens=True, token_texts=texts, **about)


def write_run(folder: Path, *, steps: int = 4) -> Path:
    """Write the folder of a run with two groups of four at each step, in which the first members win."""
    folder.mkdir(parents=True, exist_ok=True)
    for step in range(1, steps + 1):
        for place in range(8):
            group, attempt = divmod(place, 4)
            won, turns = attempt < step, 1 + attempt % 3
            episode = played(
                seed=1000 + group,
                turns=turns,
                reward=1.0 if won else -0.5,
                answer=f"ox {step}.{place}",
                thinking="Which one? " if attempt == 0 else "",
                stop_reason=StopReason.ENDED if won else StopReason.TURN_LIMIT,
            )
            about = {"policy": "tiny", "step": step, "split": "train", "group": group, "attempt": attempt}
            advantages = [0.0, *[0.42] * (turns - 2), -0.9][-turns:]
            append(folder / ROLLOUTS, [recorded(episode, **about, advantages=advantages)])
        share = step / steps
        numbers = {"env/return": share, "env/success": share, "env/turns": 2.0, "loss": 0.1 * step}
        stops = {"env/stop/ended": share, "env/stop/turn_limit": 1 - share}
        append(folder / "metrics.jsonl", [{"step": step, "seconds": 2.0 * step, "episodes": 8, **numbers, **stops}])
    scores = {
        name: {"episodes": 100, "success": {"mean": share, "low": share / 2, "high": (1 + share) / 2}}
        for name, share in {"before": 0.1, "after": 0.9, "random": 0.2}.items()
    }
    before = {"model": scores["before"], "random": scores["random"]}
    summary = {"before": before, "after": {"model": scores["after"]}, "steps": steps}
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "config.json").write_text(json.dumps({"options": {"env": "TrlEnv/Echo-v0", "model": "tiny"}}))
    return folder
