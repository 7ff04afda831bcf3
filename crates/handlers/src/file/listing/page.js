(() => {
  const table = document.querySelector("table"), body = table.tBodies[0];
  const value = (row, column) => {
    const cell = row.cells[column];
    return column ? Number(cell.dataset.v ?? -1) : cell.textContent;
  };
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.onclick = () => {
      const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      const compare = column
        ? (a, b) => value(a, column) - value(b, column)
        : (a, b) => value(a, 0).localeCompare(value(b, 0), undefined, { numeric: true });
      const is = (row, name) => row.classList.contains(name);
      const rows = [...body.rows].sort((a, b) =>
        is(b, "up") - is(a, "up") || is(b, "dir") - is(a, "dir") || sign * compare(a, b));
      body.replaceChildren(...rows);
    };
  });
})();
