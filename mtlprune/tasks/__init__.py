"""The five tasks, one file each. A sixth is a file, a line here, and a row in the contract tests."""

from __future__ import annotations

from mtlprune.tasks.base import Task
from mtlprune.tasks.con import CON
from mtlprune.tasks.dep import DEP
from mtlprune.tasks.ner import NER
from mtlprune.tasks.pos import POS
from mtlprune.tasks.srl import SRL

TASKS: dict[str, type[Task]] = {"pos": POS, "ner": NER, "dep": DEP, "con": CON, "srl": SRL}
