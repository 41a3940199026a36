"use strict";
// Tables of rows, and one row with what it rests on.

const TABLE_STATE = new Map(); // of each table: how it is sorted, and its page
const PAGE = 50;

/**
 * A table of rows of a dataset. `columns` are names, or {name, label, value, level, kind} where what is shown is not a column.
 * Sorted by its head, in pages; a row opens what it rests on.
 */
function rowsTable(name, columns, state, options = {}) {
  const data = DATA[name];
  if (!data.computed) return notComputed(data);
  const rows = data.rows;
  let indexes = options.indexes ?? found(name, rows, state);
  if (options.rank) indexes = indexes.map((row, place) => [options.rank(row), place, row]).sort((a, b) => a[0] - b[0] || a[1] - b[1]).map((each) => each[2]);
  const id = options.id ?? name;
  const memory = TABLE_STATE.get(id) ?? { by: options.by ?? null, down: options.down ?? false, page: 0 };
  TABLE_STATE.set(id, memory);
  const made = columns.filter((each) => typeof each !== "string" || rows.has(each)).map((each) => {
    const column = typeof each === "string" ? { name: each } : each;
    return { label: column.name.replaceAll("_", " "), kind: rows.kinds[column.name] ?? "text", value: (row) => rows.at(row, column.name), title: SITE.meanings[name]?.[column.name], ...column };
  });
  const box = h("div", {});
  const draw = () => {
    const by = made.find((column) => column.name === memory.by);
    if (by) {
      const rank = by.rank ?? by.value;
      indexes = [...indexes].sort((a, b) => compare(rank(a), rank(b), memory.down) || a - b);
    }
    const pages = Math.max(1, Math.ceil(indexes.length / PAGE));
    memory.page = Math.min(memory.page, pages - 1);
    const some = indexes.slice(memory.page * PAGE, memory.page * PAGE + PAGE);
    const head = h("tr", {}, made.map((column) => h("th", { scope: "col", class: column.kind === "number" ? "n" : "", "aria-sort": memory.by === column.name ? (memory.down ? "descending" : "ascending") : null },
      h("button", { type: "button", title: column.title ?? null, onclick: () => { memory.down = memory.by === column.name ? !memory.down : column.kind === "number" || column.kind === "time"; memory.by = column.name; memory.page = 0; draw(); } },
        column.label, memory.by === column.name ? (memory.down ? " \u2193" : " \u2191") : ""))));
    const body = some.map((row) => {
      const open = () => (options.open ?? openRow)(name, row);
      return h("tr", { tabindex: 0, onclick: (event) => { if (!event.target.closest("a,button")) open(); }, onkeydown: (event) => rowKey(event, open) },
        made.map((column) => {
          const value = column.value(row);
          return h("td", { class: (column.kind === "number" ? "n" : column.kind === "time" ? "t" : "") + (value === null ? " none" : ""), "data-label": column.label },
            column.show ? column.show(row) : shown(column.name, column.kind, value));
        }));
    });
    const turn = (by) => () => { memory.page += by; draw(); };
    box.replaceChildren(
      cutNote(data) ?? "",
      indexes.length ? h("div", { class: "wrap" }, h("table", {}, h("thead", {}, head), h("tbody", {}, body))) : h("p", { class: "note" }, options.empty ?? "No rows with these filters."),
      h("div", { class: "pager" }, `${group(indexes.length)} ${indexes.length === 1 ? "row" : "rows"}`,
        pages > 1 ? [h("button", { type: "button", disabled: memory.page === 0, onclick: turn(-1) }, "before"), `page ${memory.page + 1} of ${pages}`, h("button", { type: "button", disabled: memory.page === pages - 1, onclick: turn(1) }, "next")] : null));
  };
  draw();
  return box;
}

function rowKey(event, open) {
  if (event.target !== event.currentTarget) return;
  const step = { j: "nextElementSibling", ArrowDown: "nextElementSibling", k: "previousElementSibling", ArrowUp: "previousElementSibling" }[event.key];
  if (event.key === "Enter" || event.key === " ") { event.preventDefault(); open(); }
  if (step) { event.preventDefault(); event.stopPropagation(); event.currentTarget[step]?.focus(); }
}

