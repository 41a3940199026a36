"use strict";
// The section of transfers: pairs of queue managers, sequences, sessions and messages of the binary protocol (TCP 1801).

const TRANSFER_OUTCOMES = {
  received: "an application took it", delivered: "in its queue", transferred: "the next machine has it", in_flight: "not acknowledged yet",
  unknown: "an acknowledgement may be missing", unacknowledged: "never acknowledged", expired: "its time ran out", rejected: "refused or discarded",
};
const CONDITION_ORDER = ["stalled", "refused", "unknown", "waiting", "acknowledged"];
const CHARTED_SEQUENCES = 4;

function transfers(state) {
  const data = DATA.message_transfers;
  const head = [h("h1", {}, "Transfers"), intro("Messages on their way between queue managers, as captured on TCP 1801. Messages over HTTP, multicast or IPsec, and those that stay on one machine, are not among them. What queue managers report of their queues is under Exactly-once.")];
  if (!data.computed) return [...head, notComputed(data)];
  if (!data.total && !DATA.sessions.total) return [...head, notCaptured()];
  return [...head, facetChips(state, "message_transfers"), pairs(state), sequenceSection(state), sessionSection(state), messageSection(state)];
}

/** What is said instead of figures where nothing of the protocol was captured: no message seen is not no message sent. */
function notCaptured() {
  const isCaptured = DATA.coverage.computed && sumWhere("coverage", {}, hasValue("measure", ["connections_binary_protocol"])) > 0;
  return h("p", { class: "note" }, h("strong", {}, isCaptured ? "No session could be read on TCP 1801." : "TCP 1801 was not captured."),
    " Nothing is known of messages between queue managers: how many were sent, how fast, and what waits. Capture TCP 1801 beside TCP 135 and RPC at the queue managers (docs/guides/capturing.md). ",
    h("a", { href: link("eod") }, "What queue managers report of their outgoing queues"));
}

// --- who sends to whom -------------------------------------------------------------------------------------------------

/** One end of a hop: the queue manager, else the address where no handshake named one. */
const endKey = (rows, row, end) => rows.at(row, `${end}_queue_manager`) ?? rows.at(row, `${end}_address`);
const pairKey = (rows, row) => JSON.stringify([endKey(rows, row, "sender"), endKey(rows, row, "receiver")]);
/** Names of an end, the one that people know first: machine name, else address; then address and identifier. */
function endNames(manager, addresses) {
  const known = [MANAGER_NAMES.get(manager), addresses.length > 2 ? `${addresses.length} addresses` : addresses.join(", "), manager];
  return known.filter((each) => each);
}
/** The first part of an identifier, which is long and shown as a whole in the row and the tooltip; other names as they are. */
const shortId = (name) => (/^[0-9a-f]{8}-[0-9a-f-]{27}$/.test(name) ? name.slice(0, 8) + "\u2026" : name);
function endElement(manager, addresses, most = 3) {
  const [first, ...others] = endNames(manager, addresses).slice(0, most);
  return h("span", { title: [manager, ...addresses].filter((each) => each).map(escapeHidden).join("\n") }, untrusted(first ?? "unknown"), others.length ? h("small", {}, others.map((each) => untrusted(shortId(each)))) : null);
}
/** The column of one end of a hop, or of a session, with its machine's name. */
const endColumn = (name, end, label, [manager, address] = [`${end}_queue_manager`, `${end}_address`]) => ({
  name: end, label, kind: "text", title: "machine name, address and identifier of the queue manager, as far as they are known",
  value: (row) => endNames(DATA[name].rows.at(row, manager), [DATA[name].rows.at(row, address)])[0] ?? null,
  show: (row) => endElement(DATA[name].rows.at(row, manager), [DATA[name].rows.at(row, address)].filter((each) => each), 1),
});
/** Filters that select a pair; the address where its queue manager is not known. */
function pairFilters(rows, row) {
  return Object.fromEntries(["sender", "receiver"].flatMap((end) => {
    const manager = rows.at(row, `${end}_queue_manager`);
    return [[`${end}_queue_manager`, facetText(manager)], ...(manager === null ? [[`${end}_address`, facetText(rows.at(row, `${end}_address`))]] : [])];
  }));
}
function groupRows(name, state, key) {
  const rows = summaryOf(name), groups = new Map();
  for (const row of DATA[name].computed ? filterRows(name, rows, state) : []) {
    const of = key(rows, row);
    if (!groups.has(of)) groups.set(of, []);
    groups.get(of).push(row);
  }
  return { rows, groups };
}

