"""Reader of published probe accuracies, such as experiments/he-choi-2021/probes.csv, with which ours are compared."""

import io
from pathlib import Path

import pandas as pd

from mtlprune.io.files import RunError

_KEYS = ("encoder", "task", "label")


def read_published(against: str) -> tuple[dict[str, str], pd.DataFrame]:
    """Read the published numbers of one encoder from a CSV table.

    Args:
        against: FILE, or FILE:ENCODER if the table has several encoders. FILE alone selects the first encoder.

    Returns:
        a dictionary with the name of the encoder and the remarks (the lines at the top that begin with #), and the rows
        of the encoder, one for each task and label, with all cells as text.

    Raises:
        RunError: the table or the encoder does not exist, or the table lacks a column of _KEYS.
    """
    path, encoder = Path(against), ""
    if not path.is_file():
        name, _, encoder = against.rpartition(":")
        path = Path(name)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        remarks = [line.lstrip("# ") for line in lines if line.startswith("# ")]
        table = pd.read_csv(io.StringIO("\n".join(lines[len(remarks) :])), dtype=str, keep_default_na=False)
    except (OSError, ValueError):
        raise RunError(
            "against: expected a table of published numbers such as experiments/he-choi-2021/probes.csv, or "
            f"FILE:ENCODER, found {against!r}"
        ) from None
    if not {*table} >= {*_KEYS}:
        raise RunError(
            f"{path}: expected a CSV table with the columns {', '.join(_KEYS)}, found {', '.join(table)[:80]}"
        )
    names = list(table["encoder"].unique())
    table_name = next((name for name in names if name.lower() == (encoder or name).lower()), None)
    if table_name is None:
        raise RunError(f"{path}: expected one of {', '.join(names)}, found {encoder!r}")
    rows = table[table["encoder"] == table_name].drop(columns="encoder")
    return {"encoder": table_name, "remarks": " ".join(remarks)}, rows
