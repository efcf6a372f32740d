// Refreshes the page every few seconds while it is visible.
const SECONDS = 3;
const trouble = document.getElementById("trouble");

async function refresh() {
  if (document.hidden || !getSelection().isCollapsed) return; // keep a selection that may be about to be copied
  let text = "";
  try {
    const answer = await fetch(location.href, { redirect: "error" });
    if (answer.status === 403) throw new Error("the dashboard was restarted: open the address it printed");
    text = await answer.text();
  } catch (error) {
    trouble.textContent = error instanceof TypeError ? "no response: is clusterctl dashboard still running?" : error.message;
    return;
  }
  trouble.textContent = "";
  const main = document.querySelector("main");
  const newer = new DOMParser().parseFromString(text, "text/html").querySelector("main");
  const atEnd = innerHeight + scrollY >= document.documentElement.scrollHeight - 40;
  const open = [...main.querySelectorAll("details")].map((one) => one.open);
  newer.querySelectorAll("details").forEach((one, place) => (one.open = open[place] === true));
  const across = [...main.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
  main.replaceWith(newer);
  makeSortable(newer);
  newer.querySelectorAll(".scroll").forEach((one, place) => (one.scrollLeft = across[place] || 0));
  if (atEnd && newer.querySelector(".log")) scrollTo(scrollX, document.documentElement.scrollHeight);
}

async function again() {
  await refresh();
  setTimeout(again, SECONDS * 1000);
}

if (document.querySelector(".log")) scrollTo(0, document.documentElement.scrollHeight);
document.addEventListener("visibilitychange", refresh);
setTimeout(again, SECONDS * 1000);

const search = document.getElementById("search");
let typed;
search?.addEventListener("input", () => {
  clearTimeout(typed);
  typed = setTimeout(() => {
    const address = new URL(location.href);
    address.searchParams.set("q", search.value);
    address.searchParams.delete("page");
    history.replaceState(null, "", address);
    refresh();
  }, 250);
});
