/* The pages of `ergo ui`: a list of all runs, one run, two compared. The address after # says which. */
const token = new URLSearchParams(location.search).get("token") || "";
const PAGE_ROWS = 100;
const state = { version: "", runs: [], words: "", chosen: [], rows: PAGE_ROWS };

async function ask(path, values) {
  const query = new URLSearchParams({ ...values, token });
  let answer;
  try {
    answer = await fetch(`${path}?${query}`);
  } catch (error) {
    throw new Error("The server does not answer: start `ergo ui` again and open the address that it prints.");
  }
  const data = await answer.json().catch(() => ({ error: `The server answered ${answer.status}.` }));
  if (data.error) throw new Error(data.error);
  return data;
}

const UNIT_OF = { step_time: "s", throughput: "samples/s", energy_per_step: "J", peak_memory: "B" };

/* A row of the listing as the other views know a run. */
function light(row) {
  const [id, started_at, status, model, engine, mode, batch, warned, estimated, ...costs] = row;
  const metrics = {};
  Object.keys(COSTS).forEach((name, at) => {
    if (costs[at] !== null) metrics[name] = { value: costs[at], unit: UNIT_OF[name], text: format(costs[at], UNIT_OF[name]), source: (estimated || "").split(",").includes(name) ? "estimated" : "", how: "open the run to see how it was obtained" };
  });
  const fields = { id, status, model, engine, mode, batch: String(batch) };
  const tone = status === "ok" ? (warned ? "doubtful" : "good") : status === "running" ? "doubtful" : "bad";
  return { id, started_at, status, tone, engine_text: engine, spec: { model, engine, mode, batch }, host: {}, metrics, 
    text: `${started_at} ${Object.values(fields).join(" ")}`.toLowerCase(), fields };
}

/* Every word must occur; field=value must be the field's value. */
function filtered() {
  const words = state.words.toLowerCase().split(/[\s,]+/).filter(Boolean);
  return state.runs.filter((run) => words.every((word) => {
    const [name, value] = word.split("=");
    return value !== undefined && run.fields[name] !== undefined ? value.split("|").includes(run.fields[name].toLowerCase()) : run.text.includes(word);
  }));
}

async function refresh() {
  const found = await ask("/api/runs", { known: state.version });
  state.version = found.version;
  if (found.rows) state.runs = found.rows.map(light);
  return Boolean(found.rows);
}

function frame(...content) {
  clear(document.getElementById("app"), h("header", null, h("h1", null, "Ergometer"), h("nav", null, h("a", { href: "#/" }, "all runs"), h("a", { href: "#/compare" }, "compare"))), content);
}

function listView() {
  const count = h("output", { class: "where" });
  const body = h("div");
  const plots = h("div");
  const compareLink = h("button", { type: "button", onclick: () => { location.hash = `#/compare?${new URLSearchParams({ a: state.chosen[0], b: state.chosen[1] })}`; } }, "compare the two");
  const search = h("input", { type: "search", value: state.words, placeholder: "lenet batch=16 engine=torch", "aria-label": "filter", oninput: () => { state.words = search.value; state.rows = PAGE_ROWS; fill(); } });
  search.value = state.words;
  const plotting = h("input", { type: "checkbox", onchange: () => draw() });
  let shown = [];
  const draw = () => {
    if (!plotting.checked) { clear(plots); return; }
    const swept = sweep(shown.slice(0, 2000));
    clear(plots, swept.element || h("p", { class: "soft" }, "These runs differ in nothing that can be plotted."));
    swept.after();
  };
  const pick = (run) => h("input", { type: "checkbox", checked: state.chosen.includes(run.id), "aria-label": `choose ${run.id} to compare`, onchange: () => {
    state.chosen = state.chosen.includes(run.id) ? state.chosen.filter((id) => id !== run.id) : [...state.chosen, run.id].slice(-2);
    fill();
  } });
  const columns = [{ name: "", left: true }, { name: "started (UTC)", left: true }, { name: "model", left: true }, { name: "engine", left: true }, { name: "mode", left: true }, { name: "batch" }, { name: "status", left: true }, ...Object.values(COSTS).map((name) => ({ name }))];
  const fill = () => {
    shown = filtered();
    count.textContent = `${shown.length} of ${state.runs.length} runs`;
    compareLink.disabled = state.chosen.length !== 2;
    const rows = shown.slice(0, state.rows).map((run) => ({ attributes: { "data-run": run.id, class: state.chosen.includes(run.id) ? "chosen" : null }, cells: [{ node: pick(run), sort: state.chosen.includes(run.id) }, { node: h("a", { href: `#/run/${run.id}` }, when(run)), sort: run.started_at }, { text: run.spec.model, sort: run.spec.model }, { text: run.engine_text, sort: run.engine_text }, { text: run.spec.mode, sort: run.spec.mode }, { text: String(run.spec.batch), sort: run.spec.batch }, { node: chip(run), sort: run.status },
      ...Object.keys(COSTS).map((name) => (run.metrics[name] ? { node: number(run.metrics[name]), sort: run.metrics[name].value } : { text: "–", sort: null }))] }));
    const more = shown.length > state.rows ? h("button", { type: "button", onclick: () => { state.rows += 10 * PAGE_ROWS; fill(); } }, `${shown.length - state.rows} more`) : null;
    clear(body, shown.length ? table(columns, rows) : h("p", null, state.runs.length ? "No run matches." : "Nothing is measured yet: `ergo run lenet` makes a first run."), more || "");
    draw();
  };
  frame(h("div", { class: "tools" }, search, compareLink, h("label", null, plotting, " plot"), count), plots, body);
  fill();
  return async () => { if (await refresh()) fill(); };
}

