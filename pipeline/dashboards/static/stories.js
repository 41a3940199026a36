"use strict";
// What is in trouble: entries of alerts, and the stories of queues, machines and messages, each with its own address.
// What they say was found by the functions of the commands `msmq alerts`, `msmq queue` and `msmq trace_message`.

const STORIES = SITE.stories;
const ENTRIES = new Map(STORIES.entries.map((entry) => [entry.key, entry]));
/** The key of the entry of each alert. */
const ENTRY_OF_ALERT = new Map(STORIES.entries.flatMap((entry) => entry.alerts.map((alert) => [alert.alert_key, entry.key])));
const storyOfQueue = (queue) => (queue !== null && Object.hasOwn(STORIES.queues, queue) ? STORIES.queues[queue] : null);
const storyOfMessage = (key) => (key !== null && Object.hasOwn(STORIES.messages, key) ? STORIES.messages[key] : null);
const storyOfMachine = (name) => STORIES.machines.find((each) => [each.name, ...each.identifiers].some((text) => text.toLowerCase() === name.toLowerCase())) ?? null;

const entryLink = (key) => link("entry", { key });
const queueLink = (queue) => link("queue", { name: queue });
const machineLink = (name) => link("machine", { name });
const messageLink = (key) => link("message", { key });
const messageInTrouble = (name, row) => (DATA[name].rows.at(row, "not_delivered") !== null || DATA[name].rows.at(row, "loss_risk") !== null);

const storyTime = (text) => (text === null || text === undefined ? null : timeText(Math.floor(Date.parse(text) / 1000) * 1000));
const sinceText = (text) => (text ? [h("span", { class: "nowrap" }, `since ${storyTime(text)} UTC`), ` (for ${ageText(Date.parse(text)) ?? "an unknown time"})`] : "since an unknown time");
const severityLevel = (severity) => LEVELS.severity[severity] ?? "";
const severityBadge = (severity) => h("span", { class: `badge ${severityLevel(severity)}` }, severity);
/** A mark of an entry that leads to it. */
const entryMark = (entry) => h("a", { class: `badge ${severityLevel(entry.severity)}`, href: entryLink(entry.key), title: entry.cause.text }, entry.severity);
const queueName = (queue) => h("a", { href: queueLink(queue) }, untrusted(queue));
const separated = (elements) => elements.flatMap((each, place) => [place ? ", " : "", each]);

// --- on the first screen -----------------------------------------------------------------------------------------------

/** The entries of which some alert passes the filters. */
function chosenEntries(state) {
  const { rows } = DATA.alerts;
  if (!rows) return STORIES.entries;
  const chosen = new Set(filterRows("alerts", rows, globalFilters(state)).map((row) => rows.at(row, "alert_key")));
  return STORIES.entries.filter((entry) => entry.alerts.some((alert) => chosen.has(alert.alert_key)));
}

/** The stories of queues in trouble that the filters by queue and machine select, the worst first. */
function chosenQueues(state) {
  const queue = (state.queue ?? "").toLowerCase(), machine = (state.machine ?? "").toLowerCase();
  const machinesOf = (story) => [...story.reports.map((each) => each.queue_manager), ...story.senders.flatMap((each) => [each.sender_address, each.receiver_address]), ...story.readers.map((each) => each.client_address), story.queue.split("\\")[0]];
  return Object.values(STORIES.queues).filter((story) => contains(story.queue, queue) && (!machine || contains(machinesOf(story), machine)));
}

