const TICK_S = 1e-4;
const ABSENT = 65535;
/* In which order kinds of channels are shown, and as what. */
const KINDS = [["power.", "Power"], ["energy.", "Power"], ["total_energy.", "Power"], ["temperature.", "Temperature"],
  ["cpu.busy.", "Utilisation of each core"], ["gpu_utilisation.", "Utilisation of accelerators"], ["frequency.", "Frequency"],
  ["gpu_frequency.", "Frequency"], ["process.rss", "Memory"], ["process.peak", "Memory"], ["process.pss", "Memory"], ["gpu_memory.", "Memory"],
  ["throttle.", "Throttling"], ["process.cpu", "The process: CPU used (100 % is one core)"], ["process.wait", "Waiting for a core"], ["pressure.", "Waiting for a core"], ["cpu.steal", "Taken by the hypervisor"], ["cpu.idle.", "Idle share of each core"]];

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

function times(buffer, place) {
  const steps = new Int32Array(buffer, place[0], place[1]);
  const out = new Float64Array(steps.length);
  let at = 0;
  for (let i = 0; i < steps.length; i++) { at += steps[i]; out[i] = at * TICK_S; }
  return out;
}

function values(buffer, place, channel) {
  const codes = new Uint16Array(buffer, place[0], place[1]);
  const scale = (channel.high - channel.low) / (ABSENT - 1);
  return Float32Array.from(codes, (code) => (code === ABSENT ? NaN : channel.low + code * scale));
}

