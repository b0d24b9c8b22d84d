"""The decoders, by the name that a configuration knows them by. Another is a file and a line here, or
an entry point of an installed package."""

from importlib.metadata import EntryPoint

from mtlprune.io.plugins import Registry
from mtlprune.tasks.base import Task
from mtlprune.tasks.con import CON
from mtlprune.tasks.dep import DEP
from mtlprune.tasks.linear import BIO, POS
from mtlprune.tasks.ner import NER
from mtlprune.tasks.srl import SRL


def _decoder(point: EntryPoint) -> type[Task]:
    """The class that a package names. Raises TypeError where it is no decoder of that name."""
    task = point.load()
    if not (isinstance(task, type) and issubclass(task, Task) and task.name == point.name):
        raise TypeError(f"expected a subclass of mtlprune.tasks.base.Task with the name {point.name!r}")
    return task


_BUILT_IN: dict[str, type[Task]] = {task.name: task for task in (POS, NER, DEP, CON, SRL, BIO)}
TASKS = Registry(_BUILT_IN, "mtlprune.tasks", _decoder)
