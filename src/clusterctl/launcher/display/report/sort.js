// Turns each column title into a button that sorts the rows by its column, and reverses the order on the next click.
for (const table of document.querySelectorAll("table.sortable")) {
  const rows = table.tBodies[0];
  const titles = [...table.tHead.rows[0].cells];
  const valueIn = (row, column) => row.cells[column].dataset.value ?? row.cells[column].textContent;
  const compare = (a, b) => (isNaN(a) || isNaN(b) ? a.localeCompare(b, undefined, { numeric: true }) : a - b);
  titles.forEach((title, column) => {
    const button = document.createElement("button");
    button.append(...title.childNodes);
    title.append(button);
    button.addEventListener("click", () => {
      const order = title.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
      titles.forEach((other) => other.removeAttribute("aria-sort"));
      title.setAttribute("aria-sort", order);
      const sign = order === "ascending" ? 1 : -1;
      rows.append(...[...rows.rows].sort((one, other) => {
        const [a, b] = [valueIn(one, column), valueIn(other, column)];
        return a === "" || b === "" ? (a === "") - (b === "") : sign * compare(a, b); // empty cells always come last
      }));
    });
  });
}
