"use strict";
// Data of the page: decodes columns, filters rows, formats values as text. Nothing here touches the DOM.

const SITE = JSON.parse(document.getElementById("site").textContent);

/** Rows of one dataset: `at(row, column)`; times are milliseconds since the epoch. */
class Rows {
  constructor(plain) {
    this.count = plain.count;
    this.kinds = {};
    this.columns = {};
    for (const [name, column] of Object.entries(plain.columns)) {
      this.kinds[name] = column.kind;
      let values = column.values;
      if (column.dictionary) values = column.indices.map((place) => (place < 0 ? null : column.dictionary[place]));
      if (column.kind === "time") values = values.map((value) => (value === null ? null : value / 1000));
      this.columns[name] = values;
    }
  }
  has(name) { return Object.hasOwn(this.columns, name); }
  at(row, name) { return this.has(name) ? this.columns[name][row] : null; }
  row(row) { return Object.fromEntries(Object.keys(this.columns).map((name) => [name, this.columns[name][row]])); }
  all() { return Array.from({ length: this.count }, (_, row) => row); }
}

const DATA = {};
for (const [name, plain] of Object.entries(SITE.data)) {
  DATA[name] = {
    name, computed: plain.computed, note: plain.note, total: plain.total ?? 0, selection: plain.selection ?? "", query: plain.query ?? "",
    rows: plain.computed ? new Rows(plain) : null,
    summary: plain.summary ? new Rows(plain.summary) : null,
    stepS: plain.summary ? plain.summary.step_s : null,
  };
}
/** Names of machines by the identifiers of their queue managers, as far as they were seen together. */
const MANAGER_NAMES = new Map((DATA.queue_manager_names?.rows?.all() ?? []).map((row) => [DATA.queue_manager_names.rows.at(row, "queue_manager_id"), DATA.queue_manager_names.rows.at(row, "host_name")]));
/** What people call the machines of addresses and identifiers, as far as known. */
const SHOWN_MACHINES = new Map(Object.entries(SITE.machine_names));
const AS_OF = SITE.as_of === null ? null : SITE.as_of / 1000;

const FAILED_OUTCOMES = ["expired", "rundown", "failed", "rejected"];
const isTroubled = (rows, row) => SITE.troubled.includes(rows.at(row, "condition"));
/** The state of a queue as of the newest evidence: the last known state while it is valid, else UNKNOWN. */
const stateNow = (row) => (unknownSince(row) === undefined ? DATA.queues.rows.at(row, "state") : "UNKNOWN");
/** Since when the state of a queue is unknown: null if it was never known, undefined if it is known. */
function unknownSince(row) {
  const until = DATA.queues.rows.at(row, "known_until");
  return until !== null && (AS_OF === null || until > AS_OF) ? undefined : until;
}
/** Whether a queue is not connected although nobody put it on hold. */
const notConnected = (row) => SITE.not_connected.includes(stateNow(row));

/** Whether a message never reached its queue, as far as was captured. One row of each message says it. */
const isLost = (rows, row) => rows.at(row, "not_delivered") === "never_arrived";
/** Whether a message reached its queue, and was not read there. One row of each message says it. */
const isUnread = (rows, row) => rows.at(row, "not_delivered") === "not_read";
/** Whether numbers of a sequence wait and the captured traffic shows that it does not go on. */
const isStuck = (rows, row) => SITE.stuck.includes(rows.at(row, "condition"));
const isFailedSession = (rows, row) => SITE.failed_sessions.includes(rows.at(row, "session_outcome")) || SITE.failed_connections.includes(rows.at(row, "not_established"));
/** Facets of transfers for sessions, which have the same machines at either end. */
const SESSION_ENDS = Object.fromEntries(["sender", "receiver"].flatMap((end) => [
  [`${end}_queue_manager`, (rows, row, wanted) => ["initiator_queue_manager", "acceptor_queue_manager"].some((each) => facetText(rows.at(row, each)) === wanted)],
  [`${end}_address`, (rows, row, wanted) => ["client_address", "server_address"].some((each) => facetText(rows.at(row, each)) === wanted)],
]));

