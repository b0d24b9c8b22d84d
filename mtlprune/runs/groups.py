"""Groups of runs that differ only in their seeds: the properties of a run, titles of groups, and differing settings.

Tables, maps, claims, reports, probes and treatments describe runs with this module:

    run = DescribedRun.read(RunFolder("runs/pos-1"))
    run.tasks, run.seed, run.encoder, run.pruning      # ("pos",), 1, "minilm", "36 heads by gates"
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar

from mtlprune.config.blocks import HeadsConfig, TreatmentConfig
from mtlprune.config.config import Config, build_config
from mtlprune.errors import plural
from mtlprune.io.block import Block
from mtlprune.io.files import from_here
from mtlprune.layers import in_order, layer_order
from mtlprune.runs.folder import RunFolder
from mtlprune.runs.settings import flat, is_ignored

SHARED = "shared"
"""Key of the gate set of a run in which all tasks share the gates."""
PRUNING, TREATMENT, TRAINED_WITH = ("pruning.", "heads removed"), "treatment.", ("tasks", "decoders", "train.freeze")
"""Prefixes of the settings that a group's label already shows: pruning, treatment, and which tasks were trained."""


# -- names of encoders, tasks, pruning and treatments ------------------------------------------------------------------


def encoder_name(name: str, random: bool = False, context: bool = True) -> str:
    """Return the displayed name of an encoder, such as "minilm, random weights, no context"."""
    return f"{from_here(name)}{', random weights' * random}{', no context' * (not context)}"


def same_encoder(first: str, second: str) -> bool:
    """Return True if two names mean the same encoder. A folder can have several names, such as enc/x and ./enc/x."""
    return Path(first).expanduser().resolve() == Path(second).expanduser().resolve()


def task_labels(runs: Sequence[Sequence[str]]) -> list[str]:
    """Return a label for each run by its tasks, such as POS, POS+DEP or MTL-5; "" for a run without tasks.

    Runs of k ≥ 3 tasks are labelled MTL-k, unless runs with different sets of k tasks occur. These are labelled by
    the names of their tasks.
    """
    of_size = {size: {tuple(tasks) for tasks in runs if len(tasks) == size} for size in map(len, runs)}
    return [
        f"MTL-{len(tasks)}" if len(tasks) > 2 and len(of_size[len(tasks)]) == 1 else "+".join(tasks).upper()
        for tasks in runs
    ]


def is_joint(label: str) -> bool:
    """Return True if a label is one of runs with several tasks, such as POS+DEP, MTL-5 or MTL-5:POS."""
    return "+" in label or ":" in label or label.startswith("MTL-")


def label_order(label: str) -> tuple[bool, int, str, int, str]:
    """Return a key that sorts labels: single tasks in the order of a sentence's layers, then joint labels by size."""
    shared, _, task = label.partition(":")
    size = int(shared[4:]) if shared.startswith("MTL-") else shared.count("+") + 1
    name = task or shared
    layer = -1 if is_joint(name) else layer_order(name.lower())[0]
    return is_joint(label), size, shared if task else "", layer, name


def pruning_title(config: Config) -> str:
    """Describe the pruning of a run's heads in a few words, such as "36 heads by gates"; "" without pruning."""
    settings = config.pruning
    method, keep = settings.method, settings.keep
    if method == "none":
        return ""
    if method == "random":
        return "random heads" if keep is None else plural(keep, "random head")
    if method == "given":
        return "separate given heads for each task" if settings.sets == "per_task" else "given heads"
    if method == "stable":
        return f"stable heads by {settings.selector}, {keep} in each half"
    how: str = method
    if settings.learns:
        how = "gates" if method == "gates" else "top-K gates"
        how = f"separate {how} for each task" if settings.sets == "per_task" else how
        how = f"static {how}" if config.prunes_statically else how
    count_words = f"{plural(keep, 'head')} by " if keep is not None else "heads by "
    penalty = f", λ {settings.strength:g}" if method == "gates" and settings.penalty == "lambda" else ""
    return count_words + how + penalty


