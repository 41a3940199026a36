"use strict";
// The picture of who sends to whom: senders on the left, receivers on the right, the largest first, the rest together.

const FLOW_CHOICE = { measure: "bytes", most: 12, grouped: null }; // grouped: null until chosen
const MOST_APART = 24; // with more machines, similar names are joined, unless chosen otherwise or one is filtered by
const NODE_GAP = 4, LEAST_NODE = 30, PICTURE_BAR = 9;
const WAY_CLASSES = { tcp_1801: "way-tcp", rpc_read: "way-read", http: "way-http" };
const OTHERS = Symbol("others");
const NOT_SEEN_NAME = "not seen";

/** A name without what tells similar machines apart: web07.corp is web*, 10.0.3.17 is 10.0.3.*. */
const similarName = (name) => (/^\d+(\.\d+){3}$/.test(name) ? name.replace(/\d+$/, "*") : name.toLowerCase().split(".")[0].replace(/\d+$/, "") + "*");

const addTo = (sums, key, amount) => sums.set(key, (sums.get(key) ?? 0) + amount);

/** What each name is called in the picture: itself, or what it shares with at least one other. */
function pictureNames(names, grouped) {
  const groups = new Map();
  for (const name of names) addTo(groups, similarName(name), 1);
  return new Map([...names].map((name) => [name, grouped && similarName(name).length > 1 && groups.get(similarName(name)) > 1 ? similarName(name) : name]));
}

/** The nodes of one side, the largest first: at most so many by name, and one for all others. */
function nodesOf(edges, side, most) {
  const sums = new Map();
  for (const edge of edges) addTo(sums, edge[side], edge.amount);
  const ordered = [...sums].sort((a, b) => b[1] - a[1]);
  const nodes = ordered.slice(0, most).map(([name, amount]) => ({ name, amount, members: 1 }));
  const rest = ordered.slice(most);
  if (rest.length) nodes.push({ name: OTHERS, amount: rest.reduce((sum, each) => sum + each[1], 0), members: rest.length });
  return nodes;
}

/** Nodes of both sides and links between them, of some rows of the flows. */
function pictureOf(rows, indexes, choice, isFiltered) {
  const nameAt = (row, side) => rows.at(row, side) ?? NOT_SEEN_NAME;
  const names = new Set(indexes.flatMap((row) => [nameAt(row, "sender"), nameAt(row, "receiver")]));
  const grouped = choice.grouped ?? (!isFiltered && names.size > MOST_APART);
  const shown = pictureNames(names, grouped);
  const edges = indexes.map((row) => ({ from: shown.get(nameAt(row, "sender")), to: shown.get(nameAt(row, "receiver")), way: rows.at(row, "way"), amount: rows.at(row, choice.measure) ?? 0 }));
  const left = nodesOf(edges, "from", choice.most), right = nodesOf(edges, "to", choice.most);
  const sideOf = (nodes) => { const known = new Set(nodes.map((node) => node.name)); return (name) => (known.has(name) ? name : OTHERS); };
  const [leftOf, rightOf] = [sideOf(left), sideOf(right)];
  const links = new Map();
  for (const edge of edges) {
    const from = leftOf(edge.from), to = rightOf(edge.to);
    const key = [left.findIndex((node) => node.name === from), right.findIndex((node) => node.name === to), edge.way].join("|");
    const link = links.get(key) ?? { from, to, way: edge.way, amount: 0 };
    link.amount += edge.amount;
    links.set(key, link);
  }
  return { left, right, links: [...links.values()].sort((a, b) => b.amount - a.amount), total: edges.reduce((sum, edge) => sum + edge.amount, 0), grouped };
}

const svg = (tag, props, ...children) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value); else element.setAttribute(name, String(value));
  }
  element.append(...children.flat().filter((each) => each !== null));
  return element;
};

const amountText = (amount, measure) => (measure === "bytes" ? bytesText(amount) : `${formatNumber(amount)} messages`);

/** Give each node its place from the top, as high as its share; return the height of the column. */
function stack(nodes, total, height) {
  let at = 0;
  for (const node of nodes) {
    node.width = total ? Math.max(1, (height * node.amount) / total) : 1;
    node.height = Math.max(LEAST_NODE, node.width);
    node.top = at;
    node.used = 0; // of its height, by links that are drawn
    node.paths = [];
    at += node.height + NODE_GAP;
  }
  return at;
}