/** By dataset: columns that the filters apply to, key column and title of a row, and facets that are no columns. */
const FILTER_COLUMNS = {
  queues: { queue: ["queue", "queue_format_name"], machine: ["queue_manager"], key: "interval_key", title: "Queue", facets: { _state: (rows, row, wanted) => (wanted === "down" ? notConnected(row) : stateNow(row) === wanted) } },
  intervals: { queue: ["queue", "queue_format_name"], machine: ["queue_manager"], from: "valid_from", to: "valid_to", key: "interval_key", title: "Interval of a queue's history" },
  machines: { machine: ["queue_manager"], key: "interval_key", title: "Queue manager" },
  actions: { queue: ["queue", "queue_format_name"], machine: ["queue_manager", "client_address"], from: "requested_at", key: "call_key", title: "Management action" },
  transfers: { queue: ["queue", "queue_format_name"], machine: ["queue_manager"], key: "snapshot_id", title: "Transfer", facets: { _condition: isTroubled } },
  transfer_points: { queue: ["queue", "queue_format_name"], machine: ["queue_manager"], from: "observed_at", key: "snapshot_id", title: "Observation of a transfer", facets: { _condition: isTroubled } },
  message_transfers: { queue: ["queue", "destination_queue"], machine: ["sender_address", "receiver_address", "sender_queue_manager", "receiver_queue_manager"], names: ["sender_queue_manager", "receiver_queue_manager"], from: "first_sent_at", key: "transfer_key", title: "Transfer of a message", facets: { _lost: isLost, _unread: isUnread, _resent: (rows, row) => rows.at(row, "sendings") > rowCount(rows, row) } },
  transfer_latencies: { queue: ["queue", "destination_queue"], machine: ["sender_address", "receiver_address", "sender_queue_manager", "receiver_queue_manager"], names: ["sender_queue_manager", "receiver_queue_manager"], from: "first_sent_at" },
  transfer_sequences: { queue: ["queue", "destination_queue"], machine: ["sender_address", "receiver_address", "sender_queue_manager", "receiver_queue_manager"], names: ["sender_queue_manager", "receiver_queue_manager"], from: "first_sent_at", to: "last_sent_at", key: "sequence_key", title: "Sequence of transactional messages", facets: { _stuck: isStuck, _waiting: (rows, row) => rows.at(row, "waiting") > 0 } },
  sequence_points: { from: "observed_at", key: "packet_key", title: "Number of a sequence" },
  sessions: { machine: ["client_address", "server_address", "initiator_queue_manager", "acceptor_queue_manager"], names: ["initiator_queue_manager", "acceptor_queue_manager"], from: "first_packet_at", to: "last_packet_at", key: "connection_id", title: "Session", facets: { _failed: isFailedSession, ...SESSION_ENDS } },
  sources: { queue: ["queue", "sender_queue"], machine: ["queue_manager", "sender_queue_manager"], key: "source_key", title: "Sender of an incoming queue", facets: { _rejected: (rows, row) => rows.at(row, "disagrees_with_sender") !== null || rows.at(row, "reject_count") > 0 } },
  attempts: { queue: ["queue", "inferred_queue"], machine: ["server_address", "client_address"], from: "started_at", key: "attempt_key", title: "Receive or peek", facets: { _wrong: (rows, row) => FAILED_OUTCOMES.includes(rows.at(row, "outcome")) } },
  sequences: { queue: ["queue", "inferred_queue"], machine: ["server_address", "readers"], from: "first_attempt_at", key: "sequence_key", title: "Received message", facets: { _risk: (rows, row) => rows.at(row, "loss_risk") !== null } },
  operations: { queue: ["queue", "target_queue"], machine: ["server_address", "client_address"], from: "requested_at", key: "call_key", title: "Purge or move" },
  opens: { queue: ["queue"], machine: ["server_address", "client_address"], from: "requested_at", key: "call_key", title: "Open of a queue" },
  calls: { machine: ["server_address", "client_address"], from: "request_at", key: "call_key", title: "Call" },
  evidence_calls: { machine: ["server_address", "client_address"], from: "request_at", key: "call_key", title: "Call" },
  comqc: { queue: ["queue", "inferred_queue"], machine: ["source_queue_manager"], from: "seen_at", key: "sighting_key", title: "COM+ call" },
  findings: { machine: ["server_address", "subject"], from: "observed_at", key: "finding_key", title: "Finding" },
  alerts: { queue: ["queue", "subject"], machine: ["queue_manager", "subject"], from: "since", to: "until", open: true, key: "alert_key", title: "Alert", facets: { _open: (rows, row) => rows.at(row, "until") === null } },
  quality: { key: "result_key", title: "Quality check" },
  quality_history: { key: "result_key", title: "Result of a quality check" },
  coverage: { machine: ["server_address"], from: "hour" },
  captures: { from: "first_packet_at", to: "last_packet_at", key: "capture_id", title: "Capture", facets: { _unread: (rows, row) => rows.at(row, "status") !== "complete" } },
};

