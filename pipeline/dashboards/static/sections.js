"use strict";
// The sections of the page. Each renders the rows that pass the filters.

const OUTCOME_ORDER = ["acked", "peeked", "empty", "timed_out", "cancelled", "nacked", "rejected", "expired", "rundown", "failed", "in_flight", "unknown"];
const intro = (text) => h("p", { class: "lead" }, text);

const SECTIONS = {
  overview: { label: "Overview", render: overview },
  alerts: { label: "Alerts", render: alerts },
  queues: { label: "Queues", render: queues },
  transfers: { label: "Transfers", render: transfers },
  eod: { label: "Exactly-once", render: exactlyOnce },
  reads: { label: "Reads", render: reads },
  calls: { label: "Calls", render: calls },
  comqc: { label: "COM+ calls", render: comqc },
  findings: { label: "Findings", render: findings },
  quality: { label: "Quality", render: quality },
  coverage: { label: "Coverage", render: coverage },
  // Stories are reached by links only; the filters at the top do not apply to them.
  entry: { label: "Entry", render: entryStory, story: true },
  queue: { label: "Queue", render: queueStory, story: true },
  machine: { label: "Machine", render: machineStory, story: true },
  message: { label: "Message", render: messageStory, story: true },
};
const TABS = Object.keys(SECTIONS).filter((name) => !SECTIONS[name].story);

// --- overview --------------------------------------------------------------------------------------------------------------

function overview(state) {
  const made = checks(state);
  const missing = DATA.coverage.computed ? coverageGaps(state).filter((each) => each.part > 0) : [];
  const worst = worstTrouble(state), { level, text } = verdict(made, state);
  return [
    h("h1", { class: "plainly" }, "Overview"),
    h("p", { class: "verdict " + (worst?.level ?? level) }, worst?.sentence ?? text),
    h("h2", {}, "What is wrong, and what to do"), entryCards(state),
    queuesInTrouble(state),
    h("h2", {}, "Counts"), worst ? h("p", { class: "lead counts" }, text) : null,
    tiles(made.map((each) => tile(each.label, each.value, each.detail, each.level, each.href))),
    h("h2", {}, "Coverage gaps"),
    DATA.coverage.computed
      ? missing.length
        ? [ignoredNote(ignoredFilters("coverage", summaryOf("coverage"), state, false)), coverageTable(missing, state)]
        : h("p", { class: "note" }, coverageGaps(state).some((each) => each.whole) ? "No gaps: no bytes missing, no encrypted calls, no failed snapshots." : "Nothing was counted.")
      : notComputed(DATA.coverage),
    h("h2", {}, "Active alerts"),
    alertRows({ ...state, _open: "yes" }),
    h("h2", {}, "Receives and peeks"),
    DATA.attempts.computed ? attemptsOverTime(state) : notComputed(DATA.attempts),
  ];
}

/** The sentence that says what to look at first, and its level: "ok" only if something was observed. */
function verdict(made, state) {
  const listed = (level) => made.filter((each) => each.level === level).map((each) => `${each.label} (${each.value})`).join(", ");
  const uncomputed = made.filter((each) => each.value === "not computed").map((each) => each.label);
  const captures = DATA.captures.computed ? DATA.captures.total : 0;
  const collected = DATA.coverage.computed && coverageGaps({}).some((each) => each.layer === "snapshot" && each.whole > 0);
  const isAnyRead = DATA.captures.computed && sumWhere("captures", {}, isRead) > 0;
  if (!observedRows({}) && !made.some((each) => each.number && !["coverage", "quality"].includes(each.section))) {
    if (!captures && !collected && !DATA.queues.total) return { level: "", text: "No data: the lake contains no capture and no snapshot." };
    const unread = captures && !isAnyRead ? ` Captures not read: ${formatNumber(captures)}.` : "";
    if (isAnyRead && !sumWhere("captures", {}, holdsMsmq)) return { level: "", text: "Nothing is known: no capture holds MSMQ (wrong interface or ports?), and no queue was reported." };
    return { level: "", text: isAnyRead ? "Nothing is known: the captures show no call whose result can be read, and no queue was reported." : `Nothing could be read.${unread}` };
  }
  if (listed("bad")) return { level: "bad", text: `Errors: ${listed("bad")}.` };
  if (listed("warn")) return { level: "warn", text: `Warnings: ${listed("warn")}.` };
  if (!observedRows(state)) return { level: "", text: "Nothing was observed that these filters select." };
  const lacks = unseenEvidence(state);
  return { level: lacks.length ? "" : "ok", text: `No problems in the captures and snapshots.${lacks.length ? ` Nothing was seen of ${lacks.join(", ")}.` : ""}${uncomputed.length ? ` Not computed: ${uncomputed.join(", ")}.` : ""}` };
}

// --- alerts ----------------------------------------------------------------------------------------------------------------

/** The subject of an alert, by name where one is known, and the mark of its entry. */
const alertSubject = { name: "subject", value: (row) => DATA.alerts.rows.at(row, "subject_text") ?? DATA.alerts.rows.at(row, "subject") };
const alertEntry = {
  name: "entry", label: "cause", kind: "text", title: "the active alerts of one cause, together",
  value: (row) => ENTRY_OF_ALERT.get(DATA.alerts.rows.at(row, "alert_key")) ?? null,
  show: (row) => { const entry = ENTRIES.get(ENTRY_OF_ALERT.get(DATA.alerts.rows.at(row, "alert_key"))); return entry ? entryMark(entry) : "\u2013"; },
};
function alertRows(state) {
  const data = DATA.alerts;
  if (!data.computed) return notComputed(data);
  const indexes = filterRows("alerts", data.rows, state);
  const severityRank = { error: 0, warning: 1, info: 2 };
  const rank = (row) => (data.rows.at(row, "until") === null ? 0 : 10) + (severityRank[data.rows.at(row, "severity")] ?? 3);
  return rowsTable("alerts", ["severity", "condition", alertSubject, "since", "until", "message", "suggestion", alertEntry], state, { indexes, rank, id: "alerts" + (state._open ?? ""), empty: "No alerts." });
}
function alerts(state) {
  return [
    h("h1", {}, "Alerts"),
    intro("Conditions that hold or held, with suggestions. Alerts that ended keep their rows."),
    h("p", {}, h("a", { href: link("alerts", { ...globalFilters(state), _open: "yes" }) }, "active"), " \u00b7 ", h("a", { href: link("alerts", globalFilters(state)) }, "all")),
    state._open ? [h("h2", {}, "Causes"), entryCards(state), h("h2", {}, "Alerts")] : null,
    DATA.alerts.computed ? facetChips(state, "alerts") : null, alertRows(state),
  ];
}

