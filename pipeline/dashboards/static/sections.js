"use strict";
// The sections: what each shows of the rows that the filters let through.

const OUTCOME_ORDER = ["acked", "peeked", "empty", "timed_out", "cancelled", "nacked", "rejected", "expired", "rundown", "failed", "in_flight", "unknown"];
const lead = (text) => h("p", { class: "lead" }, text);

const SECTIONS = {
  overview: { label: "Overview", render: overview },
  alerts: { label: "Alerts", render: alerts },
  queues: { label: "Queues", render: queues },
  transfers: { label: "Transfers", render: transfers },
  reads: { label: "Reads", render: reads },
  calls: { label: "Calls", render: calls },
  comqc: { label: "COM+ calls", render: comqc },
  findings: { label: "Findings", render: findings },
  quality: { label: "Quality", render: quality },
  coverage: { label: "Not seen", render: coverage },
};

// --- overview --------------------------------------------------------------------------------------------------------------

function overview(state) {
  const made = checks(state);
  const bad = made.filter((each) => each.level === "bad"), warn = made.filter((each) => each.level === "warn");
  const uncomputed = made.filter((each) => each.number === null);
  const missing = DATA.coverage.computed ? unseen(state).filter((each) => each.part > 0) : [];
  const say_ = (list) => list.map((each) => `${each.label} (${group(each.number)})`).join(", ");
  let level = "ok", text = "Nothing that was captured or collected is wrong.";
  const untold = uncomputed.length ? ` Not computed: ${uncomputed.map((each) => each.label).join(", ")}.` : "";
  if (bad.length) { level = "bad"; text = `Look at this first: ${say_(bad)}.`; }
  else if (warn.length) { level = "warn"; text = `Worth a look: ${say_(warn)}.`; }
  const captured = DATA.captures.computed ? DATA.captures.total : 0;
  if (!captured && !(DATA.queues.computed && DATA.queues.total)) { level = ""; text = "Nothing was read yet: the lake holds no capture and no snapshot."; }
  return [
    h("h1", {}, "What is wrong, and what is not known"),
    h("p", { class: "verdict " + level }, text, level === "ok" ? untold : ""),
    tiles(made.map((each) => tile(each.label, each.number === null ? "not computed" : group(each.number), each.detail, each.level, each.href))),
    h("h2", {}, "Not seen, so not known"),
    DATA.coverage.computed
      ? missing.length
        ? unseenTable(missing, state)
        : h("p", { class: "note" }, "All that was captured could be read: no byte missing, no call sealed, no snapshot failed.")
      : notComputed(DATA.coverage),
    h("h2", {}, "Alerts that hold"),
    alertRows({ ...state, _open: "yes" }),
    h("h2", {}, "Receives and peeks"),
    DATA.attempts.computed ? attemptsOverTime(state) : notComputed(DATA.attempts),
  ];
}

// --- alerts ----------------------------------------------------------------------------------------------------------------

function alertRows(state) {
  const data = DATA.alerts;
  if (!data.computed) return notComputed(data);
  const indexes = found("alerts", data.rows, state).filter((row) => state._open !== "yes" || data.rows.at(row, "until") === null);
  const gravity = { error: 0, warning: 1, info: 2 };
  const rank = (row) => (data.rows.at(row, "until") === null ? 0 : 10) + (gravity[data.rows.at(row, "severity")] ?? 3);
  return rowsTable("alerts", ["severity", "condition", "subject", "since", "until", "message", "suggestion"], state, { indexes, rank, id: "alerts" + (state._open ?? ""), empty: "No alert." });
}
function alerts(state) {
  return [
    h("h1", {}, "Alerts"),
    lead("Conditions that hold or held, with what can be done. One that ended keeps its row."),
    h("p", {}, h("a", { href: link("alerts", { ...kept(state), _open: "yes" }) }, "those that hold"), " \u00b7 ", h("a", { href: link("alerts", kept(state)) }, "all")),
    chips(state), alertRows(state),
  ];
}

// --- queues ----------------------------------------------------------------------------------------------------------------

