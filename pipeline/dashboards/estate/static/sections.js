"use strict";
// The sections of the report.

Object.assign(FILTER_COLUMNS, {
  estate_queues: { queue: ["queue"], machine: ["holders", "senders", "readers"] },
  estate_flows: { queue: ["queue"], machine: ["sender", "receiver"] },
  estate_machines: { machine: ["machine", "host_names", "addresses", "queue_manager_ids"] },
  depth_growth: { queue: ["queue", "queue_format_name"], machine: ["queue_manager"] },
  journal_growth: { queue: ["queue", "queue_format_name"], machine: ["queue_manager"] },
  machines: { machine: ["queue_manager"] },
});

const timeAsked = () => (SITE.since === null || SITE.as_of === null ? "the time that was captured" : SITE.asked);
const openQueue = (queue) => go(link(STATE.section, { ...STATE.params, row: queue }));
const queueButton = (queue) => h("button", { type: "button", class: "open", onclick: () => openQueue(queue) }, untrusted(queue));
const rowsOf = (name) => (name, row) => openQueue(DATA[name].rows.at(row, "queue"));
const nothing = () => {};

/** A note where the page has not all rows. */
const leftOut = (name) => (DATA[name].total > DATA[name].rows.count ? h("p", { class: "note cut" }, `This page has the largest ${formatNumber(DATA[name].rows.count)} of ${formatNumber(DATA[name].total)}; ${name}.csv beside it has all.`) : null);

/** A computed column that shows how long a list is, and its values as a title. */
const listColumn = (rows, name, count, label = name) => ({ name, label, kind: "number", value: (row) => rows.at(row, count), show: (row) => {
  const values = rows.at(row, name), all = rows.at(row, count);
  return all === null ? "\u2013" : h("span", { title: values.map(escapeHidden).join("\n") }, values.length === 1 && all === 1 ? untrusted(values[0]) : formatNumber(all));
} });

/** A column of times, to the minute. */
const minuteColumn = (rows, name) => ({ name, show: (row) => timeText(rows.at(row, name))?.slice(0, 16) ?? "\u2013" });

/** How much of the time that was asked for was captured, and since when. */
function coverageText() {
  if (SITE.captured_from === null) return `Nothing was captured in ${timeAsked()}.`;
  return `${SITE.captured} of ${timeAsked()} were captured, the first at ${timeText(SITE.captured_from / 1000).slice(0, 16)} UTC. Nothing is known of the rest.`;
}

function overviewSection() {
  const { tiles: figures, sentences } = SITE.overview;
  return [
    h("p", { class: "lead" }, coverageText(), " Reads on a queue's own machine are never on the wire."),
    tiles(figures.map((each) => tile(each.label, each.value, each.detail, "", link(each.section, {})))),
    h("ul", { class: "lines" }, sentences.map((each) => h("li", {}, untrusted(each)))),
  ];
}

function flowsSection(state) {
  const rows = DATA.estate_flows.rows, indexes = filterRows("estate_flows", rows, state);
  return [
    rows.count < DATA.estate_flows.total ? h("p", { class: "note cut" }, `Of ${formatNumber(DATA.estate_flows.total)} flows, those with fewest bytes are joined by sender, receiver and way, and found by no queue; estate_flows.csv beside this page has all.`) : null,
    h("p", { class: "lead" }, "Senders are on the left, receivers on the right, those with most bytes first. Click one, or press Enter, to see what it sends and receives. Bytes that are read remotely were sent to the queue before."),
    flowSection(rows, indexes, Boolean(state.machine), (machine) => go(link("flows", { ...STATE.params, machine }))),
    h("details", {}, h("summary", {}, `All ${formatNumber(indexes.length)} flows as a table`), rowsTable("estate_flows", ["sender", "receiver", { name: "queue", show: (row) => untrusted(rows.at(row, "queue") ?? "others") }, { name: "way", kind: "text", value: (row) => wayText(rows.at(row, "way")) }, "messages", "sendings", "bytes", minuteColumn(rows, "first_at"), minuteColumn(rows, "last_at")], state, { indexes, by: "bytes", down: true, open: nothing })),
  ];
}