// --- queues ----------------------------------------------------------------------------------------------------------------

const STATE_RANK = { bad: 0, warn: 1, unknown: 2, ok: 3, "": 4 };
const worstLevel = (levels) => levels.reduce((worst, each) => (STATE_RANK[each] < STATE_RANK[worst] ? each : worst), "");
/** The active alerts about each queue, by its name and machine: their rows. */
function activeAlerts() {
  const found = new Map(), { rows } = DATA.alerts;
  for (const row of rows ? rows.all() : []) {
    if (rows.at(row, "until") !== null || rows.at(row, "queue") === null) continue;
    const place = JSON.stringify([rows.at(row, "queue"), rows.at(row, "queue_manager")]);
    found.set(place, [...(found.get(place) ?? []), row]);
  }
  return found;
}
function queues(state) {
  const data = DATA.queues;
  if (!data.computed) return [h("h1", {}, "Queues"), notComputed(data)];
  const rows = data.rows;
  const active = activeAlerts(), alertAt = (row, column) => DATA.alerts.rows.at(row, column);
  const alertsOf = (row) => active.get(JSON.stringify([rows.at(row, "queue"), rows.at(row, "queue_manager")])) ?? [];
  const alertLevel = (row) => worstLevel(alertsOf(row).map((each) => LEVELS.severity[alertAt(each, "severity")] ?? ""));
  const entryOf = (row) => { const key = storyOfQueue(rows.at(row, "queue"))?.entries[0] ?? (alertsOf(row).length ? ENTRY_OF_ALERT.get(alertAt(alertsOf(row)[0], "alert_key")) : undefined); return ENTRIES.get(key) ?? null; };
  const level = (row) => worstLevel([LEVELS.state[stateNow(row)] ?? "", alertLevel(row)]); // a good state is no good sign
  const chosen = filterRows("queues", rows, state);
  chosen.sort((a, b) => STATE_RANK[level(a)] - STATE_RANK[level(b)] || (rows.at(b, "message_count") ?? -1) - (rows.at(a, "message_count") ?? -1));
  const states = new Map();
  for (const row of chosen) states.set(stateNow(row), [...(states.get(stateNow(row)) ?? []), row]);
  const stateLevels = new Map([...states].map(([text, each]) => [text, worstLevel(each.map(level))]));
  // What was not reported is left out and said; a total of nothing is unknown.
  const totalTile = (label, column, text) => {
    const known = chosen.map((row) => rows.at(row, column)).filter((each) => each !== null).map(Number);
    const without = chosen.length - known.length;
    return tile(label, known.length ? text(known.reduce((sum, each) => sum + each, 0)) : "\u2013", without ? `in queues with a report; ${formatNumber(without)} without` : "as last reported, in all of these queues", "");
  };
  const withAlerts = (each) => { const n = each.filter((row) => alertsOf(row).length).length; return n ? `queues, ${formatNumber(n)} with active alerts` : "queues"; };
  const name = (row) => [rows.at(row, "queue") ?? rows.at(row, "queue_format_name") ?? "unknown queue", rows.at(row, "queue_manager")].join(" @ ");
  const intervals = DATA.intervals.rows ? summaryOf("intervals") : null;
  const pieces = intervals ? queuePieces(intervals, state) : new Map();
  const identity = (row) => JSON.stringify(["queue", "queue_manager", "queue_format_name"].map((column) => rows.at(row, column)));
  const timeline = chosen.slice(0, 25);
  const ofChosen = new Set(chosen.map((row) => JSON.stringify([rows.at(row, "queue"), rows.at(row, "queue_manager")])));
  const history = DATA.intervals.rows ? filterRows("intervals", DATA.intervals.rows, { ...state, _state: null }).filter((row) => ofChosen.has(JSON.stringify([DATA.intervals.rows.at(row, "queue"), DATA.intervals.rows.at(row, "queue_manager")]))) : undefined;
  const largest = (row, column) => (pieces.get(identity(row)) ?? []).reduce((most, piece) => Math.max(most, intervals.at(piece, column) ?? 0), 0);
  const lines = (title, column, unit) => {
    const filled = chosen.filter((row) => largest(row, column) > 0).sort((a, b) => largest(b, column) - largest(a, column));
    const most = filled.slice(0, 6);
    return stepLines(title + some(most, filled), most.map((row) => ({ name: name(row), pieces: (pieces.get(identity(row)) ?? []).map((piece) => [intervals.at(piece, "valid_from"), intervals.at(piece, "valid_to"), intervals.at(piece, column)]) })), unit);
  };
  return [
    h("h1", {}, "Queues"),
    intro("Last report of each queue: its values and its time. If the report is no longer valid, the state is UNKNOWN, since the time beside it. A queue is as bad as its state or its worst active alert. A missing report means unknown, not zero."),
    tiles(
      [...states].sort((a, b) => STATE_RANK[stateLevels.get(a[0])] - STATE_RANK[stateLevels.get(b[0])]).map(([text, each]) => tile(escapeHidden(text), formatNumber(each.length), withAlerts(each), stateLevels.get(text), rowsLink("queues", { ...globalFilters(state), _state: text }))),
      totalTile("messages", "message_count", formatNumber), totalTile("bytes", "bytes", bytesText), totalTile("in journals", "journal_count", formatNumber), totalTile("bytes in journals", "journal_bytes", bytesText)),
    facetChips(state, "queues"),
    h("h2", {}, "All queues"),
    rowsTable("queues", [
      { name: "queue", show: (row) => (storyOfQueue(rows.at(row, "queue")) ? queueName(rows.at(row, "queue")) : untrusted(rows.at(row, "queue") ?? rows.at(row, "queue_format_name") ?? "unknown")) },
      { name: "queue_manager", label: "machine" },
      { name: "entry", label: "cause", kind: "text", title: "the worst entry of its active alerts", value: (row) => entryOf(row)?.severity ?? null, rank: (row) => STATE_RANK[severityLevel(entryOf(row)?.severity)], show: (row) => { const entry = entryOf(row); return entry ? entryMark(entry) : ""; } },
      { name: "state_now", label: "state", value: stateNow, kind: "text", rank: (row) => STATE_RANK[level(row)], title: "state as of the newest evidence; UNKNOWN if the last report is no longer valid" },
      { name: "state_since", label: "since", title: "when the last known state began" },
      { name: "message_count", label: "messages" },
      { name: "unacknowledged", label: "unacknowledged", title: "messages sent and not acknowledged, as reported last, else as captured" },
      { name: "last_read_at", label: "last read", title: "when a message of it was last received, as far as captured" },
      { name: "active_alerts", label: "active alerts", kind: "text", value: (row) => [...new Set(alertsOf(row).map((each) => alertAt(each, "condition")))].join(", ") || null, rank: (row) => STATE_RANK[alertLevel(row)], show: (row) => (alertsOf(row).length ? h("span", { class: "badge " + alertLevel(row) }, [...new Set(alertsOf(row).map((each) => alertAt(each, "condition")))].join(", ")) : "") },
      { name: "unknown_since", label: "unknown since", kind: "time", value: (row) => unknownSince(row) ?? null, title: "when the last report of the state stopped being valid" },
      { name: "state", label: "last state", title: "state as last reported" },
      { name: "queue_format_name", label: "format name" }, "bytes", { name: "journal_count", label: "journal" }, "journal_bytes", "paused",
      { name: "reported_at", label: "last report" }, { name: "age", label: "age", kind: "number", value: (row) => (rows.at(row, "reported_at") === null || AS_OF === null ? null : AS_OF - rows.at(row, "reported_at")), show: (row) => ageText(rows.at(row, "reported_at")) ?? "\u2013" },
      "sources", "confidence",
    ], state, { indexes: chosen }),
    h("h2", {}, "State over time"), stateTimeline(timeline, chosen, pieces, intervals, identity, name),
    h("div", { class: "two" }, lines("Messages", "message_count"), lines("Bytes", "bytes", "bytes")),
    h("div", { class: "two" }, lines("Messages in the journal", "journal_count"), lines("Bytes in the journal", "journal_bytes", "bytes")),
    h("h2", {}, "History: reported states and captured operations"),
    rowsTable("intervals", ["queue", "queue_manager", "queue_format_name", "valid_from", "valid_to", "state", "message_count", "journal_count", "received", "nacked", "purged", "expected_message_count", "unexplained_change", "reported_at", "source"], { ...state, _state: null }, { indexes: history, by: "valid_from", down: true }),
    h("h2", {}, "Queue managers"), machineRows(state),
    h("h2", {}, "Actions of administrators"),
    rowsTable("actions", ["requested_at", "action", "queue", { name: "queue_manager", label: "machine" }, "client_address", { name: "auth_level_name", label: "authentication" }, "outcome", "result", "state_before", "state_after"], { ...state, _state: null }, { by: "requested_at", down: true, empty: "No actions." }),
  ];
}
/** The last report of each queue manager; its state is UNKNOWN if that is no longer valid. */
function machineRows(state) {
  const data = DATA.machines;
  const valid = (row) => { const until = data.rows.at(row, "known_until"); return until !== null && (AS_OF === null || until > AS_OF); };
  return rowsTable("machines", [
    { name: "queue_manager", label: "machine" },
    { name: "state_now", label: "state", kind: "text", value: (row) => (valid(row) ? data.rows.at(row, "state") : "UNKNOWN"), title: "DISCONNECTED: taken off network and directory; UNKNOWN if the last report is no longer valid" },
    { name: "state", label: "last state", title: "state as last reported" }, "since",
    { name: "bytes_in_all_queues", label: "bytes" }, { name: "active_queues", label: "active queues" }, { name: "private_queues", label: "private queues" }, "directory_server",
    { name: "reported_at", label: "last report" }, "sources", "confidence",
  ], { ...state, _state: null });
}
const some = (part, whole) => (part.length < whole.length ? `: ${part.length} of ${formatNumber(whole.length)} queues` : "");