const STATE_RANK = { bad: 0, warn: 1, unknown: 2, ok: 3, "": 4 };
function queues(state) {
  const data = DATA.queues;
  if (!data.computed) return [h("h1", {}, "Queues"), notComputed(data)];
  const rows = data.rows;
  const level = (row) => LEVELS.state[stateNow(row)] ?? "";
  let chosen = found("queues", rows, state);
  if (state._state === "down") chosen = chosen.filter(notConnected);
  else if (state._state) chosen = chosen.filter((row) => stateNow(row) === state._state);
  chosen.sort((a, b) => STATE_RANK[level(a)] - STATE_RANK[level(b)] || (rows.at(b, "message_count") ?? -1) - (rows.at(a, "message_count") ?? -1));
  const states = new Map();
  for (const row of found("queues", rows, state)) states.set(stateNow(row), (states.get(stateNow(row)) ?? 0) + 1);
  const total = (column) => chosen.reduce((sum, row) => sum + Number(rows.at(row, column) ?? 0), 0);
  const untold = chosen.filter((row) => rows.at(row, "message_count") === null).length;
  const of = untold ? `of those that were told; ${group(untold)} unknown` : "in all of these queues";
  const name = (row) => [rows.at(row, "queue") ?? rows.at(row, "queue_format_name") ?? "queue not known", rows.at(row, "queue_manager")].join(" @ ");
  const intervals = DATA.intervals.rows ? sumsOf("intervals") : null;
  const pieces = intervals ? queuePieces(intervals, state) : new Map();
  const identity = (row) => JSON.stringify(["queue", "queue_manager", "queue_format_name"].map((column) => rows.at(row, column)));
  const timeline = chosen.slice(0, 25);
  const largest = (row, column) => (pieces.get(identity(row)) ?? []).reduce((most, piece) => Math.max(most, intervals.at(piece, column) ?? 0), 0);
  const lines = (title, column, unit) => {
    const filled = chosen.filter((row) => largest(row, column) > 0).sort((a, b) => largest(b, column) - largest(a, column));
    const most = filled.slice(0, 6);
    return steps(title + some(most, filled), most.map((row) => ({ name: name(row), pieces: (pieces.get(identity(row)) ?? []).map((piece) => [intervals.at(piece, "valid_from"), intervals.at(piece, "valid_to"), intervals.at(piece, column)]) })), unit);
  };
  return [
    h("h1", {}, "Queues"),
    lead("As they were last told, at the time of the newest evidence. What nothing tells is unknown, not zero."),
    tiles(
      [...states].sort((a, b) => STATE_RANK[LEVELS.state[a[0]] ?? ""] - STATE_RANK[LEVELS.state[b[0]] ?? ""]).map(([text, n]) => tile(seen(text), group(n), "queues", LEVELS.state[text] ?? "", link("queues", { ...kept(state), _state: text }))),
      tile("messages", group(total("message_count")), of, ""), tile("bytes", bytesText(total("bytes")), of, ""), tile("in journals", group(total("journal_count")), bytesText(total("journal_bytes")), "")),
    chips(state),
    h("h2", {}, "Each queue"),
    rowsTable("queues", [
      { name: "queue", show: (row) => wire(rows.at(row, "queue") ?? rows.at(row, "queue_format_name") ?? "not known") },
      { name: "queue_manager", label: "machine" },
      { name: "state_now", label: "state", value: stateNow, kind: "text", rank: (row) => STATE_RANK[level(row)], title: "state at the time of the newest evidence; UNKNOWN when what was told no longer holds" },
      { name: "message_count", label: "messages" }, "bytes", { name: "journal_count", label: "journal" }, "journal_bytes", "paused",
      { name: "valid_from", label: "last told" }, { name: "age", label: "before now", kind: "number", value: (row) => (rows.at(row, "valid_from") === null || AS_OF === null ? null : AS_OF - rows.at(row, "valid_from")), show: (row) => ageText(rows.at(row, "valid_from")) },
      "source", "confidence",
    ], state, { indexes: chosen }),
    h("h2", {}, "State over time"), stateTimeline(timeline, chosen, pieces, intervals, identity, name),
    h("div", { class: "two" }, lines("Messages", "message_count"), lines("Bytes", "bytes", "bytes")),
    h("div", { class: "two" }, lines("Messages in the journal", "journal_count"), lines("Bytes in the journal", "journal_bytes", "bytes")),
    h("h2", {}, "Intervals: what was told, and what was captured meanwhile"),
    rowsTable("intervals", ["queue", "queue_manager", "valid_from", "valid_to", "state", "message_count", "journal_count", "received", "nacked", "purged", "expected_message_count", "unexplained_change", "source"], state, { by: "valid_from", down: true }),
  ];
}
const some = (part, whole) => (part.length < whole.length ? `: ${part.length} of ${group(whole.length)} queues` : "");

