"use strict";
// What the address means: a section, the filters and the queue that is open. The page is drawn from the address.

const SECTIONS = {
  overview: { label: "Overview", render: overviewSection },
  flows: { label: "Who sends to whom", render: flowsSection },
  queues: { label: "Queues", render: queuesSection },
  machines: { label: "Machines", render: machinesSection },
  targets: { label: "What a move needs", render: targetsSection },
  capacity: { label: "Capacity", render: capacitySection },
  limits: { label: "What this rests on", render: limitsSection },
};
const NAME_FILTERS = ["queue", "machine"];
const PAPER_WIDTH = 700;

let STATE = { section: "overview", params: {} };
let AFTER_DRAW = [];

function parseAddress() {
  const [section, ...query] = location.hash.replace(/^#/, "").split("?");
  return { section: Object.hasOwn(SECTIONS, section) ? section : "overview", params: Object.fromEntries(new URLSearchParams(query.join("?"))) };
}

/** Go to an address of the page. */
function go(address) {
  if (location.hash === address) draw(); else location.hash = address;
}

let drawn = null; // the filters that were drawn last
function draw() {
  const before = STATE.section;
  STATE = parseAddress();
  const { row, ...filters } = STATE.params;
  if (JSON.stringify(filters) !== drawn) {
    drawn = JSON.stringify(filters);
    drawSections(filters);
    drawFilters(filters);
  }
  document.getElementById("nav").replaceChildren(...Object.entries(SECTIONS).map(([name, section]) => h("a", { href: link(name, filters), "aria-current": STATE.section === name ? "page" : null }, section.label)));
  const header = document.querySelector("header");
  document.documentElement.style.setProperty("--header", `${getComputedStyle(header).position === "sticky" ? header.offsetHeight : 0}px`);
  if (STATE.section !== before) document.getElementById(STATE.section).scrollIntoView();
  showQueue(row);
}

function drawSections(filters) {
  AFTER_DRAW = [];
  TABLES = [];
  const main = document.getElementById("main");
  main.replaceChildren(...Object.entries(SECTIONS).map(([name, section]) => h("section", { id: name, "aria-labelledby": `title-${name}` },
    h(name === "overview" ? "h1" : "h2", { id: `title-${name}` }, section.label), section.render(filters))));
  for (const after of AFTER_DRAW) after();
  explain(main);
}

function drawFilters(filters) {
  for (const name of NAME_FILTERS) {
    const input = document.getElementById("f-" + name);
    if (document.activeElement !== input) input.value = filters[name] ?? "";
    input.classList.toggle("set", Boolean(filters[name]));
  }
  document.getElementById("chosen").textContent = NAME_FILTERS.filter((name) => filters[name]).map((name) => `Only what has \u201c${escapeHidden(filters[name])}\u201d in the name of a ${name}. `).join("");
}

function filterChanged() {
  const params = { ...STATE.params, row: null };
  for (const name of NAME_FILTERS) params[name] = document.getElementById("f-" + name).value.trim() || null;
  history.replaceState(null, "", link(STATE.section, params)); // typing adds no entries to the browser history
  draw();
}

/** Choose a theme for this visit and later ones; without a choice it is the system's. */
function chooseTheme(theme) {
  document.documentElement.dataset.theme = theme;
  try { localStorage.setItem("theme", theme); } catch { /* the browser stores nothing for files */ }
}

function showKeys() {
  const dialog = document.getElementById("keys");
  const keys = [["1 \u2026 7", "sections"], ["/", "filter by queue"], ["m", "filter by machine"], ["c", "clear filters"], ["j, k or \u2193, \u2191", "next row, previous row (in a table)"], ["Enter", "open the queue of a row, or filter by a machine of the picture"], ["Esc", "close"], ["t", "light or dark"], ["?", "this help"]];
  dialog.replaceChildren(h("div", { class: "head" }, h("h2", {}, "Keyboard shortcuts and terms"), h("button", { type: "button", onclick: () => dialog.close() }, "close (Esc)")),
    h("div", { class: "body" }, h("dl", {}, keys.map(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)])),
      h("p", {}, `Times are in UTC; hours and weekdays of the heat maps are those of ${SITE.time_zone}. A dash means: not seen. The address contains section, filters and open queue.`),
      h("h2", {}, "Terms"), glossaryList()));
  if (!dialog.open) dialog.showModal();
}

/** On paper, the picture has the width of a page, so that its texts can be read. */
window.addEventListener("beforeprint", () => { for (const after of AFTER_DRAW) after(PAPER_WIDTH); });
window.addEventListener("afterprint", () => { for (const after of AFTER_DRAW) after(); });

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select")) {
    if (event.key === "Escape" && event.target.matches("input")) event.target.blur();
    return;
  }
  if (document.querySelector("dialog[open]")) return;
  const section = Object.keys(SECTIONS)[Number(event.key) - 1];
  if (section) go(link(section, STATE.params));
  else if (event.key === "/") { event.preventDefault(); document.getElementById("f-queue").focus(); }
  else if (event.key === "m") { event.preventDefault(); document.getElementById("f-machine").focus(); }
  else if (event.key === "c") go(link(STATE.section));
  else if (event.key === "t") document.getElementById("theme").click();
  else if (event.key === "?") showKeys();
  else if (event.key === "j" || event.key === "k") document.querySelector("#queues tbody tr")?.focus();
});

for (const name of NAME_FILTERS) {
  let waiting = 0;
  document.getElementById("f-" + name).addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(filterChanged, 200); });
}
document.getElementById("filters").addEventListener("submit", (event) => event.preventDefault());
document.getElementById("clear").addEventListener("click", (event) => { event.preventDefault(); go(link(STATE.section)); });
document.getElementById("theme").addEventListener("click", () => chooseTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
document.getElementById("help").addEventListener("click", showKeys);
document.getElementById("row").addEventListener("cancel", (event) => { event.preventDefault(); go(link(STATE.section, { ...STATE.params, row: null })); });
document.getElementById("row").addEventListener("click", (event) => { if (event.target.id === "row") go(link(STATE.section, { ...STATE.params, row: null })); });
window.addEventListener("hashchange", draw);

{
  let theme = null, waiting = 0;
  try { theme = localStorage.getItem("theme"); } catch { /* as above */ }
  document.documentElement.dataset.theme = theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  document.getElementById("asof").replaceChildren(AS_OF === null ? "no evidence" : `${timeText(SITE.since / 1000).slice(0, 16)} to ${timeText(AS_OF).slice(0, 16)} UTC`, h("span", { class: "wide" }, ` \u00b7 published ${timeText(SITE.published_at / 1000).slice(0, 16)} UTC \u00b7 `, h("span", { title: "lake" }, untrusted(SITE.lake))));
  window.addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(() => { for (const after of AFTER_DRAW) after(); }, 150); });
  draw();
}
