"""Messages and tokens of an episode, as the page shows them."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gym_trl.errors import ConfigError, needs
from gym_trl.files import read_bytes
from gym_trl.records.fields import as_number
from gym_trl.records.schema import Record
from gym_trl.viewer.credit import TurnCredit
from gym_trl.viewer.values import listed, mapping, optional, shown, text


class Decoder:
    """Decoder of ids one by one; a character made of several ids belongs to the last of them."""

    def __init__(self, file: Path) -> None:
        with needs("train", "the text of token ids"):
            from tokenizers import Tokenizer
        try:
            self._tokenizer = Tokenizer.from_buffer(read_bytes(file))
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


def body(record: Mapping[str, Any], decoder: Decoder | None = None, credit: TurnCredit | None = None) -> dict[str, Any]:
    """Return the messages of an episode, with the names and types that the page expects.

    >>> body({"turns": [{"observation": "Say ox.", "answer": "ox", "reward": 1}], "note": "by hand"})["turns"][0]
    {'observation': 'Say ox.', 'thinking': '', 'answer': 'ox', 'reward': 1, 'valid': True, 'action': None}
    """
    turns = [_turn(mapping(turn)) for turn in listed(record.get("turns"))]
    task = mapping(record.get("task"))
    scores = {f"score of {name}": score for name, score in mapping(record.get("scores")).items()}
    others = {key: record[key] for key in record if key not in _KNOWN}
    images = [_base64(one) for one in listed(record.get("images"))]
    for turn, codes in zip(turns, images, strict=False):
        if codes:
            turn["images"] = codes
    return {
        "turns": turns,
        "opening": _opening(record, turns),
        "last": optional(record.get("last_observation")),
        "last_images": images[len(turns)] if len(images) > len(turns) else [],
        "unanswered": optional(record.get("unanswered")),
        "error": optional(record.get("error")),
        "options": shown({**mapping(task.get("env_kwargs")), **mapping(task.get("options"))}),
        "counts": {name: as_number(record.get(f"{name}_tokens")) for name in ("prompt", "completion")},
        "more": shown({**scores, **mapping(record.get("spec")), **others}),
        "credit": credit._asdict() if credit else None,
        "order": order if len(order := _ids(record.get("order"))) == len(turns) else None,
        "tokens": _tokens(record, decoder),
        "segments": [_segment(mapping(one)) for one in listed(record.get("segments"))],
    }


# All other fields are shown as details of an episode.
_KNOWN: Final = Record.__annotations__.keys() - {"attempt", "cut_actions", "model_seconds", "env_seconds"}


def _base64(codes: Any) -> list[str]:
    """Return the texts that are base64, so that the page can show them as images and nothing else."""
    return [code for code in listed(codes) if isinstance(code, str) and re.fullmatch(r"[A-Za-z0-9+/]+={0,2}", code)]


def _segment(border: Mapping[str, Any]) -> dict[str, Any]:
    """Return where a further segment of an episode begins, and what its prompt no longer shows."""
    counts = {name: int(as_number(border.get(name)) or 0) for name in ("start", "stop", "turn", "left_out")}
    return {**counts, "summary": text(border.get("summary") or "")}


def _turn(turn: Mapping[str, Any]) -> dict[str, Any]:
    shown_turn = {
        "observation": text(turn.get("observation") or ""),
        "thinking": text(turn.get("thinking") or ""),
        "answer": text(turn.get("answer") or ""),
        "reward": as_number(turn.get("reward")),
        "valid": turn.get("action_valid") is not False,
        "action": optional(turn.get("action")),
    }
    if isinstance(start := turn.get("start"), int) and isinstance(stop := turn.get("stop"), int):
        shown_turn |= {"start": start, "stop": stop}
    return shown_turn


def _opening(record: Mapping[str, Any], turns: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return the messages before the first observation."""
    opening = [
        {"role": text(message.get("role") or ""), "text": text(message.get("content") or "")}
        for message in map(mapping, listed(record.get("opening")))
    ]
    if opening and turns:
        opening[-1]["text"] = opening[-1]["text"].removesuffix(turns[0]["observation"]).rstrip()
    return [message for message in opening if message["text"]]


def _tokens(record: Mapping[str, Any], decoder: Decoder | None) -> dict[str, Any] | None:
    ids, mask = _ids(record.get("completion_ids")), mask_of(record)
    if not ids or len(mask) != len(ids):
        return None
    logprobs, texts = listed(record.get("logprobs")), listed(record.get("token_texts"))
    prompt = _ids(record.get("prompt_ids"))
    recorded = [text(piece) for piece in texts] if len(texts) == len(ids) else None
    return {
        "ids": ids,
        "texts": decoder.pieces(ids) if decoder else recorded,
        "mask": mask,
        "logprobs": _rounded(logprobs) if len(logprobs) == len(ids) else None,
        "prompt": "".join(decoder.pieces(prompt)) if decoder else None,
        "prompt_ids": None if decoder else prompt,
    }


def _ids(value: Any) -> list[int]:
    ids = listed(value)
    return ids if all(type(one) is int for one in ids) else []


def mask_of(record: Mapping[str, Any]) -> list[int]:
    """Return a record's mask as zeros and ones."""
    return [1 if one else 0 for one in listed(record.get("mask"))]


def _rounded(values: Sequence[Any]) -> list[float | None]:
    # There may be millions of values, so check the common case first.
    return [round(value, 4) if type(value) is float and -1e9 < value < 1e9 else as_number(value) for value in values]
