"""Two ranks under torchrun: each anchor once, equal steps, and the same again after one was killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import insitu_xr

pytestmark = pytest.mark.slow  # torch is imported in three processes, and again once one was killed

N, EPOCHS, WORLD = 41, 2, 2

#: A training script as people write it, without a sampler; one rank kills itself if told to.
SCRIPT = """
import json, os, signal, sys
from pathlib import Path
import torch, torch.distributed as dist
import insitu_xr

folder, kill_at = Path(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("gloo")
rank = dist.get_rank()
checkpoint, log = folder / f"checkpoint-{rank}.json", folder / f"log-{rank}.jsonl"

ds = insitu_xr.open_dataset(folder / "data.zarr")
loader = ds.insitu.loader(variables=["t"], batch_size=4, shuffle=True, seed=1)
batches = loader.to("torch")
restarted = checkpoint.exists()
if restarted:
    saved = json.loads(checkpoint.read_text())
    batches.load_state_dict(saved["batches"])
    step = saved["step"]
else:
    step = 0
while step < int(sys.argv[3]) * len(batches):
    for batch in batches:
        # As gradients are averaged: what hangs where one rank has fewer steps.
        total = torch.tensor([len(batch)])
        dist.all_reduce(total)
        with log.open("a") as file:
            file.write(json.dumps([step, batch.positions.tolist(), batch["t"][:, 0].tolist(), int(total)]) + "\\n")
        if not restarted and rank == 1 and step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        step += 1
        # All ranks save the same step, or none of them does.
        dist.barrier()
        scratch = checkpoint.with_suffix(".new")
        scratch.write_text(json.dumps({"step": step, "batches": batches.state_dict()}))
        dist.barrier()
        scratch.replace(checkpoint)
        dist.barrier()
loader.close()
dist.destroy_process_group()
"""


def prepare(folder: Path) -> None:
    """Write data and script."""
    values = np.arange(N * 3, dtype="f4").reshape(N, 3)
    times = np.datetime64("2000-01-01", "ns") + np.arange(N) * np.timedelta64(6, "h")
    ds = xr.Dataset({"t": (("time", "x"), values)}, {"time": times})
    ds.to_zarr(folder / "data.zarr", consolidated=False, encoding={"t": {"chunks": (5, 3)}})
    (folder / "train.py").write_text(SCRIPT)


def alone(folder: Path, rank: int) -> list[list[list[int]]]:
    """Positions of a rank by epoch and step, as this process finds them."""
    options = {"variables": ["t"], "batch_size": 4, "shuffle": True, "seed": 1}
    with insitu_xr.open_dataset(folder / "data.zarr").insitu.loader(**options, rank=rank, world_size=WORLD) as loader:
        return [[batch.positions.tolist() for batch in loader] for _ in range(EPOCHS)]


def under_torchrun(folder: Path, kill_at: int) -> subprocess.CompletedProcess[str]:
    """Train until the end, or until a rank is killed."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={WORLD}"]
    given = [str(folder / "train.py"), str(folder), str(kill_at), str(EPOCHS)]
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    return subprocess.run(
        [*torchrun, "--monitor-interval=0.1", *given],
        capture_output=True,
        text=True,
        timeout=250,
        env={**clean, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        check=False,
    )


@pytest.mark.timeout(550)
def test_ranks_share_an_epoch_and_a_killed_run_goes_on_exactly(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    prepare(tmp_path)
    expected = [alone(tmp_path, rank) for rank in range(WORLD)]
    steps = -(-(N // WORLD) // 4)
    for epoch in range(EPOCHS):
        assert [len(rank[epoch]) for rank in expected] == [steps, steps], "equal steps"
        drawn = Counter(k for rank in expected for batch in rank[epoch] for k in batch)
        assert set(drawn.values()) == {1}, "each anchor once across ranks"
        assert len(drawn) == N - N % WORLD, "all but those that cannot be divided"
    assert expected[0][0] != expected[0][1], "epochs differ"
    killed = steps + 1
    cut = under_torchrun(tmp_path, killed)
    assert cut.returncode != 0
    assert "exitcode: -9" in cut.stderr, cut.stderr[-4000:]
    done = under_torchrun(tmp_path, killed)
    assert done.returncode == 0, done.stderr[-4000:]
    texts = [(tmp_path / f"log-{rank}.jsonl").read_text() for rank in range(WORLD)]
    logs = [[json.loads(line) for line in text.splitlines()] for text in texts]
    for log, by_epoch in zip(logs, expected, strict=True):
        batches = [batch for epoch in by_epoch for batch in epoch]
        taken = Counter(line[0] for line in log)
        assert sorted(taken) == list(range(EPOCHS * steps)), "every step was taken"
        assert [step for step, times in taken.items() if times > 1] in ([], [killed]), "again only the one under way"
        for step, positions, values, total in log:
            assert positions == batches[step], "as without torchrun, before and after the kill"
            assert values == [3.0 * k for k in positions]
            assert total == WORLD * len(positions)
    assert len(logs[1]) == EPOCHS * steps + 1, "the rank that was killed took its step again"