/** The sentence that names what is worst, with its level: an entry, else a queue in trouble without an alert; null if nothing is. */
function worstTrouble(state) {
  const entries = chosenEntries(state).filter((each) => severityLevel(each.severity)), queues = chosenQueues(state);
  const [entry] = entries, [queue] = queues;
  if (!entry && !queue) return null;
  const causes = entries.length + (STORIES.left_out.entries ?? 0), inTrouble = queues.length + (STORIES.left_out.queues ?? 0);
  const worst = entry ? h("a", { href: entryLink(entry.key) }, untrusted(entry.subject)) : queueName(queue.queue);
  const place = entry?.queues.length === 1 && !entry.subject.includes(entry.queues[0]) ? [", queue ", queueName(entry.queues[0])] : null;
  return {
    level: severityLevel(entry ? entry.severity : queue.severity),
    sentence: ["Worst: ", worst, place, ", ", sinceText(entry ? entry.since : queue.cause.since), ". ", entry ? countText(causes, "cause") : null, entry && inTrouble ? ", " : null, inTrouble ? countText(inTrouble, "queue") : null, " in trouble."],
  };
}
const countText = (number, noun) => `${formatNumber(number)} ${noun}${number === 1 ? "" : "s"}`;

function entryCards(state) {
  const entries = chosenEntries(state), most = 8;
  const left = STORIES.left_out.entries ?? 0;
  if (!entries.length) return DATA.alerts.computed ? h("p", { class: "note" }, "No alert is active.") : notComputed(DATA.alerts);
  return h("div", { class: "entries" }, entries.slice(0, most).map(entryCard),
    entries.length > most || left ? h("p", { class: "note cut" }, `The first ${Math.min(most, entries.length)} of ${formatNumber(entries.length + left)} causes. `, h("a", { href: link("alerts", { ...globalFilters(state), _open: "yes" }) }, "All active alerts")) : null);
}

function entryCard(entry) {
  const others = entry.alert_count - 1;
  const queues = entry.queues.filter((queue) => queue !== entry.subject);
  return h("article", { class: `entry ${severityLevel(entry.severity)}` },
    h("h3", {}, severityBadge(entry.severity), " ", h("a", { href: entryLink(entry.key) }, untrusted(entry.subject))),
    h("p", { class: "since" }, sinceText(entry.since)),
    h("p", { class: "cause" }, untrusted(entry.cause.text)),
    h("p", { class: "do" }, h("strong", {}, "Do: "), untrusted(entry.cause.suggestion)),
    queues.length || others ? h("p", { class: "more" }, queues.length ? ["queues: ", separated(queues.slice(0, 5).map(queueName)), queues.length > 5 ? ` and ${queues.length - 5} more` : ""] : null, queues.length && others ? " \u00b7 " : null, others ? `${formatNumber(others)} more ${others === 1 ? "alert" : "alerts"} of this cause` : null) : null);
}

/** The queues in trouble, the worst first; null where there is none. */
function queuesInTrouble(state) {
  const stories = chosenQueues(state);
  if (!stories.length) return null;
  const labels = ["mark", "queue", "since", "why", "state", { label: "messages", n: 1 }, { label: "unacknowledged", n: 1 }, "last read"];
  const cells = (story) => {
    const entry = ENTRIES.get(story.entries[0]);
    const report = story.reports[0] ?? null, number = (value) => (value === null ? "\u2013" : formatNumber(value));
    return [entry ? entryMark(entry) : severityBadge(story.severity), untrusted(story.queue), storyTime(story.cause.since) ?? "\u2013", untrusted(story.cause.text),
      report ? [valueElement("state", "text", report.state), " ", h("small", {}, untrusted(`at ${SHOWN_MACHINES.get(report.queue_manager) ?? report.queue_manager ?? "an unknown machine"}`))] : "\u2013",
      number(report?.message_count ?? null), number(unacknowledgedOf(story)), storyTime(story.last_read_at) ?? "\u2013"];
  };
  const left = STORIES.left_out.queues ?? 0;
  return [h("h2", {}, "Queues in trouble"),
    groupsTable(labels, stories.map((story) => ({ href: queueLink(story.queue), cells: cells(story) })), undefined, 1),
    left ? h("p", { class: "note cut" }, `${formatNumber(left)} more queues are in trouble than this page has stories of.`) : null];
}

/** Messages to a queue that are not acknowledged: as reported last, else as captured; null if nothing is known. */
function unacknowledgedOf(story) {
  const reported = story.reports.map((each) => each.unacked_count).filter((each) => each !== null);
  const counts = reported.length ? reported : story.senders.map((each) => each.waiting);
  return counts.length ? counts.reduce((sum, each) => sum + each, 0) : null;
}