function queuesSection(state) {
  const rows = DATA.estate_queues.rows;
  return [
    leftOut("estate_queues"),
    h("p", { class: "lead" }, "A row opens all that is known of the queue: who uses it, sizes, hours of the week, and what a move of it needs."),
    rowsTable("estate_queues", [{ name: "queue", show: (row) => queueButton(rows.at(row, "queue")) }, listColumn(rows, "senders", "sender_count"), listColumn(rows, "readers", "reader_count", "remote readers"), "messages",
      { name: "per_day", label: "sendings a day", title: "a dash: less than a day was captured", kind: "number", value: (row) => { return rows.at(row, "captured_minutes") < 1440 ? null : Math.round(rows.at(row, "mean_per_minute") * 1440); } },
      { name: "peak_per_minute", label: "peak minute" }, { name: "body_p50_bytes", label: "body p50" }, { name: "body_p99_bytes", label: "body p99" }, { name: "largest_body_bytes", label: "largest body" },
      { name: "transactional", kind: "number", value: (row) => { const of = rows.at(row, "headers_known"); return of ? rows.at(row, "transactional") / of : null; }, show: (row) => shareText(rows.at(row, "transactional") ?? 0, rows.at(row, "headers_known")) }, minuteColumn(rows, "last_seen_at")], state, { by: "messages", down: true, open: rowsOf("estate_queues") }),
  ];
}

/** The identifiers and host names of a machine that are not what it is called. */
function otherNames(rows, row) {
  const others = [...(rows.at(row, "queue_manager_ids") ?? []), ...(rows.at(row, "host_names") ?? [])].filter((each) => each !== rows.at(row, "machine"));
  return others.length ? h("small", {}, others.map((each, place) => [place ? ", " : "", untrusted(each)])) : null;
}

function machinesSection(state) {
  const rows = DATA.estate_machines.rows;
  const texts = (name, label = name) => ({ name, label, kind: "text", value: (row) => rows.at(row, name)?.map(facetLabel).join(", ") || null });
  return [leftOut("estate_machines"),
    h("p", { class: "lead" }, "Clock: the machine's clock was at least so far ahead of that of the captures; a dash where no difference was seen."),
    rowsTable("estate_machines", [{ name: "machine", show: (row) => [untrusted(rows.at(row, "machine")), otherNames(rows, row)] }, texts("roles"), texts("versions"), texts("addresses"), "queues_held", { name: "sent_messages", label: "sent" }, { name: "received_messages", label: "received" }, { name: "routed_messages", label: "routed" }, { name: "read_messages", label: "read remotely" }, { name: "served_messages", label: "served to readers" }, "sent_bytes", { name: "clock_ahead_s", label: "clock ahead" }, minuteColumn(rows, "last_seen_at")], state, { open: nothing })];
}

function targetsSection(state) {
  const rows = DATA.estate_queues.rows, judged = DATA.verdicts.rows;
  const indexes = filterRows("estate_queues", rows, state), queues = new Set(indexes.map((row) => rows.at(row, "queue")));
  const keyOf = (queue, target) => `${queue}\u0000${target}`;
  const verdictOf = new Map(judged.all().map((row) => [keyOf(judged.at(row, "queue"), judged.at(row, "target")), judged.at(row, "verdict")]));
  const summary = SITE.targets.map((target) => {
    const counts = new Map(), ways = new Map();
    for (const row of judged.all()) {
      if (judged.at(row, "target") !== target || !queues.has(judged.at(row, "queue"))) continue;
      addTo(counts, judged.at(row, "verdict"), 1);
      for (const property of judged.at(row, "refuses").split(", ").filter((each) => each)) addTo(ways, property, 1);
    }
    return [untrusted(target), ...SITE.verdicts.map((verdict) => formatNumber(counts.get(verdict) ?? 0)), untrusted([...ways].sort((a, b) => b[1] - a[1]).slice(0, 3).map(([name, count]) => `${name} (${formatNumber(count)})`).join(", ") || "\u2013")];
  });
  const labels = ["target", ...SITE.verdicts, "most often in the way"], isNumber = (place) => place > 0 && place <= SITE.verdicts.length;
  return [
    h("p", { class: "lead" }, `What targets offer and limit, with sources and dates, compared with what was seen. A property that was not seen in ${timeAsked()} may still be in use.`),
    h("div", { class: "matrix" }, scrolling(h("table", {}, h("thead", {}, h("tr", {}, labels.map((label, place) => h("th", { scope: "col", class: isNumber(place) ? "n" : "" }, label)))),
      h("tbody", {}, summary.map((cells) => h("tr", { class: "plain" }, cells.map((cell, place) => h("td", { class: isNumber(place) ? "n" : "", "data-label": labels[place] }, cell)))))), "targets")),
    h("p", { class: "caption" }, "Queue by queue: \u201cchange\u201d is \u201cfits with a change\u201d, \u201cfits\u201d is as far as the wire shows."), leftOut("estate_queues"),
    h("div", { class: "matrix" }, rowsTable("estate_queues", [{ name: "queue", show: (row) => queueButton(rows.at(row, "queue")) }, ...SITE.targets.map((target, place) => {
      const value = (row) => verdictOf.get(keyOf(rows.at(row, "queue"), target)) ?? null, rank = (row) => SITE.verdicts.indexOf(value(row));
      return { name: `target_${place}`, label: escapeHidden(target), kind: "text", value, rank, show: (row) => (value(row) === null ? "\u2013" : verdictBadge(value(row), SHORT_VERDICTS[rank(row)])) };
    })], state, { indexes, id: "targets", by: "target_0", open: rowsOf("estate_queues") })),
  ];
}