def treatment_title(treatment: TreatmentConfig) -> str:
    """Describe the treatments of a run in a few words, such as "clone of random heads"; "" without treatments."""
    titles = []
    for name, options in treatment.chosen_treatments.items():
        heads = getattr(options, "heads", None)
        way = _choice(heads) if isinstance(heads, HeadsConfig) and getattr(options, "at", "") != "features" else ""
        titles.append(name + treatment_way(options) + (f" of {way} heads" if way else ""))
    return ", ".join(titles)


def _choice(heads: HeadsConfig) -> str:
    """Return the word for how the heads of a treatment are chosen, such as "claimed" or "random"."""
    ways = {"named": "named", "per_task": "each task's", "claims": "claimed"}
    return next((words for key, words in ways.items() if getattr(heads, key)), heads.rule or "")


def treatment_way(options: Block) -> str:
    """Describe the settings of a treatment apart from its heads, such as " by ties" or " from POS+NER"."""
    words = {"method": " by {}", "at": " at {}", "rank": " of rank {}"}
    text = "".join(form.format(value) for name, form in words.items() if (value := getattr(options, name, None)))
    tasks = getattr(options, "tasks", None)
    return text + (f" from {'+'.join(tasks).upper()}" if tasks else "")


# -- settings that distinguish groups ----------------------------------------------------------------------------------


def differing_settings(runs: Iterable[Any]) -> list[str]:
    """Return the paths of the settings in which runs, or claims of runs, differ, sorted."""
    values: dict[str, set[str]] = {}
    run_list = list(runs)
    for path in {path for run in run_list for path in run.settings}:
        values[path] = {repr(run.settings.get(path)) for run in run_list}
    return sorted(path for path in values if len(values[path]) > 1)


def untreated(run: Any) -> dict[str, Any]:
    """Return the values of a run's settings by path, without the settings of treatments."""
    return {path: value for path, value in run.settings.items() if not path.startswith(TREATMENT)}


