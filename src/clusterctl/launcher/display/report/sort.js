// Turns each column title into a button that sorts the rows by its column, and reverses the order on the next click.
const sortedBy = new Map(); // table, by its place on the page: column and order, for a page that is drawn again
function makeSortable(page) {
  page.querySelectorAll("table.sortable").forEach((table, place) => {
    const rows = table.tBodies[0];
    const titles = [...table.tHead.rows[0].cells];
    const valueIn = (row, column) => row.cells[column].dataset.value ?? row.cells[column].textContent;
    const compare = (a, b) => (isNaN(a) || isNaN(b) ? a.localeCompare(b, undefined, { numeric: true }) : a - b);
    const sort = (column, order) => {
      sortedBy.set(place, [column, order]);
      titles.forEach((other) => other.removeAttribute("aria-sort"));
      titles[column].setAttribute("aria-sort", order);
      const sign = order === "ascending" ? 1 : -1;
      rows.append(...[...rows.rows].sort((one, other) => {
        const [a, b] = [valueIn(one, column), valueIn(other, column)];
        return a === "" || b === "" ? (a === "") - (b === "") : sign * compare(a, b); // empty cells always come last
      }));
    };
    titles.forEach((title, column) => {
      const button = document.createElement("button");
      button.append(...title.childNodes);
      title.append(button);
      const opposite = () => (title.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending");
      button.addEventListener("click", () => sort(column, opposite()));
    });
    const [column, order] = sortedBy.get(place) ?? [];
    if (column < titles.length) sort(column, order);
  });
}
makeSortable(document);
