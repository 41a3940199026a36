"use strict";
// Charts by Plotly. Plotly interprets text as markup (<b>, <a>, entities): `plotlyText` escapes it.

const COLOURS = ["#3b7dd8", "#e08a1e", "#2f9e77", "#c0504d", "#8064a2", "#6b7f8f", "#b5a100", "#d070a8", "#4bacc6", "#7a5c3e"];
/** Fixed colours of values, distinct within each chart. */
const OWN_COLOURS = {
  acked: "#2f9e5f", peeked: "#67b7dc", empty: "#b9c4cf", timed_out: "#8796a6", cancelled: "#8064a2", nacked: "#e6b422", rejected: "#e0701e",
  expired: "#7c1f19", rundown: "#a83a8c", failed: "#d8362b", in_flight: "#d9d2c5", unknown: "#6b6f76",
  ok: "#2f9e5f", fault: "#d8362b", no_response: "#e0701e", damaged: "#7c1f19", no_request: "#d9d2c5", unbound: "#b9c4cf", encrypted: "#6b6f76",
  "LOCAL CONNECTION": "#2f9e5f", CONNECTED: "#3b7dd8", WAITING: "#e6b422", ONHOLD: "#8a5a2b", "ON HOLD": "#8a5a2b", DISCONNECTED: "#d8362b", LOCKED: "#7c1f19",
  "NEED VALIDATE": "#e0701e", "NEED VALIDATION": "#e0701e", DISCONNECTING: "#a83a8c", NONACTIVE: "#b9c4cf", INACTIVE: "#b9c4cf", UNKNOWN: "#9aa2ac",
  received: "#2f9e5f", delivered: "#67b7dc", transferred: "#3b7dd8", unacknowledged: "#d8362b", sent: "#3b7dd8", resent: "#e0701e", acknowledged: "#2f9e5f",
  error: "#d8362b", warning: "#e6b422", info: "#67b7dc",
};
const LEVEL_COLOURS = { ok: "#2f9e5f", warn: "#e0a21e", bad: "#cf3f36", unknown: "#9aa2ac", "": "#6f8fb5" };

