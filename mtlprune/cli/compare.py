"""`mtlprune compare`: compares single-task with joint training on any corpus, and writes an HTML report."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from mtlprune.cli.console import INTERRUPTED, Overrides, Slurm, console, show_document
from mtlprune.config import apply_override, rates_remark
from mtlprune.corpora.store import read_info
from mtlprune.errors import plural, refuse_launcher
from mtlprune.io.files import (
    RunError,
    make_room,
    read_yaml,
    reading,
    remove,
    remove_temporary_paths,
    temporary_paths,
    write_text,
)
from mtlprune.sweeps.compare import ANALYSES, FILE, PROBES, RUNS

if TYPE_CHECKING:
    from rich.console import Console

    from mtlprune.sweeps.cells import Sweep
    from mtlprune.sweeps.compare import Effort

_MOST_JOBS, _LEAST_MEMORY = 4, 2e9
"""Largest number of parallel runs on a CPU, because more runs with fewer threads each are hardly faster on small
batches, and the smallest number of bytes of memory that is reserved for each run."""
_RUN_MEGABYTES = 3
"""Size of a finished run without its weights, in MB."""
_PAGE, _TABLE = "report.html", "table.md"
"""Names of the report and the table in the folder of a comparison."""

Jobs = Annotated[
    int | None,
    typer.Option(
        min=1, help="Number of runs that are trained at once (as many as cores, memory and GPUs allow, if not given)."
    ),
]
_DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show the runs, their time and their disk space, without training.")
]
KeepWeights = Annotated[
    bool | None,
    typer.Option(
        "--keep-weights/--drop-weights",
        help="Keep or remove the weights at the end (if not given, weights of less than 2 GB in total are kept).",
        show_default=False,
    ),
]
MAX_WEIGHT_BYTES = 2e9
"""Weights are kept by default if those of all runs take fewer bytes than this."""


def compare(
    corpus: Annotated[Path, typer.Argument(help="Folder of a corpus with train, dev and test.")],
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for runs, table and report.")] = Path("compare"),
    tasks: Annotated[
        str | None, typer.Option(metavar="TASK,...", help="Two or more tasks (all layers of the corpus, if not given).")
    ] = None,
    seeds: Annotated[str, typer.Option(metavar="N,...", help="Seeds with which every run is repeated.")] = "1,2,3",
    pairs: Annotated[bool, typer.Option("--pairs", help="Also train every pair of tasks jointly.")] = False,
    jobs: Jobs = None,
    slurm: Slurm = None,
    dry_run: _DryRun = False,
    keep_weights: KeepWeights = None,
) -> None:
    """Compare single-task with joint training, and test whether shared heads explain the difference.

    The command trains a single-task run of each task and a joint run of all tasks. In each finished run the command
    selects the heads on which random halves of the data agree. The command then measures how much each task loses when
    the selected heads are closed, probes heads before and after training, and writes OUT/report.html. If it is
    interrupted, run the same command again to continue.
    """
    from mtlprune.sweeps.compare import EFFORT, parse_seeds

    request = ComparisonRequest(corpus, out, tasks, parse_seeds(seeds), overrides or [], pairs, EFFORT)
    run(request, console(), jobs, dry_run, keep_weights, slurm)


@dataclass(frozen=True)
class ComparisonRequest:
    """The arguments and options that define a comparison, from `mtlprune compare` or `mtlprune quickstart`."""

    corpus: Path
    out: Path
    tasks: str | None
    seeds: Sequence[int]
    overrides: Sequence[str]
    pairs: bool
    effort: Effort
    title: str = ""


def run(
    request: ComparisonRequest,
    terminal: Console,
    jobs: int | None = None,
    dry_run: bool = False,
    keep_weights: bool | None = None,
    slurm: Sequence[str] | None = None,
) -> None:
    """Run the missing steps of a comparison (training, analyses, report), and print the table of scores."""
    from mtlprune.cli.display import duration, working
    from mtlprune.cli.sweep import cluster_options_of, list_cells, run_cells, submit_cells
    from mtlprune.sweeps.compare import choose_tasks, settings_of

    began = time.monotonic()
    if slurm is None and not dry_run:
        refuse_launcher()
    # In `--tasks pos dep` the word dep is read as an override. We check overrides first, because otherwise the error
    # would be that a single task cannot be compared.
    for override in request.overrides:
        apply_override({}, override)
    cluster_options = cluster_options_of(slurm)
    make_room(request.out)
    info = read_info(request.corpus)
    tasks = choose_tasks(request.corpus, info, request.tasks)
    settings = settings_of(request.corpus, info, tasks, request.overrides)
    seeds = f"seed{'s' if len(request.seeds) > 1 else ''} {', '.join(map(str, request.seeds))}"
    terminal.print(f"comparing {', '.join(tasks)} of {request.corpus}, {seeds} ...")

    from mtlprune.sweeps.cells import resolve
    from mtlprune.sweeps.compare import rough_analyses, sweep_tree
    from mtlprune.sweeps.specification import parse_specification

    tree = sweep_tree(settings, tasks, request.seeds, request.pairs, _heads(request), request.effort)
    sweep = resolve(parse_specification(request.out / FILE, tree), request.out / RUNS)
    if remark := rates_remark(request.effort.base, request.overrides):
        terminal.print(remark)
    # Jobs of a cluster do not run here, so their number and device do not depend on this machine.
    at_once = jobs or (_jobs(sweep) if slurm is None else len(sweep.cells))
    finished = _check_place(request.out, sweep, tree)
    if dry_run:
        list_cells([(sweep, sweep.cells)], at_once, terminal, rough_analyses(sweep.cells, request.effort))
        terminal.print(f"disk: about {_RUN_MEGABYTES * len(sweep.cells):,} MB, and weights")
    keep_weights, weights = _fate_of_weights(sweep, keep_weights)
    terminal.print(weights)
    if dry_run:
        return
    if not finished:  # results of an earlier call were computed from fewer runs
        remove(request.out / _PAGE, request.out / _TABLE)
        for folder in (ANALYSES, PROBES):
            shutil.rmtree(request.out / folder, ignore_errors=True)
    for place in (request.out, sweep.root):
        remove_temporary_paths(place)
    sweep.write_index()  # the first file that is written, because `_check_place` recognises a stopped comparison by it
    write_text(request.out / FILE, yaml.safe_dump(tree, sort_keys=False, allow_unicode=True))
    if cluster_options is not None:
        submit_cells(sweep, sweep.cells, cluster_options, jobs, terminal)
        terminal.print("when these jobs are done, the same command without --slurm writes the report")
        return
    run_cells(sweep.cells, at_once, terminal)
    try:
        notes = _measure(sweep, request, at_once, terminal)
        with working("tests, table and page", terminal):
            text = _show(sweep, request, notes)
    except KeyboardInterrupt:
        terminal.print("stopped; run the same command again to continue")
        raise typer.Exit(INTERRUPTED) from None
    for cell in () if keep_weights else sweep.cells.values():
        cell.place.run.drop_weights()
    show_document(f"\n{text}\n")
    terminal.print(f"{request.out / _TABLE}, after {duration(time.monotonic() - began)}")
    terminal.print(weights)
    terminal.print(f"report with everything: {(request.out / _PAGE).resolve().as_uri()}")


# -- before training ---------------------------------------------------------------------------------------------------


def _heads(request: ComparisonRequest) -> int:
    """Return the number of the encoder's heads. Raises EncoderError or ConfigError if the settings are invalid."""
    from mtlprune.config.config import load_config
    from mtlprune.encoder.model import Encoder

    encoder = load_config(request.effort.base, request.overrides).encoder
    hooks = Encoder.load(encoder.name, revision=encoder.revision, random=True).head_hooks
    return hooks.layers * hooks.heads