/** Rows of intervals by queue identity, in order of time. */
function queuePieces(intervals, state) {
  const pieces = new Map();
  for (const row of filterRows("intervals", intervals, state, false)) {
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
      const state = intervals.at(piece, "state") ?? "unknown", from = intervals.at(piece, "valid_from"), to = intervals.at(piece, "valid_to");
      if (!traces.has(state)) traces.set(state, { type: "bar", orientation: "h", name: plotlyText(state), base: [], x: [], y: [], hovertext: [], hoverinfo: "text", customdata: [], marker: { color: colourOf(state, traces.size), pattern: { shape: state === "UNKNOWN" || state === "unknown" ? "/" : "", size: 6, solidity: 0.3 } } });
      const trace = traces.get(state);
      trace.base.push(plotlyTime(from)); trace.x.push(to - from); trace.y.push(-place);
      trace.hovertext.push(`${plotlyText(name(row))}<br>${plotlyText(state)}, from ${timeText(from)} to ${timeText(to)}`);
      trace.customdata.push(intervals.has("interval_key") ? link("queues", { ...STATE.params, row: `intervals:${intervals.at(piece, "interval_key")}` }) : link("queues", { queue: DATA.queues.rows.at(row, "queue") }));
    }
  });
  return chart("State" + some(chosen, all_), [...traces.values()], { barmode: "overlay", height: 110 + 22 * chosen.length, xaxis: { type: "date" }, showlegend: true, yaxis: { tickmode: "array", tickvals: chosen.map((_, place) => -place), ticktext: chosen.map((row) => plotlyText(ellipsize(name(row), 30))), range: [-chosen.length + 0.5, 0.5] } }, go);
}

