"""Engine that responds at once with a constant, so that the time of a rollout is the system's own.

It replaces the part of vLLM that the systems use, so that each pays for its own requests, sampling parameters and
results, and for tokenizing if its prompts are text, as in ``LLM.generate``. For a system that sends requests over HTTP
it is a server in another process, whose time is not counted.
"""

import gc
import json
import string
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from systems import Counts, Game

_CALL = '{"name": "act", "arguments": {"action": "\\u005cboxed{500000}"}}'
ANSWER = f"\\boxed{{500000}}\n<tool_call>\n{_CALL}\n</tool_call><|im_end|>"
"""A response with an action in a box, and the same action as a tool call for the systems that play with tools only."""
_DONE = "Done.<|im_end|>"
_LENGTH = 10**7
_FOLDERS = Path(__file__).parents[2] / ".venv" / ".bench"
_LOGPROB = -0.5


def game_of(turns: int) -> Game:
    """Return two episodes of so many turns, of a game that is never won."""
    numbers = {"low": 1, "high": 10**9, "turns": 10**6}
    return Game("TrlEnv/GuessNumber-v0", numbers, (0, 0), 2, 0.0, tokens_per_turn=64, tokens=10**6, turns=turns)


class FreeGenerator:
    """Replacement of ``systems.generator.Generator``; its seconds are processor seconds.

    With ``replays`` the tokenizer encodes and decodes nothing twice, so that from the second rollout on its own time is
    left out.
    """

    def __init__(self, vocabulary: int, *, calls: int | None = None, replays: bool = False) -> None:
        self.vocabulary, self.folder = vocabulary, saved_model(vocabulary)
        self.tokenizer = replaying(self.new_tokenizer()) if replays else self.new_tokenizer()
        self.llm = FreeLLM(self.tokenizer, calls)

    def new_tokenizer(self) -> Any:
        return qwen3_tokenizer(self.vocabulary)

    def seed_of(self, prompt_ids: list[int]) -> int | None:
        return None

    @contextmanager
    def measured(self) -> Iterator[Counts]:
        self.llm.calls = 0
        gc.collect()  # what trainers of earlier rounds left
        counts, began = Counts(), time.process_time()
        yield counts
        counts.seconds = time.process_time() - began

    @contextmanager
    def serving(self, *flags: str) -> Iterator[Any]:
        answer = json.dumps(self.llm.answer.token_ids)
        command = [sys.executable, "-m", "systems.free", answer]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            yield SimpleNamespace(url=server.stdout.readline().strip(), measured=self.measured)
        finally:
            server.kill()
            server.wait()


class FreeLLM:
    """Part of ``vllm.LLM`` that the systems use; the response is "Done." after ``most_calls`` calls of ``generate``."""

    def __init__(self, tokenizer: Any, most_calls: int | None) -> None:
        self._tokenizer, self._most_calls, self.calls = tokenizer, most_calls, 0
        self.answer, self._done = (_sampled(tokenizer, text) for text in (ANSWER, _DONE))
        self.llm_engine = FreeEngine(self.answer, _sampled(tokenizer, ANSWER, flat=True))

    def generate(self, prompts: list[Any], sampling_params: Any = None, *, use_tqdm: bool = True) -> list[Any]:
        self.calls += 1
        sampled = self._done if self._most_calls is not None and self.calls > self._most_calls else self.answer
        return [_output("", self._ids(prompt), sampled) for prompt in prompts]

    def _ids(self, prompt: Any) -> list[int]:
        ids: list[int] = self._tokenizer(prompt).input_ids if isinstance(prompt, str) else prompt["prompt_token_ids"]
        return ids

    def reset_prefix_cache(self) -> None:
        """Do nothing: there is no cache."""


class FreeEngine:
    """Part of ``LLMEngine`` that the systems use."""

    def __init__(self, answer: Any, flat: Any) -> None:
        self._answers = {False: answer, True: flat}
        self._waiting: list[tuple[str, list[int], bool]] = []
        self.model_config = SimpleNamespace(max_model_len=_LENGTH, logprobs_mode="processed_logprobs")

    def is_sleeping(self) -> bool:
        return False

    def add_request(self, request_id: str, prompt: Any, params: Any) -> None:
        self._waiting.append((request_id, prompt["prompt_token_ids"], params.flat_logprobs))

    def abort_request(self, request_ids: list[str]) -> None:
        self._waiting = [waiting for waiting in self._waiting if waiting[0] not in request_ids]

    def step(self) -> list[Any]:
        waiting, self._waiting = self._waiting, []
        return [_output(id_, prompt, self._answers[flat]) for id_, prompt, flat in waiting]


def _output(request_id: str, prompt_ids: list[int], sampled: Any) -> Any:
    return SimpleNamespace(request_id=request_id, prompt_token_ids=prompt_ids, outputs=[sampled], finished=True)


def _sampled(tokenizer: Any, text: str, *, flat: bool = False) -> Any:
    from vllm.logprobs import FlatLogprobs, Logprob

    ids = tokenizer.encode(text, add_special_tokens=False)
    logprobs = FlatLogprobs() if flat else []
    logprobs.extend({id_: Logprob(_LOGPROB, rank=1, decoded_token="")} for id_ in ids)
    said = text.removesuffix("<|im_end|>")
    return SimpleNamespace(index=0, token_ids=ids, logprobs=logprobs, text=said, finish_reason="stop")


