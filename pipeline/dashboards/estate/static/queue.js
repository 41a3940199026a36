"use strict";
// All that is known of one queue, in a dialog: facts, hours of the week, what a move needs, growth.

const VERDICT_LEVELS = ["bad", "warn", "ok"], SHORT_VERDICTS = ["does not", "change", "fits", "no verdict", "not seen"];
const verdictBadge = (text, shown = text) => h("span", { class: "badge " + (VERDICT_LEVELS[SITE.verdicts.indexOf(text)] ?? ""), title: text }, shown);

/** Rows of a dataset by the queue that they are of. */
function byQueue(name) {
  const found = new Map(), rows = DATA[name].rows;
  for (const row of rows.all()) {
    const queue = rows.at(row, "queue");
    if (!found.has(queue)) found.set(queue, []);
    found.get(queue).push(row);
  }
  return found;
}
const QUEUE_ROWS = byQueue("estate_queues"), DEPTH_ROWS = byQueue("depth_growth"), JOURNAL_ROWS = byQueue("journal_growth"), VERDICT_ROWS = byQueue("verdicts"), IN_THE_WAY = byQueue("in_the_way");

const factsList = (rows, row, [title, note, base, facts]) => [
  h("h3", {}, title, base && rows.at(row, base) ? `, of ${formatNumber(rows.at(row, base))} messages of which it is known` : ""),
  note ? h("p", { class: "note" }, note) : null,
  h("dl", { class: "facts" }, facts.map((fact) => [h("dt", {}, fact[1]), h("dd", {}, factElement(rows, row, base, fact))])),
];

/** The page that says what a target offers, and its date; null if the verdict rests on none. */
function sourceOf(problems, row) {
  const address = problems.at(row, "source"), date = problems.at(row, "as_of");
  return address === null ? null : h("small", {}, "Source: ", Object.assign(h("a", { rel: "noreferrer" }, address), { href: address }), date === null ? "" : `, as of ${date}`);
}

/** What is in the way of a move of a queue, target by target. */
function verdictsOf(queue) {
  const rows = DATA.verdicts.rows, problems = DATA.in_the_way.rows;
  return (VERDICT_ROWS.get(queue) ?? []).map((row) => {
    const target = rows.at(row, "target");
    const found = (IN_THE_WAY.get(queue) ?? []).filter((each) => problems.at(each, "target") === target);
    const also = (label, column) => (rows.at(row, column) ? h("p", {}, `${label}: `, untrusted(rows.at(row, column)), ".") : null);
    return h("div", { class: "evidence" }, h("h4", {}, untrusted(target), " ", verdictBadge(rows.at(row, "verdict"))),
      !found.length && SITE.verdicts.indexOf(rows.at(row, "verdict")) < 2 ? [also("Does not fit", "refuses"), h("p", {}, "The reasons are in estate_verdicts.csv beside this page.")] : null,
      h("ul", {}, found.map((each) => h("li", {}, verdictBadge(problems.at(each, "verdict")), " ", untrusted(problems.at(each, "property")), ": ", untrusted(problems.at(each, "evidence")),
        problems.at(each, "change") ? [" ", untrusted(problems.at(each, "change"))] : null,
        sourceOf(problems, each)))),
      also("Fits", "fits"), also(`Not seen in ${timeAsked()}`, "not_seen"), also("No verdict, because the target's file has no fact with a source", "unknown"));
  });
}

/** How the messages and the journal of a queue grow; a note where nothing was reported. */
function growthOf(queue) {
  const found = [["messages", "depth_growth", DEPTH_ROWS], ["journal", "journal_growth", JOURNAL_ROWS]].flatMap(([what, name, places]) => {
    const rows = DATA[name].rows, columns = growthColumns(rows, [], "last_bytes");
    return (places.get(queue) ?? []).map((row) => [what, columns, row]);
  });
  if (!found.length) return h("p", { class: "note" }, "No queue manager reported it.");
  const labels = ["of its", ...found[0][1].map((column) => column.label)];
  return scrolling(h("table", {}, h("thead", {}, h("tr", {}, labels.map((label) => h("th", { scope: "col" }, label)))),
    h("tbody", {}, found.map(([what, columns, row]) => h("tr", { class: "plain" }, [what, ...columns.map((column) => column.show(row))].map((cell, place) => h("td", { "data-label": labels[place] }, cell)))))), "growth");
}

/** The dialog of the queue in the address; closed without one. */
function showQueue(queue) {
  const dialog = document.getElementById("row");
  if (!queue) { if (dialog.open) dialog.close(); return; }
  const rows = DATA.estate_queues.rows, row = (QUEUE_ROWS.get(queue) ?? [])[0], heat = Object.hasOwn(SITE.heat_maps, queue) ? SITE.heat_maps[queue] : null;
  const body = row === undefined ? h("p", { class: "note" }, "This queue is not on this page: ", untrusted(queue)) : [
    FACTS.slice(0, 2).map((group) => factsList(rows, row, group)),
    h("h3", {}, `Sendings by weekday and hour, ${SITE.time_zone}`),
    heat ? [heatMap(heat.counts, SITE.captured_weeks[heat.week]), h("p", { class: "caption" }, "An hour that is filled grey was not captured by what shows this queue: nothing is known of it.")] : h("p", { class: "note" }, "No sending was captured on TCP 1801."),
    FACTS.slice(2).map((group) => factsList(rows, row, group)),
    h("h3", {}, "Growth"), growthOf(queue),
    h("h3", {}, "What a move needs"), verdictsOf(queue),
  ];
  dialog.replaceChildren(h("div", { class: "head" }, h("h2", {}, untrusted(queue)), h("button", { type: "button", onclick: () => window.print() }, "print"), h("button", { type: "button", onclick: closeRow, autofocus: true }, "close (Esc)")), h("div", { class: "body" }, [body].flat(4)));
  dialog.setAttribute("aria-label", `Queue ${escapeHidden(queue)}`);
  explain(dialog);
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
}
