"""The fixtures themselves can fail."""

from __future__ import annotations

import threading

from tests.conftest import leaked_threads, our_threads


def test_a_thread_that_stays_is_a_leak() -> None:
    before = our_threads()
    release = threading.Event()
    thread = threading.Thread(target=release.wait, name="insitu-left-behind")
    thread.start()
    try:
        assert leaked_threads(before, grace=0.0) == ["insitu-left-behind"]
    finally:
        release.set()
        thread.join()


def test_a_thread_that_ends_in_time_is_none() -> None:
    before = our_threads()
    threading.Thread(target=lambda: None, name="insitu-short-lived").start()
    assert leaked_threads(before) == []


def test_threads_of_others_are_not_ours() -> None:
    release = threading.Event()
    thread = threading.Thread(target=release.wait, name="somebody-else")
    thread.start()
    try:
        assert thread not in our_threads()
    finally:
        release.set()
        thread.join()
