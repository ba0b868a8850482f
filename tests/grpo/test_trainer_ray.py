"""Everything beyond one machine at once: environments on two nodes of a Ray cluster, one of which is lost in the middle
of a rollout, generation on two real vLLM servers, training on two processes."""

import json
import math
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest
from engines.vllm_serve import TRL, Server
from support import vllm_cpu
from support.warm import free_port

SCRIPT = Path(__file__).parent / "train_on_cluster.py"
LOST_IN = 1
STEPS = 4

pytestmark = [
    pytest.mark.needs(package="vllm"),
    pytest.mark.needs(package="ray"),
    pytest.mark.timeout(600),  # all of it is in the fixture
]


class Cluster:
    """Two nodes, each a tree of processes of its own with another address on loopback."""

    def __init__(self):
        # Sockets of Ray lie in it, whose names must be short.
        self._folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
        self.address = f"127.0.0.1:{free_port()}"
        self.environment = {
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(16),
            "RAY_ADDRESS": self.address,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_raylet_start_wait_time_s": "150",
            "RAY_agent_register_timeout_ms": "150000",
            # How soon a machine that says nothing counts as lost; a busy one may be slow to answer.
            "RAY_health_check_initial_delay_ms": "2000",
            "RAY_health_check_period_ms": "1000",
            "RAY_health_check_timeout_ms": "8000",
            "RAY_health_check_failure_threshold": "3",
            "OMP_NUM_THREADS": "1",
        }
        self.nodes = {}

    def start(self):
        port, client = self.address.rpartition(":")[2], free_port()
        alone = ("--head", f"--port={port}", "--include-dashboard=false", f"--ray-client-server-port={client}")
        self.nodes["first"] = self._start("first", "127.0.0.1", *alone)
        self._wait_for_head()
        self.nodes["second"] = self._start("second", "127.0.0.2", f"--address={self.address}")

    def _wait_for_head(self):
        host, _, port = self.address.partition(":")
        deadline = time.monotonic() + 120
        while True:
            try:
                socket.create_connection((host, int(port)), timeout=5).close()
                return
            except OSError:
                self.check()
                assert time.monotonic() < deadline
                time.sleep(0.2)

    def _start(self, name, ip, *flags):
        ports = ("--min-worker-port=0", "--max-worker-port=0", "--dashboard-agent-listen-port=0")
        small = ("--num-cpus=2", "--object-store-memory=100000000")
        own = ("--block", "--disable-usage-stats", f"--temp-dir={self._folder}", *small)
        environment = {name: value for name, value in self.environment.items() if name != "RAY_ADDRESS"}
        with (Path(self._folder) / f"{name}.log").open("w") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "ray.scripts.scripts", "start", f"--node-ip-address={ip}", *own, *ports, *flags],
                env={**environment, "MACHINE": name},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def check(self):
        for name, node in self.nodes.items():
            assert node.poll() is None, (Path(self._folder) / f"{name}.log").read_text()[-3000:]

    def lose(self, name):
        """The machine is gone, with all that ran on it."""
        end(self.nodes[name])

    def close(self):
        for node in self.nodes.values():
            end(node)
        shutil.rmtree(self._folder, ignore_errors=True)


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """Two processes of six rows each, so that the second group of four straddles them."""
    folder = tmp_path_factory.mktemp("cluster")
    vllm_cpu.save_model(folder / "model")
    servers = [Server(folder / "model", *TRL) for _ in range(2)]
    with ExitStack() as stack:
        # One after the other: what starts beside two servers may not start in time.
        cluster = Cluster()
        stack.callback(cluster.close)
        cluster.start()
        for server in servers:
            stack.callback(server.close)
            server.start()
        for server in servers:
            server.wait()
        grpo = {"per_device_train_batch_size": 6, "max_steps": STEPS}
        options = {"urls": [server.url for server in servers], "model": str(folder / "model"), "nodes": 2, "grpo": grpo}
        # What `accelerate launch` runs for several processes; itself it starts one on a CPU unless there is MPI.
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
        with (folder / "train.log").open("w") as log:
            training = subprocess.Popen(
                [sys.executable, *launcher, str(SCRIPT), str(folder), json.dumps(options)],
                env={**cluster.environment, "PYTHONPATH": str(SCRIPT.parents[1]), "ACCELERATE_USE_CPU": "true"},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        stack.callback(end, training)
        begun = [folder / f"begun-{rank}-{LOST_IN}" for rank in (0, 1)]
        deadline = time.monotonic() + 250
        while training.poll() is None and not all(path.exists() for path in begun):
            assert time.monotonic() < deadline, (folder / "train.log").read_text()[-6000:]
            cluster.check()
            time.sleep(0.05)
        time.sleep(0.6)  # somewhere in the middle of their games
        cluster.lose("second")
        assert training.wait(timeout=200) == 0, (folder / "train.log").read_text()[-6000:]
        tokens = [server.metric("generation_tokens_total") for server in servers]
        ranks = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in (0, 1)]
        yield ranks, tokens
        assert cluster.nodes["first"].poll() is None  # it is left as it was found


