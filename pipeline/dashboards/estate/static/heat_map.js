"use strict";
// Sendings by hour of the week, as a heat map: 168 counts, the first that of Monday 00:00.

const DAYS = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
const HEAT_CELL = 18, HEAT_LEFT = 34, HEAT_TOP = 16;
const hourOfWeekText = (place) => `${DAYS[Math.floor(place / 24)]} ${pad(place % 24)}:00`;

/** A heat map. `seconds`: how much of each hour of the week was captured; where nothing was, nothing is known. */
function heatMap(counts, seconds) {
  const most = Math.max(...counts), busiest = counts.indexOf(most);
  const cells = counts.map((count, place) => {
    const x = HEAT_LEFT + (place % 24) * HEAT_CELL, y = HEAT_TOP + Math.floor(place / 24) * HEAT_CELL, of = seconds[place];
    return svg("rect", { class: of ? "heat" : "heat outside", x, y, width: HEAT_CELL - 1, height: HEAT_CELL - 1, "fill-opacity": of ? (count ? 0.15 + 0.85 * Math.sqrt(count / most) : 0).toFixed(2) : 1 },
      svg("title", {}, of ? `${hourOfWeekText(place)}: ${formatNumber(count)} sendings in ${durationText(of * 1000)} that were captured` : `${hourOfWeekText(place)}: not captured`));
  });
  const hours = [0, 6, 12, 18, 23].map((hour) => svg("text", { x: HEAT_LEFT + hour * HEAT_CELL + HEAT_CELL / 2, y: 11, "text-anchor": "middle" }, String(hour)));
  const days = DAYS.map((day, place) => svg("text", { x: 0, y: HEAT_TOP + place * HEAT_CELL + 13 }, day));
  return svg("svg", { class: "heatmap", viewBox: `0 0 ${HEAT_LEFT + 24 * HEAT_CELL} ${HEAT_TOP + 7 * HEAT_CELL}`, role: "img", "aria-label": `Sendings by weekday and hour, ${SITE.time_zone}; most on ${hourOfWeekText(busiest)}: ${formatNumber(most)}` }, hours, days, cells);
}
