/* Where a traced step goes: phase > layer > op. The numbers are those of `ergo show`; nothing is added up here. */
const SHARE = ["phase", "layer", "name", "calls", "time", "share", "cpu", "gpu", "energy", "memory", "gpuMemory", "source"];
const SORTS = { time: "time", name: "name", calls: "calls", cpu: "CPU", gpu: "GPU", energy: "energy", memory: "allocated", gpuMemory: "GPU memory" };
const UNITS = { time: "s", cpu: "s", gpu: "s", energy: "J", memory: "B", gpuMemory: "B" };
const FIRST_ROWS = 60;

class Breakdown {
  constructor(shares) {
    const read = (level) => shares[level].map((row) => Object.fromEntries(row.map((value, at) => [SHARE[at], value])));
    const under = (rows, key) => rows.reduce((map, row) => map.set(key(row), [...(map.get(key(row)) || []), row]), new Map());
    this.layers = under(read("layers"), (row) => row.phase);
    this.ops = under(read("ops"), (row) => `${row.phase}\n${row.layer}`);
    this.phases = read("phases");
    this.open = new Set(this.phases.map((row) => row.phase));
    this.more = new Set();
    this.by = "time";
    this.down = true;
    this.words = "";
    this.body = h("tbody");
    const known = (name) => this.phases.some((row) => row[name] !== null);
    this.columns = ["time", "calls", "cpu", "gpu", "energy", "memory", "gpuMemory"].filter((name) => name === "calls" || name === "time" || known(name) || this.some(name));
    this.heads = ["name", ...this.columns].map((name) => h("th", { class: name === "name" ? "left" : null, scope: "col" },
      h("button", { class: "sort", type: "button", onclick: () => this.sort(name) }, name === "name" ? "phase, layer, operation" : SORTS[name])));
    const search = h("input", { type: "search", placeholder: "search layers and operations", "aria-label": "search layers and operations", oninput: () => {
      this.words = search.value.toLowerCase();
      this.fill();
    } });
    const all = (open) => () => {
      this.open = new Set(open ? [...this.layers.keys(), ...this.ops.keys()] : []);
      this.fill();
    };
    this.element = h("div", null, h("div", { class: "tools" }, search, h("button", { type: "button", onclick: all(true) }, "open all"), h("button", { type: "button", onclick: all(false) }, "close all")),
      h("div", { class: "scroll" }, h("table", { class: "tree" }, h("thead", null, h("tr", null, this.heads)), this.body)));
    this.fill();
  }

  some(name) {
    return [...this.ops.values()].some((rows) => rows.some((row) => row[name] !== null));
  }

  sort(name) {
    this.down = this.by === name ? !this.down : name !== "name";
    this.by = name;
    this.fill();
  }

  sorted(rows, label) {
    const key = this.by === "name" ? label : (row) => row[this.by] ?? -1;
    return [...rows].sort((a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : 0) * (this.down ? -1 : 1));
  }

  fill() {
    ["name", ...this.columns].forEach((name, at) => this.heads[at].setAttribute("aria-sort", name !== this.by ? "none" : this.down ? "descending" : "ascending"));
    const matches = (text) => text.toLowerCase().includes(this.words);
    const rows = [];
    for (const phase of this.sorted(this.phases, (row) => row.phase)) {
      const layers = this.sorted(this.layers.get(phase.phase) || [], (row) => row.layer).map((layer) => {
        const key = `${phase.phase}\n${layer.layer}`;
        const ops = this.sorted(this.ops.get(key) || [], (row) => row.name);
        return { layer, key, ops: this.words && !matches(layer.layer) ? ops.filter((op) => matches(op.name)) : ops };
      }).filter((item) => !this.words || matches(item.layer.layer) || item.ops.length);
      if (this.words && !layers.length && !matches(phase.phase)) continue;
      const open = this.words ? true : this.open.has(phase.phase);
      rows.push(this.row(phase, phase.phase, 0, phase.phase, open, layers.length));
      if (!open) continue;
      const limit = this.more.has(phase.phase) ? Infinity : FIRST_ROWS;
      for (const { layer, key, ops } of layers.slice(0, limit)) {
        const inside = this.words ? !matches(layer.layer) || this.open.has(key) : this.open.has(key);
        const alone = ops.length === 1 && ops[0].name === layer.layer;
        rows.push(this.row(layer, layer.layer, 1, key, inside, alone ? 0 : ops.length));
        if (inside && !alone) for (const op of ops) rows.push(this.row(op, op.name, 2, null, false, 0));
      }
      if (layers.length > limit) {
        rows.push(h("tr", null, h("td", { class: "left", colspan: String(this.columns.length + 1) }, h("button", { type: "button", onclick: () => {
          this.more.add(phase.phase);
          this.fill();
        } }, `${layers.length - limit} more layers`))));
      }
    }
    clear(this.body, rows.length ? rows : h("tr", null, h("td", { class: "left" }, "nothing is called that")));
  }

  row(share, label, depth, key, open, children) {
    const name = key && children ? h("button", { type: "button", class: "fold", "aria-expanded": String(open), onclick: () => {
      if (this.open.has(key)) this.open.delete(key);
      else this.open.add(key);
      this.fill();
    } }, label) : h("span", { class: "leaf" }, label);
    const how = share.source === "estimated" ? "estimated: single calls are shorter than the sensor resolves, so each gets its share by time" : "integrated over samples between the stamps of each call";
    return h("tr", { class: `depth${depth}` }, h("td", { class: "left" }, name), this.columns.map((column) => {
      if (column === "time") return h("td", { class: "bar", title: "timed by the engine's tracer, in steps of their own; the mean of the traced steps" }, h("i", { style: `width:${100 * share.share}%` }), h("span", null, `${format(share.time, "s")} `, h("small", null, percent(share.share))));
      if (column === "calls") return h("td", null, share.calls ? String(Number(share.calls.toFixed(2))) : "");
      if (share[column] === null) return h("td", null, "–");
      const sampled = column !== "memory";
      const about = sampled && share.source === "estimated" ? "~" : "";
      return h("td", { title: sampled ? how : "as the framework's allocator reports it" }, about + format(share[column], UNITS[column]));
    }));
  }
}
