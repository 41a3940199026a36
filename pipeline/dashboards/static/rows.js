"use strict";
// Tables of rows, and the dialog of one row with its evidence.

const TABLE_STATE = new Map(); // sort column and page of each table
let TABLES = []; // of the page as drawn, functions that draw a table again, with all of its rows or a page of them
const PAGE = 50;

/**
 * A table of rows of a dataset, sortable and in pages; a click on a row opens it. `columns` are names of columns, or
 * {name, label, value, show, rank, kind, title} for computed ones.
 */
function rowsTable(name, columns, state, options = {}) {
  const data = DATA[name];
  if (!data.computed) return notComputed(data);
  const rows = data.rows;
  let indexes = options.indexes ?? filterRows(name, rows, state);
  if (options.rank) indexes = indexes.map((row, place) => [options.rank(row), place, row]).sort((a, b) => a[0] - b[0] || a[1] - b[1]).map((each) => each[2]);
  const id = options.id ?? name;
  const memory = TABLE_STATE.get(id) ?? { by: options.by ?? null, down: options.down ?? false, page: 0 };
  TABLE_STATE.set(id, memory);
  const shownColumns = columns.filter((each) => typeof each !== "string" || rows.has(each)).map((each) => {
    const column = typeof each === "string" ? { name: each } : each;
    return { label: column.name.replaceAll("_", " "), kind: rows.kinds[column.name] ?? "text", value: (row) => rows.at(row, column.name), title: SITE.column_comments[name]?.[column.name], ...column };
  });
  const box = h("div", { "data-rows": name });
  const draw = (whole = false) => {
    const by = shownColumns.find((column) => column.name === memory.by);
    if (by) {
      const rank = by.rank ?? by.value;
      indexes = [...indexes].sort((a, b) => compare(rank(a), rank(b), memory.down) || a - b);
    }
    const pages = Math.max(1, Math.ceil(indexes.length / PAGE));
    memory.page = Math.min(memory.page, pages - 1);
    const some = whole ? indexes : indexes.slice(memory.page * PAGE, memory.page * PAGE + PAGE);
    const head = h("tr", {}, shownColumns.map((column) => h("th", { scope: "col", class: column.kind === "number" ? "n" : "", "aria-sort": memory.by === column.name ? (memory.down ? "descending" : "ascending") : null },
      h("button", { type: "button", title: column.title ?? null, onclick: () => { memory.down = memory.by === column.name ? !memory.down : column.kind === "number" || column.kind === "time"; memory.by = column.name; memory.page = 0; draw(); } },
        column.label, memory.by === column.name ? (memory.down ? " \u2193" : " \u2191") : ""))));
    const body = some.map((row) => {
      const open = () => (options.open ?? openRow)(name, row);
      return h("tr", { tabindex: 0, onclick: (event) => { if (!event.target.closest("a,button")) open(); }, onkeydown: (event) => rowKey(event, open) },
        shownColumns.map((column) => {
          const value = column.value(row);
          return h("td", { class: (column.kind === "number" ? "n" : column.kind === "time" ? "t" : "") + (value === null ? " none" : ""), "data-label": column.label },
            column.show ? column.show(row) : valueElement(column.name, column.kind, value));
        }));
    });
    const turn = (by) => () => { memory.page += by; draw(); };
    box.replaceChildren(
      cutNote(data) ?? "", ignoredNote(ignoredFilters(name, rows, state)) ?? "",
      indexes.length ? scrolling(h("table", {}, h("thead", {}, head), h("tbody", {}, body)), facetLabel(name)) : h("p", { class: "note" }, options.empty ?? "No rows match these filters."),
      h("div", { class: "pager" }, `${formatNumber(indexes.length)} ${indexes.length === 1 ? "row" : "rows"}`,
        pages > 1 ? [h("button", { type: "button", disabled: memory.page === 0, onclick: turn(-1) }, "previous"), `page ${memory.page + 1} of ${pages}`, h("button", { type: "button", disabled: memory.page === pages - 1, onclick: turn(1) }, "next")] : null));
  };
  draw();
  TABLES.push((whole) => { draw(whole); explain(box); });
  return box;
}

