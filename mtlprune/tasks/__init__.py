"""The decoders that predict layers of annotation from the encoder's vectors.

A new decoder needs a file in this package, an entry in ``TASKS`` and an entry in ``config/decoders.py``. Instead, an
installed package can offer a decoder by an entry point of the group ``mtlprune.tasks`` (docs/guides/adding_a_task.md).
"""

from mtlprune.config.decoders import DECODERS
from mtlprune.tasks.base import Task
from mtlprune.tasks.con import CON
from mtlprune.tasks.dep import DEP
from mtlprune.tasks.linear import BIO, POS
from mtlprune.tasks.ner import NER
from mtlprune.tasks.sentence import LABEL, LABELS, NUMBER
from mtlprune.tasks.srl import SRL

TASKS: dict[str, type[Task]] = {task.name: task for task in (POS, NER, DEP, CON, SRL, BIO, LABEL, NUMBER, LABELS)}
"""The built-in decoders by name."""


def decoder_class(name: str) -> type[Task]:
    """Return the decoder class that a configuration calls ``name``, from this package or an installed one."""
    task: type[Task] = TASKS[name] if name in TASKS else DECODERS[name]
    return task