/* A run that goes on: its stage, its steps, and the latest readings as they come. */
class Live {
  constructor(run) {
    this.id = run.id;
    this.past = [];
    this.charts = new Map();
    this.said = h("p", { class: "verdict doubtful", role: "status" });
    this.plots = h("div", { class: "two" });
    frame(h("article", { class: "run", "data-run": run.id }, h("h2", null, title(run), " ", chip(run)), this.said, this.plots));
    this.take(run);
  }

  take(run) {
    const { stage, step, rate, live } = run.progress;
    this.said.textContent = `It is running: stage ${stage || "start"}${step ? `, step ${step}` : ""}${rate ? `, ${digits(rate)} samples a second` : ""}.`;
    this.past.push({ t: Date.now() / 1000, values: { "samples a second": rate ?? null, ...live } });
    for (const name of new Set(this.past.flatMap((item) => Object.keys(item.values)))) {
      if (!this.charts.has(name)) this.charts.set(name, this.chart(name));
      this.charts.get(name).setData([this.past.map((item) => item.t - this.past[0].t), this.past.map((item) => item.values[name] ?? null)]);
    }
  }

  chart(name) {
    const host = h("div", { class: "plot" });
    const unit = { power: ", W", temperature: ", °C" }[name.split(".")[0]] || "";
    this.plots.append(h("figure", { class: "chart" }, h("figcaption", null, name + unit), host));
    return plot(host, { height: 140, axes: axes("", (_, ticks) => formatTicks(ticks, "s"), ""), scales: { x: { time: false } }, cursor: { show: false },
      series: [{}, { stroke: colour(this.charts.size), width: 1.5, points: { show: true, size: 4 } }] }, [[0], [null]]);
  }
}

async function runPage(id) {
  const run = await ask(`/api/runs/${id}`);
  if (run.progress) {
    const live = new Live(run);
    return async () => {
      const now = await ask(`/api/runs/${id}`);
      if (now.progress) live.take(now);
      else route();
    };
  }
  const view = runView(run);
  const link = (end, text) => h("a", { href: `/runs/${id}${end}?${new URLSearchParams({ token })}`, download: `${id}${end}` }, text);
  frame(h("p", { class: "tools" }, link(".html", "save this page"), link(".trace.json", "save the trace for Perfetto"), h("a", { href: `#/compare?a=${id}` }, "compare with …")), view.element);
  await view.after();
  return null;
}

async function comparePage(values) {
  const field = (name, value) => h("input", { type: "text", name, value, required: true, "aria-label": `${name.toUpperCase()}: a run or a query`, placeholder: "a run, or a query such as model=lenet,engine=torch" });
  const form = h("form", { class: "tools", onsubmit: (event) => { event.preventDefault(); location.hash = `#/compare?${new URLSearchParams(new FormData(form))}`; } },
    "A ", field("a", values.get("a") || ""), " B ", field("b", values.get("b") || ""), h("button", null, "compare"));
  frame(h("h2", null, "Compare"), form);
  if (!values.get("a") || !values.get("b")) return null;
  const found = await ask("/api/compare", { a: values.get("a"), b: values.get("b") });
  const side = (letter, runs) => h("p", null, `${letter}: ${title(runs[0])}, ${runs.length === 1 ? `run ${runs[0].id}` : `${runs.length} runs`}`);
  const columns = [{ name: "metric", left: true }, { name: "A" }, { name: "B" }, { name: "B / A" }, { name: "95 % interval" }, { name: "p" }, { name: "B is", left: true }];
  const rows = found.rows.map((row) => ({ cells: [{ text: row.metric, sort: row.metric }, ...[row.first, row.second].map((value) => ({ text: (row.estimated ? "~" : "") + format(value, row.unit), sort: value })), { text: row.first ? (row.second / row.first).toFixed(3) : "", sort: row.first ? row.second / row.first : null },
    { text: row.found ? `${row.found.low.toFixed(3)} to ${row.found.high.toFixed(3)}` : "", sort: null }, { text: row.found ? row.found.p.toPrecision(1) : "", sort: row.found ? row.found.p : null }, { node: h("strong", { class: row.verdict.split(" ")[0] }, row.verdict), sort: row.verdict }] }));
  frame(h("h2", null, "Compare"), form, side("A", found.sides[0]), side("B", found.sides[1]),
    Object.entries(found.differing).map(([name, [a, b]]) => h("p", { class: "soft" }, `${name}: ${a} against ${b}`)), table(columns, rows, { class: "comparison" }),
    found.remarks.length ? h("ul", { class: "warnings" }, found.remarks.map((text) => h("li", null, text))) : null);
  return null;
}

let again = null;
let timer = 0;
let asked = 0;

async function route() {
  const mine = ++asked;
  clearTimeout(timer);
  const [path, query] = location.hash.slice(2).split("?");
  let next = null;
  try {
    if (path.startsWith("run/")) next = await runPage(path.slice(4));
    else if (path === "compare") next = await comparePage(new URLSearchParams(query || ""));
    else { await refresh(); next = listView(); }
  } catch (error) {
    frame(h("p", { class: "error" }, error.message));
  }
  if (mine !== asked) return;
  again = next;
  document.body.dataset.ready = "yes";
  tick(mine);
}

/* Looks again every two seconds while the page is looked at. */
function tick(mine) {
  timer = setTimeout(async () => {
    if (mine !== asked) return;
    if (again && !document.hidden) await again().catch((error) => frame(h("p", { class: "error" }, error.message)));
    if (mine === asked) tick(mine);
  }, 2000);
}
