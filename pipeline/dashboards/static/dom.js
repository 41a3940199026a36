"use strict";
// Builds elements. Text becomes text nodes, never markup; text from captures goes through `untrusted`.

function h(tag, props, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "href") element.setAttribute("href", "#" + String(value).replace(/^#/, ""));
    else if (name === "class") element.className = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(3)) {
    if (child === null || child === undefined) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

/** An element with text from captures or snapshots, isolated so that its direction does not affect its neighbours. */
const untrusted = (text) => h("bdi", {}, escapeHidden(text));

/** The address of a section with filters: `#reads?outcome=expired&queue=...`. Null is left out, "" means "none". */
function link(section, params) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params ?? {})) {
    if (value !== null && value !== undefined) query.set(name, String(value));
  }
  const text = query.toString();
  return "#" + section + (text ? "?" + text : "");
}

/** The address of the rows behind a number: a section with filters, the rows of a dataset in view. */
const rowsLink = (section, params, name = ROWS_OF[section]) => link(section, { ...params, show: name });

/** The filters at the top of the page, which links to other sections keep. */
const globalFilters = (state) => Object.fromEntries(FILTERS.filter((name) => state[name]).map((name) => [name, state[name]]));

const LEVELS = {
  state: {
    "LOCAL CONNECTION": "ok", CONNECTED: "ok", DISCONNECTED: "bad", LOCKED: "bad", WAITING: "warn", ONHOLD: "warn", "ON HOLD": "warn",
    "NEED VALIDATE": "warn", "NEED VALIDATION": "warn", DISCONNECTING: "warn", NONACTIVE: "", INACTIVE: "", UNKNOWN: "unknown",
  },
  condition: { stalled: "bad", reset: "bad", refused: "bad", resending: "warn", slow: "warn", waiting: "", flowing: "ok", idle: "ok", acknowledged: "ok", unknown: "unknown" },
  severity: { error: "bad", critical: "bad", warning: "warn", info: "" },
  outcome: { acked: "ok", peeked: "ok", ok: "ok", failed: "bad", expired: "bad", rundown: "bad", rejected: "bad", nacked: "warn", fault: "bad", no_response: "bad", damaged: "bad", encrypted: "unknown", unbound: "unknown", no_request: "unknown", unknown: "unknown", in_flight: "unknown", done: "ok", received: "ok", delivered: "ok", transferred: "ok", unacknowledged: "bad" },
  session_outcome: { open: "ok", refused: "bad", unanswered: "bad", not_binary_protocol: "warn", not_established: "warn", unknown: "unknown" },
  not_established: { no_answer: "bad", reset: "bad", answer_not_captured: "bad", too_early: "unknown" },
  session_end: { still_open: "", not_open: "unknown", idle: "", closed: "", reset: "warn", ack_timeout: "bad", silent: "unknown", refused: "bad", unopened: "warn" },
  event: { sent: "", resent: "warn", acknowledged: "ok" },
  fate: { consumed: "ok", returned: "warn", rejected: "bad", held: "warn", unknown: "unknown" },
  loss_risk: { read_twice: "bad", ack_failed: "bad", ack_unanswered: "warn", reader_lost: "warn", poison: "bad" },
  status: { complete: "ok", partial: "warn", unreadable: "bad" },
  confidence: { complete: "ok", partial: "warn", provisional: "warn", inferred: "warn" },
  success: { yes: "ok", no: "bad" },
  failed: { yes: "bad" },
};

/** An element that shows a value: a badge if its column has levels, a dash if it is null. */
function valueElement(name, kind, value) {
  const text = valueText(name, kind, value);
  if (text === null) return h("span", { title: "unknown, or not applicable" }, "\u2013");
  if (text === "" && kind === "other") return document.createTextNode("none");
  const levels = LEVELS[name.startsWith("state_now") ? "state" : name];
  if (levels) return h("span", { class: "badge " + (levels[text] ?? "") }, escapeHidden(text));
  if (/(address|queue_manager|machine|client|server)$/.test(name) && SHOWN_MACHINES.has(text)) return machineElement(text);
  return kind === "text" || kind === "other" ? untrusted(text) : document.createTextNode(text);
}

/** A machine by its name, with the address or identifier that the row has. */
function machineElement(identifier) {
  const shown = SHOWN_MACHINES.get(identifier);
  return h("span", {}, untrusted(shown), shown.includes(identifier) ? null : h("small", {}, untrusted(identifier)));
}

const notComputed = (data) => h("p", { class: "note" }, h("strong", {}, escapeHidden(data.note)));

/** A note above a truncated table: how many rows are shown, which ones, and the SQL that returns all. */
function cutNote(data) {
  if (!data.rows || data.total <= data.rows.count) return null;
  return h("p", { class: "note cut" },
    `This page has ${formatNumber(data.rows.count)} of ${formatNumber(data.total)} rows: ${data.selection}. `,
    data.summary ? `Counts and charts include all rows${data.stepS ? `, in time steps of ${durationText(data.stepS * 1000)}` : ""}${data.note ? ` (${data.note})` : ""}. ` : "",
    h("details", {}, h("summary", {}, "SQL that returns all rows"), copyable("", data.query)));
}

function copyable(what, text) {
  const command = h("code", { class: "command" }, escapeHidden(text));
  return h("div", { class: "copyable" }, what ? h("span", { class: "what" }, what) : null, command,
    h("button", { type: "button", onclick: () => copyText(text) }, "copy"));
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    notify("copied");
  } catch {
    const area = h("textarea", {});
    area.value = text;
    (document.querySelector("dialog[open]") ?? document.body).append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    notify(done ? "copied" : "could not copy: select the text by hand");
  }
}

let noticeTimer = 0;
function notify(text) {
  document.getElementById("notice").textContent = text;
  clearTimeout(noticeTimer);
  noticeTimer = setTimeout(() => { document.getElementById("notice").textContent = ""; }, 1800);
}

const tile = (label, value, detail, level, href) =>
  h(href ? "a" : "div", { class: "tile " + (level ?? ""), href }, h("div", { class: "label" }, label), h("div", { class: "value" + (/[a-z]{3}/.test(String(value)) ? " words" : "") }, value), h("div", { class: "detail" }, detail));
const tiles = (...each) => h("div", { class: "tiles" }, each);