function rowKey(event, open) {
  if (event.target !== event.currentTarget) return;
  const step = { j: "nextElementSibling", ArrowDown: "nextElementSibling", k: "previousElementSibling", ArrowUp: "previousElementSibling" }[event.key];
  if (event.key === "Enter" || event.key === " ") { event.preventDefault(); open(); }
  if (step) { event.preventDefault(); event.stopPropagation(); event.currentTarget[step]?.focus(); }
}

function compare(a, b, down) {
  const isNull = (value) => value === null || value === undefined;
  if (isNull(a) || isNull(b)) return isNull(a) - isNull(b); // unknown values come last in both directions
  const order = typeof a === "number" && typeof b === "number" ? a - b : typeof a === "boolean" ? a - b : COLLATOR.compare(String(a), String(b));
  return down ? -order : order;
}
const COLLATOR = new Intl.Collator("en", { numeric: true }); // integers too large for JavaScript are text

/** A table in a box that scrolls sideways, also by keys. */
const scrolling = (table, name) => h("div", { class: "wrap", tabindex: 0, role: "group", "aria-label": name }, table);

/** A table of groups, each of which links to its rows, from the cell at `linked`. `groups` are {cells, href}. */
function groupsTable(labels, groups, empty, linked = 0) {
  if (!groups.length) return h("p", { class: "note" }, empty ?? "No data for these filters.");
  const most = 200;
  return h("div", {}, scrolling(h("table", {}, h("thead", {}, h("tr", {}, labels.map((each) => h("th", { scope: "col", class: each.n ? "n" : "" }, each.label ?? each)))),
    h("tbody", {}, groups.slice(0, most).map((each) => h("tr", { tabindex: 0, onclick: (event) => { if (!event.target.closest("a")) go(each.href); }, onkeydown: (event) => rowKey(event, () => go(each.href)) },
      each.cells.map((cell, place) => h("td", { class: labels[place].n ? "n" : "", "data-label": labels[place].label ?? labels[place] }, place === linked ? h("a", { href: each.href }, cell) : cell)))))), "groups"),
    groups.length > most ? h("p", { class: "note cut" }, `The first ${most} of ${formatNumber(groups.length)}; use filters to see the others.`) : null);
}

/** The active facets, each with a button that removes it, and the filters that do not apply to a dataset's figures. */
function facetChips(state, dataset) {
  const set = Object.keys(state).filter((name) => !RESERVED.has(name));
  const note = ignoredNote(ignoredFilters(dataset, summaryOf(dataset), state));
  if (!set.length) return note;
  return [note, h("div", { class: "facets" }, "Only rows with ", set.map((name) => h("span", { class: "chip" }, `${facetLabel(name)}: `, state[name] === "" ? "none" : untrusted(state[name]),
    h("button", { type: "button", title: `remove filter ${name}`, onclick: () => go(link(STATE.section, { ...STATE.params, [name]: null, show: null })) }, "\u00d7"))))];
}

/** A note above figures that some filters do not apply to; null if all of them do. */
const ignoredNote = (ignored) => (ignored.length ? h("p", { class: "note cut" }, `Not filtered by ${ignored.join(", ")}: these rows do not have it.`) : null);

// --- one row -----------------------------------------------------------------------------------------------------------

const CALL_INDEX = new Map();
for (const name of ["evidence_calls", "calls"]) {
  const rows = DATA[name]?.rows;
  for (let row = 0; rows && row < rows.count; row += 1) CALL_INDEX.set(rows.at(row, "call_key"), [rows, row]);
}
const indexBy = (name, key) => {
  const places = new Map(), rows = DATA[name]?.rows;
  for (let row = 0; rows && row < rows.count; row += 1) places.set(rows.at(row, key), row);
  return places;
};
const LABEL_INDEX = indexBy("labels", "message_key");
const SNAPSHOT_INDEX = indexBy("snapshots", "snapshot_id");
const HOST_INDEX = indexBy("hosts", "host_key");
const PACKET_INDEX = indexBy("packets", "packet_key");

