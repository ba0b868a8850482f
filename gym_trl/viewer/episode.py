"""Messages and tokens of an episode, as the page shows them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from gym_trl.errors import ConfigError, needs
from gym_trl.records.schema import Record, TurnRecord
from gym_trl.viewer.credit import TurnCredit
from gym_trl.viewer.values import shown


class Decoder:
    """Decoder of ids one by one; a character made of several ids belongs to the last of them."""

    def __init__(self, file: Path) -> None:
        with needs("train", "the text of token ids"):
            from tokenizers import Tokenizer
        try:
            self._tokenizer = Tokenizer.from_buffer(file.read_bytes())
        except OSError:
            raise
        except Exception as error:  # tokenizers raises no specific exception
            raise ConfigError(f"{file} is not a tokenizer: {error}") from error

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return the text that each id adds."""
        from tokenizers.decoders import DecodeStream

        stream = DecodeStream(skip_special_tokens=False)
        pieces = []
        for index in ids:
            try:
                pieces.append(stream.step(self._tokenizer, index) or "")
            except Exception:  # an id that is not in the vocabulary
                pieces.append(f"<{index}>")
        return pieces


def body(record: Record, decoder: Decoder | None = None, credit: TurnCredit | None = None) -> dict[str, Any]:
    """Return the messages of an episode, with the names that the page expects.

    >>> from gym_trl.episode import Episode
    >>> from gym_trl.records import as_record
    >>> from gym_trl.types import StepResult, Task
    >>> episode = Episode(Task("TrlEnv/Echo-v0", 1))
    >>> episode.begin(StepResult("Say ox."))
    >>> episode.answer("ox")
    >>> episode.step(StepResult("Yes.", reward=1.0, terminated=True))
    >>> body(as_record(episode))["turns"][0]
    {'observation': 'Say ox.', 'thinking': '', 'answer': 'ox', 'reward': 1.0, 'valid': True, 'action': None}
    """
    turns = [_turn(turn) for turn in record["turns"]]
    task = record["task"]
    others = {key: value for key, value in record.items() if key not in _KNOWN}
    return {
        "turns": turns,
        "opening": _opening(record),
        "last": record["last_observation"],
        "unanswered": record["unanswered"],
        "error": record["error"],
        "options": shown({**task["env_kwargs"], **task["options"]}),
        "counts": {"prompt": record["prompt_tokens"], "completion": record["completion_tokens"]},
        "more": shown({**record["spec"], **others}),
        "credit": credit._asdict() if credit else None,
        "tokens": _tokens(record, decoder),
        "segments": record["segments"] or [],
    }


# All other fields are shown as details of an episode.
_KNOWN: Final = Record.__annotations__.keys() - {"attempt", "model_seconds", "env_seconds"}


def _turn(turn: TurnRecord) -> dict[str, Any]:
    shown_turn: dict[str, Any] = {
        "observation": turn["observation"],
        "thinking": turn["thinking"],
        "answer": turn["answer"],
        "reward": turn["reward"],
        "valid": turn["action_valid"],
        "action": turn["action"],
    }
    if turn["start"] is not None and turn["stop"] is not None:
        shown_turn |= {"start": turn["start"], "stop": turn["stop"]}
    return shown_turn


def _opening(record: Record) -> list[dict[str, str]]:
    """Return the messages before the first observation."""
    opening = [{"role": message["role"], "text": message["content"]} for message in record["opening"]]
    if opening and record["turns"]:
        opening[-1]["text"] = opening[-1]["text"].removesuffix(record["turns"][0]["observation"]).rstrip()
    return [message for message in opening if message["text"]]


def _tokens(record: Record, decoder: Decoder | None) -> dict[str, Any] | None:
    ids, mask, prompt = record["completion_ids"], mask_of(record), record["prompt_ids"] or []
    if not ids or len(mask) != len(ids):
        return None
    logprobs, texts = record["logprobs"] or [], record["token_texts"] or []
    recorded = texts if len(texts) == len(ids) else None
    rounded = [value if value is None else round(value, 4) for value in logprobs]
    return {
        "ids": ids,
        "texts": decoder.pieces(ids) if decoder else recorded,
        "mask": mask,
        "logprobs": rounded if len(logprobs) == len(ids) else None,
        "prompt": "".join(decoder.pieces(prompt)) if decoder else None,
        "prompt_ids": None if decoder else prompt,
    }


def mask_of(record: Record) -> list[int]:
    """Return a record's mask as zeros and ones."""
    return [1 if one else 0 for one in record["mask"] or ()]
