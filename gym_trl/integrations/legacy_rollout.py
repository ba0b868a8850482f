"""Adapter for rollout functions with TRL's first signature, ``(prompts, args, processing_class)``."""

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from threading import Lock, Thread
from typing import Any
from urllib.parse import urlsplit

from gym_trl.errors import ConfigError, described
from gym_trl.grpo.trainer_engine import SAMPLING, Stops, trainer_engine
from gym_trl.grpo.trl_versions import render, tokenizer_of
from gym_trl.integrations.sample_all import sample_all

LegacyRolloutFunc = Callable[[list[str], Any, Any], Mapping[str, Any]]
RolloutFunc = Callable[[list[Any], Any], dict[str, list[Any]]]


def legacy_rollout_func(rollout_func: LegacyRolloutFunc, *, generate_url: str | None = None) -> RolloutFunc:
    """Adapt a function with the signature ``(prompts, args, processing_class)`` to the current ``GRPOTrainer``.

    ::

        trainer = GRPOTrainer(..., rollout_func=legacy_rollout_func(rollout_func))

    The function is called with one rendered prompt per group of which this process has a member, and returns
    ``args.num_generations`` completions of each, which the members get in order, even if a group is split between
    processes. Such functions posted prompts to ``/generate/`` of ``trl vllm-serve``, which TRL has removed: with
    ``generate_url`` the adapter provides this endpoint while the function runs, and samples from the trainer's model; a
    vLLM server needs another port than it, ``GRPOConfig(vllm_server_port=8001)``.

    Args:
        rollout_func: Function that returns ``prompt_ids`` (of each prompt, or of each completion), ``completion_ids``
            and ``logprobs`` (of each completion, prompt by prompt), and columns for reward functions.
        generate_url: URL to which the function posts its prompts, such as ``"http://0.0.0.0:8000/generate/"``.

    Raises:
        ConfigError: At a rollout: a wrong number of rows was returned, or the port of ``generate_url`` is in use.
    """

    def play(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        size = trainer.num_generations if trainer.model.training else trainer.num_generations_eval
        first = trainer.accelerator.process_index * len(prompts)
        groups = sorted({row // size for row in range(first, first + len(prompts))})
        asked = [render(trainer, prompts[max(group * size - first, 0)]) for group in groups]
        args = copy.copy(trainer.args)
        args.num_generations = size
        with _generating(trainer, generate_url):
            columns = rollout_func(asked, args, trainer.processing_class)
        # Index of each of this process's rows among all completions of its groups.
        places = [row - groups[0] * size for row in range(first, first + len(prompts))]
        rows: dict[str, Any] = {}
        for name, values in columns.items():
            if not isinstance(values, list):
                rows[name] = values
            elif len(values) == len(asked) * size:
                rows[name] = [values[place] for place in places]
            elif len(values) == len(asked) and name not in ("completion_ids", "logprobs"):
                rows[name] = [values[place // size] for place in places]
            else:
                raise ConfigError(
                    f"the rollout function returned {len(values)} rows of {name} for {len(asked)} prompts with "
                    f"args.num_generations={size}: it must be {len(asked) * size}, prompt by prompt"
                )
        return rows

    return play


@contextmanager
def _generating(trainer: Any, url: str | None) -> Iterator[None]:
    """Serve ``url`` like ``trl vllm-serve`` until the block ends."""
    if url is None:
        yield
        return
    parts = urlsplit(url)
    lock, calls = Lock(), count(1)

    class Handler(BaseHTTPRequestHandler):
        timeout = 30  # seconds that a client may send nothing

        def do_POST(self) -> None:
            try:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.path.rstrip("/") != parts.path.rstrip("/"):
                    status, answer = 404, {"detail": f"only {parts.path} is served"}
                elif "Origin" in self.headers:  # a browser's, which sends it for the pages of any site
                    status, answer = 403, {"detail": "web pages cannot generate here"}
                else:
                    with lock:
                        status, answer = 200, _generate(trainer, asked, next(calls))
            except Exception as error:  # without a response the function would wait for ever
                status, answer = 500, {"detail": described(error)}
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- the base class's name
            """Suppress the log of every request."""

    try:
        server = ThreadingHTTPServer(("127.0.0.1", parts.port or 80), Handler)
    except OSError as error:
        raise ConfigError(
            f"nothing can listen at {url}: {error}; is something else there? A vLLM server needs another port, "
            "GRPOConfig(vllm_server_port=...)"
        ) from error
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _generate(trainer: Any, asked: Mapping[str, Any], call: int) -> dict[str, Any]:
    """Return the completions of a request's prompts, sampled from the trainer's model."""
    number, tokenizer = int(asked.get("n") or 1), tokenizer_of(trainer)
    prompts = [list(tokenizer(text)["input_ids"]) for text in asked["prompts"]]
    tokens = int(asked.get("max_tokens") or trainer.args.max_completion_length)
    sampling = {name: asked[name] for name in SAMPLING if asked.get(name) is not None}
    sampling |= asked.get("generation_kwargs") or {}
    where = trainer.state.global_step, trainer.accelerator.process_index, call
    with trainer_engine(trainer, Stops(), sampling) as engine:
        sampled = sample_all(engine, prompts, number, tokens, "legacy", *where)
    return {
        "prompt_ids": prompts,
        "completion_ids": [completion.ids for completion in sampled],
        "logprobs": [completion.logprobs for completion in sampled],
    }
