"use strict";
// Problem counts of the overview: one number per problem, with its level and a link to its rows.

const BAD_CONDITIONS = ["stalled", "reset", "resending"];
const FAILED_OUTCOMES = ["expired", "rundown", "failed", "rejected"];

/** The state of a queue as of the newest evidence: the last reported state while it is valid, else UNKNOWN. */
const stateNow = (row) => (DATA.queues.rows.at(row, "valid_to") !== null && AS_OF !== null && DATA.queues.rows.at(row, "valid_to") <= AS_OF ? "UNKNOWN" : DATA.queues.rows.at(row, "state") ?? "UNKNOWN");

function sumWhere(name, state, test) {
  const rows = summaryOf(name);
  let sum = 0;
  for (const row of filterRows(name, rows, state, false)) if (test(rows, row)) sum += rowCount(rows, row);
  return sum;
}
const anyRow = () => true;
const hasValue = (column, values) => (rows, row) => values.includes(rows.at(row, column));

/** The checks as {section, label, number, level, detail, href}; `number` is null if the dataset was not computed. */
function checks(state) {
  const filters = globalFilters(state);
  const made = [];
  const add = (section, text, name, count, level, detail, params) => {
    const known = DATA[name].computed;
    const number = known ? count() : null;
    made.push({ section, label: text, number, level: number === null ? "unknown" : number ? level : "ok", detail: known ? detail(number) : DATA[name].note.replace("not computed: ", ""), href: link(section, { ...filters, ...params }) });
  };
  add("alerts", "active alerts", "alerts", () => sumWhere("alerts", state, (rows, row) => rows.at(row, "until") === null),
    DATA.alerts.computed && sumWhere("alerts", state, (rows, row) => rows.at(row, "until") === null && rows.at(row, "severity") === "error") ? "bad" : "warn",
    () => `${formatNumber(sumWhere("alerts", state, (rows, row) => rows.at(row, "until") === null && rows.at(row, "severity") === "error"))} with severity error`, { _open: "yes" });
  const down = DATA.queues.computed ? queueRows(state).filter(notConnected) : [];
  const waiting = down.filter((row) => DATA.queues.rows.at(row, "message_count") > 0).length;
  add("queues", "queues not connected", "queues", () => down.length, waiting ? "bad" : "warn",
    () => `${down.length ? `${formatNumber(waiting)} with messages, ` : ""}of ${formatNumber(queueRows(state).length)} queues`, { _state: "down" });
  add("queues", "queues in unknown state", "queues", () => queueRows(state).filter((row) => stateNow(row) === "UNKNOWN").length, "warn",
    () => "no valid report", { _state: "UNKNOWN" });
  add("transfers", "transfers with problems", "transfers", () => sumWhere("transfers", state, hasValue("condition", BAD_CONDITIONS)), "bad",
    () => `${formatNumber(sumWhere("transfers", state, hasValue("condition", ["stalled"])))} stalled, of ${formatNumber(sumWhere("transfers", state, anyRow))}`, { _condition: "trouble" });
  add("transfers", "rejected senders", "sources", () => sumWhere("sources", state, (rows, row) => rows.at(row, "disagrees_with_sender") !== null || rows.at(row, "reject_count") > 0), "bad",
    () => "messages rejected, or sender and receiver disagree", {});
  add("reads", "messages at risk", "sequences", () => sumWhere("sequences", state, (rows, row) => rows.at(row, "loss_risk") !== null), "bad",
    () => `of ${formatNumber(sumWhere("sequences", state, anyRow))} received messages`, { _risk: "yes" });
  add("reads", "unsuccessful receives", "attempts", () => sumWhere("attempts", state, hasValue("outcome", FAILED_OUTCOMES)), "warn",
    () => `of ${formatNumber(sumWhere("attempts", state, anyRow))}: failed, expired, rundown, rejected`, { _wrong: "yes" });
  add("calls", "failed calls", "calls", () => sumWhere("calls", state, (rows, row) => rows.at(row, "failed") === true), "warn",
    (number) => `${shareText(number, sumWhere("calls", state, anyRow))} of ${formatNumber(sumWhere("calls", state, anyRow))}`, { failed: "true" });
  add("findings", "rule violations (error)", "findings", () => sumWhere("findings", state, hasValue("severity", ["error"])), "warn",
    () => `${formatNumber(sumWhere("findings", state, anyRow))} findings in total`, { severity: "error" });
  add("quality", "failed quality checks", "quality", () => sumWhere("quality", state, hasValue("success", [false])),
    DATA.quality.computed && sumWhere("quality", state, (rows, row) => rows.at(row, "success") === false && rows.at(row, "severity") === "error") ? "bad" : "warn",
    () => `of ${formatNumber(sumWhere("quality", state, anyRow))}`, { success: "false" });
  return made;
}
/** Whether a queue is not connected although nobody put it on hold. */
const notConnected = (row) => SITE.not_connected.includes(stateNow(row));
const queueRows = (state) => filterRows("queues", DATA.queues.rows, state, false);

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
