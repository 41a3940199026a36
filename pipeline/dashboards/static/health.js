"use strict";
// What needs attention: one number for each thing that goes wrong, how bad it is, and where its rows are.

const TRANSFERS_DOWN = ["stalled", "reset", "resending"];
const LOST_OUTCOMES = ["expired", "rundown", "failed", "rejected"];

/** The state of a queue at the time of the newest evidence: what was last told, as long as that holds. */
const stateNow = (row) => (DATA.queues.rows.at(row, "valid_to") !== null && AS_OF !== null && DATA.queues.rows.at(row, "valid_to") <= AS_OF ? "UNKNOWN" : DATA.queues.rows.at(row, "state") ?? "UNKNOWN");

function sumWhere(name, state, test) {
  const rows = sumsOf(name);
  let sum = 0;
  for (const row of found(name, rows, state, false)) if (test(rows, row)) sum += weight(rows, row);
  return sum;
}
const all = () => true;
const isOne = (column, values) => (rows, row) => values.includes(rows.at(row, column));

/** Each check: section, label, number, of how many, level, detail and link. `null` numbers were not computed. */
function checks(state) {
  const some = kept(state);
  const made = [];
  const add = (section, text, name, count, level, detail, params) => {
    const known = DATA[name].computed;
    const number = known ? count() : null;
    made.push({ section, label: text, number, level: number === null ? "unknown" : number ? level : "ok", detail: known ? detail(number) : DATA[name].note.replace("not computed: ", ""), href: link(section, { ...some, ...params }) });
  };
  add("alerts", "alerts that hold", "alerts", () => sumWhere("alerts", state, (rows, row) => rows.at(row, "until") === null),
    DATA.alerts.computed && sumWhere("alerts", state, (rows, row) => rows.at(row, "until") === null && rows.at(row, "severity") === "error") ? "bad" : "warn",
    () => `${group(sumWhere("alerts", state, (rows, row) => rows.at(row, "until") === null && rows.at(row, "severity") === "error"))} of them errors`, { _open: "yes" });
  const cut = DATA.queues.computed ? queueRows(state).filter(notConnected) : [];
  const waiting = cut.filter((row) => DATA.queues.rows.at(row, "message_count") > 0).length;
  add("queues", "queues not connected", "queues", () => cut.length, waiting ? "bad" : "warn",
    () => `${cut.length ? `${group(waiting)} with messages, ` : ""}of ${group(queueRows(state).length)} queues`, { _state: "down" });
  add("queues", "queues of unknown state", "queues", () => queueRows(state).filter((row) => stateNow(row) === "UNKNOWN").length, "warn",
    () => "nothing tells it now", { _state: "UNKNOWN" });
  add("transfers", "transfers in trouble", "transfers", () => sumWhere("transfers", state, isOne("condition", TRANSFERS_DOWN)), "bad",
    () => `${group(sumWhere("transfers", state, isOne("condition", ["stalled"])))} stalled, of ${group(sumWhere("transfers", state, all))}`, { _condition: "trouble" });
  add("transfers", "senders turned away", "sources", () => sumWhere("sources", state, (rows, row) => rows.at(row, "disagrees_with_sender") !== null || rows.at(row, "reject_count") > 0), "bad",
    () => "rejects, or both ends disagree", {});
  add("reads", "messages at risk", "sequences", () => sumWhere("sequences", state, (rows, row) => rows.at(row, "loss_risk") !== null), "bad",
    () => `of ${group(sumWhere("sequences", state, all))} that were read`, { _risk: "yes" });
  add("reads", "receives that went wrong", "attempts", () => sumWhere("attempts", state, isOne("outcome", LOST_OUTCOMES)), "warn",
    () => `of ${group(sumWhere("attempts", state, all))}: failed, expired, run down, rejected`, { _wrong: "yes" });
  add("calls", "calls that failed", "calls", () => sumWhere("calls", state, (rows, row) => rows.at(row, "failed") === true), "warn",
    (number) => `${shareText(number, sumWhere("calls", state, all))} of ${group(sumWhere("calls", state, all))}`, { failed: "true" });
  add("findings", "rules broken (error)", "findings", () => sumWhere("findings", state, isOne("severity", ["error"])), "warn",
    () => `${group(sumWhere("findings", state, all))} findings in all`, { severity: "error" });
  add("quality", "quality checks failed", "quality", () => sumWhere("quality", state, isOne("success", [false])),
    DATA.quality.computed && sumWhere("quality", state, (rows, row) => rows.at(row, "success") === false && rows.at(row, "severity") === "error") ? "bad" : "warn",
    () => `of ${group(sumWhere("quality", state, all))}`, { success: "false" });
  return made;
}
/** Whether a queue has no connection and nobody told it to have none. */
const notConnected = (row) => SITE.not_connected.includes(stateNow(row));
const queueRows = (state) => found("queues", DATA.queues.rows, state, false);

/** What was not seen: {layer, label, measure, part, whole, bytes}; coverage is a sum over hours and servers. */
function unseen(state) {
  const rows = sumsOf("coverage");
  const sums = new Map();
  for (const row of found("coverage", rows, state, false)) {
    const key = rows.at(row, "layer") + ":" + rows.at(row, "measure");
    sums.set(key, (sums.get(key) ?? 0) + rows.at(row, "value"));
  }
  const of = (layer, measure) => sums.get(layer + ":" + measure) ?? 0;
  return SITE.not_seen.map(({ layer, measure, meaning, of: all_ }) => (
    { layer, label: meaning, measure, part: of(layer, measure), whole: all_.reduce((sum, each) => sum + of(layer, each), 0), bytes: all_[0] === "bytes" }));
}
