// Show the labels that the chosen head identifies best, with the gains over their best controls, in a chosen encoder.
function browser(root, probes) {
  const [layers, heads] = probes.shape;
  const names = probes.subjects.map((one) => one.name);
  let at = recall("encoder", names, 0);
  const table = root.querySelector(".heads");
  let k = recall("head", headNames(layers, heads), mostKnown());

  function mostKnown() {
    const { chosen } = probes.subjects[at];
    return chosen.indexOf(Math.max(...chosen));
  }

  function show() {
    const subject = probes.subjects[at];
    const rows = subject.cards[k].map(([which, accuracy, gain, rank, of, chosen]) => {
      const [task, name, items, few] = subject.labels[which];
      const label = `${task} ${name}${few ? "°" : ""}${chosen ? " ✓" : ""}`;
      return [label, fixed(accuracy, 1), signed(gain, 1), `${rank}/${of}`, items.toLocaleString("en")];
    });
    table.querySelectorAll("[data-k]").forEach((cell, place) => { cell.style.background = subject.cells[place]; });
    const choice = select("Encoder", names.map((name, i) => [String(i), name]), String(at), (picked) => {
      at = Number(picked);
      remember("encoder", names[at]);
      show();
      root.querySelector("select").focus();
    });
    const known = rows.length ? plainTable(["label", "%", "gain", "rank", "items"], rows, 1)
      : make("p", {}, "The head was not probed, because it is removed or closed.");
    const words = make("p", { class: "note" }, `The gain is over the label's best control. ✓ marks labels for which the head is chosen on dev, and ° labels with few `
      + `items. The shade is the number of labels for which the head is the best on dev (at most ${Math.max(1, ...subject.chosen)}).`);
    root.querySelector(".card").replaceChildren(make("h4", {}, place(k, heads)), choice, known, words);
  }
  listeners.push((picked, shape) => {
    if (shape !== probes.shape.join("x")) return;
    k = picked;
    show();
  });
  if (chosen.has("head")) choose(k, probes.shape.join("x"));
  else show();
}

if (data.probes) browser(document.getElementById("browser"), data.probes);
