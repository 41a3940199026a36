"use strict";
// What is said of a queue: groups of facts, each with its column, its name for people, and what a count rests on.

const LOCAL_READS = "Reads on the queue's own machine are never on the wire: nobody listed here does not mean that nobody reads.";
const ZERO_OR_NULL = "A dash: not seen. 0: seen of messages, and none has it.";

/** Groups of facts: title, note, column of the number that shares are of, and facts as column and name. */
const FACTS = [
  ["Who", LOCAL_READS, null, [["holders", "held by"], ["senders", "senders", "sender_count"], ["readers", "remote readers", "reader_count"]]],
  ["How much", null, null, [["messages", "messages seen"], ["sent_messages", "captured on TCP 1801"], ["read_messages", "captured as they were read"], ["sendings", "sendings"], ["resendings", "of these, sent again"], ["sent_bytes", "bytes of all sendings"],
    ["mean_per_minute", "sendings a minute, mean"], ["p95_per_minute", "sendings a minute, p95"], ["peak_per_minute", "sendings in the peak minute"], ["peak_at", "peak minute"], ["captured_minutes", "minutes that were captured: what rates rest on"],
    ["receives", "remote receives"], ["transactional_receives", "of these, in a transaction"], ["peeks", "remote peeks"], ["lookups", "receives and peeks by lookup id"], ["purges", "purges"], ["moves", "moves"]]],
  ["How large", null, null, [["body_p50_bytes", "body, half are at most"], ["body_p99_bytes", "body, 99 % are at most"], ["largest_body_bytes", "largest body"], ["largest_packet_bytes", "largest message with headers and properties"]]],
  ["Delivery", ZERO_OR_NULL, "headers_known", [["express", "express"], ["recoverable", "recoverable"], ["transactional", "sent in a transaction"], ["in_larger_transactions", "with others in one transaction"], ["sequences", "exactly-once sequences", null], ["priorities", "priorities in use"],
    ["smallest_time_to_live_s", "smallest time to be received", null], ["largest_time_to_live_s", "largest time to be received", null], ["without_time_to_live", "without a time to be received"],
    ["smallest_time_to_reach_s", "smallest time to reach the queue", null], ["largest_time_to_reach_s", "largest time to reach the queue", null], ["without_time_to_reach", "without a time to reach the queue"],
    ["source_journal", "ask for the sender's journal"], ["target_journal", "the queue has a journal"], ["dead_letter_asked", "ask for a dead letter"], ["dead_lettered", "became dead letters"], ["dead_letter_queues", "queues for dead letters"]]],
  ["Acknowledgements and answers", ZERO_OR_NULL, "properties_known", [["acks_asked", "ask for an acknowledgement"], ["ack_arrival", "of arrival"], ["ack_receive", "of the receive"], ["ack_not_arrived", "of failing to arrive"], ["ack_not_received", "of not being received"], ["admin_queues", "administration queues"],
    ["with_response_queue", "with a response queue"], ["response_queues", "response queues"], ["with_correlation", "with a correlation id"], ["acknowledgement_messages", "are acknowledgements or reports"], ["traced", "ask for reports on their route"]]],
  ["Security", ZERO_OR_NULL, "security_known", [["authenticated", "authenticated"], ["signed", "signed"], ["with_certificate", "with a certificate"], ["hash_algorithms", "hash algorithms"], ["encrypted", "encrypted"], ["encryption_algorithms", "encryption algorithms"]]],
  ["Names and applications", ZERO_OR_NULL, "messages", [["format_names", "kinds of format names"], ["multicast_messages", "sent by multicast"], ["list_messages", "sent to several queues"], ["http_messages", "came over HTTP"], ["subqueues", "subqueues"], ["comqc", "COM+ queued components"],
    ["frameworks", "frameworks"], ["body_formats", "formats of bodies"], ["message_types", "types of messages"], ["bodies_known", "with a body that was seen"], ["binary_bodies", "with a body that is no text"], ["undecoded_messages", "not decoded whole"]]],
  ["Seen", null, null, [["largest_depth_messages", "most messages in the queue"], ["largest_depth_bytes", "most bytes in the queue"], ["first_seen_at", "first seen"], ["last_seen_at", "last seen"]]],
];
/** A fact as an element: counts with what they are of, lists with how many more there are, a dash for what was not seen. */
function factElement(rows, row, base, [column, , other]) {
  const value = rows.at(row, column), kind = rows.kinds[column];
  if (value === null || value === undefined) return h("span", { title: "not seen" }, "\u2013");
  if (Array.isArray(value)) return listElement(value, other ? rows.at(row, other) : null);
  const of = base && other !== null ? rows.at(row, base) : null;
  if (kind === "number" && of) return `${formatNumber(value)} of ${formatNumber(of)} (${shareText(value, of)})`;
  return valueElement(column, kind, value);
}

/** Values of a list, each on its own, and how many more there are. */
function listElement(values, count = null) {
  if (!values.length) return "none seen";
  if (values.every((value) => typeof value === "number")) return values.join(", ");
  const more = count === null ? 0 : count - values.length;
  return h("ul", {}, values.map((value) => h("li", {}, untrusted(value))), more > 0 ? h("li", {}, `and ${formatNumber(more)} more`) : null);
}
