"use strict";
// Problem counts of the overview: one number per problem, with its level and a link to its rows.

function sumWhere(name, state, test) {
  const rows = summaryOf(name);
  let sum = 0;
  for (const row of filterRows(name, rows, state, false)) if (test(rows, row)) sum += rowCount(rows, row);
  return sum;
}
const anyRow = () => true;
const hasValue = (column, values) => (rows, row) => values.includes(rows.at(row, column));

/** Whether the result of a call is known: it was not encrypted, and its request and interface were seen. */
const isResultKnown = (rows, row) => !["encrypted", "unbound", "no_request"].includes(rows.at(row, "outcome"));
const isRead = (rows, row) => !["unreadable", "empty"].includes(rows.at(row, "status"));
const holdsMsmq = (rows, row) => isRead(rows, row) && (!rows.has("packets_used") || rows.at(row, "packets_used") + rows.at(row, "packets_binary_protocol") > 0);

/**
 * The checks as {section, label, number, rests, level, detail, href}. `rests` is the number of rows that a check looked
 * at: a figure that rests on nothing is unknown, not 0. `number` is null then, and if the dataset was not computed.
 * A check that looks at all kinds of evidence is no good sign where some were not seen: its level is none then.
 */
function checks(state) {
  const filters = globalFilters(state);
  const made = [];
  const isError = (rows, row) => rows.at(row, "severity") === "error";
  const add = (section, label, name, { problem, of = anyRow, rests, lacks = [], level, detail, params }) => {
    if (!DATA[name].computed) {
      made.push({ section, label, number: null, rests: 0, level: "unknown", value: "not computed", detail: DATA[name].note.replace("not computed: ", ""), href: link(section, filters) });
      return;
    }
    const whole = sumWhere(name, state, of), number = sumWhere(name, state, problem);
    const base = rests ? rests() : whole, known = base > 0 || number > 0;
    const worst = typeof level === "function" ? level : () => level;
    const ignored = notBy(ignoredFilters(name, summaryOf(name), filters, false));
    made.push({
      section, label, number: known ? number : null, rests: base, level: !known ? "unknown" : number ? worst() : lacks.length ? "" : "ok", value: known ? formatNumber(number) : "\u2013",
      detail: [known ? detail(number, whole) : "nothing was observed", known && lacks.length ? `nothing was seen of ${lacks.join(", ")}` : null, ignored].filter((each) => each).join("; "), href: rowsLink(section, { ...filters, ...params }, name),
    });
  };
  const observed = () => observedRows(state), lacks = unseenEvidence(state);
  const facet = (name, column, wanted = "yes") => (rows, row) => FILTER_COLUMNS[name].facets[column](rows, row, wanted);
  const open = facet("alerts", "_open"), openError = (rows, row) => open(rows, row) && isError(rows, row);
  add("alerts", "active alerts", "alerts", { problem: open, rests: observed, lacks, params: { _open: "yes" }, level: () => (sumWhere("alerts", state, openError) ? "bad" : "warn"), detail: () => `${formatNumber(sumWhere("alerts", state, openError))} with severity error` });
  const waiting = () => sumWhere("queues", state, (rows, row) => notConnected(row) && rows.at(row, "message_count") > 0);
  add("queues", "queues not connected", "queues", { problem: facet("queues", "_state", "down"), rests: () => sumWhere("queues", state, (_, row) => stateNow(row) !== "UNKNOWN"), params: { _state: "down" }, level: () => (waiting() ? "bad" : "warn"), detail: (number, whole) => `${number ? `${formatNumber(waiting())} with messages, ` : ""}of ${countText(whole, "queue")}` });
  add("queues", "queues in unknown state", "queues", { problem: facet("queues", "_state", "UNKNOWN"), params: { _state: "UNKNOWN" }, level: "warn", detail: (_, whole) => `no valid report, of ${countText(whole, "queue")}` });
  const bad = (name, test) => () => (sumWhere(name, state, test) ? "bad" : "warn");
  add("transfers", "messages not delivered", "message_transfers", { problem: isLost, params: { _lost: "yes" }, level: bad("message_transfers", (rows, row) => isLost(rows, row) && rows.at(row, "outcome") !== "expired"), detail: (_, whole) => `never reached their queue: rejected, refused for ever, expired or never acknowledged; of ${formatNumber(whole)} rows of messages and hops on TCP 1801` });
  add("transfers", "messages delivered, not read", "message_transfers", { problem: isUnread, params: { _unread: "yes" }, level: "warn", detail: () => "reached their queue; expired or were removed there before an application received them" });
  add("transfers", "sequences stuck", "transfer_sequences", { problem: isStuck, params: { _stuck: "yes" }, level: "bad", detail: (_, whole) => `stalled or refused by the receiver; of ${countText(whole, "sequence")}` });
  add("transfers", "sessions refused", "sessions", { problem: isFailedSession, params: { _failed: "yes" }, level: "bad", rests: () => sumWhere("sessions", state, (rows, row) => rows.at(row, "not_established") !== "too_early"), detail: (_, whole) => `refused, not answered or not established; of ${countText(whole, "session")}` });
  add("eod", "transfers with problems", "transfers", { problem: isTroubled, params: { _condition: "trouble" }, level: "bad", detail: (_, whole) => `${formatNumber(sumWhere("transfers", state, hasValue("condition", ["stalled"])))} stalled, of ${formatNumber(whole)}` });
  add("eod", "rejected senders", "sources", { problem: facet("sources", "_rejected"), params: { _rejected: "yes" }, level: "bad", detail: (_, whole) => `messages rejected, or sender and receiver disagree; of ${countText(whole, "sender")}` });
  add("reads", "messages at risk", "sequences", { problem: facet("sequences", "_risk"), params: { _risk: "yes" }, level: "bad", detail: (_, whole) => `of ${formatNumber(whole)} received messages` });
  add("reads", "unsuccessful receives", "attempts", { problem: facet("attempts", "_wrong"), params: { _wrong: "yes" }, level: "warn", detail: (_, whole) => `of ${formatNumber(whole)}: failed, expired, rundown, rejected` });
  add("calls", "failed calls", "calls", { problem: hasValue("failed", [true]), rests: () => sumWhere("calls", state, isResultKnown), params: { failed: "true" }, level: "warn", detail: (number, whole) => `${shareText(number, whole)} of ${formatNumber(whole)}` });
  add("findings", "rule violations (error)", "findings", { problem: isError, rests: observed, lacks, params: { severity: "error" }, level: "warn", detail: (_, whole) => `${countText(whole, "finding")} in total` });
  const failed = hasValue("success", [false]);
  add("quality", "failed quality checks", "quality", { problem: failed, rests: () => (observedRows({}) ? sumWhere("quality", state, (rows, row) => rows.at(row, "evaluated") > 0) : 0), params: { success: "false" }, level: () => (sumWhere("quality", state, (rows, row) => failed(rows, row) && isError(rows, row)) ? "bad" : "warn"), detail: (_, whole) => `of ${formatNumber(whole)}` });
  const unread = () => sumWhere("captures", state, hasValue("status", ["unreadable"]));
  add("coverage", "captures not read whole", "captures", { problem: facet("captures", "_unread"), params: { _unread: "yes" }, rests: () => sumWhere("captures", state, holdsMsmq), level: () => (unread() ? "bad" : "warn"), detail: (_, whole) => `${formatNumber(unread())} unreadable, of ${formatNumber(DATA.captures.rows.count < DATA.captures.total ? DATA.captures.total : whole)}` });
  return made;
}
const queueRows = (state) => filterRows("queues", DATA.queues.rows, state, false);