// --- exactly-once ----------------------------------------------------------------------------------------------------------

function exactlyOnce(state) {
  const data = DATA.transfers;
  if (!data.computed) return [h("h1", {}, "Exactly-once"), notComputed(data)];
  const rows = data.rows;
  const chosen = filterRows("transfers", rows, state);
  const rank = (row) => STATE_RANK[LEVELS.condition[rows.at(row, "condition")] ?? "unknown"];
  chosen.sort((a, b) => rank(a) - rank(b) || (rows.at(b, "unacked_count") ?? -1) - (rows.at(a, "unacked_count") ?? -1));
  const conditions = countBy(rows, filterRows("transfers", rows, state), ["condition"]);
  const points = DATA.transfer_points.rows ? summaryOf("transfer_points") : null;
  const identity = (each, row) => JSON.stringify(["queue", "queue_manager", "queue_format_name"].map((column) => each.at(row, column)?.toLowerCase()));
  const series = new Map();
  for (const row of points ? filterRows("transfer_points", points, state, false) : []) {
    const key = identity(points, row);
    if (!series.has(key)) series.set(key, []);
    series.get(key).push(row);
  }
  const most = chosen.slice(0, 8);
  const name = (row) => `${rows.at(row, "queue") ?? rows.at(row, "queue_format_name")} @ ${rows.at(row, "queue_manager")}`;
  const lines = (title, column) => chart(title + some(most, chosen), most.map((row, place) => {
    const list = (series.get(identity(rows, row)) ?? []).filter((each) => points.at(each, column) !== null).sort((a, b) => points.at(a, "observed_at") - points.at(b, "observed_at"));
    return { type: "scatter", mode: "lines+markers", marker: { size: 5 }, line: { width: 1.5, color: COLOURS[place % COLOURS.length] }, name: plotlyText(ellipsize(name(row))), x: list.map((each) => plotlyTime(points.at(each, "observed_at"))), y: list.map((each) => points.at(each, column)),
      hovertext: list.map((each) => `${plotlyText(name(row))}<br>${plotlyText(valueText(column, "number", points.at(each, column)))}, ${plotlyText(points.at(each, "condition"))}<br>${timeText(points.at(each, "observed_at"))}`), hoverinfo: "text",
      customdata: list.map((each) => (points.has("snapshot_id") ? link("eod", { ...STATE.params, row: `transfer_points:${points.at(each, "snapshot_id")}` }) : null)) };
  }).filter((trace) => trace.x.length), { xaxis: { type: "date" }, yaxis: { rangemode: "tozero" }, height: 250, showlegend: true }, go);
  return [
    h("h1", {}, "Exactly-once"),
    intro("What queue managers report of their outgoing transactional queues: messages sent and not acknowledged, progress, and time of the next resend. The window is the range of numbers sent and not acknowledged. What was captured of the messages themselves is under Transfers."),
    tiles(conditions.map((each) => tile(each.values[0] ?? "unknown", formatNumber(each.n), "transfers, last observation", LEVELS.condition[each.values[0]] ?? "unknown", rowsLink("eod", { ...globalFilters(state), condition: facetText(each.values[0]) })))),
    facetChips(state, "transfers"),
    h("h2", {}, "Last report of each queue"),
    rowsTable("transfers", [
      { name: "queue", show: (row) => untrusted(rows.at(row, "queue") ?? rows.at(row, "queue_format_name") ?? "unknown") }, { name: "queue_manager", label: "machine" }, { name: "queue_format_name", label: "format name" }, "sources", "condition", { name: "stalled_since", label: "stalled since" },
      { name: "unacked_count", label: "unacked" },
      { name: "window", label: "window", kind: "text", value: (row) => (rows.at(row, "first_unacked_number") === null ? null : `${rows.at(row, "first_unacked_number")}\u2013${rows.at(row, "next_number") === null ? "?" : rows.at(row, "next_number") - 1}`), title: "message numbers sent and not acknowledged: from the oldest to the newest" },
      { name: "unread_count", label: "unread" }, { name: "in_flight_s", label: "oldest in flight" }, { name: "acked_per_s", label: "acked/s" }, { name: "sent_per_s", label: "sent/s" },
      { name: "resend_count", label: "resends" }, { name: "ladder_step", label: "ladder step" }, { name: "next_resend_at", label: "next resend" }, { name: "last_ack_at", label: "last ack" }, { name: "observed_at", label: "observed" },
    ], state, { indexes: chosen }),
    h("div", { class: "two" }, lines("Unacknowledged messages", "unacked_count"), lines("Time in flight of the oldest message, seconds", "in_flight_s")),
    h("div", { class: "two" }, lines("Acknowledged per second", "acked_per_s"), lines("Resend count", "resend_count")),
    h("h2", {}, "Incoming sequences: reports of receivers about their senders"),
    rowsTable("sources", ["queue", "queue_manager", "queue_format_name", "sources", "sender_queue_manager", "sender_queue", "last_number", "reject_count", "disagrees_with_sender", "last_access_at", "observed_at"], state),
    h("h2", {}, "Observations"),
    rowsTable("transfer_points", ["observed_at", "queue", "queue_manager", "queue_format_name", "condition", "unacked_count", "first_unacked_number", "next_number", "resend_count", "ladder_step", "next_resend_at", "acked_per_s", "sequence_reset", "source"], state, { by: "observed_at", down: true }),
  ];
}

// --- reads -----------------------------------------------------------------------------------------------------------------

