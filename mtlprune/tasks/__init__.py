"""The decoders. Another is a file, a line here and one in config/decoders.py, or an entry point of an installed
package."""

from mtlprune.config.decoders import DECODERS
from mtlprune.tasks.base import Task
from mtlprune.tasks.con import CON
from mtlprune.tasks.dep import DEP
from mtlprune.tasks.linear import BIO, POS
from mtlprune.tasks.ner import NER
from mtlprune.tasks.sentence import LABEL, LABELS, NUMBER
from mtlprune.tasks.srl import SRL

TASKS: dict[str, type[Task]] = {task.name: task for task in (POS, NER, DEP, CON, SRL, BIO, LABEL, NUMBER, LABELS)}
"""Our decoders by name."""


def decoder_class(name: str) -> type[Task]:
    """The decoder of a name that a configuration gives, ours or one of an installed package."""
    task: type[Task] = TASKS[name] if name in TASKS else DECODERS[name]
    return task