/** The label of a message; null if unknown. */
const messageLabel = (key) => ofMessage(key, "label");

/** What to look at after a check: the rows that failed, how to select them, and the results of earlier runs. */
function qualityEvidence(rows, row) {
  const keys = rows.at(row, "failed_keys") ?? [], column = rows.at(row, "key_column"), table = rows.at(row, "table");
  const of = Object.keys(FILTER_COLUMNS).find((each) => FILTER_COLUMNS[each].key === column && DATA[each].rows);
  const places = of ? indexBy(of, column) : new Map();
  const name = SITE.lake.includes("/") ? `delta.\`${SITE.lake.replace(/\/$/, "")}/${table.replace(".", "/")}\`` : `${SITE.lake}${table}`;
  const history = qualityHistory().get(qualityName(rows, row)) ?? [], past = DATA.quality_history.rows;
  return [
    keys.length ? [
      h("h2", {}, "Rows that failed"),
      rows.at(row, "unexpected") > keys.length ? h("p", { class: "note cut" }, `${keys.length} of ${formatNumber(rows.at(row, "unexpected"))} rows`) : null,
      h("ul", {}, keys.map((each) => h("li", {}, places.has(each) ? h("a", { href: link(STATE.section, { ...STATE.params, row: `${of}:${each}` }) }, untrusted(each)) : untrusted(each)))),
      h("div", { class: "evidence" }, exportCommand("quality", row) ? copyable("export packets", exportCommand("quality", row)) : null, copyable("SQL", `SELECT * FROM ${name} WHERE ${column} IN (${keys.map((each) => `'${each.replaceAll("\\", "\\\\").replaceAll("'", "\\'")}'`).join(", ")})`))] : null,
    h("h2", {}, "Results by run"),
    h("table", {}, h("thead", {}, h("tr", {}, ["run", "holds", "rows", "not as expected", "scope"].map((each) => h("th", { scope: "col" }, each)))),
      h("tbody", {}, history.toReversed().map((each) => h("tr", {}, [timeText(past.at(each, "run_at")), valueElement("success", past.kinds.success, past.at(each, "success")), formatNumber(past.at(each, "evaluated")), formatNumber(past.at(each, "unexpected")), past.at(each, "scope")].map((cell) => h("td", {}, cell)))))),
    h("div", { class: "evidence" }, copyable("check all rows", `msmq check_quality ${SITE.lake_options} --all`))];
}

/** The Wireshark display filter of the connection of a call, packet or session. */
function conversationFilter(ends) {
  const family = (address) => (String(address).includes(":") ? "ipv6.addr" : "ip.addr");
  return `${family(ends.client_address)} == ${ends.client_address} && ${family(ends.server_address)} == ${ends.server_address} && tcp.port == ${ends.client_port} && tcp.port == ${ends.server_port}`;
}

/** Wireshark display filters for a call: request and response packets, response in another file, conversation. */
function displayFilters(call) {
  const frames = [call.request_packet, call.capture === call.response_capture ? call.response_packet : null].filter((each) => each !== null);
  return {
    packets: frames.length ? frames.map((each) => `frame.number == ${each}`).join(" || ") : null,
    response: call.response_packet !== null && call.capture !== call.response_capture ? `frame.number == ${call.response_packet}` : null,
    conversation: conversationFilter(call),
  };
}

function callEvidence(rows, row) {
  const call = rows.row(row);
  const filters = displayFilters(call);
  return h("div", { class: "evidence" },
    h("div", {}, h("strong", {}, escapeHidden(`${call.interface_name ?? "unknown interface"}: ${call.method ?? "unknown method"}`)), " ", valueElement("outcome", "text", call.outcome), " ", call.result !== call.outcome ? untrusted(call.result) : null),
    h("div", {}, timeText(call.request_at ?? call.response_at) ?? "", " UTC, ", durationText(call.response_ms) ?? "no response time", ", ", untrusted(`${call.client_address}:${call.client_port} \u2192 ${call.server_address}:${call.server_port}`)),
    copyable("capture file", call.capture ?? "unknown"),
    filters.packets ? copyable("packets", filters.packets) : null,
    filters.response ? [copyable("response in", call.response_capture ?? "unknown"), copyable("packet", filters.response)] : null,
    copyable("conversation", filters.conversation),
    copyable("export packets", `msmq export_packets ${SITE.lake_options} --call ${call.call_key} --out call.pcapng`));
}
const shellWord = (text) => (/^[\w./:@%+=-]+$/.test(text) ? text : "'" + text.replaceAll("'", "'\\''") + "'");

