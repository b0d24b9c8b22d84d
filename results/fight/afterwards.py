"""What else the records of E1 to E4 say: looked at after the verdicts, not planned, without correction.

    python results/fight/afterwards.py results/fight results/claims/cross > results/fight/afterwards.md

Intervals and p are by t over training seeds alone (no resampling of sentences), unless a Result has them.
"""

import sys
from pathlib import Path

import numpy as np
from answer import of_seeds
from scipy import special, stats

from mtlprune.analyses.analysis import read
from mtlprune.analyses.heads.claims.maths import STEM_TASKS
from mtlprune.analyses.heads.cross.measure import PARTS
from mtlprune.evaluation.head_masks import Mask, head_names
from mtlprune.figures.grid import number, probability
from mtlprune.runs.claims import load_claims
from mtlprune.runs.folder import RunFolder
from mtlprune.runs.study import read_study

TASKS = {"pos": "accuracy", "ner": "f1", "dep": "las", "con": "f1", "srl": "f1"}
BF16 = Path("results/ewt5-minilm/records")
STABLE, MASC = Path("results/claims/records/stable"), Path("results/fight/records/masc")


def claims(study: Path, task: str) -> Mask:
    """(L, A): the heads that most stable runs of a task claim."""
    runs = np.stack([claim.open for claim in load_claims(sorted(read_study(study).paths(f"stable-{task}-*")))])
    return np.asarray(2 * runs.sum(0) > len(runs))


def with_interval(values: np.ndarray) -> str:
    """Mean, interval and p over seeds."""
    mean, low, high, p, _ = of_seeds(values)
    return f"{number(mean)} [{number(low)}, {number(high)}], p {probability(p)}"


def gaps(scarcity: Path, stems: Mask) -> None:
    """E1: the change of the gap by draw and on other scales; stem heads that each draw leaves open."""
    study = read_study(scarcity)
    scores = np.full((2, 2, 5, 5), np.nan)  # heads 72, 18; STL, MTL-5; task; seed
    draws: dict[int, tuple[str, Mask]] = {}
    for kind in ("72-own", "18-d"):
        for path in study.paths(f"{kind}*"):
            _, draw, name, seed, _ = path.name.split("-")
            if kind == "18-d":
                draws[int(seed)] = draw, load_claims([path])[0].open
            for task, row in RunFolder(path).read_scores("test").items():
                place = int(kind == "18-d"), int(name == "mtl5"), list(TASKS).index(task), int(seed) - 1
                scores[place] = row[TASKS[task]] / 100
    single, joint = scores[:, 0], scores[:, 1]  # (2, T, S)
    by_scale = {
        "points": 100 * (joint - single),
        "points of a hundred of the single task's score": 100 * (joint / single - 1),
        "logits": special.logit(joint) - special.logit(single),
    }
    print("## E1: the change of the gap with 18 heads against 72\n\n| in | mean of tasks | DEP |\n|:--|--:|--:|")
    for scale, gap in by_scale.items():
        change = gap[1] - gap[0]  # (T, S)
        print(f"| {scale} | {with_interval(change.mean(0))} | {with_interval(change[2])} |")
    change = (by_scale["points"][1] - by_scale["points"][0]).mean(0)
    print("\n| draw | seeds | change, points | stem heads open |\n|:--|:--|--:|--:|")
    means = []
    for draw in sorted({name for name, _ in draws.values()}):
        seeds = [seed for seed, (name, _) in draws.items() if name == draw]
        means.append(np.mean([change[seed - 1] for seed in seeds]))
        opened = draws[seeds[0]][1]
        shown = ", ".join(map(str, sorted(seeds)))
        print(f"| {draw} | {shown} | {number(means[-1])} | {int((opened & stems).sum())} of {int(stems.sum())} |")
    print(f"\nOver draws in the place of seeds: {with_interval(np.array(means))}.\n")


