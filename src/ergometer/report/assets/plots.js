/* Okabe and Ito's colours, which can be told apart with every kind of colour vision; a dash tells them apart too. */
const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c8c8c"];
const colour = (at) => COLOURS[at % COLOURS.length];
const dash = (at) => (at < COLOURS.length ? undefined : [6, 3 + Math.floor(at / COLOURS.length)]);
const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const plots = new Map(); // element -> plot, of all that are on the page

function axes(xLabel, xValues, unit) {
  const shared = { stroke: () => ink("--soft"), grid: { stroke: () => ink("--line"), width: 1 }, ticks: { stroke: () => ink("--line"), width: 1 }, font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif" };
  return [
    { ...shared, label: xLabel || undefined, labelSize: 18, size: 32, values: xValues },
    { ...shared, size: 70, values: (_, ticks) => formatTicks(ticks, unit) },
  ];
}

function plot(host, options, data) {
  const width = () => Math.max(200, host.clientWidth);
  const made = new uPlot({ width: width(), height: 180, legend: { show: false }, ...options }, data, host);
  plots.set(made, () => host.isConnected && made.setSize({ width: width(), height: made.height }));
  return made;
}

function resize() {
  for (const [made, fit] of plots) {
    if (made.root.isConnected) fit();
    else { made.destroy(); plots.delete(made); }
  }
}

let waiting = 0;
window.addEventListener("resize", () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(resize); });
/* Colours are read when a plot is drawn: draw again when they change, as they do on paper. */
const redraw = () => { for (const made of plots.keys()) made.redraw(false, false); };
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
matchMedia("print").addEventListener("change", () => { resize(); redraw(); });

/* Step times: how often each was seen, with the mean of none hidden: what lies beyond the axis is counted. */
function histogram(host, steps) {
  const middles = steps.counts.map((_, at) => (steps.edges[at] + steps.edges[at + 1]) / 2);
  const bars = uPlot.paths.bars({ size: [0.96, 200], gap: 0 });
  plot(host, {
    axes: axes("step time", (_, ticks) => formatTicks(ticks, "s"), ""),
    scales: { x: { time: false, range: [steps.edges[0], steps.edges[steps.edges.length - 1]] }, y: { range: (_, __, most) => [0, Math.max(1, most)] } },
    series: [{}, { fill: () => `${colour(0)}b0`, stroke: colour(0), width: 1, paths: bars, points: { show: false } }],
    cursor: { show: false },
  }, [middles, steps.counts]);
}

function overSteps(host, steps) {
  const x = steps.median.map((_, at) => at * steps.width + 1);
  const band = steps.width > 1;
  plot(host, {
    axes: axes("step", (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? String(tick) : "")), "s"),
    scales: { x: { time: false } },
    series: [{}, { stroke: colour(0), width: 1.2, points: { show: x.length < 200, size: 4 } },
      { stroke: "transparent", points: { show: false } }, { stroke: "transparent", points: { show: false } }],
    bands: band ? [{ series: [3, 2], fill: `${colour(0)}30` }] : [],
    cursor: { show: false },
  }, [x, steps.median, steps.lowest, steps.highest]);
}

/* One metric over an option: a line for each combination of the others. x are numbers. */
function sweepPlot(host, x, lines, unit, xName) {
  const doubling = x.length > 2 && x.every((value) => value > 0) && x[x.length - 1] / x[0] >= 8;
  plot(host, {
    axes: axes(xName, (_, ticks) => ticks.map((tick) => (x.includes(tick) ? String(tick) : "")), unit).map((axis, at) =>
      (at ? axis : { ...axis, splits: () => x, filter: (_, splits) => splits })),
    scales: { x: { time: false, ...(doubling ? { distr: 3, log: 2 } : {}), range: (_, low, high) => (doubling ? [low / 1.2, high * 1.2] : [low - 0.08 * (high - low || 1), high + 0.08 * (high - low || 1)]) },
      y: { range: (_, low, high) => [0, (high || 1) * 1.1] } },
    series: [{}, ...lines.map((line, at) => ({ label: line.name, stroke: colour(at), dash: dash(at), width: 2, spanGaps: true, points: { show: true, size: 7 } }))],
    cursor: { show: false },
  }, [x, ...lines.map((line) => line.values)]);
}

function legend(names) {
  return h("ul", { class: "legend" }, names.map((name, at) =>
    h("li", null, h("i", { style: `background:${colour(at)}` }), name)));
}

/* rows: {name, value, text}: bars as long as their value, as text that can be read, copied and printed. */
function bars(rows, most) {
  const longest = most || Math.max(...rows.map((row) => row.value), 1e-300);
  return h("ul", { class: "bars" }, rows.map((row, at) => h("li", null,
    h("span", { class: "name" }, row.name),
    h("span", { class: "track" }, h("i", { style: `width:${Math.max(0, 100 * row.value / longest)}%;background:${row.colour || colour(0)}` })),
    row.node || h("span", { class: "value" }, row.text))));
}