// --- stories -----------------------------------------------------------------------------------------------------------

const noStory = (what, name, hint) => [h("h1", {}, untrusted(name || what)), h("p", { class: "note" }, hint)];
const fact = (label, ...values) => (values.flat().some((each) => each !== null && each !== "") ? [h("dt", {}, label), h("dd", {}, values)] : null);
const listOf = (values) => (values.length ? h("ul", {}, values.map((each) => h("li", {}, each))) : null);
/** A table of rows of a story under a heading; null without rows. `columns` are labels by name; times are texts. */
function storyTable(title, rows, columns) {
  if (!rows.length) return null;
  const isTime = (name) => /(_at|_until|since)$/.test(name);
  const cell = (row, name) => {
    const value = row[name] ?? null, kind = isTime(name) ? "time" : typeof value === "number" ? "number" : "text";
    return h("td", { class: kind === "time" ? "t" : kind === "number" ? "n" : "", "data-label": columns[name] }, valueElement(name, kind, kind === "time" && value !== null ? Math.floor(Date.parse(value) / 1000) * 1000 : value));
  };
  const numbers = new Set(Object.keys(columns).filter((name) => rows.some((row) => typeof row[name] === "number")));
  return [h("h2", {}, title), scrolling(h("table", {}, h("thead", {}, h("tr", {}, Object.entries(columns).map(([name, label]) => h("th", { scope: "col", class: numbers.has(name) ? "n" : "" }, label)))),
    h("tbody", {}, rows.map((row) => h("tr", { class: "plain" }, Object.keys(columns).map((name) => cell(row, name)))))), title)];
}
const facts = (...pairs) => h("dl", { class: "facts" }, pairs);

function exportBlock(command) {
  return [h("h2", {}, "Packets"), command ? h("div", { class: "evidence" }, copyable("export packets", command)) : h("p", { class: "note" }, "No packet shows it: it follows from reports, or from what is absent.")];
}

function evidenceOf(keys) {
  const known = keys.filter((key) => CALL_INDEX.has(key) || PACKET_INDEX.has(key) || SNAPSHOT_INDEX.has(key) || HOST_INDEX.has(key));
  return known.length ? [h("h2", {}, "Evidence"), known.sort((a, b) => evidenceTime(a) - evidenceTime(b)).map(evidenceBlock)] : null;
}

/** The alerts of an entry, the leading one first, each with a link to its row. */
function alertsOfEntry(entry) {
  return groupsTable(["severity", "condition", "subject", "since", "message", "suggestion"], entry.alerts.map((alert) => ({
    href: link("alerts", { _open: "yes", row: `alerts:${alert.alert_key}` }),
    cells: [severityBadge(alert.severity), h("span", { "data-term": true }, alert.condition), untrusted(alert.subject), storyTime(alert.since) ?? "\u2013", untrusted(alert.message), untrusted(alert.suggestion)] })), undefined, 1);
}

function entryStory(params) {
  const entry = ENTRIES.get(params.key ?? "");
  if (!entry) return noStory("Entry", null, ["This cause is not on this page: its alerts have ended, or another alert leads it. ", h("a", { href: link("overview") }, "Overview"), "."]);
  return [
    h("h1", {}, severityBadge(entry.severity), " ", untrusted(entry.subject)),
    h("p", { class: `verdict ${severityLevel(entry.severity)}` }, untrusted(entry.cause.text), ", ", sinceText(entry.since)),
    facts(fact("What to do", untrusted(entry.cause.suggestion)), fact("Queues", separated(entry.queues.map(queueName))),
      fact("Machines", separated(entry.machines.map((name) => h("a", { href: machineLink(name) }, untrusted(name)))))),
    exportBlock(entry.export),
    h("h2", {}, "Alerts of this cause"), alertsOfEntry(entry),
    entry.alert_count > entry.alerts.length ? h("p", { class: "note cut" }, `${entry.alerts.length} of ${formatNumber(entry.alert_count)} alerts`) : null,
    evidenceOf(entry.evidence),
  ];
}

