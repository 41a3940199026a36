"use strict";
// What needs attention: one number for each thing that goes wrong, how bad it is, and where its rows are.

const STATES_DOWN = ["DISCONNECTED", "LOCKED"];
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
  add("queues", "queues not connected", "queues", () => queueRows(state).filter((row) => STATES_DOWN.includes(stateNow(row))).length, "bad",
    () => `of ${group(queueRows(state).length)} queues`, { _state: "down" });
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
const queueRows = (state) => found("queues", DATA.queues.rows, state, false);

/** What was not seen, by layer: {layer, label, part, whole, unit}; coverage is a sum over hours and servers. */
const UNSEEN_MEASURES = [
  ["capture", "packets lost by the capturing machine", "packets_dropped", "packets"],
  ["capture", "packets with damaged headers", "packets_damaged", "packets"],
  ["transport", "bytes that no capture holds", "bytes_missing", "bytes"],
  ["transport", "bytes in quarantine", "quarantined", "bytes"],
  ["transport", "connections whose beginning was not seen", "connections_half_seen", "connections"],
  ["transport", "bytes of TCP 1801, not decoded", "bytes_binary_protocol", "bytes"],
  ["rpc", "calls of which a part was not seen", "calls_half_seen", "calls"],
  ["rpc", "calls that stayed sealed", "sealed", "calls"],
  ["stub", "calls that did not decode", "undecoded", "decoded"],
  ["message", "messages whose queue is not known", "queue_unknown", "messages"],
  ["message", "messages not seen whole", "bodies_incomplete", "messages"],
  ["snapshot", "snapshots asked for and missing", "snapshots_missing", "snapshots_expected"],
];
function unseen(state) {
  const rows = sumsOf("coverage");
  const sums = new Map();
  for (const row of found("coverage", rows, state, false)) {
    const key = rows.at(row, "layer") + ":" + rows.at(row, "measure");
    sums.set(key, (sums.get(key) ?? 0) + rows.at(row, "value"));
  }
  const of = (layer, measure) => sums.get(layer + ":" + measure) ?? 0;
  return UNSEEN_MEASURES.map(([layer, text, part, whole]) => {
    const out = of(layer, part);
    const total = part === "undecoded" && layer === "stub" ? out + of(layer, whole) : of(layer, whole);
    return { layer, label: text, measure: part, part: out, whole: total, bytes: whole === "bytes" };
  });
}