# -- one run -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class DescribedRun:
    """A run with the properties that its configuration and manifest describe. Both files are read only once.

    Attributes:
        config: the configuration of the run. For a run whose closed heads were removed it is the configuration of the
            source run with the name and the tasks of this run, because the seeds of a group share these settings.
        manifest: content of manifest.json.
    """

    folder: RunFolder
    config: Config
    manifest: Mapping[str, Any]

    @classmethod
    def read(cls, folder: RunFolder) -> DescribedRun:
        """Read the configuration and the manifest of a run.

        For a run without its removed heads, the configuration is that of the original run, with the new name and tasks.

        Raises:
            RunError: the configuration or the manifest is missing or damaged.
        """
        config, manifest = folder.config, folder.read_manifest()
        if pruned := manifest.get("pruned"):
            source = build_config(pruned["config"], f"{folder.path / 'manifest.json'}, pruned.config")
            config = source.model_copy(update={"name": config.name, "tasks": config.tasks})
        return cls(folder, config, manifest)

    @property
    def heads_removed(self) -> int | str:
        """For a run that `mtlprune export --remove` wrote, the number of --keep, or "closed" if it was not given.

        For a run with all its heads, "".
        """
        pruned = self.manifest.get("pruned")
        return "" if pruned is None else pruned["most_open"] or "closed"

    @property
    def path(self) -> str:
        return str(self.folder.path)

    @property
    def name(self) -> str:
        """The setting ``name``."""
        return self.config.name

    @property
    def tasks(self) -> tuple[str, ...]:
        return self.config.tasks

    @property
    def seed(self) -> int:
        return self.config.train.seed

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the data."""
        return str(self.manifest["data"]["fingerprint"])

    @property
    def corpus(self) -> str:
        """Name of the corpus, or its path if it has no name."""
        return str(self.manifest["data"].get("name", self.config.data.path))

    @property
    def finished(self) -> bool:
        """True if the run was trained to its end."""
        return "finished" in self.manifest

    @property
    def architecture(self) -> str:
        """Name of the pretrained encoder, without modifications such as random weights."""
        return from_here(self.config.encoder.name)

    @property
    def encoder(self) -> str:
        """Name of the encoder with its modifications, such as "minilm, random weights"."""
        return encoder_name(self.architecture, self.config.encoder.random, self.config.encoder.context)

    @property
    def encoder_title(self) -> str:
        """Name of the encoder with its modifications; for a local encoder, only the last folder of its path."""
        encoder = self.config.encoder
        name = Path(encoder.name).name if encoder.name.startswith(("/", "~", ".")) else encoder.name
        return encoder_name(name, encoder.random, encoder.context)

    @property
    def kind(self) -> str:
        """Kind of baseline: "no encoder", "random encoder", or "" if the run is no baseline."""
        encoder = self.config.encoder
        return "no encoder" if not encoder.context else "random encoder" if encoder.random else ""

    @cached_property
    def pruning(self) -> str:
        """Description of the pruning of heads, such as "36 heads by gates"; "" without pruning."""
        return pruning_title(self.config) or ("heads removed" if self.heads_removed else "")

    @cached_property
    def treatment(self) -> str:
        """Description of the treatments, such as "clone of random heads"; "" without treatments."""
        return treatment_title(self.config.treatment)

    @property
    def regime(self) -> str:
        """Description of mixing and fusion where they differ from the defaults, such as "sampled"; else ""."""
        fusion, fusion_layers = self.config.encoder.fusion, self.config.encoder.fusion_layers or ()
        layers = f" of layers {','.join(map(str, fusion_layers))}" if fusion_layers else ""
        words = [
            "sampled" if self.config.train.mixing == "sampled" and len(self.tasks) > 1 else "",
            f"fusion {fusion}{layers}" if fusion != "none" else "",
        ]
        return ", ".join(filter(None, words))

    @property
    def variant(self) -> str:
        """Short description of pruning and regime where they differ from the defaults, such as "gates, sampled"."""
        pruning = self.config.pruning
        static = "static " if self.config.prunes_statically else ""
        words = [
            static + pruning.method if pruning.method != "none" and not self.heads_removed else "",
            "heads removed" if self.heads_removed or (self.folder.encoder_path / "heads.json").is_file() else "",
            self.regime,
        ]
        return ", ".join(filter(None, words))

    @cached_property
    def every_setting(self) -> dict[str, Any]:
        """Path → value of every setting, with the key "heads removed" if closed heads were removed."""
        removed = {"heads removed": self.heads_removed} if self.heads_removed else {}
        return dict(flat(self.config.model_dump(mode="json"))) | removed

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Path → value of the settings that all runs of a group share, without the name of the encoder."""
        return {
            path: from_here(value) if isinstance(value, str) else value
            for path, value in self.every_setting.items()
            if path != "encoder.name" and not is_ignored(path)
        }

    @property
    def half_name(self) -> str:
        """The part of the data on which the run was trained: the setting ``data.half``, else the split
        ``data.train``."""
        return str(self.config.data.half or self.config.data.train)

    @property
    def source(self) -> str | None:
        """Path of the finished run whose weights chose the heads, or from which this run started; None without one."""
        return self.config.pruning.importance_of or self.config.train.start

    @property
    def training(self) -> int | str | None:
        """Seed of the run at ``source``, the path itself if that run cannot be found, or None without a source."""
        if self.source is None:
            return None
        source_run = self.folder.referenced_run(self.source)
        return self.source if source_run is None else source_run.config.train.seed

    @cached_property
    def updates(self) -> int:
        """Number of updates of the encoder, including those of the run from which it started; 0 if manifests do not
        state them."""
        return updates_of(self.manifest) + _updates_before(self.folder, self.config.train.start)

    @cached_property
    def auxiliary_runs(self) -> str:
        """Description of how the run used a finished run (train.start, pruning.importance_of); "" if it used none."""
        start = self.config.train.start
        if (source := start or self.config.pruning.importance_of) is None:
            return ""
        before, own_updates = _updates_before(self.folder, source), updates_of(self.manifest)
        updates = f" ({before:,} updates)" if before else ""
        if start is None or {"encoder", "decoders"} <= set(self.config.train.freeze):
            return f"a finished run{updates} chose its heads"
        return f"starts from a finished run{updates} and trains on{f' for {own_updates:,} more' if own_updates else ''}"