/** A note where figures of a dataset lack filters that the messages beside them have; null if there is none. */
function notAppliedNote(what, name, state) {
  if (!DATA[name].computed) return null;
  const applied = new Set(ignoredFilters("message_transfers", summaryOf("message_transfers"), state));
  const ignored = ignoredFilters(name, summaryOf(name), state).filter((each) => !applied.has(each));
  return ignored.length ? h("p", { class: "note cut" }, `${what} not filtered by ${ignored.join(", ")}.`) : null;
}

function pairs(state) {
  const transferred = groupRows("message_transfers", state, pairKey), rows = transferred.rows;
  const latencies = groupRows("transfer_latencies", state, (each, row) => pairKey(each, row) + each.at(row, "stage"));
  const sequences = groupRows("transfer_sequences", state, pairKey);
  const sum = (list, column, from = rows) => list.reduce((total, row) => total + Number(from.at(row, column) ?? 0), 0);
  const count = (list, test = anyRow) => list.reduce((total, row) => total + (test(rows, row) ? rowCount(rows, row) : 0), 0);
  const marked = (number, level, href) => (number ? h("a", { href, class: "badge " + level }, formatNumber(number)) : "0");
  const groups = [...transferred.groups].map(([key, list]) => {
    const filters = { ...globalFilters(state), ...pairFilters(rows, list[0]) };
    const addresses = (end) => [...new Set(list.map((row) => rows.at(row, `${end}_address`)))].filter((each) => each);
    const stage = (name) => {
      const pairsOf = (latencies.groups.get(key + name) ?? []).map((row) => [latencies.rows.at(row, "latency_ms"), rowCount(latencies.rows, row)]);
      return pairsOf.length ? `${durationText(percentile(pairsOf, 0.5))} / ${durationText(percentile(pairsOf, 0.95))}` : "\u2013";
    };
    const n = count(list), sendings = sum(list, "sendings"), own = sequences.groups.get(key);
    return {
      n, href: rowsLink("transfers", filters),
      cells: [
        endElement(rows.at(list[0], "sender_queue_manager"), addresses("sender")), endElement(rows.at(list[0], "receiver_queue_manager"), addresses("receiver")),
        formatNumber(n), bytesText(sum(list, "packet_bytes")),
        sendings > n ? h("a", { href: rowsLink("transfers", { ...filters, _resent: "yes" }), class: (sendings - n) / sendings >= 0.1 ? "badge warn" : "" }, `${shareText(sendings - n, sendings)}, ${bytesText(sum(list, "resent_bytes"))}`) : "none",
        stage("session ack"), stage("order ack"), stage("on the wire"),
        marked(count(list, hasValue("outcome", ["in_flight"])), "unknown", rowsLink("transfers", { ...filters, outcome: "in_flight" })),
        own ? marked(sum(own, "waiting", sequences.rows), own.some((row) => isStuck(sequences.rows, row)) ? "bad" : "warn", rowsLink("transfers", { ...filters, _waiting: "yes" }, "transfer_sequences")) : "\u2013",
        marked(count(list, isLost), "bad", rowsLink("transfers", { ...filters, _lost: "yes" })),
      ],
    };
  }).sort((a, b) => b.n - a.n);
  const label = (text, n = 1) => ({ label: text, n });
  return [
    h("h2", {}, "Who sends to whom"),
    intro("Times are p50 / p95 from the first sending: until the receiver's session acknowledged it, until its queue did in order (transactional messages), and for its bytes alone (0 where one captured packet has all of them). Receivers hold acknowledgements back, so the first two are upper bounds."),
    notAppliedNote("Times are", "transfer_latencies", state), notAppliedNote("Numbers that wait are", "transfer_sequences", state),
    groupsTable(["from", "to", label("messages"), label("bytes"), label("sent again"), label("session ack"), label("order ack"), label("on the wire"), label("in flight"), label("wait for order ack"), label("not delivered")], groups,
      DATA.message_transfers.total ? undefined : "Sessions were captured, and no message in them."),
    DATA.transfer_latencies.summary ? h("p", { class: "note" }, "Percentiles of aggregates are accurate to 9 %: times are counted in classes, four per doubling.") : null,
  ];
}

// --- sequences ---------------------------------------------------------------------------------------------------------

