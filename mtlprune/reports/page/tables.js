// Tables that can be sorted: a button in each head; numbers by size, words by the alphabet, what is not defined last.
function sortable(table) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  const key = (row, column) => {
    const words = row.cells[column].textContent.trim();
    const number = Number.parseFloat(words.replace(/−/g, "-").replace(/[,*†‡°+%]/g, "").replace(/^(\d+)-(\d+)$/, (_, a, b) => a * 1000 + Number(b)));
    return { words, number: Number.isNaN(number) ? null : number };
  };
  heads.forEach((head, column) => {
    const button = make("button", { type: "button", title: "sort" }, ...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === (head.classList.contains("number") ? "descending" : "ascending");
      const first = head.classList.contains("number") ? "descending" : "ascending";
      const order = down ? (first === "descending" ? "ascending" : "descending") : first;
      heads.forEach((one) => one.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", order);
      const sign = order === "ascending" ? 1 : -1;
      const rows = [...body.rows].map((row) => ({ row, ...key(row, column) }));
      const numeric = head.classList.contains("number") || rows.every((one) => one.number !== null);
      rows.sort((a, b) => {
        if (!numeric) return sign * a.words.localeCompare(b.words, "en");
        if (a.number === null || b.number === null) return (a.number === null) - (b.number === null);
        return sign * (a.number - b.number);
      });
      body.append(...rows.map((one) => one.row));
    });
  });
}

document.querySelectorAll("table.sortable").forEach(sortable);
