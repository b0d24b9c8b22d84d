// The large map: one head a cell; which of all maps it shows can be chosen. Colours are those of figures/maps.py.
function explorer(root, gates) {
  const titles = gates.sets.map((one) => one.title);
  const state = { set: recall("pruned", titles, 0) };
  const set = () => gates.sets[state.set];
  const names = () => set().maps.map((one) => one.name);
  const map = () => set().maps[state.map];
  // The head that chance explains least is held at first, so that the card shows what it can show.
  const telling = () => {
    const { p } = set().tasks ?? set().labels[0];
    return p.indexOf(Math.min(...p));
  };
  state.map = recall("map", names(), 0);
  state.held = recall("head", headNames(set().layers, set().heads), telling());

  function card(k) {
    const rows = set().labels.map((one) => {
      const open = one.z.filter((seed) => seed[k] > gates.openAbove).length;
      const each = make("span", { class: "list" }, one.z.map((seed) => fixed(seed[k], 2)).join("  "));
      return [one.label, each, `${open}/${one.z.length}`, chance(one.p[k]), chance(one.q[k])];
    });
    const tasks = set().tasks;
    const claimed = tasks ? `Claimed by ${tasks.claimed[k]} of ${tasks.of} single tasks; by so many or more with `
      + `p = ${chance(tasks.p[k])} by chance within its layer (q = ${chance(tasks.q[k])}).` : "";
    return [plainTable(["", "z, a number a seed", "open", "p", "q"], rows, 1), make("p", {}, claimed),
      make("p", { class: "note" }, "p: open in so many seeds or more, were the layer's open heads drawn anew in every seed. "
        + "q: corrected over all heads.")];
  }

  function key() {
    const chips = Object.entries(map().key).map(([words, colour]) => {
      const box = make("i", { class: "light" });
      box.style.background = colour;
      return make("b", {}, box, words);
    });
    return [make("div", { class: "ramp" }, map().heading, ...chips), make("p", { class: "note" }, map().caption)];
  }

  function chooseSet(picked) {
    const name = map().name;
    state.set = picked;
    state.map = Math.max(0, names().indexOf(name));
    state.held = telling();
    remember("pruned", set().title);
  }
  function chooseMap(picked) {
    state.map = picked;
    remember("map", map().name);
  }
  board(root, state, {
    shape: () => [set().layers, set().heads],
    name: "Heads by layer and number",
    choices: () => [["Shown", set().maps.map((one, i) => [String(i), one.title, one.group]), state.map, chooseMap],
      ...(titles.length > 1 ? [["Pruned", titles.map((title, i) => [String(i), title]), state.set, chooseSet]] : [])],
    colour: (k) => map().cells[k],
    words: (k) => `, ${map().title}: ${map().numbers[k].map((z) => fixed(z, 2)).join(", ")}`,
    card,
    below: key,
  });
}

if (data.gates) explorer(document.getElementById("explorer"), data.gates);