function attemptsOverTime(state) {
  const sums = summaryOf("attempts");
  return overTime("Receives and peeks by outcome", sums, filterRows("attempts", sums, state), "started_at", "outcome", OUTCOME_ORDER, state, "reads");
}
function reads(state) {
  const data = DATA.attempts;
  if (!data.computed) return [h("h1", {}, "Reads"), notComputed(data)];
  const sums = summaryOf("attempts");
  const indexes = filterRows("attempts", sums, state);
  const outcomes = countBy(sums, indexes, ["outcome"]).sort((a, b) => OUTCOME_ORDER.indexOf(a.values[0]) - OUTCOME_ORDER.indexOf(b.values[0]));
  const largest = (list, column) => list.reduce((most, row) => Math.max(most, sums.at(row, column) ?? -1), -1);
  const longest = (list, column) => (largest(list, column) < 0 ? "\u2013" : durationText(largest(list, column)));
  const byQueue = countBy(sums, indexes, ["queue", "inferred_queue", "server_address"]).map((each) => {
    const counts = new Map(countBy(sums, each.rows, ["outcome"]).map((one) => [one.values[0], one.n]));
    const n = (...names) => names.reduce((sum, name) => sum + (counts.get(name) ?? 0), 0);
    const [queue, inferred, server] = each.values;
    const name = queue ?? (inferred ? `${inferred} (inferred)` : "unknown queue");
    const wrong = n(...FAILED_OUTCOMES), back = n("nacked");
    return { href: rowsLink("reads", { ...globalFilters(state), queue: queue ?? inferred ?? state.queue ?? null, server_address: facetText(server) }),
      cells: [untrusted(name), untrusted(server ?? "\u2013"), formatNumber(each.n), formatNumber(n("acked")), h("span", { class: back ? "badge warn" : "" }, formatNumber(back)), h("span", { class: wrong ? "badge bad" : "" }, formatNumber(wrong)), formatNumber(n("empty", "timed_out", "cancelled")), formatNumber(n("unknown", "in_flight")), longest(each.rows, "wait_ms"), longest(each.rows, "hold_ms")] };
  });
  const byReader = countBy(sums, indexes, ["client_address"]);
  const seqs = DATA.sequences.computed ? summaryOf("sequences") : null;
  const readers = bars("By reader", byReader.map((each) => ({ name: each.values[0] ?? "unknown", value: each.n, text: formatNumber(each.n), href: rowsLink("reads", { ...globalFilters(state), client_address: facetText(each.values[0]) }) })));
  const risks = seqs ? countBy(seqs, filterRows("sequences", seqs, state).filter((row) => seqs.at(row, "loss_risk") !== null), ["loss_risk"]) : [];
  const fates = seqs ? countBy(seqs, filterRows("sequences", seqs, state), ["fate"]) : [];
  return [
    h("h1", {}, "Reads"),
    intro("Remote receives and peeks with their outcomes, and the fates of messages. Wait: time from the request of a receive to its response, which includes waiting for a message. Hold: time from the response to the acknowledgement."),
    tiles(outcomes.map((each) => tile(each.values[0] ?? "unknown", formatNumber(each.n), `longest hold ${longest(each.rows, "hold_ms")}`, LEVELS.outcome[each.values[0]] ?? "", rowsLink("reads", { ...globalFilters(state), outcome: facetText(each.values[0]) })))),
    facetChips(state, "attempts"),
    attemptsOverTime(state),
    h("h2", {}, "Message fates and loss risks"),
    seqs ? [
      tiles(risks.map((each) => tile(each.values[0], formatNumber(each.n), "messages at risk", LEVELS.loss_risk[each.values[0]] ?? "bad", rowsLink("reads", { ...globalFilters(state), loss_risk: facetText(each.values[0]) }, "sequences"))),
        fates.map((each) => tile(each.values[0] ?? "unknown", formatNumber(each.n), "messages", LEVELS.fate[each.values[0]] ?? "", rowsLink("reads", { ...globalFilters(state), fate: facetText(each.values[0]) }, "sequences")))),
      rowsTable("sequences", ["queue", "lookup_id", { name: "label", label: "label", kind: "text", value: (row) => messageLabel(DATA.sequences.rows.at(row, "message_key")), show: (row) => { const text = messageLabel(DATA.sequences.rows.at(row, "message_key")); return text === null ? "\u2013" : untrusted(text); } }, traceColumn("sequences"), "fate", "loss_risk", "redelivered", "attempts", "peeks", "outcomes", "readers", "first_attempt_at", "settled_at"], state,
        { rank: (row) => (DATA.sequences.rows.at(row, "loss_risk") === null ? 1 : 0) }),
    ] : notComputed(DATA.sequences),
    h("h2", {}, "By queue"),
    groupsTable(["queue", "server", { label: "all", n: 1 }, { label: "acked", n: 1 }, { label: "given back", n: 1 }, { label: "unsuccessful", n: 1 }, { label: "no message", n: 1 }, { label: "unknown", n: 1 }, { label: "longest wait", n: 1 }, { label: "longest hold", n: 1 }], byQueue),
    readers,
    h("h2", {}, "All receives and peeks"),
    rowsTable("attempts", ["started_at", "queue", "outcome", traceColumn("attempts"), "action_name", "client_address", "server_address", "wait_ms", "hold_ms", "message_bytes", { name: "label", label: "label", kind: "text", value: (row) => messageLabel(data.rows.at(row, "message_key")), show: (row) => { const text = messageLabel(data.rows.at(row, "message_key")); return text === null ? "\u2013" : untrusted(text); } }, "lookup_id", "confidence"], state, { by: "started_at", down: true }),
    h("h2", {}, "Purges and moves"),
    rowsTable("operations", ["requested_at", "operation", "queue", "target_queue", "outcome", "client_address", "server_address", "lookup_id"], state),
    h("h2", {}, "Opened queues, and sharing violations: by whom?"),
    DATA.opens.computed ? rowsTable("opens", ["requested_at", "queue", "outcome", "result_name", "client_address", "principal", "workstation", "access_name", "share_mode_name", "held_by", "blocks", "closed_at", "ended_by", "server_address"], state) : notComputed(DATA.opens),
  ];
}

