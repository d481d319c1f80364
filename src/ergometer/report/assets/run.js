const LABELS = { step_time: "Step time", throughput: "Throughput", energy_per_step: "Energy a step", peak_memory: "Peak memory", wall_time: "Time", energy: "Energy" };

function chip(run) {
  const text = run.status === "ok" && run.tone === "doubtful" ? "ok, warned" : run.status.replace("_", " ");
  return h("span", { class: `chip ${run.tone}` }, text);
}

function card(run, name) {
  const metric = run.metrics[name];
  if (!metric) return h("div", { class: "card absent" }, h("h4", null, LABELS[name]), h("p", { class: "big" }, "not measured"), h("p", null, run.absent[name]));
  const beside = run.published.filter((item) => item.metric === name);
  return h("div", { class: "card" }, h("h4", null, LABELS[name]), h("p", { class: "big" }, number(metric)),
    h("p", null, metric.interval ? `${metric.interval}, ` : "", `${metric.source}${metric.n > 1 ? `, n = ${metric.n}` : ""}`),
    beside.map((item) => h("p", { class: "published" }, `published: ${item.text} (${item.where}); here ${item.ratio} times that`)));
}

function conditions(run) {
  const host = run.host;
  const rows = [["processor", host.processor], ["cores", host.cores], ["memory", host.memory_bytes && format(host.memory_bytes, "B")], ["host", host.name], ["kernel", host.kernel],
    ["governors", typeof host.governors === "object" ? Object.entries(host.governors || {}).map(([core, name]) => `${core}: ${name}`).join(", ") || "none: the kernel does not control the frequency" : host.governors],
    ["temperature at start", Object.entries(host.temperatures_c || {}).map(([zone, value]) => `${zone} ${value} °C`).join(", ")], ["load at start", host.load_average], ["pressure at start", host.pressure],
    ["threads", host.engine_threads || run.spec.threads], ["versions", Object.entries(host.versions || {}).map(([name, version]) => `${name} ${version}`).join(", ")],
    ["started", run.started_at], ["run", run.id], ["experiment", run.spec_id]];
  const options = Object.entries(run.spec).filter(([name, value]) => value !== null && !["model", "budget", "options"].includes(name)).map(([name, value]) => `${name} ${value}`);
  const list = [...rows, ["spec", [...options, ...Object.entries(run.spec.options || {}).map(([name, value]) => `${name} ${value}`)].join(", ")]];
  return h("dl", null, list.filter(([, value]) => value !== undefined && value !== null && value !== "").map(([name, value]) => [h("dt", null, name), h("dd", null, String(value))]));
}

function memory(run) {
  const parts = Object.entries(run.metrics).filter(([name]) => name.startsWith("memory.")).map(([name, metric]) => ({ name: name.slice(7), metric })).filter((part) => part.metric.value > 0).sort((a, b) => b.metric.value - a.metric.value);
  if (!parts.length) return null;
  const whole = parts.reduce((sum, part) => sum + part.metric.value, 0);
  return section("memory", "What memory consists of",
    h("div", { class: "stack", role: "img", "aria-label": parts.map((part) => `${part.name} ${part.metric.text}`).join(", ") }, parts.map((part, at) => h("i", { style: `width:${100 * part.metric.value / whole}%;background:${colour(at)}` }))),
    bars(parts.map((part, at) => ({ name: part.name, value: part.metric.value, colour: colour(at), node: h("span", { class: "value" }, number(part.metric), " ", h("small", null, percent(part.metric.value / whole))) }))));
}

function cores(run) {
  const rows = Object.entries(run.metrics).filter(([name]) => /^(cpu|gpu)_utilisation\./.test(name)).map(([name, metric]) => ({ name: name.replace("cpu_utilisation.", "core ").replace("gpu_utilisation.", "GPU "), value: metric.value, node: h("span", { class: "value" }, number(metric)) }));
  return rows.length ? section("cores", run.metrics.step_time ? "Utilisation during the timed steps" : "Utilisation", bars(rows, 100)) : null;
}

