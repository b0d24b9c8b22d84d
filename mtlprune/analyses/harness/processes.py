"""Processes of an analysis that work side by side, on runs or on whole analyses."""

import multiprocessing
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager

import torch

from mtlprune.errors import load_blas
from mtlprune.runs.folder import RunError


@contextmanager
def processes(jobs: int, threads: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of processes, which end with this context, at once where it ends by Ctrl-C.

    Args:
        threads: of each process.

    Raises:
        RunError: the system killed one of them.
    """
    # A forked process would inherit OpenMP's threads half-made and hang in its first product.
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits
    load_blas()
    torch.set_num_threads(threads)