def end(process):
    """Kill a program and all that it has started, also in sessions of their own."""
    if process.poll() is None:
        tree = psutil.Process(process.pid)
        for one in [tree, *tree.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        process.wait(timeout=60)


def rows(ranks, step):
    """The rows of a step over both processes, in order."""
    both = [rank["rollouts"][step] for rank in ranks]
    return [dict(zip(rollout, row, strict=True)) for rollout in both for row in zip(*rollout.values(), strict=True)]


def is_lost(row):
    """Return whether an episode was lost with its machine."""
    return row["stop_reason"] == "env_error"


def machines(row):
    """Return the place where an episode was played, by what the environment said."""
    said = " ".join(message["content"] for message in row["messages"] if message["role"] == "user")
    return {name for name in ("first", "second") if f"{name}:" in said}


def test_two_machines_two_servers_and_two_processes_train_together(played):
    ranks, tokens = played
    where = [[machines(row) for row in rows(ranks, step)] for step in range(STEPS)]
    errors = [[row["error"] for row in rows(ranks, step) if is_lost(row)] for step in range(STEPS)]
    print(f"tokens of the servers: {tokens}")
    for step in range(STEPS):
        counted = {name: sum(found == {name} for found in where[step]) for name in ("first", "second")}
        print(f"step {step}: episodes {counted}, lost {len(errors[step])}")
    assert min(tokens) > 0
    for rank in (0, 1):
        for step in range(LOST_IN):
            assert {"first"} in where[step][6 * rank : 6 * rank + 6]
            assert {"second"} in where[step][6 * rank : 6 * rank + 6]
    assert [len(rows(ranks, step)) for step in range(STEPS)] == [12] * STEPS


def test_groups_play_one_game_on_whatever_machines_its_members_are(played):
    ranks, _ = played
    for step in range(STEPS):
        tasks = [row["task"] for row in rows(ranks, step)]
        assert [len(set(tasks[start : start + 4])) for start in (0, 4, 8)] == [1, 1, 1]
        assert len(set(tasks)) == 3


def test_a_lost_machine_costs_its_own_episodes_and_nothing_else(played):
    ranks, _ = played
    for step in range(STEPS):
        lost = [row for row in rows(ranks, step) if is_lost(row)]
        if step == LOST_IN:
            assert 1 <= len(lost) < 12
            assert all(machines(row) <= {"second"} for row in lost), lost
        else:
            assert lost == []
    assert all(machines(row) == {"first"} for row in rows(ranks, STEPS - 1))


def test_every_row_that_is_trained_on_is_whole_and_the_loss_is_finite(played):
    ranks, _ = played
    for step in range(STEPS):
        for row in rows(ranks, step):
            assert len(row["completion_ids"]) == len(row["env_mask"]) == len(row["logprobs"])
            assert any(row["env_mask"]) or is_lost(row)
    losses = [entry["loss"] for entry in ranks[0]["logs"] if "loss" in entry]
    assert len(losses) == STEPS
    assert all(map(math.isfinite, losses))