/** The picture as SVG, `width` pixels wide. `choose(node)` is called for a node that is clicked. */
function flowPicture(picture, measure, width, choose) {
  const { left, right, links, total } = picture;
  const scale = 9 * Math.max(left.length, right.length) + 140;
  const height = Math.max(stack(left, total, scale), stack(right, total, scale), 40);
  const side = Math.min(300, Math.round(width * 0.34)), xLeft = side, xRight = width - side - PICTURE_BAR, middle = width / 2;
  const find = (nodes, name) => nodes.find((node) => node.name === name);
  const joined = links.map((link) => ({ ...link, from: find(left, link.from), to: find(right, link.to) })).sort((a, b) => a.from.top - b.from.top || a.to.top - b.to.top);
  const paths = joined.map(({ from, to, way, amount }) => {
    const thick = total ? Math.max(0.75, (scale * amount) / total) : 0.75;
    const [begin, end] = [from, to].map((node) => { node.used += thick; return (node.top + Math.min(node.used - thick / 2, node.height)).toFixed(1); });
    const path = svg("path", { class: `link ${WAY_CLASSES[way] ?? ""}`, "stroke-width": thick.toFixed(2), d: `M${xLeft + PICTURE_BAR},${begin}C${middle},${begin} ${middle},${end} ${xRight},${end}` },
      svg("title", {}, `${nodeLabel(from)} \u2192 ${nodeLabel(to)}, ${wayText(way)}: ${amountText(amount, measure)}`));
    from.paths.push(path);
    to.paths.push(path);
    return path;
  });
  const column = (what, nodes, x, labelX) => nodes.map((node) => {
    const amount = `${amountText(node.amount, measure)}, ${shareText(node.amount, total)}`, act = () => choose(node);
    const light = (on) => () => { for (const path of paths) path.classList.toggle("dim", on && !node.paths.includes(path)); };
    return svg("g", { class: `node ${what}`, role: "button", tabindex: 0, onclick: act, onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); act(); } },
      onmouseenter: light(true), onmouseleave: light(false), onfocus: light(true), onblur: light(false) },
    svg("rect", { x, y: node.top, width: PICTURE_BAR, height: node.height }),
    svg("foreignObject", { x: labelX, y: node.top, width: side - 5, height: LEAST_NODE }, h("div", {}, untrusted(nodeLabel(node))), h("div", { class: "amount" }, amount)),
    svg("title", {}, `${what} ${nodeLabel(node)}: ${amount}`));
  });
  return svg("svg", { class: "flows", viewBox: `0 0 ${width} ${Math.ceil(height)}`, role: "group", "aria-label": `Who sends to whom: ${left.length} senders, ${right.length} receivers, ${amountText(total, measure)}. The table below has the same flows.` },
    paths, column("sender", left, xLeft, 0), column("receiver", right, xRight, xRight + PICTURE_BAR + 5));
}

const nodeLabel = (node) => (node.name === OTHERS ? `${formatNumber(node.members)} others` : escapeHidden(node.name));
const wayText = (way) => ({ tcp_1801: "TCP 1801", rpc_read: "remote read", http: "HTTP" })[way] ?? facetLabel(way ?? "unknown way");

/** The picture with its choices: what is measured, how many machines, whether similar names are joined. */
function flowSection(rows, indexes, isFiltered, filterByMachine) {
  const box = h("div", { class: "chart flowbox" });
  const draw = (given) => {
    const picture = pictureOf(rows, indexes, FLOW_CHOICE, isFiltered);
    const choose = (node) => {
      if (node.name === OTHERS) { FLOW_CHOICE.most *= 2; draw(); } else if (node.name !== NOT_SEEN_NAME) filterByMachine(node.name.replace(/\*$/, ""));
    };
    const select = (label, key, values) => h("label", {}, label, " ", h("select", { onchange: (event) => { FLOW_CHOICE[key] = key === "most" ? Number(event.target.value) : event.target.value; draw(); box.querySelector(`select[data-key="${key}"]`).focus(); }, "data-key": key },
      values.map(([value, text]) => h("option", { value, selected: FLOW_CHOICE[key] === value }, text))));
    const counts = [...new Set([6, 12, 24, 48, FLOW_CHOICE.most])].sort((a, b) => a - b);
    const width = given ?? Math.max(320, box.clientWidth - 16);
    box.replaceChildren(
      h("div", { class: "choices" }, select("by", "measure", [["bytes", "bytes"], ["messages", "messages"]]), select("largest", "most", counts.map((each) => [each, `${each} on each side`])),
        h("label", {}, h("input", { type: "checkbox", checked: picture.grouped, onchange: (event) => { FLOW_CHOICE.grouped = event.target.checked; draw(); box.querySelector("input").focus(); } }), " join similar names (web01, web02: web*)"),
        h("span", { class: "legend" }, [...new Set(picture.links.map((each) => each.way))].map((way) => h("span", { class: `key ${WAY_CLASSES[way] ?? ""}` }, wayText(way))))),
      picture.links.length ? flowPicture(picture, FLOW_CHOICE.measure, width, choose) : h("p", { class: "note" }, "No flow matches these filters."));
  };
  AFTER_DRAW.push(draw);
  return box;
}
