"""One background thread that reads and copies states, so that the engine's loop does not."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable


class Loader:
    """Runs jobs one after the other, in the order they came, in a daemon thread that the first one starts.

    A job must not raise. The thread knows nothing but the jobs, so that their owner can be collected between them.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._jobs: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def submit(self, job: Callable[[], None]) -> None:
        """Queue a job; RuntimeError if no thread can be started."""
        with self._changed:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="pss-state-loader", daemon=True)
                thread.start()
                self._thread = thread
            self._jobs.append(job)
            self._changed.notify()

    def close(self) -> None:
        """Drop the queued jobs, wait for the one that runs, end the thread."""
        with self._changed:
            self._is_closed = True
            self._jobs.clear()
            self._changed.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._is_closed)
                if self._is_closed:
                    return
                job = self._jobs.popleft()
            job()
            del job