def _jobs(sweep: Sweep) -> int:
    """Return the default number of parallel runs: the number of GPUs, or as many as cores and memory allow.

    Raises:
        RunError: the device of the settings is not available.
    """
    from mtlprune.sweeps.pool import cores, visible_gpus
    from mtlprune.sweeps.times import rough_memory
    from mtlprune.training.hardware import resolve_auto

    config = next(iter(sweep.cells.values())).config
    if resolve_auto(config).train.device != "cpu":
        return max(1, len(visible_gpus()))
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(cores(), _MOST_JOBS, int(memory / max(_LEAST_MEMORY, rough_memory(config)))))


def refuse_foreign_files(out: Path) -> None:
    """Raise RunError if a folder contains files that a comparison does not leave before it writes its index."""
    # A process that is killed before it writes the index leaves at most partial files, the corpus of a quickstart and
    # an empty folder of runs. All other files belong to somebody else.
    beginnings = {"corpus", *(path.name for path in temporary_paths(out)), *([] if _holds_more(out / RUNS) else [RUNS])}
    if foreign := sorted({path.name for path in out.iterdir()} - beginnings) if out.is_dir() else []:
        raise RunError(f"{out}: expected a comparison or an empty folder, found {foreign[0]}; name another --out")


def _check_place(out: Path, sweep: Sweep, tree: dict[str, Any]) -> bool:
    """Return True if all runs of a comparison are done.

    Raises:
        RunError: ``out`` contains other files or another comparison, or it is a comparison that cannot be continued.
    """
    from mtlprune.sweeps.folder import INDEX, read_index
    from mtlprune.sweeps.pool import states

    indexed = (sweep.root / INDEX).is_file()
    # Without the index, which can be restored, a comparison with the same sweep is continued, too.
    is_resumed = indexed or ((out / FILE).is_file() and read_yaml(out / FILE) == tree)
    if not is_resumed:
        refuse_foreign_files(out)
    before = {cell["digest"] for cell in read_index(sweep.root)["cells"].values()} if indexed else set()
    if before - {cell.digest for cell in sweep.cells.values()}:
        raise RunError(
            f"{out}: expected the comparison of these settings and data, found one of other "
            f"{_describe_changes(out, tree)}. Name another --out"
        )
    left = [name for name, cell_state in states(sweep.cells.values()).items() if cell_state.kind != "done"]
    places = [cell.place for cell in sweep.cells.values()]
    if left and any(place.run.is_finished() and not place.run.keeps_weights() for place in places):
        cause = next(filter(None, (sweep.cells[name].place.why_unusable() for name in left)), "")
        raise RunError(
            f"{out} lacks {', '.join(left[:3])}{cause and f' ({cause})'}, and its other runs have no weights, because "
            f"--keep-weights was not given; {'restore that file, or ' if cause else ''}name another --out"
        )
    return not left


