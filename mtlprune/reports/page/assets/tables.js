// Add buttons to every table. A button in each heading sorts the rows (numbers by size, words alphabetically, undefined
// values last), and a button below the table saves it as CSV.
const minus = (words) => words.replace(/−/g, "-");
const NUMBER = /^[+-]?[\d,]*\.?\d+(e[+-]?\d+)?$/;

function size(words) {
  const head = words.match(/^(\d+)-(\d+)$/);
  if (head) return 1000 * head[1] + Number(head[2]);
  const time = words.match(/^(?:(\d+) h ?)?(?:(\d+) min ?)?(?:(\d+) s)?$/);
  if (words && time) return 3600 * (time[1] ?? 0) + 60 * (time[2] ?? 0) + Number(time[3] ?? 0);
  const number = Number.parseFloat(minus(words).replace(/[[,*†‡°+%≤<]/g, ""));
  return Number.isNaN(number) ? null : number;
}

const text = (cell) => cell.textContent.trim().replace(/\s+/g, " ");

function csv(table) {
  const cell = (words) => {
    const plain = words === "–" ? "" : NUMBER.test(minus(words)) ? minus(words).replace(/[,+]/g, "") : words;
    return /[",\n]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain;
  };
  return [...table.rows].map((row) => `${[...row.cells].map((one) => cell(text(one))).join(",")}\n`).join("");
}

function equip(table, key) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  const name = table.caption.textContent;
  function sort(column, order) {
    const head = heads[column];
    heads.forEach((one) => one.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", order);
    const sign = order === "ascending" ? 1 : -1;
    const rows = [...body.rows].map((row) => ({ row, words: text(row.cells[column]), number: size(text(row.cells[column])) }));
    const numeric = head.classList.contains("number") || rows.every((one) => one.number !== null);
    rows.sort((a, b) => {
      if (!numeric) return sign * a.words.localeCompare(b.words, "en");
      if (a.number === null || b.number === null) return (a.number === null) - (b.number === null);
      return sign * (a.number - b.number);
    });
    body.append(...rows.map((one) => one.row));
  }
  heads.forEach((head, column) => {
    if (!head.textContent.trim()) return;
    head.append(make("button", {
      type: "button", title: "sort",
      onclick: () => {
        const orders = head.classList.contains("number") ? ["descending", "ascending"] : ["ascending", "descending"];
        const order = orders[Number(head.getAttribute("aria-sort") === orders[0])];
        sort(column, order);
        remember(key, `${column + 1}.${order}`);
      },
    }, ...head.childNodes));
  });
  table.closest(".scroll").after(make("button", {
    type: "button", class: "csv", "aria-label": `${name} as CSV`,
    onclick: () => {
      const url = URL.createObjectURL(new Blob([csv(table)], { type: "text/csv" }));
      make("a", { href: url, download: `${name.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "")}.csv` }).click();
      setTimeout(() => URL.revokeObjectURL(url), 1000);
    },
  }, "CSV"));
  const [, column, order] = (chosen.get(key) ?? "").match(/^(\d+)\.((?:a|de)scending)$/) ?? [];
  if (!heads[column - 1]?.querySelector("button")) return;
  sort(column - 1, order);
  for (let fold = table.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
}

document.querySelectorAll("section").forEach((section) => {
  section.querySelectorAll("table:not(.heads)").forEach((table, k) => equip(table, `${section.id}.${k + 1}`));
});