function sequenceSection(state) {
  const data = DATA.transfer_sequences, title = h("h2", {}, "Sequences: numbers over time");
  if (!data.computed) return [title, notComputed(data)];
  if (!data.total) return [title, h("p", { class: "note" }, "No transactional message was captured on TCP 1801, so no sequence is known.")];
  const rows = data.rows, sums = summaryOf("transfer_sequences");
  const rank = (row) => CONDITION_ORDER.indexOf(rows.at(row, "condition"));
  const chosen = filterRows("transfer_sequences", rows, state);
  chosen.sort((a, b) => rank(a) - rank(b) || rows.at(b, "resends") - rows.at(a, "resends") || rows.at(b, "sendings") - rows.at(a, "sendings"));
  const conditions = countBy(sums, filterRows("transfer_sequences", sums, state), ["condition"]).sort((a, b) => CONDITION_ORDER.indexOf(a.values[0]) - CONDITION_ORDER.indexOf(b.values[0]));
  const numbers = (list, column) => list.reduce((sum, row) => sum + Number(sums.at(row, column) ?? 0), 0);
  return [
    title,
    intro("Transactional messages are numbered by sequence, and acknowledged in order. Red: stalls, in which numbers waited and none was acknowledged. Yellow: numbers that were never sent."),
    tiles(conditions.map((each) => tile(each.values[0], formatNumber(each.n), `sequences, ${formatNumber(numbers(each.rows, "waiting"))} of ${formatNumber(numbers(each.rows, "messages"))} numbers wait`, LEVELS.condition[each.values[0]] ?? "", rowsLink("transfers", { ...globalFilters(state), condition: facetText(each.values[0]) }, "transfer_sequences")))),
    DATA.sequence_points.computed ? sequenceCharts(chosen, state) : notComputed(DATA.sequence_points),
    h("h2", {}, "All sequences"),
    rowsTable("transfer_sequences", [
      { name: "condition", rank }, "queue", endColumn("transfer_sequences", "sender", "from"), endColumn("transfer_sequences", "receiver", "to"), "waiting",
      { name: "first_waiting_number", label: "first waiting" }, { name: "acknowledged_number", label: "acknowledged" },
      { name: "numbers", kind: "text", value: (row) => `${rows.at(row, "first_number")}\u2013${rows.at(row, "last_number")}`, title: "lowest and highest number that was sent" },
      "messages", "resends", { name: "missing_numbers", label: "never sent" }, { name: "out_of_order", label: "out of order" }, "refusals",
      { name: "stall_count", label: "stalls" }, { name: "longest_stall_s", label: "longest stall" }, "stalled_since", "began", "first_sent_at", "last_sent_at", "confidence",
    ], state, { indexes: chosen }),
  ];
}

/** Charts of the first sequences: numbers sent, sent again and acknowledged over time, with stalls and gaps. */
function sequenceCharts(chosen, state) {
  const rows = DATA.transfer_sequences.rows, points = summaryOf("sequence_points");
  const places = new Map();
  for (const row of filterRows("sequence_points", points, globalFilters(state), false)) {
    const key = points.at(row, "sequence_key");
    if (!places.has(key)) places.set(key, []);
    places.get(key).push(row);
  }
  const drawn = chosen.filter((row) => places.has(rows.at(row, "sequence_key"))).slice(0, CHARTED_SEQUENCES);
  const cut = DATA.sequence_points.summary ? h("p", { class: "note cut" }, `There are ${formatNumber(DATA.sequence_points.total)} sendings and acknowledgements: charts show the highest number of each ${durationText(DATA.sequence_points.stepS * 1000)}. ${DATA.sequence_points.note}`) : null;
  return h("div", { "data-rows": "sequence_points" },
    chosen.length > drawn.length && drawn.length ? h("p", { class: "note" }, `${drawn.length} of ${formatNumber(chosen.length)} sequences, the most troubled first. A row leads to the chart of its sequence.`) : null, cut,
    h("div", { class: drawn.length > 1 ? "two" : "" }, drawn.map((row) => sequenceChart(row, places.get(rows.at(row, "sequence_key")), points))));
}