def _holds_more(folder: Path) -> bool:
    """Return True if a folder contains anything but partial files that a killed process was writing."""
    return folder.exists() and (not folder.is_dir() or {*folder.iterdir()} != {*temporary_paths(folder)})


def _describe_changes(out: Path, tree: dict[str, Any]) -> str:
    """Describe how the settings of the comparison in ``out`` differ from those of the sweep in ``tree``."""
    from mtlprune.config import find_config, merged, read_tree
    from mtlprune.config.config import build_config
    from mtlprune.runs.settings import changes
    from mtlprune.training.setup import FREE

    trees = []
    with reading(out / FILE, RunError, "name another --out"):
        for sweep in (read_yaml(out / FILE), tree):
            config = build_config(merged(read_tree(find_config(sweep["base"])), sweep["settings"]), str(out / FILE))
            pairs = any(name.startswith("pair-") for name in sweep["grid"]["run"])
            trees.append(config.model_dump(mode="json") | {"--seeds": sweep["grid"]["seed"], "--pairs": pairs})
    differences = "; ".join(changes(trees[0], trees[1], FREE))
    if differences.startswith("--seeds") and ";" not in differences:
        seeds = dict.fromkeys([*trees[0]["--seeds"], *trees[1]["--seeds"]])
        differences += f"; --seeds {','.join(map(str, seeds))} adds runs to the comparison"
    return f"settings: {differences}" if differences else "data, or of another version of mtlprune"