def roles(folder: Path, claimed: dict[str, Mask], stems: Mask) -> None:
    """E2: claims and stem heads among the heads that facilitate a task or interfere with one, by run."""
    result = read(folder, "roles")
    frame, keys = result.frames["heads"], ["seed", "task", "measure", "layer", "head"]
    always = frame.groupby(keys, sort=False)["value"].min().unstack(["layer", "head"]) > 0.5  # in all selections
    seeds = sorted(frame["seed"].unique())
    print("## E2: claims and roles\n")
    if withdrawn := result.withdrawn:
        print(f"{withdrawn[0]}\n")
    print("| claims of | heads | facilitate the task | heads that do |\n|:--|--:|--:|--:|")
    for task, mine in claimed.items():
        helps = [always.loc[seed, task, "facilitating"].to_numpy().reshape(mine.shape) for seed in seeds]
        both, all_ = (", ".join(str(int((mask & some).sum())) for mask in helps) for some in (mine, True))
        print(f"| {task.upper()} | {int(mine.sum())} | {both} | {all_} |")
    hinders = always.xs("interfering", level="measure").groupby("seed").any().to_numpy().reshape(-1, *stems.shape)
    named = "; ".join(", ".join(head_names(mask)) for mask in hinders)
    print(
        f"\nHeads that interfere with some task, by run: {named}. Of these are stem heads: {(hinders & stems).sum()}.\n"
    )


def carriers(folder: Path) -> None:
    """E3: of whose change random heads carry a tenth, too."""
    cells = read(folder, "exchange").frames["cells"].query("other == 'three or more'").set_index("task")
    shown = ", ".join(f"{task.upper()} {number(value)}" for task, value in cells["random"].items())
    print("## E3: what random heads carry\n")
    print(f"As many random heads of the stem heads' layers carry of the change, means over runs: {shown}.\n")


def shared(folder: Path) -> None:
    """What closing a task's shared heads costs others, by the task whose heads they are."""
    result = read(folder, "cross")
    cells = result.frames["cells"].query("encoder != other")
    sizes = result.frames["claimed"].query("value > 0").groupby(["other", "measure"]).size()
    print("## What closing heads costs other tasks, by whose heads they are\n")
    print("Claimed minus random heads closed, means over the other tasks, points.\n")
    print(f"| heads of | {' | '.join(PARTS)} |\n|:--|--:|--:|--:|")
    for label in map(str.upper, TASKS):
        mine = cells[cells["other"] == label].groupby("mode")["estimate"].mean()
        parts = [f"{number(mine[part])} ({sizes[label, part]})" if part in mine else "–" for part in PARTS]
        print(f"| {label} | {' | '.join(parts)} |")
    print("\nIn brackets how many heads. CON shares all of its heads, so they are not taken apart.\n")


def last_layer() -> None:
    """NER's claims in the last layer on two corpora, beside what two draws from the layer would share."""
    first, second = (claims(study, "ner")[-1] for study in (STABLE, MASC))
    common, chance = int((first & second).sum()), stats.hypergeom(len(first), first.sum(), second.sum())
    print(
        f"## NER's claims in the last layer\n\n{first.sum()} of {len(first)} heads on EWT5, {second.sum()} on MASC, "
        f"{common} on both; {number(chance.mean())} by chance (p {probability(chance.sf(common - 1))}, one-sided)."
    )


def precisions(scarcity: Path) -> None:
    """How far bf16 and fp32 runs of one setting and seed differ (the records of results/ewt5-minilm and E1)."""
    bf16 = {path.name.removeprefix("none-"): path for path in read_study(BF16).paths("none-*")}
    fp32 = {path.name.removeprefix("72-own-"): path for path in read_study(scarcity).paths("72-own-*")}
    print("\n## bf16 minus fp32\n\nPoints on test, seeds 1 to 3, MiniLM with all heads.\n")
    print("| runs | task | by seed |\n|:--|:--|--:|")
    for kind in (*TASKS, "mtl5"):
        names = sorted(name for name in bf16.keys() & fp32.keys() if name.startswith(f"{kind}-"))
        both = [[RunFolder(of[name]).read_scores("test") for name in names] for of in (bf16, fp32)]
        for task in both[0][0]:
            seeds = [one[task][TASKS[task]] - other[task][TASKS[task]] for one, other in zip(*both, strict=True)]
            print(f"| {kind} | {task.upper()} | {', '.join(map(number, seeds))} |")


def main(fight: str, cross: str) -> None:
    """Print all of it."""
    claimed = {task: claims(STABLE, task) for task in TASKS}
    stems = np.sum(list(claimed.values()), axis=0) >= STEM_TASKS
    print("# Looked at afterwards, not planned\n\nWithout correction; intervals and p over training seeds alone.\n")
    gaps(Path(fight, "records/scarcity"), stems)
    roles(Path(fight, "roles"), claimed, stems)
    carriers(Path(fight, "exchange"))
    shared(Path(cross))
    last_layer()
    precisions(Path(fight, "records/scarcity"))


if __name__ == "__main__":
    main(*sys.argv[1:])
