"use strict";
// How the report is drawn from its address: all sections, the filters, and the queue that is open.

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

let AFTER_DRAW = [];

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
  measureHeader();
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
  for (const name of NAME_FILTERS) showFilter(name, filters[name]);
  document.getElementById("chosen").textContent = NAME_FILTERS.filter((name) => filters[name]).map((name) => `Only what has \u201c${escapeHidden(filters[name])}\u201d in the name of a ${name}. `).join("");
}

function showKeys() {
  showKeysOf("1 \u2026 7", "open the queue of a row, or filter by a machine of the picture",
    `Times are in UTC; hours and weekdays of the heat maps are those of ${SITE.time_zone}. A dash means: not seen. The address contains section, filters and open queue.`);
}

/** On paper, the picture has the width of a page, so that its texts can be read. */
window.addEventListener("beforeprint", () => { for (const after of AFTER_DRAW) after(PAPER_WIDTH); });
window.addEventListener("afterprint", () => { for (const after of AFTER_DRAW) after(); });

/** The address of the section that a key leads to. */
function addressOfKey(key) {
  const section = Object.keys(SECTIONS)[Number(key) - 1];
  return section ? link(section, STATE.params) : null;
}

listen({ filters: NAME_FILTERS, addressOfKey, rows: "#queues tbody tr", help: showKeys });

{
  let waiting = 0;
  startTheme();
  document.getElementById("asof").replaceChildren(AS_OF === null ? "no evidence" : `${timeText(SITE.since / 1000).slice(0, 16)} to ${timeText(AS_OF).slice(0, 16)} UTC`, h("span", { class: "wide" }, ` \u00b7 published ${timeText(SITE.published_at / 1000).slice(0, 16)} UTC \u00b7 `, h("span", { title: "lake" }, untrusted(SITE.lake))));
  window.addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(() => { for (const after of AFTER_DRAW) after(); }, 150); });
  draw();
}