/** Indexes of intervals by their queue's identity, in order of time. */
function queuePieces(intervals, state) {
  const pieces = new Map();
  for (const row of found("intervals", intervals, state, false)) {
    const key = JSON.stringify(["queue", "queue_manager", "queue_format_name"].map((column) => intervals.at(row, column)));
    if (!pieces.has(key)) pieces.set(key, []);
    pieces.get(key).push(row);
  }
  for (const list of pieces.values()) list.sort((a, b) => intervals.at(a, "valid_from") - intervals.at(b, "valid_from"));
  return pieces;
}

function stateTimeline(chosen, all_, pieces, intervals, identity, name) {
  const traces = new Map();
  chosen.forEach((row, place) => {
    for (const piece of pieces.get(identity(row)) ?? []) {
      const state = intervals.at(piece, "state") ?? "not told", from = intervals.at(piece, "valid_from"), to = intervals.at(piece, "valid_to");
      if (!traces.has(state)) traces.set(state, { type: "bar", orientation: "h", name: label(state), base: [], x: [], y: [], hovertext: [], hoverinfo: "text", customdata: [], marker: { color: colourOf(state, traces.size), pattern: { shape: state === "UNKNOWN" || state === "not told" ? "/" : "", size: 6, solidity: 0.3 } } });
      const trace = traces.get(state);
      trace.base.push(moment(from)); trace.x.push(to - from); trace.y.push(-place);
      trace.hovertext.push(`${label(name(row))}<br>${label(state)}, from ${timeText(from)} to ${timeText(to)}`);
      trace.customdata.push(intervals.has("interval_key") ? link("queues", { ...STATE.params, row: `intervals:${intervals.at(piece, "interval_key")}` }) : link("queues", { queue: DATA.queues.rows.at(row, "queue") }));
    }
  });
  return chart("State" + some(chosen, all_), [...traces.values()], { barmode: "overlay", height: 110 + 22 * chosen.length, xaxis: { type: "date" }, showlegend: true, yaxis: { tickmode: "array", tickvals: chosen.map((_, place) => -place), ticktext: chosen.map((row) => label(short(name(row), 30))), range: [-chosen.length + 0.5, 0.5] } }, go);
}

// --- transfers -------------------------------------------------------------------------------------------------------------