function sequenceChart(row, list, points) {
  const rows = DATA.transfer_sequences.rows, at = (column) => rows.at(row, column);
  const ordered = [...list].sort((a, b) => points.at(a, "observed_at") - points.at(b, "observed_at"));
  const [begin, last] = extent([...ordered.map((each) => points.at(each, "observed_at")), ...(at("acknowledged_at") === null ? [] : [at("acknowledged_at")])]);
  const margin = Math.max(0.04 * (last - begin), 50), end = last + margin; // a stall that goes on is drawn up to the edge
  const trace = (event, look) => {
    const of = ordered.filter((each) => points.at(each, "event") === event).map((each) => [points.at(each, "observed_at"), points.at(each, "number"), points.at(each, "packet_key")]);
    // The order ack may have come over another address of the receiver: only the sequence's own row tells of it then.
    if (event === "acknowledged" && at("acknowledged_number") !== null && !of.some(([, number]) => number >= at("acknowledged_number"))) of.push([at("acknowledged_at"), at("acknowledged_number"), null]);
    return {
      type: "scatter", mode: "markers", name: event.replace("resent", "sent again"), x: of.map(([time]) => plotlyTime(time)), y: of.map(([, number]) => number), hoverinfo: "text",
      hovertext: of.map(([time, number]) => `${event === "acknowledged" ? "acknowledged up to" : event.replace("resent", "sent again:")} ${number}<br>${timeText(time)}`),
      customdata: of.map(([, , key]) => (key === null ? link("transfers", { ...STATE.params, row: `transfer_sequences:${at("sequence_key")}` }) : link("transfers", { ...STATE.params, row: `sequence_points:${key}` }))), ...look,
    };
  };
  const acks = trace("acknowledged", { marker: { size: 8, symbol: "diamond", color: OWN_COLOURS.acknowledged } });
  // The highest acknowledged number holds until the next, and to the edge. An order ack of a lower one takes nothing back.
  const steps = { type: "scatter", mode: "lines", x: [...acks.x, plotlyTime(end)], y: [], hoverinfo: "skip", showlegend: false, line: { shape: "hv", width: 1.5, color: OWN_COLOURS.acknowledged } };
  for (const number of [...acks.y, 0]) steps.y.push(Math.max(number, steps.y.at(-1) ?? 0));
  const traces = [
    acks.x.length ? steps : { x: [], y: [] }, acks,
    trace("sent", { marker: { size: 6, color: OWN_COLOURS.sent } }),
    trace("resent", { marker: { size: 8, symbol: "x", color: OWN_COLOURS.resent } }),
  ].filter((each) => each.x.length);
  const band = (colour, sides) => ({ type: "rect", line: { width: 0 }, fillcolor: colour, layer: "below", ...sides });
  const stalls = (at("stalls") ?? []).map((each) => band("rgba(207, 63, 54, 0.15)", { yref: "paper", y0: 0, y1: 1, x0: plotlyTime(Date.parse(each.began_at)), x1: plotlyTime(each.ended_at === null ? end : Math.min(Date.parse(each.ended_at), end)) }));
  const gaps = (at("gaps") ?? []).filter((each) => !each.bridged).map((each) => band("rgba(230, 180, 34, 0.3)", { xref: "paper", x0: 0, x1: 1, y0: each.first - 0.5, y1: each.last + 0.5 }));
  const [low, high] = extent(traces.flatMap((each) => each.y));
  const names = (end) => endNames(at(`${end}_queue_manager`), [at(`${end}_address`)])[0] ?? "unknown";
  return h("div", {},
    h("p", { class: "caption" }, h("a", { href: link("transfers", { ...STATE.params, row: `transfer_sequences:${at("sequence_key")}` }) }, untrusted(at("queue") ?? at("destination_queue") ?? "unknown queue")), " ", valueElement("condition", "text", at("condition")), h("br", {}),
      untrusted(`${names("sender")} \u2192 ${names("receiver")}`), `, sequence ${at("sequence_ordinal") ?? "unknown"}`, at("waiting") ? `, ${formatNumber(at("waiting"))} wait from ${at("first_waiting_number")}` : "", at("longest_stall_s") === null ? "" : `, longest stall ${durationText(at("longest_stall_s") * 1000)}`),
    chart("Numbers over time", traces, { xaxis: { type: "date", range: [begin - margin, end].map(plotlyTime) }, yaxis: { tickformat: "d", ...(high - low < 10 ? { dtick: 1, range: [low - 0.6, high + 0.6] } : {}) }, shapes: [...stalls, ...gaps], height: 260, showlegend: true }, go));
}

// --- sessions ----------------------------------------------------------------------------------------------------------