function firstAtLeast(sorted, value) {
  let [low, high] = [0, sorted.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/* A line as wide as the plot: of each pixel the mean, lowest and highest. undefined: no sample; null: one that failed. */
function drawn(line, from, to, width) {
  const mean = new Array(width).fill(undefined);
  const low = new Array(width).fill(undefined);
  const high = new Array(width).fill(undefined);
  const scale = width / (to - from);
  const first = Math.max(0, firstAtLeast(line.times, from) - 1);
  const last = Math.min(line.times.length - 1, firstAtLeast(line.times, to));
  for (let i = first; i <= last;) {
    const at = Math.min(width - 1, Math.max(0, Math.floor((line.times[i] - from) * scale)));
    let [sum, count, least, most] = [0, 0, Infinity, -Infinity];
    for (; i <= last && Math.min(width - 1, Math.max(0, Math.floor((line.times[i] - from) * scale))) === at; i++) {
      const value = line.mean[i];
      if (value !== value) continue;
      sum += value;
      count++;
      if (line.lowest[i] < least) least = line.lowest[i];
      if (line.highest[i] > most) most = line.highest[i];
    }
    mean[at] = count ? sum / count : null;
    low[at] = count ? least : null;
    high[at] = count ? most : null;
  }
  return [mean, low, high];
}

class Timeline {
  constructor(host, packed) {
    this.host = host;
    this.packed = packed;
    this.charts = [];
    this.pending = 0;
  }

  async show() {
    const buffer = await unpack(this.packed.blob);
    const kinds = new Map();
    let end = 0;
    for (const group of this.packed.groups) {
      const stamps = times(buffer, group.times);
      end = Math.max(end, stamps[stamps.length - 1]);
      for (const channel of group.channels) {
        const mean = values(buffer, channel.mean, channel);
        const line = { name: channel.name, unit: channel.unit, how: channel.how, period: group.period, times: stamps, mean,
          lowest: channel.lowest ? values(buffer, channel.lowest, channel) : mean, highest: channel.highest ? values(buffer, channel.highest, channel) : mean, band: channel.how.startsWith("level") };
        const known = KINDS.findIndex(([start]) => channel.name.startsWith(start));
        const name = known < 0 ? channel.name.split(".")[0] : KINDS[known][1];
        const key = `${name} ${channel.unit}`;
        if (!kinds.has(key)) kinds.set(key, { name, unit: channel.unit, order: known < 0 ? KINDS.length : known, lines: [] });
        kinds.get(key).lines.push(line);
      }
    }
    const steps = this.packed.steps;
    this.steps = steps ? times(buffer, steps.starts) : new Float64Array(0);
    for (const stage of this.packed.stages) end = Math.max(end, stage.end);
    this.whole = [0, Math.max(end, 1e-3)];
    this.view = this.whole;
    this.build([...kinds.values()].sort((a, b) => a.order - b.order));
    this.draw();
  }

  build(kinds) {
    const button = (text, label, act) => h("button", { type: "button", "aria-label": label, title: label, onclick: act }, text);
    const timed = this.packed.stages.find((stage) => stage.name === "timed");
    const traced = this.packed.stages.find((stage) => stage.name === "trace");
    this.where = h("output", { class: "where" });
    const bar = h("div", { class: "tools" }, button("−", "zoom out (-)", () => this.zoom(2)), button("+", "zoom in (+)", () => this.zoom(0.5)),
      button("◀", "earlier (left arrow)", () => this.pan(-0.25)), button("▶", "later (right arrow)", () => this.pan(0.25)),
      button("all", "the whole run (0)", () => this.look(...this.whole)),
      timed ? button("timed steps", "the timed steps", () => this.look(timed.start, timed.end)) : null,
      traced ? button("traced steps", "the traced steps", () => this.look(traced.start, traced.end)) : null, this.where);
    const hosts = kinds.map((kind, at) => this.chart(kind, at === 0));
    const keys = { ArrowLeft: () => this.pan(-0.25), ArrowRight: () => this.pan(0.25), "+": () => this.zoom(0.5), "-": () => this.zoom(2), 0: () => this.look(...this.whole) };
    clear(this.host, bar, h("div", { class: "charts", tabindex: "0", role: "group", "aria-label": "timeline: arrows move, + and - zoom, 0 shows all", onkeydown: (event) => {
      if (keys[event.key] && !event.ctrlKey && !event.metaKey) { event.preventDefault(); keys[event.key](); }
    } }, hosts.map((made) => made.host)));
    for (const made of hosts) made.start();
    this.host.timeline = this;
  }

  chart(kind, first) {
    const plotHost = h("div", { class: "plot" });
    const chart = { lines: kind.lines };
    const labels = kind.lines.map((line, at) => {
      const value = h("b");
      const label = h("button", { type: "button", class: "series", "aria-pressed": "true", title: `${line.how}, every ${format(line.period, "s")}`, onclick: () => {
        const on = label.getAttribute("aria-pressed") !== "true";
        label.setAttribute("aria-pressed", String(on));
        for (const part of [1, 2, 3]) chart.plot.setSeries(at * 3 + part, { show: on });
      } }, h("i", { style: `background:${colour(at)}` }), line.name, " ", value);
      return { label, value };
    });
    const unit = kind.unit;
    const start = () => {
      const series = [{}];
      const ranges = [];
      kind.lines.forEach((line, at) => {
        // A few readings far apart are points: a line would say what lay between them.
        const few = line.times.length < 10;
        series.push({ stroke: colour(at), dash: dash(at), width: 1.2, paths: few ? () => null : undefined, points: { show: few, size: 6, fill: colour(at) } });
        series.push({ stroke: "transparent", points: { show: false } }, { stroke: "transparent", points: { show: false } });
        if (line.band) ranges.push({ series: [at * 3 + 3, at * 3 + 2], fill: `${colour(at)}30` });
      });
      chart.plot = plot(plotHost, {
        height: first ? 166 : 150, padding: [first ? 20 : 8, 12, 0, 0], series, bands: ranges,
        axes: axes("", (_, ticks) => ticks.map((tick) => `${Number(tick.toFixed(4))} s`), unit),
        scales: { x: { time: false, auto: false, range: () => this.view },
          y: { range: (_, low, high) => (low === null ? [0, 1] : unit === "%" ? [0, Math.max(100, high)] : [Math.min(low, unit === "°C" || unit === "Hz" ? low : 0), high > low ? high : low + 1]) } },
        cursor: { sync: { key: "timeline" }, drag: { x: true, y: false, setScale: false }, points: { show: false } },
        hooks: {
          drawClear: [(u) => this.marks(u, first)],
          setSelect: [(u) => {
            if (u.select.width > 4) this.look(u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x"));
            u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
          }],
          setCursor: [(u) => labels.forEach(({ value }, at) => {
            const found = u.cursor.idx === null || u.cursor.idx === undefined ? undefined : u.data[at * 3 + 1][u.cursor.idx];
            value.textContent = found === undefined || found === null ? "" : format(found, unit);
          })],
        },
      }, [[0, 1], ...series.slice(1).map(() => [null, null])]);
      plotHost.addEventListener("dblclick", () => this.look(...this.whole));
      plotHost.addEventListener("wheel", (event) => {
        if (!event.ctrlKey && !event.shiftKey) return;
        event.preventDefault();
        this.zoom((event.deltaY || event.deltaX) > 0 ? 1.3 : 1 / 1.3);
      }, { passive: false });
      this.charts.push(chart);
    };
    return { start, host: h("figure", { class: "chart" }, h("figcaption", null, kind.name, h("span", { class: "serieses" }, labels.map((item) => item.label))), plotHost) };
  }

  /* Stages as shades behind the lines, and where each step begins once there is room for it. */
  marks(u, named) {
    const { ctx, bbox } = u;
    ctx.save();
    this.packed.stages.forEach((stage, at) => {
      const [from, to] = [stage.start, stage.end].map((time) => Math.min(Math.max(u.valToPos(time, "x", true), bbox.left), bbox.left + bbox.width));
      if (to - from < 1) return;
      ctx.fillStyle = at % 2 ? ink("--shade") : ink("--shade2");
      ctx.fillRect(from, bbox.top, to - from, bbox.height);
      ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
      ctx.fillStyle = ink("--soft");
      if (named && ctx.measureText(stage.name).width < to - from - 8) ctx.fillText(stage.name, from + 4, bbox.top - 6 * devicePixelRatio);
    });
    const [first, last] = [firstAtLeast(this.steps, this.view[0]), firstAtLeast(this.steps, this.view[1])];
    if (last > first && bbox.width / (last - first) > 6) {
      ctx.strokeStyle = ink("--mark");
      ctx.lineWidth = 1;
      ctx.beginPath();
      for (let i = first; i < last; i++) {
        const x = Math.round(u.valToPos(this.steps[i], "x", true)) + 0.5;
        ctx.moveTo(x, bbox.top);
        ctx.lineTo(x, bbox.top + bbox.height);
      }
      ctx.stroke();
    }
    ctx.restore();
  }

  look(from, to) {
    const least = 2e-3;
    const length = Math.min(Math.max(to - from, least), this.whole[1]);
    const start = Math.min(Math.max(from, 0), this.whole[1] - length);
    this.view = [start, start + length];
    if (!this.pending) this.pending = requestAnimationFrame(() => { this.pending = 0; this.draw(); });
  }

  zoom(factor) {
    const [from, to] = this.view;
    const middle = (from + to) / 2;
    this.look(middle - (to - from) / 2 * factor, middle + (to - from) / 2 * factor);
  }

  pan(share) {
    const [from, to] = this.view;
    this.look(from + share * (to - from), to + share * (to - from));
  }

  draw() {
    const [from, to] = this.view;
    for (const chart of this.charts) {
      const width = Math.max(50, Math.min(1600, Math.round(chart.plot.bbox.width / devicePixelRatio)));
      const x = Array.from({ length: width }, (_, at) => from + (at + 0.5) * (to - from) / width);
      chart.plot.setData([x, ...chart.lines.flatMap((line) => drawn(line, from, to, width))], true);
    }
    const shown = (firstAtLeast(this.steps, to) - firstAtLeast(this.steps, from)) * (this.packed.steps ? this.packed.steps.every : 1);
    const room = this.charts.length && this.charts[0].plot.bbox.width / Math.max(1, shown) > 6;
    this.where.textContent = `${from.toFixed(2)} to ${to.toFixed(2)} s` + (shown ? `, ${shown} steps begin here${room ? " (lines)" : ""}` : "");
  }
}
