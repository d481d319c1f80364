"use strict";

/* Elements are only ever made from text, never from markup: a name can hold anything. */
function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && typeof value !== "string") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

function clear(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

const PREFIXES = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""], [1e-3, "m"], [1e-6, "µ"], [1e-9, "n"]];
const SCALED = new Set(["s", "J", "W", "B", "Hz", "MAC", "FLOP/s"]);

function digits(value) {
  const size = Math.abs(value);
  if (size === 0 || size >= 1000 || Number.isInteger(value)) return value.toFixed(0);
  if (size < 0.001) return value.toExponential(1);
  return value.toFixed(size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2);
}

/* Three digits with a prefix where the unit takes one: 0.0123 s is 12.3 ms. */
function format(value, unit) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!SCALED.has(unit) || value === 0) return `${digits(value)} ${unit}`.trim();
  let [factor, prefix] = PREFIXES.find(([size]) => Math.abs(value) >= size * 0.9995) || PREFIXES[PREFIXES.length - 1];
  if (unit === "B" && factor < 1) [factor, prefix] = [1, ""];
  return `${digits(value / factor)} ${prefix}${unit}`;
}

/* The marks of an axis: one prefix for all, and as many digits as tell them apart. */
function formatTicks(ticks, unit) {
  const known = ticks.filter((tick) => tick !== null);
  const most = Math.max(...known.map(Math.abs), 0);
  const apart = known.length > 1 ? Math.abs(known[1] - known[0]) : most || 1;
  const scaled = SCALED.has(unit) && most > 0;
  const [factor, prefix] = (scaled && PREFIXES.find(([size]) => most >= size * 0.9995)) || [1, ""];
  const places = Math.min(9, Math.max(0, -Math.floor(Math.log10(apart / factor) + 1e-9)));
  const named = unit.length > 3 ? "" : `${prefix}${unit}`; // a long one stands above the plot
  return ticks.map((tick) => (tick === null ? "" : `${Number((tick / factor).toFixed(places))} ${named}`.trim()));
}

function percent(share) {
  return `${(100 * share).toFixed(1)} %`;
}

/* A number that says how it was obtained when it is pointed at, touched or reached with the keyboard. */
function number(metric) {
  const about = metric.source === "estimated" ? "~" : "";
  return h("span", { class: "number", tabindex: "0", "data-how": metric.how }, about + metric.text);
}

function title(run) {
  const spec = run.spec;
  if (!["train", "infer"].includes(spec.mode)) return spec.model;
  return `${spec.model} ${spec.mode} · batch ${spec.batch} · ${run.engine_text}`;
}

function section(name, heading, ...content) {
  return h("section", { id: name, "aria-label": heading }, h("h3", null, heading), ...content);
}

/* rows: arrays of {text, sort, node}; columns: {name, left}. A heading sorts. */
function table(columns, rows, attributes) {
  let by = null;
  let down = true;
  const body = h("tbody");
  const fill = () => {
    const order = by === null ? rows : [...rows].sort((a, b) => {
      const [x, y] = [a.cells[by].sort, b.cells[by].sort];
      if (x === null || x === undefined) return 1;
      if (y === null || y === undefined) return -1;
      return (x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1);
    });
    clear(body, order.map((row) => h("tr", row.attributes, row.cells.map((cell, at) =>
      h("td", { class: columns[at].left ? "left" : null }, cell.node || cell.text)))));
  };
  const heads = columns.map((column, at) => h("th", { class: column.left ? "left" : null, scope: "col" },
    h("button", { class: "sort", type: "button", onclick: () => {
      down = by === at ? !down : !column.left;
      by = at;
      heads.forEach((head, other) => head.setAttribute("aria-sort", other !== at ? "none" : down ? "descending" : "ascending"));
      fill();
    } }, column.name)));
  fill();
  return h("div", { class: "scroll" }, h("table", attributes, h("thead", null, h("tr", null, heads)), body));
}
