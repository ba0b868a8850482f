"""Run the command line or a script as a user would, after vLLM's preparation for a CPU.

$ PYTHONPATH=tests python -m support.vllm_run gym_trl train --vllm colocate
$ PYTHONPATH=tests python -m support.vllm_run examples/train_vllm_server.py --vllm_server_base_url http://localhost:8000

``vllm_cpu.SETTINGS`` must be set.
"""

import runpy
import sys

from support import vllm_cpu, warm


def run(*command):
    """Run a command in a process of its own, as vLLM and the trainer require; return its output."""
    done = warm.run(__file__, *command, env={**vllm_cpu.SETTINGS, **vllm_cpu.own_port()}, timeout=250)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    return done.stdout


def main(what, *arguments):
    """Run with TRL unchanged, except that a server gets no weights, which need NCCL and GPUs."""
    vllm_cpu.prepare_trl()
    from trl.generation.vllm_client import VLLMClient

    VLLMClient.init_communicator = lambda *_, **__: None
    VLLMClient.update_named_params = lambda *_: None
    sys.argv = [what, *arguments]
    if what.endswith(".py"):
        runpy.run_path(what, run_name="__main__")
    else:
        runpy.run_module(what, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