/** Parts of the address that are no facets. `show` is the dataset whose rows come into view. */
const FILTERS = ["queue", "machine", "conversation", "from", "to"];
const RESERVED = new Set([...FILTERS, "row", "show"]);
/** The section and the dataset whose rows a number leads to, unless it says otherwise. */
const ROWS_OF = { alerts: "alerts", queues: "queues", transfers: "message_transfers", eod: "transfers", reads: "attempts", calls: "calls", comqc: "comqc", findings: "findings", quality: "quality", coverage: "coverage" };

function contains(value, part) {
  if (Array.isArray(value)) return value.some((each) => contains(each, part));
  return typeof value === "string" && value.toLowerCase().includes(part);
}

/** What is known of a message by its key, by column of the dataset of labels; null if it is unknown. */
function ofMessage(key, column) {
  const place = key === null ? undefined : LABEL_INDEX.get(key);
  return place === undefined ? null : DATA.labels.rows.at(place, column);
}
/** The columns that the filter by conversation looks for a part of an id in. */
const CONVERSATION_COLUMNS = ["conversation_id", "application_message_id"];

/** Rows of a dataset, or of its aggregates, that pass the filters and facets of `state`. */
function filterRows(name, rows, state, facets = true) {
  const places = FILTER_COLUMNS[name];
  const tests = [];
  for (const filter of ["queue", "machine"]) {
    const names = (places[filter] ?? []).filter((each) => rows.has(each));
    const part = (state[filter] ?? "").toLowerCase();
    const guids = filter === "machine" ? (places.names ?? []) : []; // a machine can be searched by its name too
    if (part && names.length) tests.push((row) => names.some((each) => contains(rows.at(row, each), part)) || guids.some((each) => contains(MANAGER_NAMES.get(rows.at(row, each)), part)) || (filter === "machine" && names.some((each) => contains(SHOWN_MACHINES.get(rows.at(row, each)), part))));
  }
  const conversation = (state.conversation ?? "").toLowerCase();
  if (conversation && rows.has("message_key")) tests.push((row) => CONVERSATION_COLUMNS.some((each) => contains(ofMessage(rows.at(row, "message_key"), each), conversation)));
  const from = parseTime(state.from), to = parseTime(state.to);
  const begins = places.from && rows.has(places.from) ? rows.columns[places.from] : null;
  const ends = places.to && rows.has(places.to) ? rows.columns[places.to] : begins;
  if (begins && from !== null) tests.push((row) => (ends[row] === null ? places.open === true : ends[row] >= from));
  if (begins && to !== null) tests.push((row) => begins[row] !== null && begins[row] <= to);
  if (facets) {
    for (const [column, wanted] of Object.entries(state)) {
      if (RESERVED.has(column) || wanted === null) continue;
      const facet = places.facets?.[column];
      if (facet) tests.push((row) => facet(rows, row, wanted));
      else if (rows.has(column)) tests.push((row) => facetText(rows.at(row, column)) === wanted);
    }
  }
  return rows.all().filter((row) => tests.every((test) => test(row)));
}

/** The filters and facets of `state` that a dataset, or its aggregates, cannot apply: "queue", "time", ... */
function ignoredFilters(name, rows, state, facets = true) {
  const places = FILTER_COLUMNS[name];
  const ignored = ["queue", "machine"].filter((filter) => state[filter] && !(places[filter] ?? []).some((each) => rows.has(each) || !rows.count));
  if (state.conversation && rows.count && !rows.has("message_key")) ignored.push("conversation");
  if ((parseTime(state.from) ?? parseTime(state.to)) !== null && !(places.from && rows.has(places.from))) ignored.push("time");
  if (facets) {
    for (const [column, wanted] of Object.entries(state)) if (wanted !== null && !RESERVED.has(column) && !places.facets?.[column] && !rows.has(column)) ignored.push(facetLabel(column));
  }
  return ignored;
}
const facetLabel = (column) => column.replaceAll("_", " ").trim();
const notBy = (ignored) => (ignored.length ? `not by ${ignored.join(", ")}` : "");

const facetText = (value) => (value === null || value === undefined ? "" : String(value));

/** Aggregates over all rows of a dataset if it is truncated, else its rows, each of which counts as one. */
function summaryOf(name) {
  const data = DATA[name];
  return data.summary ?? data.rows;
}
const rowCount = (rows, row) => rows.at(row, "n") ?? 1;

/** Counts by the values of columns: list of {values, n, rows}, the largest first. */
function countBy(rows, indexes, names) {
  const groups = new Map();
  for (const row of indexes) {
    const values = names.map((name) => rows.at(row, name));
    const key = JSON.stringify(values);
    const group = groups.get(key) ?? { values, n: 0, rows: [] };
    group.n += rowCount(rows, row);
    group.rows.push(row);
    groups.set(key, group);
  }
  return [...groups.values()].sort((a, b) => b.n - a.n);
}