_Run = TypeVar("_Run", bound=DescribedRun)


def partners(run: DescribedRun, candidates: Iterable[_Run]) -> list[_Run]:
    """Return the single-task runs with which a joint run is compared.

    Their encoder and settings are those of the joint run, so that training differs only in the tasks and in
    treatments. Baselines without a trained encoder are no partners.
    """
    settings = untreated(run)
    return [
        rival
        for rival in candidates
        if len(rival.tasks) == 1 and not rival.kind and (rival.encoder, untreated(rival)) == (run.encoder, settings)
    ]


def updates_of(manifest: Mapping[str, Any]) -> int:
    """Return the number of updates in a run's training, without those of the run from which it started.

    The number is 0 if the manifest does not state it.
    """
    return int(manifest.get("finished", {}).get("step", 0))


def _updates_before(run: RunFolder, start: str | None) -> int:
    """Count the updates before a run started: those of the run at ``start``, and of all runs before that run.

    The count is 0 if the run at ``start`` cannot be found.
    """
    folder = run.referenced_run(start) if start is not None else None
    if folder is None or folder.path.resolve() == run.path.resolve():
        return 0
    before = folder.config.train.start
    return updates_of(folder.read_manifest()) + (_updates_before(folder, before) if before != start else 0)


def describe_unique(runs: Iterable[RunFolder | DescribedRun]) -> list[DescribedRun]:
    """Read the descriptions of runs. A run whose folder is named twice is returned once."""
    once: dict[Path, RunFolder | DescribedRun] = {}
    for run in runs:
        folder = run.folder if isinstance(run, DescribedRun) else run
        once[folder.path.resolve()] = run
    return [run if isinstance(run, DescribedRun) else DescribedRun.read(run) for run in once.values()]


# -- titles of groups --------------------------------------------------------------------------------------------------


def group_titles(groups: Sequence[Sequence[DescribedRun]]) -> tuple[list[str], list[bool]]:
    """Return distinct titles for groups of one encoder, and for each group whether it is a pair named by its tasks.

    Groups of two tasks are named by their tasks, as in "POS+DEP, 36 heads by gates", if several pairs of tasks occur.
    """
    pairs = [group for group in groups if len(group[0].tasks) == 2 and not group[0].kind]
    if len({frozenset(group[0].tasks) for group in pairs}) < 2:
        pairs = []
    is_pair = [group in pairs for group in groups]
    short_titles = iter(_short_titles([group for group in groups if group not in pairs]))
    rivals = [group[0] for group in pairs]
    return [
        "+".join(in_order(group[0].tasks)).upper() + family_suffix(group[0], rivals) if pair else next(short_titles)
        for group, pair in zip(groups, is_pair, strict=True)
    ], is_pair


def family_suffix(run: DescribedRun, pairs: Sequence[DescribedRun]) -> str:
    """Return the end of a pair's title: its pruning, and settings that differ if the same tasks occur twice."""
    rivals = [rival for rival in pairs if rival.pruning == run.pruning]
    same_tasks = [
        [rival_group for rival_group in rivals if set(rival_group.tasks) == set(rival.tasks)] for rival in rivals
    ]
    paths = sorted({path for group in same_tasks for path in differing_settings(group)})
    suffix = f" ({_values(run, paths)})" if paths else ""
    return (f", {run.pruning}" if run.pruning else "") + suffix


def _values(run: DescribedRun, paths: Iterable[str]) -> str:
    """List settings of a run as "path=value, path=value"."""
    return ", ".join(f"{path}={run.settings.get(path)}" for path in paths)