/** Bytes that may be less than none, with their sign. */
const changeText = (bytes) => `${bytes < 0 ? "\u2212" : "+"}${bytesText(Math.abs(bytes))}`;
const dayCount = (days) => (days < 10 ? days.toFixed(1) : formatNumber(Math.round(days)));

/** The columns of a table of growth; `level` is that of the size now. */
function growthColumns(rows, names, level) {
  const column = (name, label, show) => ({ name, label, kind: "number", value: (row) => rows.at(row, name), show: (row) => (rows.at(row, name) === null ? "\u2013" : show(row)) });
  const interval = (row, low, high, text, none) => h("small", {}, `95 % interval: ${text(rows.at(row, low))} to ${rows.at(row, high) === null ? none : text(rows.at(row, high))}`);
  const trend = (row) => rows.at(row, "trend") ?? "fewer than 7 days";
  return [...names, column(level, "size", (row) => bytesText(rows.at(row, level))), column("trend_days", "days with reports", (row) => formatNumber(rows.at(row, "trend_days"))),
    { name: "trend", label: "trend", kind: "text", value: trend, show: trend },
    column("trend_bytes_per_day", "growth a day", (row) => [changeText(rows.at(row, "trend_bytes_per_day")), interval(row, "trend_low", "trend_high", changeText)]),
    column("trend_quota_bytes", "quota", (row) => [bytesText(rows.at(row, "trend_quota_bytes")), rows.at(row, "quota_assumed") ? h("small", {}, "assumed: none is configured") : null]),
    column("trend_days_until_full", "days until full", (row) => [dayCount(rows.at(row, "trend_days_until_full")), interval(row, "trend_full_low", "trend_full_high", dayCount, "never")])];
}

const GROWTH = [["machines", "Machines, all of their queues:", ["queue_manager"], "bytes"], ["depth_growth", "Queues:", ["queue", "queue_manager"], "last_bytes"], ["journal_growth", "Journals:", ["queue", "queue_manager"], "last_bytes"]];

function capacitySection(state) {
  return [
    h("p", { class: "lead" }, "Growth of the largest size of each day, as reports of queue managers show it, and when a quota is full if it goes on like this. Days without reports are left out, not counted as 0. At least 7 days with reports are needed."),
    GROWTH.map(([name, title, names, level]) => {
      return [h("h3", {}, title), leftOut(name), rowsTable(name, growthColumns(DATA[name].rows, names, level), state, { by: "trend_days_until_full", open: nothing, empty: "Nothing was reported of them." })];
    }),
  ];
}

/** A text with what stands between backticks as code. */
const withCode = (text) => text.split("`").map((part, place) => (place % 2 ? h("code", {}, part) : part));

function limitsSection() {
  const sight = (each) => h("li", {}, `${each.name}: ${each.subjects} at ${formatNumber(each.servers)} servers`, each.first_at === null ? "" : `, ${timeText(each.first_at / 1000)} to ${timeText(each.last_at / 1000)} UTC`);
  return [
    h("p", {}, coverageText(), " What was not captured is no zero. A dash means: not seen."),
    SITE.views.map((view) => [h("h3", {}, `${facetLabel(view.name)}: one row is ${view.row_meaning}`), h("p", { class: "lead" }, withCode(view.how_to_read)), h("p", { class: "lead" }, h("strong", {}, "Not shown: "), withCode(view.limitations)),
      h("ul", { class: "limits" }, view.seen.map(sight), view.unseen.length ? h("li", {}, `Nothing was seen of ${view.unseen.join(", ")}.`) : null),
      view.is_known ? null : h("p", { class: "note cut" }, "That this table is empty does not mean that there is nothing: what it needs was not captured.")]),
    h("p", {}, "To make this report again, run ", h("code", {}, `msmq report_estate ${SITE.lake_options} --out FOLDER`), "."),
  ];
}