function sessionSection(state) {
  const data = DATA.sessions, title = h("h2", {}, "Sessions");
  if (!data.computed) return [title, notComputed(data)];
  const rows = data.rows, sums = summaryOf("sessions"), indexes = filterRows("sessions", sums, state);
  const full = (each, row) => Number(each.at(row, "client_window_full_ms") ?? 0) + Number(each.at(row, "server_window_full_ms") ?? 0);
  const countTile = (name) => (each) => tile((name === "session_end" && !["still_open", "not_open"].includes(each.values[0]) ? "ended: " : "") + facetLabel(each.values[0] ?? "unknown"), formatNumber(each.n), "sessions", LEVELS[name][each.values[0]] ?? "", rowsLink("transfers", { ...globalFilters(state), [name]: facetText(each.values[0]) }, "sessions"));
  return [
    title,
    intro("Connections on TCP 1801. A full window means that the sender waited for acknowledgements before it could go on."),
    tiles(countBy(sums, indexes, ["session_outcome"]).map(countTile("session_outcome")), countBy(sums, indexes, ["not_established"]).filter((each) => each.values[0] !== null).map(countTile("not_established")), countBy(sums, indexes, ["session_end"]).map(countTile("session_end")),
      tile("windows full", durationText(indexes.reduce((sum, row) => sum + full(sums, row), 0)) ?? "\u2013", "in all of these sessions", indexes.some((row) => full(sums, row) > 0) ? "warn" : "", rowsLink("transfers", globalFilters(state), "sessions"))),
    rowsTable("sessions", [
      "first_packet_at", endColumn("sessions", "initiator", "from", ["initiator_queue_manager", "client_address"]), endColumn("sessions", "acceptor", "to", ["acceptor_queue_manager", "server_address"]),
      { name: "session_outcome", label: "outcome" }, { name: "not_established", label: "not established" }, { name: "session_end", label: "end" }, { name: "duration", label: "duration", kind: "number", value: (row) => rows.at(row, "last_packet_at") - rows.at(row, "first_packet_at"), show: (row) => durationText(rows.at(row, "last_packet_at") - rows.at(row, "first_packet_at")) },
      "messages", { name: "message_bytes", label: "bytes" }, "unacknowledged",
      { name: "window_full", label: "window full", kind: "number", value: (row) => full(rows, row), show: (row) => (full(rows, row) ? h("span", { class: "badge warn" }, durationText(full(rows, row))) : "0"), title: "how long as many packets were unacknowledged as the window allows, both sides" },
      { name: "windows", kind: "text", value: (row) => (rows.at(row, "client_window") === null && rows.at(row, "server_window") === null ? null : `${rows.at(row, "client_window") ?? "?"} / ${rows.at(row, "server_window") ?? "?"}`), title: "window sizes that client and server announced, packets" },
      { name: "round_trip_ms", label: "round trip" }, { name: "ack_timeout_ms", label: "ack timeout" }, { name: "by_direct_name", label: "direct name" }, "closed_at",
    ], state, { by: "first_packet_at", down: true }),
  ];
}

// --- messages ----------------------------------------------------------------------------------------------------------

function messageSection(state) {
  const data = DATA.message_transfers, title = h("h2", {}, "Messages by outcome");
  if (!data.total) return null;
  const rows = data.rows, sums = summaryOf("message_transfers"), indexes = filterRows("message_transfers", sums, state);
  const order = Object.keys(TRANSFER_OUTCOMES);
  const outcomes = countBy(sums, indexes, ["outcome"]).sort((a, b) => order.indexOf(a.values[0]) - order.indexOf(b.values[0]));
  const label = (row) => messageLabel(rows.at(row, "message_key"));
  return [
    title,
    tiles(outcomes.map((each) => tile(facetLabel(each.values[0]), formatNumber(each.n), TRANSFER_OUTCOMES[each.values[0]] ?? "", LEVELS.outcome[each.values[0]] ?? "", rowsLink("transfers", { ...globalFilters(state), outcome: facetText(each.values[0]) })))),
    overTime("Messages by outcome", sums, indexes, "first_sent_at", "outcome", order, state, "transfers"),
    h("h2", {}, "All messages"),
    rowsTable("message_transfers", [
      "first_sent_at", "queue", { name: "label", kind: "text", value: label, show: (row) => (label(row) === null ? "\u2013" : untrusted(label(row))) }, traceColumn("message_transfers"), "outcome",
      endColumn("message_transfers", "sender", "from"), endColumn("message_transfers", "receiver", "to"), { name: "message_kind", label: "kind" }, { name: "packet_bytes", label: "bytes" }, "sendings", "sessions",
      { name: "session_ack_ms", label: "session ack" }, { name: "order_ack_ms", label: "order ack" }, { name: "transmit_ms", label: "on the wire" },
      { name: "final_class_name", label: "final ack" }, { name: "arrival_class_name", label: "arrival ack" }, { name: "receive_class_name", label: "receive ack" }, { name: "transaction_number", label: "number" }, { name: "hop_count", label: "hops before" }, "confidence",
    ], state, { by: "first_sent_at", down: true }),
  ];
}
