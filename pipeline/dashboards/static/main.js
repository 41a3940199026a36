"use strict";
// How the site is drawn from its address, which also holds facets.

const SECTION_KEYS = [..."1234567890-"];
function draw() {
  STATE = parseAddress();
  const { row, ...rest } = STATE.params;
  document.body.classList.toggle("story", Boolean(SECTIONS[STATE.section].story));
  const now = JSON.stringify([STATE.section, rest, document.documentElement.dataset.theme]);
  if (now !== drawn) {
    const same = drawn !== null && JSON.parse(drawn)[0] === STATE.section;
    drawn = now;
    AFTER_DRAW = [];
    TABLES = [];
    const main = document.getElementById("main");
    for (const old of main.querySelectorAll(".chart")) Plotly.purge(old);
    main.replaceChildren(...SECTIONS[STATE.section].render(rest).flat(3).filter((each) => each !== null));
    for (const after of AFTER_DRAW.splice(0)) after();
    explain(main);
    drawFrame(rest);
    measureHeader();
    const wanted = rest.show && main.querySelector(`[data-rows="${CSS.escape(rest.show)}"]`);
    if (wanted) (wanted.previousElementSibling?.matches("h2") ? wanted.previousElementSibling : wanted).scrollIntoView();
    else if (!same) window.scrollTo(0, 0);
  }
  showRow(row);
}

function drawFrame(params) {
  const made = checks(params);
  const counts = {};
  for (const each of made) {
    if (each.number && (each.level === "bad" || each.level === "warn")) {
      const now = counts[each.section] ?? { n: 0, level: each.level }; // counts of the worst level only
      if (now.level === each.level) counts[each.section] = { n: now.n + each.number, level: now.level };
      else if (each.level === "bad") counts[each.section] = { n: each.number, level: "bad" };
    }
  }
  document.getElementById("nav").replaceChildren(...TABS.map((name, place) => h("a", { href: link(name, globalFilters(params)), "aria-current": STATE.section === name ? "page" : null, title: `key ${SECTION_KEYS[place]}` }, SECTIONS[name].label,
    counts[name] ? h("span", { class: "count " + counts[name].level }, formatNumber(counts[name].n)) : null)));
  document.querySelector("nav a[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  for (const name of FILTERS) {
    const input = showFilter(name, params[name]);
    input.classList.toggle("wrong", (name === "from" || name === "to") && Boolean(params[name]) && parseTime(params[name]) === null);
  }
  const wrong = ["from", "to"].filter((name) => params[name] && parseTime(params[name]) === null).map((name) => `${name}: \u201c${escapeHidden(params[name])}\u201d is not a time, so nothing is filtered by it. Write 2024-05-01 or 2024-05-01 12:00 (UTC).`);
  document.getElementById("wrong").replaceChildren(...wrong.map((each) => h("p", {}, each)));
  const title = SECTIONS[STATE.section].label;
  const chosen = Object.entries(params).filter(([name]) => name !== "show").map(([name, value]) => `${facetLabel(name)}: ${value === "" ? "none" : escapeHidden(value)}`);
  document.getElementById("chosen").textContent = `Section: ${title}. Filters: ${chosen.join("; ") || "none"}.`;
  document.title = `${title} \u2013 Message queues`;
}

function showKeys() {
  showKeysOf("1 \u2026 9, 0, -", "open the row with its evidence",
    "Every number links to its rows, and every row to its evidence: capture file and packet, or snapshot file and line. All times are in UTC. \u201cNow\u201d is the time of the newest packet or snapshot, not of this machine\u2019s clock. A dash means unknown. The address contains section, filters and open row: copy it to share the view.",
    h("p", {}, "To create this page again, run ", h("code", {}, `msmq publish_dashboards ${SITE.lake_options} --out FOLDER`), "."));
}

/** Say how old the newest evidence is by the clock of the browser, which may be long after the page was published. */
function showAge(now = Date.now()) {
  const age = AS_OF === null ? null : now - AS_OF;
  document.getElementById("age").textContent = age === null ? "no evidence" : age < 0 ? `evidence is ${durationText(-age)} ahead of this computer's clock` : `evidence is ${durationText(age)} old now`;
}

/** On paper, tables have all their rows, and what can be opened is open. */
window.addEventListener("beforeprint", () => {
  for (const table of TABLES) table(true);
  for (const details of document.querySelectorAll("details:not([open])")) { details.open = true; details.dataset.closed = ""; }
});
window.addEventListener("afterprint", () => {
  for (const table of TABLES) table(false);
  for (const details of document.querySelectorAll("details[data-closed]")) { details.open = false; delete details.dataset.closed; }
});

/** The address of the section that a key leads to. */
function addressOfKey(key) {
  const tab = TABS[SECTION_KEYS.indexOf(key)];
  return tab ? link(tab, globalFilters(STATE.params)) : null;
}

// Before what `listen` adds, which draws the page.
document.getElementById("clear").addEventListener("click", () => { document.getElementById("f-last").value = ""; });
listen({ filters: FILTERS, addressOfKey, rows: "main tbody tr", help: showKeys });
document.getElementById("f-last").addEventListener("change", (event) => {
  const seconds = Number(event.target.value);
  document.getElementById("f-from").value = seconds && AS_OF !== null ? timeText(AS_OF - seconds * 1000) : "";
  document.getElementById("f-to").value = "";
  filterChanged(FILTERS);
});

{
  startTheme();
  document.getElementById("asof").replaceChildren(h("strong", { id: "age" }), ` \u00b7 newest evidence ${AS_OF === null ? "none" : timeText(AS_OF).slice(0, 19) + " UTC"} `, h("span", { class: "wide" }, `\u00b7 published ${timeText(SITE.published_at / 1000).slice(0, 19)} UTC \u00b7 `, h("span", { title: "lake" }, untrusted(SITE.lake))));
  document.getElementById("filtering").open = !matchMedia("(max-width: 760px)").matches || Object.keys(globalFilters(parseAddress().params)).length > 0;
  showAge();
  setInterval(showAge, 30_000);
  const known = (id, places) => {
    const values = new Set();
    for (const [name, columns] of places) for (const column of columns) {
      for (const value of DATA[name]?.rows?.columns[column] ?? []) if (typeof value === "string") values.add(value);
    }
    document.getElementById(id).replaceChildren(...[...values].sort().slice(0, 2000).map((value) => h("option", { value })));
  };
  known("queues-known", [["queues", ["queue"]], ["attempts", ["queue"]], ["transfers", ["queue"]], ["message_transfers", ["queue"]]]);
  known("machines-known", [["queues", ["queue_manager"]], ["attempts", ["server_address", "client_address"]], ["calls", ["server_address"]], ["message_transfers", ["sender_address", "receiver_address"]], ["queue_manager_names", ["host_name"]]]);
  draw();
}