def _fate_of_weights(sweep: Sweep, keep: bool | None) -> tuple[bool, str]:
    """Decide whether weights are kept, and return the decision with a line that reports it.

    The line matters because seeds cannot be added to a comparison whose weights were removed.
    """
    from mtlprune.sweeps.times import shape_of

    size = sum(4.0 * shape_of(cell.config.encoder.name).weights for cell in sweep.cells.values())
    removed_before = any(cell.place.finished() and not cell.place.run.keeps_weights() for cell in sweep.cells.values())
    keep = size < MAX_WEIGHT_BYTES and not removed_before if keep is None else keep
    if removed_before:
        fate = "removed by an earlier call; --keep-weights and another --out train runs that keep them"
    elif keep:
        fate = "kept"
    else:
        fate = "removed at the end; --keep-weights keeps the weights for predict, export and further seeds"
    return keep, f"weights of {plural(len(sweep.cells), 'run')} in {sweep.root}, about {size / 1e6:,.0f} MB: {fate}"


# -- after training ----------------------------------------------------------------------------------------------------


def _measure(sweep: Sweep, comparison: ComparisonRequest, jobs: int, terminal: Console) -> list[str]:
    """Run the analyses whose results are missing, in parallel, and return notes on tasks that are left out."""
    from mtlprune.analyses.analysis import find
    from mtlprune.cli.display import working
    from mtlprune.sweeps.pool import cores
    from mtlprune.training.hardware import resolve_auto

    notes: list[str] = []
    train = resolve_auto(next(iter(sweep.cells.values())).config).train
    threads = train.threads if train.threads == 1 else max(1, cores() // jobs)
    left = {
        name: (folder, threads, {"corpus": comparison.corpus, "device": train.device, **request})
        for name, (folder, request) in _requests(sweep, comparison, notes)
        if not (folder / f"{name}.json").is_file()
    }
    if jobs < 2:
        for name, measure_request in left.items():
            with working(find(name).title, terminal):
                terminal.print(_measure_one(name, *measure_request))
    elif left:
        from mtlprune.analyses.harness.processes import processes

        waits = working(", ".join(find(name).title for name in left), terminal)
        with waits, processes(jobs, threads) as pool:
            # An analysis that distributes its runs over the pool is run in this process, which waits for them. Every
            # other analysis is one task of the pool.
            shared = [name for name in left if "processes" in find(name).needs]
            tasks = [pool.submit(_measure_one, name, *left[name]) for name in left if name not in shared]
            for name in shared:
                terminal.print(_measure_one(name, *left[name], pool))
            for task in as_completed(tasks):
                terminal.print(task.result())
    return notes


def _requests(
    sweep: Sweep, request: ComparisonRequest, notes: list[str]
) -> Iterator[tuple[str, tuple[Path, dict[str, Any]]]]:
    """Yield (analysis, (folder of its result, fields of its Request)), with the slowest analyses first.

    Notes on tasks that an analysis leaves out are appended to ``notes``.
    """
    from mtlprune.analyses.heads.claims import ClaimsOptions
    from mtlprune.analyses.heads.cross import CrossOptions
    from mtlprune.analyses.probes import ATTENTION, CENTROID, ProbeOptions
    from mtlprune.config.decoders import DECODERS
    from mtlprune.runs.claims import group, load_claims
    from mtlprune.sweeps.compare import HEADS, NO_ENCODER

    config, effort = next(iter(sweep.cells.values())).config, request.effort
    runs = {name: str(cell.place.run.path) for name, cell in sweep.cells.items()}
    single_task_runs = [run for name, run in runs.items() if name.startswith("stl-")]
    joint = [run for name, run in runs.items() if name.startswith("mtl-")]
    selected = [run for name, run in runs.items() if name.startswith(HEADS)]
    groups = group(load_claims(selected))
    selective_groups = [
        run_group for run_group in groups if run_group.claimed_by_most.any() and not run_group.claimed_by_most.all()
    ]
    if without_claims := [run_group.label for run_group in groups if run_group not in selective_groups]:
        notes.append(
            f"No head is claimed for {', '.join(without_claims)}, so no heads were closed for the claims of these "
            "tasks."
        )
    closed = [Path(claim.run) for run_group in selective_groups if not run_group.joint for claim in run_group.claims]
    if closed:
        sample = {"split": "dev", "sentences": effort.cross, "claims": closed}
        yield (
            "cross",
            (
                request.out / ANALYSES,
                {"names": single_task_runs, "options": CrossOptions(draws=effort.draws), **sample},
            ),
        )
    names = [
        *([] if config.encoder.random else [config.encoder.name]),
        *joint,
        *(single_task_runs if effort.probe_alone else []),
    ]
    full_config = sweep.cells[NO_ENCODER].config
    probed = [task for task in full_config.tasks if DECODERS[full_config.decoder(task)].kind in (*ATTENTION, *CENTROID)]
    if unprobed := [task for task in full_config.tasks if task not in probed]:
        notes.append(
            f"Heads are not probed for {', '.join(unprobed)}, because numbers and sets of labels are not classes."
        )
    if probed:
        options = ProbeOptions(train_sentences=effort.probes, layers=",".join(probed), random_encoder=False)
        yield "probes", (request.out / PROBES, {"names": names, "options": options})
    yield "claims", (request.out / ANALYSES, {"names": selected, "options": ClaimsOptions()})


def _measure_one(
    name: str, folder: Path, threads: int, request: dict[str, Any], pool: ProcessPoolExecutor | None = None
) -> str:
    """Run one analysis, write its result, and return a line that reports it."""
    import torch

    from mtlprune.analyses.analysis import Request, find
    from mtlprune.cli.display import duration
    from mtlprune.runs.results import write_result

    began = time.monotonic()
    torch.set_num_threads(threads)
    write_result(folder, find(name).measure(Request(**request, pool=pool)))
    return f"{find(name).title}: {plural(len(request['names']), 'encoder')}, {duration(time.monotonic() - began)}"


def _show(sweep: Sweep, request: ComparisonRequest, notes: Sequence[str]) -> str:
    """Write the table and the report if one of them is missing, and return the table as Markdown.

    On a terminal, narrow tables precede it, because the whole table may be too wide.
    """
    from mtlprune.cli.show import gold_of, keep_majority, majority_of, with_narrow_tables
    from mtlprune.reports.page import Choices, Sources, report
    from mtlprune.reports.scores.comparisons import compare as compare_runs
    from mtlprune.reports.scores.comparisons import with_tests
    from mtlprune.reports.scores.tables import markdown
    from mtlprune.sweeps.compare import HEADS

    table, page = request.out / _TABLE, request.out / _PAGE
    runs = {name: cell.place.run for name, cell in sweep.cells.items()}
    trained = [run for name, run in runs.items() if not name.startswith(HEADS)]
    keep_majority(request.out / RUNS, trained[0], ["test"], request.corpus)
    comparison = with_tests(compare_runs(trained, "test", {"majority": majority_of(trained[0], "test")}))
    text = markdown(comparison)
    if not (table.is_file() and page.is_file()):
        write_text(table, text)
        analyses = [request.out / ANALYSES]
        probes = [request.out / PROBES] if (request.out / PROBES).is_dir() else []
        sources = Sources(list(runs.values()), probes, analyses, notes, majority_of)
        write_text(page, report(sources, Choices(request.title), gold_of(None)))
    return with_narrow_tables(comparison, text)
