// Sorts a table by the column whose head is pressed: first up, then down. Cells without a value stay last.
"use strict";
document.addEventListener("click", (event) => {
  const button = event.target.closest("th button");
  if (!button) return;
  const head = button.closest("th");
  const up = head.getAttribute("aria-sort") !== "ascending";
  for (const other of head.parentElement.children) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");

  const column = head.cellIndex;
  const numeric = head.classList.contains("n");
  const body = head.closest("table").tBodies[0];
  const rows = Array.from(body.rows, (row) => {
    const cell = row.cells[column];
    const value = cell.dataset.s ?? cell.textContent;
    return { row, missing: cell.classList.contains("none"), value: numeric ? Number(value) : value };
  });
  const collator = new Intl.Collator(undefined, { numeric: true });
  const compare = numeric ? (a, b) => a.value - b.value : (a, b) => collator.compare(a.value, b.value);
  rows.sort((a, b) => a.missing - b.missing || (a.missing ? 0 : up ? compare(a, b) : compare(b, a)));
  body.append(...rows.map((entry) => entry.row));
});