/** The command that exports all packets of a row of gold; null for other rows. */
function exportCommand(name, row) {
  const [table, key] = SITE.packet_tables[name] ?? [];
  return key && key === FILTER_COLUMNS[name].key ? `msmq export_packets ${SITE.lake_options} --row ${table} ${shellWord(DATA[name].rows.at(row, key))} --out row.pcapng` : null;
}

/** A packet of the binary protocol: what it is, who sent it when, and where it was captured. */
function packetEvidence(packet) {
  const client = `${packet.client_address}:${packet.client_port}`, server = `${packet.server_address}:${packet.server_port}`;
  const [from, to] = packet.sent_by === "client" ? [client, server] : [server, client];
  return h("div", { class: "evidence" },
    h("div", {}, h("strong", {}, escapeHidden(`packet: ${facetLabel(packet.kind ?? "unknown")}`)), ", ", bytesText(packet.length_bytes) ?? "unknown length", packet.complete === false ? [" ", h("span", { class: "badge warn" }, "not captured whole")] : null),
    h("div", {}, timeText(packet.sent_at) ?? "", " UTC, ", untrusted(`${from} \u2192 ${to}`)),
    copyable("capture file", packet.capture ?? "unknown"),
    copyable("packet", `frame.number == ${packet.packet_number}`),
    copyable("conversation", conversationFilter(packet)),
    copyable("export packets", `msmq export_packets ${SITE.lake_options} --packet ${packet.packet_key} --out packet.pcapng`));
}

/** The time of a piece of evidence, for sorting; Infinity if it is not on this page. */
function evidenceTime(key) {
  const call = CALL_INDEX.get(key), snapshot = SNAPSHOT_INDEX.get(key);
  const host = HOST_INDEX.get(key), packet = PACKET_INDEX.get(key);
  if (packet !== undefined) return DATA.packets.rows.at(packet, "sent_at") ?? Infinity;
  if (call) return call[0].at(call[1], "request_at") ?? call[0].at(call[1], "response_at") ?? Infinity;
  return (snapshot !== undefined ? DATA.snapshots.rows.at(snapshot, "asked_at") : host !== undefined ? DATA.hosts.rows.at(host, "first_seen_at") : null) ?? Infinity;
}

function evidenceBlock(key) {
  const call = CALL_INDEX.get(key);
  if (call) return callEvidence(...call);
  const place = SNAPSHOT_INDEX.get(key);
  if (place !== undefined) {
    const snapshot = DATA.snapshots.rows.row(place);
    return h("div", { class: "evidence" }, h("div", {}, h("strong", {}, "collector snapshot: "), untrusted(`${snapshot.queue_manager} ${snapshot.format_name ?? snapshot.object_type}`)), h("div", {}, "requested ", timeText(snapshot.asked_at) ?? "", " UTC"),
      copyable("file and line", `${snapshot.source_path}:${snapshot.source_line}`));
  }
  if (PACKET_INDEX.has(key)) return packetEvidence(DATA.packets.rows.row(PACKET_INDEX.get(key)));
  if (HOST_INDEX.has(key)) return hostEvidence(DATA.hosts.rows.row(HOST_INDEX.get(key)));
  return h("div", { class: "evidence" }, h("div", {}, "call, packet or snapshot that is not on this page"), copyable("key", key));
}