function transfers(state) {
  const data = DATA.transfers;
  if (!data.computed) return [h("h1", {}, "Transfers"), notComputed(data)];
  const rows = data.rows;
  let chosen = found("transfers", rows, state);
  if (state._condition === "trouble") chosen = chosen.filter((row) => TRANSFERS_DOWN.includes(rows.at(row, "condition")));
  const rank = (row) => STATE_RANK[LEVELS.condition[rows.at(row, "condition")] ?? "unknown"];
  chosen.sort((a, b) => rank(a) - rank(b) || (rows.at(b, "unacked_count") ?? -1) - (rows.at(a, "unacked_count") ?? -1));
  const conditions = countBy(rows, found("transfers", rows, state), ["condition"]);
  const points = DATA.transfer_points.rows ? sumsOf("transfer_points") : null;
  const identity = (each, row) => JSON.stringify(["queue", "queue_manager", "queue_format_name", "source"].map((column) => each.at(row, column)));
  const series = new Map();
  for (const row of points ? found("transfer_points", points, state, false) : []) {
    const key = identity(points, row);
    if (!series.has(key)) series.set(key, []);
    series.get(key).push(row);
  }
  const most = chosen.slice(0, 8);
  const name = (row) => `${rows.at(row, "queue") ?? rows.at(row, "queue_format_name")} @ ${rows.at(row, "queue_manager")}, ${rows.at(row, "source")}`;
  const lines = (title, column) => chart(title + some(most, chosen), most.map((row, place) => {
    const list = (series.get(identity(rows, row)) ?? []).filter((each) => points.at(each, column) !== null).sort((a, b) => points.at(a, "observed_at") - points.at(b, "observed_at"));
    return { type: "scatter", mode: "lines+markers", marker: { size: 5 }, line: { width: 1.5, color: COLOURS[place % COLOURS.length] }, name: label(short(name(row))), x: list.map((each) => moment(points.at(each, "observed_at"))), y: list.map((each) => points.at(each, column)),
      hovertext: list.map((each) => `${label(name(row))}<br>${label(valueText(column, "number", points.at(each, column)))}, ${label(points.at(each, "condition"))}<br>${timeText(points.at(each, "observed_at"))}`), hoverinfo: "text",
      customdata: list.map((each) => (points.has("snapshot_id") ? link("transfers", { ...STATE.params, row: `transfer_points:${points.at(each, "snapshot_id")}` }) : null)) };
  }).filter((trace) => trace.x.length), { xaxis: { type: "date" }, yaxis: { rangemode: "tozero" }, height: 250, showlegend: true }, go);
  return [
    h("h1", {}, "Transfers"),
    lead("Outgoing transactional queues: what is sent and not acknowledged, whether it moves, and when the next try is due. The window is from the oldest number that is not acknowledged to the next one."),
    tiles(conditions.map((each) => tile(each.values[0] ?? "not told", group(each.n), "transfers, as last observed", LEVELS.condition[each.values[0]] ?? "unknown", link("transfers", { ...kept(state), condition: facetText(each.values[0]) })))),
    chips(state),
    h("h2", {}, "Each transfer"),
    rowsTable("transfers", [
      { name: "queue", show: (row) => wire(rows.at(row, "queue") ?? rows.at(row, "queue_format_name") ?? "not known") }, { name: "queue_manager", label: "machine" }, "source", "condition", { name: "stalled_since", label: "stalled since" },
      { name: "unacked_count", label: "not acked" },
      { name: "window", label: "window", kind: "text", value: (row) => (rows.at(row, "first_unacked_number") === null ? null : `${rows.at(row, "first_unacked_number")}\u2013${rows.at(row, "next_number") === null ? "?" : rows.at(row, "next_number") - 1}`), title: "numbers sent and not acknowledged: from the oldest to the last given out" },
      { name: "unread_count", label: "not read" }, { name: "in_flight_s", label: "oldest for" }, { name: "acked_per_s", label: "acked/s" }, { name: "sent_per_s", label: "sent/s" },
      { name: "resend_count", label: "tries" }, { name: "ladder_step", label: "ladder step" }, { name: "next_resend_at", label: "next try" }, { name: "last_ack_at", label: "last ack" }, { name: "observed_at", label: "observed" },
    ], state, { indexes: chosen }),
    h("div", { class: "two" }, lines("Not acknowledged", "unacked_count"), lines("Oldest not acknowledged for, seconds", "in_flight_s")),
    h("div", { class: "two" }, lines("Acknowledged per second", "acked_per_s"), lines("Tries of the last message", "resend_count")),
    h("h2", {}, "Incoming: what receivers say of their senders"),
    rowsTable("sources", ["queue", "queue_manager", "sender_queue_manager", "sender_queue", "last_number", "reject_count", "disagrees_with_sender", "last_access_at", "observed_at"], state),
    h("h2", {}, "Observations"),
    rowsTable("transfer_points", ["observed_at", "queue", "queue_manager", "condition", "unacked_count", "first_unacked_number", "next_number", "resend_count", "ladder_step", "next_resend_at", "acked_per_s", "sequence_reset", "source"], state, { by: "observed_at", down: true }),
  ];
}

// --- reads -----------------------------------------------------------------------------------------------------------------

