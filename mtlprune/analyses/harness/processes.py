"""Pools of processes in which analyses measure several runs, or several analyses run, in parallel."""

import _thread
import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress

import torch

from mtlprune.errors import load_blas
from mtlprune.runs.folder import RunError


@contextmanager
def processes(jobs: int, threads: int) -> Iterator[ProcessPoolExecutor]:
    """Open a pool of processes that ends with this context; Ctrl-C ends it at once.

    Args:
        jobs: number of processes.
        threads: number of threads of each process.

    Raises:
        RunError: a process died, for example because memory ran out.
    """
    # A forked process would inherit OpenMP's thread pool in a broken state and hang in its first matrix product.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, _begin, (threads,)) as pool:
        try:
            yield pool
        except BrokenProcessPool:
            raise RunError(
                "an analysis was killed, perhaps because memory ran out; --jobs 1 needs less memory"
            ) from None
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                for process in multiprocessing.active_children():
                    process.terminate()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _begin(threads: int) -> None:
    """Prepare a process of the pool: ignore Ctrl-C, which the parent process handles, and set the number of threads."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # `Thread.start` would wait forever for a thread that cannot start because memory is short.
    with suppress(RuntimeError):
        _thread.start_new_thread(_end_with_parent, ())
    load_blas()
    torch.set_num_threads(threads)


def _end_with_parent() -> None:
    """End this process as soon as its parent has ended, because a parent that is killed cannot end it."""
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)
