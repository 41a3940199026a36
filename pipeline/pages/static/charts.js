"use strict";
// Charts by Plotly. It reads texts as markup of its own (<b>, <a>, entities): `label` makes them plain.

const COLOURS = ["#3b7dd8", "#e08a1e", "#2f9e77", "#c0504d", "#8064a2", "#6b7f8f", "#b5a100", "#d070a8", "#4bacc6", "#7a5c3e"];
const LEVEL_COLOURS = { ok: "#2f9e5f", warn: "#e0a21e", bad: "#cf3f36", unknown: "#9aa2ac", "": "#6f8fb5" };

const label = (text) => seen(text === null || text === undefined ? "not known" : text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
const short = (text, most = 34) => (text !== null && text.length > most ? text.slice(0, most / 2 - 1) + "\u2026" + text.slice(-most / 2) : text);
const moment = (ms) => new Date(ms).toISOString().replace("T", " ").replace("Z", "");

const ink = () => {
  const style = getComputedStyle(document.documentElement);
  return { ink: style.getPropertyValue("--ink").trim(), line: style.getPropertyValue("--line").trim(), card: style.getPropertyValue("--card").trim() };
};

/** A chart once it is in the page; `go` is called with the customdata of what is clicked. */
function chart(title, traces, layout, go) {
  const box = h("div", { class: "chart", role: "img", "aria-label": title });
  if (!traces.some((trace) => (trace.x ?? trace.values ?? []).length)) {
    box.append(h("p", { class: "note" }, `${title}: nothing to show with these filters`));
    return box;
  }
  AFTER.push(() => {
    const colours = ink();
    const narrow = box.clientWidth < 520;
    const axis = { gridcolor: colours.line, zerolinecolor: colours.line, automargin: true, fixedrange: narrow };
    const made = {
      height: 260, margin: { l: 50, r: 14, t: 34, b: 36 }, paper_bgcolor: colours.card, plot_bgcolor: colours.card,
      font: { color: colours.ink, size: 12, family: "system-ui, sans-serif" }, hovermode: "closest", bargap: 0.08,
      legend: { orientation: "h", y: -0.18, font: { size: 11 } },
      ...layout,
      title: { text: title, font: { size: 13.5 }, x: 0.01, xanchor: "left", y: 0.98, yanchor: "top" },
      xaxis: { ...axis, ...layout.xaxis }, yaxis: { ...axis, ...layout.yaxis },
    };
    Plotly.newPlot(box, traces, made, { responsive: true, displayModeBar: false });
    if (go) box.on("plotly_click", (event) => { const place = event.points?.[0]?.customdata; if (place) go(place); });
  });
  return box;
}
let AFTER = [];

/** Counts over time, stacked by the value of a column; a click leads to the rows. */
function overTime(title, rows, indexes, time, column, order, state, section) {
  const dated = indexes.filter((row) => rows.at(row, time) !== null);
  const [first, last] = extent(dated.map((row) => rows.at(row, time)));
  const step = binStep(first, last, 60);
  const groups = countBy(rows, dated, [column]);
  const rank = (value) => { const place = order.indexOf(value); return place < 0 ? order.length : place; };
  groups.sort((a, b) => rank(a.values[0]) - rank(b.values[0]) || b.n - a.n);
  const traces = groups.slice(0, 12).map((group, place) => {
    const bins = new Map();
    for (const row of group.rows) {
      const bin = Math.floor(rows.at(row, time) / step) * step;
      bins.set(bin, (bins.get(bin) ?? 0) + weight(rows, row));
    }
    const value = group.values[0], text = facetText(value);
    const starts = [...bins.keys()].sort((a, b) => a - b);
    const level = LEVELS[column]?.[text];
    return {
      type: "bar", name: label(value), x: starts.map((bin) => moment(bin + step / 2)), y: starts.map((bin) => bins.get(bin)), width: starts.map(() => step * 0.92),
      customdata: starts.map((bin) => link(section, { ...kept(state), from: timeText(bin), to: timeText(bin + step - 1), [column]: text })),
      hovertext: starts.map((bin) => `${label(value)}: ${group_(bins.get(bin))}<br>${timeText(bin)} for ${durationText(step)}`), hoverinfo: "text",
      marker: { color: level === undefined ? COLOURS[place % COLOURS.length] : shade(level, groups.filter((each) => LEVELS[column]?.[facetText(each.values[0])] === level).indexOf(group)) },
    };
  });
  return chart(title, traces, { barmode: "stack", xaxis: { type: "date" }, yaxis: { rangemode: "tozero" } }, go);
}
const group_ = (number) => group(number);
const shade = (level, place) => {
  const mixes = [1, 0.72, 0.5, 0.34, 0.86];
  const colour = LEVEL_COLOURS[level] ?? LEVEL_COLOURS[""];
  const parts = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return `rgb(${parts.map((part) => Math.round(part * mixes[place % 5] + 150 * (1 - mixes[place % 5]))).join(",")})`;
};

function extent(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) { if (value < low) low = value; if (value > high) high = value; }
  return low <= high ? [low, high] : [0, 0];
}
const NICE_S = [0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800, 2592000, 31536000];
const binStep = (first, last, most) => 1000 * (NICE_S.find((step) => (last - first) / 1000 / step <= most) ?? NICE_S[NICE_S.length - 1] * 10);

/** Horizontal bars, the longest first; `items` are {name, value, text, href, level}. */
function bars(title, items, layout) {
  const chosen = items.slice(0, 25).reverse();
  const trace = {
    type: "bar", orientation: "h", x: chosen.map((item) => item.value), y: chosen.map((_, place) => place),
    text: chosen.map((item) => label(item.text)), textposition: "auto", customdata: chosen.map((item) => item.href),
    hovertext: chosen.map((item) => `${label(item.name)}: ${label(item.text)}`), hoverinfo: "text",
    marker: { color: chosen.map((item) => LEVEL_COLOURS[item.level ?? ""]) },
  };
  const more = items.length > chosen.length ? ` (the first ${chosen.length} of ${items.length})` : "";
  return chart(title + more, [trace], {
    height: 70 + 24 * chosen.length, showlegend: false, ...layout,
    yaxis: { tickmode: "array", tickvals: chosen.map((_, place) => place), ticktext: chosen.map((item) => label(short(item.name))) },
  }, go);
}

/** Lines that hold a value from one time to another and break where it is not known. */
function steps(title, series, unit) {
  const traces = series.map((each, place) => {
    const x = [], y = [], texts = [];
    for (const [from, to, value] of each.pieces) {
      x.push(moment(from), moment(to)); y.push(value, value);
      const text = `${label(each.name)}<br>${value === null ? "unknown" : label(unit === "bytes" ? bytesText(value) : group(value))}, from ${timeText(from)} to ${timeText(to)}`;
      texts.push(text, text);
    }
    return { type: "scatter", mode: "lines", name: label(short(each.name)), x, y, hovertext: texts, hoverinfo: "text", connectgaps: false, line: { width: 2, color: COLOURS[place % COLOURS.length] } };
  });
  return chart(title, traces, { xaxis: { type: "date" }, yaxis: { rangemode: "tozero" }, height: 290, showlegend: true });
}