function attemptsOverTime(state) {
  const sums = sumsOf("attempts");
  return overTime("Receives and peeks, by how they ended", sums, found("attempts", sums, state), "started_at", "outcome", OUTCOME_ORDER, state, "reads");
}
function reads(state) {
  const data = DATA.attempts;
  if (!data.computed) return [h("h1", {}, "Reads"), notComputed(data)];
  const sums = sumsOf("attempts");
  const indexes = found("attempts", sums, state);
  const outcomes = countBy(sums, indexes, ["outcome"]).sort((a, b) => OUTCOME_ORDER.indexOf(a.values[0]) - OUTCOME_ORDER.indexOf(b.values[0]));
  const largest = (list, column) => list.reduce((most, row) => Math.max(most, sums.at(row, column) ?? -1), -1);
  const longest = (list, column) => (largest(list, column) < 0 ? "\u2013" : durationText(largest(list, column)));
  const byQueue = countBy(sums, indexes, ["queue", "inferred_queue", "server_address"]).map((each) => {
    const counts = new Map(countBy(sums, each.rows, ["outcome"]).map((one) => [one.values[0], one.n]));
    const n = (...names) => names.reduce((sum, name) => sum + (counts.get(name) ?? 0), 0);
    const [queue, inferred, server] = each.values;
    const name = queue ?? (inferred ? `${inferred} (inferred)` : "queue not known");
    const wrong = n(...LOST_OUTCOMES), back = n("nacked");
    return { href: link("reads", { ...kept(state), queue: queue ?? inferred ?? state.queue ?? null, server_address: facetText(server) }),
      cells: [wire(name), wire(server ?? "\u2013"), group(each.n), group(n("acked")), h("span", { class: back ? "badge warn" : "" }, group(back)), h("span", { class: wrong ? "badge bad" : "" }, group(wrong)), group(n("empty", "timed_out", "cancelled")), group(n("unknown", "in_flight")), longest(each.rows, "wait_ms"), longest(each.rows, "hold_ms")] };
  });
  const byReader = countBy(sums, indexes, ["client_address"]);
  const seqs = DATA.sequences.computed ? sumsOf("sequences") : null;
  const riskState = state._risk === "yes";
  const chosen = state._wrong === "yes" ? found("attempts", data.rows, state).filter((row) => LOST_OUTCOMES.includes(data.rows.at(row, "outcome"))) : undefined;
  const readers = bars("By reader", byReader.map((each) => ({ name: each.values[0] ?? "not known", value: each.n, text: group(each.n), href: link("reads", { ...kept(state), client_address: facetText(each.values[0]) }) })));
  const risks = seqs ? countBy(seqs, found("sequences", seqs, state).filter((row) => seqs.at(row, "loss_risk") !== null), ["loss_risk"]) : [];
  const fates = seqs ? countBy(seqs, found("sequences", seqs, state), ["fate"]) : [];
  return [
    h("h1", {}, "Reads"),
    lead("Remote receives and peeks, how each ended, and what became of the messages. A wait is from a receive's call to its answer (a receive may be asked to wait); a hold is from the answer to the acknowledgement."),
    tiles(outcomes.map((each) => tile(each.values[0] ?? "unknown", group(each.n), `longest hold ${longest(each.rows, "hold_ms")}`, LEVELS.outcome[each.values[0]] ?? "", link("reads", { ...kept(state), outcome: facetText(each.values[0]) })))),
    chips(state),
    attemptsOverTime(state),
    h("h2", {}, "Messages: fate and risk of loss"),
    seqs ? [
      tiles(risks.map((each) => tile(each.values[0], group(each.n), "messages at risk", LEVELS.loss_risk[each.values[0]] ?? "bad", link("reads", { ...kept(state), loss_risk: facetText(each.values[0]) }))),
        fates.map((each) => tile(each.values[0] ?? "unknown", group(each.n), "messages", LEVELS.fate[each.values[0]] ?? "", link("reads", { ...kept(state), fate: facetText(each.values[0]) })))),
      rowsTable("sequences", ["queue", "lookup_id", { name: "label", label: "label", kind: "text", value: (row) => messageLabel(DATA.sequences.rows.at(row, "message_key")), show: (row) => { const text = messageLabel(DATA.sequences.rows.at(row, "message_key")); return text === null ? "\u2013" : wire(text); } }, storyColumn("sequences"), "fate", "loss_risk", "redelivered", "attempts", "peeks", "outcomes", "readers", "first_attempt_at", "settled_at"], state,
        { rank: (row) => (DATA.sequences.rows.at(row, "loss_risk") === null ? 1 : 0), indexes: riskState ? found("sequences", DATA.sequences.rows, state).filter((row) => DATA.sequences.rows.at(row, "loss_risk") !== null) : undefined }),
    ] : notComputed(DATA.sequences),
    h("h2", {}, "By queue"),
    groupsTable(["queue", "server", { label: "all", n: 1 }, { label: "acked", n: 1 }, { label: "given back", n: 1 }, { label: "wrong", n: 1 }, { label: "nothing there", n: 1 }, { label: "not known", n: 1 }, { label: "longest wait", n: 1 }, { label: "longest hold", n: 1 }], byQueue),
    readers,
    h("h2", {}, "Each receive and peek"),
    rowsTable("attempts", ["started_at", "queue", "outcome", storyColumn("attempts"), "action_name", "client_address", "server_address", "wait_ms", "hold_ms", "message_bytes", { name: "label", label: "label", kind: "text", value: (row) => messageLabel(data.rows.at(row, "message_key")), show: (row) => { const text = messageLabel(data.rows.at(row, "message_key")); return text === null ? "\u2013" : wire(text); } }, "lookup_id", "confidence"], state, { indexes: chosen, by: "started_at", down: true }),
    h("h2", {}, "Purges and moves"),
    rowsTable("operations", ["requested_at", "operation", "queue", "target_queue", "outcome", "client_address", "server_address", "lookup_id"], state),
  ];
}

// --- calls -----------------------------------------------------------------------------------------------------------------

