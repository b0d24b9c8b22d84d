"use strict";
// The report is complete without this script. The script adds cards about a chosen head, sorting and CSV of tables, and
// a mark in the table of contents. It inserts data as text only, never as HTML.
document.documentElement.classList.add("scripted");

const data = JSON.parse(document.getElementById("data").textContent);

// Selections are stored in the query of the address, so that a reader can keep and share them. Unknown values are ignored.
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

// Make a table of text cells. The cells from column `texts` on are numbers, which are aligned to the right.
function plainTable(columns, rows, texts) {
  const cell = (tag, value, place) => make(tag, { class: place < texts ? null : "number" }, value);
  const head = make("tr", {}, ...columns.map((value, place) => cell("th", value, place)));
  const body = rows.map((row) => make("tr", {}, ...row.map((value, place) => cell("td", value, place))));
  return make("table", {}, make("thead", {}, head), make("tbody", {}, ...body));
}

// Make a drop-down list of options [value, text, group]. Options with a group are listed below the name of the group.
function select(name, options, chosen, pick) {
  const box = make("select", { onchange: () => pick(box.value) });
  for (const [value, words, group] of options) {
    if (group && box.lastChild?.label !== group) box.append(make("optgroup", { label: group }));
    (group ? box.lastChild : box).append(make("option", { value, selected: value === chosen }, words));
  }
  return make("label", {}, make("span", { class: "what" }, name), box);
}

const headName = (k, heads) => `${Math.floor(k / heads) + 1}-${(k % heads) + 1}`;
const headNames = (layers, heads) => Array.from({ length: layers * heads }, (_, k) => headName(k, heads));
const place = (k, heads) => `Layer ${Math.floor(k / heads) + 1}, head ${(k % heads) + 1}`;
const sizeOf = (table) => table.dataset.shape.split("x").map(Number);

// Mark the chosen head in all maps with the same numbers of layers and heads (HTML tables, and charts with a cell for
// each head), and let the listeners update their cards.
const listeners = [];
function choose(k, shape) {
  const [layers, heads] = shape.split("x").map(Number);
  document.querySelectorAll(".heads .chosen, svg .chosen").forEach((cell) => cell.classList.remove("chosen"));
  document.querySelectorAll(`.heads[data-shape="${shape}"] [data-k="${k}"]`).forEach((cell) => cell.classList.add("chosen"));
  document.querySelectorAll("figure.chart .mark-rect.role-mark").forEach((cells) => {
    if (cells.children.length === layers * heads) cells.children[k].classList.add("chosen");
  });
  listeners.forEach((listen) => listen(k, shape));
}

// Make a map of heads usable by keyboard: Tab reaches the map once, arrows move between heads, and Enter chooses a head.
function walkable(table) {
  const [layers, heads] = sizeOf(table);
  const cells = [...table.querySelectorAll("[data-k]")];
  const move = (k) => {
    cells.forEach((cell) => { cell.tabIndex = -1; });
    cells[k].tabIndex = 0;
    cells[k].focus();
  };
  const pick = (k) => { choose(k, table.dataset.shape); remember("head", headName(k, heads)); };
  table.setAttribute("role", "grid");
  cells.forEach((cell, k) => {
    const [layer, head] = [Math.floor(k / heads), k % heads];
    cell.setAttribute("role", "gridcell");
    cell.setAttribute("aria-label", `${place(k, heads)}${cell.title ? `: ${cell.title}` : ""}`);
    cell.tabIndex = k ? -1 : 0;
    cell.addEventListener("click", () => { move(k); pick(k); });
    cell.addEventListener("keydown", (event) => {
      const to = {
        ArrowLeft: head > 0 ? k - 1 : k, ArrowRight: head < heads - 1 ? k + 1 : k,
        ArrowUp: layer > 0 ? k - heads : k, ArrowDown: layer < layers - 1 ? k + heads : k,
        Home: k - head, End: k - head + heads - 1, Enter: k, " ": k,
      }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      move(to);
      if (to === k && ["Enter", " "].includes(event.key)) pick(k);
    });
  });
}
document.querySelectorAll(".heads[data-shape]").forEach(walkable);

// Add a button after every command, which copies the command.
document.querySelectorAll("code.command").forEach((code) => {
  const button = make("button", { type: "button", class: "copy", onclick: async () => {
    if (!navigator.clipboard) return getSelection().selectAllChildren(code);
    await navigator.clipboard.writeText(code.textContent);
    return button.replaceChildren("copied");
  } }, "copy");
  code.after(button);
});

// Mark elements that are wider than their container, so that the style sheet can show that they scroll.
const wide = new ResizeObserver((entries) => {
  for (const { target } of entries) target.classList.toggle("scrolls", target.scrollWidth > target.clientWidth + 1);
});
document.querySelectorAll(".scroll, nav ol").forEach((one) => wide.observe(one));

// Mark the part that is being read in the table of contents.
const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
const watch = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    links.forEach((link) => link.removeAttribute("aria-current"));
    links.get(entry.target.id)?.setAttribute("aria-current", "true");
  }
}, { rootMargin: "-10% 0px -80% 0px" });
document.querySelectorAll("section.part").forEach((section) => watch.observe(section));
