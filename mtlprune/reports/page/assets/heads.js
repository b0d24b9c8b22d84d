// The browser of heads: what the chosen head knows best beside its controls, and which tasks claim it.
function browser(root, probes, gates) {
  const [layers, heads] = probes.shape;
  const names = probes.subjects.map((one) => one.name);
  const state = { subject: recall("encoder", names, 0) };
  const subject = () => probes.subjects[state.subject];
  state.held = recall("head", headNames(layers, heads), subject().chosen.indexOf(Math.max(...subject().chosen)));

  function words(k) {
    const row = subject().cards[k].find((one) => !subject().labels[one[0]][3]);
    if (!row) return ": nothing known";
    const [task, name] = subject().labels[row[0]];
    return `: chosen for ${subject().chosen[k]} labels; ${task} ${name}, ${signed(row[2], 1)} over its best control`;
  }

  function card(k) {
    const rows = subject().cards[k].map(([at, accuracy, gain, rank, of, chosen]) => {
      const [task, name, items, few] = subject().labels[at];
      const label = `${task} ${name}${few ? "°" : ""}${chosen ? " ✓" : ""}`;
      return [label, fixed(accuracy, 1), signed(gain, 1), `${rank}/${of}`, items.toLocaleString("en")];
    });
    return [rows.length ? plainTable(["label", "%", "gain", "rank", "items"], rows, 1) : make("p", {}, "Not probed: removed or closed."),
      make("p", { class: "note" }, "gain: over the label's best control. ✓ chosen for the label on dev. ° few items.")];
  }

  function below(k) {
    const most = Math.max(1, ...subject().chosen);
    const legend = make("p", { class: "note" }, `Shade: for how many labels the head is the best on dev, from none to ${most}; labels with few items left aside.`);
    const lines = (gates?.sets ?? []).filter((set) => set.layers === layers && set.heads === heads).map((set) => {
      const users = set.labels.map((one) => [one, one.z.filter((seed) => seed[k] > gates.openAbove).length])
        .filter(([, open]) => open).map(([one, open]) => `${one.label} ${open}/${one.z.length}`);
      return make("li", {}, `${set.title}: ${users.join(", ") || "nobody"}`);
    });
    if (!lines.length) return [legend];
    return [legend, make("p", {}, `${place(k, heads)} is open in so many seeds:`), make("ul", {}, ...lines)];
  }

  function choose(picked) {
    state.subject = picked;
    remember("encoder", names[picked]);
  }
  board(root, state, {
    shape: () => probes.shape,
    name: "Heads by layer and number; darker: chosen for more labels",
    choices: () => [["Encoder", names.map((name, i) => [String(i), name]), state.subject, choose]],
    colour: (k) => subject().cells[k],
    words,
    card,
    below,
  });
}

if (data["heads-know"]) browser(document.getElementById("browser"), data["heads-know"], data.gates);
