"""Numbers as JSON has them: six digits, null where a number is not defined, short lists on one line."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np


def text(content: Mapping[str, Any]) -> str:
    """The whole of a JSON file."""
    return compact(json.dumps(plain(content), ensure_ascii=False, indent=1)) + "\n"


def plain(value: Any) -> Any:
    """JSON's own types, six digits, null for what is not finite."""
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, float | np.floating):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value


def compact(written: str) -> str:
    """Lists and objects that hold no others stand on one line each: a third of the size."""
    found = r"([\[{])\n\s*([^\[\]{}]*?)\n\s*([\]}])"
    return re.sub(found, lambda m: m[1] + re.sub(r"\n\s*", " ", m[2]) + m[3], written)


def numbers(value: Any) -> Any:
    """What was read, with NaN for null."""
    if isinstance(value, dict):
        return {key: numbers(part) for key, part in value.items()}
    if isinstance(value, list):
        return [numbers(part) for part in value]
    return math.nan if value is None else value