/** The value below which a share of the weighted values lies; null without values. Pairs are [value, weight]. */
function percentile(pairs, share) {
  const sorted = pairs.filter(([value]) => value !== null).sort((a, b) => a[0] - b[0]);
  const total = sorted.reduce((sum, [, n]) => sum + n, 0);
  if (!total) return null;
  let before = 0;
  for (const [value, n] of sorted) {
    before += n;
    if (before >= share * total) return value;
  }
  return sorted[sorted.length - 1][0];
}

// --- values as text -------------------------------------------------------------------------------------------------

const HIDDEN_CHARS = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u115f\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]|[\u{e0000}-\u{e007f}]/gu;
/** A text with invisible and bidirectional characters escaped as \u{...}. */
const escapeHidden = (text) => String(text).replace(HIDDEN_CHARS, (char) => `\\u{${char.codePointAt(0).toString(16)}}`);

const pad = (number, width = 2) => String(number).padStart(width, "0");
function timeText(ms) {
  if (ms === null || ms === undefined) return null;
  const date = new Date(ms);
  if (Number.isNaN(date.getTime())) return "out of range";
  const day = `${date.getUTCFullYear()}-${pad(date.getUTCMonth() + 1)}-${pad(date.getUTCDate())}`;
  const part = date.getUTCMilliseconds();
  return `${day} ${pad(date.getUTCHours())}:${pad(date.getUTCMinutes())}:${pad(date.getUTCSeconds())}${part ? "." + pad(part, 3) : ""}`;
}
function parseTime(text) {
  if (!text) return null;
  const trimmed = String(text).trim().replace(" ", "T").replace(/Z$/, "");
  const ms = Date.parse(trimmed.length <= 10 ? trimmed + "T00:00:00Z" : trimmed + "Z");
  return Number.isNaN(ms) ? null : ms;
}
const formatNumber = (number) => (typeof number === "number" ? number.toLocaleString("en").replaceAll(",", "\u202f") : String(number));
function durationText(ms) {
  if (ms === null || ms === undefined) return null;
  if (ms === 0) return "0";
  const sign = ms < 0 ? "-" : "", size = Math.abs(ms);
  if (size < 10) return `${sign}${size.toFixed(2)} ms`;
  if (size < 1000) return `${sign}${Math.round(size)} ms`;
  const s = size / 1000, whole = Math.round(s), minutes = Math.round(s / 60); // rounded first, so that no text says "1 min 60 s"
  if (s < 59.95) return `${sign}${s.toFixed(1)} s`;
  if (whole < 3600) return `${sign}${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (minutes < 2880) return `${sign}${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${sign}${(s / 86400).toFixed(1)} d`;
}
function bytesText(value) {
  if (value === null || value === undefined) return null;
  let size = Number(value), unit = 0;
  while (size >= 1024 && unit < 4) { size /= 1024; unit += 1; }
  return unit ? `${size.toFixed(1)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}` : `${formatNumber(size)} B`;
}
const shareText = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(part && part / whole < 0.01 ? 2 : 1)} %` : "\u2013");
/** Time before the newest evidence, as text. */
const ageText = (ms) => (ms === null || AS_OF === null ? null : AS_OF - ms < 1000 ? "0 s" : durationText(AS_OF - ms));

/** Texts in order, runs of equal texts joined: "acked \u00d72, nacked". */
function runLengthText(values) {
  const runs = [];
  for (const value of values) {
    if (runs.length && runs[runs.length - 1][0] === value) runs[runs.length - 1][1] += 1;
    else runs.push([value, 1]);
  }
  return runs.map(([value, times]) => (times > 1 ? `${value} \u00d7${times}` : value)).join(", ");
}

/** A value as text, by the name and kind of its column; null stays null. */
function valueText(name, kind, value) {
  if (value === null || value === undefined) return null;
  if (kind === "time") return timeText(value);
  if (kind === "flag") return value ? "yes" : "no";
  if (/hresult$|fault_status$/.test(name) && typeof value === "number") return codeText(value);
  if (name.endsWith("_ms")) return durationText(value);
  if (name.endsWith("_s") && typeof value === "number") return name.endsWith("per_s") ? String(Number(value.toPrecision(3))) : durationText(value * 1000);
  if (/(^|_)bytes($|_)/.test(name)) return bytesText(value);
  if (kind === "number" && !/(_id|port|number|opnum|packet|step|index)$/.test(name)) return formatNumber(typeof value === "number" ? Number(value.toPrecision(12)) : value);
  if (kind === "other") return Array.isArray(value) && value.every((each) => typeof each !== "object") ? runLengthText(value) : JSON.stringify(value);
  return String(value);
}
