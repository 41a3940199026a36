"use strict";
// What pages have in common: the address holds section, filters and open row, and a page is drawn from it (`draw`).

let STATE = { section: "overview", params: {} };
let drawn = null; // what was drawn last

function parseAddress() {
  const [section, ...query] = location.hash.replace(/^#/, "").split("?");
  return { section: Object.hasOwn(SECTIONS, section) ? section : "overview", params: Object.fromEntries(new URLSearchParams(query.join("?"))) };
}

/** Go to an address of the page. */
function go(address) {
  if (location.hash === address) draw(); else location.hash = address;
}

/** Tell the style how high the header is, where it stays in sight. */
function measureHeader() {
  const header = document.querySelector("header");
  document.documentElement.style.setProperty("--header", `${getComputedStyle(header).position === "sticky" ? header.offsetHeight : 0}px`);
}

/** Show the value of a filter in its field; return the field. */
function showFilter(name, value) {
  const input = document.getElementById("f-" + name);
  if (document.activeElement !== input) input.value = value ?? "";
  input.classList.toggle("set", Boolean(value));
  return input;
}

function filterChanged(names) {
  const params = { ...STATE.params, row: null, show: null };
  for (const name of names) params[name] = document.getElementById("f-" + name).value.trim() || null;
  history.replaceState(null, "", link(STATE.section, params)); // typing adds no entries to the browser history
  draw();
}

/** Choose a theme for this visit and later ones; without a choice it is the system's. */
function chooseTheme(theme) {
  document.documentElement.dataset.theme = theme;
  try { localStorage.setItem("theme", theme); } catch { /* the browser stores nothing for files */ }
}

function startTheme() {
  let theme = null;
  try { theme = localStorage.getItem("theme"); } catch { /* as above */ }
  document.documentElement.dataset.theme = theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

/** Show a dialog with keys that a page has, those of all pages, a text, and the words of the glossary. */
function showKeysOf(sections, enter, text, ...more) {
  const dialog = document.getElementById("keys");
  const keys = [[sections, "sections"], ["/", "filter by queue"], ["m", "filter by machine"], ["c", "clear filters"], ["j, k or \u2193, \u2191", "next row, previous row (in a table)"], ["Enter", enter], ["Esc", "close"], ["t", "light or dark"], ["?", "this help"]];
  dialog.replaceChildren(h("div", { class: "head" }, h("h2", {}, "Keyboard shortcuts and terms"), h("button", { type: "button", onclick: () => dialog.close() }, "close (Esc)")),
    h("div", { class: "body" }, h("dl", {}, keys.map(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)])),
      h("p", {}, text), h("h2", {}, "Terms"), glossaryList(), ...more));
  if (!dialog.open) dialog.showModal();
}

const closeRow = () => go(link(STATE.section, { ...STATE.params, row: null }));

/** Listen to keys, filters, buttons and the address. `addressOfKey` returns where a key leads, or null. */
function listen({ filters, addressOfKey, rows, help }) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) {
      if (event.key === "Escape" && event.target.matches("input")) event.target.blur();
      return;
    }
    if (document.querySelector("dialog[open]")) return;
    const address = addressOfKey(event.key);
    if (address !== null) go(address);
    else if (event.key === "/") { event.preventDefault(); document.getElementById("f-queue").focus(); }
    else if (event.key === "m") { event.preventDefault(); document.getElementById("f-machine").focus(); }
    else if (event.key === "c") go(link(STATE.section));
    else if (event.key === "t") document.getElementById("theme").click();
    else if (event.key === "?") help();
    else if (event.key === "j" || event.key === "k") document.querySelector(rows)?.focus();
  });
  for (const name of filters) {
    let waiting = 0;
    document.getElementById("f-" + name).addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(() => filterChanged(filters), 200); });
  }
  const row = document.getElementById("row");
  document.getElementById("filters").addEventListener("submit", (event) => event.preventDefault());
  document.getElementById("clear").addEventListener("click", (event) => { event.preventDefault(); go(link(STATE.section)); });
  document.getElementById("theme").addEventListener("click", () => { chooseTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"); draw(); });
  document.getElementById("help").addEventListener("click", help);
  row.addEventListener("cancel", (event) => { event.preventDefault(); closeRow(); });
  row.addEventListener("click", (event) => { if (event.target === row) closeRow(); });
  window.addEventListener("hashchange", draw);
}
