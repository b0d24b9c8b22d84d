"""Print the comparisons of PLAN.md as Markdown, from the results of `mtlprune analyze dissection` in a folder.

python results/dissection/summary.py FOLDER
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from mtlprune.analyses.analysis import read
from mtlprune.analyses.vectors.dissection import LEARNT_MLM, MLM, SUBSETS


def interval(values: np.ndarray) -> str:
    """Format the mean over models or runs, in points, with Student's 95 % interval."""
    low, high = stats.ttest_1samp(values, 0).confidence_interval()
    return f"{values.mean():+.1f} [{low:+.1f}, {high:+.1f}]"


def masked_words(folder: Path, split: str) -> list[str]:
    """Tabulate the accuracy on masked words by subset of terms and by reader, and the planned comparison."""
    parts = [read(path, "dissection").wide("scores") for path in sorted(folder.glob(f"words-{split}-*"))]
    if len(parts) < 2:
        return []
    frame = pd.concat(parts, keys=range(len(parts)), names=["model", None]).reset_index("model")
    by_reader = {
        task: rows.pivot(index="model", columns="term", values="score") for task, rows in frame.groupby("task")
    }
    pretrained_head, learnt_head = 100 * by_reader[MLM], 100 * by_reader[LEARNT_MLM]
    lines = [f"## Masked words, {split} ({len(parts)} models)", "", "| terms | own head | learnt |", "|:--|--:|--:|"]
    for subset in SUBSETS:
        cells = [f"{side[subset].mean():.1f} ± {side[subset].std():.1f}" for side in (pretrained_head, learnt_head)]
        lines.append(f"| {subset or '∅'} | {' | '.join(cells)} |")
    for subset in ("f", "ihfc"):
        difference = interval((learnt_head - pretrained_head)[subset].to_numpy())
        lines += ["", f"On {subset} learnt minus own head is {difference} points."]
    return lines


def tuned_minus_pretrained(folder: Path) -> list[str]:
    """Tabulate macro F1 of NER of fine-tuned encoders minus that of the pretrained encoder."""
    if not (folder / "ner").is_dir():
        return []
    frame = read(folder / "ner", "dissection").wide("scores").query("task == 'ner'")
    scores = 100 * frame.pivot(index="name", columns="term", values="macro_f1")
    first = scores.loc["pretrained"]
    lines = ["## NER, macro F1 over tags", "", "| terms | pretrained | tuned − pretrained | joint − pretrained |"]
    lines.append("|:--|--:|--:|--:|")
    for subset in SUBSETS[1:]:
        sides = [scores[[name.startswith(label) for name in scores.index]][subset] for label in ("NER", "MTL-5")]
        cells = [interval((side - first[subset]).to_numpy()) for side in sides]
        lines.append(f"| {subset} | {first[subset]:.1f} | {' | '.join(cells)} |")
    return lines


def single_minus_joint(folder: Path) -> list[str]:
    """Tabulate the scores of single-task encoders minus those of joint encoders, over seeds."""
    frames = [
        read(folder / name, "dissection").with_names("losses") for name in ("seeds", "ner") if (folder / name).is_dir()
    ]
    frame = pd.concat([frame for frame in frames if "task" in frame]) if frames else pd.DataFrame()
    if frame.empty:
        return []
    tasks = list(dict.fromkeys(frame["task"]))
    lines = ["## Single-task minus joint", "", f"| terms | {' | '.join(task.upper() for task in tasks)} |"]
    lines.append(f"|:--|{'--:|' * len(tasks)}")
    for subset in ("h", "f", "ihfc"):
        rows = frame[frame["term"] == subset]
        cells = [interval(100 * rows.loc[rows["task"] == task, "value"].to_numpy()) for task in tasks]
        lines.append(f"| {subset} | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    root = Path(sys.argv[1])
    parts = [
        masked_words(root, "train"),
        masked_words(root, "dev"),
        tuned_minus_pretrained(root),
        single_minus_joint(root),
    ]
    sys.stdout.write("\n\n".join("\n".join(part) for part in parts if part) + "\n")
