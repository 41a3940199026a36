"use strict";
// Where one is: the address holds the section, the filters, the facets and the open row. Everything is drawn from it.

let STATE = { section: "overview", params: {} };

function parseAddress() {
  const text = location.hash.replace(/^#/, "");
  const [section, query] = [text.split("?")[0], text.split("?").slice(1).join("?")];
  const params = Object.fromEntries(new URLSearchParams(query));
  return { section: Object.hasOwn(SECTIONS, section) ? section : "overview", params };
}

/** Go to an address of the site. */
function go(address) {
  if (location.hash === address) draw(); else location.hash = address;
}

let drawn = null; // what the content was last drawn from, but for the open row
function draw() {
  STATE = parseAddress();
  const { row, ...rest } = STATE.params;
  const now = JSON.stringify([STATE.section, rest, document.documentElement.dataset.theme]);
  if (now !== drawn) {
    const same = drawn !== null && JSON.parse(drawn)[0] === STATE.section;
    drawn = now;
    AFTER = [];
    const main = document.getElementById("main");
    for (const old of main.querySelectorAll(".chart")) Plotly.purge(old);
    main.replaceChildren(...SECTIONS[STATE.section].render(rest).flat(3).filter((each) => each !== null));
    for (const after of AFTER.splice(0)) after();
    if (!same) window.scrollTo(0, 0);
    drawFrame(rest);
  }
  showRow(row);
}

function drawFrame(params) {
  const made = checks(params);
  const counts = {};
  for (const each of made) {
    if (each.number && (each.level === "bad" || each.level === "warn")) {
      const now = counts[each.section] ?? { n: 0, level: each.level }; // the worst alone: 3 errors are not 40 of both
      if (now.level === each.level) counts[each.section] = { n: now.n + each.number, level: now.level };
      else if (each.level === "bad") counts[each.section] = { n: each.number, level: "bad" };
    }
  }
  document.getElementById("nav").replaceChildren(...Object.entries(SECTIONS).map(([name, section], place) => h("a", { href: link(name, kept(params)), "aria-current": STATE.section === name ? "page" : null, title: `key ${(place + 1) % 10}` }, section.label,
    counts[name] ? h("span", { class: "count " + counts[name].level }, group(counts[name].n)) : null)));
  document.querySelector("nav a[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  for (const name of ["queue", "machine", "from", "to"]) {
    const input = document.getElementById("f-" + name);
    if (document.activeElement !== input) input.value = params[name] ?? "";
    input.classList.toggle("set", Boolean(params[name]));
    input.classList.toggle("wrong", (name === "from" || name === "to") && Boolean(params[name]) && parseTime(params[name]) === null);
  }
  const title = SECTIONS[STATE.section].label;
  document.title = `${title} \u2013 Message queues`;
}

function filterChanged() {
  const params = { ...STATE.params, row: null };
  for (const name of ["queue", "machine", "from", "to"]) params[name] = document.getElementById("f-" + name).value.trim() || null;
  history.replaceState(null, "", link(STATE.section, params)); // a letter typed is no step to go back over
  draw();
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  try { localStorage.setItem("theme", theme); } catch { /* a file of a browser that keeps nothing */ }
}

function showKeys() {
  const dialog = document.getElementById("keys");
  const keys = [["1 \u2026 9, 0", "sections"], ["/", "filter by queue"], ["m", "filter by machine"], ["c", "clear filters"], ["j, k or \u2193, \u2191", "next row, row before (in a table)"], ["Enter", "open the row: what it rests on"], ["Esc", "close"], ["t", "light or dark"], ["?", "this"]];
  dialog.replaceChildren(h("div", { class: "head" }, h("h2", {}, "Keys and words"), h("button", { type: "button", onclick: () => dialog.close() }, "close (Esc)")),
    h("div", { class: "body" }, h("dl", {}, keys.map(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)])),
      h("p", {}, "Every number leads to its rows, every row to the capture file and packet, or the snapshot file and line, that it rests on. All times are UTC; \u201cnow\u201d is the newest packet or snapshot that was read, not this machine\u2019s clock. A dash is: not known. Filters, section and open row are in the address: copy it to show somebody else the same."),
      h("p", {}, "From the command line: ", h("code", {}, `python -m jobs.publish_dashboards --lake ${shellWord(SITE.lake)} --out FOLDER`), " makes this page anew.")));
  if (!dialog.open) dialog.showModal();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) {
    if (event.key === "Escape" && event.target.matches("input")) event.target.blur();
    return;
  }
  if (document.querySelector("dialog[open]")) return;
  const place = event.key === "0" ? 9 : Number(event.key) - 1;
  const names = Object.keys(SECTIONS);
  if (/^[0-9]$/.test(event.key) && names[place]) go(link(names[place], kept(STATE.params)));
  else if (event.key === "/") { event.preventDefault(); document.getElementById("f-queue").focus(); }
  else if (event.key === "m") { event.preventDefault(); document.getElementById("f-machine").focus(); }
  else if (event.key === "c") go(link(STATE.section));
  else if (event.key === "t") document.getElementById("theme").click();
  else if (event.key === "?") showKeys();
  else if (event.key === "j" || event.key === "k") document.querySelector("main tbody tr")?.focus();
});

for (const name of ["queue", "machine", "from", "to"]) {
  let waiting = 0;
  document.getElementById("f-" + name).addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(filterChanged, 200); });
}
document.getElementById("f-last").addEventListener("change", (event) => {
  const seconds = Number(event.target.value);
  document.getElementById("f-from").value = seconds && AS_OF !== null ? timeText(AS_OF - seconds * 1000) : "";
  document.getElementById("f-to").value = "";
  filterChanged();
});
document.getElementById("filters").addEventListener("submit", (event) => event.preventDefault());
document.getElementById("clear").addEventListener("click", (event) => { event.preventDefault(); document.getElementById("f-last").value = ""; go(link(STATE.section)); });
document.getElementById("theme").addEventListener("click", () => { setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"); draw(); });
document.getElementById("help").addEventListener("click", showKeys);
document.getElementById("row").addEventListener("cancel", (event) => { event.preventDefault(); go(link(STATE.section, { ...STATE.params, row: null })); });
document.getElementById("row").addEventListener("click", (event) => { if (event.target.id === "row") go(link(STATE.section, { ...STATE.params, row: null })); });
window.addEventListener("hashchange", draw);

{
  let theme = null;
  try { theme = localStorage.getItem("theme"); } catch { /* as above */ }
  setTheme(theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
  document.getElementById("asof").replaceChildren(h("span", { title: "lake" }, wire(SITE.lake)), ` \u00b7 newest evidence ${AS_OF === null ? "none" : timeText(AS_OF) + " UTC"} \u00b7 published ${timeText(SITE.published_at / 1000).slice(0, 19)} UTC`);
  const known = (id, places) => {
    const values = new Set();
    for (const [name, columns] of places) for (const column of columns) {
      for (const value of DATA[name].rows?.columns[column] ?? []) if (typeof value === "string") values.add(value);
    }
    document.getElementById(id).replaceChildren(...[...values].sort().slice(0, 2000).map((value) => h("option", { value })));
  };
  known("queues-known", [["queues", ["queue"]], ["attempts", ["queue"]], ["transfers", ["queue"]]]);
  known("machines-known", [["queues", ["queue_manager"]], ["attempts", ["server_address", "client_address"]], ["calls", ["server_address"]]]);
  draw();
}
