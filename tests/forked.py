"""Processes forked from one that has loaded torch already, so that a test need not wait for that again and again."""

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["mtlprune.training.loop", "mtlprune.pretraining.loop", "transformers.models.bert.modeling_bert", "datasets"]
)


def start(target: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """A process that does this, begun."""
    tests = Path(__file__).parent  # it looks for our packages by itself, in whatever way pytest was started
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, (tests.parent, tests)))
    process = FORKS.Process(target=target, args=arguments, kwargs=named)
    process.start()
    return process