function stepSection(run) {
  const steps = run.steps;
  if (!steps) return null;
  const [spread, course] = [h("div", { class: "plot" }), h("div", { class: "plot" })];
  const beyond = steps.beyond ? `; ${steps.beyond} more are slower, up to ${format(steps.slowest, "s")}` : "";
  const made = section("steps", "Step times", h("div", { class: "two" },
    h("figure", { class: "chart" }, h("figcaption", null, `how many steps took how long${beyond}`), spread),
    h("figure", { class: "chart" }, h("figcaption", null, steps.width > 1 ? `in their order: median of every ${steps.width}, with lowest and highest` : "in their order"), course)));
  return [made, () => { histogram(spread, steps); overSteps(course, steps); }];
}

function allMetrics(run) {
  const rows = Object.entries(run.metrics).map(([name, metric]) => ({ cells: [{ text: name, sort: name }, { node: number(metric), sort: metric.value }, { text: metric.interval, sort: metric.low }, { text: String(metric.n), sort: metric.n }, { text: metric.source, sort: metric.source }, { text: metric.note, sort: metric.note }] }));
  const columns = [{ name: "metric", left: true }, { name: "value" }, { name: "interval, or lowest to highest" }, { name: "n" }, { name: "how", left: true }, { name: "note", left: true }];
  const why = Object.entries(run.absent);
  return section("metrics", "Every number", h("details", { class: "closed" }, h("summary", null, `${rows.length} metrics, and how each was obtained`), table(columns, rows)),
    why.length ? h("details", { class: "closed" }, h("summary", null, `${why.length} not measured, and why`), h("dl", null, why.map(([name, reason]) => [h("dt", null, name), h("dd", null, reason)]))) : null);
}

function fold(name, heading, content) {
  return h("section", { id: name }, h("h3", null, heading), h("details", { class: "closed" }, h("summary", null, "show"), content));
}

/* A whole run. Returns the element and what must be done once it is on the page, where it has a width. */
function runView(run) {
  const after = [];
  const warnings = [...run.missing, ...run.warnings, ...run.notes];
  const steps = stepSection(run);
  if (steps) after.push(steps[1]);
  const timelineHost = h("div", { class: "timeline" }, "…");
  if (run.timeline) after.push(() => new Timeline(timelineHost, run.timeline).show());
  const papers = Object.entries(run.papers);
  const element = h("article", { class: "run", "data-run": run.id },
    h("h2", null, title(run), " ", chip(run)),
    h("p", { class: `verdict ${run.tone}` }, run.verdict),
    warnings.length ? h("ul", { class: "warnings" }, warnings.map((text) => h("li", null, text))) : null,
    h("div", { class: "cards" }, run.cards.map((name) => card(run, name))),
    papers.length ? h("p", { class: "papers" }, "Of this network, papers state: ", papers.map(([paper, text]) => `${paper}: ${text}`).join("; "), run.metrics.parameters ? `. Counted here: ${run.metrics.parameters.value.toLocaleString("en")} parameters.` : ".") : null,
    steps ? steps[0] : null,
    run.shares ? section("breakdown", "Where a step goes", h("p", { class: "soft" }, "Per traced step; tracing comes after the timed steps, and takes time itself. ~ marks what is estimated."), new Breakdown(run.shares).element) : null,
    memory(run), cores(run),
    run.timeline ? section("timeline", "Timeline", h("p", { class: "soft" }, "Drag over a plot to zoom, double-click for all; with the keyboard: arrows, + and -, 0. A line is the mean of what a pixel covers, the band its lowest and highest."), timelineHost) : null,
    allMetrics(run), fold("conditions", "Device and conditions", conditions(run)));
  return { element, after: () => Promise.all(after.map((act) => act())) };
}
