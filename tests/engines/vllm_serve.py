"""The real ``vllm serve`` on a CPU, as a process that can be started, watched, killed and started again."""

import os
import signal
import subprocess
import sys
import time

import httpx
from support import vllm_cpu
from support.warm import free_port

CONTEXT = 512
SLOTS = 128
FLAGS = [
    *("--dtype", "float32", "--enforce-eager", "--block-size", str(vllm_cpu.BLOCK), "--max-model-len", str(CONTEXT)),
    # The CPU cannot take back what a seeded request has drawn for a prompt that is computed in pieces
    # ("CPU Generator does not use offset"): let every prompt fit into one step.
    *("--max-num-seqs", str(SLOTS), "--max-num-batched-tokens", str(SLOTS * CONTEXT)),
    # The model in the engine's own process, as on one GPU. On a CPU vLLM starts a process for it, for which the engine
    # waits in a busy loop: with two cores that takes one from the server and its clients.
    *("--distributed-executor-backend", "vllm.v1.executor.uniproc_executor.UniProcExecutor"),
]

# What TRL asks for beside the logprobs. On a CPU the server takes no weights, but it starts and says that it would.
TRL = [
    *("--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1"),
    *("--weight-transfer-config", '{"backend": "nccl"}'),
]


class Server:
    """``vllm serve`` of the model in ``folder``, on one port across restarts.

    ``flags`` override ``FLAGS``, ``settings`` are environment variables, and ``logs`` is the folder of its log.
    """

    def __init__(self, folder, *flags, settings=vllm_cpu.SETTINGS, logs=None):
        self._settings = settings
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._client = httpx.Client(timeout=30)  # made once: its TLS context takes longer than some answers
        self._log = ((logs or folder.parent) / f"{self.port}.log").open("w")
        self._command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
        self._command += ["--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(self.port)]
        self._command += [*FLAGS, *flags]

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.close()

    def start(self):
        self.process = subprocess.Popen(
            self._command,
            env={
                **os.environ,
                **self._settings,
                "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
                "VLLM_SERVER_DEV_MODE": str(int("--weight-transfer-config" in self._command)),
            },
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # the engine is a process of its own, and is to be killed with the server
        )

    def wait(self, seconds=250):  # a busy machine takes two minutes
        deadline = time.monotonic() + seconds
        while not self.answers():
            assert self.process.poll() is None, "the server ended: see its log"
            assert time.monotonic() < deadline
            time.sleep(0.2)

    def answers(self):
        try:
            return self._client.get(f"{self.url}/health").status_code == 200
        except httpx.TransportError:
            return False

    def kill(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def close(self):
        self.kill()
        self._client.close()
        self._log.close()

    def metric(self, name):
        lines = self._client.get(f"{self.url}/metrics").text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"vllm:{name}{{"))