function compare(a, b, down) {
  const none = (value) => value === null || value === undefined;
  if (none(a) || none(b)) return none(a) - none(b); // what is not known comes last, whichever way
  const order = typeof a === "number" && typeof b === "number" ? a - b : typeof a === "boolean" ? a - b : COLLATOR.compare(String(a), String(b));
  return down ? -order : order;
}
const COLLATOR = new Intl.Collator("en", { numeric: true }); // numbers too large for JavaScript travel as text

/** A table of groups, not of rows: each leads to its rows. `groups` are {cells, href}. */
function groupsTable(labels, groups, empty) {
  if (!groups.length) return h("p", { class: "note" }, empty ?? "Nothing with these filters.");
  const most = 200;
  return h("div", {}, h("div", { class: "wrap" }, h("table", {}, h("thead", {}, h("tr", {}, labels.map((each) => h("th", { scope: "col", class: each.n ? "n" : "" }, each.label ?? each)))),
    h("tbody", {}, groups.slice(0, most).map((each) => h("tr", { tabindex: 0, onclick: (event) => { if (!event.target.closest("a")) go(each.href); }, onkeydown: (event) => rowKey(event, () => go(each.href)) },
      each.cells.map((cell, place) => h("td", { class: labels[place].n ? "n" : "", "data-label": labels[place].label ?? labels[place] }, place === 0 ? h("a", { href: each.href }, cell) : cell))))))),
    groups.length > most ? h("p", { class: "note cut" }, `The first ${most} of ${group(groups.length)}; filters show the others.`) : null);
}

/** The facets that are set, each with its way out. */
function chips(state) {
  const set = Object.keys(state).filter((name) => !RESERVED.has(name));
  if (!set.length) return null;
  return h("div", { class: "facets" }, "Only rows with ", set.map((name) => h("span", { class: "chip" }, `${name.replaceAll("_", " ")}: `, state[name] === "" ? "none" : wire(state[name]),
    h("button", { type: "button", title: `without ${name}`, onclick: () => go(link(STATE.section, { ...STATE.params, [name]: null })) }, "\u00d7"))));
}

// --- one row -----------------------------------------------------------------------------------------------------------

const CALL_PLACE = new Map();
for (const name of ["evidence_calls", "calls"]) {
  const rows = DATA[name]?.rows;
  for (let row = 0; rows && row < rows.count; row += 1) CALL_PLACE.set(rows.at(row, "call_key"), [rows, row]);
}
const byKey = (name, key) => {
  const places = new Map(), rows = DATA[name]?.rows;
  for (let row = 0; rows && row < rows.count; row += 1) places.set(rows.at(row, key), row);
  return places;
};
const LABEL_PLACE = byKey("labels", "message_key");
const SNAPSHOT_PLACE = byKey("snapshots", "snapshot_id");
const HOST_PLACE = byKey("hosts", "host_key");

/** What a message is called: its label, if any is known. */
function messageLabel(key) {
  const place = key === null ? undefined : LABEL_PLACE.get(key);
  return place === undefined ? null : DATA.labels.rows.at(place, "label");
}

/** The display filters that show a call in Wireshark: its packets, and its conversation. */
function displayFilters(call) {
  const family = (address) => (String(address).includes(":") ? "ipv6.addr" : "ip.addr");
  const frames = [call.request_packet, call.capture === call.response_capture ? call.response_packet : null].filter((each) => each !== null);
  return {
    packets: frames.length ? frames.map((each) => `frame.number == ${each}`).join(" || ") : null,
    answer: call.response_packet !== null && call.capture !== call.response_capture ? `frame.number == ${call.response_packet}` : null,
    conversation: `${family(call.client_address)} == ${call.client_address} && ${family(call.server_address)} == ${call.server_address} && tcp.port == ${call.client_port} && tcp.port == ${call.server_port}`,
  };
}

function callProof(rows, row) {
  const call = rows.row(row);
  const filters = displayFilters(call);
  return h("div", { class: "proof" },
    h("div", {}, h("strong", {}, seen(`${call.interface_name ?? "interface not known"}: ${call.method ?? "method not known"}`)), " ", shown("outcome", "text", call.outcome), " ", call.result !== call.outcome ? wire(call.result) : null),
    h("div", {}, timeText(call.request_at ?? call.response_at) ?? "", " UTC, ", durationText(call.answer_ms) ?? "no answer time", ", ", wire(`${call.client_address}:${call.client_port} \u2192 ${call.server_address}:${call.server_port}`)),
    copyable("capture file", call.capture ?? "not known"),
    filters.packets ? copyable("packets", filters.packets) : null,
    filters.answer ? [copyable("answer in", call.response_capture ?? "not known"), copyable("packet", filters.answer)] : null,
    copyable("conversation", filters.conversation),
    copyable("these packets", `python -m jobs.export_packets --lake ${shellWord(SITE.lake)} --call ${call.call_key} --out call.pcapng`));
}
const shellWord = (text) => (/^[\w./:@%+=-]+$/.test(text) ? text : "'" + text.replaceAll("'", "'\\''") + "'");