function calls(state) {
  const data = DATA.calls;
  if (!data.computed) return [h("h1", {}, "Calls"), notComputed(data)];
  const sums = sumsOf("calls");
  const indexes = found("calls", sums, state);
  const stats = (list) => {
    const pairs = list.map((row) => [sums.at(row, "answer_ms"), weight(sums, row)]);
    const failed = list.reduce((sum, row) => sum + (sums.at(row, "failed") ? weight(sums, row) : 0), 0);
    const most = list.reduce((max, row) => Math.max(max, sums.at(row, "answer_ms_max") ?? sums.at(row, "answer_ms") ?? -1), -1);
    return { p50: percentile(pairs, 0.5), p95: percentile(pairs, 0.95), p99: percentile(pairs, 0.99), most: most < 0 ? null : most, failed };
  };
  const cells = (each, name) => { const s = stats(each.rows); return [name, group(each.n), durationText(s.p50) ?? "\u2013", durationText(s.p95) ?? "\u2013", durationText(s.p99) ?? "\u2013", durationText(s.most) ?? "\u2013", h("span", { class: s.failed ? "badge warn" : "" }, group(s.failed)), shareText(s.failed, each.n)]; };
  const methods = countBy(sums, indexes, ["interface_name", "method"]);
  const servers = countBy(sums, indexes, ["server_address"]);
  const results = countBy(sums, indexes, ["result"]).filter((each) => !["ok", "MQ_OK"].includes(each.values[0]));
  const numbers = [{ label: "calls", n: 1 }, { label: "p50", n: 1 }, { label: "p95", n: 1 }, { label: "p99", n: 1 }, { label: "longest", n: 1 }, { label: "failed", n: 1 }, { label: "share", n: 1 }];
  const text = (each) => `${each.values[0] ?? "interface not known"}: ${each.values[1] ?? "method not known"}`;
  const slowest = methods.map((each) => ({ name: text(each), value: stats(each.rows).p95, text: durationText(stats(each.rows).p95), href: link("calls", { ...kept(state), interface_name: facetText(each.values[0]), method: facetText(each.values[1]) }) })).filter((each) => each.value !== null).sort((a, b) => b.value - a.value);
  return [
    h("h1", {}, "Calls"),
    lead("RPC calls: time from the request's first byte to the answer's, and what they returned. Receives may be asked to wait: their answer times are waits. MQ_ERROR_IO_TIMEOUT, a wait in vain, is no failure here; calls that are sealed or half seen are neither."),
    chips(state),
    overTime("Calls, by what became of them", sums, indexes, "request_at", "outcome", ["ok", "fault", "no_response", "damaged", "no_request", "unbound", "encrypted"], state, "calls"),
    h("div", { class: "two" },
      bars("Answer time, 95 of 100 within", slowest, { xaxis: { type: "log", title: { text: "ms" } } }),
      bars("Results other than OK", results.map((each) => ({ name: each.values[0] ?? "not known", value: each.n, text: group(each.n), level: each.rows.some((row) => sums.at(row, "failed")) ? "bad" : "unknown", href: link("calls", { ...kept(state), result: facetText(each.values[0]) }) })))),
    h("h2", {}, "By method"),
    groupsTable(["method", ...numbers], methods.map((each) => ({ href: link("calls", { ...kept(state), interface_name: facetText(each.values[0]), method: facetText(each.values[1]) }), cells: cells(each, wire(text(each))) }))),
    h("h2", {}, "By server"),
    groupsTable(["server", ...numbers], servers.map((each) => ({ href: link("calls", { ...kept(state), server_address: facetText(each.values[0]) }), cells: cells(each, wire(each.values[0] ?? "not known")) }))),
    sums !== data.rows ? h("p", { class: "note" }, "Percentiles of sums are within 9 %: answer times are counted in classes, four to each doubling.") : null,
    h("h2", {}, "Each call"),
    rowsTable("calls", ["request_at", "interface_name", "method", "result", "failed", "answer_ms", "client_address", "server_address", "sealed", "request_packet", "response_packet"], state, { by: "request_at", down: true }),
  ];
}

// --- COM+ ------------------------------------------------------------------------------------------------------------------