// --- calls -----------------------------------------------------------------------------------------------------------------

function calls(state) {
  const data = DATA.calls;
  if (!data.computed) return [h("h1", {}, "Calls"), notComputed(data)];
  const sums = summaryOf("calls");
  const indexes = filterRows("calls", sums, state);
  const stats = (list) => {
    const pairs = list.map((row) => [sums.at(row, "response_ms"), rowCount(sums, row)]);
    const failed = list.reduce((sum, row) => sum + (sums.at(row, "failed") ? rowCount(sums, row) : 0), 0);
    const most = list.reduce((max, row) => Math.max(max, sums.at(row, "response_ms_max") ?? sums.at(row, "response_ms") ?? -1), -1);
    return { p50: percentile(pairs, 0.5), p95: percentile(pairs, 0.95), p99: percentile(pairs, 0.99), most: most < 0 ? null : most, failed };
  };
  const cells = (each, name) => { const s = stats(each.rows); return [name, formatNumber(each.n), durationText(s.p50) ?? "\u2013", durationText(s.p95) ?? "\u2013", durationText(s.p99) ?? "\u2013", durationText(s.most) ?? "\u2013", h("span", { class: s.failed ? "badge warn" : "" }, formatNumber(s.failed)), shareText(s.failed, each.n)]; };
  const methods = countBy(sums, indexes, ["interface_name", "method"]);
  const servers = countBy(sums, indexes, ["server_address"]);
  const results = countBy(sums, indexes, ["result"]).filter((each) => !["ok", "MQ_OK"].includes(each.values[0]));
  const numbers = [{ label: "calls", n: 1 }, { label: "p50", n: 1 }, { label: "p95", n: 1 }, { label: "p99", n: 1 }, { label: "longest", n: 1 }, { label: "failed", n: 1 }, { label: "share", n: 1 }];
  const text = (each) => `${each.values[0] ?? "unknown interface"}: ${each.values[1] ?? "unknown method"}`;
  const slowest = methods.map((each) => ({ name: text(each), value: stats(each.rows).p95, text: durationText(stats(each.rows).p95), href: rowsLink("calls", { ...globalFilters(state), interface_name: facetText(each.values[0]), method: facetText(each.values[1]) }) })).filter((each) => each.value !== null).sort((a, b) => b.value - a.value);
  return [
    h("h1", {}, "Calls"),
    intro("RPC calls with response times and results. The response time is from the first byte of the request to the first byte of the response; for receives it includes waiting for a message. MQ_ERROR_IO_TIMEOUT (no message came) does not count as failed. Encrypted and half-captured calls count neither as failed nor as successful."),
    facetChips(state, "calls"),
    overTime("Calls by outcome", sums, indexes, "request_at", "outcome", ["ok", "fault", "no_response", "damaged", "no_request", "unbound", "encrypted"], state, "calls"),
    h("div", { class: "two" },
      bars("Response time, 95th percentile", slowest, { xaxis: { type: "log", title: { text: "ms" } } }),
      bars("Results other than OK", results.map((each) => ({ name: each.values[0] ?? "unknown", value: each.n, text: formatNumber(each.n), level: each.rows.some((row) => sums.at(row, "failed")) ? "bad" : "unknown", href: rowsLink("calls", { ...globalFilters(state), result: facetText(each.values[0]) }) })))),
    h("h2", {}, "By method"),
    groupsTable(["method", ...numbers], methods.map((each) => ({ href: rowsLink("calls", { ...globalFilters(state), interface_name: facetText(each.values[0]), method: facetText(each.values[1]) }), cells: cells(each, untrusted(text(each))) }))),
    h("h2", {}, "By server"),
    groupsTable(["server", ...numbers], servers.map((each) => ({ href: rowsLink("calls", { ...globalFilters(state), server_address: facetText(each.values[0]) }), cells: cells(each, untrusted(each.values[0] ?? "unknown")) }))),
    sums !== data.rows ? h("p", { class: "note" }, "Percentiles of aggregates are accurate to 9 %: response times are counted in classes, four per doubling.") : null,
    h("h2", {}, "Each call"),
    rowsTable("calls", ["request_at", "interface_name", "method", "result", "failed", "response_ms", "client_address", "server_address", "sealed", "request_packet", "response_packet"], state, { by: "request_at", down: true }),
  ];
}

// --- COM+ ------------------------------------------------------------------------------------------------------------------

function comqc(state) {
  const data = DATA.comqc;
  if (!data.computed) return [h("h1", {}, "COM+ calls"), notComputed(data)];
  const sums = summaryOf("comqc");
  const indexes = filterRows("comqc", sums, state);
  const groups = countBy(sums, indexes, ["target_clsid", "interface_id", "opnum", "dispatch_id"]);
  const what = (each) => (each.values[3] === null ? `method ${each.values[2]}` : `dispatch id ${each.values[3]}`);
  const href = (each) => rowsLink("comqc", { ...globalFilters(state), target_clsid: facetText(each.values[0]), interface_id: facetText(each.values[1]), opnum: facetText(each.values[2]), dispatch_id: facetText(each.values[3]) });
  return [
    h("h1", {}, "COM+ calls"),
    intro("Method calls that queued components recorded in messages: one row per sighting of the message."),
    facetChips(state, "comqc"),
    indexes.length ? [
      bars("By interface and method", groups.map((each) => ({ name: `${each.values[1] ?? "unknown interface"} ${what(each)}`, value: each.n, text: formatNumber(each.n), href: href(each) }))),
      groupsTable(["class", "interface", "method", { label: "calls", n: 1 }], groups.map((each) => ({ href: href(each), cells: [untrusted(each.values[0] ?? "\u2013"), untrusted(each.values[1] ?? "\u2013"), what(each), formatNumber(each.n)] }))),
    ] : null,
    h("h2", {}, "Each call"),
    rowsTable("comqc", ["seen_at", "queue", "label", "target_clsid", "interface_id", "opnum", "dispatch_id", "arguments", "marshaled_bytes", "message_id"], state, { by: "seen_at", down: true, empty: data.total ? undefined : "No captured message contains a recorded COM+ call." }),
  ];
}

