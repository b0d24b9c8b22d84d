// The large map: one head a cell; whose gates, and how they are shown, can be switched.
function explorer(root, gates) {
  const ALL = "all tasks";
  const VIEWS = [["mean", "mean, grey"], ["seed", "one seed"], ["seeds", "seeds, colours"], ["difference", "difference"]];
  const state = { set: 0, label: 0, view: "mean", seed: 0, other: 1, palette: "colourblind", held: null };
  const set = () => gates.sets[state.set];
  const label = () => set().labels[state.label];
  const mean = (one, k) => one.z.reduce((sum, seed) => sum + seed[k], 0) / one.z.length;
  const alone = () => set().labels.filter((one) => !one.joint);
  const overall = (k) => alone().reduce((sum, one) => sum + mean(one, k), 0) / alone().length;
  const isAll = () => state.label === set().labels.length;
  // The head that chance explains least is held at first, so that the card shows what it can show.
  const telling = () => {
    const p = set().tasks ? set().tasks.p : label().p;
    return p.indexOf(Math.min(...p));
  };
  const names = () => [...set().labels.map((one) => one.label), ...(alone().length > 1 ? [ALL] : [])];
  state.set = recall("pruned", gates.sets.map((one) => one.title), 0);
  state.label = recall("heads", names(), 0);
  state.view = VIEWS[recall("shown", VIEWS.map(([view]) => view), 0)][0];
  state.held = recall("head", headNames(set().layers, set().heads), telling());
  if (!isAll()) {
    state.seed = recall("seed", label().seeds.map(String), 0);
    state.other = recall("minus", set().labels.map((one) => one.label), state.label === 0 ? 1 : 0);
    if (state.view === "difference" && set().labels.length < 2) state.view = "mean";
  }
  state.palette = recall("colours", ["rgb"], null) === 0 ? "rgb" : "colourblind";
  const board = make("div", { class: "board" });
  root.append(board);

  // Multilinear between the colours of the corners, as reports/pictures.py mixes them.
  function mixed(values) {
    let corners = gates.corners[state.palette][values.length];
    for (const z of values) {
      const half = corners.length / 2;
      corners = Array.from({ length: half }, (_, i) => corners[i].map((c, j) => (1 - z) * c + z * corners[half + i][j]));
    }
    return corners[0];
  }

  function value(k) {
    if (isAll()) return overall(k);
    if (state.view === "seed") return label().z[state.seed][k];
    if (state.view === "difference") return mean(label(), k) - mean(set().labels[state.other], k);
    return mean(label(), k);
  }

  function colour(k) {
    const now = value(k);
    if (!isAll() && state.view === "seeds") return rgb(mixed(label().z.slice(0, 3).map((seed) => seed[k])));
    if (!isAll() && state.view === "difference") return ink(Math.abs(now), now < 0 ? data.look.below : data.look.above);
    return ink(now);
  }

  function told(k) {
    const words = isAll() ? ALL : label().label;
    const seeds = isAll() ? "" : label().seeds.map((seed, i) => `, seed ${seed} ${fixed(label().z[i][k], 2)}`).join("");
    return `${place(k, set().heads)}, ${words}: ${fixed(value(k), 2)}${seeds}`;
  }

  function card(k) {
    const rows = set().labels.map((one) => {
      const open = one.z.filter((seed) => seed[k] > gates.openAbove).length;
      const each = make("span", { class: "list" }, one.z.map((seed) => fixed(seed[k], 2)).join("  "));
      return [one.label, each, `${open}/${one.z.length}`, chance(one.p[k]), chance(one.q[k])];
    });
    const parts = [make("h4", {}, place(k, set().heads)),
      plainTable(["", "z, a number a seed", "open", "p", "q"], rows, 1)];
    const tasks = set().tasks;
    if (tasks) {
      parts.push(make("p", {}, `Claimed by ${tasks.claimed[k]} of ${tasks.of} single tasks; by so many or more with `
        + `p = ${chance(tasks.p[k])} by chance within its layer (q = ${chance(tasks.q[k])}).`));
    }
    parts.push(make("p", { class: "note" }, "p: open in so many seeds or more, were the layer's open heads drawn anew "
      + "in every seed. q: corrected over all heads."));
    return parts;
  }

  function ramp() {
    const chip = (background, words) => make("b", {}, (() => {
      const box = make("i", { class: "light" });
      box.style.background = background;
      return box;
    })(), words);
    if (!isAll() && state.view === "seeds") {
      const n = Math.min(3, label().z.length);
      const used = Array.from({ length: 2 ** n }, (_, i) => [...i.toString(2).padStart(n, "0")].map(Number));
      used.sort((a, b) => b.reduce((x, y) => x + y) - a.reduce((x, y) => x + y));
      const name = (one) => one.every(Boolean) ? "all seeds" : one.some(Boolean)
        ? `seed ${one.map((on, i) => (on ? label().seeds[i] : null)).filter((s) => s !== null).join(" + ")}` : "none";
      return used.map((one) => chip(rgb(mixed(one)), name(one)));
    }
    if (!isAll() && state.view === "difference") {
      return [chip(ink(1, data.look.below), `only ${set().labels[state.other].label}`), chip(ink(0), "the same"),
        chip(ink(1, data.look.above), `only ${label().label}`)];
    }
    return [0, 0.25, 0.5, 0.75, 1].map((z) => chip(ink(z), z === 0 ? "0, closed" : z === 1 ? "1, open" : String(z)));
  }

  function controls() {
    const parts = [];
    const redo = (change) => (picked) => { change(picked); draw(); };
    if (gates.sets.length > 1) {
      parts.push(select("Pruned", gates.sets.map((one, i) => [String(i), one.title]), String(state.set),
        redo((picked) => { Object.assign(state, { set: Number(picked), label: 0, seed: 0, other: 1 });
          state.held = telling();
          remember("pruned", set().title);
        })));
    }
    parts.push(choice("Whose heads", names().map((one, i) => [String(i), one]), String(state.label),
      redo((picked) => { state.label = Number(picked); remember("heads", names()[picked]); })));
    if (isAll()) return parts;
    const seeds = label().z.length;
    const off = { seeds: seeds < 2 ? "one seed only" : "", difference: set().labels.length < 2 ? "one label only" : "" };
    const views = VIEWS.map(([view, words]) => [view, words, off[view]]);
    if (state.view === "seeds" && seeds < 2) state.view = "mean";
    parts.push(choice("Shown as", views, state.view, redo((picked) => { state.view = picked; remember("shown", picked); })));
    if (state.seed >= seeds) state.seed = 0;
    if (state.view === "seed") {
      parts.push(choice("Seed", label().seeds.map((seed, i) => [String(i), String(seed)]), String(state.seed),
        redo((picked) => { state.seed = Number(picked); remember("seed", String(label().seeds[picked])); })));
    }
    if (state.view === "seeds") {
      parts.push(choice("Colours", [["colourblind", "colour-blind"], ["rgb", "RGB"]], state.palette,
        redo((picked) => { state.palette = picked; remember("colours", picked); })));
    }
    if (state.view === "difference") {
      if (state.other === state.label) state.other = state.label === 0 ? 1 : 0;
      const others = set().labels.map((one, i) => [String(i), one.label]).filter(([i]) => Number(i) !== state.label);
      parts.push(choice("Minus", others, String(state.other), redo((picked) => { state.other = Number(picked); remember("minus", set().labels[picked].label); })));
    }
    return parts;
  }

  function draw() {
    const focused = root.contains(document.activeElement) ? document.activeElement : null;
    const again = focused && focused.matches("input, select")
      ? [...root.querySelectorAll("input, select")].indexOf(focused) : -1;
    const detail = make("div", { class: "card", "aria-live": "polite" });
    const show = (k) => detail.replaceChildren(...card(k === null ? state.held : k));
    const grid = headGrid(set().layers, set().heads, "Heads by layer and number", {
      colour, told, show, hold: (k) => { state.held = k; grid.paint(k); show(k); remember("head", headName(k, set().heads)); },
    });
    grid.paint(state.held);
    show(null);
    board.replaceChildren(make("div", { class: "controls" }, ...controls()),
      make("div", {}, grid.table, make("div", { class: "ramp" }, ...ramp())), detail);
    if (again >= 0) root.querySelectorAll("input, select")[again]?.focus();
  }
  draw();
}

if (data.gates) explorer(document.getElementById("explorer"), data.gates);
