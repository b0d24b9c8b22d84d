"""The decoders, one file each, by the name that a configuration knows them by. Another is a file and a line here."""

from __future__ import annotations

from mtlprune.tasks.base import Task
from mtlprune.tasks.bio import BIO
from mtlprune.tasks.con import CON
from mtlprune.tasks.dep import DEP
from mtlprune.tasks.ner import NER
from mtlprune.tasks.pos import POS
from mtlprune.tasks.srl import SRL

TASKS: dict[str, type[Task]] = {task.name: task for task in (POS, NER, DEP, CON, SRL, BIO)}
