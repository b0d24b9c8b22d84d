// The browser of heads: what the chosen head knows best beside its controls, and which tasks claim it.
function browser(root, probes, gates) {
  const [layers, heads] = probes.shape;
  const state = { subject: 0, held: 0 };
  const subject = () => probes.subjects[state.subject];
  state.subject = recall("encoder", probes.subjects.map((one) => one.name), 0);
  state.held = recall("known", headNames(layers, heads), subject().chosen.indexOf(Math.max(...subject().chosen)));
  const board = make("div", { class: "board" });
  root.append(board);
  const sure = (k) => subject().cards[k].filter((row) => !subject().labels[row[0]][3]);
  const most = () => Math.max(1, ...subject().chosen);

  function words(k) {
    const row = sure(k)[0];
    if (!row) return `${place(k, heads)}: nothing known`;
    const [task, name] = subject().labels[row[0]];
    return `${place(k, heads)}: chosen for ${subject().chosen[k]} labels; ${task} ${name}, ${signed(row[2], 1)} over its best control`;
  }

  function claims(k) {
    if (!gates) return [];
    const lines = gates.sets.filter((set) => set.layers === layers && set.heads === heads).map((set) => {
      const users = set.labels.map((one) => [one, one.z.filter((seed) => seed[k] > gates.openAbove).length])
        .filter(([, open]) => open).map(([one, open]) => `${one.label} ${open}/${one.z.length}`);
      return make("li", {}, `${set.title}: ${users.join(", ") || "nobody"}`);
    });
    return lines.length ? [make("p", {}, `${place(k, heads)} is open in so many seeds:`), make("ul", {}, ...lines)] : [];
  }

  function card(k) {
    const rows = subject().cards[k].map(([at, accuracy, gain, rank, of, chosen]) => {
      const [task, name, items, few] = subject().labels[at];
      const label = `${task} ${name}${few ? "°" : ""}${chosen ? " ✓" : ""}`;
      return [label, fixed(accuracy, 1), signed(gain, 1), `${rank}/${of}`, items.toLocaleString("en")];
    });
    return [make("h4", {}, place(k, heads)),
      rows.length ? plainTable(["label", "%", "gain", "rank", "items"], rows, 1) : make("p", {}, "Not probed: removed or closed."),
      make("p", { class: "note" }, "gain: over the label's best control. ✓ chosen for the label on dev. ° few items.")];
  }

  function draw() {
    const detail = make("div", { class: "card", "aria-live": "polite" });
    const users = make("div", { class: "users" });
    const show = (k) => {
      detail.replaceChildren(...card(k === null ? state.held : k));
      users.replaceChildren(...claims(k === null ? state.held : k));
    };
    const grid = headGrid(layers, heads, "Heads by layer and number; darker: chosen for more labels", {
      colour: (k) => subject().cells[k], words, show,
      hold: (k) => { state.held = k; grid.paint(k); show(k); remember("known", headName(k, heads)); },
    });
    grid.paint(state.held);
    show(null);
    const names = probes.subjects.map((one, i) => [String(i), one.name]);
    const pick = select("Encoder", names, String(state.subject), (picked) => {
      state.subject = Number(picked);
      remember("encoder", subject().name);
      draw();
      root.querySelector("select").focus();
    });
    const legend = make("p", { class: "note" }, `Shade: for how many labels the head is the best on dev, from none to ${most()}; labels with few items left aside.`);
    board.replaceChildren(make("div", { class: "controls" }, pick), make("div", {}, grid.table, legend, users), detail);
  }
  draw();
}

if (data["heads-know"]) browser(document.getElementById("browser"), data["heads-know"], data.gates);