function queueStory(params) {
  const name = params.name ?? "", story = storyOfQueue(name);
  const links = h("p", {}, [["queues", "state over time"], ["transfers", "transfers"], ["reads", "receives"], ["eod", "exactly-once state"]].flatMap(([section, text], place) => [place ? " \u00b7 " : "", h("a", { href: link(section, { queue: name }) }, text)]));
  if (!story) return [...noStory("Queue", name, "This page has no story of this queue: no trouble of it is seen."), name ? links : null];
  const entries = story.entries.map((key) => ENTRIES.get(key)).filter((each) => each);
  const oldest = story.oldest_unread;
  return [
    h("h1", {}, severityBadge(story.severity), " ", untrusted(story.queue)),
    h("p", { class: `verdict ${severityLevel(story.severity)}` }, untrusted(story.cause.text), ", ", sinceText(story.cause.since)),
    facts(
      fact("What to do", untrusted(story.cause.suggestion)),
      fact("Oldest message", oldest && oldest.age_s !== null ? `unread for ${durationText(oldest.age_s * 1000)}, last seen ${storyTime(oldest.seen_at)}` : null),
      fact("Last read", storyTime(story.last_read_at)),
      fact("Not known", listOf(story.not_known.map(untrusted)))),
    exportBlock(story.export), links,
    storyTable("State", story.reports, { queue_manager: "machine", state: "state", state_since: "since", message_count: "messages", bytes: "bytes", unacked_count: "unacknowledged", resend_count: "resends", next_resend_at: "next try", reported_at: "last report", known_until: "valid until" }),
    storyTable("Errors of machines asked about it", story.errors, { queue_manager: "machine", hresult_name: "result", last_at: "last at" }),
    storyTable("Who sends to it", story.senders, { sender_address: "from", receiver_address: "to", messages: "messages", last_sent_at: "last sent", last_delivered_at: "arrived last", waiting: "unacknowledged", waiting_since: "since" }),
    storyTable("Rejected messages", story.rejections, { class_name: "class", messages: "messages", since: "first", last_at: "last" }),
    storyTable("Who reads it", story.readers, { client_address: "reader", read: "received", last_read_at: "last received", last_asked_at: "last asked", given_back: "given back" }),
    entries.map((entry) => [h("h2", {}, "Cause: ", h("a", { href: entryLink(entry.key) }, untrusted(entry.subject))), alertsOfEntry(entry)]),
    evidenceOf(story.cause.evidence),
  ];
}

function machineStory(params) {
  const name = params.name ?? "", story = storyOfMachine(name);
  const filters = (machine) => h("span", {}, [["queues", "its queues"], ["transfers", "transfers and sessions"], ["reads", "receives"], ["calls", "calls"], ["findings", "findings"]].flatMap(([section, text], place) => [place ? " \u00b7 " : "", h("a", { href: link(section, { machine }) }, text)]));
  if (!story) return [...noStory("Machine", name, "No active alert names this machine."), name ? filters(name) : null];
  const entries = story.entries.map((key) => ENTRIES.get(key)).filter((each) => each);
  return [
    h("h1", {}, untrusted(story.name)),
    entries.length ? h("p", { class: `verdict ${severityLevel(entries[0].severity)}` }, untrusted(entries[0].cause.text), ", ", sinceText(entries[0].since)) : null,
    facts(fact("Seen as", untrusted(story.identifiers.join(", "))), fact("Queues", separated(story.queues.map(queueName)))),
    h("h2", {}, "What is wrong, and what to do"), h("div", { class: "entries" }, entries.map(entryCard)),
    h("h2", {}, "Its rows, by address and name"), facts(story.identifiers.map((each) => fact(untrusted(each), filters(each)))),
  ];
}

