/* Several runs: a table, and what they cost over the option that was swept. */
const when = (run) => run.started_at.slice(0, 19).replace("T", " ");
const COSTS = { throughput: "Throughput", step_time: "Step time", energy_per_step: "Energy a step", peak_memory: "Peak memory" };

function fieldsOf(run) {
  const spec = run.spec;
  return { batch: spec.batch, threads: spec.threads || "all", cores: spec.cores ? spec.cores.join("+") : "all", engine: run.engine_text, model: spec.model, mode: spec.mode, device: spec.device, input: spec.input ? spec.input.join("x") : "default", host: run.host.name || "", data: spec.data, day: run.started_at.slice(0, 10) };
}

function overview(runs, link) {
  const columns = [{ name: "started (UTC)", left: true }, { name: "model", left: true }, { name: "engine", left: true }, { name: "mode", left: true }, { name: "batch" }, { name: "status", left: true }, ...Object.values(COSTS).map((name) => ({ name }))];
  const rows = runs.map((run) => ({ cells: [{ node: h("a", { href: link(run) }, when(run)), sort: run.started_at }, { text: run.spec.model, sort: run.spec.model }, { text: run.engine_text, sort: run.engine_text }, { text: run.spec.mode, sort: run.spec.mode }, { text: String(run.spec.batch), sort: run.spec.batch }, { node: chip(run), sort: run.status },
    ...Object.keys(COSTS).map((name) => (run.metrics[name] ? { node: number(run.metrics[name]), sort: run.metrics[name].value } : { text: "–", sort: null }))] }));
  return table(columns, rows);
}

function sweep(runs) {
  const right = runs.filter((run) => run.status === "ok").sort((a, b) => (a.started_at < b.started_at ? -1 : 1));
  const fields = right.map(fieldsOf);
  const differing = fields.length ? Object.keys(fields[0]).filter((name) => new Set(fields.map((item) => item[name])).size > 1) : [];
  // The day tells runs apart only where nothing else does.
  const varying = differing.length > 1 ? differing.filter((name) => name !== "day") : differing;
  if (!varying.length) return { element: null, after: () => {} };
  const charts = h("div", { class: "two" });
  const choose = h("select", { "aria-label": "over", onchange: () => draw() }, varying.map((name) => h("option", { value: name }, name)));
  const draw = () => {
    const over = choose.value;
    const others = varying.filter((name) => name !== over);
    const lines = new Map();
    right.forEach((run, at) => {
      const key = others.map((name) => (["model", "engine"].includes(name) ? fields[at][name] : `${name} ${fields[at][name]}`)).join(", ");
      if (!lines.has(key)) lines.set(key, []);
      lines.get(key).push({ x: fields[at][over], run });
    });
    const numeric = right.every((_, at) => typeof fields[at][over] === "number");
    const x = [...new Set(fields.map((item) => item[over]))].sort((a, b) => (numeric ? a - b : String(a) < String(b) ? -1 : 1));
    const later = [];
    clear(charts, Object.entries(COSTS).filter(([name]) => right.some((run) => run.metrics[name])).map(([name, label]) => {
      const unit = right.find((run) => run.metrics[name]).metrics[name].unit;
      // Of several runs with the same settings, the newest.
      const value = (points, at) => points.filter((point) => point.x === at && point.run.metrics[name]).map((point) => point.run.metrics[name]).pop();
      if (!numeric) {
        const rows = x.flatMap((at) => [...lines].map(([key, points], line) => [key, value(points, at), line]).filter(([, found]) => found).map(([key, found, line]) => ({ name: [at, key].filter(Boolean).join(" · "), value: found.value, colour: colour(line), node: h("span", { class: "value" }, number(found)) })));
        return h("figure", { class: "chart" }, h("figcaption", null, label), bars(rows));
      }
      const host = h("div", { class: "plot" });
      later.push(() => sweepPlot(host, x, [...lines].map(([key, points]) => ({ name: key, values: x.map((at) => value(points, at)?.value ?? null) })), unit, over));
      return h("figure", { class: "chart" }, h("figcaption", null, `${label} over ${over}${unit.length > 3 ? `, ${unit}` : ""}`), host, lines.size > 1 ? legend([...lines.keys()]) : null);
    }));
    later.forEach((act) => act());
  };
  return { element: section("sweep", "What it costs", h("div", { class: "tools" }, h("label", null, "over ", choose), h("span", { class: "soft" }, "of runs with the same settings, the newest")), charts), after: draw };
}