/** When what a key names happened; last what is not on this page. */
function proofTime(key) {
  const call = CALL_PLACE.get(key), snapshot = SNAPSHOT_PLACE.get(key);
  const host = HOST_PLACE.get(key);
  if (call) return call[0].at(call[1], "request_at") ?? call[0].at(call[1], "response_at") ?? Infinity;
  return (snapshot !== undefined ? DATA.snapshots.rows.at(snapshot, "asked_at") : host !== undefined ? DATA.hosts.rows.at(host, "first_seen_at") : null) ?? Infinity;
}

function proof(key) {
  const call = CALL_PLACE.get(key);
  if (call) return callProof(...call);
  const place = SNAPSHOT_PLACE.get(key);
  if (place !== undefined) {
    const snapshot = DATA.snapshots.rows.row(place);
    return h("div", { class: "proof" }, h("div", {}, h("strong", {}, "snapshot of the collector: "), wire(`${snapshot.queue_manager} ${snapshot.format_name ?? snapshot.object_type}`)), h("div", {}, "asked ", timeText(snapshot.asked_at) ?? "", " UTC"),
      copyable("file and line", `${snapshot.source_path}:${snapshot.source_line}`));
  }
  if (HOST_PLACE.has(key)) return hostProof(DATA.hosts.rows.row(HOST_PLACE.get(key)));
  return h("div", { class: "proof" }, h("div", {}, "not on this page: call or snapshot"), copyable("key", key));
}

/** The command that tells the story of a row's message; null where it has none, or none that can be typed. */
function traceCommand(name, row) {
  const at = (column) => DATA[name].rows.at(row, column);
  const place = at("message_key") === null ? undefined : LABEL_PLACE.get(at("message_key"));
  const id = at("message_id") ?? (place === undefined ? null : DATA.labels.rows.at(place, "message_id"));
  const queue = at("queue") ?? at("inferred_queue");
  const asked = id ? ["--id", id] : queue && at("lookup_id") !== null ? ["--queue", queue, "--lookup-id", String(at("lookup_id"))] : null;
  return asked && seen(asked[1]) === asked[1] ? `python -m jobs.trace_message --lake ${shellWord(SITE.lake)} ${asked.map(shellWord).join(" ")}` : null;
}

/** A column with a button for each row that copies that command. */
const storyColumn = (name) => ({
  name: "story", kind: "text", title: "copies the command that tells all that is known of the message", value: (row) => traceCommand(name, row),
  show: (row) => { const command = traceCommand(name, row); return command === null ? "\u2013" : h("button", { type: "button", title: command, onclick: () => copyText(command) }, "copy"); },
});

/** What was seen together of a machine, with the calls of its address meanwhile, which lead to packets. */
function hostProof(host) {
  const span = { machine: host.address, from: timeText(host.first_seen_at), to: timeText(host.last_seen_at === null ? null : Math.ceil(host.last_seen_at)) };
  const calls = host.address !== null && DATA.calls.rows && found("calls", DATA.calls.rows, span).length;
  return h("div", { class: "proof" },
    h("div", {}, h("strong", {}, `seen together in ${String(host.source).replace("_", " ")}s: `), wire([host.queue_manager_id, host.host_name, host.address].filter((each) => each !== null).join(", "))),
    h("div", {}, `${group(host.sightings)} times, from ${timeText(host.first_seen_at) ?? "a time not known"} to ${timeText(host.last_seen_at) ?? "a time not known"} UTC`),
    calls ? h("a", { href: link("calls", span) }, "calls of this address meanwhile") : null);
}