const plotlyText = (text) => escapeHidden(text === null || text === undefined ? "unknown" : text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
const ellipsize = (text, most = 34) => (text !== null && text.length > most ? text.slice(0, most / 2 - 1) + "\u2026" + text.slice(-most / 2) : text);
/** A time as Plotly reads it; null outside the years 1 to 9999, which damaged captures can contain. */
const plotlyTime = (ms) => (ms >= -62135596800000 && ms < 253402300800000 ? new Date(ms).toISOString().replace("T", " ").replace("Z", "") : null);

const themeColours = () => {
  const style = getComputedStyle(document.documentElement);
  return { ink: style.getPropertyValue("--ink").trim(), line: style.getPropertyValue("--line").trim(), card: style.getPropertyValue("--card").trim() };
};

/** A chart, drawn once it is in the page. A click on an item calls `go` with its customdata. */
function chart(title, traces, layout, go) {
  const box = h("div", { class: "chart", role: "img", "aria-label": title });
  if (!traces.some((trace) => (trace.x ?? trace.values ?? []).length)) {
    box.append(h("p", { class: "note" }, `${title}: no data for these filters`));
    return box;
  }
  AFTER_DRAW.push(() => {
    const colours = themeColours();
    const narrow = box.clientWidth < 520;
    const named = layout.showlegend === false || (traces.length < 2 && !layout.showlegend) ? [] : traces.filter((trace) => trace.showlegend !== false).map((trace) => 34 + 7 * (trace.name ?? "").length);
    const columns = Math.max(1, Math.floor((box.clientWidth - 60) / Math.max(1, ...named)));
    const legend = 20 * Math.ceil(named.length / columns);
    const axis = { gridcolor: colours.line, zerolinecolor: colours.line, automargin: true, fixedrange: narrow };
    const made = {
      margin: { l: 50, r: 14, t: 34, b: 46 + legend }, paper_bgcolor: colours.card, plot_bgcolor: colours.card,
      font: { color: colours.ink, size: 12, family: "system-ui, sans-serif" }, hovermode: "closest", bargap: 0.08,
      ...layout, height: (layout.height ?? 250) + legend, showlegend: named.length > 0,
      legend: { orientation: "h", x: 0, y: 0, xref: "container", yref: "container", yanchor: "bottom", traceorder: "normal", font: { size: 11 } },
      title: { text: title, font: { size: 13.5 }, x: 0.01, xanchor: "left", y: 0.98, yanchor: "top" },
      xaxis: { ...axis, ...layout.xaxis }, yaxis: { ...axis, ...layout.yaxis },
    };
    box.style.height = `${made.height + 2}px`; // Plotly takes it when the window is resized; 2 are its borders
    Plotly.newPlot(box, traces, made, { responsive: true, displayModeBar: false });
    // With a view box, a chart that was drawn for the screen fits on paper as a whole.
    const fit = () => { for (const svg of box.querySelectorAll("svg.main-svg")) svg.setAttribute("viewBox", `0 0 ${svg.getAttribute("width")} ${svg.getAttribute("height")}`); };
    box.on("plotly_afterplot", fit);
    fit();
    if (go) box.on("plotly_click", (event) => { const place = event.points?.[0]?.customdata; if (place) go(place); });
  });
  return box;
}
let AFTER_DRAW = [];

/** Stacked bars of counts over time, by the value of a column. A click opens the rows of a bar. */
function overTime(title, rows, indexes, time, column, order, state, section) {
  const dated = indexes.filter((row) => rows.at(row, time) !== null && plotlyTime(rows.at(row, time)) !== null);
  const [first, last] = extent(dated.map((row) => rows.at(row, time)));
  const step = binStep(first, last, 60);
  const groups = countBy(rows, dated, [column]);
  const rank = (value) => { const place = order.indexOf(value); return place < 0 ? order.length : place; };
  groups.sort((a, b) => rank(a.values[0]) - rank(b.values[0]) || b.n - a.n);
  const traces = groups.slice(0, 12).map((group, place) => {
    const bins = new Map();
    for (const row of group.rows) {
      const bin = Math.floor(rows.at(row, time) / step) * step;
      bins.set(bin, (bins.get(bin) ?? 0) + rowCount(rows, row));
    }
    const value = group.values[0], text = facetText(value);
    const starts = [...bins.keys()].sort((a, b) => a - b);
    return {
      type: "bar", name: plotlyText(value), x: starts.map((bin) => plotlyTime(bin + step / 2)), y: starts.map((bin) => bins.get(bin)), width: starts.map(() => step * 0.92),
      customdata: starts.map((bin) => rowsLink(section, { ...globalFilters(state), from: timeText(bin), to: timeText(bin + step - 1), [column]: text })),
      hovertext: starts.map((bin) => `${plotlyText(value)}: ${formatNumber(bins.get(bin))}<br>${timeText(bin)} for ${durationText(step)}`), hoverinfo: "text",
      marker: { color: colourOf(text, place) },
    };
  });
  return chart(title, traces, { barmode: "stack", xaxis: { type: "date" }, yaxis: { rangemode: "tozero" } }, go);
}
const colourOf = (text, place) => (Object.hasOwn(OWN_COLOURS, text) ? OWN_COLOURS[text] : COLOURS[place % COLOURS.length]);

function extent(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) { if (value < low) low = value; if (value > high) high = value; }
  return low <= high ? [low, high] : [0, 0];
}
const NICE_S = [0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800, 2592000, 31536000];
const binStep = (first, last, most) => 1000 * (NICE_S.find((step) => (last - first) / 1000 / step <= most) ?? NICE_S[NICE_S.length - 1] * 10);

/** Horizontal bars in the given order; `items` are {name, value, text, href, level}. */
function bars(title, items, layout) {
  const chosen = items.slice(0, 25).reverse();
  const trace = {
    type: "bar", orientation: "h", x: chosen.map((item) => item.value), y: chosen.map((_, place) => place),
    text: chosen.map((item) => plotlyText(item.text)), textposition: "auto", customdata: chosen.map((item) => item.href),
    hovertext: chosen.map((item) => `${plotlyText(item.name)}: ${plotlyText(item.text)}`), hoverinfo: "text",
    marker: { color: chosen.map((item) => LEVEL_COLOURS[item.level ?? ""]) },
  };
  const more = items.length > chosen.length ? ` (the first ${chosen.length} of ${items.length})` : "";
  return chart(title + more, [trace], {
    height: 70 + 24 * chosen.length, showlegend: false, ...layout,
    yaxis: { tickmode: "array", tickvals: chosen.map((_, place) => place), ticktext: chosen.map((item) => plotlyText(ellipsize(item.name))) },
  }, go);
}

/** Step lines: a value holds from one time to another; the line breaks where it is unknown. */
function stepLines(title, series, unit) {
  const traces = series.map((each, place) => {
    const x = [], y = [], texts = [];
    for (const [from, to, value] of each.pieces) {
      x.push(plotlyTime(from), plotlyTime(to)); y.push(value, value);
      const text = `${plotlyText(each.name)}<br>${value === null ? "unknown" : plotlyText(unit === "bytes" ? bytesText(value) : formatNumber(value))}, from ${timeText(from)} to ${timeText(to)}`;
      texts.push(text, text);
    }
    return { type: "scatter", mode: "lines", name: plotlyText(ellipsize(each.name)), x, y, hovertext: texts, hoverinfo: "text", connectgaps: false, line: { width: 2, color: COLOURS[place % COLOURS.length] } };
  });
  return chart(title, traces, { xaxis: { type: "date" }, yaxis: { rangemode: "tozero" }, height: 250, showlegend: true });
}