function comqc(state) {
  const data = DATA.comqc;
  if (!data.computed) return [h("h1", {}, "COM+ calls"), notComputed(data)];
  const sums = sumsOf("comqc");
  const indexes = found("comqc", sums, state);
  const groups = countBy(sums, indexes, ["target_clsid", "interface_id", "opnum", "dispatch_id"]);
  const what = (each) => (each.values[3] === null ? `method ${each.values[2]}` : `dispatch id ${each.values[3]}`);
  const href = (each) => link("comqc", { ...kept(state), target_clsid: facetText(each.values[0]), interface_id: facetText(each.values[1]), opnum: facetText(each.values[2]), dispatch_id: facetText(each.values[3]) });
  return [
    h("h1", {}, "COM+ calls"),
    lead("Method calls that queued components recorded in messages, one for each time that its message was seen."),
    chips(state),
    indexes.length ? [
      bars("By interface and method", groups.map((each) => ({ name: `${each.values[1] ?? "interface not known"} ${what(each)}`, value: each.n, text: group(each.n), href: href(each) }))),
      groupsTable(["class", "interface", "method", { label: "calls", n: 1 }], groups.map((each) => ({ href: href(each), cells: [wire(each.values[0] ?? "\u2013"), wire(each.values[1] ?? "\u2013"), what(each), group(each.n)] }))),
    ] : null,
    h("h2", {}, "Each call"),
    rowsTable("comqc", ["seen_at", "queue", "label", "target_clsid", "interface_id", "opnum", "dispatch_id", "arguments", "marshaled_bytes", "message_id"], state, { by: "seen_at", down: true, empty: data.total ? undefined : "No message that was captured holds a recorded COM+ call." }),
  ];
}

// --- findings --------------------------------------------------------------------------------------------------------------

function findings(state) {
  const data = DATA.findings;
  if (!data.computed) return [h("h1", {}, "Findings"), notComputed(data)];
  const sums = sumsOf("findings");
  const indexes = found("findings", sums, state);
  const rules = countBy(sums, indexes, ["severity", "rule_id", "source"]);
  const order = { error: 0, warning: 1, info: 2 };
  rules.sort((a, b) => (order[a.values[0]] ?? 3) - (order[b.values[0]] ?? 3) || b.n - a.n);
  const subjects = countBy(sums, indexes, ["subject"]);
  return [
    h("h1", {}, "Findings"),
    lead("Rules of the specifications that were broken on the wire, and what is wrong with machines and clocks; each with the calls that prove it (docs/rules.md)."),
    chips(state),
    overTime("Findings", sums, indexes, "observed_at", "severity", ["error", "warning", "info"], state, "findings"),
    h("h2", {}, "By rule"),
    groupsTable(["rule", "source", "severity", { label: "times", n: 1 }, { label: "by", n: 1 }], rules.map((each) => ({ href: link("findings", { ...kept(state), rule_id: facetText(each.values[1]) }), cells: [each.values[1] ?? "", wire(each.values[2] ?? ""), h("span", { class: "badge " + (LEVELS.severity[each.values[0]] ?? "") }, each.values[0] ?? ""), group(each.n), group(countBy(sums, each.rows, ["subject"]).length)] }))),
    bars("By who breaks them", subjects.map((each) => ({ name: each.values[0] ?? "not known", value: each.n, text: group(each.n), href: link("findings", { ...kept(state), subject: facetText(each.values[0]) }) }))),
    h("h2", {}, "Each finding"),
    rowsTable("findings", [{ name: "severity", rank: (row) => order[data.rows.at(row, "severity")] ?? 3 }, "rule_id", "observed_at", "subject", "message", "expected", "actual"], state, { rank: (row) => order[data.rows.at(row, "severity")] ?? 3 }),
  ];
}

// --- quality ---------------------------------------------------------------------------------------------------------------