/** Links from a row to the rows of other sections that have to do with it, where there are any. */
function related(name, row) {
  const at = (column) => DATA[name].rows.at(row, column);
  const links = [], machines = new Set(["server_address", "queue_manager"].map(at).filter((each) => each));
  const lead_ = (section, data, params, text) => {
    if (DATA[data].rows && found(data, DATA[data].rows, params).length) links.push(h("a", { href: link(section, params) }, text));
  };
  const queue = at("queue") ?? at("inferred_queue");
  if (queue) for (const [section, data, text] of [["queues", "queues", "its state"], ["transfers", "transfers", "its transfers"], ["reads", "attempts", "its reads"], ["comqc", "comqc", "its COM+ calls"]]) lead_(section, data, { queue }, text);
  for (const machine of machines) lead_("calls", "calls", { machine }, "calls of the machine");
  if (at("message_key")) links.push(h("a", { href: link("reads", { message_key: at("message_key") }) }, "all that happened to the message"));
  return links.length ? h("p", {}, links.flatMap((each, place) => [place ? " \u00b7 " : "", each])) : null;
}

function openRow(name, row) {
  const rows = DATA[name].rows, places = PLACES[name] ?? {};
  go(link(STATE.section, { ...STATE.params, row: `${name}:${rows.at(row, places.key)}` }));
}

/** Show the row that the address names, or close. */
function showRow(wanted) {
  const dialog = document.getElementById("row");
  if (!wanted) { if (dialog.open) dialog.close(); return; }
  const name = wanted.slice(0, wanted.indexOf(":")), key = wanted.slice(wanted.indexOf(":") + 1);
  const data = Object.hasOwn(DATA, name) ? DATA[name] : null, places = PLACES[name];
  const row = data?.rows && places?.key ? data.rows.columns[places.key].findIndex((value) => String(value) === key) : -1;
  const close = () => go(link(STATE.section, { ...STATE.params, row: null }));
  const parts = [];
  let title = "Not on this page";
  if (row < 0) {
    parts.push(h("p", { class: "note" }, "The row is not among those that this page carries: ", wire(wanted)));
  } else {
    title = places.title;
    const rows = data.rows;
    const named = messageLabel(rows.at(row, "message_key"));
    if (named !== null) parts.push(h("p", {}, "Message label: ", h("strong", {}, wire(named))));
    const list = h("dl", {});
    for (const column of Object.keys(rows.columns)) {
      if (["evidence", "attempt_keys"].includes(column)) continue;
      const value = rows.at(row, column);
      list.append(h("dt", { title: SITE.meanings[name]?.[column] ?? null }, column), h("dd", { title: SITE.meanings[name]?.[column] ?? null }, shown(column, rows.kinds[column], value)));
    }
    const story = traceCommand(name, row);
    parts.push(related(name, row), list);
    if (story) parts.push(h("h2", {}, "What happened to the message"), h("div", { class: "proof" }, copyable("its story", story)));
    if (name === "captures") parts.push(h("div", { class: "proof" }, copyable("capture file", rows.at(row, "path"))));
    if (name === "quality") parts.push(h("div", { class: "proof" }, copyable("all rows again", `python -m jobs.check_quality --lake ${shellWord(SITE.lake)} --all`)));
    const keys = [...new Set([...(rows.at(row, "evidence") ?? []), ...(rows.has("call_key") ? [rows.at(row, "call_key")] : [])])].filter((each) => each);
    if (rows.has("attempt_keys")) {
      const attempts = byKey("attempts", "attempt_key");
      parts.push(h("h2", {}, "Its receives, in order"), h("ol", {}, (rows.at(row, "attempt_keys") ?? []).map((each) => h("li", {}, attempts.has(each) ? h("a", { href: link(STATE.section, { ...STATE.params, row: `attempts:${each}` }) }, timeText(DATA.attempts.rows.at(attempts.get(each), "started_at")) ?? each, " ", DATA.attempts.rows.at(attempts.get(each), "outcome")) : each))));
    }
    if (keys.length || rows.has("evidence")) {
      const all = rows.at(row, "evidence_count") ?? keys.length;
      parts.push(h("h2", {}, "What it rests on"), all > keys.length ? h("p", { class: "note cut" }, `${keys.length} of ${group(all)} pieces of evidence`) : null, keys.length ? keys.sort((a, b) => proofTime(a) - proofTime(b)).map(proof) : h("p", { class: "note" }, "No call or snapshot: what is said follows from there being none."));
    }
  }
  dialog.replaceChildren(h("div", { class: "head" }, h("h2", {}, title), h("button", { type: "button", onclick: () => copyText(location.href) }, "copy link"), h("button", { type: "button", onclick: close, autofocus: true }, "close (Esc)")), h("div", { class: "body" }, parts));
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
}