// --- findings --------------------------------------------------------------------------------------------------------------

function findings(state) {
  const data = DATA.findings;
  if (!data.computed) return [h("h1", {}, "Findings"), notComputed(data)];
  const sums = summaryOf("findings");
  const indexes = filterRows("findings", sums, state);
  const rules = countBy(sums, indexes, ["severity", "rule_id", "source"]);
  const order = { error: 0, warning: 1, info: 2 };
  rules.sort((a, b) => (order[a.values[0]] ?? 3) - (order[b.values[0]] ?? 3) || b.n - a.n);
  const subjects = countBy(sums, indexes, ["subject"]);
  return [
    h("h1", {}, "Findings"),
    intro("Violations of protocol rules, and problems of machines and clocks, each with the calls that prove it (docs/reference/rules.md)."),
    facetChips(state, "findings"),
    overTime("Findings", sums, indexes, "observed_at", "severity", ["error", "warning", "info"], state, "findings"),
    h("h2", {}, "By rule"),
    groupsTable(["rule", "source", "severity", { label: "findings", n: 1 }, { label: "subjects", n: 1 }], rules.map((each) => ({ href: rowsLink("findings", { ...globalFilters(state), rule_id: facetText(each.values[1]) }), cells: [untrusted(ruleText(each.values[1] ?? "")), untrusted(each.values[2] ?? ""), h("span", { class: "badge " + (LEVELS.severity[each.values[0]] ?? "") }, each.values[0] ?? ""), formatNumber(each.n), formatNumber(countBy(sums, each.rows, ["subject"]).length)] }))),
    bars("By subject", subjects.map((each) => ({ name: each.values[0] ?? "unknown", value: each.n, text: formatNumber(each.n), href: rowsLink("findings", { ...globalFilters(state), subject: facetText(each.values[0]) }) }))),
    h("h2", {}, "All findings"),
    rowsTable("findings", [{ name: "severity", rank: (row) => order[data.rows.at(row, "severity")] ?? 3 }, { name: "rule_id", label: "rule", show: (row) => [data.rows.at(row, "rule_id"), h("small", {}, untrusted(TERMS.rules[data.rows.at(row, "rule_id")] ?? ""))] }, "observed_at", "subject", "message", "expected", "actual"], state, { rank: (row) => order[data.rows.at(row, "severity")] ?? 3 }),
  ];
}

// --- quality ---------------------------------------------------------------------------------------------------------------

function quality(state) {
  const data = DATA.quality;
  if (!data.computed) return [h("h1", {}, "Quality"), notComputed(data)];
  const rows = data.rows, indexes = filterRows("quality", rows, state);
  const failed = (list) => list.filter((row) => rows.at(row, "success") === false);
  const wrong = failed(indexes), severities = ["error", "warning", "info"];
  const levelOf = (list) => LEVELS.severity[severities.find((each) => list.some((row) => rows.at(row, "severity") === each))] ?? "";
  const tables = countBy(rows, indexes, ["table"]).sort((a, b) => failed(b.rows).length - failed(a.rows).length || String(a.values[0]).localeCompare(String(b.values[0])));
  const rank = (row) => severities.indexOf(rows.at(row, "severity"));
  const passed = indexes.some((row) => rows.at(row, "evaluated") > 0) ? "ok" : "unknown"; // a check of no row shows nothing
  // Only failed checks show their severity as a badge: a check that passed is not an error.
  const severity = { name: "severity", show: (row) => (rows.at(row, "success") === false ? valueElement("severity", "text", rows.at(row, "severity")) : rows.at(row, "severity") ?? "\u2013") };
  const history = qualityHistory();
  const trend = { name: "runs", kind: "other", title: "results of the last runs that checked it, the newest last", value: (row) => history.get(qualityName(rows, row))?.length ?? 0, show: (row) => trendElement(history.get(qualityName(rows, row)) ?? []) };
  const columns = ["success", severity, "table", "description", "limits", "evaluated", "unexpected", "observed", trend, "run_at"];
  const tileOf = (each) => { const list = wrong.filter((row) => rows.at(row, "severity") === each); return tile(`${each === "info" ? "notes" : each + "s"}`, formatNumber(list.length), "failed checks", list.length ? LEVELS.severity[each] : passed, rowsLink("quality", { ...globalFilters(state), success: "false", severity: each })); };
  return [
    h("h1", {}, "Quality"),
    intro("Checks of the tables themselves, with their last results. A failed check of severity error sets exit code 1 until it is fixed."),
    tiles(severities.map(tileOf), tile("passed", formatNumber(indexes.length - wrong.length), `of ${formatNumber(indexes.length)} checks`, passed, rowsLink("quality", { ...globalFilters(state), success: "true" }))),
    facetChips(state, "quality"),
    wrong.length ? [h("h2", {}, "Failed checks"), rowsTable("quality", columns, state, { id: "quality-wrong", indexes: wrong, rank })] : null,
    failuresByRun(),
    h("h2", {}, "By table"),
    groupsTable(["table", { label: "checks", n: 1 }, { label: "failed", n: 1 }], tables.map((each) => { const list = failed(each.rows); return { href: rowsLink("quality", { ...globalFilters(state), table: facetText(each.values[0]) }), cells: [untrusted(each.values[0] ?? ""), formatNumber(each.n), h("span", { class: list.length ? "badge " + levelOf(list) : "" }, formatNumber(list.length))] }; })),
    h("h2", {}, "All checks"),
    rowsTable("quality", columns, state, { rank: (row) => (rows.at(row, "success") === false ? 0 : 10) + rank(row) }),
  ];
}