/** What the application's headers say of a message, by column. */
const APPLICATION_FACTS = { framework: "Framework", sent_types: "Types", application_message_id: "Application's id", conversation_id: "Conversation", related_to: "Caused by", originating_endpoint: "From endpoint", processing_endpoint: "To endpoint", failed_queue: "Failed in", exception_type: "Exception", immediate_retries: "Immediate retries", delayed_retries: "Delayed retries" };
function applicationFacts(key) {
  const said = Object.keys(APPLICATION_FACTS).map((name) => [name, ofMessage(key, name)]).filter(([, value]) => value !== null && value !== undefined);
  if (!said.length) return null;
  const conversation = ofMessage(key, "conversation_id"), filters = { conversation_id: true, related_to: true };
  const shown = (name, value) => (filters[name] ? h("a", { href: link("transfers", { conversation: value }) }, untrusted(value)) : untrusted(String(value)));
  return [h("h2", {}, "Application"), facts(said.map(([name, value]) => fact(APPLICATION_FACTS[name], shown(name, value)))),
    conversation && escapeHidden(conversation) === conversation ? h("div", { class: "evidence" }, copyable("trace conversation", `msmq trace_message ${SITE.lake_options} --conversation ${shellWord(conversation)}`)) : null];
}

function messageStory(params) {
  const key = params.key ?? "", story = storyOfMessage(key);
  const rowsOf = (name) => (DATA[name].rows && filterRows(name, DATA[name].rows, { message_key: key }).length ? DATA[name].rows : null);
  const id = story?.message_id ?? ofMessage(key, "message_id");
  const label = messageLabel(key);
  const tables = [
    rowsOf("message_transfers") ? [h("h2", {}, "Transfers"), rowsTable("message_transfers", ["first_sent_at", "queue", "outcome", "not_delivered", "sender_address", "receiver_address", "sendings", "session_acked_at", "order_acked_at", "final_class_name", "arrival_class_name", "receive_class_name"], { message_key: key }, { id: "story-transfers" })] : null,
    rowsOf("attempts") ? [h("h2", {}, "Receives"), rowsTable("attempts", ["started_at", "queue", "outcome", "client_address", "server_address", "wait_ms", "hold_ms"], { message_key: key }, { id: "story-attempts" })] : null,
    rowsOf("sequences") ? [h("h2", {}, "Fate"), rowsTable("sequences", ["queue", "fate", "loss_risk", "attempts", "outcomes", "readers", "settled_at"], { message_key: key }, { id: "story-sequences" })] : null,
  ];
  if (!story && tables.every((each) => each === null)) return noStory("Message", null, ["This message is not on this page: ", untrusted(key)]);
  return [
    h("h1", {}, label === null ? "Message " : ["Message ", untrusted(label), " "], h("small", {}, untrusted(id ?? "of unknown identifier"))),
    story ? h("p", { class: "verdict" }, untrusted(story.verdict)) : h("p", { class: "note cut" }, "This page has the verdict of the first messages in trouble only. The command says it of this one."),
    id !== null && escapeHidden(id) === id ? h("div", { class: "evidence" }, copyable("trace command", `msmq trace_message ${SITE.lake_options} --id ${shellWord(id)}`)) : null,
    applicationFacts(key),
    story ? [h("h2", {}, "History"), scrolling(h("table", {}, h("thead", {}, h("tr", {}, ["time (UTC)", "what", "details"].map((each) => h("th", { scope: "col" }, each)))), h("tbody", {}, story.events.map((event) => h("tr", { class: "plain" }, h("td", { class: "t", "data-label": "time" }, timeText(event.at === null ? null : Date.parse(event.at)) ?? "unknown"), h("td", { "data-label": "what" }, event.kind), h("td", { "data-label": "" }, untrusted(event.text), event.clock === "capture" ? "" : ` (the ${event.clock}'s clock)`))))), "history"),
      story.event_count > story.events.length ? h("p", { class: "note cut" }, `${story.events.length} of ${formatNumber(story.event_count)} events`) : null,
      exportBlock(story.export),
      h("h2", {}, "Not known"), listOf(story.not_known.map(untrusted))] : null,
    tables,
  ];
}