def _short_titles(groups: Sequence[Sequence[DescribedRun]]) -> list[str]:
    """Return a short title for each group; groups that would share a title get a suffix that distinguishes them."""
    joint_kinds = {run.kind for group in groups for run in group if len(run.tasks) > 1}
    single_kinds = {run.kind for group in groups for run in group if len(run.tasks) == 1}
    labels = task_labels([group[0].tasks for group in groups])
    plain = []
    for group, label in zip(groups, labels, strict=True):
        run = group[0]
        size = "STL" if len(run.tasks) == 1 else label
        is_ambiguous = run.kind in joint_kinds and run.kind in single_kinds
        title = size if not run.kind else f"{run.kind}, {size}" if is_ambiguous else run.kind
        plain.append(", ".join(part for part in (title, run.pruning, run.treatment) if part))
    singles = [run.settings for group in groups for run in group if len(run.tasks) == 1]
    titles = []
    for title, group in zip(plain, groups, strict=True):
        rivals = [rival_group for rival_group, rival_title in zip(groups, plain, strict=True) if rival_title == title]
        titles.append(title + (_distinction(group, rivals, singles) if len(rivals) > 1 else ""))
    return titles


def _distinction(
    group: Sequence[DescribedRun], groups: Sequence[Sequence[DescribedRun]], singles: Sequence[Mapping[str, Any]]
) -> str:
    """Return the suffix that distinguishes a group from the other groups with the same title.

    The first of these applies: no suffix for the only group with the same settings as the single tasks; a regime that
    no other group has; the name of the group's runs, if each group has a different name; tasks and settings that
    differ.

    Args:
        groups: all groups that share the title, including ``group``.
        singles: settings of all single-task runs.
    """
    run, rivals = group[0], [rival[0] for rival in groups]
    same_settings = [rival for rival in rivals if len(run.tasks) > 1 and rival.settings in singles]
    if same_settings == [run]:
        return ""
    if [rival.regime for rival in rivals].count(run.regime) == 1 and (run.regime or len(same_settings) != 1):
        return f", {run.regime}" * bool(run.regime)
    one_name = all(len({member.name for member in rival_group}) == 1 for rival_group in groups)
    if one_name and len({rival.name for rival in rivals}) == len(rivals):
        return f" ({run.name})"
    parts = [] if len({rival.tasks for rival in rivals}) == 1 or len(run.tasks) == 1 else ["+".join(run.tasks)]
    return f" ({', '.join(filter(None, [*parts, _values(run, differing_settings(rivals))]))})"


def short_names(groups: Sequence[Sequence[DescribedRun]], titles: Sequence[str]) -> list[str]:
    """Return a short name for each group: the name that its runs share, without the ending that all names share.

    A group has its title instead if its runs have several names, or if its name is not unique.
    """
    names = [
        next(iter(names_of_group)) if len(names_of_group := {run.name for run in group}) == 1 else ""
        for group in groups
    ]
    given_names = [name for name in names if name]
    parts_by_place = zip(*(name.split("-")[::-1] for name in given_names), strict=False)
    common = [parts[0] for parts in takewhile(lambda parts: len(set(parts)) == 1, parts_by_place)]
    end = "-".join(["", *reversed(common)]) if len(given_names) > 1 else ""
    return [
        name.removesuffix(end) if name and names.count(name) == 1 and name != end else title
        for name, title in zip(names, titles, strict=True)
    ]


def without_duplicates(runs: Sequence[DescribedRun]) -> list[tuple[str, list[DescribedRun]]]:
    """Split runs into groups in which no combination of tasks and seed occurs twice.

    Returns:
        For each group, the settings that distinguish it, such as "train.epochs=4", and its runs. A single group has
        an empty description.
    """
    if len({(run.tasks, run.seed) for run in runs}) == len(runs):
        return [("", list(runs))]
    paths = [path for path in differing_settings(runs) if not path.startswith(TRAINED_WITH)]
    has_corpora = len({run.fingerprint for run in runs}) > 1
    groups: dict[str, list[DescribedRun]] = {}
    for run in runs:
        values = {path: repr(run.settings[path]) if path in run.settings else None for path in paths}
        values |= {"data": run.fingerprint[:8]} if has_corpora else {}
        groups.setdefault(", ".join(f"{path}={values[path]}" for path in sorted(values)), []).append(run)
    return list(groups.items())