/** The command that traces the message of a row; null without a message, or if its name cannot be typed. */
function traceCommand(name, row) {
  const at = (column) => DATA[name].rows.at(row, column);
  const id = at("message_id") ?? ofMessage(at("message_key"), "message_id");
  const queue = at("queue") ?? at("inferred_queue");
  const query = id ? ["--id", id] : queue && at("lookup_id") !== null ? ["--queue", queue, "--lookup-id", String(at("lookup_id"))] : null;
  return query && escapeHidden(query[1]) === query[1] ? `msmq trace_message ${SITE.lake_options} ${query.map(shellWord).join(" ")}` : null;
}

/** A column with a button that copies the trace command of each row. */
const traceColumn = (name) => ({
  name: "trace", kind: "text", title: "copies the command that prints everything known about the message", value: (row) => traceCommand(name, row),
  show: (row) => { const command = traceCommand(name, row); return command === null ? "\u2013" : h("button", { type: "button", title: command, onclick: () => copyText(command) }, "copy"); },
});

/** Evidence that identifier, name and address belong together, with a link to the calls of that address then. */
function hostEvidence(host) {
  const span = { machine: host.address, from: timeText(host.first_seen_at), to: timeText(host.last_seen_at === null ? null : Math.ceil(host.last_seen_at)) };
  const calls = host.address !== null && DATA.calls.rows && filterRows("calls", DATA.calls.rows, span).length;
  return h("div", { class: "evidence" },
    h("div", {}, h("strong", {}, `seen together in ${String(host.source).replace("_", " ")}s: `), untrusted([host.queue_manager_id, host.host_name, host.address].filter((each) => each !== null).join(", "))),
    h("div", {}, `${formatNumber(host.sightings)} times, from ${timeText(host.first_seen_at) ?? "unknown time"} to ${timeText(host.last_seen_at) ?? "unknown time"} UTC`),
    calls ? h("a", { href: rowsLink("calls", span) }, "calls of this address in this time") : null);
}

/** Links from a row to related rows in other sections, if there are any. */
function relatedLinks(name, row) {
  const at = (column) => DATA[name].rows.at(row, column);
  const links = [], machines = new Set(["server_address", "queue_manager"].map(at).filter((each) => each));
  const addLink = (section, data, params, text) => {
    if (DATA[data].rows && filterRows(data, DATA[data].rows, params).length) links.push(h("a", { href: rowsLink(section, params, data) }, text));
  };
  const queue = at("queue") ?? at("inferred_queue");
  const entry = name === "alerts" ? ENTRY_OF_ALERT.get(at("alert_key")) : undefined;
  if (entry) links.push(h("a", { href: entryLink(entry) }, "its cause, and what to do"));
  if (storyOfQueue(queue)) links.push(h("a", { href: queueLink(queue) }, "what is wrong with the queue"));
  if (storyOfMessage(at("message_key"))) links.push(h("a", { href: messageLink(at("message_key")) }, "history of the message"));
  if (queue) for (const [section, data, text] of [["queues", "queues", "queue state"], ["transfers", "message_transfers", "transfers"], ["eod", "transfers", "exactly-once state"], ["reads", "attempts", "receives"], ["comqc", "comqc", "COM+ calls"]]) addLink(section, data, { queue }, text);
  for (const machine of machines) addLink("calls", "calls", { machine }, "calls of this machine");
  if (at("message_key")) {
    addLink("reads", "attempts", { message_key: at("message_key") }, "receives of this message");
    addLink("transfers", "message_transfers", { message_key: at("message_key") }, "transfers of this message");
  }
  if (["message_transfers", "transfer_sequences", "sequence_points"].includes(name) && at("sequence_key")) {
    addLink("transfers", "transfer_sequences", { sequence_key: at("sequence_key") }, "its sequence over time");
    addLink("transfers", "message_transfers", { sequence_key: at("sequence_key") }, "messages of its sequence");
  }
  return links.length ? h("p", {}, links.flatMap((each, place) => [place ? " \u00b7 " : "", each])) : null;
}

function openRow(name, row) {
  const rows = DATA[name].rows, places = FILTER_COLUMNS[name] ?? {};
  go(link(STATE.section, { ...STATE.params, row: `${name}:${rows.at(row, places.key)}` }));
}

