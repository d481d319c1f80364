/* A report carries its runs in the page; the local server is asked for them. */
async function report(data) {
  const root = document.getElementById("app");
  const runs = data.order.map((id) => data.runs[id]);
  const bad = runs.filter((run) => run.tone !== "good").length;
  const several = runs.length > 1;
  const swept = several ? sweep(runs) : { element: null, after: () => {} };
  const head = several ? [h("p", { class: bad ? "verdict doubtful" : "verdict good" }, `${runs.length} runs${bad ? `, ${bad} with warnings or without a result` : ", all without warnings"}.`), overview(runs, (run) => `#${run.id}`), swept.element] : [];
  const views = runs.map((run) => runView(run));
  const bodies = several ? runs.map((run, at) => {
    const fold = h("details", { id: run.id, class: "whole", ontoggle: () => { if (fold.open) show(at); } }, h("summary", null, title(run), " ", chip(run)), views[at].element);
    return fold;
  }) : views.map((view) => view.element);
  const shown = new Set();
  const show = (at) => {
    if (!shown.has(at)) { shown.add(at); views[at].after(); }
  };
  clear(root, h("header", null, h("h1", null, "Ergometer"), h("p", { class: "soft" }, `made ${data.made} by ergometer ${data.version}`)), head, bodies);
  swept.after();
  const follow = () => {
    const target = document.getElementById(location.hash.slice(1));
    if (target && target.matches("details")) { target.open = true; target.scrollIntoView(); }
  };
  window.addEventListener("hashchange", follow);
  window.addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((item) => { item.open = true; }));
  if (several) follow();
  else await views[0].after();
  document.body.dataset.ready = "yes";
}

const embedded = document.getElementById("data");
const data = embedded ? JSON.parse(embedded.textContent) : null;
if (data) report(data);
else {
  window.addEventListener("hashchange", route);
  route();
}
