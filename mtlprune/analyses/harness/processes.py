"""Pools of processes in which analyses measure several runs, or several analyses run, in parallel."""

import _thread
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Lock
from typing import Any

import torch

from mtlprune.analyses.analysis import REPORTERS
from mtlprune.errors import load_blas
from mtlprune.runs.folder import RunError


@contextmanager
def processes(jobs: int, threads: int, **callbacks: Callable[..., None]) -> Iterator[ProcessPoolExecutor]:
    """Open a pool of processes that ends with this context; Ctrl-C ends it at once.

    Args:
        jobs: number of processes.
        threads: number of threads of each process.
        callbacks: the functions ``on_status`` and ``on_batch`` that show progress. If a process of the pool calls one
            of them on its request, a thread of this process calls it here, with the id of that process as ``process``.

    Raises:
        RunError: a process died, for example because memory ran out.
    """
    # A forked process would inherit OpenMP's thread pool in a broken state and hang in its first matrix product.
    context = multiprocessing.get_context("spawn")
    lock, (receiver, sender) = context.Lock(), context.Pipe(duplex=False)
    progress: tuple[Connection, Lock] | None = None
    if callbacks:
        with suppress(RuntimeError):  # with too little memory for a thread nothing reads the pipe, so nothing is sent
            _thread.start_new_thread(_receive, (receiver, callbacks))
            progress = sender, lock
    if progress is None:
        receiver.close()
    with sender, ProcessPoolExecutor(jobs, context, _begin, (threads, progress)) as pool:
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


def _receive(receiver: Connection, callbacks: Mapping[str, Callable[..., None]]) -> None:
    """Pass on the progress of all processes until they and this process have closed their ends of the pipe."""
    with suppress(EOFError, OSError), receiver:
        while True:
            process, name, arguments = receiver.recv()
            callbacks[name](*arguments, process=process)


def _send(sender: Connection, lock: Lock, name: str, *arguments: Any) -> None:
    with lock, suppress(OSError):  # the parent process has ended or shows no progress
        sender.send((os.getpid(), name, arguments))


def _begin(threads: int, progress: tuple[Connection, Lock] | None) -> None:
    """Prepare a process of the pool: ignore Ctrl-C, which the parent process handles, set the number of threads, and
    send its progress to the parent process.
    """
    if progress is not None:
        REPORTERS.update({name: partial(_send, *progress, name) for name in ("on_status", "on_batch")})
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