/** The results of each check in its last runs, by suite and name, the oldest first, as rows of quality_history. */
function qualityHistory() {
  const rows = DATA.quality_history.rows, found = new Map();
  for (const row of rows?.all() ?? []) {
    const name = qualityName(rows, row);
    if (!found.has(name)) found.set(name, []);
    found.get(name).push(row);
  }
  for (const list of found.values()) list.sort((a, b) => rows.at(a, "run_at") - rows.at(b, "run_at"));
  return found;
}
const qualityName = (rows, row) => `${rows.at(row, "suite")} ${rows.at(row, "expectation")}`;

/** A mark for each result: held, failed, or no row to check. */
function trendElement(list) {
  const rows = DATA.quality_history.rows;
  return h("span", { class: "trend" }, list.map((row) => {
    const held = rows.at(row, "success"), checked = rows.at(row, "evaluated") > 0;
    const level = held ? (checked ? "ok" : "unknown") : LEVELS.severity[rows.at(row, "severity")];
    return h("i", { class: level, title: `${timeText(rows.at(row, "run_at"))}: ${held ? "holds" : "fails"}, ${formatNumber(rows.at(row, "unexpected"))} of ${formatNumber(rows.at(row, "evaluated"))} rows not as expected` });
  }));
}

/** Failed checks by run; null where there is one run only. */
function failuresByRun() {
  const rows = DATA.quality_history.rows;
  const runs = new Map();
  for (const row of rows?.all() ?? []) {
    const time = rows.at(row, "run_at");
    if (!runs.has(time)) runs.set(time, { error: 0, warning: 0, info: 0, all: 0 });
    runs.get(time).all += 1;
    if (rows.at(row, "success") === false) runs.get(time)[rows.at(row, "severity")] += 1;
  }
  if (runs.size < 2) return null;
  const times = [...runs.keys()].sort((a, b) => a - b);
  const names = times.map((time) => timeText(time));
  const traces = ["error", "warning", "info"].map((each, place) => ({
    type: "bar", name: each, x: names, y: times.map((time) => runs.get(time)[each]), hoverinfo: "text", marker: { color: colourOf(each, place) },
    hovertext: times.map((time) => `${each}: ${formatNumber(runs.get(time)[each])} of ${formatNumber(runs.get(time).all)} checks<br>${timeText(time)}`),
  }));
  return chart("Failed checks by run", traces, { barmode: "stack", xaxis: { type: "category" }, yaxis: { rangemode: "tozero" } });
}

// --- coverage --------------------------------------------------------------------------------------------------------------

function coverageTable(list, state) {
  return groupsTable(["layer", "gap", { label: "amount", n: 1 }, { label: "of", n: 1 }, { label: "share", n: 1 }], list.map((each) => ({
    href: each.measure.startsWith("files_") ? rowsLink("coverage", { ...globalFilters(state), status: each.measure.slice(6) }, "captures") : rowsLink("coverage", { ...globalFilters(state), layer: each.layer, measure: each.measure }),
    cells: [each.layer, each.label, h("span", { class: each.part ? "badge warn" : "" }, each.bytes ? bytesText(each.part) : formatNumber(each.part)), each.bytes ? bytesText(each.whole) : formatNumber(each.whole), shareText(each.part, each.whole)] })));
}
/** Open the rows behind a count of an hour: the calls of its server, else the captures of that hour. */
function openHour(_, row) {
  const rows = DATA.coverage.rows, hour = rows.at(row, "hour"), machine = rows.at(row, "server_address");
  const span = hour === null ? {} : { from: timeText(hour), to: timeText(hour + 3599999) };
  const calls = ["rpc", "stub"].includes(rows.at(row, "layer"));
  go(calls ? rowsLink("calls", { machine, ...span }) : rowsLink("coverage", { machine, ...span, layer: rows.at(row, "layer"), measure: rows.at(row, "measure") }));
}
function coverage(state) {
  const data = DATA.coverage;
  const files = DATA.captures.computed ? rowsTable("captures", ["status", "path", "packets", "packets_used", "packets_other", "packets_damaged", "packets_dropped", "size_bytes", "first_packet_at", "last_packet_at", "error"], state) : notComputed(DATA.captures);
  if (!data.computed) return [h("h1", {}, "Coverage"), notComputed(data), h("h2", {}, "Captures"), files];
  const rows = data.rows;
  const sums = summaryOf("coverage");
  const servers = countBy(sums, filterRows("coverage", sums, state).filter((row) => sums.at(row, "layer") === "rpc"), ["server_address"]).map((each) => {
    const sumOf = (measure) => each.rows.reduce((sum, row) => sum + (sums.at(row, "measure") === measure ? sums.at(row, "value") : 0), 0);
    const unknown = sumOf("calls_half_seen") + sumOf("sealed") + sumOf("calls_unbound");
    return { name: each.values[0] ?? "several servers", value: sumOf("calls"), unknown, text: `${formatNumber(unknown)} of ${formatNumber(sumOf("calls"))} unknown`, href: rowsLink("coverage", { ...globalFilters(state), server_address: facetText(each.values[0]) }) };
  }).sort((a, b) => b.unknown - a.unknown);
  return [
    h("h1", {}, "Coverage"),
    intro("All numbers on this page describe what was captured and collected. This section shows what is missing: lost, encrypted, truncated, or without response."),
    facetChips(state, "coverage"),
    coverageTable(coverageGaps(state), state),
    h("h2", {}, "Calls with unknown result, by server"),
    groupsTable(["server", { label: "unknown", n: 1 }, { label: "calls", n: 1 }], servers.map((each) => ({ href: each.href, cells: [untrusted(each.name), h("span", { class: each.unknown ? "badge warn" : "" }, formatNumber(each.unknown)), formatNumber(each.value)] }))),
    h("h2", {}, "Counts by hour"),
    rowsTable("coverage", ["hour", "server_address", "layer", "measure", "value"], state, { by: "hour", down: true, open: openHour }),
    h("h2", {}, "Captures"), files,
  ];
}
