// Show a card with the gates of the chosen head in every run, and the probability that chance opens the head as often.
// If `waits` is true, the card is empty until the reader chooses a head.
function gateCard(root, gates, waits) {
  const fits = (_, column) => !waits || column % 2 === 0;  // the first screen has room for three columns only
  const titles = gates.sets.map((one) => one.title);
  let at = recall("pruned", titles, 0);
  const first = gates.sets[at];
  let k = recall("head", headNames(first.layers, first.heads), mostTelling(first));

  function show() {
    const set = gates.sets[at];
    const rows = set.labels.map((one) => {
      const open = one.z.filter((seed) => seed[k] > gates.openAbove).length;
      const each = make("span", { class: "list" }, one.z.map((seed) => fixed(seed[k], 2)).join("  "));
      return [one.label, each, `${open}/${one.z.length}`, chance(one.p[k]), chance(one.q[k])].filter(fits);
    });
    const tasks = set.tasks;
    const claimed = tasks ? `The head is claimed by ${tasks.claimed[k]} of ${tasks.of} single tasks. The probability of as many or more by `
      + `chance within the layer is p = ${chance(tasks.p[k])} (q = ${chance(tasks.q[k])}).` : "";
    const choice = titles.length > 1 ? select("Selection", titles.map((title, i) => [String(i), title]), String(at), (picked) => {
      at = Number(picked);
      remember("pruned", titles[at]);
      show();
      root.querySelector("select").focus();
    }) : null;
    const words = make("p", { class: "note" }, "p is the probability that the head is open in as many seeds or more if the "
      + "open heads of the layer are drawn at random in every seed. q is p after correction over all heads.");
    root.replaceChildren(make("div", { class: "card", "aria-live": "polite" }, make("h4", {}, place(k, set.heads)), choice,
      plainTable(["", "gate z of each seed", "open", "p", "q"].filter(fits), rows, 1), make("p", {}, claimed), words));
  }
  listeners.push((picked, shape) => {
    if (shape !== `${first.layers}x${first.heads}`) return;
    k = picked;
    show();
  });
  if (chosen.has("head")) choose(k, `${first.layers}x${first.heads}`);
  else if (waits) root.replaceChildren(make("p", { class: "note" }, "Choose a head to see its gates in every run."));
  else show();
}

// Return the head with the smallest p, which the card shows at first as an example.
function mostTelling(set) {
  const { p } = set.tasks ?? set.labels[0];
  return p.indexOf(Math.min(...p));
}

// One card is below the maps. Another one is next to the map of the first screen, and empty until a head is chosen.
for (const name of data.gates ? ["explorer", "here"] : []) {
  const root = document.getElementById(name);
  if (root) gateCard(root, data.gates, name === "here");
}