/** Open the dialog of the row in the address, or close it. */
function showRow(wanted) {
  const dialog = document.getElementById("row");
  if (!wanted) { if (dialog.open) dialog.close(); return; }
  const name = wanted.slice(0, wanted.indexOf(":")), key = wanted.slice(wanted.indexOf(":") + 1);
  const data = Object.hasOwn(DATA, name) ? DATA[name] : null, places = FILTER_COLUMNS[name];
  const row = data?.rows && places?.key ? data.rows.columns[places.key].findIndex((value) => String(value) === key) : -1;
  const parts = [];
  let title = "Not on this page";
  if (row < 0) {
    parts.push(h("p", { class: "note" }, "This row is not on this page: ", untrusted(wanted)));
  } else {
    title = places.title;
    const rows = data.rows;
    const messageText = messageLabel(rows.at(row, "message_key"));
    if (messageText !== null) parts.push(h("p", {}, "Message label: ", h("strong", {}, untrusted(messageText))));
    const list = h("dl", {});
    for (const column of Object.keys(rows.columns)) {
      if (["evidence", "attempt_keys", "failed_keys"].includes(column)) continue;
      const value = rows.at(row, column);
      list.append(h("dt", { title: SITE.column_comments[name]?.[column] ?? null }, column), h("dd", { title: SITE.column_comments[name]?.[column] ?? null }, valueElement(column, rows.kinds[column], value)));
    }
    const trace = traceCommand(name, row);
    parts.push(relatedLinks(name, row), list);
    if (trace) parts.push(h("h2", {}, "Message history"), h("div", { class: "evidence" }, copyable("trace command", trace)));
    if (name === "captures") parts.push(h("div", { class: "evidence" }, copyable("capture file", rows.at(row, "path"))));
    if (name === "sessions") parts.push(h("div", { class: "evidence" }, copyable("conversation", conversationFilter(rows.row(row))), copyable("export packets", `msmq export_packets ${SITE.lake_options} --session ${rows.at(row, "connection_id")} --out session.pcapng`)));
    if (name === "quality") parts.push(qualityEvidence(rows, row));
    const keys = [...new Set([...(rows.at(row, "evidence") ?? []), ...(rows.has("call_key") ? [rows.at(row, "call_key")] : [])])].filter((each) => each);
    if (rows.has("attempt_keys")) {
      const attempts = indexBy("attempts", "attempt_key");
      parts.push(h("h2", {}, "Receives in order of time"), h("ol", {}, (rows.at(row, "attempt_keys") ?? []).map((each) => h("li", {}, attempts.has(each) ? h("a", { href: link(STATE.section, { ...STATE.params, row: `attempts:${each}` }) }, timeText(DATA.attempts.rows.at(attempts.get(each), "started_at")) ?? each, " ", DATA.attempts.rows.at(attempts.get(each), "outcome")) : each))));
    }
    if (keys.length || rows.has("evidence")) {
      const all = rows.at(row, "evidence_count") ?? keys.length;
      const command = keys.some((each) => !SNAPSHOT_INDEX.has(each) && !HOST_INDEX.has(each)) ? exportCommand(name, row) : null;
      parts.push(h("h2", {}, "Evidence"), command ? h("div", { class: "evidence" }, copyable("export all packets", command)) : null, all > keys.length ? h("p", { class: "note cut" }, `${keys.length} of ${formatNumber(all)} pieces of evidence`) : null, keys.length ? keys.sort((a, b) => evidenceTime(a) - evidenceTime(b)).map(evidenceBlock) : h("p", { class: "note" }, "No call, packet or snapshot: this follows from their absence."));
    }
  }
  dialog.replaceChildren(h("div", { class: "head" }, h("h2", {}, title), h("button", { type: "button", onclick: () => copyText(location.href) }, "copy link"), h("button", { type: "button", onclick: closeRow, autofocus: true }, "close (Esc)")), h("div", { class: "body" }, parts));
  explain(dialog);
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
}
