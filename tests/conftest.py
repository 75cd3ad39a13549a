"""Profiles, and what no test may leave behind."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# Shared machines stall: a deadline would fail a test for what its neighbours do.
settings.register_profile(
    "ci", deadline=None, derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("explore", settings.get_profile("ci"), derandomize=False, max_examples=1000)
settings.load_profile("ci")

_GRACE_SECONDS = 5.0


def our_threads() -> set[threading.Thread]:
    """Return the living threads that belong to insitu_xr, which names each of them."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("insitu")}


def leaked_threads(before: set[threading.Thread], grace: float = _GRACE_SECONDS) -> list[str]:
    """Name the threads that were not there ``before`` and do not end within ``grace`` seconds."""
    deadline = time.monotonic() + grace
    for thread in our_threads() - before:
        thread.join(max(0.0, deadline - time.monotonic()))
    return sorted(thread.name for thread in our_threads() - before)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the modules that hold slow tests: with `--dist loadfile`, one begun last is waited for."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="module", autouse=True)
def garbage_is_told_where_it_was_made() -> Iterator[None]:
    """Collect what a module leaves when it ends, so that a warning about it fails that module and no other.

    What there is when a module begins is set aside for good. No collection looks at it any more, which also makes each
    of them as quick as in a young process.
    """
    gc.freeze()
    yield
    gc.collect()


@pytest.fixture(autouse=True)
def no_thread_left_behind() -> Iterator[None]:
    """Fail a test that leaves a thread of ours running."""
    before = our_threads()
    yield
    leaked = leaked_threads(before)
    assert not leaked, f"threads left behind: {leaked}"


@pytest.fixture(params=["slots", "spread"])
def placement(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Decide where chunks go: what large rows would do is done by rows of any size, or by none."""
    from insitu_xr.plan import spread

    monkeypatch.setattr(spread, "ROW_BYTES", 0 if request.param == "spread" else 1 << 60)
    return str(request.param)