function quality(state) {
  const data = DATA.quality;
  if (!data.computed) return [h("h1", {}, "Quality"), notComputed(data)];
  const rows = data.rows, indexes = found("quality", rows, state);
  const failed = (list) => list.filter((row) => rows.at(row, "success") === false);
  const wrong = failed(indexes), gravity = ["error", "warning", "info"];
  const levelOf = (list) => LEVELS.severity[gravity.find((each) => list.some((row) => rows.at(row, "severity") === each))] ?? "";
  const tables = countBy(rows, indexes, ["table"]).sort((a, b) => failed(b.rows).length - failed(a.rows).length || String(a.values[0]).localeCompare(String(b.values[0])));
  const rank = (row) => gravity.indexOf(rows.at(row, "severity"));
  // How grave it is, is of those that failed: a check that holds is no error.
  const severity = { name: "severity", show: (row) => (rows.at(row, "success") === false ? shown("severity", "text", rows.at(row, "severity")) : rows.at(row, "severity") ?? "\u2013") };
  const columns = ["success", severity, "table", "expectation", "evaluated", "unexpected", "observed", "scope", "run_at"];
  const tileOf = (each) => { const list = wrong.filter((row) => rows.at(row, "severity") === each); return tile(`${each === "info" ? "notes" : each + "s"}`, group(list.length), "checks that did not hold", list.length ? LEVELS.severity[each] : "ok", link("quality", { ...kept(state), success: "false", severity: each })); };
  return [
    h("h1", {}, "Quality"),
    lead("What must hold of the tables themselves, as each was last checked. An error shuts the gate (exit code 1) until it is mended."),
    tiles(gravity.map(tileOf), tile("hold", group(indexes.length - wrong.length), `of ${group(indexes.length)} checks`, "ok", link("quality", { ...kept(state), success: "true" }))),
    chips(state),
    wrong.length ? [h("h2", {}, "What did not hold"), rowsTable("quality", columns, state, { id: "quality-wrong", indexes: wrong, rank })] : null,
    h("h2", {}, "By table"),
    groupsTable(["table", { label: "checks", n: 1 }, { label: "failed", n: 1 }], tables.map((each) => { const list = failed(each.rows); return { href: link("quality", { ...kept(state), table: facetText(each.values[0]) }), cells: [wire(each.values[0] ?? ""), group(each.n), h("span", { class: list.length ? "badge " + levelOf(list) : "" }, group(list.length))] }; })),
    h("h2", {}, "Each check"),
    rowsTable("quality", columns, state, { rank: (row) => (rows.at(row, "success") === false ? 0 : 10) + rank(row) }),
  ];
}

// --- what was not seen -----------------------------------------------------------------------------------------------------

function unseenTable(list, state) {
  return groupsTable(["layer", "not seen", { label: "how much", n: 1 }, { label: "of", n: 1 }, { label: "share", n: 1 }], list.map((each) => ({
    href: link("coverage", { ...kept(state), layer: each.layer, measure: each.measure }),
    cells: [each.layer, each.label, h("span", { class: each.part ? "badge warn" : "" }, each.bytes ? bytesText(each.part) : group(each.part)), each.bytes ? bytesText(each.whole) : group(each.whole), shareText(each.part, each.whole)] })));
}
/** What a count of an hour is of: the calls of its server, else the captures with packets of that hour. */
function openHour(_, row) {
  const rows = DATA.coverage.rows, hour = rows.at(row, "hour"), machine = rows.at(row, "server_address");
  const span = hour === null ? {} : { from: timeText(hour), to: timeText(hour + 3599999) };
  const calls = ["rpc", "stub"].includes(rows.at(row, "layer"));
  go(calls ? link("calls", { machine, ...span }) : link("coverage", { machine, ...span, layer: rows.at(row, "layer"), measure: rows.at(row, "measure") }));
}
function coverage(state) {
  const data = DATA.coverage;
  const files = DATA.captures.computed ? rowsTable("captures", ["status", "path", "packets", "packets_used", "packets_other", "packets_damaged", "packets_dropped", "size_bytes", "first_packet_at", "last_packet_at", "error"], state) : notComputed(DATA.captures);
  if (!data.computed) return [h("h1", {}, "Not seen"), notComputed(data), h("h2", {}, "Captures"), files];
  const rows = data.rows;
  const sums = sumsOf("coverage");
  const servers = countBy(sums, found("coverage", sums, state).filter((row) => sums.at(row, "layer") === "rpc"), ["server_address"]).map((each) => {
    const of = (measure) => each.rows.reduce((sum, row) => sum + (sums.at(row, "measure") === measure ? sums.at(row, "value") : 0), 0);
    const unknown = of("calls_half_seen") + of("sealed") + of("calls_unbound");
    return { name: each.values[0] ?? "no single server", value: of("calls"), unknown, text: `${group(unknown)} of ${group(of("calls"))} not known`, href: link("coverage", { ...kept(state), server_address: facetText(each.values[0]) }) };
  }).sort((a, b) => b.unknown - a.unknown);
  return [
    h("h1", {}, "Not seen, so not known"),
    lead("Every number on these pages is of what was captured and collected. This is what was lost, sealed, cut or never answered."),
    chips(state),
    unseenTable(unseen(state), state),
    h("h2", {}, "Calls that cannot be told, by server"),
    groupsTable(["server", { label: "not known", n: 1 }, { label: "calls", n: 1 }], servers.map((each) => ({ href: each.href, cells: [wire(each.name), h("span", { class: each.unknown ? "badge warn" : "" }, group(each.unknown)), group(each.value)] }))),
    h("h2", {}, "Counts by hour"),
    rowsTable("coverage", ["hour", "server_address", "layer", "measure", "value"], state, { by: "hour", down: true, open: openHour }),
    h("h2", {}, "Captures"), files,
  ];
}