@cache
def _vocabulary(size: int) -> Any:
    """Return byte-level BPE with so many entries: all bytes, printable pairs, and pairs with a third letter."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    marks = [AddedToken(mark, special=True) for mark in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")]
    pairs = [(f"<{name}>", f"</{name}>") for name in ("think", "tool_call", "tool_response")]
    words = [AddedToken(mark, special=False) for pair in pairs for mark in pair]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    printable = [chr(code) for code in range(33, 127)]
    merges = [(first, second) for first in printable for second in printable]
    merges += [(first + second, third) for first, second in merges for third in string.ascii_lowercase]
    merges = merges[: size - len(alphabet) - len(marks) - len(words)]
    entries = dict.fromkeys([*alphabet, *(first + second for first, second in merges)])
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(entries)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(marks)
    tokenizer.add_tokens(words)
    return tokenizer


def qwen3_tokenizer(size: int) -> Any:
    """Return a tokenizer of that size with Qwen3's chat template, as TRL ships it."""
    from transformers import PreTrainedTokenizerFast
    from trl.chat_template_utils import qwen3_chat_template

    marks = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": qwen3_chat_template}
    return PreTrainedTokenizerFast(tokenizer_object=_vocabulary(size), clean_up_tokenization_spaces=False, **marks)


class _Replay:
    """Backend of a tokenizer that looks up what it has encoded or decoded before."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        # Asked at each encoding; by way of __getattr__ that would cost a microsecond.
        self.truncation, self.padding = backend.truncation, backend.padding
        self.encode_special_tokens = backend.encode_special_tokens
        self._encoded: dict[str, list[Any]] = {}
        self._decoded: dict[tuple[int, ...], str] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def encode_batch_fast(self, texts: list[str], *, add_special_tokens: bool) -> list[Any]:
        assert not add_special_tokens
        (text,) = texts
        if text not in self._encoded:
            self._encoded[text] = self._backend.encode_batch_fast(texts, add_special_tokens=False)
            self._encoded[text] = [SimpleNamespace(ids=self._encoded[text][0].ids)]
        return self._encoded[text]

    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        assert not skip_special_tokens
        key = tuple(ids)
        if key not in self._decoded:
            self._decoded[key] = self._backend.decode(ids, skip_special_tokens=False)
        return self._decoded[key]


def replaying(tokenizer: Any) -> Any:
    """Return the tokenizer, with a backend that replays; it serves gym-trl, which asks the backend itself."""
    replay = _Replay(tokenizer.backend_tokenizer)
    kind = type("ReplayingTokenizer", (type(tokenizer),), {"backend_tokenizer": property(lambda self: replay)})
    tokenizer.__class__ = kind
    return tokenizer


@cache
def saved_model(vocabulary: int) -> Path:
    """Return a folder with a never-run model and the tokenizer, for trainers and renderers; created once."""
    from gym_trl.testing import tiny_model

    folder, tokenizer = _FOLDERS / f"free-{vocabulary}", qwen3_tokenizer(vocabulary)
    settings = folder / "tokenizer_config.json"
    if settings.exists() and "unk_token" in json.loads(settings.read_text(encoding="utf-8")):
        return folder
    model = tiny_model(tokenizer, width=32, layers=1)
    model.config.max_position_embeddings = _LENGTH
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # Qwen's own says so too; left out, it would be <|endoftext|>.
    written = json.loads(settings.read_text(encoding="utf-8")) | {"unk_token": None}
    settings.write_text(json.dumps(written), encoding="utf-8")
    return folder


def play(module: str, turns: int, vocabulary: int, rounds: int, replays: bool, _: Any) -> list[float]:
    """Return processor microseconds per turn, of the system and the game, in each of some rounds."""
    from importlib import import_module

    game = game_of(turns)
    calls = turns if module == "environment_factory" else None
    generator = FreeGenerator(vocabulary, calls=calls, replays=replays)
    system, spent = import_module(f"systems.{module}"), []
    for _ in range(rounds + replays):
        run = system.play(game, generator)
        played = [episode.turns for episode in run.played]
        if played != [turns] * len(game.seeds):
            raise RuntimeError(f"{module} played {played} turns of {turns}")
        spent.append(run.counts.seconds / turns / len(game.seeds) * 1e6)
    return spent[replays:]


def game_alone(turns: int, rounds: int, _: Any) -> list[float]:
    game, spent = game_of(turns), []
    for _ in range(rounds):
        began = time.process_time()
        env = game.make()
        env.reset(seed=0)
        for _ in range(turns):
            env.step(ANSWER)
        spent.append((time.process_time() - began) / turns * 1e6)
    return spent


def _serve(answer: list[int]) -> None:
    content = [{"token": f"token_id:{id_}", "logprob": _LOGPROB} for id_ in answer]
    choice = {"index": 0, "token_ids": answer, "logprobs": {"content": content}, "finish_reason": "stop"}
    answers = {"POST": {"request_id": "free", "choices": [choice]}, "GET": {"object": "list", "data": []}}
    bodies = {method: json.dumps(body).encode() for method, body in answers.items()}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(bodies[self.command])))
            self.end_headers()
            self.wfile.write(bodies[self.command])

        def do_GET(self) -> None:
            self.headers["Content-Length"] = "0"
            self.do_POST()

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    _serve(json.loads(sys.argv[1]))