/** What figures rest on, by dataset: its name, and which rows show something. */
const EVIDENCE = {
  calls: ["RPC calls", isResultKnown],
  queues: ["reports of queues", (rows, row) => rows.at(row, "reported_at") !== null],
  message_transfers: ["messages on TCP 1801", anyRow],
};
const evidenceRows = (name, state) => (DATA[name].computed ? sumWhere(name, state, EVIDENCE[name][1]) : 0);

/** The number of calls whose result is known, of queues with a report, and of messages on TCP 1801. */
const observedRows = (state) => Object.keys(EVIDENCE).reduce((sum, name) => sum + evidenceRows(name, state), 0);

/** The names of the kinds of evidence of which nothing was seen. */
const unseenEvidence = (state) => Object.keys(EVIDENCE).filter((name) => !evidenceRows(name, state)).map((name) => EVIDENCE[name][0]);

/** Coverage gaps as {layer, label, measure, part, whole, bytes}, summed over hours and servers. */
function coverageGaps(state) {
  const rows = summaryOf("coverage");
  const sums = new Map();
  for (const row of filterRows("coverage", rows, state, false)) {
    const key = rows.at(row, "layer") + ":" + rows.at(row, "measure");
    sums.set(key, (sums.get(key) ?? 0) + rows.at(row, "value"));
  }
  const sumOf = (layer, measure) => sums.get(layer + ":" + measure) ?? 0;
  return SITE.coverage_gaps.map(({ layer, measure, meaning, total_measures: totals }) => (
    { layer, label: meaning, measure, part: sumOf(layer, measure), whole: totals.reduce((sum, each) => sum + sumOf(layer, each), 0), bytes: totals[0] === "bytes" }));
}
