"""The real ``vllm serve`` with a recorder at its engine, for systems that can only sample over HTTP.

Run as a program, this module is ``vllm serve`` itself and appends each finished request to the file named by ``CALLS``.
"""

import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

CALLS = "GYM_TRL_BENCH_CALLS"
_SETTLE_S = 10.0


@contextmanager
def served(folder: Path, context: int, *flags: str) -> Iterator["RecordedServer"]:
    """Serve the model in ``folder`` until the ``with`` block ends."""
    from support import vllm_serve  # type: ignore[import-not-found, unused-ignore]

    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        calls, inside = Path(scratch, "calls.jsonl"), Path(scratch, "model")
        calls.touch()
        inside.symlink_to(folder)  # the server's log is written beside it
        server = vllm_serve.Server(inside, *vllm_serve.TRL, "--max-model-len", str(context), *flags)
        stack.callback(server.close)
        server._command[1:3] = [__file__]
        paths = os.environ.pop("PYTHONPATH", None)  # the server has our own packages, whatever its client has
        os.environ[CALLS] = str(calls)
        server.start()
        if paths is not None:
            os.environ["PYTHONPATH"] = paths
        server.wait()
        yield RecordedServer(server, calls)


class RecordedServer:
    """Running ``vllm serve`` with a record of its engine."""

    def __init__(self, server: Any, calls: Path) -> None:
        self._server, self._calls = server, calls
        self.url = server.url

    @contextmanager
    def measured(self) -> Iterator[Any]:
        """Record the calls in the ``with`` block, from an empty prefix cache."""
        import httpx

        from systems import Call, Counts

        httpx.post(f"{self.url}/reset_prefix_cache", timeout=30).raise_for_status()
        counts, seen, steps = Counts(), self._calls.stat().st_size, self._steps()
        began = time.perf_counter()
        try:
            yield counts
        finally:
            counts.seconds = time.perf_counter() - began
            counts.steps = int(self._steps() - steps)
            with self._calls.open(encoding="utf-8") as file:
                file.seek(seen)
                for line in file:
                    noted = json.loads(line)
                    counts.calls.append(Call(noted["prompt_ids"], noted["ids"], noted["logprobs"]))
                    counts.sampled += len(noted["ids"])
                    counts.prefilled += len(noted["prompt_ids"]) - noted["cached"]

    def _steps(self) -> Any:
        """Return the engine's steps; its counters arrive a moment after its responses."""
        deadline, before = time.monotonic() + _SETTLE_S, -1.0
        while (now := self._server.metric("iteration_tokens_total_count")) != before and time.monotonic() < deadline:
            before = now
            time.sleep(0.1)
        return now


def _serve() -> None:
    """Run ``vllm serve`` with a recorded engine; it ends with its parent."""
    import ctypes
    import runpy
    import signal

    from vllm.v1.engine.async_llm import AsyncLLM

    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    generate = AsyncLLM.generate
    file = Path(os.environ[CALLS]).open("a", encoding="utf-8")  # noqa: SIM115 -- as long as the server

    async def noting(self, *args, **kwargs):
        ids: list[int] = []
        logprobs: list[float] = []
        async for output in generate(self, *args, **kwargs):
            for sampled in output.outputs:
                ids += sampled.token_ids
                entries = zip(sampled.token_ids, sampled.logprobs or (), strict=False)
                logprobs += [entry[id_].logprob for id_, entry in entries]
            if output.finished:
                call = {"prompt_ids": list(output.prompt_token_ids), "ids": ids, "logprobs": logprobs or None}
                file.write(json.dumps({**call, "cached": output.num_cached_tokens or 0}) + "\n")
                file.flush()
            yield output

    AsyncLLM.generate = noting
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _serve()
