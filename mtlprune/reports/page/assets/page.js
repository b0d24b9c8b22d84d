"use strict";
// The page is whole without this script. It adds a large map of heads, a browser of heads, sorting, CSV, and a mark in
// the contents. Words go into the page as text only, never as markup.
document.documentElement.classList.add("scripted");

const data = JSON.parse(document.getElementById("data").textContent);

// What is selected stands in the address, so that it can be kept and sent; what it names but is not there is left aside.
const chosen = new URLSearchParams(location.search);
function remember(key, value) {
  if (value === null) chosen.delete(key);
  else chosen.set(key, value);
  history.replaceState(null, "", `${chosen.size ? `?${chosen}` : location.pathname}${location.hash}`);
}
const recall = (key, names, otherwise) => (names.includes(chosen.get(key)) ? names.indexOf(chosen.get(key)) : otherwise);

function make(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value === true) node.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const fixed = (value, digits) => (value === null ? "–" : value.toFixed(digits).replace("-", "−"));
const signed = (value, digits) => (value === null ? "–" : (value > 0 ? "+" : "") + fixed(value, digits));
const chance = (p) => (p >= 0.0001 ? p.toPrecision(2).replace(/^0\.0+$/, "0") : p.toExponential(0).replace("-", "−"));

// A table of words; numbers to the right from column `texts` on.
function plainTable(columns, rows, texts) {
  const cell = (tag, value, place) => make(tag, { class: place < texts ? null : "number" }, value);
  const head = make("tr", {}, ...columns.map((value, place) => cell("th", value, place)));
  const body = rows.map((row) => make("tr", {}, ...row.map((value, place) => cell("td", value, place))));
  return make("table", {}, make("thead", {}, head), make("tbody", {}, ...body));
}

// A choice of options [value, words, group]; those of one group, if they have any, stand below its name.
function select(name, options, chosen, pick) {
  const box = make("select", { onchange: () => pick(box.value) });
  for (const [value, words, group] of options) {
    if (group && box.lastChild?.label !== group) box.append(make("optgroup", { label: group }));
    (group ? box.lastChild : box).append(make("option", { value, selected: value === chosen }, words));
  }
  return make("label", {}, make("span", { class: "what" }, name), box);
}

// A grid of heads that Tab reaches once and arrows walk through. `words(k)` names a cell for those who hear the page.
function headGrid(layers, heads, name, { colour, words, show, hold }) {
  const cells = [];
  let current = 0;
  const move = (k) => {
    cells[current].tabIndex = -1;
    current = k;
    cells[k].tabIndex = 0;
    cells[k].focus();
  };
  const keys = (k) => (event) => {
    const [layer, head] = [Math.floor(k / heads), k % heads];
    const to = {
      ArrowLeft: head > 0 ? k - 1 : k, ArrowRight: head < heads - 1 ? k + 1 : k,
      ArrowUp: layer > 0 ? k - heads : k, ArrowDown: layer < layers - 1 ? k + heads : k,
      Home: k - head, End: k - head + heads - 1,
    }[event.key];
    if (to !== undefined) { event.preventDefault(); move(to); }
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); hold(k); }
  };
  const rows = [];
  for (let layer = 0; layer < layers; layer++) {
    const row = make("tr", {}, make("th", { scope: "row" }, String(layer + 1)));
    for (let head = 0; head < heads; head++) {
      const k = layer * heads + head;
      const cell = make("td", {
        role: "gridcell", "data-k": k, tabindex: k ? -1 : 0, onkeydown: keys(k), onpointerenter: () => show(k),
        onfocus: () => show(k), onclick: () => move(k),
      });
      cells.push(cell);
      row.append(cell);
    }
    rows.push(row);
  }
  const numbers = Array.from({ length: heads }, (_, head) => make("th", { scope: "col" }, String(head + 1)));
  const corner = make("td", { class: "corner" });
  const table = make("table", { class: "heads light", "data-shape": `${layers}x${heads}`, role: "grid", "aria-label": name, onpointerleave: () => show(null) },
    make("thead", {}, make("tr", {}, corner, ...numbers)), make("tbody", {}, ...rows));
  const paint = (held) => cells.forEach((cell, k) => {
    cell.style.background = colour(k);
    cell.setAttribute("aria-label", words(k));
    cell.setAttribute("aria-selected", String(k === held));
  });
  return { table, paint };
}

// The chosen head is marked in every map of as many layers and heads: tables of cells, and charts with a cell a head.
let picked = null;
const listeners = [];
function choose(k, shape) {
  picked = { k, shape };
  document.querySelectorAll(".heads .chosen, svg .chosen").forEach((cell) => cell.classList.remove("chosen"));
  document.querySelectorAll(`.heads[data-shape="${shape}"] [data-k="${k}"]`).forEach((cell) => cell.classList.add("chosen"));
  const [layers, heads] = shape.split("x").map(Number);
  document.querySelectorAll("figure.chart .mark-rect.role-mark").forEach((cells) => {
    if (cells.children.length === layers * heads) cells.children[k].classList.add("chosen");
  });
  remember("head", headName(k, heads));
  listeners.forEach((listen) => listen(k, shape));
}
document.addEventListener("click", (event) => {
  const cell = event.target.closest(".heads[data-shape] [data-k]");
  if (cell) choose(Number(cell.dataset.k), cell.closest("[data-shape]").dataset.shape);
});

const headName = (k, heads) => `${Math.floor(k / heads) + 1}-${(k % heads) + 1}`;
const headNames = (layers, heads) => Array.from({ length: layers * heads }, (_, k) => headName(k, heads));
const place = (k, heads) => `Layer ${Math.floor(k / heads) + 1}, head ${(k % heads) + 1}`;

// A board: choices, a grid of heads, and what is said of the head that is pointed at, or else of the held one, beside it
// (`card(k)`) and below (`below(k)`). Choices are [name, options, chosen, pick]; whatever is picked, all is drawn anew.
function board(root, state, { shape, name, choices, colour, words, card, below }) {
  const box = make("div", { class: "board" });
  root.append(box);
  state.shape = () => shape().join("x");
  function draw(focused) {
    const [layers, heads] = shape();
    const beside = make("div", { class: "card", "aria-live": "polite" });
    const under = make("div", { class: "users" });
    const show = (k) => {
      beside.replaceChildren(make("h4", {}, place(k ?? state.held, heads)), ...card(k ?? state.held));
      under.replaceChildren(...below(k ?? state.held));
    };
    const hold = (k) => choose(k, `${layers}x${heads}`);
    state.mark = (k) => { state.held = k; grid.paint(k); show(k); };
    const grid = headGrid(layers, heads, name, { colour, words: (k) => `${place(k, heads)}${words(k)}`, show, hold });
    grid.paint(state.held);
    show(null);
    const selects = choices().map(([what, options, chosen, pick], i) =>
      select(what, options, String(chosen), (picked) => { pick(Number(picked)); draw(i); }));
    box.replaceChildren(make("div", { class: "controls" }, ...selects), make("div", {}, grid.table, under), beside);
    selects[focused]?.querySelector("select").focus();
  }
  draw();
  listeners.push((k, shape) => { if (shape === state.shape()) state.mark(k); });
}

// Which part is being read, in the contents.
const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
const watch = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    links.forEach((link) => link.removeAttribute("aria-current"));
    links.get(entry.target.id)?.setAttribute("aria-current", "true");
  }
}, { rootMargin: "-10% 0px -80% 0px" });
document.querySelectorAll("section.part").forEach((section) => watch.observe(section));
